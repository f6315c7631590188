"""torch.nn on the runtime: registries, sharing, conversion, hooks, what layers keep, that nothing leaks."""

from __future__ import annotations

import gc
import json
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from torchwise_memory.allocator import Allocator
from torchwise_memory.classes import CLASS_FUNCTIONS, CLASSES, class_of
from torchwise_memory.library import FUNCTIONS, METHODS
from torchwise_memory.modules.base import MISSING, Module, call
from torchwise_memory.modules.copying import copy_module
from torchwise_memory.modules.declared import Declared
from torchwise_memory.report import Phase
from torchwise_memory.runtime.contexts import Autocast
from torchwise_memory.runtime.device import CUDA
from torchwise_memory.runtime.dtypes import DTYPES
from torchwise_memory.runtime.errors import Unsupported
from torchwise_memory.runtime.ledger import StorageKind, SummingAllocator
from torchwise_memory.runtime.tensor import Parameter, Tensor
from torchwise_memory.runtime.world import World

FLOAT32, BFLOAT16, INT64 = DTYPES["float32"], DTYPES["bfloat16"], DTYPES["int64"]
ROWS = {
    row["config"]["id"]: row
    for row in map(
        json.loads, (Path(__file__).parent / "data" / "oracle_steps.jsonl").read_text().splitlines()
    )
}


@pytest.fixture
def w() -> World:
    return World(SummingAllocator())


@pytest.fixture(autouse=True)
def without_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def make(w: World, name: str, *args: Any, **kwargs: Any) -> Any:
    native = CLASSES[name if "." in name else f"torch.nn.{name}"]
    made = native.make()
    native.construct(w, made, *args, **kwargs)
    return made


def use(w: World, module: Any, name: str, *args: Any, **kwargs: Any) -> Any:
    """A method as the program reaches it: through the table."""
    entry = class_of(module)
    assert entry is not None
    return entry.methods[name].call(w, module, *args, **kwargs)


def count(module: Module) -> int:
    return sum(parameter.numel for _, parameter in module.walk_parameters())


def tensor(w: World, *shape: int, dtype: Any = FLOAT32, grad: bool = False) -> Tensor:
    made = w.new(shape, dtype, "randn", kind=StorageKind.INPUT)
    made.requires_grad = grad
    return made


# -- parameters, as `sum(p.numel() for p in module.parameters())` of PyTorch 2.x


@pytest.mark.parametrize(
    ("name", "args", "kwargs", "parameters"),
    [
        ("Linear", (20, 30), {}, 630),
        ("Linear", (20, 30), {"bias": False}, 600),
        ("Bilinear", (5, 6, 7), {}, 217),
        ("Conv1d", (16, 33, 3), {}, 1617),
        ("Conv2d", (3, 64, 7), {"stride": 2, "padding": 3, "bias": False}, 9408),
        ("Conv2d", (32, 32, 3), {"groups": 32}, 320),
        ("Conv3d", (16, 33, (3, 5, 2)), {}, 15873),
        ("ConvTranspose2d", (16, 33, 3), {}, 4785),
        ("BatchNorm2d", (64,), {}, 128),
        ("BatchNorm1d", (64,), {"affine": False}, 0),
        ("InstanceNorm2d", (64,), {}, 0),
        ("LayerNorm", (768,), {}, 1536),
        ("LayerNorm", ((10, 20),), {"bias": False}, 200),
        ("RMSNorm", (64,), {}, 64),
        ("GroupNorm", (8, 64), {}, 128),
        ("Embedding", (1000, 64), {}, 64000),
        ("EmbeddingBag", (1000, 64), {}, 64000),
        ("PReLU", (), {}, 1),
        ("MultiheadAttention", (256, 8), {}, 263168),
        ("MultiheadAttention", (256, 8), {"kdim": 128, "vdim": 64}, 181248),
        ("TransformerEncoderLayer", (512, 8), {}, 3152384),
        ("TransformerDecoderLayer", (512, 8), {}, 4204032),
        ("Transformer", (), {}, 44140544),
        ("RNN", (10, 20), {"num_layers": 2}, 1480),
        ("LSTM", (512, 512), {"num_layers": 2}, 4202496),
        ("LSTM", (10, 20), {"bidirectional": True, "proj_size": 5}, 2920),
        ("GRU", (10, 20), {"bias": False}, 1800),
        ("LSTMCell", (10, 20), {}, 2560),
        ("AdaptiveLogSoftmaxWithLoss", (64, 1000, [100, 500]), {}, 16208),
    ],
)
def test_parameter_counts(w: World, name: str, args: Any, kwargs: Any, parameters: int) -> None:
    assert count(make(w, name, *args, **kwargs)) == parameters


