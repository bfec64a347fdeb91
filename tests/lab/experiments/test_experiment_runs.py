"""Whole runs, very small: files, resuming, both kinds of data."""

import copy
import csv
import json
from dataclasses import replace

import numpy as np
import pytest
import torch

import howsure as hs
from howsure.cli import main
from howsure_lab.experiments import runtime, sensitivity
from howsure_lab.experiments.contenders import CONTENDERS, Bench, Effort, tuned, with_samples
from howsure_lab.experiments.recognition import run as recognition
from howsure_lab.experiments.recognition.data import Counts as ImageCounts
from howsure_lab.experiments.runs import RunFolder
from howsure_lab.experiments.steering import run as steering
from howsure_lab.experiments.steering.data import Counts
from howsure_lab.experiments.steering.model import DroNet
from howsure_lab.experiments.training import Pairs, PlainRecipe
from howsure_lab.experiments.uci import run as uci

pytest.importorskip("matplotlib")

EFFORT = Effort(samples=4, tuning_samples=4, rates=(0.0, 0.1), epochs=1, batch=32)
RECIPE = PlainRecipe(1)
TINY = steering.Settings(
    size=32, widths=(4, 4, 4, 4), counts=Counts(48, 50, 8), recipe=RECIPE, effort=EFFORT
)


METHODS = ("constant", "gal", "gast", "kendall", "gradients", "ensemble_gradients")


@pytest.fixture
def tiny(monkeypatch):
    """Every task with settings of a second or two."""
    few = replace(TINY, noise_std=0.1, methods=("constant", "ours", "gradients"))
    small = recognition.Settings(ImageCounts(50, 40), recipe=PlainRecipe(1), effort=EFFORT)
    classes = ("constant", "gal", "gradients", "ensemble")
    noisy = (*few.methods, "gradients_mean")
    settings = {
        steering.Settings: replace(TINY, methods=METHODS),
        recognition.Settings: replace(small, methods=classes),
        sensitivity.SensitivitySettings: sensitivity.SensitivitySettings(few, noisy, (0.001,)),
        uci.UciSettings: uci.UciSettings(recipe=PlainRecipe(3), effort=EFFORT),
    }
    for kind, value in settings.items():
        monkeypatch.setattr(kind, "of", staticmethod(lambda options, value=value: value))
    monkeypatch.setattr(runtime, "SAMPLES", (2, 5))
    monkeypatch.setattr(runtime, "_REPEATS", 1)


def run(*arguments):
    return main(["reproduce", *map(str, arguments), "--quick"])


def test_steering_writes_everything_and_resumes(tiny, tmp_path, monkeypatch, capsys):
    evaluated, calls = steering.evaluated, []

    def interrupted(name, *others):
        calls.append(name)
        if name == "gast" and calls.count("gast") == 1:
            raise KeyboardInterrupt
        return evaluated(name, *others)

    monkeypatch.setattr(steering, "evaluated", interrupted)
    assert run("steering", "--out", tmp_path) == 1
    assert "resumes from there" in capsys.readouterr().err
    assert not (tmp_path / "results.json").exists()
    assert run("steering", "--out", tmp_path) == 0
    # What was finished before the interruption was not computed again.
    assert calls.count("constant") == calls.count("gal") == 1
    assert set(calls) == set(METHODS)
    assert not list(tmp_path.rglob(".*"))
    results = json.loads((tmp_path / "results.json").read_text())
    assert [line["method"] for line in results["lines"]] == list(METHODS)
    assert set(results["lines"][0]["scores"]) == {"clear", "night", "fog", "missing_lane"}
    assert "predictions" not in results["lines"][0]
    assert {"config.json", "table.md", "compared.png", "curves.png", "gallery.png"} <= {
        path.name for path in tmp_path.iterdir()
    }
    assert "Kendall: variance head" in capsys.readouterr().out
    single, several = (results["lines"][k]["fit"] for k in (-2, -1))
    # The default: a posterior over masks, from the held-out images alone.
    assert single["masks"] > 0 and single["cross_fitted"] and single["count"] == 50
    # Five networks, the first of them the same.
    assert len(several["members"]) == 5 and several["members"][0] == single
    networks = {path.name for path in tmp_path.rglob("seed*-plain.pt")}
    assert networks == {f"seed{seed}-plain.pt" for seed in range(5)}


