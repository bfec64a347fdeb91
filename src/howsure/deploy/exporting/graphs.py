"""The graph of a flat prediction, for any batch size where that is possible."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.fx import GraphModule

from howsure.deploy.compiling.tracing import traced
from howsure.deploy.exporting.any_batch import BatchSizeMattersError, for_any_batch
from howsure.deploy.exporting.flat import Flat
from howsure.errors import ExportError, NoRuleError
from howsure.estimators.sampling import MOST_SAMPLES


@dataclass(frozen=True, eq=False)
class Program:
    """A graph of plain operations, from named tensors to a dict of named tensors.

    Attributes:
        exported: The graph as torch's own program.
        batch: The batch size it needs; `None` for any.
    """

    exported: torch.export.ExportedProgram
    batch: int | None


def program(flat: Flat, any_batch: bool | None) -> Program:
    """The program; `any_batch=None` takes the example's batch size where it must be fixed."""
    batch = flat.tensors[0].shape[0] if flat.tensors[0].dim() else 0
    if any_batch is not False:
        try:
            graph = for_any_batch(lambda size: _trace(flat, _resized(flat, size)), 0)
            return Program(_exported_for_any(_named(graph, flat), flat), None)
        except (BatchSizeMattersError, ExportError) as error:
            if any_batch:
                raise ExportError(
                    f"The program depends on the batch size: {error} Use `any_batch=False` for a "
                    f"program that takes batches of {batch}."
                ) from error
    graph = _named(_trace(flat, flat.tensors), flat)
    return Program(torch.export.export(graph, tuple(flat.tensors), strict=False), batch)


def _exported_for_any(graph: GraphModule, flat: Flat) -> torch.export.ExportedProgram:
    batch = torch.export.Dim("batch")
    shapes = tuple(None if axis is None else {axis: batch} for axis in flat.batch_axes)
    # A batch of 1 would be taken as fixed.
    examples = rows(flat, 3)
    try:
        return torch.export.export(graph, tuple(examples), dynamic_shapes=shapes, strict=False)
    except Exception as error:  # Its errors have no common class.
        raise BatchSizeMattersError(f"{error}".partition("\n")[0]) from error


def _trace(flat: Flat, tensors: Sequence[Tensor]) -> GraphModule:
    setup = flat.uncertain.setup
    # All samples, and all rows, at once: a file has one graph, not pieces.
    setup = setup.with_(chunk=setup.chunk or setup.samples or MOST_SAMPLES)
    try:
        return traced(lambda *inputs: flat.predict(setup, inputs), tensors)
    except (NoRuleError, NotImplementedError, RuntimeError, TypeError, ValueError) as error:
        raise ExportError(
            f'The method "{flat.method}" of this model cannot be written down as a graph, most '
            f"often because the model decides by the values it sees: {error}"
        ) from error


def _resized(flat: Flat, size: int) -> list[Tensor]:
    """Tensors of no memory with another batch size: tracing looks at shapes only."""
    pairs = zip(flat.tensors, flat.batch_axes, strict=True)
    return [t if axis is None else _of_size(t, axis, size) for t, axis in pairs]


def _of_size(tensor: Tensor, axis: int, size: int) -> Tensor:
    shape = [size if i == axis else length for i, length in enumerate(tensor.shape)]
    return tensor.new_empty(1).expand(shape)


def rows(flat: Flat, count: int) -> list[Tensor]:
    """Inputs with `count` rows, which repeat as often as needed."""
    pairs = zip(flat.tensors, flat.batch_axes, strict=True)
    return [t if axis is None else _repeated(t, axis, count) for t, axis in pairs]


def _repeated(tensor: Tensor, axis: int, count: int) -> Tensor:
    return tensor.index_select(axis, torch.arange(count) % tensor.shape[axis])


def _named(graph: GraphModule, flat: Flat) -> GraphModule:
    """The graph with named inputs and a dict of named outputs."""
    nodes = list(graph.graph.nodes)
    inputs = [node for node in nodes if node.op == "placeholder"]
    for node, name in zip(inputs, flat.input_names, strict=True):
        node.target = name
    outputs = nodes[-1].args[0]
    nodes[-1].args = (dict(zip(flat.output_names, outputs, strict=True)),)
    graph.recompile()
    return graph
