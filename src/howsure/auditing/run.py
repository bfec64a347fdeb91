"""The audit itself: methods first, then layers, then Monte Carlo with the time that is left."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from statistics import median
from typing import TYPE_CHECKING, Any, TypedDict, TypeVar

import torch
from torch import Tensor, nn

from howsure.auditing.case import (
    LEAST,
    Case,
    Clock,
    Spread,
    Truth,
    gather_inputs,
    monte_carlo,
    plain_pass,
)
from howsure.auditing.layers import PASSES, layer_rows
from howsure.auditing.measures import Estimate, Measures, mean_shift, std_measures
from howsure.auditing.result import Audit, AuditRow, Yardstick, recommend, sentences
from howsure.methods import gradients, heteroscedastic, linear
from howsure.methods.method import METHODS, RENAMED, Method, Uses, check_method
from howsure.methods.propagation import ADF, SAMPLED_ADF
from howsure.methods.sampling import MC_DROPOUT, NOISE_SAMPLING
from howsure.moments.rule import Rule, Target
from howsure.multipliers.sites import Placement, as_placement
from howsure.noise import NoiseLike
from howsure.prediction import Prediction, concatenated
from howsure.progress import progress
from howsure.settings import PredictionKind, Task
from howsure.setup import Setup
from howsure.trees import TensorTree

if TYPE_CHECKING:
    from typing_extensions import Unpack

Named = str | Method | tuple[str | Method, Mapping[str, object]]
Result = TypeVar("Result")
# Methods that are compared by default, with their options.
USUAL: tuple[tuple[Method, Mapping[str, object]], ...] = (
    (ADF, {}),
    (linear.METHOD, {}),
    (gradients.METHOD, {}),
    (gradients.METHOD, {"samples": 32}),
    (MC_DROPOUT, {"samples": 20}),
    (NOISE_SAMPLING, {"samples": 20}),
    (SAMPLED_ADF, {"samples": 20}),
)
# Methods that have nothing to say without sensor noise, or only what MC dropout says as well.
ABOUT_NOISE = (ADF, linear.METHOD, SAMPLED_ADF, heteroscedastic.METHOD)
# Shares of the time limit by which each stage ends; Monte Carlo has the rest.
_METHODS, _COST, _LAYERS = 0.4, 0.5, 0.6
# How often the cost of a method is measured, and at most that of the plain network before.
_ROUNDS, _TRIES = 6, 5


class AuditSettings(TypedDict, total=False):
    """Settings of `Uncertain` that an audit takes besides those of its own."""

    output: Any
    batch_dim: int | None
    task: Task
    prediction: PredictionKind | None
    residual_var: float | Tensor
    chunk: int | None
    unbiased: bool
    variance_dtype: torch.dtype | None
    fallback: str
    rules: Mapping[Target, Rule] | None


def audit(
    model: Callable[..., object],
    data: object,
    noise: NoiseLike = None,
    rate: float | Sequence[float] | None = None,
    *,
    methods: Sequence[Named] | None = None,
    time_limit: float = 60.0,
    samples: int | None = None,
    inputs: int = 64,
    placement: str | Sequence[str] | Placement = "auto",
    seed: int = 0,
    show_progress: bool = True,
    **settings: Unpack[AuditSettings],
) -> Audit:
    """Compares the std and mean of every method with Monte Carlo on this network.

    Print the result. Its numbers are for these inputs, this noise and this rate.

    Args:
        model: Any trained module, in eval mode; it is not changed. Or an `Uncertain`, which has
            noise, rate and other settings already: `audit(sure, x)`.
        data: Inputs as a tensor or a dict of tensors, or a loader of inputs or of (inputs,
            targets); targets are left aside.
        noise: The sensor's noise as in `Uncertain`: a number or tensor is a **variance**.
        rate: Dropout rate, or one per site; `None` for no dropout.
        methods: Names, or (name, options), such as `["adf", ("gradients", {"samples": 16})]`; a
            `Method` of your own in place of a name.
        time_limit: Seconds for the whole audit. Monte Carlo makes up to 2,000 passes in the
            remaining time.
        samples: Make exactly this many Monte Carlo passes, without a time limit: the same numbers
            on every machine.
        inputs: Largest number of inputs.
        placement: Where dropout goes, as in `Uncertain`.
        seed: Same seed and same `samples`, same result (except the measured cost).
        show_progress: Show a bar.
        **settings: Further settings, as in `Uncertain`.

    Examples:
        >>> model = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1)).eval()
        >>> options = {"methods": ["linear"], "samples": 500, "show_progress": False}
        >>> found = hs.audit(model, torch.randn(8, 3), noise=0.01, **options)
        >>> 0.9 < found.rows[0].total.ratio.value < 1.1  # std over that of Monte Carlo
        True
    """
    if "budget" in settings:
        raise TypeError("`budget` of `audit` is now called `time_limit`: the seconds it may take.")
    if samples is not None and (not isinstance(samples, int) or samples < 10):
        raise ValueError(f"`samples` must be a whole number of at least 10, not {samples!r}.")
    if samples is None and not (isinstance(time_limit, (int, float)) and 0 < time_limit < math.inf):
        raise ValueError(f"`time_limit` must be a positive number of seconds, not {time_limit!r}.")
    clock = Clock(float(time_limit) if samples is None else None)
    candidates = _candidates(methods)
    wrapped = getattr(model, "setup", None)
    if isinstance(wrapped, Setup):  # an `Uncertain`
        for name, value in {"noise": noise, "rate": rate, **settings}.items():
            if value is not None:
                raise TypeError(
                    f"`{name}` is a setting of the `Uncertain` that is audited; set it there."
                )
        # Monte Carlo knows the noise and the dropout, not what `fit` learned from errors.
        setup = wrapped.without_fit().replace(seed=seed, residual_var=0.0)
    else:
        setup = Setup(
            model,
            noise,
            placement=as_placement(placement),
            rate=tuple(rate) if isinstance(rate, Sequence) else rate,
            seed=seed,
            **settings,
        )
    case = Case.of(setup, gather_inputs(data, inputs), seed)
    _check_time(case, clock)

    first_piece = next(case.pieces())
    stopwatch = Stopwatch(partial(plain_pass, *first_piece))
    predictions, skipped = _predictions(candidates, case, clock, stopwatch, show_progress)
    for candidate in (_ROUNDS if samples is None else _ROUNDS // 2) * list(predictions):
        if clock.past(_COST):
            break
        stopwatch.time(candidate.label, partial(candidate, *first_piece))
    layers, notes = (), []
    if case.setup.noise is not None and isinstance(case.setup.model, nn.Module):
        passes = PASSES if samples is None else min(PASSES, samples)
        try:
            layers = layer_rows(case, clock, _LAYERS, passes, seed=seed, show=show_progress)
        except Exception as error:  # Without rules, for instance.
            notes.append(f"No table of layers: {_first_sentence(error)}.")
    truth = monte_carlo(case, clock, samples=samples, seed=seed, show=show_progress)

    total = truth.total
    if not bool(total.valid.any()):
        raise ValueError(
            "Noise and dropout change no output by more than rounding; there is no std to compare "
            "with."
        )

    def part(var: Tensor, spread: Spread | None) -> Measures | None:
        if spread is None or not bool(var.any()) or not spread.is_precise:
            return None
        return std_measures(var.sqrt(), spread, seed)

    rows = tuple(
        AuditRow(
            candidate.label,
            candidate.method.name,
            candidate.options,
            std_measures(prediction.std, total, seed),
            part(prediction.data_var, truth.data),
            part(prediction.model_var, truth.model),
            mean_shift(prediction.mean, truth, seed),
            stopwatch.cost(candidate.label),
            _stated_error(prediction),
            candidate.method,
        )
        for candidate, prediction in predictions.items()
    )
    plain_shift = mean_shift(case.plain.double().cpu(), truth, seed)
    sampling = (row for row in rows if row.kind is NOISE_SAMPLING)
    pass_cost = (row.cost.value / row.options.get("samples", 20) for row in sampling)
    yardstick = Yardstick(truth.samples, total.typical_error, next(pass_cost, 1.0))
    recommended = recommend(rows, yardstick)
    return Audit(
        rows,
        tuple(skipped),
        layers,
        plain_shift,
        recommended,
        sentences(rows, recommended, plain_shift, layers),
        truth.samples,
        case.inputs,
        len(case.columns),
        total.typical_error,
        clock.seconds,
        (*notes, *_remarks(case, truth)),
    )


@dataclass(frozen=True, eq=False)
class Candidate:
    """A method with its options; called with a setup and inputs, it makes its prediction."""

    method: Method
    options: dict[str, object] = field(default_factory=dict)

    @property
    def label(self) -> str:
        """The method and what is not obvious about it."""
        options = ", ".join(f"{name}={value}" for name, value in self.options.items())
        return f"{self.method} ({options})" if options else self.method.name

    def __call__(self, setup: Setup, x: object) -> Prediction:
        """What the method says."""
        return self.method(setup.replace(**self.options), x)


def _candidates(methods: Sequence[Named] | None) -> list[Candidate]:
    """The methods that were asked for: names, methods of one's own, or either with options."""
    if methods is None:
        return [Candidate(method, dict(options)) for method, options in USUAL]
    candidates = []
    for item in [methods] if isinstance(methods, (str, Method)) else methods:
        method, options = item if isinstance(item, tuple) else (item, {})
        if isinstance(method, str):
            if method in RENAMED:
                check_method(method)
            if method not in METHODS:
                raise ValueError(f"`methods` has {method!r}; choose from {sorted(METHODS)}.")
            method = METHODS[method]
        candidates.append(Candidate(method, dict(options)))
    if not candidates:
        raise ValueError("`methods` is empty; leave it out to compare the usual ones.")
    return candidates


