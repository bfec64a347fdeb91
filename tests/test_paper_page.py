"""docs/paper.md names modules and tests that exist, and every item of the checklist."""

import importlib
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "paper.md").read_text(encoding="utf-8")
ROWS = [line for line in PAGE.splitlines() if re.match(r"\| \d+ \|", line)]
ITEMS = {*range(1, 36), 39, 42, 43, 44}


def test_every_item_has_one_row():
    assert sorted(int(row.split("|")[1]) for row in ROWS) == sorted(ITEMS)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.split("|")[1].strip())
def test_modules_and_tests_exist(row):
    cells = [cell.strip() for cell in row.split("|")]
    modules, tests = (re.findall(r"`([^`]+)`", cell) for cell in cells[4:6])
    assert modules and tests
    for module in modules:
        importlib.import_module(module)
    for test in tests:
        assert "def test_" in (ROOT / test).read_text(encoding="utf-8")
