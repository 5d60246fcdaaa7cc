"""The loop on objectives simple enough to know the answer: steps, projections, starts, selection, early exit."""

from __future__ import annotations

from threading import Thread

import pytest
import torch
from nets import batch, net
from torch import Tensor, nn

import gyrograd as gg
from gyrograd.attacks import engine
from gyrograd.attacks.loop import Answer, Box, Search, Verdict, first_delta, search
from gyrograd.numerics import autograd
from gyrograd.numerics.balls import ball
from gyrograd.numerics.modes import freeze_weights
from gyrograd.numerics.random import keys
from gyrograd.numerics.second_order import all_layers

X = torch.full((2, 1, 3, 3), 0.5, dtype=torch.float64)
GRADIENT = gg.attribution("gradient")
ANYWHERE = torch.ones(2, dtype=torch.bool)


def run(
    how: Search,
    goal: Tensor,
    *,
    eps: float = 0.1,
    norm: str = "linf",
    kept=lambda z: ANYWHERE,
    slope=None,
    clean: Tensor | None = None,
):
    """Search for the point nearest to the goal; `clean` is what x itself is worth, if not its distance."""

    def value(z: Tensor) -> Tensor:
        return (z - goal).square().flatten(1).sum(1)

    def ask(z: Tensor, step: int, *, slope: bool, verdict: bool, among: Tensor | None = None) -> Answer:
        gradient = derivative(z, step) if slope else None
        return Answer(gradient, Verdict(value(z), kept(z)) if verdict else None)

    derivative = slope or (lambda z, _: 2 * (z - goal))
    first = Verdict(value(X) if clean is None else clean, ANYWHERE)
    return search(X, how, ball(norm, eps), Box(), ask, first, keys(0, 2))


def test_the_loop_walks_downhill_to_the_nearest_point_of_the_ball():
    goal = X + torch.linspace(-0.3, 0.3, 9).view(1, 1, 3, 3)
    found = run(Search(60, step_size=0.01), goal)
    assert ((found.delta - (goal - X).clamp(-0.1, 0.1)).abs() <= 0.0101).all()
    assert (found.steps == 60).all()


@pytest.mark.parametrize("stepper", ["sign", "steepest", "adam"])
def test_one_step_of_each_stepper_has_the_length_of_the_step_size(stepper):
    gradient = torch.linspace(1, 9, 9, dtype=torch.float64).view(1, 1, 3, 3).expand(2, 1, 3, 3)
    how = Search(1, step_size=0.02, stepper=stepper, selection="last", constraint="soft")
    delta = run(how, X, eps=1.0, norm="l2", slope=lambda z, _: gradient).delta
    wanted = -0.02 * (gradient / gradient[0].norm() if stepper == "steepest" else gradient.sign())
    torch.testing.assert_close(delta, wanted, rtol=1e-6, atol=1e-9)


def test_clipping_cuts_each_pixel_and_rescaling_the_whole():
    gradient = torch.linspace(1, 9, 9, dtype=torch.float64).view(1, 1, 3, 3).expand(2, 1, 3, 3)
    settings = {"step_size": 0.02, "selection": "last", "constraint": "soft"}
    ends = {
        name: run(Search(1, projection=name, stepper="steepest", **settings), X, eps=0.005, norm="linf").delta
        for name in ("clip", "rescale")
    }
    assert torch.equal(ends["clip"], ends["rescale"])  # all pixels alike: the same point
    slopes = {"slope": lambda z, t: gradient if t == 0 else gradient.roll(1, -1)}
    two = Search(2, stepper="adam", **settings)
    clip = run(two, X, eps=0.03, **slopes).delta
    whole = run(Search(**{**vars(two), "projection": "rescale"}), X, eps=0.03, **slopes).delta
    assert clip.abs().max() <= 0.03
    torch.testing.assert_close(whole.abs().amax((1, 2, 3)), torch.full((2,), 0.03, dtype=torch.float64))
    assert not torch.allclose(clip, whole)


def test_the_box_holds_where_the_ball_would_not():
    found = run(Search(40, step_size=0.05), X + 5, eps=2.0)
    assert torch.equal(X + found.delta, torch.ones_like(X))


