"""Random small nets, and every way the package differentiates them against finite differences in float64.

`python tests/fuzz/random_nets.py --nets 300 --seed 0` draws that many nets and prints what was compared and what
failed. A net is its seed; a seed that failed once belongs into `KEPT`, which the tests run. A refusal (`UserError`) is
no failure, any other error is one. Finite differences that are not the same at two step sizes and on both sides
straddle a kink and are not used.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).parents[1]))
from nets import lively

import gyrograd as gg
from gyrograd.errors import UserError
from gyrograd.models.activations import with_activation
from gyrograd.numerics.autograd import hessian_vector_product, input_gradient
from gyrograd.numerics.tangents import joint_pass

CLASSES = 3
KEPT: dict[str, tuple[int, ...]] = {
    "second derivative": (
        0, 25, 30, 35, 36, 50, 58, 59, 90, 100, 102, 106, 109, 112, 113, 144, 158, 160, 171, 182, 184, 190, 194, 196,
        207, 208, 210, 214, 231, 249, 251, 259, 269, 273, 287, 295, 302, 304, 316, 325, 326, 343, 373, 391, 411, 413,
    ),
    "one row": (2, 21, 92, 180, 299, 311),
    "fast": (
        7, 15, 27, 39, 53, 74, 96, 216, 233, 239, 286, 312, 320, 324, 328, 334, 348, 349, 370, 377, 382, 383, 395, 418,
    ),
    "guided_backprop": (30, 112, 158, 182, 196, 214, 343),
    "twin": (15, 53, 72, 73, 175, 177, 334, 348, 382),
}  # fmt: skip
"""Seeds of nets on which this check failed once."""

COMMON = {
    "Softplus", "silu", "SiLU in place", "tanh", "gelu", "ELU", "ReLU", "ReLU in place", "relu", "F.relu in place",
    "leaky_relu",
}  # fmt: skip
"""Activations that every path knows."""

Layer = Callable[[Tensor], Tensor]


class Drawn(nn.Module):
    """Steps on images b x c x h x w, then a head."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.seed = seed
        self.draw = random.Random(seed)
        self.parts = nn.ModuleList()
        self.words: list[str] = []
        self.channels, self.input_side = self.draw.choice([4, 6]), self.draw.choice([4, 6])
        self.side = self.input_side
        self.kinked = self.draw.random() < 0.6
        # Else hardly a net would be taken by the fast pass or by guided backprop and LRP.
        self.common = self.draw.random() < 0.5
        self.stem = nn.Conv2d(3, self.channels, 3, padding=1)
        self.steps = [self._step() for _ in range(self.draw.randint(2, 5))]
        self.pooled = self.draw.random() < 0.5
        self.head = nn.LazyLinear(CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        h = self.stem(x)
        for step in self.steps:
            h = step(h)
        return self.head(h.mean((2, 3)) if self.pooled else h.flatten(1))

    def __deepcopy__(self, memo: dict[int, Any]) -> Drawn:
        """Drawn again, since a copied function would run the modules of the original."""
        copy = Drawn(self.seed)
        copy.head = nn.Linear(self.head.in_features, CLASSES)
        copy.double().train(self.training)
        for (_, new), (name, old) in zip([*copy.named_modules()], [*self.named_modules()], strict=True):
            del name
            for kind in ("_parameters", "_buffers"):
                for key, value in getattr(old, kind).items():
                    kept = value if value is None else deepcopy(value, memo)
                    getattr(new, kind)[key] = kept
        return copy

    def _kept(self, module: nn.Module) -> Layer:
        """The module by its place, so that one put there later is run instead."""
        index = len(self.parts)
        self.parts.append(module)
        return lambda z: self.parts[index](z)

    def _step(self) -> Layer:
        kinds = [
            self._plain, self._plain, self._plain, self._residual, self._reused, self._joined, self._gated,
            self._attention,
            self._tokens, self._pooled, self._padded, self._moved, self._twice, self._arithmetic, self._normed_alone,
        ]  # fmt: skip
        if self.common:
            kinds = [
                self._plain,
                self._residual,
                self._reused,
                self._joined,
                self._pooled,
                self._twice,
                self._arithmetic,
            ]
        kind = self.draw.choice(kinds)
        self.words.append(kind.__name__.strip("_"))
        return kind()

    def _conv(self) -> Layer:
        groups = self.draw.choice([1, 1, 2, self.channels])
        size = self.draw.choice([1, 3])
        bias = self.draw.random() < 0.7
        return self._kept(
            nn.Conv2d(self.channels, self.channels, size, padding=size // 2, groups=groups, bias=bias)
        )

    def _norm(self) -> Layer:
        rare = [] if self.common else ["group", "instance", "layer"]
        kind = self.draw.choice(["batch", "batch", "none", "none", *rare])
        self.words.append(f"norm {kind}")
        if kind == "layer":
            layer = self._kept(nn.LayerNorm(self.channels))
            return lambda h: layer(h.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
        made = {
            "batch": lambda: nn.BatchNorm2d(self.channels),
            "group": lambda: nn.GroupNorm(2, self.channels),
            "instance": lambda: nn.InstanceNorm2d(self.channels, affine=True),
            "none": nn.Identity,
        }
        return self._kept(made[kind]())

    def _activation(self) -> Layer:
        smooth: dict[str, Callable[[], Layer]] = {
            "Softplus": lambda: self._kept(nn.Softplus(3)),
            "silu": lambda: F.silu,
            "SiLU in place": lambda: self._kept(nn.SiLU(inplace=True)),
            "tanh": lambda: torch.tanh,
            "Tensor.sigmoid": lambda: Tensor.sigmoid,
            "gelu": lambda: F.gelu,
            "Hardsigmoid": lambda: self._kept(nn.Hardsigmoid()),
            "ELU": lambda: self._kept(nn.ELU()),
            "mish": lambda: F.mish,
        }
        kinked: dict[str, Callable[[], Layer]] = {
            "ReLU": lambda: self._kept(nn.ReLU()),
            "ReLU in place": lambda: self._kept(nn.ReLU(inplace=True)),
            "relu": lambda: F.relu,
            "relu_": lambda: torch.relu_,
            "F.relu in place": lambda: lambda z: F.relu(z, inplace=True),
            "Tensor.relu_ ignored": lambda: _relu_ignored,
            "ReLU6 in place": lambda: self._kept(nn.ReLU6(inplace=True)),
            "leaky_relu": lambda: lambda z: F.leaky_relu(z, 0.2),
            "PReLU": lambda: self._kept(nn.PReLU(self.channels)),
            "Hardswish": lambda: self._kept(nn.Hardswish(inplace=True)),
            "Hardsigmoid in place": lambda: self._kept(nn.Hardsigmoid(inplace=True)),
            "clamp": lambda: lambda z: z.clamp(min=0),
            "clamp_": lambda: lambda z: z.clamp_(min=0),
            "clamp(0, 6)": lambda: lambda z: torch.clamp(z, 0, 6),
            "maximum": lambda: lambda z: torch.maximum(z, torch.zeros_like(z)),
            "where": lambda: lambda z: torch.where(z > 0, z, 0),
            "gate": lambda: lambda z: z * (z > 0),
            "gate as numbers": lambda: lambda z: z.mul((z > 0).to(z.dtype)),
            "threshold": lambda: lambda z: F.threshold(z, 0, 0),
            "masked_fill": lambda: lambda z: z.masked_fill(z < 0, 0),
        }
        table = {**smooth, **kinked} if self.kinked else smooth
        if self.common:
            table = {name: table[name] for name in table if name in COMMON}
        name = self.draw.choice(sorted(table))
        self.words.append(name)
        return table[name]()

    def _plain(self) -> Layer:
        conv, norm, act = self._conv(), self._norm(), self._activation()
        return lambda h: act(norm(conv(h)))

    def _normed_alone(self) -> Layer:
        norm, act = self._norm(), self._activation()
        return lambda h: act(norm(h) * 1.5)

    def _residual(self) -> Layer:
        inner, act = self._plain(), self._activation()
        if self.draw.random() < 0.5:
            return lambda h: act(h + inner(h))

        def in_place(h: Tensor) -> Tensor:
            out = inner(h * 1.0)
            out += h
            return act(out)

        return in_place

    def _reused(self) -> Layer:
        """What an in-place activation has overwritten is read again, under its old name or through a view."""
        conv, after, act = self._conv(), self._conv(), self._activation()
        view = self.draw.random() < 0.3
        self.words.append("through a view" if view else "by name")

        def again(h: Tensor) -> Tensor:
            z = conv(h)
            other = z[:, :2] if view else z
            g = after(act(z))
            return g + z if not view else torch.cat([other, g[:, 2:]], 1)

        return again

    def _joined(self) -> Layer:
        conv, act, cut = self._conv(), self._activation(), self.draw.randint(1, self.channels - 1)
        by_channel = self.words[-1] == "PReLU"
        how = "slices" if self.common else self.draw.choice(["slices", "chunk", "split", "stack"])
        self.words.append(how)
        if how == "slices" and not by_channel:
            return lambda h: conv(torch.cat([act(h[:, cut:] * 1.0), h[:, :cut]], dim=1))
        if how == "chunk":
            return lambda h: conv(torch.cat([*h.chunk(2, 1)][::-1], 1))
        if how == "split":
            return lambda h: conv(torch.cat([h.split([cut, self.channels - cut], 1)[1], h[:, :cut]], -3))
        return lambda h: conv(torch.stack([h, 0.5 * h.flip(1)], 1).mean(1))

    def _gated(self) -> Layer:
        squeeze, gate = (
            self._kept(nn.Conv2d(self.channels, self.channels, 1)),
            self.draw.choice([torch.sigmoid, F.hardsigmoid, torch.tanh]),
        )
        if self.draw.random() < 0.3:
            wide = self._kept(nn.Conv2d(self.channels, 2 * self.channels, 1))
            self.words.append("glu")
            return lambda h: F.glu(wide(h), 1)
        return lambda h: h * gate(squeeze(F.adaptive_avg_pool2d(h, 1)))

    def _attention(self) -> Layer:
        qkv = self._kept(nn.Linear(self.channels, 3 * self.channels))
        fused = self.draw.random() < 0.5
        self.words.append("fused" if fused else "written out")

        def attend(h: Tensor) -> Tensor:
            b, c, side, other = h.shape
            q, k, v = qkv(h.flatten(2).transpose(1, 2)).chunk(3, -1)
            if fused:
                out = F.scaled_dot_product_attention(q, k, v)
            else:
                out = ((q @ k.transpose(-2, -1)) / c**0.5).softmax(-1) @ v
            return h + out.transpose(1, 2).reshape(b, c, side, other)

        return attend

    def _tokens(self) -> Layer:
        """From image to tokens and back; tokens side by side or not, mixed along either axis."""
        mix, act = self._kept(nn.Linear(self.channels, self.channels)), self._activation()
        if self.words[-1] == "PReLU":
            act = torch.tanh  # its slopes belong to channels
        norm = self._norm()
        close, back = self.draw.random() < 0.5, self.draw.choice(["unflatten", "view", "reshape"])

        def through(h: Tensor) -> Tensor:
            tokens = h.flatten(2).transpose(1, 2)
            out = act(mix(tokens.contiguous() if close else tokens)).transpose(1, 2)
            if back == "unflatten":
                return norm(out.unflatten(2, h.shape[2:]))
            return norm(out.contiguous().view(h.shape) if back == "view" else out.reshape(h.shape))

        return through

    def _pooled(self) -> Layer:
        if self.side < 4 or not self.kinked:
            return lambda h: F.avg_pool2d(h, 3, 1, 1)
        kind = self.draw.choice(["max", "max with overlap", "avg", "adaptive"])
        self.words.append(kind)
        if kind == "max with overlap":
            return lambda h: F.max_pool2d(h, 3, 1, 1)
        self.side //= 2
        size = self.side
        return {
            "max": lambda h: F.max_pool2d(h, 2),
            "avg": lambda h: F.avg_pool2d(h, 2),
            "adaptive": lambda h: F.adaptive_avg_pool2d(h, size),
        }[kind]

    def _padded(self) -> Layer:
        conv = self._kept(nn.Conv2d(self.channels, self.channels, 3))
        mode = self.draw.choice(["constant", "reflect", "replicate", "circular"])
        value = self.draw.choice([0.0, 0.3]) if mode == "constant" else None
        return lambda h: conv(F.pad(h, (1, 1, 1, 1), mode, value))

    def _moved(self) -> Layer:
        conv = self._conv()
        return self.draw.choice(
            [
                lambda h: conv(h.transpose(2, 3)),
                lambda h: conv(h.flip(3)),
                lambda h: conv(torch.roll(h, 1, 2)),
                lambda h: conv(h.permute(0, 1, 3, 2).contiguous()),
                lambda h: conv(F.channel_shuffle(h, 2)),
                lambda h: conv(h.contiguous(memory_format=torch.channels_last)),
                lambda h: conv(h.expand(1, *h.shape)[0]),
            ]
        )

    def _twice(self) -> Layer:
        """One module at two places."""
        inner = self._plain()
        return lambda h: inner(inner(h))

    def _arithmetic(self) -> Layer:
        conv, act = self._conv(), self._activation()
        if self.common:
            return self.draw.choice(
                [
                    lambda h: act(conv(h) * 2.0 - 0.1),
                    lambda h: act(conv(h).add_(0.1)),
                    lambda h: conv(h)[:, :, 1:, 1:],
                ]
            )
        return self.draw.choice(
            [
                lambda h: act(conv(h) * 2.0 - 0.1),
                lambda h: act(1.0 - conv(h)),
                lambda h: act(conv(h)) / (1.0 + h.square()),
                lambda h: conv(h - h.mean((2, 3), keepdim=True)),
                lambda h: conv(h) * F.softmax(h, 1),
                lambda h: F.normalize(conv(h), dim=1),
                lambda h: act(conv(h).add_(0.1)),
                lambda h: conv(h.exp().clamp(max=20.0).log1p()),
            ]
        )


def _relu_ignored(z: Tensor) -> Tensor:
    z.relu_()
    return z


def drawn(seed: int) -> tuple[Drawn, Tensor, Tensor]:
    """The net of a seed, images for it, and a class for each."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        net = Drawn(seed)
        x = torch.rand(3, 3, net.input_side, net.input_side, dtype=torch.float64)
        net.double()
        with torch.no_grad():
            net(x)
        lively(net)
        y = torch.randint(CLASSES, (3,))
    return net, x, y


@dataclass
class Tally:
    """What was compared, what was refused, and what failed, by kind."""

    compared: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    unclear: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)

    def check(self, kind: str, found: Tensor, wanted: Tensor, tolerance: float) -> None:
        """Equal, relative to the largest number."""
        self.compared[kind] += 1
        size = float(wanted.detach().abs().max())
        apart = float((found - wanted).detach().abs().max())
        if not apart <= tolerance * max(size, 1e-6):  # a zero gradient is rounding
            self.failures.append(f"{kind}: {apart:.2g} apart of {size:.2g}")

    def slope(
        self, kind: str, exact: Tensor, value: Callable[[float], Tensor], tolerance: float = 1e-4
    ) -> None:
        """A derivative against central differences, where these are sure of themselves."""
        step, middle = 2e-6, value(0.0)
        wide = (value(5 * step) - value(-5 * step)) / (10 * step)
        right, left = (value(step) - middle) / step, (middle - value(-step)) / step
        narrow, size = (right + left) / 2, max(float(wide.abs().max()), 1e-6)
        doubt = max(float((wide - narrow).abs().max()), float((right - left).abs().max()) / 10)
        if not doubt <= tolerance * size:
            self.unclear[kind] += 1
            return
        self.compared[kind] += 1
        apart = float((exact - narrow).abs().max())
        if not apart <= 10 * tolerance * max(size, float(exact.abs().max())):
            self.failures.append(f"{kind}: {apart:.2g} apart of {size:.2g}")


def comparisons(
    net: nn.Module, x: Tensor, y: Tensor, tally: Tally
) -> Iterator[tuple[str, Callable[[], None]]]:
    """Every check of a net, by name."""
    generator = torch.Generator().manual_seed(1)
    v, w = (torch.randn(x.shape, generator=generator, dtype=x.dtype) for _ in range(2))

    def logit(z: Tensor, rows: slice = slice(None)) -> Tensor:
        return net(z).gather(1, y[rows, None])[:, 0]

    def gradient() -> None:
        exact = (input_gradient(logit, x) * v).flatten(1).sum(1)
        tally.slope("gradient", exact, lambda step: logit(x + step * v).detach())

    def second() -> None:
        exact = (hessian_vector_product(logit, x, v) * w).flatten(1).sum(1)
        tally.slope(
            "second derivative",
            exact,
            lambda step: (input_gradient(logit, x + step * v) * w).flatten(1).sum(1),
        )

    def one_row() -> None:
        together, bent = input_gradient(logit, x), hessian_vector_product(logit, x, v)
        for i in range(len(x)):
            row = slice(i, i + 1)
            alone = lambda z, row=row: logit(z, row)  # noqa: E731
            tally.check("one row, gradient", input_gradient(alone, x[row]), together[row], 1e-8)
            tally.check(
                "one row, with a graph", input_gradient(alone, x[row], create_graph=True), together[row], 1e-6
            )
            tally.check(
                "one row, second derivative", hessian_vector_product(alone, x[row], v[row]), bent[row], 1e-7
            )

    def fast() -> None:
        logits, slopes = joint_pass(net, x, x[:2], v[:2])
        leaf = x[:2].clone().requires_grad_()
        out = net(leaf)
        wanted = torch.stack(
            [
                (torch.autograd.grad(out[:, k].sum(), leaf, create_graph=True)[0] * v[:2]).flatten(1).sum(1)
                for k in range(CLASSES)
            ],
            1,
        )
        tally.check("fast, logits", logits, net(x), 1e-8)
        tally.check("fast, slopes", slopes, wanted, 1e-7)
        weights = list(net.parameters())
        mix = torch.randn(slopes.shape, generator=generator, dtype=x.dtype)
        pairs = [
            torch.autograd.grad(a.square().sum() + (b * mix).sum(), weights, allow_unused=True)
            for a, b in ((logits, slopes), (net(x), wanted))
        ]
        flat = [
            torch.cat(
                [
                    torch.zeros_like(p).flatten() if g is None else g.flatten()
                    for p, g in zip(weights, one, strict=True)
                ]
            )
            for one in pairs
        ]
        tally.check("fast, weights", *flat, 1e-7)

    def replayed(method: str) -> None:
        explain = gg.attribution(method)

        def value(step: float) -> Tensor:
            return (explain(net, x + step * v, y) * w).flatten(1).sum(1)

        leaf = x.clone().requires_grad_()
        map = explain(net, leaf, y, create_graph=True)
        tally.check(f"{method}, map", map, explain(net, x, y), 1e-8)
        (slope,) = torch.autograd.grad((map * w).sum(), leaf, allow_unused=True, materialize_grads=True)
        tally.slope(f"{method}, second derivative", (slope * v).flatten(1).sum(1), value)

    def twin() -> None:
        copy = with_activation(net, "softplus", 1e6, example=x[:1], partial=True)
        tally.check("twin", copy(x), net(x), 1e-3)

    yield "gradient", gradient
    yield "second derivative", second
    yield "one row", one_row
    yield "fast", fast
    yield "guided_backprop", lambda: replayed("guided_backprop")
    yield "lrp", lambda: replayed("lrp")
    yield "twin", twin


def tried(seed: int, only: str | None = None) -> Tally | None:
    """Everything (or one kind of check) about one net, or None if torch itself does not differentiate it."""
    net, x, y = drawn(seed)
    tally = Tally()
    leaf = x.clone().requires_grad_()
    try:
        (slope,) = torch.autograd.grad(net(leaf).square().sum(), leaf, create_graph=True)
        if slope.requires_grad:
            torch.autograd.grad(slope.square().sum(), leaf)
    except RuntimeError as wrong:
        if "hardsigmoid" not in str(wrong) and "scaled_dot_product" not in str(wrong):
            return None
    before = x.clone()
    for name, check in comparisons(net, x, y, tally):
        if only not in (None, name):
            continue
        try:
            check()
        except UserError as refusal:
            tally.refused[name] += 1
            if len(str(refusal).splitlines()) != 1:
                tally.failures.append(f"{name}: a refusal of several lines")
        except Exception as wrong:
            place = traceback.extract_tb(wrong.__traceback__)[-1]
            tally.failures.append(
                f"{name}: {type(wrong).__name__} in {place.name}: {str(wrong).partition(chr(10))[0]}"
            )
    if not torch.equal(x, before):
        tally.failures.append("the images were changed")
    return tally


def main() -> None:
    """Draw nets and say what was found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nets", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    settings = parser.parse_args()
    torch.set_num_threads(1)
    started, total, nets, seed, failed = time.monotonic(), Tally(), 0, settings.seed, []
    while nets < settings.nets:
        tally = tried(seed)
        if tally is not None:
            nets += 1
            for kind in ("compared", "refused", "unclear"):
                getattr(total, kind).update(getattr(tally, kind))
            if tally.failures:
                failed.append(seed)
                print(seed, "; ".join(tally.failures), "|", " > ".join(drawn(seed)[0].words), flush=True)
        seed += 1
    print(
        f"{nets} nets (seeds {settings.seed} to {seed - 1}), {sum(total.compared.values())} comparisons,",
        end=" ",
    )
    print(f"{len(failed)} nets failed: {failed}; {time.monotonic() - started:.0f} s")
    for kind in ("compared", "refused", "unclear"):
        print(f"  {kind}:", ", ".join(f"{name} {n}" for name, n in sorted(getattr(total, kind).items())))
    raise SystemExit(bool(failed))


if __name__ == "__main__":
    main()
