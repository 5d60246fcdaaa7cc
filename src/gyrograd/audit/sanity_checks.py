"""Flags of an audit: reasons to doubt a number, from sanity checks and from the attack's self-checks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from gyrograd.attacks.self_checks import BEATEN_BY, FLAGGED_SHARE, MISLED
from gyrograd.audit.map_checks import row_of
from gyrograd.audit.methods import Method
from gyrograd.audit.plans import MODEL, NOISE, AuditInputs
from gyrograd.audit.presets import Preset
from gyrograd.audit.table import worst
from gyrograd.measurement import Column, Table, mean_over
from gyrograd.metrics import Flag, sanity_checks
from gyrograd.reporting.schema import HOLLOW, MASKED, CardFlag

RAISED = {
    **{
        f"beaten_by_{name.replace(' ', '_')}": (f"beaten_by_{name}", check)
        for name, check in BEATEN_BY.items()
    },
    "search_misled": ("misled", MISLED),
}
"""Flags of the attack's self-checks: the metric that counts the images, and its meaning."""


LONGER = "Search longer: --steps {longer} (now {steps})."
REMEDIES = {
    "beaten_by_more_steps": LONGER,
    "beaten_by_another_start": LONGER + " Report the worst of several seeds (--seed).",
    "beaten_by_softer_model": LONGER + " Read the number as what was found, not as what holds.",
    "beaten_by_transfer": "Do not call this map steady: its derivative hides what the gradient's shows.",
    "beaten_by_noise": "Do not call this map steady: its derivative leads nowhere. " + LONGER,
    "beaten_by_squares": "Do not call this map steady: its derivative leads nowhere. " + LONGER,
    "search_misled": "Do not call this map steady: what was searched is not what is judged.",
    "noise_beats_attack": LONGER
    + " The table already has the worse of the two, counting the noise that keeps the predicted class.",
    "zero_derivative": "Nothing is claimed of this map under attack; judge by another method (--methods).",
    "relevance_lost": "Compare with the variant that loses none: --methods 'lrp(variant=conserving)'.",
    "same_map_everywhere": "Look at the maps of several classes; use another method (--methods) if they are all alike.",
    "constant_map": "Look at the maps; use another method (--methods).",
    "sparse_map": "Go by the cosines, or use another method (--methods).",
    "calm_but_empty": "Use another method (--methods): this one holds still without ranking pixels better than chance.",
    "ignores_model": "Use another method (--methods), or quote this similarity beside every number of this one.",
    "saturated": "Compare methods by the top pixels kept, which do not depend on probabilities.",
    "training_mode": "Call model.eval() if a method is your own; the audit used eval mode for everything else.",
}
"""What to do about a flag, in terms of the audit's options; other flags keep the advice of their check."""
SATURATED = (
    "Insertion and deletion follow the probability, so that their curves jump instead of rising. The maps are of the "
    "logit, which does not saturate."
)


BY_TRANSFER_ALONE = Flag(
    name="attacked_by_transfer",
    raised_if="share of images attacked through another map > 0, because the method gives no derivative",
    explanation="The attack went through the gradient's map, which says little about others: of occlusion on a plain "
    "LeNet it left 31 % of the top pixels at 8/255, and following occlusion's own derivative leaves none.",
    what_to_do="Take what stays under attack as an upper bound. If the method can be differentiated, give it "
    "create_graph and return a map with its graph.",
    measured=1.0,
)


def audit_flags(inputs: AuditInputs, table: Table, methods: Sequence[Method]) -> list[CardFlag]:
    """All raised flags, of the model and of each method."""
    x, target, _ = inputs.rows(inputs.sample.index[: inputs.preset.flag_images])
    model = inputs.model
    found: list[tuple[str, Flag | None]] = [
        *((MODEL, flag) for flag in sanity_checks.model_flags(model, x)),
        (MODEL, sanity_checks.training_mode(model)),
        (MODEL, _reword_saturation(sanity_checks.saturation_flag(model, x, target), methods)),
    ]
    for method in methods:
        flags = [*_of_maps(table, method), *_of_numbers(inputs, table, method)]
        found += [(method.name, flag) for flag in flags]
    preset = inputs.preset
    return [_row(where, flag.name, flag, flag.measured, preset) for where, flag in found if flag is not None]


def map_flags(table: Table, methods: Sequence[Method], preset: Preset) -> list[CardFlag]:
    """The raised flags of the maps alone."""
    found = [(method.name, flag) for method in methods for flag in _of_maps(table, method)]
    return [_row(where, flag.name, flag, flag.measured, preset) for where, flag in found if flag is not None]


