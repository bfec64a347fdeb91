"""The options of `fit` by name and type, so that an editor completes them and marks a typo."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypedDict

from howsure.fit.share import Share
from howsure.fit.stress import Stress


class FitKeywords(TypedDict, total=False):
    """All options of `Uncertain.fit`; a test compares them with those of each kind of fit."""

    # Every fit.
    inputs: Literal["noisy", "clean"]
    training_data: object
    show_progress: bool
    # A posterior, or a temperature.
    train_inputs: object
    stress: Stress | None
    growth: bool
    # A posterior.
    train: object
    masks: bool
    residual_var: float | None
    noise_factor: float | None
    cap: bool
    dense_masks: Literal["all", "head"]
    # A dropout rate.
    search: Literal["auto", "grid", "closed_form"]
    rates: Sequence[float] | None
    samples: int
    per_layer: bool
    fit_residual_var: bool | None
    fit_noise: bool
    objective: Literal["auto", "gaussian", "one_hot", "categorical"]
    floor: float | None
    share: Share
