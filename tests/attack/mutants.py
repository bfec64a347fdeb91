"""Damaged and hostile `.pt2` files, made from an honest one by a seed."""

import copy
import io
import json
import random
import struct
import zipfile

from hostile_texts import ENTRIES, EXPRESSIONS, NAMES, OPENS, PICKLE, RUNS, TARGETS, VALUES


def read(path):
    """The entries of an archive by name, without the root folder."""
    with zipfile.ZipFile(path) as archive:
        return {n.partition("/")[2]: archive.read(n) for n in archive.namelist()}


def packed(entries, root="model", compression=zipfile.ZIP_STORED):
    """An archive, as bytes, of (name, content) in this order; names may repeat."""
    found = io.BytesIO()
    with zipfile.ZipFile(found, "w", compression) as archive:
        for name, content in entries:
            info = zipfile.ZipInfo(f"{root}/{name}")
            info.compress_type = compression
            archive.writestr(info, content)
    return found.getvalue()


def places(value, path=()):
    """All places of nested JSON, as paths."""
    yield path
    if isinstance(value, dict | list):
        for key in value if isinstance(value, dict) else range(len(value)):
            yield from places(value[key], (*path, key))


def at(value, path):
    for key in path:
        value = value[key]
    return value


def replaced(value, path, new):
    """JSON with another value in one place."""
    if not path:
        return new
    value = copy.deepcopy(value)
    at(value, path[:-1])[path[-1]] = new
    return value


def in_texts(rng, tree, keys, hostile):
    """One text under one of `keys` replaced by a hostile one, whole or as a part of it."""
    found = [p for p in places(tree) if p and p[-1] in keys and isinstance(at(tree, p), str)]
    if not found:
        return replaced(tree, rng.choice(list(places(tree))), rng.choice(VALUES))
    path, new = rng.choice(found), rng.choice(hostile)
    old = at(tree, path)
    return replaced(tree, path, rng.choice([new, old + new, new + old, old.replace("1", new, 1)]))


def anywhere(rng, tree):
    """One value, whatever it is, replaced, removed, repeated or given a companion."""
    path = rng.choice([p for p in places(tree) if p])
    parent, old = at(tree, path[:-1]), at(tree, path)
    way = rng.randrange(5)
    if way == 0:
        return replaced(tree, path, rng.choice(VALUES))
    if way == 1 and isinstance(old, str):
        return replaced(tree, path, rng.choice(NAMES + EXPRESSIONS + TARGETS))
    if way == 2 and isinstance(old, list):
        return replaced(tree, path, old + old)
    if way == 3 and isinstance(old, dict):
        new = {rng.choice([*NAMES, "expr_str", "code"]): rng.choice([RUNS, *VALUES])}
        return replaced(tree, path, {**old, **new})
    less = copy.deepcopy(parent)
    del less[path[-1]]
    return replaced(tree, path[:-1], less)


def nested_text(rng, tree):
    """The JSON inside the texts that say how inputs are nested."""
    keys = ("in_spec", "out_spec")
    path = rng.choice([p for p in places(tree) if p and p[-1] in keys])
    inner = anywhere(rng, json.loads(at(tree, path)))
    types = [p for p in places(inner) if p and p[-1] in ("type", "context")]
    if types and rng.random() < 0.5:
        hostile = [
            "collections.namedtuple",
            "collections.defaultdict",
            "os.system",
            '["a\'b"]',
            f'["{OPENS}"]',
            '[{"__enum__": true, "fqn": "os:system", "name": "x"}]',
            '{"__enum__": true}',
        ]
        inner = replaced(inner, rng.choice(types), rng.choice(hostile))
    return replaced(tree, path, json.dumps(inner))


