"""Attack what is reported: the attack to judge an explanation by. It has one knob, `steps`.

A robustness number is only as good as the attack behind it. `auto` minimises the very column a report shows (the share
of the top pixels kept, say) for the method, class, k and reduction that are judged. For each radius, from the smallest
to the largest:

1. descend a smooth stand-in of the column with momentum, in steps as long as the ball at first and falling to zero;
   begin where the smaller radius ended, stretched to the new one;
2. let challengers try to beat what was found: noise, the gradient map in place of the map itself and a softer copy of
   the model, on images whose column has hardly fallen, and at the largest radius on all; there also, unless steps
   is small, a search without derivatives, another objective from a random start, and more steps;
3. keep, for each image, the point with the lowest column among those that keep the prediction. The column is always
   that of the method itself on the model itself, whatever the search went through.

What a challenger finds counts; if challengers often win, a flag says that the main search is not to be trusted. Images
whose column can fall no further are left out of what follows, so that the time goes to those that still move.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor, nn

from gyrograd.attacks.loop import Found, Search, search
from gyrograd.attacks.named import Radii, Results, check_radii, one_or_all, radii, settings_of
from gyrograd.attacks.objectives import (
    Aim,
    Objective,
    Scene,
    away_from,
    like_ranks,
    mass_on,
    overlap_with,
    rank_order,
    swapped,
)
from gyrograd.attacks.result import AttackResult
from gyrograd.attacks.runs import STAND_IN, Attacked, Job, asker, look, run
from gyrograd.attacks.squares import Judged, try_squares
from gyrograd.attacks.twin import Guide
from gyrograd.attributions.batching import MAX_BATCH
from gyrograd.attributions.gradient import Gradient
from gyrograd.attributions.settings import same_settings, settings_hash
from gyrograd.errors import UserError, check_name
from gyrograd.numerics.balls import ball
from gyrograd.numerics.maps import REDUCTIONS, reduce, top_k_mask
from gyrograd.numerics.random import signs
from gyrograd.registry import make, register
from gyrograd.types import Attribution, Flags, Images, Labels, Model, PerExample, Seed

FIRST_STEP, WARM_STEP, LAST_STEP = 2.0, 1.0, 0.5
"""First step of a descent in radii of the ball: from x across all of it; from a point that is good already, less."""
CHALLENGE = 4
"""A challenger gets one step for so many of the main search, and at least two."""
SOFT_BETA = 5.0
"""Sharpness of the softer copy: a quarter of the twin's own."""
WON = 0.05
"""A challenger beats the main search on an image if its column is lower by more than this."""
OFTEN = 0.1
"""The share of images on which a challenger must win for a flag."""
AFRESH = {"noise", "transfer", "another start"}
"""Challengers that do not begin at the best point found so far."""
NOISE = 1 << 34
"""The stream that noise is drawn from, apart from those of starts."""


@dataclass(frozen=True)
class Column:
    """A number that a report shows of an attacked map, lower for the attacker.

    `judge` is the number itself, `stand_ins` differentiable ones that fall with it, the best first. At `floor` it can
    fall no further. `flat_at_x`: the stand-in's slope vanishes at the clean image, so that a search begins beside it.
    """

    judge: Callable[[Scene, Auto], Objective]
    stand_ins: tuple[Callable[[Scene, Auto], Objective], ...]
    floor: float
    flat_at_x: bool = False


