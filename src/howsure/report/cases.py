"""Single cases: a sortable table of them, and galleries of the surest, least sure and worst."""

from __future__ import annotations

import base64
import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from howsure.report.options import Options
from howsure.report.outcomes import Outcome, decisions
from howsure.report.readings import percent, short
from howsure.report.values import Card, Cell, Gallery, Table

# Small images are enlarged by whole factors to about this many pixels.
_SIDE = 96
# Outputs of one case that are written out; of more, only the sizes.
_WRITTEN = 3
# Errors of more stds than this are marked.
_FAR = 3.0


class Case(NamedTuple):
    """One input: its row of the table, and the lines of its card."""

    row: tuple[Cell, ...]
    lines: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class Cases:
    """All inputs, each with what the table and the galleries say of it.

    Attributes:
        columns: Headings of the table, and whether the column holds numbers.
        describe: What is said of one input; only those that are shown are put in words.
        doubt: By what cases are sorted from sure to unsure, (inputs,).
        badness: By what the worst are found, (inputs,).
        error: By what the table is cut if there are too many, (inputs,).
        wrong: Which cases are marked, (inputs,), bool.
        worst: What the worst cases are, in words.
    """

    columns: dict[str, bool]
    describe: Callable[[int], Case]
    doubt: Tensor
    badness: Tensor
    error: Tensor
    wrong: Tensor
    worst: str

    def table(self, limit: int) -> Table:
        """The cases with the largest errors, largest first."""
        order = self.error.argsort(descending=True, stable=True)[:limit].tolist()
        rows = tuple(self.describe(i).row for i in order)
        total = len(self.error)
        what = "All" if len(rows) == total else f"The {len(rows):,} with the largest errors of"
        columns, numeric = tuple(self.columns), tuple(self.columns.values())
        return Table(columns, rows, numeric, f"{what} {total:,} cases.")

    def galleries(
        self, count: int, names: Sequence[str], images: Tensor | None
    ) -> tuple[Gallery, ...]:
        """The surest, the least sure and the worst cases."""
        images = _checked_images(images, len(self.error))
        by_doubt = self.doubt.argsort(stable=True)
        worst = self.badness.argsort(descending=True, stable=True)
        rows = (
            ("Surest", "The smallest predicted uncertainty.", by_doubt),
            ("Least sure", "The largest predicted uncertainty.", by_doubt.flip(0)),
            ("Worst", self.worst, worst),
        )
        return tuple(
            Gallery(
                title,
                caption,
                tuple(self._card(int(i), names[int(i)], images) for i in order[:count]),
            )
            for title, caption, order in rows
        )

    def _card(self, index: int, name: str, images: Tensor | None) -> Card:
        picture = "" if images is None else data_uri(images[index])
        return Card(name, self.describe(index).lines, picture, bool(self.wrong[index]))


def cases_of(outcome: Outcome, options: Options, task: str) -> Cases:
    """The cases of an outcome."""
    if task == "regression":
        return _regression(outcome, options.input_names(outcome.inputs))
    return _classification(outcome, options)


def _regression(outcome: Outcome, names: Sequence[str]) -> Cases:
    mean, target = (t.flatten(1) for t in (outcome.mean, outcome.target))
    error = (target - mean).square().mean(1).sqrt()
    std, data_std, model_std = (
        v.flatten(1).mean(1).sqrt() for v in (outcome.var, outcome.data_var, outcome.model_var)
    )
    surprise = _ratio(error, std)
    sizes = {"error": error, "std": std, "error / std": surprise}
    sizes |= {"data std": data_std, "model std": model_std}

    def describe(i: int) -> Case:
        says, truth = _values(mean[i]), _values(target[i])
        numbers = [_number(float(size[i])) for size in sizes.values()]
        lines = (f"{says.text} ± {numbers[1].text}", f"target {truth.text}")
        row = (Cell(names[i], float(i)), says, truth, *numbers)
        return Case(row, (*lines, f"error {numbers[0].text}"))

    columns = {"case": False, **dict.fromkeys(("prediction", "target", *sizes), True)}
    worst = "The largest error in relation to the predicted std."
    return Cases(columns, describe, std, surprise, error, surprise > _FAR, worst)


