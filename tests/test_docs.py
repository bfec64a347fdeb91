"""The pages tell the truth: their Python runs, their commands parse, their links lead somewhere."""

import contextlib
import functools
import io
import re
import shlex
from pathlib import Path

import pytest
import torch

import howsure as hs
from howsure.cli.program import NAMES, UsageError, parse
from howsure_lab.demo.study import BATCH, CLEAR, Roads
from howsure_lab.experiments.steering.model import load_trained

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
WITH_CODE = [page for page in PAGES if "```python" in page.read_text()]


# Their code begins where a reader is: with a trained model, held-out data and an input.
FIRST_SCREENS = (ROOT / "README.md", ROOT / "docs" / "index.md")


def reader_has() -> dict:
    """The demonstration's network, with clear roads."""
    roads = Roads(50, 0)
    held_out = list(roads.held_out().batches(BATCH))
    return {"model": load_trained(), "val_loader": held_out, "image": roads.read(CLEAR).x[:1]}


def code_blocks(page: Path) -> list[tuple[int, str]]:
    """The page's Python blocks, each with the number of the line before it."""
    text = page.read_text()
    blocks = re.finditer(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return [(text.count("\n", 0, block.start(1)), block[1]) for block in blocks]


@functools.cache
def run(page: Path) -> dict:
    """Runs the blocks from top to bottom; returns the names they define."""
    names: dict = {"__name__": page.stem, **(reader_has() if page in FIRST_SCREENS else {})}
    printed: dict[int, str] = {}
    for line, block in code_blocks(page):
        with contextlib.redirect_stdout(io.StringIO()) as out:
            # Blank lines in front, so that a traceback points into the page.
            exec(compile("\n" * line + block, str(page), "exec"), names)
        printed[line] = out.getvalue()
    return {**names, "printed": printed}


def test_pages_with_code_are_found():
    assert {page.name for page in WITH_CODE} >= {"README.md", "index.md", "from_scratch.md"}


# torch says so of every tensor in a program that is part of a larger one.
@pytest.mark.parametrize("page", WITH_CODE, ids=lambda page: page.name)
def test_code_runs(page, capsys):
    assert run(page)


def test_readme_example_gives_a_mean_and_a_variance(capsys):
    names = run(ROOT / "README.md")
    assert names["p"].mean.shape == names["p"].total_var.shape
    assert (names["p"].data_var > 0).all() and (names["p"].model_var > 0).all()


def without_numbers(text: str) -> str:
    """The words and the shapes; other numbers depend on the processor."""
    shape_or_number = r"\(\[?\d+(?:, \d+)*,?\]?\)|-?\d[\d.]*(?:e[-+]?\d+)?"
    words = re.sub(shape_or_number, lambda found: found[0] if found[0][0] == "(" else "#", text)
    return " ".join(words.split())


def shows(output: str, printed: str) -> bool:
    """Whether a page's output is what was printed; `...` stands for any text."""
    parts = [re.escape(without_numbers(part)) for part in output.split("...")]
    return bool(re.fullmatch(r"\s*.*?\s*".join(parts), without_numbers(printed), re.DOTALL))


@pytest.mark.parametrize("page", WITH_CODE, ids=lambda page: page.name)
def test_output_stands_under_every_block_that_prints(page, capsys):
    text = page.read_text()
    block = r"^```python\n.*?^```$(?:\n\n```text\n(.*?)^```$)?"
    blocks = re.finditer(block, text, re.MULTILINE | re.DOTALL)
    outputs = {text.count("\n", 0, found.start()) + 1: found[1] or "" for found in blocks}
    printed = run(page)["printed"]
    assert outputs.keys() == printed.keys()
    wrong = {line: printed[line] for line in printed if not shows(outputs[line], printed[line])}
    assert not wrong


def test_other_output_is_noticed():
    assert shows("shape (5, 1), 0.12", "shape (5, 1), -3e-4\n")
    assert not shows("shape (5, 1), 0.12", "shape (5, 2), 0.12")
    assert shows("method ...\ntotal 1", "method\na 1\nb 2\ntotal 2") and not shows("", "5")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_code_fits_80_columns(page):
    blocks = re.findall(r"^```\{?\.?python.*?^```$", page.read_text(), re.MULTILINE | re.DOTALL)
    assert not [line for block in blocks for line in block.splitlines() if len(line) > 80]


def test_the_quick_starts_fit_beats_a_constant_and_its_file_is_the_fitted_model(capsys):
    names = run(ROOT / "docs" / "quickstart.md")
    assert names["ours"] < names["one"] - 0.05 and abs(names["coverage"] - 0.95) < 0.04
    program = torch.export.load(names["folder"] / "net.pt2").module()
    result = program(names["test"][:4])
    torch.testing.assert_close(result["model_var"], names["p"].model_var[:4], rtol=1e-3, atol=1e-6)


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


def shell_lines(page: Path) -> list[str]:
    """What the page tells to type: lines of blocks in no language, `console` or `bash`."""
    text = page.read_text()
    blocks = re.findall(r"^```(\w*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    shell = [body for language, body in blocks if language in ("", "console", "bash", "sh")]
    lines = "\n".join(shell).replace("\\\n", " ").splitlines()
    parts = [part for line in lines for part in re.split(r"&&|\||;", line.removeprefix("$ "))]
    return [re.sub(r"^([A-Z_]+=\S+ )+", "", part.strip()) for part in parts]


def inline_commands(page: Path) -> list[str]:
    """`howsure ...` between backticks, outside of blocks; `howsure adjoint` names an old method."""
    prose = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    found = [line.replace("\n", " ") for line in re.findall(r"`(howsure [^`]+)`", prose)]
    return [line for line in found if line.split()[1] in NAMES or " --" in line]


def assert_parses(line: str) -> None:
    """The options of a `howsure` command fit; words in capitals stand for the reader's own."""
    words = shlex.split(line, comments=True)[1:]
    if words[0].isupper():
        return
    assert words[0] in NAMES or words[0].startswith("-"), line
    if {"TASK", "COMMAND", "..."} & set(words) or not any(w.startswith("-") for w in words):
        return
    try:
        parse(words)
    except SystemExit as done:  # `--help`, `--version`
        assert not done.code, line


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_documented_commands_are_accepted(page, capsys):
    lines = shell_lines(page)
    for line in [line for line in lines if line.startswith("howsure ")] + inline_commands(page):
        assert_parses(line)
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    made = [line.split()[1] for line in lines if line.startswith("make ")]
    assert set(made) <= set(targets)
    scripts = [found[1] for line in lines if (found := re.match(r"\S*python (\S+\.py)", line))]
    assert not [script for script in scripts if not (ROOT / script).exists()]


def test_a_wrong_option_is_noticed():
    with pytest.raises(UsageError):
        assert_parses("howsure predict model:build data.npz --no-such-option")
    with pytest.raises(AssertionError):
        assert_parses("howsure pedict model:build data.npz")


def test_site_has_its_version_and_every_page_once():
    site = (ROOT / "mkdocs.yml").read_text()
    version = re.search(r'^version = "(.+)"$', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert version and f"copyright: howsure {version[1]} " in site
    listed = re.findall(r": (\w+\.md)$", site, re.MULTILINE)
    assert sorted(listed) == sorted(page.name for page in PAGES[1:])
    order = ["quickstart.md", "methods.md", "results.md", "gradients.md", "api.md"]
    assert [page for page in listed if page in order] == order
    assert "navigation.footer" in site  # links to the previous and the next page


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_relative_links_lead_to_files(page):
    prose = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    targets = re.findall(r"\]\((?!https?:|#|mailto:)([^)#\s]+)", prose)
    missing = [target for target in targets if not (page.parent / target).exists()]
    assert not missing


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_formulas_are_plain_text(page):
    """The site loads no scripts from elsewhere, and so nothing that would draw TeX."""
    prose = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    assert not re.search(r"\$\$|\\[a-z]+\{|\$\w[^`\n]*\$", prose)