def test_every_class_of_the_table_is_consistent() -> None:
    for name, entry in CLASSES.items():
        assert all(base in CLASSES for base in entry.bases), name
        assert issubclass(entry.host, object)
        for method_name, function in entry.methods.items():
            assert function.params is not None, (name, method_name)
    assert CLASSES["torch.cuda.amp.GradScaler"].params[0].name == "init_scale"
    assert CLASSES["torch.amp.GradScaler"].params[0].name == "device"
    assert CLASSES["torch.nn.modules.linear.Linear"] is CLASSES["torch.nn.Linear"]


def test_declared_modules_pass_what_their_function_takes() -> None:
    for entry in CLASSES.values():
        if not issubclass(entry.host, Declared):
            continue
        function = FUNCTIONS.get(f"torch.nn.functional.{entry.host.function}")
        if function is None or any(param.kind == "VAR_KEYWORD" for param in function.params):
            continue
        taken = {param.name for param in function.params}
        assert set(entry.host.passed.values()) | set(entry.host.fixed) <= taken, entry.name


# -- registries


def test_assignment_sorts_values_as_torch_does(w: World) -> None:
    module = make(w, "Module")
    parameter = Parameter(tensor(w, 3))
    module.assign("weight", parameter)
    module.assign("child", make(w, "Linear", 2, 2))
    module.assign("scale", tensor(w, 1))
    module.assign("name", "net")
    assert list(module.parameters) == ["weight"]
    assert list(module.children) == ["child"]
    assert set(module.fields) == {"scale", "name"}
    module.assign("weight", None)
    assert module.lookup("weight") is None
    assert module.lookup("nothing") is MISSING
    assert module.remove("child")
    assert not module.children


def test_a_shared_parameter_appears_once_under_its_first_name(w: World) -> None:
    model = make(w, "Sequential", make(w, "Embedding", 10, 4), make(w, "Linear", 4, 10, bias=False))
    model.children["1"].assign("weight", model.children["0"].parameters["weight"])
    assert [name for name, _ in model.walk_parameters()] == ["0.weight"]
    assert set(use(w, model, "state_dict")) == {"0.weight", "1.weight"}
    assert len(list(use(w, model, "named_parameters", remove_duplicate=False))) == 2


def test_state_dict_shares_storage_and_leaves_out_what_is_not_persistent(w: World) -> None:
    norm = make(w, "BatchNorm2d", 4)
    use(w, norm, "register_buffer", "table", tensor(w, 2), persistent=False)
    state = use(w, norm, "state_dict")
    assert list(state) == ["weight", "bias", "running_mean", "running_var", "num_batches_tracked"]
    assert state["weight"].storage is norm.parameters["weight"].storage


def test_moving_a_model_takes_its_bytes_once_and_keeps_identity(w: World) -> None:
    model = make(w, "Linear", 100, 50)
    weight = model.parameters["weight"]
    assert use(w, model, "to", "cuda") is model
    assert model.parameters["weight"] is weight
    assert w.ledger.allocator.allocated == 5050 * 4
    use(w, model, "to", "cuda")
    use(w, model, "half")
    assert w.ledger.allocator.allocated == 5050 * 2
    use(w, model, "cpu")
    assert w.ledger.allocator.allocated == 0


def test_modes_and_freezing_reach_every_submodule(w: World) -> None:
    model = make(w, "Sequential", make(w, "Dropout", 0.1), make(w, "Linear", 2, 2))
    use(w, model, "eval")
    assert not any(module.training for _, module in model.walk())
    use(w, model, "train")
    assert all(module.training for _, module in model.walk())
    use(w, model, "requires_grad_", False)
    assert not any(parameter.requires_grad for _, parameter in model.walk_parameters())


