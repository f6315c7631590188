# The compiled function returns what is to be read; numbers are read where nothing is compiled.
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(12, 32), nn.Linear(32, 4)

    def forward(self, x):
        if self.training:
            x = x + 0.01 * torch.randn_like(x)
        h = self.body(x)
        return self.head(torch.where(h > 0, h, 0.1 * h))


@torch.compile
def step(model, x, y):
    return nn.functional.cross_entropy(model(x), y)


def train(loader):
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for i, (x, y) in enumerate(loader):
        optimizer.zero_grad(set_to_none=True)
        loss = step(model, x, y)
        loss.backward()
        optimizer.step()
        if i % 100 == 0:
            print(i, loss.item())
