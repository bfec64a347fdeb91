"""Correlated noises beside their covariances, which numpy writes down element by element."""

import numpy as np
import torch

from howsure import noise

STD, CORRELATION = 0.4, 0.8
KERNEL = np.array([[1.0, 2.0, 0.5], [-0.5, 1.0, 3.0]]) / 4
# Noise that tends to have one sign, as that of neighbors has.
MATRIX = np.random.default_rng(0).normal(0.5, 1, size=(64, 64)) / 12


def steps(shape):
    """How far two elements of an input are apart along every axis, (axes, elements, elements)."""
    places = np.indices(shape).reshape(len(shape), -1)
    return places[:, :, None] - places[:, None]


def same(shape, *axes):
    """Where two elements have the same index along all axes but the given ones."""
    apart = steps(shape)
    others = [i for i in range(len(shape)) if i - len(shape) not in axes]
    return (apart[others] == 0).all(0).astype(float)


def given(shape):
    own = MATRIX[: np.prod(shape), : np.prod(shape)]
    return own @ own.T


def few_sources(shape):
    own = MATRIX[: np.prod(shape), :5]
    return own @ own.T


def along_an_axis(shape):
    own = MATRIX[: shape[-1], : shape[-1]]
    places = np.indices(shape).reshape(len(shape), -1)[-1]
    return same(shape, -1) * (own @ own.T)[places[:, None], places]


def shared_by_all(shape):
    return STD**2 * np.ones((np.prod(shape),) * 2)


def shared_by_channels(shape):
    return STD**2 * (steps(shape)[-1] == 0)


def lines(shape):
    return STD**2 * (steps(shape)[-2] == 0)


def memory(shape):
    return STD**2 * same(shape, -2) * CORRELATION ** np.abs(steps(shape)[-2])


def walk(shape):
    places = np.indices(shape).reshape(len(shape), -1)[-2] + 1
    return 0.01 * same(shape, -2) * np.minimum(places[:, None], places)


def blur(shape):
    apart, total = steps(shape), 0.0
    taps = list(np.ndenumerate(KERNEL))
    for (i, j), one in taps:
        for (k, m), two in taps:
            total = total + one * two * ((apart[-2] == i - k) & (apart[-1] == j - m))
    return STD**2 * same(shape, -2, -1) * total


def several(shape):
    return lines(shape) + memory(shape) + 0.04 * np.eye(np.prod(shape))


# Noise for an input of a shape, and its covariance.
KINDS = {
    "covariance": (lambda shape: noise.correlated(covariance=given(shape)), given),
    "factor": (lambda shape: noise.correlated(factor=MATRIX[: np.prod(shape), :5]), few_sources),
    "axis": (
        lambda shape: noise.correlated(factor=MATRIX[: shape[-1], : shape[-1]], axis=-1),
        along_an_axis,
    ),
    "common mode": (lambda shape: noise.common_mode(STD), shared_by_all),
    "by channel": (lambda shape: noise.common_mode(STD, axis=-1), shared_by_channels),
    "rows": (lambda shape: noise.rows(STD), lines),
    "ar1": (lambda shape: noise.ar1(STD, CORRELATION, axis=-2), memory),
    "random walk": (lambda shape: noise.random_walk(0.1, axis=-2), walk),
    "blurred": (lambda shape: noise.blurred(STD, KERNEL), blur),
    "sum": (
        lambda shape: noise.rows(STD) + noise.std(0.2) + noise.ar1(STD, CORRELATION, axis=-2),
        several,
    ),
}


def matrix_of(root, rows=1):  # (rows, sources, elements)
    """S as a matrix, from its products with unit vectors."""
    size = int(np.prod(root.shape))
    units = torch.eye(size, dtype=torch.float64).reshape(size, 1, *root.shape)
    drawn = root.apply(units.expand(-1, rows, *root.shape), slice(None))
    return drawn.reshape(size, rows, -1).movedim(1, 0)
