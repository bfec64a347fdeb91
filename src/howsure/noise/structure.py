"""How the readings of one frame vary together, from repeated frames."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from howsure.noise.base import Noise
from howsure.noise.correlation import Blurred, CommonMode, Rows, kernel_of
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
        """Whether it is neither chance nor too small to matter."""
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
        neighbours: Correlation of neighbors in the remaining noise, along the last axis, and for
            images along the one before; empty for a handful of elements.
        kernel: White noise through this kernel of norm 1 is the remaining noise; `None` if
            neighbors do not correlate.
        parts: The noises for a std of 1, each with its share.
        offset_norm: Root mean square correlation of all pairs of elements by clear offsets.
        neighbour_norm: Root of the sum of squared correlations of an element's neighbors, with
            itself; 1 if they do not correlate.
    """

    common: Share | None
    channels: Share | None
    rows: Share | None
    columns: Share | None
    neighbours: tuple[Share, ...]
    kernel: Tensor | None
    parts: tuple[tuple[Noise, float], ...]
    offset_norm: float
    neighbour_norm: float

    @property
    def is_correlated(self) -> bool:
        """Whether elements clearly vary together."""
        return any(part.is_correlated for part, _ in self.parts)

    def error(self, independent: Tensor, var: Tensor, freedom: float) -> Tensor:
        """The standard error of a variance averaged over a frame.

        For Gaussian noise its square is 2 / freedom times the mean of squared covariances.

        Args:
            independent: What it would be if elements were independent.
            var: The variance.
            freedom: Degrees of freedom of one element's variance.
        """
        offsets = var * self.offset_norm * math.sqrt(2 / freedom)
        return torch.hypot(independent * self.neighbour_norm, offsets)

    def noise(self, var: float | Tensor) -> Noise:
        """The noise of this structure with the given variance."""
        first, *others = [part.scaled(var * share) for part, share in self.parts]
        return sum(others, start=first)

    def offsets(self) -> dict[str, Share]:
        """The shares of the variance that are known, by their attributes."""
        shares = {name: getattr(self, name) for name in _PLACES}
        return {name: share for name, share in shares.items() if share is not None}

    def numbers(self) -> dict[str, float]:
        """Shares and correlations with their standard errors."""
        shares = {f"{name}_share": share for name, share in self.offsets().items()}
        names = ("horizontal_correlation", "vertical_correlation")
        shares |= zip(names, self.neighbours, strict=False)
        values = {name: share.value for name, share in shares.items()}
        return values | {f"{name}_error": share.error for name, share in shares.items()}

    def in_words(self) -> str:
        """The structure in a sentence, with the noise to use."""
        clauses = [
            f"{share.in_percent()} of the variance is common to {_PLACES[name]}"
            for name, share in self.offsets().items()
            if share.is_clear
        ]
        if self.kernel is not None:
            values = " and ".join(f"{share.value:.2f}" for share in self.neighbours)
            axes = " (horizontally and vertically)" if len(self.neighbours) == 2 else ""
            clauses.append(f"neighbours correlate by {values}{axes}")
        if not clauses:
            return "elements vary independently, as far as these frames can tell"
        names = " + ".join(_NAMES[type(part)] for part, _ in self.parts)
        return f"{'; '.join(clauses)}: use the noise `correlated`, {names}"


_PLACES = {
    "common": "the whole frame",
    "channels": "each channel",
    "rows": "each row",
    "columns": "each column",
}
_NAMES: dict[type[Noise], str] = {
    CommonMode: "`common_mode`",
    Rows: "`rows`",
    Blurred: "`blurred`",
    Constant: "independent noise",
}


