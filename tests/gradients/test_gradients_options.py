"""Options of the method, parts of the output, and calls of every kind."""

import pytest
import torch
from torch import nn

import howsure as hs


def test_the_model_is_left_as_it_was():
    net = nn.Sequential(nn.Linear(70, 8), nn.ReLU(), nn.Linear(8, 2)).eval()
    net[0].weight.requires_grad_(False)
    before = {name: value.clone() for name, value in net.state_dict().items()}
    hs.Uncertain(net, 0.01, "gradients", rate=0.1)(torch.randn(3, 70))
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())
    assert [p.requires_grad for p in net.parameters()] == [False, True, True, True]
    assert all(p.grad is None for p in net.parameters())


def test_scripted_and_traced_models_run():
    net, x = nn.Sequential(nn.Linear(70, 8), nn.Tanh(), nn.Linear(8, 2)).eval(), torch.randn(3, 70)
    expected = hs.Uncertain(net, 0.01, "gradients")(x).std
    for model in (
        torch.jit.script(net),
        torch.jit.trace(net, x),
        torch.jit.freeze(torch.jit.script(net)),
    ):
        p = hs.Uncertain(model, 0.01, "gradients")(x)
        assert p.method == "gradients"
        torch.testing.assert_close(p.std, expected, rtol=1e-4, atol=1e-7)


def test_tokens_with_noise_on_their_embeddings_and_with_dropout():
    class Tokens(nn.Module):
        def __init__(self):
            super().__init__()
            self.table, self.drop, self.head = (
                nn.Embedding(50, 16),
                nn.Dropout(0.1),
                nn.Linear(16, 2),
            )

        def forward(self, ids=None, embedded=None):
            h = self.table(ids) if embedded is None else embedded
            return self.head(self.drop(torch.tanh(h)).mean(1))

    net, ids = Tokens().eval(), torch.randint(0, 50, (3, 7))
    p = hs.Uncertain(net, {"embedded": 0.01}, "gradients")(embedded=net.table(ids).detach())
    assert p.method == "gradients" and float(p.std.min()) > 0
    p = hs.Uncertain(net, None, "gradients", placement="existing")(ids)
    assert float(p.model_var.min()) > 0 and float(p.data_var.max()) == 0
    with pytest.raises(TypeError, match="floating-point"):
        hs.Uncertain(net, 0.01, "gradients")(ids)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"samples": 0}, "whole number of at least 1"),
        ({"tolerance": 0.0}, "between 0 and 1"),
        ({"tolerance": -1.0}, "between 0 and 1"),
        ({"method": "adjoint"}, "gradients"),
        ({"method": "control_variate"}, "gradients"),
        ({"prediction": "adf"}, '"mean"'),
        ({"noise": float("nan")}, "finite"),
        ({"noise": -1.0}, "negative"),
    ],
)
def test_wrong_options_are_refused_in_one_sentence(options, words):
    with pytest.raises(ValueError, match=words):
        hs.Uncertain(nn.Linear(3, 1).eval(), **{"noise": 0.1, **options})(torch.zeros(1, 3))


@pytest.mark.parametrize("option", ["sampels", "probes", "metod"])
def test_an_option_that_there_is_not_is_told(option):
    with pytest.raises(TypeError, match=f"unexpected keyword argument '{option}'"):
        hs.Uncertain(nn.Linear(2, 1).eval(), 0.1, **{option: 3})


def test_the_old_name_of_a_field_says_the_new():
    p = hs.Uncertain(nn.Linear(2, 1).eval(), 0.1)(torch.zeros(1, 2))
    with pytest.raises(AttributeError, match="linear_share"):
        _ = p.trust


def test_too_many_outputs_are_refused_with_a_remedy():
    net, x = nn.Linear(80, 65).eval(), torch.zeros(1, 80)
    with pytest.raises(ValueError, match="output=lambda"):
        hs.Uncertain(net, 0.1, "gradients")(x)
    assert hs.Uncertain(net, 0.1, "gradients", output=lambda y: y[:, :8])(x).std.shape == (1, 8)


def test_part_of_the_output_by_key_index_and_attribute():
    class Named(nn.Module):
        def forward(self, x):
            return {"a": x[:, :1], "b": (2 * x[:, 1:3], x)}

    x = torch.zeros(2, 70)
    sure = hs.Uncertain(Named().eval(), 1.0, "gradients", output="a")
    torch.testing.assert_close(sure(x).std, torch.ones(2, 1))
    with pytest.raises(ValueError, match="no part of what the model returns"):
        hs.Uncertain(Named().eval(), 1.0, "gradients", output="c")(x)


def test_an_empty_batch_has_an_empty_prediction():
    p = hs.Uncertain(nn.Linear(80, 2).eval(), 0.1, "gradients")(torch.zeros(0, 80))
    assert p.std.shape == (0, 2)


def test_inside_inference_mode_and_with_its_weights():
    with torch.inference_mode():
        net = nn.Linear(80, 2).eval()
        p = hs.Uncertain(net, 0.1, "gradients")(torch.zeros(1, 80))
    expected = 0.1**0.5 * net.weight.clone().square().sum(1).sqrt()
    torch.testing.assert_close(p.std[0], expected)
    weight = torch.ones(2, requires_grad=True)
    (p.mean * weight).sum().backward()
