# Each process draws its own data.
import deepspeed
import torch


def random_dataloader(model, total, hidden, device):
    data = torch.randn(total, hidden, device=device)
    label = torch.empty(total, dtype=torch.long, device=device).random_(hidden)
    dataset = torch.utils.data.TensorDataset(data, label)
    return torch.utils.data.DataLoader(dataset, batch_size=model.train_micro_batch_size_per_gpu())


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(8, 8)

    def forward(self, x, y):
        return torch.nn.functional.cross_entropy(self.linear(x), y)


def main(config):
    model = Net()
    model, _, _, _ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)
    for x, y in random_dataloader(model, 100, 8, model.device):
        loss = model(x, y)
        model.backward(loss)
        model.step()


if __name__ == "__main__":
    main({"train_batch_size": 4})
