"""A function mode that replaces layers, and is entered at most once."""

from __future__ import annotations

import threading
from typing import Any

from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack


class LayerMode(TorchFunctionMode):
    """Entering it has no effect while an equal one is open: `look` opens modes that the gradient inside opens, too.

    Each open mode sees every operation of a model, which for a small net takes as long as a small operation.
    """

    keeps_values = True

    def __init__(self) -> None:
        super().__init__()
        self._here = _Entered()

    def includes(self, other: LayerMode) -> bool:
        """True if what `other` replaces is replaced in the same way by this mode."""
        return type(self) is type(other)

    def __enter__(self) -> LayerMode:
        stack = _get_current_function_mode_stack()
        self._here.entered.append(
            not any(isinstance(mode, LayerMode) and mode.includes(self) for mode in stack)
        )
        return super().__enter__() if self._here.entered[-1] else self

    def __exit__(self, *error: Any) -> None:
        if self._here.entered.pop():
            super().__exit__(*error)


def is_watched() -> bool:
    """True if a function mode is open that must see the layers as the model has them, such as a recorder."""
    return not all(getattr(mode, "keeps_values", False) for mode in _get_current_function_mode_stack())


class _Entered(threading.local):
    """Per open block of a mode, whether it was entered there. Each thread has its own modes (`layers_as_now`)."""

    def __init__(self) -> None:
        self.entered: list[bool] = []
