"""`auto`: it minimises the column that is reported, and does not believe a map whose derivative hides what moves it."""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise

import pytest
import torch
from attacked_nets import EPS, pictures, trained
from nets import batch, net
from torch import Tensor, nn

import gyrograd as gg
from gyrograd.attacks import AttackResult, engine, twin
from gyrograd.attacks import auto as driver
from gyrograd.attacks.auto import Auto, Duel, Evaluation, soften
from gyrograd.attacks.engine import AttackBatch, Economy, asker
from gyrograd.attacks.looks import look, shared_clean_looks
from gyrograd.attacks.loop import Answer, Box, Search, Verdict, search
from gyrograd.attacks.objectives import Scene, overlap_with, soft_overlap
from gyrograd.attacks.squares import try_squares
from gyrograd.attacks.twin import Guide, guide_for
from gyrograd.metrics import MapSimilarity, RankCorrelation, TopKIntersection
from gyrograd.models.activations import with_activation
from gyrograd.numerics.balls import ball
from gyrograd.numerics.maps import top_k_mask
from gyrograd.numerics.random import keys

GRADIENT = gg.attribution("gradient")


@cache
def attacked(column: str = "top_kept", steps: int = 6):
    x, y = pictures("test", 12)
    return Auto(eps=(2 / 255, EPS), steps=steps, column=column)(trained(), GRADIENT, x, y, seed=0)


@pytest.mark.parametrize(("fraction", "reduction"), [(0.1, "abs_sum"), (0.25, "max_abs")])
def test_the_value_is_the_share_of_the_top_that_the_metric_counts(fraction, reduction):
    x, y = pictures("test", 4)
    hit = Auto(eps=EPS, steps=2, top_fraction=fraction, reduce=reduction)(trained(), GRADIENT, x, y)
    measure = TopKIntersection(k=round(fraction * 256), reduce=reduction)
    assert torch.equal(hit.value, measure(hit.map_clean, hit.map))
    assert (hit.start == 1).all()
    assert hit.value.mean() < 0.6


def test_the_other_columns_are_their_metrics_too():
    x, y = pictures("test", 4)
    for column, measure in (("cosine", MapSimilarity()), ("rank_correlation", RankCorrelation())):
        hit = Auto(eps=EPS, steps=4, column=column)(trained(), GRADIENT, x, y)
        torch.testing.assert_close(hit.value, measure(hit.map_clean, hit.map), rtol=1e-4, atol=1e-5)
        assert hit.value.mean() < hit.start.mean() - 0.2


def test_each_column_is_lowest_under_the_attack_aimed_at_it():
    at_top, at_cosine = attacked()[1], attacked("cosine")[1]
    kept, alike = TopKIntersection(k=26), MapSimilarity()
    assert kept(at_top.map_clean, at_top.map).mean() < kept(at_cosine.map_clean, at_cosine.map).mean()
    assert alike(at_cosine.map_clean, at_cosine.map).mean() < alike(at_top.map_clean, at_top.map).mean()


def test_twenty_steps_are_stronger_than_thirty_of_the_matched_attack():
    x, y = pictures("test", 12)
    named = gg.attack("top_k", k=26, judged_by="overlap", eps=2 / 255, steps=30)(trained(), GRADIENT, x, y)
    assert attacked(steps=20)[0].value.mean() < named.value.mean() - 0.02


def test_the_column_falls_with_the_radius_on_every_image_and_the_prediction_stays():
    near, far = attacked()
    assert (far.value <= near.value).all()
    assert (near.value <= near.start).all()
    assert near.prediction_kept.all()
    assert far.prediction_kept.all()
    assert far.value.mean() < near.value.mean() - 0.05


def test_images_that_are_settled_at_a_radius_stay_as_they_are_at_larger_ones():
    x, y = pictures("test", 12)
    near, far = Auto(eps=(2 / 255, EPS), steps=6, settled=0.5)(trained(), GRADIENT, x, y, seed=0)
    settled = near.value <= 0.5
    assert 0 < settled.sum() < 12
    assert torch.equal(far.x[settled], near.x[settled])
    assert torch.equal(far.steps[settled], near.steps[settled])
    assert (far.value[~settled] < near.value[~settled]).any()


def test_within_a_search_an_image_is_left_alone_once_it_is_settled():
    x, y = pictures("test", 12)
    hits = {
        share: Auto(eps=EPS, steps=6, settled=share)(trained(), GRADIENT, x, y, seed=0)
        for share in (0.0, 0.5)
    }
    short, whole = hits[0.5], hits[0.0]
    for share, hit in hits.items():  # six steps are those of the main search
        assert ((hit.value <= share) | (hit.steps >= 6)).all()
    assert (short.steps < 6).sum() > (whole.steps < 6).sum()
    assert short.value.mean() > whole.value.mean()


def test_a_search_that_begins_where_another_column_ended_goes_on_from_there():
    x, y = pictures("test", 12)
    at_top = attacked()[1]
    warm = {}
    for column, by_hand in (("cosine", MapSimilarity()), ("insertion", None)):
        attack = Auto(eps=EPS, steps=2, column=column)
        (warm[column],) = attack.every_radius(trained(), GRADIENT, x, y, seed=0, begin=at_top)
        if by_hand is not None:
            begun = by_hand(at_top.map_clean, at_top.map)
        else:
            begun = attack.curve().curve_of_map(trained(), at_top.map, x, y).mean(1)
        assert (warm[column].value <= begun + 1e-6).all()
        assert warm[column].value.mean() < begun.mean() - 0.005
        assert warm[column].prediction_kept.all()
        assert (warm[column].linf <= EPS + 1e-6).all()
    cold = Auto(eps=EPS, steps=2, column="cosine")(trained(), GRADIENT, x, y, seed=0)
    assert warm["cosine"].value.mean() < cold.value.mean() - 0.03


