"""From an attack's settings to its result: checks, the clean pass, the search in parts, the final evaluation.

Passes of the model: one for the clean images (and one to test that the map has a derivative), one per step (two with a
twin: the twin is differentiated, the model evaluates) and one at the end. If a method of this package runs a forward
pass at x, the logits come from that pass.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import NamedTuple
from weakref import WeakSet

import torch
from torch import Tensor

from gyrograd.attacks.looks import has_hash, look, look_at_clean, once_per_model
from gyrograd.attacks.loop import Answer, Ask, Box, Search, SearchResult, Verdict, search
from gyrograd.attacks.objectives import Aim, Objective, Scene, goal_maps, margin
from gyrograd.attacks.result import AttackResult, concatenate_results, in_shape_of
from gyrograd.attacks.twin import IF_NEEDED, Guide, TwinBeta, guide_for
from gyrograd.attributions import as_attribution
from gyrograd.attributions.batching import (
    MAX_BATCH,
    in_parts,
    is_out_of_memory,
    rows_at_once,
    rows_per_example,
)
from gyrograd.attributions.segments import as_images
from gyrograd.attributions.settings import passes_of
from gyrograd.errors import UserError
from gyrograd.models import InShape
from gyrograd.models.class_names import own_class_names
from gyrograd.numerics.balls import L2, Linf, ball
from gyrograd.numerics.bfloat16 import bfloat16_pays, in_bfloat16
from gyrograd.numerics.checks import (
    answers_change,
    check_fits,
    check_images,
    check_inputs,
    check_not_compiled,
    check_target,
    class_indices,
    in_grey_levels,
    is_being_recorded,
    try_model,
)
from gyrograd.numerics.maps import holds_nan
from gyrograd.numerics.modes import eval_mode, freeze_weights
from gyrograd.numerics.random import Keys, keys, normal
from gyrograd.numerics.second_order import made_for_second_derivatives, single
from gyrograd.records import JsonObject
from gyrograd.registry import fact, make
from gyrograd.types import (
    Attribution,
    Flags,
    Images,
    Labels,
    Logits,
    Model,
    PerExample,
    Seed,
    Targets,
)

STAND_IN = "gradient"
"""The attribution through which `auto`, audits and the explorer search for maps that have no derivative."""


@dataclass(frozen=True, eq=False)
class AttackPlan:
    """Everything that a run needs to know about an attack. `sees_maps` is False for attacks on the prediction.

    penalty: weight of the change of the clean logits in the objective, if it has one.
    strategy: finds a perturbation per eps; by default each eps is searched separately with `search`. step_rows: model
    rows per example that the objective of a step needs, besides those of the map.
    """

    name: str
    settings: JsonObject
    eps: tuple[float, ...]
    norm: str
    search: Search
    aim: Callable[[Scene], Aim]
    sees_maps: bool = True
    goal: str | Tensor | None = None
    scale: str = "max"
    reduce: str = "abs_sum"
    explained: str = "target"
    box: str = "unit"
    restore: bool = False
    penalty: float | None = None
    twin_beta: TwinBeta = None
    transfer_from: str | Attribution | None = None
    max_batch: int = MAX_BATCH
    strategy: Strategy | None = None
    step_rows: int = 1

    @property
    def follows_maps(self) -> bool:
        """True if the search follows the derivative of a map; noise takes no steps, and pgd uses only logits."""
        return self.sees_maps and self.search.steps > 0

    def scene(
        self, model: Model, attribution: Attribution, x: Tensor, target: Tensor, map: Tensor, logits: Tensor
    ) -> Scene:
        """The clean side of an objective, its goal map included."""
        if self.goal is None:
            return Scene(x, target, map, logits, None, model)
        maps = goal_maps(self.goal, model, attribution, x, self.reduce, self.scale)
        return Scene(x, target, map, logits, maps, model)


class Begin(NamedTuple):
    """Where a search starts: a change of x, with map and logits of the changed images."""

    delta: Images
    map: Tensor
    logits: Logits


@dataclass(frozen=True, eq=False)
class AttackBatch:
    """The part of a batch that is attacked at once.

    `scene` holds the clean maps of the attribution, `searched` those of `surrogate`, the attribution that the search
    uses (usually the same). `guide` is the model to differentiate for the surrogate's map, `for_gradients` the one for
    gradient maps. `max_rows`: most rows of the model in one pass. `begin`: what an earlier search found, from which
    this one starts; None: the attack's own start.
    """

    model: Model
    attribution: Attribution
    surrogate: Attribution
    guide: Guide
    for_gradients: Guide
    box: Box
    scene: Scene
    searched: Scene
    streams: Keys
    max_rows: int = MAX_BATCH
    begin: Begin | None = None

    def blind(self, rows: Tensor) -> Flags:
        """True per row if the surrogate's map has no derivative to x there."""
        self.guide.set_step(0, 1)  # a growing twin is as sharp as the last search left it
        at_once = _examples_at_once(self.max_rows, self.surrogate, self.model)
        return torch.cat([self._blind(part) for part in rows.split(at_once)])

    def _blind(self, rows: Tensor) -> Flags:
        # Tested with a random combination of the map, because the objective's own derivative may vanish at x.
        scene = self.searched.rows(rows)
        shape, dtype = tuple(scene.x.shape[1:]), scene.x.dtype
        along = normal(self.streams[rows], shape, stream=1 << 32, dtype=dtype)
        found = derivative(
            self.guide.model,
            self.surrogate,
            scene.x,
            scene.target,
            lambda map, *_: (map * along).flatten(1).sum(1),
        )
        return (found.gradient == 0).flatten(1).all(1)


