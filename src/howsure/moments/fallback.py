"""Answers for operations without a rule, on request: linearisation or sampling.

Neither is ever used silently: `propagate(..., fallback=...)` asks for one, and the result's
notes name every operation that took it.
"""

from __future__ import annotations

import contextlib
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch
from torch import Tensor
from torch._C import _functorch  # pyright: ignore[reportAttributeAccessIssue]
from torch.utils import _pytree as pytree

from howsure.errors import NoRuleError
from howsure.moments.carrier import Gaussian
from howsure.moments.rule import Target, operation_name
from howsure.moments.value import Args, Kwargs, Moments, variance_dtype
from howsure.trees import has_values

Fallback = Callable[[Target, Args, Kwargs], object]

# With at most this many random elements the Jacobian is exact; above, that many random
# directions estimate the variance with a relative error of sqrt(2 / 128) = 12 %.
_DIRECTIONS = 128
_SAMPLES = 256

# Forward mode counts its levels in one place for all threads (torch 2.13), and there is one list of
# warning filters: two threads at once would lose tangents, some without a word.
_one_at_a_time = threading.RLock()


class RandomCall:
    """A call as a function of its random arguments alone."""

    def __init__(self, func: Target, args: Args, kwargs: Kwargs) -> None:
        self.func = func
        self.leaves, self.spec = pytree.tree_flatten((args, kwargs))
        self.positions = [i for i, leaf in enumerate(self.leaves) if isinstance(leaf, Gaussian)]
        inputs = [self.leaves[i].read() for i in self.positions]
        self.means = tuple(moments.mean for moments in inputs)
        self.variances = tuple(moments.var for moments in inputs)

    def result(self, *values: Tensor) -> object:
        """What the operation returns for these values of its random arguments."""
        leaves = list(self.leaves)
        for position, value in zip(self.positions, values, strict=True):
            leaves[position] = value.clone()  # an operation in place must not change the mean
        args, kwargs = pytree.tree_unflatten(leaves, self.spec)
        return self.func(*args, **kwargs)

    def floating(self, *values: Tensor) -> tuple[Tensor, ...]:
        """The floating-point tensors among the results."""
        leaves = pytree.tree_leaves(self.result(*values))
        if any(isinstance(leaf, Tensor) and leaf.is_complex() for leaf in leaves):
            raise NoRuleError("Its result is complex, and howsure carries real variances only.")
        return tuple(leaf for leaf in leaves if _is_floating(leaf))

    def with_variances(self, variances: tuple[Tensor, ...], means: tuple[Tensor, ...]) -> object:
        """The result's structure with moments; integers and masks stay as they are at the mean."""
        paired = zip(means, variances, strict=True)
        return pytree.tree_map(
            lambda leaf: Moments(*next(paired)) if _is_floating(leaf) else leaf,
            self.result(*self.means),
        )


def _is_floating(leaf: object) -> bool:
    return isinstance(leaf, Tensor) and leaf.dtype.is_floating_point


def linearised(func: Target, args: Args, kwargs: Kwargs) -> object:
    """First-order moments: the value at the mean, and var = sum_k (J d_k)**2.

    The directions d_k are the standard deviations one element at a time (exact), or random signs
    times the standard deviations (Hutchinson's estimator). Sorting and selecting keep the order
    that they have at the mean.
    """
    call = RandomCall(func, args, kwargs)
    with _quiet():
        outputs = call.floating(*call.means)
        if not outputs:
            return call.result(*call.means)
        spreads = _pushed_forward(call, _directions(call))
    variances = tuple(
        spread.square().sum(0).to(variance_dtype(out.dtype))
        for spread, out in zip(spreads, outputs, strict=True)
    )
    return call.with_variances(variances, outputs)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """One thread at a time, without the warning for kernels that run one by one: slow, not wrong.

    Whatever uses forward mode runs inside.
    """
    with _one_at_a_time, warnings.catch_warnings():
        warnings.filterwarnings("ignore", "There is a performance drop")
        yield


def _directions(call: RandomCall) -> tuple[Tensor, ...]:
    """For each random argument its part of every direction, in front."""
    stds = [var.sqrt().to(mean.dtype) for mean, var in zip(call.means, call.variances, strict=True)]
    flat = torch.cat([std.reshape(-1) for std in stds])
    if flat.numel() <= _DIRECTIONS:
        table = torch.diag(flat)
    else:
        # numpy's, since `vmap` allows none of torch's.
        signs = np.random.default_rng(0).choice((-1.0, 1.0), (_DIRECTIONS, flat.numel()))
        table = torch.as_tensor(signs).to(flat) * flat / _DIRECTIONS**0.5
    parts = table.split([std.numel() for std in stds], dim=1)
    return tuple(part.reshape(-1, *std.shape) for part, std in zip(parts, stds, strict=True))


