"""The demonstration: what it shows is true, and it runs from end to end."""

import json
import subprocess
import sys
from importlib import resources
from pathlib import Path

import pytest
import torch

pytest.importorskip("sklearn")
pytest.importorskip("safetensors")
pytest.importorskip("matplotlib")

from howsure.demo import __main__ as entry
from howsure.demo.brute_force import BruteForce, with_probabilities
from howsure.demo.compare import compare
from howsure.demo.data import Digits, held_out_digits, load_digits, sense, split
from howsure.demo.model import CHECKPOINT, load_trained
from howsure.demo.run import NOISE_STDS, run
from howsure.demo.table import prediction_table, summary_table


@pytest.fixture(scope="module")
def network():
    return with_probabilities(load_trained())


@pytest.fixture(scope="module")
def digits():
    return held_out_digits(40)


@pytest.fixture(scope="module")
def comparisons(network, digits):
    generator = torch.Generator().manual_seed(0)
    brute_force = BruteForce(100, generator)
    return [
        compare(
            network, Digits(sense(digits.images, std, generator), digits.labels), std, brute_force
        )
        for std in NOISE_STDS
    ]


def test_held_out_digits_are_not_in_training():
    digits = load_digits()
    parts = split(len(digits.labels))
    together = torch.cat([parts.train, parts.held_out])
    assert torch.equal(together.sort().values, torch.arange(len(digits.labels)))
    trained_on = {image.numpy().tobytes() for image in digits.images[parts.train]}
    assert not any(image.numpy().tobytes() in trained_on for image in held_out_digits().images)


def test_checkpoint_is_what_its_record_says():
    files = resources.files("howsure.demo")
    name = CHECKPOINT.replace(".safetensors", ".json")
    record = json.loads(files.joinpath(name).read_text())
    digits = held_out_digits()
    assert record["split"]["held_out"] == len(digits.labels)
    with torch.inference_mode():
        right = load_trained()(digits.images).argmax(1) == digits.labels
    assert right.double().mean().item() == pytest.approx(record["accuracy"]["held_out"], abs=0.002)


@pytest.mark.slow
def test_training_script_writes_checkpoint_and_record(tmp_path):
    script = Path(__file__).parents[1] / "examples" / "train_demo.py"
    subprocess.run([sys.executable, script, "--out", tmp_path], check=True, capture_output=True)
    assert {path.name for path in tmp_path.iterdir()} == {CHECKPOINT, "digits.json"}
    record = json.loads((tmp_path / "digits.json").read_text())
    assert record["accuracy"]["held_out"] > 0.97
    assert record["recipe"]["seed"] == 0
    assert "torch" in record["versions"]


def test_without_noise_the_answer_is_the_plain_network(network, comparisons):
    quiet = comparisons[0]
    with torch.inference_mode():
        logits, probabilities = network(quiet.readings.images)
    assert torch.equal(quiet.says, quiet.plain)
    assert torch.equal(quiet.logit.predicted.mean, logits.amax(1))
    assert torch.equal(quiet.probability.predicted.mean, probabilities.amax(1))
    assert not quiet.logit.predicted.var.any()
    assert not quiet.probability.predicted.var.any()
    lines = prediction_table(comparisons, rows=5).splitlines()[2:7]
    assert all(line.split()[0] == "0.00" and line.split()[4] == "0.0000" for line in lines)


def test_more_noise_means_less_sure_and_the_explanation_is_true(comparisons):
    for winner in ("logit", "probability"):
        stds = [getattr(c, winner).predicted.var.sqrt().mean().item() for c in comparisons]
        assert stds == sorted(stds)
    # `explanation` calls the std far too small: about a tenth of the true one.
    assert all(0.05 < c.logit.ratio < 0.2 for c in comparisons[1:])


def test_brute_force_finds_the_moments_of_a_linear_map():
    weight = torch.randn(64, 10, generator=torch.Generator().manual_seed(1))

    def linear(images):
        out = images.flatten(1) @ weight
        return out, 2 * out

    images = torch.rand(3, 1, 8, 8, generator=torch.Generator().manual_seed(2))
    single, double = BruteForce(4000, torch.Generator().manual_seed(3)).moments(linear, images, 0.1)
    expected = 0.01 * weight.square().sum(0).expand(3, 10)
    # The relative standard error of a variance from 4,000 samples is sqrt(2 / 4000) = 0.022.
    torch.testing.assert_close(single.var, expected, rtol=6 * 0.022, atol=0)
    torch.testing.assert_close(double.var, 4 * single.var)


def test_tables_have_a_line_per_level_and_digit(comparisons):
    lines = prediction_table(comparisons, rows=3).splitlines()
    assert len([line for line in lines if line]) == 2 + 3 * len(NOISE_STDS)
    assert len(summary_table(comparisons).splitlines()) == 2 + len(NOISE_STDS)


def test_demo_prints_tables_and_writes_a_picture(tmp_path, capsys):
    out = tmp_path / "new" / "directory"
    assert run(["--out", str(out), "--digits", "12", "--copies", "20", "--seed", "3"]) == 0
    printed = capsys.readouterr().out
    assert "std of the winning logit" in printed
    assert "not as error bars" in printed
    assert str(out / "demo.png") in printed
    assert [path.name for path in out.iterdir()] == ["demo.png"]
    assert (out / "demo.png").read_bytes().startswith(b"\x89PNG\r\n\x1a\n")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--digits", "9"], "--digits must be from 10 to 597"),
        (["--digits", "598"], "--digits must be from 10 to 597"),
        (["--copies", "1"], "--copies must be 2 or more"),
    ],
)
def test_wrong_options_are_told_in_a_sentence(arguments, words, capsys):
    with pytest.raises(SystemExit) as exit:
        run(arguments)
    assert exit.value.code == 2
    assert words in capsys.readouterr().err


def test_a_file_in_place_of_the_directory_is_told(tmp_path, capsys):
    (tmp_path / "taken").write_text("")
    with pytest.raises(SystemExit):
        run(["--out", str(tmp_path / "taken")])
    assert "cannot make the directory" in capsys.readouterr().err


def test_missing_packages_are_named_with_the_remedy(monkeypatch, capsys):
    monkeypatch.setitem(entry.NEEDED, "a_module_that_is_not_there", "a-package")
    assert entry.main() == 2
    message = capsys.readouterr().err
    assert message.count("\n") == 1
    assert "a-package" in message
    assert "pip install 'howsure[demo]'" in message


def test_importing_the_demo_does_not_import_its_packages():
    code = (
        "import sys, howsure.demo.run as r; "
        "print([m for m in ('matplotlib', 'sklearn', 'safetensors') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