def test_what_a_search_begins_with_is_a_candidate_and_has_been_challenged(monkeypatch):
    (x, target), model = batch(2), net("lenet")
    (near,) = Auto(eps=(0.03,), steps=3)(model, GRADIENT, x, target)
    for column in ("top_kept", "insertion"):
        calls = watched(monkeypatch)
        (hit,) = Auto(eps=(0.03,), steps=8, column=column).every_radius(
            model, GRADIENT, x, target, begin=near
        )
        ((how, _, begin, _),) = calls  # the main search alone
        torch.testing.assert_close(begin, near.x - x)
        assert how.step_size == pytest.approx(0.5 * 0.03)
        at_begin = Auto(column=column).aim(replace(scene_of(model, x, target), model=model)).judge(near.map)
        assert (hit.value <= at_begin + 1e-12).all()


def astray(monkeypatch) -> None:
    """Every search ends where it knows no better than x."""

    def fails(x, *rest):
        return replace(search(x, *rest), delta=torch.zeros_like(x), last=torch.zeros_like(x))

    monkeypatch.setattr(driver, "search", fails)


def test_a_search_that_finds_nothing_better_returns_what_it_began_with(monkeypatch):
    (x, target), model = batch(2), net("lenet")
    near = Auto(eps=0.03, steps=8)(model, GRADIENT, x, target)
    astray(monkeypatch)
    for column in ("top_kept", "cosine"):
        auto = Auto(eps=0.03, steps=2, column=column)
        (hit,) = auto.every_radius(model, GRADIENT, x, target, begin=near)
        assert (hit.value < hit.start).all()
        torch.testing.assert_close(hit.x, near.x)
        assert torch.equal(hit.map, near.map)
        assert hit.prediction_kept.all()


def test_a_beginning_that_lost_its_label_is_no_candidate(monkeypatch):
    (x, target), model = pictures("test", 4), trained()
    other = x.roll(1, 0)
    lost = gg.predict(model, other) != gg.predict(model, x)
    assert lost.any()
    astray(monkeypatch)
    auto = Auto(eps=1.0, steps=2)
    (hit,) = auto.every_radius(model, GRADIENT, x, target, begin=found_at(other, model, x, target))
    assert torch.equal(hit.x[lost], x[lost])
    assert hit.prediction_kept.all()


def found_at(images: torch.Tensor, model, x: torch.Tensor, target: torch.Tensor) -> AttackResult:
    """A result that holds these images."""
    hit = gg.attack("random", eps=0.03)(model, GRADIENT, x, target)
    return replace(hit, x=images, map=GRADIENT(model, images, target))


def test_a_cosine_that_begins_at_x_itself_begins_at_random_where_it_has_a_slope(monkeypatch):
    (x, target), model, calls = batch(2), net("lenet"), watched(monkeypatch)
    first = torch.stack([x[0], (x[1] + 0.05).clamp(max=1)])
    auto = Auto(eps=(0.1,), steps=3, column="cosine")
    (hit,) = auto.every_radius(model, GRADIENT, x, target, begin=found_at(first, model, x, target))
    ((_, _, begin, _),) = calls
    assert (begin[0] != 0).all()
    torch.testing.assert_close(begin[1], first[1] - x[1])
    assert (hit.value < 0.99).all()


def test_a_column_that_takes_passes_of_its_own_is_judged_in_the_last_third(monkeypatch):
    (x, target), model, rows = batch(2), net("lenet"), []
    judge = driver.in_insertion_order

    def counted(scene: Scene, curve: object):
        found = judge(scene, curve)
        return lambda map, *further: rows.append(len(map)) or found(map, *further)

    monkeypatch.setattr(driver, "in_insertion_order", counted)
    Auto(eps=0.03, steps=3, column="insertion")(model, GRADIENT, x, target)
    assert len(rows) <= 1 + 1 + 2  # at x, at the last step but one, and what is offered


def test_more_steps_find_more():
    assert attacked(steps=20)[1].value.mean() < attacked()[1].value.mean() - 0.02


def test_the_main_search_follows_a_twin_that_grows_sharper(monkeypatch):
    """A soft twin leads across kinks, a sharp one ends where the model's own map moves.

    Whether that finds more depends on the net (results/attacks/auto.md), so this is about the twin alone.
    """
    betas = []

    def watch(guide, step, steps):
        set_step(guide, step, steps)
        betas.append(next(m.beta for m in guide.model.modules() if isinstance(m, nn.Softplus)))

    set_step = twin.Guide.set_step
    monkeypatch.setattr(twin.Guide, "set_step", watch)
    x, y = pictures("test", 3)
    hit = Auto(eps=EPS, steps=6)(trained(), GRADIENT, x, y, seed=0)
    low, high = twin.GROWTH
    assert betas[:6] == pytest.approx([low * (high / low) ** (step / 5) for step in range(6)])
    assert any(f"beta={low:g} to {high:g}" in flag for flag in hit.flags)


def test_a_growing_twin_finds_the_same_whatever_was_searched_before():
    """Its sharpness is left over from the last step, and the guide is shared between attacks."""
    x, y = pictures("test", 4)
    attack = Auto(eps=EPS, steps=4)
    with shared_clean_looks():
        alone = attack(trained(), GRADIENT, x[2:], y[2:], seed=keys(0, 4, x.device)[2:])
        attack(trained(), GRADIENT, x[:2], y[:2], seed=0)
        again = attack(trained(), GRADIENT, x[2:], y[2:], seed=keys(0, 4, x.device)[2:])
    assert torch.equal(alone.x, again.x)


def test_whether_a_map_has_a_derivative_is_asked_of_a_soft_twin():
    """A sharp one, as the last step leaves it, has none away from its kinks."""
    x, y = batch(2)
    model = (
        nn.Sequential(nn.Flatten(), nn.Linear(x[0].numel(), 8), nn.ReLU(), nn.Linear(8, 5)).double().eval()
    )
    nn.init.constant_(model[1].bias, 3.0)
    guide = guide_for(model, x, (0.1, 1e4))
    guide.set_step(2, 3)
    map, logits = look(model, GRADIENT, x, y, graph=False)
    scene = Scene(x, y, map, logits, None, model)
    streams = keys(0, 2, x.device)
    under = AttackBatch(model, GRADIENT, GRADIENT, guide, guide, Box(), scene, scene, streams)
    assert not under.blind(torch.arange(2)).any()


