# A fixed order is no sign of training; the evaluation is out of sight.
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, SequentialSampler, TensorDataset
from torch.utils.data.distributed import DistributedSampler

from my_metrics import evaluate


def main():
    dist.init_process_group("nccl")
    train_data = TensorDataset(torch.load("x.pt"), torch.load("y.pt"))
    eval_data = TensorDataset(torch.load("xe.pt"), torch.load("ye.pt"))
    train_loader = DataLoader(train_data, batch_size=8, sampler=DistributedSampler(train_data))
    eval_sampler = SequentialSampler(eval_data)
    eval_loader = DataLoader(eval_data, batch_size=8, sampler=eval_sampler)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 2).cuda())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(3):
        train_loader.sampler.set_epoch(epoch)
        for x, y in train_loader:
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(x.cuda()), y.cuda()).backward()
            optimizer.step()
    print(len(eval_loader))


if __name__ == "__main__":
    main()
