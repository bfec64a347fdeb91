"""Dense outputs: the posterior over masks at every pixel, of all layers or of a 1 x 1 head."""

import threading

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import howsure as hs
from howsure.fit import PosteriorFit
from howsure.masks.pixels import PixelGram, m_at_pixels
from howsure.masks.posterior import gram_of
from howsure.methods.pixel_directions import DIRECTIONS, along_directions, directions
from howsure.methods.pixel_head import NoPixelHeadError, at_pixels, head_of
from howsure.methods.pixels import gradients_at_pixels

SIDE = 12


class Dense(nn.Module):
    """A trunk and a head of 1 x 1, with what users put behind it."""

    def __init__(self, outputs=1, finish=None, channels=6):
        super().__init__()
        torch.manual_seed(0)
        self.trunk = nn.Sequential(nn.Conv2d(1, 5, 3, padding=1), nn.Tanh())
        self.wide = nn.Conv2d(5, channels, 3, padding=1)
        self.head = nn.Conv2d(channels, outputs, 1)
        self.finish = finish
        self.eval()

    def forward(self, image):
        out = self.head(torch.relu(self.wide(self.trunk(image))))
        return out if self.finish is None else self.finish(out)


class ChannelsLast(Dense):
    """The same with a linear layer at every pixel."""

    def __init__(self, flat=False):
        super().__init__(outputs=3)
        self.flat = flat
        self.head = nn.Linear(6, 3)

    def forward(self, image):
        h = torch.relu(self.wide(self.trunk(image))).movedim(1, -1)
        if not self.flat:
            return self.head(h).movedim(-1, 1)
        return self.head(h.reshape(-1, 6)).reshape(len(image), SIDE, SIDE, 3)


class TwoHeads(Dense):
    """A dict of two maps, the second from a head that is called later."""

    def __init__(self):
        super().__init__()
        self.other = nn.Conv2d(6, 1, 1)

    def forward(self, image):
        h = torch.relu(self.wide(self.trunk(image)))
        return {"depth": self.head(h), "height": self.other(h), "count": 2}


def images(count, seed):
    return torch.randn(count, 1, SIDE, SIDE, generator=torch.Generator().manual_seed(seed))


def trained():
    """A network that smooths images, which is what the targets are."""
    net = Dense(channels=8).train()
    step, (x, y) = torch.optim.Adam(net.parameters(), 1e-2), data(200, 0)
    for _ in range(150):
        step.zero_grad()
        F.mse_loss(net(x), y).backward()
        step.step()
    return net.eval().requires_grad_(False)


def data(count, seed):
    x = images(count, seed)
    noise = torch.randn(x.shape, generator=torch.Generator().manual_seed(seed + 999))
    return x, F.avg_pool2d(x, 3, 1, 1).tanh() + 0.1 * noise


@pytest.fixture(scope="module")
def net():
    return trained()


@pytest.fixture(scope="module", params=["all", "head"])
def sure(net, request):
    wrapped = hs.Uncertain(net, 0.001, samples=20)
    held_out, known = [data(20, 1), data(10, 2)], images(60, 0)
    wrapped.fit(held_out, train_inputs=known, dense_masks=request.param, show_progress=False)
    return wrapped


def written_into(out):
    return out.sub_(0.1).exp_()


NETS = {
    "plain": (Dense(), {}),
    "three outputs": (Dense(3), {}),
    "exp in place": (Dense(2, written_into), {}),
    "softplus": (Dense(1, F.softplus), {}),
    "no channel axis": (Dense(1, lambda out: out[:, 0]), {}),
    "as many channels as columns": (Dense(SIDE), {}),
    "channels last": (Dense(SIDE, lambda out: out.movedim(1, -1)), {}),
    "linear": (ChannelsLast(), {}),
    "linear on flat pixels": (ChannelsLast(flat=True), {}),
    "first of two": (TwoHeads(), {"output": "depth"}),
    "second of two": (TwoHeads(), {"output": "height"}),
}


