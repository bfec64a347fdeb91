"""Every law on every rule of the registry: a new rule is tested without a new test."""

import pytest

import howsure.moments.rules  # noqa: F401  (fills the table)
from howsure.moments.rule import registered
from howsure.testing import LAWS, applies

RULES = [rule for rule in registered() if applies(rule)]


@pytest.mark.parametrize("law", LAWS, ids=lambda law: law.__name__)
@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name.replace(" ", "_"))
def test_rule_satisfies_law(rule, law):
    samples = rule.draw_samples()
    assert samples, "a rule without samples is not tested"
    for number, sample in enumerate(samples):
        try:
            law(rule, sample)
        except AssertionError as error:
            raise AssertionError(f"sample {number}: {error}") from error