def test_the_search_for_the_top_pixels_pushes_them_down_and_the_next_ones_up():
    """At the clean map, where a cosine has no slope at all."""
    map = torch.rand(2, 3, 6, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    auto, scene = Auto(), Scene(map, torch.tensor([0, 1]), map, map.new_zeros(2, 2))
    leaf = map.clone().requires_grad_()
    (slope,) = torch.autograd.grad(auto.aim(scene).descend(leaf, scene.logits, scene.x).sum(), leaf)
    top = auto.top(scene)[:, None].expand_as(map)
    next_best = top_k_mask(map.sum(1), 8)[:, None].expand_as(map) & ~top
    assert (slope[top] > 0).all()
    assert (slope[next_best] < 0).all()


def test_the_lowest_of_all_that_was_offered_is_what_comes_back(monkeypatch):
    offered = offers(monkeypatch)
    x, target = batch(3)
    hit = Auto(eps=0.03, steps=8)(net("lenet"), Rounded(), x, target)
    lowest = hit.start.clone()
    for _, rows, _, judged in offered:
        lowest[rows] = torch.minimum(lowest[rows], judged.value)
    assert {"noise", "transfer", "squares"} <= {name for name, *_ in offered}
    assert torch.equal(hit.value, lowest)
    mains = torch.stack(
        [judged.value for name, _, _, judged in offered if name == "main" and len(judged.value)]
    )
    assert (lowest < mains.amin(0)).any()


def watched(monkeypatch) -> list:
    """A list that receives every search: (its settings, images, where it began, radius)."""
    calls = []

    def spy(x, how, ball_, box, ask, clean, streams, begin=None):
        calls.append((how, x, begin, float(ball_.eps)))
        return search(x, how, ball_, box, ask, clean, streams, begin)

    monkeypatch.setattr(driver, "search", spy)
    return calls


def spied(monkeypatch, name: str = "lenet", **settings):
    """The searches of a run on two images, and its results."""
    calls, (x, target) = watched(monkeypatch), batch(2)
    return calls, Auto(**{"steps": 3} | settings)(net(name), GRADIENT, x, target)


def test_a_larger_radius_begins_where_the_smaller_one_ended(monkeypatch):
    calls, (near, _) = spied(monkeypatch, eps=(0.02, 0.03))
    began = {eps: begin for _, _, begin, eps in reversed(calls)}
    assert began[0.02] is None
    torch.testing.assert_close(began[0.03], (near.x - near.x_clean) * 1.5)


@pytest.mark.parametrize(("name", "first"), [("lenet", 2.0), ("functional_relu", 1.0)])
def test_the_first_step_from_x_is_shorter_through_a_twin(monkeypatch, name, first):
    calls, _ = spied(monkeypatch, name, eps=(0.02, 0.03))
    begun = {eps: how.step_size / eps for how, _, _, eps in reversed(calls)}
    assert begun == pytest.approx({0.02: first, 0.03: 0.5})


def test_radii_come_back_in_the_order_they_were_given():
    x, target = batch(2)
    hits = Auto(eps=[0.03, 0.0, 0.01], steps=2)(net("lenet"), GRADIENT, x, target)
    assert [hit.eps for hit in hits] == [0.03, 0.0, 0.01]
    assert torch.equal(hits[1].x, x)
    assert (hits[2].linf <= 0.01 + 1e-9).all()


def test_images_whose_column_can_fall_no_further_are_left_alone(monkeypatch):
    calls, hits = spied(monkeypatch, eps=(0.02, 0.03), top_fraction=0.01)
    near, far = hits
    done = near.value == 0
    assert done.any()
    assert [len(x) for _, x, _, eps in calls if eps == 0.03] == [n for n in (int((~done).sum()),) if n]
    assert torch.equal(far.steps[done], near.steps[done])
    assert torch.equal(far.x[done], near.x[done])


def test_no_challenger_searches_images_whose_column_can_fall_no_further(monkeypatch):
    calls, hit = spied(monkeypatch, eps=0.02, top_fraction=0.01, steps=2 * driver.CHALLENGE)
    assert (hit.value == 0).all()
    assert len(calls) == 1
    assert hit.beaten_by == {}


def test_within_a_search_nothing_is_asked_about_an_image_that_is_done():
    """The third settles at step 1 and the first at step 2; a trace, which has a column for each image, asks on."""
    settles, asked = torch.tensor([2, 9, 1]), []
    x = X[:1].expand(3, -1, -1, -1)
    clean = Verdict(x.new_ones(3), x.new_ones(3).bool())

    def ask(z: Tensor, step: int, *, slope: bool, verdict: bool, among: Tensor | None = None) -> Answer:
        asked.append([0, 1, 2] if among is None else among.nonzero()[:, 0].tolist())
        return Answer(torch.ones_like(z), Verdict((settles > step).double(), clean.kept))

    def steps(**further) -> list[int]:
        asked.clear()
        how = Search(4, 0.1, stop_at=0.0, open_end=True, **further)
        return search(x, how, ball("linf", 1.0), Box(), ask, clean, keys(0, 3)).steps.tolist()

    assert steps() == [2, 4, 1]
    assert asked == [[0, 1, 2], [0, 1, 2], [0, 1], [1]]
    assert steps(trace=True) == [2, 4, 1]
    assert asked == [[0, 1, 2]] * 4


@pytest.mark.parametrize("name", ["lenet", "functional_relu"])
def test_what_is_answered_about_some_images_is_what_is_answered_about_all(name):
    (x, target), model = batch(4), net(name)
    plan, among = Auto(eps=0.1, steps=2).plan(), torch.tensor([True, False, True, False])
    ask, _ = asker(plan, model, GRADIENT, guide_for(model, x, "auto"), scene_of(model, x, target))
    every, some = (ask(x + 0.01, 1, slope=True, verdict=True, **rows) for rows in ({}, {"among": among}))
    for one, two in (
        (every.gradient, some.gradient),
        (every.objective, some.objective),
        (every.verdict.value, some.verdict.value),
        (every.verdict.kept, some.verdict.kept),
    ):
        torch.testing.assert_close(one[among], two[among])
    assert not some.gradient[~among].any()
    assert some.verdict.value[~among].isinf().all()
    assert not some.verdict.kept[~among].any()


def test_a_step_takes_as_many_images_per_pass_as_fit_and_answers_the_same(monkeypatch):
    (x, target), model, sizes = batch(5), net("lenet"), []
    original = engine.derivative

    def counted(model: nn.Module, attribution: object, x: Tensor, *rest: object, **how: object) -> object:
        sizes.append(len(x))
        return original(model, attribution, x, *rest, **how)

    monkeypatch.setattr(engine, "derivative", counted)
    plan, mean = Auto(eps=0.1, steps=4).plan(), gg.attribution("smoothgrad", draws=4)
    scene = Scene(x, target, mean(model, x, target), model(x).detach())
    among = torch.tensor([True, False, True, True, True])

    def answer(max_rows: int, step: int, **rows: Tensor) -> Answer:
        economy = Economy(coarse=gg.attribution("gradient"), coarse_steps=1)
        ask, _ = asker(
            plan,
            model,
            mean,
            Guide(model),
            scene,
            max_rows=max_rows,
            start=x.new_tensor([5.0, 4, 3, 2, 1]),
            begins_at_x=True,
            economy=economy,
        )
        return ask(x + 0.01, step, slope=True, verdict=True, **rows)

    # At step 0 the map is the coarse one, which has one pass per image; the mean has four.
    for step, max_rows, parts in ((0, 8, [5]), (0, 2, [2, 2, 1]), (2, 8, [2, 2, 1])):
        sizes.clear()
        few, all = answer(max_rows, step), answer(100, step)
        assert sizes == [*parts, 5]
        for one, two in ((few.gradient, all.gradient), (few.objective, all.objective)):
            torch.testing.assert_close(one, two)
        torch.testing.assert_close(few.verdict.value, all.verdict.value)
        assert few.verdict.kept.equal(all.verdict.kept)
    sizes.clear()
    answer(8, 2, among=among)
    assert sizes == [2, 2]  # the images that are left fill the passes


def test_an_image_that_another_search_moved_is_not_tested_for_a_derivative(monkeypatch):
    (x, target), model, asked = batch(2), net("lenet"), []
    monkeypatch.setattr(
        engine.AttackBatch,
        "blind",
        lambda _, rows: asked.append(rows.tolist()) or torch.zeros(len(rows)).bool(),
    )
    # Of a range of 2 the cosine falls by less than a quarter, so that the images seem not to have moved.
    auto = Auto(eps=0.001, steps=2, column="cosine")
    auto.every_radius(model, GRADIENT, x, target, begin=found_at(x, model, x, target))
    assert asked == [[0, 1]]
    moved = x.clone()
    moved[1] = (x[1] + 0.001).clamp(0, 1)
    auto.every_radius(model, GRADIENT, x, target, begin=found_at(moved, model, x, target))
    assert asked == [[0, 1], [0]]


def test_a_short_search_takes_more_steps_where_it_begins_at_x(monkeypatch):
    """At the smallest of several radii; a long one has enough everywhere."""
    radii = {0.02, 0.03, 0.05}
    at_the_smallest = {1: 1, 2: 3, 3: 4, 7: 10, 9: 10, 11: 11, 20: 20}
    assert {steps: driver.steps_at(steps, radii, 0.02) for steps in at_the_smallest} == at_the_smallest
    assert all(driver.steps_at(steps, radii, 0.03) == steps for steps in at_the_smallest)
    assert driver.steps_at(7, {0.02}, 0.02) == 7
    calls, _ = spied(monkeypatch, eps=(0.03, 0.0, 0.02))
    assert [(eps, how.steps) for how, _, _, eps in calls] == [(0.02, 4), (0.03, 3)]


def test_attacks_on_the_same_images_look_at_them_once_where_clean_looks_are_shared():
    """And only there; other attributions, classes and images are looked at afresh, with the same results."""
    x, target = batch(2)
    model, calls = net("lenet"), []

    def counted(model: nn.Module, z: Tensor, labels: Tensor, *, create_graph: bool = False) -> Tensor:
        if not create_graph and torch.equal(z, x):
            calls.append(len(z))
        return GRADIENT(model, z, labels, create_graph=create_graph)

    other = (target + 1) % 5
    run = Auto(eps=0.02, steps=1)
    apart = []
    for labels in (target, other):
        apart += [run(model, counted, x, labels), run(model, gg.attribution("xgrad"), x, labels)]
    alone = len(calls)
    with shared_clean_looks():
        together = []
        for labels in (target, other):
            together += [run(model, counted, x, labels), run(model, gg.attribution("xgrad"), x, labels)]
        once = len(calls) - alone
        run(model, counted, x, target)
        assert len(calls) - alone == once
    assert alone == once == 2
    for one, two in zip(apart, together, strict=True):
        assert torch.equal(one.map_clean, two.map_clean)
        assert torch.equal(one.x, two.x)
    run(model, counted, x, target)
    assert len(calls) == alone + once + 1


def test_the_transpose_of_images_shares_their_memory_and_not_their_maps():
    x, target = batch(2)
    model, run = net("lenet"), gg.attack("random", eps=0.02)
    with shared_clean_looks():
        run(model, GRADIENT, x, target)
        turned = run(model, GRADIENT, x.mT, target)
    torch.testing.assert_close(turned.map_clean, GRADIENT(model, x.mT, target))


def test_an_audit_asks_once_for_the_guide_of_a_model_and_whether_a_map_has_a_derivative(monkeypatch):
    x, target = batch(2)
    guided, calls = [], []

    def counted(model: nn.Module, z: Tensor, labels: Tensor, *, create_graph: bool = False) -> Tensor:
        calls.append(create_graph)
        return GRADIENT(model, z, labels, create_graph=create_graph)

    def guide(model, *given):
        guided.append(model)
        return guide_for(model, *given)

    monkeypatch.setattr("gyrograd.attacks.engine.guide_for", guide)
    models, images = [net("lenet"), net("lenet")], [(x, target), (x.flip(0), target.flip(0))]

    def attack_all():
        return [Auto(eps=0.02, steps=1)(model, counted, *of) for model in models for of in images]

    apart = attack_all()
    assert len(guided) == 4
    alone = len(calls)
    with shared_clean_looks():
        together = attack_all()
    assert guided[4:] == models
    assert len(calls) - alone == alone - 2 * len(
        models
    )  # a map and one with its graph, for the second images
    assert all(torch.equal(one.x, two.x) for one, two in zip(apart, together, strict=True))


# The searches it is made of ------------------------------------------------------------------------------------------

X = torch.full((2, 1, 4, 4), 0.5, dtype=torch.float64)


def walk(gradients: list[Tensor], how: Search) -> Tensor:
    """The steps of a search that is handed these gradients, `n b c h w`."""
    seen = []

    def ask(z: Tensor, step: int, *, slope: bool, verdict: bool) -> Answer:
        seen.append(z - X)
        gradient = gradients[step].expand_as(z) if slope else None
        return Answer(gradient, Verdict(z.new_zeros(2), z.new_ones(2).bool()))

    search(X, how, ball("linf", 1.0), Box(), ask, Verdict(X.new_zeros(2), X.new_ones(2).bool()), keys(0, 2))
    return torch.stack([b - a for a, b in pairwise(seen)])


def test_steps_with_decay_shrink_on_a_straight_line():
    steps = walk([torch.tensor(1.0)] * 4, Search(4, 0.1, "momentum", decay=True))
    torch.testing.assert_close(steps[:, 0, 0, 0, 0], -torch.tensor([0.1, 0.075, 0.05, 0.025]).double())


def test_momentum_remembers_a_large_slope_when_a_small_one_points_back():
    """Slopes count by their share of the image's, half of the last sum stays: 0.5 * 0.85 - 0.2 is still uphill."""
    first, second = torch.full((4, 4), 0.01), torch.full((4, 4), 0.8 / 15)
    first[0, 0], second[0, 0] = 0.85, -0.2
    steps = walk([first, second], Search(2, 0.1, "momentum"))
    assert (steps[:, :, 0, 0, 0] < 0).all()
    assert (walk([first, second], Search(2, 0.1, "steepest"))[1, :, 0, 0, 0] > 0).all()


def test_a_step_along_the_gradient_keeps_its_direction():
    slope = torch.linspace(-2.0, 1.0, 16).view(4, 4)
    torch.testing.assert_close(walk([slope], Search(1, 0.1, "along"))[0, 0, 0], -0.05 * slope.double())


def test_an_open_end_hands_back_the_last_iterate_and_how_far_the_objective_fell():
    lost = torch.inf  # what an image reaches without its label does not count
    objectives = [torch.tensor([3.0, 3.0]), torch.tensor([1.0, 9.0]), torch.tensor([2.0, lost])]

    def ask(z: Tensor, step: int, *, slope: bool, verdict: bool) -> Answer:
        assert slope
        kept = torch.tensor([True, step < 2])
        return Answer(torch.ones_like(z), Verdict(z.new_zeros(2), kept), objectives[step])

    clean = Verdict(X.new_ones(2), X.new_ones(2).bool())
    found = search(X, Search(3, 0.1, open_end=True), ball("linf", 1.0), Box(), ask, clean, keys(0, 2))
    torch.testing.assert_close(found.last, torch.full_like(X, -0.3))
    torch.testing.assert_close(found.fall, torch.tensor([2 / 3, 0.0]))


def test_early_iterates_are_judged_only_where_that_costs_nothing():
    """Through a twin the verdict on the model is a pass of its own: the first two thirds of the steps go without."""
    (x, target), looks = batch(2), []

    def counted(model: nn.Module, z: Tensor, labels: Tensor, *, create_graph: bool = False) -> Tensor:
        looks.append(create_graph)
        return GRADIENT(model, z, labels, create_graph=create_graph)

    for model, judged in ((net("lenet"), 0), (net("functional_relu"), 2)):
        looks.clear()
        case = Auto(eps=0.1, steps=6).plan()
        how = replace(case.search, start="clean", open_end=True, judge_from=4)
        ask, clean = asker(
            replace(case, search=how), model, counted, guide_for(model, x, "auto"), scene_of(model, x, target)
        )
        search(x, how, ball("linf", 0.1), Box(), ask, clean, keys(0, 2))
        assert looks.count(False) == judged
        assert looks.count(True) == 6


def test_the_objective_of_an_image_that_lost_its_label_does_not_count():
    """Whether the model or, where it is not asked, its twin says so."""
    (x, target), model = batch(2), net("functional_relu")
    scene = scene_of(model, x, target)
    other = torch.stack([scene.logits[0], -scene.logits[1]])  # the second image was of another class before
    plan = Auto(eps=0.1, steps=2).plan()
    ask, _ = asker(plan, model, GRADIENT, guide_for(model, x, "auto"), replace(scene, logits=other))
    for verdict in (True, False):
        answer = ask(x, 0, slope=True, verdict=verdict)
        assert (answer.verdict is not None) == verdict
        assert answer.objective.isinf().tolist() == [False, True]


def scene_of(model: nn.Module, x: Tensor, target: Tensor) -> Scene:
    return Scene(x, target, GRADIENT(model, x, target), model(x).detach())


def test_a_look_takes_one_forward_pass_whatever_the_layout():
    """A CPU puts the channels of x last, in a copy: the logits that come of it are those of x."""
    (x, target), model, calls = batch(2), copy.deepcopy(net("lenet")).float(), []
    x = x.float()
    GRADIENT(model, x, target)  # a model is tried once
    model.register_forward_hook(lambda *_: calls.append(1))
    _, logits = look(model, GRADIENT, x, target, graph=False)
    assert len(calls) == 1
    torch.testing.assert_close(logits, model(x))
    _, logits = look(model, gg.attribution("smoothgrad", draws=1, sigma=0.5), x, target, graph=False)
    torch.testing.assert_close(logits, model(x))  # its own pass is of another image


def test_a_search_begins_where_it_is_told_to_and_inside_the_ball():
    seen = []

    def ask(z: Tensor, step: int, *, slope: bool, verdict: bool) -> Answer:
        seen.append(z - X)
        return Answer(torch.zeros_like(z) if slope else None, Verdict(z.new_zeros(2), z.new_ones(2).bool()))

    begin = torch.linspace(-0.2, 0.2, 32, dtype=torch.float64).view_as(X)
    clean = Verdict(X.new_ones(2), X.new_ones(2).bool())
    found = search(X, Search(1), ball("linf", 0.1), Box(), ask, clean, keys(0, 2), begin)
    torch.testing.assert_close(seen[0], begin.clamp(-0.1, 0.1))
    torch.testing.assert_close(found.delta, begin.clamp(-0.1, 0.1))
    assert (found.value == 0).all()


def test_the_smooth_stand_in_falls_when_a_pixel_leaves_the_top_and_its_slope_says_which_way():
    clean = torch.arange(1.0, 17.0, dtype=torch.float64).view(1, 1, 4, 4)
    mask = top_k_mask(clean[:, 0], 4)
    stand_in, column = soft_overlap(mask, "abs_sum"), overlap_with(mask, "abs_sum")
    map = clean.clone().requires_grad_()
    (slope,) = torch.autograd.grad(stand_in(map, clean).sum(), map)
    # Pixels of the old top must shrink and the best of the others grow, those at the threshold most.
    assert (slope.flatten()[12:] > 0).all()
    assert (slope.flatten()[9:12] < 0).all()
    assert slope.flatten()[11].abs() > slope.flatten()[0].abs()
    moved = clean.clone()
    moved[0, 0, 3, 0], moved[0, 0, 2, 3] = 12.0, 13.0
    assert stand_in(moved, clean) < stand_in(clean, clean)
    assert column(moved, clean) == 0.75
    torch.testing.assert_close(stand_in(7 * clean, clean), stand_in(clean, clean))


def test_squares_lower_a_number_without_a_derivative_and_keep_ball_box_and_label():
    goal = torch.ones_like(X)

    def judge(z: Tensor):
        count = (z < 0.55).flatten(1).sum(1).double() / 16
        return (z - goal).abs().flatten(1).sum(1), count, z.flatten(1)[:, 0] <= 0.5

    delta, value = try_squares(X, torch.zeros_like(X), ball("linf", 0.1), Box(), judge, keys(0, 2), 40)
    assert (value < 0.8).all()
    assert torch.equal(value, judge(X + delta)[1])
    assert (delta.abs() <= 0.1).all()
    assert (delta.flatten(1)[:, 0] <= 0).all()


def test_squares_stay_in_the_box():
    bright = X + 0.45

    def brightness(z: Tensor):
        return -z.flatten(1).sum(1), -z.flatten(1).sum(1), z.new_ones(2).bool()

    delta, _ = try_squares(bright, torch.zeros_like(X), ball("linf", 0.1), Box(), brightness, keys(0, 2), 10)
    assert (bright + delta).amax() == 1


def test_challengers_hold_the_prediction_too_and_a_lost_prediction_never_counts():
    x, y = pictures("test", 8)
    hit = Auto(eps=0.2, steps=4)(trained(), Rounded(), x, y)
    noisy = gg.attack("random", eps=0.2)(trained(), GRADIENT, x, y)
    assert not noisy.prediction_kept.all()
    assert hit.prediction_kept.all()
    assert (hit.value < hit.start).any()


def offers(monkeypatch) -> list[tuple[str, Tensor, Tensor, Evaluation]]:
    """What every search of the runs that follow offers, as it was judged."""
    offered, judge, offer = [], Duel._judge, Duel._offer
    seen = []
    monkeypatch.setattr(Duel, "_judge", lambda *parts: seen.append(judge(*parts)) or seen[-1])

    def spy(duel, name, rows, delta):
        offer(duel, name, rows, delta)
        offered.append((name, rows, delta, seen[-1]))

    monkeypatch.setattr(Duel, "_offer", spy)
    return offered


def test_a_point_found_through_a_surrogate_is_judged_by_the_map_itself(monkeypatch):
    offered = offers(monkeypatch)
    x, target = batch(3)
    model, path = net("lenet"), gg.attribution("ig", steps=6)
    hit = Auto(eps=0.02, steps=2, transfer_from=gg.attribution("ig", steps=1))(model, path, x, target)
    name, rows, delta, judged = offered[0]
    assert name == "main"
    k = round(0.1 * x[0, 0].numel())
    before, after = (path(model, at, target[rows]) for at in (x[rows], x[rows] + delta))
    torch.testing.assert_close(judged.value, TopKIntersection(k=k)(before, after))
    torch.testing.assert_close(judged.map, after)
    torch.testing.assert_close(hit.map, path(model, hit.x, target))
    torch.testing.assert_close(hit.value, TopKIntersection(k=k)(hit.map_clean, hit.map))


# Gradient masking ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Rounded:
    """A map in 8 bits, as a picture file would hold it."""

    def __call__(self, model: nn.Module, x: Tensor, target: Tensor, *, create_graph: bool = False) -> Tensor:
        return in_eight_bits(GRADIENT(model, x, target, create_graph=create_graph))


def in_eight_bits(map: Tensor) -> Tensor:
    largest = map.abs().flatten(1).amax(1).view(-1, 1, 1, 1)
    return (map / largest * 127).round() / 127


@dataclass(frozen=True)
class Decoy:
    """The gradient map with the wrong sign on its derivative, so that a search along it goes the wrong way."""

    def __call__(self, model: nn.Module, x: Tensor, target: Tensor, *, create_graph: bool = False) -> Tensor:
        map = GRADIENT(model, x, target, create_graph=create_graph)
        return 2 * map.detach() - map if create_graph else map


class Scaled(nn.Module):
    def __init__(self, core: nn.Module, factor: float) -> None:
        super().__init__()
        self.core, self.factor = core, factor

    def forward(self, x: Tensor) -> Tensor:
        return self.core(x) * self.factor


class Quantized(nn.Module):
    """Pixels rounded to steps of 1/16: the gradient is zero almost everywhere."""

    def __init__(self, core: nn.Module) -> None:
        super().__init__()
        self.core = core

    def forward(self, x: Tensor) -> Tensor:
        return self.core((x * 16).round() / 16)


def masked() -> dict[str, tuple[nn.Module, object]]:
    smooth = with_activation(trained(), "softplus", 20, example=torch.zeros(1, 3, 16, 16))
    steep = with_activation(trained(), "softplus", 2000, example=torch.zeros(1, 3, 16, 16))
    return {
        "a steep twin": (steep, GRADIENT),
        "saturated logits": (Scaled(trained(), 1e5), gg.attribution("gradient", quantity="probability")),
        "a map of 8 bits": (smooth, Rounded()),
        "no gradient almost everywhere": (Quantized(trained()), GRADIENT),
        "a derivative of the wrong sign": (smooth, Decoy()),
    }


TOLD_BY = {
    "a steep twin": "beaten by softer model",
    "saturated logits": "zero derivative",
    "a map of 8 bits": "beaten by transfer",
    "no gradient almost everywhere": "zero derivative",
    "a derivative of the wrong sign": "beaten by transfer",
}


@pytest.mark.parametrize(("case", "told_by"), TOLD_BY.items())
def test_a_masked_gradient_is_not_called_steady(case, told_by):
    """Most of the top goes, or no number is given; and the self-check that is made for the case says so."""
    model, explain = masked()[case]
    x, y = pictures("test", 8)
    hit = Auto(eps=EPS, steps=20)(model, explain, x, y, seed=0)
    moved = hit.value[~hit.stuck]
    assert len(moved) == 0 or moved.mean() < 0.4
    assert any(flag.startswith(told_by) for flag in hit.flags)
    if told_by == "zero derivative":
        assert hit.stuck.all()
        assert hit.value.isnan().all()


def test_a_challenger_that_wins_counts_and_is_named():
    model, explain = masked()["a map of 8 bits"]
    x, y = pictures("test", 8)
    hit = Auto(eps=EPS, steps=8)(model, explain, x, y, seed=0)
    assert hit.beaten_by["transfer"].float().mean() > 0.5
    flag = next(flag for flag in hit.flags if "transfer" in flag)
    assert "Do not call this map steady" in flag


def test_noise_transfer_and_squares_do_not_beat_the_search_on_an_honest_map():
    for hit in attacked(steps=20):
        assert not any(hit.beaten_by[name].any() for name in ("noise", "squares") if name in hit.beaten_by)
        assert not any("Do not call" in flag for flag in hit.flags)


@dataclass(frozen=True)
class Twofold:
    """A map that is another one when a graph is asked for, as code with a fast path may have it."""

    def __call__(self, model: nn.Module, x: Tensor, target: Tensor, *, create_graph: bool = False) -> Tensor:
        still = (x * 2).round() / 2
        return GRADIENT(model, x if create_graph else still, target, create_graph=create_graph)


@pytest.mark.parametrize(("explain", "misled"), [(Twofold(), True), (GRADIENT, False)])
def test_an_objective_that_falls_while_the_column_does_not_is_a_flag(explain, misled):
    x, y = pictures("test", 8)
    x = (x * 2).round() / 2 * 0.9 + 0.03  # far from where Twofold's pixels are rounded the other way
    hit = Auto(eps=0.02, steps=3)(trained(), explain, x, y)
    told = [flag for flag in hit.flags if flag.startswith("misled on")]
    assert bool(told) == misled
    assert bool(hit.misled.double().mean() > 0.5) == misled
    if misled:
        assert (hit.value == hit.start).all()
        assert "Do not call this map steady" in told[0]


def test_a_map_attacked_through_one_that_moves_otherwise_is_misled_too():
    """What is searched through falls; the map that is judged is the same for every image."""
    x, y = pictures("test", 8)
    hit = Auto(eps=0.02, steps=3, transfer_from="gradient")(trained(), Painted(shades=0), x, y)
    assert any(flag.startswith("misled on") for flag in hit.flags)


@dataclass(frozen=True)
class Painted:
    """The image itself, in few shades: no model, and no derivative."""

    shades: int = 2

    def __call__(self, model: nn.Module, x: Tensor, target: Tensor, *, create_graph: bool = False) -> Tensor:
        return (x * self.shades).round() + 0 * x + torch.arange(16, dtype=x.dtype) / 100


def test_a_map_without_a_derivative_that_nothing_moved_has_no_value():
    """So small a change moves no pixel of it, and a number would say that it holds."""
    x, y = pictures("test", 2)
    x = (x * 2).round() / 2 * 0.9 + 0.03
    hit = Auto(eps=0.001, steps=2)(trained(), Painted(), x, y)
    assert hit.stuck.all()
    assert hit.value.isnan().all()


def test_a_mean_over_draws_is_attacked_and_challenged_by_all_its_draws():
    x, y = pictures("test", 3)
    explain = gg.attribution("smoothgrad", draws=4, sigma=0.1)
    few = gg.attribution("smoothgrad", draws=2, sigma=0.1)
    hit = Auto(eps=EPS, steps=8, transfer_from=few)(trained(), explain, x, y, seed=0)
    assert {"noise", "transfer", "another start", "more steps"} <= set(hit.beaten_by)
    assert "squares" not in hit.beaten_by  # each look would cost as many passes as the map has draws
    torch.testing.assert_close(hit.map, explain(trained(), hit.x, y))
    assert torch.equal(hit.value, TopKIntersection(k=26)(hit.map_clean, hit.map))
    assert (hit.value < 0.8).all()


def test_a_mean_over_draws_in_eight_bits_has_no_derivative_and_is_flagged():
    x, y = pictures("test", 3)
    calm = gg.attribution("smoothgrad", draws=4, sigma=0.1)

    def rounded(model: nn.Module, x: Tensor, target: Tensor, *, create_graph: bool = False) -> Tensor:
        return in_eight_bits(calm(model, x, target, create_graph=create_graph))

    hit = Auto(eps=EPS, steps=4)(trained(), rounded, x, y, seed=0)
    assert any(flag.startswith("beaten by transfer") for flag in hit.flags)
    assert hit.value.mean() < 0.8


def test_a_softer_copy_shares_the_weights_and_leaves_the_model_as_it_was():
    model = with_activation(trained(), "softplus", 50, example=torch.zeros(1, 3, 16, 16))
    soft = soften(model)
    assert {m.beta for m in soft.modules() if isinstance(m, nn.Softplus)} == {5.0}
    assert {m.beta for m in model.modules() if isinstance(m, nn.Softplus)} == {50.0}
    assert all(a is b for a, b in zip(model.parameters(), soft.parameters(), strict=True))
    assert soften(with_activation(model, "softplus", 3, example=torch.zeros(1, 3, 16, 16))) is None


@pytest.mark.parametrize(
    ("method", "settings"), [("shap", {"segments": "grid", "draws": 16}), ("lime", {"draws": 16})]
)
def test_a_map_without_a_derivative_is_attacked_by_transfer_and_by_squares(method, settings):
    x, y = pictures("test", 2)

    def explain(model: nn.Module, x: Tensor, target: Tensor) -> Tensor:
        return gg.attribution(method, **settings)(model, x, target)  # a function that takes no create_graph

    # At a larger radius transfer alone drains the map, and no image is left for squares.
    hit = Auto(eps=2 / 255, steps=8)(trained(), explain, x, y, seed=0)
    assert any("searched through Gradient" in flag for flag in hit.flags)
    assert "squares" in hit.beaten_by
    assert hit.value.mean() < 1
    torch.testing.assert_close(hit.map, explain(trained(), hit.x, y))


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"column": "top_keep"}, "top_kept"),
        ({"steps": 0}, "at least 1"),
        ({"top_fraction": 1.0}, "fraction of the pixels"),
        ({"reduce": "abs"}, "sum_abs"),
        ({"eps": []}, "at least one radius"),
    ],
)
def test_a_setting_that_cannot_be_meant_is_refused(settings, words):
    with pytest.raises(gg.UserError, match=words):
        gg.attack("auto", **settings)