def _pushed_forward(call: RandomCall, directions: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """J d for every direction: forward mode where the operation has it, else reverse mode twice."""

    def forward(*direction: Tensor) -> tuple[Tensor, ...]:
        return torch.func.jvp(call.floating, call.means, direction)[1]

    def reverse(*direction: Tensor) -> tuple[Tensor, ...]:
        return torch.autograd.functional.jvp(call.floating, call.means, direction)[1]

    probe = _BackwardProbe(call)
    count = directions[0].shape[0]
    reason: Exception | str = "it has no derivative"
    for attempt in (torch.vmap(forward), _one_by_one(forward, count), _one_by_one(reverse, count)):
        try:
            pushed = attempt(*directions)
        except (RuntimeError, NotImplementedError) as error:
            reason = error
            continue
        if probe.agrees(directions, pushed):
            return pushed
    raise NoRuleError(f'It could not be linearised either: {reason}. Use `fallback="sample"`.')


class _BackwardProbe:
    """Checks forward derivatives against one backward pass: <w, J d> = <J^T w, d>.

    An operator from C++ without a forward formula answers 0 without a word: a variance dropped.
    """

    def __init__(self, call: RandomCall) -> None:
        self.gradients: tuple[Tensor, ...] | None = None
        self.checkable = all(has_values(mean) for mean in call.means)
        if not self.checkable:
            return
        with torch.inference_mode(False), torch.enable_grad():
            inputs = tuple(mean.detach().clone() for mean in call.means)
            outputs, pull = _with_pullback(call.floating, inputs)
            draws = np.random.default_rng(1)
            self.weights = [torch.as_tensor(draws.normal(size=o.shape)).to(o) for o in outputs]
            with contextlib.suppress(RuntimeError):  # no derivative: `gradients` stays None
                self.gradients = pull(tuple(self.weights))

    def agrees(self, directions: tuple[Tensor, ...], pushed: tuple[Tensor, ...]) -> bool:
        """Whether the derivative along all directions is what the backward pass says."""
        if self.gradients is None:
            return not self.checkable
        backward = _inner(self.gradients, [direction.sum(0) for direction in directions])
        forward = _inner(self.weights, [result.sum(0) for result in pushed])
        terms = _inner([w.abs() for w in self.weights], [p.abs().sum(0) for p in pushed])
        return bool((forward - backward).abs() <= 1e-3 * torch.maximum(terms, backward.abs()))


def _with_pullback(
    function: Callable[..., tuple[Tensor, ...]], inputs: tuple[Tensor, ...]
) -> tuple[tuple[Tensor, ...], Callable[[tuple[Tensor, ...]], tuple[Tensor, ...]]]:
    """The function's outputs, and w -> J^T w."""
    if _functorch.peek_interpreter_stack() is not None:
        # Inside `vmap`, before anything is batched, torch allows no other derivatives.
        return torch.func.vjp(function, *inputs)  # pyright: ignore[reportReturnType]
    leaves = [each.requires_grad_() for each in inputs]
    outputs = function(*leaves)

    def pull(weights: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return torch.autograd.grad(_inner(outputs, weights), leaves, materialize_grads=True)

    return outputs, pull


def _inner(left: Sequence[Tensor], right: Sequence[Tensor]) -> Tensor:
    """The inner product of two lists of tensors."""
    return torch.stack([(a * b).sum() for a, b in zip(left, right, strict=True)]).sum()


def _one_by_one(
    function: Callable[..., tuple[Tensor, ...]], count: int
) -> Callable[..., tuple[Tensor, ...]]:
    def looped(*directions: Tensor) -> tuple[Tensor, ...]:
        rows = [function(*(d[k] for d in directions)) for k in range(count)]
        return tuple(torch.stack(column) for column in zip(*rows, strict=True))

    return looped


def sampled(func: Target, args: Args, kwargs: Kwargs) -> object:
    """Moments of 256 draws of the random arguments: any operation, with sampling error."""
    call = RandomCall(func, args, kwargs)
    generator = torch.Generator().manual_seed(0)
    draws = []
    for _ in range(_SAMPLES):
        values = [
            mean + (var.sqrt() * torch.randn(mean.shape, generator=generator).to(var)).to(mean)
            for mean, var in zip(call.means, call.variances, strict=True)
        ]
        draws.append(call.floating(*values))
    if not draws[0]:
        raise NoRuleError("Its result is not a floating-point tensor and cannot be averaged.")
    columns = [torch.stack(column) for column in zip(*draws, strict=True)]
    variances = [c.to(variance_dtype(c.dtype)).var(0, correction=1) for c in columns]
    certain = all(bool((var == 0).all()) for var in call.variances)
    means = call.floating(*call.means) if certain else tuple(c.mean(0) for c in columns)
    return call.with_variances(tuple(variances), means)


FALLBACKS: dict[str, Fallback | None] = {
    "error": None,
    "linearise": linearised,
    "sample": sampled,
}


def note(name: str, func: Target, where: str, count: int) -> str:
    """One sentence for the result's notes."""
    done = {"linearise": "linearised", "sample": "sampled"}[name]
    return f"`{operation_name(func)}` has no rule and was {done} in {where}, {count} x."
