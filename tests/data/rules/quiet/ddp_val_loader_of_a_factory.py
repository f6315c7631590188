# The keywords of training and validation loaders come out of one variable: which of them shuffles is not known.
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

from my_data import build_dataset


def build_loader(dataset, phase, sampler):
    if phase == "train":
        options = dict(dataset=dataset, batch_size=8, shuffle=False, sampler=sampler)
        if sampler is None:
            options["shuffle"] = True
    else:
        options = dict(dataset=dataset, batch_size=1, shuffle=False)
    options["pin_memory"] = True
    return DataLoader(**options)


def build(opt):
    val_loaders = []
    for phase, options in opt["datasets"].items():
        dataset = build_dataset(options)
        if phase == "train":
            loader = build_loader(dataset, phase, DistributedSampler(dataset))
        else:
            val_loaders.append(build_loader(dataset, phase, None))
    return loader, val_loaders


def main(opt, fit):
    dist.init_process_group("nccl")
    loader, val_loaders = build(opt)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 2).cuda())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x, y in loader:
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(x.cuda()), y.cuda()).backward()
        optimizer.step()
    for val_loader in val_loaders:
        fit.validate(val_loader)
