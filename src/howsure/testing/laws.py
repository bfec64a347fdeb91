"""What every moment rule must satisfy, on every one of its samples.

Each law is a function of a rule and a sample that raises `AssertionError`. The test suite runs
all of them over the whole registry; `check_rule` runs them on one rule, for instance your own.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable

import torch
from torch import Tensor

from howsure.moments.interpreter import works_in_place
from howsure.moments.rule import REFUSED, Kind, Rule, Sample, operation_name
from howsure.moments.value import Moments, variance_dtype
from howsure.testing.calls import Call
from howsure.testing.oracles import Truth, first_order_variance, monte_carlo, quadrature

Law = Callable[[Rule, Sample], None]
DTYPES = (torch.float32, torch.float64)
DRAWS = 20_000


def shape_and_dtype(rule: Rule, sample: Sample) -> None:
    """Law 1: mean and variance have the plain result's shape, dtype and device."""
    for dtype in DTYPES:
        call = Call(sample, dtype)
        plain = call.plain(rule.targets[0], call.means)
        ruled = call.ruled(rule, call.means, call.variances)
        assert len(plain) == len(ruled), f"{len(ruled)} outputs in place of {len(plain)}"
        for expected, out in zip(plain, ruled, strict=True):
            assert out.mean.shape == out.var.shape == expected.shape
            assert out.mean.dtype == expected.dtype and out.mean.device == expected.device
            assert out.var.dtype == variance_dtype(expected.dtype)


def zero_variance(rule: Rule, sample: Sample) -> None:
    """Law 2: without noise the plain value and variance 0, with finite gradients."""
    for dtype in DTYPES:
        call = Call(sample, dtype)
        plain = call.plain(rule.targets[0], call.means)
        means = [mean.clone().requires_grad_() for mean in call.means]
        variances = [torch.zeros_like(var).requires_grad_() for var in call.variances]
        ruled = call.ruled(rule, means, variances)
        for expected, out in zip(plain, ruled, strict=True):
            torch.testing.assert_close(out.mean, expected, rtol=2e-6, atol=2e-6)
            assert bool((out.var == 0).all()), "variance without noise"
        _assert_finite_gradients(ruled, means + variances)


def _assert_finite_gradients(outputs: list[Moments], inputs: list[Tensor]) -> None:
    total = torch.stack([out.mean.sum() + out.var.sum() for out in outputs]).sum()
    if total.requires_grad:
        for gradient in torch.autograd.grad(total, inputs, allow_unused=True):
            assert gradient is None or bool(torch.isfinite(gradient).all()), "gradient not finite"


def extremes(rule: Rule, sample: Sample) -> None:
    """Law 3: finite and not negative for tiny and huge variances and means."""
    for dtype in DTYPES:
        call = Call(sample, dtype)
        for scale in (1.0, 1e4):
            for var in (1e-12, 1.0, 1e6):
                means = [mean * scale for mean in call.means]
                variances = [torch.full_like(v, var) for v in call.variances]
                plain = call.plain(rule.targets[0], means)
                outs = call.ruled(rule, means, variances)
                for expected, out in zip(plain, outs, strict=True):
                    # A mean outside the operation's domain is no fault of the rule.
                    defined = ~torch.isnan(expected)
                    center, spread = out.mean[defined], out.var[defined]
                    assert bool(torch.isfinite(center).all()), f"mean at {scale=} {var=}"
                    assert bool(torch.isfinite(spread).all()), f"variance at {scale=} {var=}"
                    assert bool((spread >= 0).all()), f"negative variance at {scale=} {var=}"


def half_precision(rule: Rule, sample: Sample) -> None:
    """Law 3, continued: float16 and bfloat16 means stay finite, variances in float32."""
    for dtype in (torch.float16, torch.bfloat16):
        call = Call(sample, dtype)
        try:
            plain = call.plain(rule.targets[0], call.means)
        except (RuntimeError, NotImplementedError):
            continue  # the operation itself has no half-precision kernel here
        for expected, out in zip(plain, call.ruled(rule, call.means, call.variances), strict=True):
            assert out.mean.dtype == expected.dtype
            assert bool(torch.isfinite(out.mean).all() and torch.isfinite(out.var).all())
            assert bool((out.var >= 0).all())


