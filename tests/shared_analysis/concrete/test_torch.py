# ruff: noqa: E501 - a snippet is easier to read beside its answer than cut into pieces
"""How a program's modules, tensors and loaders behave: each snippet's `result` against what torch gives."""

from __future__ import annotations

import pytest
from tests.shared_analysis.concrete.running import shown

HEAD = "import torch\nfrom torch import nn\nimport torch.nn.functional as F\n"

# The expected values were read off torch 2.x.
SNIPPETS: dict[str, tuple[str, str]] = {
    "a submodule that is set again keeps its place": (
        "m = nn.Sequential()\nm.a = nn.Linear(1, 2)\nm.b = nn.ReLU()\nm.a = nn.Linear(1, 3)\n"
        "result = [n for n, _ in m.named_children()]",
        "['a', 'b']",
    ),
    "parameters of nested modules": (
        "class A(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        "        self.w = nn.Parameter(torch.zeros(3))\n        self.register_buffer('b', torch.zeros(2))\n"
        "        self.inner = nn.ModuleList(nn.Linear(2, 2, bias=False) for _ in range(2))\n"
        "result = [(n, tuple(p.shape)) for n, p in A().named_parameters()], list(A().state_dict())",
        "([('w', (3,)), ('inner.0.weight', (2, 2)), ('inner.1.weight', (2, 2))], "
        "['w', 'b', 'inner.0.weight', 'inner.1.weight'])",
    ),
    "tied weights count once": (
        "class A(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        "        self.a, self.b = nn.Embedding(5, 4), nn.Linear(4, 5, bias=False)\n"
        "        self.b.weight = self.a.weight\n"
        "result = sum(p.numel() for p in A().parameters())",
        "20",
    ),
    "modes reach children": (
        "m = nn.Sequential(nn.Dropout(), nn.Sequential(nn.ReLU()))\nm.eval()\nresult = [x.training for x in m.modules()]",
        "[False, False, False, False]",
    ),
    "forward with keywords": (
        "class A(nn.Module):\n    def forward(self, x, *, scale=1):\n        return x * scale\n"
        "result = tuple(A()(torch.zeros(2, 3), scale=4).shape)",
        "(2, 3)",
    ),
    "shapes": (
        "x = torch.zeros(2, 3, 4)\nb, s, d = x.shape\n"
        "result = (b * s, x.size(-1), tuple(x.transpose(1, 2).shape), len(x), x.numel(), tuple(x[:, 1:].shape))",
        "(6, 4, (2, 4, 3), 2, 24, (2, 2, 4))",
    ),
    "small tensors carry values": (
        "result = [int(v) for v in torch.linspace(0, 8, 5)], torch.arange(3).tolist()",
        "([0, 2, 4, 6, 8], [0, 1, 2])",
    ),
    "slices of unknown start have known lengths": (
        "data = torch.zeros(10000, dtype=torch.long)\nix = torch.randint(len(data) - 8, (4,))\n"
        "x = torch.stack([data[i:i + 8] for i in ix])\nresult = tuple(x.shape)",
        "(4, 8)",
    ),
    "no_grad as a decorator": (
        "@torch.no_grad()\ndef f(x):\n    return (x * 2).requires_grad\n"
        "x = torch.zeros(2, requires_grad=True)\nresult = (f(x), (x * 2).requires_grad)",
        "(False, True)",
    ),
    "default collate": (
        "from torch.utils.data import DataLoader, Dataset\n"
        "class D(Dataset):\n    def __len__(self):\n        return 10\n    def __getitem__(self, i):\n"
        "        return {'x': torch.zeros(3, 4), 'y': 1}\n"
        "batch = next(iter(DataLoader(D(), batch_size=5)))\n"
        "result = tuple(batch['x'].shape), tuple(batch['y'].shape), len(DataLoader(D(), batch_size=4))",
        "((5, 3, 4), (5,), 3)",
    ),
    "transforms decide the image": (
        "from torch.utils.data import DataLoader\nfrom torchvision import datasets, transforms\n"
        "t = transforms.Compose([transforms.Resize(256), transforms.CenterCrop(224), transforms.ToTensor()])\n"
        "x, y = next(iter(DataLoader(datasets.CIFAR10('d', transform=t), batch_size=2)))\n"
        "result = tuple(x.shape), tuple(y.shape)",
        "((2, 3, 224, 224), (2,))",
    ),
    "hooks see what goes through": (
        "seen = []\nm = nn.Linear(2, 3)\nh = m.register_forward_hook(lambda mod, a, out: seen.append(tuple(out.shape)))\n"
        "m(torch.zeros(4, 2))\nh.remove()\nm(torch.zeros(4, 2))\nresult = seen",
        "[(4, 3)]",
    ),
    "devices compare": (
        "d = torch.device('cuda:0')\nresult = (d.type, d == torch.device('cuda:0'), torch.zeros(1).to(d).is_cuda)",
        "('cuda', True, True)",
    ),
}


@pytest.mark.parametrize("name", SNIPPETS)
def test_agrees_with_torch(name: str) -> None:
    source, expected = SNIPPETS[name]
    assert shown(HEAD + source) == expected
