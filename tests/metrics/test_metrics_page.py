"""The page docs/metrics.md: its code runs, and it names every metric."""

import re
from pathlib import Path

import pytest

import howsure.metrics as M

PAGE = Path(__file__).parents[2] / "docs" / "metrics.md"


def test_the_code_of_the_page_runs():
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert len(blocks) >= 3
    exec("\n".join(blocks), {})


@pytest.mark.parametrize("name", [n for n, m in vars(M).items() if isinstance(m, M.Metric)])
def test_the_page_names_the_metric(name):
    assert f"`{name}`" in PAGE.read_text(encoding="utf-8")
