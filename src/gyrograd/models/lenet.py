"""The small convolutional net of joo2023: four convolutions and two linear layers."""

from torch import nn

from gyrograd.errors import UserError
from gyrograd.numerics.cpu_layers import pool_activations
from gyrograd.registry import register
from gyrograd.types import Images, Logits


class LeNet(nn.Module):
    """3x3 convolutions of 32, 32, 64 and 64 channels, a 2x2 max-pool after each pair, then 256 units."""

    def __init__(self, num_classes: int = 10, in_channels: int = 3, image_size: int = 32) -> None:
        super().__init__()
        if image_size < 4:
            raise UserError(f"image_size is {image_size} and LeNet halves the image twice; give 4 or more.")
        self.image_size = image_size
        self.conv1 = nn.Conv2d(in_channels, 32, 3, padding=1)
        self.conv2 = nn.Conv2d(32, 32, 3, padding=1)
        self.conv3 = nn.Conv2d(32, 64, 3, padding=1)
        self.conv4 = nn.Conv2d(64, 64, 3, padding=1)
        self.act1, self.act2, self.act3, self.act4, self.act5 = (nn.ReLU() for _ in range(5))
        self.pool1, self.pool2 = nn.MaxPool2d(2), nn.MaxPool2d(2)
        self.flatten = nn.Flatten()
        self.fc1 = nn.Linear(64 * (image_size // 4) ** 2, 256)
        self.fc2 = nn.Linear(256, num_classes)

    def forward(self, x: Images) -> Logits:
        if tuple(x.shape[-2:]) != (self.image_size, self.image_size):
            raise UserError(
                f"This LeNet was built for {self.image_size} x {self.image_size} images and got "
                f"{x.shape[-2]} x {x.shape[-1]}; give images of that size (--size {self.image_size}), or build it with "
                "image_size=SIDE of square images."
            )
        z = self.act1(self.conv1(x))
        z = pool_activations(self.conv2(z), self.act2, self.pool1)
        z = self.act3(self.conv3(z))
        z = pool_activations(self.conv4(z), self.act4, self.pool2)
        z = self.act5(self.fc1(self.flatten(z)))
        logits: Logits = self.fc2(z)
        return logits


@register("model", "lenet", paper="joo2023", equation="Section 5 (CIFAR-10, LeNet)")
def lenet(num_classes: int = 10, in_channels: int = 3, image_size: int = 32) -> LeNet:
    """LeNet: 4 convolutions and 2 linear layers, no BatchNorm.

    joo2023's text calls it three-layer; the layers are those of its reference code.

    >>> import torch, gyrograd as gg
    >>> gg.model("lenet", num_classes=7)(torch.rand(2, 3, 32, 32)).shape
    torch.Size([2, 7])
    """
    return LeNet(num_classes, in_channels, image_size)
