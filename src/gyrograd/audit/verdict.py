"""The verdict: a grade by fixed thresholds, and three sentences from the numbers.

The grade is for the model with its recommended explanation: the one that holds furthest under attack or, if no radius
was measured, the first method. It is based on the share of the top tenth of the pixels that stays. Shares of pixels are
used instead of cosines because maps of absolute values always have a high cosine (0.5 to 0.7 for unrelated ones), while
the tops of unrelated maps share a tenth.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from gyrograd.audit.methods import Method
from gyrograd.audit.plane import Choice, point_in_words
from gyrograd.audit.presets import Preset
from gyrograd.numerics.statistics import MIN_IMAGES_FOR_CI, Stat
from gyrograd.numerics.wording import eps_text, interval_text, radius_text

Grade = Literal["steady", "shaky", "unsafe"]

HALF = 0.5
"""Share that must stay under the worst attack for "steady": more of the top stays than moves."""
QUARTER = 0.25
"""Below this share under attack a map is "unsafe": closer to chance (a tenth) than to half."""

OPENINGS: dict[str, str] = {
    "steady": "The explanations of this model hold still",
    "shaky": "Read the explanations of this model with care",
    "unsafe": "Do not rely on single explanations of this model",
}


GIVE_WEIGHTS = "Give trained weights: --weights FILE, or NAME:pretrained for a model of torchvision or timm."
NOT_JUDGED = [
    "Not judged: the model has no trained weights, so that its explanations show chance.",
    "The numbers show what an audit measures and how long it takes on this machine, and nothing else.",
    GIVE_WEIGHTS,
]
"""The verdict on a model with random weights."""


def guessing_note(accuracy: Stat | None, classes: int) -> str | None:
    """Says that the model recognises nothing, which is rarely its fault."""
    if accuracy is None or accuracy["value"] is None:
        return None
    # With few images the lower bound is often zero.
    bound = accuracy["low"] if (accuracy["n"] or 0) >= MIN_IMAGES_FOR_CI else accuracy["value"]
    if bound is None or bound > 1 / classes:
        return None
    return (
        f"Accuracy is not measurably above guessing (1 of {classes} classes): check the labels, the order of the "
        "classes and the normalisation. Each map explains the labelled class."
    )


def grade_of(
    columns: Mapping[str, Stat | None], *, suspect: bool = False, brief: bool = False
) -> Grade | None:
    """The grade of a map.

    steady: at least half of the top stays under the worst attack. unsafe: less than a quarter does, or less than half
    under noise of the same size. shaky: everything between.

    The ends of the intervals decide, so few images give "shaky". A `suspect` map (it ignores the model or the image, or
    ranks pixels no better than chance) is trivially stable and never called steady; nor is one after a `brief` search.
    None if the attacks had no derivative to follow.
    """
    attack, noise = columns.get("top_k_kept"), columns.get("noise_kept")
    if attack is None or noise is None:
        return None
    low = attack["low"]
    if low is not None and low >= HALF:
        return "shaky" if suspect or brief else "steady"
    surely_below = (
        stat["high"] is not None and stat["high"] < bound
        for stat, bound in ((attack, QUARTER), (noise, HALF))
    )
    return "unsafe" if any(surely_below) else "shaky"


def sentences(
    method: Method,
    columns: Mapping[str, Stat | None],
    chosen: Choice | None,
    preset: Preset,
    *,
    suspect: bool = False,
    kept: Stat | None = None,
    against: Method | None = None,
    before: Mapping[str, Stat | None] | None = None,
) -> list[str]:
    """The sentences of the verdict: trust, effect of noise and attack, and advice with its cost.

    If steady radii were measured, `method` is the recommended one and the advice comes first; `against` is the method
    it is compared with, `before` that method's numbers.
    """
    grade = grade_of(columns, suspect=suspect, brief=preset.is_brief)
    if chosen is not None and chosen.held is not None:
        lead = _use(chosen, against or method, before or {}, preset, unsafe=grade == "unsafe")
        if grade is None:
            return [lead, _noise_alone(columns, preset)]
        return [lead, _trust(grade, method, columns, preset, suspect), _damage(columns, preset)]
    advice = _advice(method, chosen, kept)
    if grade is None:
        opening = f"No attack found a derivative of the {method.label} map to follow"
        return [f"{opening}, so nothing is said of it under attack.", _noise_alone(columns, preset), advice]
    return [_trust(grade, method, columns, preset, suspect), _damage(columns, preset), advice]


def _trust(
    grade: Grade, method: Method, columns: Mapping[str, Stat | None], preset: Preset, suspect: bool
) -> str:
    reasons = {
        "steady": "at least half of the top pixels of the {map} map stay under the worst attack found",
        "shaky": "these images do not settle whether half of the top pixels of the {map} map stay under attack",
        "unsafe": "most of the top pixels of the {map} map are different once pixels change by at most "
        f"{eps_text(preset.eps)}",
    }
    attack = columns["top_k_kept"]
    reason = (
        reasons[grade]
        if attack is None or attack["n"] != 1
        else "one image is not enough to say more about the {map} map"
    )
    if grade == "shaky" and attack is not None and (attack["low"] or 0.0) >= HALF:
        reason = "the {map} map holds still, but its flags say that it may not mean anything"
        if not suspect:
            reason = "the {map} map held still, but the search was too short to call it steady"
    return f"{OPENINGS[grade]}: {reason.format(map=method.label)}."


def _damage(columns: Mapping[str, Stat | None], preset: Preset) -> str:
    noise, attack = (_share(columns[key]) for key in ("noise_kept", "top_k_kept"))
    kept, stays = columns["prediction_kept"], ""
    if kept is not None and kept["value"] is not None:
        # The share of the attacked images (not of all images) that keep their class.
        stays = f"stays on {kept['value'] * 100:.0f} % of the {kept['n']} images attacked"
        if kept["n"] == 1:
            stays = f"of the one image attacked {'stays' if kept['value'] == 1 else 'changes'}"
        stays = f", while the predicted class {stays}"
    return (
        f"Of the top {preset.top_fraction * 100:.3g} % of pixels, random noise of {eps_text(preset.eps)} leaves "
        f"{noise} in place, and an attacker with the same budget {attack}{stays}."
    )


def _noise_alone(columns: Mapping[str, Stat | None], preset: Preset) -> str:
    return (
        f"Random noise of {eps_text(preset.eps)} leaves {_share(columns.get('noise_kept'))} of the top "
        f"{preset.top_fraction * 100:.3g} % of pixels in place."
    )


def _use(
    chosen: Choice, first: Method, before: Mapping[str, Stat | None], preset: Preset, *, unsafe: bool
) -> str:
    """The recommended explanation, and how far it holds; an unsafe one is called the best, not one to use."""
    use = f"{'The best here is' if unsafe else 'Use'} {point_in_words(chosen.point)}"
    if chosen.by_radius:
        radius = radius_text(chosen.held, 255 * max(preset.radii))
        holds = f"{use}: half of its top pixels stay up to {radius} under attack"
    else:
        rival = "" if chosen.stay else f" ({first.label}: {_share(before.get('top_k_kept'))})"
        holds = (
            f"{use}: {_share(chosen.held)} of its top pixels stay under an attack of "
            f"{eps_text(preset.eps)}{rival}"
        )
    if chosen.stay:
        return f"{holds}, and nothing measured holds further without being measurably less faithful."
    return (
        f"{holds}; against {first.label}, insertion {interval_text(chosen.price, '+.3f')}{_passes(chosen)}."
    )


def _advice(method: Method, chosen: Choice | None, kept: Stat | None) -> str:
    """What to use. `kept`: the share of the chosen map's top that an attack leaves, if it was attacked."""
    if chosen is None:
        return "Nothing is recommended: no method here is both measured and above suspicion."
    if chosen.stay:
        return (
            f"Stay with {method.label}: nothing measured is steadier without being measurably less faithful."
        )
    steadier = f"similarity under noise {interval_text(chosen.gain, '+.3f')}"
    faithful = f"insertion {interval_text(chosen.price, '+.3f')}"
    attacked = f"; an attacker leaves {_share(kept)} of its top pixels in place" if kept else ""
    use = f"Use {point_in_words(chosen.point)} instead of {method.label}"
    return f"{use}: {steadier}, {faithful}{_passes(chosen)}{attacked}."


def _passes(chosen: Choice) -> str:
    """The number of passes, if there are several. Nothing is said of the time: a pass of LRP takes two to three times
    as long as one of the gradient."""
    return f", {chosen.passes} passes per map" if chosen.passes > 1 else ""


def _share(stat: Stat | None) -> str:
    """Such as 26 % [22, 30]."""
    return interval_text(stat, ".0f", scale=100, unit=" %", unknown="an unknown share")
