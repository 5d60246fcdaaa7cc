"""Class activation maps: a late layer's feature maps, weighted by how much the class depends on them.

Grad-CAM, Grad-CAM++, Layer-CAM and HiRes-CAM differ in one line each, the weights. The rest is one mechanism: the
model is recorded (`replay`), so that functional nets and in-place activations are seen and no hook stays behind.
Without a graph only the calls after the layer are differentiated, if possible in a plain pass (`late_layer`).

With A the feature maps `c h w` of the layer and g the gradient of the explained number to them, the map is a sum over
channels of weights times A, cut at zero, enlarged to the image (bilinear) and divided evenly among the colour channels:
their sum is the class activation map, which `reduce` shows.

The layer is the last activation, normalisation or sum with height and width. In a transformer with a class token that
is the normalisation before the last attention, since later patches do not reach the class. `layer` names another
module, such as "features.denseblock4". On a smoothed model the map is the mean of the maps of its draws.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from gyrograd.attributions import feature_maps, late_layer
from gyrograd.attributions.batching import MAX_BATCH, explain_in_parts, rows_per_example
from gyrograd.attributions.layout import in_fast_layout
from gyrograd.attributions.replay import Tape, gradient_inside, record
from gyrograd.errors import UserError
from gyrograd.numerics.checks import check_logits, check_target
from gyrograd.numerics.modes import eval_mode
from gyrograd.numerics.quantities import check_quantity, quantity_of
from gyrograd.registry import register
from gyrograd.types import Images, Inputs, Model, Targets


@dataclass(frozen=True)
class ActivationMap:
    """The part common to the four methods: everything but the weights.

    layer: None for the automatic choice, or a module's name. `relu=False` keeps values against the class.
    """

    layer: str | None = None
    relu: bool = True
    quantity: str = "logit"
    max_batch: int = MAX_BATCH

    def __post_init__(self) -> None:
        check_quantity(self.quantity)

    def __call__(self, model: Model, x: Inputs, target: Targets, *, create_graph: bool = False) -> Inputs:
        draws = rows_per_example(model)

        def explain(x: Tensor, target: Tensor) -> Tensor:
            feature_maps.refuse_unless_images(x, "Class activation maps")

            def layer(x: Tensor) -> late_layer.LayerGradient:
                return self._layer(model, x, target, create_graph)

            found = layer(x) if create_graph else in_fast_layout(model, x, layer)
            # In a smoothed model each draw gets 1 / draws of the gradient.
            cam = self.weigh(found.maps, found.gradient * draws)
            return feature_maps.enlarge(cam.relu() if self.relu else cam, x)

        return explain_in_parts(explain, model, x, target, self.max_batch, create_graph)

    def chosen(self, model: Model, x: Images) -> str:
        """The chosen layer, in words."""
        feature_maps.refuse_unless_images(x, "Class activation maps")
        with eval_mode(model):
            tape = record(model, x[:1], create_graph=False)
            return str(self._find_layer(model, tape, 1, lambda logits: logits.sum(1), create_graph=False)[0])

    def weigh(self, maps: Tensor, gradient: Tensor) -> Tensor:
        """Class activation maps `b h w` from feature maps and the gradient to them, both `b c h w`."""
        raise NotImplementedError

    def _layer(self, model: Model, x: Tensor, target: Tensor, create_graph: bool) -> late_layer.LayerGradient:
        """The layer and the gradient to it: from a plain pass if it is known to match a record, else from a record."""

        def score(logits: Tensor) -> Tensor:
            few = target[: len(logits)]
            if not create_graph:
                check_target(few, *check_logits(logits, x[: len(few)]).shape)
            return quantity_of(logits, few, self.quantity)

        def from_record(x: Tensor) -> tuple[Tape, feature_maps.FeatureMaps, late_layer.LayerGradient]:
            leaf = x.detach().requires_grad_() if create_graph and not x.requires_grad else x
            tape = record(model, leaf, create_graph=create_graph)
            found, gradient = self._find_layer(model, tape, len(x), score, create_graph)
            return tape, found, late_layer.LayerGradient(found.fold(found.at.value), found.fold(gradient))

        def find_site() -> late_layer.LayerSite | None:
            few = x[:2]
            tape, found, expected = from_record(few)
            site = late_layer.site_of(found, tape)
            matches = site is not None and late_layer.matches_record(site, expected, model, few, score)
            return site if matches else None

        if not create_graph and late_layer.is_exact_type(x):
            key = (tuple(x.shape[1:]), x.dtype, self.layer, self.quantity)
            plain = late_layer.gradient_at_known_site(model, x, key, find_site, score)
            if plain is not None:
                return plain
        return from_record(x)[2]

    def _find_layer(
        self, model: Model, tape: Tape, examples: int, score: late_layer.Score, create_graph: bool
    ) -> tuple[feature_maps.FeatureMaps, Tensor]:
        """The layer in the record, and the gradient of the score to it."""
        rows = examples * rows_per_example(model)
        if self.layer is not None:
            named = feature_maps.named_maps(
                tape, feature_maps.find_module(model, self.layer), self.layer, rows
            )
            return named, gradient_inside(tape, named.at, score, create_graph=create_graph)
        for found in feature_maps.candidates(tape, rows):
            gradient = gradient_inside(tape, found.at, score, create_graph=create_graph)
            # After the last attention only the class token is read: the gradient to the patches is exactly zero.
            if not found.has_extra_tokens or bool(found.fold(gradient).detach().any()):
                return found, gradient
        raise feature_maps.no_layer(tape)


@register(
    "attribution",
    "grad_cam",
    aliases=("gradcam", "cam"),
    paper="Selvaraju et al. 2017",
    equation="Equations 1 and 2",
    differentiable=True,
    label="Grad-CAM",
    about="Where the last layer sees what speaks for the class, channels weighted by their mean gradient.",
    order=74,
)
@dataclass(frozen=True)
class GradCAM(ActivationMap):
    """Grad-CAM: relu(sum_k w_k A^k), w_k the mean of the gradient over places (Selvaraju et al. 2017).

    >>> import gyrograd as gg
    >>> model, x = gg.load("cifar10/lenet-ce"), gg.dataset("shapes", n=2).pixels()
    >>> maps = gg.attribution("grad_cam")(model, x, target=3)
    >>> maps.shape, bool((maps >= 0).all())
    (torch.Size([2, 3, 32, 32]), True)
    """

    def weigh(self, maps: Tensor, gradient: Tensor) -> Tensor:
        return (gradient.mean((2, 3), keepdim=True) * maps).sum(1)


@register(
    "attribution",
    "grad_cam_plus_plus",
    aliases=("gradcam++", "grad_cam++"),
    paper="Chattopadhay et al. 2018",
    equation="Equations 10, 11 and 19",
    differentiable=True,
    label="Grad-CAM++",
    about="As Grad-CAM, with weights that give several objects of a class their share.",
    order=75,
)
@dataclass(frozen=True)
class GradCAMPlusPlus(ActivationMap):
    """Grad-CAM++: relu(sum_k w_k A^k), w_k = sum_ij alpha_ij relu(g_ij) (Chattopadhay et al. 2018).

    alpha = g^2 / (2 g^2 + S g^3) = 1 / (2 + S g), S the sum of A^k over places. The paper explains exp of the number,
    which multiplies the whole map by it; left out here, as in its users' code. `eps` is added to the denominator
    2 g^2 + S g^3: pytorch-grad-cam adds 1e-6, which outweighs the rest where gradients are below 1e-3.

    >>> import gyrograd as gg
    >>> model, x = gg.load("cifar10/lenet-ce"), gg.dataset("shapes", n=2).pixels()
    >>> maps = gg.attribution("grad_cam_plus_plus")(model, x, target=3)
    >>> maps.shape, bool((maps >= 0).all())
    (torch.Size([2, 3, 32, 32]), True)
    """

    eps: float = 0.0

    def __post_init__(self) -> None:
        ActivationMap.__post_init__(self)
        if not 0 <= self.eps < math.inf:
            raise UserError(f"eps is {self.eps} and is added to a denominator; give 0 or more, such as 1e-6.")

    def weigh(self, maps: Tensor, gradient: Tensor) -> Tensor:
        total = maps.sum((2, 3), keepdim=True)
        # Where the gradient is not positive the weight is zero, so any value that avoids 0 / 0 will do.
        slope = torch.where(gradient > 0, gradient, 1)
        square = slope.square()
        share = square / (square * (2 + total * slope) + self.eps) if self.eps else 1 / (2 + total * slope)
        weights = (share * gradient.relu()).sum((2, 3), keepdim=True)
        return (weights * maps).sum(1)


@register(
    "attribution",
    "layer_cam",
    aliases=("layercam",),
    paper="Jiang et al. 2021",
    equation="Equations 6 and 7",
    differentiable=True,
    label="Layer-CAM",
    about="As Grad-CAM, weighted place by place with what speaks for the class.",
    order=76,
)
@dataclass(frozen=True)
class LayerCAM(ActivationMap):
    """Layer-CAM: relu(sum_k relu(g^k) A^k), place by place (Jiang et al. 2021). Early layers can be shown too.

    >>> import gyrograd as gg
    >>> model, x = gg.load("cifar10/lenet-ce"), gg.dataset("shapes", n=2).pixels()
    >>> maps = gg.attribution("layer_cam")(model, x, target=3)
    >>> maps.shape, bool((maps >= 0).all())
    (torch.Size([2, 3, 32, 32]), True)
    """

    def weigh(self, maps: Tensor, gradient: Tensor) -> Tensor:
        return (gradient.relu() * maps).sum(1)


@register(
    "attribution",
    "hires_cam",
    aliases=("hirescam",),
    paper="Draelos et al. 2020",
    equation="Equation 3",
    differentiable=True,
    label="HiRes-CAM",
    about="As Grad-CAM, weighted place by place: what each place of the layer adds to the score.",
    order=77,
)
@dataclass(frozen=True)
class HiResCAM(ActivationMap):
    """HiRes-CAM: relu(sum_k g^k A^k), the gradient times the feature maps, place by place (Draelos and Carin 2020).

    With `relu=False` and a linear head after the layer, the map sums to the logit less its bias.

    >>> import gyrograd as gg
    >>> model, x = gg.load("cifar10/lenet-ce"), gg.dataset("shapes", n=2).pixels()
    >>> maps = gg.attribution("hires_cam")(model, x, target=3)
    >>> maps.shape, bool((maps >= 0).all())
    (torch.Size([2, 3, 32, 32]), True)
    """

    def weigh(self, maps: Tensor, gradient: Tensor) -> Tensor:
        return (gradient * maps).sum(1)
