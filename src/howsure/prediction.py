"""What a method returns: a prediction with its variance, split into data and model."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from howsure.arrays import as_array, batched, table_of
from howsure.progress import progress
from howsure.student import central_reach
from howsure.trees import TensorTree, map_leaves, number_range

CONSTANT = "constant"


@dataclass(frozen=True, eq=False)
class Source:
    """A sensor or a layer whose units vary: its name, kind and the shape of a row's numbers.

    Only independent elements have a variance each.
    """

    name: str
    kind: str
    shape: tuple[int, ...]
    is_independent: bool = True


@dataclass(frozen=True, eq=False, repr=False)
class Budget:
    """The variance of every output by source.

    Attributes:
        names: The sources: inputs, dropped layers, the residual variance.
        kinds: What each is: "input", "dropout", "constant".
        variances: Variance by source, (sources, batch, outputs); outputs are flat, in the order
            of the model's output.
        elements: For each input with independent noise the variance by element, (batch, outputs,
            *input's shape).

    Examples:
        >>> model = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 1)).eval()
        >>> p = hs.Uncertain(model, noise=0.01, method="gradients")(torch.ones(3, 2))
        >>> p.budget().names
        ('x',)
    """

    names: tuple[str, ...]
    kinds: tuple[str, ...]
    variances: Tensor
    elements: dict[str, Tensor] = field(default_factory=dict)

    def __repr__(self) -> str:
        """The largest sources and their shares, in one line."""
        rows = self.table()
        words = [f"{name} {100 * share:.0f} %" for name, _, _, share in rows[:3]]
        more = [f"{len(rows) - 3} more"] if len(rows) > 3 else []
        return f"Budget({', '.join([*words, *more])})"

    @staticmethod
    def joined(parts: Sequence[Budget], *, maps: bool = False) -> Budget:
        """The budget of all batches; the maps by element, which can be large, only if asked for."""
        first = parts[0]
        names = first.elements if maps else ()
        elements = {name: torch.cat([part.elements[name] for part in parts]) for name in names}
        variances = torch.cat([part.variances for part in parts], 1)
        return Budget(first.names, first.kinds, variances, elements)

    def of_rows(self, chosen: Tensor, rows: int) -> Budget | None:
        """The budget of some inputs; `None` if it is not by input."""
        if self.variances.shape[1] != rows:
            return None
        chosen = chosen.to(self.variances.device)
        elements = {
            name: variance.index_select(0, chosen) for name, variance in self.elements.items()
        }
        variances = self.variances.index_select(1, chosen)
        return Budget(self.names, self.kinds, variances, elements)

    def mapped(self, change: Callable[[Tensor], Tensor]) -> Budget:
        """The budget with a function applied to all its tensors."""
        elements = {name: change(variance) for name, variance in self.elements.items()}
        return Budget(self.names, self.kinds, change(self.variances), elements)

    def scaled(self, factor: Tensor) -> Budget:  # (batch or 1, outputs or 1)
        """The budget of outputs whose variances are so many times as large."""
        elements = {
            name: variance * factor.reshape(*factor.shape, *(1,) * (variance.dim() - 2))
            for name, variance in self.elements.items()
        }
        return Budget(self.names, self.kinds, factor * self.variances, elements)

    def with_constant(self, constant: Tensor, name: str = CONSTANT) -> Budget:
        """The budget with a variance of every output that no source explains, (batch, outputs).

        It adds to that of an earlier constant of the same name.
        """
        constant = constant.to(self.variances)
        if name in self.names:
            variances = self.variances.clone()
            variances[self.names.index(name)] += constant
            return Budget(self.names, self.kinds, variances, self.elements)
        variances = torch.cat([self.variances, constant[None]])
        names, kinds = (*self.names, name), (*self.kinds, "constant")
        return Budget(names, kinds, variances, self.elements)

    @property
    def total(self) -> Tensor:
        """The sum over all sources: the prediction's total variance, (batch, outputs)."""
        return self.variances.sum(0)

    @property
    def shares(self) -> Tensor:
        """Each source's share of the total, (sources, batch, outputs); they sum to 1."""
        total = self.total
        return self.variances / torch.where(total > 0, total, torch.ones_like(total))

    def share(self, name: str) -> Tensor:
        """One source's share, (batch, outputs)."""
        if name not in self.names:
            raise ValueError(f"The budget has no source {name!r}; it has {list(self.names)}.")
        return self.shares[self.names.index(name)]

    def heatmap(self, name: str | None = None) -> Tensor:
        """Variance by element of an input, (batch, outputs, *input's shape): which pixels."""
        if not self.elements:
            raise ValueError(
                "There is no heat map: no input has noise that is independent between elements, or "
                "the budget is that of a whole loader; predict one batch by itself."
            )
        chosen = next(iter(self.elements)) if name is None else name
        if chosen not in self.elements:
            raise ValueError(f"The budget has no input {chosen!r}; it has {list(self.elements)}.")
        return self.elements[chosen]

    def table(self) -> list[tuple[str, str, float, float]]:
        """Name, kind, average variance and average share of every source, largest first."""
        variances, shares = (t.flatten(1).mean(1).tolist() for t in (self.variances, self.shares))
        rows = zip(self.names, self.kinds, variances, shares, strict=True)
        return sorted(rows, key=lambda row: -row[3])

    def __str__(self) -> str:
        """The table in text, with the total below."""
        rows = [(n, k, f"{v:.3g}", f"{100 * s:.1f} %") for n, k, v, s in self.table()]
        shares = float(self.shares.sum(0).mean())
        rows.append(("total", "", f"{float(self.total.mean()):.3g}", f"{100 * shares:.1f} %"))
        header = ("source", "kind", "variance", "share")
        widths = [max(len(row[i]) for row in (header, *rows)) for i in range(4)]
        return "\n".join(
            f"{a:<{widths[0]}}  {b:<{widths[1]}}  {c:>{widths[2]}}  {d:>{widths[3]}}".rstrip()
            for a, b, c, d in (header, *rows)
        )


