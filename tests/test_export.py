"""Exported files give what the wrapper gives, without howsure."""

import json
import subprocess
import sys

import pytest
import torch
from torch import nn

import howsure as hs
from exports import EXAMPLE, EXPORTED, FORMATS, assert_same, in_onnxruntime, needs_onnx
from howsure.calibrate import AffineVariance, Conformal, VarianceScale
from howsure.deploy.export import ExportError, export, read_metadata
from howsure.deploy.tracing import BatchSizeMattersError, for_any_batch, traced
from nets import TwoSensors, perceptron, small_image_net

pytestmark = EXPORTED


CASES = {
    "adf": {},
    "constant": {"residual_var": 0.1},
    "linear": {},
    "mc_dropout": {"rate": 0.5, "samples": 5, "residual_var": 0.1},
    "sampled_adf": {"rate": 0.5, "samples": 5},
    "gradients": {"rate": 0.2},
}


IMAGES = [pytest.param(method, "images", marks=pytest.mark.slow) for method in CASES]


def made(inputs):
    return (perceptron(), (3,)) if inputs == "vectors" else (small_image_net(), (1, 8, 8))


@pytest.mark.parametrize("method, inputs", [*((method, "vectors") for method in CASES), *IMAGES])
def test_program_for_any_batch(method, inputs, tmp_path):
    model, shape = made(inputs)
    sure = hs.Uncertain(model, 0.01, method, **CASES[method])
    done = export(sure, torch.rand(2, *shape), tmp_path / "net.pt2")
    assert done.batch is None and done.difference <= 1e-5
    program = torch.export.load(tmp_path / "net.pt2").module()
    for batch in (1, 2, 5):
        x = torch.rand(batch, *shape)
        assert_same(program(x), sure(x))


def test_correlated_noise_is_in_the_file(tmp_path):
    noise = hs.noise.common_mode(0.1) + hs.noise.ar1(0.1, 0.8) + hs.noise.std(0.05)
    sure = hs.Uncertain(perceptron(), noise, "gradients")
    assert export(sure, torch.rand(2, 3), tmp_path / "net.pt2").batch is None
    program = torch.export.load(tmp_path / "net.pt2").module()
    for batch in (1, 5):
        x = torch.rand(batch, 3)
        assert_same(program(x), sure(x))
    assert hs.noise.from_config(read_metadata(tmp_path / "net.pt2")["noise"]).is_correlated


@needs_onnx
@pytest.mark.parametrize("method, inputs", [("adf", "vectors"), *IMAGES])
def test_onnx_for_any_batch(method, inputs, tmp_path):
    model, shape = made(inputs)
    sure = hs.Uncertain(model, 0.01, method, **CASES[method])
    done = export(sure, torch.rand(2, *shape), tmp_path / "net.onnx", units="rad")
    assert done.batch is None and done.outputs == ("mean", "data_var", "model_var")
    run = in_onnxruntime(tmp_path / "net.onnx")
    for batch in (1, 2, 5):
        x = torch.rand(batch, *shape)
        assert_same(run(x), sure(x))
    assert read_metadata(tmp_path / "net.onnx")["units"] == "rad"


def test_file_says_how_it_was_made(tmp_path):
    noise = hs.noise.std(0.1)
    sure = hs.Uncertain(perceptron(), noise, "sampled_adf", rate=0.2, samples=3, residual_var=0.5)
    export(sure, torch.rand(2, 3), tmp_path / "net.pt2", units="rad")
    about = read_metadata(tmp_path / "net.pt2")
    assert about["rates"] == {"0": 0.2} and about["residual_var"] == 0.5 and about["units"] == "rad"
    assert hs.noise.from_config(about["noise"])(torch.zeros(1)) == pytest.approx(0.01)
    assert about["inputs"] == [{"name": "x", "shape": [2, 3], "dtype": "float32"}]
    extra = {"howsure.json": ""}
    torch.export.load(tmp_path / "net.pt2", extra_files=extra)
    assert json.loads(extra["howsure.json"]) == about


