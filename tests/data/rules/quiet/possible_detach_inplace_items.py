# Items of a carried tuple are cut from their graph in place.
import torch


def main(model, batches, criterion, opt):
    hidden = (torch.zeros(1, 2, 4), torch.zeros(1, 2, 4))
    for data, target in batches:
        hidden[0].detach_()
        hidden[1].detach_()
        output, hidden = model(data, hidden)
        loss = criterion(output, target)
        opt.zero_grad()
        loss.backward()
        opt.step()
