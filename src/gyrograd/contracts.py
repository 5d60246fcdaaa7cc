"""Contract checks for authors of plug-ins: `check("attribution", "my_method", draws=5)`.

Each check runs the method on a small smooth net with seeded images; the error names the broken promise. Plug-ins call
`check` in their own tests; gyrograd's own methods also pass the longer suites in tests/contracts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from gyrograd.errors import UserError
from gyrograd.metrics.localization import looks_at_masks
from gyrograd.metrics.response import looks_at_attacked
from gyrograd.numerics import random
from gyrograd.numerics.balls import ball
from gyrograd.registry import Entry, lookup, make
from gyrograd.types import Images, Model

EXAMPLES, CLASSES, SIDE = 4, 3, 8
ROUNDING = 1e-6
"""Largest difference that counts as rounding, relative to the largest value, in float64."""
SLOPE_ERROR = 1e-3
"""Allowed relative difference between a derivative and central differences."""


def check(
    kind: str, name: str, *, model: Model | None = None, images: Images | None = None, **settings: Any
) -> None:
    """Raise a `UserError` that names the first promise this method breaks.

    Args:
        kind: "attribution", "attack", "metric" or "regularizer".
        name: as registered.
        model, images: to try it on, if the method is not made for convolutional nets; in float64, with at least three
            classes.
        settings: of the method; few draws or steps make the checks quick.

    >>> check("attribution", "smoothgrad", draws=3)
    """
    entry = lookup(kind, name)
    if kind not in _CHECKS:
        raise UserError(f"There are no checks for the kind '{kind}'; they exist for {', '.join(_CHECKS)}.")
    require = partial(_require, entry)
    require(entry.summary.endswith((".", ":")), "has no docstring whose first line is a sentence; write one")
    made = make(kind, name, **settings)
    require(
        make(kind, name, **settings) == made, "is not equal to itself built twice; make it a frozen dataclass"
    )
    model = _net() if model is None else model
    x = _draw(random.uniform, (EXAMPLES, 3, SIDE, SIDE), 0) if images is None else images
    target = torch.arange(len(x)) % CLASSES
    before, drawn = _state(model), torch.get_rng_state()
    _CHECKS[kind](entry, made, model, x, target)
    require(_state(model) == before, "changes the model (weights, modes, hooks or grad); leave it as it was")
    require(
        torch.equal(torch.get_rng_state(), drawn),
        "draws from torch's global generator; draw from gyrograd.numerics.random by the seed",
    )


def _require(entry: Entry, kept: bool, sentence: str) -> None:
    """Raise with the entry's name and the broken promise."""
    if not kept:
        raise UserError(f"The {entry.kind} '{entry.name}' {sentence}.")


def _check_attribution(entry: Entry, explain: Any, model: Model, x: Tensor, target: Tensor) -> None:
    require = partial(_require, entry)
    maps = explain(model, x, target)
    require(maps.shape == x.shape, f"returns maps of shape {tuple(maps.shape)} for images {tuple(x.shape)}")
    require(not maps.requires_grad, "keeps a graph without create_graph=True; detach the map")
    require(bool(maps.isfinite().all()), "returns values that are not finite; define the map there")
    require(
        _close(explain(model, x[:1], target[:1]), maps[:1]),
        "explains an image differently alone and in a batch; treat every example by itself",
    )
    leaf = x.clone().requires_grad_()
    if not entry.differentiable:
        try:
            explain(model, leaf, target, create_graph=True)
        except UserError:
            return
        require(
            False, "takes create_graph=True but is not registered as differentiable; register or refuse it"
        )
    along, weights = (_draw(random.normal, x.shape, stream) for stream in (1, 2))
    (slope,) = torch.autograd.grad((explain(model, leaf, target, create_graph=True) * weights).sum(), leaf)
    step = 1e-5
    ahead, behind = (explain(model, x + sign * step * along, target) for sign in (1, -1))
    measured = ((ahead - behind) * weights).sum() / (2 * step)
    allowed = SLOPE_ERROR * max(float(slope.norm() * along.norm()), 1e-12)
    require(
        abs(float((slope * along).sum() - measured)) < allowed,
        "has a derivative that differs from central differences; keep the graph of everything the map depends on",
    )