def _check_time(case: Case, clock: Clock) -> None:
    """An error if not even 100 Monte Carlo passes fit into half of the time limit."""
    needed = math.inf
    # A busy machine can hold up one pass for longer than all of them take: the fastest counts.
    for _ in range(_TRIES):
        before = clock.seconds
        plain_pass(case.setup, case.x)
        needed = min(needed, LEAST * (clock.seconds - before))
        if needed <= clock.limit / 2:
            return
    raise ValueError(
        f"A pass of {case.inputs} inputs takes {needed / LEAST:.2g} s, so the {LEAST} Monte Carlo "
        f"passes that an audit needs do not fit into a `time_limit` of {clock.limit:g} s. Give "
        f"`time_limit={math.ceil(2.5 * needed)}`, or fewer `inputs`."
    )


class Stopwatch:
    """Times methods, each with a plain pass before it, so that a busy machine slows both."""

    def __init__(self, plain: Callable[[], object]) -> None:
        self.plain = plain
        self.plain_times: list[float] = []
        self.times: dict[str, list[float]] = {}
        plain()  # Not counted: the first pass of a process is slow.

    def time(self, label: str, run: Callable[[], Result]) -> Result:
        """The result of `run`, with its time noted."""
        start = time.perf_counter()
        self.plain()
        between = time.perf_counter()
        result = run()
        self.plain_times.append(between - start)
        self.times.setdefault(label, []).append(time.perf_counter() - between)
        return result

    def cost(self, label: str) -> Estimate:
        """Median time over median plain time; the interval is the range of all measurements.

        The first of several measurements is left out, since it may fill caches. The range of six
        holds the true median with 97 %, of three with 75 %.
        """
        times, unit = self.times[label], median(self.plain_times)
        kept = times[1:] or times
        return Estimate(median(kept) / unit, min(kept) / unit, max(kept) / unit)


