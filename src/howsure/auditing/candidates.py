"""Which methods are audited, and their predictions; one that does not apply says why."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor

from howsure.auditing.case import Case
from howsure.auditing.cost import Stopwatch
from howsure.methods import METHODS, RENAMED, Method, check_method

Named = str | Method | tuple[str | Method, Mapping[str, object]]
Late = Callable[[], bool]


@dataclass(frozen=True)
class Candidate:
    """A method with its options."""

    method: Method
    options: dict[str, object] = field(default_factory=dict)

    @property
    def label(self) -> str:
        """The method and what is not obvious about it."""
        if not self.options:
            return self.method.name
        given = ", ".join(f"{name}={value}" for name, value in self.options.items())
        return f"{self.method} ({given})"


DEFAULT = tuple(
    Candidate(method, dict(options)) for method in METHODS.values() for options in method.audited
)


@dataclass(frozen=True, eq=False)
class Guess:
    """What a method says, (inputs, outputs) each.

    Attributes:
        std_error: Median over all outputs of the relative standard error that the method states
            for its own std; `None` where it states none.
    """

    mean: Tensor
    data_var: Tensor
    model_var: Tensor
    std_error: float | None

    @property
    def std(self) -> Tensor:
        """The root of the total variance."""
        return (self.data_var + self.model_var).sqrt()


def candidates(methods: Sequence[Named] | None) -> tuple[Candidate, ...]:
    """The methods that were asked for: names, methods of one's own, or either with options."""
    if methods is None:
        return DEFAULT
    if isinstance(methods, (str, Method)):
        methods = [methods]
    pairs = [each if isinstance(each, tuple) else (each, {}) for each in methods]
    if not pairs:
        raise ValueError("`methods` is empty; leave it out to compare the usual ones.")
    return tuple(Candidate(_known(method), dict(options)) for method, options in pairs)


def _known(method: str | Method) -> Method:
    if isinstance(method, Method):
        return method
    if method in RENAMED:
        check_method(method)
    if method not in METHODS:
        raise ValueError(f"`methods` has {method!r}; choose from {sorted(METHODS)}.")
    return METHODS[method]


def reason_to_skip(candidate: Candidate, case: Case) -> str:
    """Why a method does not apply; "" if it does."""
    if not case.noisy and candidate.method.needs_noise:
        return "the inputs have no noise"
    if not case.dropped and candidate.method.draws_masks:
        return "no dropout rate is given"
    return ""


class OutOfTime(Exception):
    """The audit's share of time for methods is spent."""


def guess(candidate: Candidate, case: Case, watch: Stopwatch, out_of_time: Late) -> Guess:
    """The method's prediction for all inputs, piece by piece; the first piece is timed."""
    parts, errors = [], []
    for index, (setup, x) in enumerate(case.pieces()):
        if out_of_time():
            raise OutOfTime
        run = partial(candidate.method, setup.with_(**candidate.options), x)
        found = run() if index else watch.timed(candidate.label, run)
        parts.append([case.compared(found, n) for n in ("mean", "data_var", "model_var")])
        if found.std_error is not None:
            errors.append(case.compared(found, "std_error"))
    columns = zip(*parts, strict=True)
    mean, data, model = (torch.cat(column).double().cpu() for column in columns)
    if not all(bool(each.isfinite().all()) for each in (mean, data, model)):
        raise ValueError("Its result contains NaN or infinity.")
    error = torch.cat(errors).double().cpu() if errors else None
    return Guess(mean, data, model, _relative(error, data + model))


def _relative(error: Tensor | None, variance: Tensor) -> float | None:
    """The median of error / std, over outputs that vary."""
    varies = variance > 0
    if error is None or not bool(varies.any()):
        return None
    found = float((error[varies] / variance[varies].sqrt()).median())
    return found if math.isfinite(found) else None


def first_sentence(error: BaseException) -> str:
    """The beginning of an error's message, as a reason in a table."""
    if isinstance(error, OutOfTime):
        return "not finished within its share of the time; raise `time_limit`"
    text = " ".join(str(error).split()) or type(error).__name__
    return re.split(r"(?<=[.;])\s", text)[0].rstrip(".;")