@pytest.mark.parametrize("name", NETS)
def test_gradients_are_finite_differences_of_multipliers(name):
    net, options = NETS[name]
    net, x = net.double(), images(3, 5).double()
    setup = hs.Uncertain(net, **options).setup
    head = head_of(setup, x)
    assert head == ("other" if name == "second of two" else "head")
    seen = at_pixels(setup, x, head)
    layer, step = net.get_submodule(head), 1e-6
    for k in range(seen.masks):
        ends = []
        for sign in (1, -1):

            def scaled(module, inputs, k=k, sign=sign):
                axis = -1 if isinstance(module, nn.Linear) else 1
                factor = torch.ones(inputs[0].shape[axis], dtype=torch.float64)
                factor[k] += sign * step
                return (inputs[0] * factor.reshape(-1, *(1, 1) if axis == 1 else ()),)

            handle = layer.register_forward_pre_hook(scaled)
            with torch.no_grad():
                ends.append(setup.run(x.clone()))
            handle.remove()
        slope = seen.by_pixel((ends[0] - ends[1]) / (2 * step))
        torch.testing.assert_close(seen.z[..., k], slope, rtol=1e-6, atol=1e-8)
    torch.testing.assert_close(seen.shaped(seen.by_pixel(seen.output)), seen.output)
    net.float()


@pytest.mark.parametrize("finish", [None, F.softplus, lambda out: out[:, 0]])
def test_directions_are_sums_of_finite_differences_of_multipliers(finish):
    net, x = Dense(1 if finish else 2, finish).double(), images(3, 5).double()
    setup, step = hs.Uncertain(net).setup, 1e-6
    seen = along_directions(setup, x)
    signs = torch.cat([each.flatten(1) for each in directions(setup.watching(x).sites(x))], 1)
    places = [(net.trunk, k) for k in range(5)] + [(net.wide, k) for k in range(6)]
    assert seen.masks == signs.shape[1] == len(places)
    slopes = []
    for place, k in places:
        ends = []
        for sign in (1, -1):
            factor = torch.ones(6 if place is net.wide else 5, 1, 1, dtype=torch.float64)
            factor[k] += sign * step
            handle = place.register_forward_hook(lambda m, i, o, factor=factor: o * factor)
            with torch.no_grad():
                ends.append(net(x))
            handle.remove()
        slopes.append(seen.by_pixel((ends[0] - ends[1]) / (2 * step)))
    expected = torch.stack(slopes, 3) @ signs.double().mT
    torch.testing.assert_close(seen.z, expected, rtol=1e-3, atol=1e-4)
    assert seen.z.shape[3] == DIRECTIONS


def test_directions_run_in_chunks(net):
    x = images(3, 5)
    whole, parts = (along_directions(hs.Uncertain(net, chunk=c).setup, x).z for c in (None, 5))
    torch.testing.assert_close(whole, parts, rtol=1e-3, atol=1e-3)


def test_m_is_the_formula():
    setup = hs.Uncertain(Dense(2, F.softplus).double()).setup
    gram = PixelGram()
    known = [at_pixels(setup, images(8, seed).double(), "head") for seed in (1, 2)]
    for seen in known:
        gram.add(seen)
    new = at_pixels(setup, 2 * images(3, 9).double(), "head")
    found = m_at_pixels(gram.posterior(0.01), new).numpy()
    z = torch.cat([seen.z.flatten(0, 1) for seen in known]).numpy()
    size = np.sqrt((z**2).mean((0, 2)))
    c = np.einsum("poi,poj->ij", z / size[:, None], z / size[:, None]) / (2 * len(z))
    inverse = np.linalg.inv(c + 0.01 * np.trace(c) / 6 * np.eye(6)) * np.trace(c) / 6
    own = new.z.numpy() / size[:, None] / np.sqrt(np.trace(c) / 6)
    expected = np.einsum("npoi,ij,npoj->npo", own, inverse * 6 / np.trace(c), own) / 6
    np.testing.assert_allclose(found, expected, rtol=1e-8)
    assert gram.inputs == 16 and gram.pixels == 16 * SIDE**2


def test_one_output_has_the_posterior_of_all_pixels_as_rows():
    setup, x = hs.Uncertain(Dense()).setup, images(10, 1)
    seen = at_pixels(setup, x, "head")
    gram = PixelGram()
    gram.add(seen)
    rows = seen.z.flatten(0, 1)
    expected = gram_of([rows]).posterior(0.1).m(rows)
    torch.testing.assert_close(m_at_pixels(gram.posterior(0.1), seen).flatten(0, 1), expected)


def test_sums_of_parts_are_those_of_the_whole():
    setup, x = hs.Uncertain(Dense(2)).setup, images(9, 1)
    seen, whole, parts = at_pixels(setup, x, "head"), PixelGram(), [PixelGram(), PixelGram()]
    whole.add(seen)
    parts[0].add(seen.rows([0, 1, 2, 3]))
    parts[1].add(seen.rows(torch.arange(9) > 3))
    both = parts[0] + PixelGram() + parts[1]
    torch.testing.assert_close(both.total, whole.total)
    assert (both.inputs, both.pixels) == (whole.inputs, whole.pixels)


