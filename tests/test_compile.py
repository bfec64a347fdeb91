"""Compiled predictions give what eager ones give, and fall back where they must."""

import os
import subprocess
import sys
import textwrap

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import prune

import howsure as hs
from compilers import needs_compiler
from howsure.deploy.compiling import Compiled
from howsure.deploy.compiling.program import compiled_method
from howsure.deploy.compiling.tracing import traced
from howsure.methods import METHODS
from howsure.values.trees import Parts
from nets import perceptron, small_image_net

# Warnings of torch's own about its own compiler.
pytestmark = [
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:.*TF32.*"),
]


CASES = {
    "adf": ("adf", {}),
    "constant": ("constant", {"residual_var": 0.1}),
    "linear": ("linear", {}),
    "mc_dropout": ("mc_dropout", {"rate": 0.2, "samples": 5}),
    "sampled_adf": ("sampled_adf", {"rate": 0.2, "samples": 5}),
    "sampled_adf, masks per input": (
        "sampled_adf",
        {"rate": 0.2, "samples": 3, "shared_masks": False},
    ),
    "gradients": ("gradients", {}),
    "gradients, masks": ("gradients", {"rate": 0.2}),
    "gradients, mean": ("gradients", {"prediction": "mean", "residual_var": 0.1}),
    "gradients, classes": ("gradients", {"rate": 0.2, "task": "classification"}),
    "classification": ("adf", {"task": "classification"}),
}


def assert_same(found, expected):
    """Equal to 1e-5; a variance of samples that hardly differ is no better than their means."""
    one, two = Parts(found).tensors, Parts(expected).tensors
    assert len(one) == len(two)
    rounding = 1e-7 * max(float(tensor.abs().max()) for tensor in two)
    for a, b in zip(one, two, strict=True):
        assert a.shape == b.shape
        largest = float(b.abs().max())
        allowed = 1e-5 * largest + min(2 * rounding * largest**0.5, 1e-9)
        assert float((a - b).abs().max()) <= allowed + 1e-12


def assert_traced(sure, method, x, other):
    """A program that was written down for one input gives what eager gives, for another, too."""
    structure = []

    def flat(tensor):
        structure.append(Parts(method(sure.setup, tensor)))
        return structure[-1].tensors

    graph = traced(flat, [x])
    for values in (x, other):
        assert_same(structure[-1].filled(graph(values)), sure(values))


@pytest.mark.parametrize("case, batch", [*((case, 3) for case in CASES), ("gradients", 1)])
def test_traced_methods_give_what_eager_gives(case, batch):
    method, options = CASES[case]
    sure = hs.Uncertain(small_image_net(), 0.01, method, **options)
    x, other = torch.rand(2, batch, 1, 8, 8)
    sure(x)
    assert_traced(sure, METHODS[method], x, other)


@pytest.mark.parametrize("noise", [0.01, None])
def test_a_traced_posterior_gives_what_eager_gives(noise):
    sure = hs.Uncertain(small_image_net(), noise, "gradients")
    held_out = torch.rand(60, 1, 8, 8)
    with torch.no_grad():
        target = sure.model(held_out)
    sure.fit([(held_out, target + 0.1 * torch.randn_like(target))], model="posterior")
    x, other = torch.rand(2, 3, 1, 8, 8)
    assert float(sure(x).model_var.max()) > 0
    assert_traced(sure, METHODS["gradients"], x, other)


def correlated_noises():
    weights = torch.linspace(-0.1, 0.3, 64 * 4, dtype=torch.float64).reshape(64, 4)
    return {
        "covariance": hs.noise.correlated(covariance=weights @ weights.T),
        "axis": hs.noise.correlated(factor=weights[:8], axis=-1),
        "common mode": hs.noise.common_mode(0.1),
        "rows": hs.noise.rows(0.1),
        "blurred": hs.noise.blurred(0.1, [[1.0, 2.0], [0.5, 1.0]]),
        "ar1": hs.noise.ar1(0.1, 0.9, axis=-1),
        "random walk": hs.noise.random_walk(0.05, axis=-1),
        "sum": (hs.noise.rows(0.1) + hs.noise.std(0.05)).through_normalize(0.5, 2.0),
    }


@pytest.mark.parametrize("method", ["gradients", "linear"])
@pytest.mark.parametrize("kind", correlated_noises())
def test_traced_correlated_noise_is_that_of_eager(kind, method):
    sure = hs.Uncertain(small_image_net(), correlated_noises()[kind], method)
    x, other = torch.rand(2, 3, 1, 8, 8)
    assert sure(x).method == method
    assert_traced(sure, METHODS[method], x, other)


