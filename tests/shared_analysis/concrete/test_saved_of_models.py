"""What a model's graph keeps for the backward pass, from its text, against saved-tensor hooks of PyTorch.

Both sides on the CPU: operators whose CPU kernels keep something else than the card's are left to the tests
of single operators.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.shared_analysis.concrete.running import collector_off, interpreter, run

from torchwise_analysis.interp.concrete.interpreter import Interpreter
from torchwise_memory.modules.base import Module
from torchwise_memory.runtime.storage import Storage
from torchwise_memory.runtime.tape import Accumulator, Node
from torchwise_memory.runtime.tensor import Tensor

torch: Any = pytest.importorskip(
    "torch", reason="PyTorch is not installed in this environment (see `make test-torch`)"
)
pytestmark = pytest.mark.torch

ZOO = Path(__file__).with_name("model_zoo.py")


def _names() -> list[str]:
    from tests.shared_analysis.concrete import model_zoo

    return list(model_zoo.MODELS)


@pytest.mark.parametrize("name", _names())
def test_saved_bytes_and_parameters(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.nn.functional, "dropout", _dropout_of_the_card)
    parameters, saved = _by_torch(name)
    with collector_off():
        it = interpreter()
        text = f"{ZOO.read_text()}\nmodel = MODELS[{name!r}][0]()\nloss = MODELS[{name!r}][1](model)\n"
        run(text, it)
        ours = _by_text(it)
    assert ours[0] == parameters
    assert ours[1] == pytest.approx(saved, rel=0.01)


def _dropout_of_the_card(x: Any, p: float = 0.5, training: bool = True, inplace: bool = False) -> Any:
    """The CPU's keeps a mask of the input's type, the card's one of booleans."""
    return torch.native_dropout(x, p, training)[0] if training and p else x


def _by_torch(name: str) -> tuple[int, int]:
    """Parameters, and bytes of distinct storages that the graph keeps besides them."""
    from tests.shared_analysis.concrete import model_zoo

    entry: Any = model_zoo.MODELS[name]
    make, step = entry
    model = make()
    own = {t.untyped_storage().data_ptr() for t in (*model.parameters(), *model.buffers())}
    kept: dict[int, Any] = {}

    def pack(tensor: Any) -> Any:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = (storage.nbytes(), tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        loss = step(model)
    assert loss.requires_grad
    return sum(p.numel() for p in model.parameters()), sum(size for size, _ in kept.values())


def _by_text(it: Interpreter) -> tuple[int, int]:
    main: Any = it.library.imports.loaded["__main__"]
    model, loss = main.names["model"], main.names["loss"]
    assert isinstance(model, Module)
    assert isinstance(loss, Tensor)
    parameters = {id(p): p for _, p in model.walk_parameters()}
    own = {id(p.storage) for p in parameters.values()}
    own |= {id(b.storage) for m in model.walk() for b in m[1].buffers.values() if b is not None}
    kept: dict[int, Storage] = {}
    seen: set[int] = set()
    stack: list[Node | Accumulator] = [loss.node] if loss.node is not None else []
    while stack:
        vertex = stack.pop()
        if id(vertex) in seen or isinstance(vertex, Accumulator):
            continue
        seen.add(id(vertex))
        for slot in vertex.saved or ():
            if isinstance(slot, Tensor) and id(slot.storage) not in own:
                kept[id(slot.storage)] = slot.storage
        stack.extend(edge[0] for edge in vertex.edges if edge is not None)
    return sum(p.numel for p in parameters.values()), sum(s.bytes for s in kept.values())
