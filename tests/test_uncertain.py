"""The wrapper: fitting, saving, errors, threads."""

import gc
import threading
import warnings
import weakref

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import howsure as hs
from nets import FunctionalResNet

torch.manual_seed(0)


def truth(x):
    return torch.sin(2 * x[:, :1]) + 0.5 * x[:, 1:2]


@pytest.fixture(scope="module")
def trained():
    generator = torch.Generator().manual_seed(1)
    x = torch.rand(300, 2, generator=generator) * 4 - 2
    torch.manual_seed(1)
    net = nn.Sequential(nn.Linear(2, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 1))
    optimizer = torch.optim.Adam(net.parameters(), 1e-2)
    for _ in range(200):
        optimizer.zero_grad()
        (net(x) - truth(x)).square().mean().backward()
        optimizer.step()
    return net.eval(), x


@pytest.fixture(scope="module")
def held_out():
    generator = torch.Generator().manual_seed(2)
    x = torch.rand(120, 2, generator=generator) * 4 - 2
    noisy = x + 0.1 * torch.randn(120, 2, generator=generator)
    return TensorDataset(noisy, truth(x))


RATES = (0.0, 0.003, 0.01, 0.03, 0.1, 0.3)


def test_fit_finds_the_rate_that_minimizes_the_nll(trained, held_out):
    net, _ = trained
    sure = hs.Uncertain(net, noise=hs.noise.std(0.1), method="sampled_adf")
    fit = sure.fit(DataLoader(held_out, 60), rates=RATES, show_progress=False)
    assert fit.rate == RATES[min(range(len(RATES)), key=lambda i: fit.nll[i])] == sure.setup.rate
    assert len(fit.nll) == len(fit.standard_error) == len(RATES) and fit.count == 120
    assert all(error > 0 for error in fit.standard_error)
    assert "<- best" in str(fit)
    # The curve's best point is what the metric says of that setting.
    best = hs.Uncertain(
        net, hs.noise.std(0.1), "sampled_adf", rate=fit.rate, samples=50, shared_masks=False
    )
    x, y = held_out.tensors
    p = best(x)
    nll = float(hs.metrics.nll(p.mean, p.total_var, y))
    assert abs(nll - min(fit.nll)) < 4 * min(fit.standard_error)


def test_common_random_numbers_make_the_curve_reproducible(trained, held_out):
    net, _ = trained
    sure = hs.Uncertain(net, 0.01, "sampled_adf")
    one = sure.fit(DataLoader(held_out, 120), rates=RATES, samples=10, show_progress=False)
    two = sure.fit(DataLoader(held_out, 120), rates=RATES, samples=10, show_progress=False)
    assert one.nll == two.nll


def test_tau_is_the_residual_variance(trained, held_out):
    net, _ = trained
    x, y = held_out.tensors
    with torch.no_grad():
        error = float((net(x) - y).square().mean())
    constant = hs.Uncertain(net, None, "constant")
    fit = constant.fit([(x, y)], show_progress=False)
    assert fit.rate is None and abs(fit.residual_var - error) < 1e-4 * error
    torch.testing.assert_close(constant(x).data_var, torch.full_like(y, fit.residual_var))
    with_residual_var = hs.Uncertain(net, 0.01, "sampled_adf")
    with pytest.warns(UserWarning, match="dropout does not explain"):
        with_residual_var.fit(
            [(x, y)], rates=RATES, samples=10, fit_residual_var=True, show_progress=False
        )
    without = hs.Uncertain(net, 0.01, "sampled_adf")
    without.fit([(x, y)], rates=RATES, samples=10, show_progress=False)
    assert min(with_residual_var.last_fit.nll) <= min(without.last_fit.nll) + 1e-9


def test_classification_objectives():
    net = FunctionalResNet(classes=3)
    x, y = torch.rand(12, 3, 16, 16), torch.arange(12) % 3
    sure = hs.Uncertain(net, None, "mc_dropout", task="classification")
    with pytest.warns(UserWarning):
        one_hot = sure.fit([(x, y)], rates=(0.1, 0.3), samples=4, show_progress=False)
    assert one_hot.objective == "one_hot"
    with pytest.warns(UserWarning):
        categorical = sure.fit(
            [(x, y)], rates=(0.1, 0.3), samples=4, objective="categorical", show_progress=False
        )
    p = hs.Uncertain(
        net, None, "mc_dropout", rate=0.1, samples=4, task="classification", shared_masks=False
    )(x)
    expected = -torch.log(p.mean[torch.arange(12), y]).mean()
    assert abs(categorical.nll[0] - float(expected)) < 1e-5


