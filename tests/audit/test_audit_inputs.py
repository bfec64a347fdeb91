"""What an audit takes, what it refuses, and that it leaves the model as it was."""

import math
import time

import pytest
import torch
from quick_audits import quick
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import howsure as hs
from howsure.auditing import run
from howsure.auditing.case import gather_inputs
from howsure.auditing.layers import OUTPUT
from nets import TwoSensors


def test_dict_outputs_several_inputs_and_loaders():
    model = TwoSensors().eval()
    batches = [
        ({"image": torch.randn(3, 1, 8, 8), "motion": torch.randn(3, 6)}, torch.zeros(3))
        for _ in range(3)
    ]
    result = quick(
        model,
        batches,
        {"image": 0.01, "motion": 0.04},
        inputs=7,
        samples=150,
        methods=["gradients"],
    )
    assert (result.inputs, result.outputs) == (7, 3)
    assert result.row("gradients").total.ratio.value == pytest.approx(1, abs=0.1)


def test_inputs_are_gathered_from_every_form_of_data():
    x, y = torch.randn(10, 4), torch.zeros(10)
    loader = DataLoader(TensorDataset(x, y), batch_size=4)
    assert torch.equal(gather_inputs(loader, 64), x)
    assert torch.equal(gather_inputs(loader, 6), x[:6])
    assert torch.equal(gather_inputs(x, 3), x[:3])
    assert torch.equal(gather_inputs([x[:5], x[5:]], 64), x)
    assert torch.equal(gather_inputs({"a": x}, 2)["a"], x[:2])
    one, two = gather_inputs([((x, x + 1), y)], 5)
    assert torch.equal(two, one + 1) and len(one) == 5


@pytest.mark.parametrize("batch", [1, 3])
def test_few_inputs_and_one_output(batch):
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)).eval()
    result = quick(model, torch.randn(batch, 3), 0.01, samples=100)
    ratio = result.row("linear").total.ratio
    assert ratio.low < ratio.value < ratio.high  # the truth's noise remains with one input
    assert "the intervals are wide" in str(result)


def test_same_seed_same_numbers():
    model = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 2)).eval()
    x = torch.randn(9, 3)

    def numbers(seed):
        found = quick(
            model, x, 0.1, 0.1, samples=40, seed=seed, methods=["adf", "sampled_adf"]
        ).to_dict()
        for row in found["rows"]:
            row.pop("cost")
        return found["rows"], found["layers"], found["plain_shift"]

    state = torch.get_rng_state()
    assert numbers(1) == numbers(1)
    assert numbers(1) != numbers(2)
    assert torch.equal(state, torch.get_rng_state())


def test_methods_that_do_not_apply_say_why():
    model = nn.Sequential(nn.Linear(3, 300)).eval()
    result = quick(model, torch.randn(4, 3), 0.01, samples=50)
    reasons = dict(result.skipped)
    assert "300 outputs per input" in reasons["gradients"]
    assert "300 outputs per input" in reasons["linear"]
    assert reasons["mc_dropout (samples=20)"] == "no dropout rate is given"
    assert {row.method for row in result.rows} == {"adf", "noise_sampling"}


def test_an_operation_without_a_rule_leaves_the_methods_that_need_none():
    class Odd(nn.Module):
        def forward(self, x):
            return torch.special.bessel_j0(x).sum(1, keepdim=True)

    result = quick(Odd().eval(), torch.randn(8, 3), 0.01, samples=100)
    assert "adf" in dict(result.skipped) and "bessel" in dict(result.skipped)["adf"]
    assert not result.layers and any("No table of layers" in note for note in result.notes)
    assert result.row("noise_sampling").total.ratio.value > 0


def test_dense_outputs_are_drawn_at_random():
    model = nn.Conv2d(1, 2, 3, padding=1).eval()
    result = quick(model, torch.randn(8, 1, 24, 24), 0.01, samples=60, methods=["adf"])
    assert result.outputs == 256
    assert any("256 of 1152 outputs were compared" in note for note in result.notes)
    assert result.row("adf").total.ratio.value == pytest.approx(1, abs=0.03)


def test_dropout_alone_and_existing_dropout():
    model = nn.Sequential(nn.Linear(4, 32), nn.Dropout(0.2), nn.Linear(32, 2)).eval()
    x = torch.randn(12, 4)
    given = quick(model, x, None, 0.2, samples=200, methods=["gradients", "adf"])
    own = quick(model, x, placement="existing", samples=200, methods=["gradients"])
    assert dict(given.skipped)["adf"] == "the inputs have no noise" and not given.layers
    assert given.row("gradients").total.ratio == own.row("gradients").total.ratio
    assert given.row("gradients").total.ratio.value == pytest.approx(1, abs=0.06)


