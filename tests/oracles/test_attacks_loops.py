"""Published attacks written out image by image as their papers and code have them, against the package's loop."""

from __future__ import annotations

import pytest
import torch
from nets import CLASSES, batch, net
from torch import Tensor, nn

import gyrograd as gg

STEPS = 6


def saliency(model: nn.Module, x: Tensor, label: int, graph: bool = False) -> Tensor:
    """Sizes of the gradient of one logit, summed over channels: h w."""
    if not x.requires_grad:
        x = x.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(model(x[None])[0, label], x, create_graph=graph)
    return gradient.abs().sum(0)


def framed(side: int) -> Tensor:
    """1 on a border of 5/32 of the side, pixel by pixel."""
    width = round(side * 5 / 32)
    goal = torch.zeros(side, side, dtype=torch.float64)
    for i in range(side):
        for j in range(side):
            goal[i, j] = float(min(i, j, side - 1 - i, side - 1 - j) < width)
    return goal


def aam_loss(model: nn.Module, x: Tensor, label: int, clean_logits: Tensor, gamma: float) -> Tensor:
    h = saliency(model, x, label, graph=True)
    loss = 0.5 * ((h / h.max() - framed(x.shape[-1])) ** 2).sum()
    return loss + gamma * ((model(x[None])[0] - clean_logits) ** 2).mean()


def reference_aam(model: nn.Module, x: Tensor, label: int, eps: float) -> Tensor:
    """joo2023's code: torch's Adam on the image, rate 4 eps / iterations, clamps, last iterate, no label check."""
    clean_logits = model(x[None])[0].detach()
    moved = x.clone().requires_grad_()
    optimizer = torch.optim.Adam([moved], lr=4 * eps / STEPS)
    for _ in range(STEPS):
        (moved.grad,) = torch.autograd.grad(aam_loss(model, moved, label, clean_logits, 0.5), moved)
        optimizer.step()
        with torch.no_grad():
            moved.copy_(torch.max(torch.min(moved, x + eps), x - eps).clamp(x.min(), x.max()))
    return moved.detach()


def paper_aam(model: nn.Module, x: Tensor, label: int, eps: float) -> Tensor:
    """joo2023's problem: sign steps, of all iterates that keep the argmax the one nearest to the goal."""
    clean_logits = model(x[None])[0].detach()
    moved, best, best_loss = x.clone(), x, float("inf")
    for step in range(STEPS + 1):
        moved = moved.detach().requires_grad_()
        loss = aam_loss(model, moved, label, clean_logits, 0.0)
        if model(moved[None])[0].argmax() == clean_logits.argmax() and float(loss.detach()) < best_loss:
            best, best_loss = moved.detach().clone(), float(loss.detach())
        if step < STEPS:
            (gradient,) = torch.autograd.grad(loss, moved)
            moved = moved.detach() - 2.5 * eps / STEPS * gradient.sign()
            moved = torch.max(torch.min(moved, x + eps), x - eps).clamp(0, 1)
    return best


def paper_top_k(model: nn.Module, x: Tensor, eps: float, k: int, recomputed: bool) -> Tensor:
    """wang2020's CIFAR code: half a grey level a step, the whole delta scaled back, pixels clipped."""
    clean = model(x[None])[0].argmax()
    old = saliency(model, x, int(clean)).detach().flatten()
    top = sorted(range(old.numel()), key=lambda i: -float(old[i]))[:k]
    moved, best, lowest = x.clone(), x, float("inf")
    for step in range(STEPS + 1):
        moved = moved.detach().requires_grad_()
        h = saliency(model, moved, int(clean), graph=True).flatten()
        mass = sum(h[i] for i in top) / h.sum()
        if model(moved[None])[0].argmax() == clean and float(mass.detach()) < lowest:
            best, lowest = moved.detach().clone(), float(mass.detach())
        if step < STEPS:
            if recomputed:
                mass = sum(sorted(h, key=lambda v: -float(v.detach()))[:k]) / h.sum()
            (gradient,) = torch.autograd.grad(mass, moved)
            delta = moved.detach() - 0.5 / 255 * gradient.sign() - x
            if delta.abs().max() > eps:
                delta = delta * (eps / delta.abs().max())
            moved = (x + delta).clamp(0, 1)
    return best


