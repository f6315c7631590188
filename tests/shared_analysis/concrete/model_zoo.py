"""Small models of many kinds, in plain PyTorch: read as text by the driver, run by PyTorch in marked tests.

`MODELS` has for each a function that builds the model and one that makes a loss from it.
"""

# mypy: ignore-errors
# pyright: reportMissingImports=false
# ruff: noqa: B905

import math

import torch
import torch.nn.functional as F
from torch import nn


class MLP(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(64, 128), nn.ReLU(), nn.Dropout(0.1), nn.Linear(128, 128), nn.GELU(), nn.Linear(128, 10)
        )

    def forward(self, x):
        return self.net(x)


class LeNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 6, 5), nn.Conv2d(6, 16, 5)
        self.fc1, self.fc2 = nn.Linear(256, 120), nn.Linear(120, 10)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.conv1(x)), 2)
        x = F.max_pool2d(torch.tanh(self.conv2(x)), 2)
        return self.fc2(F.relu(self.fc1(x.flatten(1))))


class Bottleneck(nn.Module):
    def __init__(self, channels, inner, stride=1):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(channels, inner, 1, bias=False), nn.BatchNorm2d(inner)
        self.conv2, self.bn2 = nn.Conv2d(inner, inner, 3, stride, 1, bias=False), nn.BatchNorm2d(inner)
        self.conv3, self.bn3 = nn.Conv2d(inner, 4 * inner, 1, bias=False), nn.BatchNorm2d(4 * inner)
        self.relu = nn.ReLU(inplace=True)
        self.down = None
        if stride != 1 or channels != 4 * inner:
            self.down = nn.Sequential(
                nn.Conv2d(channels, 4 * inner, 1, stride, bias=False), nn.BatchNorm2d(4 * inner)
            )

    def forward(self, x):
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.relu(self.bn2(self.conv2(out)))
        out = self.bn3(self.conv3(out))
        out += x if self.down is None else self.down(x)
        return self.relu(out)


class ResNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, 16, 7, 2, 3), nn.BatchNorm2d(16), nn.ReLU(True), nn.MaxPool2d(3, 2, 1)
        )
        self.layers = nn.Sequential(Bottleneck(16, 8), Bottleneck(32, 8), Bottleneck(32, 16, 2))
        self.head = nn.Linear(64, 10)

    def forward(self, x):
        x = self.layers(self.stem(x))
        return self.head(F.adaptive_avg_pool2d(x, 1).flatten(1))


class DenseNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(3, 16, 3, padding=1)
        self.norms = nn.ModuleList(nn.BatchNorm2d(16 + 8 * i) for i in range(4))
        self.convs = nn.ModuleList(nn.Conv2d(16 + 8 * i, 8, 3, padding=1) for i in range(4))

    def forward(self, x):
        x = self.first(x)
        for norm, conv in zip(self.norms, self.convs):
            x = torch.cat([x, conv(F.relu(norm(x)))], 1)
        return x.mean((2, 3))


class InvertedResidual(nn.Module):
    def __init__(self, channels, expand):
        super().__init__()
        inner = channels * expand
        self.body = nn.Sequential(
            nn.Conv2d(channels, inner, 1, bias=False),
            nn.BatchNorm2d(inner),
            nn.ReLU6(inplace=True),
            nn.Conv2d(inner, inner, 3, 1, 1, groups=inner, bias=False),
            nn.BatchNorm2d(inner),
            nn.ReLU6(inplace=True),
            nn.Conv2d(inner, channels, 1, bias=False),
            nn.BatchNorm2d(channels),
        )

    def forward(self, x):
        return x + self.body(x)


class MobileNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 16, 3, 2, 1), nn.BatchNorm2d(16), nn.Hardswish(inplace=True))
        self.body = nn.Sequential(InvertedResidual(16, 4), InvertedResidual(16, 6))

    def forward(self, x):
        return self.body(self.stem(x)).mean((2, 3))


