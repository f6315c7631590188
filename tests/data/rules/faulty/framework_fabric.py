# finds: missing-zero-grad certain @ 15
import torch
from lightning.fabric import Fabric
from torch import nn

fabric = Fabric(accelerator="cuda", devices=2)
fabric.launch()
model = nn.Linear(8, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model, optimizer = fabric.setup(model, optimizer)
loader = fabric.setup_dataloaders(torch.utils.data.DataLoader(torch.load("data.pt"), batch_size=4, shuffle=True))
for epoch in range(3):
    for x, y in loader:
        loss = nn.functional.cross_entropy(model(x), y)
        fabric.backward(loss)
        optimizer.step()
