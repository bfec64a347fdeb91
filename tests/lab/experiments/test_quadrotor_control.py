"""References, controller, policies and laws of the quadrotor."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from scipy.optimize import minimize

from howsure.deploy.gate import Gate
from howsure_lab.experiments.quadrotor import trial as policies
from howsure_lab.experiments.quadrotor.flight import (
    World,
    circle,
    fly,
    lemniscate,
    nose_of,
    random_smooth,
    speeds_for,
    together,
    toward,
)
from howsure_lab.experiments.quadrotor.models import (
    COUNT,
    VELOCITY,
    PowerLaw,
    Siblings,
    SureNetwork,
    exact_reading,
)
from howsure_lab.experiments.quadrotor.physics import FULL_PHYSICS, NOMINAL, model_error
from howsure_lab.experiments.quadrotor.trial import (
    CASES,
    POLICIES,
    Case,
    Known,
    faults,
    gusts,
    trajectories,
)
from howsure_lab.experiments.training import Pairs


def some_trajectories():
    generator = np.random.default_rng(0)
    return together([circle(7), lemniscate(7), random_smooth(np.array([3.0, 8.0]), generator)])


def test_derivatives_of_references_against_differences():
    h = 1e-5
    at = some_trajectories().at(np.array([0.7 - h, 0.7, 0.7 + h]))
    assert at.position.shape == (3, 3, 4)
    for value, rate in pairwise(at):
        np.testing.assert_allclose((value[2] - value[0]) / (2 * h), rate[1], atol=1e-6)


def test_speeds_are_as_asked():
    times = np.arange(0, 60, 0.01)
    speed = np.linalg.norm(some_trajectories().at(times).velocity, axis=1).max(0)
    np.testing.assert_allclose(speed, [7, 7, 3, 8], rtol=1e-3)


def test_attitude_is_a_rotation_with_consistent_rates():
    several, h = some_trajectories().facing(0.4), 1e-5
    at = several.at(np.array([0.7 - h, 0.7, 0.7 + h]))
    up, nose = np.array([[0], [0], [9.81]]), nose_of(several.headings)
    found = [toward(at.acceleration[i] + up, at.jerk[i], nose) for i in range(3)]
    r = found[1].rotation
    np.testing.assert_allclose(np.einsum("jin,jkn->nik", r, r), [np.eye(3)] * 4, atol=1e-12)
    change = (found[2].rotation - found[0].rotation) / (2 * h)
    spin = np.einsum("jin,jkn->ikn", r, change)  # R^T R' is the cross product with the rates
    np.testing.assert_allclose(
        np.stack([spin[2, 1], spin[0, 2], spin[1, 0]]), found[1].rates, atol=1e-6
    )


def test_without_drag_the_path_is_kept():
    flight = fly(World(some_trajectories(), NOMINAL), 4)
    assert flight.rmse(1.0).max() < 0.005


def test_true_error_corrects_most_of_the_drag():
    several = together([circle(7), lemniscate(7), lemniscate(7).facing(np.pi / 2)])
    world = World(several)
    plain = fly(world, 4).rmse(1.0)
    corrected = fly(world, 4, lambda t, state, wind: model_error(FULL_PHYSICS, state, wind))
    assert (corrected.rmse(1.0) < 0.3 * plain).all()


def test_a_crash_is_infinite_and_alone():
    def mad(time, state, wind):
        found = np.zeros((6, 2))
        found[:, 0] = np.nan if time > 0.5 else 0.0
        return found

    rmse = fly(World(together([circle(3), circle(3)])), 1.5, mad).rmse(1.0)
    assert rmse[0] == np.inf and rmse[1] < 1


def test_rotor_speeds_give_thrust_and_moment_back():
    thrust, moment = np.array([5.0, 8.0]), np.array([[0.1, -0.05], [0.0, 0.1], [0.01, -0.01]])
    speeds = speeds_for(NOMINAL, thrust, moment)
    found = NOMINAL.allocation @ (NOMINAL.thrust_factor * speeds**2)
    np.testing.assert_allclose(found, np.stack([thrust, *moment]), atol=1e-12)
    much = speeds_for(NOMINAL, np.array([1e4]), np.zeros((3, 1)))
    assert (much == NOMINAL.fastest).all()


def test_readings_show_one_of_two_equal_quaternions():
    world = World(circle(5))
    state = fly(world, 0.1).states[-1]
    turned = state.copy()
    turned[6:10] *= -1
    a, b = exact_reading(FULL_PHYSICS, state), exact_reading(FULL_PHYSICS, turned)
    np.testing.assert_allclose(a, b)
    assert a.shape == (1, COUNT) and a[0, 0] >= 0
    assert np.linalg.norm(a[0, VELOCITY]) == pytest.approx(5, rel=0.1)


def test_regimes_differ_only_in_what_they_say():
    flights = trajectories(CASES)
    assert flights.count == len(CASES)
    wind = gusts(CASES, np.random.default_rng(0)).at(np.arange(0, 600, 0.5)).position
    rms = np.sqrt((wind**2).mean(0))
    windy = np.array([case.regime == "gusts" for case in CASES])
    assert (rms[:, ~windy] == 0).all() and (rms[2] == 0).all()
    assert (rms[:2, windy] > 1).all() and (rms[:2, windy] < 6).all()
    two = [Case("input_fault", "circle"), Case("shared_fault", "circle"), Case("normal", "circle")]
    assert (faults(two, 1.0, shared=False) == 0).all()
    assert faults(two, 2.5, shared=False)[:, VELOCITY.start].tolist() == [20, 20, 0]
    assert faults(two, 2.5, shared=True)[:, VELOCITY.start].tolist() == [0, 20, 0]


def test_power_law_is_the_most_likely_one():
    generator = torch.Generator().manual_seed(0)
    u = torch.exp(2 * torch.randn(3000, generator=generator)).double()
    true_var = torch.stack([0.5 * u**1.5, 2 * u**0.3], 1)
    squared = true_var * torch.randn(3000, 2, generator=generator).double() ** 2
    law = PowerLaw.fit(u, squared)
    for k in range(2):
        e, logs = squared[:, k].numpy(), u.log().numpy()

        def nll(p, e=e, logs=logs):
            return (p[0] + p[1] * logs + e * np.exp(-p[0] - p[1] * logs)).sum()

        best = minimize(nll, [0.0, 0.5], method="Nelder-Mead", options={"xatol": 1e-8}).x
        assert float(law.offset[k]) == pytest.approx(best[0], abs=1e-4)
        assert float(law.power[k]) == pytest.approx(best[1], abs=1e-4)
    np.testing.assert_allclose(law.power, [1.5, 0.3], atol=0.05)
    falling = PowerLaw.fit(u, 1 / u[:, None])
    assert float(falling.power) == 0
    with pytest.raises(ValueError, match="must be positive"):
        PowerLaw.fit(torch.zeros(3), torch.ones(3, 1))


def sure_network():
    constant = PowerLaw(torch.log(torch.full((6,), 0.01)), torch.zeros(6))
    newness = Gate(2.0, by="novelty")
    return SureNetwork(torch.nn.Identity(), Gate(1.0, (6,)), constant, newness)


def known(std, linear_var=1.0, novelty=1.0):
    var = torch.as_tensor(std)[:, None].expand(-1, 6) ** 2
    full = torch.full_like(var, 1.0)
    news = torch.full_like(full[:, 0], novelty)
    return Known(5 * full, var, 2 * full, linear_var * full, 7 * full, news)


def test_every_policy_gives_what_it_says():
    std = torch.tensor([0.1, 3.0])
    expected = {
        "nominal": [0, 0],
        "linear": [2, 2],
        "mlp": [5, 5],
        "hard_gate": [5, 0],
        "posterior_gate": [5, 0],
        "ensemble": [5, 5],
        "true_error": [7, 7],
    }
    for name, values in expected.items():
        found = POLICIES[name].decide(sure_network(), known(std), None)
        assert found.correction[:, 0].tolist() == values, name
        assert found.correction.shape == (2, 6) and found.share.shape == (2,)


def test_gate_to_linear_waits_before_it_trusts():
    memory, seen = None, []
    for std in [0.1] * 12 + [3.0] + [0.8] * 3 + [0.5] * 12:
        found = policies.gate_to_linear(sure_network(), known(torch.tensor([std])), memory)
        memory = found.memory
        seen.append(float(found.correction[0, 0]))
    # Ten calm steps win trust; one bad one loses it; below the threshold is not calm enough.
    assert seen == [2.0] * 9 + [5.0] * 3 + [2.0] * 4 + [2.0] * 9 + [5.0] * 3


def test_novelty_gate_asks_for_the_novelty_alone():
    memory, seen = None, []
    for novelty in [1.0] * 12 + [3.0] + [1.0] * 2:
        asked = known(torch.tensor([30.0]), novelty=novelty)
        found = policies.novelty_to_linear(sure_network(), asked, memory)
        memory = found.memory
        seen.append(float(found.correction[0, 0]))
    assert seen == [2.0] * 9 + [5.0] * 3 + [2.0] * 3


def test_plain_blend_takes_the_variance_as_it_is():
    found = policies.plain_blend(sure_network(), known(torch.tensor([0.5, 30.0])), None)
    shares = [1 / (1 + 0.25), 1 / (1 + 900)]
    assert found.share.tolist() == pytest.approx(shares)
    assert found.correction[:, 0].tolist() == pytest.approx([2 + 3 * share for share in shares])


def test_soft_blend_is_precision_weighted_and_ends_beyond_the_threshold():
    found = policies.soft_blend(sure_network(), known(torch.tensor([0.1, 3.0])), None)
    share = 1 / (1 + 0.01)
    assert float(found.correction[0, 0]) == pytest.approx(5 * share + 2 * (1 - share), rel=1e-5)
    assert float(found.share[0]) == pytest.approx(share, rel=1e-5)
    assert float(found.correction[1, 0]) == pytest.approx(2, abs=1e-3)
    # Trust comes back slowly: right after, little; later, all.
    memory, shares = found.memory, []
    for _ in range(200):
        now = policies.soft_blend(sure_network(), known(torch.tensor([0.1, 0.1])), memory)
        memory = now.memory
        shares.append(float(now.share[1]))
    assert shares[0] < 0.01 and shares[-1] == pytest.approx(share, rel=1e-3)
    assert shares == sorted(shares)


def test_an_answer_that_is_no_number_is_not_used():
    lost = known(torch.tensor([0.1, 0.1]))
    mean, var = lost.mean.clone(), lost.var.clone()
    mean[1], var[1] = torch.nan, torch.nan
    lost = lost._replace(mean=mean, var=var)
    lost = lost._replace(novelty=torch.tensor([1.0, torch.nan]))
    decides = (policies.hard_gate, policies.gate_to_linear, policies.soft_blend)
    for decide in (*decides, policies.novelty_to_linear, policies.plain_blend):
        assert decide(sure_network(), lost, None).correction.isfinite().all()
    found = policies.soft_blend(sure_network(), lost, None)
    assert found.correction[1].tolist() == [2.0] * 6 and float(found.share[1]) == 0
    memory = found.memory
    for _ in range(200):
        found = policies.soft_blend(sure_network(), known(torch.tensor([0.1, 0.1])), memory)
        memory = found.memory
    assert float(found.share[1]) > 0.98


def test_siblings_are_the_networks_that_they_become():
    data = Pairs(torch.randn(40, COUNT) * 3 + 1, torch.randn(40, 6))
    siblings = Siblings(3, data)
    together_, apart = siblings(data.x), siblings.apart()
    for network, found in zip(apart, together_, strict=True):
        torch.testing.assert_close(network(data.x), found, atol=1e-5, rtol=1e-5)
    assert not torch.equal(together_[0], together_[1])
