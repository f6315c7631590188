"""Peaks of small training steps on a real GPU beside our estimates of the same scripts.

    python benchmarks/gpu_calibration.py [--seconds 420] [--only PATTERN] [--rows ROWS.jsonl] [--dry-run]

Needs PyTorch with a CUDA device; torchvision and transformers are used where they are installed. Every case
is a script of its own, run in a process of its own, so that contexts and caches do not mix: the script prints
`max_memory_allocated`, `max_memory_reserved` and what the device reports as taken; the estimate of the same
text, for a card of this name, stands beside it. Cases that no longer fit into the time are left out, by name.
`--rows` appends one JSON object a case with its provenance (GPU, driver, versions). `--dry-run` estimates
only, and checks that each script compiles: what can be tested without a GPU.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

GIB = 1 << 30
#: Printed by every script after its last step, for this program to read.
MARK = "torchwise-peaks"
#: A case takes at most this long, most of it importing torch.
CASE_SECONDS = 60

_HEAD = """\
import torch
import torch.nn as nn
import torch.nn.functional as F
"""
_TAIL = f"""
torch.cuda.synchronize()
free, total = torch.cuda.mem_get_info()
print({MARK!r}, torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved(), total - free)
"""
_STEP = """\
for step in range(3):
    optimizer.zero_grad(set_to_none=True)
{forward}
    loss.backward()
    optimizer.step()
"""


_NETWORKS = (
    "resnet18",
    "resnet50",
    "mobilenet_v2",
    "efficientnet_b0",
    "convnext_tiny",
    "swin_t",
    "vit_b_16",
)
_SIZES = "hidden_size=768, intermediate_size=2048, num_hidden_layers=6, num_attention_heads=12"


@dataclass(frozen=True, slots=True)
class Case:
    """A script and the libraries beside torch that it needs."""

    name: str
    text: str
    needs: tuple[str, ...] = ()


def cases() -> Iterator[Case]:
    """About forty: models of our own first, then libraries'."""
    for precision in ("fp32", "amp", "bf16"):
        yield _mlp(precision)
        yield _gpt(precision, 4, 512, "AdamW(model.parameters(), lr=1e-4)")
        yield _cnn(precision)
    for name, optimizer in (
        ("sgd", "SGD(model.parameters(), lr=0.1)"),
        ("momentum", "SGD(model.parameters(), lr=0.1, momentum=0.9)"),
        ("adam-fused", "AdamW(model.parameters(), lr=1e-4, fused=True)"),
        ("adam-loop", "AdamW(model.parameters(), lr=1e-4, foreach=False)"),
        ("adagrad", "Adagrad(model.parameters(), lr=1e-2)"),
        ("rmsprop", "RMSprop(model.parameters(), lr=1e-3)"),
        ("adafactor", "Adafactor(model.parameters(), lr=1e-3)"),
    ):
        yield _gpt("amp", 2, 256, optimizer, f"gpt-{name}")
    for batch, length in ((1, 1024), (8, 256), (16, 128)):
        yield _gpt("amp", batch, length, "AdamW(model.parameters(), lr=1e-4)", f"gpt-{batch}x{length}")
    yield _gpt("amp", 8, 512, "AdamW(model.parameters(), lr=1e-4)", "gpt-checkpointed", checkpointed=True)
    yield _gpt("amp", 8, 512, "AdamW(model.parameters(), lr=1e-4)", "gpt-accumulated", accumulated=4)
    yield _rnn()
    yield _inference()
    for name in (
        "resnet18",
        "resnet50",
        "mobilenet_v2",
        "efficientnet_b0",
        "convnext_tiny",
        "swin_t",
        "vit_b_16",
    ):
        for precision in ("fp32", "amp"):
            yield _torchvision(name, precision)
    for name, config in (
        ("gpt2", "'gpt2', n_layer=6"),
        ("llama", f"'llama', {_SIZES}"),
        ("qwen3", f"'qwen3', {_SIZES}, num_key_value_heads=4, head_dim=64"),
    ):
        for precision in ("amp", "bf16"):
            yield _transformers(name, config, precision)


