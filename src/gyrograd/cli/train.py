"""`gyrograd train`: train a model from a recipe, a settings file or the command line."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gyrograd.cli import parsing
from gyrograd.cli.options import Syntax
from gyrograd.errors import UserError, printable
from gyrograd.registry import Settings

if TYPE_CHECKING:
    from gyrograd.training import Trained, TrainSettings
    from gyrograd.training.loop import EpochEntry
    from gyrograd.types import Model

OWN = ("recipe", "config", "out", "resume", "print_config", "recipes", "help")


def free_settings(words: list[str]) -> tuple[list[str], Settings]:
    """Split the words into the verb's own options and training settings: `--lr 0.1 --terms.l2.weight=3 --flip`."""
    kept: list[str] = []
    tree: Settings = {}
    given: Settings = {"settings": tree}
    while words:
        word, words = words[0], words[1:]
        key, equals, value = word.removeprefix("--").partition("=")
        if word == "--print_config":
            given["print_config"] = True  # jsonargparse would take it for an option of its own
            continue
        if not word.startswith("--") or key in OWN:
            kept.append(word)
            continue
        if not equals:
            value, words = (
                (words[0], words[1:]) if words and not words[0].startswith("--") else ("true", words)
            )
        _set_nested(tree, key.replace("-", "_").split("."), parsing.value(value))
    return kept, given


def _set_nested(tree: Settings, path: list[str], value: Any) -> None:
    *above, last = path
    for key in above:
        tree = tree.setdefault(key, {})
        if not isinstance(tree, dict):
            raise UserError(
                f"--{'.'.join(path)} is a setting of {key}, which was given a value itself; leave one out."
            )
    tree[last] = value


@Syntax(free_settings=free_settings)
def train(
    recipe: str | None = None,
    config: Path | None = None,
    out: Path | None = None,
    resume: str = "auto",
    print_config: bool = False,
    recipes: bool = False,
    settings: Settings | None = None,
) -> int:
    """Train a model from a recipe, a file of settings or options.

    Any setting of the recipe can be given as --key value (--print_config shows all of them).

    Args:
        recipe: named settings to start from; --recipes lists them.
        config: a YAML file of settings, which may name a recipe to start from.
        out: folder for the model, the log and the checkpoint; out/RECIPE by default.
        resume: auto (continue the run in the folder), never, or changed (continue although settings differ).
        print_config: print the settings as YAML and stop.
        recipes: list the recipes and stop.
        settings: changes from the command line.
    """
    from gyrograd.cli.inputs import check_folder
    from gyrograd.training import Stopped, settings_from
    from gyrograd.training.settings import as_tree, merge_settings

    if recipes:
        _print_recipes()
        return 0
    chosen = settings_from(merge_settings(_merge_given_settings(recipe, config, settings), settings or {}))
    if print_config:
        import yaml  # type: ignore[import-untyped]

        print(yaml.safe_dump(as_tree(chosen), sort_keys=False).rstrip())
        return 0
    folder = Path("out") / (recipe or (config.stem if config else "train")) if out is None else out
    check_folder(folder)
    try:
        done = _run_training(chosen, folder, resume)
    except Stopped as stopped:
        if _first():
            raise
        return stopped.exit_code
    if _first():
        seconds = sum(entry["seconds"] for entry in done.history)
        best = (
            f"; best accuracy {done.best['accuracy']:.1%} in epoch {done.best['epoch']}" if done.best else ""
        )
        print(f"Trained in {seconds:.0f} s{best}. The model:")
        print(printable(done.path))
    return 0


def _merge_given_settings(recipe: str | None, config: Path | None, settings: Settings | None) -> Settings:
    """The settings of the recipe, overridden by those of the file and of the command line."""
    from gyrograd.training.settings import merge_settings, read_tree, recipe_tree

    if recipe is None and config is None and not settings:
        raise UserError(
            "Say what to train: --recipe NAME (--recipes lists them), --config FILE or --model and --data."
        )
    tree = {} if recipe is None else dict(recipe_tree(recipe))
    return tree if config is None else merge_settings(tree, read_tree(config))


def _run_training(settings: TrainSettings, out: Path, resume: str) -> Trained:
    from gyrograd.training import objective_of, snapshots, train

    if _first():
        clean = ["cross-entropy"] if objective_of(settings).clean_weight else []
        goes_on = resume != "never" and (out / snapshots.NAME).exists()
        epochs = "1 epoch" if settings.epochs == 1 else f"{settings.epochs} epochs"
        print(
            f"{'Resuming' if goes_on else 'Training'} {settings.model} on {settings.data} "
            f"({', '.join([*clean, *settings.terms])}), {epochs}, in {printable(out)}",
            flush=True,
        )

    def say(entry: EpochEntry, model: Model) -> None:  # noqa: ARG001
        if _first():
            losses = "  ".join(f"{name} {value:.4g}" for name, value in entry["losses"].items())
            accuracy = f"  accuracy {entry['accuracy']:.1%}" if "accuracy" in entry else ""
            epoch = f"epoch {entry['epoch']}/{settings.epochs}"
            print(f"{epoch}  {losses}{accuracy}  {entry['seconds']:.1f} s", flush=True)

    return train(settings, out, resume=resume, on_epoch=say)


def _first() -> bool:
    """True if this process prints: rank 0 of those that torchrun started."""
    return os.environ.get("RANK", "0") == "0"


def _print_recipes() -> None:
    from rich.table import Table

    from gyrograd.cli.terminal import Console
    from gyrograd.training import recipes

    table = Table.grid(padding=(0, 3, 0, 0))
    for name, found in recipes().items():
        table.add_row(name, found.about)
    Console().print(table)
