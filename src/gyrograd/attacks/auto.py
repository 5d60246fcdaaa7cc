"""The attack to judge an explanation by: it minimises the reported number. Its one setting is `steps`.

A robustness number is only as good as the attack behind it. `auto` minimises exactly the column that a report shows
(for example the share of the top pixels kept), for the same method, class, k and reduction. For each radius, smallest
first:

1. descend a smooth surrogate of the column ("stand-in") with momentum; steps start at the size of the ball and fall to
   zero; the start is the result of the smaller radius, scaled to the new one;
2. let challengers try to beat the result. On images whose column has hardly fallen: noise, the gradient map in place of
   the map, and a softer copy of the model. At the largest radius, unless steps is small, all of these on all images,
   and a search without derivatives, another objective from a random start, and more steps;
3. keep, per image, the point with the lowest column among those that keep the prediction. The column is always computed
   with the method itself on the model itself, whatever the search used.

Results of challengers count. If challengers often win, or if the stand-in falls and the column does not, a flag says
that the main search cannot be trusted. Images whose column cannot fall further are dropped, so that the time goes to
the others.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from gyrograd.attacks.engine import (
    STAND_IN,
    AttackBatch,
    AttackPlan,
    Begin,
    Economy,
    asker,
    keeps_prediction,
    run,
)
from gyrograd.attacks.looks import look
from gyrograd.attacks.loop import Search, SearchResult, first_delta, search, where_rows
from gyrograd.attacks.objectives import (
    SOFT_SHARES,
    Aim,
    Objective,
    Scene,
    away_from,
    in_insertion_order,
    like_ranks,
    map_change,
    mass_on,
    overlap_with,
    rank_order,
    soft_insertion,
    soft_overlap,
    steepness,
    the_goal,
    toward,
    unlike,
)
from gyrograd.attacks.result import AttackResult
from gyrograd.attacks.self_checks import MISLED_COLUMN, MISLED_FALL, WIN_MARGIN, raised_flags
from gyrograd.attacks.settings import BallAttack, check_goal, plan_of
from gyrograd.attacks.squares import try_squares
from gyrograd.attacks.twin import Guide
from gyrograd.attributions.batching import MAX_BATCH
from gyrograd.attributions.gradient import Gradient
from gyrograd.attributions.settings import passes_of
from gyrograd.errors import UserError, check_counts, check_name
from gyrograd.numerics.balls import ball
from gyrograd.numerics.copies import copy_of
from gyrograd.numerics.maps import REDUCTIONS, reduce, top_k_mask
from gyrograd.numerics.random import signs
from gyrograd.registry import fact, make, register
from gyrograd.types import Attribution, Flags, Images, Inputs, Labels, Model, PerExample, Seed

FIRST_STEP, TWIN_STEP, WARM_STEP = 2.0, 1.0, 0.5
"""First step of a descent, in radii of the ball: from x across the whole ball; through a twin half of that, because the
twin's gradients differ more from the model's with distance; from a good point less."""
ENOUGH = 10
"""Steps that a search from x needs: what a shorter one misses, the larger radii that start from it do not make up."""
UNJUDGED = 2 / 3
"""Share of a descent's first steps whose iterates are not evaluated if that takes an extra pass, and which follow a
coarser map if there is one."""
PRECISIONS = ("fast", "single")
"""Of the steps through averaged maps: bfloat16 where it is faster, or never."""
CHALLENGE = 4
"""Steps of the main search per step of a challenger; a challenger takes at least two."""
SOFT_BETA = 5.0
"""Sharpness (beta) of the softer copy: a quarter of the twin's."""
AFRESH = {"noise", "transfer", "another start"}
"""Challengers that do not start from the best point so far."""
NOISE = 1 << 34
"""Random stream of the noise challenger, distinct from those of starts."""