def oracle(rule: Rule, sample: Sample) -> None:
    """Law 4: the moments agree with quadrature (elementwise) or sampling."""
    call = Call(sample)
    pointwise = rule.pointwise and len(call.moments) == 1
    if pointwise:
        truths = quadrature(call, rule.targets[0])
    else:
        truths = monte_carlo(call, rule.targets[0], DRAWS)
    ruled = call.ruled(rule, call.means, call.variances)
    for truth, out in zip(truths, ruled, strict=True):
        _assert_agrees(rule, truth, out)


def _assert_agrees(rule: Rule, truth: Truth, out: Moments) -> None:
    """Within the stated error of the rule, plus six standard errors of the oracle."""
    std = truth.var.sqrt()
    # Quadrature on a grid is good to 1e-4 at kinks; no rule has to be better than that.
    error = max(rule.error, 2e-4)
    mean_off = (out.mean - truth.mean).abs() - 6 * truth.mean_error - error * std - 1e-9
    assert bool((mean_off <= 0).all()), f"mean off by {float(mean_off.max()):.3g} too much"
    slack = truth.var * (2 * error + error * error) + 6 * truth.var_error + 1e-12
    var_off = (out.var - truth.var).abs() - slack
    assert bool((var_off <= 0).all()), (
        f"variance off: ratio of std {float((out.var / truth.var).sqrt().min()):.4g} to "
        f"{float((out.var / truth.var).sqrt().max()):.4g}"
    )


def small_noise(rule: Rule, sample: Sample) -> None:
    """Law 5: for small noise the variance is that of the linearized operation."""
    call = Call(sample)
    variances = [var * 1e-8 for var in call.variances]

    def plain(*values: Tensor) -> tuple[Tensor, ...]:
        return tuple(call.plain(rule.targets[0], list(values)))

    expected = first_order_variance(plain, call.means, variances)
    for first_order, out in zip(expected, call.ruled(rule, call.means, variances), strict=True):
        torch.testing.assert_close(out.var, first_order, rtol=2e-2, atol=1e-14)


def batching(rule: Rule, sample: Sample) -> None:
    """Law 6: a batch gives the same as one at a time, through `torch.vmap`."""
    call = Call(sample)
    shifts = (0.0, 0.1, -0.2)
    single = [
        call.ruled(rule, [mean + shift for mean in call.means], call.variances) for shift in shifts
    ]
    batch = [torch.stack([mean + shift for shift in shifts]) for mean in call.means]

    def one(*means: Tensor) -> tuple[Tensor, ...]:
        outs = call.ruled(rule, list(means), call.variances)
        return tuple(tensor for out in outs for tensor in (out.mean, out.var))

    together = torch.vmap(one)(*batch)
    for index, outs in enumerate(single):
        flat = [tensor for out in outs for tensor in (out.mean, out.var)]
        for alone, batched in zip(flat, together, strict=True):
            torch.testing.assert_close(batched[index], alone, rtol=1e-9, atol=1e-12)


def purity(rule: Rule, sample: Sample) -> None:
    """Law 7: the arguments stay as they were, and the result is the same every time."""
    call = Call(sample)
    means, variances = call.means, call.variances
    before = [tensor.clone() for tensor in means + variances]
    first, second = call.ruled(rule, means, variances), call.ruled(rule, means, variances)
    for kept, now in zip(before, means + variances, strict=True):
        assert torch.equal(kept, now), "an argument was changed"
    for one, two in zip(first, second, strict=True):
        assert torch.equal(one.mean, two.mean) and torch.equal(one.var, two.var)


def gradients(rule: Rule, sample: Sample) -> None:
    """Law 8: derivatives by autograd equal finite differences."""
    call = Call(sample)
    count = len(call.moments)
    inputs = [tensor.clone().requires_grad_() for tensor in call.means + call.variances]

    def flat(*values: Tensor) -> tuple[Tensor, ...]:
        outs = call.ruled(rule, list(values[:count]), list(values[count:]))
        return tuple(t for out in outs for t in (out.mean, out.var) if t.requires_grad)

    if flat(*inputs):
        assert torch.autograd.gradcheck(flat, inputs, fast_mode=True, atol=1e-4, rtol=1e-3)


