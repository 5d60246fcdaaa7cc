"""Sentences of the page: the meaning of numbers and flags, and the result of an attack or comparison."""

from __future__ import annotations

import inspect
from typing import NamedTuple

from gyrograd.explorer.scenes import AttackScene, Prediction
from gyrograd.numerics.wording import UNKNOWN, eps_text, number
from gyrograd.parsing import parse_call
from gyrograd.registry import label_of, lookup


class Figure(NamedTuple):
    """One number of an attack: key, value (None if unknown), text, and a remark."""

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
"""Labels of the numbers of an attack by key, in order of display."""

MEANINGS = {
    "explained": "The class whose score the map explains.",
    "prediction": "What the model says before and after. An attack on the explanation leaves it alone.",
    "kept": "Of the tenth of the pixels that is strongest in the first map, how much is strongest in the second. "
    "100 %: nothing moved; about 10 %: no better than chance.",
    "cosine": "How similar the maps are as a whole: 1 the same, 0 nothing in common.",
    "budget": "How much of the change that eps allows was made. No pixel moves further than eps.",
    "steps": "Gradient steps the search took; more find stronger attacks.",
}
"""Meanings of the numbers of an attack by key."""

HINTS = {
    "explain": "A map is bright where a pixel counts for the class. The maps appear here.",
    "attack": "The search changes every pixel by at most eps, so that the map moves and the prediction stays. What it "
    "finds appears here.",
    "compare": "Both models are attacked with the same budget; the steadier one keeps more of its map. "
    "Both appear here.",
}
"""Placeholders for the answers, by tab."""

CHANGES = "What changed is drawn so that the largest change is black or white; grey is no change."
SCALES = (
    "Each map before and after has its own scale, which ends at its 99.5th percentile: compare where they are bright, "
    "not how bright."
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
"""Meanings of an attack's flags by their beginnings; {rest} is the flag's text after the colon."""


def flag_sentence(flag: str) -> str:
    """A flag of the attack as a sentence; unknown flags are unchanged."""
    rest = flag.partition(": ")[2]
    known = [words for start, words in FLAGS.items() if flag.startswith(start)]
    return known[0].format(rest=rest) if known else flag


def figures(scene: AttackScene) -> tuple[Figure, ...]:
    """The numbers of an attack, in order of display."""
    used, eps = float(scene.hit.budget_used), scene.plan.eps
    steps = int(scene.hit.steps)
    return (
        Figure("explained", None, scene.target),
        Figure(
            "prediction",
            float(scene.prediction_kept),
            "kept" if scene.prediction_kept else "changed",
            f"{prediction_text(scene.before)} → {prediction_text(scene.after)}",
        ),
        Figure("kept", scene.kept, _share(scene.kept), f"of the {scene.top} strongest"),
        Figure("cosine", scene.cosine, number(scene.cosine)),
        Figure("budget", used, _share(used), f"of eps {eps_text(eps)}"),
        Figure("steps", float(steps), f"{steps}"),
    )


def prediction_text(guess: Prediction) -> str:
    """A prediction as text: `ring, 98.1 %`."""
    return f"{guess.label}, {percent(guess.probability)}"


def percent(share: float) -> str:
    """Per cent with one decimal; never 100 % for a share below 1."""
    return f"{min(share, 0.999) if share < 1 else 1:.1%}".replace("%", "\u00a0%")


LEVEL = 0.05
"""Shares of kept pixels that differ by less count as equal, because a few pixels of one image mean nothing."""
LOST = 0.5
"""A map that keeps less than this share of its strongest pixels has moved, as in `gyrograd demo`."""


def attack_sentence(scene: AttackScene) -> str:
    """The result of one attack in a sentence."""
    if scene.kept is None:
        return "The search had nothing to follow, so this says nothing about how steady the explanation is."
    if not scene.prediction_kept:
        return "The prediction changed as well, so this is no attack on the explanation alone."
    if scene.kept < LOST:
        return "The explanation moved and the decision did not: on this image the map cannot be trusted at this eps."
    return (
        "Most of the strongest pixels stayed where they were; this attack did not move the explanation far."
    )


def verdict(scenes: tuple[AttackScene, ...]) -> str:
    """One sentence that compares models under the same attack, limited to what one image can show."""
    blind = [scene.net.name for scene in scenes if scene.kept is None]
    if blind:
        return f"No comparison: on {' and '.join(blind)} the search had nothing to follow."
    lost = [scene.net.name for scene in scenes if not scene.prediction_kept]
    ranked = sorted(scenes, key=lambda scene: -(scene.kept or 0.0))
    shares = ", ".join(f"{scene.net.name} {_share(scene.kept)}" for scene in ranked)
    level = (ranked[0].kept or 0.0) - (ranked[-1].kept or 0.0) < LEVEL
    start = (
        "About level on this image" if level else f"{ranked[0].net.name} keeps more of its map on this image"
    )
    end = f" The prediction changed on {' and '.join(lost)}." if lost else ""
    return f"{start}. Top pixels kept: {shares}.{end}{_unlike(scenes)}"


def _unlike(scenes: tuple[AttackScene, ...]) -> str:
    """A warning if the compared maps explain different classes."""
    classes = list(dict.fromkeys(scene.target for scene in scenes))
    if len(classes) == 1:
        return ""
    return (
        f" The maps explain different classes ({', '.join(classes)}): choose one to compare like with like."
    )


def attack_title(scene: AttackScene) -> str:
    """The attack, method and eps in a line."""
    plan = scene.plan
    return f"{label_of('attack', plan.attack)} on {method_label(plan.method)}, eps {eps_text(plan.eps)}"


def method_label(word: str) -> str:
    """`smoothgrad(sigma=0.2)` as `SmoothGrad (sigma=0.2)`."""
    name, settings = parse_call(word)
    own = ", ".join(f"{key}={value}" for key, value in settings.items())
    return label_of("attribution", name) + (f" ({own})" if own else "")


def usual_settings(method: str) -> str:
    """The default settings of a method, as they are written: `sigma=0.1, draws=50`."""
    parameters = inspect.signature(lookup("attribution", method).factory).parameters.values()
    return ", ".join(
        f"{one.name}={one.default:.4g}" if isinstance(one.default, float) else f"{one.name}={one.default}"
        for one in parameters
        if one.name != "max_batch"  # changes no map
    )


def _share(value: float | None) -> str:
    return UNKNOWN if value is None else f"{value:.0%}".replace("%", "\u00a0%")
