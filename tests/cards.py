"""A made-up audit: the card, its pictures and its records, as an audit of a small net would write them."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from gyrograd.numerics.statistics import bootstrap_interval
from gyrograd.reporting import write_values

CLASSES = ["airplane", "car", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]
METHODS = {
    # name: label, then the mean of each column
    "gradient": ("Gradient", 0.62, 0.21, 0.33, 0.97, 0.41, 0.16, 0.22),
    "input_x_gradient": ("Input x gradient", 0.58, 0.18, 0.30, 0.96, 0.43, 0.15, 0.21),
    "integrated_gradients": ("Integrated gradients", 0.71, 0.34, 0.45, 0.95, 0.52, 0.12, 0.33),
    "smoothgrad": ("SmoothGrad", 0.90, 0.66, 0.68, 0.93, 0.55, 0.13, 0.47),
    "guided_backprop": ("Guided backprop", 0.93, 0.61, 0.72, 0.94, 0.38, 0.19, 0.31),
    "lime": ("LIME", 0.77, 0.70, 0.64, 0.95, 0.49, 0.14, 0.44),
}
COLUMNS = (
    (
        "rps",
        "Steady under noise",
        "cosine to the clean map, uniform noise 16/255, 10 draws",
        "noise",
        "higher",
    ),
    (
        "attack_cosine",
        "Steady under attack",
        "cosine, targeted_map at eps 8/255, 50 steps",
        "attack",
        "higher",
    ),
    ("top_k_kept", "Top pixels kept", "share of the 100 largest pixels, top_k at 8/255", "attack", "higher"),
    ("prediction_kept", "Prediction kept", "share of images whose class stays", "attack", "higher"),
    ("insertion", "Insertion", "area under the insertion curve", "faithfulness", "higher"),
    ("deletion", "Deletion", "area under the deletion curve", "faithfulness", "lower"),
    (
        "adversarial_insertion",
        "Insertion under attack",
        "insertion with the attacked map",
        "faithfulness",
        "higher",
    ),
)


def stat(value: float, spread: float = 0.03, n: int = 100) -> dict[str, Any]:
    """A mean, an interval around it and its number of examples."""
    return {
        "value": round(value, 4),
        "low": round(value - spread, 4),
        "high": round(value + 0.9 * spread, 4),
        "n": n,
    }


def example_values(seed: int = 0, n: int = 100, gain: float = 0.0) -> dict[str, dict[str, list[float]]]:
    """A value an example for every method and column; `gain` is added to what the attack leaves."""
    generator = np.random.default_rng(seed)
    images = generator.normal(size=n)  # some images are harder for every method: pairs know that
    values: dict[str, dict[str, list[float]]] = {}
    for name, (_, *means) in METHODS.items():
        values[name] = {}
        for (key, *_, group, _direction), mean in zip(COLUMNS, means, strict=True):
            more = gain if group == "attack" and key != "prediction_kept" else gain / 4 * (group == "noise")
            own, gained = generator.normal(size=(2, n))
            column = mean + more * (1 + 0.5 * gained) + 0.12 * images + 0.03 * own
            values[name][key] = [round(float(v), 6) for v in column.clip(0, 1)]
    return values


def card(seed: int = 0, gain: float = 0.0, source: str = "cifar10/lenet-ce", n: int = 100) -> dict[str, Any]:
    """The whole card, new each time; its table is the mean of `example_values` with the same seed and gain."""
    return json.loads(_card_text(seed, gain, source, n))


@cache
def _card_text(seed: int, gain: float, source: str, n: int) -> str:
    return json.dumps(_card(seed, gain, source, n))


def _card(seed: int, gain: float, source: str, n: int) -> dict[str, Any]:
    values = example_values(seed, n, gain)
    return {
        "schema": 1,
        "kind": "audit",
        "title": f"Can the explanations of {source} be trusted?",
        "model": {
            "source": source,
            "description": "LeNet, 1,116,970 parameters",
            "parameters": 1116970,
            "sha256": f"{source}-".encode().hex().ljust(64, "a")[:64],
            "classes": 10,
        },
        "data": {
            "source": "cifar10",
            "images": n,
            "labelled": True,
            "shape": [3, 32, 32],
            "sha256": "b" * 64,
            "classes": CLASSES,
        },
        "settings": {"preset": "quick", "seed": seed, "eps": 8 / 255, "methods": list(METHODS), "images": n},
        "complete": True,
        "accuracy": stat(0.742, 0.08),
        "verdict": {
            "grade": "unsafe",
            "sentences": [
                "No: a change of 8/255 that keeps the prediction turns the gradient to cosine 0.21 [0.18, 0.24].",
                "Random noise of twice that size leaves it at 0.62 [0.59, 0.65], so it is the attacker who matters.",
                "Use SmoothGrad with sigma 0.1: 0.66 [0.63, 0.69] under attack, and more faithful (0.55 against 0.41).",
            ],
        },
        "columns": [
            dict(zip(("key", "label", "detail", "group", "direction"), column, strict=True))
            | {"range": [0, 1]}
            for column in COLUMNS
        ],
        "methods": [_method(name, values[name]) for name in METHODS],
        "curves": _curves(),
        "plane": _plane(),
        "bounds": [
            _bound("Gradient moves at most this much per step in x", "wang2020 Theorem 1", 12.4, 3.1, True),
            _bound("Curvature of the smoothed net", "wang2020 Theorem 2", 0.8, 1.2, False),
        ],
        "worst": [_worst(row) for row in range(3)],
        "pictures": "pictures.npz",
        "flags": [
            {
                "name": "zero_derivative",
                "where": "gradient",
                "raised_if": "the derivative of the map to the input is exactly zero on more than 0% of the examples",
                "explanation": "The map is constant between kinks, so an attack along its gradient stands still.",
                "what_to_do": "Attack a softplus twin (activation='softplus') and carry the result over.",
                "measured": 0.3,
            }
        ],
        "rerun": {
            "command": f"gyrograd audit {source} cifar10 --preset quick --seed {seed} --images {n}",
            "versions": {"gyrograd": "0.1.0", "torch": "2.15.0", "python": "3.11.2"},
            "hardware": "2 cores, x86_64",
            "seconds": 93.1,
            "peak_memory_mb": 900,
            "seed": seed,
        },
    }


def pictures(rows: int = 3, side: int = 32) -> dict[str, np.ndarray]:
    """Images with a disc, an attack of 8/255, maps that sit on the disc before and on a corner after."""
    generator = np.random.default_rng(0)
    y, x = np.mgrid[:side, :side] / side
    disc = np.exp(-(((x - 0.5) ** 2 + (y - 0.5) ** 2) * 14))
    corner = np.exp(-(((x - 0.1) ** 2 + (y - 0.1) ** 2) * 20))
    shades = generator.uniform(0.2, 0.9, size=(rows, 1, 1, 3))
    image = (
        0.25 + 0.6 * disc[None, ..., None] * shades + 0.04 * generator.normal(size=(rows, side, side, 3))
    ).clip(0, 1)
    attacked = (image + generator.choice([-8 / 255, 8 / 255], size=image.shape)).clip(0, 1)
    rough = generator.gamma(1.0, size=(2, rows, side, side))
    return {
        "image": image.astype(np.float32),
        "attacked": attacked.astype(np.float32),
        "map_clean": (disc * rough[0]).astype(np.float32),
        "map_attacked": (0.6 * corner * rough[1]).astype(np.float32),
    }


def write_audit(
    folder: Path, *, seed: int = 0, gain: float = 0.0, source: str = "cifar10/lenet-ce", n: int = 100
) -> Path:
    """An audit's folder: card, pictures and the values behind the table."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "card.json").write_text(json.dumps(card(seed, gain, source, n)), encoding="utf-8")
    np.savez(folder / "pictures.npz", **pictures())
    for name, columns in example_values(seed, n, gain).items():
        write_values(folder, name, {key: dict(enumerate(column)) for key, column in columns.items()})
    return folder


