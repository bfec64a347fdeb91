"""Linear layers and convolutions: the variance goes through the squared weights."""

from __future__ import annotations

from collections.abc import Iterable

from howsure.moments.families import linear_map
from howsure.moments.rule import Draw, Sample, Samples, spellings
from howsure.moments.rules.channels_last import in_channels_last

_SOURCE = "Gast & Roth 2018, Eq. 9; Loquercio et al. 2020, Eq. 5"


def _rows(draw: Draw) -> Iterable[Sample]:
    yield Sample(draw.moments(4, 5), draw.constant(3, 5), draw.constant(3))
    yield Sample(draw.moments(2, 3, 5), weight=draw.constant(2, 5))
    yield Sample(draw.moments(5), draw.constant(3, 5))
    yield Sample(draw.moments(4, 5), draw.moments(3, 5), draw.moments(3))


def _images(dims: int) -> Samples:
    def samples(draw: Draw) -> Iterable[Sample]:
        size = (6, 5, 4)[:dims]
        kernel = (3, 2, 2)[:dims]
        image = draw.moments(2, 4, *size)
        yield Sample(image, draw.constant(3, 4, *kernel), draw.constant(3), stride=2, padding=1)
        yield Sample(image, draw.constant(4, 2, *kernel), None, 1, 1, 1, 2)
        yield Sample(image, draw.constant(2, 4, *kernel), padding="same", dilation=2)

    return samples


def _transposed_images(dims: int) -> Samples:
    def samples(draw: Draw) -> Iterable[Sample]:
        image = draw.moments(2, 4, *(3, 4, 2)[:dims])
        kernel = (3, 2, 3)[:dims]
        yield Sample(
            image, draw.constant(4, 2, *kernel), draw.constant(2), stride=2, output_padding=1
        )
        yield Sample(image, draw.constant(4, 1, *kernel), groups=2, padding=1)

    return samples


linear_map(*spellings("linear"), name="linear", samples=_rows, source=_SOURCE)
for _dims in (1, 2, 3):
    _convolution = linear_map(
        *spellings(f"conv{_dims}d"), name=f"conv{_dims}d", samples=_images(_dims), source=_SOURCE
    )
    if _dims == 2:
        in_channels_last(_convolution)
    linear_map(
        *spellings(f"conv_transpose{_dims}d"),
        name=f"conv_transpose{_dims}d",
        samples=_transposed_images(_dims),
        source=_SOURCE,
    )
