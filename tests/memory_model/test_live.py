"""The live guard against the estimate from source of the same step, and what it leaves untouched."""

# PyTorch is not installed where the types are checked.
# pyright: reportMissingImports=false
from __future__ import annotations

import json
import textwrap
from pathlib import Path
from typing import Any

import pytest
from tests.memory_model.live_models import MODELS

from torchwise_analysis.names.project import Project
from torchwise_analysis.plan import EstimateRequest, estimate_module
from torchwise_analysis.source import lower_text
from torchwise_memory.report import Interval, Verdict
from torchwise_server.cli import main

torch: Any = pytest.importorskip(
    "torch", reason="PyTorch is not installed in this environment (see `make test-torch`)"
)
pytestmark = pytest.mark.torch

TRANSFORMER = """
    class Block(nn.Module):
        def __init__(self, d, h):
            super().__init__()
            self.h = h
            self.n1, self.n2 = nn.LayerNorm(d), nn.LayerNorm(d)
            self.qkv, self.out = nn.Linear(d, 3 * d), nn.Linear(d, d)
            self.up, self.down = nn.Linear(d, 4 * d), nn.Linear(4 * d, d)

        def forward(self, x):
            b, t, d = x.shape
            q, k, v = self.qkv(self.n1(x)).chunk(3, dim=-1)
            q, k, v = (y.view(b, t, self.h, d // self.h).transpose(1, 2) for y in (q, k, v))
            a = F.softmax((q @ k.transpose(-2, -1)) * (d // self.h) ** -0.5, dim=-1)
            x = x + self.out((a @ v).transpose(1, 2).reshape(b, t, d))
            return x + self.down(F.gelu(self.up(self.n2(x))))

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(4000, 128)
            self.blocks = nn.Sequential(*[Block(128, 4) for _ in range(3)])
            self.head = nn.Linear(128, 4000, bias=False)
            self.head.weight = self.embed.weight

        def forward(self, x):
            return self.head(self.blocks(self.embed(x))).view(-1, 4000)

    def make():
        return Model(), torch.randint(0, 4000, (8, 128)), torch.randint(0, 4000, (1024,))
"""
CONVOLUTIONS = """
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            first, second = nn.Conv2d(3, 64, 3, padding=1), nn.Conv2d(64, 64, 3, padding=1)
            self.first = nn.Sequential(first, nn.BatchNorm2d(64), nn.ReLU(inplace=True))
            self.second = nn.Sequential(second, nn.BatchNorm2d(64))
            self.head = nn.Linear(64, 10)

        def forward(self, x):
            x = self.first(x)
            x = F.max_pool2d(F.relu(x + self.second(x)), 2)
            return self.head(x.mean((2, 3)))

    def make():
        return Model(), torch.randn(32, 3, 64, 64), torch.randint(0, 10, (32,))
"""
OPTIMIZERS = {
    "adamw": "torch.optim.AdamW(model.parameters(), foreach=True)",
    "sgd": "torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, foreach=True)",
}
IMPORTS = "import torch\nfrom torch import nn\nimport torch.nn.functional as F\n"
LOOP = """
    model, x, y = make()
    model, x, y = model.cuda(), x.cuda(), y.cuda()
    optimizer = {optimizer}
    for step in range(100):
        optimizer.zero_grad()
        output = model(x)
        loss = F.cross_entropy(output, y)
        loss.backward()
        {clip}
        optimizer.step()
"""
HALF_LOOP = LOOP.replace(
    """
        output = model(x)
        loss = F.cross_entropy(output, y)
""",
    """
        with torch.autocast("cuda", dtype=torch.bfloat16):
            output = model(x)
            loss = F.cross_entropy(output, y)
""",
)
assert HALF_LOOP != LOOP


def made(source: str) -> tuple[Any, Any, Any]:
    namespace: dict[str, Any] = {}
    exec(IMPORTS + textwrap.dedent(source), namespace)
    model, x, y = namespace["make"]()
    return model, x, y


def from_source(source: str, optimizer: str, clip: str, loop: str = LOOP) -> Interval:
    text = IMPORTS + textwrap.dedent(source) + textwrap.dedent(loop).format(optimizer=optimizer, clip=clip)
    report = estimate_module(
        lower_text("train.py", text), Project([], []), EstimateRequest(with_remedies=False)
    )
    allocated = report.estimates[0].peak.allocated
    assert allocated is not None
    return allocated


