"""Backbones against torchvision and timm, and against their layers written out one by one."""

from __future__ import annotations

import math

import pytest
import timm
import torch
import torch.nn.functional as F
import torchvision
from torch import Tensor, nn

from gyrograd.models import build
from gyrograd.models.swin import WindowAttention


def randomised(model: nn.Module) -> nn.Module:
    """Float64, eval, and BatchNorm far from the identity, so that a forgotten one shows."""
    generator = torch.Generator().manual_seed(3)
    for module in model.double().eval().modules():
        if isinstance(module, nn.BatchNorm2d):
            for tensor, low in (
                (module.running_mean, -0.2),
                (module.running_var, 0.5),
                (module.bias, -0.2),
                (module.weight, 0.5),
            ):
                tensor.data = low + torch.rand(tensor.shape, dtype=torch.float64, generator=generator)
    return model


def images(b: int = 2, side: int = 32) -> Tensor:
    return torch.rand(b, 3, side, side, dtype=torch.float64, generator=torch.Generator().manual_seed(4))


@pytest.mark.parametrize("name", ["resnet18", "resnet50"])
def test_resnet_equals_torchvision_with_a_small_stem(name: str) -> None:
    ours = randomised(build(name, seed=0))
    theirs = torchvision.models.get_model(name, num_classes=10)
    theirs.conv1, theirs.maxpool = nn.Conv2d(3, 64, 3, padding=1, bias=False), nn.Identity()
    renamed = {
        k.replace("shortcut", "downsample").replace("linear", "fc"): v for k, v in ours.state_dict().items()
    }
    theirs.double().load_state_dict(renamed)
    x = images()
    with torch.no_grad():
        torch.testing.assert_close(ours(x), theirs.eval()(x))


def test_vgg16_equals_the_features_of_torchvision() -> None:
    ours = randomised(build("vgg16", seed=0))
    theirs = torchvision.models.vgg16_bn(num_classes=2).features
    theirs.double().load_state_dict(ours.features.state_dict())
    x = images(side=64)
    with torch.no_grad():
        pooled = theirs.eval()(x).mean(dim=(2, 3))
        torch.testing.assert_close(ours(x), pooled @ ours.classifier.weight.T + ours.classifier.bias)


def test_timm_and_torchvision_resnet18_agree_on_the_same_weights() -> None:
    ours = build("torchvision:resnet18", num_classes=5, seed=0)
    twin = build("timm:resnet18", num_classes=5, seed=1)
    twin.load_state_dict(ours.state_dict())
    x = images(1, 64)
    with torch.no_grad():
        torch.testing.assert_close(randomised(ours)(x), randomised(twin)(x))
        reference = timm.create_model("resnet18", num_classes=5).double()
        reference.load_state_dict(ours.state_dict())
        torch.testing.assert_close(ours(x), reference.eval()(x))