Strategy = Callable[[AttackPlan, AttackBatch], list[SearchResult]]
"""Finds a perturbation per eps of the plan, in the plan's order, by any number of searches."""


def run(
    plan: AttackPlan,
    model: Model,
    attribution: Attribution,
    x: Tensor,
    target: Targets,
    *,
    seed: Seed = 0,
    begin: AttackResult | None = None,
) -> tuple[AttackResult, ...]:
    """One result per eps, each searched separately from the same clean pass.

    `begin`: an attack on the same map, from whose images a strategy may start its first search, instead of x.
    Inputs that are not images have no box; they are searched as one row of pixels.
    """
    check_attackable(x, plan.box)
    if x.dim() == 4 and plan.box == "unit" and plan.norm == "linf" and max(plan.eps) > 1:
        raise in_grey_levels("eps", max(plan.eps))
    attribution = as_attribution(attribution)
    if plan.follows_maps:
        check_not_compiled(model)
    if x.dim() != 4:
        check_fits(model, x)
    target = class_indices(target, x)
    try_model(model, x)
    if x.dim() != 4:
        free, shaped = replace(plan, box="none"), InShape(model, x.shape[1:])
        start = None if begin is None else in_shape_of(as_images(begin.x), begin)
        return tuple(
            in_shape_of(x, result)
            for result in run(free, shaped, attribution, as_images(x), target, seed=seed, begin=start)
        )
    return _run_on_images(plan, model, attribution, x.detach(), target, keys(seed, len(x), x.device), begin)


