# 😋 A small classifier with one mistake: the losses of a whole epoch keep their graphs.
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset


class Classifier(nn.Module):
    def __init__(self, width=2048, classes=1000):
        super().__init__()
        self.up = nn.Linear(768, width)
        self.down = nn.Linear(width, classes)

    def forward(self, x):
        return self.down(F.gelu(self.up(x)))


def main():
    device = torch.device("cuda")
    model = Classifier().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    data = TensorDataset(torch.randn(65536, 768), torch.randint(0, 1000, (65536,)))
    loader = DataLoader(data, batch_size=256, shuffle=True, drop_last=True)
    history = []
    model.train()
    for inputs, targets in loader:
        inputs, targets = inputs.to(device), targets.to(device)
        optimizer.zero_grad(set_to_none=True)
        loss = F.cross_entropy(model(inputs), targets)
        loss.backward()
        optimizer.step()
        history.append(loss)
    print(torch.stack(history).mean().item())


if __name__ == "__main__":
    main()
