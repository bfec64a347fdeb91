"""Probes: exact where exactness is possible, the covariance where the rules assume none."""

import warnings

import pytest
import torch
from torch import nn
from torch.utils import _pytree as pytree

import howsure as hs
import howsure.rules
from howsure.call_site import CallSites
from howsure.gaussian import Gaussian, wrap
from howsure.moments import Moments
from howsure.probe_rules import TAKEN_APART
from howsure.probes import ProbeInterpreter
from howsure.registry import registered
from howsure.responses import Probed
from nets import FunctionalResNet

MANY = 4096
# Rules whose matched distribution has less variance than their own linearisation, or whose
# innovation is estimated: their probes are a few per cent wider.
LOOSE = {
    *("log", "log10", "log1p", "log2", "pow", "reciprocal", "rsqrt", "sqrt", "prod", "logsumexp"),
    *("log_softmax", "norm", "vector_norm", "std", "std_mean", "scaled_dot_product_attention"),
}
SKIPPED = {"value only", "refused", "construction"}
RULES = [
    rule
    for rule in registered()
    if not rule.takes_carriers and rule.family not in SKIPPED and rule.name not in TAKEN_APART
]


def with_exact_probes(leaves, count):
    """Carriers whose probes are the standard deviations one element at a time."""
    interpreter = ProbeInterpreter(None, CallSites(lambda x: x), count=count)
    carriers, start = {}, 0
    for leaf in leaves:
        if not isinstance(leaf, Moments) or id(leaf) in carriers:
            continue
        size = leaf.mean.numel()
        table = torch.zeros(count, size, dtype=leaf.mean.dtype)
        table[start : start + size] = torch.diag(leaf.var.sqrt().reshape(-1))
        start += size
        probed = Probed(leaf.mean, leaf.var, None, table.reshape(count, *leaf.mean.shape))
        carriers[id(leaf)] = wrap(probed, interpreter)
    return interpreter, [carriers.get(id(leaf), leaf) for leaf in leaves]


def random_elements(leaves):
    different = {id(leaf): leaf for leaf in leaves if isinstance(leaf, Moments)}
    return sum(leaf.mean.numel() for leaf in different.values())


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_exact_directions_give_the_rules_own_variance(rule):
    for sample in rule.draw_samples():
        leaves, spec = pytree.tree_flatten((sample.args, sample.kwargs))
        count = random_elements(leaves)
        if count > 200:
            continue
        interpreter, filled = with_exact_probes(leaves, count)
        args, kwargs = pytree.tree_unflatten(filled, spec)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            result = interpreter.call(rule.targets[0], args, kwargs)
            expected = rule(*sample.args, **sample.kwargs)
        for out, right in zip(random_leaves(result), random_leaves(expected), strict=True):
            torch.testing.assert_close(out.mean, right.mean, rtol=1e-6, atol=1e-6)
            tolerance = 0.4 if rule.name in LOOSE else 1e-4
            torch.testing.assert_close(out.var, right.var, rtol=tolerance, atol=1e-6)


def random_leaves(tree):
    found = [
        leaf.read() if isinstance(leaf, Gaussian) else leaf for leaf in pytree.tree_leaves(tree)
    ]
    return [leaf for leaf in found if isinstance(leaf, Moments) and (leaf.var > 0).any()]


class Branches(nn.Module):
    """Two branches that see the same input and meet again."""

    def __init__(self, meet):
        super().__init__()
        self.left, self.right = nn.Linear(5, 4).double(), nn.Linear(5, 4).double()
        self.meet = meet

    def forward(self, x):
        return self.meet(self.left(x), self.right(x))


def brute_force(model, x, var, draws=200_000):
    generator = torch.Generator().manual_seed(5)
    noise = torch.randn(draws, *x.shape, generator=generator, dtype=x.dtype) * var**0.5
    with torch.no_grad():
        out = model((x + noise).flatten(0, 1)).reshape(draws, x.shape[0], -1)
    return out.mean(0), out.var(0)


@pytest.mark.parametrize(
    "meet",
    [
        torch.add,
        torch.sub,
        torch.mul,
        torch.maximum,
        torch.minimum,
        lambda a, b: torch.cat([a, b], 1).amax(1, keepdim=True),
        lambda a, b: torch.stack([a, b]).sum(0).relu(),
        lambda a, b: a / (6 + b),
        lambda a, b: a.detach() + b,
        lambda a, b: a.data - b,
    ],
    ids=["add", "sub", "mul", "maximum", "minimum", "amax", "stack", "div", "detach", "data"],
)
def test_branches_that_meet_again_are_correlated(meet):
    model, x = Branches(meet).eval(), torch.randn(3, 5).double()
    out = hs.propagate(model, x, 0.3, probes=MANY)
    mean, var = brute_force(model, x, 0.3)
    torch.testing.assert_close(out.mean, mean, rtol=0, atol=0.08 * float(var.max()) ** 0.5)
    # Clark takes the larger of two as Gaussian: up to 12 % for eight equal ones.
    torch.testing.assert_close(out.var, var, rtol=0.15, atol=0.01 * float(var.max()))


