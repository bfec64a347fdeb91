"""Killed (SIGKILL) at any moment, no command loses or doubles anything; every second try ends."""

import json
import multiprocessing
import os
import random
import shutil
import signal
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

FILE_EVENTS = ("open", "os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.chmod", "fcntl.flock")
MODEL = """
import torch
from torch import nn

def build():
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 1))
"""
DATA = ("kill_model:build", "data.npz", "--noise-std", "0.1", "-q")

EXPORT = ("export", "kill_model:build", "--shape", "3", "--noise-std", "0.1", "-q")

# Children start from a process that has torch loaded already.
PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(["howsure.cli.program", "howsure.data.scoring", "howsure.report"])


def same_bytes(path, whole):
    assert path.read_bytes() == whole


def is_json(path, whole):
    """Times differ between two runs; a file that is cut has no last bracket."""
    assert set(json.loads(path.read_text())) == set(json.loads(whole))


def is_page(path, whole):
    assert path.read_text().rstrip().endswith("</html>")


def is_archive(path, whole):
    assert zipfile.ZipFile(path).testzip() is None


def same_arrays(path, whole):
    with np.load(path, allow_pickle=False) as found:
        assert all(np.isfinite(found[name]).all() for name in found.files)


def _predict(suffix):
    options = ("--method", "mc_dropout", "--rate", "0.2", "--samples", "3", "--batch", "1")
    return ("predict", *DATA, *options, "--out", f"out{suffix}")


# The command, its result, and what a whole result is.
COMMANDS = {
    "predict": (_predict(".npz"), "out.npz", same_bytes),
    "predict, table": (_predict(".csv"), "out.csv", same_bytes),
    "fit": (
        ("fit", *DATA, "--method", "mc_dropout", "--samples", "3", "--out", "settings.json"),
        "settings.json",
        is_json,
    ),
    "audit": (
        ("audit", *DATA, "--time-limit", "1", "--rows", "2", "--out", "audit.json"),
        "audit.json",
        is_json,
    ),
    "report": (("report", *DATA, "--out", "report.html"), "report.html", is_page),
    "export": (
        (*EXPORT, "--method", "adf", "--out", "net.pt2"),
        "net.pt2",
        is_archive,
    ),
    "budget": (("budget", *DATA, "--heatmap", "map.npz"), "map.npz", same_arrays),
    "init": (("init", "first", "-q"), "first/model.py", same_bytes),
    "reproduce": (("reproduce",), "run/results.json", same_bytes),
}
FAST = ("predict", "predict, table", "budget", "init", "reproduce")


def experiment(folder):
    """What `howsure reproduce` does, with a network of a few weights."""
    from howsure_lab.experiments.runs import RunFolder, write_json

    def train(model):
        torch.manual_seed(0)
        nn.init.normal_(model.weight)

    run = RunFolder(folder, {"task": "small"})
    found = []
    for seed in range(4):
        model = nn.Linear(2, 1)
        run.trained(f"seed{seed}-network", model, train)
        found.append(run.value(f"seed{seed}", lambda m=model: float(m.weight.sum())))
    write_json(run.path / "results.json", found)


def run_until(folder, command, event):
    """Runs a command, and dies by SIGKILL before its `event`-th change of or look at a file."""
    torch.set_num_threads(1)
    os.chdir(folder)
    sys.path.insert(0, str(folder))
    sys.stdout = sys.stderr = Path(os.devnull).open("w")  # noqa: SIM115
    flush, seen = os.fsync, 0

    def count():
        nonlocal seen
        seen += 1
        if seen == event:
            os.kill(os.getpid(), signal.SIGKILL)

    def watch(name, arguments):
        if name == "fcntl.flock" or any(_concerns(folder, each) for each in arguments):
            count()

    if event is not None:
        sys.addaudithook(lambda name, args: watch(name, args) if name in FILE_EVENTS else None)
        os.fsync = lambda handle: (count(), flush(handle))
    if command[0] == "reproduce":
        experiment(folder / "run")
    else:
        from howsure.cli import main

        sys.exit(main(list(command)))


def _concerns(folder, path):
    """Whether an argument is a path in the folder, other than the model's own code."""
    text = str(path)
    inside = text.startswith(str(folder)) or not text.startswith("/")
    return isinstance(path, str | os.PathLike) and inside and "kill_model" not in text


