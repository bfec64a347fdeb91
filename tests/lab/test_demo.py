"""The demonstration: what it shows is true, and it runs from end to end."""

import io
import math
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch

pytest.importorskip("matplotlib")
pytest.importorskip("tqdm")

from scipy import stats

import howsure as hs
from howsure.cli import main
from howsure.prediction import Prediction
from howsure.report import Report
from howsure_lab.demo import command
from howsure_lab.demo import study as studies
from howsure_lab.demo import text as reading
from howsure_lab.demo.picture import typical
from howsure_lab.demo.study import (
    CLEAR,
    CONDITIONS,
    NOISY,
    UNSEEN,
    Condition,
    Outcome,
    Roads,
    study,
)
from howsure_lab.demo.text import detected, explanation, judged, table
from howsure_lab.experiments.steering.data import Counts, rendered_data
from howsure_lab.experiments.steering.model import load_trained
from howsure_lab.experiments.training import Pairs


@pytest.fixture(scope="module")
def found():
    return study(Roads(30, 0))


@dataclass(frozen=True)
class Ran:
    """What one run of `howsure demo` left behind."""

    code: int
    printed: str
    out: Path
    report: Report


@pytest.fixture(scope="module")
def ran(found, tmp_path_factory):
    out, reports, printed = tmp_path_factory.mktemp("demo") / "new" / "folder", [], io.StringIO()
    build = studies.Study.report

    def kept(study):
        reports.append(build(study))
        return reports[-1]

    with pytest.MonkeyPatch.context() as patch, redirect_stdout(printed), redirect_stderr(printed):
        patch.setattr(studies, "study", lambda roads: replace(found, roads=roads))
        patch.setattr(studies.Study, "report", kept)
        code = main(["demo", "--out", str(out), "--scenes", "30"])
    return Ran(code, printed.getvalue(), out, *reports)


def outcome(mean, var, true, *, data_share=0.5, name="fog"):
    mean, var, true = (torch.tensor(values).unsqueeze(1) for values in (mean, var, true))
    pairs = Pairs(torch.zeros(len(true), 1, 64, 64), true)
    prediction = Prediction(mean, data_share * var, (1 - data_share) * var)
    return Outcome(Condition(name, "fog"), pairs, prediction)


def test_every_condition_shows_the_same_roads_and_no_other():
    roads = Roads(20, 3)
    angles = [roads.read(condition).y for condition in CONDITIONS]
    assert all(torch.equal(angles[0], each) for each in angles)
    assert not set(roads.held_out().y.flatten().tolist()) & set(angles[0].flatten().tolist())


def test_no_road_is_in_the_data_of_training():
    data = rendered_data(Counts(6000, 1, 1), 16, 0.0)
    trained_on = set(data.train.y.flatten().tolist())
    roads = Roads(100, 0)
    for part in (roads.clean(), roads.held_out()):
        assert not trained_on & set(part.y.flatten().tolist())


@pytest.mark.parametrize("condition", [CLEAR, NOISY])
def test_the_camera_has_the_noise_that_howsure_is_told(condition):
    roads = Roads(60, 1)
    noise = roads.read(condition).x - roads.clean(condition).x
    # 245,760 pixels: the relative standard error of their std is 0.0014.
    assert noise.std().item() == pytest.approx(condition.noise_std, rel=6 * 0.0014)


def test_predictions_are_the_plain_network_and_a_posterior_was_fitted(found):
    net = load_trained()
    for each in found.outcomes:
        with torch.inference_mode():
            torch.testing.assert_close(each.mean, net(each.pairs.x).flatten())
    assert found.fit.count == 60 and found.fit.cross_fitted
    assert 0.85 <= found.fit.coverage <= 1
    held_out = found.roads.held_out()
    with torch.inference_mode():
        error = net(held_out.x) - held_out.y
    assert found.one_std == pytest.approx(error.square().mean().sqrt().item(), rel=1e-5)