@pytest.mark.parametrize("gradients", [False, True])
@pytest.mark.parametrize(
    "pool, shape",
    [
        (nn.MaxPool1d(3, 2, 1), (2, 3, 7)),
        (nn.MaxPool2d((2, 3), (1, 2), (1, 0), (2, 1), ceil_mode=True), (2, 3, 7, 8)),
        (nn.MaxPool2d(2), (3, 6, 6)),
        (nn.MaxPool3d(2), (1, 2, 4, 5, 4)),
    ],
)
def test_traced_pools_give_what_eager_gives(pool, shape, gradients):
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0))

    def moments(x):
        found = hs.propagate(pool, x, x.square())
        return [found.mean, found.var]

    with torch.set_grad_enabled(gradients):
        found, expected = traced(moments, [x])(x), moments(x)
    for one, two in zip(found, expected, strict=True):
        torch.testing.assert_close(one, two, rtol=1e-5, atol=1e-6)


def test_traced_maxima_of_infinities():
    x = torch.tensor([0.5, -1.0, 2.0])

    def padded(x):
        return nn.functional.pad(x, (0, 2), value=-torch.inf)

    def moments(x):
        found = hs.propagate(lambda x: torch.maximum(padded(x), padded(2 * x)), x, 0.1)
        return [found.mean, found.var]

    found, expected = traced(moments, [x])(x), moments(x)
    torch.testing.assert_close(found, expected)
    assert not any(tensor.isnan().any() for tensor in found)


def test_traced_draws_are_those_of_the_seed():
    def noisy(x):
        return [x + torch.rand(3, generator=torch.Generator().manual_seed(5))]

    expected = torch.rand(3, generator=torch.Generator().manual_seed(5))
    torch.testing.assert_close(traced(noisy, [torch.zeros(3)])(torch.zeros(3))[0], expected)


def test_a_trace_leaves_no_stand_ins_behind():
    model = small_image_net()
    sure = hs.Uncertain(model, 0.01, "adf")
    traced(lambda x: [METHODS["adf"](sure.setup, x).mean], [torch.rand(2, 1, 8, 8)])
    assert type(sure(torch.rand(2, 1, 8, 8)).data_var) is torch.Tensor


class Decides(nn.Module):
    """Looks at values."""

    def forward(self, x):
        return x * 2 if float(x.sum()) > 0 else x


def test_what_cannot_be_traced_runs_as_before_with_one_warning(recwarn):
    sure, compiled = hs.Uncertain(Decides().eval(), method="constant", residual_var=0.1), Compiled()
    for x in (torch.ones(2, 3), -torch.ones(2, 3)):
        assert_same(compiled(sure.setup, METHODS["constant"], x), sure(x))
    (only,) = recwarn
    assert 'The method "constant" runs uncompiled' in str(only.message)


def test_methods_that_draw_noise_run_as_before():
    sure, x = hs.Uncertain(perceptron(), 0.1, "noise_sampling"), torch.rand(2, 3)
    with pytest.warns(UserWarning, match="draws noise in every call"):
        found = Compiled()(sure.setup, METHODS["noise_sampling"], x)
    assert_same(found, sure(x))


def test_errors_are_those_of_eager():
    sure = hs.Uncertain(perceptron(), 0.1, "adf")
    with pytest.raises(ValueError, match="NaN or infinity"):
        Compiled()(sure.setup, METHODS["adf"], torch.full((2, 3), float("nan")))


def test_new_shapes_weights_and_settings_are_compiled_anew(monkeypatch):
    made = []

    def compiled_method(setup, method, x, **_):
        made.append(tuple(x.shape))
        return lambda x: method(setup, x)

    monkeypatch.setattr("howsure.deploy.compiling.compiled.compiled_method", compiled_method)
    model, x = perceptron(), torch.rand(4, 3)
    sure = hs.Uncertain(model, 0.1, "adf").compile()
    sure(x), sure(2 * x)
    assert made == [(4, 3)]
    with pytest.warns(UserWarning, match=r"Compiling again.*\(2, 3\)"):
        sure(x[:2])
    with torch.no_grad():
        model[0].weight.mul_(2)
    assert_same(sure(x), hs.Uncertain(model, 0.1, "adf")(x))
    sure.setup = sure.setup.with_(noise=0.4)
    assert_same(sure(x), hs.Uncertain(model, 0.4, "adf")(x))
    assert made == [(4, 3), (2, 3), (4, 3), (4, 3)]


@needs_compiler
def test_compiled_wrapper_gives_what_eager_gives():
    sure, plain = (hs.Uncertain(perceptron(), 0.1, "adf") for _ in range(2))
    x = torch.rand(4, 3)
    assert_same(sure.compile()(x), plain(x))
    assert list(sure._compiled.programs.values()) != [None]


@needs_compiler
def test_compiled_images_may_lie_in_any_order_and_weights_are_laid_out():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)).eval()
    sure, plain = (hs.Uncertain(model, 0.1, "adf") for _ in range(2))
    x = torch.rand(2, 3, 6, 5)
    assert_same(sure.compile()(x), plain(x))
    turned = torch.rand(2, 5, 6, 3).permute(0, 3, 2, 1)
    assert_same(sure(turned), plain(turned))
    assert len(sure._compiled.programs) == 1
    if torch.backends.mkldnn.is_available():
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as record:
            sure(x)
        names = {event.key for event in record.key_averages()}
        assert any(name.startswith("mkldnn::_convolution") for name in names), names
        assert "aten::batch_norm" not in names


