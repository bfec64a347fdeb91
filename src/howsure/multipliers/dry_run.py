"""The sites of a trained network, found by a dry run.

It meets the layers of a model in the order of their calls. A site lies behind a layer, its
normalization and its activation, in front of a layer, or at a dropout that the model already has.
"""

from __future__ import annotations

import fnmatch
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from howsure.isolation import (
    ORIGINAL,
    is_of_torch,
    isolated,
    modules_of,
    random_state,
    random_state_kept,
)
from howsure.multipliers.inner import INNER, inner_rate, is_packed, run_with_dropout
from howsure.multipliers.sites import BatchDim, NothingToDropError, Placement, Site
from howsure.operations import (
    ACTIVATIONS,
    DROPOUTS,
    NORMALIZATIONS,
    POOLS,
    RECURRENT,
    LayerNames,
    Operations,
    base_name,
    numbered,
    operands,
    spatial_dims,
)
from howsure.private_torch import unwrap_compiled
from howsure.trees import (
    as_call,
    batch_size,
    clone_tensors,
    floats_of,
    is_tracing,
    map_leaves,
)

_PACKED = (
    "The dropout between the layers of {} is not counted, because the sequence is packed; give "
    "padded sequences to count it."
)


def find_sites(
    model: Callable[..., object], x: object, placement: Placement, *, batch_dim: int | None = 0
) -> tuple[Site, ...]:
    """The sites of a model for inputs like `x`.

    None is behind an output layer, which is one that no other layer depends on.
    """
    trace = trace_calls(model, x)
    batch = dict(zip(trace.tensors, _locate_batch(model, x, trace, batch_dim), strict=True))
    layers = [call for call in trace.calls if call.rate is None]
    dropouts = [call for call in trace.calls if call.rate and call.chain[0] not in INNER]
    kind = placement.kind
    if kind == "auto":
        kind = "existing" if dropouts and not placement.only else "after"
    elif kind == "existing":
        dropouts = _all_dropouts(model, x, trace)
    if kind == "existing":
        calls = dropouts
    elif kind == "before":
        calls = layers
    else:
        calls = [call for call in layers if call.feeds_a_layer]
    sites: dict[str, Site] = {}
    for call in calls:
        # A layer that is called again, as in a loop over time, is the same site.
        if call.name in sites:
            continue
        if any(fnmatch.fnmatchcase(call.name, pattern) for pattern in placement.only or ("*",)):
            data = call.output if kind == "after" else call.input
            sites[call.name] = _site(call, kind, data.shape, batch[data], placement)
    if not sites:
        raise NothingToDropError(_why_no_site(model, trace.calls, placement))
    return tuple(sites.values())


def _all_dropouts(model: Callable[..., object], x: object, trace: Trace) -> list[Call]:
    """Every dropout that a model has in train mode, also inside attention and recurrent layers."""
    rates = {}
    if any(call.chain[0] == "scaled_dot_product_attention" for call in trace.calls):
        in_training = trace_training(model, x)
        rates = {} if in_training is None else {c.name: c.rate for c in in_training.calls}
    for call in trace.calls:
        if call.chain[0] == "scaled_dot_product_attention":
            call.rate = rates.get(call.name, call.rate)
    return [call for call in trace.calls if call.rate and not call.is_packed]


def uncounted_dropout(model: Callable[..., object], x: object) -> tuple[str, ...]:
    """A sentence for each kind of randomness in train mode that no site stands for."""
    trace, notes = trace_calls(model, x), []
    packed = sorted({f"`{call.name}`" for call in trace.calls if call.rate and call.is_packed})
    if packed:
        notes.append(_PACKED.format(", ".join(packed)))
    in_training = trace_training(model, x)
    if in_training is None:
        if any(call.chain[0] == "scaled_dot_product_attention" for call in trace.calls):
            notes.append(
                "Whether attention weights are dropped is not known, because a copy of the model "
                "in train mode failed; they are not counted."
            )
    elif in_training.draws:
        notes.append(
            "In train mode the model draws random numbers besides its dropout, such as stochastic "
            "depth or noise; they are not counted."
        )
    return tuple(notes)