@dataclass(frozen=True, eq=False)
class Details:
    """What a prediction knows besides its variances, where a method has it.

    Attributes:
        covariance: Between the outputs of each input, (batch, outputs, outputs).
        linear_share: The share of the variance that is first order, (batch, outputs).
        budget: The variance by source.
    """

    covariance: Tensor | None = None
    linear_share: Tensor | None = None
    budget: Budget | None = None


@dataclass(frozen=True, eq=False, repr=False)
class Prediction:
    """A prediction with its uncertainty; fields have the structure of the model's output.

    Attributes:
        mean: The prediction.
        data_var: Variance that comes from the sensor's noise (aleatoric).
        model_var: Variance that comes from the weights (epistemic).
        notes: What a user should know about how it was computed.
        logits: For classification, the prediction before the softmax.
        expected_entropy: For classification, the average entropy of the samples.
        error: The standard error of `std`, which `std_error` returns; or what computes it.
        novelty: How unlike the known inputs this input is, after a fit: above 1 for a quarter of
            the held-out inputs. For every output; of classes for every input.
        joint_novelty: The same for all outputs together, (batch,).
        degrees_of_freedom: Degrees of freedom of the Student-t with variance `total_var` from which
            intervals are made, after a fit; infinity for a Gaussian.
        temperature: The number by which the logits of each input were divided, (batch,), if a
            temperature was fitted.
        method: The method that made the prediction.
        batch_dim: The axis of the outputs that counts the inputs; `None` if the call was one.
        details: Covariance, linear share and budget; or what computes them when they are read.

    Examples:
        >>> mean, data_var = torch.zeros(1, 1), torch.full((1, 1), 3.0)
        >>> p = hs.Prediction(mean, data_var, model_var=torch.ones(1, 1))
        >>> p.std, p.total_var
        (tensor([[2.]]), tensor([[4.]]))
    """

    # Tensors for editors; of a model that returns a structure, the same structure of tensors.
    mean: Tensor
    data_var: Tensor
    model_var: Tensor
    notes: tuple[str, ...] = ()
    logits: Prediction | None = None
    expected_entropy: Tensor | None = None
    error: Any = None
    novelty: Tensor | None = None
    joint_novelty: Tensor | None = None
    temperature: Tensor | None = None
    degrees_of_freedom: float = math.inf
    method: str = ""
    batch_dim: int | None = 0
    details: Details | Callable[[], Details] | None = None

    @cached_property
    def _details(self) -> Details:
        if not callable(self.details):
            return self.details or Details()
        with torch.inference_mode(False), torch.autocast("cpu", enabled=False):
            return self.details()

    def __getstate__(self) -> dict[str, Any]:
        """What a copy has: values in place of what computes them."""
        state = {field.name: getattr(self, field.name) for field in fields(self)}
        details = None if self.details is None else self._details
        return {**state, "error": self.std_error, "details": details}

    @cached_property
    def std_error(self) -> Tensor | None:
        """Standard error of `std`, if the method estimates it: its change by more samples."""
        error: Any = self.error
        if callable(error):
            with torch.inference_mode(False), torch.autocast("cpu", enabled=False):
                error = error()
        return error

    @property
    def covariance(self) -> Tensor | None:
        """Covariance between the outputs of each input, if the method has it."""
        return self._details.covariance

    @property
    def linear_share(self) -> Tensor | None:
        """Share of the variance that is first order in the noise, between 0 and 1, flat.

        Near 1, linearizing the network would be as accurate.
        """
        return self._details.linear_share

    @property
    def sources(self) -> Budget | None:
        """Variance by source, if the method has it; `budget()` returns it."""
        return self._details.budget

    def __repr__(self) -> str:
        """Shape, method and range of the std: `Prediction(8 x 2, gradients, std 0.02 to 0.11)`."""
        shapes = [" x ".join(map(str, t.shape)) or "1" for t in TensorTree(self.mean).tensors]
        std = number_range(TensorTree(self.std).tensors)
        words = [", ".join(shapes), *([self.method] if self.method else []), f"std {std}"]
        return f"{type(self).__name__}({', '.join(words)})"

    def __len__(self) -> int:
        """The number of inputs."""
        return rows_of(self)

    def __getitem__(self, index: Any) -> Prediction:
        """The prediction for some inputs: a slice, an index, a list of them, or a mask.

        The batch axis stays: `p[3]` is a prediction for one input.
        """
        return of_rows(self, index)

    def to(self, *args: Any, **kwargs: Any) -> Prediction:
        """The prediction with all tensors on a device, or of a type: as `Tensor.to`."""
        return mapped(self, lambda leaf: leaf.to(*args, **kwargs))

    def to_dict(self, level: float | None = None) -> dict[str, Any]:
        """The quantities by name, in the structure of the model's output; intervals if asked."""
        quantities = {
            name: getattr(self, name) for name in ("mean", "std", "data_var", "model_var")
        }
        if level is not None:
            quantities["low"], quantities["high"] = self.interval(level)
        if self.expected_entropy is not None:
            quantities |= {"entropy": self.entropy, "mutual_information": self.mutual_information}
        others = ("std_error", "novelty", "joint_novelty", "temperature")
        return quantities | {n: getattr(self, n) for n in others if getattr(self, n) is not None}

    def numpy(self, level: float | None = None) -> dict[str, Any]:
        """`to_dict` with arrays in place of tensors."""
        return map_leaves(as_array, self.to_dict(level))

    def to_pandas(self, level: float | None = None) -> Any:
        """A table with a row for each input and a column for each number: `mean_0`, `std_0`..."""
        try:
            import pandas
        except ImportError as error:
            raise ImportError("`to_pandas` needs pandas: `pip install pandas`.") from error
        return pandas.DataFrame(table_of(self.to_dict(level), len(self)))

    def budget(self) -> Budget:
        """Where the variance comes from: each input, each dropped layer. Of the logits, if any."""
        if self.sources is None and self.logits is not None:
            return self.logits.budget()
        if self.sources is None:
            raise ValueError(
                "This method cannot attribute the variance to sources; use `Uncertain(..., "
                'method="gradients")`.'
            )
        return self.sources

    @property
    def total_var(self) -> Tensor:
        """data_var + model_var (Loquercio et al. 2020, Eq. 16)."""
        return map_leaves(lambda data, model: data + model, self.data_var, self.model_var)

    @property
    def std(self) -> Tensor:
        """Standard deviation: the root of the total variance."""
        return map_leaves(_root, self.total_var)

    @property
    def trust(self) -> Any:
        """Renamed to `linear_share`; raises an error that says so."""
        raise AttributeError("`trust` is now `linear_share`; `std_error` is the error of the std.")

    @property
    def aleatoric(self) -> Tensor:
        """Another name for `data_var`."""
        return self.data_var

    @property
    def epistemic(self) -> Tensor:
        """Another name for `model_var`."""
        return self.model_var

    def interval(self, level: float = 0.95) -> tuple[Tensor, Tensor]:
        """Lower and upper end of the central interval of `distribution()`."""
        if not 0 < level < 1:
            raise ValueError(f"The level of an interval must be between 0 and 1, not {level}.")
        reach = central_reach(level, self.degrees_of_freedom)
        low = self._with_std(lambda mean, std: mean - reach * std)
        return low, self._with_std(lambda mean, std: mean + reach * std)

    def _with_std(self, combine: Callable[[Tensor, Tensor], Any]) -> Any:
        def leaf(mean: Any, std: Any) -> Any:
            has_std = isinstance(mean, Tensor) and mean.is_floating_point()  # An index has none.
            return combine(mean, std) if has_std else mean

        return map_leaves(leaf, self.mean, self.std)

    def distribution(self) -> torch.distributions.Distribution:
        """The predictive distribution: `torch.distributions.Normal`, or `StudentT` after a fit.

        Both have the mean and the variance of the prediction.
        """
        nu = self.degrees_of_freedom
        if nu == math.inf:
            normal = torch.distributions.Normal
            return self._with_std(lambda mean, std: normal(mean, std, validate_args=False))
        student, shrink = torch.distributions.StudentT, math.sqrt((nu - 2) / nu)
        return self._with_std(
            lambda mean, std: student(nu, mean, shrink * std, validate_args=False)
        )

    @property
    def entropy(self) -> Tensor:
        """Entropy of the class probabilities, in nats: of every input, pixel, token or label."""
        self._check_classification()
        assert self.expected_entropy is not None
        if self.expected_entropy.shape == self.mean.shape:  # Each output is a question of its own.
            return binary_entropy(self.mean)
        return entropy(self.mean, dim=class_dim(self.mean))

    @property
    def mutual_information(self) -> Tensor:
        """Epistemic part of the entropy: entropy of the mean minus mean entropy, in nats."""
        self._check_classification()
        assert self.expected_entropy is not None
        return (self.entropy - self.expected_entropy).clamp(min=0)

    def _check_classification(self) -> None:
        if self.expected_entropy is None:
            raise ValueError(
                "Entropy is defined for class probabilities; use `Uncertain(..., "
                'task="classification")` with a model that returns logits.'
            )


