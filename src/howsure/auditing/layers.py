"""Where diagonal ADF departs from the truth: its std and mean at every layer, for sensor noise.

Forward hooks watch the user's model, and are gone when this is over, also after an exception. Of
each layer some thousand elements are watched, so that memory stays bounded.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from howsure.auditing.case import Case
from howsure.auditing.truth import Clock
from howsure.methods.passes import Pass, no_gradients
from howsure.moments.interpreter import Gaussian
from howsure.noise import sample_of
from howsure.progress import progress
from howsure.trees import TensorTree

# Monte Carlo passes; the std of each element is known to 5 %, of a layer much better.
PASSES, LEAST = 200, 20
_ELEMENTS = 4096
# Elements with less of the layer's mean variance than this have no std worth comparing.
_LIVE = 0.01
OUTPUT = "(output)"

Receive = Callable[[str, nn.Module, object], None]


@dataclass(frozen=True)
class LayerRow:
    """Diagonal ADF at the output of one layer.

    Attributes:
        name: Path of the module; `#2` for its second call.
        kind: Its class.
        shape: Shape of its output.
        ratio: Median over its elements of predicted std / true std. Elements with less than 1 %
            of the layer's mean variance are left out: units that are as good as switched off.
        mean_error: Root mean square of predicted minus true mean, in units of the true std.
    """

    name: str
    kind: str
    shape: tuple[int, ...]
    ratio: float
    mean_error: float

    @property
    def departs(self) -> bool:
        """Whether the std is off by more than a quarter."""
        return not 0.8 <= self.ratio <= 1.25


@dataclass
class Running:
    """Mean and sum of squared deviations, updated draw by draw (Welford 1962)."""

    count: int = 0
    mean: Tensor = field(default_factory=lambda: torch.zeros(()))
    squares: Tensor = field(default_factory=lambda: torch.zeros(()))

    def add(self, values: Tensor) -> None:
        """Adds one more draw."""
        self.count += 1
        moved = values - self.mean
        self.mean = self.mean + moved / self.count
        self.squares = self.squares + moved * (values - self.mean)


class Watch:
    """Picks the same elements of every layer's output in every pass."""

    def __init__(self, seed: int) -> None:
        self.generator = torch.Generator().manual_seed(seed)
        self.places: dict[str, Tensor] = {}
        self.calls: dict[str, int] = {}
        self.predicted: dict[str, tuple[str, tuple[int, ...], Tensor, Tensor]] = {}
        self.drawn: dict[str, Running] = {}

    def gaussians(self, path: str, module: nn.Module, output: object) -> None:
        """Notes means and variances of a layer on Gaussians."""
        for key, tensor in self._named(path, output):
            if isinstance(tensor, Gaussian):
                moments, shape = tensor.read(), tuple(tensor.shape)
                mean, var = (self._picked(key, each) for each in (moments.mean, moments.var))
                self.predicted[key] = (type(module).__name__, shape, mean, var)

    def numbers(self, path: str, module: nn.Module, output: object) -> None:
        """Adds the numbers of a layer to its moments."""
        for key, tensor in self._named(path, output):
            if key in self.predicted:
                self.drawn.setdefault(key, Running()).add(self._picked(key, tensor))

    def _named(self, path: str, output: object) -> Iterator[tuple[str, Tensor]]:
        self.calls[path] = self.calls.get(path, 0) + 1
        tensors = TensorTree(output).tensors
        call = path if self.calls[path] == 1 else f"{path}#{self.calls[path]}"
        for index, tensor in enumerate(tensors):
            yield (call if len(tensors) == 1 else f"{call}[{index}]"), tensor

    def _picked(self, key: str, tensor: Tensor) -> Tensor:
        """Some elements of a tensor; copied, since a later layer may write in place."""
        if key not in self.places:
            count = tensor.numel()
            few = count <= _ELEMENTS
            self.places[key] = (
                torch.arange(count)
                if few
                else torch.randint(count, (_ELEMENTS,), generator=self.generator)
            ).to(tensor.device)
        return tensor.take(self.places[key]).double()


@contextmanager
def watched(model: nn.Module, receive: Receive) -> Iterator[None]:
    """Calls `receive(path, module, output)` for every leaf module and for the model itself."""
    handles = [
        module.register_forward_hook(_hook(path or OUTPUT, receive))
        for path, module in model.named_modules()
        if not path or next(module.children(), None) is None
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _hook(path: str, receive: Receive) -> Callable[[nn.Module, object, object], None]:
    def hook(module: nn.Module, args: object, output: object) -> None:
        receive(path, module, output)

    return hook


def layer_rows(
    case: Case, clock: Clock, *, share: float, passes: int, seed: int, show: bool
) -> tuple[LayerRow, ...]:
    """ADF against Monte Carlo at every layer that noise reaches, in the order of the calls."""
    model, watch = case.setup.model, Watch(seed)
    assert isinstance(model, nn.Module)
    generator = torch.Generator().manual_seed(seed + 1)
    with no_gradients():
        with watched(model, watch.gaussians):
            Pass(case.setup, case.x).gaussian()
        with watched(model, watch.numbers):
            for index in progress(range(passes), show, "audit: layers"):
                if index >= LEAST and clock.past(share):
                    break
                watch.calls.clear()
                noise, axis = case.setup.noise, case.setup.batch_dim
                Pass(case.setup, sample_of(noise, case.x, generator, batch_dim=axis)).plain()
    rows = (_row(key, watch) for key in watch.predicted)
    return tuple(row for row in rows if row is not None)


def _row(key: str, watch: Watch) -> LayerRow | None:
    """The row of a layer; `None` where the noise moves nothing, or the path was another one."""
    kind, shape, mean, var = watch.predicted[key]
    drawn = watch.drawn.get(key)
    if drawn is None or drawn.count < 2 or not float(drawn.squares.sum()) > 0:
        return None
    true = drawn.squares / (drawn.count - 1)
    true_var = float(true.mean())
    live = true >= _LIVE * true_var
    ratio = math.sqrt(float((var[live] / true[live]).median()))
    # The sampled mean has noise of its own, which is not the prediction's error.
    square = float((mean - drawn.mean).square().mean()) - true_var / drawn.count
    return LayerRow(key, kind, shape, ratio, math.sqrt(max(square, 0.0) / true_var))
