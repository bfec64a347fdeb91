"""Flow files, videos, scores, dense methods, and whole runs that are very small."""

import json
import struct
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from howsure import metrics
from howsure.cli import main
from howsure_lab.experiments.contenders import Bench, Effort
from howsure_lab.experiments.motion import run
from howsure_lab.experiments.motion.data import Counts, ObjectPairs, rendered_data
from howsure_lab.experiments.motion.model import FlowNetS
from howsure_lab.experiments.motion.report import (
    Field,
    compared,
    fitted_kl,
    object_scores,
    told_apart,
)
from howsure_lab.experiments.motion.run import constant_each
from howsure_lab.experiments.motion.videos import (
    dis_flow,
    find_videos,
    fold_of,
    mirrored,
    objects_of,
    read_clip,
    read_flo,
    read_objects,
    real_data,
    write_flo,
)
from howsure_lab.experiments.training import PlainRecipe

EFFORT = Effort(samples=4, tuning_samples=4, rates=(0.0, 0.1), epochs=1, batch=4)
TINY = run.Settings(
    shape=(32, 32),
    widths=(4, 4, 4, 4),
    counts=Counts(12, 6, 4),
    recipe=PlainRecipe(1, batch=4),
    effort=EFFORT,
    methods=("constant", "gal", "gast", "kendall", "ours", "ours_affine"),
    passes=20,
)


def test_flo_files_are_middlebury_s(tmp_path):
    path = tmp_path / "00000.flo"
    flow = torch.arange(12.0).view(2, 2, 3)
    flow[0, 0, 0] = torch.nan
    write_flo(path, flow)
    content = path.read_bytes()
    assert struct.unpack("<fii", content[:12]) == (202021.25, 3, 2)
    # The second pixel of the first row: u, then v.
    assert struct.unpack("<ff", content[20:28]) == (1.0, 7.0)
    torch.testing.assert_close(read_flo(path), flow, equal_nan=True)
    path.write_bytes(content[:-4])
    with pytest.raises(ValueError, match=r"3 x 2 pixels, which are 60 bytes, but it has 56"):
        read_flo(path)
    path.write_bytes(b"JUNK" + content[4:])
    with pytest.raises(ValueError, match=r"not a \.flo file"):
        read_flo(path)
    with pytest.raises(ValueError, match=r"shape \(2, height, width\)"):
        write_flo(path, flow[0])


@pytest.fixture
def videos(tmp_path):
    """Six videos of a square that moves 2 pixels to the right in a frame, with .flo files."""
    image_module = pytest.importorskip("PIL.Image")
    rng = np.random.default_rng(0)
    for k in range(6):
        folders = [
            tmp_path / kind / "64p" / f"video{k}" for kind in ("JPEGImages", "Annotations", "Flow")
        ]
        for folder in folders:
            folder.mkdir(parents=True)
        back = rng.integers(0, 90, (64, 64), np.uint8)
        for i in range(7):
            mask = np.zeros((64, 64), np.uint8)
            if not (k == 0 and i == 3):  # the object is hidden once
                mask[16:40, 8 + 2 * i : 32 + 2 * i] = 255
            frame = np.where(mask > 0, 200, back).astype(np.uint8)
            image_module.fromarray(frame).save(folders[0] / f"{i:05d}.png")
            image_module.fromarray(mask).save(folders[1] / f"{i:05d}.png")
            if i < 6:
                still = torch.zeros(2, 64, 64)
                still[0] = 2.0 + i * (k + 1)
                write_flo(folders[2] / f"{i:05d}.flo", still)
    return tmp_path


def test_videos_are_read_and_resized(videos):
    found = find_videos(videos)
    assert [video.name for video in found] == [f"video{k}" for k in range(6)]
    clip = read_clip(found[1], 32, 48)
    assert clip.frames.shape == (7, 1, 32, 48) and clip.flows.shape == (6, 2, 32, 48)
    # 2, 4, 6 ... pixels of 64 are 1.5, 3, 4.5 ... of 48.
    torch.testing.assert_close(clip.flows[:, 0, 0, 0], 0.75 * (2 + 2 * torch.arange(6.0)))
    objects = objects_of(clip)
    assert objects.pairs.x.shape == (5, 3, 32, 48) and objects.pairs.y.shape == (5, 3, 8, 12)
    # The second frame is "now" first: its past is the first frame, its future flow is its own.
    torch.testing.assert_close(objects.pairs.x[0, :2], clip.frames[[1, 0], 0])
    torch.testing.assert_close(objects.pairs.target[0, 0], torch.full((16, 1), 3.0))
    torch.testing.assert_close(objects.change, torch.full((5,), 1.5))
    # Frames where the object, or its past, cannot be seen are left out: 3 and 4 of 1 to 5.
    assert len(objects_of(read_clip(found[0], 32, 32)).change) == 3


