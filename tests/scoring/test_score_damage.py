"""Whatever happened to an interrupted run, its model or its data: never a wrong row."""

import errno
import os

import numpy as np
import pytest
import torch
from small_job import BATCH, SHARD, data, sure
from torch import nn

import howsure as hs
from howsure.data.identity import digest
from howsure.data.reading import Choice, open_data
from howsure.data.scoring import predict_to_file

ROWS = 40
DAMAGES = {
    "truncated": lambda content: content[: len(content) // 2],
    "without its last byte": lambda content: content[:-1],
    "emptied": lambda content: b"",
    "a bit in the front": lambda content: _flipped(content, 5),
    "a bit in the middle": lambda content: _flipped(content, len(content) // 2),
    "a bit in the directory": lambda content: _flipped(content, len(content) - 70),
    "a bit at the end": lambda content: _flipped(content, len(content) - 1),
    "zeros": lambda content: bytes(len(content)),
    "other bytes": lambda content: b"not a shard",
    "deleted": lambda content: None,
}


def _flipped(content, place):
    return content[:place] + bytes([content[place] ^ 16]) + content[place + 1 :]


class Items:
    """Rows, until a run is to be interrupted."""

    def __init__(self, x, stop=None):
        self.x, self.stop = x, stop

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        if self.stop is not None and index >= self.stop:
            raise ValueError("interrupted")
        return self.x[index]


def scored(out, items, wrapped=None, **options):
    settings = {"batch": BATCH, "shard_rows": SHARD, "show_progress": False, **options}
    return predict_to_file(wrapped or sure(), items, out, **settings)


@pytest.fixture
def interrupted(tmp_path):
    """A run of which all shards but the last are done, and what the whole gives."""
    x, out = data(ROWS), tmp_path / "scores.npz"
    scored(tmp_path / "whole.npz", Items(x))
    items = Items(x)
    shards = hs.data.scoring.Scorer.shard

    def until(scorer, rows):
        if rows.stop == ROWS:
            raise ValueError("interrupted")
        return shards(scorer, rows)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hs.data.scoring.Scorer, "shard", until)
        with pytest.raises(ValueError, match="interrupted"):
            scored(out, items)
    parts = sorted((tmp_path / "scores.npz.parts").glob("rows-*"))
    assert len(parts) == ROWS // SHARD - 1
    return out, items, parts, (tmp_path / "whole.npz").read_bytes()


def damage(path, name):
    content = DAMAGES[name](path.read_bytes())
    path.unlink() if content is None else path.write_bytes(content)


@pytest.mark.parametrize("which", [0, 1, -1], ids=["first", "middle", "last"])
@pytest.mark.parametrize("name", DAMAGES)
def test_a_damaged_shard_is_computed_again(name, which, interrupted):
    out, items, parts, whole = interrupted
    damage(parts[which], name)
    assert scored(out, items).resumed_rows == (len(parts) - 1) * SHARD
    assert out.read_bytes() == whole


@pytest.mark.parametrize("name", DAMAGES)
def test_a_damaged_manifest_loses_nothing(name, interrupted):
    out, items, parts, whole = interrupted
    damage(parts[0].parent / "manifest.json", name)
    if name.startswith("a bit"):  # It may still be one, of another run.
        try:
            scored(out, items)
        except ValueError as error:
            assert "fresh=True" in str(error)
            scored(out, items, fresh=True)
    else:
        assert scored(out, items).resumed_rows == len(parts) * SHARD
    assert out.read_bytes() == whole


def test_a_shard_of_another_run_is_computed_again(interrupted, tmp_path):
    out, items, parts, whole = interrupted
    (parts[0].parent / "manifest.json").unlink()
    found = scored(out, items, sure(seed=1))
    assert found.resumed_rows == 0 and out.read_bytes() != whole


def test_a_shard_in_the_place_of_another_is_not_taken(interrupted):
    out, items, parts, whole = interrupted
    content = parts[0].read_bytes()
    parts[0].write_bytes(parts[1].read_bytes())
    parts[1].write_bytes(content)
    scored(out, items)
    assert out.read_bytes() == whole


def test_one_item_of_a_data_set_changes(tmp_path):
    items, out = Items(data(500)), tmp_path / "scores.npz"
    scored(out.with_name("first.npz"), items)
    items.stop = 400
    with pytest.raises(ValueError, match="interrupted"):
        scored(out, items)
    items.x[19] += 1.0  # Not the first, which the manifest knows.
    items.stop = None
    assert scored(out, items).resumed_rows == 400 - SHARD
    scored(out.with_name("second.npz"), items)
    assert out.read_bytes() == out.with_name("second.npz").read_bytes()
    assert out.read_bytes() != out.with_name("first.npz").read_bytes()


class Attributes(nn.Module):
    """Computes with a non-persistent buffer, a number, a tensor and a list."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 2)
        self.register_buffer("offset", torch.zeros(2), persistent=False)
        self.scale, self.plain, self.listed = 1.0, torch.ones(2), [1.0]

    def forward(self, x):
        return (self.layer(x) + self.offset) * self.scale * self.plain * self.listed[0]


@pytest.mark.parametrize(
    "edit",
    [
        lambda m: m.offset.add_(1),
        lambda m: setattr(m, "scale", 2.0),
        lambda m: m.plain.data.mul_(2),
        lambda m: m.listed.append(2.0),
        lambda m: m.layer.register_forward_hook(lambda *a: a[-1] * 2),
    ],
    ids=["non-persistent buffer", "number", "tensor", "list", "hook"],
)
def test_the_whole_model_is_the_identity(edit, tmp_path):
    torch.manual_seed(0)
    model, x = Attributes().eval(), data(ROWS)
    wrapped, out = hs.Uncertain(model, 0.01, "adf"), tmp_path / "scores.npz"
    with pytest.raises(ValueError, match="interrupted"):
        scored(out, Items(x, stop=20), wrapped)
    edit(model)
    with pytest.raises(ValueError, match=r"other .*model\. Run it as before"):
        scored(out, Items(x), wrapped)


def test_images_are_known_by_their_pixels(tmp_path):
    image = pytest.importorskip("PIL.Image")
    (tmp_path / "images").mkdir()

    def shoot(seed):
        for i in range(3):
            pixels = np.random.default_rng(seed + i).integers(0, 255, (8, 8, 3), dtype=np.uint8)
            image.fromarray(pixels).save(tmp_path / "images" / f"{i}.bmp")
        return digest(open_data(tmp_path / "images", Choice()).source.rows(0, 3))

    first = shoot(0)
    assert shoot(1000) != first
    assert shoot(0) == first


def test_a_disk_without_space_is_left_as_it_was(tmp_path, monkeypatch):
    def fail(*arguments, **options):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("howsure.data.scoring.write_atomically", fail)
    with pytest.raises(OSError, match="No space left"):
        scored(tmp_path / "s.npz", data())
    assert list(tmp_path.iterdir()) == []
