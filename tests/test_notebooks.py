"""The notebooks run from top to bottom, and their saved outputs are those of their code."""

import json
import re
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[1] / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
# Training differs a little from machine to machine.
SHARE = 0.3


def numbers_of(cells):
    """The numbers after a name and a colon or "cover" that the cells print, in their order."""
    printed = "".join(
        "".join(output["text"])
        for cell in cells
        for output in cell.get("outputs", [])
        if output["output_type"] == "stream" and output["name"] == "stdout"
    )
    return [float(number) for number in re.findall(r"(?:cover|error:?|AUROC) (\d+\.?\d*)", printed)]


def test_there_are_three():
    assert [path.stem for path in NOTEBOOKS] == ["camera", "classifier", "table"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_outputs_and_a_picture_are_saved(path):
    text = path.read_text(encoding="utf-8")
    cells = json.loads(text)["cells"]
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in code] == list(range(1, len(code) + 1))
    outputs = [output for cell in code for output in cell["outputs"]]
    assert not [output for output in outputs if output["output_type"] == "error"]
    assert not [output for output in outputs if output.get("name") == "stderr"]
    assert any("image/png" in output.get("data", {}) for output in outputs)
    assert len(numbers_of(code)) >= 2 and len(text) < 300_000


@pytest.mark.slow
# The kernel's own libraries have deprecations of their own.
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_it_runs_and_prints_what_is_saved(path, tmp_path):
    nbclient = pytest.importorskip("nbclient")
    nbformat = pytest.importorskip("nbformat")
    pytest.importorskip("ipykernel")
    notebook = nbformat.read(path, as_version=4)
    saved = numbers_of(notebook.cells)
    resources = {"metadata": {"path": str(tmp_path)}}
    client = nbclient.NotebookClient(notebook, timeout=300, resources=resources)
    client.execute()
    assert numbers_of(notebook.cells) == pytest.approx(saved, rel=SHARE)