@dataclass(frozen=True)
class Column:
    """A reported number of an attacked map; lower is better for the attacker.

    judge: the number itself. stand_ins: differentiable surrogates, the best first. floor: its smallest possible value.
    flat_at_x: the stand-in's gradient is zero at the clean image, so the search starts at a random point. relative: it
    has no natural scale, so changes are measured relative to it. stepper, projection: of the search. needs: the setting
    it requires. judge_takes_passes: the number takes passes of the model besides those of the map.
    """

    judge: Callable[[Scene, Auto], Objective]
    stand_ins: tuple[Callable[[Scene, Auto], Objective], ...]
    floor: float = 0.0
    flat_at_x: bool = False
    relative: bool = False
    stepper: str = "momentum"
    projection: str = "clip"
    needs: str | None = None
    judge_takes_passes: bool = False

    def by(self, share: float, value: Tensor) -> Tensor:
        """The smallest change that counts: `share`, or that share of the value if the column is relative."""
        return share * (value.abs() if self.relative else torch.ones_like(value))


@register(
    "attack",
    "auto",
    paper="own",
    equation="docs/concepts/attacks.md; after Croce and Hein 2020",
    order=10,
    group="map",
    about="Drains the top tenth of the map by every way it knows; the one to judge by.",
)
@dataclass(frozen=True, kw_only=True, eq=False)
class Auto(BallAttack):
    """The strongest attack: minimises the reported number. Judge explanations by this one.

    column, the number to minimise:

    - "top_kept": share of the `top_fraction` of pixels ranked highest that stays there;
    - "cosine", "rank_correlation": to the clean map;
    - "insertion": mean probability as the clean image's pixels are inserted in the attacked map's order, at the shares
      `ratios` (the metric adversarial_insertion);
    - "local_lipschitz": minus |map' - map| / |x' - x|, so that the quotient grows;
    - "distance_to_goal": half the squared distance to a goal map (`goal` as in `targeted_map`);
    - "mass_in_mask": share of the map's mass inside `mask` (h w, or one per image): the map leaves the object.

    steps: per radius; 12 for a quick look, 20 or more for a report. With several `eps` a larger radius starts from the
    result of the smaller one, and a search of fewer than 10 steps takes half as many again at the smallest.
    transfer_from: the attribution to search through, if the map has no derivative (default: the gradient) or is too
    expensive. search_precision: "fast" takes the steps of averaged maps in bfloat16 on a CPU that has instructions for
    it; "single" never does. What is reported is computed in single precision in either case.

    >>> import gyrograd as gg, torch
    >>> model, x = gg.model("lenet", num_classes=3, seed=0), torch.rand(2, 3, 32, 32)
    >>> hit = gg.attack("auto", eps=8 / 255, steps=2)(model, gg.attribution("gradient"), x, torch.tensor([0, 1]))
    >>> bool((hit.value <= hit.start).all())
    True
    """

    column: str = "top_kept"
    steps: int = 20
    top_fraction: float = 0.1
    reduce: str = "abs_sum"
    ratios: str | tuple[float, ...] | list[float] = "paper"
    goal: str | Tensor = "frame"
    mask: Tensor | None = None
    transfer_from: str | Attribution | None = None
    settled: float = 0.0
    search_precision: str = "fast"
    max_batch: int = MAX_BATCH

    def check(self) -> None:
        if not 0 <= self.settled <= 1:
            raise UserError(f"settled is {self.settled}; give a small share such as 0.01, or 0.")
        if isinstance(self.ratios, list):
            object.__setattr__(self, "ratios", tuple(self.ratios))
        check_name("column", self.column, COLUMNS)
        check_name("reduction", self.reduce, REDUCTIONS)
        check_name("search_precision", self.search_precision, PRECISIONS)
        check_goal(self.goal)
        check_counts(steps=self.steps, max_batch=self.max_batch)
        if not 0 < self.top_fraction < 1:
            raise UserError(
                f"top_fraction is {self.top_fraction}; give a fraction of the pixels, such as 0.1."
            )
        if self.mask is None and COLUMNS[self.column].needs == "mask":
            raise UserError(f"{self.column} needs the pixels that count; give mask=, of shape h w or b h w.")
        self.curve()  # checks the ratios

    def every_radius(
        self,
        model: Model,
        attribution: Attribution,
        x: Inputs,
        target: Labels,
        *,
        seed: Seed = 0,
        begin: AttackResult | None = None,
    ) -> tuple[AttackResult, ...]:
        """One result per radius, including flags about the search itself.

        `begin`: a result within the smallest radius, of a search on another column of the same map. The search starts
        at its images and not at x, and its challengers are left out, because that other search had them.
        """
        if self.mask is not None:
            check_mask(self.mask, x)
        results = run(self.plan(), model, attribution, x, target, seed=seed, begin=begin)
        return tuple(replace(r, flags=(*r.flags, *raised_flags(r))) for r in results)

    def plan(self) -> AttackPlan:
        """The plan of the run; `attack_every_radius` does the searches."""
        needs = COLUMNS[self.column].needs
        return plan_of(
            self,
            Search(self.steps),
            self.aim,
            goal=None if needs is None else getattr(self, needs),
            restore=True,
            twin_beta="growing",
            strategy=lambda plan, under: attack_every_radius(self, plan, under),
            step_rows=len(SOFT_SHARES) if self.column == "insertion" else 1,
        )

    def aim(self, scene: Scene, stand_in: int = 0) -> Aim:
        """The objective to descend and the column that evaluates."""
        column = COLUMNS[self.column]
        return Aim(column.stand_ins[stand_in](scene, self), column.judge(scene, self))

    def top(self, scene: Scene) -> Tensor:
        """Mask of the top pixels of the clean map."""
        old = reduce(scene.map, self.reduce).abs()
        return top_k_mask(old, max(1, round(self.top_fraction * old[0].numel())))

    def curve(self) -> Any:
        """The insertion metric with the same reduction and shares."""
        return make("metric", "insertion", ratios=self.ratios, reduce=self.reduce, max_batch=self.max_batch)


