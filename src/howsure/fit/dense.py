"""Fits the variance model of dense outputs: a depth, a flow, a height at every pixel.

The posterior is over the masks of all layers, along some directions, or over those of a last layer
that is the same at every pixel. A row is a pixel here, but what is held out are images: pixels of
one image resemble each other, so that a fold has all of an image or nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import reduce
from operator import add

import torch
from torch import Tensor

from howsure.fit.folds import FOLDS, Batches, CrossFit, folds_of
from howsure.fit.inputs import unseen_inputs
from howsure.fit.known_inputs import HeldOut, Known, squared_error, wrong_targets
from howsure.fit.labelled import PIXELS
from howsure.fit.posterior import PosteriorFit, PosteriorSearch, check_held_out, fit_variance
from howsure.fit.stress import corruptions
from howsure.methods import Method
from howsure.methods.choice import outputs_of
from howsure.methods.gradients import CONTRADICTED, ROWS_MIXED
from howsure.methods.pixel_directions import has_derivatives
from howsure.methods.pixel_head import NoPixelHeadError, head_of
from howsure.methods.pixels import gradients_at_pixels
from howsure.methods.sampling import NOISE_SAMPLING
from howsure.posterior.laplace import RIDGE, RIDGE_OF_FEW, Posterior
from howsure.posterior.pixels import PixelGradients, PixelGram
from howsure.posterior.variance_model import ALL_LAYERS, KNOWN, Scores, VarianceModel, quantiles_of
from howsure.probe import RANDOM, probe_model
from howsure.problem import MOST_OUTPUTS
from howsure.progress import progress
from howsure.setup import Setup
from howsure.trees import clone_tensors

# Two images in each of the five folds.
FEWEST_IMAGES = 10


def is_dense(setup: Setup, method: Method | None, x: object, search: PosteriorSearch) -> bool:
    """Whether outputs are too many for a backward pass each, and masks are wanted."""
    can_sample = method is None or method.has_dense_posterior
    # With masks there is something that varies, also without noise.
    return can_sample and search.masks and outputs_of(setup.watching(x), x) > MOST_OUTPUTS


def why_not_dense(setup: Setup, x: object) -> str | None:
    """Why dense outputs have no posterior over masks; `None` if they have one."""
    probe = setup.watching(x).once(probe_model, x)
    if probe.is_random:
        return RANDOM
    if probe.mixes_rows:
        return ROWS_MIXED
    with torch.no_grad():
        output = setup.run(clone_tensors(x))
    has_pixels = isinstance(output, Tensor) and output.dim() > 2 and setup.batch_dim == 0
    if has_pixels:
        return None if has_derivatives(setup, x) else CONTRADICTED
    return (
        f"{outputs_of(setup.watching(x), x)} outputs are too many for a backward pass each, and "
        "they are not maps (batch, channels, height, width) or (batch, height, width); choose some "
        "with `output=`"
    )


def _head(setup: Setup, x: object, search: PosteriorSearch) -> str:
    """Of which layers the masks are."""
    reason = why_not_dense(setup, x)
    if reason is None and search.dense_masks == "all":
        return ALL_LAYERS
    try:
        if reason is None:
            return head_of(setup, x)
    except NoPixelHeadError as error:
        reason = f'{error}; `dense_masks="all"` needs no such layer'
    raise ValueError(f'There is no posterior over masks: {reason}. Or fit with `model="dropout"`.')


@torch.inference_mode(False)
def fit_dense(
    setup: Setup, batches: Batches, search: PosteriorSearch
) -> tuple[Setup, PosteriorFit]:
    """The setup with the variance model that is best for the pixels of held-out images."""
    setup = setup.with_(variance_model=None, rate=None, residual_var=0.0)
    check_held_out(batches, FEWEST_IMAGES)
    if search.train is not None:
        raise ValueError("`train` is for tables; of maps give the images alone, `train_inputs=`.")
    images = _Images.of(setup, batches, search)
    clean, joint = images.judged(lambda x: x)
    stress = None if search.stress == "auto" or not search.growth else search.stress
    changes = corruptions(stress, batches[0][0])
    stressed = [images.judged(change)[0] for change in changes]
    fit = fit_variance(clean, stressed, Known(images.posterior), search)
    model = _with_joint_novelty(replace(fit.model, head=images.head), joint)
    fit = replace(fit, model=model, count=len(joint), known=images.count)
    return setup.with_(variance_model=model), fit


def _with_joint_novelty(model: VarianceModel, m: Tensor) -> VarianceModel:  # (images, outputs)
    """The novelty of an image as a whole is its mean over all pixels."""
    known = torch.where(model.known > 0, model.known, 1.0) * model.novelty_scale
    novelty = (m / known).mean(1)
    known = max(float(novelty.quantile(KNOWN)), torch.finfo(torch.float64).tiny)
    return replace(model, joint_known=known, joint_quantiles=quantiles_of(novelty) / known)


@dataclass(frozen=True, eq=False)
class _Images:
    """Held-out images with the posterior, and those that have not seen the images of a fold.

    Attributes:
        setup: The setup without a variance model.
        batches: The held-out images and their targets.
        head: Of which layers the masks are.
        posterior: The posterior.
        count: Images of which the posterior was made.
        show_progress: Show a bar.
    """

    setup: Setup
    batches: Batches
    head: str
    posterior: CrossFit[Posterior]
    count: int
    show_progress: bool

    @classmethod
    def of(cls, setup: Setup, batches: Batches, search: PosteriorSearch) -> _Images:
        """With the posterior of unlabelled images, or of the held-out ones in folds."""
        head = _head(setup, batches[0][0], search)
        posterior, count = _gather_known(setup, head, batches, search)
        return cls(setup, batches, head, posterior, count, search.show_progress)

    def judged(self, change: Callable[[object], object]) -> tuple[HeldOut, Tensor]:
        """Some pixels of every image, and the mean of m over all, (images, outputs)."""
        images = sum(len(target) for _, target in self.batches)
        share = max(1, PIXELS // images)
        shown = progress(self.batches, self.show_progress, "fit")
        parts, joint = [], []
        for number, (x, target) in enumerate(shown):
            whole = self._judged(number, change(x), target)
            joint.append(whole[2].mean(1))
            parts.append(_some_pixels(*whole, share, number))
        return HeldOut.joined(parts), torch.cat(joint)

    def _judged(
        self, number: int, x: object, target: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """Mean, sensor variance, m, target and squared error, (images, pixels, outputs) each."""
        seen = gradients_at_pixels(self.setup, x, self.head)
        if target.numel() != seen.output.numel() or len(target) != len(seen.output):
            raise wrong_targets(target, seen.output.shape)
        mean, data = self._predicted(seen, x)
        flat = seen.by_pixel(target.reshape(seen.output.shape).double())
        m = self.posterior.score(
            len(seen.channels),
            number,
            lambda posterior, rows: seen.select(rows).predictive_variance(posterior),
        )
        error = squared_error(flat, mean.to(seen.output.dtype))
        return mean, data, m, flat, error

    def _predicted(self, seen: PixelGradients, x: object) -> tuple[Tensor, Tensor]:
        """What is predicted, and the sensor's variance."""
        mean = seen.by_pixel(seen.output).double()
        if self.setup.noise is None:
            return mean, torch.zeros_like(mean)
        found = NOISE_SAMPLING(self.setup, x)
        if self.setup.prediction == "mean":
            mean = seen.by_pixel(found.mean).double()
        return mean, seen.by_pixel(found.data_var).double()


