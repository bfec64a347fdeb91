"""Answers for operations without a rule, on request: linearization or sampling.

Neither is ever used silently: `propagate(..., fallback=...)` asks for one, and the result's
notes name every operation that took it.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from howsure.errors import NoRuleError
from howsure.moments.value import (
    Args,
    Kwargs,
    Moments,
    Target,
    leaves_of,
    substitute,
    variance_dtype,
)
from howsure.private_torch import functorch
from howsure.trees import has_values

Fallback = Callable[[Target, Args, Kwargs], object]
Tensors = tuple[Tensor, ...]

# With at most this many random elements the Jacobian is exact; above, that many random
# directions estimate the variance with a relative error of sqrt(2 / 128) = 12 %.
_DIRECTIONS = 128
_SAMPLES = 256

# Forward mode counts its levels in one place for all threads (torch 2.13), and there is one list of
# warning filters: two threads at once would lose tangents, some silently.
_one_at_a_time = threading.RLock()


class RandomCall:
    """A call as a function of its random arguments alone."""

    def __init__(self, func: Target, args: Args, kwargs: Kwargs) -> None:
        self.func = func
        self.arguments = (args, kwargs)
        random: list[Moments] = list(leaves_of(self.arguments, Moments))
        self.means: Tensors = tuple(moments.mean for moments in random)
        self.variances: Tensors = tuple(moments.var for moments in random)

    def result(self, *values: Tensor) -> object:
        """What the operation returns for these values of its random arguments."""
        copies = (value.clone() for value in values)  # an operation in place must not change them
        args, kwargs = substitute(self.arguments, Moments, lambda _: next(copies))
        return self.func(*args, **kwargs)

    def floats(self, *values: Tensor) -> Tensors:
        """The floating-point tensors among the results."""
        leaves = list(leaves_of(self.result(*values), Tensor))
        if any(leaf.is_complex() for leaf in leaves):
            raise NoRuleError("Its result is complex, and howsure carries real variances only.")
        return tuple(leaf for leaf in leaves if leaf.dtype.is_floating_point)

    def with_moments(self, means: Sequence[Tensor], variances: Sequence[Tensor]) -> object:
        """The result's structure with moments; integers and masks stay as they are at the mean."""
        moments = map(Moments, means, variances)

        def carry(leaf: Tensor) -> Moments | Tensor:
            return next(moments) if leaf.dtype.is_floating_point else leaf

        return substitute(self.result(*self.means), Tensor, carry)


def linearize(func: Target, args: Args, kwargs: Kwargs) -> object:
    """First-order moments: the value at the mean, and var = sum_k (J d_k)**2.

    The directions d_k are the standard deviations one element at a time (exact), or random signs
    times the standard deviations (Hutchinson's estimator). Sorting and selecting keep the order
    that they have at the mean.
    """
    call = RandomCall(func, args, kwargs)
    with _one_at_a_time, warnings.catch_warnings():
        # For kernels that run one by one: slow, not wrong.
        warnings.filterwarnings("ignore", "There is a performance drop")
        outputs = call.floats(*call.means)
        if not outputs:
            return call.result(*call.means)
        stds = [v.sqrt().to(m.dtype) for m, v in zip(call.means, call.variances, strict=True)]
        flat = torch.cat([std.reshape(-1) for std in stds])
        if flat.numel() <= _DIRECTIONS:
            table = torch.diag(flat)
        else:
            # numpy's, since `vmap` allows none of torch's.
            signs = np.random.default_rng(0).choice((-1.0, 1.0), (_DIRECTIONS, flat.numel()))
            table = torch.as_tensor(signs).to(flat) * flat / _DIRECTIONS**0.5
        parts = table.split([std.numel() for std in stds], dim=1)
        directions = tuple(p.reshape(-1, *std.shape) for p, std in zip(parts, stds, strict=True))
        spreads = _push_forward(call, directions)
    variances = [s.square().sum(0).to(variance_dtype(s.dtype)) for s in spreads]
    return call.with_moments(outputs, variances)


