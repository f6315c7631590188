"""What library sources read as text ask of the language and of the standard library."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.shared_analysis.concrete.running import interpreter, run, shown

from torchwise_analysis.interp.concrete.interpreter import Interpreter
from torchwise_analysis.interp.concrete.library.autos import AutoTables
from torchwise_analysis.interp.concrete.library.regular import is_quick
from torchwise_analysis.names.project import Project
from torchwise_memory.allocator import Allocator
from torchwise_memory.runtime.world import World


@pytest.mark.parametrize(
    ("snippet", "expected"),
    [
        ("import re\nresult = re.split(r'(\\d.*)', 'se0.25')", "['se', '0.25', '']"),
        (
            "import re\nm = re.match(r'(?P<a>\\w)(\\d+)', 'k31')\nresult = (m['a'], m.group(2), m.span())",
            "('k', '31', (0, 3))",
        ),
        ("import re\nresult = re.sub(r'_(\\w)', lambda m: m.group(1).upper(), 'a_b_c')", "'aBC'"),
        ("import re\np = re.compile('x', re.IGNORECASE)\nresult = p.findall('aXbx')", "['X', 'x']"),
        ("import re\nresult = re.search('a', 'b') is None", "True"),
        ("def f(a, b=2):\n    return locals()\nresult = f(1)", "{'a': 1, 'b': 2}"),
        ("result = dict.fromkeys('ab', 0)", "{'a': 0, 'b': 0}"),
        ("from functools import partial\nresult = isinstance(partial(len), partial)", "True"),
        ("result = isinstance(1, int | None) and isinstance('a', (int | None) | str)", "True"),
        (
            "class A:\n    @property\n    def x(self):\n        raise AttributeError('x')\n"
            "result = hasattr(A(), 'x')",
            "False",
        ),
        ("from collections import UserDict\nd = UserDict(None)\nd['a'] = 1\nresult = d.data", "{'a': 1}"),
        (
            "from collections.abc import MutableMapping\n"
            "class M(MutableMapping):\n"
            "    def __init__(self):\n        self.d = {'a': 1}\n"
            "    def __getitem__(self, k):\n        return self.d[k]\n"
            "    def __iter__(self):\n        return iter(self.d)\n"
            "    def __len__(self):\n        return len(self.d)\n"
            "m = M()\nresult = (m.get('b', 2), 'a' in m, list(m.items()), list(m.keys()))",
            "(2, True, [('a', 1)], ['a'])",
        ),
        ("import torch\nresult = f'expert_{torch.tensor(3)}'", "'expert_3'"),
        ("import torch\nresult = torch.zeros(2, dtype=bool).dtype is torch.bool", "True"),
        (
            "import torch\nresult = torch.tensor([3., 1., 3.]).unique(return_counts=True)[1].tolist()",
            "[1, 2]",
        ),
        (
            "import torch\nfrom torch import nn\n"
            "try:\n    nn.GELU(inplace=True)\n"
            "except TypeError as error:\n    result = 'inplace' in str(error)",
            "True",
        ),
        ("from torch import nn\nm = nn.BatchNorm2d(3)\nresult = m.reset_parameters()", "None"),
        (
            "import functools, inspect\ndef f(a, b): pass\n"
            "@functools.wraps(f)\ndef g(*args): pass\nresult = list(inspect.signature(g).parameters)",
            "['a', 'b']",
        ),
    ],
)
def test_language_of_libraries(snippet: str, expected: str) -> None:
    assert shown(snippet) == expected


@pytest.mark.parametrize("pattern", [r"(a+)+$", r"(a|a)*b", r"a*a*a*a*a*a*b", r"(\w{1,9}){5}x"])
def test_patterns_that_may_take_long_are_refused(pattern: str) -> None:
    assert not is_quick(pattern, 2000)
    it = interpreter()
    run(f"import re\nresult = re.match(r'''{pattern}''', 'a' * 2000)", it)
    assert "a regular expression that may take long is not followed" in it.assumptions


@pytest.mark.parametrize("pattern", [r"(\d.*)", r"^layers\.(\d+)\.", r"[*+]{1}x?", r"\(a\)\*"])
def test_plain_patterns_are_quick(pattern: str) -> None:
    assert is_quick(pattern, 200)


def test_experts_get_equal_shares_of_a_one_hot_mask() -> None:
    it = interpreter()
    source = (
        "import torch\nfrom torch import nn\n"
        "mask = nn.functional.one_hot(torch.randint(0, 8, (64, 2), device='cuda'), 8).permute(2, 1, 0)\n"
        "experts = nn.ModuleList(nn.Linear(i + 1, 1) for i in range(8))\n"
        "sizes, chosen = [], []\n"
        "for index in (mask.sum((-1, -2)) > 0).nonzero():\n"
        "    where, rows = torch.where(mask[index].squeeze(0))\n"
        "    sizes.append(rows.shape[0])\n"
        "    chosen.append(experts[index].in_features)\n"
    )
    main = run(source, it)
    assert main.names["sizes"] == [16] * 8
    assert main.names["chosen"] == list(range(1, 9))
    assert any("equal shares" in sentence for sentence in it.world.assumptions)


def test_conditions_inside_a_model_stay_consistent() -> None:
    """What counts as false where it is asked for counts as true where its opposite is."""
    source = (
        "import torch\nfrom torch import nn\n"
        "class Net(nn.Module):\n"
        "    def __init__(self):\n        super().__init__()\n        self.fc = nn.Linear(4, 4)\n"
        "    def forward(self, x):\n"
        "        skip = self.training and torch.rand([]) < 0.1\n"
        "        return self.fc(x) if not skip else x\n"
        "result = Net()(torch.rand(2, 4)).requires_grad\n"
    )
    assert shown(source) == "True"


def _package(root: Path, files: dict[str, str]) -> Interpreter:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return Interpreter(Project([], [str(root)]), World(Allocator()))


def test_registrations_at_the_top_level_run(tmp_path: Path) -> None:
    it = _package(
        tmp_path,
        {
            "lib/__init__.py": "",
            "lib/base.py": "REGISTRY = {}\ndef register_block(name, block):\n    REGISTRY[name] = block\n",
            "lib/more.py": (
                "from .base import register_block\nregister_block('more', 7)\ndef make():\n    return 1\n"
            ),
        },
    )
    main = run(
        "from lib.more import make\nmake()\nfrom lib.base import REGISTRY\nresult = REGISTRY['more']", it
    )
    assert main.names["result"] == 7


def test_a_timm_model_takes_its_input_size_from_its_configuration(tmp_path: Path) -> None:
    it = _package(
        tmp_path,
        {
            "timm/__init__.py": "from .models import create_model\n",
            "timm/models/__init__.py": "from .net import *\nfrom ._factory import create_model\n",
            "timm/models/_factory.py": "def create_model(name, **kwargs):\n    raise ValueError\n",
            "timm/models/_pretrained.py": (
                "from dataclasses import dataclass\n@dataclass\nclass PretrainedCfg:\n"
                "    input_size: tuple = (3, 224, 224)\n"
            ),
            "timm/models/_registry.py": (
                "class Found:\n    def __init__(self, cfg):\n        self.default, self.cfgs = cfg, {}\n"
                "def generate_default_cfgs(cfgs):\n"
                "    from ._pretrained import PretrainedCfg\n"
                "    return {k: Found(PretrainedCfg(**v)) for k, v in cfgs.items()}\n"
            ),
            "timm/models/_builder.py": (
                "def build_model_with_cfg(cls, variant, pretrained, **kwargs):\n"
                "    return cls(resolve_pretrained_cfg(variant).input_size[-1])\n"
                "def resolve_pretrained_cfg(variant):\n    raise ValueError\n"
            ),
            "timm/models/net.py": (
                "from torch import nn\nfrom ._builder import build_model_with_cfg\n"
                "from ._registry import generate_default_cfgs, register_model\n"
                "default_cfgs = generate_default_cfgs({\n"
                "    'big': dict(input_size=(3, 384, 384)), 'bad': 1 / 0,\n})\n"
                "@register_model\ndef big(pretrained=False, **kwargs):\n"
                "    return build_model_with_cfg(lambda size: nn.Linear(size, 1), 'big', pretrained)\n"
            ),
        },
    )
    main = run("import timm\nresult = timm.create_model('big').in_features", it)
    assert main.names["result"] == 384


def test_auto_tables_are_read_as_text(tmp_path: Path) -> None:
    folder = tmp_path / "transformers" / "models" / "auto"
    folder.mkdir(parents=True)
    for package in (folder, folder.parent, folder.parent.parent):
        (package / "__init__.py").write_text("")
    (folder / "configuration_auto.py").write_text(
        'NAMES = OrderedDict([("qwen2_vl_text", "Qwen2VLTextConfig"), ("gpt2", "GPT2Config")])\n'
        'SPECIAL = OrderedDict([("qwen2_vl_text", "qwen2_vl")])\n'
    )
    (folder / "modeling_auto.py").write_text(
        'LM_NAMES = OrderedDict(\n    [("gpt2", "GPT2LMHeadModel"), ("two", ("A", "B"))]\n)\n'
        "LM_MAPPING = _LazyAutoMapping(CONFIG_MAPPING_NAMES, LM_NAMES)\n"
        "class AutoModelForCausalLM(_BaseAutoModelClass):\n    _model_mapping = LM_MAPPING\n"
    )
    tables = AutoTables(Project([], [str(tmp_path)]))
    assert tables.config_class("qwen2_vl_text") == (
        "transformers.models.qwen2_vl.configuration_qwen2_vl",
        "Qwen2VLTextConfig",
    )
    assert tables.config_class("other") is None
    assert tables.model_class("AutoModelForCausalLM", "gpt2") == "GPT2LMHeadModel"
    assert tables.model_class("AutoModelForCausalLM", "two") == "A"
    assert tables.autos() == {"AutoModelForCausalLM"}


@pytest.mark.parametrize(
    ("ties", "stated", "parameters"),
    [
        ('{"lm_head.weight": "model.embed_tokens.weight"}', True, 800),
        ('["lm_head.weight"]', True, 800),  # transformers 4
        ('["lm_head.weight"]', False, 1600),
        ("None", True, 1600),
    ],
)
def test_weights_are_tied_as_either_major_version_says(
    tmp_path: Path, ties: str, stated: bool, parameters: int
) -> None:
    folder = tmp_path / "site" / "transformers"
    tiny = folder / "models" / "tiny"
    tiny.mkdir(parents=True)
    for name in ("__init__", "modeling_utils", "configuration_utils", "models/__init__"):
        (folder / f"{name}.py").write_text("class PreTrainedModel: ...\nclass PretrainedConfig: ...\n")
    (tiny / "__init__.py").write_text("")
    (tiny / "configuration_tiny.py").write_text(
        "from ...configuration_utils import PretrainedConfig\n\n"
        "class TinyConfig(PretrainedConfig):\n    model_type = 'tiny'\n"
    )
    (tiny / "modeling_tiny.py").write_text(
        "from torch import nn\nfrom ...modeling_utils import PreTrainedModel\n"
        "from .configuration_tiny import TinyConfig\n\n"
        "class TinyModel(PreTrainedModel):\n    config_class = TinyConfig\n"
        "    def __init__(self, config):\n        super().__init__(config)\n"
        "        self.position = nn.Embedding(0, 8)\n        self.embed_tokens = nn.Embedding(100, 8)\n"
        "        self.post_init()\n\n"
        "class TinyForCausalLM(PreTrainedModel):\n    config_class = TinyConfig\n"
        f"    base_model_prefix = 'model'\n    _tied_weights_keys = {ties}\n"
        "    def __init__(self, config):\n        super().__init__(config)\n"
        "        self.model = TinyModel(config)\n        self.lm_head = nn.Linear(8, 100, bias=False)\n"
        "        self.post_init()\n"
    )
    it = Interpreter(Project([], [str(tmp_path / "site")]), World(Allocator()))
    source = (
        "from transformers.models.tiny.configuration_tiny import TinyConfig\n"
        "from transformers.models.tiny.modeling_tiny import TinyForCausalLM\n"
        f"model = TinyForCausalLM(TinyConfig(tie_word_embeddings={stated}))\n"
        "result = sum(p.numel() for p in model.parameters())\n"
    )
    assert run(source, it).names["result"] == parameters


DETECTION = """
import torch
from torchvision.models.detection._utils import BalancedPositiveNegativeSampler
from torchvision.ops.boxes import batched_nms
from torchvision.ops.roi_align import roi_align

