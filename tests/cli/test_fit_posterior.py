"""`howsure fit` with the posterior over masks: settings that the other commands take."""

import json

import numpy as np
import pytest
import torch

import howsure as hs

NET = "project_model:build"


@pytest.fixture
def roads(project):
    """Held-out and unlabeled inputs of the project's model, with its errors."""
    generator = np.random.default_rng(7)
    x, train = (generator.normal(size=(count, 3)).astype("float32") for count in (80, 120))
    model = loaded()
    with torch.no_grad():
        y = model(torch.from_numpy(x)).numpy() + 0.1 * generator.normal(size=(80, 1))
    np.savez("held_out.npz", x=x, y=y.astype("float32"))
    np.save("train.npy", train)
    return torch.from_numpy(x), torch.from_numpy(y.astype("float32")), torch.from_numpy(train)


def loaded():
    import project_model

    return project_model.build().eval()


@pytest.mark.parametrize("name", ["settings.json", "settings.pt"])
def test_fit_then_predict_equals_the_library(roads, howsure, name):
    x, y, train = roads
    ran = howsure(
        "fit", NET, "held_out.npz", "--noise-std", "0.1", "--train-inputs", "train.npy",
        "--stress", "tables", "--out", name, "--json",
    )  # fmt: skip
    assert ran.code == 0, ran.err
    sure = hs.Uncertain(loaded(), noise=hs.noise.std(0.1))
    fit = sure.fit([(x, y)], train_inputs=train, stress="tables")
    assert ran.data["fit"]["exponent"] == fit.model.exponent
    assert ran.data["fit"]["nll"] == pytest.approx(fit.nll, rel=1e-4)
    assert howsure("predict", NET, "train.npy", "--settings", name).code == 0
    with torch.no_grad():
        expected = sure(train)
    found = np.load("predictions.npz")
    np.testing.assert_allclose(found["std"] ** 2, expected.total_var, rtol=1e-3)
    np.testing.assert_allclose(found["novelty"], expected.novelty, rtol=1e-3)


def test_without_training_inputs_it_is_cross_fitted(roads, howsure):
    ran = howsure("fit", NET, "held_out.npz", "--noise-std", "0.1")
    assert ran.code == 0 and "in five folds" in ran.out


def test_the_part_can_be_chosen(roads, howsure, refused):
    command = ("fit", NET, "held_out.npz", "--noise-std", "0.1")
    assert json.loads(howsure(*command, "--model-part", "none", "--json").out)["fit"]["masks"] == 0
    rate = howsure(*command, "--model-part", "dropout", "--json")
    assert json.loads(rate.out)["fit"]["rate"] is not None
    refused(*command, "--model-part", "dropout", "--stress", "tables", words="option of")
    refused(*command, "--stress", "fog", words="invalid choice")
    refused(*command, "--train-inputs", "nowhere.npy", words="nowhere.npy")
    np.save("wide.npy", np.zeros((90, 5), "float32"))
    refused(*command, "--train-inputs", "wide.npy", words="same way")


def test_a_posterior_too_large_for_json_names_the_other_file(roads, howsure):
    command = ("fit", NET, "held_out.npz", "--noise-std", "0.1", "--model-args", '{"hidden": 1500}')
    ran = howsure(*command, "--out", "settings.json")
    assert ran.code == 2 and "give `--out settings.pt`" in ran.err.splitlines()[-1]