def _site(call: Call, kind: str, shape: torch.Size, batch: BatchDim, placement: Placement) -> Site:
    """The site at a call, where the multiplied activations have this shape."""
    operation = call.chain[0]
    chain = call.chain if kind == "after" else [operation]
    dims = spatial_dims(operation)
    is_fresh = operation in RECURRENT and placement.over_time == "fresh"
    sample = batch.sample_shape(shape)
    if kind == "existing":
        whole_channels = DROPOUTS.get(operation, False)
        units = (sample[0], *(1,) * (len(sample) - 1)) if whole_channels else sample
    elif dims and placement.units == "element":
        units = tuple(shape[-dims - 1 :])
    elif dims:
        units = (shape[-dims - 1], *(1,) * dims)
        chain = chain + call.pools if kind == "after" else chain
    elif placement.units == "element" or is_fresh:
        units = sample
    else:
        units = tuple(shape[-1:])
    return Site(call.name, kind, tuple(chain), units, call.rate, batch)


def _why_no_site(model: Callable[..., object], calls: Sequence[Call], placement: Placement) -> str:
    layers = [call for call in calls if call.rate is None]
    if isinstance(model, nn.Module) and any(
        isinstance(module, torch.jit.ScriptModule) for module in model.modules()
    ):
        return (
            "TorchScript hides the layers of the model, so that dropout finds none; use the "
            "Python module that was scripted or traced."
        )
    if placement.only:
        names = sorted({call.name for call in layers if call.feeds_a_layer})
        return f"No layer matches {list(placement.only)}; the layers that can be dropped: {names}."
    if placement.kind == "existing":
        if packed := next((call for call in calls if call.is_packed), None):
            return _PACKED.format(f"`{packed.name}`")
        return 'The model has no dropout of its own; use the placement "after".'
    if not layers:
        return (
            "The model has no layer with weights, so there is nothing to drop; "
            "`fit(loader, model=None)` finds a constant variance beside the sensor's."
        )
    return (
        "The model has no layer whose output another layer uses, so there is nothing to drop; "
        'use the placement "before" to drop the inputs of its layers.'
    )


@dataclass(eq=False)
class Call:
    """A call of a layer or a dropout in a dry run.

    Attributes:
        name: The layer, such as `layer1.0.conv1`, or the dropout.
        chain: The operation, and behind a layer its normalization and its activation.
        input: The tensor that enters.
        output: The tensor that leaves.
        rate: The rate of a dropout; `None` for a layer.
        pools: The pools behind the chain.
        feeds_a_layer: Whether another layer depends on it.
        batch_dim: The batch dimension that a recurrent layer declares.
        is_packed: Whether it is a dropout between layers that run on a packed sequence.
    """

    name: str
    chain: list[str]
    input: Tensor
    output: Tensor
    rate: float | None = None
    pools: list[str] = field(default_factory=list)
    feeds_a_layer: bool = False
    batch_dim: int | None = None
    is_packed: bool = False


