"""Layers that hold their part of the weights, sequences that are divided, meshes of processes."""

from __future__ import annotations

from typing import Any

import pytest

from torchwise_memory.classes import CLASS_FUNCTIONS, CLASSES
from torchwise_memory.families.base import embedding, linear
from torchwise_memory.modules.base import Module, call
from torchwise_memory.modules.containers import Sequential
from torchwise_memory.policies.sharding import whole_numel
from torchwise_memory.policies.tensor_parallel import DeviceMesh
from torchwise_memory.runtime.dtypes import float32, int64
from torchwise_memory.runtime.errors import Unsupported
from torchwise_memory.runtime.tensor import Tensor
from torchwise_memory.runtime.world import World

TP = "torch.distributed.tensor"


def made(w: World, name: str, *args: Any, **kwargs: Any) -> Any:
    entry = CLASSES[name]
    instance = entry.make()
    entry.construct(w, instance, *args, **kwargs)
    return instance


def style(w: World, name: str, **kwargs: Any) -> Any:
    return made(w, f"{TP}.parallel.{name}", **kwargs)


def shard(w: World, dim: int) -> Any:
    return made(w, f"{TP}.Shard", dim)


def mesh_of(w: World, *sizes: int, names: tuple[str, ...] = ()) -> DeviceMesh:
    found = CLASS_FUNCTIONS["torch.distributed.device_mesh.init_device_mesh"].call(
        w, "cuda", sizes, mesh_dim_names=names or None
    )
    assert isinstance(found, DeviceMesh)
    return found


def parallelized(w: World, module: Module, ways: int, plan: Any) -> Module:
    function = CLASS_FUNCTIONS[f"{TP}.parallel.parallelize_module"]
    result = function.call(w, module.to(w, "cuda"), mesh_of(w, ways), plan)
    assert isinstance(result, Module)
    return result


def two_layers(w: World) -> Sequential:
    layers = Sequential()
    layers.renumber([linear(w, 64, 256), linear(w, 256, 64)])
    return layers


def run(w: World, module: Module, *shape: int) -> Tensor:
    x = w.new(shape, float32, "input")
    x.requires_grad = True
    output = call(w, module, (x,), {})
    assert isinstance(output, Tensor)
    return output


def test_columns_then_rows_need_one_sum() -> None:
    w = World()
    model = two_layers(w)
    plan = {"0": style(w, "ColwiseParallel"), "1": style(w, "RowwiseParallel")}
    parallelized(w, model, 4, plan)
    first, second = model.children["0"], model.children["1"]
    assert first is not None and second is not None
    assert tuple(first.tensor("weight").shape) == (64, 64)
    assert tuple(first.tensor("bias").shape) == (64,)
    assert tuple(second.tensor("weight").shape) == (64, 64)
    # the bias of a layer divided by rows is added once, to the sum
    assert tuple(second.tensor("bias").shape) == (64,)
    assert tuple(run(w, model, 2, 8, 64).shape) == (2, 8, 64)
    assert w.world_size == 4


def test_parameters_count_as_those_of_the_whole_model() -> None:
    w = World()
    model = two_layers(w)
    whole = sum(p.numel for _, p in model.walk_parameters())
    parallelized(w, model, 4, {"0": style(w, "ColwiseParallel"), "1": style(w, "RowwiseParallel")})
    assert sum(whole_numel(p) for _, p in model.walk_parameters()) == whole
    assert sum(p.numel for _, p in model.walk_parameters()) < whole / 3


@pytest.mark.parametrize(
    ("kind", "options", "weight", "output"),
    [
        ("ColwiseParallel", {}, (250, 64), (2, 8, 250)),
        ("ColwiseParallel", {"output_layouts": "replicate"}, (250, 64), (2, 8, 1000)),
        ("RowwiseParallel", {"input_layouts": "replicate"}, (1000, 16), (2, 8, 1000)),
        ("RowwiseParallel", {"input_layouts": "replicate", "output_layouts": 1}, (1000, 16), (2, 2, 1000)),
    ],
)
def test_layouts_of_a_linear_layer(
    kind: str, options: dict[str, Any], weight: tuple[int, ...], output: tuple[int, ...]
) -> None:
    w = World()
    made_of: dict[str, Any] = {
        name: made(w, f"{TP}.Replicate") if value == "replicate" else shard(w, value)
        for name, value in options.items()
    }
    layer = parallelized(w, linear(w, 64, 1000), 4, style(w, kind, **made_of))
    assert tuple(layer.tensor("weight").shape) == weight
    assert tuple(run(w, layer, 2, 8, 64).shape) == output


