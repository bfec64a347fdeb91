"""The recipes of the contributing page do what they say, to the letter."""

import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import howsure as hs
from howsure.moments.rule import find, unregister
from howsure.testing import check_rule

PAGE = Path(__file__).parents[1] / "docs" / "contributing.md"


def blocks_under(heading):
    """The Python blocks of one section of the page."""
    section = PAGE.read_text().split(f"## {heading}\n", 1)[1].split("\n## ", 1)[0]
    return re.findall(r"^```python\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)


@pytest.fixture
def my_rules(tmp_path, monkeypatch):
    """The file of the recipe, imported as its reader imports it."""
    (tmp_path / "my_rules.py").write_text(blocks_under("A rule in five minutes")[0])
    monkeypatch.syspath_prepend(tmp_path)
    assert find(torch.special.ndtr) is None
    module = importlib.import_module("my_rules")
    yield module
    unregister(module.ndtr)
    del sys.modules["my_rules"]


def test_a_rule_is_one_file_that_satisfies_the_laws(my_rules):
    assert find(torch.special.ndtr) is my_rules.ndtr
    check_rule(my_rules.ndtr)


def test_propagate_uses_the_rule(my_rules):
    names = {"torch": torch}
    exec(blocks_under("A rule in five minutes")[1], names)
    x, out = names["x"], names["out"]
    # The mean in closed form, Owen 1980, 10,010.8; the rule knows nothing of it.
    expected = torch.special.ndtr(x / 1.25**0.5)
    torch.testing.assert_close(out.mean, expected, rtol=1e-4, atol=1e-5)
    assert (out.var > 0).all() and not out.notes
    assert hs.check(torch.special.ndtr, x).ok


def test_the_file_checks_itself_as_the_page_says(tmp_path):
    path = tmp_path / "my_rules.py"
    path.write_text(blocks_under("A rule in five minutes")[0])
    done = subprocess.run([sys.executable, str(path)], capture_output=True, text=True)
    assert done.stdout == "ndtr satisfies all laws\n", done.stderr


def test_without_the_file_the_operation_is_refused():
    with pytest.raises(hs.NoRuleError, match=r"torch\.special\.ndtr"):
        hs.propagate(torch.special.ndtr, torch.zeros(3), 0.25)
