"""Laws of the method over a zoo of networks, against Monte Carlo and closed forms."""

import pytest
import torch
from torch import nn

import howsure as hs
from gradients.zoo import inputs, zoo
from howsure.estimators.gradients import estimate
from howsure.probe import probe_model
from howsure.problem import Problem
from howsure.setup import Setup
from howsure.trees import TensorTree

ZOO = zoo()


def flat(tree):
    return torch.cat([t.reshape(t.shape[0], -1) for t in TensorTree(tree).tensors], 1)


def gradients(net, noise=0.01, **options):
    return hs.Uncertain(net, noise, "gradients", **options)


@pytest.mark.parametrize("name", ZOO)
@pytest.mark.parametrize("rate", [None, 0.05])
def test_agrees_with_monte_carlo_within_its_standard_error(name, rate):
    net, shape = ZOO[name]
    x = inputs(shape, 3)
    # With one seed in ten or so the points of "views" are unusual enough to be sampled.
    p = gradients(net, rate=rate, tolerance=0.03, seed=1)(x)
    assert p.notes == ()
    truth = hs.Uncertain(net, 0.01, "noise_sampling", rate=rate, samples=6000)(x)
    found, std = flat(p.std), flat(truth.std)
    error = (flat(p.std_error).square() + flat(truth.std_error).square()).sqrt()
    # Masks are Gaussian here and Bernoulli there.
    allowed = 0.05 * std if rate else 0.01 * std
    assert bool(((found - std).abs() <= 4.5 * error + allowed).all()), (found / std, error / std)


