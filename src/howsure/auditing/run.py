"""The audit itself: methods first, then layers, then Monte Carlo with the time that is left."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from torch import Tensor, nn

from howsure.auditing.candidates import (
    Candidate,
    Guess,
    Named,
    candidates,
    first_sentence,
    guess,
    reason_to_skip,
)
from howsure.auditing.case import Case, case_of
from howsure.auditing.cost import Stopwatch
from howsure.auditing.inputs import gathered
from howsure.auditing.layers import PASSES, LayerRow, layer_rows
from howsure.auditing.measures import (
    Measures,
    Pairs,
    mean_shift,
    pairs_of,
    std_measures,
)
from howsure.auditing.result import Audit, AuditRow
from howsure.auditing.truth import LEAST, Clock, Spread, Truth, monte_carlo
from howsure.auditing.verdict import Yardstick, recommend, sentences
from howsure.methods.passes import Pass, no_gradients
from howsure.multipliers import Placement, as_placement
from howsure.noise import NoiseLike
from howsure.progress import progress
from howsure.setup import Setup

# Shares of the time limit by which each stage ends; Monte Carlo has the rest.
_METHODS, _COST, _LAYERS = 0.4, 0.5, 0.6
_ROUNDS = 6


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
    **method_options: Any,
) -> Audit:
    """Every method's std and mean against Monte Carlo on this network, with a verdict.

    Print the result. Its numbers are for these inputs, this noise and this rate.

    Args:
        model: Any trained module, in eval mode; it is not changed.
        data: Inputs as a tensor or a dict of tensors, or a loader of inputs or of (inputs,
            targets); targets are left aside.
        noise: The sensor's noise as in `Uncertain`: a number or tensor is a **variance**.
        rate: Dropout rate, or one per site; `None` for no dropout.
        methods: Names, or (name, options), such as `["adf", ("gradients", {"samples": 16})]`; a
            `Method` of your own in place of a name.
        time_limit: Seconds for all of it. Monte Carlo makes up to 2,000 passes in what is left.
        samples: Make exactly so many Monte Carlo passes, however long it takes: the same
            numbers on every machine.
        inputs: At most so many inputs.
        placement: Where dropout goes, as in `Uncertain`.
        seed: Same seed and same `samples`, same result (except the measured cost).
        show_progress: Show a bar.
        **method_options: Further settings of `Uncertain`, such as `fallback` or `rules`.
    """
    clock = _started(time_limit, samples, method_options)
    asked = candidates(methods)
    setup = Setup(
        model,
        noise,
        placement=as_placement(placement),
        rate=tuple(rate) if isinstance(rate, Sequence) else rate,
        seed=seed,
        **method_options,
    )
    case = case_of(setup, gathered(data, inputs), seed)
    _check_time(case, clock)
    return _Run(case, clock, samples, seed, show_progress).finished(asked)


class _Run:
    """One audit, step by step."""

    def __init__(
        self, case: Case, clock: Clock, samples: int | None, seed: int, show: bool
    ) -> None:
        self.case, self.clock, self.samples, self.seed, self.show = case, clock, samples, seed, show
        self.watch = Stopwatch(self.plain)
        self.skipped: list[tuple[str, str]] = []
        self.notes: list[str] = []

    def finished(self, asked: Sequence[Candidate]) -> Audit:
        """All stages, then the verdict."""
        guesses = self.guesses(asked)
        self.measure_again(guesses)
        layers = self.layers()
        truth = monte_carlo(
            self.case, self.clock, samples=self.samples, seed=self.seed, show=self.show
        )
        pairs = self.pairs(truth.total, truth)
        if not bool(pairs.valid.any()):
            raise ValueError(
                "Noise and dropout do not move any output beyond rounding; there is no std to "
                "compare with."
            )
        rows = tuple(self.row(candidate, found, truth) for candidate, found in guesses)
        return self.judged(rows, layers, truth, pairs)

    def plain(self) -> None:
        """A plain pass of the first piece of inputs."""
        setup, x = next(self.case.pieces())
        with no_gradients():
            Pass(setup, x).plain()

    def guesses(self, asked: Sequence[Candidate]) -> list[tuple[Candidate, Guess]]:
        """What every method that applies says; the others are noted with a reason."""
        found = []
        for candidate in progress(asked, self.show, "audit: methods"):
            reason = reason_to_skip(candidate, self.case)
            if not reason:
                try:
                    late = partial(self.clock.past, _METHODS)
                    found.append((candidate, guess(candidate, self.case, self.watch, late)))
                except Exception as error:  # Whatever a method cannot do is a line of the table.
                    reason = first_sentence(error)
            if reason:
                self.skipped.append((candidate.label, reason))
        return found

    def measure_again(self, guesses: Sequence[tuple[Candidate, Guess]]) -> None:
        """Times every method some more, as long as its share of the time lasts."""
        setup, x = next(self.case.pieces())
        rounds = _ROUNDS if self.samples is None else _ROUNDS // 2
        for candidate, _ in rounds * list(guesses):
            if self.clock.past(_COST):
                return
            chosen = setup.with_(**candidate.options)
            self.watch.timed(candidate.label, partial(candidate.method, chosen, x))

    def layers(self) -> tuple[LayerRow, ...]:
        """Diagonal ADF layer by layer; empty, with a note, where it cannot run."""
        case = self.case
        if not case.noisy or not isinstance(case.setup.model, nn.Module):
            return ()
        passes = PASSES if self.samples is None else min(PASSES, self.samples)
        try:
            return layer_rows(
                case, self.clock, share=_LAYERS, passes=passes, seed=self.seed, show=self.show
            )
        except Exception as error:
            self.notes.append(f"No table of layers: {first_sentence(error)}.")
            return ()

    def pairs(self, spread: Spread, truth: Truth) -> Pairs:
        """The pairs that move by more than some rounding errors."""
        return pairs_of(spread, 8 * self.case.rounding * truth.mean.abs())

    def row(self, candidate: Candidate, found: Guess, truth: Truth) -> AuditRow:
        """One method's line of the table."""
        pairs = self.pairs(truth.total, truth)

        def part(var: Tensor, true: Spread | None) -> Measures | None:
            if true is None or not bool(var.any()):
                return None
            known = self.pairs(true, truth)
            return std_measures(var.sqrt(), known, self.seed) if known.known else None

        return AuditRow(
            candidate.label,
            candidate.method.name,
            candidate.options,
            std_measures(found.std, pairs, self.seed),
            part(found.data_var, truth.data),
            part(found.model_var, truth.model),
            mean_shift(found.mean, truth, pairs, self.seed),
            self.watch.cost(candidate.label),
            found.std_error,
            candidate.method,
        )

    def judged(
        self, rows: tuple[AuditRow, ...], layers: tuple[LayerRow, ...], truth: Truth, pairs: Pairs
    ) -> Audit:
        """The audit with its verdict."""
        case = self.case
        plain = mean_shift(case.plain.double().cpu(), truth, pairs, self.seed)
        error = pairs.typical_error
        recommended = recommend(rows, Yardstick(truth.samples, error, _cost_of_a_sample(rows)))
        departure = next((row for row in layers if row.departs), None)
        return Audit(
            rows,
            tuple(self.skipped),
            layers,
            plain,
            recommended,
            sentences(rows, recommended, plain, departure),
            truth.samples,
            case.inputs,
            len(case.chosen),
            error,
            self.clock.seconds,
            (*self.notes, *_remarks(case, truth, pairs)),
        )