def _forward(precision: str, lines: str) -> str:
    if precision != "amp":
        return "\n".join("    " + line for line in lines.splitlines())
    inner = "\n".join("        " + line for line in lines.splitlines())
    return f'    with torch.autocast("cuda", dtype=torch.bfloat16):\n{inner}'


def _dtype(precision: str) -> str:
    return "bfloat16" if precision == "bf16" else "float32"


def _case(
    name: str, model: str, data: str, optimizer: str, precision: str, lines: str, **others: Any
) -> Case:
    step = others.pop("step", _STEP)
    text = (
        f"{_HEAD}{others.pop('imports', '')}\n{model}\nmodel.cuda()\n"
        f"model.to(torch.{_dtype(precision)})\n{data}\n"
        f"optimizer = torch.optim.{optimizer}\nmodel.train()\n"
        f"{step.format(forward=_forward(precision, lines))}{_TAIL}"
    )
    return Case(name, text, others.pop("needs", ()))


def _mlp(precision: str) -> Case:
    model = (
        "model = nn.Sequential(nn.Linear(1024, 4096), nn.GELU(), nn.Linear(4096, 4096), nn.ReLU(), "
        "nn.Dropout(0.1), nn.Linear(4096, 1000))"
    )
    data = f"x = torch.randn(512, 1024, device='cuda', dtype=torch.{_dtype(precision)})\n" + _labels(512)
    lines = "loss = F.cross_entropy(model(x), y)"
    return _case(f"mlp-{precision}", model, data, "AdamW(model.parameters(), lr=1e-3)", precision, lines)


def _labels(count: int) -> str:
    return f"y = torch.randint(0, 1000, ({count},), device='cuda')"


_GPT = """
class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, t, 3, self.heads, c // self.heads).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(b, t, c))
        return x + self.mlp(self.norm2(x))


class GPT(nn.Module):
    def __init__(self, vocabulary=16000, width=768, layers=8, heads=12):
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocabulary, width), nn.Embedding(2048, width)
        self.blocks = nn.ModuleList([Block(width, heads) for _ in range(layers)])
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)

    def forward(self, ids):
        x = self.tokens(ids) + self.places(torch.arange(ids.shape[1], device=ids.device))
        for block in self.blocks:
            x = CALL
        return self.head(self.norm(x))


model = GPT()
"""


def _gpt(
    precision: str,
    batch: int,
    length: int,
    optimizer: str,
    name: str = "",
    checkpointed: bool = False,
    accumulated: int = 1,
) -> Case:
    call = "checkpoint(block, x, use_reentrant=False)" if checkpointed else "block(x)"
    data = f"ids = torch.randint(0, 16000, ({batch}, {length}), device='cuda')"
    lines = "logits = model(ids)\nloss = F.cross_entropy(logits.view(-1, 16000), ids.view(-1))"
    step = _STEP
    if accumulated > 1:
        step = (
            "for step in range(3):\n    optimizer.zero_grad(set_to_none=True)\n"
            f"    for micro in range({accumulated}):\n"
            "        with torch.autocast('cuda', dtype=torch.bfloat16):\n"
            "            logits = model(ids)\n"
            "            loss = F.cross_entropy(logits.view(-1, 16000), ids.view(-1))\n"
            "        loss.backward()\n    optimizer.step()\n"
        )
    imports = "from torch.utils.checkpoint import checkpoint\n" if checkpointed else ""
    return _case(
        name or f"gpt-{precision}",
        _GPT.replace("CALL", call),
        data,
        optimizer,
        precision,
        lines,
        step=step,
        imports=imports,
    )