COLUMNS: dict[str, Column] = {
    "top_kept": Column(
        judge=lambda scene, auto: overlap_with(auto.top(scene), auto.reduce),
        stand_ins=(
            lambda scene, auto: soft_overlap(auto.top(scene), auto.reduce),
            lambda scene, auto: mass_on(auto.top(scene), auto.reduce),
        ),
    ),
    "cosine": Column(
        judge=lambda scene, auto: away_from(scene.map, auto.reduce, "cosine"),
        stand_ins=(
            lambda scene, auto: away_from(scene.map, auto.reduce, "cosine"),
            lambda scene, auto: mass_on(auto.top(scene), auto.reduce),
        ),
        floor=-1.0,
        flat_at_x=True,
    ),
    "rank_correlation": Column(
        judge=lambda scene, auto: rank_order(scene.map, auto.reduce),
        stand_ins=(
            lambda scene, auto: like_ranks(scene.map, auto.reduce),
            lambda scene, auto: soft_overlap(auto.top(scene), auto.reduce),
        ),
        floor=-1.0,
    ),
    "insertion": Column(
        judge=lambda scene, auto: in_insertion_order(scene, auto.curve()),
        stand_ins=(
            lambda scene, auto: soft_insertion(scene, auto.curve(), auto.reduce),
            lambda scene, auto: like_ranks(scene.map, auto.reduce),
        ),
        judge_takes_passes=True,
    ),
    "local_lipschitz": Column(
        judge=lambda scene, _: steepness(scene.map, scene.x),
        stand_ins=(
            lambda scene, _: steepness(scene.map, scene.x),
            lambda scene, _: map_change(scene.map),
        ),
        floor=-math.inf,
        flat_at_x=True,
        relative=True,
        # Sign steps end in the corners of the ball, where x' is furthest from x and the quotient smallest.
        stepper="along",
        projection="rescale",
    ),
    "distance_to_goal": Column(
        judge=lambda scene, auto: toward(the_goal(scene), auto.reduce),
        stand_ins=(
            # The distance is scaled by the largest pixel, which makes it rough to descend.
            lambda scene, auto: unlike(the_goal(scene), auto.reduce),
            lambda scene, auto: toward(the_goal(scene), auto.reduce),
        ),
        relative=True,
        needs="goal",
    ),
    "mass_in_mask": Column(
        judge=lambda scene, auto: mass_on(the_goal(scene) > 0, auto.reduce),
        stand_ins=(
            lambda scene, auto: mass_on(the_goal(scene) > 0, auto.reduce),
            lambda scene, auto: away_from(scene.map, auto.reduce, "cosine"),
        ),
        needs="mask",
    ),
}


