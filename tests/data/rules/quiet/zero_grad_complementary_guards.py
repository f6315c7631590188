# Of n > 1 and n == 1 one holds for every count: one of the clears always runs.
import torch


class Trainer:
    def __init__(self, model, optim, accum_count):
        self.model = model
        self.optim = optim
        self.accum_count = accum_count

    def train(self, windows):
        for batches in windows:
            self.accumulate(batches)

    def accumulate(self, batches):
        if self.accum_count > 1:
            self.optim.zero_grad(set_to_none=True)
        for x, y in batches:
            if self.accum_count == 1:
                self.optim.zero_grad(set_to_none=True)
            loss = torch.nn.functional.cross_entropy(self.model(x), y) / self.accum_count
            loss.backward()
        self.optim.step()


def main(args, windows):
    model = torch.nn.Linear(4, 2)
    Trainer(model, torch.optim.Adam(model.parameters()), args.accum_count).train(windows)
