"""FlowNetS (Dosovitskiy et al. 2015) with its refinement, in any width; and its loss.

The contracting part halves the image four times. The expanding part doubles it twice: at each
scale a flow is predicted, enlarged by a transposed convolution, and joined with the features of the
same scale from both parts. The finest flow has a quarter of the image's resolution. Before it comes
a 3 x 3 convolution and then one of 1 x 1, where the original has a single 3 x 3: so the last layer
can be asked for the flow at a few points only.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

FULL = (16, 32, 64, 96)
SMALL = (12, 24, 32, 48)
STRIDE = 4  # pixels of the image per cell of the finest flow
DIVISOR = 16  # sides of an image must be multiples of it
_CHANNELS = 3
_WEIGHTS = (1.0, 0.5, 0.25)  # of the loss, from the finest scale to the coarsest


class FlowNetS(nn.Module):
    """The future flow of an object, in pixels of the image, from two frames and its mask."""

    def __init__(self, widths: tuple[int, ...] = FULL) -> None:
        super().__init__()
        one, two, three, four = widths
        self.conv1 = _convolution(_CHANNELS, one, 7, 2)
        self.conv2 = _convolution(one, two, 5, 2)
        self.conv3 = nn.Sequential(_convolution(two, three, 5, 2), _convolution(three, three, 3, 1))
        self.conv4 = nn.Sequential(_convolution(three, four, 3, 2), _convolution(four, four, 3, 1))
        self.flow4 = nn.Conv2d(four, 2, 3, padding=1)
        self.up4 = nn.ConvTranspose2d(2, 2, 4, 2, 1)
        self.deconv3 = _deconvolution(four, two)
        self.flow3 = nn.Conv2d(three + two + 2, 2, 3, padding=1)
        self.up3 = nn.ConvTranspose2d(2, 2, 4, 2, 1)
        self.deconv2 = _deconvolution(three + two + 2, one)
        self.smooth = _convolution(two + one + 2, two, 3, 1)
        self.flow2 = nn.Conv2d(two, 2, 1)

    def forward(
        self,
        x: Tensor | tuple[Tensor, Tensor],  # (n, 3, height, width): now, past, mask
        points: Tensor | None = None,  # (n, k), cells of the finest flow
    ) -> Tensor | tuple[Tensor, ...]:
        """The finest flow, (n, 2, height / 4, width / 4); at points (n, 2, k, 1).

        In train mode the flows of all scales, from the finest to the coarsest. Image and points may
        come as one pair, as a loader gives them.
        """
        if isinstance(x, tuple):
            x, points = x
        fine = self.conv2(self.conv1(x))
        middle = self.conv3(fine)
        coarse = self.conv4(middle)
        flow4 = self.flow4(coarse)
        middle = torch.cat([middle, self.deconv3(coarse), self.up4(flow4)], 1)
        flow3 = self.flow3(middle)
        fine = self.smooth(torch.cat([fine, self.deconv2(middle), self.up3(flow3)], 1))
        if points is not None:
            fine = at_points(fine, points)
        flow2 = self.flow2(fine)
        return (flow2, flow3, flow4) if self.training else flow2


def at_points(
    field: Tensor,  # (n, channels, rows, columns)
    points: Tensor,  # (n, k), cells counted row by row
) -> Tensor:  # (n, channels, k, 1)
    """The field's values at some cells."""
    index = points.unsqueeze(1).expand(-1, field.shape[1], -1)
    return torch.gather(field.flatten(2), 2, index).unsqueeze(-1)


def _convolution(inputs: int, outputs: int, kernel: int, stride: int) -> nn.Sequential:
    convolution = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2)
    return nn.Sequential(convolution, nn.LeakyReLU(0.1))


def _deconvolution(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(nn.ConvTranspose2d(inputs, outputs, 4, 2, 1), nn.LeakyReLU(0.1))


def multi_scale_loss(
    flows: Sequence[Tensor] | Tensor,  # each (n, 2, rows, columns), finest first
    target: Tensor,  # (n, 3, rows, columns): flow and the object's share, at the finest scale
) -> Tensor:
    """Weighted sum over scales of the mean absolute error on the object.

    Every cell counts by the share of it that the object covers; the flow of a coarse cell is the
    mean flow of the object in it.

    Source: Loquercio et al. 2020, appendix ("multi-scale L1 ... only on the moving object").
    """
    loss = torch.zeros(())
    for weight, flow in zip(_WEIGHTS, flows, strict=True):
        goal, share = coarser(target, target.shape[-1] // flow.shape[-1])
        loss = loss + weight * ((flow - goal).abs() * share).sum() / (2 * share.sum())
    return loss


def coarser(target: Tensor, factor: int) -> tuple[Tensor, Tensor]:
    """The object's mean flow in blocks of `factor` x `factor` cells, and its share of each."""
    share = target[:, 2:]
    covered = F.avg_pool2d(share, factor)
    total = F.avg_pool2d(target[:, :2] * share, factor)
    return total / covered.clamp(min=torch.finfo(covered.dtype).tiny), covered
