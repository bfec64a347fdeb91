"""Where gradients are taken, and how their inner products make a variance.

With F(z) a function of standard normal z, and Z, Z' of correlation rho,

    Var F = integral over rho in [0, 1] of h(rho),    h(rho) = E <grad F(Z), grad F(Z')>,

and h(rho) = sum_k k c_k rho^(k-1), where c_k >= 0 is the variance of Hermite order k, Var F = sum_k
c_k (Houdre & Perez-Abreu 1995). With every point z comes its mirror image -z. They split F into an
odd part, of orders 1, 3, ..., and an even one, of orders 2, 4, ..., whose integrals are taken one
by one: h is known at RHO from pairs of points, and at 1 from each point with itself.
"""

from __future__ import annotations

import functools
import math
import zlib
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from howsure.trees import outside_tracing

# The correlation of the two points of a block, and the weights of h(1) in both parts. A linear F is
# exact for any ODD, a quadratic one for any EVEN. These three are a least-squares fit to rectifiers
# relu(z + t): right to 0.01 for t >= -2 and to 0.04 at t = -2.5, where one input in 160 passes.
RHO = 0.55
ODD = 0.05
EVEN = 0.1
# A block of one source: a, -a, b, -b.
POINTS = 4
# Inner products over so few numbers do not average by themselves.
FEW_ELEMENTS = 64


@dataclass(frozen=True, eq=False)
class Forms:
    """What is linear in the inner products of a block: quadratic forms, and changes over its pairs.

    Attributes:
        variance: Estimates Var F from the gradients, (points, points).
        linear: Estimates c_1, its first-order part.
        halves: How steep F is at the first and at the second half of the points, (2, ...); each is
            in proportion to Var F for a linear and for a quadratic F.
        apart: The error of the block is their difference times this, since they share numbers.
        changes: See `pair_changes`, (changes, 3 * points).
        groups: Which of the changes are squared and summed to six numbers, (6, changes).
    """

    variance: Tensor
    linear: Tensor
    halves: Tensor
    apart: float
    changes: Tensor
    groups: Tensor

    @functools.lru_cache(maxsize=16)  # noqa: B019  (designs are few, and live as long as the process)
    def table(self, blocks: int, dtype: torch.dtype, device: torch.device) -> Tensor:
        """All of it as one matrix, (blocks * (4 + changes), 2 * n * n + n) for n = 1 + points.

        The first point is z = 0, the others are those of the blocks. The matrix is applied to
        <grad F(z), grad F(z')> for all z' and <grad F(z), z'> for all z', point by point, and to
        the moves F(z) - F(0).
        The first four numbers of a block are the variance, its linear part, and the difference and
        the sum of the halves; the fifth is the average move.
        """
        points = len(self.variance)
        with outside_tracing(), torch.inference_mode(False):
            first, second = self.halves
            forms = [self.variance, self.linear, self.apart * (first - second), first + second]
            quadratic = torch.stack(forms).flatten(1)
            # Of moves, slopes <grad F(z), z> and slopes <grad F(0), z>.
            of_moves, of_slopes, of_plain = self.changes.split(points, 1)
            eye = torch.eye(1 + blocks * points, dtype=torch.float64)
            plain, parts = eye[:1], []
            none = torch.zeros_like(eye)
            with_gradients, with_points = torch.cat([eye, none], 1), torch.cat([none, eye], 1)
            for block in eye[1:].split(points):
                gram = quadratic @ torch.kron(block, block @ with_gradients)
                along = [torch.kron(point, point @ with_points) for point in block.split(1)]
                of_inputs = of_slopes @ torch.cat(along)
                of_inputs = of_inputs + of_plain @ torch.kron(plain, block @ with_points)
                products = torch.cat([gram, of_inputs])
                moves = F.pad((of_moves @ block).T, (len(gram), 0)).T
                parts.append(torch.cat([products, moves], 1))
            return torch.cat(parts).to(device, dtype)

    @functools.lru_cache(maxsize=16)  # noqa: B019
    def group_table(self, dtype: torch.dtype, device: torch.device) -> Tensor:
        """The groups in this dtype."""
        with outside_tracing(), torch.inference_mode(False):
            return self.groups.to(device, dtype)


