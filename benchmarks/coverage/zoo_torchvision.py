"""torchvision: classification, segmentation and optical flow; further: video, feature pyramids."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from measure import NOISE_VAR, Case, Setup, noisy_input
from torch import nn
from torchvision import models
from torchvision.models import detection, optical_flow, segmentation, video
from torchvision.models.video.mvit import MSBlockConfig, MViT

# family, constructor, image size
CLASSIFIERS: list[tuple[str, Callable[..., nn.Module], int]] = [
    ("alexnet", models.alexnet, 64),
    ("vgg", models.vgg11, 64),
    ("resnet", models.resnet18, 64),
    ("squeezenet", models.squeezenet1_0, 64),
    ("densenet", models.densenet121, 64),
    ("inception", models.inception_v3, 96),
    ("googlenet", models.googlenet, 64),
    ("shufflenet", models.shufflenet_v2_x0_5, 64),
    ("mobilenet_v2", models.mobilenet_v2, 64),
    ("mobilenet_v3", models.mobilenet_v3_small, 64),
    ("efficientnet", models.efficientnet_b0, 64),
    ("efficientnet_v2", models.efficientnet_v2_s, 64),
    ("regnet", models.regnet_y_400mf, 64),
    ("vit", models.vit_b_32, 224),
    ("swin", models.swin_t, 64),
    ("swin_v2", models.swin_v2_t, 64),
    ("convnext", models.convnext_tiny, 64),
    ("maxvit", models.maxvit_t, 224),
]
DENSE: list[tuple[str, Callable[..., nn.Module], int]] = [
    ("fcn", segmentation.fcn_resnet50, 64),
    ("deeplab", segmentation.deeplabv3_resnet50, 64),
    ("lraspp", segmentation.lraspp_mobilenet_v3_large, 64),
]
FURTHER_CLASSIFIERS: list[tuple[str, Callable[..., nn.Module], int]] = [
    ("mnasnet", models.mnasnet0_5, 64),
    ("resnet", models.resnext50_32x4d, 64),
    ("vgg", models.vgg11_bn, 64),
    ("regnet", models.regnet_x_400mf, 64),
]
VIDEO: list[tuple[str, Callable[..., nn.Module], tuple[int, ...]]] = [
    ("r3d", video.r3d_18, (8, 32, 32)),
    ("mc3", video.mc3_18, (8, 32, 32)),
    ("r2plus1d", video.r2plus1d_18, (8, 32, 32)),
    ("s3d", video.s3d, (16, 224, 224)),
    ("swin3d", video.swin3d_t, (8, 64, 64)),
]


class Pyramid(nn.Module):
    """A detector up to its raw head outputs; what follows (nms) is not differentiable."""

    def __init__(self, detector: nn.Module) -> None:
        super().__init__()
        self.backbone, self.head = detector.backbone, detector.head

    def forward(self, x: torch.Tensor) -> Any:
        features = self.backbone(x)
        return self.head(list(features.values()))


def cases() -> list[Case]:
    """The 22 models, then the further ones."""
    return [
        *(_image(*row) for row in CLASSIFIERS),
        *(_image(*row, weights_backbone=None) for row in DENSE),
        Case("torchvision", "raft", "raft_small", _raft),
        *(_image(*row, further=True) for row in FURTHER_CLASSIFIERS),
        *(_further(family, make.__name__, _plain(make), size) for family, make, size in VIDEO),
        _further("mvit", "mvit_v2 (two blocks)", _mvit, (8, 64, 64)),
        _further("retinanet", "retinanet_resnet50_fpn (to the heads)", _retinanet, (64, 64)),
        _further("ssd", "ssdlite320_mobilenet_v3_large (to the heads)", _ssd, (320, 320)),
        _further("fpn", "resnet18 feature pyramid", _pyramid, (64, 64)),
    ]


def _image(
    family: str, make: Callable[..., nn.Module], size: int, further: bool = False, **options: Any
) -> Case:
    extra = {"init_weights": True} if family in ("inception", "googlenet") else {}

    def build() -> Setup:
        return noisy_input(make(weights=None, **options, **extra), 1, 3, size, size)

    return Case("torchvision", family, make.__name__, build, further)


def _further(family: str, name: str, make: Callable[[], nn.Module], size: tuple[int, ...]) -> Case:
    return Case("torchvision", family, name, lambda: noisy_input(make(), 1, 3, *size), True)


def _plain(make: Callable[..., nn.Module]) -> Callable[[], nn.Module]:
    return lambda: make(weights=None)


def _raft() -> Setup:
    images = (torch.rand(1, 3, 128, 128), torch.rand(1, 3, 128, 128))
    return Setup(optical_flow.raft_small(weights=None), images, (NOISE_VAR, NOISE_VAR))


def _mvit() -> nn.Module:
    """Version 2 with two of its sixteen blocks: the full one takes minutes."""
    kernel = {"kernel_q": [3, 3, 3], "kernel_kv": [3, 3, 3]}
    blocks = [
        MSBlockConfig(1, 32, 64, **kernel, stride_q=[1, 1, 1], stride_kv=[1, 4, 4]),
        MSBlockConfig(2, 64, 64, **kernel, stride_q=[1, 2, 2], stride_kv=[1, 2, 2]),
    ]
    return MViT(
        (64, 64),
        8,
        blocks,
        residual_pool=True,
        residual_with_cls_embed=False,
        rel_pos_embed=True,
        proj_after_attn=True,
    )


def _retinanet() -> nn.Module:
    return Pyramid(detection.retinanet_resnet50_fpn(weights=None, weights_backbone=None))


def _ssd() -> nn.Module:
    return Pyramid(detection.ssdlite320_mobilenet_v3_large(weights=None, weights_backbone=None))


def _pyramid() -> nn.Module:
    resnet_fpn_backbone = detection.backbone_utils.resnet_fpn_backbone
    return resnet_fpn_backbone(backbone_name="resnet18", weights=None)
