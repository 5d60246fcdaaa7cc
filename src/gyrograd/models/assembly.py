"""Build a model from its name and settings, or from its spec."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from gyrograd.errors import UserError, check_name, in_one_sentence
from gyrograd.models.activations import swap_again, with_activation
from gyrograd.models.outputs import PickedLogits
from gyrograd.models.sources import from_source
from gyrograd.models.specs import ModelSpec, attach_spec, spec_of
from gyrograd.models.weights import load_state
from gyrograd.models.wrappers import Normalized, Probability, Statistics, find_statistics
from gyrograd.registry import Settings, lookup, make

MOST_CLASSES = 1_000_000

INITS = ("default", "he")
NOT_NORMALIZED = (
    "The weights came without a normalisation, so the model gets pixels in [0, 1] as they are. If it was trained on "
    "normalised images all results are wrong: give --normalize imagenet, cifar10 or efficientnet_lite."
)

WRAPPERS: dict[str, Callable[..., nn.Module]] = {
    "activation": swap_again,
    "normalized": Normalized,
    "probability": Probability,
}


def build(
    name: str | nn.Module,
    *,
    num_classes: int | None = None,
    activation: str | None = None,
    beta: float | int | None = None,
    normalize: str | Statistics | None = None,
    seed: int | None = None,
    pretrained: bool = False,
    weights: Path | str | None = None,
    init: str = "default",
    **settings: Any,
) -> nn.Module:
    """Build a model from images in [0, 1] to logits.

    Like any nn.Module it is in train mode: call `.eval()` before explaining. Its settings are in `.spec`.

    Args:
        name: a registered name, `torchvision:NAME`, `timm:NAME` or `hf:KIND`; or a module of your own, which is used
            as it is: if it returns an object, a dict or a tuple, the result returns its logits.
        num_classes: default: that of pretrained weights, else the architecture's own (10 for gyrograd's nets, 2 for
            the mlp, usually 1,000 for torchvision's and timm's).
        activation, beta: replace every ReLU.
        normalize: "cifar10", "imagenet", "efficientnet_lite" or (mean, std); default: that of pretrained weights.
        seed: of the initial weights; the global random state is neither used nor changed.
        pretrained: download the library's trained weights.
        weights: file with a state dict for the backbone.
        init: initial weights, "default" (torch's) or "he".
        settings: further settings of the backbone.
    """
    if init != "default" and (pretrained or weights is not None):
        raise UserError(
            "init draws new weights, and pretrained and weights load trained ones; leave one out."
        )
    if beta is not None and activation is None:
        raise UserError("beta is the sharpness of an activation; give activation='softplus' with it.")
    statistics = find_statistics(normalize)
    if isinstance(name, nn.Module):
        others = {
            "num_classes": num_classes,
            "seed": seed,
            "pretrained": pretrained or None,
            "weights": weights,
        }
        given = [key for key, value in {**others, **settings}.items() if value is not None]
        if given or init != "default":
            raise UserError(
                f"'{(given or ['init'])[0]}' is for models built by name; leave it out for a module of your own."
            )
        model, own_statistics = name if spec_of(name) is not None else PickedLogits(name), None
    else:
        with _fixed_seed(seed):
            model, own_statistics = _backbone(name, num_classes, pretrained, settings)
            _initialise(model, init)
    if weights is not None:
        load_state(model, weights)
    if activation is not None:
        model = with_activation(model, activation, beta, shared=True)
    statistics = statistics or own_statistics
    if statistics is not None:
        return Normalized(model, mean=statistics[0], std=statistics[1])
    if weights is not None:
        model.__dict__["note"] = NOT_NORMALIZED
    return model


def rebuild(spec: ModelSpec) -> nn.Module:
    """The model that a spec describes, with new weights; the global random state is not changed."""
    settings = dict(spec.settings)
    with _fixed_seed(0):
        model, _ = _backbone(spec.name, settings.pop("num_classes", None), False, settings)
    for wrapper, options in spec.wraps:
        check_name("model wrapper", wrapper, WRAPPERS)
        with in_one_sentence(partial(_impossible, f"'{wrapper}' around '{spec.name}'")):
            model = WRAPPERS[wrapper](model, **options)
    return model


def _impossible(what: str, reason: str) -> str:
    """The sentence for torch's errors about impossible settings: a text as width, a negative size."""
    return f"{what} cannot be built with these settings ({reason}); give others."


def _backbone(
    name: str, num_classes: Any, pretrained: bool, settings: Settings
) -> tuple[nn.Module, Statistics | None]:
    """The model without wrappers, with its spec, and the statistics of pretrained weights."""
    if num_classes is not None and (type(num_classes) is not int or not 1 <= num_classes <= MOST_CLASSES):
        raise UserError(f"num_classes is {num_classes!r}; give a whole number from 1 to {MOST_CLASSES:,}.")
    source, colon, foreign = name.partition(":")
    if colon:
        with in_one_sentence(partial(_impossible, f"'{name}'")):
            sourced = from_source(source, foreign, num_classes=num_classes, pretrained=pretrained, **settings)
        attach_spec(sourced.model, ModelSpec(name, {**settings, "num_classes": sourced.classes}))
        return sourced.model, sourced.statistics
    if pretrained:
        raise UserError(f"'{name}' has no pretrained weights; give a file with weights=PATH.")
    if num_classes is not None:
        settings = {**settings, "num_classes": num_classes}
    with in_one_sentence(partial(_impossible, f"'{name}'")):
        model: nn.Module = make("model", name, **settings)
    entry = lookup("model", name)
    # The spec holds defaults, too: a checkpoint must not change when they do.
    bound = inspect.signature(entry.factory).bind(**settings)
    bound.apply_defaults()
    attach_spec(model, ModelSpec(entry.name, bound.arguments))
    return model, None


def _initialise(model: nn.Module, init: str) -> None:
    """Initialise convolutions and linear layers again if another initialisation than torch's is asked for."""
    check_name("init", init, INITS)
    if init == "default":
        return
    for module in model.modules():
        if isinstance(module, nn.Conv2d | nn.Linear):
            nn.init.kaiming_normal_(module.weight)
            if module.bias is not None:
                nn.init.zeros_(module.bias)


@contextmanager
def _fixed_seed(seed: int | None) -> Iterator[None]:
    """Seed torch's CPU generator for the block and restore it; models are built on the CPU."""
    if seed is None:
        yield
        return
    with torch.random.fork_rng(devices=[]), torch.device("cpu"):
        torch.default_generator.manual_seed(seed)
        yield
