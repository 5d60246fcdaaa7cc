"""Safe printing: names of files and classes are untrusted, and control characters in them would reach the terminal."""

from __future__ import annotations

from typing import Any

from rich.console import Console as _Console
from rich.text import Text

from gyrograd.errors import printable


class Console(_Console):
    """Rich's console, which escapes control characters in every text."""

    def render_str(self, text: str, **how: Any) -> Text:
        """Every text on its way to the terminal: lines, titles, cells of tables."""
        return super().render_str(shown(text), **how)


def shown(text: object) -> str:
    """The text with control characters escaped, except line breaks."""
    return "\n".join(printable(line) for line in str(text).split("\n"))
