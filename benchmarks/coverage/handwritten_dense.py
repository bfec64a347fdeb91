"""Dense prediction: U-Net (Ronneberger 2015) and FlowNetS (Dosovitskiy 2015), reduced."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def _double(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, padding=1),
        nn.BatchNorm2d(outputs),
        nn.ReLU(inplace=True),
        nn.Conv2d(outputs, outputs, 3, padding=1),
        nn.BatchNorm2d(outputs),
        nn.ReLU(inplace=True),
    )


class UNet(nn.Module):
    """Two levels; one goes up by a transposed convolution, one by bilinear resizing."""

    def __init__(self, width: int = 8, classes: int = 4) -> None:
        super().__init__()
        self.down1, self.down2 = _double(3, width), _double(width, 2 * width)
        self.bottom = _double(2 * width, 4 * width)
        self.raise2 = nn.ConvTranspose2d(4 * width, 2 * width, 2, stride=2)
        self.up2, self.up1 = _double(4 * width, 2 * width), _double(3 * width, width)
        self.head = nn.Conv2d(width, classes, 1)

    def forward(self, x: Tensor) -> Tensor:
        first = self.down1(x)
        second = self.down2(F.max_pool2d(first, 2))
        bottom = self.bottom(F.max_pool2d(second, 2))
        y = self.up2(torch.cat([second, self.raise2(bottom)], dim=1))
        y = F.interpolate(y, size=first.shape[-2:], mode="bilinear", align_corners=False)
        return F.log_softmax(self.head(self.up1(torch.cat([first, y], dim=1))), dim=1)


class FlowNetS(nn.Module):
    """Stacked image pair in, flow at three scales out."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        w = width
        self.conv1 = nn.Conv2d(6, w, 7, 2, 3)
        self.conv2 = nn.Conv2d(w, 2 * w, 5, 2, 2)
        self.conv3 = nn.Conv2d(2 * w, 4 * w, 5, 2, 2)
        self.predict3 = nn.Conv2d(4 * w, 2, 3, padding=1)
        self.deconv2 = nn.ConvTranspose2d(4 * w, 2 * w, 4, 2, 1)
        self.upflow3 = nn.ConvTranspose2d(2, 2, 4, 2, 1, bias=False)
        self.predict2 = nn.Conv2d(4 * w + 2, 2, 3, padding=1)
        self.deconv1 = nn.ConvTranspose2d(4 * w + 2, w, 4, 2, 1)
        self.upflow2 = nn.ConvTranspose2d(2, 2, 4, 2, 1, bias=False)
        self.predict1 = nn.Conv2d(2 * w + 2, 2, 3, padding=1)

    def forward(self, pair: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        one = F.leaky_relu(self.conv1(pair), 0.1, inplace=True)
        two = F.leaky_relu(self.conv2(one), 0.1)
        three = F.leaky_relu(self.conv3(two), 0.1)
        flow3 = self.predict3(three)
        up2 = F.leaky_relu(self.deconv2(three), 0.1)
        joined2 = torch.cat((two, up2, self.upflow3(flow3)), 1)
        flow2 = self.predict2(joined2)
        up1 = F.leaky_relu(self.deconv1(joined2), 0.1)
        flow1 = self.predict1(torch.cat((one, up1, self.upflow2(flow2)), 1))
        return 20.0 * flow1, 20.0 * flow2, 20.0 * flow3
