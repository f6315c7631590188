import torch
from torch import nn
from torch.optim.swa_utils import SWALR, AveragedModel, update_bn

model = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Linear(8, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
averaged = AveragedModel(model)
schedule = SWALR(optimizer, swa_lr=0.05)


def train(loader, held_out):
    for epoch in range(10):
        model.train()
        for x, y in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
        averaged.update_parameters(model)
        schedule.step()
    update_bn(loader, averaged)
    averaged.eval()
    with torch.no_grad():
        return sum((averaged(x).argmax(1) == y).sum().item() for x, y in held_out)
