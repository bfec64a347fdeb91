"""Files that cannot be written: one sentence, exit code 2, nothing half-written."""

import errno
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

NET = "project_model:build"
COMMANDS = {
    "predict": ("predict", NET, "data.npz", "--noise-std", "0.1", "--method", "adf"),
    "fit": ("fit", NET, "data.npz", "--noise-std", "0.1", "--method", "noise_sampling"),
    "report": ("report", NET, "data.npz", "--noise-std", "0.1", "--method", "adf"),
    "noise": ("noise", "x.npy"),
    "export": ("export", NET, "--shape", "3", "--noise-std", "0.1", "--method", "linear"),
    "audit": ("audit", NET, "data.npz", "--noise-std", "0.1", "--passes", "10", "--methods", "adf"),
}
SUFFIX = {"predict": "npz", "report": "html", "export": "pt2"}


def asked(command, folder="."):
    return (*COMMANDS[command], "--out", f"{folder}/out.{SUFFIX.get(command, 'json')}")


def fail_writing(monkeypatch, number):
    """Every file that is opened for an atomic write, and every folder, fails to be made."""

    def fail(*arguments, **options):
        raise OSError(number, os.strerror(number), ".out.partial")

    monkeypatch.setattr("tempfile.mkstemp", fail)
    monkeypatch.setattr("pathlib.Path.mkdir", fail)


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize(
    ("number", "words"),
    [(errno.ENOSPC, "free some space"), (errno.EROFS, "can be written to")],
    ids=["full disk", "read-only"],
)
def test_a_full_disk_and_a_read_only_folder(project, refused, monkeypatch, command, number, words):
    fail_writing(monkeypatch, number)
    refused(*asked(command), words=words)


def test_a_folder_that_may_not_be_written(project, refused):
    if os.geteuid() == 0:
        pytest.skip("root may write everywhere")
    (project / "locked").mkdir(mode=0o500)
    for command in COMMANDS:
        refused(*asked(command, "locked"), words="choose a place")


LIMITED = """
import json, resource, sys
from howsure.cli import main
_, highest = resource.getrlimit(resource.RLIMIT_FSIZE)
for most, arguments in json.load(sys.stdin):
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, highest))
    print(main(arguments))
"""


def test_a_disk_that_fills_up_while_writing(project):
    """The kernel itself refuses to write more than some bytes, in one process for two commands."""
    before = sorted(path.name for path in project.iterdir())
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    commands = [(4096, asked("report")), (500, asked("export"))]
    done = subprocess.run(
        [sys.executable, "-c", LIMITED],
        input=json.dumps(commands),
        capture_output=True,
        text=True,
        env=environment,
    )
    assert done.stdout.split() == ["2", "2"], done.stdout + done.stderr
    assert done.stderr.count("Nothing was left half-written") == 2, done.stderr
    after = sorted(path.name for path in project.iterdir())
    assert [name for name in after if name != "__pycache__"] == [
        name for name in before if name != "__pycache__"
    ]


def test_a_file_in_place_of_a_folder(project, refused):
    refused(*asked("fit", "data.npz"), words="`data.npz`")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((*COMMANDS["fit"], "--out", "settings.txt"), "must end in `.json`"),
        ((*COMMANDS["noise"], "--out", "noise.txt"), "must end in `.json`"),
        ((*COMMANDS["predict"], "--out", "p.txt"), ".npz"),
        ((*COMMANDS["predict"], "--interval", "95"), "between 0 and 1"),
        ((*COMMANDS["export"], "--out", "net.txt"), "must end in `.onnx` or `.pt2`"),
        (("predict", NET, "data.npz"), "No source of uncertainty: give the sensor's noise"),
        (("predict", NET, "data.npz", "--method", "guess"), "There is no method 'guess'"),
        (("predict", NET, "data.npz", "--method", "adjoint"), '"adjoint" was removed: "gradients"'),
        ((*COMMANDS["predict"], "--settings", "no.json"), "There is no file `no.json`"),
        ((*COMMANDS["predict"], "--settings", "bad.json"), "is not a file that `howsure fit"),
        ((*COMMANDS["predict"], "--settings", "half.json"), "Incompatible settings"),
        ((*COMMANDS["predict"], "--settings", "weights.pt"), "not a file that `Uncertain.save`"),
        ((*COMMANDS["report"], "--audit", "bad.json"), "is not a file that `howsure audit"),
        (("predict", NET, "data.npz", "--noise", "bad.json"), "is not a file that `howsure noise"),
        (("predict", NET, "data.npz", "--noise", "no.json"), "no.json"),
        (("predict", NET, "data.npz", "--noise-std", "x"), "--noise-std: must be a number"),
        (("predict", NET, "data.npz", "--noise-std", "-1"), "cannot be negative"),
        ((*COMMANDS["predict"], "--noise-var", "1"), "Noise given twice"),
        ((*COMMANDS["predict"], "--noise-var", "b=1"), "but not both"),
    ],
)
def test_wrong_settings_are_told(project, refused, arguments, words):
    (project / "bad.json").write_text("[1, 2")
    (project / "half.json").write_text(
        '{"format": "howsure settings 1", "uncertain": {"format": 6}}'
    )
    refused(*arguments, words=words)


