"""Killed at any point and run again, scoring gives the same bytes as without interruption."""

import random

import pytest
from small_job import ROWS, attempt, scored

KILLS = 20


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The file of runs without interruption, by how many rows they have."""
    found = {}
    for rows in (ROWS, 10):
        path = tmp_path_factory.mktemp("whole") / "scores.npz"
        scored(path, rows=rows)
        found[rows] = path.read_bytes()
    return found


def check_finished(out, content):
    """The result is whole, and nothing else is left."""
    assert out.read_bytes() == content
    assert list(out.parent.iterdir()) == [out]


def test_killed_20_times_at_random_file_events(tmp_path, whole):
    draw, kills, out = random.Random(0), 0, tmp_path / "scores.npz"
    while kills < KILLS:
        if attempt(out, event=draw.randint(1, 90)):
            check_finished(out, whole[ROWS])
            out.unlink()
        else:
            kills += 1
    assert attempt(out)
    check_finished(out, whole[ROWS])


def test_killed_at_every_file_event(tmp_path, whole):
    event, finished = 0, False
    while not finished:
        event += 1
        out = tmp_path / str(event) / "scores.npz"
        out.parent.mkdir()
        finished = attempt(out, rows=10, event=event)
        if not finished and out.exists():
            assert out.read_bytes() == whole[10], "a result that has its name is whole"
        assert finished or attempt(out, rows=10)
        check_finished(out, whole[10])
    assert event > 30, "the job has more places to die than that"


def test_killed_after_random_times(tmp_path, whole):
    draw, out = random.Random(1), tmp_path / "scores.npz"
    for _ in range(5):
        attempt(out, seconds=draw.uniform(0.02, 0.25))
    assert attempt(out)
    check_finished(out, whole[ROWS])
