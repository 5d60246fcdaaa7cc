"""What is printed: names of files and classes come from anyone, and a terminal obeys what they say."""

from __future__ import annotations

from typing import Any

from rich.console import Console as _Console
from rich.text import Text

from gyrograd.errors import printable


class Console(_Console):
    """Rich's console, with the control characters of every text written out; colours are its own."""

    def render_str(self, text: str, **how: Any) -> Text:
        """Every text on its way to the terminal: lines, titles, cells of tables."""
        return super().render_str(shown(text), **how)


def shown(text: object) -> str:
    """The text with control characters written out and its lines as they are."""
    return "\n".join(printable(line) for line in str(text).split("\n"))
