# 😋 One mistake: the losses of a whole epoch keep their graphs.
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

device = torch.device("cuda")
model = nn.Sequential(
    nn.Linear(768, 8192), nn.GELU(),
    nn.Linear(8192, 8192), nn.GELU(),
    nn.Linear(8192, 1000),
).to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
data = TensorDataset(torch.randn(65536, 768), torch.randint(0, 1000, (65536,)))
loader = DataLoader(data, batch_size=4096, shuffle=True, drop_last=True)
history = []

model.train()
for inputs, targets in loader:
    inputs, targets = inputs.to(device), targets.to(device)
    optimizer.zero_grad()
    loss = F.cross_entropy(model(inputs), targets)
    loss.backward()
    optimizer.step()
    history.append(loss)

print(torch.stack(history).mean().item())