def test_only_label_preserving_iterates_count_under_a_hard_constraint():
    goal = X + 0.1
    kept = lambda z: (z - X).flatten(1).amax(1) < 0.035  # noqa: E731
    hard = run(Search(10, step_size=0.01), goal, kept=kept)
    torch.testing.assert_close(hard.delta, torch.full_like(X, 0.03))
    last = run(Search(10, step_size=0.01, selection="last"), goal, kept=kept)
    torch.testing.assert_close(last.delta, torch.full_like(X, 0.03))
    soft = run(Search(10, step_size=0.01, constraint="soft"), goal, kept=kept)
    torch.testing.assert_close(soft.delta, torch.full_like(X, 0.1))


def test_the_best_iterate_is_kept_and_the_last_one_if_asked():
    uphill = lambda z, t: (2 if t < 3 else -2) * (z - X - 0.1)  # noqa: E731
    best = run(Search(8, step_size=0.01), X + 0.1, slope=uphill)
    last = run(Search(8, step_size=0.01, selection="last", constraint="soft"), X + 0.1, slope=uphill)
    torch.testing.assert_close(best.delta, torch.full_like(X, 0.03))
    torch.testing.assert_close(last.delta, torch.full_like(X, -0.02))


def test_x_itself_is_the_first_candidate():
    found = run(Search(3, step_size=0.01), X)  # x is the goal: every step leads away or stays
    assert torch.equal(found.delta, torch.zeros_like(X))
    assert found.stuck.all()
    elsewhere = run(Search(1, step_size=1e-4, start="random"), X)
    assert torch.equal(elsewhere.delta, torch.zeros_like(X))


def test_of_equal_values_the_first_found_is_kept():
    # Powers of two, so that the second and third iterate are equally far from the goal to the bit.
    goal = X + 3 / 128
    found = run(Search(2, step_size=1 / 64, stepper="sign"), goal, slope=lambda z, t: torch.full_like(z, -1))
    assert torch.equal(found.delta, torch.full_like(X, 1 / 64))
    as_good = torch.full((2,), 9 / 128**2, dtype=torch.float64)
    held = run(Search(2, step_size=1 / 64, stepper="sign"), goal, clean=as_good)
    assert torch.equal(held.delta, torch.zeros_like(X))


def test_an_example_that_reaches_stop_at_stops_and_the_others_go_on():
    goal = torch.stack([X[0] + 0.02, X[1] + 0.09])
    found = run(Search(20, step_size=0.01, stop_at=1e-9, selection="last", constraint="soft"), goal)
    assert found.steps.tolist() == [2, 9]
    torch.testing.assert_close(X + found.delta, goal)
    traced = run(Search(20, step_size=0.01, stop_at=2e-3, constraint="soft", trace=True), goal)
    assert traced.trace.shape == (21, 2)
    assert (traced.trace[traced.steps[0] :, 0] == traced.trace[-1, 0]).all()
    assert traced.trace[-1, 0] > 1e-4  # stopped short of the goal it would have reached


def test_restarts_begin_elsewhere_and_keep_the_best():
    trap = lambda z, _: torch.zeros_like(z)  # noqa: E731
    poor = {"slope": trap, "eps": 0.2, "clean": torch.full((2,), 9.0, dtype=torch.float64)}
    once = run(Search(1, start="random"), X + 0.05, **poor)
    often = run(Search(1, start="random", restarts=30, trace=True), X + 0.05, **poor)
    assert often.trace.shape == (60, 2)
    size = lambda found: (X + found.delta - X - 0.05).square().flatten(1).sum(1)  # noqa: E731
    torch.testing.assert_close(size(often), often.trace.amin(0))
    assert (size(often) < size(once)).all()


def test_restarts_after_a_clean_start_begin_at_random_points():
    found = run(Search(1, restarts=3, trace=True), X + 0.05, eps=0.2, slope=lambda z, _: torch.zeros_like(z))
    torch.testing.assert_close(found.trace[0], torch.full((2,), 9 * 0.05**2, dtype=torch.float64))
    assert all(len(values.unique()) == 3 for values in found.trace[::2].T)


def test_the_trace_holds_every_iterate_the_first_being_the_start():
    found = run(Search(5, step_size=0.01, trace=True), X + 0.1)
    wanted = torch.tensor([[9 * (0.1 - 0.01 * t) ** 2] * 2 for t in range(6)], dtype=torch.float64)
    torch.testing.assert_close(found.trace, wanted)


