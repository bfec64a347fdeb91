"""Whether the stated error of the std is its actual one: `python benchmarks/honesty.py`.

Trained networks of 23 kinds (`models/small_kinds.py`) with three levels of noise each. The truth is
the std of many plain Monte Carlo samples, with its own standard error from the fourth moment:

    z = (std - truth) / sqrt(std_error^2 + truth_error^2)

For every kind: the median relative error of the std, the shares of |z| above 3 and above 10, the
root mean square of the stated relative error over that of the actual one (less that of the truth),
and which share of the rows was sampled. Notes belong to rows: where a batch has any, each of its
rows is predicted alone to find whose they are. Rows with a note that warns about their std are
counted apart. A note about the choice of the method, about sampling or about the mean is no
warning.

Weights and truth are the same in every run. `--truth FILE` keeps them: a later run, with another
version of the library, too, only predicts. Writes honesty.json to `--out`; `--quick` takes one
level of noise, a third of the rows and fewer samples, unless FILE has more.
"""

from __future__ import annotations

import argparse
import hashlib
import math
import re
import time
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from bench import draws, folder_of, markdown, write
from models import small_kinds
from models.small_kinds import KINDS, Kind
from torch import Tensor, nn

import howsure as hs

SAMPLES, QUICK_SAMPLES = 24_000, 6_000
SAMPLING = ("noise_sampling", "mc_dropout")
# How notes begin that say what was chosen, or contain that rows were sampled or what moves the
# mean; all others warn.
CHOICE = '"auto" chose'
SAMPLED = re.compile(r"(was|were) sampled|cannot be used")
ABOUT_MEAN = 'prediction="mean"'
# At most such shares of |z| above 3 and above 10 are wanted, of rows without a warning.
MOST_BEYOND_3, MOST_BEYOND_10 = 0.03, 0.002


class Truth:
    """Weights and Monte Carlo results by name, kept in a file if there is one.

    They are made anew when the file of the networks has changed.
    """

    def __init__(self, path: Path | None) -> None:
        source = Path(small_kinds.__file__).read_bytes()
        self.path, self.key = path, hashlib.sha256(source).hexdigest()
        self.entries: dict[str, Any] = {}
        if path is not None and path.exists():
            content = torch.load(path, weights_only=True)
            self.entries = content["entries"] if content["key"] == self.key else {}

    def save(self) -> None:
        """Writes the file."""
        if self.path is not None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            torch.save({"key": self.key, "entries": self.entries}, self.path)

    def network(self, name: str) -> nn.Module:
        """The trained network of a kind."""
        key = f"weights of {name}"
        if key not in self.entries:
            self.entries[key] = KINDS[name].trained_weights()
        return KINDS[name].network(self.entries[key])

    def std(
        self, name: str, model: nn.Module, x: Tensor, level: float, samples: int
    ) -> tuple[Tensor, Tensor]:
        """The std of noisy outputs and its standard error, (rows, outputs).

        Known results of more rows or samples are used as well.
        """
        key = f"std of {name}, noise {level:g}"
        known = self.entries.get(key)
        if known is None or known["samples"] < samples or len(known["std"]) < len(x):
            std, error = monte_carlo(model, x, level, samples, stream=key)
            known = self.entries[key] = {"samples": samples, "std": std, "error": error}
        return known["std"][: len(x)], known["error"][: len(x)]


@torch.inference_mode()
def monte_carlo(
    model: nn.Module, x: Tensor, level: float, samples: int, *, stream: str
) -> tuple[Tensor, Tensor]:
    """The std of noisy outputs and its standard error by the fourth moment, (rows, outputs).

    Each row has random numbers of its own, whatever the number of rows; `stream` names them.
    """
    stds, errors = [], []
    for number, row in enumerate(x):
        generator = torch.Generator().manual_seed(zlib.crc32(f"{stream} {number}".encode()))
        outputs = draws(model, row[None], level, samples, generator)[:, 0].double()
        squares = (outputs - outputs.mean(0)).square()
        std = outputs.std(0)
        stds.append(std)
        errors.append(squares.std(0) / math.sqrt(samples) / (2 * std).clamp(min=1e-30))
    return torch.stack(stds).clone(), torch.stack(errors).clone()


