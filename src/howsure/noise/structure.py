"""How the readings of one frame vary together, from repeated frames."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from howsure.noise.base import Noise
from howsure.noise.correlation import Blurred, CommonMode, Rows
from howsure.noise.sensors import Constant

# A share as many standard deviations above 0 is not there by chance (6e-5); one below a hundredth
# is of no consequence.
_CHANCE, _NEGLIGIBLE = 4.0, 0.01


@dataclass(frozen=True)
class Share:
    """A share of the variance, or a correlation: its value, and how well it is known.

    Attributes:
        value: The estimate.
        error: Its standard error for Gaussian noise.
        chance: As much is there by chance.
    """

    value: float
    error: float
    chance: float

    @property
    def is_clear(self) -> bool:
        """Whether the value is neither chance nor too small to matter."""
        return abs(self.value) > max(_NEGLIGIBLE, self.chance)

    def in_percent(self) -> str:
        """The share and its error."""
        return f"{100 * self.value:.2g} +- {100 * self.error:.1g} %"


@dataclass(frozen=True, eq=False, repr=False)
class Structure:
    """What the elements of a frame have in common.

    Attributes:
        common: The share of the variance that is an offset of the whole frame.
        channels: The share that is an offset of each channel; `None` if there is one channel.
        rows: The share that is an offset of each row of an image; `None` for vectors.
        columns: Likewise of each column.
        neighbors: Correlation of neighbors in the remaining noise, along the last axis, and for
            images along the one before; empty for a handful of elements.
        kernel: White noise through this kernel of norm 1 is the remaining noise; `None` if
            neighbors do not correlate.
        parts: The noises for a std of 1, each with its share.
        offset_norm: Root mean square correlation of all pairs of elements by clear offsets.
        neighbor_norm: Root of the sum of squared correlations of an element's neighbors, with
            itself; 1 if they do not correlate.

    Examples:
        >>> flicker = torch.randn(60, 1, 1, 1).expand(60, 1, 8, 8)
        >>> frames = flicker + 0.1 * torch.randn(60, 1, 8, 8)
        >>> found = hs.noise.identify_from_repeats(frames)
        >>> round(found.structure.common.value, 1)  # shared by all pixels of a frame
        1.0
    """

    common: Share | None
    channels: Share | None
    rows: Share | None
    columns: Share | None
    neighbors: tuple[Share, ...]
    kernel: Tensor | None
    parts: tuple[tuple[Noise, float], ...]
    offset_norm: float
    neighbor_norm: float

    @property
    def is_correlated(self) -> bool:
        """Whether elements clearly vary together."""
        return any(part.is_correlated for part, _ in self.parts)

    def noise(self, var: float | Tensor) -> Noise:
        """The noise of this structure with the given variance."""
        first, *others = [part.scaled(var * share) for part, share in self.parts]
        return sum(others, start=first)

    def offsets(self) -> dict[str, Share]:
        """The shares of the variance that are known, by their attributes."""
        shares = {name: getattr(self, name) for name in _PLACES}
        return {name: share for name, share in shares.items() if share is not None}

    def named(self) -> dict[str, Share]:
        """All shares and correlations, by name."""
        correlations = ("horizontal_correlation", "vertical_correlation")
        shares = {f"{name}_share": share for name, share in self.offsets().items()}
        return shares | dict(zip(correlations, self.neighbors, strict=False))

    def in_words(self) -> str:
        """The structure in a sentence, with the noise to use."""
        clauses = [
            f"{share.in_percent()} of the variance is common to {_PLACES[name]}"
            for name, share in self.offsets().items()
            if share.is_clear
        ]
        if self.kernel is not None:
            values = " and ".join(f"{share.value:.2f}" for share in self.neighbors)
            axes = " (horizontally and vertically)" if len(self.neighbors) == 2 else ""
            clauses.append(f"neighbors correlate by {values}{axes}")
        if not clauses:
            return "elements vary independently, as far as these frames can tell"
        names = [f"`{p.kind}`" if p.is_correlated else "independent noise" for p, _ in self.parts]
        return f"{'; '.join(clauses)}: use the noise `correlated`, {' + '.join(names)}"


_PLACES = {
    "common": "the whole frame",
    "channels": "each channel",
    "rows": "each row",
    "columns": "each column",
}
# Elements up to so many steps apart are neighbors; what those further apart share is an offset.
_REACH = 3
# Shorter axes have too few pairs beyond the neighbors: they count as channels.
_SHORTEST = 4 * (_REACH + 1)
# The middle of larger images says enough, in less time.
_LONGEST = 256
# Grid points along an axis for the square root of a spectrum, where a kernel fades out.
_GRID = 32
# Elements that are transformed at once: 32 MB.
_AT_ONCE = 2**20


def structure_of(
    residuals: Tensor,  # (frames, *shape)
    valid: Tensor,  # (*shape)
    freedom: float,
) -> Structure | None:
    """What the elements of repeated frames have in common; `None` if no element is valid.

    Pairs of elements by distance: those far apart share the offset of a frame, those far apart in
    one row also that of the row, and neighbors whatever mixes neighbors.

    Args:
        residuals: Frames without their mean, of unbiased variance.
        valid: Which elements count.
        freedom: Degrees of freedom of a variance over the frames.
    """
    axes = range(-valid.dim(), 0)
    spatial = tuple(axis for axis in axes if axis >= -2 and valid.shape[axis] >= _SHORTEST)
    folded = tuple(axis for axis in axes if axis not in spatial)
    mask = _planes(valid[None], spatial)
    _, channels, height, width = mask.shape
    elements = float(mask.sum())
    sums = _autocorrelations(_planes(residuals * valid, spatial))
    counts = _autocorrelations(mask) * len(residuals)
    var = sums[0, 0, 0] / counts[0, 0, 0].clamp(min=1)
    if not bool(var > 0):
        return None

    # Lags along both axes; an axis that is missing does not tell pairs apart.
    positions = [torch.arange(size, device=sums.device) for size in sums.shape[1:]]
    lags = [position.minimum(len(position) - position) for position in positions]
    zero = [lag == 0 for lag in lags]
    apart, far = ([(lag > least) | (len(lag) == 1) for lag in lags] for least in (0, _REACH))

    def correlation(channels: int, rows: Tensor, columns: Tensor) -> float:
        """The average over pairs at these lags, in one channel (0) or between two channels (1)."""
        total, count = (lagged[channels][rows][:, columns].sum() for lagged in (sums, counts))
        return float(total / count / var) if count > 0.5 else 0.0

    offset = correlation(0, far[0], far[1]) if spatial else 0.0
    row, column = correlation(0, zero[0], far[1]), correlation(0, far[0], zero[1])

    # Correlations of neighbors, by steps down and to the right, without any offset.
    window = torch.arange(-_REACH, _REACH + 1, device=sums.device)
    steps = [window if len(lag) > 1 else lag for lag in lags]
    down, right = steps[0].unsqueeze(1), steps[1]
    local = sums.new_zeros(2 * _REACH + 1, 2 * _REACH + 1)
    near = sums[0, down, right] / counts[0, down, right].clamp(min=1) / var
    local[down + _REACH, right + _REACH] = near
    local -= offset
    if height > 1:
        local[_REACH] -= row - offset
        local[:, _REACH] -= column - offset
    local /= local[_REACH, _REACH].clamp(min=torch.finfo(local.dtype).tiny)
    horizontal, vertical = local[_REACH], local[:, _REACH]

    def line_share(value: float, count: int, along: Tensor, across: Tensor) -> Share:
        """What the elements of a row, or of a column, have in common besides."""
        lines = count * channels
        mean_var = _variance_inflation(along) * lines / elements
        lines_freedom = freedom * lines / _variance_inflation(across)
        return _share(value - offset, mean_var * _chance_bound(lines_freedom), lines_freedom)

    rows = columns = common = by_channel = None
    # The variance of the mean of a channel that has no offset.
    mean_var = _variance_inflation(local) * channels / elements
    # Bartlett's formula, for a correlation that is 0 at this distance.
    errors = [float(local.norm()) / math.sqrt(freedom * elements)] * len(spatial)
    if height > 1:
        rows = line_share(row, height, horizontal, vertical)
        columns = line_share(column, width, vertical, horizontal)
        mean_var += rows.value / height + columns.value / width
        # Offsets of neighboring columns, or rows, are alike by chance.
        errors = [
            math.hypot(error, line.value / math.sqrt(freedom * size))
            for error, line, size in zip(errors, (columns, rows), (width, height), strict=True)
        ]
    shared = correlation(1, apart[0], apart[1])
    if channels == 1 and valid.numel() > 1:
        common = _share(offset, mean_var * _chance_bound(freedom), freedom)
    elif channels > 1:
        # Offsets that channels have alone are alike by chance; a product varies half as much as a
        # square.
        bound = _chance_bound(freedom * channels * (channels - 1) / 2) / math.sqrt(2)
        chance = (mean_var + max(0.0, offset - shared)) * bound
        common = _share(shared, chance, freedom)
        if spatial:
            chance += mean_var * _chance_bound(freedom * channels)
            by_channel = _share(offset - shared, chance, freedom * channels)
    values = (float(horizontal[_REACH + 1]), float(vertical[_REACH + 1]))
    neighbors = tuple(
        Share(value, error, _CHANCE * error) for value, error in zip(values, errors, strict=False)
    )
    kernel = None
    if any(share.is_clear for share in neighbors):
        kernel = _kernel_of(local if height > 1 else horizontal)

    def lines(share: Share | None, between: float, axis: int) -> Rows:
        """Offsets of lines, which channels have in common or each for itself."""
        is_common = share is None or between - shared > share.value / 2
        return Rows(1.0, axis if is_common or not folded else (*folded, axis))

    # The noises of variance 1 that are clearly there, with shares that add up to 1.
    offsets = [
        (common, CommonMode(1.0), 1),
        (by_channel, CommonMode(1.0, folded), channels),
        (rows, lines(rows, correlation(1, zero[0], apart[1]), -2), height),
        (columns, lines(columns, correlation(1, apart[0], zero[1]), -1), width),
    ]
    clear = [(share.value, part, n) for share, part, n in offsets if share and share.is_clear]
    total = max(1.0, sum(value for value, _, _ in clear))  # above 1 by chance
    parts: list[tuple[Noise, float]] = [(part, value / total) for value, part, _ in clear]
    rest = Constant(1.0) if kernel is None else Blurred(1.0, kernel, spatial)
    parts.append((rest, max(0.0, 1 - sum(share for _, share in parts))))
    norm = math.sqrt(sum(value**2 / n for value, _, n in clear))

    def of_total(share: Share | None) -> Share | None:
        """The share with the error of the total variance, of which it is a part."""
        if share is None:
            return None
        total_error = share.value * norm * math.sqrt(2 / freedom)
        return replace(share, error=math.hypot(share.error, total_error))

    return Structure(
        common=of_total(common),
        channels=of_total(by_channel),
        rows=of_total(rows),
        columns=of_total(columns),
        neighbors=neighbors,
        kernel=kernel,
        parts=tuple(parts),
        offset_norm=norm,
        neighbor_norm=1.0 if kernel is None else float(local.norm()),
    )


def _planes(frames: Tensor, spatial: tuple[int, ...]) -> Tensor:
    """The middle of the frames as (frames, channels, height, width); 1 where an axis is missing."""
    for axis in spatial:
        size = min(frames.shape[axis], _LONGEST)
        frames = frames.narrow(axis, (frames.shape[axis] - size) // 2, size)
    sizes = [1, 1, *(frames.shape[axis] for axis in spatial)][-2:]
    frames = frames.movedim(spatial, tuple(range(-len(spatial), 0)))
    return frames.double().reshape(len(frames), -1, *sizes)


def _autocorrelations(planes: Tensor) -> Tensor:  # (2, lags down, lags to the right)
    """Sums of products over pairs of elements of one channel, and of two, by their lags.

    The Fourier transform gives all lags at once; negative ones count from the end. Of ones, the
    sums are the numbers of pairs.
    """
    size = [2 * length if length > 1 else 1 for length in planes.shape[2:]]
    powers = planes.new_zeros(2, size[0], size[1] // 2 + 1)
    for frames in planes.split(max(1, _AT_ONCE // planes[0].numel())):
        spectra = torch.fft.rfft2(frames, s=size)
        powers[0] += spectra.abs().square().sum((0, 1))
        powers[1] += spectra.sum(1).abs().square().sum(0)
    same, total = torch.fft.irfft2(powers, s=size)
    return torch.stack([same, total - same])


def _kernel_of(correlations: Tensor) -> Tensor:  # (2 reach + 1, ...)
    """The symmetric kernel of norm 1 whose noise has these correlations, by the spectrum's root."""
    dims, size = correlations.dim(), len(correlations)
    axes, reach = tuple(range(dims)), size - 1  # twice as far, since the kernel fades out
    grid = correlations.new_zeros((_GRID,) * dims)
    grid[(slice(0, size),) * dims] = correlations
    centered = grid.roll((-(size // 2),) * dims, axes)
    root = torch.fft.fftn(centered).real.clamp(min=0).sqrt()
    kernel = torch.fft.ifftn(root).real.roll((reach,) * dims, axes)
    kernel = kernel[(slice(0, 2 * reach + 1),) * dims]
    return kernel / kernel.norm()


def _variance_inflation(correlations: Tensor) -> float:
    """By how much these correlations with one element increase the variance of a mean."""
    return max(1.0, float(correlations.sum()))


def _chance_bound(freedom: float) -> float:
    """How far a variance of so many degrees of freedom is above the true one by chance, relative.

    The cube root of a chi square is almost normal (Wilson & Hilferty 1931).
    """
    cube_var = 2 / (9 * freedom)
    return (1 - cube_var + _CHANCE * math.sqrt(cube_var)) ** 3 - 1


def _share(value: float, chance: float, freedom: float) -> Share:
    """A share of the variance, which has so many degrees of freedom; it is not negative."""
    value = max(0.0, value)
    return Share(value, math.hypot(chance / _CHANCE, value * math.sqrt(2 / freedom)), chance)