def _method(name: str, values: dict[str, list[float]]) -> dict[str, Any]:
    return {
        "name": name,
        "label": METHODS[name][0],
        "settings": {"sigma": 0.1, "draws": 50} if name == "smoothgrad" else {},
        "columns": {key: measured(column) for key, column in values.items()},
        "notes": ["attacked by transfer from gradient"] if name == "lime" else [],
        "recommended": name == "smoothgrad",
    }


def measured(column: list[float]) -> dict[str, Any]:
    """The mean with its bootstrap interval."""
    found = bootstrap_interval(column)
    return {"value": found.value, "low": found.low, "high": found.high, "n": found.n}


def _curves() -> dict[str, Any]:
    eps = [2, 4, 8, 16]
    lines = []
    for name, (_, noise, attack, *_rest) in METHODS.items():
        for label, end in (("attack", attack), ("noise", min(0.97, noise + 0.1))):
            y = [stat(1 - (1 - end) * (e / 8) ** 0.6 if e <= 8 else end * 0.8) for e in eps]
            lines.append({"method": name, "label": label, "x": eps, "y": y})
    share = np.linspace(0, 1, 21)
    games: dict[str, Any] = {}
    for game, column in (("insertion", 5), ("deletion", 6)):
        games[game] = {"x_label": "share of pixels", "lines": []}
        for name, row in METHODS.items():
            power = 1.6 - 2.3 * row[column] if game == "insertion" else 8 * row[column] - 0.7
            y = 0.1 + 0.8 * (share**power if game == "insertion" else 1 - share**power)
            games[game]["lines"].append(
                {
                    "method": name,
                    "x": share.tolist(),
                    "y": y.tolist(),
                    "low": (y - 0.04).tolist(),
                    "high": (y + 0.04).tolist(),
                }
            )
    return {"eps": {"label": "cosine to the clean map", "x_label": "eps (of 255)", "lines": lines}, **games}