def test_folds_keep_videos_together_and_test_all():
    names = [f"video{k}" for k in range(10)]
    tested = []
    for index in range(5):
        fold = fold_of(names, index)
        assert sorted(fold.train + fold.validation + fold.test) == names
        assert len(fold.validation) == len(fold.test) == 2
        tested += fold.test
    assert sorted(tested) == names and fold_of(names, 0) == fold_of(names, 5)
    with pytest.raises(ValueError, match="There are 2 videos"):
        fold_of(names[:2], 0)


def test_real_data_splits_by_change(videos):
    objects = read_objects(videos, 32, 32)
    fold = fold_of(sorted(objects), 0)
    data = real_data(objects, fold, Counts(100, 100, 100))
    assert set(data.tests) == {"steady", "changing"}
    steady, changing = (len(pairs.y) for pairs in data.tests.values())
    assert steady - changing in (0, 1)
    total = sum(len(objects[name].change) for name in fold.train)
    assert len(data.train.y) == 2 * total  # with mirror images
    again = mirrored(mirrored(data.train))
    assert torch.equal(again.x, data.train.x) and torch.equal(again.y, data.train.y)
    with pytest.raises(ValueError, match="multiples of 16"):
        read_objects(videos, 30, 32)


def test_missing_parts_are_named(videos, tmp_path, monkeypatch):
    with pytest.raises(FileNotFoundError, match="There is no video"):
        find_videos(tmp_path / "Flow")
    monkeypatch.setitem(__import__("sys").modules, "cv2", None)
    with pytest.raises(ImportError, match="pip install opencv-python-headless"):
        dis_flow(None, None)
    (videos / "Annotations" / "64p" / "video2" / "00003.png").unlink()
    with pytest.raises(FileNotFoundError, match="has no mask"):
        find_videos(videos)


def test_dis_finds_a_shift():
    pytest.importorskip("cv2")
    texture = np.random.default_rng(0).random((20, 24))
    big = np.kron(texture, np.ones((8, 8)))
    one = (255 * big).astype(np.uint8)
    flow = dis_flow(one[20:120, 20:140], one[18:118, 17:137])
    middle = flow[:, 30:70, 30:90].flatten(1).median(1).values
    torch.testing.assert_close(middle, torch.tensor([3.0, 2.0]), atol=0.2, rtol=0)


def test_scores_are_the_library_s_metrics():
    generator = torch.Generator().manual_seed(0)
    mean, target = (torch.randn(5, 2, 16, 1, generator=generator) for _ in range(2))
    var = torch.rand(5, 2, 16, 1, generator=generator) + 0.1
    scores = object_scores(mean, var, target)
    assert scores["epe"] == pytest.approx(float((mean - target).square().sum(1).sqrt().mean()))
    expected = -torch.distributions.Normal(mean, var.sqrt()).log_prob(target).mean()
    assert scores["nll"] == pytest.approx(float(expected), rel=1e-5)
    # Without the added spread the KL is the library's, object by object.
    wide = (100 * mean, 100 * target)
    plain = [metrics.kl_of_fitted_gaussians(a[None], b[None]) for a, b in zip(*wide, strict=True)]
    torch.testing.assert_close(fitted_kl(*wide), torch.stack(plain).double(), rtol=1e-3, atol=1e-4)
    still = torch.ones(2, 2, 16, 1)
    torch.testing.assert_close(fitted_kl(still, still), torch.zeros(2).double())


def test_kinds_are_told_apart_by_their_variance():
    low, high = torch.rand(9, 2, 4, 1), 2 + torch.rand(7, 2, 4, 1)
    found = told_apart({"predictable": low, "unpredictable": high, "hidden": low + 0})
    assert found == {"unpredictable": 1.0, "hidden": 0.5}
    same = torch.full((3, 2, 4, 1), 0.7)
    assert told_apart({"one": same, "two": same}) == {"two": 0.5}


class Smoothed(nn.Module):
    """A linear field, whose variance is known: the mean over 8 x 8 pixels of the first frame."""

    def __init__(self):
        super().__init__()
        self.mean = nn.Conv2d(3, 2, 8, 4, 2, bias=False)
        self.mean.weight.data.zero_()[:, 0] = 1.0

    def forward(self, x):
        return self.mean(x)


