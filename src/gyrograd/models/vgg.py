"""VGG-16 with BatchNorm for small images."""

from torch import nn

from gyrograd.errors import UserError
from gyrograd.registry import register
from gyrograd.types import Images, Logits

# Widths of the 3x3 convolutions between the five max-pools.
GROUPS = ((64, 64), (128, 128), (256, 256, 256), (512, 512, 512), (512, 512, 512))


class VGG16(nn.Module):
    """Thirteen convolutions with BatchNorm, five max-pools, a mean over pixels and one linear layer."""

    def __init__(self, num_classes: int = 10, in_channels: int = 3) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        channels = in_channels
        for group in GROUPS:
            for width in group:
                layers += [nn.Conv2d(channels, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU()]
                channels = width
            layers.append(nn.MaxPool2d(2))
        self.features = nn.Sequential(*layers)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.flatten = nn.Flatten()
        self.classifier = nn.Linear(channels, num_classes)

    def forward(self, x: Images) -> Logits:
        if min(x.shape[-2:]) < 32:
            raise UserError(
                f"VGG-16 halves the image five times; give sides of 32 or more, not {tuple(x.shape)}."
            )
        logits: Logits = self.classifier(self.flatten(self.pool(self.features(x))))
        return logits


@register("model", "vgg16", paper="tan2023", equation="Appendix B", image_size=32)
def vgg16(num_classes: int = 10, in_channels: int = 3) -> VGG16:
    """VGG-16 with BatchNorm and one linear layer for 32-pixel images.

    Deviation: tan2023 does not say which VGG-16; this is the usual CIFAR form without the 4096-unit layers.

    >>> import torch, gyrograd as gg
    >>> gg.model("vgg16", num_classes=7)(torch.rand(2, 3, 32, 32)).shape
    torch.Size([2, 7])
    """
    return VGG16(num_classes, in_channels)
