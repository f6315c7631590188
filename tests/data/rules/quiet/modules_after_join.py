# Parts of a module, named in two branches and once more behind them.
import torch.nn as nn


def build(opt, flag):
    model = nn.Sequential(nn.Linear(4, 2), nn.Dropout())
    if flag():
        for name, module in model.named_modules():
            module.half()
    else:
        for name, module in model.named_modules():
            module.float()
    for name, module in model.named_modules():
        print(name)
    return model
