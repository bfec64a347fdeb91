"""Held-out labels with the logits of their input, or of their pixel."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from howsure.errors import HowsureWarning
from howsure.metrics import ece

# Pixels that are looked at, as many from every image: neighbours tell little news.
PIXELS = 2**17
# A pixel without a label, by a custom of data sets; so are numbers below 0.
UNLABELLED = 255


@dataclass(frozen=True, eq=False)
class Labelled:
    """Held-out inputs with what their probabilities are made of.

    Attributes:
        logits: Of every label, (labels, classes), in double precision.
        labels: (labels,).
        logs: Log distances, (inputs, 2).
        inputs: The number of the input that a label belongs to, (labels,).
    """

    logits: Tensor
    labels: Tensor
    logs: Tensor
    inputs: Tensor

    @classmethod
    def of(cls, logits: Tensor, labels: Tensor, logs: Tensor, share: int) -> Labelled:
        """All labels of a batch; of pixels at most so many from every image."""
        _check_shapes(logits, labels)
        logits, labels = logits.double(), _as_indices(labels.to(logits.device))
        inputs = torch.arange(len(logits), device=logits.device)
        if logits.dim() == 2:
            return cls(logits, labels, logs, inputs)
        logits, labels = logits.flatten(2), labels.flatten(1)
        if share < labels.shape[1]:
            generator = torch.Generator().manual_seed(0)
            chosen = torch.randperm(labels.shape[1], generator=generator)[:share].to(labels.device)
            logits, labels = logits[:, :, chosen], labels[:, chosen]
        has_label = (labels >= 0) & ((labels != UNLABELLED) | (logits.shape[1] > UNLABELLED))
        inputs = inputs[:, None].expand_as(labels)[has_label]
        return cls(logits.mT[has_label], labels[has_label], logs, inputs)

    @classmethod
    def joined(cls, parts: Sequence[Labelled]) -> Labelled:
        """Those of several batches, each with inputs of its own."""
        first, inputs = 0, []
        for part in parts:
            inputs.append(part.inputs + first)
            first += len(part.logs)
        logits, labels, logs = (
            torch.cat([getattr(part, name) for part in parts])
            for name in ("logits", "labels", "logs")
        )
        return cls(logits, labels, logs, torch.cat(inputs))

    def nll(self, temperature: float | Tensor) -> float:
        """The mean categorical NLL at one temperature, or at one for every input."""
        return float(F.cross_entropy(self._cooled(temperature), self.labels))

    def ece(self, temperature: float | Tensor) -> float:
        """The expected calibration error."""
        return float(ece(self._cooled(temperature).softmax(1), self.labels))

    def _cooled(self, temperature: float | Tensor) -> Tensor:
        if isinstance(temperature, Tensor):
            temperature = temperature.to(self.logits)[self.inputs, None]
        return self.logits / temperature


def _as_indices(labels: Tensor) -> Tensor:
    """Whole numbers of any type in the one that torch takes as class indices."""
    is_whole = not labels.is_floating_point() and labels.dtype != torch.bool
    return labels.long() if is_whole else labels


def _check_shapes(logits: Tensor, labels: Tensor) -> None:
    """An error for labels that are not one class index for each input or pixel."""
    wanted = (len(logits), *logits.shape[2:])
    if tuple(labels.shape) != wanted:
        where = "input" if len(wanted) == 1 else "pixel"
        raise ValueError(
            f"The labels have shape {tuple(labels.shape)}, and the model returns logits "
            f"{tuple(logits.shape)}; give one class index for each {where}, {wanted}."
        )


def check_labels(held_out: Labelled) -> None:
    """An error for labels that are no classes; a warning if some class never occurs."""
    logits, labels = held_out.logits, held_out.labels
    if not len(labels):
        raise ValueError("No held-out pixel has a label; those below 0 and 255 count as none.")
    if labels.is_floating_point() and not bool(labels.isfinite().all()):
        raise ValueError("Some held-out labels are NaN or infinite; leave those inputs out.")
    if labels.is_floating_point() or labels.dtype == torch.bool:
        raise ValueError(f"The labels must be class indices, whole numbers, not {labels.dtype}.")
    low, high, classes = int(labels.min()), int(labels.max()), logits.shape[1]
    if low < 0 or high >= classes:
        raise ValueError(f"The labels run from {low} to {high}, but there are {classes} classes.")
    if not bool(logits.isfinite().all()):
        raise ValueError("Some logits of held-out inputs are NaN or infinite; leave those out.")
    missing = sorted(set(range(classes)) - set(labels.unique().tolist()))
    if missing:
        warnings.warn(
            f"{len(missing)} of {classes} classes never occur among the held-out labels "
            f"({', '.join(map(str, missing[:5]))}{', ...' if len(missing) > 5 else ''}): nothing "
            "shows how sure the network may be of them.",
            HowsureWarning,
            stacklevel=6,
        )