@pytest.mark.parametrize("clipped", [False, True])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("source", [TRANSFORMER, CONVOLUTIONS])
def test_the_same_step_from_source_and_from_live_objects(source: str, optimizer: str, clipped: bool) -> None:
    from torchwise_memory.live import Step, VRAMGuard

    model, x, y = made(source)
    clip = "nn.utils.clip_grad_norm_(model.parameters(), 1.0)" if clipped else ""
    live = eval(OPTIMIZERS[optimizer], {"torch": torch, "model": model})
    loss = torch.nn.functional.cross_entropy
    step = Step(loss=lambda output, _: loss(output, y), clip_norm=1.0 if clipped else None)
    peak = VRAMGuard(model, live, batch=x, step=step, gpu="a100").check().peak
    assert peak is not None and peak.allocated is not None
    expected = from_source(source, OPTIMIZERS[optimizer], clip)
    # the labels lie on the host here and on the card there
    assert peak.allocated.point == pytest.approx(expected.point, rel=0.02)


@pytest.mark.parametrize(("optimizer", "half"), [("adamw", False), ("sgd", False), ("adamw", True)])
@pytest.mark.parametrize("name", MODELS)
def test_a_step_of_every_kind_from_source_and_from_live_objects(
    name: str, optimizer: str, half: bool
) -> None:
    from torchwise_memory.live import Step, VRAMGuard

    model, x, y = made(MODELS[name])
    live = eval(OPTIMIZERS[optimizer], {"torch": torch, "model": model})
    loss = torch.nn.functional.cross_entropy
    step = Step(loss=lambda output, _: loss(output, y), autocast=torch.bfloat16 if half else None)
    report = VRAMGuard(model, live, batch=x, step=step, gpu="a100").check()
    assert report.peak is not None and report.peak.allocated is not None, report.why
    loop = HALF_LOOP if half else LOOP
    expected = from_source(MODELS[name], OPTIMIZERS[optimizer], "", loop)
    assert report.peak.allocated.point == pytest.approx(expected.point, rel=0.025 if half else 0.02)


def test_kernels_of_a_card_are_for_fake_tensors_and_for_a_while() -> None:
    from torchwise_memory.live.kernels import _places, as_on_a_card

    before = [getattr(owner, name) for owner, name, _ in _places(80)]
    own = [owner.__dict__.get(name) for owner, name, _ in _places(80)]
    functional, x = torch.nn.functional, torch.ones(4, 8)
    with pytest.raises(KeyError), as_on_a_card(80):
        assert functional.dropout(x, 0.5).sum() > 0
        assert torch.equal(functional.softmax(x, 1), torch.full((4, 8), 1 / 8))
        assert torch.allclose(functional.rms_norm(x, (8,)), x)
        raise KeyError
    assert [getattr(owner, name) for owner, name, _ in _places(80)] == before
    assert [owner.__dict__.get(name) for owner, name, _ in _places(80)] == own


def test_nothing_of_the_run_is_changed() -> None:
    from torchwise_memory.live import VRAMGuard

    model, x, _ = made(CONVOLUTIONS)
    optimizer = torch.optim.Adam(model.parameters())
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    before = {name: each.clone() for name, each in model.state_dict().items()}
    parameters, random = list(model.parameters()), torch.get_rng_state()
    report = VRAMGuard(model, optimizer, batch=x).check()
    assert report.peak is not None, report.why
    assert all(now is then for now, then in zip(model.parameters(), parameters, strict=True))
    assert all(torch.equal(each, before[name]) for name, each in model.state_dict().items())
    assert not optimizer.state and all(each.grad is None for each in parameters)
    assert torch.equal(torch.get_rng_state(), random)
    optimizer.step()
    scheduler.step()
    assert scheduler.last_epoch == 1


def test_a_step_that_needs_values_is_told_and_leaves_the_exact_parts() -> None:
    from torchwise_memory.live import VRAMGuard

    class Model(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(8, 8)

        def forward(self, x: Any) -> Any:
            return self.layer(x) if x.sum().item() > 0 else x

    model = Model()
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(2, 8)).sum().backward()
    optimizer.step()
    report = VRAMGuard(model, optimizer, batch=torch.ones(2, 8), gpu="t4").check()
    assert report.peak is None and report.card is None
    assert "fake tensors" in report.why and "unknown" in report.text()
    assert report.exact.parameters == report.exact.gradients == 288
    assert report.exact.optimizer == 2 * 288 + 2 * 4  # two moments, and a counter for each parameter
    assert all(each.grad is not None for each in model.parameters())


