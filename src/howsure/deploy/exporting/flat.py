"""A prediction as a function from tensors to named tensors: what a file can hold."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from howsure.arrays import key_text, paths
from howsure.calibrate.base import CalibratedPrediction
from howsure.deploy.exporting.mask_inputs import MaskInput, mask_inputs, with_masks
from howsure.errors import ExportError, HowsureWarning
from howsure.methods import Method, gradients
from howsure.prediction import Prediction
from howsure.setup import Setup
from howsure.trees import TensorTree

if TYPE_CHECKING:
    from howsure.uncertain import Uncertain

FIELDS = ("mean", "data_var", "model_var")


@dataclass(frozen=True, eq=False)
class Flat:
    """A wrapper's prediction for inputs shaped like an example.

    Attributes:
        uncertain: The wrapper.
        method: Its method; never "auto".
        tensors: The example's tensors, then the masks if these are inputs.
        batch_axes: The axis of each along which the batch lies; `None` where there is none.
        spec: How the example's tensors make an input.
        masks: The inputs that are masks.
        input_names: The names of all tensors.
        output_names: The names of mean, data and model variance of every output.
    """

    uncertain: Uncertain
    method: Method
    tensors: list[Tensor]
    batch_axes: list[int | None]
    spec: Inputs
    masks: tuple[MaskInput, ...]
    input_names: list[str]
    output_names: list[str]

    def eager(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """The outputs as the wrapper itself gives them."""
        with torch.no_grad():
            if self.masks:
                return self.predict(self.uncertain.setup, tensors)
            x = self.spec.filled(tensors)
            return flat_outputs(self.uncertain(*(x if type(x) is tuple else (x,))))

    def predict(self, setup: Setup, tensors: Sequence[Tensor]) -> list[Tensor]:
        """The same by a setup of its own, without what a file does not hold."""
        count = len(self.spec.places)
        x = self.spec.filled(tensors[:count])
        if self.masks:
            setup = with_masks(setup, x, self.masks, tensors[count:])
        found = self.method(setup, x)
        result = replace(found, details=None, std_error=None)
        for calibrator in self.uncertain.calibrators:
            result = calibrator(result)
        return flat_outputs(result)


class Inputs:
    """How an input is made of its tensors; everything else in it is fixed."""

    def __init__(self, example: object) -> None:
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


def flatten(uncertain: Uncertain, example: object, *, masks_as_inputs: bool = False) -> Flat:
    """The wrapper's prediction as a flat function; runs it once, which also finds what it needs."""
    spec = Inputs(example)
    with torch.no_grad():
        first = uncertain(*(example if type(example) is tuple else (example,)))
    if isinstance(first, CalibratedPrediction):
        raise ExportError(
            f"`{type(first.calibrator).__name__}` gives intervals, and a file holds only mean and "
            "variances; drop it from `calibrators`, or use `VarianceScale`."
        )
    method, setup = _choice(uncertain, example)
    uncertain = copy.copy(uncertain)
    uncertain.setup = setup  # with the number of points that "auto" takes
    uncertain.method = method
    masks = mask_inputs(uncertain.setup, method, example) if masks_as_inputs else ()
    tensors = [spec.leaves[place].detach() for place in spec.places]
    return Flat(
        uncertain,
        method,
        [*tensors, *(mask.drawn for mask in masks)],
        [*_batch_axes(tensors), *(mask.batch_axis for mask in masks)],
        spec,
        masks,
        [*_input_names(example), *(mask.name for mask in masks)],
        [f"{field}{path}" for field in FIELDS for path in paths(getattr(first, field))],
    )


def _batch_axes(tensors: Sequence[Tensor]) -> list[int | None]:
    """The first axis, where it is as long as that of the first tensor."""
    batch = len(tensors[0]) if tensors[0].dim() else 0
    return [0 if tensor.dim() and len(tensor) == batch else None for tensor in tensors]


def _choice(uncertain: Uncertain, example: object) -> tuple[Method, Setup]:
    """The method and the setup for it; an error if a file cannot do the same."""
    method, setup, _ = uncertain.choice(example)
    if method.draws_noise and uncertain.method == "auto" and not setup.is_fitted:
        warnings.warn(
            f'"auto" takes "{method}" here, which draws new noise in every call; the file has '
            f'"{gradients.METHOD}" instead, the same variance by other means.',
            HowsureWarning,
            stacklevel=4,
        )
        method, setup = gradients.METHOD, setup.with_(samples=None)
    if method.draws_noise:
        raise ExportError(
            f'The method "{method}" draws new noise in every call, which a file cannot do; use '
            '`method="gradients"` for few outputs, `"adf"` or `"sampled_adf"` for many.'
        )
    if method.has_budget:
        _check_gradients(setup, example)
    return method, setup


def _check_gradients(setup: Setup, example: object) -> None:
    """An error where a prediction is not the same work for every input."""
    if setup.tolerance is not None:
        raise ExportError(
            "With a `tolerance`, every input takes as many points as it needs; in a file, all take "
            "the same number. Give it with `samples=` and `tolerance=None`."
        )
    reason = gradients.why_no_gradients(setup, example)
    if reason is not None:
        raise ExportError(
            f'"gradients" cannot be used for this model, and sampling cannot be exported: {reason}.'
            ' `method="adf"` or `"sampled_adf"` may do.'
        )


def flat_outputs(prediction: Prediction) -> list[Tensor]:
    """Means, data variances and model variances of all outputs."""
    return [leaf for field in FIELDS for leaf in TensorTree(getattr(prediction, field)).tensors]


def _input_names(example: object) -> list[str]:
    found = [p for p, leaf in pytree.tree_leaves_with_path(example) if isinstance(leaf, Tensor)]
    words = ["_".join(key_text(key) for key in path) for path in found]
    return [word if word and not word[0].isdigit() else f"x{word}" for word in words]
