"""Recurrent layers as cuDNN runs them, and their cells."""

from __future__ import annotations

import math
from typing import Any, ClassVar

from torchwise_memory.modules.base import Resettable
from torchwise_memory.modules.native import attribute, visible
from torchwise_memory.modules.ops import functional, method, torch_function
from torchwise_memory.runtime.dtypes import DType, uint8
from torchwise_memory.runtime.errors import Unsupported
from torchwise_memory.runtime.tape import Gradients, Saved, record
from torchwise_memory.runtime.tensor import Parameter, Tensor
from torchwise_memory.runtime.world import World


class PackedSequence:
    """`torch.nn.utils.rnn.PackedSequence` of sequences that are all as long as the longest."""

    native_name = "torch.nn.utils.rnn.PackedSequence"

    def __init__(self) -> None:
        self.data: Tensor | None = None
        self.batch = 0

    def init(self, w: World, data: Tensor, batch_sizes: Any = None, *args: object) -> None:
        self.data = data
        self.batch = 1

    @attribute("data")
    def get_data(self, w: World) -> Tensor | None:
        return self.data

    @visible("to", "cuda")
    def to(self, w: World, *args: object, **kwargs: object) -> PackedSequence:
        return self


class _Recurrent(Resettable):
    """`reserve_factor`: elements cuDNN keeps for backward for each hidden element, layer and direction."""

    gates: ClassVar[int] = 1
    reserve_factor: ClassVar[int] = 2
    has_cell: ClassVar[bool] = False

    def build(
        self,
        w: World,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        proj_size: int = 0,
        device: object = None,
        dtype: object = None,
    ) -> None:
        self.fields.update(
            input_size=input_size,
            hidden_size=hidden_size,
            num_layers=num_layers,
            bias=bias,
            batch_first=batch_first,
            dropout=float(dropout),
            bidirectional=bidirectional,
            proj_size=proj_size,
        )
        output = proj_size or hidden_size
        directions = 2 if bidirectional else 1
        for layer in range(num_layers):
            for direction in range(directions):
                width = input_size if layer == 0 else output * directions
                suffix = f"l{layer}" + ("_reverse" if direction else "")
                shapes: list[tuple[str, tuple[int, ...]]] = [("weight_ih", (self.gates * hidden_size, width))]
                shapes.append(("weight_hh", (self.gates * hidden_size, output)))
                if bias:
                    shapes += [
                        ("bias_ih", (self.gates * hidden_size,)),
                        ("bias_hh", (self.gates * hidden_size,)),
                    ]
                if proj_size:
                    shapes.append(("weight_hr", (proj_size, hidden_size)))
                for name, shape in shapes:
                    self.new_parameter(w, f"{name}_{suffix}", shape, device, dtype)

    @visible("flatten_parameters")
    def flatten_parameters(self, w: World) -> None:
        """Parameters become views of one buffer of the same size."""

    def forward(self, w: World, input: Any, hx: Any = None) -> Any:
        if isinstance(input, PackedSequence):
            return self._packed(w, input, hx)
        return self._padded(w, input, hx)

    def _packed(self, w: World, sequence: PackedSequence, hx: Any) -> Any:
        if sequence.data is None:
            raise Unsupported(self.native_name, "a packed sequence that is not known")
        output, finals = self._layers(
            w, sequence.data, hx, sequence.data.shape[0] // sequence.batch, sequence.batch
        )
        result = PackedSequence()
        result.data, result.batch = output, sequence.batch
        return result, finals

    def _padded(self, w: World, x: Tensor, hx: Any) -> Any:
        first = self.flag("batch_first")
        if x.ndim == 2:
            output, finals = self._padded(w, method(w, "unsqueeze", x, 0 if first else 1), hx)
            return method(w, "squeeze", output, 0 if first else 1), finals
        batch, steps = (x.shape[0], x.shape[1]) if first else (x.shape[1], x.shape[0])
        return self._layers(w, x, hx, steps, batch)

    def _layers(self, w: World, x: Tensor, hx: Any, steps: int, batch: int) -> tuple[Tensor, Any]:
        if hx is None:
            states = self._initial_states(w, x, batch)
        else:
            states = list(hx) if self.has_cell else [hx]
        output, finals = self._cudnn(w, x, states, steps, batch)
        return output, (tuple(finals) if self.has_cell else finals[0])

    def _initial_states(self, w: World, x: Tensor, batch: int) -> list[Tensor]:
        layers = self.integer("num_layers") * (2 if self.flag("bidirectional") else 1)
        hidden, output = self.integer("hidden_size"), self.integer("proj_size") or self.integer("hidden_size")
        states = [w.new((layers, batch, output), x.dtype, "zeros", x.device)]
        if self.has_cell:
            states.append(w.new((layers, batch, hidden), x.dtype, "zeros", x.device))
        return states

    def _cudnn(
        self, w: World, x: Tensor, states: list[Tensor], steps: int, batch: int
    ) -> tuple[Tensor, list[Tensor]]:
        """`_cudnn_rnn`: under autocast all weights are copied into one half buffer, the input is cast."""
        parameters: list[Parameter] = [value for value in self.parameters.values() if value is not None]
        dtype = x.dtype
        kept_weights: list[Tensor] = list(parameters)
        source = x
        if w.autocast_dtype is not None and x.device.on_card and x.dtype is not w.autocast_dtype:
            dtype = w.autocast_dtype
            x = method(w, "to", x, dtype)
            states = [method(w, "to", state, dtype) for state in states]
            source = x
            total = sum(parameter.numel for parameter in parameters)
            kept_weights = [w.new((total,), dtype, "weight buffer", x.device)]
        directions = 2 if self.flag("bidirectional") else 1
        hidden, out = self.integer("hidden_size"), self.integer("proj_size") or self.integer("hidden_size")
        leading = x.shape[:-1]
        output = w.new((*leading, out * directions), dtype, "_cudnn_rnn", x.device)
        finals = [w.new(state.shape, dtype, "_cudnn_rnn", x.device) for state in states]
        recorded = w.grad_enabled and any(t.requires_grad for t in (source, *parameters))
        if recorded:
            layers = self.integer("num_layers") * directions
            elements = steps * batch * hidden * layers * self.reserve_factor
            reserve = w.new((elements * dtype.itemsize,), uint8, "_cudnn_rnn reserve", x.device)
            backward = _CudnnBackward(
                tuple(source.shape),
                [tuple(s.shape) for s in states],
                [tuple(p.shape) for p in parameters],
                dtype,
            )
            record(
                w,
                "CudnnRnn",
                (source, *states, *parameters),
                (source, *states, output, reserve, *kept_weights),
                backward,
                output,
                *finals,
            )
        return output, finals


