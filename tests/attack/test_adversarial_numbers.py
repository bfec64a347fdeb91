"""Adversarial numbers through every rule: no NaN inside the domain, no negative variance."""

import pytest
import torch

import howsure.moments.rules  # noqa: F401  (fills the table)
from howsure.moments.rule import Sample, registered
from howsure.moments.value import variance_dtype
from howsure.testing import applies
from howsure.testing.calls import Call

DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
RULES = [rule for rule in registered() if applies(rule)]
POINTWISE = [rule for rule in RULES if rule.pointwise]


def adversarial(shape, dtype, seed):
    """Means up to 1e9 and variances from 0 over subnormal numbers to 1e12, in random pairs."""
    generator = torch.Generator().manual_seed(seed)

    def uniform(low, high):
        return low + (high - low) * torch.rand(shape, generator=generator, dtype=torch.float64)

    def chosen(values, other):
        picked = torch.tensor(values, dtype=torch.float64)
        index = torch.randint(len(values), shape, generator=generator)
        return torch.where(uniform(0, 1) < 0.3, picked[index], other)

    info, spread = torch.finfo(dtype), torch.finfo(variance_dtype(dtype))
    size = torch.where(uniform(0, 1) < 0.5, 10 ** uniform(-45, 9), 10 ** uniform(-3, 3))
    # Kinks, saturation and overflow of the functions, and the edges of the numbers.
    places = [0, 1, 3, 6, 0.5, 20, 40, 88.7, 89, 100, 709.8, 1e9, info.tiny, info.smallest_normal]
    mean = chosen(places, size) * torch.where(uniform(0, 1) < 0.5, -1.0, 1.0)
    exponents = torch.where(uniform(0, 1) < 0.5, uniform(-46, 12), uniform(-8, 4))
    var = chosen([0, 0, 0, 1, 1e12, spread.tiny, spread.tiny / 64, 1e-12], 10**exponents)
    return mean.clamp(max(-1e9, info.min), min(1e9, info.max)).to(dtype), var.to(
        variance_dtype(dtype)
    )


def plain_or_none(rule, call, means):
    """What torch returns; `None` without a kernel for the dtype or for these shapes."""
    try:
        return call.plain(rule.targets[0], means)
    except (RuntimeError, NotImplementedError, IndexError):
        return None


def faults(rule, call, seed):
    """How many numbers went through the rule, and what it returned that it must not."""
    pairs = [adversarial(m.mean.shape, call.dtype, seed + i) for i, m in enumerate(call.moments)]
    means, variances = [list(column) for column in zip(*pairs, strict=True)]
    plain = plain_or_none(rule, call, means)
    if plain is None:
        return 0, []
    found = []
    for expected, out in zip(plain, call.ruled(rule, means, variances), strict=True):
        # A mean outside the operation's domain is no fault of the rule, nor is a sum or a product
        # that overflows in the network itself.
        inside = ~torch.isnan(expected) if rule.pointwise else torch.isfinite(expected)
        bad = inside & (torch.isnan(out.mean) | torch.isnan(out.var) | (out.var < 0))
        if bad.any():
            at = tuple(bad.nonzero()[0].tolist())
            near = [(float(m[at]), float(v[at])) for m, v in pairs if m.shape == bad.shape]
            found.append(f"{int(bad.sum())} bad, first at {at}, (mean, var) {near}")
    return sum(mean.numel() for mean in means), found


def larger(sample, copies):
    """A sample of a pointwise rule with more rows, in front or below; constants stay."""
    call = Call(sample)
    (random,) = call.moments
    shape = random.mean.shape
    for more in ((copies, *shape), (copies * shape[0], *shape[1:])):
        grown = type(random)(torch.zeros(more), torch.zeros(more))
        args, kwargs = call.arguments_with([grown])
        yield Sample(*args, **kwargs)


def attacked(rule, dtype, copies, seed):
    """The numbers that went through a rule on its samples, and all faults."""
    count, found = 0, []
    for number, sample in enumerate(rule.draw_samples()):
        single = rule.pointwise and len(Call(sample).moments) == 1
        for candidate in larger(sample, copies) if single else [sample]:
            numbers, bad = faults(rule, Call(candidate, dtype), seed + 100 * number)
            found += [f"sample {number}: {each}" for each in bad]
            count += numbers
            if numbers:
                break
    return count, found


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name.replace(" ", "_"))
def test_adversarial_numbers_give_moments(rule):
    for dtype in DTYPES:
        count, found = attacked(rule, dtype, 20, seed=0)
        assert not found, f"{dtype}: {found}"
        assert count or dtype in DTYPES[:2], f"nothing ran in {dtype}"


@pytest.mark.slow
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("rule", POINTWISE, ids=lambda rule: rule.name.replace(" ", "_"))
def test_a_hundred_million_adversarial_numbers(rule, dtype):
    """All pointwise rules together in all four dtypes: 1e8 numbers and more."""
    share, count, seed = 10**8 // (len(POINTWISE) * len(DTYPES)) + 1, 0, 1000
    while count < share:
        numbers, found = attacked(rule, dtype, 5000, seed)
        assert not found, found
        assert numbers, f"no kernel in {dtype}"
        count, seed = count + numbers, seed + 1000


@pytest.mark.slow
@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name.replace(" ", "_"))
def test_many_adversarial_numbers_through_every_rule(rule):
    for dtype in DTYPES:
        for seed in range(1000, 41000, 1000):
            _, found = attacked(rule, dtype, 1, seed)
            assert not found, f"{dtype}: {found}"