class SqueezeExcite(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 32, 3, padding=1)
        self.fc1, self.fc2 = nn.Conv2d(32, 8, 1), nn.Conv2d(8, 32, 1)
        self.act = nn.SiLU(inplace=True)

    def forward(self, x):
        x = self.act(self.conv(x))
        scale = torch.sigmoid(self.fc2(F.silu(self.fc1(F.adaptive_avg_pool2d(x, 1)))))
        return (x * scale).mean((2, 3))


class ShuffleNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 24, 3, 2, 1)
        self.branch = nn.Sequential(
            nn.Conv2d(12, 12, 1),
            nn.BatchNorm2d(12),
            nn.ReLU(True),
            nn.Conv2d(12, 12, 3, 1, 1, groups=12),
            nn.BatchNorm2d(12),
        )

    def forward(self, x):
        x = self.conv(x)
        a, b = x.chunk(2, dim=1)
        x = torch.cat((a, self.branch(b)), dim=1)
        n, c, h, w = x.size()
        x = x.view(n, 2, c // 2, h, w).transpose(1, 2).contiguous().view(n, c, h, w)
        return x.mean((2, 3))


class UNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.enc1, self.enc2, self.mid = self.block(3, 8), self.block(8, 16), self.block(16, 32)
        self.up2, self.up1 = nn.ConvTranspose2d(32, 16, 2, 2), nn.ConvTranspose2d(16, 8, 2, 2)
        self.dec2, self.dec1 = self.block(32, 16), self.block(16, 8)
        self.head = nn.Conv2d(8, 2, 1)

    @staticmethod
    def block(a, b):
        return nn.Sequential(
            nn.Conv2d(a, b, 3, padding=1),
            nn.BatchNorm2d(b),
            nn.LeakyReLU(0.1, inplace=True),
            nn.Conv2d(b, b, 3, padding=1),
            nn.GroupNorm(4, b),
            nn.ReLU(inplace=True),
        )

    def forward(self, x):
        a = self.enc1(x)
        b = self.enc2(F.max_pool2d(a, 2))
        x = self.mid(F.max_pool2d(b, 2))
        x = self.dec2(torch.cat([self.up2(x), b], 1))
        return self.head(self.dec1(torch.cat([self.up1(x), a], 1)))


class ConvNeXt(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 32, 4, 4)
        self.dw = nn.Conv2d(32, 32, 7, padding=3, groups=32)
        self.norm = nn.LayerNorm(32)
        self.fc1, self.fc2 = nn.Linear(32, 128), nn.Linear(128, 32)
        self.gamma = nn.Parameter(torch.ones(32))

    def forward(self, x):
        x = self.stem(x)
        y = self.dw(x).permute(0, 2, 3, 1)
        y = self.gamma * self.fc2(F.gelu(self.fc1(self.norm(y))))
        return (x + y.permute(0, 3, 1, 2)).mean((2, 3))


class Attention(nn.Module):
    def __init__(self, dim, heads, causal=False, dropout=0.0):
        super().__init__()
        self.heads, self.causal = heads, causal
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.drop = nn.Dropout(dropout)

    def forward(self, x):
        b, n, d = x.shape
        q, k, v = self.qkv(x).view(b, n, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4).unbind(0)
        scores = q @ k.transpose(-2, -1) / math.sqrt(d // self.heads)
        if self.causal:
            mask = torch.triu(torch.ones(n, n, dtype=torch.bool, device=x.device), 1)
            scores = scores.masked_fill(mask, float("-inf"))
        weights = self.drop(scores.softmax(-1))
        return self.out((weights @ v).transpose(1, 2).reshape(b, n, d))


class Block(nn.Module):
    def __init__(self, dim, heads, causal=False, dropout=0.0):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.attention = Attention(dim, heads, causal, dropout)
        self.mlp = nn.Sequential(
            nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim), nn.Dropout(dropout)
        )

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class ViT(nn.Module):
    def __init__(self):
        super().__init__()
        self.patch = nn.Conv2d(3, 48, 8, 8)
        self.token = nn.Parameter(torch.zeros(1, 1, 48))
        self.position = nn.Parameter(torch.zeros(1, 17, 48))
        self.blocks = nn.Sequential(*[Block(48, 4, dropout=0.1) for _ in range(2)])
        self.head = nn.Linear(48, 10)

    def forward(self, x):
        x = self.patch(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], 1) + self.position
        return self.head(self.blocks(x)[:, 0])


