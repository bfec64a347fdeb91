"""Run folders, tables, options: what every experiment shares."""

import json
from pathlib import Path

import pytest
import torch
from torch import nn

from howsure.cli import main
from howsure_lab.experiments import command
from howsure_lab.experiments.figures import new_figure, save
from howsure_lab.experiments.runs import Options, Run, RunFolder
from howsure_lab.experiments.tables import Column, Summary, method_table, regression_scores
from howsure_lab.experiments.training import Pairs, PlainRecipe, made, train_plain
from howsure_lab.experiments.uci.run import UciSettings


def test_a_value_is_computed_once(tmp_path):
    calls = []

    def compute():
        calls.append(1)
        return {"nll": float("nan"), "list": [1.5, float("inf")]}

    for _ in range(2):
        folder = RunFolder(tmp_path, {"a": 1})
        assert folder.value("part", compute) == {"nll": None, "list": [1.5, None]}
    assert len(calls) == 1
    assert RunFolder(tmp_path, {"a": 2}).value("part", lambda: 7) == 7
    assert RunFolder(tmp_path, {"a": 1}, fresh=True).value("part", lambda: 8) == 8


def test_an_interrupted_run_goes_on_and_leaves_nothing_half_written(tmp_path):
    options = Options("steering", out=tmp_path, show_progress=False)
    done = []

    def step(name, fails=False):
        def compute():
            if fails:
                raise KeyboardInterrupt
            done.append(name)
            return name

        return compute

    run = Run(options, UciSettings())
    with pytest.raises(KeyboardInterrupt):
        run.finished({"a": step("a"), "b": step("b", fails=True), "c": step("c")})
    assert [path.name for path in run.parts.iterdir()] == ["a.json"]
    values = Run(options, UciSettings()).finished({name: step(name) for name in "abc"})
    assert values == ["a", "b", "c"] and done == ["a", "b", "c"]


def test_a_value_that_is_no_plain_data_leaves_no_file(tmp_path):
    folder = RunFolder(tmp_path, {})
    with pytest.raises(TypeError):
        folder.value("part", lambda: {"x": torch.ones(2)})
    assert list(folder.parts.iterdir()) == []


def test_weights_are_trained_once(tmp_path):
    folder, count = RunFolder(tmp_path, {}), []

    def train(model):
        count.append(1)
        nn.init.constant_(model.weight, 3.0)

    for _ in range(2):
        model = nn.Linear(2, 1)
        folder.trained("net", model, train)
        assert bool((model.weight == 3).all()) and not model.training
    assert len(count) == 1


def test_config_and_results_have_what_a_reader_needs(tmp_path):
    options = Options("steering", data=tmp_path, quick=True, out=tmp_path / "run")
    path = Run(options, UciSettings()).report({"lines": []}, lambda results: ["a", "b"])
    assert path.read_text() == "a\nb"
    results = json.loads((tmp_path / "run" / "results.json").read_text())
    assert results["command"] == "howsure reproduce steering --data DATA --quick"
    assert results["seeds"] == [0] and results["name"] == "steering-real-quick"
    assert {"date", "packages", "hardware"} <= set(results["environment"])
    assert str(tmp_path) not in (tmp_path / "run" / "results.json").read_text()
    assert str(tmp_path) not in (tmp_path / "run" / "config.json").read_text()


def test_three_seeds_unless_quick():
    assert Options("uci").seed_list == (0, 1, 2)
    assert Options("uci", quick=True).seed_list == (0,)
    assert Options("uci", quick=True, seeds=2).seed_list == (0, 1)


def test_table_has_mean_and_spread():
    runs = {"a": [{"x": 1.0}, {"x": 3.0}], "b": [{"x": None}, {"x": 1.0}]}
    table = method_table(runs, [Column("x", "X", 1)], labels={"a": "A"}, paper={"a": "9"})
    assert table.splitlines()[2:] == ["| A | 2.0 ± 1.4 | 9 |", "| b | - | - |"]
    assert Summary.of([2.0]).text(2) == "2.00"
    assert Summary.of([12345.6]).text(2) == "1.23e+04"


