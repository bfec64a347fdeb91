"""A sensor's noise as a value, and what can be done to any noise: scale, normalize, add, save."""

from __future__ import annotations

import dataclasses
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any, ClassVar, TypeAlias, get_args, get_type_hints

import numpy as np
import torch
from torch import Tensor

from howsure.trees import brief, has_values, map_leaves, outside_tracing

# Draws from which the number of dimensions of a noise is estimated.
_DRAWS = 64
# A parameter of a noise. A number stays a number: it has no device and no dtype to convert.
Value: TypeAlias = float | Tensor
# What users may give for it: a number, a tensor, an array or a list of numbers.
Numbers: TypeAlias = Any
# Some samples of a batch: a range, or their indices.
Index = slice | Tensor


def as_value(value: object, name: str) -> Value:
    """`value` as a float, or as a floating-point tensor that no other code can change.

    A tensor that requires grad is kept as it is, so that a noise can be learned.
    """
    if isinstance(value, Real) and not isinstance(value, bool):
        return float(value)
    if isinstance(value, Tensor) and value.dtype.is_floating_point:
        return value if value.requires_grad else value.clone()
    try:
        if isinstance(value, bool) or (isinstance(value, Tensor) and value.is_complex()):
            raise TypeError
        # Lists in float64: each call converts them to the dtype of its input.
        return torch.from_numpy(np.array(value, dtype=np.float64))
    except (TypeError, ValueError, RuntimeError):
        raise TypeError(
            f"`{name}` is a {type(value).__name__}; give a number, a tensor or a list of numbers."
        ) from None


def check(name: str, value: Value, *, positive: bool = False, signed: bool = False) -> None:
    """Refuses NaN and infinity, negative numbers unless `signed`, and 0 if `positive`."""
    if isinstance(value, Tensor):
        if not has_values(value):
            return
        value = value.detach()
        is_finite, low = bool(value.isfinite().all()), float(value.min()) if value.numel() else 0.0
    else:
        is_finite, low = math.isfinite(value), value
    if not is_finite:
        raise ValueError(f"`{name}` contains NaN or infinity; give finite numbers.")
    if low < 0 and not signed:
        raise ValueError(f"`{name}` contains {low:g}; it cannot be negative, so give 0 or more.")
    if low == 0 and positive:
        raise ValueError(f"`{name}` contains 0; give positive numbers.")


def like(value: Value, x: Tensor) -> Tensor:
    """`value` as a tensor of the dtype and on the device of `x`."""
    if isinstance(value, Tensor):
        return value.to(x.dtype).to(x.device)  # in this order: not every device has float64
    return torch.full((), value, dtype=x.dtype, device=x.device)


def along_channels(value: Value, x: Tensor, dim: int, name: str) -> Tensor:
    """`value` like `x`, with the numbers of a 1-D tensor laid along dimension `dim` of `x`.

    A number and a tensor of more dimensions broadcast as they are.
    """
    tensor = like(value, x)
    if tensor.dim() != 1 or tensor.numel() == 1:
        return tensor
    if not -x.dim() <= dim < x.dim() or x.shape[dim] != len(tensor):
        raise ValueError(
            f"`{name}` has {len(tensor)} numbers for dimension {dim} of an input of shape "
            f"{tuple(x.shape)}; give one number per channel and `dim=`, the dimension that counts "
            "the channels (1 in a batch of images, 0 in a single image)."
        )
    shape = [1] * x.dim()
    shape[dim] = -1
    return tensor.reshape(shape)


def widen(x: Tensor) -> Tensor:
    """`x` in the dtype in which variances are computed: at least float32."""
    if not isinstance(x, Tensor) or not x.dtype.is_floating_point:
        kind = x.dtype if isinstance(x, Tensor) else type(x).__name__
        raise TypeError(
            f"The input of a noise is {kind}, and only floating-point tensors can carry noise; "
            "convert it as the model's preprocessing does."
        )
    return x.float() if x.dtype.itemsize < 4 else x


def batch_first(value: Tensor, x: Tensor, batch_dim: int | None) -> Tensor:  # (batch, *input)
    """A value that broadcasts to `x`, expanded to its shape, with the batch dimension in front."""
    expanded = value.expand(x.shape)
    return expanded.unsqueeze(0) if batch_dim is None else expanded.movedim(batch_dim, 0)


