"""Derivatives to the input, per example: gradient, Hessian-vector product, Jacobian, top eigenvalue.

All use `torch.autograd.grad`, so no `.grad` is touched, and all work under the caller's `torch.no_grad()`. If a graph
is kept, attention runs on its math kernel: the fused ones have no double backward.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from gyrograd.errors import UserError, check_counts
from gyrograd.numerics import random
from gyrograd.numerics.cpu_layers import CpuLayers
from gyrograd.numerics.modes import without_autocast
from gyrograd.numerics.second_order import made_for_second_derivatives
from gyrograd.types import Inputs, PerExample, ScalarField, Seed


def input_gradient(f: ScalarField, x: Inputs, *, create_graph: bool = False) -> Inputs:
    """Gradient of f to x, per example; with `create_graph` it can be differentiated again.

    With `create_graph` an x that requires grad stays part of the graph; otherwise a detached copy is used.
    """
    with _differentiable(x, twice=create_graph, keep=create_graph) as leaf:
        return _gradient(f, leaf, create_graph)


def hessian_vector_product(f: ScalarField, x: Inputs, v: Inputs, *, create_graph: bool = False) -> Inputs:
    """The Hessian of f times v, per example; zero where f is linear."""
    if x.shape != v.shape:
        raise UserError(f"v has shape {tuple(v.shape)} and x {tuple(x.shape)}; give v the shape of x.")
    with _differentiable(x, twice=True, keep=create_graph) as leaf:
        return _along(_gradient(f, leaf, create_graph=True), leaf, v, create_graph)


def logit_jacobian(
    model: Callable[[Tensor], Tensor], x: Inputs, *, create_graph: bool = False
) -> Float[Tensor, "b k *shape"]:
    """Gradient of every logit to x, per example: one forward pass and k backward passes."""
    with _differentiable(x, twice=create_graph, keep=create_graph) as leaf:
        return _jacobian(_logits(model, leaf), leaf, create_graph)


def logit_jacobian_along(
    model: Callable[[Tensor], Tensor], x: Inputs, weights: Callable[[Tensor, Tensor], Float[Tensor, "b k"]]
) -> Inputs:
    """J^T w per example, with a graph: the gradient of the logits' sum weighted by w = weights(J, logits).

    Of the k backward passes that give J none is differentiated again: J has no graph, logits and w do. Every example
    has its own w, so examples must not see each other, as they do under batch normalisation by the batch.
    """
    with _differentiable(x, twice=True, keep=True) as leaf:
        logits = _logits(model, leaf)
        w = weights(_jacobian(logits, leaf, create_graph=False), logits)
        (along,) = torch.autograd.grad(logits, leaf, w.to(logits.dtype), create_graph=True)
        return along


def _logits(model: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    logits = model(x)
    if logits.dim() != 2 or len(logits) != len(x):
        raise UserError(
            f"The model returned shape {tuple(logits.shape)} for {len(x)} examples; "
            "it must return logits, one row for each example."
        )
    return logits


def _jacobian(logits: Tensor, x: Tensor, create_graph: bool) -> Float[Tensor, "b k *shape"]:
    # Examples are independent, so the gradient of a logit's sum over the batch holds each example's own.
    totals = logits.sum(0).unbind() if logits.requires_grad else ()
    rows = [
        torch.autograd.grad(total, x, create_graph=create_graph, retain_graph=True, allow_unused=True)[0]
        for total in totals
    ]
    if all(row is None for row in rows):
        raise _does_not_depend_on_x("The model's output")
    return torch.stack([torch.zeros_like(x) if row is None else row for row in rows], 1)


def top_eigenvalue(
    f: ScalarField, x: Inputs, *, steps: int = 50, tol: float = 1e-4, seed: Seed = 0
) -> tuple[PerExample, Inputs]:
    """Eigenvalue of largest magnitude of each example's input Hessian, with its sign, and its unit eigenvector.

    Lanczos iteration from a random start, one Hessian-vector product per step. (Power iteration never settles between
    two eigenvalues +a and -a, and is slow if they are close.) Each example stops on its own, so the result does not
    depend on the batch. A zero Hessian gives 0.

    Args:
        steps: most iterations; memory holds this many vectors of the size of x.
        tol: an example stops once both ends of its spectrum are known to this share of the larger one.
    """
    check_counts(steps=steps)
    with _differentiable(x, twice=True, keep=False) as leaf:
        slope = _gradient(f, leaf, create_graph=True)

        def hessian(v: Tensor) -> Tensor:
            return _along(slope, leaf, v.view_as(leaf), create_graph=False, again=True).flatten(1)

        start = random.normal(random.keys(seed, len(x), x.device), (x[0].numel(),), dtype=x.dtype)
        value, vector = _extreme_pair(hessian, _unit(start), steps, tol)
    return value, vector.view_as(x)


def _extreme_pair(
    operator: Callable[[Tensor], Tensor], start: Float[Tensor, "b d"], steps: int, tol: float
) -> tuple[PerExample, Float[Tensor, "b d"]]:
    """Eigenvalue of largest magnitude (the positive one of an equal pair) and vector of a symmetric operator."""
    b, d = start.shape
    m = min(steps, d)
    basis = start.new_zeros(b, m, d)
    small = start.new_zeros(b, m, m)  # the operator on the basis: three diagonals
    basis[:, 0] = start
    for j in range(m):
        image = operator(basis[:, j])
        small[:, j, j] = (basis[:, j] * image).sum(1)
        # Orthogonalise twice: one pass leaves rounding errors that grow into spurious copies of eigenvalues.
        rest = _without(_without(image, basis[:, : j + 1]), basis[:, : j + 1])
        size = rest.norm(dim=1)
        values, vectors = torch.linalg.eigh(small[:, : j + 1, : j + 1])
        # The residual of a Ritz pair: the size of the rest times the last entry of its vector.
        doubt = size * vectors[:, -1, [0, -1]].abs().amax(1)
        going = doubt > tol * values.abs().amax(1)
        if j + 1 == m or not going.any():
            break
        # A finished example gets zero vectors from here on, which leave its result as it is.
        small[:, j, j + 1] = small[:, j + 1, j] = torch.where(going, size, 0)
        basis[:, j + 1] = torch.where(going[:, None], _unit(rest), 0)
    return _larger_end(values, vectors, basis[:, : j + 1])


def _without(v: Float[Tensor, "b d"], basis: Float[Tensor, "b m d"]) -> Float[Tensor, "b d"]:
    """v less its part along the basis vectors."""
    with without_autocast(v):
        parts = basis @ v[:, :, None]
        return v - (basis.transpose(1, 2) @ parts)[:, :, 0]


def _larger_end(
    values: Float[Tensor, "b m"], vectors: Float[Tensor, "b m m"], basis: Float[Tensor, "b m d"]
) -> tuple[PerExample, Float[Tensor, "b d"]]:
    # Eigenvalues are sorted, so the one of largest magnitude is at one of the two ends.
    upper = values[:, -1] >= -values[:, 0]
    value = torch.where(upper, values[:, -1], values[:, 0])
    weights = torch.where(upper[:, None], vectors[:, :, -1], vectors[:, :, 0])
    with without_autocast(basis):
        vector = (weights[:, None] @ basis)[:, 0]
    # For a zero operator every vector is right, but the weights may select zero ones: take the start.
    return value, torch.where(value[:, None] == 0, basis[:, 0], _unit(vector))


def _unit(v: Float[Tensor, "b d"]) -> Float[Tensor, "b d"]:
    """Each row over its length; a zero row stays zero."""
    size = v.norm(dim=1, keepdim=True)
    return v / torch.where(size > 0, size, 1)


@contextmanager
def _differentiable(x: Tensor, *, twice: bool, keep: bool) -> Iterator[Tensor]:
    """Turn grad mode on for the block, which gets the tensor to differentiate with respect to.

    That is x itself to `keep` its history, else a detached copy. With `twice` layers have a second derivative.
    """
    if torch.is_inference_mode_enabled():
        raise UserError(
            "Gradients cannot be taken inside torch.inference_mode(); use torch.no_grad() instead."
        )
    if x.is_inference():
        raise UserError("x was made inside torch.inference_mode(); make it under torch.no_grad() instead.")
    with torch.enable_grad():
        leaf = x if keep and x.requires_grad else x.detach().requires_grad_()
        if not twice:
            with CpuLayers(held=True):
                yield leaf
            return
        with sdpa_kernel(SDPBackend.MATH), made_for_second_derivatives(x):
            yield leaf


def _gradient(f: ScalarField, x: Tensor, create_graph: bool) -> Tensor:
    """Gradient of f, which must return one number per example, to x."""
    value = f(x)
    if value.shape != x.shape[:1]:
        raise UserError(
            f"f must return one number for each example, shape ({len(x)},), and returned shape "
            f"{tuple(value.shape)}; pick one logit for each example first."
        )
    result = None
    if value.requires_grad:
        (result,) = torch.autograd.grad(value.sum(), x, create_graph=create_graph, allow_unused=True)
    if result is None:
        raise _does_not_depend_on_x("The value of f")
    return result


def _along(slope: Tensor, x: Tensor, v: Tensor, create_graph: bool, *, again: bool = False) -> Tensor:
    """Derivative of slope . v to x, for the first time or `again`; zero if f is linear, whose slope is constant."""
    if not slope.requires_grad:
        return torch.zeros_like(x)
    (result,) = torch.autograd.grad(
        (slope * v).sum(), x, create_graph=create_graph, retain_graph=again or create_graph, allow_unused=True
    )
    return torch.zeros_like(x) if result is None else result


def _does_not_depend_on_x(what: str) -> UserError:
    return UserError(
        f"{what} does not depend on x, so there is no gradient; "
        "look for a detach(), a no_grad() or a rounding inside the model."
    )
