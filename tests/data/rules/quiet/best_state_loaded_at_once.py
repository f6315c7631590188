# The weights are loaded at once, no step in between.
import torch
import torch.nn as nn
from transformers import AutoModelForCausalLM


class ValueHead(nn.Module):
    def __init__(self, base):
        super().__init__()
        self.base = base
        self.v_head = nn.Linear(4, 1)

    @classmethod
    def from_pretrained(cls, name, resuming=True):
        base = AutoModelForCausalLM.from_pretrained(name) if isinstance(name, str) else name
        model = cls(base)
        if isinstance(name, str):
            state_dict = torch.load(name)
        else:
            state_dict = name.state_dict()
        if resuming:
            model.post_init(state_dict=state_dict)
        return model

    def post_init(self, state_dict):
        for k in list(state_dict.keys()):
            if "v_head." in k:
                state_dict[k.replace("v_head.", "")] = state_dict.pop(k)
        self.v_head.load_state_dict(state_dict, strict=False)
        del state_dict

    def forward(self, x):
        return self.v_head(self.base(x))


def train(model, loader):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x in loader:
        optimizer.zero_grad()
        model(x).sum().backward()
        optimizer.step()


def main(loader, base):
    train(base, loader)
    model = ValueHead.from_pretrained(base)
    train(model, loader)
