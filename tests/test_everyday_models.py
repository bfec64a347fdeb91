"""Models as people have them: with a variance of their own, several of them, and plain calls."""

import inspect
import math

import numpy as np
import pytest
import torch
from torch import nn

import howsure as hs
from howsure.fit import FitOptions
from howsure.fit.options import OPTIONS


class WithVariance(nn.Module):
    """A mean and a log-variance, in whatever form."""

    def __init__(self, form):
        super().__init__()
        torch.manual_seed(0)
        self.features, self.mean, self.log_var = (
            nn.Linear(3, 16),
            nn.Linear(16, 2),
            nn.Linear(16, 2),
        )
        self.form = form

    def parts(self, x):
        h = torch.tanh(self.features(x))
        return self.mean(h), self.log_var(h) - 3

    def forward(self, x):
        return self.form(*self.parts(x))


def normal(mean, log_var):
    return torch.distributions.Normal(mean, (0.5 * log_var).exp())


FORMS = {
    "normal": (normal, None),
    "independent": (lambda m, v: torch.distributions.Independent(normal(m, v), 1), None),
    "dict": (lambda m, v: {"mean": m, "log_var": v}, None),
    "dict of std": (lambda m, v: {"mu": m, "sigma": (0.5 * v).exp()}, None),
    "var": (lambda m, v: (m, v.exp()), hs.Gaussian(var=1)),
    "log_var": (lambda m, v: (m, v), hs.Gaussian(log_var=1)),
    "within": (
        lambda m, v: {"head": {"a": m, "b": v.exp()}, "x": m},
        hs.Gaussian("a", var="b", within="head"),
    ),
}


def inputs(count=64, seed=1):
    return torch.randn(count, 3, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("form", FORMS)
def test_the_networks_own_variance_is_data_variance_and_the_sensors_adds(form):
    make, output = FORMS[form]
    model, x = WithVariance(make).eval(), inputs()
    mean, log_var = (part.detach() for part in model.parts(x))
    alone = hs.Uncertain(model, output=output)(x)
    torch.testing.assert_close(alone.mean, mean)
    torch.testing.assert_close(alone.data_var, log_var.exp())
    assert not alone.model_var.any()
    only_mean = hs.Uncertain(WithVariance(lambda m, v: m).eval(), 0.04, "gradients")(x)
    for method in ("gradients", "linear", "noise_sampling"):
        p = hs.Uncertain(model, 0.04, method, output=output)(x)
        share = (p.data_var - log_var.exp()) / only_mean.data_var
        assert abs(float(share.median()) - 1) < 0.1, method


def test_the_variance_is_a_source_of_its_own_and_in_the_covariance():
    p = hs.Uncertain(WithVariance(normal).eval(), 0.04, "gradients")(inputs())
    assert p.budget().names == ("x", "network")
    torch.testing.assert_close(p.budget().total, p.total_var)
    torch.testing.assert_close(p.covariance.diagonal(dim1=1, dim2=2), p.total_var)


def test_fit_does_not_count_the_networks_own_variance_twice(tmp_path):
    model, x = WithVariance(normal).eval(), inputs(400)
    mean, log_var = (part.detach() for part in model.parts(x))
    noise = torch.randn(mean.shape, generator=torch.Generator().manual_seed(2))
    y = mean + (0.5 * log_var).exp() * noise
    sure = hs.Uncertain(model, 1e-4, "gradients")
    sure.fit(x, y, show_progress=False)
    p = sure(x)
    assert abs(math.log(float((p.total_var / log_var.exp()).median()))) < 0.25
    coverage = hs.metrics.coverage(p.mean, p.total_var, y, level=0.95)
    assert abs(float(coverage) - 0.95) < 0.03
    sure.save(tmp_path / "sure.pt")
    again = hs.Uncertain.load(tmp_path / "sure.pt", model)(x)
    assert torch.equal(again.total_var, p.total_var)


def test_what_cannot_be_a_variance_is_refused():
    model = WithVariance(lambda m, v: (m, v)).eval()
    with pytest.raises(ValueError, match="negative variance"):
        hs.Uncertain(model, output=hs.Gaussian(var=1))(inputs())
    with pytest.raises(ValueError, match="one of"):
        hs.Gaussian("mean")
    with pytest.raises(ValueError, match="same shape"):
        short = WithVariance(lambda m, v: (m, v[:, :1])).eval()
        hs.Uncertain(short, output=hs.Gaussian(log_var=1))(inputs())
    with pytest.raises(TypeError, match="Gaussian"):
        laplace = WithVariance(lambda m, v: torch.distributions.Laplace(m, v.exp())).eval()
        hs.Uncertain(laplace, 0.1)(inputs())
    with pytest.raises(ValueError, match="for regression"):
        hs.Uncertain(model, output=hs.Gaussian(var=1), task="classification")


def small(seed):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1)).eval()