def only_tensor(tree: object, name: str) -> Tensor:
    """The one floating-point tensor of a part of a prediction; an error if there are several."""
    tensors = TensorTree(tree).tensors
    if len(tensors) != 1:
        raise ValueError(
            f"`{name}` has {len(tensors)} floating-point tensors, and one is needed; choose the "
            "output with `Uncertain(..., output=...)`, or make a `Prediction` of each."
        )
    return tensors[0]


def entropy(probabilities: Tensor, dim: int = -1) -> Tensor:
    """-sum p log p along `dim`, with 0 log 0 = 0."""
    return torch.special.entr(probabilities.clamp(min=0)).sum(dim)


def binary_entropy(probabilities: Tensor) -> Tensor:
    """-p log p - (1 - p) log (1 - p) of every element."""
    return torch.special.entr(probabilities) + torch.special.entr(1 - probabilities)


def class_dim(logits: Tensor) -> int:
    """The axis of the classes: (batch, classes, ...), (batch, tokens, classes) or (classes,)."""
    return {1: 0, 3: 2}.get(logits.dim(), 1)


def _root(leaf: Any) -> Any:
    return leaf.sqrt() if isinstance(leaf, Tensor) else math.sqrt(leaf or 0.0)


# Fields in the structure of the model's output, and those with a row for each input in front.
_NESTED = ("mean", "data_var", "model_var", "novelty")
_BY_ROW = ("expected_entropy", "joint_novelty", "temperature")
_DETAILS_BY_ROW = ("covariance", "linear_share")