def test_clark_with_covariance():
    """Four equally correlated inputs, rho = 0.6: mean 0.652, std 0.892; independent 1.03, 0.68."""

    def model(x):  # the common part first
        members = x[:, :1] * 0.6**0.5 + x[:, 1:] * 0.4**0.5
        a, b, c, d = members.unbind(1)
        return torch.maximum(torch.maximum(a, b), torch.maximum(c, d))

    out = hs.propagate(model, torch.zeros(1, 5), 1.0, probes=MANY)
    assert float(out.mean) == pytest.approx(0.652, abs=0.02)
    assert float(out.var.sqrt()) == pytest.approx(0.892, abs=0.03)


def test_padded_max_pool():
    x = torch.randn(2, 1, 5, 5)
    pool = nn.MaxPool2d(3, 2, 1)
    out = hs.propagate(pool, x, 1e-8, probes=64)
    torch.testing.assert_close(out.mean, pool(x), atol=1e-3, rtol=0)
    assert torch.isfinite(out.var).all()


def test_no_noise_is_the_plain_forward():
    net, x = FunctionalResNet(), torch.rand(2, 3, 16, 16)
    out = hs.propagate(net, x, 0.0, probes=4)
    torch.testing.assert_close(out.mean, net(x), rtol=1e-4, atol=1e-4)
    assert torch.equal(out.var, torch.zeros_like(out.mean))


def test_same_seed_same_result_and_no_dependence_on_the_batch():
    net, x = FunctionalResNet(), torch.rand(5, 3, 16, 16)
    first, again = (hs.propagate(net, x, 0.01, probes=4) for _ in range(2))
    other = hs.propagate(net, x, 0.01, probes=4, seed=1)
    assert torch.equal(first.var, again.var)
    assert not torch.equal(first.var, other.var)
    alone = hs.propagate(net, x[3:4], 0.01, probes=4)
    torch.testing.assert_close(alone.var[0], first.var[3], rtol=1e-3, atol=1e-6)


def test_the_same_inside_vmap():
    net, x = FunctionalResNet(), torch.rand(3, 2, 3, 16, 16)
    batched = torch.vmap(lambda one: hs.propagate(net, one, 0.01, probes=4).var)(x)
    looped = torch.stack([hs.propagate(net, one, 0.01, probes=4).var for one in x])
    torch.testing.assert_close(batched, looped, rtol=1e-3, atol=1e-7)


class Wrapped(nn.Module):
    def __init__(self, net):
        super().__init__()
        self.net = net

    def forward(self, x):
        out = hs.propagate(self.net, x, 0.01, probes=4)
        return out.mean, out.var


@pytest.mark.parametrize(
    ("net", "tolerance"),
    [
        (nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.MaxPool2d(2), nn.BatchNorm2d(4)), 1e-4),
        (nn.Sequential(nn.AvgPool2d(8), nn.Flatten(), nn.LayerNorm(3), nn.Tanh()), 0.02),
    ],
    ids=["exact", "by differences"],
)
@pytest.mark.filterwarnings("ignore:The .grad attribute:UserWarning")
def test_the_same_in_an_export(net, tolerance):
    wrapped, x = Wrapped(net.eval()).eval(), torch.rand(2, 3, 8, 8)
    with torch.no_grad():
        program = torch.export.export(wrapped, (x,), strict=False)
        fresh = torch.rand(2, 3, 8, 8)
        for exported, eager in zip(program.module()(fresh), wrapped(fresh), strict=True):
            torch.testing.assert_close(exported, eager, rtol=tolerance, atol=1e-6)


def test_an_operation_without_a_rule_is_linearised():
    def model(x):
        return torch.special.i0e(x) + x

    x = torch.randn(4, 3)
    with pytest.raises(hs.NoRuleError):
        hs.propagate(model, x, 1e-4, probes=8)
    out = hs.propagate(model, x, 1e-4, probes=8, fallback="linearise")
    slope = torch.func.vmap(torch.func.vmap(torch.func.grad(model)))(x)
    torch.testing.assert_close(out.var, slope.square() * 1e-4, rtol=1e-4, atol=0)
    assert "i0e" in out.notes[0]