@register("attack", "auto", paper="own", equation="docs/concepts/attacks.md; after Croce and Hein 2020")
@dataclass(frozen=True, kw_only=True, eq=False)
class Auto:
    """The strongest attack here, aimed at the number that is reported; judge explanations by this one.

    column: "top_kept" (share of the `top_fraction` of pixels ranked highest that stays there), "cosine" or
    "rank_correlation", to the clean map. steps: at each radius, 6 for a quick look, 16 or more for a report. With
    several `eps` what was found at smaller ones is taken up at larger ones. transfer_from: the attribution to search
    through, if the map itself has no derivative (then the gradient unless set) or costs too much.

    >>> import gyrograd as gg, torch
    >>> model, x = gg.model("mlp", in_features=48, seed=0), torch.rand(2, 3, 4, 4)
    >>> hit = gg.attack("auto", eps=8 / 255, steps=2)(model, gg.attribution("gradient"), x, torch.tensor([0, 1]))
    >>> bool((hit.value <= hit.start).all())
    True
    """

    name: ClassVar[str] = "auto"
    eps: Radii = 8 / 255
    norm: str = "linf"
    column: str = "top_kept"
    steps: int = 20
    top_fraction: float = 0.1
    reduce: str = "abs_sum"
    transfer_from: str | Attribution | None = None
    max_batch: int = MAX_BATCH

    def __post_init__(self) -> None:
        if isinstance(self.eps, list):
            object.__setattr__(self, "eps", tuple(self.eps))
        check_radii(self)
        check_name("column", self.column, COLUMNS)
        check_name("reduction", self.reduce, REDUCTIONS)
        for name in ("steps", "max_batch"):
            if getattr(self, name) < 1:
                raise UserError(f"{name} is {getattr(self, name)}; give at least 1.")
        if not 0 < self.top_fraction < 1:
            raise UserError(f"top_fraction is {self.top_fraction}; give a share of the pixels, such as 0.1.")

    def __call__(
        self, model: Model, attribution: Attribution, x: Images, target: Labels, *, seed: Seed = 0
    ) -> Results:
        results = run(self.job(), model, attribution, x, target, seed=seed)
        return one_or_all(self.eps, tuple(replace(r, flags=(*r.flags, *doubts(r))) for r in results))

    def __eq__(self, other: object) -> bool:
        return same_settings(self, other)

    def __hash__(self) -> int:
        return settings_hash(self)

    def job(self) -> Job:
        """What a run needs; the searches are made in `attack_every_radius`."""
        return Job(
            name=self.name,
            settings=settings_of(self),
            eps=radii(self.eps),
            norm=self.norm,
            search=Search(self.steps),
            aim=self.aim,
            reduce=self.reduce,
            restore=True,
            twin_beta="auto",
            transfer_from=self.transfer_from,
            max_batch=self.max_batch,
            strategy=lambda job, under: attack_every_radius(self, job, under),
        )

    def aim(self, scene: Scene, stand_in: int = 0) -> Aim:
        """What is descended and what judges."""
        column = COLUMNS[self.column]
        return Aim(column.stand_ins[stand_in](scene, self), column.judge(scene, self))

    def top(self, scene: Scene) -> Tensor:
        """The pixels of the clean map that are ranked highest."""
        old = reduce(scene.map, self.reduce).abs()
        return top_k_mask(old, max(1, round(self.top_fraction * old[0].numel())))