def rows_of(prediction: Prediction) -> int:
    """The number of inputs; an error where the outputs do not tell it."""
    axis, outputs = prediction.batch_dim, TensorTree(prediction.mean).tensors
    if axis is None:
        raise TypeError(
            "This prediction is for a single input (`batch_dim=None`), so it has no rows."
        )
    lengths = {out.shape[axis] if out.dim() > axis else None for out in outputs}
    if len(lengths) != 1 or None in lengths:
        shapes = ", ".join(str(tuple(out.shape)) for out in outputs)
        raise TypeError(
            f"Outputs of shape {shapes} do not all have a row for each input on axis {axis}; "
            "choose one of them with `Uncertain(..., output=...)`."
        )
    return next(iter(lengths)) or 0


def of_rows(prediction: Prediction, index: Any) -> Prediction:
    """The prediction for some of its inputs."""
    rows, axis = rows_of(prediction), prediction.batch_dim
    if isinstance(index, tuple) or index is None or index is Ellipsis:
        raise TypeError("A prediction is indexed by its inputs alone, such as `p[3]` or `p[:10]`.")
    chosen = torch.arange(rows)[index].reshape(-1)

    def taken(leaf: Any, axis: int | None = axis) -> Any:
        if not isinstance(leaf, Tensor) or axis is None or leaf.shape[axis : axis + 1] != (rows,):
            return leaf
        return leaf.index_select(axis, chosen.to(leaf.device))

    def by_row(name: str) -> Any:
        value = getattr(prediction, name)
        return None if value is None or len(value) != rows else taken(value, 0)

    budget, logits = prediction.sources, prediction.logits
    details = Details(
        **{name: by_row(name) for name in _DETAILS_BY_ROW},
        budget=None if budget is None else budget.of_rows(chosen, rows),
    )
    return replace(
        prediction,
        **{name: map_leaves(taken, getattr(prediction, name)) for name in _NESTED},
        **{name: by_row(name) for name in _BY_ROW},
        error=map_leaves(taken, prediction.std_error),
        details=details,
        logits=None if logits is None else of_rows(logits, index),
    )


