"""The last layer of a network with dense outputs: found, checked, and watched while it runs.

It is a 1 x 1 convolution, or a linear layer that is applied at every pixel; after it come at most
functions of one number, such as `exp`. All of that is checked on the user's own network.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from threading import get_ident
from typing import Any

import torch
from torch import Tensor, nn

from howsure.posterior.pixels import PixelGradients, by_pixel, from_pixels
from howsure.problem import rows_of
from howsure.setup import Setup
from howsure.trees import clone_tensors, unwrap_compiled

_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
# A step of the multipliers, and how far the output's change may be from what its derivative says,
# relative to it: curvature and rounding in half precision are below, a hidden gradient is not.
_STEP, _DIFFERENCE = 1e-2, 0.3
# Channels of the last layer: their matrix has 512 MB in double precision.
_MOST_CHANNELS = 8192

Hook = Callable[[Tensor, Tensor], Tensor | None]


class NoPixelHeadError(ValueError):
    """There is no last layer that is the same at every pixel; the message says why."""


def head_of(setup: Setup, x: Any) -> str:
    """The name of the last layer; an error if it is not the same at every pixel."""
    if setup.batch_dim != 0:
        raise NoPixelHeadError("the inputs are not counted by the first axis (`batch_dim=0`)")
    called, output = _called(setup, x)
    fitting = [name for name, size in reversed(called) if size == output.numel()]
    found: NoPixelHeadError | None = None
    for name in dict.fromkeys(fitting):
        try:
            _check(setup, x, name)
        except NoPixelHeadError as error:
            found = found or error
        else:
            return name
    raise found or NoPixelHeadError(
        "its last layer is neither a 1 x 1 convolution nor a linear layer at every pixel"
    )


def _called(setup: Setup, x: Any) -> tuple[list[tuple[str, int]], Tensor]:
    """Layers that may be the last one with the sizes of their outputs, as called; the output."""
    called: list[tuple[str, int]] = []
    with torch.no_grad(), ExitStack() as hooks:
        for name, module in _model(setup).named_modules():
            if _is_pixelwise(module):

                def hook(_: Tensor, output: Tensor, name: str = name) -> None:
                    called.append((name, output.numel()))

                hooks.enter_context(_hooked(module, hook))
        output = setup.run(clone_tensors(x))
    if not isinstance(output, Tensor) or not output.dtype.is_floating_point:
        raise NoPixelHeadError("the model does not return one tensor; choose it with `output=`")
    return called, output


def _model(setup: Setup) -> nn.Module:
    model = unwrap_compiled(setup.model)
    return model if isinstance(model, nn.Module) else nn.Module()


def _is_pixelwise(module: nn.Module) -> bool:
    if isinstance(module, nn.Linear):
        return True
    return (
        isinstance(module, _CONVOLUTIONS)
        and all(size == 1 for size in (*module.kernel_size, *module.stride, module.groups))
        and module.padding in ((0,) * len(module.kernel_size), "same", "valid")
    )


@contextmanager
def _hooked(module: nn.Module, hook: Hook) -> Iterator[None]:
    """Calls `hook` with input and output of a layer, in this thread alone, until it ends."""
    own = get_ident()

    def call(_: nn.Module, inputs: tuple[Any, ...], output: Tensor) -> Tensor | None:
        return hook(inputs[0], output) if get_ident() == own else None

    handle = module.register_forward_hook(call)
    try:
        yield
    finally:
        handle.remove()


def at_pixels(setup: Setup, x: Any, head: str) -> PixelGradients:
    """What the last layer sees of some inputs, and what the model makes of it."""
    layer, seen = _layer(setup, head), []

    def hook(inputs: Tensor, output: Tensor) -> Tensor:
        # From here on gradients are recorded: of what comes before, a backward pass needs nothing.
        torch.set_grad_enabled(True)
        leaf = output.detach().clone().requires_grad_()
        seen.append((inputs.detach(), leaf))
        return leaf.clone()  # which the model may write into

    # Leaving `no_grad` restores the mode that the hook has changed.
    with torch.inference_mode(False), torch.no_grad(), _hooked(layer, hook):
        output = setup.run(clone_tensors(x))
    if len(seen) != 1:
        raise NoPixelHeadError(f"its last layer `{head}` is called {len(seen)} times")
    weight, (inputs, leaf) = layer.weight.detach().flatten(1), seen[0]
    at_layer = _Layout(rows_of(x), isinstance(layer, _CONVOLUTIONS))
    channels_first, slopes = _slopes(output, leaf, len(weight), at_layer)
    masks = weight.shape[1]
    channels = at_layer.by_pixel(inputs, masks)[:, :, None]
    return PixelGradients(output.detach(), channels, slopes, weight, channels_first, masks)


def _layer(setup: Setup, head: str) -> Any:
    try:
        return _model(setup).get_submodule(head)
    except AttributeError:
        raise ValueError(
            f"What `fit` found is about the layer `{head}`, and this model has none of that name; "
            "fit again."
        ) from None


@dataclass(frozen=True)
class _Layout:
    """Where tensors at the last layer have their inputs, pixels and channels."""

    rows: int
    channels_first: bool

    def by_pixel(self, numbers: Tensor, channels: int) -> Tensor:
        # A linear layer may see the pixels of all inputs as rows.
        is_flat = not self.channels_first and self.rows and len(numbers) % self.rows == 0
        own = numbers.reshape(self.rows, -1, channels) if is_flat else numbers
        if len(own) != self.rows or (self.channels_first and own.dim() < 3):
            raise NoPixelHeadError(f"its last layer sees {len(own)} rows of {self.rows} inputs")
        return by_pixel(own, channels, channels_first=self.channels_first)


def _slopes(output: Tensor, leaf: Tensor, outputs: int, at_layer: _Layout) -> tuple[bool, Tensor]:
    """Where the output has its channels, and its derivative by the same element of the layer.

    A function of one number each has a diagonal Jacobian: signs that go in come out again.
    """
    if not output.requires_grad:
        raise NoPixelHeadError("what follows its last layer has no gradient")

    def back(given: Tensor) -> Tensor:
        (found,) = torch.autograd.grad(output, leaf, given, retain_graph=True)
        return at_layer.by_pixel(found, outputs)

    slopes = back(torch.ones_like(output))
    drawn = torch.randint(2, slopes.shape, generator=torch.Generator().manual_seed(0))
    signs = (2 * drawn - 1).to(slopes)
    for channels_first in _places(output, slopes.shape):
        given = from_pixels(signs, output.shape, channels_first=channels_first)
        if torch.allclose(back(given.to(output)) * signs, slopes):
            return channels_first, slopes
    raise NoPixelHeadError("what follows its last layer mixes pixels or outputs")


def _places(output: Tensor, shape: torch.Size) -> list[bool]:
    """Whether an output may have its channels first, last or both, by its shape alone."""
    if output.dim() < 2 or len(output) != shape[0] or output.numel() != shape.numel():
        return []
    is_first = output.dim() > 2 and output.shape[1] == shape[2]
    is_last = shape[2] in (1, output.shape[-1])
    return [place for place, fits in ((True, is_first), (False, is_last)) if fits]


def _check(setup: Setup, x: Any, head: str) -> None:
    """An error unless multipliers of the layer's channels do what the formula says."""
    seen = at_pixels(setup, x, head)
    pixels, count = seen.channels.shape[1], seen.masks
    if pixels < 2:
        raise NoPixelHeadError("its last layer sees an input as a whole, not pixel by pixel")
    if count > _MOST_CHANNELS:
        raise NoPixelHeadError(f"its last layer has {count} channels, more than {_MOST_CHANNELS}")
    generator = torch.Generator().manual_seed(0)
    step = _STEP * (2 * torch.randint(2, (count,), generator=generator) - 1).to(seen.channels)
    told = seen.slopes * ((seen.channels[:, :, 0] * step) @ seen.weight.mT)
    change = seen.by_pixel(_multiplied(setup, x, head, 1 + step) - seen.output)
    if not bool(told.any()) or bool((told - change).norm() > _DIFFERENCE * change.norm()):
        raise NoPixelHeadError("its output does not change as the weights of its last layer say")


def _multiplied(setup: Setup, x: Any, head: str, factors: Tensor) -> Tensor:
    """The model's output with a multiplier on every input channel of a layer."""
    layer = _layer(setup, head)
    if isinstance(layer, _CONVOLUTIONS):
        factors = factors.reshape(-1, *(1,) * len(layer.kernel_size))
    handle = layer.register_forward_pre_hook(lambda _, inputs: (inputs[0] * factors,))
    try:
        with torch.no_grad():
            return setup.run(clone_tensors(x))
    finally:
        handle.remove()