def _of_maps(table: Table, method: Method) -> list[Flag | None]:
    """Flags of the maps, from the columns of `MapChecks` and from whether attacks could follow them."""
    columns = table.metrics(method=row_of(method.name))
    # A record has no value where a NaN was measured.
    values = {
        name: torch.tensor([math.nan if v is None else v for v in column.values()], dtype=torch.float64)
        for name, column in columns.items()
    }
    pairs = math.comb(len(values["constant"]), 2)
    return [
        sanity_checks.not_finite_flag(values["not_finite"]),
        sanity_checks.relevance_flag(values["relevance"]) if "relevance" in values else None,
        sanity_checks.constant_flag(values["constant"]),
        sanity_checks.sparse_flag(values["empty_top"]) if "empty_top" in values else None,
        sanity_checks.same_map_flag(float(values["cosines_with_earlier"].sum()) / pairs) if pairs else None,
        sanity_checks.ignores_model_flag(values["twin_cosine"]),
        BY_TRANSFER_ALONE if method.by_transfer else None,
    ]


def _reword_saturation(flag: Flag | None, methods: Sequence[Method]) -> Flag | None:
    """The flag of saturation, reworded if logits are explained, whose maps do not saturate."""
    if flag is None or any(getattr(m.attribution, "quantity", "logit") == "probability" for m in methods):
        return flag
    return replace(flag, explanation=SATURATED)


def _of_numbers(inputs: AuditInputs, table: Table, method: Method) -> list[Flag | None]:
    """Flags that need no further pass: chance, noise against attack, searches without a derivative.

    `too_few_draws` is not among them: every image has draws of its own, so that an interval over images contains their
    noise. Ten draws instead of two moved no mean out of its interval, and made that 2 to 35 % narrower (14 pairs of net
    and method, 100 images).
    """
    name, eps = method.name, inputs.preset.eps
    rps, insertion = (mean_over(table.curve(method=name, metric=m)) for m in ("rps", "insertion"))
    chance = table.of(method=MODEL, metric="chance")
    found = [sanity_checks.calm_but_empty(*_restrict_to_common_examples(rps, insertion, chance))]
    # Without noise, because the question is whether the attacks beat it.
    moved = worst(
        table.of(method=name, condition=a, eps=eps, metric="cosine") for a in inputs.preset.searches
    )
    noise = table.of(method=name, condition=NOISE, eps=eps, metric="cosine")
    attacked, noisy = _restrict_to_common_examples(moved, noise)
    if len(attacked):
        found.append(sanity_checks.noise_beats_attack(attacked, noisy, "higher is better"))
    if any(value is None for value in moved.values()):
        x, target, _ = inputs.rows([e for e, v in moved.items() if v is None])
        found.append(
            sanity_checks.zero_derivative(inputs.model, method.search or method.attribution, x, target)
        )
    return found


def challenges(table: Table, methods: Sequence[Method], preset: Preset) -> list[CardFlag]:
    """Flags per method: challengers that won often at any radius, and misled searches."""
    if "auto" not in preset.attacks:
        return []
    found = []
    for method in methods:
        for name, (counted, check) in RAISED.items():
            shares = []
            for eps in table.radii(method=method.name, condition="auto"):
                column = table.of(method=method.name, condition="auto", eps=eps, metric=counted)
                known = [value for value in column.values() if value is not None]
                shares.append(sum(known) / len(known) if known else 0.0)
            if max(shares, default=0.0) > FLAGGED_SHARE:
                found.append(_row(method.name, name, check, max(shares), preset))
    return found


def _restrict_to_common_examples(*columns: Column) -> list[Tensor]:
    """The columns restricted to the examples that all of them have."""
    common = [e for e in columns[0] if all(c.get(e) is not None for c in columns)]
    return [torch.tensor([c[e] for e in common], dtype=torch.float64) for c in columns]


def _row(where: str, name: str, check: Any, measured: float | None, preset: Preset) -> CardFlag:
    now = {"steps": preset.steps, "longer": 4 * preset.steps}
    return {
        "name": name,
        "where": where,
        "raised_if": check.raised_if,
        "explanation": check.explanation,
        "what_to_do": REMEDIES[name].format(**now) if name in REMEDIES else check.what_to_do,
        "measured": measured,
    }


def suspects(flags: Sequence[CardFlag]) -> set[str]:
    """Methods that must not be called steady: their steadiness has another cause (hollow), or their derivative
    misleads an attack (masked)."""
    return {flag["where"] or "" for flag in flags if flag["name"] in HOLLOW | MASKED}
