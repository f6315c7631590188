# A sampler of the project that keeps every n-th index shards the data, wherever its rank comes from.
import torch
from torch.utils.data import DataLoader, TensorDataset


class InfiniteSampler(torch.utils.data.Sampler):
    def __init__(self, dataset, rank=0, num_replicas=1, seed=0):
        super().__init__(dataset)
        self.dataset = dataset
        self.rank = rank
        self.num_replicas = num_replicas

    def __iter__(self):
        idx = 0
        while True:
            if idx % self.num_replicas == self.rank:
                yield idx % len(self.dataset)
            idx += 1


def training_loop(rank, num_gpus, steps):
    data = TensorDataset(torch.load("x.pt"), torch.load("y.pt"))
    sampler = InfiniteSampler(dataset=data, rank=rank, num_replicas=num_gpus)
    batches = iter(DataLoader(dataset=data, sampler=sampler, batch_size=8))
    model = torch.nn.Linear(4, 2).to(rank)
    if num_gpus > 1:
        model = torch.nn.parallel.DistributedDataParallel(model, device_ids=[rank])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(steps):
        x, y = next(batches)
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(x.to(rank)), y.to(rank)).backward()
        optimizer.step()


def subprocess_fn(rank, num_gpus):
    if num_gpus > 1:
        torch.distributed.init_process_group("nccl", init_method="file:///tmp/f", rank=rank, world_size=num_gpus)
    training_loop(rank, num_gpus, 1000)


def main(num_gpus):
    if num_gpus == 1:
        subprocess_fn(rank=0, num_gpus=num_gpus)
    else:
        torch.multiprocessing.spawn(fn=subprocess_fn, args=(num_gpus,), nprocs=num_gpus)


if __name__ == "__main__":
    import sys
    main(int(sys.argv[1]))
