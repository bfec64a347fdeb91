"""How the readings of one frame vary together, from repeated frames."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from howsure.noise.base import Noise
from howsure.noise.constant import Constant
from howsure.noise.image_patterns import Blurred, CommonMode, Rows, kernel_of
from howsure.noise.pairs import REACH, Layout, pair_sums
from howsure.noise.share import CHANCE, Share, by_chance, share_of


@dataclass(frozen=True, eq=False, repr=False)
class Structure:
    """What the elements of a frame have in common.

    Attributes:
        common: The share of the variance that is an offset of the whole frame.
        channels: The share that is an offset of each channel; `None` if there is one channel.
        rows: The share that is an offset of each row of an image; `None` for vectors.
        columns: Likewise of each column.
        neighbours: Correlation of neighbours in what is left, along the last axis, and for images
            along the one before; empty for a handful of elements.
        kernel: White noise through this kernel of norm 1 has what is left; `None` if neighbours do
            not correlate.
        parts: The noises for a std of 1, each with its share.
        offset_norm: Root mean square correlation of all pairs of elements by clear offsets.
        neighbour_norm: Root of the sum of squared correlations of an element's neighbours, with
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
        found = {name: getattr(self, name) for name in _WHAT}
        return {name: share for name, share in found.items() if share is not None}

    def numbers(self) -> dict[str, float]:
        """Shares and correlations with their standard errors."""
        found = {f"{name}_share": share for name, share in self.offsets().items()}
        names = ("horizontal_correlation", "vertical_correlation")
        found |= zip(names, self.neighbours, strict=False)
        values = {name: share.value for name, share in found.items()}
        return values | {f"{name}_error": share.error for name, share in found.items()}

    def in_words(self) -> str:
        """The reading in a sentence, with what to use."""
        words = [
            f"{share.in_percent()} of the variance is common to {_WHAT[name]}"
            for name, share in self.offsets().items()
            if share.is_clear
        ]
        if self.kernel is not None:
            found = " and ".join(f"{each.value:.2f}" for each in self.neighbours)
            ways = " (horizontally and vertically)" if len(self.neighbours) == 2 else ""
            words.append(f"neighbours correlate by {found}{ways}")
        if not words:
            return "elements vary independently, as far as these frames can tell"
        names = " + ".join(_NAMES[type(part)] for part, _ in self.parts)
        return f"{'; '.join(words)}: use the noise `correlated`, {names}"


