"""The quadrotor policy from PyPI: its network, its flight, and its std against Monte Carlo.

A small network of the same form stands in for the policy; tests of the policy itself need its
package.
"""

import json
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch

from howsure_lab.experiments.raptor import run as raptor
from howsure_lab.experiments.raptor.flight import Plan, fly, histories
from howsure_lab.experiments.raptor.policy import READINGS, SENSORS, Policy, Shipped, read, shipped
from howsure_lab.experiments.runs import Options

SMALL = replace(raptor.Settings(), plan=Plan(seconds=0.5, hover=0.2), length=5, samples=1000)


def small_policy(width=6, seed=0):
    torch.manual_seed(seed)
    return Policy(width).eval().requires_grad_(False)


def checkpoint(policy, steps=7):
    """The arrays that the package's file holds, by path."""
    state = {name: each.double().numpy() for name, each in policy.state_dict().items()}
    example = torch.randn(steps, 2, READINGS)
    output, _ = policy.after(example.transpose(0, 1), policy.start(2))
    layers = {
        "0/weights": state["first.weight"],
        "0/biases": state["first.bias"][None],
        "1/weights_input": state["gru.weight_ih_l0"],
        "1/weights_hidden": state["gru.weight_hh_l0"],
        "1/biases_input": state["gru.bias_ih_l0"],
        "1/biases_hidden": state["gru.bias_hh_l0"],
        "1/initial_hidden_state": np.zeros(policy.gru.hidden_size),
        "2/weights": state["last.weight"],
        "2/biases": state["last.bias"][None],
    }
    return {
        **{f"actor/layers/{at}/parameters": each for at, each in layers.items()},
        "example/input": example.numpy(),
        "example/output": output.transpose(0, 1).numpy(),
    }


def test_reads_weights_and_checks_them_by_the_example():
    policy = small_policy()
    file = checkpoint(policy)
    found = read(file)
    for name, each in policy.state_dict().items():
        torch.testing.assert_close(found.policy.state_dict()[name], each)
    assert found.example.shape == (7, 2, READINGS)
    with pytest.raises(ValueError, match="those of its own example"):
        read({**file, "example/output": file["example/output"] + 0.01})


def test_a_start_that_is_not_zero_is_refused():
    file = checkpoint(small_policy())
    with pytest.raises(ValueError, match="starts from a memory"):
        read({**file, "actor/layers/1/initial_hidden_state/parameters": np.ones(6)})


def test_says_how_to_get_the_package(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "foundation_policy", None)
    with pytest.raises(ImportError, match="`pip install foundation-policy`"):
        raptor.run(Options("raptor", out=tmp_path))
    with pytest.raises(ValueError, match="take no `--data`"):
        raptor.run(Options("raptor", data=tmp_path, out=tmp_path))


def test_histories_give_the_commands_of_the_flight():
    policy = small_policy()
    readings = torch.randn(12, 2, READINGS)
    inputs = histories(policy, readings, length=4, every=3)
    commands, _ = policy.after(readings.transpose(0, 1), policy.start(2))
    # Histories end after 4, 7 and 10 readings of each of the two.
    wanted = torch.cat([commands[:, end - 1] for end in (4, 7, 10)])
    torch.testing.assert_close(policy(**inputs), wanted)
    assert [inputs[name].shape[-1] for name in SENSORS] == list(SENSORS.values())


def test_monte_carlo_of_a_linear_policy_is_known():
    policy = small_policy()
    inputs = histories(policy, torch.randn(5, 3, READINGS), length=1, every=2)

    class Linear(Policy):
        def forward(self, position, attitude, velocity, rates, command, memory):
            return position.sum((1, 2))[:, None] + command[:, 0]

    settings = replace(SMALL, samples=20_000)
    found = raptor.sampled_std(Linear(), inputs, settings, seed=0)
    exact = (3 * 0.02**2 + 0.01**2) ** 0.5
    # 20,000 samples know a std to 0.5 %.
    torch.testing.assert_close(found, torch.full_like(found, exact), rtol=0.025, atol=0)


def test_a_run_measures_the_policy_and_writes_everything(tmp_path):
    pytest.importorskip("matplotlib")
    options = Options("raptor", quick=True, out=tmp_path, show_progress=False)
    policy = small_policy()
    settings = replace(SMALL, every=9)
    table = raptor.measured(options, settings, Shipped(policy, torch.randn(30, 2, READINGS)))
    results = json.loads((tmp_path / "results.json").read_text())
    assert [line["case"] for line in results["lines"]] == ["flight", "example"]
    for line in results["lines"]:
        assert line["ratio"] == pytest.approx(1, abs=0.1) and line["log_error"] < 0.1
        assert sum(line["shares"].values()) == pytest.approx(1)
        assert set(line["shares"]) == set(SENSORS)
    assert {"commands.png", "config.json"} <= {path.name for path in tmp_path.iterdir()}
    assert "foundation-policy" in table.read_text()
    assert results["settings"]["noise_std"]["velocity"] == 0.05


def test_flights_are_seeded():
    policy, plan = small_policy(), Plan(seconds=0.1)
    first, again, other = (fly(policy, plan, seed) for seed in (0, 0, 1))
    assert torch.equal(first.readings, again.readings)
    assert not torch.equal(first.readings, other.readings)
    # The reading of the last command is the command itself, as motors take it, with noise.
    error = first.readings[1:, -4:] - first.commands[:-1].clamp(-1, 1)
    assert 0 < float(error.abs().max()) < 0.06


def test_the_policy_flies_the_laboratory_s_quadrotor():
    pytest.importorskip("foundation_policy")
    policy, _ = shipped()
    flight = fly(policy, Plan(seconds=4.0), seed=0)
    # It starts 0.6 m away, is at the origin before it leaves it after 2 s, and then keeps up.
    assert flight.distances[0] > 0.6 and flight.distances[150:200].max() < 0.1
    assert flight.distances[200:].max() < 0.5
