"""The settings under which each attack was published, as data.

`own` is this package's choice and the default; `paper` the text; `reference` public code where it differs from
the text. A setting that is given wins over its protocol, and the attack's `repr` shows all that was decided.

joo2023 `reference` is its AAM code. wang2020 `paper` is its supplement and CIFAR code, which agree; its
`reference` the code for ImageNet. `reference` of `manipulate` is the code of Dombrowski et al. 2019, whose
learning rate of 2e-4 in normalised units is 4.5e-5 here, at a standard deviation of 0.225.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from gyrograd.errors import UserError, did_you_mean

SHARED: dict[str, Any] = {
    "steps": 50,
    "stepper": "steepest",
    "projection": "clip",
    "start": "clean",
    "selection": "best",
    "constraint": "hard",
    "restore": False,
    "penalty": 0.0,
    "penalty_on": "logits",
    "explained": "target",
    "box": "unit",
}
_KEEPING = {"restore": True}
_WANG = {"stepper": "sign", "projection": "rescale", "step_size": 0.5 / 255, "explained": "prediction"}
_WANG_NOTEBOOKS = {"stepper": "sign", "step_size": 0.005, "selection": "last"}

PROTOCOLS: dict[str, dict[str, dict[str, Any]]] = {
    "targeted_map": {
        "own": {"steps": 100, **_KEEPING},
        "paper": {"steps": 100, "stepper": "sign"},
        "reference": {
            "steps": 100,
            "stepper": "adam",
            "selection": "last",
            "constraint": "soft",
            "penalty": 0.5,
            "box": "image",
        },
    },
    "untargeted_map": {
        "own": {"start": "random", **_KEEPING},
        "paper": {"steps": 100, "stepper": "sign", "start": "random", "measure": "l2"},
    },
    "top_k": {
        "own": _KEEPING,
        "paper": _WANG,
        "reference": {**_WANG_NOTEBOOKS, "mask": "recomputed"},
    },
    "mass_center": {
        "own": {"start": "random", **_KEEPING},
        "paper": {**_WANG, "truncated": True},
        "reference": {**_WANG_NOTEBOOKS, "truncated": True},
    },
    "manipulate": {
        "own": {"penalty": 1e6, "penalty_on": "probabilities", **_KEEPING},
        "paper": {**_WANG, "penalty": 1e6, "penalty_on": "probabilities", "scale": "area"},
        "reference": {
            "steps": 1500,
            "stepper": "adam",
            "step_size": 0.225 * 2e-4,
            "selection": "last",
            "constraint": "soft",
            "penalty": 1e6,
            "penalty_on": "probabilities",
            "explained": "prediction",
        },
    },
}
"""Only what differs from `SHARED` and from the defaults of `OPEN`."""

OPEN: dict[str, Any] = {
    "measure": "cosine",
    "mask": "fixed",
    "truncated": False,
    "scale": "sum",
    "step_size": None,
}
"""Settings of single attacks that a protocol may decide, and what they are if it does not."""


def fill_in(attack: Any, name: str, protocol: str) -> None:
    """Give every setting that was left open the value of the protocol."""
    known = PROTOCOLS[name]
    if protocol not in known:
        raise UserError(f"{name} has no protocol '{protocol}': {did_you_mean(protocol, known)}")
    decided = SHARED | OPEN | known[protocol]
    for setting in fields(attack):
        if setting.name in decided and getattr(attack, setting.name) is None:
            # The one place where a frozen attack is written to: while it is being made.
            object.__setattr__(attack, setting.name, decided[setting.name])
