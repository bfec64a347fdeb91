"""The simulator against closed forms, conservation laws and scipy."""

from dataclasses import replace

import numpy as np
import pytest
from scipy.integrate import solve_ivp
from scipy.spatial.transform import Rotation

from howsure_lab.experiments.quadrotor import physics as turning
from howsure_lab.experiments.quadrotor.physics import (
    FULL_PHYSICS,
    GRAVITY,
    NOMINAL,
    SIMPLE_PHYSICS,
    Aerodynamics,
    State,
    Vehicle,
    angular_momentum,
    derivative,
    energy,
    joined,
    model_error,
    parts,
    rotor_forces,
    step,
    wrench,
)

VEHICLES = {"nominal": NOMINAL, "simple": SIMPLE_PHYSICS, "full": FULL_PHYSICS}


def random_state(n=5, seed=0, speed=300.0):
    generator = np.random.default_rng(seed)
    attitude = generator.normal(size=(4, n))
    attitude /= np.linalg.norm(attitude, axis=0)
    vectors = generator.normal(size=(3, 3, n))
    speeds = speed * (1 + generator.random((4, n)))
    return joined(State(3 * vectors[0], 5 * vectors[1], attitude, 4 * vectors[2], speeds))


def flown(vehicle, state, command, dt, seconds, wind=0.0):
    for _ in range(round(seconds / dt)):
        state = step(vehicle, state, command, dt, wind)
    return state


def test_rotations_against_scipy():
    q = parts(random_state(50)).attitude
    oracle = Rotation.from_quat(q[[1, 2, 3, 0]].T)
    r = turning.matrix(q)
    np.testing.assert_allclose(r.transpose(2, 0, 1), oracle.as_matrix(), atol=1e-14)
    np.testing.assert_allclose(turning.quaternion(r), turning.canonical(q), atol=1e-13)
    v = np.random.default_rng(1).normal(size=(3, 50))
    np.testing.assert_allclose(turning.rotated(r, v).T, oracle.apply(v.T), atol=1e-13)
    np.testing.assert_allclose(turning.unrotated(r, v).T, oracle.inv().apply(v.T), atol=1e-13)
    np.testing.assert_allclose(turning.cross(v, 2 * v + q[1:]), np.cross(v, q[1:], axis=0))


def test_half_turns_have_a_quaternion():
    half = np.diag([1.0, -1, -1]), np.diag([-1.0, 1, -1]), np.diag([-1.0, -1, 1])
    r = np.stack([*half, np.eye(3)], -1)
    np.testing.assert_allclose(np.abs(turning.quaternion(r)), np.eye(4)[:, [1, 2, 3, 0]])


def test_quaternion_rate_turns_with_the_body():
    q, rates = parts(random_state()).attitude, np.array([[0.3], [-2.0], [1.1]]) * np.ones(5)
    h = 1e-6
    moved = Rotation.from_quat(q[[1, 2, 3, 0]].T) * Rotation.from_rotvec(h * rates.T)
    oracle = moved.as_quat().T[[3, 0, 1, 2]]
    oracle *= np.sign((oracle * q).sum(0))
    np.testing.assert_allclose(turning.quaternion_rate(q, rates), (oracle - q) / h, atol=1e-5)


@pytest.mark.parametrize("vehicle", VEHICLES.values(), ids=VEHICLES)
def test_hover_is_an_equilibrium(vehicle):
    level = np.array([[1.0], [0], [0], [0]])
    zero, speeds = np.zeros((3, 1)), np.full((4, 1), vehicle.hover_speed)
    state = joined(State(zero, zero, level, zero, speeds))
    np.testing.assert_allclose(derivative(vehicle, state, speeds), 0, atol=1e-12)
    np.testing.assert_allclose(flown(vehicle, state, speeds, 0.005, 1), state, atol=1e-9)
    np.testing.assert_allclose(model_error(vehicle, state), 0, atol=1e-12)


def test_ballistic_flight_is_a_parabola():
    state = random_state()
    state[13:] = 0
    now = parts(state)
    later = parts(flown(NOMINAL, state, np.zeros((4, 5)), 0.01, 2.0))
    fall = np.array([[0], [0], [-0.5 * GRAVITY * 4]])
    np.testing.assert_allclose(later.position, now.position + 2 * now.velocity + fall, rtol=1e-10)


def test_free_tumbling_keeps_energy_and_angular_momentum():
    state = random_state()
    state[13:] = 0
    later = flown(NOMINAL, state, np.zeros((4, 5)), 0.001, 1.0)
    np.testing.assert_allclose(energy(NOMINAL, later), energy(NOMINAL, state), rtol=1e-9)
    before, after = angular_momentum(NOMINAL, state), angular_momentum(NOMINAL, later)
    np.testing.assert_allclose(after, before, atol=1e-9)
    assert np.abs(parts(later).rates - parts(state).rates).max() > 0.1  # it does tumble


