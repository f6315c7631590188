# One factory makes the loaders of all phases; the one for validation is in fixed order.
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


def build_dataloader(dataset, options, sampler=None):
    phase = options["phase"]
    if phase == "train":
        args = dict(dataset=dataset, batch_size=8, shuffle=False, sampler=sampler, drop_last=True)
        if sampler is None:
            args["shuffle"] = True
    elif phase in ["val", "test"]:
        args = dict(dataset=dataset, batch_size=1, shuffle=False, num_workers=0)
    else:
        raise ValueError(phase)
    args["pin_memory"] = options.get("pin_memory", False)
    return DataLoader(**args)


def create(opt):
    train_loader, val_loaders = None, []
    for phase, options in opt["datasets"].items():
        if phase == "train":
            data = TensorDataset(torch.load("x.pt"), torch.load("y.pt"))
            sampler = DistributedSampler(data)
            train_loader = build_dataloader(data, options, sampler=sampler)
        else:
            data = TensorDataset(torch.load("xe.pt"), torch.load("ye.pt"))
            val_loaders.append(build_dataloader(data, options, sampler=None))
    return train_loader, sampler, val_loaders


def main(opt):
    dist.init_process_group("nccl")
    train_loader, sampler, val_loaders = create(opt)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 2).cuda())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(3):
        sampler.set_epoch(epoch)
        for x, y in train_loader:
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(x.cuda()), y.cuda()).backward()
            optimizer.step()
        for loader in val_loaders:
            model.validate(loader)


if __name__ == "__main__":
    import json
    main(json.load(open("opt.json")))
