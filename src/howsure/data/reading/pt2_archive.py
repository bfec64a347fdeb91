"""A `.pt2` file copied into an archive of our own, from which torch may load it.

`torch.export.load` unpickles parts of a file, evaluates others as Python and loads compiled code.
So it never sees the file: what `torch.export.save` writes for a network is read here, checked, and
written anew. Nothing else goes over, and two readers cannot understand the archive differently.
"""

from __future__ import annotations

import io
import json
import math
import re
import zipfile
from pathlib import Path
from typing import Any

from torch._export.serde.serialize import _SERIALIZE_TO_TORCH_DTYPE
from torch.export import ExportedProgram
from torch.export.pt2_archive._package import load_pt2

from howsure.data.reading.pt2_expressions import Refused
from howsure.data.reading.pt2_program import clean_payloads, clean_program

_FORMAT = {"archive_format": b"pt2", "archive_version": b"0", "byteorder": b"little"}
_PROGRAM = "models/model.json"
_CONFIGS = {
    "data/weights/model_weights_config.json": ("data/weights/", "weight_"),
    "data/constants/model_constants_config.json": ("data/constants/", "tensor_"),
}
_EXAMPLE = "data/sample_inputs/model.pt"  # a pickle, which is left out
_KNOWN = re.compile(
    r"data/weights/weight_\d+|data/constants/tensor_\d+|extra/.*|version|\.data/(version|serialization_id)"
)
_MOST = 2**40  # elements; an expanded tensor needs no bytes for them, and sizes may not overflow
_STRIDED = 7  # the layout of plain tensors in torch's schema


def load_checked(path: Path) -> ExportedProgram:
    """The program of a file, loaded from a copy that holds nothing else."""
    return load_pt2(_copy(path)).exported_programs["model"]


def _copy(path: Path) -> io.BytesIO:
    """The network of a file as an archive that holds nothing else."""
    with zipfile.ZipFile(path) as archive:
        entries = _entries(archive, path.stat().st_size)
        for name, content in _FORMAT.items():
            if name not in entries or archive.read(entries[name]) != content:
                raise Refused(f"its `{name}` is not that of a program that this torch writes")
        program = clean_program(_content(archive, entries, _PROGRAM))
        found = io.BytesIO()
        with zipfile.ZipFile(found, "w") as clean:
            written = {**_FORMAT, ".data/version": b"6\n", _PROGRAM: program, _EXAMPLE: b""}
            for name, content in written.items():
                clean.writestr(f"model/{name}", content)
            for config, (folder, prefix) in _CONFIGS.items():
                payloads = clean_payloads(_content(archive, entries, config))
                clean.writestr(f"model/{config}", json.dumps({"config": payloads}))
                for name in _records(payloads, entries, folder, prefix):
                    clean.writestr(f"model/{name}", archive.read(entries[name]))
    found.seek(0)
    return found


def _entries(archive: zipfile.ZipFile, size: int) -> dict[str, zipfile.ZipInfo]:
    """The archive's entries by name, without its root folder."""
    infos = archive.infolist()
    names = [info.filename for info in infos]
    stored = all(info.compress_type == zipfile.ZIP_STORED for info in infos)
    if not stored or len(set(names)) < len(names) or sum(i.file_size for i in infos) > size:
        raise zipfile.BadZipFile("its entries are repeated or packed")
    roots = {name.partition("/")[0] for name in names}
    found = {info.filename.partition("/")[2]: info for info in infos}
    known = {*_FORMAT, _PROGRAM, *_CONFIGS, _EXAMPLE}
    strange = [name for name in found if name not in known and not _KNOWN.fullmatch(name)]
    if strange or len(roots) != 1:
        raise Refused(_about(strange[0] if strange else names[0]))
    return found


def _about(name: str) -> str:
    """What an entry is that is not read."""
    if name.startswith("data/aotinductor/"):
        return "it contains compiled machine code"
    if name.endswith(".pt") or name.startswith(("data/constants/", "serialized_")):
        return "it contains pickled Python objects, which can run code"
    return f"it has the entry {name[:60]!r}, which `torch.export.save` does not write for a network"


def _content(archive: zipfile.ZipFile, entries: dict[str, zipfile.ZipInfo], name: str) -> bytes:
    if name not in entries:
        raise Refused(f"it has no `{name}`, as this torch writes it")
    return archive.read(entries[name])


def _records(
    payloads: dict[str, dict[str, Any]],
    entries: dict[str, zipfile.ZipInfo],
    folder: str,
    prefix: str,
) -> list[str]:
    """The entries that hold the numbers; an error unless each tensor lies within its own."""
    found = {}
    for name, payload in payloads.items():
        record, meta = f"{folder}{payload['path_name']}", payload["tensor_meta"]
        if not payload["path_name"].startswith(prefix):
            raise Refused("it contains pickled Python objects, which can run code")
        if record not in entries:
            raise ValueError(f"it has no numbers for `{name}`")
        first = found.setdefault(record, meta["dtype"])
        if first != meta["dtype"] or not _fits(meta, entries[record].file_size):
            raise ValueError(f"the shape of `{name}` does not fit its numbers")
    return list(found)


def _fits(meta: dict[str, Any], size: int) -> bool:
    """Whether a tensor of plain numbers lies within `size` bytes."""
    sizes, strides = ([n.get("as_int", -1) for n in meta[key]] for key in ("sizes", "strides"))
    offset = meta["storage_offset"].get("as_int", -1)
    if min(offset, *sizes, *strides, 0) < 0 or len(sizes) != len(strides):
        return False
    last = offset + sum((n - 1) * step for n, step in zip(sizes, strides, strict=True))
    itemsize = _SERIALIZE_TO_TORCH_DTYPE[meta["dtype"]].itemsize
    inside = max(sizes, default=0) < _MOST and math.prod(sizes) < _MOST
    inside = inside and (0 in sizes or last < size // itemsize)
    return inside and size % itemsize == 0 and meta["layout"] == _STRIDED
