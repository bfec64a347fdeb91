"""What every calibrator can do: be fitted, be applied, be saved."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields
from typing import Any, ClassVar, TypeVar, cast

import torch
from torch import Tensor

from howsure.arrays import brief
from howsure.fit.validation_data import pairs_of
from howsure.prediction import Prediction, concatenated
from howsure.trees import as_call

Self = TypeVar("Self", bound="Calibrator")
Labels = Tensor | Sequence[int] | Sequence[str]


class Calibrator(ABC):
    """Corrects predictions by what held-out data show; a fitted one is a frozen value.

    The held-out data must be new: used neither in training nor in `Uncertain.fit`.
    """

    kind: ClassVar[str]

    @classmethod
    @abstractmethod
    def fit(cls: type[Self], prediction: Prediction, target: Tensor) -> Self:
        """The calibrator for held-out predictions and their targets.

        Plain tensors go in as `Prediction(mean, data_var, model_var)`.
        """

    @classmethod
    @torch.no_grad()
    def fit_loader(
        cls: type[Self],
        sure: Callable[..., Prediction],
        loader: Iterable[object],
        *,
        groups: Labels | Callable[[Any], Labels] | None = None,
        **options: object,
    ) -> Self:
        """The calibrator for an `Uncertain` and batches of (inputs, targets).

        Args:
            sure: An `Uncertain`, or any function that returns a `Prediction`.
            loader: Held-out batches of (inputs, targets).
            groups: For the conformal ones: a function of a batch's inputs that gives the label of
                each, or the labels of all inputs.
            **options: As in `fit`.
        """
        predictions: list[Prediction] = []
        targets: list[Tensor] = []
        labels: list[Any] = []
        for inputs, target in pairs_of(loader):
            args, kwargs = as_call(inputs)
            prediction = sure(*args, **kwargs)
            check_uncalibrated(prediction)
            predictions.append(prediction)
            targets.append(target)
            if callable(groups):
                batch_labels = groups(inputs)
                is_tensor = isinstance(batch_labels, Tensor)
                labels.extend(batch_labels.tolist() if is_tensor else batch_labels)
        if len(predictions) > 1 and predictions[0].batch_dim:
            raise ValueError(
                "Calibration joins batches on the first axis, and these have their rows on axis "
                f"{predictions[0].batch_dim}; give all held-out data as one batch."
            )
        if groups is not None:
            options["groups"] = labels if callable(groups) else groups
        joined = concatenated([_variances_alone(prediction) for prediction in predictions])
        return cls.fit(joined, torch.cat(targets), **options)

    @abstractmethod
    def __call__(self, prediction: Prediction) -> Prediction:
        """The calibrated prediction."""

    def interval(self, prediction: Prediction, level: float = 0.95) -> tuple[Any, Any]:
        """Lower and upper end of the calibrated central interval."""
        return self(prediction).interval(level)

    def _values(self) -> dict[str, Any]:
        return {field.name: getattr(self, field.name) for field in fields(cast(Any, self))}

    def state(self) -> dict[str, object]:
        """The fitted values as plain data, for `torch.save`; `from_state` takes it back."""
        return {"calibrator": self.kind, **self._values()}

    @classmethod
    def from_state(cls: type[Self], state: dict[str, object]) -> Self:
        """The calibrator whose `state` it was."""
        kind = state.get("calibrator") if isinstance(state, dict) else None
        if kind != cls.kind:
            raise ValueError(f"This is the state of {kind!r}, not of {cls.kind!r}.")
        values = {name: value for name, value in state.items() if name != "calibrator"}
        try:
            return cls(**values)
        except TypeError as error:
            raise ValueError(
                f"The state of {kind!r} has the fields {list(values)}, which do not fit ({error}); "
                "it must be what `state()` returned."
            ) from None

    def __repr__(self) -> str:
        """Its class and what was fitted, in one line."""
        values = [f"{name}={brief(value)}" for name, value in self._values().items()]
        return f"{type(self).__name__}({', '.join(values)})"


@dataclass(frozen=True, eq=False, repr=False)
class CalibratedPrediction(Prediction):
    """A prediction with the intervals, or prediction sets, of a calibrator.

    Mean, variances and `distribution()` stay those of the method.

    Attributes:
        calibrator: What gives the intervals.
    """

    calibrator: Calibrator | None = None

    @classmethod
    def of(
        cls, prediction: Prediction, calibrator: Calibrator, notes: tuple[str, ...] = ()
    ) -> CalibratedPrediction:
        """The prediction with intervals from a calibrator."""
        check_uncalibrated(prediction)
        values = {field.name: getattr(prediction, field.name) for field in fields(prediction)}
        values["notes"] = (*prediction.notes, *notes)
        return cls(**values, calibrator=calibrator)

    def interval(self, level: float = 0.95, **options: object) -> tuple[Any, Any]:
        """Lower and upper end of the calibrator's interval; options are the calibrator's."""
        assert self.calibrator is not None
        return self.calibrator.interval(self, level, **options)

    def sets(self, level: float = 0.9, **options: object) -> Tensor:
        """The calibrator's prediction sets, `(batch, classes, ...)`, bool."""
        sets = getattr(self.calibrator, "sets", None)
        if sets is None:
            raise TypeError("Only `ConformalClasses` gives prediction sets; use `.interval`.")
        return sets(self, level, **options)


def check_uncalibrated(prediction: Prediction) -> None:
    """An error where a second calibrator would spoil what the first one promises."""
    if isinstance(prediction, CalibratedPrediction):
        raise ValueError(
            f"The intervals of this prediction are already those of "
            f"`{type(prediction.calibrator).__name__}`, which must come last; scale variances "
            "before it."
        )


def _variances_alone(prediction: Prediction) -> Prediction:
    """The prediction without its covariance and budget, which would be computed to be joined."""
    logits = None if prediction.logits is None else _variances_alone(prediction.logits)
    return Prediction(prediction.mean, prediction.data_var, prediction.model_var, logits=logits)