def test_monte_carlo_judges_the_dense_methods():
    y = torch.ones(2, 3, 8, 8)
    pairs = ObjectPairs(torch.rand(2, 3, 32, 32), y)
    noise = torch.tensor([0.01, 0.01, 0.0]).view(1, 3, 1, 1)
    torch.manual_seed(0)
    network = FlowNetS((4, 4, 4, 4)).eval().requires_grad_(False)
    lines = compared(Field(network, noise, 0.1), pairs, 100)
    by_name = {(line["method"], line["part"]): line for line in lines}
    assert set(by_name) == {
        (method, part) for method in ("sampling", "diagonal") for part in ("data", "model", "total")
    }
    # Twenty passes have an error of about 16 % of each std; a hundred, as the judge has, of 7 %.
    assert by_name["sampling", "total"]["ratio"] == pytest.approx(1, abs=0.25)
    # For a linear layer the diagonal is exact, since the pixels are independent.
    linear = Field(Smoothed().eval(), noise, 0.0)
    var = linear.predicted(pairs.x, "adf", rate=None).data_var
    torch.testing.assert_close(var[:, :, 1:-1, 1:-1], torch.full((2, 2, 6, 6), 0.64))
    sampled = linear.predicted(pairs.x, "noise_sampling", samples=100, rate=None).total_var
    assert float(sampled[:, :, 1:-1, 1:-1].mean()) == pytest.approx(0.64, rel=0.1)


def test_each_component_has_the_constant_of_its_own_errors():
    data = rendered_data(Counts(2, 6, 2), 32, 0.01)
    torch.manual_seed(0)
    network = FlowNetS((4, 4, 4, 4)).eval().requires_grad_(False)
    made = constant_each(Bench(network, None, data.train, data.validation, EFFORT))
    batches = data.validation.batches(4)
    p = made.sure.predict(batches, show_progress=False)
    errors = (p.mean - torch.cat([y for _, y in batches])).square()
    for k in range(2):
        expected = errors[:, k].mean()
        torch.testing.assert_close(p.total_var[:, k], expected.expand_as(p.total_var[:, k]))
        assert made.record["residual_var"][k] == pytest.approx(float(expected), rel=1e-5)
    assert made.record["residual_var"][0] != made.record["residual_var"][1]


def start(*arguments):
    return main(["reproduce", "motion", *map(str, arguments), "--quick"])


def test_motion_writes_everything_and_resumes(tmp_path, monkeypatch, capsys):
    pytest.importorskip("matplotlib")
    monkeypatch.setattr(run.Settings, "of", staticmethod(lambda options: TINY))
    object_scores_, calls = run.report.object_scores, []

    def interrupted(*arguments):
        calls.append(1)
        if len(calls) == 14:
            raise KeyboardInterrupt
        return object_scores_(*arguments)

    monkeypatch.setattr(run.report, "object_scores", interrupted)
    assert start("--out", tmp_path) == 1
    done = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("seed0-*")}
    assert len(done) > 3
    assert start("--out", tmp_path) == 0
    assert all(path.stat().st_mtime_ns == time for path, time in done.items())
    results = json.loads((tmp_path / "results.json").read_text())
    assert [line["method"] for line in results["lines"]] == list(TINY.methods)
    assert {"predictable", "unpredictable", "hidden"} == set(results["lines"][0]["scores"]["kinds"])
    assert len(results["dense"]) == 6
    assert (tmp_path / "arrows.png").stat().st_size > 10000
    said = capsys.readouterr().out
    assert "the paper + affine variance" in said and "### Dense outputs" in said


def test_motion_runs_on_videos(videos, tmp_path, monkeypatch):
    pytest.importorskip("matplotlib")
    methods = ("constant", "kendall", "ours_affine")
    real = replace(TINY, counts=Counts(8, 4, 6), scenes=4, methods=methods)
    monkeypatch.setattr(run.Settings, "of", staticmethod(lambda options: real))
    out = tmp_path / "out"
    assert start("--data", videos, "--out", out, "--seeds", 2) == 0
    results = json.loads((out / "results.json").read_text())
    assert [line["seed"] for line in results["lines"]] == [0, 0, 0, 1, 1, 1]
    assert set(results["lines"][0]["scores"]["kinds"]) == {"steady", "changing"}
    assert results["flow"] == "read from .flo files"
    assert str(videos) not in (out / "results.json").read_text()