def _cost_of_a_sample(rows: Sequence[AuditRow]) -> float:
    """Time of a Monte Carlo pass, relative to a plain one."""
    drawn = (row for row in rows if row.by.draws_noise)
    return next((row.cost.value / row.options.get("samples", 20) for row in drawn), 1.0)


def _remarks(case: Case, truth: Truth, pairs: Pairs) -> list[str]:
    """What a reader should know about the comparison itself."""
    found = []
    if len(case.chosen) < case.outputs:
        found.append(
            f"Of {case.outputs} outputs {len(case.chosen)} were compared, drawn at random."
        )
    still = int((~pairs.valid).sum())
    if still:
        found.append(f"{still} of {pairs.valid.numel()} outputs do not move, and were left out.")
    if case.dropped and case.setup.shared_masks:
        found.append(
            "All inputs had the same dropout masks, since the model's layers have axes beside "
            "inputs and units; intervals over inputs are then too narrow."
        )
    if truth.samples < 500 or case.inputs < 8:
        found.append(
            f"{case.inputs} inputs and {truth.samples} passes make wide intervals; for narrower "
            "ones give more inputs and a larger `time_limit`."
        )
    return found


def _started(seconds: float, samples: int | None, others: Mapping[str, object]) -> Clock:
    """The running clock of an audit; a number of samples has no time limit."""
    if "budget" in others:
        raise TypeError("`budget` of `audit` is now called `time_limit`: the seconds it may take.")
    if samples is not None:
        if not isinstance(samples, int) or samples < 10:
            raise ValueError(f"`samples` must be a whole number of at least 10, not {samples!r}.")
        return Clock(None)
    if not (isinstance(seconds, (int, float)) and math.isfinite(seconds) and seconds > 0):
        raise ValueError(f"`time_limit` must be a positive number of seconds, not {seconds!r}.")
    return Clock(float(seconds))


def _check_time(case: Case, clock: Clock) -> None:
    """An error if not even 100 Monte Carlo passes fit into half of the time limit."""
    before = clock.seconds
    with no_gradients():
        Pass(case.setup, case.x).plain()
    needed = LEAST * (clock.seconds - before)
    if needed > clock.limit / 2:
        raise ValueError(
            f"A pass of {case.inputs} inputs takes {needed / LEAST:.2g} s, so the {LEAST} passes "
            f"that Monte Carlo needs at least do not fit into a `time_limit` of {clock.limit:g} s. "
            f"Give `time_limit={math.ceil(2.5 * needed)}`, or fewer `inputs`."
        )
