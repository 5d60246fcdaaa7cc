"""gyrograd completion: the shell finishes verbs and options."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from gyrograd.errors import check_name

SHELLS = ("bash", "zsh")

SCRIPT = """_gyrograd() {{
  local word="${{COMP_WORDS[COMP_CWORD]}}" path="${{COMP_WORDS[1]}} ${{COMP_WORDS[2]}}" choices=""
  if [ "$COMP_CWORD" -eq 1 ]; then choices="{verbs}"; else
    case "$path" in
{cases}
    esac
  fi
  COMPREPLY=($(compgen -W "$choices" -- "$word"))
}}
complete -o default -F _gyrograd gyrograd"""


def completion(shell: str | None = None) -> None:
    """Print what makes the shell complete verbs and options: add `eval "$(gyrograd completion bash)"` to ~/.bashrc.

    Args:
        shell: bash, if it is left out, or zsh (then in ~/.zshrc).
    """
    from gyrograd.cli import verbs

    shell = shell or "bash"
    check_name("completion for", shell, SHELLS)
    if shell == "zsh":
        print("autoload -U +X bashcompinit && bashcompinit")
    print(SCRIPT.format(verbs=" ".join(verbs()), cases="\n".join(_cases(verbs()))))


completion.optional_positional = "shell"  # type: ignore[attr-defined]


def _cases(verbs: dict[str, Any]) -> list[str]:
    """A line of the script for each verb, a folder's verbs before the folder itself."""
    lines = []
    for name, verb in verbs.items():
        if isinstance(verb, dict):
            lines += [f'    "{name} {inner}"*) choices="{_options(one)}";;' for inner, one in verb.items()]
            lines.append(f'    "{name} "*) choices="{" ".join(verb)}";;')
        else:
            lines.append(f'    "{name} "*) choices="{_options(verb)}";;')
    return lines


def _options(verb: Callable[..., Any]) -> str:
    settings = inspect.signature(verb).parameters.values()
    return " ".join(["--help", *(f"--{one.name}" for one in settings if one.default is not one.empty)])
