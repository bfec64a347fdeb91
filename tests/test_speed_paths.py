"""Short ways give what the long ones give: blocks, few nodes, lower precision."""

import mpmath
import pytest
import torch
from numpy.polynomial.hermite_e import hermegauss
from torch import nn
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

import howsure as hs
from howsure.deploy.tracing import traced
from howsure.methods.propagation import usual_chunk
from howsure.moments.numerics import in_blocks, squared, unit_tail
from howsure.moments.value import Moments
from howsure.multipliers import Site
from howsure.progress import warm_up_allocator
from nets import perceptron, small_image_net


@pytest.mark.parametrize("graph", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_tail_against_forty_digits(dtype, graph):
    mpmath.mp.dps = 40
    furthest = 8.0 if dtype == torch.float32 else 9.9
    ratios = [-furthest, -6.0, -3.3, -1.0, -0.1, 0.0, 0.4, 2.0, 6.0, furthest]
    with torch.set_grad_enabled(graph):
        tail = unit_tail(torch.tensor(ratios, dtype=dtype))
    for i, ratio in enumerate(ratios):
        a = mpmath.mpf(float(torch.tensor(ratio, dtype=dtype)))
        t = abs(a)
        q, n = mpmath.ncdf(-t), mpmath.npdf(t) - t * mpmath.ncdf(-t)
        lower = (t * t + 1) * q - t * mpmath.npdf(t) - n * n
        upper_or_lower = 1 - q - n * (t + n) if a > 0 else lower
        step, mean, rest, reach = (float(tail[k][i]) for k in (3, 0, 1, 2))
        found = step + mean * (rest - 2 * step * reach)
        for value, exact in ((mean, n), (mean * reach, q), (found, upper_or_lower)):
            assert abs(value / float(exact) - 1) < 2e-5


@pytest.mark.parametrize("kernel, stride", [((1, 3), (1, 2)), ((1, 1), (1, 1)), ((1, 2), (2, 9))])
def test_pools_of_one_element_along_an_axis(kernel, stride):
    x = torch.rand(2, 1, 1, 9)
    long = hs.propagate(nn.MaxPool2d(kernel, stride), x, 0.01)
    with torch.no_grad():
        short = hs.propagate(nn.MaxPool2d(kernel, stride), x, 0.01)
    torch.testing.assert_close(short.mean, long.mean)
    torch.testing.assert_close(short.var, long.var)


@pytest.mark.parametrize("ceil_mode", [False, True])
@pytest.mark.parametrize("shape", [(2, 3, 9, 8), (3, 9, 8)])
def test_traced_max_pools_are_the_eager_ones(shape, ceil_mode):
    def moments(x):
        pool = nn.MaxPool2d(3, 2, 1, ceil_mode=ceil_mode)
        out = hs.propagate(pool, x, 0.01)
        return [out.mean, out.var]

    x = torch.rand(shape)
    for found, expected in zip(traced(moments, [x])(x), moments(x), strict=True):
        torch.testing.assert_close(found, expected)


def test_max_pool_inside_vmap():
    x, masks = torch.rand(2, 3, 12, 12), torch.rand(4, 3, 1, 1)

    def moments(mask):
        out = hs.propagate(lambda x: F.max_pool2d(x * mask, 3, 2, 1), x, 0.01)
        return out.mean, out.var

    with torch.no_grad():
        means, variances = torch.vmap(moments)(masks)
        rows = [moments(mask) for mask in masks]
    torch.testing.assert_close(means, torch.stack([mean for mean, _ in rows]))
    torch.testing.assert_close(variances, torch.stack([var for _, var in rows]))


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_convolutions_and_pools_in_any_layout(layout):
    net = nn.Sequential(
        nn.Conv2d(2, 8, 3, 2), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 6, 3)
    ).eval()
    x = torch.rand(2, 2, 20, 20)
    expected = hs.propagate(net, x, 0.01)
    with torch.no_grad():
        out = hs.propagate(net.to(memory_format=layout), x.to(memory_format=layout), 0.01)
    torch.testing.assert_close(out.mean, expected.mean)
    torch.testing.assert_close(out.var, expected.var)


def test_flattening_an_image_keeps_the_order_of_its_elements():
    conv = nn.Conv2d(1, 4, 3)
    x = torch.rand(2, 1, 9, 9)
    with torch.no_grad():
        out = hs.propagate(lambda x: conv(x).view(2, -1), x, 0.0)
        torch.testing.assert_close(out.mean, conv(x).reshape(2, -1))


def test_weights_that_are_trained_are_not_kept():
    weight = torch.rand(2, 2, requires_grad=True)
    squared(weight, torch.float32).sum().backward()
    torch.testing.assert_close(weight.grad, 2 * weight.detach())


