"""A setup without anything random: a std of 0 with the remedy, and no note about rows."""

import re

import pytest
import torch
from torch import nn

import howsure as hs

X = torch.randn(6, 100, generator=torch.Generator().manual_seed(0))


def network(*, dropout: bool) -> nn.Module:
    torch.manual_seed(0)
    layers = [nn.Linear(100, 32), nn.ReLU(), nn.Linear(32, 2)]
    return nn.Sequential(*layers[:2], *([nn.Dropout(0.2)] if dropout else []), layers[2]).eval()


OWN = r'No source of uncertainty.*pass `placement="existing"`'
NONE = r"No source of uncertainty.*`\.fit\(loader\)` first\.$"


@pytest.mark.parametrize("method", ["gradients", "noise_sampling", "linear", "adf"])
@pytest.mark.parametrize(("dropout", "words"), [(True, OWN), (False, NONE)])
def test_own_dropout_layers_are_off_in_eval_mode_and_a_note_says_how_to_count_them(
    method, dropout, words
):
    p = hs.Uncertain(network(dropout=dropout), None, method)(X)
    assert bool((p.std == 0).all()) and p.std.shape == (6, 2)
    (note,) = p.notes
    assert re.search(words, note)


@pytest.mark.parametrize(("dropout", "words"), [(True, OWN), (False, NONE)])
def test_where_howsure_is_to_choose_there_must_be_something(dropout, words):
    with pytest.raises(ValueError, match=words):
        hs.Uncertain(network(dropout=dropout), None)(X)


@pytest.mark.parametrize("method", ["auto", "gradients", "noise_sampling"])
def test_own_dropout_layers_count_where_they_are_asked_for(method):
    p = hs.Uncertain(network(dropout=True), None, method, placement="existing")(X)
    assert bool((p.model_var > 0).all()) and bool((p.data_var == 0).all())


@pytest.mark.parametrize("method", ["gradients", "noise_sampling", "linear", "adf"])
def test_a_constant_variance_alone_is_one_for_each_row(method):
    p = hs.Uncertain(network(dropout=True), None, method, residual_var=0.04)(X)
    assert p.notes == () and torch.allclose(p.std, torch.full((6, 2), 0.2))


def test_a_model_that_draws_numbers_itself_is_sampled_without_any_noise():
    class Policy(nn.Linear):
        def forward(self, x):
            return super().forward(x) + 0.1 * torch.randn(len(x), 2)

    p = hs.Uncertain(Policy(100, 2).eval(), None, "noise_sampling")(X)
    assert torch.allclose(p.std, torch.full((6, 2), 0.1), rtol=0.3)
