"""Vectors, quaternions and rotation matrices of many vehicles: components first, vehicles last."""

from __future__ import annotations

import numpy as np

from howsure_lab.experiments.quadrotor.vehicle import Array


def _cross_table() -> Array:  # (3, 9)
    table = np.zeros((3, 3, 3))
    for i in range(3):
        j, k = (i + 1) % 3, (i + 2) % 3
        table[i, j, k], table[i, k, j] = 1, -1
    return table.reshape(3, 9)


def _matrix_table() -> Array:  # (9, 16)
    """The entries of a rotation matrix as sums of products of the quaternion's components."""
    table = np.zeros((3, 3, 4, 4))
    for i in range(3):
        j, k = (i + 1) % 3, (i + 2) % 3
        for component in range(4):
            table[i, i, component, component] = 1 if component in (0, i + 1) else -1
        table[i, j, i + 1, j + 1] = table[j, i, i + 1, j + 1] = 2
        table[i, j, 0, k + 1], table[j, i, 0, k + 1] = -2, 2
    return table.reshape(9, 16)


# A product of all pairs and one small matrix product are several times faster than a line of numpy
# for every term.
_CROSS = _cross_table()
_MATRIX = _matrix_table()


def cross(a: Array, b: Array) -> Array:  # (3, n), (3, n) -> (3, n)
    """The cross product."""
    return _CROSS @ (a[:, None] * b).reshape(9, -1)


def matrix(q: Array) -> Array:  # (4, n) -> (3, 3, n)
    """The rotation from body to world of unit quaternions (w, x, y, z)."""
    return (_MATRIX @ (q[:, None] * q).reshape(16, -1)).reshape(3, 3, -1)


def rotated(rotation: Array, vector: Array) -> Array:  # (3, 3, n), (3, n) -> (3, n)
    """R v: body to world."""
    return (rotation * vector).sum(1)


def unrotated(rotation: Array, vector: Array) -> Array:  # (3, 3, n), (3, n) -> (3, n)
    """R^T v: world to body."""
    return (rotation * vector[:, None]).sum(0)


def quaternion_rate(q: Array, rates: Array) -> Array:  # (4, n), (3, n) -> (4, n)
    """q' = 1/2 q * (0, rates), for rates in the body's frame."""
    scalar, vector, half = q[0], q[1:], 0.5 * rates
    out = np.empty_like(q)
    out[0] = -(vector * half).sum(0)
    out[1:] = scalar * half + cross(vector, half)
    return out


def quaternion(rotation: Array) -> Array:  # (3, 3, n) -> (4, n)
    """The unit quaternion of a rotation, with w >= 0.

    Of the four components the largest is computed from the diagonal, which loses no digits
    (Shepperd 1978).
    """
    r = rotation
    trace = r[0, 0] + r[1, 1] + r[2, 2]
    squares = np.stack([1 + trace, *(1 - trace + 2 * r[i, i] for i in range(3))])  # 4 q_i**2
    yz, zx, xy = r[2, 1] - r[1, 2], r[0, 2] - r[2, 0], r[1, 0] - r[0, 1]
    sxy, szx, syz = r[1, 0] + r[0, 1], r[0, 2] + r[2, 0], r[2, 1] + r[1, 2]
    # Row i has 4 q_i q_j.
    products = np.stack(
        [
            np.stack([squares[0], yz, zx, xy]),
            np.stack([yz, squares[1], sxy, szx]),
            np.stack([zx, sxy, squares[2], syz]),
            np.stack([xy, szx, syz, squares[3]]),
        ]
    )
    best = squares.argmax(0)
    chosen = products[best, :, np.arange(r.shape[2])].T
    return canonical(chosen / np.linalg.norm(chosen, axis=0))


def canonical(q: Array) -> Array:  # (4, n)
    """The same rotation with w >= 0: q and -q are one rotation, and a network should see one."""
    return np.where(q[0] < 0, -q, q)
