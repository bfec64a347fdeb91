"""Networks from `.onnx` files, through the package `onnx2torch`.

An ONNX file holds numbers and a graph, and nothing in it runs. `onnx2torch` makes a torch module
for every node and writes a Python function that calls them, with the names of the nodes in it as
they are in the file: a name with a quote in it would become code. So nodes are numbered before it
sees them. Operators come from its own table; those that are not in it are refused.
"""

from __future__ import annotations

import keyword
import warnings
from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import torch
from torch import Tensor, fx, nn

from howsure.data.reading.programs import Program
from howsure.trees import TensorTree

if TYPE_CHECKING:
    from onnx import GraphProto, ModelProto, ValueInfoProto

# The newest opset of which `onnx2torch` 1.5 knows nearly every operator.
_OPSET = 17
# Of the largest output, by which onnxruntime and torch may differ: sums in another order.
_TOLERANCE = 1e-3
# Rows of the numbers that are tried where a file takes any number.
_ROWS = 2


def load_onnx(path: Path) -> Program:
    """The network of an ONNX file; its inputs have their names in the file."""
    if not path.is_file():
        raise FileNotFoundError(f"There is no file `{path}`.")
    onnx2torch = _converter(path)
    onnx = import_module("onnx")
    try:
        model = onnx.load(path)
        inputs = _inputs(model.graph)
        known = _numbered(_in_known_opset(model))
        named = all(_is_argument(each.name) for each in inputs)
        module = onnx2torch.convert(known, save_input_names=named).eval()
    except Exception as error:
        first = (str(error).splitlines() or [""])[0] or type(error).__name__
        raise ValueError(
            f"`{path}` cannot be read as a network by `onnx2torch`: {first}; it knows the "
            f"operators of ONNX best if you export with `opset_version={_OPSET}`."
        ) from error
    _check_outputs(known.graph, path)
    _weights_as_parameters(module)
    check_against_runtime(module, model, path)
    return Program(module, _sizes(inputs[0])[0] if inputs and _sizes(inputs[0]) else None)


def _converter(path: Path) -> ModuleType:
    """The package, or the sentence that says how to get it."""
    if find_spec("onnx2torch") is None:
        raise ImportError(
            f"`{path}` needs `onnx2torch`, which is not installed; `pip install 'howsure[onnx]'` "
            "brings it. A `.pt2` file of `torch.export` needs no further package."
        )
    try:
        return import_module("onnx2torch")
    # It imports torchvision, which fails in its own ways beside a torch that it was not built for.
    except Exception as error:
        raise ImportError(
            f"`onnx2torch` is installed and cannot be imported ({type(error).__name__}: {error}); "
            f"it needs the `torchvision` that was built for torch {torch.__version__}."
        ) from error


def _in_known_opset(model: ModelProto) -> ModelProto:
    """A copy without functions of its own, in operators that `onnx2torch` knows if it can be."""
    model = import_module("onnx.inliner").inline_local_functions(model)
    versions = {each.domain: each.version for each in model.opset_import}
    if versions.get("", 0) <= _OPSET:
        return model
    try:
        return import_module("onnx.version_converter").convert_version(model, _OPSET)
    # Some operators have no older form; `onnx2torch` may know them all the same.
    except Exception:
        return model


def _numbered(model: ModelProto) -> ModelProto:
    """The model with nodes named by operator and number."""
    for number, node in enumerate(model.graph.node):
        if not node.op_type.isidentifier():
            raise ValueError(f"there is no operator {node.op_type!r}.")
        node.name = f"{node.op_type}_{number}"
        if node.op_type == "Reshape":
            # torch asks that a size of 0 be taken as 0. Only an empty tensor has one, and
            # `onnx2torch` refuses to be asked.
            kept = [each for each in node.attribute if each.name != "allowzero"]
            del node.attribute[:]
            node.attribute.extend(kept)
    return model


def _is_argument(name: str) -> bool:
    return name.isidentifier() and not keyword.iskeyword(name) and name != "self"


def _inputs(graph: GraphProto) -> list[ValueInfoProto]:
    """The inputs that are no weights."""
    weights = {tensor.name for tensor in graph.initializer}
    return [each for each in graph.input if each.name not in weights]