def test_edges_are_warned_about(trained, held_out):
    net, _ = trained
    sure = hs.Uncertain(net, 0.01, "sampled_adf")
    loader = DataLoader(held_out, 120)
    with pytest.warns(UserWarning, match="is the largest that was tried"):
        sure.fit(loader, rates=(0.0, 1e-5, 1e-4), samples=5, show_progress=False)
    with pytest.warns(UserWarning, match="is the smallest that was tried"):
        sure.fit(loader, rates=(0.5, 0.7, 0.9), samples=5, show_progress=False)


@pytest.mark.filterwarnings("ignore:The best rate")
def test_clean_images_for_a_noisy_deployment_are_warned_about():
    net = FunctionalResNet()
    ramp = torch.linspace(0, 1, 32).expand(6, 3, 32, 32)
    target = net(ramp).detach() + 0.1
    sure = hs.Uncertain(net, hs.noise.std(0.2), "sampled_adf")
    options = {"rates": (0.01, 0.05, 0.2), "samples": 3, "show_progress": False}
    with pytest.warns(UserWarning, match="look cleaner"):
        sure.fit([(ramp, target)], **options)
    noisy = ramp + 0.2 * torch.randn(ramp.shape)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*look cleaner")
        warnings.filterwarnings("ignore", message=".*that was tried")
        sure.fit([(noisy, target)], **options)
        sure.fit([(ramp, target)], inputs="clean", **options)


@pytest.mark.parametrize(
    ("batches", "error", "message"),
    [
        ([], ValueError, "empty"),
        ([torch.rand(4, 2)], TypeError, "pair"),
        ([(torch.rand(4, 2), torch.rand(4))], ValueError, "targets have shape"),
        ([(torch.rand(4, 2), torch.full((4, 1), float("nan")))], ValueError, "NaN"),
    ],
)
def test_bad_held_out_data(trained, batches, error, message):
    net, _ = trained
    with pytest.raises(error, match=message):
        hs.Uncertain(net, 0.01, "sampled_adf").fit(batches, samples=3, show_progress=False)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"samples": 0}, "`samples` must be a whole number"),
        ({"samples": 2.5}, "`samples` must be a whole number"),
        ({"chunk": 0}, "`chunk` must be a whole number"),
        ({"seed": None}, "`seed` must be a whole number"),
        ({"batch_dim": "0"}, "`batch_dim` must be an axis"),
        ({"tolerance": "5%"}, "`tolerance` must be .* between 0 and 1"),
        ({"rate": "a"}, "`rate` must be a number"),
        ({"residual_var": -1}, "`residual_var` must be a variance"),
        ({"residual_var": float("nan")}, "`residual_var` must be a variance"),
        ({"method": "magic"}, "`method` must be one of"),
        ({"prediction": "median"}, "`prediction` must be one of"),
        ({"task": "ranking"}, "`task` must be one of"),
        ({"placement": "everywhere"}, "must be one of"),
    ],
)
def test_bad_settings(options, message):
    with pytest.raises(ValueError, match=message):
        hs.Uncertain(nn.Linear(2, 1), 0.1, **options)


def test_bad_use(trained):
    net, x = trained
    with pytest.raises(ValueError, match="rate is not known"):
        hs.Uncertain(net, 0.1, "sampled_adf")(x)
    with pytest.raises(ValueError, match="at least 0 and below 1"):
        hs.Uncertain(net, 0.1, "sampled_adf", rate=1.0)(x)
    with pytest.raises(ValueError, match="one sample has no variance"):
        hs.Uncertain(net, 0.1, "sampled_adf", rate=0.1, samples=1)(x)
    with pytest.raises(ValueError, match="nothing to drop"):
        hs.Uncertain(nn.Linear(2, 1).eval(), 0.1, "sampled_adf", rate=0.1)(x)
    with pytest.raises(ValueError, match=r"is in train mode; call `model\.eval\(\)`"):
        hs.Uncertain(nn.Linear(2, 1), 0.1, "adf")(x)
    with pytest.raises(ValueError, match="No source of uncertainty"):
        hs.Uncertain(net)(x)
    with pytest.raises(ValueError, match="empty"):
        hs.Uncertain(net, 0.1, "adf").predict([])
    with pytest.raises(TypeError, match="by position or all by keyword"):
        hs.Uncertain(net, 0.1, "adf")(x, scale=1)


