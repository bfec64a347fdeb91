"""Each command gives what the library gives for the same model, data and settings."""

import json

import numpy as np
import pytest
import torch
from small_project import NET, inputs, loaded

import howsure as hs


def test_check_lists_operations_and_fails_where_a_rule_is_missing(project, howsure):
    ran = howsure("check", NET, "data.npz", "--json")
    assert ran.code == 0 and ran.data["ok"]
    assert {row["rule"] for row in ran.data["operations"]} == {"linear", "relu"}
    missing = howsure("check", "project_model:Odd", "--shape", "3")
    assert missing.code == 1 and "i1e" in missing.out


def test_check_takes_an_input_or_a_shape_and_not_both(project, refused):
    refused("check", NET, words="either DATA or `--shape`")
    refused("check", NET, "data.npz", "--shape", "3", words="either DATA or `--shape`")
    refused("check", NET, "--shape", "3,x", words="must be a shape")
    refused("check", NET, "--shape", "4", words="does not run on inputs of shape (2, 4)")


@pytest.mark.parametrize("data", ["data.npz", "packed.npz", "x.npy", "data.csv"])
def test_predict_equals_the_library(project, howsure, data):
    ran = howsure(
        "predict", NET, data, "--weights", "weights.pt", "--noise-std", "0.1", "--rate", "0.2",
        "--method", "sampled_adf", "--samples", "5", "--batch", "6", "--out", "p.npz", "--json",
    )  # fmt: skip
    assert ran.code == 0, ran.err
    sure = hs.Uncertain(loaded(), noise=0.01, method="sampled_adf", rate=0.2, samples=5)
    with torch.no_grad():
        parts = [sure(x) for x in inputs().split(6)]
    found = np.load("p.npz")
    for name in ("mean", "data_var", "model_var"):
        expected = torch.cat([getattr(part, name) for part in parts])
        np.testing.assert_allclose(found[name], expected, rtol=1e-5, atol=1e-7)
    assert ran.data["rows"] == 20


def test_predict_writes_tables_with_intervals(project, howsure):
    command = ("predict", NET, "data.csv", "--noise-var", "0.01", "--method", "adf")
    assert howsure(*command, "--out", "p.csv", "--interval", "0.9").code == 0
    table = np.genfromtxt("p.csv", delimiter=",", names=True)
    low, _ = hs.Uncertain(loaded(), noise=0.01, method="adf")(inputs()).interval(0.9)
    np.testing.assert_allclose(table["low"], low.detach()[:, 0], rtol=1e-4, atol=1e-5)


def test_tune_writes_settings_that_predict_takes(project, howsure):
    ran = howsure(
        "fit", NET, "data.csv", "--noise-std", "0.1", "--out", "settings.json", "--json",
        "--model-part", "dropout", "--search-samples", "5",
    )  # fmt: skip
    assert ran.code == 0, ran.err
    sure = hs.Uncertain(loaded(), noise=hs.noise.std(0.1))
    y = torch.from_numpy(np.load("y.npy")).float()
    fit = sure.fit([(inputs(), y)], model="dropout", samples=5, show_progress=False)
    assert ran.data["fit"]["rate"] == pytest.approx(fit.rate, rel=1e-3)
    assert howsure("predict", NET, "x.npy", "--settings", "settings.json").code == 0
    with torch.no_grad():
        expected = sure(inputs()).total_var
    found = np.load("predictions.npz")
    np.testing.assert_allclose(found["std"] ** 2, expected, rtol=1e-3)