# Elements up to so many steps apart are neighbors; what those further apart share is an offset.
_REACH = 3
# Shorter axes have too few pairs beyond the neighbors: they count as channels.
_SHORTEST = 4 * (_REACH + 1)
# The middle of larger images says enough, in less time.
_LONGEST = 256


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
    sums = _pair_sums(_planes(residuals * valid, spatial))
    counted = _planes(valid[None], spatial)
    counts = _pair_sums(counted)
    covariances = {
        name: torch.where(counts[name] > 0.5, sums[name] / (counts[name] * len(residuals)), 0.0)
        for name in sums
    }
    var = covariances["near"][_REACH, _REACH]
    if not bool(var > 0):
        return None
    pairs = {name: covariance / var for name, covariance in covariances.items()}
    elements = float(counted.sum())
    _, channels, height, width = counted.shape

    # The correlations of neighbors without any offset, by steps down and to the right.
    offset = float(pairs["far"]) if spatial else 0.0
    local = pairs["near"] - offset
    if height > 1:
        local[_REACH] -= pairs["row"] - offset
        local[:, _REACH] -= pairs["column"] - offset
    local = local / local[_REACH, _REACH].clamp(min=torch.finfo(local.dtype).tiny)

    def line_share(name: str, count: int, along: Tensor, across: Tensor) -> Share:
        """What the elements of a row, or of a column, have in common besides."""
        lines = count * channels
        mean = _correlated_count(along) * lines / elements
        line_freedom = freedom * lines / _correlated_count(across)
        value = float(pairs[name]) - offset
        return _share(value, mean * _chance_bound(line_freedom), line_freedom)

    across, down = local[_REACH], local[:, _REACH]
    lines: tuple[Share, ...] = ()
    if height > 1:
        lines = line_share("row", height, across, down), line_share("column", width, down, across)

    # Offsets of the frame, and of its channels alone.
    common = by_channel = None
    # The variance of the mean of a channel that has no offset.
    mean = _correlated_count(local) * channels / elements
    mean += sum(line.value / size for line, size in zip(lines, (height, width), strict=False))
    if channels == 1 and valid.numel() > 1:
        common = _share(offset, mean * _chance_bound(freedom), freedom)
    elif channels > 1:
        shared = float(pairs["channels"])
        # Offsets that channels have alone are alike by chance; a product varies half as much as a
        # square.
        bound = _chance_bound(freedom * channels * (channels - 1) / 2) / math.sqrt(2)
        chance = (mean + max(0.0, offset - shared)) * bound
        common = _share(shared, chance, freedom)
        if spatial:
            chance += mean * _chance_bound(freedom * channels)
            by_channel = _share(offset - shared, chance, freedom * channels)

    # Bartlett's formula, for a correlation that is 0 at this distance; offsets of neighboring
    # columns, or rows, are alike by chance.
    bartlett = float(local.norm()) / math.sqrt(freedom * elements)
    errors = [bartlett] * len(spatial)
    if lines:
        errors = [
            math.hypot(bartlett, line.value / math.sqrt(freedom * size))
            for line, size in zip(lines[::-1], (width, height), strict=True)
        ]
    correlations = [float(across[_REACH + 1]), float(down[_REACH + 1])]
    neighbors = tuple(
        Share(value, error, _CHANCE * error)
        for value, error in zip(correlations, errors, strict=False)
    )
    kernel = None
    if any(share.is_clear for share in neighbors):
        kernel = kernel_of(local if height > 1 else local[_REACH])

    def line_axes(between: str, line: Share, axis: int) -> int | tuple[int, ...]:
        """The axes of lines: channels have them in common, or each its own."""
        is_shared = float(pairs[between] - pairs["channels"]) > line.value / 2
        return axis if is_shared or not folded else (*folded, axis)

    # The offsets that are clearly there, as noises of variance 1 with shares that add up to 1.
    offsets = [(common, CommonMode(1.0), 1), (by_channel, CommonMode(1.0, folded), channels)]
    if lines:
        row_axes = line_axes("rows of channels", lines[0], -2)
        column_axes = line_axes("columns of channels", lines[1], -1)
        offsets += [
            (lines[0], Rows(1.0, row_axes), height),
            (lines[1], Rows(1.0, column_axes), width),
        ]
    clear = [
        (share.value, part, count) for share, part, count in offsets if share and share.is_clear
    ]
    total = max(1.0, sum(value for value, _, _ in clear))  # above 1 by chance
    parts: list[tuple[Noise, float]] = [(part, value / total) for value, part, _ in clear]
    rest = Constant(1.0) if kernel is None else Blurred(1.0, kernel, spatial)
    parts.append((rest, max(0.0, 1 - sum(share for _, share in parts))))
    norm = math.sqrt(sum(value**2 / count for value, _, count in clear))

    def with_total(share: Share | None) -> Share | None:
        """The share with the error of the total variance, which offsets know no better."""
        if share is None:
            return None
        total_error = share.value * norm * math.sqrt(2 / freedom)
        return replace(share, error=math.hypot(share.error, total_error))

    rows, columns = lines or (None, None)
    return Structure(
        common=with_total(common),
        channels=with_total(by_channel),
        rows=with_total(rows),
        columns=with_total(columns),
        neighbours=neighbors,
        kernel=kernel,
        parts=tuple(parts),
        offset_norm=norm,
        neighbour_norm=1.0 if kernel is None else float(local.norm()),
    )


