"""Fills the figures of results/reading.md in: each is a lookup into the committed results.

`{steering gradients night nll}` names a file, a method, a condition and a metric, and gives the
mean over seeds, with the digits of the tables. A condition that is the only one has no name.

    {steering gradients night nll ±}                mean ± standard deviation over seeds
    {steering gradients night nll seed=0 .3}        of one seed, with three digits
    {steering gradients night,fog coverage %}       87 and 68 %
    {steering gradients night,fog nll range}        lowest to highest; also `to`, as they stand
    {motion-real gradients coverage lowest}         of the seeds, or of several figures
    {sensitivity ours assumed 0.01,0.1 nll span}    the highest less the lowest
    {uci-real gradients-constant yacht nll}         the difference, seed by seed
    {uci-real gradients-constant yacht nll below}   the number of seeds in which it is below zero
    {uci-real ensemble/constant yacht rmse %}       the first mean in percent of the second
"""

from __future__ import annotations

import math
import re
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import product
from statistics import fmean
from typing import Any

from howsure_lab.experiments.recognition.run import CLASSIFICATION
from howsure_lab.experiments.tables import REGRESSION, Summary

# By file, method, condition and metric: a value for each seed.
Figures = dict[tuple[str, ...], dict[int, float]]

_LOOKUP = re.compile(r"\{([^{}]+)\}")
_ITEM = re.compile(r"^- .+(?:\n  .+)*", re.MULTILINE)
_DIGITS = {column.key: column.digits for column in (*REGRESSION, *CLASSIFICATION)}
_LISTS = ("lines", "curves", "real", "assumed", "dense")  # the last three are part of a name
_LABELS = ("method", "policy", "data", "case", "part")
_NO_FIGURES = (*_LABELS, "fit", "seed", "split", "assumed", "added")
_UNNAMED = ("scores", "all", "kinds", "points")
# What the tables compute from a metric: its name, the metric, the formula.
_DERIVED: tuple[tuple[str, str, Callable[[float], float]], ...] = (
    ("log_likelihood", "nll", lambda nll: -nll),
    ("known_rmse", "rmse", lambda rmse: -0.5 * math.log(2 * math.pi * math.e * rmse**2)),
    ("ms", "seconds", lambda seconds: 1e3 * seconds),
)
_CHOICES: dict[str, Callable[[Sequence[float]], list[float]]] = {
    "lowest": lambda values: [min(values)],
    "range": lambda values: [min(values), max(values)],
    "span": lambda values: [max(values) - min(values)],
}
_OPTION = re.compile(rf"±|%|\.\d|to|below|{'|'.join(_CHOICES)}")


def filled(text: str, known: Figures) -> str:
    """The text with its lookups replaced by figures, and its items wrapped again."""
    text = _LOOKUP.sub(lambda match: figure(match[1], known), text)
    return _ITEM.sub(lambda match: _wrapped(match[0]), text)


def _wrapped(item: str) -> str:
    words = " ".join(item.split())
    return textwrap.fill(words, 100, subsequent_indent="  ", break_on_hyphens=False)


def figures(results: Mapping[str, Any]) -> Figures:
    """Every figure of a result file; of lines for the same seed, the one that was added last."""
    found: Figures = {}
    for key, value in _numbers(results.get("plain", {}), (results["name"], "plain")):
        found[key] = {0: value}
    parts = [(name, line) for name in _LISTS for line in results.get(name, ())]
    for part, line in sorted(parts, key=lambda each: each[1].get("added", -1)):
        words = [results["name"], *(_word(line[key]) for key in _LABELS if key in line)]
        words += [part] if part in _LISTS[2:] else []
        words += [f"{line['assumed']:g}"] if "assumed" in line else []
        scores = {key: value for key, value in line.items() if key not in _NO_FIGURES}
        seed = line.get("seed", line.get("split", 0))
        for key, value in _numbers(scores, tuple(words)):
            found.setdefault(key, {})[seed] = value
            found[(*key, f"seed={seed}")] = {seed: value}
    return found


