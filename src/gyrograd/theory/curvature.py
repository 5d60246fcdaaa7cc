"""The input Hessian: exact for small inputs, its norm by random probes, and that of the loss in closed form."""

from collections.abc import Callable
from typing import Literal, get_args

import torch
from jaxtyping import Float
from torch import Tensor

from gyrograd.errors import UserError, check_counts, check_name
from gyrograd.numerics import random
from gyrograd.numerics.autograd import hessian_vector_product, logit_jacobian, logit_jacobian_along
from gyrograd.numerics.checks import try_model
from gyrograd.numerics.modes import without_autocast
from gyrograd.numerics.second_order import single
from gyrograd.theory.fields import scalar_field
from gyrograd.types import Inputs, Labels, Model, PerExample, Seed

EXACT = 1024
"""Most features for which the whole Hessian is computed."""
SQUARINGS = 20
"""After 20 squarings a second eigenvalue g times the first weighs g^(2^20); at worst 4e-7 of the result is lost."""
Probe = Literal["normal", "signs"]
PROBES = {"normal": random.normal, "signs": random.signs}
Channels = Literal["all", "mean"]


def hessian(
    f: Callable[[Tensor], Tensor], x: Inputs, target: Labels | None, *, quantity: str = "logit"
) -> Float[Tensor, "b d d"]:
    """The whole input Hessian per example, by one Hessian-vector product per feature; for up to 1024 features."""
    d = x[0].numel()
    if d > EXACT:
        raise UserError(
            f"The Hessian of {d} features is too large to write out (at most {EXACT}); "
            "use squared_frobenius_norm or numerics.autograd.top_eigenvalue."
        )
    field = scalar_field(f, target, quantity)
    axes = torch.eye(d, dtype=x.dtype, device=x.device).reshape(d, *x.shape[1:])
    rows = [hessian_vector_product(field, x, axis.expand_as(x)).flatten(1) for axis in axes]
    return torch.stack(rows, 1)


def squared_frobenius_norm(
    f: Callable[[Tensor], Tensor],
    x: Inputs,
    target: Labels | None,
    *,
    draws: int = 1,
    seed: Seed = 0,
    probe: Probe = "normal",
    quantity: str = "logit",
    create_graph: bool = False,
) -> PerExample:
    """The mean of ||H v||^2 over random v: an unbiased estimate of ||H||_F^2 (joo2023's Hessian regularizer).

    v is standard normal as in the released code, or random signs. Its root is not unbiased for the norm.
    """
    check_counts(draws=draws)
    check_name("probe", probe, PROBES)
    field = scalar_field(f, target, quantity, check=not create_graph)
    keys = random.keys(seed, len(x), x.device)
    probes = PROBES[probe](keys, (draws, *x.shape[1:]), dtype=x.dtype).transpose(0, 1)
    total = x.new_zeros(len(x))
    for v in probes:
        product = hessian_vector_product(field, x, v, create_graph=create_graph)
        total = total + product.flatten(1).square().sum(1)
    return total / draws


def loss_hessian(model: Model, x: Inputs) -> Float[Tensor, "b d d"]:
    """W (diag p - p p^T) W^T, W the gradients of the logits (wang2020 Proposition 3).

    For a piecewise linear net this is the Hessian of the cross-entropy, for any label. Other nets also have curvature
    in their logits; for them it is the Gauss-Newton part.
    """
    jacobian, log_probability = _jacobian_and_log_probability(model, x, create_graph=False)
    root = _root_factor(jacobian.flatten(2), log_probability)
    return root.mT @ root


def loss_curvatures(
    model: Model, x: Inputs, *, channels: Channels = "all", create_graph: bool = False
) -> Float[Tensor, "b k"]:
    """The k eigenvalues of `loss_hessian` that can be nonzero, rising, by a k x k problem (wang2020 B1).

    `channels="mean"` averages the gradients over the colour channels first, as the released code does; the
    paper does not say so.
    """
    small = _small_hessian(model, x, channels, create_graph)
    with torch.set_grad_enabled(create_graph):
        values: Tensor = torch.linalg.eigvalsh(small)
    return values


def top_loss_curvature(
    model: Model,
    x: Inputs,
    *,
    channels: Channels = "all",
    create_graph: bool = False,
    independent: bool = False,
) -> PerExample:
    """The largest eigenvalue of `loss_hessian`, the penalty of wang2020's SSR (Definition 7).

    With a graph, for training, it is computed without an eigenvalue solver; it then has a first derivative but no
    second. If no example's logits depend on another example (`independent`), one backward pass of k is differentiated
    again in place of all k.
    """
    if not create_graph:
        return loss_curvatures(model, x, channels=channels)[:, -1]
    if not independent:
        return top_of_squares(_small_hessian(model, x, channels, create_graph)).to(x.dtype)
    try_model(model, x)
    along = logit_jacobian_along(model, x, lambda jacobian, logits: _top_weights(jacobian, logits, channels))
    with torch.enable_grad(), without_autocast(x):
        return single(_over_channels(along, channels, 1)).flatten(1).square().sum(1).to(x.dtype)