def _some_pixels(
    mean: Tensor, data: Tensor, m: Tensor, target: Tensor, error: Tensor, share: int, number: int
) -> HeldOut:
    """As many pixels of every image, drawn without repetition; pixels are the rows."""
    generator = torch.Generator().manual_seed(number)
    chosen = torch.randperm(m.shape[1], generator=generator)[:share].to(m.device)
    mean, data, m, target, error = (
        values[:, chosen].flatten(0, 1) for values in (mean, data, m, target, error)
    )
    return HeldOut(Scores.of(mean, data, m), error, target)


def _gather_known(
    setup: Setup, head: str, batches: Batches, search: PosteriorSearch
) -> tuple[CrossFit[Posterior], int]:
    """The posterior of unlabelled images, or of the held-out ones in folds, and how many."""
    is_training = search.train_inputs is not None
    inputs = [x for x, _ in batches]
    if is_training:
        inputs = unseen_inputs(search.train_inputs, batches, setup)
    grams = [PixelGram() for _ in range(1 if is_training else FOLDS)]
    for number, x in enumerate(inputs):
        seen = gradients_at_pixels(setup, x, head)
        fold = folds_of(len(seen.channels), number) % len(grams)
        for k, gram in enumerate(grams):
            gram.add(seen.select(fold == k))
    count = sum(gram.inputs for gram in grams)
    if is_training and count < FEWEST_IMAGES:
        raise ValueError(
            f"`train_inputs` has {count} images, and the posterior needs at least "
            f"{FEWEST_IMAGES}, better some hundred."
        )
    ridge = RIDGE if is_training else RIDGE_OF_FEW
    return CrossFit.of(grams, lambda group: reduce(add, group).posterior(ridge)), count
