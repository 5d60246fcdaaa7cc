"""Who is right? Maps and their derivatives from Captum, zennit and gyrograd, side by side: `make exactness`.

First table: the relative error of the second derivative (of <v, map> to x and to the weights, along random
directions) against central differences in float64. Second: the derivative of a curvature penalty to the weights, which
is a third derivative. Third: guided backprop against the rule written out, on nets that use their activations in
different ways. Fourth: LRP on nets people have. Writes results/exactness.md.
"""

from __future__ import annotations

import importlib.metadata
import platform
import sys
import warnings
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

warnings.simplefilter("ignore")
sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

import captum.attr as captum  # noqa: E402
import timm  # noqa: E402
import torchvision  # noqa: E402
import zennit.attribution  # noqa: E402
import zennit.canonizers  # noqa: E402
import zennit.composites  # noqa: E402
import zennit.torchvision  # noqa: E402
from nets import CLASSES, SIDE, batch, net  # noqa: E402

import gyrograd as gg  # noqa: E402
from gyrograd.numerics.random import keys, normal  # noqa: E402
from gyrograd.records import write_text  # noqa: E402

Explain = Callable[[nn.Module, Tensor, Tensor], Tensor]
STEPS = (1e-5, 1e-6, 1e-7)


def main() -> None:
    sections = [heading(), second_order_table(), third_order_table(), guided_backprop_table(), lrp_table()]
    text = "\n\n".join(sections) + "\n"
    print(text)
    write_text(Path(__file__).parents[1] / "results" / "exactness.md", text)


def heading() -> str:
    parts = ("gyrograd", "captum", "zennit", "torch", "torchvision", "timm")
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in parts)
    return (
        f"# Who is right?\n\nCommand: `make exactness`. {versions}; Python {platform.python_version()}, CPU."
    )