def test_fit_finds_a_temperature_for_classes_that_predict_takes(project, howsure):
    (project / "classes.py").write_text(
        "import torch\nfrom torch import nn\n\n"
        "def build():\n    torch.manual_seed(0)\n"
        "    return nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 2))\n"
    )
    generator = np.random.default_rng(0)
    x, more = (generator.normal(size=(60, 3)).astype(np.float32) for _ in range(2))
    import classes

    said = classes.build()(torch.from_numpy(x)).argmax(1).numpy()
    y = np.where(np.arange(60) % 4 > 0, said, 1 - said)  # Some mistakes.
    np.savez("labeled.npz", x=x, y=y)
    np.save("more.npy", more)
    ran = howsure(
        "fit", "classes:build", "labeled.npz", "--task", "classification", "--train-inputs",
        "more.npy", "--stress", "tables", "--out", "settings.json", "--json",
    )  # fmt: skip
    assert ran.code == 0, ran.err
    sure = hs.Uncertain(classes.build().eval(), task="classification")
    fit = sure.fit(
        [(torch.from_numpy(x), torch.from_numpy(y))],
        train_inputs=torch.from_numpy(more),
        stress="tables",
    )
    assert ran.data["fit"]["temperature"] == pytest.approx(fit.model.temperature, rel=1e-4)
    assert ran.data["fit"]["known"] == 60 and ran.data["fit"]["layers"] == ["0", "2"]
    np.save("new.npy", 5 * x[:7])
    assert howsure("predict", "classes:build", "new.npy", "--settings", "settings.json").code == 0
    expected = sure(torch.from_numpy(5 * x[:7])).mean
    np.testing.assert_allclose(np.load("predictions.npz")["mean"], expected, rtol=1e-3, atol=1e-5)


def test_options_are_stronger_than_settings(project, howsure):
    hs.Uncertain(loaded(), noise=0.5, method="adf").save("settings.pt")
    command = ("predict", NET, "x.npy", "--settings", "settings.pt")
    howsure(*command, "--out", "a.npz")
    howsure(*command, "--noise-var", "0.02", "--out", "b.npz")
    with torch.no_grad():
        for file, var in (("a.npz", 0.5), ("b.npz", 0.02)):
            expected = hs.Uncertain(loaded(), noise=var, method="adf")(inputs()).data_var
            np.testing.assert_allclose(np.load(file)["data_var"], expected, rtol=1e-5)


def test_several_inputs_by_name_have_a_budget_by_sensor(project, howsure):
    generator = np.random.default_rng(1)
    left, right = generator.normal(size=(7, 2)), generator.normal(size=(7, 3))
    np.savez("two.npz", cam=left, imu=right)
    command = ("budget", "project_model:TwoSensors", "two.npz")
    groups = ("--inputs", "left=cam", "--inputs", "right=imu")
    noises = ("--noise-std", "left=0.1", "--noise-var", "right=0.04,0.01,0.01")
    ran = howsure(*command, *groups, *noises, "--json", "--heatmap", "pixels.npz")
    assert ran.code == 0, ran.err
    noise = {"left": 0.01, "right": hs.noise.per_channel(variances=[0.04, 0.01, 0.01])}
    sure = hs.Uncertain(loaded("TwoSensors"), noise=noise, method="gradients")
    x = {"left": torch.from_numpy(left).float(), "right": torch.from_numpy(right).float()}
    with torch.no_grad():
        budget = sure(**x).budget()
    expected = {name: share for name, _, _, share in budget.table()}
    shares = {row["source"]: row["share"] for row in ran.data["sources"]}
    assert shares == pytest.approx(expected, rel=1e-4)
    assert np.load("pixels.npz")["left"].shape == (7, 2, 2)


def test_output_batch_axis_and_tolerance_reach_the_method(project, howsure, refused):
    add_models(project)
    command = ("predict", "more_models:Heads", "x.npy", "--noise-std", "0.1", "--json")
    chosen = ("--method", "gradients", "--output", "pose", "--tolerance", "0.2")
    ran = howsure(*command, *chosen)
    assert ran.code == 0, ran.err
    import more_models

    model = more_models.Heads().eval()
    options = {"output": "pose", "tolerance": 0.2, "method": "gradients"}
    expected = hs.Uncertain(model, noise=hs.noise.std(0.1), **options)(inputs())
    found = np.load("predictions.npz")
    np.testing.assert_allclose(found["std"], expected.std, rtol=1e-5)
    np.testing.assert_allclose(found["std_error"], expected.std_error, rtol=1e-4)
    refused(*command, "--output", "nose", words="is no part of what the model returns")
    refused(*command, "--batch-dim", "first", words="must be an axis such as 0, or none")
    refused(*command, "--tolerance", "2", words="a number between 0 and 1")


