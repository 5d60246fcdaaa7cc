"""joo2023's two robust criteria, their expectations, the bound between them, and the alpha-transformation.

Each function takes a model with a target, or with `target=None` a function that gives one number per example.
Models are used in the mode they are in, since regularizers train through these.
"""

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor, nn

from gyrograd.errors import UserError, check_counts, did_you_mean
from gyrograd.numerics import random
from gyrograd.numerics.autograd import hessian_vector_product, input_gradient
from gyrograd.numerics.copies import copy_of
from gyrograd.numerics.similarity import cosine_distance, l2_distance
from gyrograd.theory.curvature import hessian
from gyrograd.theory.fields import scalar_field
from gyrograd.types import Inputs, Labels, Model, PerExample, Seed


def l2_criterion(
    f: Callable[[Tensor], Tensor],
    x: Inputs,
    target: Labels | None,
    delta: Tensor,
    *,
    quantity: str = "logit",
    squared: bool = False,
    clean: Inputs | None = None,
    detach_clean: bool = False,
    create_graph: bool = False,
) -> PerExample:
    """||grad(x + delta) - grad(x)||_2 (joo2023, before Eq. 1); `squared` as in the released code.

    `clean` is grad(x), if it is known already. `detach_clean` treats grad(x) as a constant, as the released code does
    by default: training then pulls the nearby gradient towards the one at x, not both towards each other.
    """
    deltas = _fitting(delta, x)[None]
    distance = _squared_distance if squared else l2_distance
    return _mean_distance(distance, deltas, f, x, target, quantity, clean, detach_clean, create_graph)


def cosine_criterion(
    f: Callable[[Tensor], Tensor],
    x: Inputs,
    target: Labels | None,
    delta: Tensor,
    *,
    quantity: str = "logit",
    clean: Inputs | None = None,
    detach_clean: bool = False,
    create_graph: bool = False,
) -> PerExample:
    """(1 - cos(grad(x + delta), grad(x))) / 2 (joo2023 Definition 4), in [0, 1]; `clean` as in l2_criterion.

    If the definition divides by zero: 0 if both gradients are zero, 1/2 if one is.
    """
    deltas = _fitting(delta, x)[None]
    return _mean_distance(cosine_distance, deltas, f, x, target, quantity, clean, detach_clean, create_graph)


def expected_l2_criterion(
    f: Callable[[Tensor], Tensor],
    x: Inputs,
    target: Labels | None,
    *,
    eps: float,
    draws: int = 1,
    seed: Seed = 0,
    quantity: str = "logit",
    squared: bool = False,
    clean: Inputs | None = None,
    detach_clean: bool = False,
    create_graph: bool = False,
) -> PerExample:
    """The mean of l2_criterion over uniform draws of delta in [-eps, eps]^d (joo2023 Eq. 5)."""
    deltas = uniform_deltas(x, eps, draws, seed)
    distance = _squared_distance if squared else l2_distance
    return _mean_distance(distance, deltas, f, x, target, quantity, clean, detach_clean, create_graph)


def expected_cosine_criterion(
    f: Callable[[Tensor], Tensor],
    x: Inputs,
    target: Labels | None,
    *,
    eps: float,
    draws: int = 1,
    seed: Seed = 0,
    quantity: str = "logit",
    clean: Inputs | None = None,
    detach_clean: bool = False,
    create_graph: bool = False,
) -> PerExample:
    """The mean of cosine_criterion over uniform draws of delta in [-eps, eps]^d (joo2023 Eq. 4)."""
    deltas = uniform_deltas(x, eps, draws, seed)
    return _mean_distance(cosine_distance, deltas, f, x, target, quantity, clean, detach_clean, create_graph)


def uniform_deltas(x: Inputs, eps: float, draws: int, seed: Seed = 0) -> Float[Tensor, "n b *shape"]:
    """Perturbations uniform in [-eps, eps]^d, not clipped to the pixel range (joo2023 Eq. 4)."""
    if not 0 < eps < float("inf"):
        raise UserError(f"eps is {eps}; give a finite radius above 0, such as 4 / 255.")
    check_counts(draws=draws)
    keys = random.keys(seed, len(x), x.device)
    unit = random.uniform(keys, (draws, *x.shape[1:]), dtype=x.dtype)
    return (eps * (2 * unit - 1)).transpose(0, 1)


def frobenius_bound(
    f: Callable[[Tensor], Tensor],
    x: Inputs,
    target: Labels | None,
    delta: Tensor,
    *,
    quantity: str = "logit",
    frobenius: PerExample | None = None,
    hessian_lipschitz: float = 0.0,
) -> PerExample:
    """(eps ||H||_F + O(eps^2)) / ||grad(x + delta)||: bounds the cosine criterion (joo2023 Theorem 6).

    eps is ||delta||_2. `frobenius` is ||H||_F if known (for large inputs the root of `squared_frobenius_norm`); else it
    is computed exactly. `hessian_lipschitz` M turns O(eps^2) into M eps^2 / 2 and makes the bound strict. With 0 (the
    paper's Figure 3b) it is strict only for a constant Hessian.
    """
    field, moved = scalar_field(f, target, quantity), x + _fitting(delta, x)
    norm = hessian(field, x, None).flatten(1).norm(dim=1) if frobenius is None else frobenius
    size = _length(delta)
    # ||grad(x + delta) - grad(x) - H delta|| <= M ||delta||^2 / 2 if the Hessian is M-Lipschitz.
    change = size * norm + hessian_lipschitz * size.square() / 2
    return _over(change, _length(input_gradient(field, moved)))