def test_howsure_is_told_of_the_larger_noise(found):
    by_name = {each.name: each for each in found.outcomes}
    direct = hs.Uncertain(found.sure.model, NOISY.noise_std**2, "gradients", prediction="network")
    direct.setup = direct.setup.replace(variance_model=found.sure.setup.variance_model)
    noisy = by_name["noisy"]
    torch.testing.assert_close(direct(noisy.pairs.x).total_var.flatten(), noisy.var)
    budgets = [by_name[name].prediction.budget() for name in ("noisy", "clear")]
    camera = [float(each.variances[each.kinds.index("input")].mean()) for each in budgets]
    assert 5 * camera[1] < camera[0] < 10 * camera[1]  # three times the std


def test_what_the_picture_in_the_readme_claims(found):
    """The std rises wherever the network is lost, with the error; the novelty says so."""
    for condition in UNSEEN:
        each = next(o for o in found.outcomes if o.name == condition.name)
        assert each.auroc_against(found.clear) > 0.85
        assert 0.5 < each.rmse / each.mean_std < 2.5
        assert each.novelty > 2 > found.clear.novelty
        assert each.rejected(found.gate) > 0.5 > 0.2 > found.clear.rejected(found.gate)
        assert each.coverage > each.coverage_of_one_std(found.one_std) + 0.1


def test_scores_are_those_of_scipy():
    generator = torch.Generator().manual_seed(0)
    mean, true = torch.randn(2, 40, generator=generator)
    var = torch.rand(40, generator=generator) + 0.1
    each = outcome(mean.tolist(), var.tolist(), true.tolist(), data_share=0.25)
    std = var.sqrt().numpy()
    error = (mean - true).abs().numpy()
    nll = -stats.norm.logpdf(true.numpy(), mean.numpy(), std).mean() - 0.5 * math.log(2 * math.pi)
    assert each.nll == pytest.approx(nll, rel=1e-5)
    flat = -stats.norm.logpdf(true.numpy(), mean.numpy(), 0.7).mean() - 0.5 * math.log(2 * math.pi)
    assert each.nll_of_one_std(0.7) == pytest.approx(flat, rel=1e-5)
    assert each.rmse == pytest.approx((error**2).mean() ** 0.5, rel=1e-5)
    assert each.coverage == pytest.approx((error <= stats.norm.ppf(0.975) * std).mean())
    assert each.coverage_of_one_std(0.7) == pytest.approx((error <= 0.7 * 1.959964).mean())
    assert each.sensor_share == pytest.approx(0.25)
    assert each.rank == pytest.approx(stats.spearmanr(std, error).statistic, abs=1e-6)
    other = outcome(mean.tolist(), (2 * var).tolist(), true.tolist())
    u = stats.mannwhitneyu(other.std.numpy(), each.std.numpy()).statistic
    assert other.auroc_against(each) == pytest.approx(u / 40**2, abs=1e-6)


def test_the_rank_of_an_exact_std_is_what_drawing_errors_gives():
    std = torch.linspace(0.1, 2, 50)
    each = outcome([0.0] * 50, std.square().tolist(), [0.0] * 50)
    draws = stats.norm.rvs(size=(400, 50), random_state=1)
    ranks = [stats.spearmanr(std.numpy(), abs(d) * std.numpy()).statistic for d in draws]
    assert each.rank_if_right == pytest.approx(sum(ranks) / 400, abs=0.04)


def test_the_words_follow_from_the_numbers():
    inside = outcome([0.0] * 100, [1.0] * 100, [0.5] * 95 + [3.0] * 5)
    assert judged(inside) == "as far as 100 roads can tell, the intervals cover what they say"
    assert judged(outcome([0.0] * 100, [1.0] * 100, [0.5] * 80 + [3.0] * 20)).endswith("too narrow")
    assert judged(outcome([0.0] * 1000, [1.0] * 1000, [0.5] * 1000)).endswith("need to be")
    assert "almost perfectly" in detected(0.95)
    assert "often" in detected(0.8)
    assert "does not" in detected(0.55)
    assert "keep their coverage" in reading._on_intervals([inside])