class Rooted(nn.Module):
    """`where(z > 0, sqrt(z), 0)`, whose derivative is NaN for negative z: none at x, some around it."""

    def __init__(self, x: torch.Tensor) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last = nn.Conv2d(3, 8, 3, padding=1).double(), nn.Linear(8 * 64, 3).double()
        lowest = self.first(x).amin((0, 2, 3))
        with torch.no_grad():
            self.first.bias.sub_(lowest - 0.004)
        self.eval()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        z = self.first(x)
        return self.last(torch.where(z > 0, z.sqrt(), torch.zeros_like(z)).flatten(1))


@pytest.mark.parametrize("column", ["top_kept", "insertion", "rank_correlation"])
def test_an_image_whose_map_holds_nan_is_no_success(column):
    torch.manual_seed(0)
    x = 0.5 + 0.05 * torch.rand(3, 3, 8, 8, dtype=torch.float64)
    model, gradient = Rooted(x), gg.attribution("gradient")
    target = gg.predict(model, x)
    near = gg.attack("random", eps=8 / 255)(model, gradient, x, target)
    assert near.map.isnan().any()
    assert any("the map holds NaN" in flag for flag in near.flags)
    hit = gg.attack("auto", eps=8 / 255, steps=4, column=column)(model, gradient, x, target)
    assert hit.map.isfinite().all()
    assert hit.value.isfinite().all()