@pytest.mark.parametrize("name", ZOO)
@pytest.mark.parametrize("rate", [None, 0.05])
def test_a_row_does_not_depend_on_its_batch(name, rate):
    net, shape = ZOO[name]
    x, sure = inputs(shape, 8), gradients(net, rate=rate)
    whole = sure(x)
    for size in (1, 2, 3, 4, 5, 7):
        parts = [sure(part) for part in x.split(size)]
        for field in ("mean", "std", "data_var", "std_error"):
            joined = torch.cat([flat(getattr(part, field)) for part in parts])
            torch.testing.assert_close(joined, flat(getattr(whole, field)), rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("name", ZOO)
def test_rows_may_be_permuted(name):
    net, shape = ZOO[name]
    x, sure = inputs(shape, 5), gradients(net, rate=0.05)
    order = torch.tensor([3, 0, 4, 1, 2])
    one, two = flat(sure(x).std)[order], flat(sure(x[order]).std)
    torch.testing.assert_close(one, two, rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("name", ZOO)
def test_zero_noise_is_the_plain_network(name):
    net, shape = ZOO[name]
    x = inputs(shape, 3)
    p = gradients(net, 0.0)(x)
    with torch.no_grad():
        torch.testing.assert_close(flat(p.mean), flat(net(x)), rtol=1e-6, atol=1e-6)
    assert float(flat(p.std).abs().max()) == 0 and float(flat(p.std_error).abs().max()) == 0


@pytest.mark.parametrize("name", ZOO)
@pytest.mark.parametrize(("noise", "rate"), [(0.01, None), (0.01, 0.1), (None, 0.1)])
def test_the_budget_adds_up(name, noise, rate):
    net, shape = ZOO[name]
    p = gradients(net, noise, rate=rate, residual_var=0.2)(inputs(shape, 3))
    total = flat(p.total_var)
    torch.testing.assert_close(p.budget().total, total)
    torch.testing.assert_close(flat(p.data_var) + flat(p.model_var), total)
    torch.testing.assert_close(p.covariance.diagonal(dim1=1, dim2=2), total)
    assert float(torch.linalg.eigvalsh(p.covariance.double()).min()) > -1e-6
    if noise:
        heat = p.budget().heatmap().flatten(2).sum(2)
        torch.testing.assert_close(heat, flat(p.data_var) - 0.2, rtol=1e-3, atol=1e-6)


class Polynomial(nn.Module):
    """a'x + x'Bx / 2 at a few numbers: its variance is known."""

    def __init__(self, quadratic):
        super().__init__()
        torch.manual_seed(3)
        self.a = torch.randn(6).double()
        half = torch.randn(6, 6).double()
        self.b = quadratic * (half + half.T)

    def forward(self, x):
        return (x @ self.a + torch.einsum("bi,ij,bj->b", x, self.b, x) / 2)[:, None]

    def variance(self, x, var):
        slope = x @ self.b + self.a
        return var * slope.square().sum(1) + var**2 * self.b.square().sum() / 2


def estimated(setup, x):
    """The variance as the gradients have it, which by chance can be negative."""
    found = estimate(Problem(setup, x, setup.cached(probe_model, x)), setup.samples)
    return found.sums.variance.mean[:, 0]


def test_of_linear_functions_eight_points_are_exact():
    net, x = Polynomial(0.0).eval(), torch.randn(2, 6).double()
    found = estimated(Setup(net, 0.3, samples=8), x)
    torch.testing.assert_close(found, net.variance(x, 0.3), rtol=1e-5, atol=0)


def test_quadratic_functions_are_unbiased():
    net, x = Polynomial(1.0).eval(), torch.randn(2, 6).double()
    setup = Setup(net, 0.3, samples=8)  # The checks are made once.
    found = torch.stack([estimated(setup.replace(seed=seed), x) for seed in range(1000)])
    error, exact = found.std(0) / len(found) ** 0.5, net.variance(x, 0.3)
    assert bool(((found.mean(0) - exact).abs() < 4 * error).all()), found.mean(0) / exact


def test_stationary_points_have_a_variance():
    net, x = Polynomial(1.0).eval(), torch.zeros(1, 6).double()
    net.a = torch.zeros_like(net.a)
    p = gradients(net, 0.1, tolerance=0.03)(x)
    torch.testing.assert_close(p.total_var[:, 0], net.variance(x, 0.1), rtol=0.15, atol=0)
    assert float(p.linear_share) < 0.2


def test_the_standard_error_is_honest():
    net, shape = ZOO["cnn"]
    x = inputs(shape, 6)
    truth = hs.Uncertain(net, 0.04, "gradients", samples=2000)(x).std
    for samples in (4, 8, 32):
        errors, stated = [], []
        for seed in range(12):
            p = gradients(net, 0.04, samples=samples, seed=seed)(x)
            errors.append(p.std - truth)
            stated.append(p.std_error)
        rms = [torch.stack(each).square().mean().sqrt() for each in (errors, stated)]
        assert 1 / 1.5 < float(rms[1] / rms[0]) < 1.5, (samples, rms)


def test_each_row_goes_on_until_it_has_the_tolerance():
    net, shape = ZOO["mlp"]
    x = inputs(shape, 6)
    p = gradients(net, 0.2, tolerance=0.02)(x)
    assert bool((p.std_error <= 0.02 * p.std).all()) and p.notes == ()
    alone = torch.cat([gradients(net, 0.2, tolerance=0.02)(row[None]).std for row in x])
    torch.testing.assert_close(alone, p.std, rtol=1e-4, atol=0)


def test_chunks_do_not_change_the_result():
    net, shape = ZOO["cnn"]
    x = inputs(shape, 3)
    whole, pieces = (gradients(net, samples=16, chunk=chunk)(x) for chunk in (None, 4))
    torch.testing.assert_close(whole.std, pieces.std, rtol=1e-4, atol=0)


def test_the_mean_is_that_of_the_noisy_network():
    net = nn.Sequential(nn.Linear(60, 40), nn.ReLU(), nn.Linear(40, 1)).eval()
    x = torch.randn(4, 60, generator=torch.Generator().manual_seed(0))
    truth = hs.Uncertain(net, 0.5, "noise_sampling", samples=20_000)(x)
    p = gradients(net, 0.5, prediction="mean", samples=64)(x)
    assert float(((p.mean - truth.mean) / truth.std).abs().max()) < 0.25
    plain = gradients(net, 0.5)(x)
    assert torch.equal(plain.mean, net(x))


def test_correlated_noise_is_the_same_noise_through_a_mixing_layer():
    class Mixed(hs.noise.Noise):
        """z of three numbers, spread over all inputs."""

        def __init__(self, matrix):
            object.__setattr__(self, "matrix", matrix)

        def var_at(self, x):
            return self.matrix.square().sum(1).expand(x.shape)

        def root(self, x, batch_dim=0):
            from howsure.noise import Root

            return Root((3,), lambda z, rows: z @ self.matrix.T)

    torch.manual_seed(0)
    net, matrix = (
        nn.Sequential(nn.Linear(80, 16), nn.Tanh(), nn.Linear(16, 1)).eval(),
        torch.randn(80, 3) / 4,
    )
    x = torch.randn(2, 80)

    class After(nn.Module):
        def forward(self, z):
            return net(x[:, None] + z[:, None] @ matrix.T)[:, 0]

    correlated = gradients(net, Mixed(matrix), samples=2000)(x)
    through = gradients(After().eval(), 1.0, samples=2000)(torch.zeros(2, 3))
    torch.testing.assert_close(correlated.std, through.std, rtol=0.1, atol=0)


def test_many_classes_vary_in_their_largest_logits():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(80, 100)).eval()
    x = 2 * torch.randn(3, 80)
    p = gradients(net, 0.01, task="classification")(x)
    truth = hs.Uncertain(net, 0.01, "noise_sampling", task="classification", samples=4000)(x)
    top = p.mean.argmax(1, keepdim=True)
    ratio = p.std.gather(1, top) / truth.std.gather(1, top)
    assert float((ratio - 1).abs().max()) < 0.15


class Bowls(nn.Module):
    """Logits of even order: their mean is all that mirror images leave to chance."""

    def forward(self, x):
        return torch.stack([x.square().sum(1), x[:, :3].square().sum(1)], 1)


def test_the_mean_of_logits_is_more_precise_than_that_of_other_outputs():
    x, net = torch.zeros(1, 8), Bowls().eval()
    rms = []
    for task in ("regression", "classification"):
        sure = hs.Uncertain(net, 1.0, "gradients", task=task, prediction="mean")
        errors = []
        for seed in range(150):
            sure.setup = sure.setup.replace(seed=seed)
            p = sure(x)
            errors.append(float((p.logits or p).mean[0, 0]) - 8)
        rms.append(torch.tensor(errors).square().mean().sqrt())
    # Of 8 points, 8 or 24 further ones; the pairs of a block share a part of their squares.
    assert 0.55 < float(rms[1] / rms[0]) < 0.8


def test_inputs_of_few_numbers_take_more_blocks_before_a_tolerance_counts_as_reached():
    points = {}
    for count in (8, 80):
        sure = hs.Uncertain(nn.Linear(count, 1).eval(), 0.01, "gradients", tolerance=0.05)
        calls: list[int] = []
        sure.setup.model.register_forward_hook(lambda *args, c=calls: c.append(len(args[2])))
        x = torch.ones(1, count)
        sure(x)
        calls.clear()
        sure(x)
        points[count] = max(calls)
    assert points == {8: 65, 80: 33}  # with the input itself


class Valleys(nn.Module):
    """Even in its inputs, with kinks of its slope: the blocks differ much."""

    def forward(self, x):
        h = (x - 1).square()
        return 1.3 * h.sum(1, keepdim=True) - 3 * torch.tanh(h[:, :1])


def test_two_blocks_do_not_agree_by_chance():
    x, net = torch.ones(1, 4), Valleys().eval()
    truth = net(x + torch.randn(200_000, 4, generator=torch.Generator().manual_seed(0))).std()
    sure = hs.Uncertain(net, 1.0, "gradients")
    errors, stated = [], []
    for seed in range(300):
        sure.setup = sure.setup.replace(seed=seed)
        p = sure(x)
        errors.append(float(p.std - truth))
        stated.append(float(p.std_error))
    errors, stated = torch.tensor(errors), torch.tensor(stated)
    assert ((errors / stated).abs() > 6).float().mean() < 0.05
    assert 1 / 1.3 < stated.square().mean().sqrt() / errors.square().mean().sqrt() < 1.3


class Bump(nn.Module):
    """Narrower than the noise: the quadrature is not made for it."""

    def forward(self, x):
        return torch.tanh(x.square()).sum(1, keepdim=True)


@pytest.mark.parametrize("options", [{"tolerance": 0.05}, {"samples": 4096}])
def test_gradients_that_contradict_the_outputs_are_not_believed(options):
    x, net = torch.zeros(1, 4), Bump().eval()
    truth = net(3 * torch.randn(200_000, 4, generator=torch.Generator().manual_seed(0))).std()
    p = hs.Uncertain(net, 9.0, "gradients", **options)(x)
    assert any("sampl" in note for note in p.notes)
    assert abs(float(p.std - truth)) < 3 * float(p.std_error)


def test_an_odd_number_of_blocks():
    torch.manual_seed(0)
    net, x = nn.Sequential(nn.Linear(80, 8), nn.Tanh(), nn.Linear(8, 1)).eval(), torch.randn(2, 80)
    few, many = (hs.Uncertain(net, 0.01, "gradients", samples=n)(x).std for n in (36, 128))
    torch.testing.assert_close(few, many, rtol=0.05, atol=0)
