"""A sweep that takes seconds: images of eight pixels a side in three classes, a LeNet of that size."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

SIDE = 8
CLASSES = ("above", "below", "middle")
GRID = {"terms.l2_cosine.l2": [0.01, 0.1], "terms.l2_cosine.cosine": [0.5, 1.0]}


def write_images(home: Path) -> Path:
    """Noisy images with a bright stripe, below train and test."""
    random = np.random.default_rng(0)
    for split, n in (("train", 48), ("test", 24)):
        for i in range(n):
            label = i % 3
            image = random.integers(0, 120, (SIDE, SIDE, 3), dtype=np.uint8)
            image[2 * label + 1 : 2 * label + 3] += 100
            place = home / split / CLASSES[label]
            place.mkdir(parents=True, exist_ok=True)
            Image.fromarray(image).save(place / f"{i:02d}.png")
    return home


def base(home: Path, **changes: Any) -> dict[str, Any]:
    """Settings all trials share."""
    settings: dict[str, Any] = {
        "model": "lenet",
        "model_settings": {"image_size": SIDE, "activation": "softplus", "beta": 10},
        "data": "folder",
        "data_settings": {"path": str(home), "split": "train", "size": SIDE},
        "test": {"split": "test"},
        "epochs": 2,
        "batch_size": 16,
        "device": "cpu",
    }
    return settings | changes
