"""The paper's methods: the model on Gaussians, with dropout masks, and a constant variance.

T passes with dropout masks run in vmapped chunks, from one seed. Only the masks are batched:
whatever comes before the first active mask is computed once for all samples of a chunk, and skip
connections broadcast by themselves. A `Prefix` keeps it for the next chunks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from howsure.errors import NoRuleError
from howsure.estimators.softmax import entropy_of
from howsure.isolation import own_random_numbers
from howsure.methods.classified import check_classes, class_outputs
from howsure.methods.method import Fits, Method, Uses, note_without_uncertainty
from howsure.methods.sampling import mc_dropout
from howsure.moments.interpreter import Propagated, RuleInterpreter, outcome, python_only, run
from howsure.moments.numerics import layers_of_variances_in
from howsure.moments.prefix import Prefix, PrefixInterpreter
from howsure.moments.value import variance_dtype
from howsure.multipliers.mode import Multiply
from howsure.multipliers.sites import Site, at_rates, draw_uniforms, masks
from howsure.operations import CallSites
from howsure.prediction import Prediction
from howsure.probe import nothing_to_vary
from howsure.problem import Layout, Probe, Sources
from howsure.progress import warm_up_allocator
from howsure.setup import Setup
from howsure.trees import TensorTree, batch_size, clone_tensors, select_output

DIAGONAL = (
    "The noise is correlated, and moment propagation carries variances only: `data_var` is that "
    'of independent noise of the same variance. Use `method="gradients"` or "noise_sampling".'
)


class Pass:
    """Runs a setup's model on one input, and remembers the output's structure.

    For classification the output is (probabilities, logits).
    """

    def __init__(self, setup: Setup, x: Any) -> None:
        self.setup = setup
        self.x = x
        self.notes: tuple[str, ...] = ()
        self.parts: TensorTree | None = None

    def plain(self) -> tuple[Tensor, ...]:
        """The outputs of the plain network, which may write into its copy of the inputs."""
        with python_only():
            output = class_outputs(self.setup.run(clone_tensors(self.x)), self.setup.task)
        self.parts = TensorTree(output)
        if not self.parts.tensors:
            raise nothing_to_vary(self.parts)
        return tuple(self.parts.tensors)

    def settle(self) -> None:
        """Indices and masks become those of a plain pass: those of samples live inside `vmap`."""
        if self.parts is not None and self.parts.has_other_tensors:
            self.plain()

    def gaussian(
        self, prefix: Prefix | None = None
    ) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
        """The means and the variances of the outputs."""
        result = self.propagated(prefix)
        self.parts = TensorTree(result.mean)
        if not self.parts.tensors:
            raise nothing_to_vary(self.parts)
        if self.setup.task != "regression":
            check_classes(self.parts.tensors[1], self.setup.task)
        return tuple(self.parts.tensors), tuple(TensorTree(result.var).tensors)

    def propagated(self, prefix: Prefix | None = None) -> Propagated:
        """The moments of the output in its own structure; a prefix spares repeated work."""
        setup = self.setup
        settings = (setup.rules, CallSites(setup.model), setup.fallback)
        interpreter = PrefixInterpreter(*settings, prefix) if prefix else RuleInterpreter(*settings)
        with layers_of_variances_in(setup.variance_dtype):
            output = run(setup.model, clone_tensors(self.x), setup.variance(self.x), interpreter)
        chosen = select_output(output, setup.output)
        result = outcome(class_outputs(chosen, setup.task), interpreter.notes)
        correlated = (DIAGONAL,) if setup.has_correlated_noise else ()
        self.notes = (*correlated, *result.notes)
        return result


# Samples unless `samples` says otherwise: the paper's T is between 10 and 50.
SAMPLES = 20
# Samples times inputs that run at once unless `chunk` says otherwise: at least so many, and more
# where all of them together have no more than so many elements.
_ROWS = 64
_ELEMENTS = 2**18


def has_active_sites(setup: Setup, x: Any) -> bool:
    """Whether any unit is dropped at all."""
    return any(rate > 0 for rate in setup.rates(setup.sites(x)))


def sampled(
    setup: Setup, x: Any, one_pass: Callable[[Prefix | None], tuple[Tensor, ...]]
) -> tuple[Tensor, ...]:
    """The outputs of `one_pass` for every dropout sample, stacked in front.

    The pass is handed what earlier ones kept, if there are several; using it is up to the pass.
    """
    samples = setup.samples or SAMPLES
    if samples < 2:
        raise ValueError(
            "`samples` is 1, and one sample has no variance; use at least 2, or the method "
            '"adf" without dropout.'
        )
    warm_up_allocator()
    sites = setup.sites(x)
    drawn = masks_of(setup, sites, x)
    sites = at_rates(sites, setup.rates(sites))
    chunk = setup.chunk or usual_chunk(sites, x)
    prefix = Prefix() if chunk < samples else None
    parts = []
    for start in range(0, samples, chunk):
        some = [None if m is None else m[start : start + chunk] for m in drawn]
        parts.append(_one_chunk(setup, sites, some, one_pass, prefix, start))
    return tuple(torch.cat(column) for column in zip(*parts, strict=True))


def usual_chunk(sites: Sequence[Site], x: Any) -> int:
    """How many samples of a batch run at once: few calls for small models, no heaps for large."""
    batch = batch_size(x)
    inputs = sum(tensor.numel() for tensor in TensorTree(x).tensors) // max(batch, 1)
    largest = max(inputs, *(math.prod(site.units) for site in sites), 1)
    return max(1, max(_ROWS, _ELEMENTS // largest) // max(batch, 1))


def masks_of(setup: Setup, sites: tuple[Site, ...], x: Any) -> list[Tensor | None]:
    """The masks of every site for all samples, in front; `None` at rate 0."""
    if setup.uniforms is not None:
        return masks(setup.uniforms, setup.rates(sites))
    shares = setup.shared_masks or setup.batch_dim is None
    batch = None if shares else batch_size(x, setup.batch_dim or 0)
    uniforms = draw_uniforms(sites, setup.samples or SAMPLES, setup.seed, batch=batch)
    return masks(uniforms, setup.rates(sites))


def _one_chunk(
    setup: Setup,
    sites: tuple[Site, ...],
    chunk: list[Tensor | None],
    one_pass: Callable[[Prefix | None], tuple[Tensor, ...]],
    prefix: Prefix | None,
    first: int,
) -> tuple[Tensor, ...]:
    active = [m for m in chunk if m is not None]
    before_mask = prefix.close if prefix else None

    def one_sample(*values: Tensor) -> tuple[Tensor, ...]:
        remaining = iter(values)
        filled = [None if m is None else next(remaining) for m in chunk]
        if prefix:
            prefix.start()
        with Multiply(setup.model, sites, filled, before_mask) as mode:
            outputs = one_pass(prefix)
        mode.check_all_used()
        return outputs

    try:
        return torch.vmap(one_sample)(*active)
    except RuntimeError as error:
        if isinstance(error, NoRuleError):
            raise
    # Branches, numbers taken out and autograd functions do not work inside `vmap`: one by one.
    with own_random_numbers(setup.seed + first):
        before = torch.get_rng_state()
        samples = [one_sample(*values) for values in zip(*active, strict=True)]
        if not torch.equal(before, torch.get_rng_state()):
            setup.keep("draws", True)  # What asked for the samples decides what that means.
    return tuple(torch.stack(column) for column in zip(*samples, strict=True))


def prediction(
    setup: Setup,
    run: Pass,
    means: Sequence[Tensor],
    data_vars: Sequence[Tensor],
    model_vars: Sequence[Tensor],
    *,
    samples: Tensor | None = None,
) -> Prediction:
    """The prediction in the structure of the model's output.

    `samples` are class probabilities per Monte-Carlo sample, for the expected entropy.
    """
    assert run.parts is not None
    noisy = [var + setup.residual_var_at(var) for var in data_vars]
    learned = TensorTree(setup.learned_variance(run.x)).tensors
    noisy = [var + added for var, added in zip(noisy, learned, strict=True)] if learned else noisy
    if setup.task == "regression":
        variances = [run.parts.unflatten_variance(variance) for variance in (noisy, model_vars)]
        return Prediction(run.parts.unflatten(means), *variances, notes=run.notes)
    logits = Prediction(means[1], noisy[1], model_vars[1], run.notes)
    per_sample = means[0][None] if samples is None else samples
    expected = torch.stack(
        [entropy_of(probabilities, setup.task) for probabilities in per_sample]
    ).mean(0)
    return Prediction(means[0], noisy[0], model_vars[0], run.notes, logits, expected)


def spread(setup: Setup, outputs: Tensor) -> Tensor:
    """Variance over the samples in front, divided by T as in the paper unless `unbiased`."""
    wide = outputs.to(variance_dtype(outputs.dtype))
    return wide.var(0, correction=1 if setup.unbiased else 0)


def zeros_like_each(tensors: Sequence[Tensor]) -> list[Tensor]:
    """No variance."""
    return [torch.zeros_like(tensor, dtype=variance_dtype(tensor.dtype)) for tensor in tensors]


def adf(setup: Setup, x: Any) -> Prediction:
    """One propagation without dropout: the sensor's noise alone (Gast & Roth 2018)."""
    run = Pass(setup, x)
    with torch.no_grad():
        if setup.noise is None:
            means = run.plain()
            variances = zeros_like_each(means)
            no_rate = setup.replace(rate=None)
            run.notes = note_without_uncertainty(no_rate, Probe(Layout.BATCHED), Sources(()))
        else:
            means, variances = run.gaussian()
        centers = means if setup.prediction != "network" else run.plain()
        return prediction(setup, run, centers, variances, zeros_like_each(variances))


