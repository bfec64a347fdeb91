"""What will happen to a model, before anything runs: rules, approximations, gaps and advice."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from howsure.auditing.inputs import as_input
from howsure.auditing.survey import survey
from howsure.moments.rule import APPROXIMATE, LINEARISED, Rule, Target


@dataclass(frozen=True)
class CheckRow:
    """One operation of the model.

    Attributes:
        operation: How torch calls it.
        rule: Name of the rule that serves it; "" if none does.
        fidelity: How true that rule is: "exact", "approximate", ...; "missing" without one.
        error: Bound on the relative error of the standard deviation, for approximate rules.
        count: How often the model calls it.
        modules: Where.
        reason: For a missing rule, why and what to do.
        adds_up: Whether it sums or averages elements, as if they were independent.
    """

    operation: str
    rule: str
    fidelity: str
    error: float
    count: int
    modules: tuple[str, ...]
    reason: str = ""
    adds_up: bool = False


@dataclass(frozen=True)
class Check:
    """The operations of a model, with what howsure makes of them."""

    rows: tuple[CheckRow, ...]

    @property
    def ok(self) -> bool:
        """Whether every operation has a rule."""
        return not self.missing

    @property
    def missing(self) -> tuple[CheckRow, ...]:
        """Operations without a rule."""
        return tuple(row for row in self.rows if row.fidelity == _MISSING)

    @property
    def approximate(self) -> tuple[CheckRow, ...]:
        """Operations whose rule is not exact even for independent inputs."""
        return tuple(row for row in self.rows if row.fidelity in _WEAK)

    @property
    def advice(self) -> tuple[str, ...]:
        """What to do, in sentences."""
        notes = [f"`{row.operation}`: {row.reason}" for row in self.missing]
        if not self.rows:
            notes.append(
                "No operation meets a noisy number: the inputs are integers or tokens, which carry "
                "no sensor noise. The model's own uncertainty needs none: see `Uncertain.fit`."
            )
        worst = max(self.approximate, key=lambda row: row.error, default=None)
        if worst is not None:
            notes.append(
                f"`{worst.operation}` is the weakest rule: its std is within {worst.error:.0%} "
                "for independent inputs."
            )
        if any(row.adds_up for row in self.rows):
            notes.append(
                "The model sums or averages values that share an input, such as residual "
                "connections and pools. Diagonal propagation takes them as independent, so its "
                "std is too small there; compare with noisy samples of your own input."
            )
        return tuple(notes)

    def __str__(self) -> str:
        """A table, for whom it holds, then the advice."""
        return "\n".join([_table(self.rows), "", _SCOPE, *self.advice])


_MISSING = "missing"
_WEAK = (APPROXIMATE.value, LINEARISED.value)
_SCOPE = (
    'These are the rules of `propagate` and of the methods "adf" and "sampled_adf". The others, '
    "the default among them, run the network itself and use none of them; what they found out "
    "about it is in `p.method` and `p.notes` of a prediction."
)


def _table(rows: tuple[CheckRow, ...]) -> str:
    cells = [("operation", "calls", "rule", "fidelity", "first called in")]
    for row in rows:
        bound = f" ({row.error:.0%})" if row.fidelity == APPROXIMATE.value else ""
        where = row.modules[0] or "the model itself"
        cells.append((row.operation, str(row.count), row.rule, row.fidelity + bound, where))
    widths = [max(len(line[i]) for line in cells) for i in range(5)]
    lines = ["  ".join(c.ljust(w) for c, w in zip(line, widths, strict=True)) for line in cells]
    return "\n".join(
        [lines[0].rstrip(), "-" * len(lines[0]), *(line.rstrip() for line in lines[1:])]
    )


def check(
    model: Callable[..., object],
    *inputs: object,
    noise_var: object = None,
    rules: Mapping[Target, Rule] | None = None,
    **named_inputs: object,
) -> Check:
    """A table of every operation that the model calls on noisy data, from one dry run.

    Print the result, or look at `.ok`, `.missing`, `.approximate` and `.advice`.

    Args:
        model: Any module or function made of torch operations, in eval mode.
        *inputs: Its inputs, as to the model itself: `check(model, x, h)`. A tuple as the only
            one is taken as several, a dict as inputs by name.
        noise_var: Which inputs are noisy, as in `propagate`: a variance, for several inputs in
            their structure, with `None` for those without noise. By default every input of
            floating-point numbers is.
        rules: Rules that win over the registered ones, by operation.
        **named_inputs: Inputs by name, in place of `inputs`: `check(model, image=x, motion=h)`.
    """
    x = as_input(model, inputs, named_inputs, noise_var)
    grouped: dict[tuple[str, str], list[tuple[int, str, Rule | None, str]]] = {}
    for call, count in survey(model, x, noise_var, rules=rules).items():
        if call.rule is None or not call.rule.is_query:
            entry = (count, call.module, call.rule, call.reason)
            grouped.setdefault((call.operation, call.reason), []).append(entry)
    rows = (_row(operation, entries) for (operation, _), entries in grouped.items())
    return Check(tuple(sorted(rows, key=lambda row: (row.fidelity != _MISSING, row.operation))))


def _row(operation: str, entries: list[tuple[int, str, Rule | None, str]]) -> CheckRow:
    _, _, rule, reason = entries[0]
    served = rule if rule is not None and not rule.is_refusal and not reason else None
    return CheckRow(
        operation,
        served.name if served else "",
        served.fidelity.value if served else _MISSING,
        served.error if served else 0.0,
        sum(count for count, *_ in entries),
        tuple(dict.fromkeys(module for _, module, *_ in entries)),
        reason,
        adds_up=served is not None and served.adds_up,
    )
