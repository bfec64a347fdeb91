"""Operations without a rule: answered on request, and named in the notes."""

import pytest
import torch
from torch import nn

import howsure as hs

X = torch.randn(3, 5, generator=torch.Generator().manual_seed(0))


def quartic(x):
    return torch.special.i0(x)


def test_the_default_is_an_error():
    with pytest.raises(hs.NoRuleError, match='fallback="linearize"'):
        hs.propagate(quartic, X, 0.01)
    with pytest.raises(ValueError, match="must be one of"):
        hs.propagate(quartic, X, 0.01, fallback="guess")


def test_linearized_is_the_squared_jacobian_and_is_noted():
    net = nn.Sequential(nn.Linear(5, 4), nn.ReLU())

    def model(x):
        return quartic(net(x))

    out = hs.propagate(model, X, 0.01, fallback="linearize")
    inner = hs.propagate(net, X, 0.01)
    slope = torch.special.i1(inner.mean)
    torch.testing.assert_close(out.var, slope.square() * inner.var)
    assert out.notes == (
        "`torch.special.i0` has no rule and was linearized in the model's function, 1 x.",
    )
    assert hs.propagate(net, X, 0.01, fallback="linearize").notes == ()


def test_many_elements_are_linearized_by_random_directions():
    x = torch.randn(64, 33, generator=torch.Generator().manual_seed(1))
    out = hs.propagate(quartic, x, 0.01, fallback="linearize")
    expected = torch.special.i1(x).square() * 0.01
    # An elementwise operation squares random signs to 1: exact whatever the directions.
    torch.testing.assert_close(out.var, expected)
    mixed = hs.propagate(lambda t: torch.linalg.pinv(t), x[:16, :16], 1e-6, fallback="linearize")
    jacobian = torch.func.jacrev(torch.linalg.pinv)(x[:16, :16])
    exact = jacobian.square().sum((2, 3)) * 1e-6
    # 256 outputs share 128 directions, whose relative error is sqrt(2 / 128) = 0.125 each.
    assert 0.85 < float(mixed.var.sum() / exact.sum()) < 1.15


def test_sampled_agrees_with_linearized_for_small_noise():
    one = hs.propagate(quartic, X, 1e-4, fallback="sample")
    two = hs.propagate(quartic, X, 1e-4, fallback="linearize")
    torch.testing.assert_close(one.var, two.var, rtol=0.5, atol=1e-9)
    assert "sampled" in one.notes[0]


def test_orders_and_masks_are_frozen_at_the_mean():
    out = hs.propagate(lambda x: x.sort(1), X, torch.arange(5.0), fallback="linearize")
    values, order = X.sort(1)
    assert torch.equal(out.mean.values, values) and torch.equal(out.mean.indices, order)
    torch.testing.assert_close(out.var.values, torch.arange(5.0)[order])
    top = hs.propagate(lambda x: x.topk(2).values, X, 0.1, fallback="linearize")
    torch.testing.assert_close(top.var, torch.full((3, 2), 0.1))
    mask = hs.propagate(lambda x: (x > 0) * x, X, 0.1, fallback="linearize")
    torch.testing.assert_close(mask.var, 0.1 * (X > 0).float())


def test_steps_and_complex_results_stay_refused():
    for model in (torch.round, torch.fft.fft, lambda x: x.item()):
        for fallback in ("linearize", "sample"):
            with pytest.raises(hs.NoRuleError):
                hs.propagate(model, X, 0.1, fallback=fallback)


def test_scripted_modules_and_operators_from_cpp_take_the_fallback():
    scripted = torch.jit.script(nn.Sequential(nn.Linear(5, 3), nn.Softplus()))
    out = hs.propagate(scripted, X, 1e-6, fallback="linearize")
    jacobian = torch.func.vmap(torch.func.jacrev(lambda x: scripted(x)))(X)
    torch.testing.assert_close(out.var, 1e-6 * jacobian.square().sum(-1))

    @torch.library.custom_op("howsure_test::cube", mutates_args=())
    def cube(x: torch.Tensor) -> torch.Tensor:
        return x**3

    def backward(ctx, gradient):
        return gradient * 3 * ctx.x**2

    def setup(ctx, inputs, output):
        ctx.x = inputs[0]

    cube.register_autograd(backward, setup_context=setup)
    out = hs.propagate(lambda x: torch.ops.howsure_test.cube(x), X, 1e-6, fallback="linearize")
    torch.testing.assert_close(out.var, (3 * X**2).square() * 1e-6, rtol=1e-4, atol=0)


def test_an_operation_without_derivatives_names_the_other_fallback():
    @torch.library.custom_op("howsure_test::opaque", mutates_args=())
    def opaque(x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    def model(x):
        return torch.ops.howsure_test.opaque(x)

    with pytest.raises(hs.NoRuleError, match='fallback="sample"'):
        hs.propagate(model, X, 0.1, fallback="linearize")
    assert hs.propagate(model, X, 0.1, fallback="sample").var.shape == X.shape