def test_several_inputs_and_nested_outputs(tmp_path):
    sure = hs.Uncertain(TwoSensors().eval(), {"image": 0.01, "motion": 0.1}, "adf")
    x = {"image": torch.rand(2, 1, 8, 8), "motion": torch.rand(2, 6)}
    done = export(sure, x, tmp_path / "net.pt2")
    assert done.inputs == ("image", "motion")
    found = torch.export.load(tmp_path / "net.pt2").module()(x["image"], x["motion"])
    expected = sure(**x)
    torch.testing.assert_close(found["mean.pose.0"], expected.mean["pose"][0])
    torch.testing.assert_close(found["data_var.pose.1"], expected.data_var["pose"][1])


def test_calibrators_of_variances_are_in_the_file(tmp_path):
    sure, x = hs.Uncertain(perceptron(), 0.1, "adf"), torch.rand(4, 3)
    scale = VarianceScale(torch.tensor([2.0, 3.0], dtype=torch.float64))
    affine = AffineVariance(torch.tensor(1.5), torch.tensor(0.2))
    sure.calibrators = (scale, affine)
    export(sure, x, tmp_path / "net.pt2")
    found = torch.export.load(tmp_path / "net.pt2").module()(x)
    assert_same(found, sure(x))
    assert float(found["data_var"].min()) > 0.2


def test_calibrators_of_intervals_are_refused(tmp_path):
    sure, x = hs.Uncertain(perceptron(), 0.1, "adf"), torch.rand(40, 3)
    sure.calibrators = (Conformal.fit(sure(x), torch.rand(40, 2)),)
    with pytest.raises(ExportError, match=r"`Conformal` gives intervals.*VarianceScale"):
        export(sure, x, tmp_path / "net.pt2")


@pytest.mark.parametrize("method", ["adf", "gradients"])
def test_noise_with_a_std_for_every_feature_in_double_precision(method, tmp_path):
    noise = hs.noise.std(torch.tensor([0.1, 0.2, 0.3]))
    sure, x = hs.Uncertain(perceptron().double(), noise, method), torch.rand(2, 3).double()
    assert export(sure, x, tmp_path / "net.pt2").difference <= 1e-12


@pytest.mark.parametrize("method", ["adf", "gradients"])
def test_classification(method, tmp_path):
    sure = hs.Uncertain(perceptron(), 0.1, method, task="classification")
    x = torch.rand(3, 3)
    assert export(sure, x, tmp_path / "net.pt2").batch is None
    assert_same(torch.export.load(tmp_path / "net.pt2").module()(x), sure(x))


def test_masks_for_each_input_fix_the_batch(tmp_path):
    options = {"rate": 0.2, "samples": 3, "shared_masks": False}
    sure, x = hs.Uncertain(perceptron(), 0.1, "sampled_adf", **options), torch.rand(4, 3)
    with pytest.raises(ExportError, match="depends on the batch size"):
        export(sure, x, tmp_path / "net.pt2", any_batch=True)
    done = export(sure, x, tmp_path / "net.pt2")
    assert done.batch == 4 and read_metadata(done.path)["batch"] == 4


class Decides(nn.Module):
    def forward(self, x):
        return x * 2 if float(x.sum()) > 0 else x


class Hides(nn.Module):
    def forward(self, x):
        return x.detach().square()


@pytest.mark.parametrize(
    "model, options, message",
    [
        (Hides().eval(), {}, r"cannot be exported: the gradients do not explain"),
        (perceptron(), {"tolerance": 0.3}, r"`samples=` and `tolerance=None`"),
    ],
)
def test_gradients_that_differ_by_input_or_are_none_are_refused(model, options, message, tmp_path):
    sure = hs.Uncertain(model, 0.1, "gradients", **options)
    with pytest.raises(ExportError, match=message):
        export(sure, torch.rand(2, 3), tmp_path / "net.pt2")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "model, method, name, message",
    [
        (perceptron(), "adf", "net.h5", r"`net.h5` must end in `.onnx` or `.pt2`"),
        (perceptron(), "noise_sampling", "net.pt2", r"draws new noise in every call"),
        (Decides().eval(), "constant", "net.pt2", r"control flow of the model"),
    ],
)
def test_what_cannot_be_exported_is_said_and_nothing_is_written(
    model, method, name, message, tmp_path
):
    sure = hs.Uncertain(model, 0.1, method)
    with pytest.raises(ExportError, match=message):
        export(sure, torch.rand(2, 3), tmp_path / name)
    assert list(tmp_path.iterdir()) == []


