"""Settings small enough that the whole suite runs in seconds, by registry name."""

from __future__ import annotations

from typing import Any

import gyrograd as gg

SMALL: dict[str, dict[str, Any]] = {
    "integrated_gradients": {"steps": 5},
    "smoothgrad": {"draws": 4},
    "unigrad": {"draws": 4, "eps": 0.1},
    "lime": {"draws": 40, "segments": "grid", "grid": 4},
    "shap": {"draws": 40, "segments": "grid", "grid": 4},
}


def small(name: str, **settings: Any) -> Any:
    """The attribution with its small settings."""
    return gg.attribution(name, **(SMALL.get(name, {}) | settings))
