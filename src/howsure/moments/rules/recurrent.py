"""Recurrent networks: LSTM, GRU and plain ones, unrolled into operations that have rules.

All layers, both directions, projections, packed sequences. The gates of one step are computed from
the same input and state and count as independent, as do the steps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from howsure.errors import NoRuleError
from howsure.moments.families import composite
from howsure.moments.rule import APPROXIMATE, Draw, Sample, Samples

State = tuple[Tensor, ...]
Steps = Sequence[Tensor]


class Layer(NamedTuple):
    """The parameters of one layer in one direction."""

    w_ih: Tensor  # (gates, in)
    w_hh: Tensor  # (gates, hidden)
    b_ih: Tensor | None = None  # (gates,)
    b_hh: Tensor | None = None  # (gates,)
    w_hr: Tensor | None = None  # (projected, hidden)


# From the input's part of the gates, the state and the parameters to the next state.
Cell = Callable[[Tensor, State, Layer], State]


def lstm_step(gates: Tensor, state: State, layer: Layer) -> State:
    """c' = f c + i g, h' = o tanh(c')."""
    h, c = state
    i, f, g, o = (gates + F.linear(h, layer.w_hh, layer.b_hh)).chunk(4, -1)
    # One quadrature for the three gates: small tensors cost calls, not arithmetic.
    i, f, o = torch.sigmoid(torch.cat([i, f, o], -1)).chunk(3, -1)
    c = f * c + i * torch.tanh(g)
    h = o * torch.tanh(c)
    return (h if layer.w_hr is None else F.linear(h, layer.w_hr)), c


def gru_step(gates: Tensor, state: State, layer: Layer) -> State:
    """n = tanh(x_n + r h_n), h' = n + z (h - n)."""
    (h,) = state
    size = h.shape[-1]
    x_gates, x_n = gates.split([2 * size, size], -1)
    h_gates, h_n = F.linear(h, layer.w_hh, layer.b_hh).split([2 * size, size], -1)
    r, z = torch.sigmoid(x_gates + h_gates).chunk(2, -1)
    return (torch.lerp(torch.tanh(x_n + r * h_n), h, z),)


def plain_step(activation: Callable[[Tensor], Tensor]) -> Cell:
    """h' = activation(x W + h U)."""

    def step(gates: Tensor, state: State, layer: Layer) -> State:
        return (activation(gates + F.linear(state[0], layer.w_hh, layer.b_hh)),)

    return step


def scan(
    cell: Cell, steps: Steps, start: State, layer: Layer, reverse: bool
) -> tuple[list[Tensor], State]:
    """The outputs of all steps and the last state; steps may have fewer rows than the first."""
    outputs: list[Tensor] = []
    state, ended = start, []
    if reverse:
        state = _rows(start, 0, steps[-1].shape[0])
    for gates in reversed(steps) if reverse else steps:
        rows, now = gates.shape[0], state[0].shape[0]
        if rows < now:
            ended.append(_rows(state, rows, now))
            state = _rows(state, 0, rows)
        elif rows > now:
            state = _join([state, _rows(start, now, rows)])
        state = cell(gates, state, layer)
        outputs.append(state[0])
    if ended:
        state = _join([state, *reversed(ended)])
    return outputs[::-1] if reverse else outputs, state


def _rows(state: State, first: int, last: int) -> State:
    whole = first == 0 and last == state[0].shape[0]
    return state if whole else tuple(part[first:last] for part in state)


def _join(states: Sequence[State]) -> State:
    return tuple(torch.cat(parts) for parts in zip(*states, strict=True))


def _group_parameters(params: Sequence[Tensor], biased: bool, projected: bool) -> list[Layer]:
    """Torch's flat list of parameters, grouped."""
    size = (4 if biased else 2) + projected
    groups = [list(params[i : i + size]) for i in range(0, len(params), size)]
    return [
        Layer(*group[: 4 if biased else 2], **({"w_hr": group[-1]} if projected else {}))
        for group in groups
    ]


def unroll(
    cell: Cell,
    input: Tensor,  # (time, batch, in), or (all steps' rows, in) with sizes
    sizes: list[int] | None,
    start: State,  # (layers * directions, batch, hidden) each
    layers: list[Layer],
    bidirectional: bool,
) -> tuple[Tensor, State]:
    """The output of the last layer, in the input's form, and the last states of all layers."""
    directions = 2 if bidirectional else 1
    finals: list[State] = []
    for number in range(0, len(layers), directions):
        sides = []
        for side in range(directions):
            layer = layers[number + side]
            gates = F.linear(input, layer.w_ih, layer.b_ih)
            steps = gates.unbind(0) if sizes is None else gates.split(sizes)
            state = tuple(part[number + side] for part in start)
            outputs, last = scan(cell, steps, state, layer, reverse=side == 1)
            sides.append(torch.stack(outputs) if sizes is None else torch.cat(outputs))
            finals.append(last)
        input = sides[0] if directions == 1 else torch.cat(sides, -1)
    return input, tuple(torch.stack(parts) for parts in zip(*finals, strict=True))


def _network(cell: Cell, args: Sequence[Any], several_states: bool) -> State:
    """Reads the arguments of torch's two signatures, for padded and for packed sequences."""
    packed = isinstance(args[1], Tensor) and not args[1].dtype.is_floating_point
    input, hx, params, biased, _, dropout, train, bidirectional, *rest = (
        (args[0], *args[2:]) if packed else args
    )
    if train and dropout > 0:
        raise NoRuleError(
            "Dropout between recurrent layers in train mode draws a random mask. Call "
            "`model.eval()`; howsure places and samples dropout by itself."
        )
    start = tuple(hx) if several_states else (hx,)
    projected = several_states and hx[0].shape[-1] != hx[1].shape[-1]
    batch_first = bool(rest and rest[0]) and not packed
    x = input.transpose(0, 1) if batch_first else input
    sizes = args[1].tolist() if packed else None
    out, last = unroll(
        cell, x, sizes, start, _group_parameters(params, biased, projected), bidirectional
    )
    return (out.transpose(0, 1) if batch_first else out, *last)


def _sequences(gates: int) -> Samples:
    """Each gate reads inputs of its own, and none the state: independent, as the rules assume."""

    def parameters(draw: Draw, size: int) -> list[Tensor]:
        weight = torch.diag(draw.positive(gates * 2))[:, :size]
        still = torch.zeros(gates * 2, 2, dtype=torch.float64)
        return [weight, still, draw.positive(gates * 2), draw.positive(gates * 2)]

    def samples(draw: Draw) -> Iterable[Sample]:
        start = draw.constant(1, 3, 2), draw.constant(1, 3, 2)
        hx = start if gates == 4 else start[0]
        options = True, 1, 0.0, False, False
        x = draw.moments(2, 3, gates * 2, mean=1.0, std=0.3)
        yield Sample(x, hx, parameters(draw, gates * 2), *options, False)
        both = [*parameters(draw, gates * 2), *parameters(draw, gates * 2)]
        start = draw.constant(2, 2, 2), draw.constant(2, 2, 2)
        hx = start if gates == 4 else start[0]
        x = draw.moments(2, 3, gates * 2, mean=1.0, std=0.3)
        yield Sample(x, hx, both, True, 1, 0.0, False, True, True)

    return samples


@composite("lstm", samples=_sequences(4), fidelity=APPROXIMATE, error=0.1)
def lstm(*args: object) -> tuple[Tensor, Tensor, Tensor]:
    """i, f, o = sigmoid, g = tanh of linear maps; c' = f c + i g, h' = o tanh(c').

    Assumes: independent gates and steps, although all read the same state.

    Source: Hochreiter & Schmidhuber 1997; `linear`, `sigmoid`, `tanh`, `mul`, `add`.
    """
    out, h, c = _network(lstm_step, args, several_states=True)
    return out, h, c


@composite("gru", samples=_sequences(3), fidelity=APPROXIMATE, error=0.1)
def gru(*args: object) -> tuple[Tensor, Tensor]:
    """r, z = sigmoid, n = tanh(x_n + r h_n); h' = n + z (h - n) by `lerp`.

    Assumes: independent gates and steps, although all read the same state.

    Source: Cho et al. 2014; `linear`, `sigmoid`, `tanh`, `mul`, `lerp`.
    """
    out, h = _network(gru_step, args, several_states=False)
    return out, h


def _register_plain(name: str, activation: Callable[[Tensor], Tensor]) -> None:
    @composite(name, samples=_sequences(1), fidelity=APPROXIMATE, error=0.1)
    def plain(*args: object) -> tuple[Tensor, Tensor]:
        """h' = activation(W x + U h + b).

        Assumes: independent steps, although all read the same state.

        Source: Elman 1990; `linear`, `add`, `tanh` or `relu`.
        """
        out, h = _network(plain_step(activation), args, several_states=False)
        return out, h


_register_plain("rnn_tanh", torch.tanh)
_register_plain("rnn_relu", torch.relu)


# Single steps.
def _steps(gates: int, state_noise: bool) -> Samples:
    """Each gate reads inputs of its own, so that gates are independent, as the rules assume."""

    def samples(draw: Draw) -> Iterable[Sample]:
        weight, still = torch.diag(draw.positive(gates * 2)), draw.constant(gates * 2, 2)
        biases = draw.positive(gates * 2), draw.positive(gates * 2)
        x, h = draw.moments(3, gates * 2, mean=3.0, std=0.3), draw.constant(3, 2) / 4
        c = draw.moments(3, 2, std=0.3) if state_noise else draw.constant(3, 2)
        yield Sample(x, (h, c) if gates == 4 else h, weight, still, *biases)
        yield Sample(x, (h, c) if gates == 4 else h, weight, still)

    return samples


_CELL: dict[str, Any] = {"fidelity": APPROXIMATE, "error": 0.1}


@composite("lstm_cell", samples=_steps(4, state_noise=True), **_CELL)
def lstm_cell(
    input: Tensor,  # (batch, in)
    hx: Sequence[Tensor],
    *parameters: Tensor | None,
    **named: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """As `lstm`, for one step."""
    layer = Layer(*parameters, **named)  # pyright: ignore[reportArgumentType]
    h, c = lstm_step(F.linear(input, layer.w_ih, layer.b_ih), tuple(hx), layer)
    return h, c


def _register_cell(name: str, cell: Cell, like: str, gates: int, **options: Any) -> None:
    def one_step(
        input: Tensor,  # (batch, in)
        hx: Tensor,  # (batch, hidden)
        *parameters: Tensor | None,
        **named: Tensor | None,
    ) -> Tensor:
        layer = Layer(*parameters, **named)  # pyright: ignore[reportArgumentType]
        return cell(F.linear(input, layer.w_ih, layer.b_ih), (hx,), layer)[0]

    one_step.__doc__ = f"As `{like}`, for one step."
    composite(name, samples=_steps(gates, state_noise=False), **options)(one_step)


_register_cell("gru_cell", gru_step, "gru", 3, **_CELL)
for _name, _activation in (("rnn_tanh", torch.tanh), ("rnn_relu", torch.relu)):
    _step = plain_step(_activation)
    _register_cell(f"{_name}_cell", _step, _name, 1, error=1e-3)
