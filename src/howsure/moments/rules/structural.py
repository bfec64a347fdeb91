"""Operations that move elements without computing with them, add them up, or ask about them.

Most are one line of a table: the same operation on mean and variance. Where constants and Gaussians
meet, as in `cat`, `where` and `pad`, a constant has variance 0.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from howsure.errors import NoRuleError
from howsure.moments.families import move, refuse, respell, structural, value_only
from howsure.moments.rule import (
    EXACT,
    STRUCTURAL,
    Kind,
    Sample,
    Samples,
    Target,
    constant,
    normal,
    operands,
    rule,
    sample,
    spellings,
)
from howsure.moments.value import Moments, certain, leaves_of, mean_of, variance_dtype
from howsure.private_torch import variable_functions

_aten = torch.ops.aten
_CUBE = (2, 3, 4)


# Views of their input.
for _names, _samples in {
    ("reshape",): sample(_CUBE, (4, 6)),
    ("flatten",): sample(_CUBE, 1),
    ("unflatten",): sample(_CUBE, 1, (3, 1)),
    ("ravel",): sample(_CUBE),
    ("permute",): sample(_CUBE, (2, 0, 1)),
    ("transpose", "swapaxes", "swapdims"): sample(_CUBE, 0, 2),
    ("movedim", "moveaxis"): sample(_CUBE, 0, 2),
    ("t",): sample((2, 3)),
    ("adjoint",): sample(_CUBE),
    ("squeeze",): sample((2, 1, 3), 1),
    ("unsqueeze",): sample(_CUBE, 1),
    ("expand",): sample((2, 1, 4), _CUBE),
    ("broadcast_to",): sample((2, 1, 4), _CUBE),
    ("narrow",): sample(_CUBE, 1, 1, 2),
    ("select",): sample(_CUBE, 1, 1),
    ("chunk", "unsafe_chunk"): sample(_CUBE, 2, 1),
    ("split", "split_with_sizes", "unsafe_split", "unsafe_split_with_sizes"): sample(_CUBE, 2, 2),
    ("tensor_split",): sample(_CUBE, 2, 1),
    ("unbind",): sample(_CUBE, 1),
    ("unfold",): sample(_CUBE, 2, 2, 1),
    ("diagonal",): sample(_CUBE, 0, 1, 2),
    ("detach",): sample(_CUBE),
    ("contiguous",): sample(_CUBE),
    ("atleast_1d",): sample(_CUBE),
    ("atleast_2d",): sample(_CUBE),
    ("atleast_3d",): sample(_CUBE),
}.items():
    structural(*_names, samples=_samples)

structural(
    *(getattr(Tensor, name).__get__ for name in ("T", "mT", "H", "mH", "data", "real")),
    name="transposed attributes",
    samples=sample((2, 3)),
)

# Copies.
for _name, _samples in {
    "clone": sample(_CUBE),
    "repeat": sample(_CUBE, (2, 1, 3)),
    "tile": sample(_CUBE, (2, 1)),
    "repeat_interleave": sample(_CUBE, 2, 1),
    "flip": sample(_CUBE, (0, 2)),
    "fliplr": sample(_CUBE),
    "flipud": sample(_CUBE),
    "roll": sample(_CUBE, 1, 2),
    "rot90": sample(_CUBE),
    "tril": sample((3, 3)),
    "triu": sample((3, 3)),
    "channel_shuffle": sample((1, 4, 2, 2), 2),
    "pixel_shuffle": sample((1, 4, 2, 2), 2),
    "pixel_unshuffle": sample((1, 1, 4, 4), 2),
    "index_select": sample((3, 4), 1, torch.tensor([2, 0, 0])),
    "gather": sample((3, 4), 1, torch.tensor([[0, 0, 3], [1, 2, 2], [3, 1, 0]])),
    "take": sample((3, 4), torch.tensor([[11, 0], [5, 5]])),
    "take_along_dim": sample((3, 4), torch.tensor([[1], [0], [3]]), 1),
    "masked_select": sample((3, 4), torch.tensor([True, False, True, True])),
}.items():
    structural(_name, samples=_samples, views=False)

_IM2COL = sample((2, 3, 5, 4), (2, 3), (1, 1), (1, 0), (2, 1))
_INDEX = sample((3, 4), [None, torch.tensor([2, 0, 0])])
structural(_aten.slice.Tensor, name="slice", samples=sample((3, 6), 1, 1, 5, 2))
structural(_aten.alias.default, _aten.detach_.default, name="alias", samples=sample((3,)))
structural(_aten.index.Tensor, name="index", samples=_INDEX, views=False)
structural(_aten.im2col.default, name="im2col", samples=_IM2COL, views=False)


@rule(
    "view",
    _aten._unsafe_view.default,
    fidelity=STRUCTURAL,
    samples=sample(_CUBE, (4, 6)),
    kind=Kind.STRUCTURAL,
)
def view(self: Moments, *shape: Any) -> Moments:
    """The same elements in another shape.

    As `reshape`: whether torch could do it without a copy depends on strides that its own kernel
    chose, and that a rule's result need not have.

    Assumes: nothing.

    Source: definition.
    """
    if any(isinstance(part, torch.dtype) for part in shape):
        raise NoRuleError("The bits of a Gaussian cannot be read as another type; use `to`.")
    return Moments(self.mean.reshape(*shape), self.var.reshape(*shape))


def _register_like(name: str, change: Target, shape: tuple[int, ...], like: Tensor) -> None:
    options = {"fidelity": STRUCTURAL, "kind": Kind.STRUCTURAL}

    @rule(name, samples=sample(shape, like), **options)
    def resized(self: Moments | Tensor, other: Moments | Tensor) -> Moments | Tensor:
        """The same elements in the shape of another tensor.

        Assumes: nothing.

        Source: definition.
        """
        shape = mean_of(other).shape
        if isinstance(self, Moments):
            return Moments(change(self.mean, shape), change(self.var, shape))
        return change(self, shape)


_register_like("view_as", torch.reshape, _CUBE, torch.zeros(4, 6))
_register_like("reshape_as", torch.reshape, _CUBE, torch.zeros(4, 6))
_register_like("expand_as", Tensor.expand, (2, 1, 4), torch.zeros(_CUBE))


_INDICES = (
    1,
    (slice(None), slice(None, None, 2)),
    (..., None, 0),
    torch.tensor([2, 0, 0]),
    torch.tensor([True, False, True]),
)
structural(
    Tensor.__getitem__,
    name="getitem",
    samples=[Sample(normal(3, 4, 5), index) for index in _INDICES],
)


def _embed(input: Tensor, weight: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    options = dict(zip(("padding_idx", "max_norm"), args, strict=False)) | kwargs
    if options.get("max_norm") is not None:
        raise NoRuleError("An embedding with `max_norm` rescales its weights; scale them before.")
    return F.embedding(input, weight)


embedding = structural(
    F.embedding,
    samples=[
        Sample(torch.tensor([[0, 2], [1, 1]]), normal(3, 4)),
        Sample(torch.tensor([0, 2]), weight=normal(3, 4), padding_idx=0),
    ],
    op=_embed,
    data={1: "weight"},
    views=False,
)
respell(
    embedding,
    _aten.embedding.default,
    torch.embedding,
    name="embedding (aten order)",
    samples=sample((3, 4), torch.tensor([0, 2, 2])),
    arguments=lambda weight, indices, *options, **named: (indices, weight),
)


# Constants and Gaussians side by side.
_LISTS: dict[str, Any] = {
    "samples": [Sample([normal(2, 3), normal(2, 3)]), Sample([normal(2, 3), constant(2, 3)])],
    "data": {0: "tensors"},
    "views": False,
}
structural("cat", "concat", "concatenate", **_LISTS)
structural("stack", **_LISTS)
structural("hstack", **_LISTS)
structural("vstack", "row_stack", **_LISTS)
structural("dstack", **_LISTS)


_IMAGE = normal(2, 3, 4, 5)
_BORDERS = [Sample(_IMAGE, (1, 2, 0, 1)), Sample(_IMAGE, (1, 1), "constant", 2.0)]
_BORDERS += [Sample(_IMAGE, (1, 2, 2, 1), mode=m) for m in ("reflect", "replicate", "circular")]
structural(
    F.pad,
    "pad",
    samples=_BORDERS,
    op=F.pad,
    data={0: "input", 3: "value"},
    views=False,
    inplace=True,
)

_COLUMNS, _ROWS = torch.tensor([2, 0]), torch.tensor([[2, 0, 1, 1], [0, 1, 2, 0]])
_MASK = torch.tensor([True, False, True, False])


def _fills(*where: object) -> list[Sample]:
    return [Sample(normal(3, 4), *where, value) for value in (0.5, normal())]


def _writes(name: str, source: dict[int, str], samples: Samples, op: Target | None = None) -> None:
    """Registers an op that writes a source, named by position and keyword, into its input."""
    op, data = op or getattr(torch, name), {0: "input"} | source
    structural(name, samples=samples, op=op, data=data, views=False, inplace=True)


def _put(
    input: Tensor, indices: Iterable[Tensor | None], values: Tensor, accumulate: bool = False
) -> Tensor:
    """`torch.index_put`, with `None` for a whole axis, as exported programs have it."""
    return _aten.index_put.default(input, list(indices), values, accumulate)


_CORNERS = torch.tensor([0, 2]), torch.tensor([1, 1])
_writes("masked_fill", {2: "value"}, _fills(_MASK))
_writes("index_fill", {3: "value"}, _fills(1, _COLUMNS))
_writes("index_copy", {3: "source"}, operands((3, 4), 1, _COLUMNS, second=(3, 2)))
_writes("masked_scatter", {2: "source"}, operands((3, 4), _MASK.expand(3, 4), second=(6,)))
_writes("index_put", {2: "values"}, operands((3, 4), _CORNERS, second=(2,)), _put)
_writes("slice_scatter", {1: "src"}, operands((3, 4), second=(3, 2), behind=(1, 1, 3)))
_writes("select_scatter", {1: "src"}, operands((3, 4), second=(3,), behind=(1, 2)))
_writes("diagonal_scatter", {1: "src"}, operands((3, 4), second=(3,)))


def _assign(self: Tensor, index: Any, value: Any) -> Tensor:
    out = self.clone()
    out[index] = value
    return out


structural(
    Tensor.__setitem__,
    name="setitem",
    samples=[Sample(normal(3, 4), (slice(None), 1), normal(3)), Sample(normal(3, 4), 0, 2.5)],
    op=_assign,
    data={0: "self", 2: "value"},
    views=False,
)


def _copy(self: Tensor, src: Tensor, non_blocking: bool = False) -> Tensor:
    # A copy: later writes to the source must not be seen here.
    return src.to(self).expand(self.shape).clone()


structural(
    Tensor.copy_,
    _aten.copy_.default,
    _aten.copy.default,
    samples=[Sample(normal(3, 4), normal(4)), Sample(normal(3, 4), constant(4))],
    op=_copy,
    data={0: "self", 1: "src"},
    views=False,
)


@rule(
    torch.where,
    *(getattr(_aten.where, name) for name in ("self", "ScalarOther", "ScalarSelf")),
    fidelity=STRUCTURAL,
    samples=[
        Sample(_MASK, normal(3, 4), normal(3, 4)),
        Sample(_MASK, normal(3, 4), 0.0),
        Sample(_MASK, constant(4), normal(3, 1)),
    ],
    kind=Kind.STRUCTURAL,
    views=False,
)
def where(condition: Tensor, *args: object, **kwargs: object) -> Moments:
    """Mean and variance of the branch that a constant condition chooses.

    Assumes: a constant condition.

    Source: definition.
    """
    if isinstance(condition, Moments):
        raise NoRuleError(
            "A random condition makes a mixture, which is not Gaussian; compute the condition "
            "from a tensor without noise."
        )
    return move(torch.where, {1: "input", 2: "other"}, condition, *args, **kwargs)


respell(
    where,
    Tensor.where,
    name="where (method)",
    samples=sample((3, 4), _MASK, torch.ones(4)),
    arguments=lambda self, condition, other: (condition, self, other),
)


def _together(target: Target, *tensors: Any, **kwargs: object) -> object:
    """The same operation on means and on variances, tensor by tensor.

    Assumes: nothing. Copies of one element are fully correlated, which later rules ignore.

    Source: definition.
    """
    given = tensors[0] if len(tensors) == 1 and isinstance(tensors[0], (list, tuple)) else tensors
    moved = move(target, dict.fromkeys(range(len(given)), ""), *given, **kwargs)
    return tuple(
        out if isinstance(tensor, Moments) else out.mean
        for tensor, out in zip(given, moved, strict=True)
    )


_TOGETHER: dict[str, Any] = {"fidelity": STRUCTURAL, "kind": Kind.STRUCTURAL}
_TOGETHER |= {"takes_target": True, "views_each": True}
rule(
    "broadcast_tensors",
    samples=[Sample(normal(3, 1), normal(4)), Sample(normal(3, 1), constant(4))],
    **_TOGETHER,
)(_together)
rule(
    "meshgrid",
    samples=[
        Sample(normal(3), normal(4), indexing="ij"),
        Sample(constant(3), normal(4), indexing="xy"),
    ],
    **_TOGETHER,
)(_together)


_PACK = variable_functions._pack_padded_sequence, _aten._pack_padded_sequence.default
_PAD = variable_functions._pad_packed_sequence, _aten._pad_packed_sequence.default
_PADDED = {0: "data", 3: "padding_value"}
structural(
    *_PACK,
    name="pack_padded_sequence",
    samples=[
        Sample(normal(3, 2, 4), torch.tensor([3, 2]), False),
        Sample(normal(2, 3, 4), torch.tensor([3, 1]), True),
    ],
    views=False,
)
structural(
    *_PAD,
    name="pad_packed_sequence",
    samples=[
        Sample(normal(5, 4), torch.tensor([2, 2, 1]), False, 0.5, 4),
        Sample(normal(5, 4), torch.tensor([2, 2, 1]), True, 0.0, -1),
    ],
    data=_PADDED,
    views=False,
)


# Sums of elements that meet in one place.
structural(
    "scatter_add",
    samples=operands((3, 4), 0, _ROWS, second=(2, 4)),
    op=torch.scatter_add,
    data={0: "input", 3: "src"},
    fidelity=EXACT,
    kind=Kind.FORMULA,
    views=False,
    inplace=True,
)


@rule(
    "scatter",
    samples=[*operands((3, 4), 0, _ROWS, second=(2, 4)), Sample(normal(3, 4), 0, _ROWS, value=0.5)],
)
def scatter(
    input: Moments | Tensor, dim: int, index: Tensor, *args: object, **kwargs: object
) -> Moments:
    """Elements replaced, or added to, in mean and variance.

    Assumes: a constant index; elements that are added up are independent; exact then.

    Source: definition.
    """
    reduce = kwargs.pop("reduce", None)
    if reduce == "multiply":
        raise NoRuleError("`scatter` has a rule for replacing and adding; multiply with `mul`.")
    if args and not isinstance(args[0], (Moments, Tensor)):
        args, kwargs = (), {**kwargs, "value": args[0]}
    op = torch.scatter if reduce is None else torch.scatter_add
    return move(op, {0: "input", 3: "src", 4: "value"}, input, dim, index, *args, **kwargs)


@rule(
    "scatter_reduce",
    samples=[
        Sample(normal(3, 4), 0, _ROWS, normal(2, 4), reduce, include_self=include_self)
        for reduce in ("sum", "mean")
        for include_self in (True, False)
    ],
)
def scatter_reduce(
    input: Moments | Tensor,
    dim: int,
    index: Tensor,
    src: Moments | Tensor,
    reduce: str,
    *,
    include_self: bool = True,
) -> Moments:
    """Var = sum of the variances that meet in an element; over n**2 for a mean.

    Assumes: a constant index and independent elements; exact then.

    Source: `sum`, `mean`.
    """
    if reduce not in ("sum", "mean"):
        raise NoRuleError(f"`scatter_reduce` has rules for sum and mean, not for `{reduce}`.")

    def op(x: Tensor, y: Tensor, how: str = "sum") -> Tensor:
        return torch.scatter_reduce(x, dim, index, y, how, include_self=include_self)

    total = move(op, {0: "input", 1: "src"}, input, src)
    if reduce == "sum":
        return total
    count = op(torch.ones_like(total.var), torch.ones_like(mean_of(src)).to(total.var))
    return Moments(op(mean_of(input), mean_of(src), "mean"), total.var / count.square())


@rule(
    "index_add",
    samples=[
        *operands((3, 4), 1, torch.tensor([2, 0, 2]), second=(3, 3)),
        Sample(normal(3, 4), 1, _COLUMNS, normal(3, 2), alpha=-0.5),
    ],
)
def index_add(
    input: Moments | Tensor, dim: int, index: Tensor, source: Moments | Tensor, *, alpha: float = 1
) -> Moments:
    """As `add`, at the indexed positions."""
    scaled = mean_of(source) * alpha
    if isinstance(source, Moments):
        scaled = Moments(scaled, source.var * alpha**2)
    return move(torch.index_add, {0: "input", 3: "source"}, input, dim, index, scaled)


structural(
    F.fold,
    _aten.col2im.default,
    samples=[
        Sample(normal(2, 8, 12), (4, 5), (2, 2)),
        Sample(normal(2, 8, 6), output_size=(4, 5), kernel_size=2, stride=2, padding=(0, 1)),
    ],
    op=F.fold,
    fidelity=EXACT,
    kind=Kind.LINEAR_MAP,
    views=False,
)


# Conversions, and new tensors made in the image of a Gaussian.
_CASTS = ("to", "type", "type_as", "float", "double", "half", "bfloat16", "cpu", "cuda")


@rule(
    *(getattr(Tensor, name) for name in _CASTS),
    _aten.to.dtype,
    _aten.to.dtype_layout,
    _aten.to.device,
    _aten._to_copy.default,
    name="cast",
    fidelity=STRUCTURAL,
    samples=sample((3, 4), torch.float64),
    kind=Kind.STRUCTURAL,
    takes_target=True,
)
def cast(
    target: Target, input: Moments | Tensor, *args: object, **kwargs: object
) -> Moments | Tensor | str:
    """The mean is cast or moved; the variance follows, in float32 at the least.

    Assumes: rounding to the new dtype adds no noise worth carrying.

    Source: definition.
    """
    mean = target(mean_of(input), *mean_of(args), **mean_of(kwargs))
    if not isinstance(input, Moments) or isinstance(mean, str):
        return mean  # a constant cast to the type of a Gaussian; the name of a type
    if mean is input.mean:
        return input
    if not mean.dtype.is_floating_point:
        raise NoRuleError(
            "Rounding a Gaussian to integers is a step function and has no smooth moments; "
            "compute indices and labels from a tensor without noise."
        )
    return Moments(mean, input.var.to(mean.device, variance_dtype(mean.dtype)))


_LIKE = ("zeros_like", "ones_like", "full_like", "empty_like", "rand_like", "randn_like")
_NEW = ("new_zeros", "new_ones", "new_full", "new_empty", "new_tensor")


@rule(
    *(getattr(torch, name) for name in _LIKE),
    *(getattr(Tensor, name) for name in _NEW),
    *(getattr(_aten, name).default for name in (*_LIKE, *_NEW[:4])),
    name="new tensors",
    fidelity=STRUCTURAL,
    samples=sample((3, 4)),
    kind=Kind.CONSTRUCTION,
    takes_target=True,
)
def new_tensor(target: Target, input: Moments, *args: object, **kwargs: object) -> Moments | Tensor:
    """A constant: variance 0; ready to have Gaussians written into it.

    Assumes: nothing.

    Source: definition.
    """
    if next(leaves_of([args, kwargs], Moments), None) is not None:
        raise NoRuleError(
            "It would fill a constant tensor with a Gaussian and drop its variance; use "
            "`x.clone()` or `value.expand(...)`."
        )
    made = target(input.mean, *args, **kwargs)
    return certain(made) if made.dtype.is_floating_point else made


@rule(
    "fill",
    "zero",
    fidelity=STRUCTURAL,
    kind=Kind.CONSTRUCTION,
    samples=[Sample(normal(3, 4), 2.0), Sample(normal(3, 4), constant())],
)
def fill(self: Moments, value: float | Tensor = 0.0) -> Moments:
    """A constant in every element: variance 0.

    Assumes: nothing.

    Source: definition.
    """
    if isinstance(value, Moments) or not isinstance(self, Moments):
        raise NoRuleError("`fill_` with a Gaussian makes one value of many; use `expand`.")
    mean = torch.zeros_like(self.mean) + value
    return Moments(mean.to(self.mean.dtype), torch.zeros_like(self.var))


@rule("nan_to_num", fidelity=STRUCTURAL, samples=sample((3, 4)), kind=Kind.STRUCTURAL, views=False)
def nan_to_num(
    input: Moments,
    nan: float | None = None,
    posinf: float | None = None,
    neginf: float | None = None,
) -> Moments:
    """The identity where the mean is finite; a replaced element has variance 0.

    Assumes: nothing; a Gaussian with a finite mean is finite.

    Source: definition.
    """
    finite = torch.isfinite(input.mean)
    var = torch.where(finite, input.var, torch.zeros_like(input.var))
    return Moments(torch.nan_to_num(input.mean, nan, posinf, neginf), var)


@rule(
    *(F.dropout, F.dropout1d, F.dropout2d, F.dropout3d),
    *("dropout", "alpha_dropout", "feature_alpha_dropout", "feature_dropout"),
    fidelity=STRUCTURAL,
    samples=[Sample(normal(2, 3, 4), 0.5, False), Sample(normal(2, 3, 4), p=0.2, training=False)],
    kind=Kind.STRUCTURAL,
)
def dropout(
    input: Moments, p: float = 0.5, training: bool = True, inplace: bool = False
) -> Moments:
    """The identity in eval mode.

    Assumes: eval mode; sampling masks is the business of howsure's methods.

    Source: Srivastava et al. 2014.
    """
    if training and p > 0:
        raise NoRuleError(
            "Dropout in train mode draws a random mask. Call `model.eval()`; howsure places and "
            "samples dropout by itself."
        )
    return input


# Questions that the mean answers: shapes and devices, and whether numbers are finite.
_ATTRIBUTES = (
    "shape ndim dtype device layout names is_cuda is_cpu is_mps is_meta is_quantized is_sparse "
    "is_nested is_mkldnn is_xpu is_leaf requires_grad grad_fn grad itemsize nbytes output_nr "
    "is_vulkan is_ipu is_sparse_csr is_xla is_ort is_mtia is_maia name"
)
_METHODS = (
    "dim ndimension size numel nelement stride is_contiguous element_size storage_offset "
    "is_floating_point is_complex is_signed get_device __len__ is_inference dim_order "
    "is_same_size is_pinned is_shared is_conj is_neg has_names"
)


def _attributes_of(owner: object, names: str) -> list[Target]:
    """The attributes with these names, as far as this torch has them."""
    return [getattr(owner, name) for name in names.split() if hasattr(owner, name)]


value_only(
    *(attribute.__get__ for attribute in _attributes_of(Tensor, _ATTRIBUTES)),
    *_attributes_of(Tensor, _METHODS),
    *_attributes_of(torch, _METHODS),
    _aten.sym_size.int,
    _aten.size.int,
    name="metadata",
)
value_only(_aten._assert_tensor_metadata.default, name="assertions")
value_only("isnan", "isinf", "isfinite", "isposinf", "isneginf", name="finiteness")


@rule(
    "eq",
    "ne",
    "not_equal",
    name="equality",
    fidelity=STRUCTURAL,
    samples=sample((3, 4), -math.inf),
    kind=Kind.VALUE_ONLY,
    takes_target=True,
)
def equality(target: Target, input: object, other: object) -> Tensor:
    """Whether the mean is infinite, as a mask leaves it; other comparisons are random.

    Assumes: a comparison with infinity.

    Source: definition.
    """
    if isinstance(input, Moments) and isinstance(other, float) and math.isinf(other):
        return target(input.mean, other)
    raise NoRuleError(
        "Whether a Gaussian equals a value is random, not a mask. Compute the mask from a tensor "
        "without noise."
    )


# Operations that have no Gaussian answer, each with its reason and the remedy.
def _operations(names: str, inplace: bool = False) -> Sequence[Target]:
    return spellings(*names.split(), inplace=inplace)


refuse(
    *_attributes_of(
        Tensor,
        "numpy __array__ tolist item __float__ __int__ __index__ __complex__ __reversed__ "
        "__contains__ __dlpack__ __dlpack_device__ data_ptr storage untyped_storage __format__",
    ),
    _aten.item.default,
    Tensor.__cuda_array_interface__.__get__,  # pyright: ignore[reportFunctionMemberAccess]
    name="plain numbers",
    reason="A Gaussian has no plain value to take out of the model, and taking its mean would "
    "drop the variance silently. Move this step behind `propagate`, which returns `.mean` "
    "and `.var`.",
)
refuse(
    Tensor.__bool__,
    *_operations("equal allclose isclose all any"),
    name="branches",
    reason="A branch on a random value has no Gaussian answer. Branch on the shape or on a tensor "
    "without noise; where the branch only picks a numerically safer form, keep one form.",
)
refuse(
    *_operations(
        "gt ge lt le greater greater_equal less less_equal logical_not logical_and logical_or",
        inplace=True,
    ),
    name="comparisons",
    reason="Whether a Gaussian exceeds a value is random, not a mask. Use `torch.relu`, "
    "`torch.clamp`, `torch.maximum` or a steep `torch.sigmoid` in the model, or compute the mask "
    'from a tensor without noise. `fallback="linearize"` freezes the mask at the mean.',
    can_fall_back=True,
)
refuse(
    *_operations(
        "sign sgn round floor ceil trunc frac heaviside floor_divide remainder fmod", inplace=True
    ),
    name="steps",
    reason="A step function has no useful first-order moments. Replace it in the model by a "
    "smooth or piecewise linear form, e.g. `torch.clamp`.",
)
refuse(
    *_operations(
        "sort argsort topk argmax argmin kthvalue median nanmedian mode unique nonzero msort "
        "quantile nanquantile cummax cummin argwhere aminmax bincount histc searchsorted "
        "bucketize multinomial bernoulli"
    ),
    name="order",
    reason="The order of random values is random itself. Take `.mean` of `propagate`'s result "
    'and sort that, or use `torch.amax`, whose moments are known; `fallback="linearize"` freezes '
    "the order at the mean.",
    can_fall_back=True,
)
refuse(
    *_attributes_of(
        Tensor,
        "backward register_hook retain_grad requires_grad_ set_ resize_ share_memory_ "
        "pin_memory to_sparse",
    ),
    *(getattr(Tensor, name).__set__ for name in ("data", "grad", "requires_grad", "real", "imag")),
    name="tensor management",
    reason="A Gaussian lives inside one pass and owns no storage. Do this on the tensors before "
    "`propagate`.",
)
refuse(
    F.gumbel_softmax,
    name="gumbel_softmax",
    reason="`gumbel_softmax` draws random numbers of its own. Use `torch.softmax` at inference.",
)
_TRANSFORMS = [
    transform
    for name, transform in vars(torch.fft).items()
    if "fft" in name and not name.endswith("freq") and callable(transform)
]
refuse(
    *_TRANSFORMS,
    *_operations("stft istft view_as_complex polar"),
    torch.complex,
    name="complex numbers",
    reason="The result is complex, and howsure's Gaussians are real. Write the transform in the "
    "model as a product with constant cosine and sine matrices, or as a convolution, which have "
    "rules.",
)