def test_scores_against_their_definitions():
    generator = torch.Generator().manual_seed(0)
    target = torch.randn(400, 1, generator=generator, dtype=torch.float64)
    var = torch.rand(400, 1, generator=generator, dtype=torch.float64) + 0.1
    mean = target + var.sqrt() * torch.randn(400, 1, generator=generator, dtype=torch.float64)
    found = regression_scores(mean, var, target)
    density = torch.distributions.Normal(mean, var.sqrt()).log_prob(target)
    assert found["nll"] == pytest.approx(-float(density.mean()))
    assert found["nll"] - found["nll_without_constant"] == pytest.approx(0.9189385)
    assert found["coverage"] == pytest.approx(0.95, abs=0.03) and found["rank"] > 0.1
    constant = regression_scores(mean, torch.ones_like(var), target)
    assert constant["rank"] == 0.0


def test_training_is_seeded_and_leaves_the_generator_alone():
    x = torch.rand(64, 3)
    data = Pairs(x, x.sum(1, keepdim=True))
    before = torch.get_rng_state()
    models = [made(lambda: nn.Linear(3, 1), 5) for _ in range(2)]
    assert torch.equal(before, torch.get_rng_state())
    for model in models:
        train_plain(model, data, nn.functional.mse_loss, PlainRecipe(200, lr=0.05), seed=1)
    assert torch.equal(models[0].weight, models[1].weight)
    assert float((models[0](x) - data.y).square().mean()) < 0.01


def test_pairs_have_seeded_noise_and_orders():
    data = Pairs(torch.zeros(50, 4), torch.arange(50.0))
    assert torch.equal(data.with_noise(0.1, 1).x, data.with_noise(0.1, 1).x)
    assert torch.equal(data.with_noise(0.0, 1).x, data.x)
    orders = [torch.cat([y for _, y in data.shuffled(10, 3)]) for _ in range(2)]
    assert torch.equal(*orders) and not torch.equal(orders[0], data.y)
    assert data.every(5).y.tolist() == [0, 12, 24, 37, 49]


def test_figures_are_written(tmp_path):
    pytest.importorskip("matplotlib")
    figure, _ = new_figure(1, 2, width=8, height=4)
    assert save(figure, tmp_path / "figure.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    "arguments", [["nothing"], ["uci", "--seeds", "0"], ["uci", "--data", "/does/not/exist"]]
)
def test_wrong_options_end_with_code_2(arguments, capsys):
    assert main(["reproduce", *arguments]) == 2 and capsys.readouterr().err


def test_a_failure_is_one_sentence_and_code_2(tmp_path, capsys):
    code = main(["reproduce", "steering", "--data", str(tmp_path), "--out", str(tmp_path / "run")])
    assert code == 2
    assert capsys.readouterr().err.startswith("There are no weights of DroNet in")


@pytest.mark.parametrize("module", sorted(set(command.TASKS.values())))
def test_every_task_has_a_run(module):
    from importlib import import_module

    assert callable(import_module(module).run)


def test_a_metric_that_a_method_does_not_have_is_no_dot(tmp_path):
    pytest.importorskip("matplotlib")
    from howsure_lab.experiments.figures import Panel, draw_dots

    # Where a network makes no error, no share of them can be found.
    some = Panel("", "errors found", {"constant": [None], "gal": [0.9, None]})
    none = Panel("", "errors found", {"constant": [None], "gal": [None]})
    assert some.known("gal") == [0.9] and some.known("constant") == []
    path = draw_dots([some, none], tmp_path / "dots.png")
    assert path.stat().st_size > 1000


def test_recognition_without_an_error_has_tables_and_a_picture(tmp_path):
    pytest.importorskip("matplotlib")
    from howsure_lab.experiments.recognition import run

    root = Path(__file__).parents[3]
    results = json.loads((root / "results" / "recognition.json").read_text())
    results["plain"]["errors_entropy"] = None
    for line in results["lines"]:
        if line["method"] == "constant":
            line["scores"]["errors_entropy"] = None
    assert "errors_entropy" not in run.tables(results)[-1]
    assert run.draw(results, tmp_path / "compared.png").stat().st_size > 5000