def input_shape(x: Tensor, batch_dim: int | None) -> tuple[int, ...]:
    """The shape of one sample of the batch `x`."""
    if batch_dim is None:
        return tuple(x.shape)
    batch_dim %= x.dim()
    return (*x.shape[:batch_dim], *x.shape[batch_dim + 1 :])


@dataclass(frozen=True, eq=False)
class Root:
    """A square root S of the covariance of one sample's noise: the noise is S z, z standard normal.

    Attributes:
        shape: Shape of z for one sample.
        apply: S as a function of z, (draws, batch, *shape), and of the samples of the batch that z
            is for; it returns the noise, (draws, batch, *sample's shape).
        is_diagonal: Whether each number of z is the noise of one element, so that the variance of
            an output can be split by element.
        std: The one std of all elements, where S is a multiplication by it.

    Examples:
        >>> noise = hs.noise.correlated([[1.0, 0.5], [0.5, 1.0]])
        >>> [(number, name, root)] = hs.noise.roots_of(noise, torch.zeros(3, 2))
        >>> number, root.shape, root.is_diagonal
        (0, (2,), False)
    """

    shape: tuple[int, ...]
    apply: Callable[[Tensor, Index], Tensor]
    is_diagonal: bool = False
    std: float | None = None

    @classmethod
    def diagonal(cls, std: Tensor) -> Root:  # (batch, *input)
        """Independent noise of this std for every element."""
        return cls(tuple(std.shape[1:]), lambda z, index: std[index] * z, is_diagonal=True)

    @classmethod
    def uniform(cls, var: float, shape: tuple[int, ...], dtype: torch.dtype) -> Root:
        """Independent noise of one variance: S is a multiplication by a Python float."""
        with outside_tracing():  # torch's root, which is not always that of Python
            std = float(torch.tensor(var, dtype=dtype).sqrt())
        if dtype == torch.float64:  # which z has, unless another input of the model is float32
            return cls(shape, lambda z, _: std * z.double(), is_diagonal=True, std=std)
        return cls(shape, lambda z, _: std * z, is_diagonal=True, std=std)

    def add_to(self, x: Tensor, z: Tensor, index: Index) -> Tensor:
        """The noisy input x + S z, in the type of `x`."""
        if self.std is not None and x.dtype == z.dtype:
            return torch.add(x, z, alpha=self.std)
        return (x + self.apply(z, index)).to(x.dtype)

    @classmethod
    def concatenate(cls, roots: Sequence[Root]) -> Root:
        """The root of a sum of independent noises: their z side by side, flat."""
        sizes = [math.prod(root.shape) for root in roots]

        def apply(z: Tensor, index: Index) -> Tensor:
            parts = zip(roots, z.split(sizes, -1), strict=True)
            # Not `unflatten`, which refuses an empty shape: one number for a sample.
            first, *others = (
                root.apply(part.reshape(*z.shape[:2], *root.shape), index) for root, part in parts
            )
            return sum(others, start=first)

        return cls((sum(sizes),), apply)

    def times(self, std: Tensor) -> Root:  # (batch, *input)
        """The root of the noise multiplied by `std`, element by element."""
        return Root(self.shape, lambda z, index: std[index] * self.apply(z, index))

    def joint(self, batch: int, batch_dim: int) -> Root:
        """The root of a whole batch taken as one sample; its parts stay independent."""

        def apply(z: Tensor, _: Index) -> Tensor:
            return self.apply(z[:, 0], slice(None)).movedim(1, 1 + batch_dim).unsqueeze(1)

        return Root((batch, *self.shape), apply)

    def dimensions(self, x: Tensor) -> float:
        """The effective number of independent directions of the first sample's noise.

        (Sum of variances)^2 / sum of squared covariances: 1 for an offset, 1.5 for a random walk.
        Estimated from draws, within some 20 %; infinite without any noise.
        """
        shape, generator = (_DRAWS, 1, *self.shape), torch.Generator().manual_seed(0)
        z = torch.randn(shape, generator=generator).to(x.device, widen(x).dtype)
        noise = self.apply(z, slice(0, 1)).flatten(1)
        # For independent draws a and b: E <a, a> is the sum of variances, E <a, b>^2 that of
        # squared covariances.
        products = noise @ noise.mT
        norms = products.diagonal()
        squares = (products.square().sum() - norms.square().sum()) / (_DRAWS * (_DRAWS - 1))
        return float(norms.mean().square() / squares) if bool(squares > 0) else math.inf