def test_budget_says_why_there_is_none(project, refused):
    add_models(project)
    command = ("budget", "more_models:Hidden", "x.npy", "--noise-std", "0.1")
    refused(*command, words="There is no budget:")


def add_models(project):
    """Writes further models; they are imported anew."""
    (project / "more_models.py").write_text(HEADS)


HEADS = """
import torch
from torch import nn


class Heads(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(6)
        self.pose, self.size = nn.Linear(3, 2), nn.Linear(3, 1)

    def forward(self, x):
        return {"pose": torch.tanh(self.pose(x)), "size": self.size(x)}


class Hidden(Heads):
    def forward(self, x):
        with torch.no_grad():
            return self.pose(x)
"""


def test_audit_feeds_the_report(project, howsure):
    options = ("--noise-std", "0.1", "--rate", "0.1")
    ran = howsure(
        "audit", NET, "data.npz", *options, "--passes", "50", "--rows", "8", "--methods",
        "adf,gradients", "--out", "audit.json", "--json",
    )  # fmt: skip
    assert ran.code == 0, ran.err
    assert [row["method"] for row in ran.data["rows"]] == ["adf", "gradients"]
    ran = howsure(
        "report", NET, "data.npz", *options, "--audit", "audit.json", "--title", "Mine",
        "--noise-levels", "1,2", "--names", "height",
    )  # fmt: skip
    assert ran.code == 0, ran.err
    page = (project / "report.html").read_text()
    assert "Mine" in page and "Monte Carlo" in page


def test_export_writes_a_program_that_predict_can_check(project, howsure):
    ran = howsure(
        "export", NET, "--shape", "3", "--noise-std", "0.1", "--method", "adf", "--units", "rad",
        "--out", "sure.pt2", "--json",
    )  # fmt: skip
    assert ran.code == 0, ran.err
    program = torch.export.load("sure.pt2").module()
    with torch.no_grad():
        expected = hs.Uncertain(loaded(), noise=hs.noise.std(0.1), method="adf")(inputs())
    torch.testing.assert_close(program(inputs())["data_var"], expected.data_var)
    assert hs.deploy.export.read_metadata("sure.pt2")["units"] == "rad"


def test_rules_can_be_searched(howsure, refused, project):
    ran = howsure("rules", "conv", "--json")
    assert "conv2d" in {rule["name"] for rule in ran.data["rules"]}
    assert all(
        "conv" in rule["name"] or any("conv" in each for each in rule["operations"])
        for rule in ran.data["rules"]
    )
    approximate = howsure("rules", "--fidelity", "approximate", "--json").data["rules"]
    assert approximate and all(rule["fidelity"] == "approximate" for rule in approximate)
    refused("rules", "xyzzy", words="No rule fits")


def test_demo_and_reproduce_reach_their_parts(project, howsure, monkeypatch, refused):
    from howsure_lab.experiments.steering import run as steering

    def experiment(options):
        assert options.quick and options.seeds == 2
        (project / "table.md").write_text("| a table |")
        return project / "table.md"

    monkeypatch.setattr(steering, "run", experiment)
    ran = howsure("reproduce", "steering", "--quick", "--seeds", "2", "--json")
    assert ran.data["text"] == "| a table |"
    refused("reproduce", "steering", "--data", "nowhere", words="must be a folder")
    monkeypatch.setattr("howsure_lab.demo.command.find_spec", lambda name: None)
    refused("demo", words="pip install matplotlib tqdm")


def test_settings_keep_noise_calibrators_and_layers(project):
    from howsure.cli.building import read_settings, write_settings

    x, y = inputs(), torch.from_numpy(np.load("y.npy")).float()
    noise = hs.noise.per_channel(stds=[0.1, 0.2, 0.3])
    sure = hs.Uncertain(loaded(), noise=noise, method="gradients", rate=0.1, placement="before")
    sure.calibrate([(x, y)], "scale")
    write_settings(project / "s.json", sure)
    again = read_settings("s.json", loaded())
    with torch.no_grad():
        assert torch.equal(again(x).total_var, sure(x).total_var)
    assert json.loads((project / "s.json").read_text())["format"] == "howsure settings 1"
