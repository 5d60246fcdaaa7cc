"""Does the map depend on the learnt weights? Compare maps before and after randomising layers (Adebayo et al. 2018)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from gyrograd.errors import UserError, check_name
from gyrograd.metrics.passes import checked_target
from gyrograd.metrics.reductions import SIMILARITIES, check_reduction, reduce_map
from gyrograd.metrics.sanity_checks import shuffle
from gyrograd.numerics.copies import copy_of
from gyrograd.registry import register
from gyrograd.types import Attribution, Inputs, Model, PerExample, Seed, Targets

ORDERS = ("cascading", "bottom_up", "independent")


@register(
    "metric",
    "parameter_randomization",
    aliases=("mprt", "parameter_randomisation"),
    paper="Adebayo et al. 2018",
    equation="Section 3",
    direction="lower is better",
    label="Parameter randomisation",
)
@dataclass(frozen=True)
class ParameterRandomization:
    """Mean similarity of the map to the maps of the model with its layers randomised one after the other.

    Near 1 the map ignores the learnt weights and explains nothing about the model. `curve` gives each stage.

    order: "cascading" randomises layers cumulatively from the output down, "bottom_up" from the input up,
    "independent" one at a time. A layer is a module with weights of its own.
    weights: "shuffled" permutes the numbers of each tensor, which keeps their distribution and works for any layer;
    "reset" initialises them again (`reset_parameters`), as Adebayo et al. do.
    The weights are drawn once for all examples by `weights_seed`; the call's `seed` has no effect.

    >>> import gyrograd as gg
    >>> model, x = gg.load("cifar10/lenet-ce"), gg.dataset("shapes", n=2).pixels()
    >>> kept = gg.metric("parameter_randomization")(model, gg.attribution("gradient"), x, gg.predict(model, x))
    >>> bool((kept < 0.9).all())      # the gradient depends on what was learnt
    True
    """

    order: str = "cascading"
    similarity: str = "spearman"
    weights: str = "shuffled"
    weights_seed: int = 0
    reduce: str = "abs_sum"
    normalize: str = "none"
    range: ClassVar[tuple[float, float]] = (-1.0, 1.0)

    def __post_init__(self) -> None:
        check_name("order", self.order, ORDERS)
        check_name("similarity", self.similarity, SIMILARITIES)
        check_name("weights", self.weights, ("shuffled", "reset"))
        check_reduction(self.reduce, self.normalize)

    def __call__(
        self, model: Model, attribution: Attribution, x: Inputs, target: Targets, *, seed: Seed = 0
    ) -> PerExample:
        return self.curve(model, attribution, x, target, seed=seed).mean(1)

    def curve(
        self, model: Model, attribution: Attribution, x: Inputs, target: Targets, *, seed: Seed = 0
    ) -> Float[Tensor, "b layers"]:
        """The similarity after each layer, in the order they are randomised."""
        target = checked_target(model, x, target)
        before = self._reduced(attribution(model, x, target))
        alike = SIMILARITIES[self.similarity]
        stages = [
            alike(before, self._reduced(attribution(twin, x, target))) for _, twin in self.stages(model)
        ]
        return torch.stack(stages, 1)

    def stages(self, model: Model) -> Iterator[tuple[str, Model]]:
        """Yield each layer's name and the model with it (in a cascade also its predecessors) randomised."""
        # Modules are registered from the input on; a cascade starts at the output, as Adebayo et al. do.
        names = [name for name, module in model.named_modules() if list(module.parameters(recurse=False))]
        if not names:
            raise UserError("The model has no weights to randomise; give one that has learnt something.")
        twin = copy_of(model)
        for name in names if self.order != "cascading" else reversed(names):
            if self.order == "independent":
                twin = copy_of(model)
            self._randomize(twin.get_submodule(name), name, names.index(name))
            yield name, twin

    def _randomize(self, layer: nn.Module, name: str, place: int) -> None:
        if self.weights == "shuffled":
            # Every layer has its own streams, so that its permutation does not depend on the layers before it.
            shuffle(layer.parameters(recurse=False), self.weights_seed, first_stream=1000 * place)
            return
        reset: Any = getattr(layer, "reset_parameters", None)
        if reset is None:
            raise UserError(
                f"The layer {name} ({type(layer).__name__}) has no reset_parameters; give weights='shuffled'."
            )
        devices = [weight.device for weight in layer.parameters() if weight.device.type == "cuda"]
        # reset_parameters draws from torch's global generator, which must be left as it was.
        with torch.random.fork_rng(devices=devices), torch.no_grad():
            torch.manual_seed(self.weights_seed)
            reset()

    def _reduced(self, map: Tensor) -> Tensor:
        return reduce_map(map.detach(), self.reduce, self.normalize)
