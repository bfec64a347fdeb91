"""A prediction as a function from tensors to named tensors: what a file can hold."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from howsure.calibrate.calibrated import CalibratedPrediction
from howsure.exporting.errors import ExportError
from howsure.methods import METHODS, choose
from howsure.methods.setup import Setup
from howsure.prediction import Prediction
from howsure.structure import Parts
from howsure.uncertain import Uncertain

FIELDS = ("mean", "data_var", "model_var")
_DRAWS_NOISE = ("noise_sampling", "control_variate")


@dataclass(frozen=True, eq=False)
class Flat:
    """A wrapper's prediction for inputs shaped like an example.

    Attributes:
        uncertain: The wrapper.
        method: Its method; never "auto".
        tensors: The example's tensors.
        spec: How they make an input.
        input_names: Their names.
        output_names: The names of mean, data and model variance of every output.
    """

    uncertain: Uncertain
    method: str
    tensors: list[Tensor]
    spec: Any
    input_names: list[str]
    output_names: list[str]

    def eager(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """The outputs as the wrapper itself gives them."""
        with torch.no_grad():
            return flat_outputs(self.uncertain(*self._call(tensors)))

    def _call(self, tensors: Sequence[Tensor]) -> tuple[Any, ...]:
        x = self.spec.filled(tensors)
        return x if type(x) is tuple else (x,)

    def predict(self, setup: Setup, tensors: Sequence[Tensor]) -> list[Tensor]:
        """The same by a setup of its own, without what a file does not hold."""
        found = METHODS[self.method](setup, self.spec.filled(tensors))
        result = replace(found, covariance=None, sources=None, trust=None)
        for calibrator in self.uncertain.calibrators:
            result = calibrator(result)
        return flat_outputs(result)


class Inputs:
    """How an input is made of its tensors; everything else in it is fixed."""

    def __init__(self, example: Any) -> None:
        self.leaves, self.spec = pytree.tree_flatten(example)
        self.places = [i for i, leaf in enumerate(self.leaves) if isinstance(leaf, Tensor)]
        if not self.places:
            raise ExportError("`example` has no tensor; give an input as the model takes it.")

    def filled(self, tensors: Sequence[Tensor]) -> Any:
        """The input with these tensors."""
        leaves = list(self.leaves)
        for place, tensor in zip(self.places, tensors, strict=True):
            leaves[place] = tensor
        return pytree.tree_unflatten(leaves, self.spec)


def flatten(uncertain: Uncertain, example: Any) -> Flat:
    """The wrapper's prediction as a flat function; runs it once, which also finds what it needs."""
    spec = Inputs(example)
    with torch.no_grad():
        first = uncertain(*(example if type(example) is tuple else (example,)))
    if isinstance(first, CalibratedPrediction):
        raise ExportError(
            f"`{type(first.calibrator).__name__}` gives intervals, and a file holds mean and "
            "variances only; drop it from `calibrators`, or use `VarianceScale`."
        )
    method = _method(uncertain, example)
    tensors = [spec.leaves[place].detach() for place in spec.places]
    outputs = [f"{field}{path}" for field in FIELDS for path in _paths(getattr(first, field))]
    return Flat(uncertain, method, tensors, spec, _input_names(example), outputs)


def _method(uncertain: Uncertain, example: Any) -> str:
    name = uncertain.method
    name = choose(uncertain.setup, example)[0] if name == "auto" else name
    if name in _DRAWS_NOISE:
        raise ExportError(
            f'The method "{name}" draws new noise in every call, which a file cannot; use '
            '`method="adjoint"` for few outputs, `"adf"` or `"sampled_adf"` for many.'
        )
    return name


def flat_outputs(prediction: Prediction) -> list[Tensor]:
    """Means, data variances and model variances of all outputs."""
    return [leaf for field in FIELDS for leaf in Parts(getattr(prediction, field)).tensors]


def _is_output(leaf: Any) -> bool:
    return isinstance(leaf, Tensor) and leaf.dtype.is_floating_point


def _paths(tree: Any) -> list[str]:
    """Where each tensor is in a structure: ".pose.0"; nothing for a single tensor."""
    found = [path for path, leaf in pytree.tree_leaves_with_path(tree) if _is_output(leaf)]
    count = len(Parts(tree).tensors)
    if len(found) != count:  # A dataclass: torch does not know its fields.
        return [f".{index}" for index in range(count)] if count > 1 else [""]
    return ["".join(f".{_word(pytree.keystr((key,)))}" for key in path) for path in found]


def _input_names(example: Any) -> list[str]:
    found = [p for p, leaf in pytree.tree_leaves_with_path(example) if isinstance(leaf, Tensor)]
    words = ["_".join(_word(pytree.keystr((key,))) for key in path) for path in found]
    return [word if word and not word[0].isdigit() else f"x{word}" for word in words]


def _word(key: str) -> str:
    return re.sub(r"\W", "", key)