def _check_attack(entry: Entry, attack: Any, model: Model, x: Tensor, target: Tensor) -> None:
    require, explain = partial(_require, entry), make("attribution", "gradient")
    results = attack.every_radius(model, explain, x, target, seed=0)
    again = attack.every_radius(model, explain, x, target, seed=0)
    for hit, twin in zip(results, again, strict=True):
        size = ball(attack.norm, hit.eps).norm(hit.x - x)
        require(
            bool((size <= hit.eps * (1 + ROUNDING) + 1e-12).all()), "leaves the ball of radius eps; project"
        )
        require(bool(((hit.x >= 0) & (hit.x <= 1)).all()), "leaves the pixels' range [0, 1]; clip")
        require(torch.equal(hit.x, twin.x), "finds other images with the same seed; draw by the seed")
        if entry.group == "map":
            worse = (hit.value > hit.start).any()
            require(
                not bool(worse),
                "returns images that are worse than the clean ones; keep x if nothing is better",
            )


def _check_metric(entry: Entry, metric: Any, model: Model, x: Tensor, target: Tensor) -> None:
    require, explain = partial(_require, entry), make("attribution", "gradient")
    require(
        entry.direction != "none",
        "has no direction; register it with direction='higher is better' or the other",
    )
    moved = (x + 0.02 * _draw(random.normal, x.shape, 3)).clamp(0, 1)

    def values_of(n: int) -> Tensor:
        further: dict[str, Tensor] = {"perturbed": moved[:n]} if looks_at_attacked(metric) else {}
        further |= {"mask": x[:n, 0] > x[:n, 0].mean((1, 2), keepdim=True)} if looks_at_masks(metric) else {}
        values: Tensor = metric(model, explain, x[:n], target[:n], seed=0, **further)
        return values

    values = values_of(len(x))
    require(
        values.shape == (len(x),),
        f"returns shape {tuple(values.shape)} for {len(x)} examples, not one each",
    )
    low, high = getattr(metric, "range", (-torch.inf, torch.inf))
    inside = (values >= low - ROUNDING) & (values <= high + ROUNDING)
    require(bool((inside | values.isnan()).all()), f"returns values outside its range [{low:g}, {high:g}]")
    require(_close(values_of(len(x)), values), "returns other values with the same seed; draw by the seed")
    require(
        _close(values_of(1), values[:1]),
        "measures an image differently alone and in a batch; treat every example by itself",
    )


def _check_regularizer(entry: Entry, penalty: Any, model: Model, x: Tensor, target: Tensor) -> None:
    require = partial(_require, entry)
    seed = torch.arange(len(x))
    values = penalty(model, x, target, seed=seed)
    require(
        values.shape == (len(x),),
        f"returns shape {tuple(values.shape)} for {len(x)} examples, not one each",
    )
    require(bool(values.isfinite().all()), "returns values that are not finite; define the penalty there")
    require(values.requires_grad, "has no derivative to the weights; keep the graph")
    slopes = torch.autograd.grad(values.sum(), list(model.parameters()), allow_unused=True)
    reached = [slope for slope in slopes if slope is not None]
    require(
        any(bool(slope.any()) for slope in reached),
        "has a derivative of zero to every weight; keep the graph",
    )
    again = penalty(model, x, target, seed=seed)
    require(
        _close(again.detach(), values.detach()), "returns other values with the same seed; draw by the seed"
    )


_CHECKS: dict[str, Callable[[Entry, Any, Model, Tensor, Tensor], None]] = {
    "attribution": _check_attribution,
    "attack": _check_attack,
    "metric": _check_metric,
    "regularizer": _check_regularizer,
}


def _net() -> Model:
    """Three smooth nonlinear layers, so that second derivatives exist and can be wrong."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        net = nn.Sequential(
            nn.Conv2d(3, 6, 3, padding=1),
            nn.Softplus(3),
            nn.Conv2d(6, 6, 3, stride=2, padding=1),
            nn.Softplus(3),
            nn.Flatten(),
            nn.Linear(6 * (SIDE // 2) ** 2, 12),
            nn.Softplus(3),
            nn.Linear(12, CLASSES),
        )
    return net.double().eval()


def _draw(how: Callable[..., Tensor], shape: Sequence[int], stream: int) -> Tensor:
    return how(random.keys(0, shape[0]), tuple(shape[1:]), stream=stream, dtype=torch.float64)


def _close(one: Tensor, other: Tensor) -> bool:
    largest = float(other.nan_to_num().abs().max()) or 1.0
    return torch.allclose(one, other, rtol=0, atol=ROUNDING * largest, equal_nan=True)


def _state(model: Model) -> list[Any]:
    """Everything a method could leave changed: weights, gradients, modes, hooks."""
    weights = [float(tensor.double().sum()) for tensor in model.state_dict().values()]
    hooks = [len(getattr(m, key)) for m in model.modules() for key in vars(m) if key.endswith("_hooks")]
    grads = [parameter.grad is None and parameter.requires_grad for parameter in model.parameters()]
    return [weights, hooks, grads, [module.training for module in model.modules()]]