OVERWRITING = {
    "predict": (NET, "data.npz", "--out", "data.npz"),
    "predict a table": (NET, "data.csv", "--out", "data.csv"),
    "predict targets": (NET, "x.npy", "--target", "data.csv", "--out", "data.csv"),
    "predict noise": (NET, "x.npy", "--noise", "left=some.json", "--out", "some.json"),
    "budget": (NET, "data.npz", "--noise-std", "0.1", "--heatmap", "data.npz"),
    "fit": (NET, "data.npz", "--settings", "some.json", "--out", "some.json"),
    "audit": (NET, "data.npz", "--noise", "some.json", "--out", "some.json"),
    "report": (NET, "data.npz", "--audit", "some.json", "--out", "some.json"),
    "report on source": (NET, "data.npz", "--out", "project_model.py"),
    "report on weights": (NET, "data.npz", "--weights", "weights.pt", "--out", "weights.pt"),
    "export": ("net.pt2", "--shape", "3", "--out", "net.pt2"),
    "noise": ("data.npz", "--out", "data.npz"),
    "reproduce": ("steering", "--data", "real/data", "--out", "real"),
}


def linked(path, way):
    """Another name of a file or folder."""
    if way == "hard link" and path.is_file():
        Path("linked").hardlink_to(path)
    elif way == "relative":
        return f"real/../{path.name}"
    elif way != "itself":
        Path("linked").symlink_to(path)
    else:
        return path.name
    return "linked"


@pytest.mark.parametrize("way", ["itself", "symlink", "hard link", "relative"])
@pytest.mark.parametrize("command", OVERWRITING)
def test_what_is_read_is_not_written_over(project, refused, command, way):
    (project / "real" / "data").mkdir(parents=True)
    for name in ("some.json", "net.pt2"):
        (project / name).write_text("{}")
    *options, out = OVERWRITING[command]
    before = {path: path.read_bytes() for path in project.iterdir() if path.is_file()}
    name = linked(project / out, way)
    ran = refused(command.split()[0], *options, name, words="would be written over")
    assert ran.err.startswith(f"`{name}`")
    assert all(path.read_bytes() == content for path, content in before.items())


def test_what_is_read_is_not_cleared_away(project, refused):
    """Unfinished parts lie in a folder of their own, which is removed at the end."""
    (project / "p.npz.parts").mkdir()
    (project / "x.npy").rename("p.npz.parts/x.npy")
    command = ("predict", NET, "p.npz.parts/x.npy", "--noise-std", "0.1", "--out", "p.npz")
    refused(*command, "--fresh", words="would be written over")
    assert (project / "p.npz.parts" / "x.npy").exists()


def test_a_result_may_lie_beside_what_is_read(project, howsure):
    (project / "folder").mkdir()
    (project / "data.npz").rename("folder/data.npz")
    options = ("folder/data.npz", "--noise-std", "0.1", "--method", "adf")
    for _ in range(2):  # and be written again
        assert howsure("predict", NET, *options, "--out", "folder/p.npz").code == 0
