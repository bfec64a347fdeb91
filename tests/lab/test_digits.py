"""The digits of the documentation: the split, the checkpoint and Monte Carlo."""

import json
import subprocess
import sys
from importlib import resources
from pathlib import Path

import pytest
import torch

pytest.importorskip("sklearn")
pytest.importorskip("safetensors")

from howsure_lab.digits.data import held_out_digits, load_digits, split
from howsure_lab.digits.model import CHECKPOINT, load_trained
from howsure_lab.digits.monte_carlo import sampled_moments, with_probabilities


def test_held_out_digits_are_not_in_training():
    digits = load_digits()
    parts = split(len(digits.labels))
    together = torch.cat([parts.train, parts.held_out])
    assert torch.equal(together.sort().values, torch.arange(len(digits.labels)))
    trained_on = {image.numpy().tobytes() for image in digits.images[parts.train]}
    assert not any(image.numpy().tobytes() in trained_on for image in held_out_digits().images)


def test_checkpoint_is_what_its_record_says():
    files = resources.files("howsure_lab.digits")
    name = CHECKPOINT.replace(".safetensors", ".json")
    record = json.loads(files.joinpath(name).read_text())
    digits = held_out_digits()
    assert record["split"]["held_out"] == len(digits.labels)
    assert record["network"] == "howsure_lab.digits.model.DigitNet"
    with torch.inference_mode():
        right = load_trained()(digits.images).argmax(1) == digits.labels
    assert right.double().mean().item() == pytest.approx(record["accuracy"]["held_out"], abs=0.002)


@pytest.mark.slow
def test_training_script_writes_checkpoint_and_record(tmp_path):
    script = Path(__file__).parents[2] / "examples" / "train_digits.py"
    subprocess.run([sys.executable, script, "--out", tmp_path], check=True, capture_output=True)
    assert {path.name for path in tmp_path.iterdir()} == {CHECKPOINT, "digits.json"}
    record = json.loads((tmp_path / "digits.json").read_text())
    assert record["accuracy"]["held_out"] > 0.97
    assert record["recipe"]["seed"] == 0
    assert "torch" in record["versions"]


def test_monte_carlo_finds_the_moments_of_a_linear_map():
    weight = torch.randn(64, 10, generator=torch.Generator().manual_seed(1))

    def linear(images):
        out = images.flatten(1) @ weight
        return out, 2 * out

    images = torch.rand(3, 1, 8, 8, generator=torch.Generator().manual_seed(2))
    generator = torch.Generator().manual_seed(3)
    single, double = sampled_moments(linear, images, 0.1, 4000, generator)
    expected = 0.01 * weight.square().sum(0).expand(3, 10)
    # The relative standard error of a variance from 4,000 samples is sqrt(2 / 4000) = 0.022.
    torch.testing.assert_close(single.var, expected, rtol=6 * 0.022, atol=0)
    torch.testing.assert_close(double.var, 4 * single.var)


def test_probabilities_stand_beside_the_logits():
    model = load_trained()
    images = held_out_digits(5).images
    with torch.inference_mode():
        logits, probabilities = with_probabilities(model)(images)
        torch.testing.assert_close(logits, model(images))
    torch.testing.assert_close(probabilities, logits.exp() / logits.exp().sum(1, keepdim=True))