def test_an_output_that_no_channel_moves_has_no_model_variance():
    net = Dense(2)
    net.head.weight.data[1] = 0
    gram, seen = PixelGram(), at_pixels(hs.Uncertain(net).setup, images(4, 1), "head")
    gram.add(seen)
    m = m_at_pixels(gram.posterior(0.01), seen)
    assert bool((m[..., 1] == 0).all()) and float(m[..., 0].mean()) > 0


def test_fit_says_what_it_found(sure):
    fit = sure.last_fit
    assert isinstance(fit, PosteriorFit)
    assert (fit.count, fit.known, fit.cross_fitted) == (30, 60, False)
    assert 0.9 < fit.coverage < 0.99
    masks = {"head": 8, "*": 5 + 8}[fit.model.head]
    assert f"posterior over {masks} masks" in str(fit)


def test_the_weights_are_at_least_as_good_as_a_constant(net):
    wrapped = hs.Uncertain(net, 0.001, samples=20)
    fit = wrapped.fit([data(20, 1)], growth=False, cap=False, show_progress=False)
    assert fit.nll <= fit.constant_nll + 1e-6


def test_the_prediction_is_the_formula(sure, net):
    x, model = images(3, 7), sure.setup.variance_model
    p = sure(x)
    noise = hs.Uncertain(net, 0.001, "noise_sampling", samples=20)(x).data_var.double()
    m = m_at_pixels(model.posterior, gradients_at_pixels(sure.setup, x, model.head))
    m, f = m.reshape(x.shape), net(x).double()
    novelty = m / model.known
    growth = model.squared_error * (novelty**1.5 - 1).clamp(min=0)
    v = model.residual_var + model.noise_factor * noise + model.mask_var * m + growth
    most = model.spread + (f - model.centre) ** 2
    expected = (v**-4 + most**-4) ** -0.25
    torch.testing.assert_close(p.total_var.double(), expected, rtol=1e-5, atol=0)
    torch.testing.assert_close(p.novelty.double(), novelty, rtol=1e-5, atol=0)
    torch.testing.assert_close(p.mean, net(x))
    torch.testing.assert_close(p.budget().total, p.total_var.flatten(1))
    joint = novelty.mean((1, 2, 3)) / model.joint_known
    torch.testing.assert_close(p.joint_novelty.double(), joint, rtol=1e-5, atol=0)
    assert p.method == "noise_sampling" and "every pixel" in p.notes[0]


def test_dense_classes_have_a_map_of_entropy():
    p = hs.Uncertain(Dense(3), 0.01, task="classification", samples=8)(images(2, 0))
    expected = -(p.mean * p.mean.log()).sum(1)
    torch.testing.assert_close(p.entropy, expected)
    assert p.mutual_information.shape == (2, SIDE, SIDE)
    torch.testing.assert_close(p.mutual_information, (expected - p.expected_entropy).clamp(min=0))


def test_intervals_cover_the_pixels_of_other_images(sure):
    x, y = data(20, 33)
    low, high = sure(x).interval(0.95)
    assert 0.92 < float(((low < y) & (y < high)).double().mean()) < 0.98


def test_a_strange_patch_is_new_where_it_is(sure):
    x = images(4, 8)
    x[:, :, 2:7, 2:7] = 6.0
    novelty = sure(x).novelty[:, 0]
    assert float(novelty[:, 3:6, 3:6].mean()) > 3 * float(novelty[:, 9:, 9:].mean())


def test_a_row_does_not_depend_on_its_batch(sure):
    x = images(4, 3)
    whole = sure(x)
    for i in range(4):
        alone = sure(x[i : i + 1])
        for name in ("mean", "data_var", "model_var", "novelty", "joint_novelty"):
            found, own = getattr(alone, name)[0], getattr(whole, name)[i]
            torch.testing.assert_close(found, own, rtol=1e-3, atol=1e-5)
    assert sure(x[:0]).std.shape == (0, 1, SIDE, SIDE)


def test_settings_come_back(sure, net, tmp_path):
    sure.save(tmp_path / "settings.pt")
    loaded, x = hs.Uncertain.load(tmp_path / "settings.pt", net), images(2, 4)
    assert torch.equal(loaded(x).total_var, sure(x).total_var)
    assert torch.equal(loaded(x).novelty, sure(x).novelty)


