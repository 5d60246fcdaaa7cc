"""How tan2023 trains its nets: five backbones, each naturally and adversarially (Appendix B.1)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from gyrograd.experiments.nets import Net
from gyrograd.experiments.runs import Nets, Run
from gyrograd.experiments.scales import picked
from gyrograd.experiments.subjects import Subject, net_of

BACKBONES = ("swin", "vgg16", "resnet18", "resnet50", "googlenet")
"""From the most to the least robust, as in Table 1; each is a setting."""
SETTINGS = (*BACKBONES, "lenet")
"""LeNet is ours: small enough for ten nets of Figure 3 in a few minutes."""
BY_LEVEL = ("resnet18", "lenet")
WAYS = {"natural": "natural", "robust": "adversarial"}
"""Rows, and the end of their recipe's name."""
LEVELS = (0.0, 0.5, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0)
"""Figure 3: radii of adversarial training, of 255. The paper has ten nets and does not say which."""


def trained(ways: Sequence[str] = tuple(WAYS), backbones: Sequence[str] = SETTINGS) -> Nets:
    """The nets of Table 1."""
    return lambda run: run.subjects(
        backbones, lambda backbone, sizes: {way: partial(way_net, sizes, backbone, way) for way in ways}
    )


def over_levels(run: Run) -> list[Subject]:
    """ResNet18, and LeNet, trained against radii from 0 to 8 of 255."""
    return run.subjects(
        BY_LEVEL,
        lambda backbone, sizes: {
            f"eps {level:g}": partial(level_net, sizes, backbone, level)
            for level in picked(list(LEVELS), sizes.get("levels"))
        },
    )


def way_net(sizes: Mapping[str, Any], backbone: str, way: str, seed: int) -> Net:
    """A backbone, natural or robust."""
    return net_of(f"tan2023-{backbone}-{WAYS[way]}", sizes, way, seed)


def level_net(sizes: Mapping[str, Any], backbone: str, level: float, seed: int) -> Net:
    """A backbone against a radius of its own; 0 is natural training and 8 the robust net of Table 1.

    The step is a quarter of the radius, as 2 is of 8.
    """
    if level == 0:
        return way_net(sizes, backbone, "natural", seed)
    changes = {"terms": {"adversarial": {"eps": level / 255, "step_size": level / 255 / 4}}}
    label = "robust" if level == LEVELS[-1] else f"robust {level:g}"
    return net_of(f"tan2023-{backbone}-adversarial", sizes, label, seed, changes)