class _CudnnBackward:
    """Gradients of input, states and weights, all made by one call."""

    def __init__(
        self,
        input_shape: tuple[int, ...],
        state_shapes: list[tuple[int, ...]],
        weight_shapes: list[tuple[int, ...]],
        dtype: DType,
    ) -> None:
        self.input_shape = input_shape
        self.state_shapes = state_shapes
        self.weight_shapes = weight_shapes
        self.dtype = dtype

    def __call__(self, w: World, saved: Saved, gradients: Gradients) -> list[Tensor | None]:
        given = next(gradient for gradient in gradients if gradient is not None)
        shapes = [self.input_shape, *self.state_shapes, *self.weight_shapes]
        return [w.new(shape, self.dtype, "_cudnn_rnn_backward", given.device) for shape in shapes]


class RNN(_Recurrent):
    native_name = "torch.nn.RNN"

    def init(
        self,
        w: World,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        nonlinearity: str = "tanh",
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        device: object = None,
        dtype: object = None,
    ) -> None:
        self.build(
            w,
            input_size,
            hidden_size,
            num_layers,
            bias,
            batch_first,
            dropout,
            bidirectional,
            device=device,
            dtype=dtype,
        )
        self.fields["nonlinearity"] = nonlinearity


class LSTM(_Recurrent):
    native_name = "torch.nn.LSTM"
    gates = 4
    reserve_factor = 6
    has_cell = True

    def init(
        self,
        w: World,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        proj_size: int = 0,
        device: object = None,
        dtype: object = None,
    ) -> None:
        self.build(
            w,
            input_size,
            hidden_size,
            num_layers,
            bias,
            batch_first,
            dropout,
            bidirectional,
            proj_size,
            device,
            dtype,
        )


class GRU(_Recurrent):
    native_name = "torch.nn.GRU"
    gates = 3
    reserve_factor = 5

    def init(
        self,
        w: World,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        device: object = None,
        dtype: object = None,
    ) -> None:
        self.build(
            w,
            input_size,
            hidden_size,
            num_layers,
            bias,
            batch_first,
            dropout,
            bidirectional,
            device=device,
            dtype=dtype,
        )