def test_missing_package_names_the_pip_line(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(ImportError, match=r"pip install 'howsure\[export\]'"):
        export(hs.Uncertain(perceptron(), 0.1, "adf"), torch.rand(2, 3), tmp_path / "net.onnx")


def test_a_bare_model_is_to_be_wrapped(tmp_path):
    with pytest.raises(ExportError, match="Wrap the Sequential first"):
        export(perceptron(), torch.rand(2, 3), tmp_path / "net.pt2")


def test_other_files_have_no_metadata(tmp_path):
    program = torch.export.export(perceptron(), (torch.rand(2, 3),), strict=False)
    torch.export.save(program, tmp_path / "plain.pt2")
    with pytest.raises(ExportError, match="not written by"):
        read_metadata(tmp_path / "plain.pt2")
    with pytest.raises(FileNotFoundError):
        read_metadata(tmp_path / "none.pt2")


def _traced(function):
    return lambda size: traced(function, [torch.empty(size, 3)])


def test_numbers_that_are_linear_in_the_batch_follow_it():
    def function(x):
        return [x.repeat(2, 1).reshape(2 * len(x) * 3), torch.zeros(len(x) + 4), x / len(x)]

    graph = for_any_batch(_traced(function), 0)
    for size in (1, 2, 7):
        x = torch.rand(size, 3)
        flat, longer, average = graph(x)
        torch.testing.assert_close(average, x / size)
        torch.testing.assert_close(flat, x.repeat(2, 1).flatten())
        assert len(longer) == size + 4


@pytest.mark.parametrize(
    "function",
    [
        lambda x: [x * (1 / len(x))],
        lambda x: [x.sum() * torch.ones(len(x) % 7 + 1)],
        lambda x: [x * 2 if len(x) > 1500 else x * 2 + 1],
        lambda x: [torch.zeros(len(x) ** 2)],
    ],
)
def test_other_dependence_on_the_batch_is_refused(function):
    with pytest.raises(BatchSizeMattersError):
        for_any_batch(_traced(function), 0)


WITHOUT_HOWSURE = f"""
import contextlib, io, json, sys
sys.modules["howsure"] = None
for path in json.load(sys.stdin):
    sys.argv = ["run_exported.py", path]
    with contextlib.redirect_stdout(io.StringIO()) as said:
        exec(open({str(EXAMPLE)!r}).read())
    print(json.dumps(said.getvalue()))
"""
SUFFIXES = ["pt2", pytest.param("onnx", marks=needs_onnx)]


@pytest.fixture(scope="module")
def printed(tmp_path_factory):
    """What the example prints of each file; one process without howsure runs them all."""
    folder = tmp_path_factory.mktemp("files")
    wrappers = {
        "fixed": hs.Uncertain(perceptron(), 0.1, "adf"),
        "inputs": hs.Uncertain(perceptron(), 0.1, "mc_dropout", rate=0.5, samples=3),
    }
    paths = [folder / f"{masks}.{suffix}" for masks in wrappers for suffix in FORMATS]
    for path in paths:
        export(wrappers[path.stem], torch.rand(1, 3), path, masks=path.stem)
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_HOWSURE],
        input=json.dumps([str(path) for path in paths]),
        capture_output=True,
        text=True,
    )
    found = [json.loads(line) for line in done.stdout.splitlines()]
    return dict(zip([path.name for path in paths], found, strict=True))


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize(("masks", "part"), [("fixed", "data_var"), ("inputs", "model_var")])
def test_example_runs_without_howsure(printed, masks, part, suffix):
    assert part in printed[f"{masks}.{suffix}"]


@pytest.mark.slow
def test_compiled_package(tmp_path):
    sure, x = hs.Uncertain(perceptron(), 0.1, "adf"), torch.rand(2, 3)
    done = export(sure, x, tmp_path / "net.pt2", compiled=True)
    assert done.difference <= 1e-5
    assert read_metadata(done.path)["method"] == "adf"