def test_without_noise_nothing_is_sampled(net):
    wrapped = hs.Uncertain(net)
    wrapped.fit([data(20, 1)], show_progress=False)
    p = wrapped(images(2, 4))
    assert wrapped.last_fit.cross_fitted
    noise, *others = p.budget().variances
    assert bool((noise == 0).all()) and bool((sum(others) > 0).all())
    assert bool((p.std_error == 0).all())


def test_the_mean_over_noise_is_predicted_if_asked_for(net):
    wrapped = hs.Uncertain(net, 0.3, prediction="mean", samples=50)
    wrapped.fit([data(12, 1)], train_inputs=images(20, 0), show_progress=False)
    x = images(2, 4)
    expected = hs.Uncertain(net, 0.3, "noise_sampling", prediction="mean", samples=50)(x).mean
    torch.testing.assert_close(wrapped(x).mean, expected)
    assert not torch.allclose(wrapped(x).mean, net(x), atol=1e-3)


def test_folds_are_images_that_have_not_been_seen(net):
    x, y = data(20, 1)
    x[7] = 9.0  # So far from all others that it is new unless the posterior has seen it.
    crossed, seen = hs.Uncertain(net), PixelGram()
    crossed.fit([(x, y)], dense_masks="head", show_progress=False)
    found = at_pixels(crossed.setup, x, "head")
    model = crossed.setup.variance_model
    seen.add(found)
    torch.testing.assert_close(seen.posterior(0.1).whitening, model.posterior.whitening)
    means = []
    for k in range(5):  # The folds are every fifth image.
        rest = PixelGram()
        rest.add(found.rows(torch.arange(20) % 5 != k))
        means.append(m_at_pixels(rest.posterior(0.1), found).mean((1, 2)))
    novelty = torch.stack([means[i % 5][i] for i in range(20)]) / model.known
    assert float(novelty[7]) > 1.5 * float(
        m_at_pixels(model.posterior, found)[7].mean() / model.known
    )
    torch.testing.assert_close(novelty.quantile(0.75), torch.tensor(model.joint_known).double())
    torch.testing.assert_close(
        novelty.quantile(0.99) / model.joint_known, model.joint_quantiles[99]
    )


def test_a_gate_rejects_new_images(sure):
    gate = hs.Gate.on_novelty(sure.setup.variance_model, level=0.95)
    known, new = sure(images(20, 40)).joint_novelty, sure(5 * images(20, 41)).joint_novelty
    assert float(gate(known).double().mean()) > 0.8 and not bool(gate(new).any())


def test_stress_fits_the_exponent(net):
    found = [
        hs.Uncertain(net).fit(
            [data(20, 1)], train_inputs=images(40, 0), stress=[change], show_progress=False
        )
        for change in (lambda x: 1.3 * x, lambda x: 6 * x)
    ]
    assert all(fit.stressed_nll is not None for fit in found)
    assert found[0].model.exponent != found[1].model.exponent


def test_the_model_keeps_no_hook_also_after_an_error(sure, net):
    sure(images(1, 0))
    with pytest.raises(RuntimeError):
        sure(torch.zeros(1, 3, SIDE, SIDE))
    with pytest.raises(RuntimeError):
        at_pixels(sure.setup, torch.zeros(1, 3, SIDE, SIDE), "head")
    hooks = [m for m in net.modules() if m._forward_hooks or m._forward_pre_hooks]
    assert not hooks and torch.is_grad_enabled()


