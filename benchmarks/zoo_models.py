"""The architectures of the zoo: each built with random weights, with a small batch that it takes.

Convolutional nets and most of timm are whole, on images as small as they take. Transformers are two
layers of width 64 with an inner width of 256. Nothing is downloaded.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from zoo_transformers import TRANSFORMERS
from zoo_yolo import Yolo

Inputs = Tensor | tuple[Tensor, ...] | dict[str, Tensor]
Built = tuple[nn.Module, Inputs]

CLASSES = 10
SAMPLES = 4

# By family, the size of the image and what else the builder is told.
TORCHVISION: dict[str, dict[str, Any]] = {
    "alexnet": {},
    "vgg11_bn": {"size": 32},
    "resnet18": {},
    "resnet50": {},
    "resnext50_32x4d": {},
    "wide_resnet50_2": {},
    "densenet121": {},
    "mobilenet_v2": {},
    "mobilenet_v3_small": {},
    "efficientnet_b0": {},
    "efficientnet_v2_s": {},
    "shufflenet_v2_x0_5": {},
    "squeezenet1_1": {},
    "googlenet": {"aux_logits": False, "init_weights": False},
    "inception_v3": {"size": 80, "aux_logits": False, "init_weights": False},
    "mnasnet0_5": {},
    "regnet_x_400mf": {},
    "regnet_y_400mf": {},
    "convnext_tiny": {},
    "vit_b_16": {"size": 32, "image_size": 32},
    "swin_t": {},
    "maxvit_t": {"size": 224, "samples": 2},
    "fcn_resnet50": {"weights_backbone": None},
    "deeplabv3_mobilenet_v3_large": {"weights_backbone": None},
}
MORE_OF_TORCHVISION: dict[str, dict[str, Any]] = {
    "resnet34": {},
    "swin_v2_t": {},
    "lraspp_mobilenet_v3_large": {"weights_backbone": None},
}
VIDEO = {"r3d_18": 32, "mc3_18": 32, "r2plus1d_18": 32, "s3d": 224}
DETECTION = (
    "ssdlite320_mobilenet_v3_large",
    "ssd300_vgg16",
    "retinanet_resnet50_fpn",
    "fcos_resnet50_fpn",
    "fasterrcnn_mobilenet_v3_large_fpn",
)
TIMM: dict[str, dict[str, Any]] = {
    "vit_tiny_patch16_224": {"img_size": 64},
    "deit_tiny_patch16_224": {"img_size": 64},
    "mixer_s32_224": {"img_size": 64},
    "convmixer_768_32": {},
    "ghostnet_050": {},
    "tf_efficientnet_lite0": {},
    "repvgg_a0": {},
    "levit_128s": {"size": 224},
    "poolformer_s12": {},
    "pvt_v2_b0": {},
    "resmlp_12_224": {"img_size": 64},
    "swin_tiny_patch4_window7_224": {"img_size": 56},
    "xcit_nano_12_p16_224": {},
    "edgenext_xx_small": {},
}
MORE_OF_TIMM: dict[str, dict[str, Any]] = {
    "beit_base_patch16_224": {"img_size": 64, "embed_dim": 192, "depth": 4, "num_heads": 3},
    "cait_xxs24_224": {"img_size": 64, "depth": 6},
    "coat_lite_tiny": {"img_size": 64},
    "convit_tiny": {"img_size": 64, "depth": 6},
    "convnextv2_atto": {},
    "cspdarknet53": {},
    "darknet53": {},
    "dla34": {},
    "dpn68": {},
    "efficientformer_l1": {"size": 224},
    "efficientvit_b0": {},
    "efficientvit_m0": {"size": 224},
    "eva02_tiny_patch14_224": {"img_size": 56, "depth": 4},
    "fasternet_t0": {},
    "fastvit_t8": {},
    "focalnet_tiny_srf": {},
    "gmlp_ti16_224": {"img_size": 64},
    "hgnetv2_b0": {},
    "hiera_tiny_224": {"img_size": 64},
    "hrnet_w18_small": {},
    "inception_next_atto": {},
    "lcnet_050": {},
    "mixnet_s": {},
    "mobilenetv4_conv_small": {},
    "mobileone_s0": {},
    "mobilevit_xxs": {},
    "mobilevitv2_050": {},
    "mvitv2_tiny": {"img_size": 64},
    "nf_resnet26": {},
    "pit_ti_224": {"size": 224},
    "repvit_m0_9": {},
    "res2net50_26w_4s": {},
    "resnest14d": {},
    "rexnet_100": {},
    "sequencer2d_s": {"img_size": 56},
    "skresnet18": {},
    "starnet_s1": {},
    "swiftformer_xs": {},
    "tiny_vit_5m_224": {"size": 224},
    "tnt_s_patch16_224": {"img_size": 64, "depth": 4},
    "twins_pcpvt_small": {"img_size": 64},
    "volo_d1_224": {"img_size": 64},
    "ese_vovnet19b_dw": {},
    "xception41": {},
}


def images(size: int, samples: int = SAMPLES, seed: int = 0) -> Tensor:
    return torch.randn(samples, 3, size, size, generator=torch.Generator().manual_seed(seed))


def torchvision() -> Any:
    """The package, whose compiled part is built for another torch than the one of the CPU."""
    library = torch.library.Library("torchvision", "FRAGMENT")
    for name in ("nms", "qnms"):
        if not hasattr(torch.ops.torchvision, name):
            library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    import torchvision as package  # pyright: ignore[reportMissingImports]

    return package


def of_torchvision(name: str, size: int = 64, samples: int = SAMPLES, **options: Any) -> Built:
    build = torchvision().models.get_model
    return build(name, weights=None, num_classes=CLASSES, **options), images(size, samples)


def video(name: str, size: int) -> Built:
    model = torchvision().models.get_model(name, weights=None, num_classes=CLASSES)
    frames = 16 if name == "s3d" else 4
    generator = torch.Generator().manual_seed(0)
    return model, torch.randn(2, 3, frames, size, size, generator=generator)


class Detector(nn.Module):
    """Backbone, pyramid and head of a detector, without what it does with lists of boxes."""

    def __init__(self, whole: Any) -> None:
        super().__init__()
        self.backbone = whole.backbone
        self.head = whole.rpn.head if hasattr(whole, "rpn") else whole.head

    def forward(self, x: Tensor) -> object:
        """What the head gives at each scale of the pyramid."""
        return self.head([*self.backbone(x).values()])


def detector(name: str) -> Built:
    build = torchvision().models.get_model
    whole = build(name, weights=None, weights_backbone=None, num_classes=CLASSES)
    return Detector(whole), images(300 if name == "ssd300_vgg16" else 128, 2)


def of_timm(name: str, size: int = 64, **options: Any) -> Built:
    torchvision()
    import timm  # pyright: ignore[reportMissingImports]

    size = options.get("img_size", size)
    return timm.create_model(name, num_classes=CLASSES, **options), images(size)


def of_transformers(name: str) -> Built:
    torchvision()
    import transformers  # pyright: ignore[reportMissingImports]

    return TRANSFORMERS[name](transformers)


def zoo() -> dict[str, Callable[[], Built]]:
    """Every architecture by its name; those of the first zoo come first."""
    first = [name for name, build in TRANSFORMERS.items()][:11]

    def some(names: Any, prefix: str, build: Callable[..., Built]) -> dict[str, Any]:
        rows = names.items() if isinstance(names, dict) else ((name, {}) for name in names)
        return {
            f"{prefix}/{name}": lambda name=name, told=told: build(name, **told)
            for name, told in rows
        }

    return {
        **some(first, "transformers", of_transformers),
        **some(TIMM, "timm", of_timm),
        **some(TORCHVISION, "torchvision", of_torchvision),
        **some([n for n in TRANSFORMERS if n not in first], "transformers", of_transformers),
        "yolo/small": lambda: (Yolo(CLASSES), images(64)),
        **some(DETECTION, "torchvision", detector),
        **some(MORE_OF_TIMM, "timm", of_timm),
        **some(MORE_OF_TORCHVISION, "torchvision", of_torchvision),
        **some({name: {"size": size} for name, size in VIDEO.items()}, "torchvision", video),
    }