def _run_on_images(
    plan: AttackPlan,
    model: Model,
    attribution: Attribution,
    x: Images,
    target: Labels,
    streams: Keys,
    begin: AttackResult | None,
) -> tuple[AttackResult, ...]:
    """`run` after its checks: the search for each part of the batch, and its results with their flags."""
    box = Box.of(plan.box, x)
    with eval_mode(model), ExitStack() as held:
        surrogate = _surrogate(plan, model, attribution, x, target)
        guide, for_gradients = _guides(plan, model, surrogate, x)
        max_rows = rows_at_once(plan.max_batch, x)
        size = _examples_at_once(max_rows, surrogate, model, plan.step_rows)
        if _radii_at_once(plan, x):
            size = max(1, size // len(plan.eps))
        if not x.is_cuda:
            # More than fit one pass, so that passes stay full when some examples have left the search.
            size = max(size, max_rows)
        held.enter_context(freeze_weights(model, for_gradients.model))

        def part(rows: slice) -> list[AttackResult]:
            """All eps for a part of the batch."""
            own = _rows(plan, rows, len(x))
            chosen, map, logits = clean_look(model, attribution, x[rows], target[rows], plan.explained)
            scene = searched = own.scene(model, attribution, x[rows], chosen, map, logits)
            if surrogate is not attribution:
                hidden, _ = look_at_clean(model, surrogate, x[rows], chosen)
                searched = own.scene(model, surrogate, x[rows], chosen, hidden, logits)
            under = AttackBatch(
                model,
                attribution,
                surrogate,
                guide,
                for_gradients,
                box=box.rows(rows, len(x)),
                scene=scene,
                searched=searched,
                streams=streams[rows],
                max_rows=max_rows,
                begin=None if begin is None else _begin(model, begin, rows),
            )
            found = (plan.strategy or each_afresh)(own, under)
            return [_result(own, under, one, eps) for eps, one in zip(plan.eps, found, strict=True)]

        parts = list(in_parts(part, len(x), size))
    results = [concatenate_results(of_one_eps) for of_one_eps in zip(*parts, strict=True)]
    return tuple(replace(r, flags=_flags(r, model, guide, attribution, surrogate, target)) for r in results)


def _guides(plan: AttackPlan, model: Model, surrogate: Attribution, x: Images) -> tuple[Guide, Guide]:
    """The model to differentiate for the surrogate's map, and that for maps that are gradients."""
    if not plan.follows_maps:
        return Guide(model), Guide(model)
    form = (tuple(x.shape[1:]), x.dtype, x.device)
    for_gradients = once_per_model(lambda: guide_for(model, x, plan.twin_beta), model, plan.twin_beta, form)
    # A twin that nobody asked for serves maps that are gradients: their derivative is the model's second one, which a
    # net of ReLUs lacks. That of a map of forward passes is the first.
    forward_only = fact("attribution", surrogate, "forward_only") and plan.twin_beta in (*IF_NEEDED, None)
    return Guide(model) if forward_only else for_gradients, for_gradients


def _begin(model: Model, hit: AttackResult, rows: slice) -> Begin:
    """The start of a search from these rows of a result, whose map is known already."""
    x = hit.x[rows]
    _, logits = look(model, None, x, hit.target[rows], graph=False)
    return Begin(x - hit.x_clean[rows], hit.map[rows], logits)


def check_attackable(x: Tensor, box: str = "unit") -> None:
    """Refuse images outside of [0, 1] (unless there is no box), and inference mode."""
    if box == "none" or (isinstance(x, Tensor) and x.dim() != 4 and x.is_floating_point()):
        check_inputs(x)
    else:
        check_images(x)
    if torch.is_inference_mode_enabled():
        raise UserError(
            "An attack takes gradients, which torch.inference_mode() forbids; use torch.no_grad()."
        )


def each_afresh(plan: AttackPlan, under: AttackBatch) -> list[SearchResult]:
    """One search per eps."""
    b, device = len(under.scene.x), under.scene.x.device
    together = _radii_at_once(plan, under.scene.x)
    rows = torch.arange(b, device=device).repeat(len(plan.eps) if together else 1)
    radii = [under.scene.x.new_tensor(plan.eps).repeat_interleave(b)] if together else plan.eps
    scene, box, streams = under.searched.rows(rows), under.box.rows(rows, b), under.streams[rows]
    surrogate = under.surrogate if plan.sees_maps else None
    ask, clean = asker(plan, under.model, surrogate, under.guide, scene, max_rows=under.max_rows)
    blind = under.blind(rows) if plan.follows_maps else torch.zeros_like(clean.kept)
    how, found = plan.search, []
    if (how.selection, how.constraint) == ("last", "soft") and how.stop_at is None and not how.trace:
        # The last iterate is returned whatever its value, so no verdict on it is needed: `_result` evaluates it.
        how = replace(how, open_end=True)
    for eps in radii:
        one = search(scene.x, how, ball(plan.norm, eps), box, ask, clean, streams)
        delta = one.delta if one.last is None else one.last
        found.append(replace(one, delta=delta, stuck=one.stuck | (blind & (eps > 0))))
    return [found[0].rows(slice(at, at + b)) for at in range(0, len(rows), b)] if together else found


def _radii_at_once(plan: AttackPlan, x: Tensor) -> bool:
    """True if all radii are searched together: on a GPU, where a step on more rows hardly takes longer."""
    return x.is_cuda and plan.strategy is None and len(plan.eps) > 1 and not plan.search.trace


def clean_look(
    model: Model, attribution: Attribution, x: Tensor, target: Tensor, explained: str
) -> tuple[Labels, Tensor, Logits]:
    """The explained class, its map and the logits of the clean images."""
    if explained == "prediction":
        with torch.no_grad():
            target = model(x).argmax(1)
    map, logits = look_at_clean(model, attribution, x, target)
    check_target(target, *logits.shape)
    return target, map, logits


def asker(
    plan: AttackPlan,
    model: Model,
    attribution: Attribution | None,
    guide: Guide,
    scene: Scene,
    *,
    max_rows: int = MAX_BATCH,
    start: PerExample | None = None,
    begins_at_x: bool = False,
    economy: Economy | None = None,
) -> tuple[Ask, Verdict]:
    """The `ask` function of the loop, and the verdict on the clean images.

    Derivatives come from the guide, verdicts from the model, in one pass if they are the same; no step has more than
    `max_rows` rows of the model in a pass. `start`: the value of the clean images, if known. `begins_at_x`: the first
    call is for x itself, whose verdict is known. With an `economy` verdicts can be estimates, and the caller must
    evaluate what it keeps.
    """
    guided = _seen_by(guide, scene) if plan.penalty and guide.model is not model else scene
    clean = (
        _verdict(plan.aim(scene), scene, scene.map, scene.logits, scene.x)
        if start is None
        else Verdict(start, torch.ones_like(scene.target, dtype=torch.bool))
    )
    known = clean if begins_at_x else None
    return _Asker(
        plan, model, attribution, guide, scene, guided, plan.aim(scene), max_rows, known, economy or Economy()
    ), clean


@dataclass(frozen=True)
class Economy:
    """Cheaper derivatives for steps whose rough direction is enough.

    fast: take steps in bfloat16 where that is faster; never through a twin, which is sharp. coarse: a cheaper map of
    the same kind, which the first `coarse_steps` steps follow; their iterates must not be judged.
    """

    fast: bool = False
    coarse: Attribution | None = None
    coarse_steps: int = 0


@dataclass(frozen=True, eq=False)
class _Asker:
    """The `ask` function for some examples.

    `guided`: the scene, with the guide's clean logits if their change is penalised: so it is zero at x. `at_first`: the
    verdict on the images of step 0, if known.
    """

    plan: AttackPlan
    model: Model
    attribution: Attribution | None
    guide: Guide
    scene: Scene
    guided: Scene
    aim: Aim
    max_rows: int
    at_first: Verdict | None = None
    economy: Economy = Economy()

    def __call__(
        self, perturbed: Tensor, step: int, *, slope: bool, verdict: bool, among: Flags | None = None
    ) -> Answer:
        if among is not None:
            rows = among.nonzero()[:, 0]
            return self.of(rows)(perturbed[rows], step, slope=slope, verdict=verdict).spread(rows, among)
        saved = self.economy
        seen_through = (
            self.attribution if saved.coarse is None or step >= saved.coarse_steps else saved.coarse
        )
        at_once = _examples_at_once(self.max_rows, seen_through, self.model, self.plan.step_rows)
        if slope and len(perturbed) > at_once and not perturbed.is_cuda:
            parts = torch.arange(len(perturbed)).split(at_once)
            answers = [self.of(rows)(perturbed[rows], step, slope=True, verdict=verdict) for rows in parts]
            return Answer.joined(answers)
        scene, alone = self.scene, self.guide.model is self.model
        judged = self.at_first if step == 0 else None
        if judged is None and verdict and not (slope and alone):
            seen = look(self.model, self.attribution, perturbed, scene.target, graph=False)
            judged = _verdict(self.aim, scene, *seen, perturbed)
        if not slope:
            return Answer(None, judged)
        self.guide.set_step(step, self.plan.search.steps)
        there = derivative(
            self.guide.model,
            seen_through,
            perturbed,
            scene.target,
            self._objective(judged),
            fast=alone and saved.fast,
        )
        if judged is None and alone and verdict:
            judged = _verdict(self.aim, scene, there.map, there.logits, perturbed)
        kept = keeps_prediction(there.logits, scene) if judged is None else judged.kept
        return Answer(there.gradient, judged, torch.where(kept, there.value, torch.inf))

    def of(self, rows: Tensor) -> _Asker:
        """The same for these examples only."""
        scene = self.scene.rows(rows)
        guided = scene if self.guided is self.scene else self.guided.rows(rows)
        first = self.at_first
        known = None if first is None else Verdict(first.value[rows], first.kept[rows])
        return replace(self, scene=scene, guided=guided, aim=self.plan.aim(scene), at_first=known)

    def _objective(self, judged: Verdict | None) -> Objective:
        """The objective of this step; a guide that grows has other clean logits at each step."""
        guided = _seen_by(self.guide, self.scene) if self.guide.growth and self.plan.penalty else self.guided
        descend = self.aim.descend if guided is self.scene else self.plan.aim(guided).descend
        return _restoring(descend, self.scene.logits.argmax(1), judged) if self.plan.restore else descend


def _verdict(aim: Aim, scene: Scene, map: Tensor, logits: Tensor, x: Tensor) -> Verdict:
    value = aim.judge(map.detach(), logits.detach(), x.detach())
    return Verdict(value, keeps_prediction(logits, scene))


def keeps_prediction(logits: Logits, scene: Scene) -> Flags:
    """True for each example that is predicted as the clean one. NaN predicts nothing, although it has an argmax."""
    return (logits.argmax(1) == scene.logits.argmax(1)) & ~holds_nan(logits)


def _restoring(objective: Objective, predicted: Labels, judged: Verdict | None) -> Objective:
    """The objective, except that images that lost their label first step back towards it.

    The model's verdict says which; without one, the given logits do.
    """
    lead = margin(predicted)

    def restored(map: Tensor, logits: Tensor, x: Tensor) -> Tensor:
        lost = logits.argmax(1) != predicted if judged is None else ~judged.kept
        there = objective(map, logits, x)
        # Usually none is lost. Then the logits, for which a mean over passes needs a pass of its own, need no backward.
        return torch.where(lost, -lead(map, logits), there) if bool(lost.any()) else there

    return restored


class Derivative(NamedTuple):
    """The derivative of an objective to x (zero if it does not depend on x), with map, logits and value."""

    gradient: Tensor
    map: Tensor
    logits: Tensor
    value: Tensor


_SINGLE_ONLY: WeakSet[Model] = WeakSet()
"""Models that failed in bfloat16; they are not tried again."""


def derivative(
    model: Model,
    attribution: Attribution | None,
    x: Images,
    target: Labels,
    objective: Objective,
    *,
    fast: bool = False,
) -> Derivative:
    """The objective's derivative to x, with the map, the logits and the objective's value.

    `fast`: the model runs in bfloat16 where that is faster, and all four are estimates.
    """
    if fast and model not in _SINGLE_ONLY and bfloat16_pays(model, x):
        try:
            with in_bfloat16():
                return _derivative(model, attribution, x, target, objective)
        except (RuntimeError, UserError) as wrong:
            if isinstance(wrong, RuntimeError) and is_out_of_memory(wrong):
                raise
        # Layers that expect single precision fail; an error of another cause is raised again below.
        _SINGLE_ONLY.add(model)
    return _derivative(model, attribution, x, target, objective)


def _derivative(
    model: Model, attribution: Attribution | None, x: Images, target: Labels, objective: Objective
) -> Derivative:
    with torch.enable_grad(), made_for_second_derivatives(x):
        leaf = x.detach().requires_grad_()
        map, logits = (single(each) for each in look(model, attribution, leaf, target, graph=True))
        value = objective(map, logits, leaf)
        gradient = (
            torch.autograd.grad(value.sum(), leaf, allow_unused=True)[0] if value.requires_grad else None
        )
    slope = torch.zeros_like(x) if gradient is None else gradient
    return Derivative(slope, map.detach(), logits.detach(), value.detach())


def _seen_by(guide: Guide, scene: Scene) -> Scene:
    """The scene with the guide's clean logits."""
    with torch.no_grad():
        return replace(scene, logits=guide.model(scene.x))


def _result(plan: AttackPlan, under: AttackBatch, found: SearchResult, eps: float) -> AttackResult:
    """The result, with a final evaluation by the attribution on the model itself, unless the search has done it."""
    scene = under.scene
    x, aim = scene.x + found.delta, plan.aim(scene)
    map, logits, start, value = found.map, found.logits, found.start, found.value
    if map is None or logits is None or start is None:
        map, logits = look(under.model, under.attribution, x, scene.target, graph=False)
        start, value = aim.judge(scene.map, scene.logits, scene.x), aim.judge(map, logits, x)
    change = x - scene.x
    size = ball(plan.norm, eps).norm(change)
    return AttackResult(
        x=x,
        x_clean=scene.x,
        target=scene.target,
        map_clean=scene.map,
        map=map,
        start=start,
        value=torch.where(found.stuck, torch.nan, value),
        prediction_kept=keeps_prediction(logits, scene),
        stuck=found.stuck,
        broken=found.broken,
        unmoved=(change == 0).flatten(1).all(1),
        linf=Linf(0).norm(change),
        l2=L2(0).norm(change),
        budget_used=size / eps if eps > 0 else torch.zeros_like(size),
        steps=found.steps,
        eps=eps,
        trace=found.trace,
        name=plan.name,
        settings=plan.settings,
        beaten_by=found.beaten_by,
        misled=found.misled,
        class_names=own_class_names(under.model, logits.shape[1]),
    )


def _surrogate(
    plan: AttackPlan, model: Model, attribution: Attribution, x: Tensor, target: Tensor
) -> Attribution:
    """The attribution to search through: the attacked one, or the one named by `transfer_from`.

    Whether it can be differentiated is tested on one example with `create_graph=True`.
    """
    if plan.transfer_from is not None:
        name = plan.transfer_from
        chosen: Attribution = make("attribution", name) if isinstance(name, str) else name
        return chosen
    if not plan.follows_maps:
        return attribution

    def missing() -> UserError | None:
        """Why the map has no derivative; None if it has one."""
        attribution(model, x[:1], target[:1])  # so that an error in x or target is reported first
        try:
            with torch.enable_grad():
                attribution(model, x[:1].clone().requires_grad_(), target[:1], create_graph=True)
        except UserError as wrong:
            return wrong
        return None

    why = once_per_model(missing, model, attribution) if has_hash(attribution) else missing()
    if why is None:
        return attribution
    if plan.strategy is not None:
        stand_in: Attribution = make("attribution", STAND_IN)
        return stand_in
    raise UserError(
        f"{getattr(attribution, '__name__', type(attribution).__name__)} has no derivative to x for {plan.name} to "
        "follow; attack it through one that has: transfer_from='gradient'."
    ) from why


def _examples_at_once(max_rows: int, attribution: Attribution | None, model: Model, least: int = 1) -> int:
    """Examples per pass, so that the graph of a step holds at most `max_rows` rows of the model.

    Path and Monte Carlo maps take `steps` or `draws` rows per example, and every map at least `least`.
    """
    rows = max(least, 1 if attribution is None else passes_of(attribution))
    return max(1, max_rows // (rows * rows_per_example(model)))


def _rows(plan: AttackPlan, part: slice, b: int) -> AttackPlan:
    """The plan of a part of the batch, with its rows of a per-example goal."""
    if isinstance(plan.goal, Tensor) and plan.goal.dim() > 2 and len(plan.goal) == b:
        return replace(plan, goal=plan.goal[part])
    return plan


CHANGING = (
    "the model's logits for the same images change from call to call (dropout or noise is active in eval mode), so a "
    "map moves without an attack"
)


BUDGET_SLACK = 1.01
"""Share of eps that a change may take up: single precision rounds far less, bfloat16 to 1/256."""


def _flags(
    result: AttackResult,
    model: Model,
    guide: Guide,
    attribution: Attribution,
    surrogate: Attribution,
    target: Tensor,
) -> tuple[str, ...]:
    """Remarks that a reader of the numbers must know, as short strings."""
    counted = {
        "zero derivative, so value is NaN and no sign of robustness": result.stuck,
        "derivative not finite, step left out": result.broken,
        "the map holds NaN, so numbers that compare it are NaN": holds_nan(result.map_clean)
        | holds_nan(result.map),
        "no image found better than x itself": result.unmoved & ~result.stuck & (result.eps > 0),
        "explained the prediction, which is not the target": result.target != target,
        f"rounding to {str(result.x.dtype).removeprefix('torch.')} made the change larger than eps": (
            result.budget_used > BUDGET_SLACK
        ),
    }
    if is_being_recorded(target):
        counted = {}  # counts would read values, which a CUDA graph cannot; its flags are not read
    through = f"transfer: searched through {surrogate!r}, not through the attribution itself"
    notes = [
        guide.note,
        through if surrogate is not attribution else "",
        CHANGING if answers_change(model) else "",
    ]
    notes += [
        f"{what}: {int(rows.sum())} of {len(rows)} images" for what, rows in counted.items() if rows.any()
    ]
    if counted and result.stuck.any():
        notes.append(f"no twin: {guide.refusal}" if guide.refusal else "")
    return tuple(note for note in notes if note)


def transferred(
    plan: AttackPlan, hit: AttackResult, model: Model, targets: Mapping[str, Attribution]
) -> dict[str, AttackResult]:
    """The result of the same attacked images for each of these attributions."""
    results = {}
    with eval_mode(model):
        for name, attribution in targets.items():
            map_clean, logits = look(model, attribution, hit.x_clean, hit.target, graph=False)
            map, after = look(model, attribution, hit.x, hit.target, graph=False)
            aim = plan.aim(plan.scene(model, attribution, hit.x_clean, hit.target, map_clean, logits))
            start = aim.judge(map_clean, logits, hit.x_clean)
            value = torch.where(hit.stuck, torch.nan, aim.judge(map, after, hit.x))
            flags = (*hit.flags, f"transfer: seen by {attribution!r}")
            results[name] = replace(
                hit, map_clean=map_clean, map=map, start=start, value=value, trace=None, flags=flags
            )
    return results
