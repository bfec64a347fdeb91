"""The one check of arguments: which data metrics accept, and which entries of them count.

All data come back as chosen entries, `(n,)` or `(n, k)`, in float64: sums over millions of float32
predictions lose the digits by which methods differ. Shapes must be equal, since broadcasting `(n,)`
against `(n, 1)` is a silent error of a common kind.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import torch
from torch import Tensor

# What the name of an argument promises: where the entries break it, and the words for that.
# Rows of probabilities may miss 1 by the rounding of bfloat16.
_PROMISES: dict[str, tuple[Callable[[Tensor], Tensor], str]] = {
    "var": (lambda x: x < 0, "is negative in {} entries; was a log variance passed?"),
    "error": (
        lambda x: x < 0,
        "is negative in {} entries; take `abs()` or square the residuals.",
    ),
    "positive": (
        lambda x: (x != 0) & (x != 1),
        "holds values other than 0 and 1 in {} entries; pass a boolean tensor.",
    ),
    "probabilities": (
        lambda x: ((x.sum(1) - 1).abs() > 1e-2) | (x.amin(1) < 0),
        "is negative or does not sum to 1 over dimension 1 in {} rows; turn logits into "
        "probabilities with `logits.softmax(1)`.",
    ),
}


def entries(mask: Tensor | None, weight: Tensor | None = None, /, **data: Tensor) -> list[Tensor]:
    """The chosen entries `(n,)` of tensors of equal shape, and last their weights `(n,)`."""
    chosen = _select(_common_shape(data), mask, weight, data)
    _check_promises(data, chosen)
    return chosen


def vectors(
    mask: Tensor | None,
    weight: Tensor | None = None,
    /,
    *,
    dim: int = 1,
    **data: Tensor,  # (..., d, ...), d at `dim`
) -> list[Tensor]:
    """The chosen vectors `(n, d)` and last their weights; masks have no, or one, component."""
    shape = _common_shape(data)
    if not -len(shape) <= dim < len(shape):
        raise ValueError(
            f"`{next(iter(data))}` has shape {tuple(shape)} and no dimension {dim} for the "
            "components of a vector; choose another `dim=`."
        )
    mask, weight = (
        x.squeeze(dim) if x is not None and x.dim() == len(shape) else x for x in (mask, weight)
    )
    data = {name: x.movedim(dim, -1) for name, x in data.items()}
    return _select(next(iter(data.values())).shape[:-1], mask, weight, data)


def classes(
    mask: Tensor | None,
    weight: Tensor | None = None,
    /,
    *,
    target: Tensor,  # (batch, ...), class indices
    **scores: Tensor,  # (batch, classes, ...)
) -> list[Tensor]:
    """The chosen scores `(n, classes)`, true classes and weights; shapes as in `cross_entropy`."""
    shape, name = _common_shape(scores), next(iter(scores))
    _check_tensors({"target": target})
    if len(shape) < 2 or shape[:1] + shape[2:] != target.shape:
        raise ValueError(
            f"`{name}` has shape {tuple(shape)} and `target` has shape {tuple(target.shape)}; give "
            "(batch, classes, ...) and class indices (batch, ...)."
        )
    data = {name: x.movedim(1, -1) for name, x in scores.items()} | {"target": target}
    *rows, labels, weights = _select(target.shape, mask, weight, data)
    _check_promises(scores, rows)
    bad = (labels < 0) | (labels >= shape[1]) | (labels != labels.floor())
    if bad.any():
        raise ValueError(
            f"`target` is not a class index from 0 to {shape[1] - 1} in {share(bad)} entries; "
            "leave such entries out with `mask=`."
        )
    return [*rows, labels.long(), weights]


def ellipsoids(
    mask: Tensor | None,
    weight: Tensor | None = None,
    /,
    **data: Tensor,  # (..., d), and the covariance: (..., d, d), or variances (..., d)
) -> list[Tensor]:
    """The chosen vectors and last their weights; a Cholesky factor in place of the covariance."""
    _check_tensors(data)
    errors = {name: x for name, x in data.items() if name != "covariance"}
    shape, covariance = _common_shape(errors), data["covariance"]
    if len(shape) == 0 or covariance.shape not in (shape, (*shape, shape[-1])):
        raise ValueError(
            f"`{next(iter(errors))}` has shape {tuple(shape)} and `covariance` has shape "
            f"{tuple(covariance.shape)}; give (..., d) and (..., d, d), or variances (..., d)."
        )
    full = torch.diag_embed(covariance) if covariance.dim() == len(shape) else covariance
    chosen = _select(shape[:-1], mask, weight, data | {"covariance": full})
    place = list(data).index("covariance")
    chosen[place], failed = torch.linalg.cholesky_ex(chosen[place])
    if (failed > 0).any():
        raise ValueError(
            f"`covariance` is not positive definite in {share(failed > 0)} entries, where this "
            "metric is undefined."
        )
    return chosen


def positive_variance(var: Tensor, floor: float = 0.0) -> Tensor:
    """Variances raised to `floor`; an error if one is still 0."""
    if not floor >= 0:
        raise ValueError(f"`floor` is {floor}; give a variance, 0 or a small positive number.")
    raised = var.clamp(min=floor) if floor else var
    if raised.amin() == 0:
        raise ValueError(
            f"`var` is 0 in {share(raised == 0)} entries, where this metric is undefined; raise it "
            "with `var.clamp(min=...)` (likelihoods: `floor=...`) and state that floor with the "
            "number."
        )
    return raised


def probability(name: str, value: float) -> float:
    """A number strictly between 0 and 1."""
    if not 0 < value < 1:
        raise ValueError(f"`{name}` is {value}; give a probability between 0 and 1, such as 0.95.")
    return value


def bin_count(bins: int, count: int | None = None) -> int:
    """A number of bins, no larger than the number of entries to be put into them."""
    if bins < 1:
        raise ValueError(f"`bins` is {bins}; give at least 1.")
    if count is not None and bins > count:
        raise ValueError(f"`bins` is {bins} for {count} predictions; give at most {count}.")
    return bins


def share(bad: Tensor) -> str:
    """How many entries are true, for an error message."""
    return f"{int(bad.sum())} of {bad.numel()}"


def _check_tensors(data: Mapping[str, object]) -> None:
    for name, value in data.items():
        if not isinstance(value, Tensor):
            raise TypeError(
                f"`{name}` is a {type(value).__name__}; pass a torch tensor, for example "
                f"`torch.as_tensor({name})`."
            )


def _common_shape(data: Mapping[str, Tensor]) -> torch.Size:
    _check_tensors(data)
    (first, expected), *others = data.items()
    for name, value in others:
        if value.shape != expected.shape:
            raise ValueError(
                f"`{first}` has shape {tuple(expected.shape)} and `{name}` has shape "
                f"{tuple(value.shape)}; make them equal, for example with `squeeze` or `expand_as`."
            )
    return expected.shape


def _select(
    shape: torch.Size, mask: Tensor | None, weight: Tensor | None, data: Mapping[str, Tensor]
) -> list[Tensor]:
    """The chosen entries of each tensor and last their weights, in float64, all finite.

    Entries that the mask or a weight of 0 leaves out are not looked at and may be NaN. A tensor may
    have further dimensions behind `shape`.
    """
    chosen = None
    if mask is not None:
        _check_repeats("mask", mask, shape)
        if mask.dtype != torch.bool:
            raise ValueError(f"`mask` is {mask.dtype}; pass a boolean tensor, for example `x > 0`.")
        chosen = mask.expand(shape)
    if weight is not None:
        _check_repeats("weight", weight, shape)
        if not (weight >= 0).all():
            raise ValueError("`weight` holds negative or NaN values; pass values from 0 up.")
        positive = (weight > 0).expand(shape)
        chosen = positive if chosen is None else chosen & positive
        data = {**data, "weight": weight.expand(shape)}
    selected = []
    for name, value in data.items():
        flat = value.reshape(-1, *value.shape[len(shape) :]) if chosen is None else value[chosen]
        # Apple's GPU has no float64.
        x = (flat.cpu() if flat.device.type == "mps" else flat).to(torch.float64)
        if x.numel() == 0:
            raise ValueError(f"`{name}` has no entries to evaluate; check the data and the mask.")
        # A finite sum has finite terms, and is cheaper than a look at each.
        if not x.sum().isfinite() and not x.isfinite().all():
            raise ValueError(
                f"`{name}` is NaN or infinite in {share(~x.isfinite())} entries; leave them out "
                "with `mask=`."
            )
        selected.append(x)
    if weight is None:
        selected.append(selected[0].new_ones(len(selected[0])))
    return selected


def _check_promises(names: Iterable[str], chosen: Sequence[Tensor]) -> None:
    for name, x in zip(names, chosen, strict=False):
        is_broken, words = _PROMISES.get(name, (None, ""))
        if is_broken is not None and (bad := is_broken(x)).any():
            raise ValueError(f"`{name}` {words.format(share(bad))}")


def _check_repeats(name: str, value: Tensor, shape: torch.Size) -> None:
    _check_tensors({name: value})
    if value.dim() != len(shape) or any(
        size not in (1, full) for size, full in zip(value.shape, shape, strict=True)
    ):
        raise ValueError(
            f"`{name}` has shape {tuple(value.shape)} for predictions of shape {tuple(shape)}; "
            "give as many dimensions, of equal size or of size 1 where it repeats."
        )
