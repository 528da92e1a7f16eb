"""VGG-16 with batch norm and one linear layer, the form that pruning papers use.

Simonyan and Zisserman, "Very Deep Convolutional Networks for Large-Scale Image Recognition",
ICLR 2015 (configuration D). The three fully connected layers of the original are replaced by
average pooling and one linear layer: 14.72 M parameters, the count BiP's paper prints. (The
released BiP code has three linear layers and 15.31 M.)
"""

from collections.abc import Sequence

from torch import Tensor, nn


class VGG(nn.Module):
    """Stages of 3x3 convolutions with a max-pool between them, average pool, linear head.

    Pools round up, so a map of 1x1 passes through unchanged and images of any size work.
    """

    def __init__(
        self,
        num_convs: Sequence[int],
        channels: Sequence[int],
        *,
        num_classes: int,
        in_channels: int,
    ) -> None:
        super().__init__()
        self.stages = nn.Sequential()
        for depth, out_channels in zip(num_convs, channels, strict=True):
            stage = nn.Sequential()
            if len(self.stages) > 0:
                stage.add_module("pool", nn.MaxPool2d(2, ceil_mode=True))
            for number in range(1, depth + 1):
                conv = nn.Conv2d(in_channels, out_channels, 3, padding=1, bias=False)
                if not conv.weight.is_meta:  # as in `resnet`
                    nn.init.kaiming_normal_(conv.weight, mode="fan_out", nonlinearity="relu")
                stage.add_module(f"conv{number}", conv)
                stage.add_module(f"norm{number}", nn.BatchNorm2d(out_channels))
                stage.add_module(f"relu{number}", nn.ReLU())
                in_channels = out_channels
            self.stages.append(stage)

        self.pool = nn.AdaptiveAvgPool2d(1)
        self.head = nn.Linear(in_channels, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        """Logits of shape (batch, num_classes)."""
        return self.head(self.pool(self.stages(x)).flatten(1))


def vgg16(*, num_classes: int = 10, in_channels: int = 3, width: int = 64) -> VGG:
    """VGG-16: 14,724,042 parameters for 10 classes and 3 input channels."""
    return VGG(
        [2, 2, 3, 3, 3],
        [width, 2 * width, 4 * width, 8 * width, 8 * width],
        num_classes=num_classes,
        in_channels=in_channels,
    )