def _top_weights(jacobian: Tensor, logits: Tensor, channels: Channels) -> Float[Tensor, "b k"]:
    """w = M v: J^T w is as long as the root of the top eigenvalue, whose eigenvector v is held fixed.

    The derivative of an eigenvalue is that of v^T A v with v fixed. A = M^T J J^T M is the matrix of `_small_hessian`.
    """
    log_probability = single(logits).log_softmax(1)
    with torch.no_grad(), without_autocast(logits):
        root = _root_factor(single(_over_channels(jacobian, channels, 2)).flatten(2), log_probability)
        v = top_eigenvector(root @ root.mT)
    root_p = (log_probability / 2).exp()
    return root_p * v - log_probability.exp() * (root_p * v).sum(1, keepdim=True)


def top_of_squares(matrix: Float[Tensor, "b k k"]) -> PerExample:
    """The largest eigenvalue of positive semidefinite matrices, by squaring them until one direction is left.

    tr(P A) is the eigenvalue up to 4e-7 of it, P of `_top_projection`, and with P held fixed its derivative to A is
    right: the mean over eigenvectors if several are equal.
    """
    with torch.no_grad(), without_autocast(matrix):
        projection = _top_projection(matrix)
    return (projection * matrix).sum((1, 2))


def _top_projection(matrix: Float[Tensor, "b k k"]) -> Float[Tensor, "b k k"]:
    """The projection on the top eigenvectors over their number: the power 2^20 of the matrix, its trace kept at 1.

    An eigenvalue solver reads its matrices on the host, which a CUDA graph cannot hold.
    """
    power = matrix
    for _ in range(SQUARINGS):
        power = _of_trace_one(power)
        power = power @ power
    return _of_trace_one(power)


def top_eigenvector(matrix: Float[Tensor, "b k k"]) -> Float[Tensor, "b k"]:
    """A unit top eigenvector, one of them if several are equal; zeros for a matrix of zeros."""
    # The column whose own entry is largest: every column of the projection is a top eigenvector or zero.
    projection = _top_projection(matrix)
    largest = projection.diagonal(dim1=1, dim2=2).argmax(1)
    column = projection.gather(2, largest.view(-1, 1, 1).expand(-1, len(matrix[0]), 1)).squeeze(2)
    length = torch.linalg.vector_norm(column, dim=1, keepdim=True)
    unit: Tensor = column / length.clamp_min(torch.finfo(matrix.dtype).tiny)
    return unit


def _of_trace_one(matrix: Float[Tensor, "b k k"]) -> Float[Tensor, "b k k"]:
    # A matrix of zeros stays one: its eigenvalue is 0, not NaN.
    trace = matrix.diagonal(dim1=1, dim2=2).sum(1)
    return matrix / trace.clamp_min(torch.finfo(matrix.dtype).tiny).view(-1, 1, 1)


def _small_hessian(model: Model, x: Inputs, channels: Channels, create_graph: bool) -> Float[Tensor, "b k k"]:
    """The k x k matrix that has the eigenvalues of `loss_hessian`."""
    jacobian, log_probability = _jacobian_and_log_probability(model, x, create_graph)
    jacobian = _over_channels(jacobian, channels, 2)
    # Not in half precision, even if the net is: rounding would exceed the smaller eigenvalues.
    with torch.set_grad_enabled(create_graph), without_autocast(x):
        root = _root_factor(single(jacobian).flatten(2), single(log_probability))
        return root @ root.mT


def _over_channels(z: Tensor, channels: Channels, dim: int) -> Tensor:
    """Derivatives to images, whose colours are dimension `dim`, or their mean over it."""
    check_name("treatment of channels", channels, get_args(Channels))
    if channels == "all":
        return z
    if z.dim() != dim + 3:
        raise UserError("channels='mean' needs images b c h w; use channels='all'.")
    return z.mean(dim)


def _root_factor(
    jacobian: Float[Tensor, "b k d"], log_probability: Float[Tensor, "b k"]
) -> Float[Tensor, "b k d"]:
    """M^T W^T with M M^T = diag p - p p^T.

    M = diag(sqrt p) - p sqrt(p)^T is such a root. The Cholesky factor the paper names needs a positive
    definite matrix, and this one has the null vector of all ones; sqrt p is smooth in the logits.
    """
    p, root = log_probability.exp(), (log_probability / 2).exp()
    # M^T W^T = diag(sqrt p) (W^T - 1 p^T W^T), without forming M.
    mean = p.unsqueeze(1) @ jacobian
    return root.unsqueeze(2) * (jacobian - mean)


def _jacobian_and_log_probability(model: Model, x: Tensor, create_graph: bool) -> tuple[Tensor, Tensor]:
    """Both from one forward pass: a second one would update BatchNorm's running statistics again."""
    try_model(model, x)
    seen: list[Tensor] = []

    def remember_logits(x: Tensor) -> Tensor:
        seen.append(model(x))
        return seen[-1]

    jacobian = logit_jacobian(remember_logits, x, create_graph=create_graph)
    with torch.set_grad_enabled(create_graph):
        return jacobian, (seen[0] if create_graph else seen[0].detach()).log_softmax(1)
