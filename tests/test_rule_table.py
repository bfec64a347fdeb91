import ast
import sys
from pathlib import Path

import pytest
import torch
from torch.nn import functional as F

import howsure as hs
import howsure.moments.rules
from howsure.moments.rule import Kind, find, registered
from old_torch import TORCH

sys.path.insert(0, str(Path(__file__).parents[1] / "docs"))
from make_rule_table import PAGE, markdown


@pytest.mark.skipif(TORCH < "2.13", reason="the page has the spellings of torch 2.13")
def test_the_committed_page_is_current():
    assert PAGE.read_text(encoding="utf-8") == markdown(registered()), (
        "run `python docs/make_rule_table.py`"
    )


def test_every_rule_has_a_full_row():
    for line in markdown(registered()).splitlines():
        if line.startswith("| `"):
            assert all(cell.strip() for cell in line.replace("\\|", "").split("|")[1:-1]), line


def test_a_rule_that_follows_from_another_names_it():
    names = {rule.name for rule in registered()}
    followers = {rule.name: rule.like for rule in registered() if rule.like}
    assert followers["relu6"] == "clamp" and followers["amin"] == "amax"
    assert {name for name, like in followers.items() if like not in names} == set()


def test_every_kind_is_in_use():
    assert {rule.kind for rule in registered()} == set(Kind)


@pytest.mark.parametrize(
    ("operation", "kind"),
    [
        (F.conv2d, Kind.LINEAR_MAP),
        (torch.Tensor.shape.__get__, Kind.VALUE_ONLY),
        (torch.zeros_like, Kind.CONSTRUCTION),
        (torch.argmax, Kind.REFUSED),
        (torch.addmm, Kind.COMPOSITE),
        (F.relu, Kind.FORMULA),
    ],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_a_rule_knows_what_it_is(operation, kind):
    assert find(operation).kind is kind


def test_sums_say_that_they_add_up():
    for operation in (F.adaptive_avg_pool2d, F.avg_pool1d, torch.Tensor.__radd__, torch.sum):
        assert find(operation).adds_up
    assert not find(torch.relu).adds_up


def test_copies_are_no_views():
    assert find(torch.reshape).returns_view() and not find(torch.clone).returns_view()
    assert find(torch.einsum).returns_view("ij->ji", None)
    assert not find(torch.einsum).returns_view("ij->i", None)


def test_nobody_compares_a_rule_with_a_string():
    for path in Path(hs.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Compare):
                sides = [node.left, *node.comparators]
                asked = [ast.unparse(side) for side in sides if isinstance(side, ast.Attribute)]
                about = [a for a in asked if a.split(".", 1)[-1] in ("kind.value", "family")]
                assert not about and "rule.name" not in asked, f"{path}:{node.lineno}"
