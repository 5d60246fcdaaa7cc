"""Attack what is reported: the attack to judge an explanation by. It has one knob, `steps`.

A robustness number is only as good as the attack behind it. `auto` minimises the very column a report shows (the share
of the top pixels kept, say) for the method, class, k and reduction that are judged. For each radius, from the smallest
to the largest:

1. descend a smooth stand-in of the column with momentum, in steps as long as the ball at first and falling to zero;
   begin where the smaller radius ended, stretched to the new one;
2. let challengers try to beat what was found: noise, the gradient map in place of the map itself and a softer copy of
   the model, on images whose column has hardly fallen; at the largest radius, unless steps is small, all of them on all
   images, and a search without derivatives, another objective from a random start, and more steps;
3. keep, for each image, the point with the lowest column among those that keep the prediction. The column is always
   that of the method itself on the model itself, whatever the search went through.

What a challenger finds counts. If challengers often win, or if what is descended falls and the column does not, a flag
says that the main search is not to be trusted. Images whose column can fall no further are left out of what follows, so
that the time goes to those that still move.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from gyrograd.attacks.loop import Found, Search, search
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
    softly_inserted,
    steepness,
    swapped,
    the_goal,
    toward,
    unlike,
)
from gyrograd.attacks.result import AttackResult
from gyrograd.attacks.runs import STAND_IN, Attacked, AttackPlan, asker, look
from gyrograd.attacks.self_checks import MISLED_COLUMN, MISLED_FALL, WIN_MARGIN, raised_flags
from gyrograd.attacks.settings import BallAttack, check_goal, plan_of
from gyrograd.attacks.squares import try_squares
from gyrograd.attacks.twin import Guide
from gyrograd.attributions.batching import MAX_BATCH
from gyrograd.attributions.gradient import Gradient
from gyrograd.errors import UserError, check_counts, check_name
from gyrograd.numerics.balls import ball
from gyrograd.numerics.maps import REDUCTIONS, reduce, top_k_mask
from gyrograd.numerics.random import signs
from gyrograd.registry import make, register
from gyrograd.types import Attribution, Flags, Images, Inputs, Labels, Model, PerExample, Seed

FIRST_STEP, TWIN_STEP, WARM_STEP = 2.0, 1.0, 0.5
"""First step of a descent in radii of the ball: from x across all of it; through a twin half of that, since the twin's
slopes and the model's part with the distance; from a point that is good already, less."""
UNJUDGED = 2 / 3
"""Share of a descent's steps, the first ones, that are not judged where that takes a pass of its own."""
CHALLENGE = 4
"""Steps of the main search per step of a challenger; a challenger takes at least two."""
SOFT_BETA = 5.0
"""Sharpness of the softer copy: a quarter of the twin's own."""
AFRESH = {"noise", "transfer", "another start"}
"""Challengers that do not begin at the best point found so far."""
NOISE = 1 << 34
"""The stream that noise is drawn from, apart from those of starts."""


