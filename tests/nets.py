"""Networks written the way users write them: functional calls, in-place sums, slices, views."""

import torch
from torch import nn
from torch.nn import functional as F


class FunctionalResNet(nn.Module):
    """A CIFAR-like ResNet with option A shortcuts: strided slice and zero channel pad."""

    def __init__(self, classes=10):
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(8)
        self.first = nn.Conv2d(8, 16, 3, stride=2, padding=1, bias=False)
        self.first_norm = nn.BatchNorm2d(16)
        self.second = nn.Conv2d(16, 16, 3, padding=1)
        self.head = nn.Linear(16, classes)
        randomize_statistics(self)

    def forward(self, x):
        x = F.relu(self.norm(self.stem(x)), inplace=True)
        shortcut = F.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, 4, 4), "constant", 0)
        out = self.second(F.relu(self.first_norm(self.first(x))))
        out += shortcut
        out = F.relu_(out)
        out = F.avg_pool2d(out, out.size()[3])
        return self.head(out.view(out.size(0), -1))


class TwoSensors(nn.Module):
    """Camera and inertial unit in, a dict of a tuple and a tensor out."""

    def __init__(self):
        super().__init__()
        self.camera = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten())
        self.join = nn.Linear(4 * 36 + 6, 8)
        self.heads = nn.ModuleList([nn.Linear(8, 2), nn.Linear(8, 1)])

    def forward(self, image, motion, scale=None):
        features = torch.cat([self.camera(image), motion], dim=1)
        hidden = torch.tanh(self.join(features))
        if scale is not None:
            hidden = hidden * scale
        return {"pose": tuple(head(hidden) for head in self.heads), "time": motion.shape[0]}


def randomize_statistics(model):
    """Batch norms as after training: statistics far from 0 and 1."""
    generator = torch.Generator().manual_seed(1)
    for module in model.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            for tensor in (module.running_mean, module.weight.data, module.bias.data):
                tensor.copy_(torch.randn(tensor.shape, generator=generator))
            module.running_var.copy_(
                0.05 + torch.rand(module.running_var.shape, generator=generator)
            )
    return model.eval()


def small_image_net():
    """Convolution, batch norm, ReLU, pool and a head, for images of shape (1, 8, 8)."""
    torch.manual_seed(0)
    layers = nn.Conv2d(1, 3, 3, stride=2, padding=1), nn.BatchNorm2d(3), nn.ReLU(), nn.AvgPool2d(2)
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(12, 2)).eval()


def perceptron():
    """Three inputs, five hidden units, two outputs."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 5), nn.ReLU(), nn.Linear(5, 2)).eval()
