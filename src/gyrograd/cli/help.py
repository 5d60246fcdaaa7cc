"""The help of a verb, without types: an option's text says what to give."""

from __future__ import annotations

from argparse import SUPPRESS, Action

from jsonargparse import DefaultHelpFormatter


class HelpFormatter(DefaultHelpFormatter):
    """Adds the default to the text of an option, unless there is none or the text gives it."""

    def _get_help_string(self, action: Action) -> str:
        if action.dest == "print_config":
            return "print the settings as YAML and stop."
        text = action.help or ""
        # 0 is a default to show, and equal to False
        empty = action.default is None or action.default is False or action.default in ("", SUPPRESS, [])
        return text if empty or "default" in text.lower() else f"{text} (default: %(default)s)"
