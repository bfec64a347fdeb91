"""The parts of the benchmarks are right: what they time, count, fit, keep and report."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import howsure as hs

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


@pytest.fixture(autouse=True)
def importable(monkeypatch):
    """The benchmarks are scripts beside the package."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))


@pytest.mark.parametrize("power", [0.0, 0.5, 1.0, 2.0])
def test_exponent_of_a_power_law(power):
    from bench import exponent

    sizes = [1, 2, 5, 40]
    assert exponent(sizes, [3 * size**power for size in sizes]) == pytest.approx(power)


def test_calls_take_turns_and_the_fastest_counts(monkeypatch):
    import bench as timing

    clock, taken, order = [0.0], {"a": iter([9.0, 2, 3, 1.5]), "b": iter([9.0, 7, 5, 6])}, []

    def call(name):
        order.append(name)
        clock[0] += next(taken[name])

    monkeypatch.setattr(timing.time, "process_time", lambda: clock[0])
    calls = {name: lambda name=name: call(name) for name in taken}
    assert timing.fastest(calls, budget=1000, rounds=3) == {"a": 1.5, "b": 5.0}
    assert order == ["a", "b"] * 4


def test_a_short_budget_still_has_two_rounds():
    from bench import fastest

    counts = []
    fastest({"a": lambda: counts.append(torch.rand(64, 64).inverse())}, budget=0, rounds=9)
    assert len(counts) >= 3


def test_peak_memory_is_what_lives_at_one_time():
    from bench import peak_bytes

    x = torch.rand(250, 1000)

    def three_one_after_the_other():
        for _ in range(3):
            (x + 1).add_(1)

    def two_at_a_time():
        y = x + 1
        return y + x

    size = 4 * x.numel()
    assert peak_bytes(three_one_after_the_other) == pytest.approx(size, rel=1e-3)
    assert peak_bytes(two_at_a_time) == pytest.approx(2 * size, rel=1e-3)


def small_dronet():
    from speed.networks import with_statistics

    from howsure_lab.experiments.steering.model import SMALL, DroNet

    torch.manual_seed(0)
    return with_statistics(DroNet(64, SMALL).eval().requires_grad_(False).double())


def small_resnet():
    from models.resnet import BasicBlock, ResNet
    from speed.networks import with_statistics

    torch.manual_seed(0)
    net = ResNet(BasicBlock, (1, 1, 1, 1), 1).eval().requires_grad_(False)
    return with_statistics(net).double()