@dataclass(frozen=True, eq=False)
class Noise(ABC):
    """How much a sensor's reading varies: a variance for every element of an input.

    Calling a noise with an input gives the variance `v` of the model's input, N(x, v) (Loquercio,
    Segu & Scaramuzza 2020, Eq. 1). Elements are independent, unless the noise `is_correlated`. The
    variance is in the square of the units in which the model sees the input.

    Examples:
        >>> noise = hs.noise.std(0.1) + hs.noise.quantization(0.5)
        >>> noise(torch.zeros(1))  # 0.1**2 + 0.5**2 / 12
        tensor(0.0308)
    """

    kind: ClassVar[str] = ""  # the name of the noise in a config; without one it is not saved
    _kinds: ClassVar[dict[str, type[Noise]]] = {}  # every class with a kind enters itself

    def __init_subclass__(cls, **options: object) -> None:
        """Enters the class by its `kind`, and keeps the `repr` that never shows tensors in full."""
        super().__init_subclass__(**options)
        if "__repr__" not in vars(cls):
            cls.__repr__ = Noise.__repr__
        if kind := vars(cls).get("kind"):
            taken = Noise._kinds.get(kind, cls)
            # A cell of a notebook, or a reloaded module, may define its class again.
            is_same = taken.__qualname__ == cls.__qualname__ and (
                taken.__module__ == cls.__module__ or not taken.__module__.startswith("howsure.")
            )
            if not is_same:
                raise ValueError(
                    f"The noise `{cls.__name__}` has the kind {kind!r}, which is that of "
                    f"`{taken.__module__}.{taken.__name__}`; give it another, since files name it."
                )
            Noise._kinds[kind] = cls

    def _convert(self, *names: str, positive: bool = False, signed: bool = False) -> None:
        """Makes a `Value` of these fields and checks it, as a new noise does."""
        for name in names:
            value = as_value(getattr(self, name), name)
            check(name, value, positive=positive, signed=signed)
            object.__setattr__(self, name, value)

    def __repr__(self) -> str:
        """The class and its fields in one line."""
        fields = ", ".join(f"{name}={brief(value)}" for name, value in self._fields().items())
        return f"{type(self).__name__}({fields})"

    def _fields(self) -> dict[str, Any]:
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}

    @abstractmethod
    def var_at(self, x: Tensor) -> Tensor:
        """The variance at `x`, which is in float32 or float64; it must broadcast to `x`."""

    def __call__(self, x: Tensor) -> Tensor:
        """The variance of every element of `x`, as a tensor that broadcasts to it.

        It has the dtype of `x`; for a half-precision `x` it is float32.
        """
        var = self.var_at(widen(x))
        sizes = zip(reversed(var.shape), reversed(x.shape), strict=False)
        if var.dim() > x.dim() or any(size not in (1, length) for size, length in sizes):
            raise ValueError(
                f"A noise variance of shape {tuple(var.shape)} does not broadcast to an input of "
                f"shape {tuple(x.shape)}; variances per channel of images have shape (C, 1, 1), "
                "or come from `howsure.noise.per_channel`."
            )
        return var

    @property
    def uniform_var(self) -> float | None:
        """The variance, if it is one number for every element of every input."""
        return None

    @property
    def is_correlated(self) -> bool:
        """Whether elements vary together: true for every class that defines its own `root`."""
        return type(self).root is not Noise.root

    def root(self, x: Tensor, batch_dim: int | None = 0) -> Root:
        """The square root of the noise's covariance at `x`, for each sample of the batch.

        It is diagonal for independent noise. A noise whose elements are correlated overrides this
        method: any linear map from standard normal numbers to noise will do.
        """
        if self.uniform_var is not None:
            return Root.uniform(self.uniform_var, input_shape(x, batch_dim), widen(x).dtype)
        return Root.diagonal(batch_first(self(x).sqrt(), x, batch_dim))

    def sample(
        self, x: Tensor, generator: torch.Generator | None, *, batch_dim: int | None = 0
    ) -> Tensor:
        """`x` plus Gaussian noise with the covariance at `x`; `None` takes torch's own generator.

        The noise is independent between samples along `batch_dim`; with `None`, `x` is one sample.
        """
        if not self.is_correlated:  # Its random numbers come in the order of the elements of `x`.
            batch_dim = None
        wide, device = widen(x), x.device if generator is None else generator.device
        root = self.root(x, batch_dim)
        shape = (1, 1 if batch_dim is None else x.shape[batch_dim], *root.shape)
        z = torch.randn(shape, generator=generator, dtype=wide.dtype, device=device).to(wide)
        noise = root.apply(z, slice(None))[0]
        noise = noise[0] if batch_dim is None else noise.movedim(0, batch_dim)
        return (wide + noise).to(x.dtype)

    def independent(self) -> Noise:
        """The noise of the same variance whose elements are independent of each other."""
        return Independent(self)

    def scaled(self, factor: float | Tensor) -> Noise:
        """The noise with `factor` times the variance; a factor of 4 doubles the std."""
        return Scaled(self, factor)

    def through_normalize(self, mean: Numbers, std: Numbers, *, dim: int = 1) -> Noise:
        """The noise of (x - mean) / std, where this is the noise of x.

        The variance is divided by std**2. A noise that depends on the signal sees the input mapped
        back to its own units, x * std + mean. Chain the calls in the order of the preprocessing:
        `noise.through_normalize(0, 255).through_normalize(mean, std)`.

        Args:
            mean: A number, one number per channel, or a tensor that broadcasts to the input.
            std: Likewise, positive.
            dim: The dimension of the input that counts the channels.
        """
        return Normalized(self, mean, std, dim)

    def __add__(self, other: Noise) -> Noise:
        """Both noises at once, independent of each other: their variances add."""
        return Sum((self, other)) if isinstance(other, Noise) else NotImplemented

    def to(self, device: torch.device | str) -> Noise:
        """The noise with its tensors on `device`, which saves a copy in every call."""
        return map_leaves(lambda leaf: leaf.to(device) if isinstance(leaf, Tensor) else leaf, self)

    def to_config(self) -> dict[str, object]:
        """The noise as plain data for JSON; `howsure.noise.from_config` reads it back.

        A class of your own is saved by its `kind`, and must be imported before it is loaded: a
        file cannot hold its code. Without a `kind` it is refused.
        """
        defined = vars(type(self))
        if not defined.get("kind") or "__dataclass_fields__" not in defined:
            raise TypeError(
                f"A noise of your own class `{type(self).__name__}` cannot be saved, because a "
                "file cannot hold its code. Make it a dataclass with a `kind` of its own, a name "
                "by which it is found again, or save without it and set the noise after loading."
            )
        return {"kind": self.kind, **encode(self._fields())}

    @staticmethod
    def of_kind(kind: object) -> type[Noise]:
        """The class that has this `kind`."""
        if not isinstance(kind, str) or kind not in Noise._kinds:
            raise ValueError(
                f"The noise kind {kind!r} is unknown; the known kinds are "
                f"{', '.join(Noise._kinds)}. Import a class of your own first; a newer version of "
                "howsure may have more."
            )
        return Noise._kinds[kind]

    @classmethod
    def from_numbers(cls, *numbers: float) -> Noise:
        """The noise whose first fields are these numbers, as the command line gives them."""
        fields, hints = dataclasses.fields(cls), get_type_hints(cls)
        values: list[float] = []
        for number, field in zip(numbers, fields, strict=False):
            types = get_args(hints[field.name]) or (hints[field.name],)
            if float in types:
                values.append(number)
            elif int in types and float(number).is_integer():
                values.append(int(number))
        required = sum(field.default is dataclasses.MISSING for field in fields)
        if not required <= len(values) == len(numbers):
            raise ValueError(
                f"the noise `{cls.kind}` has the fields {', '.join(f.name for f in fields)}, which "
                f"{len(numbers)} numbers do not give; save it with `to_config` and name the file."
            )
        return cls(*values)


