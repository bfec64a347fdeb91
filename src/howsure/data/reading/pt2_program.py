"""The graph of a `.pt2` file, rebuilt from what torch's schema and the lists below allow.

torch turns names of the file into generated Python, looks its call targets up as attributes, and
evaluates its sizes. So every value is walked by its type in the schema of the installed torch, and
every text must have its place in `_TEXTS`: what is unknown is refused, what is not needed left out.
"""

from __future__ import annotations

import dataclasses
import json
import math
import re
import types
import typing
from collections.abc import Callable, Mapping
from enum import IntEnum
from functools import cache, partial
from typing import Any

import torch
from torch import nn
from torch._export.serde import schema
from torch._export.serde.union import _Union

from howsure.data.reading.pt2_expressions import Refused, expression, guard, is_name, is_symbol

_INTEGERS = 2**64  # beyond are no sizes, and powers of them fill the memory
_DEEPEST = 60  # modules in modules; Python walks them by recursion
_FLOATS = ("Infinity", "-Infinity", "NaN")  # torch's own way to write them
_DEVICES = ("cpu", "cuda", "mps", "xpu", "meta")
_WORDS = re.compile(r"[\w .,:;<>=+*/@-]*", re.ASCII)  # can stand between quotes in generated Python
_OPERATOR = re.compile(r"torch\.ops\.(aten|prims)\.(\w+)\.(\w+)", re.ASCII)
# Python functions on sizes (torch's `_SYM_OPS`), and control flow whose branches are graphs.
_FUNCTIONS = re.compile(
    r"_operator\.(eq|ne|le|ge|lt|gt|neg|pos|mul|add|sub|floordiv|mod|truediv|pow|and_|or_|[lr]shift)"
    r"|math\.trunc|torch\.sym_(not|int|float|ite|max|min|sqrt)|torch\._sym_sqrt"
    r"|torch\.ops\.higher_order\.(cond|while_loop|scan|map_impl|wrap_with_(set_grad_enabled|autocast))"
)
# Operators that reach files, foreign memory or packed objects, or resize what others look at.
_DANGEROUS = re.compile(
    r"(from_file|set|set_|set_data|data|resize\w*|record_stream|pin_memory|segment_reduce|retain_grad"
    r"|(sparse|quantized|fbgemm|mkldnn|miopen|cudnn|nested|to_sparse|to_mkldnn)\w*)"
)
# Operators with an underscore are torch's internals; these are what it exports networks to.
_INTERNAL = re.compile(
    r"_(adaptive_avg_pool[23]d|assert_\w+|batch_norm_\w+|cdist_forward|conj|conj_physical|convolution"
    r"|embedding_bag(_forward_only)?|euclidean_dist|fft_[cr]2[cr]|functional_\w+|is_(all|any)_true|linalg_\w+|local_scalar_dense"
    r"|log_softmax|masked_softmax|native_batch_norm\w*|native_multi_head_attention|neg_view"
    r"|pack_padded_sequence|pad_packed_sequence|pdist_forward|prelu_kernel|reshape_alias|safe_softmax"
    r"|scaled_dot_product_\w*attention\w*|shape_as_tensor|softmax|stack|to_copy"
    r"|transformer_encoder_layer_fwd|trilinear|unique2?|unsafe_(index|view)|upsample_\w+"
    r"|weight_norm\w*)"
)
# Containers that torch may put inputs and outputs in; others run code of their own.
_CONTAINERS = (
    "builtins.tuple",
    "builtins.list",
    "builtins.dict",
    "collections.OrderedDict",
    "torch.fx.immutable_collections.immutable_list",
    "torch.fx.immutable_collections.immutable_dict",
)

_MODULE = frozenset(dir(nn.Module()))
_RESERVED = _MODULE | frozenset(dir(torch.fx.GraphModule))

Check = Callable[[str], str]


def clean_program(text: bytes) -> bytes:
    """The program's JSON, rebuilt; an error if it holds more than a network."""
    found = _read(schema.ExportedProgram, text)
    version = found["schema_version"]
    if version["major"] != schema.SCHEMA_VERSION[0]:
        raise Refused(f"its schema has version {version['major']}, and this torch's another")
    return json.dumps(found, allow_nan=False).encode()


