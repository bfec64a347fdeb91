"""The linearised network: var = sum_j (d output / d x_j)**2 var_j. Needs no rules."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from howsure.methods.combine import prediction, zeros_like_each
from howsure.methods.passes import Pass
from howsure.prediction import Prediction
from howsure.setup import Setup
from howsure.structure import Parts

# One backward pass per output element: beyond this, sampling is cheaper.
_MOST_OUTPUTS = 256


def predict(setup: Setup, x: Any) -> Prediction:
    """The plain prediction with the first-order variance of the sensor's noise."""
    parts = Parts(x)
    variances = _aligned_variances(setup, x)
    with torch.inference_mode(False), torch.enable_grad():
        inputs = [tensor.detach().clone().requires_grad_() for tensor in parts.tensors]
        run = Pass(setup, parts.filled(inputs))
        outputs = run.plain()
        data = [_first_order(output, inputs, variances) for output in outputs]
    means = [output.detach() for output in outputs]
    return prediction(setup, run, means, data, zeros_like_each(data))


def _aligned_variances(setup: Setup, x: Any) -> list[Tensor]:
    """One variance for each floating-point input tensor, 0 where there is no noise."""
    found = setup.variance(x)
    by_input = Parts(x)
    if isinstance(x, Tensor):
        return [torch.zeros_like(x) if found is None else found.expand(x.shape)]
    flat: list[Any] = []

    def collect(item: Any, var: Any) -> None:
        if isinstance(item, Tensor):
            if item.dtype.is_floating_point:
                flat.append(torch.zeros_like(item) if var is None else var.expand(item.shape))
        elif isinstance(item, dict):
            for key in item:
                collect(item[key], None if var is None else var.get(key))
        elif isinstance(item, (tuple, list)):
            for index, part in enumerate(item):
                collect(part, None if var is None else var[index])

    collect(x, found)
    assert len(flat) == len(by_input.tensors)
    return flat


def _first_order(output: Tensor, inputs: list[Tensor], variances: list[Tensor]) -> Tensor:
    """sum_j g_j**2 v_j for every output element, one batched backward pass per element of a row."""
    count = math.prod(output.shape[1:])
    rows = output.reshape(len(output), count)
    if not inputs:
        return torch.zeros_like(output)
    if count > _MOST_OUTPUTS:
        raise ValueError(
            f"The model has {count} outputs per input, and this method needs a backward pass for "
            'each; use "noise_sampling" for dense outputs.'
        )
    selectors = torch.eye(count, dtype=rows.dtype, device=rows.device)
    selectors = selectors[:, None, :].expand(count, *rows.shape).reshape(count, *rows.shape)
    try:
        gradients = torch.autograd.grad(
            rows,
            inputs,
            selectors,
            retain_graph=True,
            is_grads_batched=True,
            materialize_grads=True,
        )
    except RuntimeError as error:
        raise ValueError(
            f"The model cannot be differentiated: {str(error).splitlines()[0]} Use the method "
            '"noise_sampling", which needs no gradients.'
        ) from error
    total = torch.zeros(count, rows.shape[0], dtype=rows.dtype, device=rows.device)
    for gradient, var in zip(gradients, variances, strict=True):
        spread = gradient.square() * var
        total = total + spread.reshape(*total.shape, math.prod(spread.shape[2:])).sum(-1)
    return total.T.reshape(output.shape)