def _push_forward(call: RandomCall, directions: Tensors) -> Tensors:
    """J d for every direction: forward mode where the operation has it, else reverse mode twice."""

    def forward(*direction: Tensor) -> Tensors:
        return torch.func.jvp(call.floats, call.means, direction)[1]

    def reverse(*direction: Tensor) -> Tensors:
        return torch.autograd.functional.jvp(call.floats, call.means, direction)[1]

    def one_by_one(function: Callable[..., Tensors]) -> Callable[..., Tensors]:
        def loop(*directions: Tensor) -> Tensors:
            rows = [function(*direction) for direction in zip(*directions, strict=True)]
            return tuple(torch.stack(column) for column in zip(*rows, strict=True))

        return loop

    agrees = _backward_check(call)
    reason: Exception | str = "it has no derivative"
    for attempt in (torch.vmap(forward), one_by_one(forward), one_by_one(reverse)):
        try:
            pushed = attempt(*directions)
        except (RuntimeError, NotImplementedError) as error:
            reason = error
            continue
        if agrees(directions, pushed):
            return pushed
    raise NoRuleError(f'It could not be linearized either: {reason}. Use `fallback="sample"`.')


def _backward_check(call: RandomCall) -> Callable[[Tensors, Tensors], bool]:
    """Whether forward derivatives agree with one backward pass: <w, J d> = <J^T w, d>.

    An operator from C++ without a forward formula returns 0 silently: the variance would be lost.
    """
    if not all(has_values(mean) for mean in call.means):
        return lambda directions, pushed: True
    with torch.inference_mode(False), torch.enable_grad():
        inputs = tuple(mean.detach().clone() for mean in call.means)
        if functorch.peek_interpreter_stack() is None:
            outputs = call.floats(*(tensor.requires_grad_() for tensor in inputs))
            pull = None
        else:
            # Inside `vmap`, before anything is batched, torch allows no other derivatives.
            outputs, pull = torch.func.vjp(call.floats, *inputs)  # pyright: ignore[reportAssignmentType]
        draws = np.random.default_rng(1)
        weights = tuple(torch.as_tensor(draws.normal(size=o.shape)).to(o) for o in outputs)
        try:
            if pull is None:
                total = _inner(outputs, weights)
                gradients = torch.autograd.grad(total, inputs, materialize_grads=True)
            else:
                gradients = pull(weights)
        except RuntimeError:  # no derivative
            return lambda directions, pushed: False

    def agrees(directions: Tensors, pushed: Tensors) -> bool:
        backward = _inner(gradients, [direction.sum(0) for direction in directions])
        forward = _inner(weights, [result.sum(0) for result in pushed])
        terms = _inner([w.abs() for w in weights], [p.abs().sum(0) for p in pushed])
        return bool((forward - backward).abs() <= 1e-3 * torch.maximum(terms, backward.abs()))

    return agrees


def _inner(left: Sequence[Tensor], right: Sequence[Tensor]) -> Tensor:
    """The inner product of two lists of tensors."""
    return torch.stack([(a * b).sum() for a, b in zip(left, right, strict=True)]).sum()


def sample(func: Target, args: Args, kwargs: Kwargs) -> object:
    """Moments of 256 draws of the random arguments: any operation, with sampling error."""
    call = RandomCall(func, args, kwargs)
    generator = torch.Generator().manual_seed(0)
    draws = []
    for _ in range(_SAMPLES):
        values = [
            mean + (var.sqrt() * torch.randn(mean.shape, generator=generator).to(var)).to(mean)
            for mean, var in zip(call.means, call.variances, strict=True)
        ]
        draws.append(call.floats(*values))
    if not draws[0]:
        raise NoRuleError("Its result is not a floating-point tensor and cannot be averaged.")
    columns = [torch.stack(column) for column in zip(*draws, strict=True)]
    variances = [c.to(variance_dtype(c.dtype)).var(0, correction=1) for c in columns]
    is_certain = all(bool((var == 0).all()) for var in call.variances)
    means = call.floats(*call.means) if is_certain else [c.mean(0) for c in columns]
    return call.with_moments(means, variances)


FALLBACKS: dict[str, Fallback | None] = {
    "error": None,
    "linearize": linearize,
    "sample": sample,
}
