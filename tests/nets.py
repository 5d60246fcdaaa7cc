"""Small nets in float64 that between them hold every structure the differentiated maps must survive."""

from __future__ import annotations

from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

SIDE = 12
CLASSES = 5


class Residual(nn.Module):
    """BatchNorm, max-pool, a residual sum, and one activation module used three times."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 6, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(6)
        self.conv1 = nn.Conv2d(6, 6, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(6)
        self.conv2 = nn.Conv2d(6, 6, 3, padding=1)
        self.act = nn.Softplus(beta=3)
        self.pool = nn.MaxPool2d(2)
        self.head = nn.Linear(6, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        out = self.pool(self.act(self.bn1(self.stem(x))))
        out = self.act(out + self.conv2(self.act(self.bn2(self.conv1(out)))))
        return self.head(out.mean((2, 3)))


class FunctionalReLU(nn.Module):
    """No activation module at all: F.relu, torch.relu and an in-place one."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 5, 3, padding=1)
        self.conv2 = nn.Conv2d(5, 6, 3, stride=2, padding=1)
        self.fc1 = nn.Linear(6 * (SIDE // 2) ** 2, 12)
        self.fc2 = nn.Linear(12, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        out = F.relu(self.conv1(x))
        out = torch.relu(self.conv2(out))
        out = F.relu(self.fc1(out.flatten(1)), inplace=True)
        return self.fc2(out)


class TinyViT(nn.Module):
    """A class token, positions, and one block of attention: fused, written out, or torch's module; in float64."""

    width, heads = 6, 2

    def __init__(self, seed: int = 0, attention: str = "fused") -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.attention = attention
        self.patch = nn.Conv2d(3, self.width, 4, stride=4)
        self.token = nn.Parameter(torch.randn(1, 1, self.width))
        self.position = nn.Parameter(torch.randn(1, 10, self.width))
        self.norm1, self.norm2, self.norm = (nn.LayerNorm(self.width) for _ in range(3))
        self.qkv, self.projection = nn.Linear(self.width, 3 * self.width), nn.Linear(self.width, self.width)
        self.up, self.down = nn.Linear(self.width, 8), nn.Linear(8, self.width)
        self.head = nn.Linear(self.width, CLASSES)
        for norm in (self.norm1, self.norm2, self.norm):
            nn.init.uniform_(norm.weight, 0.5, 1.5)
            nn.init.uniform_(norm.bias, -0.5, 0.5)
        self.double().eval()

    def mixed(self, z: Tensor) -> Tensor:
        q, k, v = self.qkv(z).unflatten(2, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        if self.attention == "fused":
            mixed = F.scaled_dot_product_attention(q, k, v)
        else:
            mixed = (q * q.shape[-1] ** -0.5 @ k.transpose(-2, -1)).softmax(-1) @ v
        return mixed.transpose(1, 2).flatten(2)

    def attended(self, z: Tensor) -> Tensor:
        if self.attention != "module":
            return self.projection(self.mixed(z))
        module = nn.MultiheadAttention(self.width, self.heads, batch_first=True, dtype=z.dtype).eval()
        for own, weight in zip(
            (module.in_proj_weight, module.in_proj_bias, module.out_proj.weight, module.out_proj.bias),
            (*self.qkv.parameters(), *self.projection.parameters()),
            strict=True,
        ):
            own.data = weight.data
        return module(z, z, z)[0]

    def forward(self, x: Tensor) -> Tensor:
        z = self.patch(x).flatten(2).transpose(1, 2)
        z = torch.cat([self.token.expand(len(z), -1, -1), z], 1) + self.position
        z = z + self.attended(self.norm1(z))
        z = z + self.down(F.gelu(self.up(self.norm2(z))))
        return self.head(self.norm(z)[:, 0])


class Squeezed(nn.Module):
    """Squeeze and excitation, a pool less its input, padding, response normalisation and a GroupNorm; in float64."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.stem, self.norm = nn.Conv2d(3, 4, 3, stride=2, padding=1), nn.GroupNorm(2, 4)
        self.reduce, self.expand = nn.Conv2d(4, 3, 1), nn.Conv2d(3, 4, 1)
        self.mix = nn.Conv2d(4, 4, 3, stride=2, groups=2)
        self.scale = nn.Parameter(torch.randn(1, 4, 1, 1))
        self.head = nn.Linear(4, CLASSES)
        self.double().eval()

    def forward(self, x: Tensor) -> Tensor:
        z = F.hardswish(self.norm(self.stem(x)))
        z = z * self.expand(F.softplus(self.reduce(z.mean((2, 3), keepdim=True)))).sigmoid()
        z = z + 0.5 * (F.avg_pool2d(z, 3, 1, 1) - z)
        z = F.silu(self.mix(F.pad(z, (1, 1, 1, 1), value=0.2)))
        size = z.norm(dim=(2, 3), keepdim=True)
        z = torch.addcmul(z, self.scale, z * (size / (size.mean(1, keepdim=True) + 1e-6)))
        return self.head(F.layer_norm(z.mean((2, 3)), (4,)))


class Tokens(nn.Module):
    """From image to tokens and back, with BatchNorm on both sides: where a batch of one has unusual strides."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 4, 3, stride=2, padding=1)
        self.bn1 = nn.BatchNorm2d(4)
        self.mix = nn.Linear(4, 6)
        self.bn2 = nn.BatchNorm2d(6)
        self.conv = nn.Conv2d(6, 6, 3, padding=1, groups=6)
        self.bn3 = nn.BatchNorm2d(6)
        self.head = nn.Linear(6, CLASSES)
        self.act = nn.Softplus(beta=3)

    def forward(self, x: Tensor) -> Tensor:
        out = self.bn1(self.stem(x))
        side = out.shape[-1]
        # Tokens side by side in memory: so is their gradient, and that of bn1's output has the strides of a transpose.
        out = self.act(self.mix(out.flatten(2).transpose(1, 2).contiguous()))
        out = self.bn2(out.transpose(1, 2).unflatten(2, (side, side)))
        out = self.act(self.bn3(self.conv(out.contiguous())))
        return self.head(out.flatten(2).transpose(1, 2).mean(1))


def _mlp() -> nn.Module:
    width = [3 * SIDE * SIDE, 16, 14, 12]
    layers = [part for a, b in pairwise(width) for part in (nn.Linear(a, b), nn.Softplus(3))]
    return nn.Sequential(nn.Flatten(), *layers, nn.Linear(width[-1], CLASSES))


def _lenet() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 4, 3, padding=1), nn.Softplus(3), nn.Conv2d(4, 4, 3, padding=1), nn.Softplus(3), nn.MaxPool2d(2),
        nn.Conv2d(4, 6, 3, padding=1), nn.Softplus(3), nn.Conv2d(6, 6, 3, padding=1), nn.Softplus(3), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(6 * (SIDE // 4) ** 2, 10), nn.Softplus(3), nn.Linear(10, CLASSES),
    )  # fmt: skip


def _vgg() -> nn.Module:
    """VGG16-BN's thirteen convolutions, narrow, with its five pools where the side still allows them."""
    parts: list[nn.Module] = []
    channels, side = 3, SIDE
    for block, depth in enumerate((2, 2, 3, 3, 3)):
        for _ in range(depth):
            width = 4 + block
            parts += [nn.Conv2d(channels, width, 3, padding=1), nn.BatchNorm2d(width), nn.Softplus(3)]
            channels = width
        if side % 2 == 0:
            parts.append(nn.MaxPool2d(2))
            side //= 2
    return nn.Sequential(*parts, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, CLASSES))


def lively(model: nn.Module) -> nn.Module:
    """Float64, eval mode, weights large enough that nothing vanishes, BatchNorm statistics that are not the first."""
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.uniform_(module.running_mean, -0.3, 0.3)
            nn.init.uniform_(module.running_var, 0.3, 1.5)
            nn.init.uniform_(module.weight, 0.7, 1.4)
            nn.init.uniform_(module.bias, -0.3, 0.3)
        elif isinstance(module, nn.Conv2d | nn.Linear):
            nn.init.kaiming_normal_(module.weight)
            if module.bias is not None:
                nn.init.uniform_(module.bias, -0.2, 0.2)
    return model.double().eval()


NETS = {
    "mlp": _mlp,
    "lenet": _lenet,
    "residual": Residual,
    "functional_relu": FunctionalReLU,
    "vgg": _vgg,
}
OTHERS = {"tokens": Tokens}
"""Nets for what one test file is about; the oracles need not run on them."""


def net(name: str, seed: int = 0) -> nn.Module:
    """A net by name with seeded float64 weights, in eval mode."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return lively({**NETS, **OTHERS}[name]())


def batch(b: int = 3, seed: int = 0, side: int = SIDE) -> tuple[Tensor, Tensor]:
    """Pixels in [0, 1] in float64 and a class for each."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.rand(b, 3, side, side, generator=generator, dtype=torch.float64)
    return x, torch.randint(CLASSES, (b,), generator=generator)


def halved(dtype: torch.dtype) -> nn.Module:
    """A half precision net that keeps its normalisation in single, as many do."""
    model = net("residual").to(dtype)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.float()
    return model