def test_an_ensemble_of_plain_models_is_unsure_where_they_disagree():
    models, x = [small(seed) for seed in range(3)], inputs()
    p = hs.Ensemble(models)(x)
    outputs = torch.stack([model(x) for model in models])
    torch.testing.assert_close(p.mean, outputs.mean(0))
    torch.testing.assert_close(p.model_var, outputs.var(0, correction=0))
    assert not p.data_var.any()
    with pytest.raises(ValueError, match="noise"):
        hs.Ensemble(models[:1])(x)


def pairs():
    model, x = small(0), inputs(120)
    y = model(x).detach() + 0.1 * torch.randn(120, 1, generator=torch.Generator().manual_seed(3))
    return model, x, y


def test_fit_takes_data_as_people_have_it():
    model, x, y = pairs()
    pandas = pytest.importorskip("pandas")
    table = pandas.DataFrame(x.double().numpy(), columns=list("abc"))
    dicts = [{"x": x[:64], "y": y[:64], "id": 1}, {"x": x[64:], "y": y[64:], "id": 2}]
    ways = {
        "loader": lambda sure: sure.fit([(x[:64], y[:64]), (x[64:], y[64:])], show_progress=False),
        "X, y": lambda sure: sure.fit(x, y, show_progress=False),
        "pair": lambda sure: sure.fit((x, y), show_progress=False),
        "numpy": lambda sure: sure.fit(x.numpy(), y.numpy(), show_progress=False),
        "pandas": lambda sure: sure.fit(table, pandas.DataFrame(y.numpy()), show_progress=False),
        "dicts": lambda sure: sure.fit(dicts, targets="y", show_progress=False),
        "data set": lambda sure: sure.fit(
            torch.utils.data.TensorDataset(x, y), show_progress=False
        ),
    }
    stds = {}
    for name, fit in ways.items():
        sure = hs.Uncertain(Named(model), 0.01, "gradients")
        fit(sure)
        stds[name] = sure(x).std
    for name, std in stds.items():
        torch.testing.assert_close(std, stds["loader"], rtol=1e-3, atol=0, msg=name)
    sure = hs.Uncertain(model, 0.01, "gradients")
    torch.testing.assert_close(sure(table).std, sure(x).std)
    assert list(sure(table).to_pandas().columns[:2]) == ["mean", "std"]


class Named(nn.Module):
    """A model whose parameter has the name of a column."""

    def __init__(self, model):
        super().__init__()
        self.model = model.eval()
        self.eval()

    def forward(self, x):
        return self.model(x)


def test_inputs_and_targets_must_be_as_many():
    model, x, y = pairs()
    with pytest.raises(ValueError, match="one for each"):
        hs.Uncertain(model, 0.01).fit(x, y[:-1])
    with pytest.raises(TypeError, match="is a key"):
        hs.Uncertain(model, 0.01).fit([(x, y)], targets="y")


def test_a_gate_takes_a_prediction():
    model, x, y = pairs()
    sure = hs.Uncertain(model, 0.01, "gradients")
    sure.fit(x, y, show_progress=False)
    p = sure(x)
    gate = hs.Gate.fit(p.total_var)
    assert torch.equal(gate(p), gate(p.total_var))
    by_novelty = hs.Gate.on_novelty(sure.setup.variance_model, level=0.9)
    assert torch.equal(by_novelty(p), by_novelty(p.joint_novelty))
    assert not bool(by_novelty(sure(100 * x)).any())
    with pytest.raises(ValueError, match="no novelty"):
        by_novelty(hs.Uncertain(model, 0.01)(x))