class OverTime(nn.Module):
    """Linear layers over time: a mask has to serve all steps of an input."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 32), nn.Linear(32, 2)

    def forward(self, x):
        return self.second(self.first(x)).mean(1)


@pytest.mark.parametrize("steps", [1, 3, 6])
def test_layers_over_time_have_masks_for_each_input(steps):
    result = quick(OverTime().eval(), torch.randn(6, steps, 4), None, 0.1, methods=["gradients"])
    assert result.row("gradients").total.ratio.value == pytest.approx(1, abs=0.1)
    assert not any("same dropout masks" in note for note in result.notes)


def test_inputs_that_a_model_merges_with_time_have_masks_of_their_own():
    class Merged(OverTime):
        def forward(self, x):
            return super().forward(x.flatten(0, 1)).unflatten(0, x.shape[:2])

    result = quick(Merged().eval(), torch.randn(6, 3, 4), None, 0.1, methods=["gradients"])
    assert result.row("gradients").total.ratio.value == pytest.approx(1, abs=0.1)
    assert not any("same dropout masks" in note for note in result.notes)


def test_inputs_that_share_a_layer_share_its_masks():
    class Placed(OverTime):
        def forward(self, x):
            return self.second(x.sum(2, keepdim=True) + self.first(torch.eye(x.shape[1], 4))).mean(
                1
            )

    result = quick(Placed().eval(), torch.randn(6, 3, 4), None, 0.1, methods=["gradients"])
    assert any("same dropout masks" in note for note in result.notes)


def test_nothing_to_audit_is_an_error():
    model, x = nn.Linear(3, 2).eval(), torch.randn(4, 3)
    for noise, rate in ((None, None), (0.0, None), (torch.zeros(3), 0.0)):
        with pytest.raises(ValueError, match="nothing to audit"):
            quick(model, x, noise, rate)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"methods": ["magic"]}, "has 'magic'"),
        ({"methods": ["adjoint"]}, '"adjoint" was removed: "gradients"'),
        ({"methods": []}, "is empty"),
        ({"samples": 3}, "at least 10"),
        ({"batch_dim": None}, "must be on the first axis"),
        ({"inputs": 0}, "at least 1"),
        ({"time_limit": -1.0, "samples": None}, "positive number of seconds"),
        ({"time_limit": 1e-6, "samples": None}, "do not fit into a `time_limit`"),
    ],
)
def test_wrong_settings_are_one_sentence(options, message):
    with pytest.raises(ValueError, match=message):
        quick(nn.Linear(3, 2).eval(), torch.randn(4, 3), 0.1, **options)


def test_one_slow_pass_of_a_busy_machine_refuses_nothing(monkeypatch):
    """As when another process has the processor for a moment."""
    stalls, at_once = iter([0.02]), run.plain_pass

    def plain_pass(setup, x):
        time.sleep(next(stalls, 0))
        return at_once(setup, x)

    monkeypatch.setattr(run, "plain_pass", plain_pass)
    options = {"samples": None, "time_limit": 1.0, "methods": ["linear"]}
    assert quick(nn.Linear(3, 2).eval(), torch.randn(4, 3), 0.1, **options).samples >= 100
    assert next(stalls, None) is None


def test_wrong_data_and_models_are_one_sentence():
    model = nn.Linear(3, 2)
    with pytest.raises(ValueError, match="train mode"):
        quick(model, torch.randn(4, 3), 0.1)
    model.eval()
    with pytest.raises(ValueError, match="data is empty"):
        quick(model, [], 0.1)
    with pytest.raises(TypeError, match="is a int"):
        quick(model, 3, 0.1)
    with pytest.raises(ValueError, match="first axis of every output"):
        quick(nn.Sequential(model, nn.Flatten(0)).eval(), torch.randn(4, 3), 0.1)
    with pytest.raises(ValueError, match="NaN or infinity"):
        quick(model, torch.full((4, 3), math.nan), 0.1)


class Breaks(nn.Module):
    """Fails after some calls, counted for all models, with a hook of the user's own."""

    left = 0

    def __init__(self, calls):
        super().__init__()
        self.layer, self.seen, Breaks.left = nn.Linear(3, 2), 0, calls
        self.layer.register_forward_hook(self.count)

    def count(self, *_):
        self.seen += 1

    def forward(self, x):
        Breaks.left -= 1
        if Breaks.left < 0:
            raise RuntimeError("the user's model broke")
        return self.layer(x)


def hooks_of(model):
    return [len(module._forward_hooks) for module in model.modules()]


@pytest.mark.parametrize("calls", [1, 40, 130, 10_000])
def test_the_model_is_left_as_it_was(calls):
    model = Breaks(calls).eval()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    hooks = hooks_of(model)
    try:
        quick(model, torch.randn(4, 3), 0.1, samples=100)
        broke = False
    except RuntimeError as error:
        broke = "the user's model broke" in str(error)
    assert broke == (calls < 10_000)
    assert hooks_of(model) == hooks == [0, 1]
    assert not any(module.training for module in model.modules())
    assert all(p.requires_grad and p.grad is None for p in model.parameters())
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())


def test_layers_that_are_called_twice_or_write_in_place():
    class Shared(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer, self.act = nn.Linear(4, 4), nn.ReLU(inplace=True)

        def forward(self, x):
            return self.layer(self.act(self.layer(x)))

    result = quick(Shared().eval(), torch.randn(32, 4), 1e-4, samples=200, methods=["adf"])
    assert [row.name for row in result.layers] == ["layer", "act", "layer#2", OUTPUT]
    # In place: the layer's own output must be seen before the rectifier cuts it.
    assert result.layers[0].ratio == pytest.approx(1, abs=0.03)
    assert result.layers[0].mean_error < 0.05


def test_classification_compares_probabilities():
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3)).eval()
    options = {"samples": 200, "methods": ["linear"], "task": "classification"}
    result = quick(model, torch.randn(16, 4), 0.01, **options)
    assert result.outputs == 3
    assert result.row("linear").total.ratio.value == pytest.approx(1, abs=0.06)


def test_noise_objects_and_a_variance_for_every_element():
    model = nn.Sequential(nn.Linear(3, 2)).eval()
    x = torch.randn(10, 3)
    one = quick(model, x, hs.noise.std(0.1), samples=50, methods=["adf"])
    two = quick(model, x, torch.full((10, 3), 0.01), samples=50, methods=["adf"])
    assert one.row("adf").total.ratio.value == pytest.approx(two.row("adf").total.ratio.value)


def test_the_old_name_of_the_time_limit_says_the_new_one():
    with pytest.raises(TypeError, match="now called `time_limit`"):
        hs.audit(nn.Linear(2, 1).eval(), torch.rand(4, 2), 0.1, budget=5)
