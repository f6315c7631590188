# A sampler of the project that strides its indices by rank shards the data.
import math
import os

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Sampler, TensorDataset


class EnlargedSampler(Sampler):
    def __init__(self, dataset, num_replicas, rank, ratio=1):
        self.dataset = dataset
        self.num_replicas = num_replicas
        self.rank = rank
        self.num_samples = math.ceil(len(dataset) * ratio / num_replicas)
        self.total_size = self.num_samples * num_replicas

    def __iter__(self):
        indices = torch.randperm(self.total_size).tolist()
        indices = [v % len(self.dataset) for v in indices]
        indices = indices[self.rank:self.total_size:self.num_replicas]
        return iter(indices)

    def __len__(self):
        return self.num_samples


def load():
    return TensorDataset(torch.load("x.pt"), torch.load("y.pt"))


def main():
    opt = {"rank": int(os.environ["RANK"]), "world_size": int(os.environ["WORLD_SIZE"])}
    dist.init_process_group("nccl")
    data = load()
    sampler = EnlargedSampler(data, opt["world_size"], opt["rank"], 1)
    loader = DataLoader(data, batch_size=8, sampler=sampler)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 2).cuda())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x, y in loader:
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(x.cuda()), y.cuda()).backward()
        optimizer.step()


if __name__ == "__main__":
    main()