def test_containers(w: World) -> None:
    layers = make(w, "ModuleList", [make(w, "Linear", 2, 2) for _ in range(3)])
    assert use(w, layers, "__len__") == 3
    use(w, layers, "append", make(w, "ReLU"))
    assert list(layers.children) == ["0", "1", "2", "3"]
    part = use(w, layers, "__getitem__", slice(1, 3))
    assert list(part.children) == ["0", "1"]
    assert use(w, layers, "__getitem__", -1) is layers.children["3"]
    named = make(w, "ModuleDict", {"a": make(w, "ReLU")})
    use(w, named, "__setitem__", "b", make(w, "GELU"))
    assert list(use(w, named, "keys")) == ["a", "b"]
    numbered = make(w, "ParameterList", [tensor(w, 2), tensor(w, 3)])
    assert count(numbered) == 5


def test_hooks_run_around_forward_and_can_be_removed(w: World) -> None:
    seen: list[str] = []
    linear = use(w, make(w, "Linear", 4, 4), "cuda")
    before = use(w, linear, "register_forward_pre_hook", lambda module, args: seen.append("before"))
    after = use(w, linear, "register_forward_hook", lambda module, args, output: seen.append("after"))
    call(w, linear, (tensor(w, 2, 4),), {})
    assert seen == ["before", "after"]
    for handle in (before, after):
        use(w, handle, "remove")
    call(w, linear, (tensor(w, 2, 4),), {})
    assert seen == ["before", "after"]


def test_a_deep_copy_has_its_own_storages_and_keeps_sharing(w: World) -> None:
    model = use(w, make(w, "Sequential", make(w, "Linear", 4, 4), make(w, "Linear", 4, 4)), "cuda")
    model.children["1"].assign("weight", model.children["0"].parameters["weight"])
    before = w.ledger.allocator.allocated
    twin = copy_module(w, model)
    assert twin.children["0"].parameters["weight"] is twin.children["1"].parameters["weight"]
    assert twin.children["0"].parameters["weight"] is not model.children["0"].parameters["weight"]
    assert w.ledger.allocator.allocated == before + count(model) * 4


def test_calls_a_module_does_not_understand_stop_the_run(w: World) -> None:
    linear = make(w, "Linear", 4, 4)
    with pytest.raises(Unsupported):
        call(w, linear, (tensor(w, 2, 4), 1, 2), {})
    with pytest.raises(Unsupported):
        call(w, make(w, "Module"), (), {})
    with pytest.raises(Unsupported):
        make(w, "Linear", 4)


def test_modules_know_their_path_while_they_run(w: World) -> None:
    paths: list[str] = []
    inner = make(w, "Identity")
    inner.forward_override = lambda world, module, args, kwargs: paths.append(world.module_path)
    model = make(w, "Sequential", make(w, "Sequential", inner))
    call(w, model, (None,), {})
    assert paths == ["0.0"]
    assert w.module_path == ""


# -- bytes


def kept_bytes(name: str, args: Any, shape: tuple[int, ...], mode: str, **kwargs: Any) -> Any:
    """What a module's graph holds beyond input, output, weights and workspaces."""
    w = World(SummingAllocator())
    dtype = BFLOAT16 if mode == "bf16" else FLOAT32
    module = use(w, make(w, name, *args, **kwargs), "to", CUDA, dtype)
    x = tensor(w, *shape, dtype=dtype, grad=True)
    before = w.ledger.allocator.allocated
    autocast = Autocast("cuda", BFLOAT16 if mode == "amp" else None)
    autocast.enter(w)
    output: Any = call(w, module, (x,), {})
    autocast.leave(w)
    workspaces = sum(storage.bytes for storage in w.workspaces.values())
    return w.ledger.allocator.allocated - before - workspaces - output.storage.bytes


