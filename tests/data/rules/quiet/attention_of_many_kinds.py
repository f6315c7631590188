# Softmax over positions, time, experts and slots: axes that are meant.
import math

import torch
import torch.nn.functional as F
from torch import nn


class MultiHead(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads, self.qkv, self.out = heads, nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x, mask=None):
        b, n, w = x.shape
        q, k, v = self.qkv(x).view(b, n, 3, self.heads, w // self.heads).permute(2, 0, 3, 1, 4)
        scores = q @ k.transpose(-2, -1) / math.sqrt(w // self.heads)
        if mask is not None:
            scores = scores.masked_fill(mask, float("-inf"))
        return self.out((scores.softmax(dim=-1) @ v).transpose(1, 2).reshape(b, n, w))


class TimePool(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.score = nn.Linear(width, 1)

    def forward(self, x):
        weights = F.softmax(self.score(x), dim=1)
        return torch.bmm(weights.transpose(1, 2), x).squeeze(1)


class SequenceFirst(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.rnn, self.score = nn.GRU(width, width), nn.Linear(width, 1)

    def forward(self, x):
        outputs, _ = self.rnn(x)
        weights = torch.softmax(self.score(outputs), dim=0)
        return (weights * outputs).sum(0)


class Slots(nn.Module):
    def __init__(self, width, slots):
        super().__init__()
        self.slots = nn.Parameter(torch.randn(1, slots, width))

    def forward(self, x):
        b, n, w = x.shape
        slots = self.slots.expand(b, -1, -1)
        logits = torch.einsum("bid,bjd->bij", slots, x) * w**-0.5
        weights = logits.softmax(dim=1) + 1e-8
        return torch.einsum("bjd,bij->bid", x, weights / weights.sum(dim=-1, keepdim=True))


class Experts(nn.Module):
    def __init__(self, width, count):
        super().__init__()
        self.gate = nn.Linear(width, count)
        self.parts = nn.ModuleList([nn.Linear(width, width) for _ in range(count)])

    def forward(self, x):
        flat = x.reshape(-1, x.shape[-1])
        chosen, best = F.softmax(self.gate(flat), dim=1).topk(2, dim=1)
        out = torch.zeros_like(flat)
        for number, part in enumerate(self.parts):
            rows, which = torch.where(best == number)
            out[rows] += chosen[rows, which, None] * part(flat[rows])
        return out.view_as(x)


class Pairs(nn.Module):
    def forward(self, image, text, scale):
        logits = scale * F.normalize(image, dim=-1) @ F.normalize(text, dim=-1).t()
        labels = torch.arange(logits.size(0), device=logits.device)
        return (F.cross_entropy(logits, labels) + F.cross_entropy(logits.t(), labels)) / 2


def dot(query, context):
    b, m, w = query.size()
    scores = torch.bmm(query, context.transpose(1, 2))
    weights = F.softmax(scores.view(b * m, -1), dim=1).view(b, m, -1)
    return torch.bmm(weights, context)