def test_lenet_equals_its_layers_written_out() -> None:
    model = randomised(build("lenet", seed=0))
    w = model.state_dict()
    x = images()
    z = x
    for number, pooled in ((1, False), (2, True), (3, False), (4, True)):
        z = F.conv2d(z, w[f"conv{number}.weight"], w[f"conv{number}.bias"], padding=1).clamp(min=0)
        if pooled:
            b, c, h, _ = z.shape
            z = z.reshape(b, c, h // 2, 2, h // 2, 2).amax(dim=(3, 5))
    z = (z.reshape(len(x), 4096) @ w["fc1.weight"].T + w["fc1.bias"]).clamp(min=0)
    torch.testing.assert_close(model(x).detach(), z @ w["fc2.weight"].T + w["fc2.bias"])


def convolved(z: Tensor, w: dict[str, Tensor], conv: str, bn: str, stride: int = 1) -> Tensor:
    """Convolution of any odd kernel, then BatchNorm by its formula with running statistics."""
    kernel = w[f"{conv}.weight"]
    z = F.conv2d(z, kernel, w.get(f"{conv}.bias"), stride, kernel.shape[-1] // 2)
    scale = w[f"{bn}.weight"] / (w[f"{bn}.running_var"] + 1e-5).sqrt()
    return (z - w[f"{bn}.running_mean"][:, None, None]) * scale[:, None, None] + w[f"{bn}.bias"][
        :, None, None
    ]


def option_a(x: Tensor, width: int) -> Tensor:
    out = torch.zeros(len(x), width, x.shape[2] // 2, x.shape[3] // 2, dtype=x.dtype)
    for channel in range(x.shape[1]):
        for i in range(out.shape[2]):
            for j in range(out.shape[3]):
                out[:, width // 4 + channel, i, j] = x[:, channel, 2 * i, 2 * j]
    return out


def test_resnet20_equals_its_blocks_written_out() -> None:
    model = randomised(build("resnet20", seed=0))
    w = model.state_dict()
    x = images(1, 16)
    z = convolved(x, w, "conv1", "bn1").clamp(min=0)
    for stage, width in ((1, 16), (2, 32), (3, 64)):
        for number in range(3):
            first = number == 0 and stage > 1
            at = f"layer{stage}.{number}"
            inner = convolved(z, w, f"{at}.conv1", f"{at}.bn1", 2 if first else 1).clamp(min=0)
            skip = option_a(z, width) if first else z
            z = (convolved(inner, w, f"{at}.conv2", f"{at}.bn2") + skip).clamp(min=0)
    logits = z.mean(dim=(2, 3)) @ w["linear.weight"].T + w["linear.bias"]
    torch.testing.assert_close(model(x).detach(), logits)


def test_googlenet_equals_its_branches_written_out() -> None:
    model = randomised(build("googlenet", seed=0))
    w = model.state_dict()
    x = images(1, 16)

    def chain(z: Tensor, at: str, *starts: int) -> Tensor:
        for start in starts:
            z = convolved(z, w, f"{at}.{start}", f"{at}.{start + 1}").clamp(min=0)
        return z

    z = chain(x, "features", 0)
    for layer in range(3, 14):
        if layer in (5, 11):  # a max-pool after two and after five more blocks
            z = F.max_pool2d(z, 3, 2, 1)
            continue
        at = f"features.{layer}"
        pooled = F.max_pool2d(z, 3, 1, 1)
        z = torch.cat(
            [
                chain(z, f"{at}.one", 0),
                chain(z, f"{at}.three", 0, 3),
                chain(z, f"{at}.five", 0, 3, 6),
                chain(pooled, f"{at}.pooled", 1),
            ],
            dim=1,
        )
    logits = z.mean(dim=(2, 3)) @ w["linear.weight"].T + w["linear.bias"]
    torch.testing.assert_close(model(x).detach(), logits)


def attended(attention: WindowAttention, x: Tensor) -> Tensor:
    """Window attention token by token: a token sees those of its moved window that are not wrapped around."""
    (h, w, width), side, shift, heads = x.shape, attention.side, attention.shift, attention.heads
    d = width // heads
    q, k, v = ((x @ attention.qkv.weight.T)[..., i * width : (i + 1) * width] for i in range(3))
    table = attention.bias.reshape(2 * side - 1, 2 * side - 1)
    out = torch.zeros_like(x)

    def moved(i: int, j: int) -> tuple[int, int]:
        return (i - shift) % h, (j - shift) % w

    for i in range(h):
        for j in range(w):
            mi, mj = moved(i, j)
            seen = []
            for a in range(h):
                for b in range(w):
                    ma, mb = moved(a, b)
                    together = (mi // side, mj // side) == (ma // side, mb // side)
                    same_part = ((i < shift) == (a < shift)) and ((j < shift) == (b < shift))
                    # Wrapped rows are those below `shift`; in a window without wrapping all parts are equal.
                    if together and same_part:
                        seen.append((a, b, table[ma - mi + side - 1, mb - mj + side - 1]))
            for head in range(heads):
                part = slice(head * d, (head + 1) * d)
                scores = torch.stack(
                    [q[i, j, part] @ k[a, b, part] / math.sqrt(d) + bias for a, b, bias in seen]
                )
                shares = scores.softmax(0)
                out[i, j, part] = sum(s * v[a, b, part] for s, (a, b, _) in zip(shares, seen, strict=True))
    return out @ attention.out.weight.T + attention.out.bias


@pytest.mark.parametrize("shift", [0, 2])
def test_window_attention_equals_the_loop_over_tokens(shift: int) -> None:
    torch.manual_seed(5)
    attention = WindowAttention(6, heads=2, side=4, shift=shift).double()
    x = torch.randn(2, 8, 4, 6, dtype=torch.float64)
    with torch.no_grad():
        expected = torch.stack([attended(attention, grid) for grid in x])
        torch.testing.assert_close(attention(x), expected)


def test_swin_equals_its_stages_written_out() -> None:
    model = (
        build("swin", seed=0, width=8, depths=(2, 1), heads=(2, 2), factors=(2, 1), window=2).double().eval()
    )
    x = images(1, 8)
    w = model.state_dict()
    z = x.permute(0, 2, 3, 1)
    for stage, (depth, factor) in enumerate(((2, 2), (1, 1))):
        c = z.shape[-1]
        patches = [
            z[:, i::factor, j::factor, channel]
            for channel in range(c)
            for i in range(factor)
            for j in range(factor)
        ]
        at = f"stages.{stage}.0.linear"
        z = torch.stack(patches, dim=-1) @ w[f"{at}.weight"].T + w[f"{at}.bias"]
        for number in range(1, depth + 1):
            at = f"stages.{stage}.{number}"
            block = model.get_submodule(at)

            def normed(z: Tensor, at: str) -> Tensor:
                centred = z - z.mean(-1, keepdim=True)
                return (
                    centred / (z.var(-1, unbiased=False, keepdim=True) + 1e-5).sqrt() * w[f"{at}.weight"]
                    + w[f"{at}.bias"]
                )

            z = z + torch.stack([attended(block.attention, grid) for grid in normed(z, f"{at}.norm1")])
            hidden = normed(z, f"{at}.norm2") @ w[f"{at}.mlp.0.weight"].T + w[f"{at}.mlp.0.bias"]
            hidden = hidden * 0.5 * (1 + torch.erf(hidden / math.sqrt(2)))
            z = z + hidden @ w[f"{at}.mlp.2.weight"].T + w[f"{at}.mlp.2.bias"]
    pooled = normed(z.mean(dim=(1, 2)), "norm")
    torch.testing.assert_close(model(x).detach(), (pooled @ w["linear.weight"].T + w["linear.bias"]).detach())


def test_stages_of_swin_alternate_still_and_moved_windows() -> None:
    model = build("swin")
    shifts = [m.shift for m in model.modules() if isinstance(m, WindowAttention)]
    assert shifts == [0, 2] * 6
