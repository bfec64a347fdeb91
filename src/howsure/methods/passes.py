"""One pass of the model, on numbers or on Gaussians, as a flat tuple of tensors."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from howsure.moments.interpreter import RuleInterpreter
from howsure.moments.numerics.squares import layers_of_variances_in
from howsure.moments.prefix import Prefix, PrefixInterpreter
from howsure.moments.propagate import Propagated, outcome, python_only, run
from howsure.noise import is_correlated
from howsure.prediction import entropy
from howsure.setup import Setup
from howsure.values.call_site import CallSites
from howsure.values.concrete import has_values
from howsure.values.trees import Parts, copied, selected

DIAGONAL = (
    "The noise is correlated, and moment propagation carries variances alone: `data_var` is that "
    'of independent noise of the same variance. Use `method="gradients"` or "noise_sampling".'
)
# A model that writes to itself, or draws random numbers, serves one thread at a time.
one_at_a_time = threading.RLock()


class Pass:
    """Runs a setup's model on one input, and remembers the output's structure.

    For classification the output is (probabilities, logits).
    """

    def __init__(self, setup: Setup, x: Any) -> None:
        self.setup = setup
        self.x = x
        self.notes: tuple[str, ...] = ()
        self.parts: Parts | None = None

    def plain(self) -> tuple[Tensor, ...]:
        """The outputs of the plain network, which may write into its copy of the inputs."""
        with python_only():
            output = self.finished(self.setup.run(copied(self.x)))
        self.parts = Parts(output)
        return tuple(self.parts.tensors)

    def settle(self) -> None:
        """Indices and masks become those of a plain pass: those of samples live inside `vmap`."""
        if self.parts is not None and self.parts.has_other_tensors():
            self.plain()

    def gaussian(
        self, prefix: Prefix | None = None
    ) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
        """The means and the variances of the outputs."""
        result = self.propagated(prefix)
        self.parts = Parts(result.mean)
        if self.setup.task == "classification":
            check_classes(self.parts.tensors[1])
        return tuple(self.parts.tensors), tuple(Parts(result.var).tensors)

    def propagated(self, prefix: Prefix | None = None) -> Propagated:
        """The moments of the output in its own structure; a prefix spares repeated work."""
        setup = self.setup
        known = (setup.rules, CallSites(setup.model), setup.fallback)
        interpreter = PrefixInterpreter(*known, prefix) if prefix else RuleInterpreter(*known)
        with layers_of_variances_in(setup.variance_dtype):
            output = run(setup.model, copied(self.x), setup.variance(self.x), interpreter)
        chosen = selected(output, setup.output)
        result = outcome(self.finished(chosen), interpreter.notes)
        correlated = (DIAGONAL,) if is_correlated(setup.noise) else ()
        self.notes = (*correlated, *result.notes)
        return result

    def finished(self, output: Any) -> Any:
        """The model's output; for classification its soft-max, and itself."""
        if self.setup.task == "regression":
            return output
        if not isinstance(output, Tensor):
            raise TypeError(
                "Classification needs a model that returns one tensor of logits, not a "
                f"{type(output).__name__}."
            )
        check_classes(output)
        return F.softmax(output, dim=1 if output.dim() > 1 else 0), output

    def with_entropy(self, output: Any) -> Any:
        """The same, for classification with the entropy of the probabilities, (batch, 1, ...)."""
        finished = self.finished(output)
        if self.setup.task == "regression":
            return finished
        axis = 1 if output.dim() > 1 else 0
        return *finished, entropy(finished[0], dim=axis).unsqueeze(axis)


def check_classes(logits: Tensor) -> None:
    """An error for a single class; a warning if the outputs look like probabilities."""
    axis = 1 if logits.dim() > 1 else 0
    if logits.shape[axis] == 1:
        raise ValueError(
            "Classification needs a logit for each class, and there is one: its softmax is 1 "
            "whatever it is. Of two classes give both: `output=lambda y: torch.cat([0 * y, y], 1)`."
        )
    if not has_values(logits) or not logits.numel() or bool((logits < 0).any()):
        return
    rounding = 8 * torch.finfo(logits.dtype).eps
    if bool(((logits.double().sum(axis) - 1).abs() <= rounding).all()):
        warnings.warn(
            "The outputs are not negative and sum to 1, as probabilities do. Classification takes "
            "its softmax, so give the logits: `output=torch.log` if the model has none.",
            stacklevel=2,
        )


def no_gradients() -> torch.no_grad:
    """Prediction needs no gradients; what it returns may be used where they are needed."""
    return torch.no_grad()


@contextmanager
def own_random_numbers(seed: int) -> Iterator[None]:
    """For a model that draws random numbers: the same ones for a seed; the caller's stay as is.

    All threads draw from one stream, so that one at a time may have it.
    """
    with one_at_a_time, torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        yield