class Trace(Operations):
    """Records the layers and dropouts of a pass, and what follows each layer.

    Attributes:
        calls: The calls of layers and dropouts, in order.
        origins: For every tensor the last layers that it was computed from.
        draws: Whether the pass drew random numbers; its dropouts do not.
    """

    def __init__(self, model: Callable[..., object]) -> None:
        super().__init__()
        self.draws = False
        self.calls: list[Call] = []
        self.origins: dict[Tensor, set[Call]] = {}
        self._names = LayerNames(model)
        self._dropout_calls: Counter[str] = Counter()
        # The layer whose chain ends with a tensor.
        self._ends: dict[Tensor, Call] = {}

    @property
    def tensors(self) -> list[Tensor]:
        """The inputs and outputs of all calls."""
        return [tensor for call in self.calls for tensor in (call.input, call.output)]

    def operation(
        self, func: Callable[..., object], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> object:
        """Runs the operation and records it."""
        inputs = [tensor for tensor in operands(args, kwargs) if tensor.dtype.is_floating_point]
        origins: set[Call] = set().union(*(self.origins.get(tensor, ()) for tensor in inputs))
        name = base_name(func)
        if name in DROPOUTS:  # A copy in train mode would drop.
            result = args[0] if args else kwargs["input"]
        elif name == "scaled_dot_product_attention":
            result = self._attend(func, args, kwargs)
        else:
            result = func(*args, **kwargs)
        outputs = floats_of(result)
        if not inputs or not outputs:
            return result
        layer = self._names.layer_of(func, args, kwargs)
        # Calls keep views, because the model may change the shape of its tensors in place.
        if layer is not None:
            for origin in origins:
                origin.feeds_a_layer = True
            weights = self._names.parameters
            data = next((tensor for tensor in inputs if id(tensor) not in weights), inputs[0])
            call = Call(layer, [name], data.detach(), outputs[0].detach())
            if name in RECURRENT:
                call.batch_dim = int(args[-1] is False)  # The last argument is `batch_first`.
            self.calls.append(call)
            if name in INNER:
                self._record_inner(name, func, args, kwargs)
            self._ends[outputs[0]] = call
            origins = {call}
        else:
            if name in DROPOUTS:
                rate = float(kwargs.get("p", args[1] if len(args) > 1 else 0.5))
                dropout = numbered(self._names.module_path() or name, self._dropout_calls)
                views = inputs[0].detach(), outputs[0].detach()
                self.calls.append(Call(dropout, [name], *views, rate))
            self._extend_chain(name, inputs[0], result)
        for tensor in outputs:
            self.origins[tensor] = self.origins.get(tensor, set()) | origins
        return result

    def _attend(
        self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Attention without its dropout, which is recorded: its weights, one for each key."""
        names = ("query", "key", "value", "attn_mask", "dropout_p")
        given = {**dict(zip(names, args, strict=False)), **kwargs}
        rate, query = float(given.pop("dropout_p", 0.0)), given["query"]
        path = self._names.module_path() or "scaled_dot_product_attention"
        name = numbered(f"{path}:weights", self._dropout_calls)
        like = query.detach()[..., :1].expand(*query.shape[:-1], given["key"].shape[-2])
        self.calls.append(Call(name, ["scaled_dot_product_attention"], like, like, rate))
        rest = dict(zip(("is_causal", "scale", "enable_gqa"), args[5:], strict=False))
        return func(**given, **rest)

    def _record_inner(
        self, name: str, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        """Notes the dropouts inside a layer."""
        rate = inner_rate(name, args, kwargs)
        if not rate:
            return
        path = self._names.module_path() or name
        if name in RECURRENT and is_packed(args):
            data = args[0].detach()
            self.calls.append(Call(path, [name], data, data, rate, is_packed=True))
            return

        def record(data: Tensor) -> Tensor:
            site = numbered(f"{path}:{INNER[name]}", self._dropout_calls)
            call = Call(site, [name], data.detach(), data.detach(), rate)
            call.batch_dim = int(args[-1] is False) if name in RECURRENT else 0
            self.calls.append(call)
            return data

        run_with_dropout(name, func, args, kwargs, record)

    def _extend_chain(self, name: str, data: Tensor, output: object) -> None:
        """Adds the operation to the layer that it directly follows, or ends the layer's chain."""
        layer = self._ends.pop(data, None)
        if layer is None or not isinstance(output, Tensor):
            return
        follows = name in NORMALIZATIONS or name in ACTIVATIONS
        if name in POOLS and spatial_dims(layer.chain[0]):
            # A mask behind the pool is the same on fewer elements, and samples share more layers.
            layer.pools.append(name)
        elif follows and output.shape == layer.output.shape and not layer.pools:
            layer.chain.append(name)
        else:
            return
        self._ends[output] = layer


def trace_calls(model: Callable[..., object], x: object) -> Trace:
    """The layers and dropouts of a plain pass, which changes neither model nor random numbers."""
    return _trace(model, isolated(unwrap_compiled(model)), x)


def trace_training(model: Callable[..., object], x: object) -> Trace | None:
    """The layers and dropouts with the user's own modules in train mode; `None` if that fails.

    They are copies, whose dropouts are noted and left out. Torch's own layers stay in eval mode.
    """
    copy = isolated(unwrap_compiled(model))
    for module in modules_of(copy):
        if ORIGINAL in module.__dict__ and not is_of_torch(module):
            module.training = True
    try:
        return _trace(model, copy, clone_tensors(x))
    except Exception:  # In train mode a model may want targets, or fail in any other way.
        return None


def _trace(model: Callable[..., object], running: Callable[..., object], x: object) -> Trace:
    trace = Trace(model)
    args, kwargs = as_call(x, model)
    with torch.no_grad(), random_state_kept():
        before = random_state()
        with trace:
            running(*args, **kwargs)
        trace.draws = random_state() != before
    return trace


def _locate_batch(
    model: Callable[..., object], x: object, trace: Trace, batch_dim: int | None
) -> list[BatchDim]:
    """Where the batch is in each tensor of a trace.

    In a pass with another batch size, the dimension with another length is the batch. Where the
    model accepts no other batch size, it is the declared dimension.
    """
    if batch_dim is None:
        return [BatchDim(None)] * len(trace.tensors)
    declared = [
        BatchDim(batch_dim if call.batch_dim is None else call.batch_dim)
        for call in trace.calls
        for _ in (call.input, call.output)
    ]
    if is_tracing():
        return declared
    try:
        # Not 1, which models may take for an input without a batch.
        size = 3 if batch_size(x, batch_dim) == 2 else 2
        order = torch.arange(size)
        resized = trace_calls(model, _take_samples(x, batch_dim, order)).tensors
        if len(resized) != len(declared):
            return declared
        located = [
            _changed_dim(tensor, other, size, default)
            for tensor, other, default in zip(trace.tensors, resized, declared, strict=True)
        ]
        pairs = list(zip(resized, located, strict=True))
        if all(batch.dim is None or tensor.shape[batch.dim] == size for tensor, batch in pairs):
            return located
        # Some dimension also counts something else: the order of the two shows in a reversed batch.
        reverse = trace_calls(model, _take_samples(x, batch_dim, order.flip(0))).tensors
        return [
            _with_order(batch, tensor, backwards, size)
            for (tensor, batch), backwards in zip(pairs, reverse, strict=True)
        ]
    # A model that expects its own batch size can fail in any way.
    except Exception:
        return declared


def _take_samples(x: object, dim: int, order: Tensor) -> object:
    """The input with these samples of its batch, each scaled by another factor.

    The factors make samples differ where the batch has a single one.
    """
    count = batch_size(x, dim)

    def take(item: object) -> object:
        if not isinstance(item, Tensor) or item.dim() <= dim or item.shape[dim] != count:
            return item
        samples = item.index_select(dim, (order % count).to(item.device))
        if not item.dtype.is_floating_point:
            return samples
        return samples * (1 - order / 4).to(item).reshape(-1, *(1,) * (item.dim() - dim - 1))

    return map_leaves(take, x)


def _changed_dim(tensor: Tensor, resized: Tensor, size: int, default: BatchDim) -> BatchDim:
    """The dimension whose length follows the batch size; the default where that is not clear."""
    if tensor.dim() != resized.dim():
        return default
    changed = [dim for dim in range(tensor.dim()) if tensor.shape[dim] != resized.shape[dim]]
    if not changed:
        return BatchDim(None)
    is_clear = len(changed) == 1 and resized.shape[changed[0]] % size == 0
    return BatchDim(changed[0]) if is_clear else default


def _with_order(batch: BatchDim, tensor: Tensor, backwards: Tensor, size: int) -> BatchDim:
    """Adds the order of a dimension that counts more than the batch, from a reversed batch."""
    dim = batch.dim
    if dim is None or tensor.shape[dim] == size:
        return batch
    if_inner = tensor.unflatten(dim, (-1, size)).flip(dim + 1).flatten(dim, dim + 1)
    return BatchDim(dim, is_outer=not torch.allclose(if_inner, backwards, rtol=1e-4, atol=1e-6))
