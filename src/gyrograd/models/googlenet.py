"""GoogLeNet for small images: nine inception blocks, no auxiliary heads."""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from gyrograd.registry import register
from gyrograd.types import Images, Logits

# Widths of each block: 1x1; 1x1 before 3x3, 3x3; 1x1 before 5x5, 5x5; 1x1 after the pool.
STAGES: tuple[tuple[tuple[int, int, int, int, int, int], ...], ...] = (
    ((64, 96, 128, 16, 32, 32), (128, 128, 192, 32, 96, 64)),
    (
        (192, 96, 208, 16, 48, 64),
        (160, 112, 224, 24, 64, 64),
        (128, 128, 256, 24, 64, 64),
        (112, 144, 288, 32, 64, 64),
        (256, 160, 320, 32, 128, 128),
    ),
    ((256, 160, 320, 32, 128, 128), (384, 192, 384, 48, 128, 128)),
)


def conv_block(channels: int, width: int, kernel: int) -> list[nn.Module]:
    """A convolution that keeps the size, BatchNorm and ReLU."""
    return [nn.Conv2d(channels, width, kernel, padding=kernel // 2), nn.BatchNorm2d(width), nn.ReLU()]


class Inception(nn.Module):
    """Four branches on the same input, their channels side by side. The 5x5 is two 3x3 in a row."""

    def __init__(self, channels: int, widths: tuple[int, int, int, int, int, int]) -> None:
        super().__init__()
        one, before_three, three, before_five, five, pooled = widths
        self.one = nn.Sequential(*conv_block(channels, one, 1))
        self.three = nn.Sequential(
            *conv_block(channels, before_three, 1), *conv_block(before_three, three, 3)
        )
        self.five = nn.Sequential(
            *conv_block(channels, before_five, 1),
            *conv_block(before_five, five, 3),
            *conv_block(five, five, 3),
        )
        self.pooled = nn.Sequential(nn.MaxPool2d(3, stride=1, padding=1), *conv_block(channels, pooled, 1))
        self.width = one + three + five + pooled

    def forward(self, x: Images) -> Float[Tensor, "b width h w"]:
        return torch.cat([self.one(x), self.three(x), self.five(x), self.pooled(x)], dim=1)


class GoogLeNet(nn.Module):
    """A 3x3 stem, inception blocks with a max-pool between stages, a mean over pixels, one linear layer."""

    def __init__(self, num_classes: int = 10, in_channels: int = 3) -> None:
        super().__init__()
        layers: list[nn.Module] = conv_block(in_channels, 192, 3)
        channels = 192
        for number, stage in enumerate(STAGES):
            if number:
                layers.append(nn.MaxPool2d(3, stride=2, padding=1))
            for widths in stage:
                block = Inception(channels, widths)
                layers.append(block)
                channels = block.width
        self.features = nn.Sequential(*layers)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.flatten = nn.Flatten()
        self.linear = nn.Linear(channels, num_classes)

    def forward(self, x: Images) -> Logits:
        logits: Logits = self.linear(self.flatten(self.pool(self.features(x))))
        return logits


@register("model", "googlenet", paper="tan2023", equation="Appendix B", image_size=32)
def googlenet(num_classes: int = 10, in_channels: int = 3) -> GoogLeNet:
    """GoogLeNet with BatchNorm for 32-pixel images.

    Deviation: tan2023 does not say which GoogLeNet; this is the usual CIFAR form (3x3 stem, no extra heads).

    >>> import torch, gyrograd as gg
    >>> gg.model("googlenet", num_classes=7)(torch.rand(2, 3, 32, 32)).shape
    torch.Size([2, 7])
    """
    return GoogLeNet(num_classes, in_channels)
