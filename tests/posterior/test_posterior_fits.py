"""What `fit` takes and finds: inputs in every form, stress, fixed parts."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from waves import data, trained

import howsure as hs
from howsure.fit import PosteriorFit
from howsure.fit.stress import IMAGES, TABLES
from howsure.methods.gradients import examine_at_input


def test_without_noise_the_network_alone_is_judged(net):
    wrapped = hs.Uncertain(net)
    wrapped.fit([data(200, 1)], train_inputs=data(400, 0)[0])
    p = wrapped(data(10, 2)[0])
    assert bool((p.model_var > 0).all()) and torch.equal(p.mean, net(data(10, 2)[0]))
    # More rows than there may be outputs.
    assert wrapped(data(100, 2)[0]).model_var.shape == (100, 1)


@pytest.mark.parametrize("form", ["tensor", "numpy", "data set", "pairs", "loader"])
def test_unlabeled_inputs_in_every_form(net, form):
    x, y = data(120, 0)
    forms = {
        "tensor": x,
        "numpy": x.numpy(),
        "data set": TensorDataset(x),
        "pairs": [(x[:60], y[:60]), (x[60:], y[60:])],
        "loader": DataLoader(TensorDataset(x, y), batch_size=50),
    }
    found = []
    for given in (forms["tensor"], forms[form]):
        wrapped = hs.Uncertain(net, 0.001, "gradients")
        wrapped.fit([data(60, 1)], train_inputs=given)
        found.append(wrapped(x[:5]).total_var)
    torch.testing.assert_close(*found, rtol=1e-3, atol=0)


def test_several_outputs_have_a_novelty_each_and_one_together():
    model = trained(outputs=2)
    wrapped = hs.Uncertain(model, 0.001)
    wrapped.fit([data(150, 1, 2)], train_inputs=data(300, 0)[0])
    p = wrapped(data(12, 3)[0])
    assert p.novelty.shape == (12, 2) and p.joint_novelty.shape == (12,)
    assert float(torch.linalg.eigvalsh(p.covariance.double()).min()) > -1e-9
    torch.testing.assert_close(p.covariance.diagonal(dim1=1, dim2=2), p.total_var)
    # Both outputs are one wave: what is unknown about one is unknown about the other.
    model_part = p.covariance[:, 0, 1] / p.total_var.prod(1).sqrt()
    assert float(model_part.min()) > 0


def test_cross_fitting_judges_no_input_by_a_posterior_that_has_seen_it(net):
    x, y = data(60, 1)
    wrapped = hs.Uncertain(net)
    fit = wrapped.fit([(x[:30], y[:30]), (x[30:], y[30:])])
    assert isinstance(fit, PosteriorFit) and fit.cross_fitted and fit.known == 60
    assert "five folds" in str(fit)
    naive = wrapped.setup.variance_model.posterior.predictive_variance(
        examine_at_input(wrapped.setup, x).slopes
    )
    assert float(wrapped.setup.variance_model.known) > float(naive.quantile(0.75))


@pytest.mark.parametrize("kind, shape", [("images", (60, 1, 8, 8)), ("tables", (60, 5))])
def test_stress_keeps_shapes_and_is_the_same_every_time(kind, shape):
    x = torch.rand(shape, generator=torch.Generator().manual_seed(0))
    for change in {"images": IMAGES, "tables": TABLES}[kind]:
        once = change(x)
        assert once.shape == x.shape and torch.equal(once, change(x)) and not torch.equal(once, x)


def shifted(harm):
    return lambda x: x + torch.tensor([0.0, harm])


@pytest.mark.parametrize("harms", [(0.3,), (4.0,), (0.3, 0.3, 4.0)])
def test_stress_fits_the_exponent_to_all_corruptions_alike(net, harms):
    x, y = data(150, 1)
    stress = [shifted(harm) for harm in harms]
    wrapped = hs.Uncertain(net, 0.001, samples=32)
    fit = wrapped.fit([(x, y)], train_inputs=data(300, 0)[0], stress=stress)

    def cost(exponent):
        model = replace(fit.model, exponent=exponent)
        tried = hs.Uncertain(net, 0.001, samples=32)
        tried.setup = wrapped.setup.replace(variance_model=model)
        found = []
        for inputs in (x, *(change(x) for change in stress)):
            p = tried(inputs)
            var = p.total_var.double().numpy()
            found.append(-stats.norm.logpdf(y.numpy(), p.mean.numpy(), np.sqrt(var)).mean())
        return found[0] + np.mean(found[1:])

    costs = {exponent: cost(exponent) for exponent in (1.5, 1.75, 2.0)}
    assert cost(fit.model.exponent) <= min(costs.values()) + 1e-4
    assert max(costs.values()) > min(costs.values()) + 1e-3


def test_errors_that_no_mask_sees_do_not_drive_the_exponent(net):
    x, y = data(150, 1)

    def mistaken(x):  # All inputs are known, and the targets are those of others.
        return x.roll(1, 0)

    fit = hs.Uncertain(net, 0.001, samples=32).fit(
        [(x, y)], train_inputs=data(300, 0)[0], stress=[mistaken, shifted(0.3)]
    )
    assert 1.5 <= fit.model.exponent <= 2


def test_few_inputs_do_not_contradict_the_sensor():
    generator = torch.Generator().manual_seed(0)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 32)).eval()
    x = torch.randn(50, 8, generator=generator)
    y = model(x).detach() + 0.3 * torch.randn(50, 32, generator=generator)
    wrapped = hs.Uncertain(model, 1e-6, samples=32)
    factor = wrapped.fit([(x, y)], noise_factor=None).model.weight("noise_factor")
    assert float(factor.max()) < 4 and float(factor.min()) > 0.25
    # What the sensor does not explain is left over.
    assert float(wrapped(x).total_var.mean()) == pytest.approx(0.09, rel=0.3)


def test_many_inputs_do(net):
    x, y = data(2000, 1)
    noise = 0.1 * torch.randn(x.shape, generator=torch.Generator().manual_seed(5))
    wrapped = hs.Uncertain(net, 2e-3, samples=32)  # Its true variance is 0.01.
    fit = wrapped.fit([(x + noise, y)], train_inputs=data(300, 0)[0], noise_factor=None)
    assert 2 < float(fit.model.weight("noise_factor")) < 10 and "as requested" in fit.notes[0]


def images(count, seed):
    x = torch.rand(count, 1, 8, 8, generator=torch.Generator().manual_seed(seed))
    return x, x.mean((1, 2, 3)).reshape(-1, 1)


def test_images_are_corrupted_unless_told_otherwise():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.Tanh(), nn.Flatten(), nn.Linear(144, 1)).eval()
    held_out = [images(30, 1), images(40, 2)]
    found = {
        stress: hs.Uncertain(model, 1e-4).fit(held_out, stress=stress, show_progress=False)
        for stress in ("auto", "images", None)
    }
    assert str(hs.Uncertain(model, 1e-4).fit(held_out, show_progress=False)) == str(found["auto"])
    # Some of the inputs are enough, unless corruptions were asked for.
    assert found["auto"].stressed_nll is not None
    assert found["auto"].stressed_nll != found["images"].stressed_nll
    assert found[None].stressed_nll is None and found[None].model.exponent == 1.5


def test_tables_and_spectra_are_left_as_they_are(net):
    assert hs.Uncertain(net).fit([data(60, 1)], show_progress=False).stressed_nll is None
    wide = nn.Sequential(nn.Flatten(), nn.Linear(5 * 16, 1)).eval()
    x = torch.rand(60, 5, 4, 4, generator=torch.Generator().manual_seed(0))  # five channels
    fit = hs.Uncertain(wide, 1e-4).fit([(x, x.mean((1, 2, 3)).reshape(-1, 1))], show_progress=False)
    assert fit.stressed_nll is None


def test_parts_can_be_fixed_or_left_out(net):
    held_out, train = [data(100, 1)], data(300, 0)[0]
    fixed = hs.Uncertain(net, 0.001)
    fit = fixed.fit(held_out, train_inputs=train, residual_var=0.02, noise_factor=1.0)
    assert (
        float(fit.model.weight("residual_var")) == 0.02
        and float(fit.model.weight("noise_factor")) == 1
    )
    flat = hs.Uncertain(net, 0.001)
    flat.fit(held_out, train_inputs=train, growth=False, cap=False)
    assert float(flat(torch.full((1, 2), 9.0)).budget().share("growth")) == 0
    bare = hs.Uncertain(net, 0.001)
    bare.fit(held_out, model=None)
    p = bare(train[:4])
    assert float(p.model_var.max()) == 0 and p.novelty is None and float(p.data_var.min()) > 0


def test_the_papers_dropout_stays(net):
    wrapped = hs.Uncertain(net, 0.001)
    fit = wrapped.fit([data(100, 1)], model="dropout", show_progress=False)
    assert fit.rate is not None and wrapped.setup.variance_model is None
    paper = hs.Uncertain(net, 0.001, "sampled_adf", samples=4)
    assert paper.fit([data(60, 1)], rates=(0.0, 0.1), samples=4, show_progress=False).samples == 4


def test_a_model_without_hidden_layers_has_masks_on_its_inputs():
    line = nn.Sequential(nn.Linear(2, 1)).eval()
    wrapped = hs.Uncertain(line)
    wrapped.fit([data(80, 1)])
    near, far = wrapped(data(50, 2)[0]), wrapped(torch.full((1, 2), 30.0))
    assert float(far.novelty) > 5 * float(near.novelty.median())


def test_outputs_that_cannot_be_negative_have_a_posterior(net):
    """A last ReLU: outputs are flat for half of the inputs, which is no step."""
    model = nn.Sequential(*net, nn.ReLU()).eval()
    x, y = data(150, 1)
    y = y.clamp(min=0)
    assert 0.3 < float((model(x) == 0).double().mean()) < 0.7
    wrapped = hs.Uncertain(model, 1e-3)
    fit = wrapped.fit([(x, y)])
    assert isinstance(fit, PosteriorFit) and fit.nll < fit.constant_nll
    p = wrapped(x[:20])
    assert p.method == "gradients" and bool((p.total_var > 0).all())


@pytest.mark.filterwarnings("ignore:1 of 300 held-out rows:howsure.HowsureWarning")
def test_one_wrong_target_of_many_hardly_widens_the_std():
    torch.manual_seed(0)
    net = torch.nn.Sequential(
        torch.nn.Linear(4, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1)
    ).eval()
    x = torch.randn(300, 4)
    y = net(x).detach() + 0.1 * torch.randn(300, 1)
    stds = []
    for wrong in (0.0, 100.0):
        y[7] += wrong
        sure = hs.Uncertain(net, 1e-4)
        sure.fit([(x, y)], show_progress=False)
        stds.append(float(sure(x).std.median()))
    assert 0.9 < stds[1] / stds[0] < 1.5
