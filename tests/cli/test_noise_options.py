"""Noise on the command line: by numbers, by files, and found from readings."""

import json

import numpy as np
import pytest
import torch
from small_project import NET, inputs, loaded

import howsure as hs


def test_noise_of_repeated_readings_serves_predict(project, howsure):
    frames = np.random.default_rng(2).normal(3.0, 0.2, size=(200, 3))
    np.save("frames.npy", frames)
    ran = howsure("noise", "frames.npy", "--scale", "2", "--out", "noise.json", "--json")
    assert ran.data["var"] == pytest.approx(frames.var(0, ddof=1).mean())
    assert abs(ran.data["std"] - 0.2) < 4 * ran.data["std_error"]
    command = ("predict", NET, "x.npy", "--method", "adf", "--noise", "noise.json")
    assert howsure(*command).code == 0
    var = frames.var(0, ddof=1).mean() / 4  # after the division by 2
    with torch.no_grad():
        expected = hs.Uncertain(loaded(), noise=var, method="adf")(inputs()).data_var
    np.testing.assert_allclose(np.load("predictions.npz")["data_var"], expected, rtol=1e-5)


def test_any_noise_of_numbers_is_named_on_the_command_line(project, howsure, refused):
    command = ("predict", NET, "x.npy", "--method", "adf", "--noise")
    assert howsure(*command, "range_dependent:0.1,0.05").code == 0
    with torch.no_grad():
        noise = hs.noise.range_dependent(0.1, 0.05)
        expected = hs.Uncertain(loaded(), noise=noise, method="adf")(inputs()).data_var
    np.testing.assert_allclose(np.load("predictions.npz")["data_var"], expected, rtol=1e-5)
    refused(*command, "loud:1", words="range_dependent")
    refused(*command, "range_dependent:1", words="has the fields a, b, c")


COVARIANCE = np.array([[4.0, 3.0, 0.0], [3.0, 4.0, -1.0], [0.0, -1.0, 1.0]]) / 100
CORRELATED = {
    "covariance": (
        ("--noise", "covariance.npy"),
        lambda: hs.noise.correlated(covariance=COVARIANCE),
    ),
    "axis": (
        ("--noise", "covariance.npy:-1"),
        lambda: hs.noise.correlated(covariance=COVARIANCE, axis=1),
    ),
    "common mode": (("--noise", "common_mode:0.2"), lambda: hs.noise.common_mode(0.2)),
    "axis of a pattern": (("--noise", "common_mode:0.2,1"), lambda: hs.noise.common_mode(0.2, 1)),
    "memory": (("--noise", "ar1:0.2,-0.9,1"), lambda: hs.noise.ar1(0.2, -0.9)),
    "walk": (("--noise", "random_walk:0.2"), lambda: hs.noise.random_walk(0.2)),
    "sum": (
        ("--noise", "common_mode:2e-1+constant:1e-2+ar1:0.1,0.5"),
        lambda: hs.noise.common_mode(0.2) + hs.noise.std(0.1) + hs.noise.ar1(0.1, 0.5),
    ),
}


@pytest.mark.parametrize("kind", CORRELATED)
def test_correlated_noise_on_the_command_line_and_in_settings(project, howsure, kind):
    np.save("covariance.npy", COVARIANCE)
    option, noise = CORRELATED[kind]
    assert howsure("predict", NET, "x.npy", "--method", "linear", *option).code == 0
    sure = hs.Uncertain(loaded(), noise=noise(), method="linear")
    with torch.no_grad():
        expected = sure(inputs()).data_var
    np.testing.assert_allclose(np.load("predictions.npz")["data_var"], expected, rtol=1e-5)
    from howsure.cli.building import read_settings, write_settings

    write_settings(project / "s.json", sure)
    with torch.no_grad():
        assert torch.equal(read_settings("s.json", loaded())(inputs()).data_var, expected)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (np.ones((3, 2)), "must be square"),
        (np.triu(COVARIANCE), "not symmetric"),
        (COVARIANCE - np.eye(3), "negative eigenvalue"),
        (COVARIANCE * np.nan, "NaN or infinity"),
        (np.eye(4), "4 elements, and an input has 3"),
        (np.array([["a"]]), "covariance.npy"),
    ],
    ids=["not square", "not symmetric", "indefinite", "NaN", "wrong length", "text"],
)
def test_covariances_that_are_none_are_refused(project, refused, content, words):
    np.save("covariance.npy", content)
    refused("predict", NET, "x.npy", "--noise", "covariance.npy", words=words)


@pytest.mark.parametrize(
    ("option", "words"),
    [
        (("--noise", "nowhere.npy"), "nowhere.npy"),
        (("--noise", "x.npy:time"), "must be a number"),
        (("--noise", "ar1:0.2,1.5"), "between -1 and 1"),
        (("--noise", "ar1:0.2,0.5,0"), "counts the inputs"),
        (("--noise", "rows:0.2,1.5"), "has the fields std, axis"),
        (("--noise", "rows:0.2"), "counts the inputs"),
        (("--noise", "common_mode:0.2+loud:1"), "'loud'"),
        (("--noise", "common_mode:-1"), "cannot be negative"),
    ],
)
def test_patterns_that_do_not_fit_are_refused(project, refused, option, words):
    refused("predict", NET, "x.npy", *option, words=words)


def test_noise_of_a_camera(project, howsure):
    generator = np.random.default_rng(3)
    scene = generator.uniform(20, 200, size=(30, 30))
    frames = scene + np.sqrt(0.5 * scene + 4) * generator.normal(size=(50, 30, 30))
    np.save("frames.npy", frames)
    ran = howsure("noise", "frames.npy", "--kind", "camera", "--json")
    assert abs(ran.data["gain"] - 0.5) < 5 * ran.data["gain_error"]
    ran = howsure("noise", "frames.npy", "--per", "element", "--drift")
    assert ran.code == 0 and " to " in ran.out


def test_correlated_noise_of_repeated_frames_serves_predict(project, howsure):
    generator = np.random.default_rng(7)
    frames = generator.normal(size=(300, 3)) + 2 * generator.normal(size=(300, 1))
    np.save("frames.npy", 0.1 * frames)
    ran = howsure("noise", "frames.npy", "--kind", "correlated", "--out", "noise.json")
    assert "of the variance is common to the whole frame" in ran.out
    assert howsure("predict", NET, "x.npy", "--method", "linear", "--noise", "noise.json").code == 0
    found = hs.noise.identify_from_repeats(0.1 * frames).correlated
    assert found.is_correlated
    with torch.no_grad():
        expected = hs.Uncertain(loaded(), noise=found, method="linear")(inputs()).data_var
    np.testing.assert_allclose(np.load("predictions.npz")["data_var"], expected, rtol=1e-5)
    howsure("noise", "frames.npy", "--out", "plain.json")
    assert json.loads((project / "plain.json").read_text())["noise"]["kind"] == "constant"


def test_a_number_as_noise_is_a_variance_or_a_std(project, refused):
    command = ("predict", NET, "data.csv", "--noise", "0.01", "--out", "p.csv")
    refused(*command, words="`--noise 0.01`: a number may be a variance or a std; say")
