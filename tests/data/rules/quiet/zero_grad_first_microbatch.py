# Cleared at the first micro-batch; a loss with a graph requires gradients.
import torch
import torch.nn.functional as F


def zero_grad(params):
    for p in params:
        if p.grad is not None:
            p.grad.detach_()
            p.grad.zero_()


class Trainer:
    def __init__(self, model):
        self.model = model
        self.params = list(model.parameters())

    def zero_grad(self):
        zero_grad(self.params)

    def backward(self, loss):
        loss.backward()

    def optimize(self, opt):
        opt.step()
        return True


def split_microbatches(microbatch, *args):
    bs = len(args[0])
    if microbatch == -1 or microbatch >= bs:
        yield tuple(args)
    else:
        for i in range(0, bs, microbatch):
            yield tuple(x[i:i + microbatch] if x is not None else None for x in args)


def main(args, data):
    model = torch.nn.Linear(4, 2)
    trainer = Trainer(model)
    opt = torch.optim.AdamW(trainer.params, lr=args.lr)

    def forward_backward_log(loader):
        batch, labels = next(loader)
        for i, (sub_batch, sub_labels) in enumerate(split_microbatches(args.microbatch, batch, labels)):
            loss = F.cross_entropy(model(sub_batch), sub_labels, reduction="none").mean()
            if loss.requires_grad:
                if i == 0:
                    trainer.zero_grad()
                trainer.backward(loss * len(sub_batch) / len(batch))

    for step in range(args.iterations):
        forward_backward_log(data)
        trainer.optimize(opt)