def test_seeds_and_methods_are_added_to_a_finished_run(tiny, tmp_path, capsys):
    assert run("steering", "--out", tmp_path, "--methods", "constant") == 0
    first = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("seed0*")}
    more = ("--seeds", 2, "--methods", "gradients", "constant")
    assert run("steering", "--out", tmp_path, *more) == 0
    assert len(first) == 2 and all(path.stat().st_mtime_ns == t for path, t in first.items())
    results = json.loads((tmp_path / "results.json").read_text())
    lines = {(line["method"], line["seed"]): line["scores"] for line in results["lines"]}
    # In the order of the table, whatever the order of asking.
    assert list(lines) == [(name, seed) for seed in (0, 1) for name in ("constant", "gradients")]
    assert lines["constant", 0] != lines["constant", 1]
    assert "±" in (tmp_path / "table.md").read_text()
    assert results["command"].endswith("--seeds 2 --methods gradients constant")
    assert run("steering", "--out", tmp_path, "--methods", "adjoint") == 2
    assert "no methods ['adjoint']" in capsys.readouterr().err


def test_steering_on_drives_uses_the_given_weights(tiny, tmp_path, monkeypatch):
    image_module = pytest.importorskip("PIL.Image")
    torch.save(DroNet().state_dict(), tmp_path / "dronet_torch.pt")
    for name, count in (("train_drive", 8), ("test_drive", 70)):
        folder = tmp_path / name
        folder.mkdir()
        with (folder / "steering.csv").open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["frame", "steering_angle"])
            for i in range(count):
                # One frame in 15: a block of 14 seconds has 19 frames.
                writer.writerow([f"{15 * i:04d}.png", np.sin(i)])
                pixels = np.random.default_rng(i).integers(0, 255, (200, 200), np.uint8)
                image_module.fromarray(pixels).save(folder / f"{15 * i:04d}.png")
    real = replace(TINY, counts=Counts(4, 4, 4), methods=("constant", "kendall"))
    monkeypatch.setattr(steering.Settings, "of", staticmethod(lambda options: real))
    out = tmp_path / "out"
    assert run("steering", "--data", tmp_path, "--out", out, "--seeds", 2) == 0
    results = json.loads((out / "results.json").read_text())
    # The given network is not trained, so one seed; what is retrained has two.
    found = [(line["method"], line["seed"]) for line in results["lines"]]
    assert found == [("constant", 0), ("kendall", 0), ("kendall", 1)]
    assert results["plain"]["whole test drive"]["count"] == 70
    assert str(tmp_path) not in (out / "results.json").read_text()


def test_recognition_runs(tiny, tmp_path):
    pytest.importorskip("sklearn")
    assert run("recognition", "--out", tmp_path) == 0
    results = json.loads((tmp_path / "results.json").read_text())
    scores = results["lines"][0]["scores"]
    assert {"accuracy", "one_hot_nll", "brier", "ece", "strange_shuffled"} <= set(scores)
    fits = {line["method"]: line["fit"] for line in results["lines"]}
    # A temperature softens or sharpens; it changes no class.
    accuracy = {line["method"]: line["scores"]["accuracy"] for line in results["lines"]}
    assert fits["gradients"]["temperature"] > 0
    assert accuracy["gradients"] == accuracy["constant"]
    assert len(fits["ensemble"]["members"]) == 5
    assert fits["ensemble"]["members"][0] == fits["constant"]
    assert (tmp_path / "compared.png").exists()


def test_sensitivity_runs_in_both_directions(tiny, tmp_path):
    assert run("sensitivity", "--out", tmp_path) == 0
    results = json.loads((tmp_path / "results.json").read_text())
    assert set(results["real"][0]["scores"]) == {"0.01", "0.05", "0.1"}
    assert {line["assumed"] for line in results["assumed"]} == {0.001, 0.01}
    same = [line for line in results["assumed"] if line["assumed"] == 0.01]
    real = {line["method"]: line for line in results["real"]}
    # Both tables contain the case in which the assumption is right.
    assert {line["method"] for line in same} == {"ours", "gradients"}
    for line in same:
        first = real[line["method"]]["scores"]["0.01"]["nll"]
        assert line["scores"]["0.01"]["nll"] == pytest.approx(first)
    assert (tmp_path / "compared.png").exists()


def test_sensitivity_of_the_mean_under_noise_needs_no_sweep(tiny, tmp_path):
    asked = ("--methods", "constant", "gradients_mean")
    assert run("sensitivity", *asked, "--out", tmp_path) == 0
    results = json.loads((tmp_path / "results.json").read_text())
    assert [line["method"] for line in results["real"]] == ["constant", "gradients_mean"]
    assert results["assumed"] == []
    rmse = [line["scores"]["0.1"]["rmse"] for line in results["real"]]
    assert rmse[0] != rmse[1], "the mean under noise is not what the network says"
    assert (tmp_path / "compared.png").exists()


