"""What users touch: a model with its noise and a method, and several of them as one."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from howsure import calibrate as calibration
from howsure.arrays import as_tensors, check_tensor, explain_failure
from howsure.deploy.compile import Compiled
from howsure.errors import NoRuleError
from howsure.files import write_atomically
from howsure.fit.held_out import held_out_batches, pairs_of, repeatable
from howsure.fit.method import FitResult, fit_method
from howsure.fit.options import FitOptions, ModelPart
from howsure.fit.stress import Stress
from howsure.gaussian_output import Gaussian, recognize
from howsure.isolation import fingerprint_kept, identify, random_state_kept
from howsure.methods.choice import Choice, choose
from howsure.methods.ensemble import mixture
from howsure.methods.method import Method, MethodName, method_of
from howsure.methods.saved_settings import (
    loaded_settings,
    read_state,
    saved_method,
    saved_settings,
)
from howsure.methods.variance_head import HeteroscedasticModel
from howsure.moments.rule import Rule, Target
from howsure.multipliers.sites import Placement, as_placement, describe
from howsure.noise import NoiseLike, described, note_units
from howsure.prediction import Prediction, predict_all
from howsure.settings import PredictionKind, Task
from howsure.setup import Setup
from howsure.trees import clone_tensors, is_tracing, map_leaves, number_range

_FORMAT = 6
# What a model may raise on an input that it is not made for.
_ERRORS_OF_MODELS = (RuntimeError, TypeError, AttributeError, LookupError)


class Uncertain(nn.Module):
    """A trained model that says how sure it is.

    Examples:
        >>> model = nn.Sequential(nn.Linear(3, 16), nn.Tanh(), nn.Linear(16, 1)).eval()
        >>> sure = hs.Uncertain(model, noise=hs.noise.std(0.1))
        >>> p = sure(torch.randn(4, 3))
        >>> p.mean.shape, p.std.shape
        (torch.Size([4, 1]), torch.Size([4, 1]))
        >>> bool((p.data_var > 0).all()), bool((p.model_var > 0).any())  # before `fit`
        (True, False)

    The model stays as it is; the wrapper's `state_dict` has its weights under `model.` and the
    method's settings as extra state.

    Args:
        model: Any trained module, in eval mode.
        noise: The sensor's noise: a number or tensor is a **variance**; `howsure.noise.std(s)`
            takes a standard deviation; a dict or tuple serves several inputs; `None` is none.
        method: "auto", one of `howsure.methods.METHODS`, or a `Method` of your own.
        rate: Dropout rate, or one per site; `fit` finds it.
        samples: Noisy points, or Monte-Carlo samples; `None` for the method's own number.
        tolerance: Largest relative standard error of any std, in place of a number of samples:
            0.05 goes on until every row's std is known to 5 %.
        output: Which part of the model's output to use: a key, index, attribute or function.
        batch_dim: The batch axis; `None` if a call is a single input.
        placement: Where dropout goes: "auto", "after", "before", "existing", or a list of
            layer name patterns.
        prediction: "network" predicts what the network itself says, the default of
            "gradients"; "mean" E[f(x + noise)], the default of the paper's methods.
        seed: Same seed, same result.
        task: "classification" for a model that returns logits.
        residual_var: A constant variance added to `data_var` (Gal & Ghahramani's 1/tau).
        chunk: How many points or samples run at once; bounds the memory.
        shared_masks: The same points, noise and masks for all inputs of a call, so that an input's
            result does not depend on its batch; or independent ones for each.
        unbiased: Divide the variance of the means by T - 1; the paper divides by T.
        variance_dtype: `torch.bfloat16` takes the paper's variances through linear layers in half
            the bits; `None` keeps the model's precision.
        fallback: What the paper's methods do without a rule, as in `propagate`.
        rules: Rules of your own for the paper's methods, as in `propagate`.
        uniforms: Numbers for every site, (samples, [batch,] *units), in place of drawn ones: a unit
            is kept where its number is at least the rate.
    """

    def __init__(
        self,
        model: nn.Module,
        noise: NoiseLike = None,
        method: MethodName | Method = "auto",
        *,
        rate: float | Sequence[float] | None = None,
        samples: int | None = None,
        tolerance: float | None = None,
        output: Any = None,
        batch_dim: int | None = 0,
        placement: str | Sequence[str] | Placement = "auto",
        prediction: PredictionKind | None = None,
        seed: int = 0,
        task: Task = "regression",
        residual_var: float | Tensor = 0.0,
        chunk: int | None = None,
        shared_masks: bool = True,
        unbiased: bool = False,
        variance_dtype: torch.dtype | None = None,
        fallback: str = "error",
        rules: Mapping[Target, Rule] | None = None,
        uniforms: tuple[Tensor, ...] | None = None,
    ) -> None:
        """Wraps a model."""
        super().__init__()
        if isinstance(model, type):
            raise TypeError(f"The model is a class; give an instance, `{model.__name__}(...)`.")
        if isinstance(model, nn.Module) and any(map(is_lazy, model.parameters())):
            raise ValueError(
                "The model has lazy layers whose weights do not exist yet; call it once on an "
                "input, load its weights, and wrap it then."
            )
        self.model = model
        self.method = method
        self.setup = Setup(
            model,
            noise,
            placement=as_placement(placement),
            rate=tuple(rate) if isinstance(rate, Sequence) else rate,
            samples=samples,
            tolerance=tolerance,
            output=output,
            batch_dim=batch_dim,
            seed=seed,
            prediction=prediction,
            task=task,
            residual_var=residual_var,
            chunk=chunk,
            shared_masks=shared_masks,
            unbiased=unbiased,
            variance_dtype=variance_dtype,
            fallback=fallback,
            rules=rules,
            uniforms=uniforms,
        )
        # Whether a model without noise and fit is no mistake: it is a member of an ensemble.
        self.may_be_certain = False
        self.last_fit: FitResult | None = None
        self.calibrators: tuple[calibration.Calibrator, ...] = ()
        self._compiled: Compiled | None = None
        # The fingerprint of a model that was found to be in eval mode.
        self._checked: tuple[int, int] | None = None
        # The model whose output was looked at for a variance of its own.
        self._looked_at: tuple[object] | None = None
        # What "auto" chose last, for which setup and kind of input.
        self._last_choice: tuple[Setup, Hashable, Choice] | None = None

    def forward(self, *args: Any, **kwargs: Any) -> Prediction:
        """The prediction for inputs given as to the model itself."""
        if torch.compiler.is_dynamo_compiling():  # `torch.compile(sure)`; what can be has `compile`
            uncompiled: Any = torch.compiler.disable(self._forward)
            return uncompiled(*args, **kwargs)
        return self._forward(*args, **kwargs)

    def _forward(self, *args: Any, **kwargs: Any) -> Prediction:
        x = kwargs if kwargs and not args else (args[0] if len(args) == 1 else args)
        if args and kwargs:
            raise TypeError("Give all inputs by position or all by keyword.")
        if isinstance(x, Tensor):
            check_tensor(x)
        else:
            x = as_tensors(x, self.model)
        try:
            with fingerprint_kept(self.model) as state:
                if state != self._checked or self.model is not self.setup.model:
                    self._check_model()
                    self._checked = state
                result = self._uncalibrated(x)
        except _ERRORS_OF_MODELS as error:
            self._explain(error, x)
            raise
        for calibrator in self.calibrators:
            result = calibrator(result)
        return result

    if TYPE_CHECKING:

        def __call__(self, *args: Any, **kwargs: Any) -> Prediction:
            """As `forward`; `nn.Module` itself leaves the type open."""
            ...

    def _uncalibrated(self, x: Any) -> Prediction:
        """What the method says, with its name and all notes."""
        self._recognize_variance(x)
        method, setup, note = self.choice(x)
        result = self._compiled(setup, method, x) if self._compiled else method(setup, x)
        name = result.method or method.name
        notes = (*note, *result.notes, *self.setup.note_other_weights())
        if not isinstance(setup.noise, float):
            notes += note_units(setup.noise, x)
        if (name, notes, setup.batch_dim) == (result.method, result.notes, result.batch_dim):
            return result
        return replace(result, method=name, notes=notes, batch_dim=setup.batch_dim)

    def _explain(self, error: Exception, x: Any) -> None:
        """An error in words of ours where the model cannot run on an input of this kind."""
        if is_tracing() or isinstance(error, NoRuleError):
            return
        try:
            with torch.no_grad(), random_state_kept():
                self.setup.run(clone_tensors(x))
        except Exception:  # The model's own, whatever it says.
            reason = explain_failure(self.model, x, self.setup.batch_dim)
            if reason is not None:
                raise TypeError(reason) from error

    def _check_model(self) -> None:
        """An error if it is in train mode; another model in its place is taken over."""
        if self.model is not self.setup.model:
            self.setup = self.setup.replace(model=self.model, _cache={})
        self.setup.check_eval_mode()

    def _recognize_variance(self, x: Any) -> None:
        """Takes a `Normal`, or a dict of a mean and a variance, as such; it is looked at once."""
        setup = self.setup
        is_known = self._looked_at is not None and self._looked_at[0] is setup.model
        if is_known or isinstance(setup.output, Gaussian) or is_tracing():
            return
        is_list = isinstance(setup.model, (nn.ModuleList, Sequence))
        if setup.task == "regression" and not is_list:
            if isinstance(setup.model, HeteroscedasticModel) and setup.output is None:
                gaussian = Gaussian(log_var=1)
            else:
                with torch.no_grad(), random_state_kept():
                    gaussian = recognize(setup.run(clone_tensors(x)), setup.output)
            if gaussian is not None:
                self.setup = setup.replace(output=gaussian, _cache={})
        self._looked_at = (setup.model,)  # A tuple, since a module would be one of the wrapper's.

    @property
    def method(self) -> str:
        """The method's name, or "auto"; a name or a `Method` may be set."""
        return "auto" if self._method is None else self._method.name

    @method.setter
    def method(self, method: str | Method) -> None:
        self._method = method_of(method)

    def __repr__(self) -> str:
        """The model's class, its noise, the method and the rate, in one line."""
        words = [type(self.model).__name__, self.method]
        if self.setup.noise is not None:
            words.insert(1, f"noise {described(self.setup.noise)}")
        if self.setup.rate is not None:
            rates = torch.tensor(self.setup.rate)
            words.append(f"rate {number_range([rates])}")
        return f"Uncertain({', '.join(words)})"

    def choice(self, x: Any) -> Choice:
        """The method for an input, the setup for it, and what "auto" has to say about it."""
        if self._method is not None:
            return self._method, self.setup, ()
        setup, kind, last = self._last_choice or (None, None, None)
        now = self.setup.cache_key(x)
        if last is not None and setup is self.setup and kind == now:
            return last
        choice = choose(self.setup, x, may_be_certain=self.may_be_certain)
        self._last_choice = self.setup, now, choice
        return choice

    def compile(self) -> Uncertain:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Itself, with predictions that run compiled: the same numbers, sooner.

        The first call for inputs of a new shape takes a while. Where there is no C++ compiler, or
        a model cannot be traced, it runs as before, with a warning.
        """
        self._compiled = Compiled()
        return self

    def fit(
        self,
        data: Iterable[Any],
        targets: Any = None,
        *,
        model: ModelPart | None = "auto",
        inputs: Literal["noisy", "clean"] = "noisy",
        training_data: object = None,
        train_inputs: object = None,
        stress: Stress | None = "auto",
        growth: bool = True,
        train: object = None,
        residual_var: float | None = None,
        noise_factor: float | None = 1.0,
        cap: bool = True,
        rates: Sequence[float] | None = None,
        samples: int | None = None,
        fit_residual_var: bool | None = None,
        objective: Literal["auto", "gaussian", "one_hot", "categorical"] = "auto",
        floor: float | None = None,
        show_progress: bool = True,
    ) -> FitResult:
        """Fits the model variance on held-out data, by the negative log likelihood.

        Examples:
            >>> model = nn.Sequential(nn.Linear(3, 16), nn.Tanh(), nn.Linear(16, 1)).eval()
            >>> x = torch.randn(200, 3)
            >>> y = model(x).detach() + 0.1 * torch.randn(200, 1)
            >>> sure = hs.Uncertain(model)
            >>> found = sure.fit(x, y, show_progress=False)  # or a loader, or tables
            >>> bool((sure(x).model_var > 0).all())
            True

        Calibrators are dropped, since they were fitted to other settings.

        Args:
            data: Held out from training, with the noise of deployment: a loader or data set of
                (inputs, targets), a pair of arrays, or the inputs alone, with `targets`.
            targets: The targets; or where they are in every batch: a key or a function.
            model: What stands for the model's own uncertainty, as in `howsure.fit.fit_method`.
            inputs: "noisy", or "clean" to add the noise of deployment to them.
            training_data: The training data, to warn if it is the held-out data.
            train_inputs: Posterior, temperature: unlabeled inputs like those of training.
            stress: Posterior, temperature: corruptions that show how fast the uncertainty grows.
            growth: Posterior, temperature: whether it grows with the distance from known inputs.
            train: Posterior: labeled training data of tables.
            residual_var: Posterior: a residual variance that is known.
            noise_factor: Posterior: a factor on the sensor's variance; `None` fits one.
            cap: Posterior: whether the variance is bounded by that of the targets.
            rates: Dropout: the rates to try.
            samples: Dropout: Monte-Carlo samples at every rate.
            fit_residual_var: Dropout: whether to fit a residual variance as well.
            objective: Dropout: the likelihood.
            floor: Dropout: the smallest variance in the likelihood.
            show_progress: Show a bar.

        `howsure.fit.FitOptions` says more about each.
        """
        options = FitOptions(
            inputs=inputs,
            training_data=training_data,
            train_inputs=train_inputs,
            stress=stress,
            growth=growth,
            train=train,
            residual_var=residual_var,
            noise_factor=noise_factor,
            cap=cap,
            rates=rates,
            samples=samples,
            fit_residual_var=fit_residual_var,
            objective=objective,
            floor=floor,
            show_progress=show_progress,
        )
        self._check_model()
        loader = held_out_batches(data, targets, self.model)
        loader = list(loader) if isinstance(loader, Iterator) else loader
        try:
            first = next(pairs_of(loader, model=self.model))
        except (TypeError, ValueError):  # `fit_method` says what is wrong, options first.
            first = None
        if first is not None:
            try:
                self._recognize_variance(first[0])
            except _ERRORS_OF_MODELS as error:
                self._explain(error, first[0])
                raise
        method = self._method or self.method
        try:
            fitted, fit = fit_method(self.setup, method, loader, options, model=model)
        except _ERRORS_OF_MODELS as error:
            if first is not None:
                self._explain(error, first[0])
            raise
        self.setup = fitted.replace(fitted_to=identify(self.model))
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

        Calibrators stack: each is fitted to the output of those before it. Set `calibrators = ()`
        to drop them.

        Args:
            loader: Batches of (inputs, targets), used neither in training nor in `fit`.
            calibrator: One of `howsure.calibrate.CALIBRATORS`, or a class of them.
            **options: As in the calibrator's `fit`.
        """
        fitted = calibration.calibrator_class(calibrator).fit_loader(self, loader, **options)
        self.calibrators = (*self.calibrators, fitted)
        return fitted

    @torch.no_grad()
    def predict(self, loader: Iterable[Any], *, show_progress: bool = True) -> Prediction:
        """Predictions for all batches of a loader, concatenated; a tensor is one batch.

        A batch that is a pair (inputs, targets) is taken as such; the targets are left aside.
        """
        return predict_all(self, loader, show_progress=show_progress)

    def describe(self, x: Any = None) -> str:
        """What `fit` found, in words; or for inputs like `x` where dropout goes, at which rate."""
        if x is None:
            return repr(self) if self.last_fit is None else f"{self!r}\n{self.last_fit}"
        self._check_model()
        sites = self.setup.sites(x)
        rates = None if self.setup.rate is None else self.setup.rates(sites)
        return describe(sites, rates)

    def get_extra_state(self) -> dict[str, Any]:
        """The settings as plain data, for `state_dict`."""
        return {
            "format": _FORMAT,
            "method": saved_method(self._method),
            **saved_settings(self.setup),
            "calibrators": [calibrator.state() for calibrator in self.calibrators],
        }

    def set_extra_state(self, state: dict[str, Any]) -> None:
        """Takes over the settings that `get_extra_state` gave."""
        if state.get("format") != _FORMAT:
            raise ValueError(
                f"These settings have format {state.get('format')!r}, that of another version of "
                f"howsure (this one reads {_FORMAT}); run `fit` again, and save."
            )
        if missing := [name for name in ("method", "calibrators") if name not in state]:
            raise ValueError(
                f"Incompatible settings: missing keys {missing}. Run `fit` again, and save."
            )
        self.calibrators = tuple(
            calibration.from_state(calibrator) for calibrator in state["calibrators"]
        )
        self.method = state["method"]
        others = ("format", "method", "calibrators")
        # Files of 0.2 do not say which network was fitted.
        state = {"fitted_to": None, **state}
        if state.get("variance_model") is not None:
            device = next((p.device for p in self.model.parameters()), torch.device("cpu"))
            state["variance_model"] = map_leaves(
                lambda leaf: leaf.to(device) if isinstance(leaf, Tensor) else leaf,
                state["variance_model"],
            )
        settings = loaded_settings({k: v for k, v in state.items() if k not in others})
        self.setup = self.setup.replace(**settings, _cache={})
        self.last_fit = None

    def save(self, path: str | Path) -> None:
        """Writes the settings, without the model's weights, to a file that is safe to load."""
        state = self.get_extra_state()
        write_atomically(Path(path), lambda file: torch.save(state, file))

    @classmethod
    def load(cls, path: str | Path, model: nn.Module) -> Uncertain:
        """The wrapper that `save` wrote, around a model with the same layers."""
        loaded = cls(model)
        loaded.set_extra_state(read_state(Path(path)))
        loaded.setup.note_other_weights()  # An error for other layers.
        return loaded


class Ensemble(nn.Module):
    """An equally weighted mixture of wrapped models (Lakshminarayanan et al. 2017).

    Examples:
        >>> first, second = nn.Linear(3, 1).eval(), nn.Linear(3, 1).eval()
        >>> p = hs.Ensemble([first, second])(torch.ones(4, 3))
        >>> bool((p.model_var > 0).all())  # their disagreement
        True

    `state_dict` has every member's weights and settings under `members.0.`, `members.1.`, ...
    """

    def __init__(self, members: Sequence[Uncertain | nn.Module], **options: Any) -> None:
        """Collects the members.

        Args:
            members: Wrapped models; a plain model is wrapped as `Uncertain(model, **options)`.
            **options: As for `Uncertain`, for the plain models.
        """
        super().__init__()
        if not members:
            raise ValueError("An ensemble needs at least one member.")
        wrapped = [_wrapped(member, options, index) for index, member in enumerate(members)]
        self.members = nn.ModuleList(wrapped)
        for member in wrapped if len(wrapped) > 1 else ():
            member.may_be_certain = True  # Their disagreement is uncertainty enough.

    def forward(self, *args: Any, **kwargs: Any) -> Prediction:
        """The mixture's prediction for inputs given as to the models themselves."""
        members = [member for member in self.members if isinstance(member, Uncertain)]
        return mixture([member(*args, **kwargs) for member in members])

    if TYPE_CHECKING:

        def __call__(self, *args: Any, **kwargs: Any) -> Prediction:
            """As `forward`; `nn.Module` itself leaves the type open."""
            ...

    def __repr__(self) -> str:
        """How many members, and the first of them, in one line."""
        return f"Ensemble({len(self.members)} members, {self.members[0]!r} first)"

    def fit(self, data: Iterable[Any], targets: Any = None, **options: Any) -> list[FitResult]:
        """Fits every member by itself on the same held-out data; all as in `Uncertain.fit`."""
        # What is an iterator may be gone after one round.
        batches = list(data) if isinstance(data, Iterator) else data
        options = repeatable(options)
        members = [member for member in self.members if isinstance(member, Uncertain)]
        return [member.fit(batches, targets, **options) for member in members]

    @torch.no_grad()
    def predict(self, loader: Iterable[Any], *, show_progress: bool = True) -> Prediction:
        """As `Uncertain.predict`."""
        return predict_all(self, loader, show_progress=show_progress)


def _wrapped(member: Any, options: dict[str, Any], index: int) -> Uncertain:
    if isinstance(member, Uncertain):
        return member
    if not isinstance(member, nn.Module):
        raise TypeError(
            f"Member {index} of the ensemble is a {type(member).__name__}; give models or "
            "`Uncertain` wrappers."
        )
    seed = options.get("seed", 0) + index  # so that the members' masks are independent
    return Uncertain(member, **{**options, "seed": seed})
