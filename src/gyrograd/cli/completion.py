"""gyrograd completion: shell completion of verbs and options."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

from gyrograd import registry
from gyrograd.cli.names import catalogue
from gyrograd.cli.options import Syntax, Verb, Verbs, is_word, options
from gyrograd.errors import check_name

SHELLS = ("bash", "zsh")
WORDS: dict[str, Callable[[], Iterable[str]]] = {
    "list": registry.kinds,
    "reproduce": partial(catalogue, "experiment"),
    "data check": partial(catalogue, "dataset"),
    "data show": partial(catalogue, "dataset"),
}
"""Words that may follow a verb, besides its options."""

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


@Syntax(words={"shell": "?"})
def completion(shell: str | None = None) -> None:
    """Print a script that lets the shell complete verbs and options.

    Add `eval "$(gyrograd completion bash)"` to ~/.bashrc.

    Args:
        shell: bash (the default), or zsh (then in ~/.zshrc).
    """
    from gyrograd.cli import verbs

    shell = shell or "bash"
    check_name("completion for", shell, SHELLS)
    if shell == "zsh":
        print("autoload -U +X bashcompinit && bashcompinit")
    print(SCRIPT.format(verbs=" ".join(verbs()), cases="\n".join(_cases(verbs()))))


def _cases(verbs: Verbs) -> list[str]:
    """One script line per verb; the verbs of a folder come before the folder itself."""
    lines = []
    for name, verb in verbs.items():
        if isinstance(verb, dict):
            lines += [
                f'    "{name} {inner}"*) choices="{_choices(f"{name} {inner}", one)}";;'
                for inner, one in verb.items()
            ]
            lines.append(f'    "{name} "*) choices="{" ".join(verb)}";;')
        else:
            lines.append(f'    "{name} "*) choices="{_choices(name, verb)}";;')
    return lines


def _choices(path: str, verb: Verb) -> str:
    words = WORDS.get(path, tuple)()
    settings = (f"--{name}" for name in options(verb) if not is_word(verb, name))
    return " ".join([*words, "--help", *settings])