class Swin(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.block = nn.Conv2d(3, 32, 4, 4), Block(32, 4)
        self.merge = nn.Linear(128, 64, bias=False)

    def forward(self, x):
        x = self.embed(x).permute(0, 2, 3, 1)
        b, h, w, c = x.shape
        x = torch.roll(x, (-2, -2), (1, 2))
        windows = x.view(b, h // 4, 4, w // 4, 4, c).permute(0, 1, 3, 2, 4, 5).reshape(-1, 16, c)
        windows = self.block(windows)
        x = windows.view(b, h // 4, w // 4, 4, 4, c).permute(0, 1, 3, 2, 4, 5).reshape(b, h, w, c)
        x = torch.cat([x[:, 0::2, 0::2], x[:, 1::2, 0::2], x[:, 0::2, 1::2], x[:, 1::2, 1::2]], -1)
        return self.merge(x).mean((1, 2))


class Mixer(nn.Module):
    def __init__(self):
        super().__init__()
        self.patch = nn.Linear(48, 64)
        self.tokens = nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.Linear(128, 64))
        self.channels = nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.Linear(128, 64))
        self.norm1, self.norm2 = nn.LayerNorm(64), nn.LayerNorm(64)

    def forward(self, x):
        x = F.unfold(x, 4, stride=4).transpose(1, 2)
        x = self.patch(x)
        x = x + self.tokens(self.norm1(x).transpose(1, 2)).transpose(1, 2)
        return (x + self.channels(self.norm2(x))).mean(1)


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.position = nn.Embedding(100, 64), nn.Embedding(32, 64)
        self.blocks = nn.ModuleList([Block(64, 4, causal=True, dropout=0.1) for _ in range(2)])
        self.norm, self.head = nn.LayerNorm(64), nn.Linear(64, 100, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, ids):
        x = self.embed(ids) + self.position(torch.arange(ids.shape[1], device=ids.device))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


class RMSNorm(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))

    def forward(self, x):
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))