def clean_payloads(text: bytes) -> dict[str, dict[str, Any]]:
    """Name and description of each weight or constant; pickled ones are refused."""
    found = _read(schema.PayloadConfig, text)["config"]
    for payload in found.values():
        if payload["use_pickle"] or payload["tensor_meta"] is None:
            raise Refused("it contains pickled Python objects, which can run code")
    return found


def _read(kind: type, text: bytes) -> dict[str, Any]:
    try:
        return _rebuilt(kind, json.loads(text), "")
    except (KeyError, TypeError, RecursionError):
        raise ValueError("its description is damaged") from None


def _rebuilt(kind: object, value: object, place: str) -> Any:
    """A value of the schema, checked by its type; `place` is the field that it stands in."""
    origin, parts = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        return None if value is None else _rebuilt(parts[0], value, place)
    if dataclasses.is_dataclass(kind):
        union = isinstance(kind, type) and issubclass(kind, _Union)
        return _record(kind, _typed(value, dict, place), union=union)
    if origin is list:
        return [_rebuilt(parts[0], item, place) for item in _typed(value, list, place)]
    if origin is dict:
        check = _KEYS.get(place, _unread(place))
        items = _typed(value, dict, place).items()
        return {check(key): _rebuilt(parts[1], item, place) for key, item in items}
    return _leaf(kind, value, place)


def _record(kind: Any, value: Mapping[str, object], *, union: bool) -> dict[str, Any]:
    hints = _hints(kind)
    unknown = [key for key in value if key not in hints]
    if unknown or (union and len(value) != 1):
        raise Refused(f"its {kind.__name__} has fields that this torch does not know")
    found: dict[str, Any] = {}
    for name in value:
        place = f"{kind.__name__}.{name}"
        empty = _LEFT_OUT.get(place)
        found[name] = _rebuilt(hints[name], value[name], place) if empty is None else empty
    needed = [
        field.name
        for field in dataclasses.fields(kind)
        if field.default is field.default_factory is dataclasses.MISSING
    ]
    if not union and any(name not in found for name in needed):
        raise ValueError(f"its {kind.__name__} is incomplete")
    for argument in found["inputs"] if kind is schema.Graph else ():
        if "as_string" in argument:  # goes into the guards, which torch runs as Python
            _words(argument["as_string"])
    return found


@cache
def _hints(kind: Any) -> dict[str, object]:
    """The fields of a class of the schema with their types."""
    found = typing.get_type_hints(kind, globalns=dict(vars(schema)))
    return {field.name: found[field.name] for field in dataclasses.fields(kind)}


def _leaf(kind: Any, value: Any, place: str) -> object:
    if kind is str:
        return _TEXTS.get(place, _unread(place))(_typed(value, str, place))
    if kind is bool:
        return _typed(value, bool, place)
    if kind is float and not isinstance(value, bool):
        if value in _FLOATS or (isinstance(value, float | int) and abs(value) < math.inf):
            return value
    elif isinstance(value, int) and not isinstance(value, bool) and abs(value) <= _INTEGERS:
        if kind is int:
            return value
        if issubclass(kind, IntEnum) and value in {each.value for each in kind} - {0}:
            return value
    raise ValueError(f"its `{place}` has an impossible value")


def _unread(place: str) -> Check:
    def check(text: str) -> str:
        raise Refused(f"its `{place}` ({text[:60]!r}) can run code")

    return check


def _typed(value: object, kind: type, place: str) -> Any:
    if type(value) is not kind:
        raise ValueError(f"its `{place or 'program'}` is not a {kind.__name__}")
    return value


def _unless(fits: Callable[[str], object], why: str) -> Check:
    """A check of texts; `why` says what the file does with those that do not fit."""

    def check(text: str) -> str:
        if not fits(text):
            raise Refused(f"it {why.format(repr(text[:60]))}")
        return text

    return check


_name = _unless(is_name, "uses {} as a name")
_symbol = _unless(is_symbol, "uses {} as the name of a size")
_words = _unless(_WORDS.fullmatch, "has the text {}")
_text = _unless(str.isprintable, "has the text {}")  # an operator's argument, seen as it is
_device = _unless(_DEVICES.__contains__, "asks for the device {}")