def test_logits_of_nan_predict_nothing():
    torch.manual_seed(0)
    x = 0.5 + 0.05 * torch.rand(3, 3, 8, 8, dtype=torch.float64)

    class Lost(Rooted):
        """NaN logits where z is negative; the argmax of NaN is class 0."""

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            logits = self.last(self.first(x).sqrt().flatten(1))
            return logits + torch.tensor([9.0, 0, 0])

    model = Lost(x)
    target = gg.predict(model, x)
    assert target.tolist() == [0, 0, 0]
    near = gg.attack("random", eps=8 / 255)(model, gg.attribution("gradient"), x, target)
    assert model(near.x).isnan().any(1).all()
    assert not near.prediction_kept.any()
    assert gg.metric("accuracy")(model, None, near.x, target).tolist() == [0, 0, 0]


def test_a_change_that_rounding_made_larger_than_eps_is_flagged():
    torch.manual_seed(0)
    x = 0.5 + 0.4 * torch.rand(2, 3, 8, 8)
    layers = nn.Conv2d(3, 4, 3), nn.SiLU(), nn.Flatten(), nn.Linear(4 * 36, 3)
    model, gradient = nn.Sequential(*layers).eval(), gg.attribution("gradient")
    attack = gg.attack("pgd", eps=0.5 / 255, steps=2)  # half of what bfloat16 can tell apart here
    assert attack(model, gradient, x, torch.tensor([0, 1])).flags == ()
    hit = attack(model.bfloat16(), gradient, x.bfloat16(), torch.tensor([0, 1]))
    assert hit.budget_used.max() > 1.5
    assert any("rounding to bfloat16 made the change larger than eps" in flag for flag in hit.flags)
