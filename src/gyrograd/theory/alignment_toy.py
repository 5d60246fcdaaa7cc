"""joo2023 Figure 1: four two-layer nets in the plane, and where on its boundary the gradient of each turns most.

The paper shows the picture without a recipe, so data, width, weights and the pair of points are choices made here. The
pair is chosen by the same rule for each net, where the gradient turns most along its own boundary.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from gyrograd.data import Dataset, toy2d
from gyrograd.errors import UserError
from gyrograd.models import Normalized, with_activation
from gyrograd.models.mlp import mlp
from gyrograd.numerics.autograd import input_gradient
from gyrograd.numerics.similarity import cosine, l2_distance
from gyrograd.types import Logits, Model, PerExample, Regularizer

Points = Float[Tensor, "b 2"]


@dataclass(frozen=True)
class Panel:
    """One of the four nets: its activation, and the regulariser it is trained with by name, weight and settings."""

    letter: str
    title: str
    activation: str
    regularizer: str | None = None
    weight: float = 0.0
    settings: Mapping[str, float] = field(default_factory=dict)


PANELS = (
    Panel("a", "ReLU", "relu"),
    Panel("b", "Softplus", "softplus"),
    Panel("c", "Softplus, MaxEnt", "softplus", "max_entropy", 0.3),
    Panel("d", "Softplus, l2 + Cosd", "softplus", "l2_cosine", 1.0, {"l2": 0.01, "cosine": 1.0, "eps": 0.1}),
)
BETA = 2.0
"""Sharpness of the Softplus, for inputs in [-1, 1]."""


class OneLogit(nn.Module):
    """A net of one logit z as a model of two classes, (-z/2, z/2): its cross-entropy is the binary one of z."""

    def __init__(self, core: nn.Module) -> None:
        super().__init__()
        self.core = core

    def forward(self, x: Points) -> Logits:
        """Two logits, z apart."""
        half = self.core(x) / 2
        return torch.cat((-half, half), 1)


@dataclass(frozen=True)
class Turn:
    """Two points `apart` from each other across one point of the boundary, and the gradients of z there."""

    points: Float[Tensor, "2 2"]
    gradients: Float[Tensor, "2 2"]
    l2: float
    cosine: float


def logit(model: Model, x: Points) -> PerExample:
    """z, the second class's logit minus the first's."""
    logits = model(x)
    lead: PerExample = logits[:, 1] - logits[:, 0]
    return lead


def trained_net(
    panel: Panel,
    penalty: Regularizer | None,
    *,
    seed: int = 0,
    points: int = 200,
    noise: float = 0.04,
    steps: int = 300,
    lr: float = 0.05,
) -> tuple[Model, Dataset]:
    """The panel's net after `steps` full-batch steps of Adam on half moons, and the points it was trained on.

    All panels of a seed share the points and the first weights. `penalty` is the panel's regulariser, built by name.
    """
    if (penalty is None) != (panel.regularizer is None):
        raise UserError(
            f"Panel {panel.letter} is trained with {panel.regularizer}; give that as its penalty."
        )
    data = toy2d(n=points, seed=seed, noise=noise)
    x, y, model = data.pixels(), data.labels, _net(panel.activation, data.pixels(), seed)
    optimizer = torch.optim.Adam(model.parameters(), lr)
    for step in range(steps):
        loss = F.cross_entropy(model(x), y)
        if penalty is not None:
            loss = loss + panel.weight * penalty(model, x, y, seed=seed * steps + step).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model.eval(), data


def _net(activation: str, x: Points, seed: int) -> Model:
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        core: nn.Module = mlp(num_classes=1, hidden=(32,))
    if activation != "relu":
        core = with_activation(core, activation, BETA, example=x[:1])
    return Normalized(OneLogit(core), (0.5, 0.5), (0.5, 0.5)).train()


def boundary(model: Model, near: Points, *, grid: int = 120, within: float = 0.075) -> Float[Tensor, "n 2"]:
    """Points of the unit square at which z changes its sign between neighbours of a grid, close to the data."""
    ticks = torch.linspace(0, 1, grid)
    nodes = torch.stack(torch.meshgrid(ticks, ticks, indexing="ij"), -1)
    with torch.no_grad():
        z = logit(model, nodes.flatten(0, 1)).view(grid, grid)
    crossings = [
        _crossings(nodes[:-1], nodes[1:], z[:-1], z[1:]),
        _crossings(nodes[:, :-1], nodes[:, 1:], z[:, :-1], z[:, 1:]),
    ]
    found = torch.cat(crossings)
    close = torch.cdist(found, near).amin(1) < within
    return found[close]


def _crossings(a: Tensor, b: Tensor, at_a: Tensor, at_b: Tensor) -> Tensor:
    """Where the straight line between the two values meets zero."""
    changes = at_a * at_b < 0
    share = (at_a / torch.where(changes, at_a - at_b, 1))[changes]
    return a[changes] + share[:, None] * (b - a)[changes]


def sharpest_turn(model: Model, near: Points, *, apart: float = 0.03) -> Turn:
    """The two boundary points, `apart` from each other along the boundary, whose gradients agree least in direction."""
    middle = boundary(model, near)
    if not len(middle):
        raise UserError("The net has no boundary among the data; train it longer or with a smaller weight.")
    across = input_gradient(lambda x: logit(model, x), middle)
    # The boundary is a level line of z, so that it runs at a right angle to the gradient.
    along = F.normalize(across.flip(1) * torch.tensor([1.0, -1.0]), dim=1)
    ends = [middle + sign * apart / 2 * along for sign in (-1, 1)]
    gradients = [input_gradient(lambda x: logit(model, x), end) for end in ends]
    angle = cosine(*gradients)
    least = int(angle.argmin())
    return Turn(
        torch.stack([end[least] for end in ends]),
        torch.stack([gradient[least] for gradient in gradients]),
        float(l2_distance(*gradients)[least]),
        float(angle[least]),
    )
