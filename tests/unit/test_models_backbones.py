"""Each backbone: its size, its shapes, and a second derivative that is right and reaches every weight."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import gyrograd as gg
from gyrograd.errors import UserError
from gyrograd.models import build

RELU_BACKBONES = ("lenet", "resnet18", "resnet20", "resnet50", "vgg16", "googlenet")
IMAGE_BACKBONES = (*RELU_BACKBONES, "swin")


def parameter_count(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


def conv(fan_in: int, fan_out: int, kernel: int, bias: bool = True) -> int:
    return fan_in * fan_out * kernel**2 + fan_out * bias


def swin_count() -> int:
    total, channels = 0, 3
    for width, depth, factor in ((96, 2, 2), (192, 2, 2), (384, 6, 2), (768, 2, 1)):
        total += channels * factor**2 * width + width
        norms, attention, mlp = 4 * width, 3 * width**2 + 49 + width**2 + width, 8 * width**2 + 5 * width
        total += depth * (norms + attention + mlp)
        channels = width
    return total + 2 * 768 + 768 * 10 + 10


STEP = 1e-8
COUNTS = {
    "lenet": conv(3, 32, 3) + conv(32, 32, 3) + conv(32, 64, 3) + conv(64, 64, 3) + 4097 * 256 + 257 * 10,
    "resnet18": 11_173_962,
    "resnet20": 269_722,
    "resnet50": 23_520_842,
    "vgg16": 14_728_266,
    "googlenet": 6_166_250,
    "swin": swin_count(),
    "mlp": 2 * 32 + 32 + 32 * 2 + 2,
}


def test_every_registered_model_has_its_size_stated_here() -> None:
    assert set(gg.available("model")) == set(COUNTS)


@pytest.mark.parametrize("name", COUNTS)
def test_parameter_count_is_the_published_one(name: str) -> None:
    assert parameter_count(build(name)) == COUNTS[name]


@pytest.mark.parametrize("name", IMAGE_BACKBONES)
def test_classes_and_channels_are_settings(name: str) -> None:
    model = build(name, num_classes=7, in_channels=1).eval()
    assert model(torch.rand(2, 1, 32, 32)).shape == (2, 7)


@pytest.mark.parametrize("name", [name for name in IMAGE_BACKBONES if name != "lenet"])
def test_images_of_64_pixels_work(name: str) -> None:
    assert build(name).eval()(torch.rand(1, 3, 64, 64)).shape == (1, 10)


def test_lenet_of_another_size_is_a_setting() -> None:
    assert build("lenet", image_size=16)(torch.rand(1, 3, 16, 16)).shape == (1, 10)


@pytest.mark.parametrize("name", RELU_BACKBONES)
def test_each_use_of_an_activation_is_a_module_of_its_own(name: str) -> None:
    model = build(name).eval()
    uses: list[nn.Module] = []
    for module in model.modules():
        if isinstance(module, nn.ReLU):
            module.register_forward_hook(lambda used, *_: uses.append(used))
    model(torch.rand(1, 3, 32, 32))
    assert len(uses) == len(set(uses)) == sum(isinstance(m, nn.ReLU) for m in model.modules())


@pytest.mark.parametrize("name", IMAGE_BACKBONES)
def test_examples_do_not_see_each_other(name: str) -> None:
    model = build(name, seed=0).eval()
    x = torch.rand(3, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        torch.testing.assert_close(model(x)[1:2], model(x[1:2]), rtol=1e-4, atol=1e-5)


def small(name: str) -> tuple[nn.Module, Tensor]:
    """A smooth float64 model with BatchNorm statistics of real activations, and one input."""
    activation = {} if name == "swin" else {"activation": "softplus", "beta": 3.0}
    narrow = {"width": 24, "depths": (2, 2), "heads": (2, 3), "factors": (2, 2)} if name == "swin" else {}
    model = build(name, num_classes=3, seed=0, **activation, **narrow).double()
    generator = torch.Generator().manual_seed(1)
    shape = (2,) if name == "mlp" else (3, 32, 32)
    x = torch.rand(3, *shape, dtype=torch.float64, generator=generator)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.momentum = 1.0
    with torch.no_grad():
        model(x)
    return model.eval(), x[:1]


def gradient_norm(model: nn.Module, x: Tensor) -> Tensor:
    x = x.clone().requires_grad_()
    loss = F.cross_entropy(model(x), torch.zeros(len(x), dtype=torch.long))
    (gradient,) = torch.autograd.grad(loss, x, create_graph=True)
    return gradient.square().sum().sqrt()


@pytest.mark.parametrize("name", [*IMAGE_BACKBONES, "mlp"])
def test_second_derivative_reaches_every_weight_and_equals_the_difference_quotient(name: str) -> None:
    model, x = small(name)
    weights = dict(model.named_parameters())
    gradients = torch.autograd.grad(gradient_norm(model, x), list(weights.values()), allow_unused=True)
    dead = [key for key, g in zip(weights, gradients, strict=True) if g is None or not g.any()]
    assert dead == []
    generator = torch.Generator().manual_seed(2)
    along = [
        torch.randn(w.shape, dtype=torch.float64, generator=generator) * w.detach().abs().mean()
        for w in weights.values()
    ]
    slope = sum((g * v).sum() for g, v in zip(gradients, along, strict=True))
    # So short that no max-pool changes its winner.
    ends = []
    for step in (STEP, -2 * STEP):
        with torch.no_grad():
            for weight, v in zip(weights.values(), along, strict=True):
                weight += step * v
        ends.append(gradient_norm(model, x).detach())
    assert abs(slope) > 1e-2 * ends[0]  # else the comparison below could not fail
    quotient = (ends[0] - ends[1]) / (2 * STEP)
    torch.testing.assert_close(slope, quotient, rtol=1e-4, atol=1e-6 * float(ends[0]))


@pytest.mark.parametrize(
    ("make", "shape", "words"),
    [
        (lambda: build("lenet"), (1, 3, 28, 28), "image_size"),
        (lambda: build("vgg16"), (1, 3, 16, 16), "32 or more"),
        (lambda: build("swin"), (1, 3, 48, 32), "multiples of 32"),
    ],
)
def test_a_wrong_image_size_is_explained(make, shape, words: str) -> None:
    with pytest.raises(UserError, match=words):
        make()(torch.rand(shape))


@pytest.mark.parametrize(
    ("name", "settings", "words"),
    [
        ("mlp", {"hidden": (0,)}, "at least 1"),
        ("lenet", {"image_size": 2}, "image_size is 2 and LeNet halves"),
        ("swin", {"heads": (5, 6, 12, 24)}, "does not divide"),
        ("swin", {"depths": (2, 2)}, "give equally many"),
    ],
)
def test_impossible_settings_are_explained(name: str, settings: dict, words: str) -> None:
    with pytest.raises(UserError, match=words):
        build(name, **settings)
