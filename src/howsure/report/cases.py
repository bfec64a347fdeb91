"""Single cases: a sortable table of them, and galleries of the surest, least sure and worst."""

from __future__ import annotations

import base64
import io
from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from howsure.report.options import Options
from howsure.report.readings import short
from howsure.report.values import Card, Cell, Gallery, Table

# Small images are enlarged by whole factors to about this many pixels.
_SIDE = 96


def show_cases(
    options: Options,
    columns: Mapping[str, bool],
    describe: Callable[[int], tuple[tuple[Cell, ...], tuple[str, ...]]],
    *,
    doubt: Tensor,
    badness: Tensor,
    error: Tensor,
    wrong: Tensor,
    worst: str,
) -> tuple[Table, tuple[Gallery, ...]]:
    """The table of the largest errors, and galleries of the surest, least sure and worst cases.

    Args:
        options: How many cases are shown, and their pictures.
        columns: Headings of the table, and whether the column holds numbers.
        describe: The row and the lines of the card of one input; only those that are shown are
            put in words.
        doubt: By what cases are sorted from sure to unsure, (inputs,).
        badness: By what the worst are found, (inputs,).
        error: By what the table is cut if there are too many, (inputs,).
        wrong: Which cases are marked, (inputs,), bool.
        worst: What the worst cases are, in words.
    """
    pictures, total = as_images(options.images), len(error)
    if options.images is not None and (pictures is None or len(pictures) != total):
        raise ValueError(
            f"`images` has shape {tuple(options.images.shape)}; give {total} images of shape (1 or "
            "3, height, width) in floating point, one for each input."
        )
    largest = error.argsort(descending=True, stable=True)[: options.cases].tolist()
    what = "All" if len(largest) == total else f"The {len(largest):,} with the largest errors of"
    rows = tuple(describe(i)[0] for i in largest)
    table = Table(tuple(columns), rows, tuple(columns.values()), f"{what} {total:,} cases.")

    def card(i: int) -> Card:
        row, lines = describe(i)
        picture = "" if pictures is None else data_uri(pictures[i])
        return Card(row[0].text, lines, picture, bool(wrong[i]))

    by_doubt = doubt.argsort(stable=True)
    galleries = (
        ("Surest", "The smallest predicted uncertainty.", by_doubt),
        ("Least sure", "The largest predicted uncertainty.", by_doubt.flip(0)),
        ("Worst", worst, badness.argsort(descending=True, stable=True)),
    )
    return table, tuple(
        Gallery(title, caption, tuple(map(card, order[: options.gallery].tolist())))
        for title, caption, order in galleries
    )


def number(value: float) -> Cell:
    """A cell with one number."""
    return Cell(short(value), value)


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
    return images if low >= 0 and high <= 1 else (images - low) / (high - low)


def data_uri(
    image: Tensor,  # (1 or 3, height, width), in [0, 1]
) -> str:
    """The image as `data:image/png;base64,...`."""
    from matplotlib.image import imsave

    factor = max(1, _SIDE // max(image.shape[1:]))
    large = image.repeat_interleave(factor, 1).repeat_interleave(factor, 2)
    pixels = (large.clamp(0, 1) * 255).round().to(torch.uint8).movedim(0, -1).cpu()
    file = io.BytesIO()
    imsave(file, pixels.expand(-1, -1, 3).numpy(), format="png")
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode("ascii")
