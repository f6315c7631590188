import torch
from ignite.engine import Engine
from torch import nn

model = nn.Linear(8, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def update(engine, batch):
    x, y = batch
    loss = nn.functional.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.item()


trainer = Engine(update)
trainer.run(torch.utils.data.DataLoader(torch.load("data.pt"), shuffle=True), max_epochs=3)
