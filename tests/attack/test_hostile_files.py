"""Hostile files of every kind that is read: no code runs, one sentence, nothing half-written."""

import contextlib
import copy
import io
import json
import pickle
import random
import shutil
import struct
import sys
import zipfile
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

import howsure as hs
from howsure.cli import main
from howsure.cli.building import write_noise

CANARY = "SPRUNG"
MODEL = """
import torch
from torch import nn

def build():
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 1))

class Pixels(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(5)
        self.conv, self.head = nn.Conv2d(3, 4, 3), nn.Linear(4, 2)

    def forward(self, x):
        return self.head(torch.relu(self.conv(x)).mean((2, 3)))
"""
OUT = ("--quiet", "--fresh", "--out", "out.npz")
OPTIONS = ("--noise-std", "0.1", "--method", "adf", *OUT)
FIT = ("--noise-std", "0.1", "--method", "mc_dropout", "--rates", "0.1", "--samples", "2")
# What reading numbers never does.
EVENTS = ("os.system", "os.exec", "os.posix_spawn", "os.fork", "subprocess.Popen", "socket.connect")
WORDS = ("__import__('os').system('touch SPRUNG')", "eval", "1e999", "-1", "nan", "'", '"', "\0")
NUMBERS = (0, -1, 2**31, 2**40, 2**62, 2**63, 2**70, 1.5, True, None, [], "x")


class Trap:
    """Unpickled, it leaves a file behind."""

    def __reduce__(self):
        return open, (CANARY, "w")


def npy(header, data=b""):
    text = header.encode("latin-1", "replace")
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + data


def hostile_npy(draw):
    """A header with other types, shapes or code, before any number of bytes."""
    kinds = ["'<f8'", "'|O'", "'<U4'", "[('a', '<f8')]", "'<f99'", "None", draw.choice(WORDS)]
    sizes = [draw.choice([1, 3, 20, *NUMBERS]) for _ in range(draw.randint(0, 3))]
    shape = f"({''.join(f'{size!r}, ' for size in sizes)})"
    order = draw.choice(["False", "True", "7", draw.choice(WORDS)])
    fields = {"descr": draw.choice(kinds), "fortran_order": order, "shape": shape}
    text = ", ".join(f"{name!r}: {value}" for name, value in fields.items())
    data = pickle.dumps(Trap()) if draw.random() < 0.3 else bytes(draw.randint(0, 600))
    return npy(f"{{{text}}}\n", data)