class _Cell(Resettable):
    """Two products, then one fused kernel that keeps the activated gates."""

    gates: ClassVar[int] = 1
    has_cell: ClassVar[bool] = False

    def init(
        self,
        w: World,
        input_size: int,
        hidden_size: int,
        bias: bool = True,
        device: object = None,
        dtype: object = None,
    ) -> None:
        self.fields.update(input_size=input_size, hidden_size=hidden_size, bias=bias)
        self.new_parameter(w, "weight_ih", (self.gates * hidden_size, input_size), device, dtype)
        self.new_parameter(w, "weight_hh", (self.gates * hidden_size, hidden_size), device, dtype)
        for name in ("bias_ih", "bias_hh"):
            if bias:
                self.new_parameter(w, name, (self.gates * hidden_size,), device, dtype)
            else:
                self.parameters[name] = None

    def forward(self, w: World, input: Tensor, hx: Any = None) -> Any:
        hidden = self.integer("hidden_size")
        if hx is None:
            zeros = [w.new((*input.shape[:-1], hidden), input.dtype, "zeros", input.device) for _ in range(2)]
            hx = tuple(zeros) if self.has_cell else zeros[0]
        state = hx[0] if self.has_cell else hx
        gates_in = functional(w, "linear", input, self.tensor("weight_ih"), self.parameter("bias_ih"))
        gates_state = functional(w, "linear", state, self.tensor("weight_hh"), self.parameter("bias_hh"))
        if self.gates == 1:
            return torch_function(w, "torch.tanh", torch_function(w, "torch.add", gates_in, gates_state))
        kept = w.new(
            (*input.shape[:-1], self.gates * hidden), gates_in.dtype, "_thnn_fused_cell", input.device
        )
        new_state = w.new((*input.shape[:-1], hidden), gates_in.dtype, "_thnn_fused_cell", input.device)
        inputs = [gates_in, gates_state, hx[1] if self.has_cell else hx]
        outputs = [new_state]
        saved = [kept, inputs[2]]
        if self.has_cell:
            outputs.append(w.new(new_state.shape, gates_in.dtype, "_thnn_fused_cell", input.device))
            saved.append(outputs[1])
        record(w, "ThnnFusedCell", inputs, saved, _CellBackward(self.gates, hidden), *outputs)
        return tuple(outputs) if self.has_cell else new_state


class _CellBackward:
    def __init__(self, gates: int, hidden: int) -> None:
        self.gates = gates
        self.hidden = hidden

    def __call__(self, w: World, saved: Saved, gradients: Gradients) -> list[Tensor | None]:
        given = next(gradient for gradient in gradients if gradient is not None)
        lead = given.shape[:-1]
        widths = (self.gates * self.hidden, self.gates * self.hidden, self.hidden)
        return [
            w.new((*lead, width), given.dtype, "_thnn_fused_cell_backward", given.device) for width in widths
        ]


class RNNCell(_Cell):
    native_name = "torch.nn.RNNCell"

    def init(  # type: ignore[override]
        self,
        w: World,
        input_size: int,
        hidden_size: int,
        bias: bool = True,
        nonlinearity: str = "tanh",
        device: object = None,
        dtype: object = None,
    ) -> None:
        super().init(w, input_size, hidden_size, bias, device, dtype)


class LSTMCell(_Cell):
    native_name = "torch.nn.LSTMCell"
    gates = 4
    has_cell = True


class GRUCell(_Cell):
    native_name = "torch.nn.GRUCell"
    gates = 3


def pack_padded_sequence(
    w: World,
    input: Tensor,
    lengths: Any,
    batch_first: bool = False,
    enforce_sorted: bool = True,
) -> PackedSequence:
    """Packs as if no sequence were padded: the largest case."""
    w.assume("packed sequences are all as long as the longest")
    packed = PackedSequence()
    packed.batch = input.shape[0 if batch_first else 1]
    if batch_first:
        input = method(w, "transpose", input, 0, 1)
    lead = math.prod(input.shape[:2])
    packed.data = method(w, "reshape", method(w, "contiguous", input), (lead, *input.shape[2:]))
    return packed


def pad_sequence(
    w: World,
    sequences: Any,
    batch_first: bool = False,
    padding_value: float = 0.0,
    padding_side: str = "right",
) -> Tensor:
    """One tensor as long as the longest of the sequences."""
    tensors = list(sequences)
    if not tensors or not all(isinstance(one, Tensor) and one.ndim for one in tensors):
        raise Unsupported("torch.nn.utils.rnn.pad_sequence", "sequences that are not known")
    first: Tensor = tensors[0]
    longest = max(one.shape[0] for one in tensors)
    lead = (len(tensors), longest) if batch_first else (longest, len(tensors))
    padded: Tensor = method(w, "new_full", first, (*lead, *first.shape[1:]), padding_value)
    return padded


def pack_sequence(w: World, sequences: Any, enforce_sorted: bool = True) -> PackedSequence:
    return pack_padded_sequence(w, pad_sequence(w, sequences), None, False, enforce_sorted)


def pad_packed_sequence(
    w: World,
    sequence: PackedSequence,
    batch_first: bool = False,
    padding_value: float = 0.0,
    total_length: int | None = None,
) -> tuple[Tensor, Tensor]:
    data = sequence.data
    if data is None:
        raise Unsupported("torch.nn.utils.rnn.pad_packed_sequence", "a sequence that is not known")
    steps = data.shape[0] // sequence.batch
    padded = method(w, "clone", method(w, "view", data, steps, sequence.batch, *data.shape[1:]))
    lengths = torch_function(w, "torch.full", (sequence.batch,), steps)
    return method(w, "transpose", padded, 0, 1) if batch_first else padded, lengths


RECURRENT = (RNN, LSTM, GRU, RNNCell, LSTMCell, GRUCell)
