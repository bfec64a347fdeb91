"""The tables of the pages are those of the committed results; nothing is measured here."""

import importlib.util
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
DOCS, BENCHMARKS = ROOT / "docs", ROOT / "benchmarks"
MARK = re.compile(r"^<!-- ([\w-]+):begin -->$", re.MULTILINE)
MARKED = [
    (page.name, name)
    for page in sorted(DOCS.glob("*.md"))
    for name in MARK.findall(page.read_text())
]


@pytest.fixture(autouse=True)
def importable(monkeypatch):
    """The benchmarks are scripts beside the package."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))


def test_every_marked_table_is_compared():
    from figures import TABLES

    assert set(MARKED) == set(TABLES)


@pytest.mark.parametrize("page, name", MARKED, ids=lambda part: part)
def test_table_is_what_the_results_give(page, name):
    from bench import in_page
    from figures import TABLES

    # After a new run: python benchmarks/figures.py
    assert in_page(DOCS / page, name) == TABLES[page, name]()


def test_page_of_the_rules_is_what_the_results_give():
    from figures import accuracy_page

    assert (DOCS / "accuracy.md").read_text() == accuracy_page()


def test_page_of_the_benchmarks_is_what_the_results_give(tmp_path):
    pytest.importorskip("matplotlib")
    from figures import RESULTS, result
    from speed import must_hold, page

    page.write(RESULTS, tmp_path / "benchmarks.md", tmp_path / "img")
    assert (tmp_path / "benchmarks.md").read_text() == (DOCS / "benchmarks.md").read_text()
    assert must_hold.rows(RESULTS) == result("must_hold")["rows"]


def test_page_of_the_architectures_is_what_the_results_give():
    from figures import RESULTS, result

    # By its path: the installed package `coverage` hides the folder.
    path = BENCHMARKS / "coverage" / "table.py"
    spec = importlib.util.spec_from_file_location("coverage_table", path)
    table = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(table)
    found = result("coverage")
    text = table.page(found["models"], found["made"])
    assert (RESULTS / "coverage.md").read_text() == text


def test_a_changed_figure_is_noticed(tmp_path):
    from bench import in_page, into_page
    from figures import TABLES

    page, table = tmp_path / "page.md", TABLES["model.md", "roads"]()
    page.write_text("Before.\n<!-- roads:begin -->\n<!-- roads:end -->\nAfter.\n")
    into_page(page, "roads", table)
    assert in_page(page, "roads") == table
    figure = re.findall(r"\d\.\d\d", table)[-1]
    page.write_text(page.read_text().replace(figure, f"{figure[:-1]}{9 - int(figure[-1])}"))
    assert in_page(page, "roads") != table
