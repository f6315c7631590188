# Counts are added over the ranks before they are shown; the checkpoint is loaded to the host.
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler


def evaluate(model, loader, device):
    model.eval()
    counts = torch.zeros(2, device=device)
    with torch.no_grad():
        for x, y in loader:
            x, y = x.to(device), y.to(device)
            counts[0] += (model(x).argmax(1) == y).sum()
            counts[1] += len(y)
    dist.all_reduce(counts)
    return (counts[0] / counts[1]).item()


def main(train_set, val_set, resume):
    dist.init_process_group("nccl")
    rank = int(os.environ["LOCAL_RANK"])
    device = torch.device("cuda", rank)
    model = nn.Linear(12, 4).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, mode="max", patience=3)
    if resume is not None:
        model.load_state_dict(torch.load(resume, map_location=device))
    model = DistributedDataParallel(model, device_ids=[rank])
    sampler = DistributedSampler(train_set)
    train = DataLoader(train_set, 32, sampler=sampler, num_workers=4, drop_last=True)
    val = DataLoader(val_set, 32, sampler=DistributedSampler(val_set, shuffle=False), num_workers=4)
    best = 0.0
    for epoch in range(100):
        sampler.set_epoch(epoch)
        model.train()
        for x, y in train:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x.to(device)), y.to(device)).backward()
            optimizer.step()
        accuracy = evaluate(model, val, device)
        plateau.step(accuracy)
        if rank == 0:
            print(epoch, accuracy)
            if accuracy > best:
                torch.save(model.module.state_dict(), "best.pt")
        best = max(best, accuracy)