def test_a_table_of_tokens_is_divided_by_rows_and_the_sequence_with_it() -> None:
    w = World()
    table = embedding(w, 1000, 64)
    parallelized(w, table, 4, style(w, "RowwiseParallel", output_layouts=shard(w, 1)))
    assert tuple(table.tensor("weight").shape) == (250, 64)
    output = call(w, table, (w.new((2, 8), int64, "tokens"),), {})
    assert isinstance(output, Tensor)
    assert tuple(output.shape) == (2, 2, 64)


def test_a_sequence_is_gathered_before_a_module_and_its_gradient_divided() -> None:
    w = World()
    layer = linear(w, 64, 32)
    prepare = style(
        w,
        "PrepareModuleInput",
        input_layouts=(shard(w, 1),),
        desired_input_layouts=(made(w, f"{TP}.Replicate"),),
    )
    parallelized(w, layer, 4, prepare)
    x = w.new((2, 3, 64), float32, "part of the sequence")
    x.requires_grad = True
    output = call(w, layer, (x,), {})
    assert isinstance(output, Tensor)
    assert tuple(output.shape) == (2, 12, 32)
    from torchwise_memory.library import METHODS

    METHODS["backward"].call(w, METHODS["sum"].call(w, output))
    assert x.grad is not None
    assert tuple(x.grad.shape) == (2, 3, 64)


def test_a_plan_is_matched_atom_by_atom() -> None:
    w = World()
    outer = Sequential()
    outer.renumber([two_layers(w), two_layers(w)])
    parallelized(w, outer, 2, {"*.0": style(w, "ColwiseParallel")})
    sizes = [tuple(p.shape) for name, p in outer.walk_parameters() if name.endswith("weight")]
    assert sizes == [(128, 64), (64, 256), (128, 64), (64, 256)]


def test_a_mesh_gives_its_dimensions_by_name() -> None:
    w = World()
    mesh = mesh_of(w, 2, 4, names=("dp", "tp"))
    assert (mesh.size(w), mesh.size(w, "tp"), mesh.size(w, 0), mesh.ndim(w)) == (8, 4, 2, 2)
    assert mesh.part(w, "tp").sizes == (4,)
    assert mesh.part(w, ("dp", "tp")).sizes == (2, 4)
    assert w.world_size == 8
    with pytest.raises(Unsupported, match="no dimension"):
        mesh.part(w, "pp")


@pytest.mark.parametrize("shape", [(None,), ("8",), (0,), (True,)])
def test_a_mesh_of_unknown_size_is_refused(shape: tuple[Any, ...]) -> None:
    w = World()
    with pytest.raises(Unsupported):
        CLASS_FUNCTIONS["torch.distributed.device_mesh.init_device_mesh"].call(w, "cuda", shape)


def test_what_torch_refuses_is_refused() -> None:
    w = World()
    function = CLASS_FUNCTIONS[f"{TP}.parallel.parallelize_module"]
    with pytest.raises(Unsupported, match="not known"):
        function.call(w, linear(w, 8, 8), None, style(w, "ColwiseParallel"))
    with pytest.raises(Unsupported, match="more than one dimension"):
        function.call(w, linear(w, 8, 8), mesh_of(w, 2, 2), style(w, "ColwiseParallel"))
    with pytest.raises(Unsupported, match="Linear and Embedding"):
        parallelized(w, two_layers(w), 2, style(w, "ColwiseParallel"))


def test_context_parallelism_divides_within_its_block_and_restores_after() -> None:
    w = World()
    tokens = w.new((2, 64), int64, "tokens")
    mesh = mesh_of(w, 4)
    context = made(w, f"{TP}.experimental.context_parallel", mesh, buffers=[tokens], buffer_seq_dims=[1])
    context.enter(w)
    assert tuple(tokens.shape) == (2, 16)
    context.leave(w)
    assert tuple(tokens.shape) == (2, 64)


def test_one_process_changes_nothing() -> None:
    w = World()
    model = parallelized(w, two_layers(w), 1, {"0": style(w, "ColwiseParallel")})
    first = model.children["0"]
    assert first is not None
    assert tuple(first.tensor("weight").shape) == (256, 64)