def test_energy_changes_by_the_work_of_the_air():
    """dE = F . v + M . w, for all physics: integrated by Simpson's rule."""
    vehicle, command = replace(FULL_PHYSICS, motor_lag=0.0), np.full((4, 5), 450.0)
    state = random_state()
    state[13:] = command
    work, dt = np.zeros(5), 0.001
    before = energy(vehicle, state)

    def power(state):
        now = parts(state)
        r = turning.matrix(now.attitude)
        force, moment = wrench(vehicle, turning.unrotated(r, now.velocity), now.rates, now.speeds)
        return (turning.rotated(r, force) * now.velocity).sum(0) + (moment * now.rates).sum(0)

    for _ in range(300):
        middle, end = step(vehicle, state, command, dt / 2), step(vehicle, state, command, dt)
        work += dt / 6 * (power(state) + 4 * power(middle) + power(end))
        state = end
    np.testing.assert_allclose(energy(vehicle, state) - before, work, atol=1e-7)


def test_drag_takes_energy_from_a_gliding_vehicle():
    drag = Vehicle(air=Aerodynamics(body_drag=(0.01, 0.02, 0.03)))
    state = random_state()
    state[13:] = 0
    assert (energy(drag, flown(drag, state, np.zeros((4, 5)), 0.01, 1)) < energy(drag, state)).all()


def test_runge_kutta_has_order_four():
    command = np.full((4, 5), 500.0)
    wind = np.array([[1.0], [-2], [0.5]]) * np.ones(5)
    state = random_state()
    exact = flown(FULL_PHYSICS, state, command, 0.5 / 1000, 0.5, wind)
    errors = [
        np.abs(flown(FULL_PHYSICS, state, command, 0.5 / n, 0.5, wind) - exact)[:13].max()
        for n in (50, 100, 200)
    ]
    orders = np.log2(np.array(errors[:-1]) / errors[1:])
    assert ((orders > 3.7) & (orders < 4.4)).all(), orders


def test_whole_flight_against_scipy():
    state, command = random_state(1), np.full((4, 1), 480.0)
    found = solve_ivp(
        lambda t, y: derivative(FULL_PHYSICS, y[:, None], command)[:, 0],
        (0, 0.5),
        state[:, 0],
        method="DOP853",
        rtol=1e-11,
        atol=1e-11,
    )
    ours = flown(FULL_PHYSICS, state, command, 1 / 2000, 0.5)[:, 0]
    np.testing.assert_allclose(ours, found.y[:, -1], rtol=1e-6, atol=1e-6)


def test_forces_against_one_rotor_at_a_time():
    now, air = parts(random_state()), FULL_PHYSICS.air
    velocity = now.velocity
    force, moment = np.zeros((3, 5)), np.zeros((3, 5))
    for i in range(4):
        arm = FULL_PHYSICS.rotors[:, i, None] * np.ones(5)
        u = velocity + np.cross(now.rates, arm, axis=0)
        s = now.speeds[i]
        thrust = FULL_PHYSICS.thrust_factor * s**2 - air.inflow * s * u[2]
        thrust += air.translational_lift * (u[0] ** 2 + u[1] ** 2)
        single = np.stack([-air.rotor_drag * s * u[0], -air.rotor_drag * s * u[1], thrust])
        force += single
        moment += np.cross(arm, single, axis=0)
        moment[2] += (-1) ** i * FULL_PHYSICS.yaw_factor * s**2
    drag = -np.array(air.body_drag)[:, None] * np.linalg.norm(velocity, axis=0) * velocity
    force += drag
    moment += np.cross(np.array(air.center_of_pressure)[:, None] * np.ones(5), drag, axis=0)
    found = wrench(FULL_PHYSICS, velocity, now.rates, now.speeds)
    np.testing.assert_allclose(found[0], force, atol=1e-12)
    np.testing.assert_allclose(found[1], moment, atol=1e-12)
    assert rotor_forces(FULL_PHYSICS, velocity, now.rates, now.speeds).shape == (3, 4, 5)


def test_model_error_is_true_minus_nominal_acceleration():
    state, wind = random_state(), np.array([[2.0], [0], [1]]) * np.ones(5)
    command = state[13:]
    true, nominal = (
        derivative(vehicle, state, command, wind) for vehicle in (FULL_PHYSICS, NOMINAL)
    )
    r = turning.matrix(parts(state).attitude)
    missed = model_error(FULL_PHYSICS, state, wind)
    np.testing.assert_allclose(turning.rotated(r, missed[:3]), (true - nominal)[3:6], atol=1e-12)
    np.testing.assert_allclose(missed[3:], (true - nominal)[10:13], atol=1e-10)
    np.testing.assert_allclose(model_error(NOMINAL, state, wind), 0, atol=1e-10)


def test_rotors_follow_with_their_lag():
    state = random_state(1)
    command = state[13:] + 100
    after = flown(FULL_PHYSICS, state, command, 0.001, FULL_PHYSICS.motor_lag)
    np.testing.assert_allclose(command - after[13:], 100 * np.exp(-1), rtol=1e-6)
    np.testing.assert_allclose(step(NOMINAL, state, command, 0.001)[13:], command)


def test_one_vehicle_does_not_depend_on_the_others():
    state, command = random_state(6), np.full((4, 6), 400.0)
    state[3:6, 2] = np.nan
    many = flown(FULL_PHYSICS, state, command, 0.005, 0.1)
    alone = flown(FULL_PHYSICS, state[:, 4:5], command[:, 4:5], 0.005, 0.1)
    np.testing.assert_allclose(many[:, 4:5], alone, atol=1e-12)


def test_nonsense_is_refused():
    with pytest.raises(ValueError, match="must be positive"):
        Vehicle(mass=0.0)
    with pytest.raises(ValueError, match="motor lag 0 or more"):
        Vehicle(motor_lag=-0.1)
