"""Training variants of tan2023: five backbones, each trained naturally and adversarially (Appendix B.1)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from gyrograd.experiments.engine import ExperimentContext, Nets
from gyrograd.experiments.nets import Net, PretrainedNet
from gyrograd.experiments.scales import pick_evenly
from gyrograd.experiments.trained_nets import TrainedNet, given_or, net_of

BACKBONES = ("swin", "vgg16", "resnet18", "resnet50", "googlenet")
"""From the most to the least robust, as in Table 1; each is a setting."""
ZOO = {"resnet18-zoo": "resnet18", "lenet-zoo": "lenet"}
"""Settings whose nets come with gyrograd, and the backbone of each."""
SETTINGS = (*BACKBONES, "lenet", *ZOO)
"""LeNet is our addition: the ten nets of Figure 3 train in a few minutes."""
BY_LEVEL = ("resnet18", "lenet")
WAYS = {"natural": "natural", "robust": "adversarial"}
"""By row: the end of its recipe's name."""
LEVELS = (0.0, 0.5, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0)
"""Figure 3: radii of adversarial training, in 255ths. The paper does not say which its ten nets have."""


def nets_by_row(ways: Sequence[str] = tuple(WAYS), backbones: Sequence[str] = SETTINGS) -> Nets:
    """The nets of Table 1, by row."""
    return lambda run: run.trained_nets(
        backbones, lambda backbone, sizes: {way: partial(way_net, sizes, backbone, way) for way in ways}
    )


def over_levels(run: ExperimentContext) -> list[TrainedNet]:
    """ResNet18 and LeNet, trained adversarially with radii from 0 to 8 of 255."""
    return run.trained_nets(
        BY_LEVEL,
        lambda backbone, sizes: {
            f"eps {level:g}": partial(level_net, sizes, backbone, level)
            for level in pick_evenly(list(LEVELS), sizes.get("levels"))
        },
    )


def way_net(sizes: Mapping[str, Any], backbone: str, way: str, seed: int) -> Net | PretrainedNet:
    """The natural or the robust net of a backbone: pretrained if the setting names weights, else trained."""
    return given_or(
        net_of(f"tan2023-{ZOO.get(backbone, backbone)}-{WAYS[way]}", sizes, way, seed), sizes, way
    )


def level_net(sizes: Mapping[str, Any], backbone: str, level: float, seed: int) -> Net | PretrainedNet:
    """A backbone trained with another radius; 0 is the natural and 8 the robust net of Table 1.

    The step size is a quarter of the radius, as in Table 1 (2 for radius 8).
    """
    if level == 0:
        return way_net(sizes, backbone, "natural", seed)
    changes = {"terms": {"adversarial": {"eps": level / 255, "step_size": level / 255 / 4}}}
    label = "robust" if level == LEVELS[-1] else f"robust {level:g}"
    return net_of(f"tan2023-{backbone}-adversarial", sizes, label, seed, changes)