boxes = torch.rand(300, 4, device="cuda")
kept = batched_nms(boxes, boxes[:, 0], boxes[:, 0], 0.5)[:200]
positive, negative = BalancedPositiveNegativeSampler(64, 0.25)([torch.zeros(200), torch.zeros(40)])
chosen = [torch.where(a | b)[0] for a, b in zip(positive, negative)]
trained = torch.where(torch.cat(positive, dim=0))[0]
features = torch.zeros(2, 8, 50, 50, device="cuda", requires_grad=True)
pooled = roi_align(features, [boxes[:64], boxes[:40]], 7, 0.25)
pooled.sum().backward()
result = (len(kept), [len(c) for c in chosen], len(trained), tuple(pooled.shape), tuple(features.grad.shape))
"""


def test_numbers_of_detections_are_bounded(tmp_path: Path) -> None:
    package = tmp_path / "site" / "torchvision"
    for name in ("__init__", "ops/__init__", "ops/boxes", "ops/roi_align", "models/__init__"):
        (package / name).parent.mkdir(parents=True, exist_ok=True)
        (package / f"{name}.py").write_text("")
    (package / "models" / "detection").mkdir()
    for name in ("__init__", "_utils"):
        (package / "models" / "detection" / f"{name}.py").write_text("")
    it = Interpreter(Project([], [str(tmp_path / "site")]), World(Allocator()))
    found = run(DETECTION, it).names["result"]
    assert found == (200, [64, 40], 26, (104, 8, 7, 7), (2, 8, 50, 50))
    assert "positive_share" in it.chosen