def markdown(header: list[str], rows: list[list[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(row) + " |" for row in lines)


# --- second derivatives ---------------------------------------------------------------------------------------


def theirs_captum(method: type, **options: object) -> Explain:
    def explain(model: nn.Module, x: Tensor, target: Tensor) -> Tensor:
        return method(model).attribute(x, target=target, **options)

    return explain


def theirs_zennit(
    composite: Callable[[], object] | None, attributor: type = zennit.attribution.Gradient, **options: object
) -> Explain:
    def explain(model: nn.Module, x: Tensor, target: Tensor) -> Tensor:
        start = F.one_hot(target, CLASSES).to(x.dtype)
        rules = composite() if composite else None
        with attributor(model, rules, create_graph=True, **options) as attribute:
            return attribute(x, start)[1]

    return explain


def ours(name: str, **settings: object) -> Explain:
    explain = gg.attribution(name, **settings)
    return lambda model, x, target: explain(model, x, target, create_graph=True)


SECOND_ORDER: dict[str, dict[str, Explain | None]] = {
    "gradient": {
        "Captum": theirs_captum(captum.Saliency, abs=False),
        "zennit": theirs_zennit(None),
        "gyrograd": ours("gradient"),
    },
    "input x gradient": {
        "Captum": theirs_captum(captum.InputXGradient),
        "zennit": None,
        "gyrograd": ours("input_x_gradient"),
    },
    "integrated gradients": {
        "Captum": theirs_captum(captum.IntegratedGradients, n_steps=20),
        "zennit": theirs_zennit(None, zennit.attribution.IntegratedGradients, n_iter=20),
        "gyrograd": ours("integrated_gradients", steps=20),
    },
    "SmoothGrad": {
        "Captum": lambda m, x, t: captum.NoiseTunnel(captum.Saliency(m)).attribute(
            x, nt_samples=5, stdevs=0.1, target=t, abs=False
        ),
        "zennit": theirs_zennit(None, zennit.attribution.SmoothGrad, noise_level=0.1, n_iter=5),
        "gyrograd": ours("smoothgrad", draws=5),
    },
    "guided backprop": {
        "Captum": theirs_captum(captum.GuidedBackprop),
        "zennit": theirs_zennit(zennit.composites.GuidedBackprop),
        "gyrograd": ours("guided_backprop"),
    },
    "LRP z+": {
        "Captum": theirs_captum(captum.LRP),
        "zennit": theirs_zennit(zennit.composites.ExcitationBackprop),
        "gyrograd": ours("lrp", first="same"),
    },
}


def second_order_table() -> str:
    rows = []
    for method, makers in SECOND_ORDER.items():
        rows.append(
            [method, *(second_order_cell(makers[maker]) for maker in ("Captum", "zennit", "gyrograd"))]
        )
    note = (
        "## Second derivatives\n\nRelative error against central differences: to x / to the weights (the worst weight "
        f"tensor). A Softplus LeNet and a residual net with BatchNorm, {SIDE} px, float64; the worse of the two. Above "
        "1e-4 the derivative is wrong, though nothing says so. zennit's second pass is taken outside its context, as "
        "its documentation asks; its guided backprop on these Softplus nets is the plain gradient (next table), whose "
        "derivative is what it returns."
    )
    return note + "\n\n" + markdown(["method", "Captum", "zennit", "gyrograd"], rows)


def second_order_cell(explain: Explain | None) -> str:
    if explain is None:
        return "not offered"
    worst = [0.0, 0.0]
    for structure in ("lenet", "residual"):
        try:
            pair = second_order_errors(explain, net(structure))
        except Exception as trouble:
            return f"{type(trouble).__name__}: {first_words(trouble)}"
        worst = [max(a, b) for a, b in zip(worst, pair, strict=True)]
    wrong = " **wrong**" if max(worst) > 1e-4 else ""
    return f"{worst[0]:.0e} / {worst[1]:.0e}{wrong}"


def second_order_errors(explain: Explain, model: nn.Module) -> tuple[float, float]:
    x, target = batch(2, seed=3)
    x.requires_grad_()
    generator = torch.Generator().manual_seed(0)
    along = torch.randn(x.shape, generator=generator, dtype=x.dtype)
    tensors = {"x": x, **dict(model.named_parameters())}

    def value() -> Tensor:
        torch.manual_seed(0)  # for libraries that draw from the global generator
        return (explain(model, x, target) * along).sum()

    slopes = torch.autograd.grad(value(), list(tensors.values()), allow_unused=True)
    errors = {}
    for (key, tensor), slope in zip(tensors.items(), slopes, strict=True):
        direction = torch.randn(tensor.shape, generator=generator, dtype=x.dtype)
        exact = 0.0 if slope is None else float((slope * direction).sum())
        # The best of three steps: a difference across a kink (a max-pool winner) measures no derivative.
        measured = [difference(value, tensor, direction, step) for step in STEPS]
        errors[key] = min(abs(exact - m) / max(abs(exact), abs(m), 1e-2) for m in measured)
    return errors.pop("x"), max(errors.values())


def difference(value: Callable[[], Tensor], tensor: Tensor, direction: Tensor, step: float) -> float:
    start = tensor.detach().clone()
    ends = []
    for sign in (1, -1):
        tensor.data.copy_(start + sign * step * direction)
        ends.append(float(value().detach()))
    tensor.data.copy_(start)
    return (ends[0] - ends[1]) / (2 * step)


def first_words(trouble: Exception) -> str:
    return " ".join(str(trouble).split())[:70].replace("|", "/") + " ..."


# --- third derivatives ----------------------------------------------------------------------------------------


def normed(norm: nn.Module) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 4, 3), norm, nn.Softplus(), nn.Flatten(), nn.Linear(4 * (SIDE - 2) ** 2, CLASSES)
    )


def timm_net(name: str) -> tuple[nn.Module, int]:
    torch.manual_seed(0)
    return timm.create_model(name, num_classes=CLASSES), 224


THIRD_ORDER: dict[str, Callable[[], tuple[nn.Module, int]]] = {
    "small net, BatchNorm in training mode": lambda: (normed(nn.BatchNorm2d(4)).train(), SIDE),
    "small net, InstanceNorm": lambda: (normed(nn.InstanceNorm2d(4)), SIDE),
    "small net, LayerNorm": lambda: (normed(nn.LayerNorm([4, SIDE - 2, SIDE - 2])), SIDE),
    "small net, GroupNorm": lambda: (normed(nn.GroupNorm(2, 4)), SIDE),
    "timm ConvNeXt (atto)": lambda: timm_net("convnext_atto"),
    "timm ViT (tiny)": lambda: timm_net("vit_tiny_patch16_224"),
    "timm Swin (tiny)": lambda: timm_net("swin_tiny_patch4_window7_224"),
}