@pytest.mark.parametrize("make, shape", [(small_dronet, (1, 64, 64)), (small_resnet, (3, 64, 64))])
def test_textbook_without_dropout_is_the_propagation(make, shape):
    from textbook import twin

    net, x = make(), torch.rand(2, *shape, dtype=torch.float64)
    with torch.no_grad():
        mean, var = twin(net, 0.0)((x, torch.full_like(x, 1e-3)))
    ours = hs.propagate(net, x, 1e-3)
    torch.testing.assert_close(mean, ours.mean, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(var, ours.var, rtol=1e-3, atol=0)


def test_textbook_samples_as_the_library_does():
    from textbook import sampled, twin

    net, x, rate = small_dronet().float(), torch.rand(1, 1, 64, 64), 0.1
    torch.manual_seed(0)
    mean, data_var, model_var = sampled(twin(net, rate), x, 1e-3, 300)
    ours = hs.Uncertain(net, 1e-3, "sampled_adf", rate=rate, samples=300)(x)
    error = float((model_var / 300).sqrt())
    assert float((mean - ours.mean).abs()) < 6 * error
    assert float(model_var / ours.model_var) == pytest.approx(1, abs=0.5)
    assert float(data_var / ours.data_var) == pytest.approx(1, abs=0.2)


@pytest.mark.parametrize("name", ["DroNet", "FlowNetS", "MLP", "LSTM"])
def test_networks_have_the_layers_that_are_named(name):
    from speed.networks import KINDS, NETWORKS

    network = NETWORKS[name]
    model, x = network.made(), network.input(1)
    sites = KINDS["T = 20, dropout in last layers"].uncertain(network, model).setup.sites(x)
    assert len(sites) == 1
    assert network.made(one_output=True)(x).shape == (1, 1)


def test_results_are_kept_case_by_case(tmp_path):
    from bench import Results, load_cases

    Results(tmp_path, "speed", "cmd").add("a", {"x": 1.23456789}, quick=True)
    again = Results(tmp_path, "speed", "cmd")
    again.add("b", {"x": 2}, quick=False)
    assert load_cases(tmp_path, "speed") == {"a": {"x": 1.235}, "b": {"x": 2}}
    assert again.has("a", quick=True) and not again.has("a", quick=False)
    assert again.has("b", quick=True) and again.has("b", quick=False)
    assert load_cases(tmp_path, "growth") == {}
    again.add("c", {"left_out": "not installed"}, quick=False)
    assert not again.has("c", quick=True)


def test_results_of_another_machine_are_dropped(tmp_path):
    from bench import Results

    Results(tmp_path, "speed", "cmd").add("a", {}, quick=False)
    found = json.loads((tmp_path / "speed.json").read_text())
    found["environment"]["hardware"]["processor"] = "another"
    (tmp_path / "speed.json").write_text(json.dumps(found))
    assert not Results(tmp_path, "speed", "cmd").has("a", quick=False)


def some_results(folder):
    from bench import Results

    def add(kind, name, result):
        Results(folder, kind, "cmd").add(name, result, quick=False)

    ratios = {"plain, eager": 1.0, "ADF, eager": 2.4, "ADF, compiled": 1.4}
    ratios |= {"gradients, 4 points, eager": 6.0, "20 samples, eager": 25.0}
    add(
        "speed",
        "DroNet, batch 1",
        {
            "network": "DroNet",
            "batch": 1,
            "seconds": {name: ratio / 100 for name, ratio in ratios.items()},
            "ratio_to_plain": ratios,
            "peak_bytes": dict.fromkeys(ratios, 1_000_000),
            "difference_of_compiled": {"ADF, compiled": 2e-7},
            "left_out": {"gradients, 8 points": "about 90 s a call"},
        },
    )
    faster = {
        "ratio_to_plain": {"textbook": 60.0, "howsure": 10.0, "howsure, compiled": 5.0},
        "times_faster": {"textbook": 6},
        "times_faster_compiled": {"textbook": 12},
    }
    add("textbook", "DroNet, batch 1", faster)
    one = {"seconds": [1, 2], "peak_bytes": [5, 5], "exponent": 1.0, "memory_exponent": 0.0}
    methods = {"sampled ADF": one, "sampled ADF, chunk = 4": one}
    about = {"what": "samples T", "unit": "samples", "sizes": [10, 20], "methods": methods}
    add("growth", "samples", about)
    add("time_to_accuracy", "DroNet", a_race())


def a_race():
    """DroNet, where gradients are within 5 % after 5 forwards and Monte Carlo after 40."""
    errors = {"gradients": [0.06, 0.02], "Monte Carlo": [0.3, 0.05], "linear": [0.1], "ADF": [0.7]}
    noise = {
        "errors": errors,
        "auto": "gradients",
        "auto_setting": 8,
        "seconds_to_precise": {"gradients": 0.05, "Monte Carlo": 0.4},
        "holds": True,
    }
    return {
        "plain_seconds": 0.01,
        "settings": {"gradients": [4, 8], "Monte Carlo": [20, 200], "linear": [0], "ADF": [0]},
        "seconds": {
            "gradients": [0.06, 0.12],
            "Monte Carlo": [0.1, 0.4],
            "linear": [0.02],
            "ADF": [0.03],
        },
        "noise": {"2 gray levels": noise},
    }


def test_figures_are_held_against_their_targets(tmp_path):
    from speed import must_hold

    some_results(tmp_path)
    rows = {row["row"]: row for row in must_hold.write(tmp_path)}
    assert len(rows) == 12 + 14 + 3 + 4 + 6 + 3
    assert rows["plain forwards: ADF, eager; DroNet, batch 1"]["reached"] is True
    assert rows["plain forwards: ADF, compiled; DroNet, batch 1"]["reached"] is False
    assert rows["plain forwards: gradients, 4 points, eager; DroNet, batch 1"]["reached"] is True
    assert rows["plain forwards: gradients, 8 points, eager; DroNet, batch 1"]["reached"] is None
    assert rows["plain forwards: 20 samples, eager; DroNet, batch 1"]["reached"] is False
    for mode, reached in (("eager", False), ("compiled", True)):
        row = rows[f"times faster than the textbook, T = 20, {mode}; DroNet, batch 1"]
        assert row["reached"] is reached
    assert rows["exponent of time over samples; sampled ADF"]["figure"] == 1.0
    assert rows["relative difference, compiled to eager"]["reached"] is True
    assert json.loads((tmp_path / "must_hold.json").read_text())["rows"] == list(rows.values())


def test_page_has_figures_targets_and_what_was_left_out(tmp_path):
    from speed import must_hold, page

    some_results(tmp_path)
    must_hold.write(tmp_path)
    page.write(tmp_path, tmp_path / "page.md", tmp_path)
    text = (tmp_path / "page.md").read_text()
    assert "| DroNet, batch 1 | 10 | – | 2.4 / 1.4 |" in text
    assert "gradients, 8 points (about 90 s a call)" in text
    assert "| DroNet, batch 1 | 60 | 10 / 5 | 6 / 12 |" in text
    assert (
        "| DroNet | 2 gray levels | 5 | 40 | 2.0 % | 12 | 10.0 % | 70.0 % | gradients, 8 | yes |"
        in text
    )
    for name in ("time_to_accuracy.png", "bench_growth.png"):
        assert f"({name})" in text and (tmp_path / name).stat().st_size > 5000


def test_every_case_is_listed():
    code = f"import sys; sys.path.insert(0, {str(BENCHMARKS)!r}); import run\n"
    code += "for asked in (['DroNet', 'growth'], ['nothing']):\n"
    code += "    sys.argv = ['run.py', '--list', '--only', *asked]; print('exit', run.main())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    found, nothing, _ = re.split(r"exit \d", done.stdout)
    assert re.findall(r"exit (\d)", done.stdout) == ["0", "2"], done.stderr
    assert "speed: DroNet, batch 8" in found and "growth: outputs" in found and "MLP" not in found
    assert "No case has" in nothing