def _planes(frames: Tensor, spatial: tuple[int, ...]) -> Tensor:
    """The middle of the frames as (frames, channels, height, width); 1 where an axis is missing."""
    for axis in spatial:
        size = min(frames.shape[axis], _LONGEST)
        frames = frames.narrow(axis, (frames.shape[axis] - size) // 2, size)
    sizes = [frames.shape[axis] for axis in spatial]
    frames = frames.movedim(spatial, tuple(range(-len(spatial), 0)))
    ones = (1,) * (2 - len(spatial))
    return frames.double().reshape(len(frames), -1, *ones, *sizes)


def _pair_sums(planes: Tensor) -> dict[str, Tensor]:  # (frames, channels, height, width)
    """Sums of products over pairs of elements, by where the two are; of ones, their numbers.

    They are sums of autocorrelations, of which the Fourier transform gives all lags at once.
    """
    lengths = planes.shape[2:]
    height, width = size = [2 * length if length > 1 else 1 for length in lengths]
    powers = planes.new_zeros(2, height, width // 2 + 1)
    for frame in planes:  # one by one, to save memory
        spectra = torch.fft.rfft2(frame, s=size)
        powers[0] += spectra.abs().square().sum(0)
        powers[1] += spectra.sum(0).abs().square()
    same, total = torch.fft.irfft2(powers, s=size)  # by lag; negative ones count from the end
    other = total - same  # pairs of two channels

    lags = [torch.arange(length).minimum(length - torch.arange(length)) for length in size]
    # An axis that is missing sets no two elements apart.
    far = [(lag > _REACH) | (len(lag) == 1) for lag in lags]
    apart = [(lag > 0) | (len(lag) == 1) for lag in lags]
    steps = [
        torch.arange(-_REACH, _REACH + 1) if length > 1 else torch.tensor([0]) for length in lengths
    ]
    near = planes.new_zeros(2 * _REACH + 1, 2 * _REACH + 1)
    down, right = steps[0].unsqueeze(1), steps[1]
    near[down + _REACH, right + _REACH] = same[down, right]
    return {
        "near": near,
        "far": same[far[0]][:, far[1]].sum(),
        "row": same[0, lags[1] > _REACH].sum(),
        "column": same[lags[0] > _REACH, 0].sum(),
        "channels": other[apart[0]][:, apart[1]].sum(),
        "rows of channels": other[0, lags[1] > 0].sum(),
        "columns of channels": other[lags[0] > 0, 0].sum(),
    }


def _correlated_count(correlations: Tensor) -> float:
    """The sum of correlations with one element: by how much they widen the variance of a mean."""
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