def attempt(folder, command, *, event=None, seconds=None):
    """Whether a child finished its run: it dies at an event, or after some seconds."""
    child = PROCESSES.Process(target=run_until, args=(folder, command, event))
    child.start()
    child.join(seconds)
    if child.is_alive():
        child.kill()
        child.join()
    assert child.exitcode in (0, -signal.SIGKILL), f"{command}: exit code {child.exitcode}"
    return child.exitcode == 0


def project(folder):
    folder.mkdir(parents=True)
    (folder / "kill_model.py").write_text(MODEL)
    generator = np.random.default_rng(0)
    x = generator.normal(size=(40, 3))
    np.savez(folder / "data.npz", x=x, y=x[:, :1] + 0.1 * generator.normal(size=(40, 1)))
    return folder


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The result of a command without interruption."""
    found = {}

    def of(name):
        if name not in found:
            command, result, _ = COMMANDS[name]
            folder = project(tmp_path_factory.mktemp("whole") / "project")
            assert attempt(folder, command)
            found[name] = (folder / result).read_bytes()
        return found[name]

    return of


def damage(folder, draw):
    """One file of an unfinished run, cut, emptied, flipped or deleted."""
    parts = [p for p in folder.rglob("*") if p.is_file() and "parts" in str(p.parent)]
    parts = [p for p in parts if p.name.startswith(("rows-", "seed"))]
    if not parts:
        return
    path = draw.choice(sorted(parts))
    content = path.read_bytes()
    place = draw.randrange(len(content)) if content else 0
    kind = draw.choice(["cut", "emptied", "flipped", "deleted"])
    if kind == "deleted":
        path.unlink()
    elif kind == "flipped" and content:
        path.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
    else:
        path.write_bytes(content[:place] if kind == "cut" else b"")


def check_kill(name, folder, whole, draw, *, most_events=60):
    """One kill, perhaps some damage, and a second try; how many kills it was."""
    command, result, check = COMMANDS[name]
    out = folder / result
    had = out.exists()
    finished = attempt(folder, command, event=draw.randint(1, most_events))
    if had or finished:
        assert out.exists(), "an earlier result is not lost"
    if out.exists():
        check(out, whole(name))
    if draw.random() < 0.5:
        damage(folder, draw)
    if name == "init" and finished:
        return 0  # It refuses a folder that is complete.
    assert attempt(folder, command), "the second try ends"
    check(out, whole(name))
    assert not out.with_name(f"{out.name}.parts").exists()
    return int(not finished)


def kill_often(name, folder, whole, draw, kills, **options):
    """Kills in a new folder, and in one with an earlier result, in turns."""
    done = tries = 0
    while done < kills:
        tries += 1
        assert tries < 10 * kills + 10, "the command is hardly ever killed"
        place = project(folder / str(tries))
        for _ in range(1 if name == "init" else 2):
            done += check_kill(name, place, whole, draw, **options)
        shutil.rmtree(place)
    return done


@pytest.mark.parametrize("name", FAST)
def test_a_killed_command_is_run_again(name, tmp_path, whole):
    events = {"budget": 5, "init": 8, "reproduce": 20}.get(name, 40)
    kill_often(name, tmp_path, whole, random.Random(name), 1, most_events=events)


@pytest.mark.slow
def test_200_kills_over_all_commands(tmp_path, whole):
    draw, kills = random.Random(0), 0
    shares = {"predict": 70, "predict, table": 30, "reproduce": 50, "init": 16, "budget": 10}
    for name in COMMANDS:
        events = {"predict": 200, "predict, table": 200, "reproduce": 40, "init": 8}.get(name, 5)
        wanted = shares.get(name, 6)
        kills += kill_often(name, tmp_path / name, whole, draw, wanted, most_events=events)
    assert kills >= 200


@pytest.mark.slow
def test_killed_after_random_times(tmp_path, whole):
    draw = random.Random(1)
    for name in ("predict", "reproduce"):
        command, result, check = COMMANDS[name]
        folder = project(tmp_path / name)
        for _ in range(5):
            attempt(folder, command, seconds=draw.uniform(0.05, 1.0))
        assert attempt(folder, command)
        check(folder / result, whole(name))
