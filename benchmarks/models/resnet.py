"""ResNet-18 and ResNet-50 for 224 x 224 images (He et al. 2016), written for the benchmarks."""

import torch
from torch import nn


class BasicBlock(nn.Module):
    widening = 1

    def __init__(self, inputs, outputs, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.relu = nn.ReLU(inplace=True)
        self.shortcut = shortcut(inputs, outputs, stride)

    def forward(self, x):
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        out += self.shortcut(x)
        return self.relu(out)


class Bottleneck(nn.Module):
    widening = 4

    def __init__(self, inputs, outputs, stride):
        super().__init__()
        inner = outputs // self.widening
        self.conv1, self.bn1 = nn.Conv2d(inputs, inner, 1, bias=False), nn.BatchNorm2d(inner)
        self.conv2 = nn.Conv2d(inner, inner, 3, stride, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(inner)
        self.conv3, self.bn3 = nn.Conv2d(inner, outputs, 1, bias=False), nn.BatchNorm2d(outputs)
        self.relu = nn.ReLU(inplace=True)
        self.shortcut = shortcut(inputs, outputs, stride)

    def forward(self, x):
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.relu(self.bn2(self.conv2(out)))
        out = self.bn3(self.conv3(out))
        out += self.shortcut(x)
        return self.relu(out)


def shortcut(inputs, outputs, stride):
    if stride == 1 and inputs == outputs:
        return nn.Sequential()
    convolution = nn.Conv2d(inputs, outputs, 1, stride, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(outputs))


class ResNet(nn.Module):
    def __init__(self, block, depths, classes):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 64, 7, 2, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        self.relu = nn.ReLU(inplace=True)
        self.pool = nn.MaxPool2d(3, 2, 1)
        widths = [64, *(block.widening * width for width in (64, 128, 256, 512))]
        self.layers = nn.Sequential(
            *(
                stage(block, widths[i], widths[i + 1], depth, 1 if i == 0 else 2)
                for i, depth in enumerate(depths)
            )
        )
        self.fc = nn.Linear(widths[-1], classes)

    def forward(self, x):
        x = self.layers(self.pool(self.relu(self.bn1(self.conv1(x)))))
        return self.fc(torch.flatten(nn.functional.adaptive_avg_pool2d(x, 1), 1))


def stage(block, inputs, outputs, depth, stride):
    rest = (block(outputs, outputs, 1) for _ in range(depth - 1))
    return nn.Sequential(block(inputs, outputs, stride), *rest)


class ResNet18(ResNet):
    def __init__(self, classes=1000):
        super().__init__(BasicBlock, (2, 2, 2, 2), classes)


class ResNet50(ResNet):
    def __init__(self, classes=1000):
        super().__init__(Bottleneck, (3, 4, 6, 3), classes)