def with_torch_alone(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """The mean of ||H v||^2 with the same v as gyrograd's, by three calls of torch.autograd.grad."""
    v = normal(keys(3, len(x)), tuple(x.shape[1:]), dtype=x.dtype)
    leaf = x.clone().requires_grad_()
    with sdpa_kernel(SDPBackend.MATH):  # the fused kernels have no second derivative
        score = model(leaf).gather(1, y[:, None]).sum()
        (slope,) = torch.autograd.grad(score, leaf, create_graph=True)
        (product,) = torch.autograd.grad((slope * v).sum(), leaf, create_graph=True)
    return product.square().sum()


def with_gyrograd(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return gg.regularizer("hessian", space="pixel")(model, x, y, seed=3).sum()


def third_order_table() -> str:
    rows = [
        [name, *(third_order_cell(penalty, *make()) for penalty in (with_torch_alone, with_gyrograd))]
        for name, make in THIRD_ORDER.items()
    ]
    note = (
        "## Third derivatives\n\nThe curvature penalty of steady training, ||H v||^2, differentiated to the weights. "
        "Relative error against central differences along a random direction of all weights, float64, random weights, "
        "two images (one of 224 px). torch alone: three calls of torch.autograd.grad."
    )
    return note + "\n\n" + markdown(["net", "torch alone", "gyrograd"], rows)


def third_order_cell(
    penalty: Callable[[nn.Module, Tensor, Tensor], Tensor], model: nn.Module, side: int
) -> str:
    model = model.double()
    if not isinstance(model, nn.Sequential):
        model.eval()
    n = 2 if side == SIDE else 1
    generator = torch.Generator().manual_seed(1)
    x = torch.rand(n, 3, side, side, generator=generator, dtype=torch.float64)
    y = torch.arange(n)
    weights = list(model.parameters())
    directions = [
        torch.randn(w.shape, generator=generator, dtype=w.dtype) * w.detach().std(correction=0)
        for w in weights
    ]
    try:
        slopes = torch.autograd.grad(penalty(model, x, y), weights, allow_unused=True)
    except Exception as trouble:
        return f"{type(trouble).__name__}: {first_words(trouble)}"
    exact = sum(float((s * d).sum()) for s, d in zip(slopes, directions, strict=True) if s is not None)
    starts = [w.detach().clone() for w in weights]

    def moved(step: float) -> float:
        for w, start, d in zip(weights, starts, directions, strict=True):
            w.data.copy_(start + step * d)
        return float(penalty(model, x, y).detach())

    measured = [(moved(step) - moved(-step)) / (2 * step) for step in STEPS]
    error = min(abs(exact - m) / max(abs(exact), abs(m)) for m in measured)
    return f"{error:.0e}{' **wrong**' if error > 1e-4 else ''}"


# --- guided backprop ------------------------------------------------------------------------------------------


class Small(nn.Module):
    """One small net, its activations used in the way asked for."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.way = way
        self.conv1, self.conv2 = nn.Conv2d(3, 6, 3, padding=1), nn.Conv2d(6, 6, 3, padding=1)
        self.head = nn.Linear(6 * SIDE * SIDE, CLASSES)
        inplace = way == "in-place modules"
        self.act1 = nn.Softplus(3) if way == "Softplus modules" else nn.ReLU(inplace=inplace)
        self.act2 = (
            self.act1 if way == "one module used twice" else type(self.act1)(*self.act1_settings(inplace))
        )

    def act1_settings(self, inplace: bool) -> tuple[object, ...]:
        return (3,) if self.way == "Softplus modules" else (inplace,)

    def forward(self, x: Tensor) -> Tensor:
        functional = {"functional": F.relu, "functional GELU": F.gelu, "functional SiLU": F.silu}.get(
            self.way
        )
        out = (functional or self.act1)(self.conv1(x))
        out = (functional or self.act2)(self.conv2(out))
        return self.head(out.flatten(1))

    def guided(self, x: Tensor, target: Tensor) -> Tensor:
        """The rule R act'(z) 1[R > 0], written out."""
        act = {"functional GELU": F.gelu, "functional SiLU": F.silu}.get(self.way, F.relu)
        if self.way == "Softplus modules":
            act = nn.Softplus(3)
        z1 = self.conv1(x)
        z2 = self.conv2(act(z1))
        relevance = self.head.weight[target].view(-1, 6, SIDE, SIDE)
        relevance = relevance.clamp(min=0) * slope(act, z2)
        relevance = F.conv_transpose2d(relevance, self.conv2.weight, padding=1).clamp(min=0) * slope(act, z1)
        return F.conv_transpose2d(relevance, self.conv1.weight, padding=1)


def slope(act: Callable[[Tensor], Tensor], z: Tensor) -> Tensor:
    leaf = z.detach().requires_grad_()
    return torch.autograd.grad(act(leaf).sum(), leaf)[0]


WAYS = (
    "modules",
    "in-place modules",
    "one module used twice",
    "functional",
    "Softplus modules",
    "functional GELU",
    "functional SiLU",
)


def guided_backprop_table() -> str:
    makers: dict[str, Explain] = {
        "Captum": theirs_captum(captum.GuidedBackprop),
        "zennit": theirs_zennit(zennit.composites.GuidedBackprop),
        "gyrograd": lambda m, x, t: gg.attribution("guided_backprop")(m, x, t),
    }
    rows = [[way, *(guided_cell(way, explain) for explain in makers.values())] for way in WAYS]
    return "## Guided backprop, against the rule written out\n\n" + markdown(["activations", *makers], rows)


def guided_cell(way: str, explain: Explain) -> str:
    torch.manual_seed(0)
    model = Small(way).double().eval()
    x, target = batch()
    try:
        maps = explain(model, x.clone().requires_grad_(), target).detach()
    except Exception as trouble:
        return f"{type(trouble).__name__}: {first_words(trouble)}"
    right = model.guided(x, target).detach()
    plain = gg.attribution("gradient")(model, x, target)
    if torch.allclose(maps, right, rtol=1e-5, atol=1e-9):
        return "right"
    return (
        "**silently the plain gradient**"
        if torch.allclose(maps, plain, rtol=1e-5, atol=1e-9)
        else "**wrong**"
    )


# --- LRP ------------------------------------------------------------------------------------------------------


def lrp_table() -> str:
    torch.manual_seed(0)
    vision = torchvision.models.resnet18(num_classes=10).eval()
    twin = timm.create_model("resnet18", num_classes=10).eval()
    twin.load_state_dict(vision.state_dict())
    image = timm.create_model("vit_tiny_patch16_224", num_classes=10, img_size=64).eval()
    nets = {"torchvision resnet18": vision, "timm resnet18, same weights": twin, "timm ViT": image}
    x, target = torch.rand(2, 3, 64, 64), torch.tensor([1, 2])
    rows, first = [], {}
    for name, model in nets.items():
        row = [name]
        for maker, explain in LRP_MAKERS.items():
            row.append(lrp_cell(explain, model, x, target, None if model is image else first, maker))
        rows.append(row)
    note = (
        "## LRP (z+) on nets people have\n\nThe first row's map is the reference of its column: a copy of the net must "
        "give the same map (cosine 1). The ViT has no copy here, so only an error or NaN is reported for it."
    )
    return note + "\n\n" + markdown(["net", *LRP_MAKERS], rows)


def zennit_lrp(model: nn.Module, x: Tensor, target: Tensor) -> Tensor:
    canonizers = [zennit.torchvision.ResNetCanonizer()]
    rules = zennit.composites.EpsilonPlus(canonizers=canonizers)
    with zennit.attribution.Gradient(model, rules) as attributor:
        return attributor(x.clone().requires_grad_(), F.one_hot(target, 10).to(x.dtype))[1]


LRP_MAKERS: dict[str, Explain] = {
    "Captum": lambda m, x, t: captum.LRP(m).attribute(x.clone().requires_grad_(), target=t),
    "zennit": zennit_lrp,
    "gyrograd": lambda m, x, t: gg.attribution("lrp", first="same")(m, x, t),
}


def lrp_cell(
    explain: Explain, model: nn.Module, x: Tensor, target: Tensor, first: dict[str, Tensor] | None, maker: str
) -> str:
    try:
        maps = explain(model, x, target).detach().double()
    except gg.UserError as sentence:
        return f"refuses: {first_words(sentence)}"
    except Exception as trouble:
        return f"{type(trouble).__name__}: {first_words(trouble)}"
    if not torch.isfinite(maps).all():
        return "**NaN, without an error**"
    if first is None:
        return "a finite map"
    reference = first.setdefault(maker, maps)
    cosine = float(F.cosine_similarity(maps.flatten(1), reference.flatten(1)).min())
    return f"cosine {cosine:.4f}" + ("" if cosine > 0.999 else " **wrong**")


if __name__ == "__main__":
    main()