def check_mask(mask: Tensor, x: Images) -> None:
    """Refuse a mask that is not `h w`, or one `h w` per image, of zeros and ones with a one in each."""
    h, w = x.shape[2:]
    if (
        mask.shape[-2:] != (h, w)
        or mask.dim() not in (2, 3)
        or (mask.dim() == 3 and len(mask) not in (1, len(x)))
    ):
        raise UserError(
            f"The mask has shape {tuple(mask.shape)} for images {tuple(x.shape)}; give {h} x {w}, or one per image."
        )
    if not bool(((mask == 0) | (mask == 1)).all()):
        raise UserError(
            "The mask holds other values than 0 and 1; give True on the pixels that count, such as mask > 0.5."
        )
    if not bool((mask != 0).flatten(-2).any(-1).all()):
        raise UserError("A mask has no pixel that counts; give True on some, or leave that image out.")


def attack_every_radius(auto: Auto, plan: AttackPlan, under: AttackBatch) -> list[SearchResult]:
    """Main search and challengers at each radius, smallest first, for a part of the batch."""
    case = Case.of(auto, plan, under)
    best, reached = case.clean(), 0.0
    found: dict[float, SearchResult] = {}
    positive = {eps for eps in plan.eps if eps > 0}
    for eps in sorted(set(plan.eps)):
        duel = Duel(case, eps, best, steps_at(auto.steps, positive, eps))
        if eps > 0:
            if reached or under.begin is None:
                duel.search(best.delta * (eps / reached) if reached else None)
            else:
                duel.search_from(under.begin)
            last, long = eps == max(plan.eps), auto.steps >= 2 * CHALLENGE
            if auto.steps >= CHALLENGE:
                # At the last radius: every image that a report could still call steady, or all in a long search.
                doubtful = duel.hardly_moved(1 / 2 if last else 1 / 4) | (last and long)
                if under.begin is not None:
                    doubtful = torch.zeros_like(doubtful)  # the search that found `begin` was challenged
                duel.noise(doubtful)
                duel.transfer(doubtful)
                duel.softer_model(
                    doubtful | last
                )  # often the strongest challenger, if there is a softer model
            duel.squares(case.blind.found, looks=auto.steps)
            if last and long and under.begin is None:
                if not case.through_a_cheaper_map:  # else each evaluation would cost as much as many steps
                    duel.squares(~case.blind.found, looks=auto.steps // CHALLENGE)
                duel.another_start()
                duel.more_steps()
            best, reached = duel.best, eps
        found[eps] = duel.result()
    return [found[eps] for eps in plan.eps]


def steps_at(steps: int, radii: Collection[float], eps: float) -> int:
    """Steps of the main search at one of several radii.

    The smallest radius starts from x, the others from its result: a short search takes half as many steps again there,
    up to `ENOUGH`.
    """
    smallest = len(radii) > 1 and eps == min(radii)
    return max(steps, min(ENOUGH, steps + steps // 2)) if smallest else steps


@dataclass(frozen=True)
class Case:
    """What all radii share. `start`: the column at x; `searched`: the column of the surrogate's map at x."""

    auto: Auto
    plan: AttackPlan
    under: AttackBatch
    column: Column
    start: PerExample
    searched: PerExample
    blind: Blind
    soft: Model | None

    @classmethod
    def of(cls, auto: Auto, plan: AttackPlan, under: AttackBatch) -> Case:
        """The case for these clean images, which are evaluated once."""

        def judged(scene: Scene) -> PerExample:
            return auto.aim(scene).judge(scene.map, scene.logits, scene.x)

        start = judged(under.scene)
        searched = start if under.searched is under.scene else judged(under.searched)
        soft = soften(under.guide.model)
        return cls(auto, plan, under, COLUMNS[auto.column], start, searched, Blind(under), soft)

    def clean(self) -> SearchResult:
        """The clean images as the best known result before any search."""
        scene = self.under.scene
        none = torch.zeros(len(scene.x), dtype=torch.bool, device=scene.x.device)
        steps, still = none.to(torch.int64), torch.zeros_like(scene.x)
        return SearchResult(
            still, self.start, steps, none, none, start=self.start, map=scene.map, logits=scene.logits
        )

    @property
    def through_a_cheaper_map(self) -> bool:
        """True if the search uses a cheaper map of the same kind, with fewer passes."""
        surrogate, attribution = self.under.surrogate, self.under.attribution
        return surrogate is not attribution and type(surrogate) is type(attribution)


class Blind:
    """Images whose map has no derivative. Testing costs a step, so only images that did not move are tested."""

    def __init__(self, under: AttackBatch) -> None:
        self.under = under
        self.found = torch.zeros(len(under.scene.x), dtype=torch.bool, device=under.scene.x.device)
        self._asked = self.found

    def ask(self, suspects: Flags) -> None:
        """Test these images, unless they were tested before."""
        rows = (suspects & ~self._asked).nonzero()[:, 0]
        if len(rows):
            self.found = self.found.index_copy(0, rows, self.under.blind(rows))
            self._asked = self._asked | suspects


@dataclass(frozen=True)
class Evaluation:
    """Map, logits and column of perturbed images, by the method itself on the model itself.

    `value` is infinite if the label is lost, because such points do not count.
    """

    map: Tensor
    logits: Tensor
    value: PerExample


@dataclass(frozen=True, kw_only=True)
class Descent:
    """Settings of one descent.

    The first step has length `first_step` x eps. It starts at x unless `begin` or `start` is set, descends stand-in
    number `stand_in`, takes gradients from `guide` and maps from `through`, if given.
    """

    steps: int
    first_step: float = FIRST_STEP
    begin: Images | None = None
    start: str = "clean"
    stand_in: int = 0
    guide: Guide | None = None
    through: Attribution | None = None


class Duel:
    """The searches at one radius, each on the images that can still improve; keeps the best point per image."""

    def __init__(self, case: Case, eps: float, best: SearchResult, steps: int) -> None:
        self.case, self.eps, self.best, self.steps = case, eps, best, steps
        self.under, self.column, self.ball = case.under, case.column, ball(case.plan.norm, eps)
        self.few = max(2, case.auto.steps // CHALLENGE)
        self.main = best.value
        # An image that another search moved is not tested for a derivative unless this one found only zeros.
        begin = case.under.begin
        self.moved_before = (
            torch.zeros_like(best.broken) if begin is None else (begin.delta != 0).flatten(1).any(1)
        )
        # What is left below this counts as nothing. A point of a smaller radius lies in this ball too.
        self.settled_at = self.column.floor + case.auto.settled
        self.misled = torch.zeros_like(best.broken)
        self.beaten_by: dict[str, Flags] = {}

    def search_from(self, begin: Begin) -> None:
        """The main search from what an earlier attack found, which stays if nothing better is found."""
        rows = torch.arange(len(begin.delta), device=begin.delta.device)
        self._offer("main", rows, begin.delta, (begin.map, begin.logits))
        self.search(begin.delta)

    def search(self, begin: Images | None) -> None:
        """The main search, at full length."""
        through_twin = self.under.guide.model is not self.under.model
        first = WARM_STEP if begin is not None else TWIN_STEP if through_twin else FIRST_STEP
        found = self.descend("main", Descent(steps=self.steps, begin=begin, first_step=first))
        self.main = self.best.value
        if found is not None:
            rows, one = found
            stuck = torch.zeros_like(self.misled).index_copy(0, rows, one.stuck)
            self.case.blind.ask(stuck | (self.hardly_moved() & ~self.moved_before))
            self.misled = self._misled(rows, one)

    def noise(self, only: Flags) -> None:
        """Try one draw of noise of the same size."""
        rows = self._moving(only)
        if len(rows):
            x = self.under.scene.x[rows]
            direction = signs(self.under.streams[rows], tuple(x.shape[1:]), stream=NOISE, dtype=x.dtype)
            delta = self.under.box.cut(x, self.ball.steepest(direction) * self.eps)
            self._offer("noise", rows, delta)

    def transfer(self, only: Flags) -> None:
        """Search through the gradient map, in case the map's own gradient misleads; with all steps if it has none."""
        if not isinstance(self.under.surrogate, Gradient):
            gradient, blind = make("attribution", STAND_IN), self.case.blind.found
            how = Descent(steps=self.few, through=gradient, guide=self.under.for_gradients)
            self.descend("transfer", how, only & ~blind)
            self.descend("transfer", replace(how, steps=self.case.auto.steps), blind)

    def softer_model(self, only: Flags) -> None:
        """Search on a copy with softer activations, if those of the model are so sharp that gradients vanish."""
        if self.case.soft is not None:
            self.descend("softer model", self._from_best(Guide(self.case.soft)), only)

    def another_start(self) -> None:
        """Search with another stand-in from a random start."""
        self.descend("another start", Descent(steps=self.few, start="random", stand_in=1))

    def more_steps(self) -> None:
        """Continue from the best point with small steps."""
        self.descend("more steps", self._from_best())

    def squares(self, only: Flags, looks: int) -> None:
        """A search without derivatives."""
        rows = self._moving(only)
        if len(rows):
            scene = self.under.scene.rows(rows)
            aim = self.case.auto.aim(scene)

            def judge(z: Tensor) -> tuple[PerExample, PerExample, Flags]:
                judged = self._judge(rows, z - scene.x)
                return aim.descend(judged.map, judged.logits, z), judged.value, judged.value < math.inf

            where = (scene.x, self.best.delta[rows], self.ball, self.under.box)
            delta, _ = try_squares(*where, judge, self.under.streams[rows], looks)
            self._offer("squares", rows, delta)

    def descend(
        self, name: str, how: Descent, only: Flags | None = None
    ) -> tuple[Tensor, SearchResult] | None:
        """Run one descent and offer its result; returns the searched rows and the search's own result."""
        rows = self._moving(only)
        if not len(rows):
            return None
        under, scene = self.under, self.under.searched.rows(rows)
        start: PerExample | None = self.case.searched[rows]
        if how.through is not None:
            map, _ = look(under.model, how.through, scene.x, scene.target, graph=False)
            scene, start = replace(scene, map=map), None
        from_x = how.begin is None and how.start == "clean"
        seen_through = (how.through or under.surrogate, how.guide or under.guide)
        free = not self.column.judge_takes_passes and seen_through[1].model is under.model
        first = round(UNJUDGED * how.steps)
        coarse = None if how.through is not None else coarser(under.surrogate)
        # In a mean over passes the rounding of bfloat16 averages out. In a map of one pass it stays: of lenet-steady up
        # to .009 more would be kept, even with the last third of the steps in single precision. So it does in a map of
        # differences between passes: .05 more of occlusion at 8/255.
        averages = passes_of(seen_through[0]) > 1 and not fact("attribution", seen_through[0], "forward_only")
        fast = self.case.auto.search_precision == "fast" and averages
        how_to = Search(
            how.steps,
            how.first_step * self.eps,
            self.column.stepper,
            self.column.projection,
            start="random" if from_x and self.column.flat_at_x else how.start,
            decay=True,
            stop_at=self.settled_at,
            open_end=True,
            judge_from=0 if free and coarse is None else first,
        )
        plan = replace(
            self.case.plan, aim=lambda scene: self.case.auto.aim(scene, how.stand_in), search=how_to
        )
        at_x = from_x and not self.column.flat_at_x
        ask, clean = asker(
            plan,
            under.model,
            *seen_through,
            scene,
            max_rows=under.max_rows,
            start=start,
            begins_at_x=at_x,
            economy=Economy(fast, coarse, first),
        )
        begin = None if how.begin is None else how.begin[rows]
        if begin is not None and self.column.flat_at_x:
            still = (begin == 0).flatten(1).all(1)
            begin = where_rows(still, first_delta(scene.x, "random", self.ball, under.streams[rows]), begin)
        one = search(scene.x, how_to, self.ball, under.box, ask, clean, under.streams[rows], begin)
        best = self.best
        self.best = best.updated(
            rows, steps=best.steps[rows] + one.steps, broken=best.broken[rows] | one.broken
        )
        # Steps shrink, so the last iterate is usually the best; the best of the others is offered as well.
        self._offer(name, rows, one.delta if one.last is None else one.last)
        exact = how.through is None and under.surrogate is under.attribution
        unmoved = self.best.value[rows] == best.value[rows]
        other = (one.value < self.best.value[rows] if exact else unmoved) & (one.delta != 0).flatten(1).any(1)
        self._offer(name, rows[other], one.delta[other])
        return rows, one

    def hardly_moved(self, share: float = 1 / 4) -> Flags:
        """Images whose column fell by less than this share of its range: steady, or the search was misled."""
        start = self.case.start
        whole = torch.ones_like(start) if math.isinf(self.column.floor) else start - self.column.floor
        return start - self.best.value < share * whole

    def result(self) -> SearchResult:
        """The result at this radius. Images without a derivative that nothing moved are `stuck`."""
        best, flat = self.best, self.under.scene.map.flatten(1)
        constant = flat.amax(1) == flat.amin(1)
        unmoved = (best.delta == 0).flatten(1).all(1)
        stuck = (constant | (self.case.blind.found & unmoved)) & (self.eps > 0)
        return replace(best, stuck=stuck, beaten_by=self.beaten_by, misled=self.misled)

    def _from_best(self, guide: Guide | None = None) -> Descent:
        return Descent(steps=self.few, begin=self.best.delta, first_step=WARM_STEP, guide=guide)

    def _moving(self, only: Flags | None = None) -> Tensor:
        """Row numbers of the images whose column can still fall."""
        moving = self.best.value > self.settled_at
        return (moving if only is None else moving & only).nonzero()[:, 0]

    def _judge(self, rows: Tensor, delta: Images, seen: tuple[Tensor, Tensor] | None = None) -> Evaluation:
        """Evaluate these perturbations with the method itself on the model itself; `seen`: map and logits, if known."""
        scene = self.under.scene.rows(rows)
        x = scene.x + delta
        if not len(rows):
            return Evaluation(scene.map, scene.logits, scene.x.new_zeros(0))
        map, logits = seen or look(self.under.model, self.under.attribution, x, scene.target, graph=False)
        value = self.case.auto.aim(scene).judge(map, logits, x)
        return Evaluation(map, logits, torch.where(keeps_prediction(logits, scene), value, math.inf))

    def _offer(
        self, name: str, rows: Tensor, delta: Images, seen: tuple[Tensor, Tensor] | None = None
    ) -> None:
        """Evaluate a result, keep what is better, and note the images on which a challenger clearly won.

        A challenger that started at the best point must beat that point, any other the main search.
        """
        judged = self._judge(rows, delta, seen)
        if name != "main":
            rival = (self.main if name in AFRESH else self.best.value)[rows]
            won = judged.value < rival - self.column.by(WIN_MARGIN, rival)
            before = self.beaten_by.get(name, torch.zeros_like(self.misled))
            self.beaten_by[name] = before.index_copy(0, rows, before[rows] | won)
        better = (judged.value < self.best.value[rows]).nonzero()[:, 0]
        point = {"delta": delta, "value": judged.value, "map": judged.map, "logits": judged.logits}
        self.best = self.best.updated(rows[better], **{name: new[better] for name, new in point.items()})

    def _misled(self, rows: Tensor, one: SearchResult) -> Flags:
        """Images on which the main search's objective fell and the column did not."""
        start = self.case.start[rows]
        fall = torch.zeros_like(start) if one.fall is None else one.fall.nan_to_num(0.0, posinf=0.0)
        stood = start - self.best.value[rows] < self.column.by(MISLED_COLUMN, start)
        return torch.zeros_like(self.misled).index_copy(0, rows, (fall > MISLED_FALL) & stood)


def coarser(attribution: Attribution) -> Attribution | None:
    """A map of the same kind with fewer passes that moves like this one, for methods that have one."""
    make_coarser: Callable[[], Attribution | None] | None = getattr(attribution, "coarser", None)
    return None if make_coarser is None else make_coarser()


def soften(model: Model) -> Model | None:
    """A copy with every sharper Softplus set to `SOFT_BETA`; None if there is no sharper one."""
    sharp = [module for module in model.modules() if isinstance(module, nn.Softplus)]
    if not any(module.beta > SOFT_BETA for module in sharp):
        return None
    # The copy shares the model's weights, because it is only differentiated to x.
    soft = copy_of(model, (*model.parameters(), *model.buffers()))
    for module in soft.modules():
        if isinstance(module, nn.Softplus):
            module.beta = min(module.beta, SOFT_BETA)
    return soft