def _path(text: str) -> str:
    """A dotted name of a weight, whose parts do not hide what every module has."""
    first, *rest = parts = text.split(".")
    plain = text.isascii() and all(part.isdecimal() or is_name(part) for part in parts)
    deep = len(parts) > _DEEPEST
    if deep or not plain or first in _RESERVED or not _MODULE.isdisjoint(rest):
        raise Refused(f"it uses {text[:60]!r} as a name")
    return text


def _target(text: str) -> str:
    """What a node calls: an operator of torch that computes, or a function on sizes."""
    if _FUNCTIONS.fullmatch(text):
        return text
    found = _OPERATOR.fullmatch(text)
    if found is None:
        raise Refused(f"it calls {text[:60]!r}, which is not an operator of torch")
    space, name, overload = found.groups()
    full = f"{space}::{name}" + ("" if overload == "default" else f".{overload}")
    hidden = name.startswith("_") and not _INTERNAL.fullmatch(name)
    if hidden or _DANGEROUS.fullmatch(name) or full not in _registered():
        raise Refused(f"it calls {text[:60]!r}, which is not on the list")
    return text


@cache
def _registered() -> frozenset[str]:
    """All operators of torch's dispatcher, which has none of the interpreter's (`aten::save`)."""
    return frozenset(torch._C._dispatch_get_all_op_names())


def _tree(text: str, key: Check) -> str:
    """How inputs or outputs are nested: tuples, lists and dicts with checked keys."""
    protocol, tree = json.loads(text)
    return json.dumps([_typed(protocol, int, "in_spec"), _branch(tree, key)])


def _branch(tree: Any, key: Check) -> dict[str, Any]:
    kind, context, children = (tree[name] for name in ("type", "context", "children_spec"))
    if kind is not None and kind not in _CONTAINERS:
        raise Refused(f"its inputs or outputs are a {str(kind)[:60]!r}")
    if context is not None:
        keys = json.loads(_typed(context, str, "in_spec"))
        checked = [k if type(k) is int else key(_typed(k, str, "in_spec")) for k in keys or ()]
        context = json.dumps(None if keys is None else checked)
    nested = [_branch(child, key) for child in _typed(children, list, "in_spec")]
    return {"type": kind, "context": context, "children_spec": nested}


_LEFT_OUT: dict[str, object] = {
    "Node.metadata": {},
    "GraphModule.metadata": {},
    "GraphModule.treespec_namedtuple_fields": {},
    "ExportedProgram.opset_version": {},
}
_TEXTS: dict[str, Check] = {
    "Device.type": _device,
    "SymExpr.expr_str": expression,
    "SymIntArgument.as_name": _name,
    "SymFloatArgument.as_name": _name,
    "SymBoolArgument.as_name": _name,
    "TensorArgument.name": _name,
    "GraphArgument.name": _path,
    "Argument.as_string": _text,
    "Argument.as_strings": _text,
    "ConstantValue.as_string": _words,
    "NamedArgument.name": _words,
    "Node.target": _target,
    "Node.name": _name,
    "InputToConstantInputSpec.name": _name,
    "InputToParameterSpec.parameter_name": _path,
    "InputToBufferSpec.buffer_name": _path,
    "InputToTensorConstantSpec.tensor_constant_name": _path,
    "BufferMutationSpec.buffer_name": _path,
    "ParameterMutationSpec.parameter_name": _path,
    "UserInputMutationSpec.user_input_name": _name,
    "ModuleCallEntry.fqn": _words,
    "ModuleCallSignature.in_spec": partial(_tree, key=_name),
    "ModuleCallSignature.out_spec": partial(_tree, key=_words),
    "ModuleCallSignature.forward_arg_names": _name,
    "ExportedProgram.verifiers": _name,
    "ExportedProgram.torch_version": _words,
    "ExportedProgram.guards_code": guard,
    "PayloadMeta.path_name": _name,
}
_KEYS: dict[str, Check] = {
    "Graph.tensor_values": _name,
    "Graph.sym_int_values": _name,
    "Graph.sym_bool_values": _name,
    "Graph.sym_float_values": _name,
    "ExportedProgram.range_constraints": _symbol,
    "PayloadConfig.config": _path,
}