def _cnn(precision: str) -> Case:
    model = (
        "def block(i, o):\n"
        "    return nn.Sequential(nn.Conv2d(i, o, 3, padding=1, bias=False), nn.BatchNorm2d(o), "
        "nn.ReLU(inplace=True), nn.MaxPool2d(2))\n"
        "model = nn.Sequential(block(3, 64), block(64, 128), block(128, 256), nn.AdaptiveAvgPool2d(1), "
        "nn.Flatten(), nn.Linear(256, 1000))"
    )
    data = f"x = torch.randn(32, 3, 128, 128, device='cuda', dtype=torch.{_dtype(precision)})\n" + _labels(32)
    optimizer = "SGD(model.parameters(), lr=0.1, momentum=0.9)"
    return _case(f"cnn-{precision}", model, data, optimizer, precision, "loss = F.cross_entropy(model(x), y)")


def _rnn() -> Case:
    model = (
        "class Net(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        "        self.rnn, self.head = nn.LSTM(256, 512, 2, batch_first=True), nn.Linear(512, 1000)\n"
        "    def forward(self, x):\n        return self.head(self.rnn(x)[0][:, -1])\nmodel = Net()"
    )
    data = "x = torch.randn(64, 100, 256, device='cuda')\n" + _labels(64)
    lines = "loss = F.cross_entropy(model(x), y)"
    return _case("lstm-fp32", model, data, "AdamW(model.parameters(), lr=1e-3)", "fp32", lines)


def _inference() -> Case:
    text = (
        f"{_HEAD}{_GPT.replace('CALL', 'block(x)')}\nmodel.cuda()\nmodel.to(torch.bfloat16)\nmodel.eval()\n"
        "ids = torch.randint(0, 16000, (8, 512), device='cuda')\n"
        f"for step in range(3):\n    with torch.no_grad():\n        logits = model(ids)\n{_TAIL}"
    )
    return Case("gpt-inference", text)


def _torchvision(name: str, precision: str) -> Case:
    data = "x = torch.randn(16, 3, 224, 224, device='cuda')\n" + _labels(16)
    return _case(
        f"{name}-{precision}",
        f"model = torchvision.models.{name}(weights=None)",
        data,
        "SGD(model.parameters(), lr=0.1, momentum=0.9)",
        precision,
        "loss = F.cross_entropy(model(x), y)",
        imports="import torchvision\n",
        needs=("torchvision",),
    )


def _transformers(name: str, config: str, precision: str) -> Case:
    return _case(
        f"{name}-{precision}",
        f"config = AutoConfig.for_model({config})\nmodel = AutoModelForCausalLM.from_config(config)",
        "ids = torch.randint(0, 1000, (4, 512), device='cuda')",
        "AdamW(model.parameters(), lr=1e-4)",
        precision,
        "loss = model(input_ids=ids, labels=ids).loss",
        imports="from transformers import AutoConfig, AutoModelForCausalLM\n",
        needs=("transformers",),
    )


# --------------------------------------------------------------------------- running


