"""The recipes of the contributing page do what they say, to the letter."""

import importlib
import re
import subprocess
import sys
import textwrap
from argparse import ArgumentParser
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


def run_blocks(heading, first, names):
    """The names after the blocks of a section, from block `first` on, have run in their order."""
    for block in blocks_under(heading)[first:]:
        exec(block, names)
    return names


@pytest.fixture
def written(tmp_path, monkeypatch):
    """Writes the first block of a section to the file that the page names, and imports it."""
    names = []

    def write(name, heading):
        (tmp_path / f"{name}.py").write_text(blocks_under(heading)[0])
        monkeypatch.syspath_prepend(tmp_path)
        names.append(name)
        return importlib.import_module(name)

    yield write
    for name in names:
        del sys.modules[name]


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


def test_a_method_is_one_file_that_monte_carlo_confirms(written, capsys):
    module = written("my_methods", "A method in five minutes")
    names = run_blocks("A method in five minutes", 1, {"hs": hs, "METHOD": module.METHOD})
    p, inputs = names["p"], names["inputs"]
    assert capsys.readouterr().out.startswith("Prediction(5 x 2, unscented, std ")
    # 4,000 samples know a std to 1.1 %, ten of them to 3 % or so; the network is almost linear.
    assert names["off"] < 0.05
    assert torch.equal(p.mean, names["model"](inputs)) and not p.model_var.any()


def test_the_method_is_exact_for_a_linear_network(written):
    method = written("my_methods", "A method in five minutes").METHOD
    layer = torch.nn.Linear(4, 3).double().eval()
    stds = torch.tensor([0.1, 0.2, 0.0, 3.0], dtype=torch.float64)
    found = hs.Uncertain(layer, hs.noise.std(stds), method=method)(torch.randn(6, 4).double())
    expected = (layer.weight.square() @ stds.square()).expand(6, 3)
    torch.testing.assert_close(found.data_var, expected.detach(), rtol=1e-9, atol=0)


def test_a_noise_is_one_file_that_saves_itself(written):
    module = written("my_noises", "A noise in five minutes")
    model = torch.nn.Linear(3, 2).eval()
    inputs = torch.tensor([[1.0, -2.0, 3.0]])
    given = {"hs": hs, "Speckle": module.Speckle, "model": model, "inputs": inputs}
    names = run_blocks("A noise in five minutes", 1, given)
    torch.testing.assert_close(names["speckle"](inputs), (0.1 * inputs).square())
    expected = (0.1 * inputs).square() + 1 / (255**2 * 12)
    torch.testing.assert_close(names["echo"](inputs), expected)
    torch.testing.assert_close(names["again"](inputs), expected)
    assert (names["p"].data_var > 0).all()
    assert type(names["again"].noises[0].noise) is module.Speckle


def test_the_command_line_finds_the_noise(written):
    from howsure.cli.building import noise_of
    from howsure.cli.options import NOISE

    module = written("my_noises", "A noise in five minutes")
    parser = ArgumentParser()
    NOISE(parser)
    found = noise_of(parser.parse_args(["--noise", "speckle:0.1"]))
    assert type(found) is module.Speckle and found.share == 0.1


def test_a_file_with_the_noise_cannot_be_read_without_its_class():
    code = """
        import howsure as hs
        hs.noise.from_config({"kind": "speckle", "share": 0.1})
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True
    )
    assert done.returncode and "Import a class of your own first" in done.stderr


def test_a_metric_is_one_file_that_agrees_with_scikit_learn(written):
    from scipy import stats
    from sklearn.metrics import mean_pinball_loss

    module = written("my_metrics", "A metric in five minutes")
    torch.manual_seed(0)
    model, inputs = torch.nn.Linear(3, 2).eval(), torch.randn(5, 3)
    unscented = hs.Uncertain(model, hs.noise.std(0.1), method="adf")
    given = {"hs": hs, "pinball": module.pinball, "model": model, "inputs": inputs}
    p = unscented(inputs)
    names = run_blocks("A metric in five minutes", 1, {**given, "p": p, "unscented": unscented})
    quantile = stats.norm(p.mean.numpy(), p.std.numpy()).ppf(0.9)
    expected = mean_pinball_loss(names["targets"].numpy(), quantile, alpha=0.9)
    for found in (names["at_once"], names["batch_by_batch"], names["found"]["pinball"]):
        assert float(found) == pytest.approx(expected, rel=1e-5)
