"""What a noise refuses, and that it says what to do."""

import re
from typing import Any

import numpy as np
import pytest
import torch

from howsure import noise

X = torch.zeros(2, 3, 4, 4)
# Of the wrong type, which a type checker would refuse.
WRONG: Any = "row"
NUMBER: Any = 3.0
ARRAY: Any = X.numpy()
FRAMES = np.random.default_rng(0).normal(100, 5, (4, 3, 32, 32))
STEADY = np.stack([np.arange(1000.0), np.arange(1000.0) + (np.arange(1000) % 10 == 0)])

REFUSED = [
    ("negative variance", lambda: noise.variance(-1.0), "cannot be negative"),
    ("NaN variance", lambda: noise.variance(float("nan")), "NaN or infinity"),
    ("infinite tensor", lambda: noise.std(torch.tensor([1.0, torch.inf])), "NaN or infinity"),
    ("negative std", lambda: noise.std(-0.1), "cannot be negative"),
    ("both", lambda: noise.per_channel(variances=[1], stds=[1]), "not both"),
    ("neither", lambda: noise.per_channel(), "either `variances=` or `stds=`"),
    ("one number per channel", lambda: noise.per_channel(stds=0.1), "one for each channel"),
    ("wrong channels", lambda: noise.per_channel(stds=[1, 2])(X), "`dim=`"),
    ("wrong dimension", lambda: noise.per_channel(stds=[1, 2, 3], dim=7)(X), "dimension 7"),
    ("wrong shape", lambda: noise.variance(torch.ones(5, 1))(X), "does not broadcast"),
    ("too many dimensions", lambda: noise.variance(torch.ones(2, 2, 3, 4, 4))(X), "broadcast"),
    ("reading of gray levels", lambda: noise.gray_levels(2, kind=WRONG), '"std" or "variance"'),
    ("scale 0", lambda: noise.gray_levels(2, scale=0), "`scale` contains 0"),
    ("std 0", lambda: noise.std(1).through_normalize(0, [1, 0, 1]), "`std` contains 0"),
    ("negative factor", lambda: noise.std(1).scaled(-1), "`factor` contains -1"),
    ("negative gain", lambda: noise.poisson_gaussian(-1, 0), "`gain`"),
    ("negative slope", lambda: noise.range_dependent(0.1, -1), "`b`"),
    ("rate 0", lambda: noise.imu(0.1, 0), "`rate` contains 0"),
    ("text", lambda: noise.variance("loud"), "give a number, a tensor"),
    ("no function", lambda: noise.custom(NUMBER), "use `variance`"),
    ("bad function", lambda: noise.custom(lambda x: x - 1)(X), "negative, NaN or infinite"),
    ("integers", lambda: noise.std(1)(X.to(torch.uint8)), "only floating-point"),
    ("array as input", lambda: noise.std(1)(ARRAY), "only floating-point"),
    ("list as noise", lambda: noise.variance_of([0.1, 0.2], X), "per_channel"),
    ("dict as noise", lambda: noise.variance_of({"a": 0.1}, X), "structure of the input"),
    ("one for several", lambda: noise.variance_of(noise.std(1), (X, X)), "structure"),
    ("noise of a number", lambda: noise.variance_of((1.0, 1.0), (X, 3)), "`x[1]` is a int"),
    ("wrong length", lambda: noise.variance_of((1.0,), (X, X)), "2 parts"),
    ("unknown name", lambda: noise.variance_of({"imu": 1.0}, {"image": X}), "'imu'"),
    ("no covariance", lambda: noise.correlated(), "either `covariance=` or `factor=`"),
    ("a vector", lambda: noise.correlated(covariance=[1.0, 2.0]), "must be square"),
    ("a number", lambda: noise.correlated(covariance=1.0), "must be square"),
    ("an empty one", lambda: noise.correlated(covariance=np.zeros((0, 0))), "must be square"),
    ("not square", lambda: noise.correlated(covariance=np.eye(3)[:2]), "must be square"),
    ("not symmetric", lambda: noise.correlated(covariance=[[1, 0.5], [0, 1]]), "not symmetric"),
    ("indefinite", lambda: noise.correlated(covariance=[[1, 2], [2, 1]]), "eigenvalue -1"),
    ("negative", lambda: noise.correlated(covariance=-np.eye(2)), "eigenvalue -1"),
    ("NaN covariance", lambda: noise.correlated(covariance=[[np.nan]]), "NaN or infinity"),
    ("NaN factor", lambda: noise.correlated(factor=[[np.inf]]), "NaN or infinity"),
    ("covariance of text", lambda: noise.correlated(covariance=WRONG), "give a number, a tensor"),
    ("factor of one axis", lambda: noise.correlated(factor=[1.0]), "(elements, sources)"),
    ("named axis", lambda: noise.correlated(factor=[[1.0]], axis=WRONG), "number of an axis"),
    ("elements", lambda: noise.correlated(covariance=np.eye(5)).root(X), "5 elements, and an inpu"),
    ("elements' variance", lambda: noise.correlated(covariance=np.eye(5))(X), "an input has 48"),
    ("length", lambda: noise.correlated(covariance=np.eye(5), axis=1).root(X), "axis 1 of the inp"),
    ("length's variance", lambda: noise.correlated(covariance=np.eye(5), axis=1)(X), "has 3;"),
    ("axis of the batch", lambda: noise.ar1(1, 0.5, axis=0).root(X), "counts the inputs"),
    ("axis -4", lambda: noise.rows(1, axis=-4).root(X), "counts the inputs"),
    ("lines of vectors", lambda: noise.rows(1).root(X[:, :, 0, 0]), "counts the inputs"),
    ("axis that is not there", lambda: noise.random_walk(1, axis=4).root(X), "has 4 axes"),
    ("its variance", lambda: noise.random_walk(1, axis=4)(X), "has 4 axes"),
    ("axis in words", lambda: noise.common_mode(1, axis=WRONG).root(X), "number of an axis"),
    ("time in words", lambda: noise.ar1(1, 0.5, axis=WRONG).root(X), "number of an axis"),
    ("negative offset", lambda: noise.common_mode(-1), "cannot be negative"),
    ("NaN offset", lambda: noise.rows(np.nan), "NaN or infinity"),
    ("offsets of another shape", lambda: noise.rows(np.ones(5)).root(X), "does not broadcast"),
    ("correlation 1", lambda: noise.ar1(1, 1.0), "between -1 and 1"),
    ("NaN correlation", lambda: noise.ar1(1, np.nan), "between -1 and 1"),
    ("correlation in words", lambda: noise.ar1(1, WRONG), "between -1 and 1"),
    ("negative step", lambda: noise.random_walk(-1), "cannot be negative"),
    ("kernel 0", lambda: noise.blurred(1, 0), "`kernel` contains 0"),
    ("kernel NaN", lambda: noise.blurred(1, [1, np.nan]), "NaN or infinity"),
    ("kernel of nothing", lambda: noise.blurred(1, []), "1 to 3 axes"),
    ("kernel of 4 axes", lambda: noise.blurred(1, np.ones((1, 1, 1, 1))), "1 to 3 axes"),
    ("one axis for two", lambda: noise.blurred(1, np.ones((2, 2)), axes=1), "name as many"),
    ("an axis twice", lambda: noise.blurred(1, np.ones((2, 2)), axes=(1, -3)).root(X), "twice"),
    ("integers that vary", lambda: noise.rows(1).root(X.to(torch.uint8)), "only floating-point"),
    ("factor in a file", lambda: noise.from_config({"kind": "correlated", "factor": 1}), "matrix"),
    ("saving a function", lambda: noise.custom(abs).to_config(), "cannot be saved"),
    ("saving a function inside", lambda: noise.custom(abs).scaled(2).to_config(), "cannot be"),
    ("saving a bare function", lambda: noise.to_config((abs,)), "`abs` cannot be saved"),
    ("saving numbered inputs", lambda: noise.to_config({1: 0.1}), "only names"),
    ("unknown kind", lambda: noise.from_config({"kind": "loud"}), "is unknown"),
    ("wrong fields", lambda: noise.from_config({"kind": "constant", "v": 1}), "do not fit"),
    ("wrong dtype", lambda: noise.from_config({"tensor": [1], "dtype": "load"}), "dtype 'load'"),
    ("one frame", lambda: noise.identify_from_repeats(FRAMES[:1]), "at least 2"),
    ("no frame", lambda: noise.identify_from_repeats([]), "at least one"),
    ("a number", lambda: noise.identify_from_repeats(3.0), "fewer than 2 frames"),
    ("NaN frames", lambda: noise.identify_from_repeats(FRAMES * np.nan), "contains NaN"),
    ("boolean frames", lambda: noise.identify_from_repeats(FRAMES > 0), "floats or integers"),
    ("complex frames", lambda: noise.identify_from_repeats(torch.zeros(2, 3) * 1j), "complex"),
    ("equal frames", lambda: noise.identify_from_repeats(X), "all equal"),
    ("unlike frames", lambda: noise.identify_from_repeats([X, X[0]]), "same shape"),
    ("per what", lambda: noise.identify_from_repeats(FRAMES, per=WRONG), '"element"'),
    ("no channels", lambda: noise.identify_from_repeats([1, 2, 3], per="channel"), "no channels"),
    (
        "all saturated",
        lambda: noise.identify_from_repeats(FRAMES, saturation=(0, 90)),
        "another exposure",
    ),
    ("fit from one frame", lambda: noise.fit_poisson_gaussian(FRAMES[:1]), "at least 2"),
    ("fit of equal frames", lambda: noise.fit_poisson_gaussian(FRAMES[[0, 0]]), "all equal"),
    ("fit of few changes", lambda: noise.fit_poisson_gaussian(STEADY), "Most pixels are the same"),
    ("fit without contrast", lambda: noise.fit_poisson_gaussian(FRAMES), "too little contrast"),
    ("fit of two pixels", lambda: noise.fit_poisson_gaussian(FRAMES[:, 0, 0, :2]), "contrast"),
    ("fit per what", lambda: noise.fit_poisson_gaussian(FRAMES, per=WRONG), '"channel"'),
    (
        "fit without channels",
        lambda: noise.fit_poisson_gaussian(FRAMES[:, 0, 0], per="channel"),
        "no channels",
    ),
    ("channels last", lambda: noise.identify_from_image(np.zeros((64, 64, 3))), "transpose"),
    ("a batch", lambda: noise.identify_from_image(np.zeros((2, 3, 64, 64))), "one image"),
    ("tiny image", lambda: noise.identify_from_image(FRAMES[0, :, :16, :16]), "at least 16"),
    ("drawn image", lambda: noise.identify_from_image(np.zeros((64, 64))), "no noise at all"),
    ("image per what", lambda: noise.identify_from_image(FRAMES[0], per=WRONG), '"channel"'),
]


@pytest.mark.parametrize(
    ("refused", "says"), [pytest.param(*case[1:], id=case[0]) for case in REFUSED]
)
def test_is_refused_with_a_remedy(refused, says):
    with pytest.raises((ValueError, TypeError), match=re.escape(says)) as caught:
        refused()
    message = str(caught.value)
    assert message[0].isupper() or message.startswith("`")
    assert message.endswith((".", "?"))
