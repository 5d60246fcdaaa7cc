"""The joint pass against differentiating a gradient, in float64: same logits, slopes and weight gradients."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

import gyrograd as gg
from gyrograd.numerics.tangents import joint_pass

CLEAN, MOVED = 5, 3


class CleanStatistics(TorchFunctionMode):
    """Batch normalisation by the first rows' statistics, in elementary operations."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is not F.batch_norm or not kwargs["training"]:
            return func(*args, **kwargs)
        z = args[0]
        axes, shape = (0, *range(2, z.dim())), (1, -1, *(1 for _ in z.shape[2:]))
        mean = z[:CLEAN].mean(axes, keepdim=True)
        variance = (z[:CLEAN] - mean).square().mean(axes, keepdim=True)
        out = (z - mean) / (variance + kwargs["eps"]).sqrt()
        weight, bias = kwargs["weight"], kwargs["bias"]
        return out if weight is None else out * weight.view(shape) + bias.view(shape)


class EveryLayer(nn.Module):
    """One of each kind of operation the joint pass knows, with three nonlinear layers and a residual sum."""

    def __init__(self, activation: nn.Module, pool: nn.Module, affine: bool = True) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 4, 3, padding=1)
        self.norm = nn.BatchNorm2d(4, affine=affine)
        self.second = nn.Conv2d(4, 4, 3, padding=1, groups=2, stride=1)
        self.activation, self.pool = activation, pool
        self.drop = nn.Dropout(0.0)
        self.last = nn.Linear(8 * 4 * 4, 6)

    def forward(self, x: Tensor) -> Tensor:
        z = self.activation(self.norm(self.first((x - 0.5) / 0.25)))
        z = z + 0.3 * self.activation(self.second(z))
        z = torch.cat([self.pool(z), F.avg_pool2d(z, 2)], dim=1)
        z = F.pad(z[:, :, ::1, ::1], (0, 0, 0, 0))
        return self.last(self.drop(torch.flatten(self.activation(z), 1)) + 1.0)


def images(side: int = 8) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(3)
    draw = lambda n: torch.rand(n, 3, side, side, generator=generator, dtype=torch.float64)  # noqa: E731
    return draw(CLEAN), draw(MOVED), draw(MOVED) - 0.5


def objective(logits: Tensor, slopes: Tensor) -> Tensor:
    labels = torch.arange(CLEAN) % logits.shape[1]
    return F.cross_entropy(logits, labels) + slopes.gather(1, labels[:MOVED, None]).sum()


def oracle(model: nn.Module, clean: Tensor, moved: Tensor, along: Tensor) -> tuple[Tensor, Tensor]:
    """Logits, and for each moved image and class the gradient's product with its direction."""
    moved = moved.clone().requires_grad_()
    with CleanStatistics():
        out = model(torch.cat([clean, moved]))
    columns = [
        (torch.autograd.grad(out[CLEAN:, k].sum(), moved, create_graph=True)[0] * along).flatten(1).sum(1)
        for k in range(out.shape[1])
    ]
    return out[:CLEAN], torch.stack(columns, 1)


def agree(model: nn.Module, side: int = 8) -> None:
    model = model.double()
    given = images(side)
    logits, slopes = joint_pass(model, *given)
    expected_logits, expected_slopes = oracle(model, *given)
    torch.testing.assert_close(logits, expected_logits, rtol=1e-9, atol=1e-10)
    torch.testing.assert_close(slopes, expected_slopes, rtol=1e-9, atol=1e-10)
    weights = [p for p in model.parameters() if p.requires_grad]
    found = torch.autograd.grad(objective(logits, slopes), weights)
    expected = torch.autograd.grad(objective(expected_logits, expected_slopes), weights)
    largest = max(float(one.abs().max()) for one in expected)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-8, atol=1e-10 * largest)