def program(rng, entries):
    """A change of the graph."""
    tree = json.loads(entries["models/model.json"])
    way = rng.randrange(7)
    if way == 0:
        tree = in_texts(rng, tree, ("expr_str",), EXPRESSIONS)
    elif way == 1:
        tree = in_texts(rng, tree, ("target",), TARGETS)
    elif way == 2:
        names = ("name", "as_name", "parameter_name", "buffer_name", "fqn", "stack_trace", "type")
        tree = in_texts(rng, tree, names, NAMES)
    elif way == 3:
        tree["guards_code"] = [rng.choice([*EXPRESSIONS, f"{OPENS} == 1", "L['input'] == 1 or 1"])]
    elif way == 4:
        tree = nested_text(rng, tree)
    elif way == 5:
        tree["range_constraints"] = {
            rng.choice(EXPRESSIONS + NAMES): {"min_val": rng.choice(VALUES), "max_val": None}
        }
    else:
        tree = anywhere(rng, tree)
    return {**entries, "models/model.json": json.dumps(tree).encode("utf-8", "surrogatepass")}


def payload(rng, entries):
    """A change of what the weights are said to be, or of their bytes."""
    config = "data/weights/model_weights_config.json"
    tree = json.loads(entries[config])
    way = rng.randrange(6)
    if way == 0:
        name = rng.choice([n for n in entries if n.startswith("data/weights/weight_")])
        content = entries[name]
        new = rng.choice([b"", content[:-1], content[:4], content * 2, content + b"x", PICKLE])
        return {**entries, name: new}
    if way == 1:
        return {**entries, "data/sample_inputs/model.pt": PICKLE}
    if way == 2:
        name = rng.choice(list(tree["config"]))
        tree["config"][name] |= {"use_pickle": True, "tensor_meta": None}
        entries = {**entries, "data/weights/weight_0": PICKLE}
    elif way == 3:
        numbers = [p for p in places(tree) if p and p[-1] in ("as_int", "dtype", "layout")]
        value = rng.choice([-1, 0, 1, 5, 7, 9, 2**31, 2**62, 2**63 - 1, 2**64])
        tree = replaced(tree, rng.choice(numbers), value)
    elif way == 4:
        name = rng.choice(list(tree["config"]))
        hostile = ["custom_obj_0", "../models/model.json", "weight_99", "model_weights_config.json"]
        tree["config"][name]["path_name"] = rng.choice(hostile + NAMES)
    else:
        tree = anywhere(rng, tree)
    return {**entries, config: json.dumps(tree).encode("utf-8", "surrogatepass")}


def archive(rng, entries):
    """A change of the zip archive itself, as bytes."""
    items = list(entries.items())
    way = rng.randrange(8)
    if way == 0:
        return packed([*items, (rng.choice(ENTRIES), rng.choice([PICKLE, b"", b"\x7fELF"]))])
    if way == 1:
        return packed([*items, rng.choice(items)])
    if way == 2:
        items.remove(rng.choice(items))
        return packed(items)
    if way == 3:
        return packed([*items, ("extra/x", bytes(10**7))], compression=zipfile.ZIP_DEFLATED)
    if way == 4:
        return packed(items, root=rng.choice(["", "..", "/", "a/b", "a\\b", "x" * 300]))
    whole = bytearray(packed(items))
    if way == 5:
        return bytes(whole[: rng.randrange(len(whole))])
    if way == 6:  # the names or sizes of the local and the central headers disagree
        marks = [b"PK\x03\x04", b"PK\x01\x02", b"PK\x05\x06"]
        mark = rng.choice(marks)
        spots = [i for i in range(len(whole)) if whole[i : i + 4] == mark]
        at_ = rng.choice(spots) + 4 + rng.randrange(40)
        whole[at_ : at_ + 2] = struct.pack("<H", rng.randrange(2**16))
        return bytes(whole)
    for _ in range(rng.randrange(1, 9)):
        whole[rng.randrange(len(whole))] = rng.randrange(256)
    return rng.choice([bytes(whole), b"junk" + bytes(whole), bytes(whole) + bytes(whole)])


def mutant(entries, seed):
    """A hostile file, as bytes; the same seed gives the same file."""
    rng = random.Random(seed)
    way = rng.choice([program, program, program, payload, payload, archive])
    if way is archive:
        return archive(rng, entries)
    return packed(way(rng, entries).items())
