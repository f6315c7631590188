import torch
from torch import nn

model = nn.Linear(8, 1)
optimizer = torch.optim.LBFGS(model.parameters())


def fit(x, y):
    def closure():
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        return loss

    for _ in range(20):
        optimizer.step(closure)
