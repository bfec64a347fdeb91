"""Noisy points with known correlations, in blocks that are independent of each other."""

from __future__ import annotations

import functools
import math
import zlib
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from howsure.gradients.quadrature import POINTS, RHO, half_forms, linear_form, variance_form
from howsure.trees import outside_tracing


@dataclass(frozen=True, eq=False)
class Forms:
    """What the inner products of the gradients at a block's points tell; (points, points) each.

    Attributes:
        variance: Quadratic form that estimates the variance.
        linear: The same for its first-order part.
        halves: The same from two halves of the block alone, up to a common factor: (2, ...).
        apart: What the difference of the halves is multiplied by, since they share numbers.
    """

    variance: Tensor
    linear: Tensor
    halves: Tensor
    apart: float


@functools.lru_cache(maxsize=16)  # two forms of three designs, in a few types
def table_of(
    forms: Forms, dtype: torch.dtype, device: torch.device
) -> tuple[Tensor, Tensor]:  # (4, points * points) and (points, points)
    """The rows of `Told`, for inner products; and the form of the variance by itself."""
    with outside_tracing(), torch.inference_mode(False):
        one, other = forms.halves
        rows = [forms.variance, forms.linear, forms.apart * (one - other), one + other]
        stacked = torch.stack(rows).to(device, dtype)
        return stacked.flatten(1), stacked[0]


@dataclass(frozen=True, eq=False)
class Design:
    """The points of one block.

    Attributes:
        noise: How independent normal numbers mix into the points of the sensor's noise,
            (points, normals).
        masks: The same for the dropout masks.
        data: What the gradients with respect to the noise tell about the data variance.
        model: What those with respect to the masks tell about the model variance.
    """

    noise: Tensor
    masks: Tensor
    data: Forms
    model: Forms

    @functools.cached_property
    def points(self) -> int:
        """How many points a block has."""
        return len(self.noise)


# Inner products over so few numbers do not average by themselves.
FEW_ELEMENTS = 64


@functools.cache
def design_for(*, noise: bool, masks: bool, few: bool = False) -> Design:
    """One source: two pairs of mirror images. Both: such a block of noise at each of four masks.

    By the law of total variance the data variance is what the noise causes at given masks, averaged
    over these: a block of noise for each mask. The model variance is that of the average over the
    noise: gradients with respect to the masks are averaged over the block of noise. The masks are
    two pairs of mirror images themselves. `few` says that they have few elements.
    """
    with outside_tracing(), torch.inference_mode(False):
        return _design(noise=noise, masks=masks, few=few)


def _design(*, noise: bool, masks: bool, few: bool) -> Design:
    # Halves at points of correlation RHO differ too little: third orders about a slope by a factor
    # of sqrt((1 + RHO^2) / (1 - RHO^2)) = 1.4, curved functions of few numbers by up to 1 / (1 -
    # RHO) = 2.2. Of few numbers the geometric mean serves both within 1.3; of images the blocks'
    # own spread asks for 1.2 to 1.6 (ResNet-20, DroNet). Then even orders of such masks.
    near, even = 1.75 if few else 1.45, 1 / math.sqrt(1 - RHO**2)
    pairs, forms = _pairs(RHO), Forms(variance_form(), linear_form(), half_forms(), near)
    if not (noise and masks):
        return Design(pairs, pairs, forms, forms)
    each = torch.ones(POINTS, 1, dtype=torch.float64)
    average = each @ each.T / POINTS**2
    every = torch.eye(POINTS, dtype=torch.float64) / POINTS
    # The first two masks are mirror images, as are the other two.
    first = torch.diag(torch.tensor([0.5, 0.5, 0.0, 0.0], dtype=torch.float64))
    both = torch.stack([first, first.flip(0, 1)])
    q, line = forms.variance, forms.linear
    data = Forms(torch.kron(every, q), torch.kron(every, line), _kron(both, q), even)
    model_q, model_line = torch.kron(q, average), torch.kron(line, average)
    model = Forms(model_q, model_line, _kron(forms.halves, average), near)
    return Design(torch.kron(POINTS * every, pairs), torch.kron(pairs, each), data, model)


def _kron(forms: Tensor, factor: Tensor) -> Tensor:
    """The Kronecker product of each form."""
    return torch.stack([torch.kron(form, factor) for form in forms])


def _correlated(rho: float) -> Tensor:  # (2, 3)
    """Two points that share one normal number."""
    shared, own = math.sqrt(rho), math.sqrt(1 - rho)
    return torch.tensor([[shared, own, 0], [shared, 0, own]], dtype=torch.float64)


def _pairs(rho: float) -> Tensor:  # (4, 3)
    """a, -a, b, -b."""
    mirror = torch.tensor([[1.0], [-1.0]], dtype=torch.float64)
    return torch.kron(_correlated(rho), mirror)


def draw(
    mixing: Tensor,  # (points, normals)
    shape: Sequence[int],
    blocks: range,
    seed: int,
    source: int,
) -> Tensor:  # (blocks, points, *shape)
    """The points of some blocks for one source, from the seed alone.

    A block is the same whichever blocks are drawn with it, and for every row of a batch.
    """
    with outside_tracing():
        drawn = [
            torch.randn(
                mixing.shape[1],
                *shape,
                generator=_generator(seed, source, block),
                dtype=torch.float32,
            )
            for block in blocks
        ]
        return torch.einsum("pn,bn...->bp...", mixing.float(), torch.stack(drawn))


def _generator(seed: int, source: int, block: int) -> torch.Generator:
    """Streams that differ by source and block, and from those of `torch.manual_seed(0)`, 1, ...

    An input that was drawn at random from the same stream as its noise would be correlated with it.
    torch's generator takes 32 bits of a seed.
    """
    text = f"howsure {seed} {source} {block}"
    return torch.Generator().manual_seed(zlib.crc32(text.encode()))
