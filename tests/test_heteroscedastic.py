"""The variance head: any model, the trained mean kept, the noise of the data learned."""

import copy
import math
import threading

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from howsure import Uncertain
from howsure.methods.variance_head import add_variance_head, gaussian_loss, logit_loss
from howsure.multipliers import Multiply, draw_uniforms, find_sites, masks
from howsure.multipliers.sites import Placement
from howsure_lab.training import train_heteroscedastic
from nets import FunctionalResNet, TwoSensors


def mlp(outputs=2):
    return nn.Sequential(nn.Linear(3, 16), nn.ReLU(), nn.Linear(16, outputs)).eval()


class Tail(nn.Module):
    """A convolution comes last; a squeeze, a tanh and a scale follow."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv1d(3, 1, 5)

    def forward(self, x):
        return 3 * torch.tanh(self.conv(x)).squeeze(1).squeeze(-1)


def inputs(*shape, seed=1):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize(
    "model, x",
    [
        (mlp(), inputs(4, 3)),
        (FunctionalResNet(), inputs(4, 3, 8, 8)),
        (Tail().eval(), inputs(4, 3, 5)),
        (nn.Sequential(nn.ConvTranspose2d(2, 4, 3, groups=2, bias=False)), inputs(2, 2, 4, 4)),
        (nn.Sequential(nn.Conv2d(2, 3, 1), nn.Flatten()), inputs(2, 2, 4, 4)),
    ],
    ids=["mlp", "functional_resnet", "tail", "transposed", "flattened"],
)
def test_before_training_the_mean_is_the_models_and_the_variance_the_initial_one(model, x):
    made = add_variance_head(model.eval(), x, initial_var=0.25)
    mean, log_var = made(x)
    assert torch.equal(mean, model(x))
    assert log_var.shape == mean.shape
    torch.testing.assert_close(log_var.exp(), torch.full_like(mean, 0.25), rtol=1e-5, atol=0)


def test_structured_outputs_get_one_head_each():
    model = TwoSensors().eval()
    x = {"image": inputs(4, 1, 8, 8), "motion": inputs(4, 6)}
    made = add_variance_head(model, x)
    mean, log_var = made(**x)
    assert made.layers == ("heads.0", "heads.1")
    assert [each.shape for each in log_var["pose"]] == [each.shape for each in mean["pose"]]
    p = Uncertain(made, method="heteroscedastic")(**x)
    assert torch.equal(p.data_var["pose"][0], log_var["pose"][0].exp())
    assert p.data_var["time"] == 0.0


def test_the_users_model_is_not_changed_and_weight_names_are_kept():
    model, x = mlp(), inputs(4, 3)
    before = copy.deepcopy(model.state_dict())
    made = add_variance_head(model, x)
    train_heteroscedastic(made, [(x, inputs(4, 2))], epochs=2, show_progress=False)
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, before[name])
    assert set(made.network.state_dict()) == set(before)
    assert not torch.equal(made.network[0].weight, model[0].weight)


def test_losses_equal_their_formulas():
    mean, log_var, target = (inputs(5, 3, seed=seed) for seed in (1, 2, 3))
    expected = -torch.distributions.Normal(mean, (0.5 * log_var).exp()).log_prob(target).mean()
    torch.testing.assert_close(
        gaussian_loss(mean, log_var, target) + 0.5 * math.log(2 * math.pi), expected
    )
    labels, normal = torch.tensor([0, 2, 1, 1, 0]), inputs(7, 5, 3, seed=4)
    total = 0.0
    for row in range(5):
        draws = [F.softmax(mean[row] + (0.5 * log_var[row]).exp() * e[row], 0) for e in normal]
        total -= math.log(sum(float(p[labels[row]]) for p in draws) / 7)
    assert float(logit_loss(mean, log_var, labels, normal)) == pytest.approx(total / 5, rel=1e-5)
    dense = logit_loss(
        inputs(2, 3, 4, 4), inputs(2, 3, 4, 4), torch.zeros(2, 4, 4), inputs(2, 1, 1, 1, 1)
    )
    assert dense.isfinite()


def test_extreme_log_variances_stay_finite():
    made = add_variance_head(mlp(1), inputs(4, 3))
    for bias in (-1e4, 80.0):
        nn.init.constant_(made.heads[0].bias, bias)
        mean, log_var = made(inputs(4, 3))
        loss = gaussian_loss(mean, log_var, mean.detach() + 1e-3)
        loss.backward()
        assert loss.isfinite() and made.heads[0].bias.grad.isfinite().all()


def noisy_line(count=512):
    """y = x + noise whose std is 0.1 for x < 0 and 0.5 for x > 0."""
    x = inputs(count, 1)
    std = torch.where(x < 0, 0.1, 0.5)
    return x, x + std * inputs(count, 1, seed=2), std


def test_training_learns_the_noise_of_the_data():
    x, y, std = noisy_line()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(1, 16), nn.ReLU(), nn.Linear(16, 1))
    made = add_variance_head(model.eval(), x[:2], initial_var=0.3)
    losses = train_heteroscedastic(made, [(x, y)], epochs=500, lr=0.05, show_progress=False)
    p = Uncertain(made, method="heteroscedastic")(x)
    # Away from the step, which a small network can only smooth.
    low, high = (float(p.std[(std == s) & (x.abs() > 0.5)].mean()) for s in (0.1, 0.5))
    assert low == pytest.approx(0.1, rel=0.25) and high == pytest.approx(0.5, rel=0.25)
    # The entropy of the true noise bounds what can be learned: mean of log std + 1/2.
    assert losses[-1] < float(std.log().mean()) + 0.5 + 0.15
    assert float(p.model_var.max()) == 0.0


def test_training_is_reproducible_and_leaves_modes_and_global_randomness_alone():
    x, y, _ = noisy_line(64)
    model = nn.Sequential(nn.Linear(1, 8), nn.Dropout(0.3), nn.ReLU(), nn.Linear(8, 1))
    runs = []
    state = torch.get_rng_state()
    for seed in (0, 0, 1):
        made = add_variance_head(model, x)
        settings = {"epochs": 3, "rate": 0.2, "seed": seed, "show_progress": False}
        runs.append(train_heteroscedastic(made, [(x, y)], **settings))
        assert made.training and made.network[1].training
    assert runs[0] == runs[1] != runs[2]
    assert torch.equal(torch.get_rng_state(), state)


def test_prediction_equals_a_plain_loop_over_masks():
    made = add_variance_head(mlp(), inputs(4, 3))
    nn.init.normal_(made.heads[0].weight, std=0.3)
    x = inputs(5, 3)
    p = Uncertain(made, method="heteroscedastic", rate=0.3, samples=6, seed=3)(x)
    sites = find_sites(made, x, Placement())
    drawn = masks(draw_uniforms(sites, 6, 3), [0.3] * len(sites))
    means, variances = [], []
    for t in range(6):
        with torch.no_grad(), Multiply(made, sites, [mask[t] for mask in drawn]):
            mean, log_var = made(x)
        means.append(mean)
        variances.append(log_var.exp())
    means, variances = torch.stack(means), torch.stack(variances)
    torch.testing.assert_close(p.mean, means.mean(0))
    torch.testing.assert_close(p.data_var, variances.mean(0))
    torch.testing.assert_close(p.model_var, means.var(0, correction=0))
    assert [site.name for site in sites] == ["network.0"]
    assert float(p.model_var.min()) > 0 and torch.equal(p.total_var, p.data_var + p.model_var)


def test_without_a_rate_it_is_one_pass_and_rate_0_is_the_same():
    made, x = add_variance_head(mlp(), inputs(4, 3)), inputs(5, 3)
    one = Uncertain(made, method="heteroscedastic")(x)
    none = Uncertain(made, method="heteroscedastic", rate=0.0)(x)
    assert torch.equal(one.mean, none.mean) and torch.equal(one.total_var, none.total_var)
    assert torch.equal(one.mean, made(x)[0].detach())


def test_classification_has_probabilities_and_noisy_logits():
    labels = (inputs(128, 3)[:, 0] > 0).long()
    made = add_variance_head(mlp(2), inputs(4, 3))
    settings = {"epochs": 60, "task": "classification", "lr": 0.1, "show_progress": False}
    losses = train_heteroscedastic(made, [(inputs(128, 3), labels)], **settings)
    assert losses[-1] < 0.6 * losses[0]
    p = Uncertain(made, method="heteroscedastic", task="classification", rate=0.1)(inputs(128, 3))
    torch.testing.assert_close(p.mean.sum(1), torch.ones(128))
    assert float((p.mean.argmax(1) == labels).double().mean()) > 0.9
    assert p.logits is not None and p.mutual_information.shape == (128,)


def test_probabilities_agree_with_drawn_logits():
    made = add_variance_head(mlp(3), inputs(4, 3), initial_var=0.5)
    x = inputs(4, 3)
    p = Uncertain(made, method="heteroscedastic", task="classification")(x)
    mean, log_var = made(x)
    drawn = F.softmax(mean + (0.5 * log_var).exp() * inputs(20000, 4, 3), dim=2)
    torch.testing.assert_close(p.mean, drawn.mean(0), atol=0.01, rtol=0)
    torch.testing.assert_close(p.std, drawn.std(0), atol=0.0, rtol=0.1)


def test_threads_do_not_disturb_each_other():
    made = add_variance_head(mlp(), inputs(4, 3))
    nn.init.normal_(made.heads[0].weight)
    alone = {seed: made(inputs(64, 3, seed=seed))[1] for seed in range(8)}
    wrong = []

    def work(seed):
        for _ in range(20):
            if not torch.equal(made(inputs(64, 3, seed=seed))[1], alone[seed]):
                wrong.append(seed)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in alone]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_state_dict_and_wrapper_round_trip(tmp_path):
    x = inputs(4, 3)
    made = add_variance_head(mlp(), x)
    nn.init.normal_(made.heads[0].weight)
    other = add_variance_head(mlp(), x)
    other.load_state_dict(made.state_dict())
    assert torch.equal(other(x)[1], made(x)[1])
    sure = Uncertain(made, method="heteroscedastic", rate=0.2)
    sure.save(tmp_path / "sure.pt")
    assert torch.equal(Uncertain.load(tmp_path / "sure.pt", made)(x).std, sure(x).std)


class TwoPaths(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.two = nn.Linear(3, 2), nn.Linear(3, 2)

    def forward(self, x):
        return self.one(x) + self.two(x)


class Bare(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.ones(2, 3))

    def forward(self, x):
        return F.linear(x, self.w)


@pytest.mark.parametrize(
    "model, message",
    [
        (TwoPaths(), "comes from these layers: one, two"),
        (Bare(), "output layer `w` is `linear`"),
        (nn.Sequential(nn.Linear(3, 4), nn.Unflatten(1, (2, 2)), nn.AvgPool1d(2)), "same order"),
        (nn.ReLU(), "comes from these layers: none"),
    ],
)
def test_models_without_an_output_layer_are_refused(model, message):
    with pytest.raises(ValueError, match=message):
        add_variance_head(model, inputs(4, 3))


def test_wrong_use_says_what_to_do():
    x = inputs(4, 3)
    with pytest.raises(ValueError, match="positive variance"):
        add_variance_head(mlp(), x, initial_var=0)
    with pytest.raises(TypeError, match="add_variance_head"):
        Uncertain(mlp(), method="heteroscedastic")(x)
    made = add_variance_head(mlp(), x)
    with pytest.raises(ValueError, match="targets have shape"):
        train_heteroscedastic(made, [(x, inputs(4))], show_progress=False)
    with pytest.raises(ValueError, match="loader is empty"):
        train_heteroscedastic(made, [], show_progress=False)
    assert "not used" in Uncertain(made, 0.1, "heteroscedastic")(x).notes[0]