def _sizes(value: ValueInfoProto) -> list[int | None]:
    """The shape of an input; `None` for sizes that are free."""
    dims = value.type.tensor_type.shape.dim
    return [dim.dim_value if dim.HasField("dim_value") else None for dim in dims]


def _check_outputs(graph: GraphProto, path: Path) -> None:
    """An error where `onnx2torch` would return all outputs of a node in place of one."""
    makers = {name: node for node in graph.node for name in node.output}
    for output in graph.output:
        node = makers.get(output.name)
        if node is None or sum(map(bool, node.output)) > 1:
            raise ValueError(
                f"`{path}`: the output `{output.name}` is not the only one of its operator; put "
                "an `Identity` behind it, or export the network with `torch.export`."
            )


def _weights_as_parameters(module: fx.GraphModule) -> None:
    """Makes each matrix that is multiplied with a layer of its own, as those of other layers are.

    Masks go behind layers, and a layer is known by its parameters.
    """
    for node in list(module.graph.nodes):
        products = [user for user in node.users if str(user.target).startswith("MatMul_")]
        if node.op != "get_attr" or not products:
            continue
        tensor = module.get_buffer(str(node.target))
        if tensor.is_floating_point() and tensor.dim() > 1:
            name = f"{products[0].target}_weight"
            layer = nn.ParameterDict({"weight": nn.Parameter(tensor, requires_grad=False)})
            module.add_module(name, layer.eval())
            node.target = f"{name}.weight"
    module.recompile()


def check_against_runtime(module: nn.Module, model: ModelProto, path: Path) -> None:
    """An error if onnxruntime gives other outputs for random numbers; a warning if it has none."""
    feed = None if find_spec("onnxruntime") is None else _random_inputs(model.graph)
    if feed is None:
        _warn_unchecked(path, "it is not installed, or a size besides the batch is left open")
        return
    try:
        expected = _in_runtime(model, feed)
    # It does not take such numbers, such as tokens that there are not, or operators of others.
    except Exception as error:
        _warn_unchecked(path, (str(error).splitlines() or [type(error).__name__])[0])
        return
    with torch.no_grad():
        found = TensorTree(module(*feed.values())).tensors
    if not _agree(found, expected):
        raise ValueError(
            f"`{path}`: `onnx2torch` made a network whose outputs differ from those that "
            "onnxruntime gives; export it with `torch.export` instead."
        )


def _warn_unchecked(path: Path, reason: str) -> None:
    warnings.warn(
        f"`{path}` was not compared with onnxruntime ({reason}): check a prediction yourself.",
        stacklevel=4,
    )


def _random_inputs(graph: GraphProto) -> dict[str, Tensor] | None:
    """Numbers for all inputs by name; `None` where a size besides that of the batch is open."""
    inputs = _inputs(graph)
    if any(None in _sizes(each)[1:] for each in inputs):
        return None
    numpy_type = import_module("onnx").helper.tensor_dtype_to_np_dtype
    generator = torch.Generator().manual_seed(0)
    feed: dict[str, Tensor] = {}
    for each in inputs:
        sizes = [_ROWS if size is None else size for size in _sizes(each)]
        numbers = torch.rand(sizes, generator=generator)
        kind = numpy_type(each.type.tensor_type.elem_type)
        feed[each.name] = torch.from_numpy(numbers.numpy().astype(kind))
    return feed


def _in_runtime(model: ModelProto, feed: dict[str, Tensor]) -> list[Tensor]:
    """The floating-point outputs in onnxruntime."""
    runtime = import_module("onnxruntime")
    session = runtime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    arrays = session.run(None, {name: tensor.numpy() for name, tensor in feed.items()})
    return [t for t in map(torch.from_numpy, arrays) if t.is_floating_point()]


def _agree(found: Sequence[Tensor], expected: Sequence[Tensor]) -> bool:
    if [each.shape for each in found] != [each.shape for each in expected]:
        return False
    pairs = [pair for pair in zip(found, expected, strict=True) if pair[0].numel()]
    return all(
        torch.allclose(a, b, rtol=0, atol=_TOLERANCE * float(b.abs().max()), equal_nan=True)
        for a, b in pairs
    )
