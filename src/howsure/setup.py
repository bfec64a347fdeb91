"""Everything a method needs to know to make a prediction."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor, nn

from howsure.gaussian_output import Gaussian
from howsure.isolation import identify, isolated, model_fingerprint, modules_of, structure_hash
from howsure.moments.rule import Rule, Target
from howsure.multipliers.dry_run import find_sites
from howsure.multipliers.sites import NothingToDropError, Placement, Site, check_rates
from howsure.noise.base import Root
from howsure.noise.inputs import (
    NoiseLike,
    dimensions_of,
    is_correlated,
    is_number,
    number_of,
    roots_of,
    variance_of,
)
from howsure.private_torch import unwrap_compiled
from howsure.settings import SETTINGS, PredictionKind, Task, check_setting
from howsure.trees import (
    as_call,
    clone_tensors,
    floats_of,
    is_tracing,
    select_output,
    shape_key,
)

if TYPE_CHECKING:
    from howsure.posterior.temperature import TemperatureModel
    from howsure.posterior.variance_model import VarianceModel

Fact = TypeVar("Fact")
# The rate of masks whose gradients are to be checked: multipliers of 1 +- 1 %, since the posterior
# takes slopes, which a kink further away does not change.
PROBE_DROPOUT_RATE = 1e-4

# Weights that were converted to another type and back differ by less.
_SAME_WEIGHTS = 1e-6
OTHER_WEIGHTS = (
    "The weights have changed by {:.2g} of their size since `fit`, so the fit may no longer hold; "
    "call `.fit(loader)` again."
)

# Facts that are kept: a model that is trained between two calls is another one each time.
_MOST_CACHED = 256


@dataclass(frozen=True, eq=False)
class Setup:
    """A model with its noise and the settings of the methods.

    Attributes:
        model: The trained model, in eval mode.
        noise: The sensor's noise: a variance, a `howsure.noise` object, or a structure of them.
        placement: Where dropout goes.
        rate: Dropout rate: one number, one per site, or `None` for the model's own.
        samples: How many points or Monte-Carlo samples; `None` for the method's own number.
        tolerance: Largest relative standard error of any std; the methods "gradients",
            "noise_sampling" and "mc_dropout" continue until every row has reached it.
        seed: Seed of points, masks and noise draws.
        prediction: "network": the output of the plain network; "mean": E[f(x + noise)], over the
            masks as well; `None` for the default of the method, which is "network" for "auto" and
            "gradients".
        output: Selects the part of the model's output to analyze: a key, index, attribute or
            function.
        batch_dim: Batch dimension of inputs and outputs; `None` if a call is one input.
        task: "classification" applies a softmax to the model's output.
        residual_var: A constant variance added to `data_var` (Gal & Ghahramani's 1/tau).
        chunk: How many points or samples run at once; bounds the memory.
        shared_masks: The same points, noise and masks for all inputs of a call, so that an input's
            result does not depend on its batch; or own ones for each.
        unbiased: Divide the variance of the means by T - 1; the paper divides by T.
        variance_dtype: `torch.bfloat16` takes the variance through linear layers in half the bits,
            for hardware that is faster with them; `None` keeps the model's precision.
        fallback: As in `propagate`.
        rules: As in `propagate`.
        variance_model: The fitted variance model, with the posterior over multipliers; `None`
            before `fit`.
        temperature_model: The fitted temperature of classes, which grows with the distance from
            known inputs; `None` before `fit`.
        uniforms: Numbers for every site, (samples, [batch,] *units), in place of drawn ones: a unit
            is kept where its number is at least the rate.
        fitted_to: The fitted network, as `identify` describes it; `None` before `fit`.

    Examples:
        >>> sure = hs.Uncertain(nn.Linear(2, 1).eval(), noise=0.01, seed=3)
        >>> sure.setup.seed, sure.setup.is_fitted
        (3, False)
    """

    model: Callable[..., Any]
    noise: NoiseLike = None
    placement: Placement = field(default_factory=Placement)
    rate: float | tuple[float, ...] | None = None
    samples: int | None = None
    tolerance: float | None = None
    seed: int = 0
    prediction: PredictionKind | None = None
    output: Any = None
    batch_dim: int | None = 0
    task: Task = "regression"
    residual_var: float | Tensor = 0.0
    chunk: int | None = None
    shared_masks: bool = True
    unbiased: bool = False
    variance_dtype: torch.dtype | None = None
    fallback: str = "error"
    rules: Mapping[Target, Rule] | None = None
    variance_model: VarianceModel | None = None
    temperature_model: TemperatureModel | None = None
    uniforms: tuple[Tensor, ...] | None = None
    fitted_to: tuple[str, Tensor] | None = None
    _cache: dict[Hashable, Any] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        """One clear sentence for each wrong setting."""
        for name in SETTINGS:
            check_setting(name, getattr(self, name))
        if isinstance(self.output, Gaussian) and self.task != "regression":
            raise ValueError(
                f'`output=Gaussian(...)` is for regression, and the task is "{self.task}".'
            )

    def __getstate__(self) -> dict[str, object]:
        """What a copy in this or another process starts with: its facts are its own."""
        return {**vars(self), "_cache": {}}

    def residual_var_at(self, like: Tensor) -> float | Tensor:
        """The residual variance, on the device of a tensor that it is added to."""
        value = self.residual_var
        return value.to(like.device) if isinstance(value, Tensor) else value

    def replace(self, **changes: Any) -> Setup:
        """The same setup with some settings changed."""
        return replace(self, **changes)

    @property
    def is_fitted(self) -> bool:
        """Whether `fit` has found more than a dropout rate."""
        return self.variance_model is not None or self.temperature_model is not None

    def without_fit(self) -> Setup:
        """This setup without what `fit` has found."""
        return self.replace(variance_model=None, temperature_model=None)

    def note_other_weights(self) -> tuple[str, ...]:
        """A note where the weights are not those that `fit` has seen; an error for other layers."""
        if self.fitted_to is None or is_tracing():
            return ()
        state = model_fingerprint(self.model)
        last, notes = self._cache.get("other weights", (None, ()))
        if last == state:
            return notes
        (structure, weights), (structure_now, now) = self.fitted_to, identify(self.model)
        if structure != structure_now or weights.shape != now.shape:
            raise ValueError(
                "The fit belongs to a network with other layers or outputs; call `.fit(loader)` "
                "for this one."
            )
        gap = float((now - weights).norm() / weights.norm()) if weights.any() else 0.0
        notes = (OTHER_WEIGHTS.format(gap),) if not gap <= _SAME_WEIGHTS else ()
        self._cache["other weights"] = state, notes
        return notes

    def cached(self, find: Callable[[Setup, Any], Fact], x: Any) -> Fact:
        """What `find` says about the model at inputs of this kind; it is asked once.

        Inside a trace, where there are no values to look at, it is what it said last.
        """
        last = ("last", find)
        if is_tracing():
            return self._cache[last] if last in self._cache else find(self, x)
        key = (find, self.cache_key(x))
        fact = self._cache.get(key, last)
        if fact is last:  # the key is not there
            fact = find(self, x)
            self.keep(key, fact)
        if self._cache.get(last) is not fact:
            self.keep(last, fact)
        return fact

    def keep(self, key: Hashable, fact: object) -> None:
        """Remembers a fact, and forgets the oldest of those with a tuple for a key, if many."""
        if key not in self._cache and len(self._cache) >= _MOST_CACHED:
            del self._cache[next(key for key in self._cache if isinstance(key, tuple))]
        self._cache[key] = fact

    def cache_key(self, x: Any, without: int | None = None) -> tuple[Hashable, ...]:
        """What facts depend on: the model, its weights and switches, what is random, shapes.

        `without` names an axis whose length does not matter.
        """
        model = (id(self.model), model_fingerprint(self.model), repr(self.output))
        random = (id(self.noise), self.rate is None, self.placement)
        return (*model, *random, self.task, self.batch_dim, shape_key(x, without))

    def roots(self, x: Any, *, whole: bool = False) -> list[tuple[int, str, Root]]:
        """Number, name and square root of the noise of every noisy tensor; see `roots_of`."""
        number = number_of(self.noise) or 0.0
        for dtype in {tensor.dtype for tensor in floats_of(x)}:
            if number > torch.finfo(dtype).max:
                raise ValueError(
                    f"A noise variance of {number:.3g} is more than {dtype} can hold; give a "
                    "smaller one: a number is a variance in the units of the input, squared."
                )
        return roots_of(self.noise, x, self.batch_dim, whole=whole)

    def cached_noise(self, name: Hashable, x: Any, find: Callable[[], Fact]) -> Fact:
        """What is found about the noise; kept where the noise is a number, which cannot change."""
        if is_tracing() or not self._has_one_number:
            return find()
        key = (name, self.noise, self.batch_dim, shape_key(x))
        if key not in self._cache:
            with torch.inference_mode(False):
                self.keep(key, find())
        return self._cache[key]

    @cached_property
    def _has_one_number(self) -> bool:
        return is_number(self.noise)

    @property
    def has_correlated_noise(self) -> bool:
        """Whether elements of any input vary together."""
        return not self._has_one_number and is_correlated(self.noise)

    def noise_dimensions(self, x: Any) -> float:
        """How many directions correlated noise is worth; infinite if nothing is correlated.

        Inside a trace, where nothing can be drawn, infinite if no call has found it.
        """
        if not self.has_correlated_noise:
            return math.inf
        key = ("dimensions", id(self.noise), self.batch_dim, shape_key(x))
        if key not in self._cache and not is_tracing():
            self.keep(key, dimensions_of(self.noise, x, self.batch_dim))
        return self._cache.get(key, math.inf)

    def variance(self, x: Any) -> Any:
        """The noise variance of an input, in the structure that `propagate` takes; a copy."""
        find = partial(variance_of, self.noise, x, self.batch_dim)
        return clone_tensors(self.cached_noise("variance", x, find))

    def sites(self, x: Any) -> tuple[Site, ...]:
        """The dropout sites for inputs shaped like `x`.

        The dry run is made once for each way that the model may take: shapes, arguments that are
        no tensors, and all of the model but its weights.
        """
        key = (structure_hash(self.model), self.placement, shape_key(x, without=self.batch_dim))
        if key not in self._cache:
            copies = clone_tensors(x)
            sites = find_sites(self.model, copies, self.placement, batch_dim=self.batch_dim)
            self.keep(key, sites)
        return self._cache[key]

    def with_unit_multipliers(self, x: Any) -> Setup:
        """This setup with a multiplier at every unit that the posterior over masks is about.

        After every layer but the last, unless the user has a placement of their own; before the
        layers where none feeds another. The rate is a small one: with it the checks look whether
        the gradients with respect to the multipliers can be relied on.
        """
        if self.placement.kind != "auto":
            return self.replace(rate=PROBE_DROPOUT_RATE)
        after = self.replace(
            rate=PROBE_DROPOUT_RATE, placement=replace(self.placement, kind="after")
        )
        try:
            after.sites(x)
        except NothingToDropError:
            return after.replace(placement=replace(self.placement, kind="before"))
        return after

    def run(self, x: Any, *, writes_nothing: bool = False) -> Any:
        """What the model returns for an input, or the part of it that was asked for.

        A model that is known to write nothing runs itself, others run as a copy.
        """
        args, kwargs = as_call(x, self.model)
        model = unwrap_compiled(self.model)
        model = model if writes_nothing else isolated(model)
        return select_output(model(*args, **kwargs), self.output)

    def learned_variance(self, x: Any) -> Any:
        """The variance that the model itself predicts, in the structure of its mean, or `None`."""
        if not isinstance(self.output, Gaussian):
            return None
        args, kwargs = as_call(clone_tensors(x), self.model)
        with torch.no_grad():
            return self.output.variance(isolated(unwrap_compiled(self.model))(*args, **kwargs))

    def has_masks(self, x: Any) -> bool:
        """Whether units are dropped: a rate is set, or the model's own dropout is to be used."""
        if self.rate is None and self.placement.kind != "existing":
            return False
        sites = self.sites(x)
        return self.rate is not None or all(site.rate is not None for site in sites)

    def rates(self, sites: tuple[Site, ...]) -> tuple[float, ...]:
        """The rate of every site."""
        if self.rate is not None:
            return check_rates(self.rate, sites)
        rates = [site.rate for site in sites if site.rate is not None]
        if len(rates) != len(sites):
            raise ValueError(
                "The dropout rate is not known: call `.fit(loader)` with held-out data to find "
                "it, or give `rate=...`."
            )
        return tuple(rates)

    def check_eval_mode(self) -> None:
        """An error if a part of the model is in train mode."""
        training = [m for m in modules_of(self.model) if getattr(m, "training", False)]
        if not training:
            return
        # What torch exports is as it was then, and its `eval` is replaced by one that raises.
        exported = [m for m in modules_of(self.model) if "eval" in vars(m)]
        fixed = {id(part) for module in exported for part in module.modules()}
        # A list of networks has no mode of its own, and neither have the layers that torch puts in
        # place of those it quantizes: it makes them in train mode.
        wrong = [
            module
            for module in training
            if not isinstance(module, nn.ModuleList)
            and not type(module).__module__.startswith("torch.ao.nn.quantized")
            and id(module) not in fixed
        ]
        if not wrong:
            return
        named = self.model.named_modules() if isinstance(self.model, nn.Module) else ()
        path, module = next((p, m) for p, m in named if any(m is one for one in wrong))
        raise ValueError(
            f"`{path or type(module).__name__}` is in train mode; call `model.eval()` first. "
            "howsure switches dropout on by itself."
        )
