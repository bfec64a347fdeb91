"""Held-out labels with the logits of their input, or of their pixel, token or question."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from howsure.errors import warn
from howsure.estimators.softmax import class_logits
from howsure.metrics import ece
from howsure.settings import Task

# Pixels that are looked at, as many from every image: neighbors tell little news.
PIXELS = 2**17
# A pixel without a label, by a custom of data sets; so are numbers below 0.
UNLABELED = 255


@dataclass(frozen=True, eq=False)
class Labeled:
    """Held-out inputs with what their probabilities are made of.

    Attributes:
        logits: Of every label at one or several draws of the noise, (draws, labels, classes), in
            double precision.
        labels: (labels,).
        logs: Log distances, (inputs, 2).
        energy: The log-sum-exp of the logits, (inputs,).
        inputs: The number of the input that a label belongs to, (labels,).
    """

    logits: Tensor
    labels: Tensor
    logs: Tensor
    energy: Tensor
    inputs: Tensor

    @classmethod
    def of(
        cls,
        draws: Sequence[Tensor],
        labels: Tensor,
        logs: Tensor,
        energy: Tensor,
        *,
        task: Task,
        share: int,
    ) -> Labeled:
        """All labels of a batch; of pixels, tokens or questions at most so many from every input.

        The draws are what the model returns for these inputs, once or under several draws of noise.
        """
        logits = torch.stack([class_logits(each, task) for each in draws]).double()
        labels = _checked(labels.to(logits.device), draws[0], logits.shape[3:], task)
        inputs = torch.arange(len(labels), device=logits.device)
        if logits.dim() == 3:
            return cls(logits, labels, logs, energy, inputs)
        logits, labels = logits.flatten(3), labels.flatten(1)
        if share < labels.shape[1]:
            generator = torch.Generator().manual_seed(0)
            chosen = torch.randperm(labels.shape[1], generator=generator)[:share].to(labels.device)
            logits, labels = logits[..., chosen], labels[:, chosen]
        has_label = (labels >= 0) & ((labels != UNLABELED) | (logits.shape[2] > UNLABELED))
        inputs = inputs[:, None].expand_as(labels)[has_label]
        return cls(logits.mT[:, has_label], labels[has_label], logs, energy, inputs)

    @classmethod
    def join(cls, parts: Sequence[Labeled]) -> Labeled:
        """The labels of several batches, each with inputs of its own."""
        first, inputs = 0, []
        for part in parts:
            inputs.append(part.inputs + first)
            first += len(part.logs)
        labels, logs, energy = (
            torch.cat([getattr(part, name) for part in parts])
            for name in ("labels", "logs", "energy")
        )
        logits = torch.cat([part.logits for part in parts], 1)
        return cls(logits, labels, logs, energy, torch.cat(inputs))

    @property
    def accuracy(self) -> float:
        """The share of labels that are the network's own prediction."""
        return float((self.logits[0].argmax(1) == self.labels).double().mean())

    def nll(self, temperature: float | Tensor) -> float:
        """The mean categorical NLL at one temperature, or at one for every input."""
        log_p = self._cool(temperature).log_softmax(2)
        log_p = log_p.gather(2, self.labels.expand(len(log_p), -1)[..., None])[..., 0]
        return float(math.log(len(log_p)) - log_p.logsumexp(0).mean())

    def ece(self, temperature: float | Tensor) -> float:
        """The expected calibration error."""
        return float(ece(self._cool(temperature).softmax(2).mean(0), self.labels))

    def _cool(self, temperature: float | Tensor) -> Tensor:
        if isinstance(temperature, Tensor):
            temperature = temperature.to(self.logits)[self.inputs, None]
        return self.logits / temperature


def recognize_task(task: Task, logits: Tensor, labels: Tensor) -> Task:
    """The task that logits and labels show, where classification was asked for.

    One logit for each input are two classes. Labels 0 and 1 for every logit, of which some inputs
    have several, are labels of their own; with exactly one they would be one-hot.
    """
    if task != "classification":
        return task
    if logits[0].numel() == 1:
        return "binary"
    if logits.dim() == 2 and labels.shape == logits.shape:
        is_binary = bool(((labels == 0) | (labels == 1)).all())
        if is_binary and bool((labels.sum(1) > 1).any()):
            return "multilabel"
    return task


def _checked(labels: Tensor, logits: Tensor, positions: torch.Size, task: Task) -> Tensor:
    """Labels as class indices, one for each input or position; an error for other shapes."""
    expected = (len(logits), *positions)
    if task == "binary" and labels.numel() == math.prod(expected):
        labels = labels.reshape(expected)
    if tuple(labels.shape) != expected:
        where = "input"
        if positions:
            where = {3: "token", 4: "pixel"}.get(logits.dim(), "label")
        raise ValueError(
            f"The labels have shape {tuple(labels.shape)}, and the model returns logits "
            f"{tuple(logits.shape)}; give one class index for each {where}, {expected}."
            + (
                " Its classes are the last axis: `output=lambda y: y.mT`, if they are not."
                if where == "token"
                else ""
            )
        )
    is_whole = not labels.is_floating_point() and labels.dtype != torch.bool
    if is_whole or (task in ("binary", "multilabel") and bool((labels == labels.long()).all())):
        return labels.long()
    return labels


def check_labels(held_out: Labeled, task: Task) -> None:
    """An error for labels that are no classes; a warning if some class never occurs."""
    logits, labels = held_out.logits, held_out.labels
    if not len(labels):
        raise ValueError(
            'No held-out pixel has a label (255 and numbers below 0 mean "unlabeled").'
        )
    if labels.is_floating_point() and not bool(labels.isfinite().all()):
        raise ValueError("Some held-out labels are NaN or infinite; leave those inputs out.")
    if labels.is_floating_point() or labels.dtype == torch.bool:
        raise ValueError(f"The labels must be class indices, whole numbers, not {labels.dtype}.")
    low, high, classes = int(labels.min()), int(labels.max()), logits.shape[2]
    if low < 0 or high >= classes:
        raise ValueError(f"The labels run from {low} to {high}, but there are {classes} classes.")
    if not bool(logits.isfinite().all()):
        raise ValueError("Some logits of held-out inputs are NaN or infinite; leave those out.")
    missing = sorted(set(range(classes)) - set(labels.unique().tolist()))
    if missing and task != "multilabel":
        warn(
            f"{len(missing)} of {classes} classes never occur among the held-out labels "
            f"({', '.join(map(str, missing[:5]))}{', ...' if len(missing) > 5 else ''}): the "
            "calibration of these classes is unknown."
        )
