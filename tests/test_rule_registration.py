"""A rule is one registration: the laws see it, and a call may override it."""

import pytest
import torch

import howsure as hs
from howsure.moments.families import (
    bilinear_map,
    composite,
    elementwise,
    separable_map,
    structural,
)
from howsure.moments.rule import (
    EXACT,
    Rule,
    Sample,
    find,
    one_of_each_shape,
    operands,
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
    "quadrature": lambda: elementwise(torch.special.ndtr, name="ndtr"),
    "composite": lambda: composite(
        torch.special.xlog1py,
        name="xlog1py",
        samples=lambda draw: [Sample(draw.moments(3), draw.positive(3))],
    )(_xlog1py),
}


def _xlog1py(input, other):
    """As `mul`, with a logarithm."""
    return input * torch.log1p(other)


@pytest.mark.parametrize("mechanism", ONE_LINE)
def test_one_line_makes_a_rule_of_every_mechanism(mechanism):
    new = ONE_LINE[mechanism]()
    try:
        check_rule(new)
    finally:
        unregister(new)
