"""Prints what every attribution says to bad input, as JSON. Run as a script, so without the tests' type checks."""

from __future__ import annotations

import json

import torch
from nets import batch
from small_attributions import fitting, small

import gyrograd as gg

# What is wrong -> (how to make it so, words of the sentence that must come back).
BAD = {
    "empty batch": (lambda x, t: (x[:0], t[:0]), "at least one example"),
    "NaN": (lambda x, t: (x.clone().fill_(torch.nan), t), "NaN"),
    "bytes": (lambda x, t: ((x * 255).byte(), t), "floating point"),
    "target out of range": (lambda x, t: (x, t + 5), "from 0 to 4"),
    "negative target": (lambda x, t: (x, t - 9), "from 0 to 4"),
    "target too short": (lambda x, t: (x, t[:1]), "one class index for each"),
    "target of floats": (lambda x, t: (x, t.double()), "integers"),
}


def complaint(name: str, case: str) -> str:
    """The sentence, or what happened instead."""
    x, target = BAD[case][0](*batch())
    try:
        small(name)(fitting(name, "lenet"), x, target)
    except gg.UserError as error:
        return str(error)
    except Exception as error:
        return f"{type(error).__name__} instead of a sentence: {error}"
    return "no complaint"


if __name__ == "__main__":
    print(
        json.dumps(
            {name: {case: complaint(name, case) for case in BAD} for name in gg.available("attribution")}
        )
    )
