"""What every calibrator can do: be fitted, be applied, be saved."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import fields
from typing import Any, ClassVar, TypeVar, cast

from torch import Tensor

from howsure.arrays import brief
from howsure.calibrate.loader import Labels, collected
from howsure.prediction import Prediction

Self = TypeVar("Self", bound="Calibrator")


class Calibrator(ABC):
    """Corrects predictions by what held-out data show; a fitted one is a frozen value.

    The held-out data must be new: used neither in training nor in `Uncertain.fit`.
    """

    kind: ClassVar[str]

    def __repr__(self) -> str:
        """Its class and what was fitted, in one line."""
        own = [f"{f.name}={brief(getattr(self, f.name))}" for f in fields(cast(Any, self))]
        return f"{type(self).__name__}({', '.join(own)})"

    @classmethod
    @abstractmethod
    def fit(cls: type[Self], prediction: Prediction, target: Tensor) -> Self:
        """The calibrator for held-out predictions and their targets.

        Plain tensors go in as `Prediction(mean, data_var, model_var)`.
        """

    @classmethod
    def fit_loader(
        cls: type[Self],
        sure: Callable[..., Prediction],
        loader: Iterable[object],
        *,
        groups: Labels | Callable[[object], Labels] | None = None,
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
        prediction, target, labels = collected(sure, loader, groups)
        if labels is not None:
            options["groups"] = labels
        return cls.fit(prediction, target, **options)

    @abstractmethod
    def __call__(self, prediction: Prediction) -> Prediction:
        """The calibrated prediction."""

    def interval(self, prediction: Prediction, level: float = 0.95) -> tuple[Any, Any]:
        """Lower and upper end of the calibrated central interval."""
        return self(prediction).interval(level)

    def state(self) -> dict[str, object]:
        """The fitted values as plain data, for `torch.save`; `from_state` takes it back."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}  # type: ignore[arg-type]
        return {"calibrator": self.kind, **values}

    @classmethod
    def from_state(cls: type[Self], state: dict[str, object]) -> Self:
        """The calibrator whose `state` it was."""
        kind = state.get("calibrator") if isinstance(state, dict) else None
        if kind != cls.kind:
            raise ValueError(f"This is the state of {kind!r}, not of {cls.kind!r}.")
        try:
            return cls(**{name: value for name, value in state.items() if name != "calibrator"})
        except TypeError as error:
            raise ValueError(
                f"The state of {kind!r} has the fields {[n for n in state if n != 'calibrator']}, "
                f"which do not fit ({error}); it must be what `state()` returned."
            ) from None