@dataclass(frozen=True)
class Column:
    """A number that a report shows of an attacked map, lower for the attacker.

    `judge` is the number itself, `stand_ins` differentiable ones that fall with it, the best first. At `floor` it can
    fall no further. `flat_at_x`: the stand-in's slope vanishes at the clean image, so that a search begins beside it.
    `relative`: it has no scale of its own, so that changes count as shares of it. `stepper`, `projection`: of the
    search. `needs`: the setting without which it means nothing.
    """

    judge: Callable[[Scene, Auto], Objective]
    stand_ins: tuple[Callable[[Scene, Auto], Objective], ...]
    floor: float = 0.0
    flat_at_x: bool = False
    relative: bool = False
    stepper: str = "momentum"
    projection: str = "clip"
    needs: str | None = None

    def by(self, share: float, value: Tensor) -> Tensor:
        """A change that counts: so much, or so much of the value."""
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
    """The strongest attack here, aimed at the number that is reported; judge explanations by this one.

    column, the number that is made small:

    - "top_kept": share of the `top_fraction` of pixels ranked highest that stays there;
    - "cosine", "rank_correlation": to the clean map;
    - "insertion": mean probability as the clean image's pixels are put in, in the attacked map's order, at the shares
      `ratios` (the metric adversarial_insertion);
    - "local_lipschitz": minus |map' - map| / |x' - x|, so that the quotient grows;
    - "distance_to_goal": half the squared distance to a goal map (`goal` as in `targeted_map`);
    - "mass_in_mask": share of the map's mass inside `mask` (h w, or one for each image): the map leaves the object.

    steps: at each radius, 11 for a quick look, 20 or more for a report. With several `eps` what was found at smaller
    ones is taken up at larger ones. transfer_from: the attribution to search through, if the map itself has no
    derivative (then the gradient unless set) or costs too much.

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
    max_batch: int = MAX_BATCH

    def check(self) -> None:
        if isinstance(self.ratios, list):
            object.__setattr__(self, "ratios", tuple(self.ratios))
        check_name("column", self.column, COLUMNS)
        check_name("reduction", self.reduce, REDUCTIONS)
        check_goal(self.goal)
        check_counts(steps=self.steps, max_batch=self.max_batch)
        if not 0 < self.top_fraction < 1:
            raise UserError(
                f"top_fraction is {self.top_fraction}; give a fraction of the pixels, such as 0.1."
            )
        if self.mask is None and COLUMNS[self.column].needs == "mask":
            raise UserError(f"{self.column} needs the pixels that count; give mask=, of shape h w or b h w.")
        self.curve()  # refuses ratios that are no shares

    def every_radius(
        self, model: Model, attribution: Attribution, x: Inputs, target: Labels, *, seed: Seed = 0
    ) -> tuple[AttackResult, ...]:
        """One result for each radius, with the flags that it raises about its own search."""
        if self.mask is not None:
            check_mask(self.mask, x)
        results = BallAttack.every_radius(self, model, attribution, x, target, seed=seed)
        return tuple(replace(r, flags=(*r.flags, *raised_flags(r))) for r in results)

    def plan(self) -> AttackPlan:
        """What a run needs; the searches are made in `attack_every_radius`."""
        needs = COLUMNS[self.column].needs
        return plan_of(
            self,
            Search(self.steps),
            self.aim,
            goal=None if needs is None else getattr(self, needs),
            restore=True,
            twin_beta="auto",
            strategy=lambda plan, under: attack_every_radius(self, plan, under),
            step_rows=len(SOFT_SHARES) if self.column == "insertion" else 1,
        )

    def aim(self, scene: Scene, stand_in: int = 0) -> Aim:
        """What is descended and what judges."""
        column = COLUMNS[self.column]
        return Aim(column.stand_ins[stand_in](scene, self), column.judge(scene, self))

    def top(self, scene: Scene) -> Tensor:
        """The pixels of the clean map that are ranked highest."""
        old = reduce(scene.map, self.reduce).abs()
        return top_k_mask(old, max(1, round(self.top_fraction * old[0].numel())))

    def curve(self) -> Any:
        """The insertion metric of the same reduction and shares."""
        return make("metric", "insertion", ratios=self.ratios, reduce=self.reduce, max_batch=self.max_batch)


COLUMNS: dict[str, Column] = {
    "top_kept": Column(
        judge=lambda scene, auto: overlap_with(auto.top(scene), auto.reduce),
        stand_ins=(
            lambda scene, auto: swapped(auto.top(scene), auto.reduce),
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
            lambda scene, auto: swapped(auto.top(scene), auto.reduce),
        ),
        floor=-1.0,
    ),
    "insertion": Column(
        judge=lambda scene, auto: in_insertion_order(scene, auto.curve()),
        stand_ins=(
            lambda scene, auto: softly_inserted(scene, auto.curve(), auto.reduce),
            lambda scene, auto: like_ranks(scene.map, auto.reduce),
        ),
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
        # Steps along the sign fill the corners of the ball, where x' is furthest from x.
        stepper="along",
        projection="rescale",
    ),
    "distance_to_goal": Column(
        judge=lambda scene, auto: toward(the_goal(scene), auto.reduce),
        stand_ins=(
            # The distance itself looks at the largest pixel above all: the way there is rough.
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
    """One mask for all images or one for each, of their height and width."""
    h, w = x.shape[2:]
    if (
        mask.shape[-2:] != (h, w)
        or mask.dim() not in (2, 3)
        or (mask.dim() == 3 and len(mask) not in (1, len(x)))
    ):
        raise UserError(
            f"The mask has shape {tuple(mask.shape)} for images {tuple(x.shape)}; give {h} x {w}, or one per image."
        )


def attack_every_radius(auto: Auto, plan: AttackPlan, under: Attacked) -> list[Found]:
    """The whole story, for a part of the batch: main search and challengers at each radius, smallest first."""
    case = Case.opened(auto, plan, under)
    best, reached = case.clean(), 0.0
    found: dict[float, Found] = {}
    for eps in sorted(set(plan.eps)):
        duel = Duel(case, eps, best)
        if eps > 0:
            duel.search(best.delta * (eps / reached) if reached else None)
            last, long = eps == max(plan.eps), auto.steps >= 2 * CHALLENGE
            if auto.steps >= CHALLENGE:
                # In the end every image that a report could still call steady is tried, in a long search every one.
                doubtful = duel.hardly_moved(1 / 2 if last else 1 / 4) | (last and long)
                duel.noise(doubtful)
                duel.transfer(doubtful)
                duel.softer_model(doubtful | last)  # often the stronger one, where there is one
            duel.squares(case.blind.found, looks=auto.steps)
            if last and long:
                if not case.through_a_cheaper_map:  # there each look would cost as much as many steps
                    duel.squares(~case.blind.found, looks=auto.steps // CHALLENGE)
                duel.another_start()
                duel.more_steps()
            best, reached = duel.best, eps
        found[eps] = duel.found()
    return [found[eps] for eps in plan.eps]


@dataclass(frozen=True)
class Case:
    """What stays the same from radius to radius. `start`: the column at x; `searched`: that of the surrogate's map."""

    auto: Auto
    plan: AttackPlan
    under: Attacked
    column: Column
    start: PerExample
    searched: PerExample
    blind: Blind
    soft: Model | None

    @classmethod
    def opened(cls, auto: Auto, plan: AttackPlan, under: Attacked) -> Case:
        """The clean images, judged once."""

        def judged(scene: Scene) -> PerExample:
            return auto.aim(scene).judge(scene.map, scene.logits, scene.x)

        start = judged(under.scene)
        searched = start if under.searched is under.scene else judged(under.searched)
        soft = softened(under.guide.model)
        return cls(auto, plan, under, COLUMNS[auto.column], start, searched, Blind(under), soft)

    def clean(self) -> Found:
        """The clean images, as the best that is known before a search."""
        scene = self.under.scene
        none = torch.zeros(len(scene.x), dtype=torch.bool, device=scene.x.device)
        steps, still = none.to(torch.int64), torch.zeros_like(scene.x)
        return Found(
            still, self.start, steps, none, none, start=self.start, map=scene.map, logits=scene.logits
        )

    @property
    def through_a_cheaper_map(self) -> bool:
        """The search goes through a map of the same kind that takes fewer passes."""
        surrogate, attribution = self.under.surrogate, self.under.attribution
        return surrogate is not attribution and type(surrogate) is type(attribution)