@dataclass(frozen=True, eq=False)
class Rows:
    """Predictions of some rows beside their truth; every output of a row is an entry of its own.

    Attributes:
        std: As predicted.
        stated: Its stated error.
        truth: By Monte Carlo.
        truth_error: The standard error of the truth.
        rounding: How far the outputs' rounding can move a std.
        sampled: Whether a row was sampled.
        warned: Whether a row has a note that warns about its std.
    """

    std: Tensor
    stated: Tensor
    truth: Tensor
    truth_error: Tensor
    rounding: Tensor
    sampled: Tensor
    warned: Tensor

    @property
    def z(self) -> Tensor:
        """Errors in stated ones; what is not finite counts as infinite."""
        squares = self.stated.square() + self.truth_error.square() + self.rounding.square()
        return ((self.std - self.truth) / squares.sqrt()).nan_to_num(math.inf, math.inf, -math.inf)

    def at(self, rows: Tensor) -> Rows:
        """Some of the entries, given as a mask."""
        return Rows(*(each[rows] for each in vars(self).values()))

    @staticmethod
    def joined(parts: Sequence[Rows]) -> Rows:
        """The entries of all parts."""
        return Rows(*map(torch.cat, zip(*(vars(part).values() for part in parts), strict=True)))


def warns(note: str) -> bool:
    """Whether a note says that a std may be off."""
    return not (note.startswith(CHOICE) or SAMPLED.search(note) or ABOUT_MEAN in note)


def predicted(
    model: nn.Module, x: Tensor, level: float, method: str, truth: tuple[Tensor, Tensor]
) -> tuple[Rows, tuple[str, ...]]:
    """What the library says of the rows as one batch, beside the truth; and its notes."""
    sure = hs.Uncertain(model, level**2, method)
    p = sure(x)
    sampled = torch.full((len(x),), p.method in SAMPLING)
    warned = torch.zeros(len(x), dtype=torch.bool)
    if any(not note.startswith(CHOICE) for note in p.notes):
        for number in range(len(x)):
            notes = sure(x[number : number + 1]).notes
            sampled[number] |= any(SAMPLED.search(note) is not None for note in notes)
            warned[number] = any(warns(note) for note in notes)
    rounding = torch.finfo(p.mean.dtype).eps * p.mean.abs().double()
    error = torch.zeros_like(p.std) if p.std_error is None else p.std_error
    columns = (p.std.double(), error.double(), *truth, rounding)
    flags = (each[:, None].expand_as(p.std) for each in (sampled, warned))
    return Rows(*(each.flatten() for each in (*columns, *flags))), p.notes


def summary(rows: Rows) -> dict[str, Any]:
    """The figures of some rows."""
    z, truth = rows.z.abs(), rows.truth.clamp(min=1e-30)
    moving = rows.truth > 0
    actual = ((rows.std - rows.truth) / truth)[moving]
    stated, own = ((each / truth)[moving] for each in (rows.stated, rows.truth_error))
    left = float(actual.square().mean() - own.square().mean())
    # The square of the truth's error is known to 2 / sqrt(2 count), its own chance twice over.
    is_clear = left > 4 * float(own.square().mean()) / math.sqrt(2 * len(actual))
    rms_actual = math.sqrt(left) if is_clear else None
    rms_stated = float(stated.square().mean().sqrt())
    return {
        "count": z.numel(),
        "median_relative_error": float(actual.abs().median()),
        "median_stated_error": float(stated.median()),
        "beyond_3": float((z > 3).double().mean()),
        "beyond_10": float((z > 10).double().mean()),
        "largest_z": float(z.max()),
        # None where the error is too small to be seen beside that of the truth.
        "stated_over_actual": None if rms_actual is None else rms_stated / rms_actual,
        "rms_stated": rms_stated,
        "rms_actual": rms_actual,
        "rms_truth_error": float(own.square().mean().sqrt()),
        "sampled": float(rows.sampled.double().mean()),
        "warned": float(rows.warned.double().mean()),
    }


