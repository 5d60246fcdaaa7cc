"""How wang2020 trains its nets, and on what."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from gyrograd.experiments.nets import Given, Net
from gyrograd.experiments.runs import Nets
from gyrograd.experiments.subjects import given_or, net_of

SETTINGS = ("cifar10", "cifar10-public", "cifar10-released", "flowers", "imagenet", "imagenet-lite")
"""The paper's three; cifar10-public has a ResNet-20 whose weights others trained and published, cifar10-released the
same net and the released code's weaker attack, imagenet-lite an EfficientNet-Lite0 in place of ResNet-50."""
RESNET20 = SETTINGS[:1]
OF_GIVEN = SETTINGS[1:3]
"""In Table 3 too: the published net is its natural row, the others are trained."""

WAYS = {
    "natural": "wang2020-resnet20-natural",
    "ssr": "wang2020-resnet20-ssr",
    "ssr_bytes": "wang2020-resnet20-ssr-bytes",
    "adversarial": "wang2020-resnet20-adversarial",
    "ig_norm": "wang2020-resnet20-ig-norm",
    "robust": "wang2020-resnet20-robust",
}
"""The recipe of each row."""
BETAS = (0.3, 0.5, 0.7, 0.9)
"""C2: the share of the curvature in the loss."""
RADII = (0.25, 0.5, 1.0, 2.0)
"""Figure 7, l2 in [0, 1] pixels: 0.25 is Table 3's; its others are not in the text, and these are ours."""


def trained(settings: Sequence[str], ways: Sequence[str]) -> Nets:
    """The nets of these rows in every setting, of every seed."""
    return lambda run: run.subjects(
        settings, lambda _, sizes: {way: partial(way_net, sizes, way) for way in ways}
    )


def way_net(sizes: Mapping[str, Any], way: str, seed: int) -> Net | Given:
    """The net of a row: out of a file where the setting names one, else trained by its recipe."""
    return given_or(net_of(WAYS[way], sizes, way, seed), sizes, way)


def ssr_net(sizes: Mapping[str, Any], beta: float, seed: int, way: str = "ssr") -> Net:
    """SSR, in either of its scales, with another share of the curvature, in half the epochs (C2: 25 of 50)."""
    changes = {"cross_entropy": 1 - beta, "terms": {"ssr": {"weight": beta}}}
    half = {**sizes, "epochs": max(1, int(sizes["epochs"]) // 2)}
    return net_of(WAYS[way], half, f"{way} beta {beta:g}", seed, changes)


def ball_net(sizes: Mapping[str, Any], radius: float, seed: int) -> Net:
    """Adversarial training in an l2 ball of another radius."""
    changes = {"terms": {"adversarial": {"eps": radius}}}
    return net_of(WAYS["adversarial"], sizes, f"adversarial l2 {radius:g}", seed, changes)