def test_auto_says_what_it_picked(trained):
    net, x = trained
    p = hs.Uncertain(net, 0.01)(x)
    assert p.method == "noise_sampling" and "small network" in p.notes[0]
    assert "Model uncertainty is not included" in p.notes[0]
    same = hs.Uncertain(net, 0.01, "noise_sampling", samples=400)(x)
    assert torch.equal(p.total_var, same.total_var)
    wide = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(400, 2)).eval()
    y = torch.rand(2, 1, 12, 12)
    p = hs.Uncertain(wide, 0.01)(y)
    assert p.method == "gradients" and "2 outputs" in p.notes[0]
    assert torch.equal(p.total_var, hs.Uncertain(wide, 0.01, "gradients")(y).total_var)
    assert "own uncertainty" not in hs.Uncertain(net, 0.01, rate=0.1)(x).notes[0]
    many = nn.Sequential(nn.Linear(x.shape[1], 8), nn.ReLU(), nn.Linear(8, 65)).eval()
    assert (
        hs.Uncertain(many, 0.01)(x).notes[0].startswith('"auto" chose "noise_sampling": 65 outputs')
    )
    assert hs.Uncertain(many, rate=0.1)(x).notes[0].startswith('"auto" chose "mc_dropout"')
    few = hs.Uncertain(many, 0.01, "gradients", output=lambda y: y[:, 3:4])(x)
    assert few.std.shape == (len(x), 1)


def test_predict_concatenates_batches(trained, held_out):
    net, _ = trained
    sure = hs.Uncertain(net, 0.01, "sampled_adf", rate=0.1)
    whole = sure(held_out.tensors[0])
    batched = sure.predict(DataLoader(held_out, 50), show_progress=False)
    torch.testing.assert_close(batched.mean, whole.mean)
    torch.testing.assert_close(batched.total_var, whole.total_var)
    one = sure.predict(held_out.tensors[0], show_progress=False)
    assert torch.equal(one.total_var, whole.total_var), "a tensor is one batch"


def test_settings_are_saved_and_loaded_safely(trained, tmp_path):
    net, x = trained
    sure = hs.Uncertain(
        net,
        hs.noise.gray_levels(2),
        "sampled_adf",
        rate=[0.1, 0.05],
        samples=9,
        seed=4,
        placement=["*"],
        residual_var=0.01,
    )
    path = tmp_path / "settings.pt"
    sure.save(path)
    loaded = hs.Uncertain.load(path, net)
    assert torch.equal(loaded(x).total_var, sure(x).total_var)
    assert loaded.describe(x) == sure.describe(x)
    assert list(tmp_path.iterdir()) == [path], "a temporary file was left"
    (tmp_path / "broken.pt").write_bytes(b"not a file")
    with pytest.raises(ValueError, match=r"not a file that `Uncertain\.save` wrote"):
        hs.Uncertain.load(tmp_path / "broken.pt", net)
    with pytest.raises(FileNotFoundError):
        hs.Uncertain.load(tmp_path / "absent.pt", net)


def test_state_dict_carries_weights_and_settings(trained):
    net, x = trained
    sure = hs.Uncertain(net, 0.02, "sampled_adf", rate=0.1, seed=3)
    state = sure.state_dict()
    assert {key.removeprefix("model.") for key in state if key.startswith("model.")} == set(
        net.state_dict()
    )
    other = hs.Uncertain(nn.Sequential(*net).eval(), 0.5)
    other.load_state_dict(state)
    assert torch.equal(other(x).total_var, sure(x).total_var)


def test_eight_threads_give_the_serial_result(trained):
    net, x = trained
    sure = hs.Uncertain(net, 0.01, "sampled_adf", rate=0.1)
    serial = sure(x).total_var
    results = [None] * 8

    def work(index):
        results[index] = sure(x).total_var

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(torch.equal(result, serial) for result in results)


@pytest.mark.parametrize(
    ("method", "options"),
    [
        ("gradients", {}),
        ("gradients", {"tolerance": 0.2}),
        ("gradients", {"rate": 0.1}),
        ("gradients", {"task": "classification"}),
        ("linear", {}),
        ("noise_sampling", {}),
        ("sampled_adf", {"rate": 0.1}),
    ],
    ids=lambda value: value if isinstance(value, str) else "-".join(value) or "plain",
)
def test_a_call_keeps_its_input_no_longer_than_its_prediction(method, options):
    model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 2)).eval()
    sure = hs.Uncertain(model, 0.01, method, **options)
    x = torch.randn(3, 6)
    gc.collect()
    gc.disable()  # What only the garbage collector can free may be large, and wait for long.
    try:
        p = sure(x)
        assert p.std.shape == (3, 2)
        kept = weakref.ref(x)
        del x, p
        assert kept() is None
    finally:
        gc.enable()
