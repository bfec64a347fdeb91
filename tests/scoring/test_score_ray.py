"""The same scores from a Ray cluster of two processors, also when a worker is killed."""

import os
import signal
import sys
from pathlib import Path

import pytest
from small_job import BATCH, SHARD, data, scored, sure

from howsure.data.scoring import InMemory, predict_to_file

SETTINGS = {"batch": BATCH, "shard_rows": SHARD, "engine": "ray", "show_progress": False}


def test_without_ray_the_error_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ImportError, match=r"pip install 'howsure\[ray\]'"):
        predict_to_file(sure(), data(), tmp_path / "s.npz", **SETTINGS)
    assert list(tmp_path.iterdir()) == []


class Deadly(InMemory):
    """Rows whose reader is killed once, in the middle of the job."""

    def __init__(self, rows, mark):
        super().__init__(rows)
        object.__setattr__(self, "mark", mark)

    def rows(self, start, stop):
        if start >= 40 and not self.mark.exists():
            self.mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().rows(start, stop)


class Unreadable(InMemory):
    def rows(self, start, stop):
        if start >= 40:
            raise ValueError("the file ends here")
        return super().rows(start, stop)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    ray = pytest.importorskip("ray", reason="ray is not installed")
    home = os.environ.get("HOME")
    os.environ["HOME"] = str(tmp_path_factory.mktemp("home"))  # where Ray keeps its files
    # Workers find this file, whose sources they read.
    places = [*map(str, Path(__file__).parents[:2]), *filter(None, sys.path)]
    here = {"env_vars": {"PYTHONPATH": os.pathsep.join(places)}}
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, runtime_env=here)
    yield
    ray.shutdown()
    if home is not None:
        os.environ["HOME"] = home


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # Ray's own
def test_a_cluster_gives_the_same_bytes_also_if_a_worker_is_killed(tmp_path, cluster):
    scored(tmp_path / "alone.npz")
    mark = tmp_path / "killed"
    for source in (data(), Deadly(data(), mark)):
        predict_to_file(sure(), source, tmp_path / "ray.npz", **SETTINGS)
        assert (tmp_path / "ray.npz").read_bytes() == (tmp_path / "alone.npz").read_bytes()
    assert mark.exists(), "the worker was killed"


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_an_error_on_the_cluster_is_one_sentence_and_the_job_goes_on_later(tmp_path, cluster):
    with pytest.raises(ValueError, match=r"^Rows 40 to 43: the file ends here$"):
        predict_to_file(sure(), Unreadable(data()), tmp_path / "s.npz", **SETTINGS)
    # What was done before is taken over, here by one process.
    local = {**SETTINGS, "engine": "local"}
    assert predict_to_file(sure(), data(), tmp_path / "s.npz", **local).rows == len(data())
