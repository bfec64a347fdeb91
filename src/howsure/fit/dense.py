"""Fits the variance model of dense outputs: a depth, a flow, a height at every pixel.

The posterior is over the multipliers of all layers, along some directions. A row is a pixel here,
but what is held out are images: pixels of one image resemble each other, so that a fold has all of
an image or nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from howsure.fit.held_out import Batches
from howsure.fit.known import known_inputs
from howsure.fit.labeled import PIXELS
from howsure.fit.options import FitOptions
from howsure.fit.stress import corruptions
from howsure.fit.variance import PosteriorFit, check_held_out, fit_variance
from howsure.methods.choice import outputs_of
from howsure.methods.dense import by_pixel, gradients_at_pixels, has_derivatives
from howsure.methods.gradients import CONTRADICTED, ROWS_MIXED
from howsure.methods.method import Fits, Method
from howsure.methods.sampling import NOISE_SAMPLING
from howsure.posterior.cross_fit import FOLDS, CrossFit, split
from howsure.posterior.laplace import Posterior
from howsure.posterior.pixels import PixelGram, pixel_posterior_of, pixel_variance
from howsure.posterior.scores import Known, Scores
from howsure.posterior.variance_fit import HeldOut, targets_like
from howsure.probe import RANDOM, probe_model
from howsure.problem import MOST_OUTPUTS
from howsure.progress import progress
from howsure.setup import Setup
from howsure.trees import clone_tensors

# Two images in each of the five folds.
FEWEST_IMAGES = 10


def is_dense(setup: Setup, method: Method | None, x: object) -> bool:
    """Whether outputs are too many for a backward pass each."""
    can_sample = method is None or Fits.DENSE_POSTERIOR in method.fits
    return can_sample and outputs_of(setup.with_unit_multipliers(x), x) > MOST_OUTPUTS


def why_not_dense(setup: Setup, x: object) -> str | None:
    """Why dense outputs have no posterior over multipliers; `None` if they have one."""
    probe = setup.with_unit_multipliers(x).cached(probe_model, x)
    if probe.is_random:
        return RANDOM
    if probe.mixes_rows:
        return ROWS_MIXED
    with torch.no_grad():
        output = setup.run(clone_tensors(x))
    has_pixels = isinstance(output, Tensor) and output.dim() > 2 and setup.batch_dim == 0
    if has_pixels:
        return None if has_derivatives(setup, x) else CONTRADICTED
    outputs = outputs_of(setup.with_unit_multipliers(x), x)
    return (
        f"{outputs} outputs are too many for a backward pass each, and they are not maps (batch, "
        "channels, height, width) or (batch, height, width); choose some with `output=`"
    )


@torch.inference_mode(False)
def fit_dense(setup: Setup, batches: Batches, options: FitOptions) -> tuple[Setup, PosteriorFit]:
    """The setup with the variance model that is best for the pixels of held-out images."""
    setup = setup.replace(variance_model=None, rate=None, residual_var=0.0)
    check_held_out(batches, FEWEST_IMAGES)
    if options.train is not None:
        raise ValueError("`train` is for tables; for maps, give the images alone: `train_inputs=`.")
    reason = why_not_dense(setup, batches[0][0])
    if reason is not None:
        raise ValueError(
            f'There can be no posterior over multipliers: {reason}. Or fit with `model="dropout"`.'
        )
    known = _gather_known(setup, batches, options.train_inputs)
    assert known.posterior is not None
    posterior, show = known.posterior, options.show_progress
    clean, joint = _score(setup, batches, posterior, lambda x: x, show=show)
    stress = None if options.stress == "auto" or not options.growth else options.stress
    changes = corruptions(stress, batches[0][0])
    stressed = [_score(setup, batches, posterior, change, show=show)[0] for change in changes]
    fit = fit_variance(clean, stressed, known, options)
    model = replace(fit.model, dense=True)
    # The novelty of an image as a whole is its mean over all pixels.
    scale = torch.where(model.known > 0, model.known, 1.0) * model.novelty_scale
    model = model.with_joint((joint / scale).mean(1))
    return setup.replace(variance_model=model), replace(fit, model=model, count=len(joint))


def _gather_known(setup: Setup, batches: Batches, train_inputs: object) -> Known:
    """The posterior of unlabeled images, or of the held-out ones in folds."""
    grams = [PixelGram() for _ in range(FOLDS if train_inputs is None else 1)]
    for number, x in known_inputs(setup, batches, train_inputs, "known images", show=False):
        pixels = gradients_at_pixels(setup, x)
        for gram, images in split(len(pixels.z), number, grams):
            gram.add(pixels.z[images.to(pixels.z.device)], pixels.masks)
    count = sum(gram.inputs for gram in grams)
    if train_inputs is not None and count < FEWEST_IMAGES:
        raise ValueError(
            f"`train_inputs` has {count} images, and the posterior needs at least {FEWEST_IMAGES}, "
            "better a few hundred."
        )
    return Known(CrossFit.of(grams, pixel_posterior_of), count=count)


def _score(
    setup: Setup,
    batches: Batches,
    posterior: CrossFit[Posterior],
    change: Callable[[object], object],
    *,
    show: bool,
) -> tuple[HeldOut, Tensor]:
    """Some pixels of every image, drawn without repetition, and the mean of m over all of them.

    The rows of the first are pixels; the second is (images, outputs).
    """
    share = max(1, PIXELS // sum(len(target) for _, target in batches))
    parts, joint = [], []
    for number, (x, target) in enumerate(progress(batches, show, "fit")):
        changed = change(x)
        pixels = gradients_at_pixels(setup, changed)
        output = pixels.output
        truth = targets_like(output, target)

        def score(
            posterior: Posterior, rows: Tensor | slice, z: Tensor = pixels.z, m: int = pixels.masks
        ) -> Tensor:
            return pixel_variance(posterior, z[rows], m)

        m = posterior.score(len(output), number, score)
        joint.append(m.mean(1))
        mean, data = output, torch.zeros_like(output)
        if setup.noise is not None:
            sampled = NOISE_SAMPLING(setup, changed)
            mean = sampled.mean if setup.prediction == "mean" else output
            data = sampled.data_var
        generator = torch.Generator().manual_seed(number)
        chosen = torch.randperm(m.shape[1], generator=generator)[:share].to(m.device)
        mean, data, truth = (
            by_pixel(values)[:, chosen].flatten(0, 1) for values in (mean, data, truth)
        )
        scores = replace(Scores.of(mean, data), m=m[:, chosen].flatten(0, 1))
        parts.append(HeldOut.of(scores, truth, mean))
    return HeldOut.joined(parts), torch.cat(joint)
