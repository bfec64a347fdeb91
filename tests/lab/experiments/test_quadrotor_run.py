"""A whole quadrotor run, very small: files, resuming, tables, animation."""

import json

import pytest
import torch

from howsure.files import unsealed
from howsure_lab.experiments.quadrotor import run as quadrotor
from howsure_lab.experiments.quadrotor.preparation import Amount, Preparation, collect
from howsure_lab.experiments.quadrotor.report import TITLES, animate
from howsure_lab.experiments.quadrotor.trial import CASES, LABELS, POLICIES
from howsure_lab.experiments.runs import Options
from howsure_lab.experiments.training import PlainRecipe

pytest.importorskip("matplotlib")

AMOUNT = Amount(maneuvers=3, random=3, held_out=1, seconds=1.0)
TINY = quadrotor.Settings(
    Preparation(AMOUNT, PlainRecipe(4, batch=64), siblings=2, samples=3, points=4, tuning=60),
    0.2,
    0.1,
)


def test_data_are_seeded_flights_without_the_test_maneuvers():
    first, again, other = collect(AMOUNT, 1), collect(AMOUNT, 1), collect(AMOUNT, 2)
    assert torch.equal(first.train.x, again.train.x)
    assert not torch.equal(first.train.x, other.train.x)
    # 3 random flights and 3 + 3 maneuvers of 1 s at 50 readings a second; between 3 speeds are 2.
    assert len(first.train.x) == 9 * 50 and len(first.validation.x) == 5 * 50
    assert first.train.x.shape[1] == 14 and first.train.y.shape[1] == 6


def test_run_writes_everything_and_goes_on(tmp_path, monkeypatch):
    monkeypatch.setattr(quadrotor.Settings, "of", staticmethod(lambda options: TINY))
    options = Options("quadrotor", quick=True, out=tmp_path, show_progress=False)
    table = quadrotor.run(options)
    part = next(tmp_path.glob("parts/*/seed0.json"))
    written = part.stat().st_mtime_ns
    two = Options("quadrotor", quick=True, seeds=2, out=tmp_path, show_progress=False)
    quadrotor.run(two)
    assert part.stat().st_mtime_ns == written
    results = json.loads((tmp_path / "results.json").read_text())
    assert results["seeds"] == [0, 1]
    lines = results["lines"]
    assert [line["policy"] for line in lines] == [*POLICIES, *POLICIES]
    assert set(lines[0]["rmse"]) == {case.name for case in CASES}
    assert {case.regime for case in CASES} == set(TITLES)
    assert "paths" not in results
    text = table.read_text()
    assert all(label in text for label in LABELS.values()) and "±" in text
    assert {"paths.png", "regimes.png", "config.json"} <= {path.name for path in tmp_path.iterdir()}
    assert str(tmp_path) not in (tmp_path / "results.json").read_text()
    image = pytest.importorskip("PIL.Image")
    content = unsealed(part)
    assert content is not None
    paths = json.loads(content)["paths"]
    gif = animate(paths["normal lemniscate"], tmp_path / "flight.gif", title="test")
    with image.open(gif) as opened:
        assert opened.n_frames >= 2


def test_real_data_are_refused(tmp_path):
    with pytest.raises(ValueError, match="takes no `--data`"):
        quadrotor.run(Options("quadrotor", data=tmp_path, out=tmp_path))
