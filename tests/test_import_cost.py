"""What an import costs: torch alone, and the public names are those that `dir` shows."""

import json
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import howsure as hs


def test_the_public_names_are_those_that_dir_shows():
    assert dir(hs) == sorted(hs.__all__)
    assert all(getattr(hs, name) is not None for name in hs.__all__)


def test_a_name_that_does_not_exist_is_an_attribute_error():
    with pytest.raises(AttributeError, match="has no attribute 'scores'"):
        _ = hs.scores


def test_the_version_is_that_of_the_package():
    root = Path(__file__).parents[1]
    assert f'version = "{hs.__version__}"\n' in (root / "pyproject.toml").read_text()
    assert f"version: {hs.__version__}\n" in (root / "CITATION.cff").read_text()


def run_python(code, **options):
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, **options
    )


# Run one after the other in one process, which has imported torch.
STEPS = {
    "package": "import howsure",
    "metrics": "howsure.metrics.rmse",
    "robotics": "howsure.robotics.measurement",
    "plots": "import howsure.plots",
    "noise_sampling": "assert first_prediction(inputs=24) == 'noise_sampling'",
    "gradients": "assert first_prediction(inputs=400) == 'gradients'",
    "demo": "import howsure_lab.demo.study",
}
PROGRAM = """
import json, sys, torch

def first_prediction(inputs):
    model = torch.nn.Sequential(torch.nn.Linear(inputs, 8), torch.nn.Tanh()).eval()
    return howsure.Uncertain(model, 0.01)(torch.zeros(3, inputs)).method

for step in json.load(sys.stdin):
    before = set(sys.modules)
    exec(step)
    print(json.dumps(sorted(set(sys.modules) - before)))
"""


@pytest.fixture(scope="module")
def imported():
    """The modules that each step imports."""
    result = run_python(PROGRAM, input=json.dumps(list(STEPS.values())))
    found = [set(json.loads(line)) for line in result.stdout.splitlines()]
    assert len(found) == len(STEPS), result.stderr
    return dict(zip(STEPS, found, strict=True))


@pytest.mark.parametrize("step", STEPS)
def test_torch_is_all_that_is_needed(imported, step):
    others = {"matplotlib", "torchvision", "torchmetrics", "sklearn", "safetensors"}
    others |= {"gtsam", "rosbags", "filterpy", "rclpy", "scipy"}
    assert not others & imported[step]


def test_rooms_beside_the_package_are_imported_when_they_are_asked_for(imported):
    assert "howsure.robotics" in imported["robotics"]
    assert not [name for name in imported["package"] if name.startswith("howsure_lab")]
    assert "howsure_lab.released" not in imported["demo"]


@pytest.mark.parametrize("method", ["noise_sampling", "gradients"])
def test_a_first_prediction_does_not_import_the_compiler(imported, method):
    assert not {"torch._dynamo", "torch._inductor"} & imported[method]
    assert "torch._inductor" not in imported["package"]


def test_works_beside_a_broken_torchvision(tmp_path):
    (tmp_path / "torchvision.py").write_text("raise RuntimeError('operator nms does not exist')")
    result = run_python(
        """
        import howsure, torch
        print(howsure.propagate(torch.nn.ReLU(), torch.ones(2), 0.1).var.shape)
    """,
        env={"PYTHONPATH": str(tmp_path), "PATH": ""},
    )
    assert "torch.Size([2])" in result.stdout, result.stderr