_WHAT = {
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


def structure_of(residuals: Tensor, valid: Tensor, freedom: float) -> Structure | None:
    """What the elements of repeated frames have in common; `None` if no element is valid.

    Pairs of elements by distance: those far apart share the offset of a frame, those far apart in
    one row also that of the row, and neighbours whatever mixes neighbours.

    Args:
        residuals: Frames without their mean, of unbiased variance, (frames, *shape).
        valid: Which elements count, (*shape).
        freedom: Degrees of freedom of a variance over the frames.
    """
    layout = Layout.of(tuple(valid.shape))
    drawn, counts = (pair_sums(layout.planes(each)) for each in (residuals * valid, valid[None]))
    found = {name: drawn[name] / (counts[name] * len(residuals)).clamp(min=1) for name in drawn}
    total = found["near"][REACH, REACH]
    if not bool(total > 0):
        return None
    relative = {name: each / total for name, each in found.items()}
    return _Reading(layout, relative, freedom, float(counts["elements"])).structure()


@dataclass(frozen=True, eq=False)
class _Reading:
    """The covariances of pairs in units of the variance, and what they say."""

    layout: Layout
    pairs: dict[str, Tensor]
    freedom: float
    elements: float  # valid ones, of all channels

    def structure(self) -> Structure:
        """Offsets, neighbours, and the noises that have them."""
        channels, (height, width) = self.layout.channels, self.layout.size
        lines = (self._line("row", 0), self._line("column", 1)) if height > 1 else ()
        rows, columns = lines or (None, None)
        common, by_channel = self._common(channels, lines)
        neighbours = self._neighbours(lines)
        kernel = None
        if any(each.is_clear for each in neighbours):
            kernel = kernel_of(self._local if height > 1 else self._local[REACH])
        shares = common, by_channel, rows, columns
        among = zip(shares, (1, channels, height, width), strict=True)
        squares = [each.value**2 / count for each, count in among if each and each.is_clear]
        norm = math.sqrt(sum(squares))
        return Structure(
            common=self._of_total(common, norm),
            channels=self._of_total(by_channel, norm),
            rows=self._of_total(rows, norm),
            columns=self._of_total(columns, norm),
            neighbours=neighbours,
            kernel=kernel,
            parts=self._parts(shares, kernel),
            offset_norm=norm,
            neighbour_norm=1.0 if kernel is None else float(self._local.norm()),
        )

    def _parts(
        self, shares: tuple[Share | None, ...], kernel: Tensor | None
    ) -> tuple[tuple[Noise, float], ...]:
        """The noises of variance 1 that are clearly there, with shares that add up to 1."""
        _, _, rows, columns = shares
        offsets = (
            CommonMode(1.0),
            CommonMode(1.0, self.layout.folded),
            Rows(1.0, self._axis("rows of channels", rows, -2)),
            Rows(1.0, self._axis("columns of channels", columns, -1)),
        )
        pairs = zip(offsets, shares, strict=True)
        clear = [(part, each.value) for part, each in pairs if each and each.is_clear]
        together = max(1.0, sum(share for _, share in clear))  # above 1 by chance
        kept = [(part, share / together) for part, share in clear]
        rest = Constant(1.0) if kernel is None else Blurred(1.0, kernel, self.layout.spatial)
        return (*kept, (rest, max(0.0, 1 - sum(share for _, share in kept))))

    def _of_total(self, share: Share | None, norm: float) -> Share | None:
        """The share with the error of the total variance, which offsets know no better."""
        if share is None:
            return None
        total = share.value * norm * math.sqrt(2 / self.freedom)
        return replace(share, error=math.hypot(share.error, total))

    @cached_property
    def _offset(self) -> float:
        """What elements of one channel share."""
        return float(self.pairs["far"]) if self.layout.spatial else 0.0

    @cached_property
    def _local(self) -> Tensor:
        """What is left of the covariances of neighbours, without any offset."""
        left = self.pairs["near"] - self._offset
        if self.layout.size[0] > 1:
            left[REACH] -= self.pairs["row"] - self._offset
            left[:, REACH] -= self.pairs["column"] - self._offset
        return left / left[REACH, REACH].clamp(min=torch.finfo(left.dtype).tiny)

    def _spread(self, window: Tensor) -> float:
        """How many independent elements one is worth in a mean."""
        return max(1.0, float(window.sum()))

    def _common(self, channels: int, lines: tuple[Share, ...]) -> tuple[Share | None, Share | None]:
        """What the frame has in common, and what its channels have alone."""
        if math.prod(self.layout.shape) == 1:
            return None, None
        # The variance of the mean of a channel that has no offset.
        mean = self._spread(self._local) * channels / self.elements
        mean += sum(line.value / size for line, size in zip(lines, self.layout.size, strict=False))
        freedom = self.freedom * channels
        if channels == 1:
            return share_of(self._offset, mean * by_chance(freedom), freedom), None
        whole = float(self.pairs["channels"])
        pairs = freedom * (channels - 1) / 2
        # Offsets that channels have alone are alike by chance; a product varies half as much as a
        # square.
        alone = max(0.0, self._offset - whole)
        chance = (mean + alone) * by_chance(pairs) / math.sqrt(2)
        common = share_of(whole, chance, self.freedom)
        if not self.layout.spatial:
            return common, None
        return common, share_of(self._offset - whole, mean * by_chance(freedom) + chance, freedom)

    def _line(self, name: str, axis: int) -> Share:
        """What the elements of a row, or of a column, have in common besides."""
        lines = self.layout.size[axis] * self.layout.channels
        along, across = self._local[REACH], self._local[:, REACH]
        if axis == 1:
            along, across = across, along
        mean = self._spread(along) * lines / self.elements
        freedom = self.freedom * lines / self._spread(across)
        value = float(self.pairs[name]) - self._offset
        return share_of(value, mean * by_chance(freedom), freedom)

    def _axis(self, between: str, lines: Share | None, axis: int) -> int | tuple[int, ...]:
        """The axes of lines: channels have them in common, or each its own."""
        if lines is None or not self.layout.folded:
            return axis
        shared = float(self.pairs[between] - self.pairs["channels"])
        return axis if shared > lines.value / 2 else (*self.layout.folded, axis)

    def _neighbours(self, lines: tuple[Share, ...]) -> tuple[Share, ...]:
        """Correlations along the last axis, and the one before."""
        # Bartlett's formula, for a correlation that is 0 at this distance.
        own = float(self._local.norm()) / math.sqrt(self.freedom * self.elements)
        # Offsets of neighbouring columns, or rows, are alike by chance.
        errors = [
            math.hypot(own, line.value / math.sqrt(self.freedom * size))
            for line, size in zip(lines, self.layout.size, strict=False)
        ]
        places = ((REACH, REACH + 1), (REACH + 1, REACH))[: len(self.layout.spatial)]
        found = [float(self._local[place]) for place in places]
        pairs = zip(found, errors[::-1] or [own], strict=False)
        return tuple(Share(value, error, CHANCE * error) for value, error in pairs)
