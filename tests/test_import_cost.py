"""What an import costs: torch alone, and the public names are those that `dir` shows."""

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


def test_import_costs_torch_alone():
    result = run_python("""
        import sys, howsure
        heavy = {"matplotlib", "torchvision", "torchmetrics", "scipy", "sklearn", "safetensors"}
        print(sorted(heavy & set(sys.modules)))
    """)
    assert result.stdout.strip() == "[]", result.stdout + result.stderr


@pytest.mark.parametrize("inputs", [24, 400])  # by samples as one batch, and by gradients
def test_a_first_prediction_does_not_import_the_compiler(inputs):
    result = run_python(f"""
        import sys, torch, howsure
        model = torch.nn.Sequential(torch.nn.Linear({inputs}, 8), torch.nn.Tanh()).eval()
        before, compilers = set(sys.modules), {{"torch._dynamo", "torch._inductor"}}
        p = howsure.Uncertain(model, 0.01)(torch.zeros(3, {inputs}))
        print(p.method, sorted(compilers & set(sys.modules) - before))
    """)
    method = "noise_sampling" if inputs == 24 else "gradients"
    assert result.stdout.strip() == f"{method} []", result.stdout + result.stderr


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