def measure(
    name: str, kind: Kind, truth: Truth, method: str, *, quick: bool, samples: int
) -> tuple[Rows, dict[str, Any]]:
    """All rows of a kind, and its figures."""
    model = truth.network(name)
    x, _ = kind.test_data(kind.rows // 3 if quick else kind.rows)
    parts: dict[str, Rows] = {}
    notes: list[str] = []
    seconds = 0.0
    for level in kind.levels[1:2] if quick else kind.levels:
        known = truth.std(name, model, x, level, samples)
        start = time.process_time()
        parts[f"{level:g}"], said = predicted(model, x, level, method, known)
        seconds += time.process_time() - start
        notes += said
    truth.save()
    rows = Rows.joined(list(parts.values()))
    found = {
        **figures(rows),
        "score": score(model, kind),
        "seconds": round(seconds, 2),
        "levels": {level: summary(part) for level, part in parts.items()},
        "notes": list(dict.fromkeys(notes)),
    }
    return rows, found


def figures(rows: Rows) -> dict[str, Any]:
    """The figures of all rows, and of those without a warning apart where some have one."""
    found: dict[str, Any] = {"all": summary(rows)}
    if bool(rows.warned.any()):
        for label, some in (("not warned", ~rows.warned), ("warned", rows.warned)):
            found[label] = summary(rows.at(some)) if bool(some.any()) else None
    else:
        found |= {"not warned": found["all"], "warned": None}
    return found


def score(model: nn.Module, kind: Kind) -> float:
    """How well a network has learned its task: 1 less its loss over that of shuffled outputs."""
    x, y = kind.test_data(1024)
    with torch.inference_mode():
        outputs = model(x)
        return 1 - float(kind.loss(outputs, y) / kind.loss(outputs.roll(1, 0), y))


HEADER = ("kind", "z-scores", "median error", "median stated", "z > 3", "z > 10", "largest z")
HEADER += ("stated / actual", "sampled", "warned")


def row(name: str, found: dict[str, Any] | None) -> list[str]:
    """A line of the table."""
    if found is None:
        return [name, "0", *[""] * 8]
    ratio = found["stated_over_actual"]
    return [
        name,
        f"{found['count']}",
        f"{found['median_relative_error']:.2%}",
        f"{found['median_stated_error']:.2%}",
        f"{found['beyond_3']:.1%}",
        f"{found['beyond_10']:.2%}",
        f"{found['largest_z']:.1f}",
        "-" if ratio is None else f"{ratio:.2f}",
        f"{found['sampled']:.0%}",
        f"{found['warned']:.0%}",
    ]


def verdict(total: dict[str, Any]) -> str:
    """Whether the wanted shares hold of rows without a warning."""
    found = total["not warned"]
    holds = found["beyond_3"] <= MOST_BEYOND_3 and found["beyond_10"] <= MOST_BEYOND_10
    return (
        f"{'ok' if holds else 'MISS'}: of {found['count']} z-scores without a warning "
        f"{found['beyond_3']:.2%} are beyond 3 (at most {MOST_BEYOND_3:.1%}), "
        f"{found['beyond_10']:.2%} beyond 10 (at most {MOST_BEYOND_10:.1%})"
    )


def main() -> None:
    """Parses the arguments, measures, prints, writes."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--only", default="", help="kinds whose name contains this")
    parser.add_argument("--method", default="auto", help="as `Uncertain` takes it")
    parser.add_argument("--samples", type=int, help=f"of Monte Carlo; {SAMPLES} if not given")
    parser.add_argument("--truth", type=Path, help="file that keeps weights and truth")
    parser.add_argument("--rows", type=Path, help="file for the numbers of every row")
    parser.add_argument("--quick", action="store_true", help="fewer rows; to out/bench")
    parser.add_argument("--out", type=Path, help="folder of the results")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    samples = asked.samples or (QUICK_SAMPLES if asked.quick else SAMPLES)
    truth = Truth(asked.truth)
    every: dict[str, Rows] = {}
    cases: dict[str, Any] = {}
    for name in (each for each in KINDS if asked.only in each):
        every[name], cases[name] = measure(
            name, KINDS[name], truth, asked.method, quick=asked.quick, samples=samples
        )
        print(*row(name, cases[name]["all"]), sep=" | ", flush=True)
    total = figures(Rows.joined(list(every.values())))
    settings = {"method": asked.method, "samples": samples, "quick": asked.quick}
    content = {"howsure": hs.__version__, **settings, "total": total, "cases": cases}
    write(folder_of(asked) / "honesty.json", content)
    if asked.rows is not None:
        torch.save({name: vars(rows) for name, rows in every.items()}, asked.rows)
    lines = [row(name, case["all"]) for name, case in cases.items()]
    lines += [row(f"**{label}**", total[label]) for label in ("all", "not warned", "warned")]
    print(f"\n{markdown(HEADER, lines)}\n\n{verdict(total)}")


if __name__ == "__main__":
    main()