def _plane() -> dict[str, Any]:
    sweep = [(0.02, 0.30, 0.45), (0.05, 0.48, 0.53), (0.1, 0.66, 0.55), (0.2, 0.78, 0.47), (0.4, 0.84, 0.33)]
    points = [_point("smoothgrad", sigma, across, up, sigma >= 0.1) for sigma, across, up in sweep]
    for name, row in METHODS.items():
        if name != "smoothgrad":
            points.append(_point(name, None, row[2], row[5], False))
    why = "SmoothGrad with sigma 0.1 is the most faithful of the settings and holds three times as still."
    return {
        "x_label": "robustness (cosine under attack)",
        "y_label": "faithfulness (insertion)",
        "points": points,
        "recommended": {"method": "smoothgrad", "setting": 0.1, "why": why},
    }


def _point(method: str, setting: float | None, across: float, up: float, pareto: bool) -> dict[str, Any]:
    return {
        "method": method,
        "setting": setting,
        "setting_name": "sigma",
        "robustness": stat(across),
        "faithfulness": stat(up, 0.02),
        "pareto": pareto,
    }


def _bound(label: str, reference: str, bound: float, value: float, holds: bool) -> dict[str, Any]:
    note = "estimated constants"
    return {
        "label": label,
        "reference": reference,
        "bound": bound,
        "measured": value,
        "holds": holds,
        "note": note,
    }


def _worst(row: int) -> dict[str, Any]:
    return {
        "row": row,
        "example": 17 + row,
        "name": f"photos/{17 + row}.png",
        "kept": 0.31 + 0.05 * row,
        "method": list(METHODS)[row],
        "attack": "targeted_map",
        "eps": 8 / 255,
        "cosine": 0.05 + 0.04 * row,
        "before": {"label": CLASSES[3 + row], "probability": 0.91},
        "after": {"label": CLASSES[3 + row], "probability": 0.88},
    }