@pytest.mark.parametrize(
    ("mode", "options", "hidden_units"),
    [
        ("fp32", {"dropout": 0.1}, 74),
        ("amp", {"dropout": 0.1}, 42),
        ("bf16", {"dropout": 0.1}, 38),
        # the first norm keeps the input itself: 4, 4 and 2 less than 68, 36 and 32
        ("fp32", {"dropout": 0.0, "norm_first": True, "activation": "gelu"}, 64),
        ("amp", {"dropout": 0.0, "norm_first": True, "activation": "gelu"}, 32),
        ("bf16", {"dropout": 0.0, "norm_first": True, "activation": "gelu"}, 30),
    ],
)
def test_what_an_encoder_layer_keeps(mode: str, options: dict[str, Any], hidden_units: int) -> None:
    """Bytes a token in units of d_model, measured on real PyTorch (ff = 4 d_model)."""
    sizes = [
        kept_bytes(
            "TransformerEncoderLayer", (512, 8, 2048), (batch, 256, 512), mode, batch_first=True, **options
        )
        for batch in (4, 8)
    ]
    assert (sizes[1] - sizes[0]) / (4 * 256 * 512) == pytest.approx(hidden_units, abs=0.2)


def test_weight_norm_keeps_direction_and_makes_the_weight_again(w: World) -> None:
    linear = CLASS_FUNCTIONS["torch.nn.utils.weight_norm"].call(w, make(w, "Linear", 64, 32))
    use(w, linear, "cuda")
    assert [name for name, _ in linear.walk_parameters()] == ["bias", "weight_g", "weight_v"]
    output: Any = call(w, linear, (tensor(w, 8, 64),), {})
    METHODS["backward"].call(w, METHODS["sum"].call(w, output))
    assert linear.parameters["weight_v"].grad is not None
    assert linear.lookup("weight") is MISSING


def test_initialisers_keep_storages(w: World) -> None:
    linear = use(w, make(w, "Linear", 4, 4), "cuda")
    storage = linear.parameters["weight"].storage
    CLASS_FUNCTIONS["torch.nn.init.kaiming_uniform_"].call(w, linear.parameters["weight"], a=5**0.5)
    assert linear.parameters["weight"].storage is storage


def test_ddp_takes_one_more_copy_of_the_gradients_unless_they_live_in_the_buckets(w: World) -> None:
    allocated: dict[bool, int] = {}
    for as_view in (False, True):
        w = World(SummingAllocator())
        model = use(w, make(w, "Linear", 1000, 1000), "cuda")
        ddp = make(w, "torch.nn.parallel.DistributedDataParallel", model, gradient_as_bucket_view=as_view)
        output: Any = call(w, ddp, (tensor(w, 2, 1000),), {})
        METHODS["backward"].call(w, METHODS["sum"].call(w, output))
        del output
        allocated[as_view] = w.ledger.allocator.allocated - sum(s.bytes for s in w.workspaces.values())
    parameters = 1001000 * 4
    assert allocated[False] >= 3 * parameters
    assert allocated[True] == pytest.approx(2 * parameters, rel=0.01)


# -- whole steps


def mlp(w: World, config: dict[str, Any]) -> Any:
    sizes = config["model_config"]
    widths = [sizes["n_in"], *[sizes["width"]] * sizes["depth"]]
    layers: list[Module] = []
    for i, o in pairwise(widths):
        layers += [make(w, "Linear", i, o), make(w, "ReLU")]
    return make(w, "Sequential", *layers, make(w, "Linear", widths[-1], sizes["n_out"]))


class Tagger(Module):
    def forward(self, w: World, ids: Tensor) -> Any:
        y, _ = self.run(w, "rnn", self.run(w, "embed", ids))
        return self.run(w, "head", y)


def tagger(w: World, config: dict[str, Any]) -> Module:
    sizes = config["model_config"]
    model = Tagger()
    model.children["embed"] = make(w, "Embedding", sizes["vocab"], sizes["hidden"])
    model.children["rnn"] = make(
        w, sizes["kind"], sizes["hidden"], sizes["hidden"], num_layers=sizes["layers"], batch_first=True
    )
    model.children["head"] = make(w, "Linear", sizes["hidden"], sizes["n_out"])
    return model


