"""The comparison with peers is right: what it draws, scores, leaves out and reports."""

import importlib.util
import sys
import time
from pathlib import Path

import pytest
import torch
from torch import nn

import howsure as hs

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


@pytest.fixture(autouse=True)
def importable(monkeypatch):
    """The benchmarks are scripts beside the package."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))


def small_network():
    torch.manual_seed(0)
    layers = [nn.Linear(6, 32), nn.Tanh(), nn.Linear(32, 1)]
    return nn.Sequential(*layers).eval().requires_grad_(False)


def some_inputs(count=6):
    return torch.randn(count, 6, generator=torch.Generator().manual_seed(1))


def test_monte_carlo_as_one_batch_has_the_std_of_a_linear_network():
    from speed.peers import monte_carlo

    torch.manual_seed(0)
    net, x = nn.Linear(6, 1).requires_grad_(False), some_inputs(3)
    found = monte_carlo(net, 0.3, 20_000)(x)
    expected = 0.3 * net.weight.square().sum().sqrt()
    torch.testing.assert_close(found, expected.expand(3, 1), rtol=0.02, atol=0)


def test_scores_of_a_std_that_is_off():
    from speed.peers import DRAWS, against, average

    truth = torch.tensor([[1.0], [2.0], [3.0], [5.0]])
    same, double = against(truth, truth), against(2 * truth, truth)
    assert same == {"error": 0.0, "factor": 1.0, "rank": pytest.approx(1)}
    own = 1 / (2 * (DRAWS - 1))
    assert double["error"] == pytest.approx((0.693147**2 - own) ** 0.5, rel=1e-4)
    assert double["factor"] == pytest.approx(2)
    assert against(truth.flip(0), truth)["rank"] == pytest.approx(-1)
    both = average([{"error": 0.3, "rank": 1.0}, {"error": 0.4, "rank": 0.5}])
    assert both == {"error": pytest.approx(0.125**0.5), "rank": 0.75}


def test_every_seed_draws_anew_and_alike():
    from speed.peers import Ours, monte_carlo, row_by_row

    net, x = small_network(), some_inputs(3)
    sure = hs.Uncertain(net, 0.01, "noise_sampling", samples=20)
    for std in (Ours(sure), monte_carlo(net, 0.1, 20)):
        first, other, again = (row_by_row(std, x, seed) for seed in (0, 1, 0))
        assert torch.equal(first, again)
        assert not torch.equal(first, other)


def without_peers():
    names = ("distprop", "torchadf", "torch_uncertainty")
    return all(importlib.util.find_spec(name) is None for name in names)


@pytest.mark.skipif(not without_peers(), reason="the peers are installed")
def test_a_peer_that_is_missing_is_left_out_with_the_reason(monkeypatch, tmp_path):
    import bench
    from speed import peers

    monkeypatch.setattr(bench.tempfile, "gettempdir", lambda: str(tmp_path))
    monkeypatch.setattr(peers, "subject", lambda _, count: (small_network(), some_inputs()))
    found = peers.measure_peers("sensor noise: MLP", quick=True)
    assert found["left_out"]["distprop"] == "No module named 'distprop'"
    assert found["ways"]["howsure, gradients, 8 points"]["error"] < 0.05
    assert found["ways"]["Monte Carlo, 1000 as one batch"]["factor"] == pytest.approx(1, abs=0.05)
    costs = [found["ways"][f"Monte Carlo, {n} as one batch"]["cost"] for n in (20, 1000)]
    assert all(cost > 0 for cost in costs)


@pytest.mark.skipif(not without_peers(), reason="the peers are installed")
def test_dropout_is_held_against_plain_passes_in_train_mode(monkeypatch, tmp_path):
    import bench
    from speed import peers

    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 64), nn.ReLU(), nn.Linear(64, 1)).eval().requires_grad_(False)
    monkeypatch.setattr(bench.tempfile, "gettempdir", lambda: str(tmp_path))
    monkeypatch.setattr(peers, "subject", lambda _, count: (net, some_inputs()))
    found = peers.measure_peers("dropout: MLP", quick=True)
    # Both of the network's own masks: rate 0.05 behind its ReLU.
    assert found["ways"]["howsure, gradients, 8 points"]["error"] < 0.05
    assert found["ways"]["howsure, 20 masks"]["error"] < 0.4
    assert sorted(found["left_out"]) == [
        "torch-uncertainty, 20 masks at once",
        "torch-uncertainty, 20 masks in a loop",
    ]


def test_a_network_that_torch_adf_has_no_layers_for_is_refused():
    from speed.peers import CannotRun, torch_adf

    with pytest.raises(CannotRun, match="sequences of its own layers only"):
        torch_adf(nn.LSTM(3, 4), 0.1, full=False)


def some_peers(folder):
    from bench import Results

    def add(name, ways, left_out):
        case = {"ways": ways, "left_out": left_out, "versions": {"distprop": "0.1.0"}}
        Results(folder, "peers", "cmd").add(name, case, quick=False)

    first = {"cost": 12.3, "error": 0.0123, "factor": 1.01, "rank": 0.994}
    second = {"cost": 3.0, "error": 0.2, "factor": 0.8, "rank": 0.9}
    ways = {"howsure, gradients, 8 points": first, "distprop": second}
    add("sensor noise: MLP", ways, {})
    reason = {"torch-adf, variances": "it has no LSTM", "torch-adf, covariances": "it has no LSTM"}
    add("sensor noise: LSTM", ways, reason)
    add("weights: MLP", {"howsure, posterior": {"cost": 45.0, "nll": -0.371, "coverage": 0.95}}, {})


def test_page_has_cost_and_accuracy_and_who_cannot_run(tmp_path):
    pytest.importorskip("matplotlib")
    from speed import page

    some_peers(tmp_path)
    page.write(tmp_path, tmp_path / "page.md", tmp_path)
    text = (tmp_path / "page.md").read_text()
    assert "| MLP | howsure, gradients, 8 points | 12.3 | 1.2 % | 1.01 | 0.99 |" in text
    assert "|  | distprop | 3 | 20.0 % | 0.80 | 0.90 |" in text
    assert "| MLP | howsure, posterior | 45 | -0.37 | 95.0 % | – |" in text
    assert text.count("- torch-adf does not run on LSTM: it has no LSTM.") == 1
    assert "(distprop 0.1.0)" in text
    ours = "howsure, gradients, 8 points: 12.3"
    assert f"| sensor noise: MLP | {' | '.join([ours] * 4)} |" in text
    assert "(bench_peers.png)" in text and (tmp_path / "bench_peers.png").stat().st_size > 5000


@pytest.fixture
def isolated(monkeypatch):
    """The module that runs a model of the coverage zoo in a process of its own."""
    monkeypatch.syspath_prepend(str(BENCHMARKS / "coverage"))
    for name in ("isolated", "measure"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    import isolated

    yield isolated
    for name in ("isolated", "measure"):
        sys.modules.pop(name, None)


def test_limits_of_a_model_in_a_process_of_its_own(isolated):
    from measure import Result

    def run(work, **limits):
        blank = Result("library", "family", "name", further=False)
        return isolated.run_isolated(work, blank, **{"timeout": 20, "memory_gb": 14, **limits})

    def busy(result):
        while True:
            pass

    def asleep(result):
        time.sleep(1.5)
        return result

    def failing(result):
        raise ValueError("no such thing")

    stopped = run(busy, timeout=1)
    assert (stopped.status, stopped.reason) == ("timeout", "not done after 1 s of the processor")
    # Waiting for a busy machine takes no time of the processor.
    assert run(asleep, timeout=1).status == "ok"
    assert run(failing).reason.startswith("ValueError: no such thing")
    assert run(failing).status == "failed"