def test_runtime_changes_nothing_but_the_samples(tiny, tmp_path):
    assert run("runtime", "--seeds", 2, "--out", tmp_path) == 0
    curves = json.loads((tmp_path / "results.json").read_text())["curves"]
    assert {curve["seed"] for curve in curves} == {0, 1}
    assert "±" in (tmp_path / "table.md").read_text()
    by_name = {curve["method"]: curve["points"] for curve in curves}
    assert [point["samples"] for point in by_name["ours"]] == [2, 5]
    assert [point["samples"] for point in by_name["noise_sampling"]] == [5]
    assert len(by_name["gradients"]) == 1
    assert (tmp_path / "runtime.png").exists()


def test_uci_runs_on_diabetes(tiny, tmp_path):
    pytest.importorskip("sklearn")
    assert run("uci", "--out", tmp_path) == 0
    lines = json.loads((tmp_path / "results.json").read_text())["lines"]
    assert {line["split"] for line in lines} == {0, 1}
    assert {line["method"] for line in lines} >= set(CONTENDERS)
    # In the units of the data: the targets' std is 77.
    assert all(40 < line["scores"]["rmse"] < 110 for line in lines)
    assert (tmp_path / "compared.png").exists()


def linear_bench(task="regression"):
    torch.manual_seed(3)
    model = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
    x = torch.randn(64, 3)
    y = torch.randn(64, 2) if task == "regression" else torch.randint(2, (64,))
    data = Pairs(x, y)

    def others(seed):
        return copy.deepcopy(model)

    return Bench(
        model.eval().requires_grad_(False), 0.01, data, data, EFFORT, task=task, others=others
    )


@pytest.mark.parametrize("task", ["regression", "classification"])
@pytest.mark.parametrize("name", CONTENDERS)
def test_every_contender_leaves_the_network_alone(name, task, tmp_path):
    bench = linear_bench(task)
    before = {key: value.clone() for key, value in bench.model.state_dict().items()}
    made = tuned(CONTENDERS[name], bench, RunFolder(tmp_path, {}))
    assert all(torch.equal(before[key], value) for key, value in bench.model.state_dict().items())
    found = made.sure(bench.train.x[:5])
    assert found.mean.shape == (5, 2) and bool((found.total_var >= 0).all())
    json.dumps(made.record)
    if CONTENDERS[name].members == 1:
        assert with_samples(made, 7).setup.samples == 7
    else:
        assert len(made.sure.members) == len(made.record["members"]) == 5
        with pytest.raises(TypeError, match="members"):
            with_samples(made, 7)


def test_constant_is_the_held_out_error(tmp_path):
    bench = linear_bench()
    made = tuned(CONTENDERS["constant"], bench, RunFolder(tmp_path, {}))
    error = (bench.model(bench.validation.x) - bench.validation.y).square().mean()
    assert made.record["residual_var"] == pytest.approx(float(error), rel=1e-3)


def test_the_papers_line_has_no_residual_variance(tmp_path):
    # Errors that no rate explains, where `fit` adds one unless it is told not to.
    bench = linear_bench()
    noisy = replace(bench, validation=Pairs(bench.validation.x, 10 * bench.validation.y))
    found = {
        name: tuned(CONTENDERS[name], noisy, RunFolder(tmp_path, {}))
        for name in ("ours", "ours_tau")
    }
    assert [made.record["residual_var"] > 0 for made in found.values()] == [False, True]
    assert found["ours"].record["rate"] == EFFORT.rates[-1]


def test_an_ensemble_needs_other_networks(tmp_path):
    bench = replace(linear_bench(), others=None)
    with pytest.raises(ValueError, match="several seeds"):
        tuned(CONTENDERS["ensemble"], bench, RunFolder(tmp_path, {}))


def test_the_default_is_what_a_user_gets(tmp_path):
    bench = linear_bench()
    sure = hs.Uncertain(bench.model, bench.noise)
    sure.fit(bench.validation.batches(bench.effort.batch), show_progress=False)
    made = tuned(CONTENDERS["gradients"], bench, RunFolder(tmp_path, {}))
    found, wanted = made.sure(bench.train.x[:5]), sure(bench.train.x[:5])
    assert torch.equal(found.mean, wanted.mean)
    assert torch.equal(found.total_var, wanted.total_var)