def test_a_zero_derivative_is_reported_as_stuck_and_one_that_is_not_finite_as_broken():
    rows = torch.tensor([True, False]).view(2, 1, 1, 1)
    stuck = run(Search(3), X + 0.1, slope=lambda z, _: torch.where(rows, 0.0, torch.ones_like(z)))
    assert stuck.stuck.tolist() == [True, False]
    broken = run(Search(3), X + 0.1, slope=lambda z, _: torch.where(rows, torch.nan, 2 * (z - X - 0.1)))
    assert broken.broken.tolist() == [True, False]
    assert torch.isfinite(broken.delta).all()
    assert broken.delta[1].abs().max() > 0


def test_noise_on_the_surface_spends_the_whole_budget():
    for norm in ("linf", "l2"):
        at = ball(norm, 0.01)
        sizes = at.norm(first_delta(X, "surface", at, keys(0, 2)))
        torch.testing.assert_close(sizes, torch.full((2,), 0.01, dtype=torch.float64))
        assert (at.norm(first_delta(X, "random", at, keys(0, 2))) < 0.01).all()


class Counting(nn.Module):
    def __init__(self, core: nn.Module) -> None:
        super().__init__()
        self.core, self.passes = core, 0

    def forward(self, x: Tensor) -> Tensor:
        self.passes += 1
        return self.core(x)


@pytest.mark.parametrize("name", ["targeted_map", "top_k", "manipulate", "pgd"])
def test_a_step_costs_one_forward_pass_of_a_smooth_model(name):
    x, target = batch(2)
    passes = []
    for steps in (3, 4):
        model = Counting(net("lenet"))
        gg.attack(name, steps=steps)(model, gg.attribution("gradient"), x, target)
        passes.append(model.passes)
    assert passes[1] - passes[0] == 1


def test_logits_are_not_those_of_passes_of_a_users_method_which_may_change_the_model():
    def ablated(model: nn.Module, x: Tensor, target: Tensor) -> Tensor:
        hook = next(model.children()).register_forward_hook(lambda _, inputs, out: 0 * out)
        z = x.requires_grad_()
        (map,) = torch.autograd.grad(model(z).gather(1, target[:, None]).sum(), z, allow_unused=True)
        hook.remove()
        return x if map is None else map

    x, target = batch(3)
    model = net("lenet")
    _, logits = engine.look(model, gg.attribution(ablated), x, target, graph=False)
    torch.testing.assert_close(logits, model(x))


def test_logits_of_a_new_model_are_not_those_of_its_trial():
    x, target = batch(2)  # so few that they are what a new model is tried on
    _, logits = engine.look(net("lenet"), GRADIENT, x.requires_grad_(), target, graph=True)
    (slope,) = torch.autograd.grad(logits.sum(), x)
    assert (slope != 0).any()


def test_logits_are_not_those_of_another_thread():
    x, target = batch(2)
    model = net("lenet")
    GRADIENT(model, x, target)  # it has been tried

    def together(model: nn.Module, x: Tensor, target: Tensor, *, create_graph: bool = False) -> Tensor:
        other = Thread(target=model, args=(x.detach(),))
        other.start()
        other.join()
        return GRADIENT(model, x, target, create_graph=create_graph)

    together.__module__ = (
        GRADIENT.__module__
    )  # as if two threads attacked this model through a method of this package
    z = x.clone().requires_grad_()
    _, logits = engine.look(model, together, z, target, graph=True)
    (slope,) = torch.autograd.grad(logits.sum(), z)
    assert (slope != 0).any()


def test_the_weights_require_gradients_again_after_an_attack():
    model = nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 3))
    frozen = next(model.parameters()).requires_grad_(False)
    with freeze_weights(model):
        assert not any(p.requires_grad for p in model.parameters())
    assert [p.requires_grad for p in model.parameters()] == [p is not frozen for p in model.parameters()]


def test_layers_made_for_second_derivatives_find_the_same_attack(monkeypatch):
    model = gg.model("lenet", activation="softplus", beta=3, image_size=8, seed=0)
    x, y = torch.rand(3, 3, 8, 8, generator=torch.Generator().manual_seed(0)), torch.arange(3)
    attack = gg.attack("targeted_map", eps=8 / 255, steps=3)
    for name in ("gradient", "guided_backprop", "lrp"):
        plain = attack(model, gg.attribution(name), x, y, seed=0)
        with monkeypatch.context() as patched:
            for place in (engine, autograd):
                patched.setattr(place, "made_for_second_derivatives", lambda _: all_layers())
            fast = attack(model, gg.attribution(name), x, y, seed=0)
        torch.testing.assert_close(fast.x, plain.x)
