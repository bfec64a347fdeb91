"""Hostile files of every kind that is read: no code runs, one sentence, nothing half-written."""

import contextlib
import io
import json
import pickle
import random
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

from howsure.cli import main

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
OPTIONS = ("--noise-std", "0.1", "--method", "adf", "--quiet", "--fresh", "--out", "out.npz")
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


# How a file is made, its name, and the command that reads it.
NET, DATA = "hostile_model:build", "x.npy"
KINDS = {
    "npy": (hostile_npy, "bad.npy", ("predict", NET, "bad.npy")),
    "npz": (hostile_npz, "bad.npz", ("predict", NET, "bad.npz")),
    "csv": (hostile_csv, "bad.csv", ("predict", NET, "bad.csv")),
    "parquet": (hostile_parquet, "bad.parquet", ("predict", NET, "bad.parquet")),
    "safetensors": (
        hostile_safetensors,
        "bad.safetensors",
        ("predict", NET, DATA, "--weights", "bad.safetensors"),
    ),
    "pt": (hostile_pt, "bad.pt", ("predict", NET, DATA, "--weights", "bad.pt")),
    "image": (hostile_image, "images/bad.png", ("predict", "hostile_model:Pixels", "images")),
}
seen: list[str] = []
watching = False


def watch(event, arguments):
    springs = event == "open" and CANARY in str(arguments[0])
    if watching and (event in EVENTS or springs):
        seen.append(event)


sys.addaudithook(watch)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    Path("hostile_model.py").write_text(MODEL)
    Path("images").mkdir()
    np.save(DATA, np.random.default_rng(0).normal(size=(5, 3)))
    yield tmp_path
    sys.modules.pop("hostile_model", None)


def attack(kind, first, last):
    """Gives mutants to the command line; each is harmless, and most are refused."""
    global watching
    make, name, command = KINDS[kind]
    refused = 0
    for seed in range(first, last):
        Path(name).write_bytes(make(random.Random(f"{kind} {seed}")))
        before, errors = sorted(Path.cwd().rglob("*")), io.StringIO()
        seen.clear()
        with contextlib.redirect_stderr(errors), contextlib.redirect_stdout(io.StringIO()):
            watching = True
            code = main([*command, *OPTIONS])
            watching = False
        said = errors.getvalue().strip().splitlines()
        assert not Path(CANARY).exists() and not seen, (seed, seen)
        assert code in (0, 2) and len(said) == (code == 2), (seed, code, said)
        if code == 2:
            after = [path for path in sorted(Path.cwd().rglob("*")) if "pycache" not in str(path)]
            assert after == [path for path in before if "pycache" not in str(path)], seed
        Path("out.npz").unlink(missing_ok=True)
        refused += code == 2
    assert refused > 0.5 * (last - first)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", KINDS)
def test_hostile_files_are_harmless(folder, kind):
    attack(kind, 0, 25)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", KINDS)
def test_200_more_hostile_files_are_harmless(folder, kind):
    attack(kind, 25, 225)


def test_honest_files_are_read(folder):
    save_file({k: v for k, v in _net().state_dict().items()}, "w.safetensors")
    assert main(["predict", NET, DATA, "--weights", "w.safetensors", *OPTIONS]) == 0


def _net():
    import hostile_model

    return hostile_model.build()