class Llama(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(100, 64)
        self.norm1, self.norm2 = RMSNorm(64), RMSNorm(64)
        self.q, self.kv, self.o = nn.Linear(64, 64, False), nn.Linear(64, 32, False), nn.Linear(64, 64, False)
        self.gate, self.up, self.down = (
            nn.Linear(64, 172, False),
            nn.Linear(64, 172, False),
            nn.Linear(172, 64, False),
        )
        self.head = nn.Linear(64, 100, False)

    @staticmethod
    def rotate(x, cos, sin):
        a, b = x.chunk(2, -1)
        return x * cos + torch.cat((-b, a), -1) * sin

    def forward(self, ids):
        x = self.embed(ids)
        b, n, _ = x.shape
        h = self.norm1(x)
        q = self.q(h).view(b, n, 4, 16).transpose(1, 2)
        k, v = self.kv(h).view(b, n, 2, 16).chunk(2, 2)
        angles = torch.outer(torch.arange(n).float(), 10000 ** (-torch.arange(0, 16, 2).float() / 16))
        cos, sin = torch.cat([angles, angles], -1).cos(), torch.cat([angles, angles], -1).sin()
        q = self.rotate(q, cos, sin)
        k = self.rotate(k.transpose(1, 2), cos, sin).repeat_interleave(4, 1)
        v = v.transpose(1, 2)[:, :, None].expand(b, 1, 4, n, 16).reshape(b, 4, n, 16)
        scores = (q @ k.transpose(2, 3)) * 0.25 + torch.full((n, n), -1e9).triu(1)
        h = (F.softmax(scores, dim=-1, dtype=torch.float32).to(q.dtype) @ v).transpose(1, 2).contiguous()
        x = x + self.o(h.view(b, n, 64))
        h = self.norm2(x)
        return self.head(x + self.down(F.silu(self.gate(h)) * self.up(h)))


class Seq2Seq(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(100, 32)
        self.encoder = nn.ModuleList([Block(32, 2) for _ in range(2)])
        self.q, self.kv, self.out = nn.Linear(32, 32), nn.Linear(32, 64), nn.Linear(32, 32)
        self.bias = nn.Embedding(32, 2)
        self.head = nn.Linear(32, 100)

    def forward(self, source, target):
        memory = self.embed(source)
        for layer in self.encoder:
            memory = layer(memory)
        q = self.q(self.embed(target)).unflatten(-1, (2, 16)).transpose(1, 2)
        k, v = self.kv(memory).unflatten(-1, (2, 32)).transpose(1, 2).split(16, -1)
        distance = (torch.arange(target.shape[1])[:, None] - torch.arange(source.shape[1])[None]).clamp(0, 31)
        scores = torch.einsum("bhqd,bhkd->bhqk", q, k) + self.bias(distance).permute(2, 0, 1).unsqueeze(0)
        h = torch.einsum("bhqk,bhkd->bqhd", scores.log_softmax(-1).exp(), v).flatten(2)
        return self.head(self.out(h))


class GRU(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(50, 32)
        self.x, self.h, self.head = nn.Linear(32, 96), nn.Linear(32, 96), nn.Linear(32, 50)

    def forward(self, ids):
        h = torch.zeros(ids.shape[0], 32)
        outputs = []
        for x in self.embed(ids).unbind(1):
            xr, xz, xn = self.x(x).chunk(3, -1)
            hr, hz, hn = self.h(h).chunk(3, -1)
            r, z = torch.sigmoid(xr + hr), torch.sigmoid(xz + hz)
            n = torch.tanh(xn + r * hn)
            h = (1 - z) * n + z * h
            outputs.append(h)
        return self.head(torch.stack(outputs, 1))


class TCN(nn.Module):
    def __init__(self):
        super().__init__()
        self.convs = nn.ModuleList([nn.Conv1d(16, 16, 3, dilation=2**i) for i in range(3)])
        self.prelu = nn.PReLU(16)

    def forward(self, x):
        for i, conv in enumerate(self.convs):
            y = conv(F.pad(x, (2 * 2**i, 0)))
            x = x + F.dropout(self.prelu(y), 0.2, self.training)
        return x.mean(2)


class WaveNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.filters = nn.ModuleList([nn.Conv1d(16, 32, 2, dilation=2**i, padding=2**i) for i in range(3)])
        self.skips = nn.ModuleList([nn.Conv1d(16, 16, 1) for _ in range(3)])

    def forward(self, x):
        total = 0
        for conv, skip in zip(self.filters, self.skips):
            y = F.glu(conv(x)[..., : x.shape[-1]], dim=1)
            s = skip(y)
            total = total + s
            x = x + s
        return F.elu(total).mean(2)


class Video(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv3d(3, 8, 3, padding=1),
            nn.BatchNorm3d(8),
            nn.ReLU(),
            nn.MaxPool3d(2),
            nn.Conv3d(8, 16, (1, 3, 3)),
            nn.Softplus(),
            nn.AdaptiveAvgPool3d(1),
            nn.Flatten(),
            nn.Linear(16, 5),
        )

    def forward(self, x):
        return self.net(x)


class VAE(nn.Module):
    def __init__(self):
        super().__init__()
        self.encode, self.mean, self.variance = nn.Linear(64, 32), nn.Linear(32, 8), nn.Linear(32, 8)
        self.decode = nn.Sequential(nn.Linear(8, 32), nn.ELU(), nn.Linear(32, 64))

    def forward(self, x):
        h = torch.tanh(self.encode(x))
        mean, log_variance = self.mean(h), self.variance(h)
        z = mean + torch.randn_like(mean) * torch.exp(0.5 * log_variance)
        again = torch.sigmoid(self.decode(z))
        kl = -0.5 * torch.sum(1 + log_variance - mean.pow(2) - log_variance.exp())
        return F.binary_cross_entropy(again, x, reduction="sum") + kl


class Generator(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(
            nn.ConvTranspose2d(16, 32, 4, 1, 0, bias=False),
            nn.BatchNorm2d(32),
            nn.ReLU(True),
            nn.ConvTranspose2d(32, 16, 4, 2, 1, bias=False),
            nn.InstanceNorm2d(16, affine=True),
            nn.LeakyReLU(0.2, True),
            nn.ConvTranspose2d(16, 3, 4, 2, 1),
            nn.Tanh(),
        )

    def forward(self, z):
        return self.net(z)


class SuperResolution(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 16, 5, 1, 2), nn.Conv2d(16, 9, 3, 1, 1)
        self.shuffle = nn.PixelShuffle(3)

    def forward(self, x):
        fine = self.shuffle(self.conv2(F.relu(self.conv1(x))))
        return fine + F.interpolate(x, scale_factor=3, mode="bilinear", align_corners=False)


class GCN(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(16, 32), nn.Linear(32, 4)

    def forward(self, x, adjacency):
        x = F.dropout(F.relu(adjacency @ self.fc1(x)), 0.5, self.training)
        return F.log_softmax(adjacency @ self.fc2(x), dim=1)


class GAT(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc, self.score = nn.Linear(16, 32), nn.Linear(64, 1)

    def forward(self, x, source, target):
        h = self.fc(x)
        pairs = torch.cat([h[source], h.index_select(0, target)], 1)
        weight = F.leaky_relu(self.score(pairs), 0.2).exp()
        total = torch.zeros(x.shape[0], 1).index_add(0, target, weight)
        messages = h[source] * (weight / total[target])
        return torch.zeros_like(h).scatter_add(0, target[:, None].expand_as(messages), messages)


class Experts(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate = nn.Linear(16, 4)
        self.up, self.down = nn.Parameter(torch.randn(4, 16, 32)), nn.Parameter(torch.randn(4, 32, 16))

    def forward(self, x):
        weights, chosen = torch.topk(self.gate(x).softmax(-1), 2, -1)
        weights = weights / weights.sum(-1, keepdim=True)
        h = torch.einsum("nd,edf->nef", x, self.up).relu()
        every = torch.einsum("nef,efd->ned", h, self.down)
        picked = torch.gather(every, 1, chosen[..., None].expand(-1, -1, 16))
        return (picked * weights[..., None]).sum(1)


class StateSpace(nn.Module):
    def __init__(self):
        super().__init__()
        self.project, self.conv = nn.Linear(16, 64), nn.Conv1d(32, 32, 4, groups=32, padding=3)
        self.rates, self.step = nn.Parameter(torch.randn(32, 4)), nn.Linear(32, 32)
        self.into, self.out = nn.Linear(32, 8), nn.Linear(32, 16)

    def forward(self, x):
        h, z = self.project(x).chunk(2, -1)
        h = F.silu(self.conv(h.transpose(1, 2))[..., : x.shape[1]]).transpose(1, 2)
        step = F.softplus(self.step(h))
        b, c = self.into(h).chunk(2, -1)
        decay = torch.exp(step[..., None] * -torch.exp(self.rates))
        state = torch.zeros(x.shape[0], 32, 4)
        outputs = []
        for i in range(x.shape[1]):
            state = decay[:, i] * state + (step[:, i] * h[:, i])[..., None] * b[:, i, None]
            outputs.append((state * c[:, i, None]).sum(-1))
        return self.out(torch.stack(outputs, 1) * F.silu(z))


class Siamese(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.LayerNorm(64), nn.Linear(64, 16))
        self.temperature = nn.Parameter(torch.tensor(1.0))

    def forward(self, a, b):
        a, b = F.normalize(self.net(a), dim=-1), F.normalize(self.net(b), dim=-1)
        return a @ b.t() * self.temperature.exp()


class Bag(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.fc = nn.Embedding(100, 16, padding_idx=0), nn.Linear(32, 4)

    def forward(self, ids):
        x = self.embed(ids)
        mask = (ids != 0).unsqueeze(-1)
        mean = (x * mask).sum(1) / mask.sum(1).clamp(min=1)
        return self.fc(torch.cat([mean, x.max(1).values], -1))


class Factorization(nn.Module):
    def __init__(self):
        super().__init__()
        self.user, self.item, self.bias = nn.Embedding(50, 8), nn.Embedding(60, 8), nn.Embedding(60, 1)

    def forward(self, users, items):
        return (self.user(users) * self.item(items)).sum(1) + self.bias(items).squeeze(1)


class Denoiser(nn.Module):
    def __init__(self):
        super().__init__()
        self.time = nn.Sequential(nn.Linear(16, 32), nn.SiLU(), nn.Linear(32, 32))
        self.conv1, self.norm1 = nn.Conv2d(3, 32, 3, padding=1), nn.GroupNorm(8, 32)
        self.conv2, self.norm2 = nn.Conv2d(32, 32, 3, padding=1), nn.GroupNorm(8, 32)
        self.down, self.out = nn.Conv2d(32, 32, 3, 2, 1), nn.Conv2d(64, 3, 3, padding=1)

    def forward(self, x, t):
        frequency = torch.exp(-math.log(10000) * torch.arange(8).float() / 8)
        angle = t[:, None].float() * frequency[None]
        time = self.time(torch.cat([angle.sin(), angle.cos()], -1))
        h = F.silu(self.norm1(self.conv1(x))) + time[:, :, None, None]
        low = F.silu(self.norm2(self.conv2(self.down(h))))
        return self.out(torch.cat([h, F.interpolate(low, scale_factor=2, mode="nearest")], 1))


class Field(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1, self.fc2, self.fc3 = nn.Linear(39, 64), nn.Linear(103, 64), nn.Linear(64, 4)

    def forward(self, points):
        scaled = points[..., None] * 2.0 ** torch.arange(6)
        code = torch.cat([points, scaled.sin().flatten(-2), scaled.cos().flatten(-2)], -1)
        h = F.relu(self.fc1(code))
        h = F.relu(self.fc2(torch.cat([h, code], -1)))
        rgb, density = self.fc3(h).split([3, 1], -1)
        alpha = 1 - torch.exp(-F.relu(density[..., 0]) * 0.1)
        left = torch.cumprod(1 - alpha + 1e-6, -1)
        return ((alpha * left)[..., None] * rgb.sigmoid()).sum(-2)


class Points(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.conv2 = nn.Conv1d(3, 32, 1), nn.Conv1d(32, 64, 1)
        self.bn1, self.bn2, self.fc = nn.BatchNorm1d(32), nn.BatchNorm1d(64), nn.Linear(64, 5)

    def forward(self, x):
        x = F.relu(self.bn1(self.conv1(x)))
        x = F.mish(self.bn2(self.conv2(x)))
        return self.fc(torch.max(x, 2)[0])


class Fourier(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.norm, self.fc = nn.Embedding(100, 32), nn.LayerNorm(32), nn.Linear(32, 100)

    def forward(self, ids):
        x = self.embed(ids)
        mixed = torch.fft.fft(torch.fft.fft(x, dim=-1), dim=-2).real
        return self.fc(self.norm(x + mixed))


def classes(count, kinds=10):
    return torch.arange(count) % kinds


def classified(*shape, kinds=10):
    return lambda model: F.cross_entropy(model(torch.rand(*shape)), classes(shape[0], kinds))


def summed(*shape):
    return lambda model: model(torch.rand(*shape)).pow(2).mean()


def words(model):
    ids = torch.arange(4 * 24).view(4, 24) % 50
    logits = model(ids)
    return F.cross_entropy(logits[:, :-1].reshape(-1, logits.shape[-1]), ids[:, 1:].reshape(-1))


def translated(model):
    ids = torch.arange(4 * 20).view(4, 20) % 50
    return F.cross_entropy(model(ids, ids[:, :16]).flatten(0, 1), ids[:, 4:].flatten(), label_smoothing=0.1)


def graph(model):
    return F.nll_loss(model(torch.rand(30, 16), torch.rand(30, 30)), classes(30, 4))


def edges(model):
    return model(torch.rand(30, 16), torch.arange(90) % 30, torch.arange(90) // 3).abs().sum()


def contrasted(model):
    logits = model(torch.rand(16, 32), torch.rand(16, 32))
    return F.cross_entropy(logits, torch.arange(16)) + F.cross_entropy(logits.t(), torch.arange(16))


def rated(model):
    return F.mse_loss(model(torch.arange(40) % 50, torch.arange(40)), torch.rand(40))


def denoised(model):
    return F.smooth_l1_loss(model(torch.rand(4, 3, 16, 16), torch.arange(4)), torch.rand(4, 3, 16, 16))


def segmented(model):
    logits = model(torch.rand(2, 3, 32, 32))
    return F.cross_entropy(logits, torch.zeros(2, 32, 32, dtype=torch.long))


def judged(model):
    return F.binary_cross_entropy_with_logits(model(torch.arange(6 * 12).view(6, 12) % 100), torch.rand(6, 4))


MODELS = {
    "mlp": (MLP, classified(32, 64)),
    "lenet": (LeNet, classified(8, 1, 28, 28)),
    "resnet": (ResNet, classified(4, 3, 64, 64)),
    "densenet": (DenseNet, summed(4, 3, 16, 16)),
    "mobilenet": (MobileNet, summed(4, 3, 32, 32)),
    "squeeze-excite": (SqueezeExcite, summed(4, 3, 16, 16)),
    "shufflenet": (ShuffleNet, summed(4, 3, 32, 32)),
    "unet": (UNet, segmented),
    "convnext": (ConvNeXt, summed(4, 3, 32, 32)),
    "vit": (ViT, classified(4, 3, 32, 32)),
    "swin": (Swin, summed(2, 3, 32, 32)),
    "mixer": (Mixer, summed(4, 3, 32, 32)),
    "gpt": (GPT, words),
    "llama": (Llama, words),
    "seq2seq": (Seq2Seq, translated),
    "gru": (GRU, words),
    "tcn": (TCN, summed(4, 16, 40)),
    "wavenet": (WaveNet, summed(4, 16, 40)),
    "video": (Video, classified(2, 3, 8, 16, 16, kinds=5)),
    "vae": (VAE, lambda model: model(torch.rand(16, 64))),
    "generator": (Generator, summed(4, 16, 1, 1)),
    "super-resolution": (SuperResolution, summed(2, 1, 16, 16)),
    "gcn": (GCN, graph),
    "gat": (GAT, edges),
    "experts": (Experts, summed(40, 16)),
    "state-space": (StateSpace, summed(2, 12, 16)),
    "siamese": (Siamese, contrasted),
    "bag": (Bag, judged),
    "factorization": (Factorization, rated),
    "denoiser": (Denoiser, denoised),
    "field": (Field, summed(8, 16, 3)),
    "points": (Points, classified(4, 3, 64, kinds=5)),
    "fourier": (Fourier, words),
}
