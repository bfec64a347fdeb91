"""A scoring run that was stopped: what is continued, and what is refused."""

import threading

import pytest
import torch
from small_job import BATCH, ROWS, SHARD, data, scored, sure
from torch import nn

import howsure as hs
from howsure.data.scoring import as_source, predict_to_file
from nets import perceptron

QUIET = {"show_progress": False}


class Breaks:
    """Rows that cannot be read from some row on."""

    def __init__(self, rows, good):
        self.source, self.good = as_source(rows), good

    def __len__(self):
        return len(self.source)

    def rows(self, start, stop):
        if stop > self.good:
            raise ValueError("the file ends here")
        return self.source.rows(start, stop)


def test_continues_where_an_error_stopped_it(tmp_path):
    scored(tmp_path / "whole.npz")
    out = tmp_path / "s.npz"
    settings = {"batch": BATCH, "shard_rows": SHARD, **QUIET}
    with pytest.raises(ValueError, match=r"Rows 40 to 43: the file ends here"):
        predict_to_file(sure(), Breaks(data(), 40), out, **settings)
    assert not out.exists()
    summary = predict_to_file(sure(), data(), out, **settings)
    assert summary.resumed_rows == 40
    assert "40 rows taken over" in str(summary)
    assert out.read_bytes() == (tmp_path / "whole.npz").read_bytes()


def test_a_damaged_shard_is_computed_again(tmp_path):
    out = interrupted(tmp_path)
    shard = sorted((tmp_path / "s.npz.parts").glob("rows-*"))[2]
    content = bytearray(shard.read_bytes())
    content[200] ^= 1
    shard.write_bytes(content)
    assert scored(out).resumed_rows == 32
    scored(tmp_path / "whole.npz")
    assert out.read_bytes() == (tmp_path / "whole.npz").read_bytes()


def interrupted(folder):
    """The result's name, after a run that was interrupted at row 40."""
    out = folder / "s.npz"
    with pytest.raises(ValueError, match="the file ends here"):
        predict_to_file(sure(), Breaks(data(), 40), out, batch=BATCH, shard_rows=SHARD, **QUIET)
    return out


def other_weights():
    changed = sure()
    with torch.no_grad():
        changed.model[0].weight[0, 0] += 1e-6
    return changed


def other_model():
    return hs.Uncertain(
        nn.Sequential(*perceptron()[:1], nn.GELU(), perceptron()[2]).eval(),
        noise=0.01,
        method="mc_dropout",
        rate=0.2,
        samples=3,
    )


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"sure": other_weights}, "other weights"),
        ({"sure": lambda: sure(rate=0.3)}, "other settings"),
        ({"sure": lambda: sure(chunk=2)}, "other settings"),
        ({"sure": lambda: sure(noise=lambda x: 0.01 * x.abs())}, "other settings"),
        ({"sure": other_model}, "other weights and model|other model"),
        ({"source": data() + 1e-6}, "other data"),
        ({"source": data()[:-1]}, "other data and rows"),
        ({"batch": 8}, "other batch"),
        ({"level": 0.9}, "other level"),
    ],
)
def test_another_run_is_refused_until_it_may_start_afresh(changes, named, tmp_path):
    out = interrupted(tmp_path)
    make, source = changes.get("sure", sure), changes.get("source", data())
    options = {"batch": changes.get("batch", BATCH), "level": changes.get("level"), **QUIET}
    with pytest.raises(ValueError, match=named) as refused:
        predict_to_file(make(), source, out, shard_rows=SHARD, **options)
    assert "fresh=True" in str(refused.value)
    assert (
        predict_to_file(make(), source, out, shard_rows=SHARD, fresh=True, **options).resumed_rows
        == 0
    )
    assert not (tmp_path / "s.npz.parts").exists()


def test_a_run_that_did_nothing_leaves_nothing(tmp_path):
    with pytest.raises(ValueError, match="Row 0: the file ends here"):
        predict_to_file(sure(), Breaks(data(), 0), tmp_path / "s.npz", batch=BATCH, **QUIET)
    assert list(tmp_path.iterdir()) == []


def test_files_of_others_in_the_work_folder_stay(tmp_path):
    mine = tmp_path / "s.npz.parts" / "mine.txt"
    mine.parent.mkdir()
    mine.write_text("mine")
    scored(tmp_path / "s.npz", fresh=True)
    assert (tmp_path / "s.npz").exists() and [*mine.parent.iterdir()] == [mine]


def test_one_run_at_a_time(tmp_path):
    entered, leave = threading.Event(), threading.Event()

    class Waits(Breaks):
        def rows(self, start, stop):
            if start:  # the first rows are read before the folder is made
                entered.set()
                assert leave.wait(30)
            return super().rows(start, stop)

    settings = {"batch": BATCH, **QUIET}
    first = threading.Thread(
        target=predict_to_file,
        args=(sure(), Waits(data(), ROWS), tmp_path / "s.npz"),
        kwargs=settings,
    )
    first.start()
    assert entered.wait(30)
    with pytest.raises(ValueError, match="Another process is at work"):
        predict_to_file(sure(), data(), tmp_path / "s.npz", **settings)
    leave.set()
    first.join()
    assert [path.name for path in tmp_path.iterdir()] == ["s.npz"]


def test_notes_are_kept_over_an_interruption(tmp_path):
    made = sure(method="auto", samples=None)
    settings = {"batch": BATCH, "shard_rows": SHARD, **QUIET}
    with pytest.raises(ValueError, match="the file ends"):
        predict_to_file(made, Breaks(data(), 40), tmp_path / "s.npz", **settings)
    summary = predict_to_file(made, data(), tmp_path / "s.npz", **settings)
    assert any(note.startswith('"auto" chose "noise_sampling"') for note in summary.notes)
    assert len(summary.notes) <= 10


def test_a_disk_that_is_full_leaves_what_is_done(tmp_path, monkeypatch):
    written = 0

    def full(handle):
        nonlocal written
        written += 1
        if written > 3:
            raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("os.fsync", full)
        with pytest.raises(OSError, match="No space left"):
            scored(tmp_path / "s.npz")
    left = sorted(path.name for path in (tmp_path / "s.npz.parts").iterdir())
    assert len(left) == 4 and not [name for name in left if name.startswith(".")]
    assert scored(tmp_path / "s.npz").resumed_rows == 2 * SHARD