def test_a_call_in_another_thread_is_not_seen(net):
    setup, x = hs.Uncertain(net).setup, images(2, 0)
    expected = at_pixels(setup, x, "head").channels

    def beside(image):
        other = threading.Thread(target=lambda: net.head(torch.ones(1, 8, 1, 1)))
        other.start()
        other.join()
        return net(image)

    class Busy(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = net

        def forward(self, image):
            return beside(image)

    found = at_pixels(hs.Uncertain(Busy().eval()).setup, x, "net.head").channels
    assert torch.equal(found, expected)


class Twice(Dense):
    def forward(self, image):
        h = torch.relu(self.wide(self.trunk(image)))
        return self.head(h) + self.head(h.flip(-1))


class Functional(Dense):
    def forward(self, image):
        h = torch.relu(self.wide(self.trunk(image)))
        return F.conv2d(h, self.head.weight, self.head.bias)


class Wider(Dense):
    def __init__(self):
        super().__init__()
        self.head = nn.Conv2d(6, 1, 3, padding=1)


class Doubled(nn.Conv2d):
    def forward(self, input):
        return 2 * super().forward(input)


class Own(Dense):
    def __init__(self):
        super().__init__()
        self.head = Doubled(6, 1, 1)


class Whole(Dense):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(6 * SIDE**2, SIDE**2)

    def forward(self, image):
        return self.head(torch.relu(self.wide(self.trunk(image))).flatten(1))


def round_up(out):
    return out.round()


REFUSED = {
    "3 x 3": (Wider(), "neither a 1 x 1 convolution"),
    "functional": (Functional(), "neither a 1 x 1 convolution"),
    "called twice": (Twice(), "called 2 times"),
    "softmax": (Dense(3, lambda out: out.softmax(1)), "mixes pixels or outputs"),
    "blur": (Dense(1, lambda out: F.avg_pool2d(out, 3, 1, 1)), "mixes pixels or outputs"),
    "detached": (Dense(1, lambda out: out.detach()), "has no gradient"),
    "rounded": (Dense(1, round_up), "does not change as the weights"),
    "own layer": (Own(), "does not change as the weights"),
    "a whole image": (Whole(), "an input as a whole"),
    "two outputs": (TwoHeads(), "choose it with `output=`"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_has_no_head_says_why(name):
    net, words = REFUSED[name]
    with pytest.raises(NoPixelHeadError, match=words):
        head_of(hs.Uncertain(net).setup, images(3, 0))


def test_a_model_without_modules_has_no_head():
    with pytest.raises(NoPixelHeadError, match="neither"):
        head_of(hs.setup.Setup(lambda x: 2 * x), images(3, 0))


@pytest.mark.parametrize(
    "changes, words",
    [
        ({"held_out": [data(9, 1)]}, "at least 10"),
        ({"train_inputs": images(9, 0)}, "at least 10"),
        ({"train_inputs": torch.rand(20, 1, SIDE, 8)}, "prepare both"),
        ({"train_inputs": data(12, 1)[0]}, "has not seen"),
        ({"held_out": [(images(12, 1), torch.full((12, 1, SIDE, SIDE), torch.nan))]}, "NaN"),
        ({"held_out": [(images(12, 1), torch.zeros(12, 1))]}, "targets have shape"),
        ({"dense_masks": "last"}, "must be one of .*'all', 'head'"),
    ],
)
def test_wrong_use_is_answered(net, changes, words):
    given = {"held_out": [data(12, 1)], "show_progress": False, **changes}
    with pytest.raises(ValueError, match=words):
        hs.Uncertain(net, 0.001, samples=8).fit(given.pop("held_out"), **given)


def test_what_has_no_pixels_or_head_is_told_what_to_use():
    net = Wider().eval()
    with pytest.raises(ValueError, match=r'neither.*dense_masks="all".*model="dropout"'):
        hs.Uncertain(net, 0.01, samples=8).fit([data(12, 1)], dense_masks="head")
    fit = hs.Uncertain(net, 0.01, samples=8).fit([data(12, 1)], show_progress=False)
    assert fit.model.head == "*"
    vectors = [(data(12, 1)[0], torch.zeros(12, SIDE**2))]
    wrapped = hs.Uncertain(Whole().eval(), 0.01, samples=8)
    with pytest.raises(ValueError, match=r'no maps.*model="dropout"'):
        wrapped.fit(vectors, model="posterior")
    assert "no maps" in wrapped.fit(vectors, show_progress=False).notes[0]


def test_a_staircase_is_refused():
    stepwise = Dense(1, lambda out: (4 * out).round())
    with pytest.raises(ValueError, match="steps"):
        hs.Uncertain(stepwise, 0.01).fit([data(12, 1)], model="posterior")


def test_rows_that_mix_are_refused():
    mixing = Dense(1, lambda out: out - out.mean(0))
    with pytest.raises(ValueError, match="influence each other"):
        hs.Uncertain(mixing, 0.01).fit([data(12, 1)], model="posterior")


def test_other_methods_and_models_say_that_they_have_no_room(sure, net):
    other = hs.Uncertain(net, 0.001, "gradients")
    other.setup = sure.setup
    with pytest.raises(ValueError, match="has no room"):
        other(images(1, 0))
    with pytest.raises(ValueError, match="up to 64"):
        hs.Uncertain(net, 0.001, "gradients").fit([data(60, 1)])
    renamed = nn.Sequential(net)
    with pytest.raises(ValueError, match="none of that name"):
        at_pixels(hs.Uncertain(renamed.eval()).setup, images(1, 0), "head")