@pytest.mark.parametrize("train", [True, False])
@pytest.mark.parametrize("pool", [nn.MaxPool2d(2), nn.MaxPool2d(3, 2, 1), nn.MaxPool2d(2, ceil_mode=True)])
@pytest.mark.parametrize(
    "activation", [nn.Softplus(3), nn.Softplus(30, threshold=5), nn.Tanh(), nn.SiLU(), nn.GELU(), nn.ReLU()]
)
def test_slopes_and_weight_gradients_are_those_of_the_differentiated_gradient(
    activation: nn.Module, pool: nn.Module, train: bool
) -> None:
    torch.manual_seed(0)
    agree(EveryLayer(activation, pool).train(train))


def test_batch_normalisation_without_weights_is_known() -> None:
    torch.manual_seed(0)
    agree(EveryLayer(nn.Softplus(3), nn.MaxPool2d(2), affine=False).train())


@pytest.mark.parametrize(
    ("name", "train"),
    [
        ("lenet", True),
        ("resnet20", True),
        ("resnet20", False),
        ("vgg16", True),
        ("torchvision:resnet18", True),
    ],
)
def test_the_backbones_are_known(name: str, train: bool) -> None:
    size = {"image_size": 32} if name == "lenet" else {}
    model = gg.model(name, activation="softplus", beta=3, normalize="cifar10", seed=0, num_classes=2, **size)
    agree(model.train(train), side=32)


def test_running_statistics_are_those_of_the_clean_images_alone() -> None:
    torch.manual_seed(0)
    model = EveryLayer(nn.Softplus(3), nn.MaxPool2d(2)).double().train()
    state = {key: value.clone() for key, value in model.state_dict().items()}
    clean, moved, along = images()
    joint_pass(model, clean, moved, along)
    found = model.norm.running_mean.clone(), model.norm.running_var.clone()  # type: ignore[union-attr]
    model.load_state_dict(state)
    model(clean)
    torch.testing.assert_close(found[0], model.norm.running_mean)
    torch.testing.assert_close(found[1], model.norm.running_var)


def test_channels_last_images_give_the_same() -> None:
    torch.manual_seed(0)
    model = EveryLayer(nn.Softplus(3), nn.MaxPool2d(2)).double().eval()
    clean, moved, along = images()
    plain = joint_pass(model, clean, moved, along)
    last = joint_pass(
        model.to(memory_format=torch.channels_last), clean.to(memory_format=torch.channels_last), moved, along
    )
    torch.testing.assert_close(plain, last)


class Odd(nn.Module):
    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind, self.last = kind, nn.Linear(12, 3)

    def forward(self, x: Tensor) -> Tensor:
        z = x.flatten(1)
        if self.kind == "product":
            z = z * z
        elif self.kind == "softmax":
            z = z.softmax(1)
        elif self.kind == "divisor":
            z = 1 / z
        elif self.kind == "dropout":
            z = F.dropout(z, 0.5, True)
        elif self.kind == "mean over images":
            z = z - z.mean(0, keepdim=True)
        elif self.kind == "taken from one":
            z = 1 - z
        elif self.kind == "padded with ones":
            z = F.pad(z, (0, 1), value=1.0)[:, 1:]
        return self.last(z)


@pytest.mark.parametrize(
    "kind",
    ["product", "softmax", "divisor", "dropout", "mean over images", "taken from one", "padded with ones"],
)
def test_an_operation_that_is_not_linear_is_refused_by_name(kind: str) -> None:
    x = torch.rand(4, 3, 2, 2)
    with pytest.raises(
        gg.UserError, match="does not know how '.+' carries a derivative; train .* fast=False"
    ):
        joint_pass(Odd(kind), x, x[:2], x[:2])


def test_directions_must_have_the_shape_of_the_images() -> None:
    x = torch.rand(4, 3, 2, 2)
    with pytest.raises(gg.UserError, match="give one direction for each moved image"):
        joint_pass(Odd("plain"), x, x[:2], x[:1])


@pytest.mark.parametrize("operation", [torch.tanh, torch.exp])
def test_an_operation_that_is_given_its_batch_by_keyword_is_refused_and_not_passed_by(operation):
    class ByKeyword(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(12, 3)

        def forward(self, x):
            return self.head(operation(input=x.flatten(1)))

    x = torch.rand(2, 3, 2, 2)
    with pytest.raises(gg.UserError, match=operation.__name__):
        joint_pass(ByKeyword(), x, x + 0.1, torch.ones_like(x))