ADF = Method("adf", adf, Uses.RULES)


def sampled_adf(setup: Setup, x: Any) -> Prediction:
    """The paper's method: T propagations with dropout masks (Loquercio et al. 2020, Eq. 16).

    mean = 1/T sum mu_t, data_var = 1/T sum v_t, model_var = 1/T sum (mu_t - mean)**2. The model
    variance is that of the propagated means, so it depends on the sensor's noise.
    """
    if setup.noise is None:
        return mc_dropout(setup.replace(samples=setup.samples or SAMPLES), x)
    if not has_active_sites(setup, x):
        return adf(setup, x)
    run = Pass(setup, x)

    def one_pass(prefix: Prefix | None) -> tuple[Any, ...]:
        means, variances = run.gaussian(prefix)
        return (*means, *variances)

    with torch.no_grad():
        outputs = sampled(setup, x, one_pass)
        run.settle()
        half = len(outputs) // 2
        means, variances = outputs[:half], outputs[half:]
        centers = (
            means if setup.prediction != "network" else sampled(setup, x, lambda _: run.plain())
        )
        return prediction(
            setup,
            run,
            [center.mean(0) for center in centers],
            [var.mean(0) for var in variances],
            [spread(setup, mean) for mean in means],
            samples=means[0],
        )


SAMPLED_ADF = Method("sampled_adf", sampled_adf, Uses.RULES | Uses.MASKS, Fits.RATE)


def constant(setup: Setup, x: Any) -> Prediction:
    """The plain prediction with one constant variance: the floor that every method must beat.

    It is `residual_var`, the error on held-out data.
    """
    run = Pass(setup, x)
    with torch.no_grad():
        means = run.plain()
        nothing = zeros_like_each(means)
        return prediction(setup, run, means, nothing, nothing)


CONSTANT = Method("constant", constant, fits=Fits.RESIDUAL_VAR)
