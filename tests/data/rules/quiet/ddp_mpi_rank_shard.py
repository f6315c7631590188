# The data set is cut by the rank that MPI gives.
import torch
import torch.distributed as dist
from mpi4py import MPI
from torch.utils.data import DataLoader, Dataset


class ImageDataset(Dataset):
    def __init__(self, paths, shard=0, num_shards=1):
        super().__init__()
        self.local = paths[shard:][::num_shards]

    def __len__(self):
        return len(self.local)

    def __getitem__(self, i):
        return torch.load(self.local[i])


def load_data(paths, batch_size):
    data = ImageDataset(paths, shard=MPI.COMM_WORLD.Get_rank(), num_shards=MPI.COMM_WORLD.Get_size())
    loader = DataLoader(data, batch_size=batch_size, shuffle=True, num_workers=4)
    while True:
        yield from loader


def main(paths):
    dist.init_process_group("nccl")
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 2).cuda())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    batches = load_data(paths, 8)
    for _ in range(1000):
        optimizer.zero_grad()
        model(next(batches).cuda()).pow(2).mean().backward()
        optimizer.step()


if __name__ == "__main__":
    import sys
    main(sys.argv[1:])
