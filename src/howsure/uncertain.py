"""The one object that most users touch: a model with its noise and a method."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from howsure import calibrate as calibration
from howsure import noise as noises
from howsure.compiling import Compiled
from howsure.dropout import Placement, as_placement, describe
from howsure.files import write_atomically
from howsure.methods import METHODS, choose
from howsure.methods.setup import Setup
from howsure.prediction import Prediction, concatenated
from howsure.progress import progress
from howsure.tune import Fit, fit_method

_FORMAT = 2


class Uncertain(nn.Module):
    """A trained model that says how sure it is.

    Example:
        >>> sure = Uncertain(model, noise=0.01)  # a number is a variance
        >>> sure.fit(validation_loader)  # finds the dropout rate
        >>> p = sure(x)
        >>> p.mean, p.std, p.data_var, p.model_var

    The model stays as it is; the wrapper's `state_dict` has its weights under `model.` and the
    method's settings as extra state.
    """

    def __init__(
        self,
        model: nn.Module,
        noise: Any = None,
        method: str = "auto",
        *,
        rate: float | Sequence[float] | None = None,
        samples: int = 20,
        placement: str | Sequence[str] | Placement = "auto",
        prediction: str = "adf",
        seed: int = 0,
        **method_options: Any,
    ) -> None:
        """Wraps a model.

        Args:
            model: Any trained module, in eval mode.
            noise: The sensor's noise: a number or tensor is a **variance**; `howsure.noise.std(s)`
                takes a standard deviation; a dict or tuple serves several inputs; `None` is none.
            method: "auto", or one of `howsure.methods.METHODS`.
            rate: Dropout rate, or one per site; `fit` finds it.
            samples: Monte-Carlo samples of sampling methods.
            placement: Where dropout goes: "auto", "after", "before", "existing", or a list of
                layer name patterns.
            prediction: "adf" predicts E[f(x + noise)] as the paper does, "network" the plain
                network's output.
            seed: Same seed, same result.
            **method_options: Further settings of `howsure.methods.setup.Setup`, such as
                `task="classification"`, `tau`, `chunk`, `shared_masks`, `variance_dtype`.
        """
        super().__init__()
        if method != "auto" and method not in METHODS:
            known = ["auto", *sorted(METHODS)]
            raise ValueError(f"`method` must be one of {known}, not {method!r}.")
        self.model = model
        self.method = method
        self.setup = Setup(
            model,
            noise,
            placement=as_placement(placement),
            rate=tuple(rate) if isinstance(rate, Sequence) else rate,
            samples=samples,
            seed=seed,
            prediction=prediction,
            **method_options,
        )
        self.last_fit: Fit | None = None
        self.calibrators: tuple[calibration.Calibrator, ...] = ()
        self._compiled: Compiled | None = None

    def forward(self, *args: Any, **kwargs: Any) -> Prediction:
        """The prediction for inputs given as to the model itself."""
        x = kwargs if kwargs and not args else (args[0] if len(args) == 1 else args)
        if args and kwargs:
            raise TypeError("Give all inputs by position or all by keyword.")
        self.setup.check_eval_mode()
        name, note = (self.method, ()) if self.method != "auto" else choose(self.setup, x)
        compiled = self._compiled
        result = compiled(self.setup, name, x) if compiled else METHODS[name](self.setup, x)
        for calibrator in self.calibrators:
            result = calibrator(result)
        return result if not note else _noted(result, note)

    def compile(self) -> Uncertain:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Itself, with predictions that run compiled: the same numbers, sooner.

        The first call for inputs of a new shape takes a while. Where there is no C++ compiler, or
        a model cannot be traced, it runs as before, with a warning.
        """
        self._compiled = Compiled()
        return self

    def fit(self, loader: Iterable[Any], **options: Any) -> Fit:
        """Finds the method's free settings (rate, tau) on held-out data, by NLL.

        The data must be held out from training and carry the noise of deployment; see
        `howsure.tune.fit_method` for the options. Calibrators are dropped, since they were fitted
        to other settings.
        """
        self.setup.check_eval_mode()
        self.setup, fit = fit_method(self.setup, self.method, loader, **options)
        self.last_fit = fit
        self.calibrators = ()
        return fit

    def calibrate(
        self,
        loader: Iterable[Any],
        calibrator: str | type[calibration.Calibrator] = "scale",
        **options: Any,
    ) -> calibration.Calibrator:
        """Fits a calibrator on held-out data and applies it to all predictions from now on.

        Calibrators add up: each is fitted to what those before it give. Set `calibrators = ()` to
        drop them.

        Args:
            loader: Batches of (inputs, targets), used neither in training nor in `fit`.
            calibrator: One of `howsure.calibrate.CALIBRATORS`, or a class of them.
            **options: As in the calibrator's `fit`.
        """
        fitted = calibration.named(calibrator).fit_loader(self, loader, **options)
        self.calibrators = (*self.calibrators, fitted)
        return fitted

    @torch.no_grad()
    def predict(self, loader: Iterable[Any], *, show_progress: bool = True) -> Prediction:
        """Predictions for all batches of a loader, concatenated; a tensor is one batch.

        A batch that is a pair (inputs, targets) is taken as such; the targets are left aside.
        """
        return predict_all(self, loader, show_progress=show_progress)

    def describe(self, x: Any) -> str:
        """Where dropout goes for inputs like `x`, and at which rate."""
        sites = self.setup.sites(x)
        rates = None if self.setup.rate is None else self.setup.rates(sites)
        return describe(sites, rates)

    def get_extra_state(self) -> dict[str, Any]:
        """The settings as plain data, for `state_dict`."""
        setup = self.setup
        return {
            "format": _FORMAT,
            "method": self.method,
            "noise": noises.to_config(setup.noise),
            "rate": list(setup.rate) if isinstance(setup.rate, tuple) else setup.rate,
            "samples": setup.samples,
            "seed": setup.seed,
            "prediction": setup.prediction,
            "task": setup.task,
            "tau": setup.tau if isinstance(setup.tau, Tensor) else float(setup.tau),
            "placement": [
                setup.placement.kind,
                list(setup.placement.only),
                setup.placement.units,
                setup.placement.over_time,
            ],
            "shared_masks": setup.shared_masks,
            "unbiased": setup.unbiased,
            "probes": setup.probes,
            "outputs": None if setup.outputs is None else list(setup.outputs),
            "variance_dtype": None if setup.variance_dtype is None else "bfloat16",
            "calibrators": [calibrator.state() for calibrator in self.calibrators],
        }

    def set_extra_state(self, state: dict[str, Any]) -> None:
        """Takes over the settings that `get_extra_state` gave."""
        if state.get("format") != _FORMAT:
            raise ValueError(
                f"These settings have format {state.get('format')!r}; this version of howsure "
                f"reads format {_FORMAT}."
            )
        kind, only, units, over_time = state["placement"]
        self.calibrators = tuple(calibration.from_state(each) for each in state["calibrators"])
        rate, outputs = state["rate"], state["outputs"]
        self.method = state["method"]
        self.setup = self.setup.with_(
            noise=noises.from_config(state["noise"]),
            rate=tuple(rate) if isinstance(rate, list) else rate,
            placement=Placement(kind, tuple(only), units, over_time),
            outputs=None if outputs is None else tuple(outputs),
            variance_dtype=torch.bfloat16 if state.get("variance_dtype") else None,
            **{name: state[name] for name in _PLAIN},
            _sites={},
        )

    def save(self, path: str | Path) -> None:
        """Writes the settings, without the model's weights, to a file that is safe to load."""
        write_atomically(Path(path), lambda file: torch.save(self.get_extra_state(), file))

    @classmethod
    def load(cls, path: str | Path, model: nn.Module) -> Uncertain:
        """The wrapper that `save` wrote, around a model with the same layers."""
        try:
            state = torch.load(Path(path), weights_only=True)
        except FileNotFoundError:
            raise
        except Exception as error:
            raise ValueError(
                f"`{path}` is not a file that `Uncertain.save` wrote: {error}"
            ) from None
        if not isinstance(state, dict) or "format" not in state:
            raise ValueError(f"`{path}` is not a file that `Uncertain.save` wrote.")
        loaded = cls(model)
        loaded.set_extra_state(state)
        return loaded


_PLAIN = ("samples", "seed", "prediction", "task", "tau", "shared_masks", "unbiased", "probes")


def predict_all(
    wrapped: Callable[..., Prediction], loader: Iterable[Any], *, show_progress: bool
) -> Prediction:
    """The predictions of a wrapped model, or of several, for all batches."""
    batches = [loader] if isinstance(loader, Tensor) else loader
    shown = progress(batches, show_progress, "predict")
    found = [wrapped(*as_args(batch)) for batch in shown]
    if not found:
        raise ValueError("The loader is empty; there is nothing to predict.")
    return concatenated(found)


def as_args(batch: Any) -> tuple[Any, ...]:
    """The model's inputs of a batch: all of it, or the first of (inputs, targets)."""
    if isinstance(batch, (tuple, list)) and len(batch) == 2:
        batch = batch[0]
    return tuple(batch) if isinstance(batch, (tuple, list)) else (batch,)


def _noted(prediction: Prediction, note: tuple[str, ...]) -> Prediction:
    return replace(prediction, notes=(*note, *prediction.notes))