def madry(model: nn.Module, x: Tensor, label: int, eps: float, step: float, norm: str) -> Tensor:
    """Projected gradient ascent on the cross-entropy, best iterate."""
    moved, best, highest = x.clone(), x, -float("inf")
    for t in range(STEPS + 1):
        moved = moved.detach().requires_grad_()
        logits = model(moved[None])[0]
        loss = logits.exp().sum().log() - logits[label]
        if float(loss.detach()) > highest:
            best, highest = moved.detach().clone(), float(loss.detach())
        if t < STEPS:
            (gradient,) = torch.autograd.grad(loss, moved)
            direction = gradient.sign() if norm == "linf" else gradient / (gradient**2).sum().sqrt()
            delta = moved.detach() + step * direction - x
            if norm == "linf":
                delta = delta.clamp(-eps, eps)
            elif (delta**2).sum().sqrt() > eps:
                delta = delta * (eps / (delta**2).sum().sqrt())
            moved = (x + delta).clamp(0, 1)
    return best


def one_by_one(attack, x: Tensor, target: Tensor) -> Tensor:
    return torch.stack([attack(image, int(label)) for image, label in zip(x, target, strict=True)])


SMOOTH = pytest.mark.parametrize("structure", ["lenet", "residual"])


@SMOOTH
def test_the_reference_protocol_of_targeted_map_is_adam_as_in_the_code_of_joo2023(structure):
    x, target = batch(3, seed=1)
    model, eps = net(structure), 4 / 255
    slow = one_by_one(lambda image, label: reference_aam(model, image, label, eps), x, target)
    attack = gg.attack("aam", eps=eps, steps=STEPS, protocol="reference")
    fast = attack(model, gg.attribution("gradient"), x, target)
    torch.testing.assert_close(fast.x, slow, rtol=0, atol=1e-9)
    assert (fast.budget_used > 0.5).all()


@SMOOTH
def test_the_paper_protocol_of_targeted_map_is_the_best_label_preserving_sign_iterate(structure):
    x, target = batch(4, seed=2)
    model, eps = net(structure), 0.06
    slow = one_by_one(lambda image, label: paper_aam(model, image, label, eps), x, target)
    fast = gg.attack("aam", eps=eps, steps=STEPS, protocol="paper")(
        model, gg.attribution("gradient"), x, target
    )
    torch.testing.assert_close(fast.x, slow, rtol=0, atol=1e-9)


@pytest.mark.parametrize("mask", ["fixed", "recomputed"])
def test_the_paper_protocol_of_top_k_is_the_cifar_code_of_wang2020(mask):
    x, target = batch(3, seed=3)
    model, eps = net("residual"), 1.7 / 255
    slow = one_by_one(lambda image, _: paper_top_k(model, image, eps, 5, mask == "recomputed"), x, target)
    attack = gg.attack("top_k", eps=eps, steps=STEPS, k=5, mask=mask, protocol="paper")
    fast = attack(model, gg.attribution("gradient"), x, target)
    torch.testing.assert_close(fast.x, slow, rtol=0, atol=1e-9)
    assert torch.equal(fast.target, model(x).argmax(1))
    assert (fast.x != x).any()


@pytest.mark.parametrize(("norm", "eps", "step"), [("linf", 8 / 255, 2 / 255), ("l2", 0.5, 0.2)])
def test_pgd_is_projected_gradient_ascent_on_the_loss(norm, eps, step):
    x, target = batch(3, seed=4)
    model = net("residual")
    slow = one_by_one(lambda image, label: madry(model, image, label, eps, step, norm), x, target)
    attack = gg.attack("pgd", eps=eps, norm=norm, steps=STEPS, step_size=step)
    torch.testing.assert_close(attack.images(model, x, target), slow, rtol=0, atol=1e-9)
    torch.testing.assert_close(
        attack(model, gg.attribution("gradient"), x, target).x, slow, rtol=0, atol=1e-9
    )


def test_the_two_masks_of_top_k_lead_to_different_images():
    x, target = batch(2, seed=3)
    fixed, moving = (
        gg.attack("top_k", steps=STEPS, k=5, mask=mask)(
            net("residual"), gg.attribution("gradient"), x, target
        )
        for mask in ("fixed", "recomputed")
    )
    assert not torch.equal(fixed.x, moving.x)
    assert (fixed.value <= moving.value).float().mean() >= 0.5


def test_every_label_is_tried_in_these_loops():
    labels = torch.cat([batch(4, seed=seed)[1] for seed in range(1, 5)])
    assert len(labels.unique()) == CLASSES