def _word(name: str) -> str:
    return re.sub(r"[ -]", "_", name)


def _numbers(value: Any, words: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], float]]:
    """The numbers inside, named by the way to them."""
    if isinstance(value, Mapping):
        only = len(value) == 1 and isinstance(next(iter(value.values())), Mapping)
        for key, each in value.items():
            yield from _numbers(each, words if only or key in _UNNAMED else (*words, _word(key)))
    elif isinstance(value, list):
        for point in value:
            yield from _numbers(point, (*words, str(point["samples"])))
    elif not isinstance(value, str):
        yield words, math.nan if value is None else value
        for name, metric, formula in _DERIVED:
            if words[-1] == metric and value is not None:
                yield (*words[:-1], name), formula(value)


def figure(lookup: str, known: Figures) -> str:
    """What a lookup stands for."""
    options = [word for word in lookup.split() if _OPTION.fullmatch(word)]
    file, *rest = [word for word in lookup.split() if not _OPTION.fullmatch(word)] or [""]
    try:
        names = product([file], *(word.split(",") for word in rest))
        found = [list(_values(name, known).values()) for name in names]
    except ValueError as error:
        raise ValueError(f"`{{{lookup}}}` stands for no figure: {error}") from None
    if "below" in options:
        return str(sum(value < 0 for value in found[0]))
    return _text(found, options, rest[-1])


def _values(name: tuple[str, ...], known: Figures) -> dict[int, float]:
    """The value of each seed; `a-b` is a difference, `a/b` a share of the mean of `b`."""
    for place, word in enumerate(name[1:], start=1):
        sign = next((sign for sign in "-/" if sign in word), None)
        if sign is not None:
            pair = [(*name[:place], each, *name[place + 1 :]) for each in word.split(sign, 1)]
            one, other = (_values(each, known) for each in pair)
            if one.keys() != other.keys():
                raise ValueError(f"the two of `{word}` have other seeds, {[*one]} and {[*other]}.")
            mean = fmean(other.values())
            return {key: one[key] - other[key] if sign == "-" else one[key] / mean for key in one}
    if name not in known:
        raise ValueError(_instead(name, known))
    if any(map(math.isnan, known[name].values())):
        raise ValueError(f"`{' '.join(name)}` is not finite in every seed.")
    return known[name]


def _instead(name: tuple[str, ...], known: Figures) -> str:
    """How far a name is right, and what could come next."""
    right = max(end for end in range(len(name) + 1) if any(k[:end] == name[:end] for k in known))
    there = dict.fromkeys(key[right] for key in known if key[:right] == name[:right] != key)
    after = f"after `{' '.join(name[:right])}`" if right else "of files"
    return f"{after} there is only {', '.join(f'`{word}`' for word in there) or 'the end'}."


def _text(found: Sequence[Sequence[float]], options: Sequence[str], metric: str) -> str:
    """Figures as words: `1`, `1 ± 2`, `1, 2 and 3`, `1 to 2`, each with ` %`."""
    percent = "%" in options
    digits = 0 if percent else _DIGITS.get(metric, 2)
    digits = next((int(option[1:]) for option in options if option[0] == "."), digits)
    scaled = [[100 * value if percent else value for value in each] for each in found]
    for option in _CHOICES.keys() & {*options}:
        several = [fmean(each) for each in scaled] if len(scaled) > 1 else scaled[0]
        scaled = [[value] for value in _CHOICES[option](several)]
    if "±" not in options:  # without a minus before zero
        scaled = [[round(fmean(each), digits) + 0.0] for each in scaled]
    *first, last = [Summary.of(each).text(digits) for each in scaled]
    joint = " to " if {"to", "range"} & {*options} else " and "
    return (f"{', '.join(first)}{joint}{last}" if first else last) + " %" * percent
