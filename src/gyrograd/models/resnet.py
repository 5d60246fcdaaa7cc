"""Residual nets for small images: ResNet-18 and -50 (joo2023, tan2023) and ResNet-20 (wang2020).

Parameter names are those of the common public CIFAR nets (conv1, bn1, layer1.0.conv1, shortcut.0, linear), so
their state dicts load as they are. Each use of an activation is a module of its own.
"""

from collections.abc import Callable, Sequence

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from gyrograd.registry import register
from gyrograd.types import Images, Logits

Features = Float[Tensor, "b width height breadth"]
"""Output of a block: other channels, and fewer pixels if it strides."""
Shortcut = Callable[[int, int, int], nn.Module]


class BasicBlock(nn.Module):
    """Two 3x3 convolutions and a shortcut."""

    expansion = 1

    def __init__(self, channels: int, width: int, stride: int, shortcut: Shortcut) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, width, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.act1 = nn.ReLU()
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.shortcut = shortcut(channels, width, stride)
        self.act2 = nn.ReLU()

    def forward(self, x: Images) -> Features:
        residual = self.bn2(self.conv2(self.act1(self.bn1(self.conv1(x)))))
        out: Features = self.act2(residual + self.shortcut(x))
        return out


class Bottleneck(nn.Module):
    """A 1x1, a strided 3x3 and a 1x1 convolution that widens four times, and a shortcut."""

    expansion = 4

    def __init__(self, channels: int, width: int, stride: int, shortcut: Shortcut) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, width, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.act1 = nn.ReLU()
        self.conv2 = nn.Conv2d(width, width, 3, stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.act2 = nn.ReLU()
        self.conv3 = nn.Conv2d(width, 4 * width, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(4 * width)
        self.shortcut = shortcut(channels, 4 * width, stride)
        self.act3 = nn.ReLU()

    def forward(self, x: Images) -> Features:
        narrow = self.act2(self.bn2(self.conv2(self.act1(self.bn1(self.conv1(x))))))
        out: Features = self.act3(self.bn3(self.conv3(narrow)) + self.shortcut(x))
        return out


class PaddedShortcut(nn.Module):
    """Every second pixel, and zeros for the new channels, half before and half after: no parameters."""

    def __init__(self, channels: int, width: int) -> None:
        super().__init__()
        self.before = (width - channels) // 2
        self.after = width - channels - self.before

    def forward(self, x: Images) -> Features:
        return F.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, self.before, self.after))


def projection_shortcut(channels: int, width: int, stride: int) -> nn.Sequential:
    """The identity if shapes agree, else a strided 1x1 convolution with BatchNorm (option B)."""
    if stride == 1 and channels == width:
        return nn.Sequential()
    return nn.Sequential(nn.Conv2d(channels, width, 1, stride, bias=False), nn.BatchNorm2d(width))


def padding_shortcut(channels: int, width: int, stride: int) -> nn.Module:
    """The identity if shapes agree, else subsampling and zero channels (option A)."""
    return nn.Sequential() if stride == 1 and channels == width else PaddedShortcut(channels, width)


class ResNet(nn.Module):
    """A 3x3 stem without pooling, stages that halve the image from the second on, a mean over pixels."""

    def __init__(
        self,
        block: type[BasicBlock] | type[Bottleneck],
        depths: Sequence[int],
        widths: Sequence[int],
        shortcut: Shortcut,
        num_classes: int,
        in_channels: int,
    ) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(in_channels, widths[0], 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(widths[0])
        self.act1 = nn.ReLU()
        self.stages = tuple(f"layer{number}" for number in range(1, len(depths) + 1))
        channels = widths[0]
        for name, depth, width in zip(self.stages, depths, widths, strict=True):
            blocks: list[nn.Module] = []
            for number in range(depth):
                stride = 2 if number == 0 and name != "layer1" else 1
                blocks.append(block(channels, width, stride, shortcut))
                channels = width * block.expansion
            self.add_module(name, nn.Sequential(*blocks))
        # Equal to the reference nets' fixed 4x4 (8x8) average at 32 px, and right for larger images too.
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.flatten = nn.Flatten()
        self.linear = nn.Linear(channels, num_classes)

    def forward(self, x: Images) -> Logits:
        z = self.act1(self.bn1(self.conv1(x)))
        for name in self.stages:
            z = self.get_submodule(name)(z)
        logits: Logits = self.linear(self.flatten(self.pool(z)))
        return logits


@register("model", "resnet18", paper="joo2023", equation="Section 5 (CIFAR-10, ResNet18)", image_size=32)
def resnet18(num_classes: int = 10, in_channels: int = 3) -> ResNet:
    """ResNet-18 for 32-pixel images: 3x3 stem, no max-pool, widths 64 to 512.

    Deviation: joo2023's reference shares one ReLU module within a block; here each use has its own.

    >>> import torch, gyrograd as gg
    >>> gg.model("resnet18", num_classes=7)(torch.rand(2, 3, 32, 32)).shape
    torch.Size([2, 7])
    """
    return ResNet(
        BasicBlock, (2, 2, 2, 2), (64, 128, 256, 512), projection_shortcut, num_classes, in_channels
    )


@register("model", "resnet50", paper="tan2023", equation="Appendix B", image_size=32)
def resnet50(num_classes: int = 10, in_channels: int = 3) -> ResNet:
    """ResNet-50 for 32-pixel images: bottleneck blocks 3, 4, 6, 3.

    >>> import torch, gyrograd as gg
    >>> gg.model("resnet50", num_classes=7)(torch.rand(2, 3, 32, 32)).shape
    torch.Size([2, 7])
    """
    return ResNet(
        Bottleneck, (3, 4, 6, 3), (64, 128, 256, 512), projection_shortcut, num_classes, in_channels
    )


@register("model", "resnet20", paper="wang2020", equation="Section 5 (CIFAR-10, ResNet-20)", image_size=32)
def resnet20(num_classes: int = 10, in_channels: int = 3) -> ResNet:
    """ResNet-20: three stages of three basic blocks, widths 16, 32, 64, parameter-free shortcuts.

    Deviation: wang2020 trained the Keras version (biased convolutions, 1x1 shortcuts, pixels of 0 to 255);
    this is the one of the ResNet paper (option A), for which trained weights are public.

    >>> import torch, gyrograd as gg
    >>> gg.model("resnet20", num_classes=7)(torch.rand(2, 3, 32, 32)).shape
    torch.Size([2, 7])
    """
    net = ResNet(BasicBlock, (3, 3, 3), (16, 32, 64), padding_shortcut, num_classes, in_channels)
    for module in net.modules():
        if isinstance(module, nn.Conv2d | nn.Linear):
            nn.init.kaiming_normal_(module.weight)
    return net