def test_table_and_explanation_cover_every_condition(found):
    lines = table(found).splitlines()
    assert [line.split("  ")[0] for line in lines[2:]] == [c.name for c in CONDITIONS]
    clear = found.clear
    assert f"{clear.rmse:.3f}" in lines[2] and f"{clear.nll:.2f}" in lines[2]
    assert lines[2].endswith(" -")
    words = explanation(found)
    assert words.startswith("- method: `gradients`") and " a clear road to " in words
    assert all(f"- {condition.name}: " in words for condition in CONDITIONS)
    assert max(map(len, (*words.splitlines(), *lines))) <= 100


def test_a_gate_rejects_what_is_newer(found):
    each = found.clear
    newer = (each.novelties > found.gate.threshold).float().mean()
    assert each.rejected(found.gate) == pytest.approx(float(newer))
    assert [found.told(o) for o in found.outcomes[:3]] == [
        "(known)",
        "(noise level given)",
        "(unseen)",
    ]


def test_the_typical_road_bends_in_good_light(found):
    chosen = typical(found)
    clear = found.clear
    assert clear.true[chosen].abs() >= clear.true.abs().median()
    assert clear.pairs.x[chosen].mean() >= clear.pairs.x.mean((1, 2, 3)).median()


def test_the_report_starts_with_the_tables_numbers_and_ends_with_the_noisy_ones(found, ran):
    made = ran.report
    assert (made.levels[made.start], made.levels[-1]) == ("× 1", "× 3")
    by_name = {each.name: each for each in found.outcomes}
    for level, name in ((made.start, "clear"), (len(made.levels) - 1, "noisy")):
        shown = {metric.name: metric.value for metric in made.views[level][0].metrics}
        assert shown["RMSE"] == pytest.approx(by_name[name].rmse, rel=1e-4)
        assert shown["NLL, without ½ log 2π"] == pytest.approx(by_name[name].nll, rel=1e-4)


def test_demo_prints_and_writes(ran):
    printed, out = ran.printed, ran.out
    assert ran.code == 0
    assert "60 held-out clear roads" in printed
    assert "AUROC" in printed and "rank" in printed
    assert str(out / "demo.png") in printed and str(out / "report.html") in printed
    assert sorted(path.name for path in out.iterdir()) == [
        "demo.png",
        "report.fit.pt",
        "report.html",
    ]
    assert (out / "demo.png").read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    assert "How sure is the steering network?" in (out / "report.html").read_text()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--scenes", "19"], "`--scenes` must be from 20 to 10000"),
        (["--scenes", "10001"], "`--scenes` must be from 20 to 10000"),
        (["--seed", "-1"], "`--seed` must be from 0"),
    ],
)
def test_wrong_options_are_told_in_a_sentence(arguments, words, capsys):
    assert main(["demo", *arguments]) == 2
    assert words in capsys.readouterr().err


def test_a_file_in_place_of_the_folder_is_told(tmp_path, capsys):
    (tmp_path / "taken").write_text("")
    assert main(["demo", "--out", str(tmp_path / "taken")]) == 2
    assert "Cannot make the folder" in capsys.readouterr().err


def test_what_cannot_be_written_is_told_and_leaves_nothing(tmp_path, capsys, monkeypatch, found):
    monkeypatch.setattr(studies, "study", lambda roads: found)
    (tmp_path / "demo.png").mkdir()
    assert main(["demo", "--out", str(tmp_path)]) == 2
    assert "Is a directory" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["demo.png"]


def test_an_interruption_is_told(tmp_path, capsys, monkeypatch):
    def interrupted(roads):
        raise KeyboardInterrupt

    monkeypatch.setattr(studies, "study", interrupted)
    assert main(["demo", "--out", str(tmp_path)]) == 1
    assert "\nInterrupted; " in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_missing_packages_are_named_with_the_remedy(monkeypatch, capsys):
    monkeypatch.setattr(command, "NEEDED", ("a_package_that_is_not_there",))
    assert main(["demo"]) == 2
    message = capsys.readouterr().err
    assert message.count("\n") == 1
    assert "a_package_that_is_not_there" in message
    assert "pip install a_package_that_is_not_there" in message