def test_the_guard_refuses_what_cannot_fit_and_only_warns_of_what_may_not() -> None:
    from torchwise_memory.live import VRAMGuard, WillNotFitError

    with torch.device("meta"):
        model = torch.nn.Linear(80_000, 80_000)
    entered: list[str] = []
    guard = VRAMGuard(model, shapes=((4, 80_000), torch.float32), gpu="t4", say=entered.append)
    with pytest.raises(WillNotFitError, match="GiB"), guard:
        raise AssertionError("entered")
    assert len(entered) == 1 and "T4" in entered[0] and "OOM" in entered[0]
    report = VRAMGuard(model, shapes=((4, 80_000), torch.float32), gpu="h200").check()
    assert report.card is not None and report.card.verdict is Verdict.FITS


def test_as_a_decorator() -> None:
    from torchwise_memory.live import VRAMGuard

    said: list[str] = []
    model = torch.nn.Linear(8, 8)

    @VRAMGuard(model, shapes=((4, 8), torch.float32), gpu="t4", say=said.append)
    def train(rounds: int) -> int:
        return rounds + 1

    assert train(3) == 4
    assert len(said) == 1 and "fits" in said[0]


def test_the_batch_by_position_by_name_and_as_shapes() -> None:
    from torchwise_memory.live import VRAMGuard

    class Model(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(64, 64)

        def forward(self, a: Any, b: Any) -> Any:
            return {"loss": (self.layer(a) * b).sum()}

    model = Model()
    a, b = torch.ones(32, 64), torch.ones(32, 64)
    ways: list[dict[str, Any]] = [
        {"batch": (a, b)},
        {"batch": {"a": a, "b": b}},
        {"shapes": [(a.shape, a.dtype), (b.shape, b.dtype)]},
    ]
    peaks = [VRAMGuard(model, **way).check().peak for way in ways]
    assert peaks[0] is not None and peaks.count(peaks[0]) == 3
    with pytest.raises(TypeError, match="either"):
        VRAMGuard(model)


def test_accumulation_keeps_gradients_beside_activations() -> None:
    from torchwise_memory.live import Step, VRAMGuard

    model, x, _ = made(CONVOLUTIONS)
    optimizer = torch.optim.SGD(model.parameters())
    one, four = (
        VRAMGuard(model, optimizer, batch=x, step=Step(accumulate=count)).check().peak for count in (1, 4)
    )
    assert one is not None and one.allocated and four is not None and four.allocated
    gradients = sum(each.numel() * 4 for each in model.parameters())
    assert 0.5 * gradients < four.allocated.point - one.allocated.point < 2 * gradients


@pytest.fixture
def processes() -> Any:
    """Four processes, of which this is the first and the others are not there."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    torch.distributed.init_process_group("fake", rank=0, world_size=4, store=FakeStore())
    yield 4
    torch.distributed.destroy_process_group()


def test_buckets_of_distributed_data_parallel(processes: int) -> None:
    from torchwise_memory.live import VRAMGuard

    model, x, _ = made(CONVOLUTIONS)
    alone = VRAMGuard(model, batch=x).check()
    wrapped = VRAMGuard(torch.nn.parallel.DistributedDataParallel(model), batch=x).check()
    assert wrapped.peak and wrapped.peak.allocated and alone.peak and alone.peak.allocated
    buckets = sum(each.numel() * 4 for each in model.parameters())
    assert wrapped.peak.allocated.point - alone.peak.allocated.point == buckets


def test_a_share_of_what_fully_shard_divides(processes: int) -> None:
    from torch.distributed.fsdp import fully_shard

    from torchwise_memory.live import VRAMGuard

    model = torch.nn.Sequential(*[torch.nn.Linear(512, 512) for _ in range(8)])
    optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
    whole = VRAMGuard(model, optimizer, shapes=((4, 512), torch.float32)).check()
    for layer in model:
        fully_shard(layer)
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
    sharded = VRAMGuard(model, optimizer, shapes=((4, 512), torch.float32)).check()
    assert sharded.peak is not None, sharded.why
    assert whole.by_purpose["weights"] == pytest.approx(4 * sharded.by_purpose["weights"], rel=0.02)
    assert whole.by_purpose["optimizer"] == pytest.approx(4 * sharded.by_purpose["optimizer"], rel=0.02)
    assert sharded.by_purpose["gathered parameters"] == 2 * (512 * 512 + 512) * 4  # of two layers
    hooks = [hook for module in model.modules() for hook in module._forward_pre_hooks.values()]
    assert len(hooks) >= 9  # they are on again


def stack() -> Any:
    layers = [torch.nn.Sequential(torch.nn.Linear(256, 1024), torch.nn.Linear(1024, 256)) for _ in range(6)]
    return torch.nn.Sequential(*layers, torch.nn.Linear(256, 8))


@pytest.mark.parametrize("keeps_names", [True, False])
def test_a_share_of_what_the_older_wrapper_divides(processes: int, keeps_names: bool) -> None:
    from torch.distributed.fsdp import FullyShardedDataParallel

    from torchwise_memory.live import VRAMGuard

    torch.manual_seed(0)
    plain = stack()
    optimizer = torch.optim.AdamW(plain.parameters(), foreach=True)
    whole = VRAMGuard(plain, optimizer, shapes=((16, 256), torch.float32)).check()

    model = stack()
    for number in range(6):
        model[number] = FullyShardedDataParallel(
            model[number], device_id=torch.device("cpu"), use_orig_params=keeps_names
        )
    model = FullyShardedDataParallel(model, device_id=torch.device("cpu"), use_orig_params=keeps_names)
    optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
    before = [(name, id(each), each.shape) for name, each in model.named_parameters()]
    guard = VRAMGuard(model, optimizer, shapes=((16, 256), torch.float32))
    sharded = guard.check()
    assert sharded.peak is not None and sharded.peak.allocated is not None, sharded.why
    for part in ("weights", "optimizer"):
        assert whole.by_purpose[part] == pytest.approx(processes * sharded.by_purpose[part], rel=0.02)
    unit = sum(each.numel() * 4 for each in plain[0].parameters())
    root = sum(each.numel() * 4 for each in plain[6].parameters())
    assert sharded.by_purpose["gathered parameters"] == root + 2 * unit
    assert sum(sharded.by_purpose.values()) == pytest.approx(sharded.peak.allocated.point, rel=0.01)
    assert whole.exact.parameters == pytest.approx(processes * sharded.exact.parameters, rel=0.02)
    # everything is as before
    assert [(name, id(each), each.shape) for name, each in model.named_parameters()] == before
    assert optimizer.state == {} and "forward" not in model.__dict__
    assert guard.check().by_purpose == sharded.by_purpose


@pytest.mark.parametrize("keeps_names", [True, False])
def test_the_older_wrapper_in_one_process_trains_on_after_the_guard(
    tmp_path: Path, keeps_names: bool
) -> None:
    from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecision

    from torchwise_memory.live import Step, VRAMGuard

    torch.distributed.init_process_group("gloo", rank=0, world_size=1, init_method=f"file://{tmp_path}/store")
    try:
        x = torch.randn(16, 256)

        def made_again() -> tuple[Any, Any]:
            torch.manual_seed(0)
            model = FullyShardedDataParallel(
                stack(), device_id=torch.device("cpu"), use_orig_params=keeps_names
            )
            return model, torch.optim.AdamW(model.parameters(), foreach=True)

        def trained(model: Any, optimizer: Any) -> float:
            loss = model(x).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            return float(loss.detach())

        model, optimizer = made_again()
        losses = [trained(model, optimizer)]
        report = VRAMGuard(model, optimizer, batch=x, step=Step(clip_norm=1.0)).check()
        losses += [trained(model, optimizer), trained(model, optimizer)]
        assert report.peak is not None, report.why
        assert "gathered parameters" not in report.by_purpose  # one process has all of it
        numbers = sum(each.numel() for each in stack().parameters())
        assert report.by_purpose["weights"] == pytest.approx(numbers * 4, rel=0.02)
        assert report.by_purpose["optimizer"] == pytest.approx(numbers * 8, rel=0.02)
        twin = made_again()
        assert losses == [trained(*twin) for _ in range(3)]  # the guard left no trace

        narrow = MixedPrecision(param_dtype=torch.bfloat16)
        half = FullyShardedDataParallel(
            stack(), device_id=torch.device("cpu"), use_orig_params=keeps_names, mixed_precision=narrow
        )
        optimizer = torch.optim.AdamW(half.parameters(), foreach=True)
        mixed = VRAMGuard(half, optimizer, batch=x).check()
        assert mixed.peak is not None, mixed.why
        # kept in 32 bits, computed in 16
        assert mixed.by_purpose["weights"] == report.by_purpose["weights"]
        assert mixed.by_purpose["optimizer"] == report.by_purpose["optimizer"]
    finally:
        torch.distributed.destroy_process_group()


def test_live_bytes_of_tied_weights_count_once() -> None:
    from torchwise_memory.live.guard import exact_bytes

    model, _, _ = made(TRANSFORMER)
    unique = sum(each.numel() * 4 for each in model.parameters())
    assert exact_bytes(model).parameters == unique


def test_profile_runs_a_factory(tmp_path: Path, monkeypatch: Any, capsys: Any) -> None:
    source = """
        import torch
        def make():
            model = torch.nn.Linear(64, 64)
            return model, torch.optim.SGD(model.parameters()), torch.ones(2, 64)
        def fail():
            raise KeyError("weights.pt")
        def wrong():
            return 3
    """
    (tmp_path / "profiled_here.py").write_text(textwrap.dedent(source))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", [*__import__("sys").path])
    assert main(["profile", "profiled_here:make", "--gpu", "t4", "--format", "json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["exact"]["parameters"] == (64 * 64 + 64) * 4
    assert answer["gpu"]["verdict"] == "fits"
    for factory, words in (("fail", "KeyError"), ("wrong", "must return"), ("absent", "AttributeError")):
        assert main(["profile", f"profiled_here:{factory}"]) == 2
        assert words in capsys.readouterr().err
    assert main(["profile", "no-colon"]) == 2


def test_in_the_loop_of_lightning(capsys: Any) -> None:
    lightning = pytest.importorskip("lightning", reason="Lightning is not installed in this environment")
    from torchwise_memory.live import lightning_callback

    class Module(lightning.LightningModule):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(512, 512)
            self.seen: list[bool] = []

        def training_step(self, batch: Any, index: int) -> Any:
            loss = self.layer(batch[0]).square().mean()
            self.log("loss", loss)
            return loss

        def on_train_batch_start(self, *_: Any) -> None:
            self.seen.append(callable(self.log))

        def configure_optimizers(self) -> Any:
            return torch.optim.AdamW(self.parameters(), foreach=True)

    data = torch.utils.data.TensorDataset(torch.randn(8, 512))
    loader = torch.utils.data.DataLoader(data, batch_size=4)
    callback = lightning_callback(next(iter(loader)), gpu="t4")
    options = {"max_epochs": 1, "accelerator": "cpu", "logger": False, "enable_checkpointing": False}
    lightning.Trainer(**options, enable_progress_bar=False, callbacks=[callback]).fit(Module(), loader)
    report = callback.guard.report
    assert report.peak is not None, report.why
    weights = (512 * 512 + 512) * 4
    assert report.by_purpose["optimizer"] == pytest.approx(2 * weights, rel=0.01)
    assert "Tesla T4: fits" in capsys.readouterr().out


def test_in_the_loop_of_transformers(tmp_path: Path) -> None:
    transformers = pytest.importorskip(
        "transformers", reason="Transformers is not installed in this environment"
    )
    pytest.importorskip("accelerate", reason="Accelerate is not installed in this environment")
    from torchwise_memory.live import transformers_callback

    config = transformers.GPT2Config(
        n_layer=2, n_embd=64, n_head=4, vocab_size=500, eos_token_id=0, bos_token_id=0
    )
    ids = torch.randint(0, 500, (4, 64))
    arguments = transformers.TrainingArguments(
        str(tmp_path), max_steps=2, report_to=[], use_cpu=True, save_strategy="no", disable_tqdm=True
    )
    said: list[str] = []
    callback = transformers_callback({"input_ids": ids, "labels": ids}, gpu="t4", say=said.append)
    data = [{"input_ids": ids[0], "labels": ids[0]} for _ in range(8)]
    model = transformers.GPT2LMHeadModel(config)
    transformers.Trainer(model, arguments, train_dataset=data, callbacks=[callback]).train()
    report = callback.guard.report
    assert report.peak is not None, report.why
    assert report.exact.parameters == sum(each.numel() * 4 for each in model.parameters())
    assert len(said) == 1