def _classification(outcome: Outcome, options: Options) -> Cases:
    classes = options.output_names(outcome.mean.shape[1])
    names = options.input_names(outcome.inputs)
    seen = decisions(outcome)
    confidence, std, doubt, wrong = (
        t.reshape(outcome.inputs, -1).mean(1)
        for t in (seen.confidence, seen.std, seen.entropy, seen.wrong)
    )
    choice = seen.choice.reshape(outcome.inputs, -1)

    def describe(i: int) -> Case:
        says, truth = (_label(t[i], classes) for t in (choice, outcome.target))
        numbers = [float(t[i]) for t in (confidence, std, doubt)]
        cells = (Cell(says), Cell(truth), _verdict(float(wrong[i])))
        row = (Cell(names[i], float(i)), *cells, *map(_number, numbers))
        first = f"says {says}, is {truth}" if bool(wrong[i]) else f"says {says}"
        return Case(row, (first, f"{percent(numbers[0])} ± {percent(numbers[1])}"))

    texts, numeric = ("case", "prediction", "target", "result"), ("probability", "std", "entropy")
    columns = {**dict.fromkeys(texts, False), **dict.fromkeys(numeric, True)}
    # Wrong ones first, and among them the surest.
    badness = wrong + wrong.sign() + confidence
    caption = "Wrong predictions, the surest of them first."
    return Cases(columns, describe, doubt, badness, badness, wrong > 0, caption)


def _checked_images(images: Tensor | None, count: int) -> Tensor | None:
    if images is None:
        return None
    shown = as_images(images)
    if shown is None or len(shown) != count:
        raise ValueError(
            f"`images` has shape {tuple(images.shape)}; give {count} images of shape (1 or 3, "
            "height, width) in floating point, one for each input."
        )
    return shown


def _values(row: Tensor) -> Cell:
    """A few outputs written out; of many their mean."""
    if len(row) > _WRITTEN:
        return _number(float(row.mean()))
    return Cell(", ".join(short(v) for v in row.tolist()), float(row.mean()))


def _label(indices: Tensor, classes: Sequence[str]) -> str:
    """The class of one input; a dense output has many."""
    return classes[int(indices[0])] if len(indices) == 1 else "several"


def _verdict(wrong: float) -> Cell:
    text = {0.0: "right", 1.0: "wrong"}.get(wrong, f"{percent(wrong)} wrong")
    return Cell(text, wrong)


def _number(value: float) -> Cell:
    return Cell(short(value), value)


def _ratio(error: Tensor, std: Tensor) -> Tensor:
    """error / std; 0 / 0 is 0, and any other error is infinite beside a std of 0."""
    return torch.where(error == 0, torch.zeros_like(error), error / std)


def as_images(images: object) -> Tensor | None:
    """Images in [0, 1], (inputs, 1 or 3, height, width), or `None` if the tensor holds none.

    Values outside [0, 1] are scaled by the smallest and largest of all images, since one that is
    normalized cannot be shown as it is.
    """
    if not isinstance(images, Tensor) or images.dim() != 4 or images.shape[1] not in (1, 3):
        return None
    if min(images.shape[2:]) < 2 or not images.dtype.is_floating_point:
        return None
    low, high = float(images.min()), float(images.max())
    if low >= 0 and high <= 1:
        return images
    return (images - low) / (high - low)


def data_uri(
    image: Tensor,  # (1 or 3, height, width), in [0, 1]
) -> str:
    """The image as `data:image/png;base64,...`."""
    factor = max(1, _SIDE // max(image.shape[1:]))
    large = image.repeat_interleave(factor, 1).repeat_interleave(factor, 2)
    pixels = (large.clamp(0, 1) * 255).round().to(torch.uint8).movedim(0, -1).cpu()
    from matplotlib.image import imsave

    file = io.BytesIO()
    imsave(file, pixels.expand(-1, -1, 3).numpy(), format="png")
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode("ascii")
