# What an unknown callable gives need not be a tensor.
import torch
import torch.nn as nn


class ResNet(nn.Module):  # semseg resnet.py:143, cifar100 resnet/resnext/senet/..., guided betas
    def _make_layer(self, block, planes, blocks):
        layers = []
        for _ in range(1, blocks):
            layers.append(block(planes, planes))
        return nn.Sequential(*layers)


class Vit(nn.Module):  # deit models_v2.py:202
    def __init__(self, depth, block_layers):
        super().__init__()
        self.blocks = nn.ModuleList([block_layers(dim=8) for _ in range(depth)])


def tokenize(strings, tokenizer):  # open_clip tokenizer 314 342 403, torchtune _sentencepiece:46, DSE train.py:92
    tokenized = [tokenizer(text, return_tensors="pt") for text in strings]
    return [t.input_ids[0] for t in tokenized]


def betas(n, alpha_bar, max_beta=0.999):  # guided gaussian_diffusion.py:61
    out = []
    for i in range(n):
        out.append(min(1 - alpha_bar((i + 1) / n) / alpha_bar(i / n), max_beta))
    return out


class Decoder(nn.Module):  # OpenNMT transformer.py:496-519
    def __init__(self, layers):
        super().__init__()
        self.layers = layers
        self.state = {}

    def map_state(self, fn):
        self.state["src"] = fn(self.state["src"], 0)
        for layer in self.layers:
            x = fn(layer.cache["keys"], 0)
            y = fn(layer.cache["values"], 0)
            layer.cache = {"keys": x, "values": y}
