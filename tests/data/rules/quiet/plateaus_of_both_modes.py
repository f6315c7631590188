# Each metric goes to a scheduler of its own mode; signs are turned where they have to be.
import torch
from torch import nn
from torch.optim.lr_scheduler import ReduceLROnPlateau


def evaluate(model, loader):
    model.eval()
    total, hits, seen = 0.0, 0, 0
    with torch.no_grad():
        for x, y in loader:
            scores = model(x)
            total += nn.functional.cross_entropy(scores, y, reduction="sum").item()
            hits += (scores.argmax(1) == y).sum().item()
            seen += y.size(0)
    return total / seen, hits / seen


def fit(loader, held_out):
    model = nn.Sequential(nn.Linear(12, 32), nn.ReLU(), nn.Linear(32, 4))
    first, second = model[0], model[2]
    slow = torch.optim.SGD(first.parameters(), lr=0.1)
    fast = torch.optim.SGD(second.parameters(), lr=0.1)
    by_loss, by_accuracy = ReduceLROnPlateau(slow, "min"), ReduceLROnPlateau(fast, mode="max")
    for epoch in range(30):
        model.train()
        for x, y in loader:
            slow.zero_grad()
            fast.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            slow.step()
            fast.step()
        val_loss, val_acc = evaluate(model, held_out)
        if epoch % 2:
            by_loss.step(val_loss)
            by_accuracy.step(val_acc)
        else:
            by_loss.step(1.0 - val_acc)
            by_accuracy.step(-val_loss)