def product_bound(
    f: Callable[[Tensor], Tensor],
    x: Inputs,
    target: Labels | None,
    delta: Tensor,
    *,
    quantity: str = "logit",
    hessian_lipschitz: float = 0.0,
) -> PerExample:
    """||H delta|| / ||grad(x + delta)||: the tighter term of joo2023 Figure 3b, at any input size.

    `hessian_lipschitz` as in frobenius_bound.
    """
    field, moved = scalar_field(f, target, quantity), x + _fitting(delta, x)
    change = _gradient_change(field, x, delta, hessian_lipschitz)
    return _over(change, _length(input_gradient(field, moved)))


def squared_bound(
    f: Callable[[Tensor], Tensor],
    x: Inputs,
    target: Labels | None,
    delta: Tensor,
    *,
    quantity: str = "logit",
    hessian_lipschitz: float = 0.0,
) -> PerExample:
    """(||H delta|| / (||grad(x + delta)|| + ||grad(x)||))^2: of the criterion's order, delta^2.

    Not in the paper. The criterion is a quarter of the squared distance of the two unit gradients, which is at most 2
    ||a - b|| / (||a|| + ||b||) (Dunkl and Williams 1964). Never above `product_bound` if that is below 1; a bound of 1
    or more is vacuous for a criterion in [0, 1].
    """
    field, moved = scalar_field(f, target, quantity), x + _fitting(delta, x)
    sizes = _length(input_gradient(field, moved)) + _length(input_gradient(field, x))
    return _over(_gradient_change(field, x, delta, hessian_lipschitz), sizes).square()


def scaled_layer(model: Model, layer: str, alpha: float) -> Model:
    """A copy with one layer's weights times alpha: the alpha-transformation (joo2023 Definition 2)."""
    if not 0 < alpha < float("inf"):
        raise UserError(f"alpha is {alpha}; give a finite factor above 0.")
    scaled = copy_of(model)
    layers = {name: part for name, part in scaled.named_modules() if list(part.parameters(recurse=False))}
    if layer not in layers:
        raise UserError(f"The model has no layer '{layer}' with weights: {did_you_mean(layer, layers)}")
    with torch.no_grad():
        for weight in layers[layer].parameters(recurse=False):
            weight.mul_(alpha)
    return scaled


def scaled_last_layer(model: Model, alpha: float) -> Model:
    """The alpha-transformation of the last linear layer: every logit times alpha (joo2023, Lemma 3).

    This is the last linear layer in the order of definition; if another one runs last, name it with `scaled_layer`.
    """
    names = [name for name, part in model.named_modules() if isinstance(part, nn.Linear)]
    if not names:
        raise UserError("The model has no linear layer; name the layer to scale with scaled_layer.")
    return scaled_layer(model, names[-1], alpha)


def _squared_distance(a: Tensor, b: Tensor) -> Tensor:
    return (a - b).flatten(1).square().sum(1)


def _mean_distance(
    distance: Callable[[Tensor, Tensor], Tensor],
    deltas: Tensor,
    f: Callable[[Tensor], Tensor],
    x: Tensor,
    target: Tensor | None,
    quantity: str,
    clean: Tensor | None,
    detach_clean: bool,
    create_graph: bool,
) -> Tensor:
    """Mean distance of the gradients at x + delta and at x over the deltas, one at a time to save memory."""

    def gradient(x: Tensor, graph: bool) -> Tensor:
        return input_gradient(scalar_field(f, target, quantity, check=not graph), x, create_graph=graph)

    if clean is None:
        clean = gradient(x, create_graph and not detach_clean)
    elif clean.shape != x.shape:
        raise UserError(f"clean has shape {tuple(clean.shape)} and x {tuple(x.shape)}; give grad(x).")
    before = clean.detach() if detach_clean else clean
    total = before.new_zeros(len(x))
    for delta in deltas:
        total = total + distance(gradient(x + delta, create_graph), before)
    return total / len(deltas)


def _fitting(delta: Tensor, x: Tensor) -> Tensor:
    """The delta, which must have the shape of x."""
    if delta.shape != x.shape:
        raise UserError(
            f"delta has shape {tuple(delta.shape)} and x {tuple(x.shape)}; give delta the shape of x."
        )
    return delta


def _gradient_change(
    field: Callable[[Tensor], Tensor], x: Tensor, delta: Tensor, hessian_lipschitz: float
) -> Tensor:
    """||H delta|| plus Taylor's remainder, the possible change of the Hessian along delta."""
    first = _length(hessian_vector_product(field, x, delta))
    return first + hessian_lipschitz * _length(delta).square() / 2


def _length(v: Tensor) -> Tensor:
    length: Tensor = torch.linalg.vector_norm(v.flatten(1), dim=1)
    return length


def _over(change: Tensor, size: Tensor) -> Tensor:
    """change / size; infinity, which is no bound, if the size is zero."""
    return torch.where(size > 0, change / torch.where(size > 0, size, 1), torch.inf)
