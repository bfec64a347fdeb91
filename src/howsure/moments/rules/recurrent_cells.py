"""Single steps of recurrent networks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from howsure.moments.families import composite_of
from howsure.moments.rule import APPROXIMATE, Draw, Sample, Samples
from howsure.moments.rules.recurrent import Layer, gru_step, lstm_step, plain_step


def _steps(gates: int, state_noise: bool) -> Samples:
    """Each gate reads inputs of its own, so that gates are independent, as the rules assume."""

    def samples(draw: Draw) -> Iterable[Sample]:
        own, still = torch.diag(draw.positive(gates * 2)), draw.constant(gates * 2, 2)
        biases = draw.positive(gates * 2), draw.positive(gates * 2)
        x, h = draw.moments(3, gates * 2, mean=3.0, std=0.3), draw.constant(3, 2) / 4
        c = draw.moments(3, 2, std=0.3) if state_noise else draw.constant(3, 2)
        yield Sample(x, (h, c) if gates == 4 else h, own, still, *biases)
        yield Sample(x, (h, c) if gates == 4 else h, own, still)

    return samples


@composite_of(
    "lstm_cell", inplace=False, samples=_steps(4, state_noise=True), fidelity=APPROXIMATE, error=0.1
)
def lstm_cell(
    input: Tensor,  # (batch, in)
    hx: Sequence[Tensor],
    w_ih: Tensor,
    w_hh: Tensor,
    b_ih: Tensor | None = None,
    b_hh: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """As `lstm`, for one step."""
    layer = Layer(w_ih, w_hh, b_ih, b_hh)
    h, c = lstm_step(F.linear(input, w_ih, b_ih), tuple(hx), layer)
    return h, c


@composite_of(
    "gru_cell", inplace=False, samples=_steps(3, state_noise=False), fidelity=APPROXIMATE, error=0.1
)
def gru_cell(
    input: Tensor,  # (batch, in)
    hx: Tensor,  # (batch, hidden)
    w_ih: Tensor,
    w_hh: Tensor,
    b_ih: Tensor | None = None,
    b_hh: Tensor | None = None,
) -> Tensor:
    """As `gru`, for one step."""
    return gru_step(F.linear(input, w_ih, b_ih), (hx,), Layer(w_ih, w_hh, b_ih, b_hh))[0]


def _register_plain(name: str, activation: Callable[[Tensor], Tensor]) -> None:
    @composite_of(name, inplace=False, samples=_steps(1, state_noise=False), error=1e-3)
    def plain_cell(
        input: Tensor,  # (batch, in)
        hx: Tensor,  # (batch, hidden)
        w_ih: Tensor,
        w_hh: Tensor,
        b_ih: Tensor | None = None,
        b_hh: Tensor | None = None,
    ) -> Tensor:
        """As `rnn_tanh`, for one step of the activation."""
        layer = Layer(w_ih, w_hh, b_ih, b_hh)
        return plain_step(activation)(F.linear(input, w_ih, b_ih), (hx,), layer)[0]


_register_plain("rnn_tanh_cell", torch.tanh)
_register_plain("rnn_relu_cell", torch.relu)
