"""The plain words: what a number means, what a flag says, what one look at two models shows."""

from __future__ import annotations

import inspect
from typing import NamedTuple

from gyrograd.explorer.scenes import Attacked, Prediction
from gyrograd.numerics.wording import UNKNOWN, eps_text, number
from gyrograd.parsing import parse_call
from gyrograd.registry import label_of, lookup


class Figure(NamedTuple):
    """One number of an attack: its key, its value (none: not known), how it is read, and a remark."""

    key: str
    value: float | None
    text: str
    remark: str = ""


NAMES = {
    "explained": "Class explained",
    "prediction": "Prediction",
    "kept": "Top pixels kept",
    "cosine": "Cosine of the maps",
    "budget": "Budget used",
    "steps": "Steps",
}
"""The numbers of an attack in the order they are read, by key."""

MEANINGS = {
    "explained": "The class whose score the map explains.",
    "prediction": "What the model says before and after. An attack on the explanation leaves it alone.",
    "kept": "Of the tenth of the pixels that is strongest in the first map, how much is strongest in the second. "
    "100 %: nothing moved; about 10 %: no better than chance.",
    "cosine": "How alike the maps are as a whole: 1 the same, 0 nothing in common.",
    "budget": "How much of the change that eps allows was made. No pixel moves further than eps.",
    "steps": "Gradient steps the search took; more find stronger attacks.",
}
"""What the numbers of an attack mean, by key."""

HINTS = {
    "explain": "A map is bright where a pixel counts for the class. The maps appear here.",
    "attack": "The search changes every pixel by at most eps, so that the map moves and the prediction stays. What it "
    "finds appears here.",
    "compare": "Both models are attacked with the same budget; the steadier one keeps more of its map. "
    "Both appear here.",
}
"""What stands where an answer will be, by what is pressed."""

PICTURES = (
    "What changed is drawn so that the largest change is black or white; grey is no change. Both maps have one scale, "
    "which ends at the 99.5th percentile of the two: brighter means larger in both."
)
ONE_IMAGE = "This is one image. How a model does on many, with intervals, is what `gyrograd audit` measures."

FLAGS = {
    "zero derivative": "The map has no derivative to follow, so the search could not move. That it stayed is no sign "
    "of robustness.",
    "no twin": "No smooth twin of the model could be built to search on: {rest}",
    "piecewise linear": "The model has kinks (ReLU), so it was {rest}; what was found is judged on the model itself.",
    "derivative not finite": "At some step the derivative was not finite; that step was left out.",
    "no image found better": "The search found nothing better than the image itself, which is shown unchanged.",
    "explained the prediction": "The attack explains the class that is predicted, not the one chosen here.",
    "transfer": "The map itself has no derivative, so the attack was {rest}.",
}
"""What an attack's flags mean, by how they begin; {rest} is what the flag says after its colon."""


def flag_sentence(flag: str) -> str:
    """A flag of the attack as a sentence; one that is not known here is shown as it is."""
    rest = flag.partition(": ")[2]
    known = [words for start, words in FLAGS.items() if flag.startswith(start)]
    return known[0].format(rest=rest) if known else flag


def figures(scene: Attacked) -> tuple[Figure, ...]:
    """The numbers of an attack in the order they are read."""
    used, eps = float(scene.hit.budget_used), scene.plan.eps
    steps = int(scene.hit.steps)
    return (
        Figure("explained", None, scene.target),
        Figure(
            "prediction",
            float(scene.prediction_kept),
            "kept" if scene.prediction_kept else "changed",
            f"{said(scene.before)} → {said(scene.after)}",
        ),
        Figure("kept", scene.kept, _share(scene.kept), f"of the {scene.top} strongest"),
        Figure("cosine", scene.cosine, number(scene.cosine)),
        Figure("budget", used, _share(used), f"of eps {eps_text(eps)}"),
        Figure("steps", float(steps), f"{steps}"),
    )


def said(guess: Prediction) -> str:
    """`ring, 98.1 %`."""
    return f"{guess.label}, {percent(guess.probability)}"


def percent(share: float) -> str:
    """One decimal; never 100 % where something is missing."""
    return f"{min(share, 0.999) if share < 1 else 1:.1%}".replace("%", "\u00a0%")


LEVEL = 0.05
"""Shares of pixels kept that differ by less are called level: a few pixels on one image say nothing."""
LOST = 0.5
"""A map that keeps less than this share of its strongest pixels has moved, as in `gyrograd demo`."""


def reading(scene: Attacked) -> str:
    """What one attack shows, in a sentence."""
    if scene.kept is None:
        return "The search had nothing to follow, so this says nothing about how steady the explanation is."
    if not scene.prediction_kept:
        return "The prediction changed as well, so this is no attack on the explanation alone."
    if scene.kept < LOST:
        return "The explanation moved and the decision did not: on this image the map cannot be trusted at this eps."
    return (
        "Most of the strongest pixels stayed where they were; this attack did not move the explanation far."
    )


def verdict(scenes: tuple[Attacked, ...]) -> str:
    """One sentence on models under the same attack, with no more in it than one image can show."""
    blind = [scene.net.name for scene in scenes if scene.kept is None]
    if blind:
        return f"No comparison: on {' and '.join(blind)} the search had nothing to follow."
    lost = [scene.net.name for scene in scenes if not scene.prediction_kept]
    ranked = sorted(scenes, key=lambda scene: -(scene.kept or 0.0))
    shares = ", ".join(f"{scene.net.name} {_share(scene.kept)}" for scene in ranked)
    level = (ranked[0].kept or 0.0) - (ranked[-1].kept or 0.0) < LEVEL
    start = "About level on this image" if level else f"{ranked[0].net.name} holds stiller on this image"
    end = f" The prediction changed on {' and '.join(lost)}." if lost else ""
    return f"{start}. Top pixels kept: {shares}.{end}{_unlike(scenes)}"


def _unlike(scenes: tuple[Attacked, ...]) -> str:
    """A warning where the maps compared answer different questions."""
    classes = list(dict.fromkeys(scene.target for scene in scenes))
    if len(classes) == 1:
        return ""
    return (
        f" The maps explain different classes ({', '.join(classes)}): choose one to compare like with like."
    )


def attack_title(scene: Attacked) -> str:
    """What was done, in a line."""
    plan = scene.plan
    return f"{label_of('attack', plan.attack)} on {method_label(plan.method)}, eps {eps_text(plan.eps)}"


def method_label(word: str) -> str:
    """`smoothgrad(sigma=0.2)` as `SmoothGrad (sigma=0.2)`."""
    name, settings = parse_call(word)
    own = ", ".join(f"{key}={value}" for key, value in settings.items())
    return label_of("attribution", name) + (f" ({own})" if own else "")


def usual_settings(method: str) -> str:
    """The settings a method has unless others are given, as they are written: `sigma=0.1, draws=50`."""
    parameters = inspect.signature(lookup("attribution", method).factory).parameters.values()
    return ", ".join(
        f"{one.name}={one.default:.4g}" if isinstance(one.default, float) else f"{one.name}={one.default}"
        for one in parameters
        if one.name != "max_batch"  # changes no map
    )


def _share(value: float | None) -> str:
    return UNKNOWN if value is None else f"{value:.0%}".replace("%", "\u00a0%")
