"""Scripts of kinds that the reference tables lack, against a real PyTorch on fake tensors: at most 3 % off.

The real run is on the CPU (`device` is replaced), so scripts avoid what only CUDA kernels do: no autocast, no
dropout, attention written out, `foreach` optimizers named. Births and deaths of storages are recorded as
PyTorch makes them, in blocks of 512 bytes; cuBLAS workspaces, which a CPU does not have, are not counted.
"""

# PyTorch is not installed where the types are checked.
# pyright: reportMissingImports=false
from __future__ import annotations

import gc
import weakref
from pathlib import Path
from typing import Any

import pytest

from torchwise_analysis.names.project import Project
from torchwise_analysis.plan import EstimateRequest, estimate_module
from torchwise_analysis.source import lower_text
from torchwise_memory.report import Estimate

FOLDER = Path(__file__).parent / "own_scripts"
NAMES = sorted(path.stem for path in FOLDER.glob("*.txt"))
ALLOWED = 0.03


def text_of(name: str) -> str:
    return (FOLDER / f"{name}.txt").read_text(encoding="utf-8")


def estimate(name: str) -> Estimate:
    request = EstimateRequest(with_remedies=False, with_alternatives=False)
    report = estimate_module(lower_text(f"{name}.py", text_of(name)), Project([], []), request)
    assert not report.unanswered, report.unanswered
    return report.estimates[0]


@pytest.mark.parametrize("name", NAMES)
def test_a_script_of_its_own_kind_is_answered(name: str) -> None:
    found = estimate(name)
    assert found.parameters
    assert found.peak.allocated is not None


@pytest.mark.torch
@pytest.mark.parametrize("name", NAMES)
def test_a_script_takes_what_pytorch_takes(name: str) -> None:
    pytest.importorskip(
        "torch", reason="PyTorch is not installed in this environment (see `make test-torch`)"
    )
    parameters, peak = measured(text_of(name))
    found = estimate(name)
    assert found.parameters == parameters
    assert found.peak.allocated is not None
    ours = found.peak.allocated.point - found.breakdown["workspaces"]
    assert ours == pytest.approx(peak, rel=ALLOWED)


def measured(script: str) -> tuple[int, int]:
    """Parameters, and the peak of the third step of the script under fake tensors."""
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_leaves

    class Watch(TorchDispatchMode):  # type: ignore[misc]
        """Bytes of the storages that operators return, while anything holds them."""

        def __init__(self) -> None:
            super().__init__()
            self.alive = self.peak = 0
            self.known: set[int] = set()

        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            result = function(*args, **(kwargs or {}))
            for tensor in tree_leaves(result):
                if isinstance(tensor, torch.Tensor):
                    self.note(tensor.untyped_storage())
            return result

        def note(self, storage: Any) -> None:
            key = storage._cdata
            if key in self.known:
                return
            self.known.add(key)
            size = -(-storage.nbytes() // 512) * 512
            self.alive += size
            self.peak = max(self.peak, self.alive)
            weakref.finalize(storage, self.forget, key, size)

        def forget(self, key: int, size: int) -> None:
            self.known.discard(key)
            self.alive -= size

    # a model is on the CPU as it is; moving fake parameters would swap them
    script = script.replace('device = "cuda"', 'device = "cpu"').replace(".to(device)", "")
    before, loop = script.split("for step in range(3):")
    watch = Watch()
    names: dict[str, Any] = {"__name__": "__main__"}
    gc.collect()
    gc.disable()
    try:
        with FakeTensorMode(allow_non_fake_inputs=True), watch:
            # the scripts beside this file, nothing of a user's
            exec(compile(before, "own", "exec"), names)
            step = compile("if True:" + loop, "own", "exec")
            for number in range(3):
                if number == 2:
                    watch.peak = watch.alive
                exec(step, names)
    finally:
        gc.enable()
    count = sum(parameter.numel() for parameter in names["model"].parameters())
    return count, watch.peak