def mapped(prediction: Prediction, change: Callable[[Tensor], Tensor]) -> Prediction:
    """The prediction with a function applied to all its tensors."""

    def leaf(value: Any) -> Any:
        return change(value) if isinstance(value, Tensor) else value

    budget, logits = prediction.sources, prediction.logits
    details = Details(
        **{name: map_leaves(leaf, getattr(prediction, name)) for name in _DETAILS_BY_ROW},
        budget=None if budget is None else budget.mapped(change),
    )
    return replace(
        prediction,
        **{name: map_leaves(leaf, getattr(prediction, name)) for name in (*_NESTED, *_BY_ROW)},
        error=map_leaves(leaf, prediction.std_error),
        details=details,
        logits=None if logits is None else mapped(logits, change),
    )


def concatenated(batches: Sequence[Prediction], *, maps: bool = False) -> Prediction:
    """One prediction from those of all batches; maps by input element only if asked for."""
    for batch in batches if len(batches) > 1 else ():
        rows_of(batch)
    axis = batches[0].batch_dim or 0

    def cat(first: Any, *others: Any) -> Any:
        has_rows = isinstance(first, Tensor) and first.dim() > axis
        return torch.cat((first, *others), axis) if has_rows else first

    def joined(name: str) -> Any:
        return map_leaves(cat, *(getattr(batch, name) for batch in batches))

    def nested(name: str) -> Any:
        return joined(name) if all(getattr(b, name) is not None for b in batches) else None

    # `replace` keeps the kind of prediction, and with it calibrated intervals.
    return replace(
        batches[0],
        **{name: nested(name) for name in _NESTED},
        **{name: _of_all(batches, name, torch.cat) for name in _BY_ROW},
        error=nested("std_error"),
        notes=tuple(dict.fromkeys(note for batch in batches for note in batch.notes)),
        logits=_of_all(batches, "logits", lambda parts: concatenated(parts, maps=maps)),
        details=Details(
            **{name: _of_all(batches, name, torch.cat) for name in _DETAILS_BY_ROW},
            budget=_of_all(batches, "sources", lambda parts: Budget.joined(parts, maps=maps)),
        ),
    )


def _of_all(batches: Sequence[Prediction], name: str, join: Callable[[Any], Any]) -> Any:
    """What every batch has, joined; `None` where one lacks it."""
    parts = [getattr(batch, name) for batch in batches]
    return None if any(part is None for part in parts) else join(parts)


def predict_all(
    wrapped: Callable[..., Prediction], loader: Iterable[Any], *, show_progress: bool
) -> Prediction:
    """The predictions of a wrapped model, or of several, for all batches."""
    batches = [loader] if isinstance(loader, Tensor | np.ndarray) else batched(loader)
    shown = progress(batches, show_progress, "predict")
    predictions = [concatenated([wrapped(*as_args(batch))]) for batch in shown]  # without maps
    if not predictions:
        raise ValueError("The loader is empty; there is nothing to predict.")
    return concatenated(predictions)


def as_args(batch: Any) -> tuple[Any, ...]:
    """The model's inputs of a batch: all of it, or the first of (inputs, targets)."""
    if isinstance(batch, (tuple, list)) and len(batch) == 2:
        batch = batch[0]
    return tuple(batch) if isinstance(batch, (tuple, list)) else (batch,)