COLUMNS: dict[str, Column] = {
    "top_kept": Column(
        judge=lambda scene, auto: overlap_with(auto.top(scene), auto.reduce),
        stand_ins=(
            lambda scene, auto: swapped(auto.top(scene), auto.reduce),
            lambda scene, auto: mass_on(auto.top(scene), auto.reduce),
        ),
        floor=0.0,
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
}


def attack_every_radius(auto: Auto, job: Job, under: Attacked) -> list[Found]:
    """The whole story, for a part of the batch: main search and challengers at each radius, smallest first."""
    best, reached, soft = Best.clean(job, under), 0.0, softened(under.guide.model)
    found: dict[float, Found] = {}
    for eps in sorted(set(job.eps)):
        if eps > 0:
            duel = Duel(auto, job, under, eps, best)
            stretched = best.delta * (eps / reached) if reached else None
            duel.descend("main", begin=stretched, steps=auto.steps)
            last = eps == max(job.eps)
            doubtful = (duel.hardly_moved() | last) & (auto.steps >= CHALLENGE)
            duel.noise(doubtful)
            duel.transfer(doubtful)
            duel.softer_model(doubtful, soft)
            duel.squares(only=under.blind, looks=auto.steps)
            if last and auto.steps >= 2 * CHALLENGE:
                if (
                    type(under.surrogate) is not type(under.attribution)
                    or under.surrogate is under.attribution
                ):
                    # Not where a cheaper map of the same kind is searched: each look would cost as much as many steps.
                    duel.squares(only=~under.blind, looks=auto.steps // CHALLENGE)
                duel.descend("another start", stand_in=1, start="random")
                duel.descend("more steps", begin=duel.best.delta, first_step=LAST_STEP)
            best, reached = duel.best, eps
        found[eps] = best.found(under, eps, duel.beaten_by if eps > 0 else {})
    return [found[eps] for eps in job.eps]


@dataclass(frozen=True)
class Best:
    """The worst point found of each image, its column, and how many steps were taken for it."""

    delta: Images
    value: PerExample
    steps: Tensor
    broken: Flags

    @classmethod
    def clean(cls, job: Job, under: Attacked) -> Best:
        """The clean images."""
        scene = under.scene
        value = job.aim(scene).judge(scene.map, scene.logits)
        steps = torch.zeros(len(scene.x), dtype=torch.int64, device=scene.x.device)
        return cls(torch.zeros_like(scene.x), value, steps, torch.zeros_like(value, dtype=torch.bool))

    def found(self, under: Attacked, eps: float, beaten_by: dict[str, Flags]) -> Found:
        """As a result of a run. A map without a derivative that nothing moved says nothing: `stuck`."""
        flat = under.scene.map.flatten(1)
        constant = flat.amax(1) == flat.amin(1)
        unmoved = (self.delta == 0).flatten(1).all(1)
        stuck = (constant | (under.blind & unmoved)) & (eps > 0)
        return Found(self.delta, self.value, self.steps, stuck, self.broken, beaten_by=beaten_by)


class Duel:
    """One radius: searches one after the other, each on the images that still move, the best point of each kept."""

    def __init__(self, auto: Auto, job: Job, under: Attacked, eps: float, best: Best) -> None:
        self.auto, self.job, self.under, self.eps, self.best = auto, job, under, eps, best
        self.ball = ball(job.norm, eps)
        self.main = best.value
        self.beaten_by: dict[str, Flags] = {}

    def descend(
        self,
        name: str,
        *,
        stand_in: int = 0,
        begin: Tensor | None = None,
        start: str = "clean",
        first_step: float | None = None,
        guide: Guide | None = None,
        through: Attribution | None = None,
        steps: int | None = None,
        only: Flags | None = None,
    ) -> None:
        """A descent: along a stand-in, from a point, on the guide's slopes, through an attribution's map."""
        rows = self._moving(only)
        if not len(rows):
            return
        under, steps = self.under, steps or max(2, self.auto.steps // CHALLENGE)
        if begin is None and start == "clean" and COLUMNS[self.auto.column].flat_at_x:
            start = "random"
        length = first_step or (FIRST_STEP if begin is None else WARM_STEP)
        how = Search(steps, length * self.eps, "momentum", start=start, decay=True, stop_at=self._floor)
        scene = under.searched.rows(rows)
        if through is not None:
            map, _ = look(under.model, through, scene.x, scene.target, graph=False)
            scene = replace(scene, map=map)
        job = replace(self.job, aim=lambda scene: self.auto.aim(scene, stand_in), search=how)
        ask, clean = asker(job, under.model, through or under.surrogate, guide or under.guide, scene)
        first = None if begin is None else begin[rows]
        one = search(scene.x, how, self.ball, under.box, ask, clean, under.streams[rows], first)
        value = one.value
        if through is not None or under.surrogate is not under.attribution:
            _, value, kept = self._judged(rows, scene.x + one.delta)
            value = torch.where(kept, value, torch.inf)
        self._offer(name, rows, one.delta, value, one.steps, one.broken)

    def hardly_moved(self) -> Flags:
        """Images whose column has fallen by less than a quarter of the way: steady, or a search that was misled."""
        aim = self.job.aim(self.under.scene)
        start = aim.judge(self.under.scene.map, self.under.scene.logits)
        return start - self.best.value < (start - self._floor) / 4

    def noise(self, only: Flags) -> None:
        """One draw of noise of the same size: an attacker could have drawn it too."""
        rows = self._moving(only)
        if len(rows):
            x = self.under.scene.x[rows]
            direction = signs(self.under.streams[rows], tuple(x.shape[1:]), stream=NOISE, dtype=x.dtype)
            delta = self.under.box.cut(x, self.ball.steepest(direction) * self.eps)
            _, value, kept = self._judged(rows, x + delta)
            self._offer("noise", rows, delta, torch.where(kept, value, torch.inf))

    def transfer(self, only: Flags) -> None:
        """The gradient map in place of a map whose own slope may mislead; at full length where it has none."""
        if not isinstance(self.under.surrogate, Gradient):
            gradient, blind = make("attribution", STAND_IN), self.under.blind
            self.descend("transfer", through=gradient, only=only & ~blind)
            self.descend("transfer", through=gradient, only=blind, steps=self.auto.steps)

    def softer_model(self, only: Flags, soft: Model | None) -> None:
        """The same through a copy whose activations bend more softly, where they are so sharp that slopes vanish."""
        if soft is not None:
            self.descend("softer model", begin=self.best.delta, guide=Guide(soft), only=only)

    def squares(self, only: Flags, looks: int) -> None:
        """A search without derivatives."""
        rows = self._moving(only)
        if len(rows):
            x, keys = self.under.scene.x[rows], self.under.streams[rows]
            delta, value = try_squares(
                x,
                self.best.delta[rows],
                self.ball,
                self.under.box,
                lambda z: self._judged(rows, z),
                keys,
                looks,
            )
            self._offer("squares", rows, delta, value)

    @property
    def _floor(self) -> float:
        return COLUMNS[self.auto.column].floor

    def _moving(self, only: Flags | None = None) -> Tensor:
        """The rows whose column can still fall."""
        moving = self.best.value > self._floor
        return (moving if only is None else moving & only).nonzero()[:, 0]

    def _judged(self, rows: Tensor, perturbed: Tensor) -> Judged:
        """What the method itself on the model itself says."""
        scene = self.under.scene.rows(rows)
        map, logits = look(self.under.model, self.under.attribution, perturbed, scene.target, graph=False)
        aim = self.auto.aim(scene)
        return aim.descend(map, logits), aim.judge(map, logits), logits.argmax(1) == scene.logits.argmax(1)

    def _offer(
        self,
        name: str,
        rows: Tensor,
        delta: Tensor,
        value: Tensor,
        steps: Tensor | None = None,
        broken: Tensor | None = None,
    ) -> None:
        """Take what is better, and note on which images a challenger clearly won.

        One that began at the best point has to improve on that, any other on what the main search found.
        """
        best = self.best
        better = value < best.value[rows]
        if name != "main":
            rival = self.main if name in AFRESH else best.value
            won = torch.zeros_like(best.broken)
            won[rows] = value < rival[rows] - WON
            self.beaten_by[name] = self.beaten_by.get(name, torch.zeros_like(won)) | won
        chosen = rows[better]
        self.best = Best(
            best.delta.index_copy(0, chosen, delta[better]),
            best.value.index_copy(0, chosen, value[better]),
            best.steps if steps is None else best.steps.index_add(0, rows, steps),
            best.broken if broken is None else best.broken.index_copy(0, rows, best.broken[rows] | broken),
        )
        if name == "main":
            self.main = self.best.value


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


@dataclass(frozen=True)
class Doubt:
    """Why a number under attack may be too kind: raised if, explanation, what to do."""

    challenger: str
    explanation: str
    what_to_do: str

    @property
    def raised_if(self) -> str:
        """When it is raised."""
        return (
            f"{self.challenger} lowered the column by more than {WON:g} below the main search on more than "
            f"{OFTEN:.0%} of the images"
        )


DOUBTS = {
    doubt.challenger: doubt
    for doubt in (
        Doubt("more steps", "The search had not come to its end.", "Raise steps."),
        Doubt(
            "another start",
            "The search ends at different places from different starts, and not at the worst.",
            "Raise steps; report the worst of several seeds.",
        ),
        Doubt(
            "softer model",
            "The activations are so sharp that slopes vanish or jump, and a softer copy leads further.",
            "Raise steps, and read the number as what was found, not as what holds.",
        ),
        Doubt(
            "transfer",
            "The gradient map leads further than the map's own derivative, which is masked or misleading.",
            "Do not call this map steady; attack it through others too: transfer_from=.",
        ),
        Doubt(
            "noise",
            "Noise of the same size finds what the search does not: its derivative is zero, masked or noisy.",
            "Do not call this map steady; look at its derivative (metrics.suspicion.zero_derivative).",
        ),
        Doubt(
            "squares",
            "Trying squares of pixels finds what following the derivative does not: it is zero, masked or noisy.",
            "Do not call this map steady; raise steps, so that it tries more squares.",
        ),
    )
}
"""What it means that a challenger wins, by its name."""


def doubts(result: AttackResult) -> Iterator[str]:
    """A sentence for each challenger that won often."""
    for name, won in result.beaten_by.items():
        if won.double().mean() > OFTEN:
            doubt = DOUBTS[name]
            counted = f"{int(won.sum())} of {len(won)} images"
            yield f"beaten by {name} on {counted}: {doubt.explanation} {doubt.what_to_do}"
