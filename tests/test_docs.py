"""The pages tell the truth: their Python runs, their links lead somewhere."""

import re
from pathlib import Path

import pytest
import torch

import howsure as hs

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
WITH_CODE = [page for page in PAGES if "```python" in page.read_text()]


def code_blocks(page: Path) -> list[tuple[int, str]]:
    """The page's Python blocks, each with the number of the line before it."""
    text = page.read_text()
    blocks = re.finditer(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return [(text.count("\n", 0, block.start(1)), block[1]) for block in blocks]


def run(page: Path) -> dict:
    """Runs the blocks from top to bottom; returns the names they define."""
    names: dict = {"__name__": page.stem}
    for line, block in code_blocks(page):
        # Blank lines in front, so that a traceback points into the page.
        exec(compile("\n" * line + block, str(page), "exec"), names)
    return names


def test_pages_with_code_are_found():
    assert {page.name for page in WITH_CODE} >= {"README.md", "index.md", "from_scratch.md"}


@pytest.mark.parametrize("page", WITH_CODE, ids=lambda page: page.name)
def test_code_runs(page, capsys):
    assert run(page)


def test_readme_example_gives_a_mean_and_a_variance_per_output(capsys):
    names = run(ROOT / "README.md")
    assert names["p"].mean.shape == names["p"].total_var.shape == (8, 2)
    assert (names["p"].data_var > 0).all() and (names["p"].model_var > 0).all()


def test_from_scratch_equals_the_library(capsys):
    names = run(ROOT / "docs" / "from_scratch.md")
    images = torch.randn(5, 3, 6, 6, generator=torch.Generator().manual_seed(1))
    for noise_var in (1e-4, 0.01, 1.0):
        with torch.no_grad():
            ours = names["propagate"](names["net"], images, noise_var)
            theirs = hs.propagate(names["net"], images, noise_var)
        torch.testing.assert_close(ours.mean, theirs.mean, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(ours.var, theirs.var, rtol=1e-5, atol=0)


def test_from_scratch_refuses_what_it_does_not_know():
    names = run(ROOT / "docs" / "from_scratch.md")
    with pytest.raises(NotImplementedError, match="no rule for"):
        names["propagate"](torch.sigmoid, torch.rand(3), 0.01)


def test_from_scratch_is_under_100_lines():
    blocks = code_blocks(ROOT / "docs" / "from_scratch.md")
    lines = [line for _, block in blocks for line in block.splitlines() if line.strip()]
    assert len(lines) < 100


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_relative_links_lead_to_files(page):
    prose = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    targets = re.findall(r"\]\((?!https?:|#|mailto:)([^)#\s]+)", prose)
    missing = [target for target in targets if not (page.parent / target).exists()]
    assert not missing