@dataclass(frozen=True, eq=False)
class Design:
    """The points of one block.

    Attributes:
        noise: How independent normal numbers mix into the points of the sensor's noise,
            (points, normals).
        multipliers: The same for those of the units.
        data: Forms for gradients with respect to the noise: the data variance.
        model: Forms for gradients with respect to the multipliers: the model variance.
    """

    noise: Tensor
    multipliers: Tensor
    data: Forms
    model: Forms

    @functools.cached_property
    def points(self) -> int:
        """How many points a block has."""
        return len(self.noise)


@functools.cache
def design(*, noise: bool, multipliers: bool, few: bool = False) -> Design:
    """Two pairs of mirror images of one source; of both, such a block of noise at each of four.

    By the law of total variance the data variance is what the noise causes at given multipliers,
    averaged over these: a block of noise for each. The model variance is that of the average over
    the noise: gradients with respect to the multipliers are averaged over the block of noise.
    `few` says that there are few random numbers.
    """
    with outside_tracing(), torch.inference_mode(False):
        # Halves at points of correlation RHO differ too little: third orders about a slope by a
        # factor of sqrt((1 + RHO^2) / (1 - RHO^2)) = 1.4, curved functions of few numbers by up to
        # 1 / (1 - RHO) = 2.2. Of few numbers the geometric mean serves both within 1.3; of images
        # the blocks' own spread asks for 1.2 to 1.6 (ResNet-20, DroNet).
        near = 1.75 if few else 1.45
        shared, apart = math.sqrt(RHO), math.sqrt(1 - RHO)
        a_and_b = torch.tensor([[shared, apart, 0], [shared, 0, apart]], dtype=torch.float64)
        pairs = torch.kron(a_and_b, torch.tensor([[1.0], [-1.0]], dtype=torch.float64))
        forms = Forms(variance_form(), linear_form(), half_forms(), near, *pair_changes(POINTS))
        if not (noise and multipliers):
            return Design(pairs, pairs, forms, forms)
        ones = torch.ones(POINTS, 1, dtype=torch.float64)
        average = ones @ ones.T / POINTS**2
        every = torch.eye(POINTS, dtype=torch.float64) / POINTS
        # The first two multipliers are mirror images, as are the other two.
        first = torch.diag(torch.tensor([0.5, 0.5, 0.0, 0.0], dtype=torch.float64))
        data = Forms(
            torch.kron(every, forms.variance),
            torch.kron(every, forms.linear),
            torch.stack([torch.kron(h, forms.variance) for h in (first, first.flip(0, 1))]),
            1 / math.sqrt(1 - RHO**2),
            *pair_changes(POINTS**2, is_central=False),
        )
        model = Forms(
            torch.kron(forms.variance, average),
            torch.kron(forms.linear, average),
            torch.stack([torch.kron(half, average) for half in forms.halves]),
            near,
            *_averaged_over_noise(*pair_changes(POINTS, is_central=False)),
        )
        return Design(torch.kron(POINTS * every, pairs), torch.kron(pairs, ones), data, model)


def variance_form() -> Tensor:  # (4, 4)
    """Q such that sum_pq Q_pq <g_p, g_q> estimates Var F from the gradients of one block."""
    return _form(odd=(1 - ODD, ODD), even=((1 - 2 * EVEN) / (2 * RHO), EVEN))


def linear_form() -> Tensor:  # (4, 4)
    """Q such that sum_pq Q_pq <g_p, g_q> estimates c_1, by the line in rho^2 through RHO and 1."""
    slope = 1 / (1 - RHO**2)
    return _form(odd=(slope, 1 - slope), even=(0.0, 0.0))


def half_forms() -> Tensor:  # (2, 4, 4)
    """Forms that say how steep F is at a and at b alone: h(1) of the odd part and half the even's.

    Each is in proportion to Var F, for a linear and for a quadratic F, so that their difference
    tells the error of a single block.
    """
    whole = _form(odd=(0.0, 1.0), even=(0.0, 0.5))
    first = torch.zeros_like(whole)
    first[:2, :2] = whole[:2, :2]
    return torch.stack([first, whole - first])


