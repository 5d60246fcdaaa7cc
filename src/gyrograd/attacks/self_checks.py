"""Self-checks of `auto`: when a number under attack may be too optimistic, and what to do about it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from gyrograd.attacks.result import AttackResult

WIN_MARGIN = 0.05
"""A challenger beats the main search on an image if its column is lower by more than this."""
FLAGGED_SHARE = 0.1
"""Share of images on which a challenger must win to raise a flag."""
MISLED_FALL, MISLED_COLUMN = 0.2, 0.02
"""A search is misled if its objective falls by more than the first number and the column by less than the second."""


@dataclass(frozen=True)
class SelfCheck:
    """A reason why a number under attack may be too optimistic: raised if, explanation, what to do."""

    raised_if: str
    explanation: str
    what_to_do: str


BEATEN_BY = {
    challenger: SelfCheck(
        f"{challenger} lowered the column by more than {WIN_MARGIN:g} below the main search on more than "
        f"{FLAGGED_SHARE:.0%} of the images",
        explanation,
        what_to_do,
    )
    for challenger, explanation, what_to_do in (
        ("more steps", "The search had not come to its end.", "Raise steps."),
        (
            "another start",
            "The search ends at different places from different starts, and not at the worst.",
            "Raise steps; report the worst of several seeds.",
        ),
        (
            "softer model",
            "The activations are so sharp that slopes vanish or jump, and a softer copy leads further.",
            "Raise steps, and read the number as what was found, not as what holds.",
        ),
        (
            "transfer",
            "The gradient map leads further than the map's own derivative, which is masked or misleading.",
            "Do not call this map steady; attack it through others too: transfer_from=.",
        ),
        (
            "noise",
            "Noise of the same size finds what the search does not: its derivative is zero, masked or noisy.",
            "Do not call this map steady; look at its derivative (metrics.sanity_checks.zero_derivative).",
        ),
        (
            "squares",
            "Trying squares of pixels finds what following the derivative does not: it is zero, masked or noisy.",
            "Do not call this map steady; raise steps, so that it tries more squares.",
        ),
    )
}
"""What a win of each challenger means."""
MISLED = SelfCheck(
    f"what is descended fell by more than {MISLED_FALL:g} and the column by less than {MISLED_COLUMN:g} on more than "
    f"{FLAGGED_SHARE:.0%} of the images",
    "The search found what moves the map it differentiates, and that is not the map that is judged: another "
    "attribution, a twin, or another computation with create_graph=True.",
    "Do not call this map steady; search through a map nearer to it (transfer_from=), or let both be one computation.",
)
"""What it means if the objective falls and the column does not."""


def raised_flags(result: AttackResult) -> Iterator[str]:
    """One sentence per challenger that won often, and one if the search was often misled."""
    found = [(f"beaten by {name}", won, BEATEN_BY[name]) for name, won in result.beaten_by.items()]
    if result.misled is not None:
        found.append(("misled", result.misled, MISLED))
    for what, rows, check in found:
        if rows.double().mean() > FLAGGED_SHARE:
            yield f"{what} on {int(rows.sum())} of {len(rows)} images: {check.explanation} {check.what_to_do}"