class Blind:
    """Images whose map has no derivative. Testing costs a step, so only images that did not move are tested."""

    def __init__(self, under: Attacked) -> None:
        self.under = under
        self.found = torch.zeros(len(under.scene.x), dtype=torch.bool, device=under.scene.x.device)
        self._asked = self.found

    def ask(self, suspects: Flags) -> None:
        """Find the blind ones among these."""
        rows = (suspects & ~self._asked).nonzero()[:, 0]
        if len(rows):
            self.found = self.found.index_copy(0, rows, self.under.blind(rows))
            self._asked = self._asked | suspects


@dataclass(frozen=True)
class Judged:
    """What the method itself on the model itself says of perturbed images. `value` is infinite where the label is lost:
    such points do not count."""

    map: Tensor
    logits: Tensor
    value: PerExample


@dataclass(frozen=True, kw_only=True)
class Descent:
    """How to descend: in `steps` steps, the first of length `first_step` x eps; from x unless `begin` or `start` say
    otherwise; along the stand-in of this number; with the slopes of `guide`, through the map of `through`, if given."""

    steps: int
    first_step: float = FIRST_STEP
    begin: Images | None = None
    start: str = "clean"
    stand_in: int = 0
    guide: Guide | None = None
    through: Attribution | None = None


class Duel:
    """One radius: searches one after the other, each on the images that still move, the best point of each kept."""

    def __init__(self, case: Case, eps: float, best: Found) -> None:
        self.case, self.eps, self.best = case, eps, best
        self.under, self.column, self.ball = case.under, case.column, ball(case.plan.norm, eps)
        self.few = max(2, case.auto.steps // CHALLENGE)
        self.main = best.value
        self.misled = torch.zeros_like(best.broken)
        self.beaten_by: dict[str, Flags] = {}

    def search(self, begin: Images | None) -> None:
        """The main search, at full length."""
        through_twin = self.under.guide.model is not self.under.model
        first = WARM_STEP if begin is not None else TWIN_STEP if through_twin else FIRST_STEP
        found = self.descend("main", Descent(steps=self.case.auto.steps, begin=begin, first_step=first))
        self.main = self.best.value
        if found is not None:
            rows, one = found
            stuck = torch.zeros_like(self.misled).index_copy(0, rows, one.stuck)
            self.case.blind.ask(stuck | self.hardly_moved())
            self.misled = self._misled(rows, one)

    def noise(self, only: Flags) -> None:
        """One draw of noise of the same size: an attacker could have drawn it too."""
        rows = self._moving(only)
        if len(rows):
            x = self.under.scene.x[rows]
            direction = signs(self.under.streams[rows], tuple(x.shape[1:]), stream=NOISE, dtype=x.dtype)
            delta = self.under.box.cut(x, self.ball.steepest(direction) * self.eps)
            self._offer("noise", rows, delta)

    def transfer(self, only: Flags) -> None:
        """The gradient map in place of a map whose own slope may mislead; at full length where it has none."""
        if not isinstance(self.under.surrogate, Gradient):
            gradient, blind = make("attribution", STAND_IN), self.case.blind.found
            self.descend("transfer", Descent(steps=self.few, through=gradient), only & ~blind)
            self.descend("transfer", Descent(steps=self.case.auto.steps, through=gradient), blind)

    def softer_model(self, only: Flags) -> None:
        """The same through a copy whose activations bend more softly, where they are so sharp that slopes vanish."""
        if self.case.soft is not None:
            self.descend("softer model", self._from_best(Guide(self.case.soft)), only)

    def another_start(self) -> None:
        """Another objective, from a random point."""
        self.descend("another start", Descent(steps=self.few, start="random", stand_in=1))

    def more_steps(self) -> None:
        """Further from the best point, in small steps."""
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

    def descend(self, name: str, how: Descent, only: Flags | None = None) -> tuple[Tensor, Found] | None:
        """One descent, and the offer of what it found; the rows that were searched and the search's own account."""
        rows = self._moving(only)
        if not len(rows):
            return None
        under, scene = self.under, self.under.searched.rows(rows)
        start: PerExample | None = self.case.searched[rows]
        if how.through is not None:
            map, _ = look(under.model, how.through, scene.x, scene.target, graph=False)
            scene, start = replace(scene, map=map), None
        from_x = how.begin is None and how.start == "clean"
        how_to = Search(
            how.steps,
            how.first_step * self.eps,
            self.column.stepper,
            self.column.projection,
            start="random" if from_x and self.column.flat_at_x else how.start,
            decay=True,
            stop_at=self.column.floor,
            open_end=True,
            judge_from=round(UNJUDGED * how.steps),
        )
        plan = replace(
            self.case.plan, aim=lambda scene: self.case.auto.aim(scene, how.stand_in), search=how_to
        )
        seen_through = (how.through or under.surrogate, how.guide or under.guide)
        at_x = from_x and not self.column.flat_at_x
        ask, clean = asker(plan, under.model, *seen_through, scene, start=start, begins_at_x=at_x)
        begin = None if how.begin is None else how.begin[rows]
        one = search(scene.x, how_to, self.ball, under.box, ask, clean, under.streams[rows], begin)
        best = self.best
        self.best = best.updated(
            rows, steps=best.steps[rows] + one.steps, broken=best.broken[rows] | one.broken
        )
        # Steps shrink, so that the last iterate is mostly the best; where it is not, the best of the others may be.
        self._offer(name, rows, one.delta if one.last is None else one.last)
        exact = how.through is None and under.surrogate is under.attribution
        unmoved = self.best.value[rows] == best.value[rows]
        other = (one.value < self.best.value[rows] if exact else unmoved) & (one.delta != 0).flatten(1).any(1)
        self._offer(name, rows[other], one.delta[other])
        return rows, one

    def hardly_moved(self, share: float = 1 / 4) -> Flags:
        """Images whose column has fallen by less than this share of the way: steady, or a search that was misled."""
        start = self.case.start
        whole = torch.ones_like(start) if math.isinf(self.column.floor) else start - self.column.floor
        return start - self.best.value < share * whole

    def found(self) -> Found:
        """As a result of a run. A map without a derivative that nothing moved says nothing: `stuck`."""
        best, flat = self.best, self.under.scene.map.flatten(1)
        constant = flat.amax(1) == flat.amin(1)
        unmoved = (best.delta == 0).flatten(1).all(1)
        stuck = (constant | (self.case.blind.found & unmoved)) & (self.eps > 0)
        return replace(best, stuck=stuck, beaten_by=self.beaten_by, misled=self.misled)

    def _from_best(self, guide: Guide | None = None) -> Descent:
        return Descent(steps=self.few, begin=self.best.delta, first_step=WARM_STEP, guide=guide)

    def _moving(self, only: Flags | None = None) -> Tensor:
        """The rows whose column can still fall."""
        moving = self.best.value > self.column.floor
        return (moving if only is None else moving & only).nonzero()[:, 0]

    def _judge(self, rows: Tensor, delta: Images) -> Judged:
        """What the method itself on the model itself says."""
        scene = self.under.scene.rows(rows)
        x = scene.x + delta
        if not len(rows):
            return Judged(scene.map, scene.logits, scene.x.new_zeros(0))
        map, logits = look(self.under.model, self.under.attribution, x, scene.target, graph=False)
        value = self.case.auto.aim(scene).judge(map, logits, x)
        kept = logits.argmax(1) == scene.logits.argmax(1)
        return Judged(map, logits, torch.where(kept, value, math.inf))

    def _offer(self, name: str, rows: Tensor, delta: Images) -> None:
        """Look at what was found, take what is better, and note on which images a challenger clearly won.

        One that began at the best point has to improve on that, any other on what the main search found.
        """
        judged = self._judge(rows, delta)
        if name != "main":
            rival = (self.main if name in AFRESH else self.best.value)[rows]
            won = judged.value < rival - self.column.by(WIN_MARGIN, rival)
            before = self.beaten_by.get(name, torch.zeros_like(self.misled))
            self.beaten_by[name] = before.index_copy(0, rows, before[rows] | won)
        better = (judged.value < self.best.value[rows]).nonzero()[:, 0]
        point = {"delta": delta, "value": judged.value, "map": judged.map, "logits": judged.logits}
        self.best = self.best.updated(rows[better], **{name: new[better] for name, new in point.items()})

    def _misled(self, rows: Tensor, one: Found) -> Flags:
        """Where the main search's objective fell and the column did not."""
        start = self.case.start[rows]
        fall = torch.zeros_like(start) if one.fall is None else one.fall.nan_to_num(0.0, posinf=0.0)
        stood = start - self.best.value[rows] < self.column.by(MISLED_COLUMN, start)
        return torch.zeros_like(self.misled).index_copy(0, rows, (fall > MISLED_FALL) & stood)


def softened(model: Model) -> Model | None:
    """A copy with every Softplus as soft as `SOFT_BETA`; None where none is sharper."""
    sharp = [module for module in model.modules() if isinstance(module, nn.Softplus)]
    if not any(module.beta > SOFT_BETA for module in sharp):
        return None
    # Weights are shared with the model: the copy is only differentiated to x.
    shared = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}
    soft = copy.deepcopy(model, shared)
    for module in soft.modules():
        if isinstance(module, nn.Softplus):
            module.beta = min(module.beta, SOFT_BETA)
    return soft
