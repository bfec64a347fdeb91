"""A noise knows how to save itself: by its class, and by no list elsewhere."""

import json
from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch

import howsure as hs
from howsure import noise
from howsure.noise import Noise
from nets import perceptron

X = torch.full((1, 3, 1, 1), 2.0)

# What version 0.1 wrote, with the variance at 2 in three channels.
WRITTEN = [
    ('{"kind": "constant", "var": 0.25}', [0.25] * 3),
    (
        '{"kind": "per_channel", "var": {"tensor": [1, 2, 4], "dtype": "float64"}, "dim": 1}',
        [1, 2, 4],
    ),
    (
        '{"kind": "poisson_gaussian", "gain": {"tensor": [[[1.0]], [[2.0]], [[3.0]]], '
        '"dtype": "float32"}, "read_std": 0.5, "black_level": 1.0}',
        [1.25, 2.25, 3.25],
    ),
    ('{"kind": "range_dependent", "a": 0.01, "b": 0.1, "c": 0.02}', [0.29**2] * 3),
    ('{"kind": "scaled", "noise": {"kind": "constant", "var": 0.25}, "factor": 4.0}', [1.0] * 3),
    (
        '{"kind": "normalized", "noise": {"kind": "constant", "var": 4.0}, "mean": 0.5, "std": '
        '{"tensor": [0.25, 0.5, 1.0], "dtype": "float64"}, "dim": 1}',
        [64, 16, 4],
    ),
    (
        '{"kind": "sum", "noises": [{"kind": "constant", "var": 0.25}, '
        '{"kind": "constant", "var": 0.5}]}',
        [0.75] * 3,
    ),
]
# The kinds that came with version 0.2.
WRITTEN_SINCE = [
    (
        '{"kind": "correlated", "factor": {"tensor": [[1, 0], [1, 1], [0, 2]], "dtype": "float64"},'
        ' "axis": 1}',
        [1, 2, 4],
    ),
    ('{"kind": "common_mode", "std": 0.5, "axis": [1, 2]}', [0.25] * 3),
    ('{"kind": "rows", "std": 0.5, "axis": -2}', [0.25] * 3),
    (
        '{"kind": "blurred", "std": 0.5, "kernel": {"tensor": [[1, 2]], "dtype": "float32"}, '
        '"axes": null}',
        [1.25] * 3,
    ),
    ('{"kind": "ar1", "std": 0.5, "correlation": 0.9, "axis": 1}', [0.25] * 3),
    ('{"kind": "random_walk", "std": 0.5, "axis": 1}', [0.25, 0.5, 0.75]),
    ('{"kind": "independent", "noise": {"kind": "random_walk", "std": 1, "axis": 1}}', [1, 2, 3]),
]


# With version 0.3.
WRITTEN_SINCE += [('{"kind": "gray_levels", "var": 0.25, "white": 1.0}', [0.25] * 3)]


@pytest.mark.parametrize(("text", "var"), WRITTEN + WRITTEN_SINCE)
def test_files_of_every_version_are_read(text, var):
    found = noise.from_config(json.loads(text))
    expected = torch.tensor(var, dtype=torch.float32)
    torch.testing.assert_close(found(X).expand(X.shape).flatten(), expected)
    again = noise.from_config(json.loads(json.dumps(found.to_config())))
    assert torch.equal(again(X), found(X))


def test_every_kind_of_the_room_was_read_here():
    ours = {kind for kind, cls in Noise._kinds.items() if cls.__module__.startswith("howsure.")}
    assert ours == {json.loads(text)["kind"] for text, _ in WRITTEN + WRITTEN_SINCE}


@dataclass(frozen=True, eq=False)
class Fading(Noise):
    """A class outside of howsure."""

    kind: ClassVar[str] = "test_fading"
    base: Noise
    rate: float

    def var_at(self, x):
        return self.base(x) * torch.exp(-self.rate * x)


def test_a_class_of_your_own_with_a_kind_is_saved_with_the_model(tmp_path):
    model = perceptron()
    sure = hs.Uncertain(model, noise=Fading(noise.std(0.1), 0.5).scaled(2.0))
    sure.save(tmp_path / "settings.pt")
    again = hs.Uncertain.load(tmp_path / "settings.pt", model).setup.noise
    assert isinstance(again.noise, Fading)
    assert torch.equal(again(X), sure.setup.noise(X))


def test_a_kind_belongs_to_one_class():
    with pytest.raises(ValueError, match=r"`Other` has the kind 'constant'.*Constant"):
        type("Other", (Noise,), {"kind": "constant"})
    with pytest.raises(ValueError, match="files name it"):
        type("Constant", (Noise,), {"kind": "constant"})
    with pytest.raises(ValueError, match="'test_fading'"):
        type("Other", (Noise,), {"kind": "test_fading"})
    assert Noise.of_kind("constant") is type(noise.std(0.1))


def test_a_class_that_is_defined_again_takes_its_own_kind():
    """As when a notebook's cell runs twice."""
    for _ in range(2):
        cell = type("Cell", (Noise,), {"kind": "test_cell", "var_at": lambda self, x: x})
        assert Noise.of_kind("test_cell") is cell


def test_a_class_that_hides_its_fields_is_refused():
    class Hidden(Noise):
        kind = "test_hidden"

        def __init__(self, level):
            self.level = level

        def var_at(self, x):
            return torch.full_like(x, self.level)

    with pytest.raises(TypeError, match="Make it a dataclass"):
        Hidden(0.1).to_config()


@pytest.mark.parametrize(
    ("kind", "numbers", "expected"),
    [
        ("constant", [0.25], noise.variance(0.25)),
        ("range_dependent", [0.01, 0.1], noise.range_dependent(0.01, 0.1)),
        ("range_dependent", [0.01, 0.1, 0.2], noise.range_dependent(0.01, 0.1, 0.2)),
        ("poisson_gaussian", [0.3, 0.5, 1], noise.poisson_gaussian(0.3, 0.5, black_level=1)),
        ("random_walk", [0.3], noise.random_walk(0.3)),
        ("random_walk", [0.3, 2], noise.random_walk(0.3, axis=2)),
        ("blurred", [0.3, 1.5], noise.blurred(0.3, 1.5)),
    ],
)
def test_numbers_fill_the_fields_in_their_order(kind, numbers, expected):
    assert torch.equal(Noise.of_kind(kind).from_numbers(*numbers)(X), expected(X))


@pytest.mark.parametrize(
    ("kind", "numbers"),
    [
        ("constant", []),
        ("constant", [1, 2]),
        ("range_dependent", [1]),
        ("range_dependent", [1, 2, 3, 4]),
        ("per_channel", [1, 2]),
        ("scaled", [1, 2]),
        ("sum", [1, 2]),
        ("correlated", [1, 2]),
        ("random_walk", [0.3, 1.5]),
        ("random_walk", [0.3, float("nan")]),
    ],
)
def test_numbers_that_do_not_fit_the_fields_are_refused(kind, numbers):
    with pytest.raises(ValueError, match=rf"`{kind}` has the fields"):
        Noise.of_kind(kind).from_numbers(*numbers)
