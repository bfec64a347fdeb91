"""Compiled predictions give what eager ones give, and fall back where they must."""

import os
import subprocess
import sys
import textwrap
import warnings
from collections import Counter

import pytest
import torch
from torch import nn
from torch._dynamo.utils import counters

import howsure as hs
from compilers import CASES, assert_same, needs_compiler, without_compiler_warnings
from howsure.deploy.compile import Compiled, Program, read_state
from howsure.deploy.tracing import traced
from howsure.methods import METHODS
from nets import perceptron, small_image_net
from old_torch import TORCH

pytestmark = without_compiler_warnings


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


def test_new_shapes_and_settings_are_compiled_anew(monkeypatch):
    made = []

    def compile_method(setup, method, x, **_):
        made.append(tuple(x.shape))
        return Program(read_state(setup), lambda tensors, held: method(setup, *tensors), {})

    monkeypatch.setattr("howsure.deploy.compile.compile_method", compile_method)
    model, x = perceptron(), torch.rand(4, 3)
    sure = hs.Uncertain(model, 0.1, "adf").compile()
    sure(x), sure(2 * x)
    assert made == [(4, 3)]
    with pytest.warns(UserWarning, match=r"Compiling again.*2, 3"):
        sure(x[:2])
    with torch.no_grad():
        model[0].weight.mul_(2)
    assert_same(sure(x), hs.Uncertain(model, 0.1, "adf")(x))
    assert made == [(4, 3), (2, 3)]
    sure.setup = sure.setup.replace(noise=0.4)
    with pytest.warns(UserWarning, match="Compiling again.*the settings that is frozen"):
        found = sure(x)
    assert_same(found, hs.Uncertain(model, 0.4, "adf")(x))
    assert made == [(4, 3), (2, 3), (4, 3)]


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
    x, before = torch.rand(2, 3, 6, 5), Counter(counters["inductor"])
    assert_same(sure.compile()(x), plain(x))
    turned = torch.rand(2, 5, 6, 3).permute(0, 3, 2, 1)
    assert_same(sure(turned), plain(turned))
    assert len(sure._compiled.programs) == 1
    if torch.backends.mkldnn.is_available() and TORCH >= "2.13":  # Older ones count otherwise.
        folded, packed = "binary_folding_conv", "mkldnn_conv_weight_pack_matcher_count"
        assert counters["inductor"][folded] > before[folded]
        assert counters["inductor"][packed] > before[packed]


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
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)).eval()
    sure = hs.Uncertain(model, 0.1, "gradients")
    x, traces = torch.rand(6, 3), []
    # 8 points of 3 numbers for each of at most 4 rows: 3 divide the batch.
    monkeypatch.setattr("howsure.deploy.compile._ELEMENTS", 100)
    monkeypatch.setattr(
        "howsure.deploy.compile.traced",
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
        (Hides().eval(), {}, "gradients do not explain"),
        (nn.Linear(3, 1).eval(), {"tolerance": 0.3}, "the number of points depends on the input"),
    ],
)
def test_gradients_that_eager_does_not_take_as_they_are_run_as_before(model, options, reason):
    sure, x = hs.Uncertain(model, 0.1, "gradients", **options), torch.rand(2, 3)
    with pytest.warns(UserWarning, match=f"runs uncompiled.*{reason}"):
        found = Compiled()(sure.setup, METHODS["gradients"], x)
    assert_same(found, sure(x))


# Torch's compiler made a variance 13 % too small, of 20 masks through a ResNet-18 and large images.
@pytest.mark.parametrize(("factor", "runs"), [(1.05, "uncompiled"), (1 + 1e-6, "compiled")])
def test_a_program_with_other_numbers_than_eager_does_not_run(factor, runs, monkeypatch):
    def compile_graph(graph, tensors, *, freezing):
        return lambda *inputs: [out * factor for out in graph(*inputs)]

    monkeypatch.setattr("howsure.deploy.compile.compile_graph", compile_graph)
    sure, compiled, x = hs.Uncertain(perceptron(), 0.1, "adf"), Compiled(), torch.rand(2, 3)
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        prediction = compiled(sure.setup, METHODS["adf"], x)
    assert_same(prediction, sure(x))
    said = [str(warning.message) for warning in found]
    wanted = ["the compiler made a program with other numbers"] if runs == "uncompiled" else []
    assert len(said) == len(wanted)
    assert all(part in text for part, text in zip(wanted, said, strict=True))


@pytest.mark.slow
def test_without_a_compiler_it_runs_as_before():
    code = """
        import warnings, torch, howsure as hs
        from howsure.deploy.compile import Compiled
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


def test_what_torch_compiles_around_a_wrapper_is_what_the_wrapper_says():
    sure, x = hs.Uncertain(perceptron(), 0.1, "gradients", samples=8), torch.rand(4, 3)

    def doubled(x):
        return sure(2 * x).total_var * 2

    expected = sure(x)
    found = torch.compile(sure, backend="eager")(x)
    assert torch.equal(found.total_var, expected.total_var) and found.notes == expected.notes
    assert torch.equal(torch.compile(doubled, backend="eager")(x), doubled(x))