@pytest.mark.parametrize("name", [name for name in ROWS if name.startswith(("mlp", "rnn"))])
def test_peak_of_a_step(name: str) -> None:
    row = ROWS[name]
    config = row["config"]
    w = World(Allocator())
    train(w, config)
    assert w.ledger.peak_bytes == pytest.approx(row["peak_allocated"], rel=0.005)
    assert (
        w.ledger.peak_phase
        is {"fwd": Phase.FORWARD, "bwd": Phase.BACKWARD, "opt": Phase.OPTIMIZER}[row["peak_phase"]]
    )
    w.close()
    assert not w.ledger.live, "storages outlived the program"


def train(w: World, config: dict[str, Any]) -> None:
    recurrent = config["model"] == "rnn"
    model = (tagger if recurrent else mlp)(w, config)
    model.to(w, CUDA, BFLOAT16 if config["precision"] == "bf16" else FLOAT32)
    if recurrent:
        x = tensor(w, config["batch"], config["seq"], dtype=INT64)
        y = tensor(w, config["batch"], config["seq"], dtype=INT64)
    else:
        x = tensor(w, config["batch"], config["model_config"]["n_in"])
        if config["precision"] == "bf16":
            x = tensor(w, config["batch"], config["model_config"]["n_in"], dtype=BFLOAT16)
        y = tensor(w, config["batch"], dtype=INT64)
    optimizer = make(w, f"torch.optim.{config['optimizer']['name']}", model.list_parameters(w), lr=1e-4)
    scaler = make(w, "torch.amp.GradScaler", "cuda") if config["precision"] == "amp-fp16" else None
    lives: list[int] = []
    for step in range(4):
        if step == 2:
            w.ledger.watch()
        optimizer.zero_grad(w)
        autocast = Autocast("cuda", DTYPES["float16"] if scaler is not None else None)
        autocast.enter(w)
        outputs: Any = call(w, model, (x,), {})
        if recurrent:
            logits = METHODS["view"].call(w, outputs, -1, config["model_config"]["n_out"])
            loss = FUNCTIONS["torch.nn.functional.cross_entropy"].call(
                w, logits, METHODS["view"].call(w, y, -1)
            )
            del logits
        else:
            loss = FUNCTIONS["torch.nn.functional.cross_entropy"].call(w, outputs, y)
        autocast.leave(w)
        METHODS["backward"].call(w, loss if scaler is None else scaler.scale(w, loss))
        if scaler is None:
            optimizer.step(w)
        else:
            scaler.step(w, optimizer)
            scaler.update(w)
        lives.append(sum(record.bytes for record in w.ledger.live.values()))
    assert lives[1] == lives[2] == lives[3], "a round left something behind"


def test_a_module_that_contains_itself_has_no_end_of_names() -> None:
    w = World(Allocator(), 80)
    loop, layer = Module(), Module()
    loop.children["layer"] = layer
    loop.children["again"] = loop
    assert [name for name, _ in loop.walk()] == ["", "layer"]
    with pytest.raises(Unsupported, match="end of names"):
        loop.state_dict(w)


def test_modules_that_contain_each_other_twice_are_named_up_to_a_limit() -> None:
    w = World(Allocator(), 80)
    top = Module()
    for _ in range(40):
        above = Module()
        above.children["a"] = above.children["b"] = top
        top = above
    assert len(list(top.walk())) == 41
    with pytest.raises(Unsupported, match="end of names"):
        top.state_dict(w)


def test_a_module_list_keeps_empty_places() -> None:
    """`ModuleList([norm, None])`: None is iterated, indexed and counted, and has no parameters."""
    w = World(SummingAllocator())
    layer = CLASSES["torch.nn.Linear"].make()
    CLASSES["torch.nn.Linear"].construct(w, layer, 2, 3)
    holder = CLASSES["torch.nn.ModuleList"].make()
    CLASSES["torch.nn.ModuleList"].construct(w, holder, [layer, None])
    methods = CLASSES["torch.nn.ModuleList"].methods
    walked: Any = methods["__iter__"].invoke(w, [holder], {})
    assert list(walked) == [layer, None]
    assert methods["__getitem__"].invoke(w, [holder, 1], {}) is None
    assert methods["__len__"].invoke(w, [holder], {}) == 2
    assert sum(p.numel for _, p in holder.walk_parameters()) == 9
