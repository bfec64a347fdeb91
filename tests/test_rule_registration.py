"""A rule is one registration: the laws see it, and a call may override it."""

import pytest
import torch

import howsure as hs
from howsure.moments.families import (
    bilinear_map,
    composite,
    elementwise,
    linear_map,
    pointwise,
    separable_map,
    structural,
    value_only,
)
from howsure.moments.rule import (
    EXACT,
    Kind,
    Rule,
    Sample,
    constant,
    find,
    normal,
    one_of_each_shape,
    operands,
    positive,
    register,
    registered,
    rule,
    sample,
    unregister,
)
from howsure.testing import check_rule


def test_a_new_rule_is_one_registration_and_the_laws_see_it():
    @rule(torch.special.i0e, name="toy", fidelity=EXACT, samples=one_of_each_shape, pointwise=True)
    def toy(input):
        """Wrong on purpose: the variance passes through.

        Assumes: nothing.

        Source: a test.
        """
        return hs.Moments(torch.special.i0e(input.mean), input.var)

    try:
        assert toy in registered() and find(torch.special.i0e) is toy
        with pytest.raises(AssertionError, match="`toy` breaks the law `oracle`"):
            check_rule(toy)
    finally:
        unregister(toy)
    assert find(torch.special.i0e) is None


def test_a_user_rule_serves_a_model_and_satisfies_the_laws():
    new = elementwise(torch.special.i0e, name="i0e")
    try:
        check_rule(new)
        out = hs.propagate(torch.special.i0e, torch.zeros(3), 0.1)
        assert bool((out.var > 0).all())
    finally:
        unregister(new)


def test_a_target_has_one_rule():
    with pytest.raises(ValueError, match="already has the rule `relu`"):
        register(find(torch.relu))
    with pytest.raises(ValueError, match="names no torch operation"):
        rule(name="none", fidelity=EXACT, samples=one_of_each_shape)(lambda input: input)


def test_rules_can_be_overridden_for_one_call():
    doubled = Rule(
        "doubled",
        lambda input: hs.Moments(input.mean, 2 * input.var),
        (torch.relu,),
        EXACT,
        one_of_each_shape,
    )
    out = hs.propagate(torch.relu, torch.ones(2), 0.1, rules={torch.relu: doubled})
    torch.testing.assert_close(out.var, torch.full((2,), 0.2))


# Operations of torch that have no rule, by mechanism: a rule is one line.
ONE_LINE = {
    "moves elements": lambda: structural(
        torch.diag_embed, name="diag_embed", samples=sample((2, 3)), views=False
    ),
    "bilinear": lambda: bilinear_map(
        torch.linalg.vecdot, name="vecdot", samples=operands((3, 4), second=(3, 4)), second="other"
    ),
    "separable": lambda: separable_map(
        torch.ops.aten._adaptive_avg_pool3d.default,
        name="pool",
        dims=3,
        samples=sample((1, 2, 5, 4, 3), [2, 3, 2]),
    ),
    "linear in data and weights": lambda: linear_map(
        torch.ops.aten.convolution.default,
        name="convolution",
        samples=[Sample(normal(2, 4, 6), constant(3, 4, 3), constant(3), *_ONE_DIMENSION)],
        source="a test",
    ),
    "quadrature": lambda: elementwise(torch.special.ndtr, name="ndtr"),
    "quadrature with a kink": lambda: elementwise(
        torch.copysign,
        name="copysign",
        samples=sample((3, 4), 1.0),
        deviation=lambda mean, step: (mean + step).abs() - mean.abs(),
    ),
    "formula": lambda: pointwise(torch.deg2rad, name="deg2rad")(_to_radians),
    "composite": lambda: composite(
        torch.special.xlog1py,
        name="xlog1py",
        samples=[Sample(normal(3), positive(3))],
    )(_xlog1py),
}
# Stride, padding, dilation, no transposition, no output padding, one group.
_ONE_DIMENSION = [1], [1], [1], False, [0], 1


def _xlog1py(input, other):
    """As `mul`, with a logarithm."""
    return input * torch.log1p(other)


def _to_radians(mean, var):
    """Var = (pi / 180)**2 var.

    Assumes: nothing; exact.

    Source: definition.
    """
    return hs.Moments(torch.deg2rad(mean), var * (torch.pi / 180) ** 2)


@pytest.mark.parametrize("mechanism", ONE_LINE)
def test_one_line_makes_a_rule_of_every_mechanism(mechanism):
    new = ONE_LINE[mechanism]()
    try:
        check_rule(new)
    finally:
        unregister(new)


def test_one_line_makes_a_query_that_the_mean_answers():
    with pytest.raises(hs.NoRuleError, match="result_type"):
        hs.propagate(lambda x: x.to(torch.result_type(x, 1.5)), torch.ones(3), 0.1)
    new = value_only(torch.result_type, name="result_type")
    try:
        assert new.kind is Kind.VALUE_ONLY
        out = hs.propagate(lambda x: x.to(torch.result_type(x, 1.5)), torch.ones(3), 0.1)
        torch.testing.assert_close(out.var, torch.full((3,), 0.1))
    finally:
        unregister(new)


def test_samples_are_a_list_or_a_function_and_an_argument_in_two_places_is_one():
    x = normal(3, 4)
    listed = Rule("listed", abs, (torch.abs,), EXACT, [Sample(x, [x], k=constant(2)), Sample(x)])
    first, second = listed.draw_samples()
    assert first.args[0] is first.args[1][0] is second.args[0]
    again = listed.draw_samples()
    assert torch.equal(first.args[0].mean, again[0].args[0].mean)
    assert first.kwargs["k"].shape == (2,)
    made = Rule("made", abs, (torch.abs,), EXACT, lambda draw: [Sample(draw.moments(3, 4))])
    assert torch.equal(made.draw_samples()[0].args[0].mean, first.args[0].mean)