def _form(*, odd: tuple[float, float], even: tuple[float, float]) -> Tensor:
    """The weights (at RHO, at 1) of both parts as a quadratic form in the gradients."""
    half = 0.5
    # Gradients of the odd part at a and b, then of the even part.
    parts = torch.tensor(
        [[half, half, 0, 0], [0, 0, half, half], [half, -half, 0, 0], [0, 0, half, -half]],
        dtype=torch.float64,
    )
    weights = torch.zeros(POINTS, POINTS, dtype=torch.float64)
    for start, (at_rho, at_one) in ((0, odd), (2, even)):
        both = slice(start, start + 2)
        weights[both, both] = torch.tensor([[at_one, at_rho], [at_rho, at_one]]) / 2
    return parts.T @ weights @ parts


def pair_changes(points: int, *, is_central: bool = True) -> tuple[Tensor, Tensor]:
    """What is made of moves and slopes at the points, (changes, 3 * points); and their groups.

    Along the line from -a to a, with slope s(t) = <grad F(t a), a>, the change F(a) - F(-a) is the
    integral of s: by Simpson's rule (s(-1) + 4 s(0) + s(1)) / 3, or s(-1) + s(1) where F(0) is not
    on the line: where a pair has multipliers, or noise, of its own. How much the slope varies is
    s(1) - s(-1) and s(1) - 2 s(0) + s(-1).

    The groups, (6, changes), are the average move, moves, changes, what the slopes say about these,
    what they leave unexplained, and how much they vary.
    """
    eye = torch.eye(points, dtype=torch.float64)
    nothing = torch.zeros(points // 2, points, dtype=torch.float64)
    first, second = eye[0::2], eye[1::2]  # of every pair
    moves = torch.cat([eye, torch.zeros(points, 2 * points, dtype=torch.float64)], 1)
    average = moves.mean(0, keepdim=True)
    change = torch.cat([first - second, nothing, nothing], 1)
    # s(-1) = -<grad F(-a), -a>
    ends, middle = (1 / 3, 4 / 3) if is_central else (1.0, 0.0)
    integral = torch.cat([nothing, ends * (first - second), middle * first], 1)
    tilt = torch.cat([nothing, first + second, nothing], 1)
    bend = torch.cat([nothing, first - second, -2 * first], 1)
    kinds = [average, moves, change, integral, change - integral, torch.cat([tilt, bend])]
    groups = torch.block_diag(*(torch.ones(1, len(k), dtype=torch.float64) for k in kinds))
    return torch.cat(kinds), groups


def _averaged_over_noise(changes: Tensor, groups: Tensor) -> tuple[Tensor, Tensor]:
    """Those of the averages over a block of noise at every point, which vary by chance as well.

    Pairs of mirror images cancel what is odd; the averages of two pairs of noise differ by the
    rest. These are few numbers: what they vary by is at most 12 times as much, but for one row in
    10,000 (an F distribution of 2 and 4 degrees of freedom). It counts as variation of the slopes.
    """
    average = torch.full((1, POINTS), 1 / POINTS, dtype=torch.float64)
    eye = torch.eye(POINTS, dtype=torch.float64)
    of_pairs = torch.kron(eye, torch.tensor([[0.5, 0.5, -0.5, -0.5]], dtype=torch.float64))
    by_chance = torch.cat([of_pairs, of_pairs.new_zeros(POINTS, 2 * POINTS**2)], 1)
    weights = groups.new_zeros(len(groups), POINTS)
    weights[5] = 12.0
    averaged = torch.kron(changes, average)
    return torch.cat([averaged, by_chance]), torch.cat([groups, weights], 1)


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
        normals = [
            torch.randn(
                mixing.shape[1],
                *shape,
                generator=stream(seed, source, block),
                dtype=torch.float32,
            )
            for block in blocks
        ]
        return torch.einsum("pn,bn...->bp...", mixing.float(), torch.stack(normals))


def stream(seed: int, source: int, block: int) -> torch.Generator:
    """Random numbers that differ by source and block, and from those of `torch.manual_seed(0)`.

    An input that was drawn at random from the same stream as its noise would be correlated with it.
    torch's generator takes 32 bits of a seed.
    """
    text = f"howsure {seed} {source} {block}"
    return torch.Generator().manual_seed(zlib.crc32(text.encode()))
