"""Outputs of every structure, arrays, and what a call takes as its inputs."""

import dataclasses

import numpy as np
import pytest
import torch
from torch import nn
from users_models import (
    ROWS,
    STATE,
    STEPS,
    TOKENS,
    ModelOutput,
    Policy,
    Recurrent,
    Returns,
    TimeFirst,
    Tokens,
    Two,
    X,
    Y,
    held_out,
    mlp,
)

import howsure as hs


def test_the_whole_output_keeps_its_structure():
    packs = {
        "class": lambda y, x: ModelOutput(logits=y, hidden=2 * x),
        "dict": lambda y, x: {"logits": y, "hidden": 2 * x},
    }
    for packed in packs.values():
        p = hs.Uncertain(Returns(packed).eval(), noise=0.01, method="linear")(X[:4])
        assert list(p.mean) == ["logits", "hidden"]
        torch.testing.assert_close(p.data_var["hidden"], torch.full((4, 4), 0.04))
        assert p[0].mean["logits"].shape == (1, 2)


def test_a_function_chooses_and_says_that_it_cannot_be_saved(tmp_path):
    model = Returns(lambda y, x: (y, x)).eval()
    sure = hs.Uncertain(model, noise=0.01, output=lambda both: both[0][:, 0])
    assert sure(X[:4]).std.shape == (4,)
    with pytest.raises(TypeError, match="cannot be saved, because a function is not plain data"):
        sure.save(tmp_path / "settings.pt")


def test_a_distribution_as_the_output_is_a_mean_and_a_variance():
    model = Policy().eval()
    with torch.no_grad():
        normal = model(X[:4])
    p = hs.Uncertain(model, noise=0.01)(X[:4])
    torch.testing.assert_close(p.mean, normal.mean)
    assert bool((p.data_var > normal.variance).all())


def test_classes_of_an_output_of_a_class():
    model = Returns(lambda y, x: ModelOutput(logits=y)).eval()
    sure = hs.Uncertain(model, noise=0.01, output="logits", task="classification")
    with torch.no_grad():
        labels = (model.net(X) + Y).argmax(1)
    sure.fit(held_out(X, labels), show_progress=False)
    assert sure.setup.temperature_model is not None
    torch.testing.assert_close(sure(X[:4]).mean.sum(1), torch.ones(4))


def test_rows_on_axis_1_are_fitted_as_rows_on_axis_0():
    net, steps = mlp(), STEPS.transpose(0, 1)  # (time, batch, 4)
    targets = torch.randn(ROWS, 5, 2, generator=torch.Generator().manual_seed(5))
    first = hs.Uncertain(net, noise=0.01)
    second = hs.Uncertain(TimeFirst(net).eval(), noise=0.01, batch_dim=1)
    first.fit(held_out(STEPS, targets), show_progress=False)
    pairs = [
        (steps[:, i : i + 32], targets[i : i + 32].transpose(0, 1)) for i in range(0, ROWS, 32)
    ]
    second.fit(pairs, show_progress=False)
    one, two = first(STEPS[:4]), second(steps[:, :4])
    assert two.std.shape == (5, 4, 2) and len(two) == 4
    torch.testing.assert_close(two.model_var.transpose(0, 1), one.model_var, rtol=1e-3, atol=1e-6)


def test_a_call_that_is_one_input():
    p = hs.Uncertain(Returns(lambda y, x: y.mean(0)).eval(), noise=0.01, batch_dim=None)(X[:7])
    assert p.std.shape == (2,) and bool((p.std > 0).all())
    with pytest.raises(TypeError, match="has no rows"):
        len(p)


@pytest.mark.slow
def test_noise_on_a_hidden_state_is_fitted_by_a_rate():
    """Its rows are not on the axis of the other input, so the call is one input."""
    model = Recurrent().eval()
    with torch.no_grad():
        y = model(STEPS, STATE)[0] + 0.05 * Y
    sure = hs.Uncertain(model, noise=(0.01, 0.01), output=0)
    pairs = [((STEPS[i : i + 2], STATE[:, i : i + 2]), y[i : i + 2]) for i in (0, 2)]
    with pytest.warns(hs.HowsureWarning, match="4 held-out inputs"):
        sure.fit(pairs, model="dropout", show_progress=False)
    assert sure.setup.rate is not None
    p = sure(STEPS[:4], STATE[:, :4])
    assert p.std.shape == (4, 2) and bool((p.model_var > 0).all())


def test_outputs_with_rows_on_different_axes_have_their_variances():
    p = hs.Uncertain(Recurrent().eval(), noise=(0.01, None))(STEPS[:4], STATE[:, :4])
    assert [tuple(each.shape) for each in p.std] == [(4, 2), (1, 4, 8)]
    with pytest.raises(TypeError, match="choose one of them"):
        len(p)


def test_tokens_have_no_noise_but_a_posterior():
    sure = hs.Uncertain(Tokens().eval())
    with pytest.raises(ValueError, match="No source of uncertainty"):
        sure(TOKENS[:4])
    sure.fit(held_out(TOKENS, Y), show_progress=False)
    p = sure(TOKENS[:4])
    assert bool((p.model_var > 0).all()) and sure.setup.variance_model is not None
    with pytest.raises(TypeError, match="only floating-point tensors can carry noise"):
        hs.Uncertain(Tokens().eval(), noise=0.01)(TOKENS[:4])


def test_an_array_is_one_batch_of_predict():
    sure = hs.Uncertain(mlp(), noise=0.01)
    expected = sure(X[:4])
    found = sure.predict(X[:4].double().numpy(), show_progress=False)
    torch.testing.assert_close(found.std, expected.std)
    assert isinstance(found.numpy()["mean"], np.ndarray)


def test_broadcast_gaussians_share_memory_with_their_own():
    def second_is_changed(x):
        first, second = x * 1.0, x * 2.0
        both = torch.broadcast_tensors(first, second)
        both[1].add_(both[0])
        return first  # which was not written to

    out = hs.propagate(second_is_changed, X[:4], 0.01)
    torch.testing.assert_close(out.var, torch.full((4, 4), 0.01))

    def second_is_used(x):
        first, second = x * 1.0, x * 2.0
        both = torch.broadcast_tensors(first, second)
        both[1].add_(1.0)
        return second + 0.0

    with pytest.raises(hs.NoRuleError, match="shares memory"):
        hs.propagate(second_is_used, X[:4], 0.01)


def test_an_audit_takes_a_method_of_ones_own():
    own = hs.methods.Method("twice", lambda setup, x: twice(hs.methods.METHODS["linear"](setup, x)))

    def twice(p):
        return dataclasses.replace(p, data_var=4 * p.data_var)

    found = hs.audit(mlp(), X[:8], 1e-4, methods=["linear", own], samples=400, show_progress=False)
    ratios = {row.label: row.total.ratio.value for row in found.rows}
    assert ratios["twice"] == pytest.approx(2 * ratios["linear"], rel=1e-3)
    assert "kind" not in found.to_dict()["rows"][0]
    assert "twice" in str(found)


class Optional(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = mlp()

    def forward(self, x, gain=None):
        return self.net(x if gain is None else x * gain)


def test_a_variance_in_the_place_of_an_input_is_refused():
    variance = torch.full_like(X[:4], 0.01)
    for ask in (hs.check, hs.missing_rules):
        with pytest.raises(TypeError, match="an input or a variance"):
            ask(Optional().eval(), X[:4], variance)
    assert hs.check(Optional().eval(), x=X[:4], gain=variance).ok
    assert hs.check(Two().eval(), X[:4], variance).ok  # which needs a second input