def parameter_names(rule: Rule, sample: Sample) -> None:
    """Law 9: parameters have torch's names, since torch passes keywords."""
    overrides = torch.overrides.get_testing_overrides()
    target = rule.targets[0]
    is_operator = getattr(target, "__name__", "").startswith("__")
    if rule.takes_target or is_operator or target not in overrides:
        return
    expected = list(inspect.signature(overrides[target]).parameters)
    actual = inspect.signature(rule.function).parameters.values()
    for ours, theirs in zip(
        (p.name for p in actual if p.kind is p.POSITIONAL_OR_KEYWORD), expected, strict=False
    ):
        same = ours == theirs or {ours, theirs} <= {"input", "self"}
        assert same or theirs in ("args", "names", "out"), f"`{ours}` is `{theirs}` in torch"


def aliases(rule: Rule, sample: Sample) -> None:
    """Law 10: every spelling of the operation that takes these arguments gives the same."""
    call = Call(sample)
    plain = call.plain(rule.targets[0], call.means)
    ruled = call.ruled(rule, call.means, call.variances)
    for alias in rule.targets[1:]:
        if works_in_place(rule, alias, (), {}) and not isinstance(sample.args[0], Moments):
            continue  # in place into a constant
        if "empty" in operation_name(alias):
            continue  # uninitialized memory may hold what the first spelling gave, or not
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                same = call.plain(alias, call.means)
        except (TypeError, RuntimeError, IndexError, ValueError, NotImplementedError):
            continue  # another signature: a scalar overload, an operator
        if len(same) != len(plain) or not all(map(_equal, same, plain)):
            continue  # another meaning of the same name, such as a different argument order
        for one, two in zip(
            ruled, call.ruled(rule, call.means, call.variances, alias), strict=True
        ):
            assert _equal(one.mean, two.mean), operation_name(alias)
            assert _equal(one.var, two.var), operation_name(alias)


def _equal(one: Tensor, two: Tensor) -> bool:
    return one.shape == two.shape and torch.allclose(one, two)


def linearity(rule: Rule, sample: Sample) -> None:
    """Law 11: a linear map's variance scales with the square, whatever the mean."""
    call = Call(sample)
    if rule.kind is not Kind.LINEAR_MAP or len(call.moments) != 1:
        return
    small = call.ruled(rule, call.means, call.variances)
    large = call.ruled(rule, [mean + 1 for mean in call.means], [9 * v for v in call.variances])
    for one, two in zip(small, large, strict=True):
        torch.testing.assert_close(two.var, 9 * one.var)


def documentation(rule: Rule, sample: Sample) -> None:
    """Law 12: the docstring has a formula, the assumption and the source, or names a rule."""
    assert rule.summary.endswith("."), "the first line is not a sentence"
    for part in ("Assumes", "Source"):
        assert rule.paragraph(part) or rule.like, f"the docstring has no line `{part}: `"


LAWS: tuple[Law, ...] = (
    shape_and_dtype,
    zero_variance,
    extremes,
    half_precision,
    oracle,
    small_noise,
    batching,
    purity,
    gradients,
    parameter_names,
    aliases,
    linearity,
    documentation,
)


def applies(rule: Rule) -> bool:
    """Whether a rule computes moments: refusals and queries have laws of their own.

    Examples:
        >>> from howsure.moments.rule import find
        >>> hs.testing.applies(find(torch.relu)), hs.testing.applies(find(torch.sort))
        (True, False)
    """
    return rule.fidelity is not REFUSED and rule.kind is not Kind.VALUE_ONLY


def check_rule(rule: Rule) -> None:
    """Runs every law on every sample of a rule; the error names the first that fails.

    Examples:
        >>> from howsure.moments.rule import find
        >>> hs.testing.check_rule(find(torch.relu))  # an error names the law that fails
    """
    for law in LAWS:
        for number, sample in enumerate(rule.draw_samples()):
            try:
                law(rule, sample)
            except AssertionError as error:
                raise AssertionError(
                    f"The rule `{rule.name}` breaks the law `{law.__name__}` on sample {number}: "
                    f"{error}"
                ) from error