def hostile_npz(draw):
    """Entries of hostile arrays, packed or not, twice, or with lies in the directory."""
    buffer = io.BytesIO()
    packing = draw.choice([zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
    with zipfile.ZipFile(buffer, "w", packing) as archive:
        archive.writestr(draw.choice(["x.npy", "x", "../x.npy", "y.npy"]), hostile_npy(draw))
        if draw.random() < 0.5:
            archive.writestr("x2.npy", hostile_npy(draw))
    return flipped(buffer.getvalue(), draw) if draw.random() < 0.5 else buffer.getvalue()


def flipped(content, draw):
    """Some bytes changed, some cut off."""
    content = bytearray(content)
    for _ in range(draw.randint(1, 8)):
        content[draw.randrange(len(content))] = draw.randrange(256)
    return bytes(content[: draw.randint(1, len(content))] if draw.random() < 0.3 else content)


def hostile_csv(draw):
    cells = ["1", "2.5", *WORDS, "", "9" * 400, "\n", ",", '""', "\xff"]
    header = draw.choice(["a,b,c", "a,b,a", "1,2,3", "a", "", '"a,b,c', "a,b,\xff"])
    rows = [",".join(draw.choices(cells, k=draw.randint(1, 5))) for _ in range(draw.randint(0, 5))]
    return "\n".join([header, *rows]).encode("latin-1")


def hostile_parquet(draw):
    import pyarrow
    from pyarrow import parquet

    columns = {name: np.ones(draw.randint(0, 1) * 5) for name in "abc"}
    columns["a"] = draw.choice([columns["a"], [None] * 5, ["x"] * 5, [[1]] * 5])
    buffer = io.BytesIO()
    with contextlib.suppress(pyarrow.ArrowInvalid):
        parquet.write_table(pyarrow.table(columns), buffer)
    return flipped(buffer.getvalue() or b"PAR1", draw)


def hostile_safetensors(draw):
    size = draw.choice([96, 32, *NUMBERS])
    entry = {
        "dtype": draw.choice(["F32", "F64", "F4", "", None, "BOOL"]),
        "shape": draw.choice([[8, 3], [2**40, 2**40], [-1], None, [draw.choice(NUMBERS)]]),
        "data_offsets": draw.choice([[0, size], [size, 0], [0], None, [-4, 92]]),
    }
    text = json.dumps({"0.weight": entry, "__metadata__": draw.choice([{}, {"a": 1}])}).encode()
    length = draw.choice([len(text), len(text) + 8, 2**60, 0])
    return struct.pack("<Q", length) + text + bytes(96)


def hostile_pt(draw):
    buffer = io.BytesIO()
    kind = draw.choice(["trap", "plain pickle", "flipped"])
    if kind == "plain pickle":
        return pickle.dumps({"0.weight": Trap()}, protocol=draw.randint(0, 4))
    weights = {"0.weight": Trap() if kind == "trap" else torch.zeros(8, 3)}
    torch.save(weights, buffer)
    return buffer.getvalue() if kind == "trap" else flipped(buffer.getvalue(), draw)


def hostile_png(draw):
    def chunk(kind, data):
        return (
            struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        )

    side = draw.choice([0, 1, 8, 2**15, 2**31 - 1])
    depth, color = draw.choice([1, 8, 16, 99]), draw.choice([0, 2, 3, 4, 6, 99])
    header = struct.pack(">IIBBBBB", side, draw.choice([0, 8, side]), depth, color, 0, 0, 0)
    data = zlib.compress(bytes(draw.randint(0, 2000)))
    parts = chunk(b"IHDR", header), chunk(b"IDAT", data), chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


def hostile_image(draw):
    if draw.random() < 0.5:
        return hostile_png(draw)
    buffer = io.BytesIO()
    kind = draw.choice(["PNG", "JPEG", "BMP", "GIF", "TIFF", "WEBP", "PPM"])
    pixels = np.random.default_rng(0).integers(0, 255, (8, 8, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(buffer, kind)
    return flipped(buffer.getvalue(), draw)


def hostile_targets(draw):
    """Values of images by file name: rows missing, twice, without numbers or in another order."""
    header = draw.choice(["file,angle", "angle,file", "file", "file,file", "image,angle", ""])
    cells = ["good.png", "bad.png", *WORDS, "1", "", "1e400", "../good.png"]
    rows = [",".join(draw.choices(cells, k=draw.randint(1, 3))) for _ in range(draw.randint(0, 4))]
    return "\n".join([header, *rows]).encode("latin-1")


def changed(tree, draw):
    """A value with another one, without one, or with one more, somewhere inside."""
    tree = copy.deepcopy(tree)
    odd = [*NUMBERS, *WORDS, "cpu", {"kind": "constant"}, [[[]]], {"tensor": [1], "dtype": "load"}]
    for _ in range(draw.randint(1, 3)):
        part = tree
        while isinstance(part, dict | list) and part:
            key = draw.choice(list(part) if isinstance(part, dict) else range(len(part)))
            if draw.random() < 0.35 or not isinstance(part[key], dict | list) or not part[key]:
                break
            part = part[key]
        if not isinstance(part, dict | list) or not part:
            continue
        value = part[key]
        kind = draw.choice(["other", "none", "twice", "nested", "negative", "larger"])
        if kind == "none":
            del part[key]
        elif kind == "twice" and isinstance(part, list):
            part.append(copy.deepcopy(value))
        elif kind == "nested":
            part[key] = [value]
        elif kind == "negative" and isinstance(value, float | torch.Tensor):
            part[key] = -value
        elif kind == "larger" and isinstance(value, torch.Tensor):
            part[key] = value.repeat(2, *[1] * (value.dim() - 1)) if value.dim() else value[None]
        else:
            part[key] = draw.choice(odd)
    return tree


def hostile_json(name):
    """A file that a command wrote, changed as a tree, as text, or as bytes."""

    def make(draw):
        honest = Path(name).read_text()
        kind = draw.choice(["tree", "tree", "tree", "flipped", "deep", "words"])
        if kind == "flipped":
            return flipped(honest.encode(), draw)
        if kind == "deep":
            return b"[" * draw.choice([10, 10**5])
        if kind == "words":
            return honest.replace("1", draw.choice(["1e999", "NaN", "-1", "Infinity"])).encode()
        return json.dumps(changed(json.loads(honest), draw)).encode()

    return make


def hostile_settings(draw):
    """A file of `Uncertain.save`, with other contents or other bytes."""
    buffer = io.BytesIO()
    state = torch.load("honest.pt", weights_only=True)
    kind = draw.choice(["tree", "tree", "trap", "flipped"])
    torch.save({**state, "method": Trap()} if kind == "trap" else changed(state, draw), buffer)
    return flipped(buffer.getvalue(), draw) if kind == "flipped" else buffer.getvalue()


def hostile_program(draw):
    """A `.pt2` that is never opened without `--trust`."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("archive/data/weights/weight_0", pickle.dumps(Trap()))
        archive.writestr("archive/version", draw.choice(["6", "", *WORDS]))
    return flipped(buffer.getvalue(), draw) if draw.random() < 0.5 else buffer.getvalue()


# How a file is made, its name, and the command that reads it.
NET, DATA, PIXELS = "hostile_model:build", "x.npy", "hostile_model:Pixels"
SETTINGS = (*FIT, "--quiet", "--out", "out.json")
KINDS = {
    "npy": (hostile_npy, "bad.npy", ("predict", NET, "bad.npy", *OPTIONS)),
    "npz": (hostile_npz, "bad.npz", ("predict", NET, "bad.npz", *OPTIONS)),
    "csv": (hostile_csv, "bad.csv", ("predict", NET, "bad.csv", *OPTIONS)),
    "parquet": (hostile_parquet, "bad.parquet", ("predict", NET, "bad.parquet", *OPTIONS)),
    "safetensors": (
        hostile_safetensors,
        "bad.safetensors",
        ("predict", NET, DATA, "--weights", "bad.safetensors", *OPTIONS),
    ),
    "pt": (hostile_pt, "bad.pt", ("predict", NET, DATA, "--weights", "bad.pt", *OPTIONS)),
    "image": (hostile_image, "images/bad.png", ("predict", PIXELS, "images", *OPTIONS)),
    "pt2": (hostile_program, "bad.pt2", ("predict", "bad.pt2", DATA, *OPTIONS)),
    "target": (hostile_npy, "bad.npy", ("fit", NET, DATA, "--target", "bad.npy", *SETTINGS)),
    "targets of images": (
        hostile_targets,
        "bad.csv",
        ("fit", PIXELS, "images", "--target", "bad.csv", *SETTINGS),
    ),
    "std": (hostile_npy, "bad.npy", ("predict", NET, DATA, "--noise-std", "bad.npy", *OUT)),
    "covariance": (hostile_npy, "bad.npy", ("predict", NET, DATA, "--noise", "bad.npy", *OUT)),
    "noise": (
        hostile_json("noise.json"),
        "bad.json",
        ("predict", NET, DATA, "--noise", "bad.json", *OUT),
    ),
    "settings as json": (
        hostile_json("honest.json"),
        "bad.json",
        ("predict", NET, DATA, "--settings", "bad.json", *OUT),
    ),
    "settings": (
        hostile_settings,
        "bad.pt",
        ("predict", NET, DATA, "--settings", "bad.pt", *OUT),
    ),
    "audit": (
        hostile_json("audit.json"),
        "bad.json",
        ("report", NET, "xy.npz", "--audit", "bad.json", *FIT[:2], "--quiet", "--out", "out.html"),
    ),
}
# What may be changed and still be right.
MOSTLY_FINE = ("settings as json", "settings", "audit", "noise")
seen: list[str] = []
watching = False


def watch(event, arguments):
    springs = event == "open" and CANARY in str(arguments[0])
    if watching and (event in EVENTS or springs):
        seen.append(event)


sys.addaudithook(watch)


@pytest.fixture(scope="module")
def honest(tmp_path_factory):
    """A folder of files as howsure itself writes them."""
    place = tmp_path_factory.mktemp("honest")
    (place / "images").mkdir()
    (place / "hostile_model.py").write_text(MODEL)
    generator = np.random.default_rng(0)
    Image.fromarray(generator.integers(0, 255, (8, 8, 3), dtype=np.uint8)).save(
        place / "images" / "good.png"
    )
    x = generator.normal(size=(100, 3))
    np.save(place / DATA, x[:5])
    np.save(place / "train.npy", x[40:])
    np.savez(place / "xy.npz", x=x[:40], y=x[:40, :1])
    noise = hs.noise.std(torch.tensor([0.1, 0.2, 0.3])) + hs.noise.common_mode(0.1)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        patch.setattr(sys, "path", [str(place), *sys.path])
        write_noise(Path("noise.json"), noise)
        fit = ["fit", NET, "xy.npz", "--noise", "noise.json", "--train-inputs", "train.npy", "-q"]
        for out in ("honest.pt", "honest.json"):
            assert main([*fit, "--out", out]) == 0
        audit = ["audit", NET, "xy.npz", *FIT[:2], "--passes", "20", "-q", "--out", "audit.json"]
        assert main(audit) == 0
        sys.modules.pop("hostile_model", None)
    return place


@pytest.fixture
def folder(tmp_path, honest, monkeypatch):
    shutil.copytree(honest, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    yield tmp_path
    sys.modules.pop("hostile_model", None)


def attack(kind, first, last):
    """Gives mutants to the command line; each is harmless, and most are refused."""
    global watching
    make, name, command = KINDS[kind]
    refused = 0
    for seed in range(first, last):
        Path(name).write_bytes(make(random.Random(f"{kind} {seed}")))
        before, errors = whole_files(), io.StringIO()
        seen.clear()
        with contextlib.redirect_stderr(errors), contextlib.redirect_stdout(io.StringIO()):
            watching = True
            code = main(command)
            watching = False
        said = errors.getvalue().strip().splitlines()
        assert not Path(CANARY).exists() and not seen, (seed, seen)
        assert code in (0, 2) and len(said) == (code == 2), (seed, code, said)
        after = whole_files()
        if code == 0:
            new = set(after) - set(before)
            assert Path(command[-1]).absolute() in new and len(new) <= 2  # a report has settings
            for path in new:
                path.unlink()
        else:
            assert after == before, seed
        refused += code == 2
    assert refused > (0 if kind in MOSTLY_FINE else 0.5) * (last - first)


def whole_files():
    return [path for path in sorted(Path.cwd().rglob("*")) if "pycache" not in str(path)]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", KINDS)
def test_hostile_files_are_harmless(folder, kind):
    attack(kind, 0, 5 if kind == "audit" else 25)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", KINDS)
def test_200_more_hostile_files_are_harmless(folder, kind):
    attack(kind, 25, 225)


@pytest.mark.parametrize("kind", ["noise", "settings as json", "settings", "audit"])
def test_honest_files_are_read(folder, kind):
    honest = {"noise": "noise.json", "settings": "honest.pt", "audit": "audit.json"}
    _, bad, command = KINDS[kind]
    shutil.copy(honest.get(kind, "honest.json"), bad)
    assert main(command) == 0


def test_honest_weights_are_read(folder):
    save_file({k: v for k, v in _net().state_dict().items()}, "w.safetensors")
    assert main(["predict", NET, DATA, "--weights", "w.safetensors", *OPTIONS]) == 0


def _net():
    import hostile_model

    return hostile_model.build()