@pytest.mark.parametrize(
    "change",
    [
        lambda t: t,
        lambda t: t.to(memory_format=torch.channels_last),
        lambda t: t[:, :, ::2],
        lambda t: t.transpose(1, 3),
        lambda t: t[:1].expand(3, -1, -1, -1),
    ],
    ids=["contiguous", "channels last", "strided", "transposed", "expanded"],
)
def test_blocks_in_any_layout(change):
    x, y = change(torch.rand(3, 4, 10, 8)), torch.rand(3, 4, 10, 8)
    y = y[tuple(slice(n) for n in x.shape)] if x.shape[1] == 4 else y.transpose(1, 3)
    with torch.no_grad():
        total, product = in_blocks(lambda a, b: (a + b, a * b), x, y, size=50)
    torch.testing.assert_close(total, x + y)
    torch.testing.assert_close(product, x * y)


@pytest.mark.parametrize(
    "function", [torch.sigmoid, torch.tanh, F.silu, F.mish, F.gelu, F.logsigmoid]
)
@pytest.mark.parametrize("std", [0.01, 0.1, 0.199])
def test_few_nodes_are_enough_for_narrow_gaussians(function, std):
    mean = torch.linspace(-3, 3, 41, dtype=torch.float64)
    found = hs.propagate(function, mean.float(), std**2)
    found = Moments(found.mean.double(), found.var.double())
    z, weights = (torch.tensor(each)[:, None] for each in hermegauss(100))
    values = function(mean + std * z)
    expected = (weights * values).sum(0) / weights.sum()
    var = (weights * (values - expected).square()).sum(0) / weights.sum()
    torch.testing.assert_close(found.mean, expected, rtol=1e-4, atol=1e-6)
    # On some processors torch's float32 gelu is off by 7e-7 where it is nearly 0.
    rounding = float((function(mean.float()) - function(mean.float().double())).abs().max())
    torch.testing.assert_close(found.var.sqrt(), var.sqrt(), rtol=4e-5, atol=1e-8 + rounding)


@pytest.mark.parametrize(
    "method, options",
    [("adf", {}), ("sampled_adf", {"rate": 0.1})],
)
@pytest.mark.parametrize("net", [small_image_net, perceptron])
def test_variances_in_half_the_bits_are_within_a_hundredth(method, options, net):
    model = net()
    x = torch.rand(2, 1, 8, 8) if net is small_image_net else torch.rand(2, 3)
    full = hs.Uncertain(model, 0.01, method, **options)(x)
    sure = hs.Uncertain(model, 0.01, method, variance_dtype=torch.bfloat16, **options)
    half = sure(x)
    assert half.data_var.dtype == torch.float32
    assert not torch.equal(half.data_var, full.data_var)
    torch.testing.assert_close(half.total_var, full.total_var, rtol=0.01, atol=0)
    torch.testing.assert_close(half.mean, full.mean, rtol=1e-3, atol=1e-3)


def test_variance_dtype_is_kept_in_the_settings_and_checked(tmp_path):
    sure = hs.Uncertain(perceptron(), 0.1, "adf", variance_dtype=torch.bfloat16)
    sure.save(tmp_path / "settings")
    loaded = hs.Uncertain.load(tmp_path / "settings", perceptron())
    assert loaded.setup.variance_dtype == torch.bfloat16
    with pytest.raises(ValueError, match="`variance_dtype` must be"):
        hs.Uncertain(perceptron(), 0.1, variance_dtype=torch.float16)


def test_precision_of_one_call_does_not_leak_into_the_next():
    model, x = perceptron(), torch.rand(2, 3)
    before = hs.Uncertain(model, 0.1, "adf")(x)
    hs.Uncertain(model, 0.1, "adf", variance_dtype=torch.bfloat16)(x)
    torch.testing.assert_close(
        hs.Uncertain(model, 0.1, "adf")(x).total_var, before.total_var, rtol=0, atol=0
    )


@pytest.mark.parametrize(
    "shape, chunk", [((64, 16), 64), ((1, 3, 224, 224), 64), ((8, 3, 64, 64), 8)]
)
def test_small_models_run_many_samples_at_once(shape, chunk):
    sites = [Site("layer", "after", (), (64,))]
    assert usual_chunk(sites, torch.empty(shape)) == chunk


@pytest.mark.parametrize("method", ["adf", "sampled_adf", "mc_dropout"])
def test_freed_memory_is_asked_for_once(method):
    warm_up_allocator.cache_clear()
    for _ in range(2):
        hs.Uncertain(perceptron(), 0.1, method, rate=0.1, samples=2)(torch.rand(2, 3))
    assert warm_up_allocator.cache_info().misses == 1


class Subnormal(TorchDispatchMode):
    """Counts the numbers so small that some processors take thirty times as long for them."""

    def __init__(self):
        super().__init__()
        self.count = self.of = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        is_computed = isinstance(result, torch.Tensor) and "empty" not in str(func)
        if is_computed and result.is_floating_point():
            self.count += int(((result != 0) & (result.abs() < 1.17e-38)).sum())
            self.of += result.numel()
        return result


def test_hardly_any_number_is_too_small_for_fast_arithmetic():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 3, 3), nn.MaxPool2d(3, 1), nn.Flatten(), nn.Linear(108, 1))
    with Subnormal() as seen:
        hs.propagate(model.eval(), torch.rand(1, 1, 10, 10), 1e-4)
    assert seen.of > 10_000 and seen.count < 1e-3 * seen.of
