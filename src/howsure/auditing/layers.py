"""Where diagonal ADF departs from the truth: its std and mean at every layer, for sensor noise."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from howsure.auditing.case import Case, Clock
from howsure.auditing.check import watch_modules
from howsure.auditing.result import LayerRow
from howsure.estimators.sampling import Samples
from howsure.methods.propagation import Pass
from howsure.moments.interpreter import Gaussian
from howsure.progress import progress
from howsure.trees import TensorTree

# Monte Carlo passes; the std of each element is known to 5 %, of a layer much better.
PASSES, LEAST = 200, 20
# Of each layer so many elements are watched, so that memory stays bounded.
_ELEMENTS = 4096
# Elements with less of the layer's mean variance than this have no std worth comparing.
_LIVE = 0.01
OUTPUT = "(output)"


class Recorder:
    """Records the same elements of every layer's output, predicted by ADF and sampled."""

    def __init__(self, seed: int) -> None:
        self.generator = torch.Generator().manual_seed(seed)
        self.positions: dict[str, Tensor] = {}
        self.calls: Counter[str] = Counter()
        self.predicted: dict[str, tuple[str, tuple[int, ...], Tensor, Tensor]] = {}
        self.sampled: dict[str, Samples] = {}

    def predict(self, path: str, module: nn.Module, output: object) -> None:
        """Keeps means and variances of a layer on Gaussians."""
        for key, tensor in self._named(path, module, output):
            if isinstance(tensor, Gaussian):
                moments = tensor.read()
                mean, var = (self._select(key, t) for t in (moments.mean, moments.var))
                self.predicted[key] = type(module).__name__, tuple(tensor.shape), mean, var

    def sample(self, path: str, module: nn.Module, output: object) -> None:
        """Adds the numbers of a layer to its running moments."""
        for key, tensor in self._named(path, module, output):
            if key in self.predicted:
                draw, moments = self._select(key, tensor)[None, None, None], self.sampled.get(key)
                more = Samples.of(draw, moments)
                self.sampled[key] = more if moments is None else moments + more

    def _named(self, path: str, module: nn.Module, output: object) -> Iterator[tuple[str, Tensor]]:
        """The outputs of leaf modules and of the model itself, each with a name."""
        if path and next(module.children(), None) is not None:
            return
        path = path or OUTPUT
        self.calls[path] += 1
        call = path if self.calls[path] == 1 else f"{path}#{self.calls[path]}"
        tensors = TensorTree(output).tensors
        for index, tensor in enumerate(tensors):
            yield (call if len(tensors) == 1 else f"{call}[{index}]"), tensor

    def _select(self, key: str, tensor: Tensor) -> Tensor:
        """Some elements of a tensor; copied, since a later layer may write in place."""
        if key not in self.positions:
            count = tensor.numel()
            positions = torch.arange(count)
            if count > _ELEMENTS:
                positions = torch.randint(count, (_ELEMENTS,), generator=self.generator)
            self.positions[key] = positions.to(tensor.device)
        return tensor.take(self.positions[key]).double()

    def rows(self) -> Iterator[LayerRow]:
        """The layers, without those that the noise does not move or another path left out."""
        for key, (kind, shape, mean, var) in self.predicted.items():
            moments = self.sampled.get(key)
            if moments is None or moments.count < 2 or not float(moments.var.sum()) > 0:
                continue
            true_mean, true = moments.mean[0], moments.var[0]
            scale = float(true.mean())
            live = true >= _LIVE * scale
            ratio = math.sqrt(float((var[live] / true[live]).median()))
            # The sampled mean has noise of its own, which is not the prediction's error.
            square = float((mean - true_mean).square().mean()) - scale / float(moments.count)
            yield LayerRow(key, kind, shape, ratio, math.sqrt(max(square, 0.0) / scale))


def layer_rows(
    case: Case, clock: Clock, share: float, passes: int, *, seed: int, show: bool
) -> tuple[LayerRow, ...]:
    """ADF against Monte Carlo at every layer that noise reaches, in the order of the calls."""
    model, recorder = case.setup.model, Recorder(seed)
    assert isinstance(model, nn.Module)
    problem = case.problem(seed + 1, masks=False)
    with torch.no_grad():
        with watch_modules(model, recorder.predict):
            Pass(case.setup, case.x).gaussian()
        with watch_modules(model, recorder.sample):
            for index in progress(range(passes), show, "audit: layers"):
                if index >= LEAST and clock.past(share):
                    break
                recorder.calls.clear()
                problem.run(1, problem.draw(range(index, index + 1)).noisy)
    return tuple(recorder.rows())