@needs_compiler
@pytest.mark.slow
@pytest.mark.parametrize("case", ["sampled_adf", "gradients, masks"])
def test_compiled_methods_give_what_eager_gives(case):
    method, options = CASES[case]
    sure = hs.Uncertain(small_image_net(), 0.01, method, **options)
    x = torch.rand(2, 1, 8, 8)
    compiled = Compiled()
    found = compiled(sure.setup, METHODS[method], x)
    assert list(compiled.programs.values()) != [None]
    assert_same(found, sure(x))
    assert found.notes == sure(x).notes
    if method == "gradients":
        assert_same(found.budget().variances, sure(x).budget().variances)


@needs_compiler
def test_a_large_batch_is_one_program_run_in_parts(monkeypatch):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1)).eval()
    sure = hs.Uncertain(model, 0.1, "gradients")
    x, traces = torch.rand(6, 3), []
    # 8 points of 3 numbers for each of at most 4 rows: 3 divide the batch.
    monkeypatch.setattr("howsure.deploy.compiling.program._ELEMENTS", 100)
    monkeypatch.setattr(
        "howsure.deploy.compiling.program.traced",
        lambda function, tensors, *_: traces.append(tensors[0].shape) or traced(function, tensors),
    )
    compiled = Compiled()
    found = compiled(sure.setup, METHODS["gradients"], x)
    assert list(compiled.programs.values()) != [None]
    assert traces == [(3, 3)]
    assert_same(found, sure(x))
    assert_same(found.budget().elements["x"], sure(x).budget().elements["x"])


class Hides(nn.Module):
    """Has no gradient."""

    def forward(self, x):
        return x.detach().square()


@pytest.mark.parametrize(
    "model, options, reason",
    [
        (Hides().eval(), {}, "hides its gradient"),
        (nn.Linear(3, 1).eval(), {"tolerance": 0.3}, "as many points as each needs"),
    ],
)
def test_gradients_that_eager_does_not_take_as_they_are_run_as_before(model, options, reason):
    sure, x = hs.Uncertain(model, 0.1, "gradients", **options), torch.rand(2, 3)
    with pytest.warns(UserWarning, match=f"runs uncompiled.*{reason}"):
        found = Compiled()(sure.setup, METHODS["gradients"], x)
    assert_same(found, sure(x))


@pytest.mark.slow
def test_without_a_compiler_it_runs_as_before():
    code = """
        import warnings, torch, howsure as hs
        from howsure.deploy.compiling import Compiled
        from howsure.methods import METHODS
        sure = hs.Uncertain(torch.nn.Linear(2, 1).eval(), 0.1, "adf")
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always")
            Compiled()(sure.setup, METHODS["adf"], torch.rand(2, 2))
        print([str(w.message)[:36] for w in found if "uncompiled" in str(w.message)])
    """
    found = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        capture_output=True,
        text=True,
        env={**os.environ, "CXX": "/does/not/exist", "TORCHINDUCTOR_FORCE_DISABLE_CACHES": "1"},
    )
    assert "runs uncompiled" in found.stdout, found.stdout + found.stderr


def test_the_compiler_is_imported_only_to_compile():
    code = "import sys, howsure; howsure.Uncertain; print('torch._inductor' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.strip() == "False", done.stderr


def test_weights_that_were_traced_can_be_swapped():
    """A graph keeps the stand-ins, which must not keep weak references to the weights."""
    net = nn.Linear(3, 2)
    graph = traced(lambda x: [net(x)], [torch.rand(4, 3)])
    torch.utils.swap_tensors(net.weight, nn.Parameter(torch.zeros(2, 3)))
    assert not net.weight.any() and graph(torch.ones(4, 3))[0].any()


class Keeps(nn.Module):
    """Computes a weight in a hook, and keeps what it last saw in a list and an attribute."""

    def __init__(self):
        super().__init__()
        self.layer, self.seen, self.last = nn.Linear(3, 1).requires_grad_(False), [], None
        prune.l1_unstructured(self.layer, "weight", 0.5)

    def forward(self, x):
        self.last = x * 2
        self.seen[:] = [self.layer.weight * 1]
        return self.layer(x)


@needs_compiler
@pytest.mark.parametrize("made", ["compiled", "exported"])
def test_a_trace_leaves_no_stand_ins_in_the_model(made, tmp_path):
    model, x = Keeps().eval(), torch.rand(2, 3)
    weight, sure = model.layer.weight, hs.Uncertain(model, 0.1, "adf")
    if made == "compiled":
        compiled_method(sure.setup, METHODS["adf"], x)
    else:
        hs.export(sure, x, tmp_path / "net.pt2")
    assert type(model.layer.weight) is Tensor and torch.equal(model.layer.weight, weight)
    assert all(type(each) is Tensor for each in model.seen)
    assert model.last is None or type(model.last) is Tensor