def predict_pieces(
    candidate: Candidate, case: Case, clock: Clock, stopwatch: Stopwatch
) -> Prediction:
    """The method's prediction for all inputs at the compared outputs, (inputs, outputs).

    It is made piece by piece, and the first piece is timed.
    """
    parts: list[Prediction] = []
    for index, (setup, x) in enumerate(case.pieces()):
        if clock.past(_METHODS):
            raise TimeoutError("not finished within its share of the time; raise `time_limit`")
        run = partial(candidate, setup, x)
        prediction = run() if index else stopwatch.time(candidate.label, run)
        mean, data_var, model_var = (
            case.select(TensorTree(tree).tensors)
            for tree in (prediction.mean, prediction.data_var, prediction.model_var)
        )
        errors = TensorTree(prediction.std_error).tensors
        error = case.select(errors) if errors else None
        parts.append(Prediction(mean, data_var, model_var, error=error))
    joined = concatenated(parts)
    if not all(bool(t.isfinite().all()) for t in (joined.mean, joined.data_var, joined.model_var)):
        raise ValueError("Its result contains NaN or infinity.")
    return joined


def _predictions(
    candidates: Sequence[Candidate], case: Case, clock: Clock, stopwatch: Stopwatch, show: bool
) -> tuple[dict[Candidate, Prediction], list[tuple[str, str]]]:
    """What every method that applies says; and the labels of the others, with the reason."""
    predictions: dict[Candidate, Prediction] = {}
    skipped = []
    for candidate in progress(candidates, show, "audit: methods"):
        if case.setup.noise is None and candidate.method in ABOUT_NOISE:
            skipped.append((candidate.label, "the inputs have no noise"))
        elif case.setup.rate is None and Uses.MASKS in candidate.method.uses:
            skipped.append((candidate.label, "no dropout rate is given"))
        else:
            try:
                predictions[candidate] = predict_pieces(candidate, case, clock, stopwatch)
            except Exception as error:  # Whatever a method cannot do is a line of the table.
                skipped.append((candidate.label, _first_sentence(error)))
    return predictions, skipped


def _stated_error(prediction: Prediction) -> float | None:
    """Median relative standard error that a method states for its std; `None` for none."""
    if prediction.std_error is None:
        return None
    std = prediction.std
    relative = float((prediction.std_error / std)[std > 0].nanmedian())
    return relative if math.isfinite(relative) else None


def _first_sentence(error: BaseException) -> str:
    """The beginning of an error's message, as a reason in a table."""
    text = " ".join(str(error).split()) or type(error).__name__
    return re.split(r"(?<=[.;])\s", text)[0].rstrip(".;")


def _remarks(case: Case, truth: Truth) -> list[str]:
    """What a reader should know about the comparison itself."""
    notes = []
    if len(case.columns) < case.outputs:
        notes.append(
            f"{len(case.columns)} of {case.outputs} outputs were compared, chosen at random."
        )
    valid = truth.total.valid
    if constant := int((~valid).sum()):
        notes.append(f"{constant} of {valid.numel()} outputs are constant and were left out.")
    if case.setup.rate is not None and case.setup.shared_masks:
        notes.append(
            "All inputs shared the same dropout masks, because the model's layers have axes other "
            "than batch and features; intervals over inputs are then too narrow."
        )
    if truth.samples < 500 or case.inputs < 8:
        notes.append(
            f"With {case.inputs} inputs and {truth.samples} passes the intervals are wide; more "
            "inputs and a larger `time_limit` narrow them."
        )
    return notes