@dataclass(frozen=True, eq=False)
class _Rescaled(Noise):
    """Another noise times a std."""

    noise: Noise

    @abstractmethod
    def _rescaling(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The input that the other noise sees, and the factor of its variance."""

    @property
    def is_correlated(self) -> bool:
        """Whether the other noise is."""
        return self.noise.is_correlated

    def var_at(self, x: Tensor) -> Tensor:
        """The variance of the other noise times the factor."""
        raw, factor = self._rescaling(x)
        return self.noise(raw) * factor

    def root(self, x: Tensor, batch_dim: int | None = 0) -> Root:
        """The other root times the root of the factor."""
        if not self.is_correlated:
            return super().root(x, batch_dim)
        raw, factor = self._rescaling(widen(x))
        return self.noise.root(raw, batch_dim).times(batch_first(factor.sqrt(), x, batch_dim))


@dataclass(frozen=True, eq=False)
class Scaled(_Rescaled):
    """`factor` times the variance of another noise."""

    kind: ClassVar[str] = "scaled"
    factor: Value

    def __post_init__(self) -> None:
        self._convert("factor")

    def _rescaling(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return x, like(self.factor, x)


@dataclass(frozen=True, eq=False)
class Normalized(_Rescaled):
    """Another noise after (x - mean) / std: var(x * std + mean) / std**2."""

    kind: ClassVar[str] = "normalized"
    mean: Value
    std: Value
    dim: int = 1

    def __post_init__(self) -> None:
        self._convert("mean", signed=True)
        self._convert("std", positive=True)

    def _rescaling(self, x: Tensor) -> tuple[Tensor, Tensor]:
        std = along_channels(self.std, x, self.dim, "std")
        mean = along_channels(self.mean, x, self.dim, "mean")
        # A noise of one variance does not look at its input.
        raw = x if self.noise.uniform_var is not None else x * std + mean
        return raw, std.square().reciprocal()


@dataclass(frozen=True, eq=False)
class Sum(Noise):
    """Noises of one input that are independent of each other."""

    kind: ClassVar[str] = "sum"
    noises: tuple[Noise, ...]

    @property
    def is_correlated(self) -> bool:
        """Whether any of the noises is."""
        return any(noise.is_correlated for noise in self.noises)

    def var_at(self, x: Tensor) -> Tensor:
        """The sum of the variances."""
        first, *others = (noise(x) for noise in self.noises)
        return sum(others, start=first)

    def root(self, x: Tensor, batch_dim: int | None = 0) -> Root:
        """The roots side by side; noises that are not correlated have one together."""
        if not self.is_correlated:
            return super().root(x, batch_dim)
        roots = [noise.root(x, batch_dim) for noise in self.noises if noise.is_correlated]
        independent = tuple(noise for noise in self.noises if not noise.is_correlated)
        if independent:
            roots.append(Sum(independent).root(x, batch_dim))
        return Root.concatenate(roots)


@dataclass(frozen=True, eq=False)
class Independent(Noise):
    """The variance of another noise, without its correlation."""

    kind: ClassVar[str] = "independent"
    noise: Noise

    def var_at(self, x: Tensor) -> Tensor:
        """var(x)."""
        return self.noise(x)


def encode(value: Any) -> Any:
    """Nested values as plain data: tensors as lists with a dtype, noises as their config.

    Examples:
        >>> hs.noise.encode(torch.ones(2))
        {'tensor': [1.0, 1.0], 'dtype': 'float32'}
    """
    if isinstance(value, Tensor):
        dtype = str(value.dtype).removeprefix("torch.")
        return {"tensor": value.detach().cpu().tolist(), "dtype": dtype}
    if hasattr(value, "to_config"):
        return value.to_config()
    if isinstance(value, dict):
        return {str(key): encode(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [encode(item) for item in value]
    return value


def decode_tensor(config: dict[str, object]) -> Tensor:
    """The tensor that `encode` wrote.

    Examples:
        >>> hs.noise.decode_tensor(hs.noise.encode(torch.ones(2)))
        tensor([1., 1.])
    """
    dtype = getattr(torch, str(config.get("dtype")), None)
    if not isinstance(dtype, torch.dtype):
        raise ValueError(
            f"The config names the dtype {config.get('dtype')!r}, which torch does not have; "
            "was it written by `to_config`?"
        )
    return torch.tensor(config["tensor"], dtype=dtype)


class NoiseEstimate(ABC):
    """What was identified from readings; it goes wherever a noise does."""

    @property
    @abstractmethod
    def estimate(self) -> Noise:
        """The noise that it stands for."""
