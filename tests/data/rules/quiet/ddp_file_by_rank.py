# Each rank reads its own file.
import os

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset, RandomSampler


class Shard(Dataset):
    def __init__(self, path):
        self.inputs = torch.load(path)

    def __len__(self):
        return len(self.inputs)

    def __getitem__(self, i):
        return self.inputs[i]


class Provider:
    def __init__(self, folder):
        self.rank = dist.get_rank()
        self.world_size = dist.get_world_size()
        self.files = sorted(os.listdir(folder))
        self.sampler = RandomSampler

    def shard_file(self, index):
        return self.files[(index * self.world_size + self.rank) % len(self.files)]

    def get_shard(self, index):
        data = Shard(self.shard_file(index))
        return DataLoader(data, sampler=self.sampler(data), batch_size=8)


def main():
    dist.init_process_group("nccl")
    provider = Provider("data")
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 2).cuda())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(3):
        for x in provider.get_shard(epoch):
            optimizer.zero_grad()
            model(x.cuda()).pow(2).mean().backward()
            optimizer.step()


if __name__ == "__main__":
    main()