def test_an_audit_takes_a_wrapper_with_its_settings():
    model, x, y = pairs()
    sure = hs.Uncertain(model, 0.01, "gradients")
    options = {"methods": ["gradients", "linear"], "samples": 400, "show_progress": False}
    before = hs.audit(sure, x, **options)
    sure.fit(x, y, show_progress=False)
    fitted, by_hand = hs.audit(sure, x, **options), hs.audit(model, x, 0.01, **options)
    for result in (before, fitted):
        for row, other in zip(result.rows, by_hand.rows, strict=True):
            assert row.total == other.total
    with pytest.raises(TypeError, match="set it there"):
        hs.audit(sure, x, 0.01)


def test_a_report_in_one_call(tmp_path):
    model, x, y = pairs()
    sure = hs.Uncertain(model, 0.01, "gradients")
    path = hs.report(sure, [(x, y)], tmp_path / "page.html", show_progress=False)
    assert path.read_text(encoding="utf-8").startswith("<!DOCTYPE html>")
    assert hs.report.Options().cases == 200
    again = hs.Uncertain.load(tmp_path / "page.fit.pt", model)
    assert np.array_equal(again(x).std.numpy(), sure(x).std.numpy())


def test_an_editor_knows_every_option_of_fit():
    of_fit = inspect.signature(hs.Uncertain.fit).parameters
    assert set(of_fit) - {"self", "data", "targets", "model"} == set(FitOptions.__annotations__)
    for name, field in FitOptions.__dataclass_fields__.items():
        assert of_fit[name].default == field.default
    assert {name for names in OPTIONS.values() for name in names} == set(FitOptions.__annotations__)


def test_a_few_held_out_rows_less_are_a_warning_and_hardly_any_an_error():
    model, x, y = pairs()
    with pytest.warns(UserWarning, match="from fewer than 50 is rough"):
        sure = hs.Uncertain(model, 0.01, "gradients")
        sure.fit(x[:49], y[:49], show_progress=False)
    assert bool((sure(x).model_var > 0).any())
    with pytest.raises(ValueError, match="needs at least 20"):
        hs.Uncertain(model, 0.01, "gradients").fit(x[:19], y[:19], show_progress=False)


class TakesOneDict(nn.Module):
    """A model whose batch is one argument, as of policies and forecasters."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(5, 1)

    def forward(self, batch):
        return self.layer(torch.cat([batch["state"], batch["image"]], 1)).tanh()


def test_a_model_may_take_one_dict():
    model, x = TakesOneDict().eval(), {"state": inputs(), "image": inputs(seed=2)[:, :2]}
    sure = hs.Uncertain(model, {"state": hs.noise.std(0.1), "image": None})
    y = model(x).detach() + 0.1 * torch.randn(64, 1)
    sure.fit([(x, y)], show_progress=False)
    assert sure(x).std.shape == (64, 1)


@pytest.mark.filterwarnings("ignore")  # Torch moves its quantization elsewhere, and says so.
def test_a_network_that_was_quantized_in_eval_mode_is_sampled():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 64), nn.ReLU(), nn.Linear(64, 1)).eval()
    quantized = torch.ao.quantization.quantize_dynamic(model, {nn.Linear})
    p, exact = (hs.Uncertain(net, hs.noise.std(0.1))(inputs()) for net in (quantized, model))
    assert p.method == "noise_sampling"
    # Its scales depend on the whole batch, and its steps add to the std.
    assert 0.8 < float((p.std / exact.std).median()) < 1.3


def test_a_long_forecast_has_a_std_and_a_novelty():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 16), nn.Tanh(), nn.Linear(16, 96)).eval()
    x = inputs(80)
    sure = hs.Uncertain(model, 0.01)
    sure.fit(x, model(x).detach() + 0.1 * torch.randn(80, 96), show_progress=False)
    p = sure(torch.cat([x[:4], 50 * x[:4]]))
    assert p.std.shape == p.novelty.shape == (8, 96)
    assert bool((p.novelty[4:] > 3).all()) and "96 outputs" in "".join(p.notes)


def test_unknown_inputs_are_worth_a_label_and_known_ones_are_not():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 16), nn.ReLU(), nn.Linear(16, 3)).eval()
    x = inputs(200)
    labels = (model(x) + 0.3 * torch.randn(200, 3)).argmax(1)
    sure = hs.Uncertain(model, task="classification")
    sure.fit(x, labels, show_progress=False)
    p = sure(torch.cat([x[:50], 10 * inputs(50, 3)]))
    known, unknown = p.mutual_information.split(50)
    assert float(unknown.median()) > 10 * float(known.median())