def measured(case: Case, folder: Path) -> tuple[int, int, int] | str:
    """Allocated, reserved and device bytes, or why there are none."""
    path = folder / f"{case.name}.py"
    path.write_text(case.text, encoding="utf-8")
    try:
        run = subprocess.run(
            [sys.executable, str(path)], capture_output=True, text=True, timeout=CASE_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        return f"took longer than {CASE_SECONDS} s"
    for line in run.stdout.splitlines():
        if line.startswith(MARK):
            allocated, reserved, device = map(int, line.split()[1:])
            return allocated, reserved, device
    words = run.stderr.strip().splitlines()
    return words[-1] if words else f"exit {run.returncode} without a word"


def estimated(case: Case, gpu: str) -> dict[str, Any] | str:
    """`peak` of the estimate as JSON, or why there is none."""
    from torchwise_analysis.names.project import Project
    from torchwise_analysis.plan import EstimateRequest, estimate_module
    from torchwise_analysis.source import lower_text

    request = EstimateRequest(gpus=(gpu,), with_remedies=False)
    report = estimate_module(lower_text(f"{case.name}.py", case.text), Project([], []), request)
    if not report.estimates:
        return report.unanswered[0].message if report.unanswered else "no loop was found"
    peak = report.estimates[0].peak
    return {
        kind: None if interval is None else [interval.low, interval.point, interval.high]
        for kind, interval in (
            ("allocated", peak.allocated),
            ("reserved", peak.reserved),
            ("device", peak.device),
        )
    }


def provenance() -> dict[str, str]:
    """GPU, driver and versions, for rows that are kept."""
    import torch  # type: ignore[import-not-found, unused-ignore]

    asked = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    try:
        name, driver = subprocess.run(asked, capture_output=True, text=True, check=True).stdout.split(",")[:2]
    except (OSError, ValueError, subprocess.CalledProcessError):
        name, driver = torch.cuda.get_device_name(), "not read"
    return {
        "gpu": name.strip(),
        "driver": driver.strip().splitlines()[0],
        "torch": str(torch.__version__),
        "cuda": str(torch.version.cuda),
    }


def is_there(library: str) -> bool:
    from importlib.util import find_spec

    return find_spec(library) is not None


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=420, help="stop starting cases after this long")
    parser.add_argument("--only", default="*", help="a pattern of case names")
    parser.add_argument("--gpu", help="estimate for this card instead of the one that is there")
    parser.add_argument("--rows", type=Path, help="append a JSON line a case")
    parser.add_argument("--dry-run", action="store_true", help="estimate only; needs neither torch nor a GPU")
    options = parser.parse_args()
    chosen = [case for case in cases() if fnmatch.fnmatch(case.name, options.only)]
    if options.dry_run:
        return _dry_run(chosen, options.gpu or "a100-80gb")
    facts = provenance()
    print(f"{facts['gpu']}, driver {facts['driver']}, torch {facts['torch']}")
    started, left_out = time.perf_counter(), list[str]()
    errors: dict[str, list[float]] = {"allocated": [], "reserved": [], "device": []}
    with tempfile.TemporaryDirectory() as folder:
        for case in chosen:
            missing = [library for library in case.needs if not is_there(library)]
            if missing or time.perf_counter() - started > options.seconds:
                left_out.append(f"{case.name} ({', '.join(missing) or 'no time left'})")
                continue
            peak = measured(case, Path(folder))
            estimate = estimated(case, options.gpu or facts["gpu"])
            print(_line(case.name, peak, estimate, errors), flush=True)
            if options.rows and not isinstance(peak, str):
                row = {"id": case.name, **facts, "measured": peak, "estimate": estimate, "script": case.text}
                with options.rows.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(row) + "\n")
    for kind, found in errors.items():
        if found:
            sizes = sorted(map(abs, found))
            print(
                f"{kind:9} n={len(sizes)} median {statistics.median(sizes):.2%}, "
                f"90th percentile {sizes[min(len(sizes) - 1, int(0.9 * len(sizes)))]:.2%}, "
                f"worst {sizes[-1]:.2%}"
            )
    if left_out:
        print("left out: " + ", ".join(left_out))
    return 0


def _line(
    name: str,
    peak: tuple[int, int, int] | str,
    estimate: dict[str, Any] | str,
    errors: dict[str, list[float]],
) -> str:
    if isinstance(peak, str) or isinstance(estimate, str):
        return f"{name:24} {peak if isinstance(peak, str) else estimate}"
    parts: list[str] = []
    for kind, true in zip(errors, peak, strict=True):
        ours = estimate[kind]
        if ours is None:
            parts.append(f"{kind} {true / GIB:6.3f} -")
            continue
        error = ours[1] / true - 1
        errors[kind].append(error)
        parts.append(f"{kind} {true / GIB:6.3f} ours {ours[1] / GIB:6.3f} {error:+6.1%}")
    return f"{name:24} " + "   ".join(parts)


def _dry_run(chosen: list[Case], gpu: str) -> int:
    failed = 0
    for case in chosen:
        compile(case.text, f"{case.name}.py", "exec")
        estimate = estimated(case, gpu)
        if isinstance(estimate, str):
            failed += 1
            print(f"{case.name:24} {estimate}")
        else:
            low, point, high = estimate["allocated"]
            print(f"{case.name:24} allocated {point / GIB:6.3f} ({low / GIB:.3f} to {high / GIB:.3f}) GiB")
    print(f"{len(chosen)} cases, {failed} without an estimate")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
