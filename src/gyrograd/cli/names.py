"""gyrograd list: all registered names with their papers.

They are read from the source, so that listing them does not import torch (unless a plug-in does). The tests compare
them with the registry, name by name.
"""

from __future__ import annotations

import ast
import importlib.util
import json as json_format
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from gyrograd import registry
from gyrograd.cli.options import Syntax
from gyrograd.errors import UserError, check_name


@Syntax(words={"kind": "?"})
def show(kind: str | None = None, json: bool = False) -> None:
    """List what is registered: methods, attacks, metrics, models, ...

    Args:
        kind: attribution, attack, metric, model, dataset, kernel, ...; default: all.
        json: print JSON instead of tables.
    """
    kinds = registry.kinds() if kind is None else (kind,)
    found = {each: catalogue(each).values() for each in kinds}
    if json:
        rows = {each: [asdict(entry) for entry in entries] for each, entries in found.items()}
        print(json_format.dumps(rows, indent=1))
        return
    for each, entries in found.items():
        _print_table(each, entries)
        if each == "model":
            _print_trained()
        print()


def _print_trained() -> None:
    """Models that are opened, not built: the zoo and other libraries."""
    import gyrograd
    from gyrograd.cli.terminal import print_table

    # gyrograd.models knows them, too, but imports torch.
    zoo = Path(gyrograd.__file__).parent / "models" / "zoo"
    trained = sorted(path.parent.relative_to(zoo).as_posix() for path in zoo.rglob("model.safetensors"))
    others = "torchvision:NAME, timm:NAME, hf:OWNER/NAME (:pretrained for trained weights)"
    print()
    print_table(("", ""), [("Trained:", ", ".join(trained)), ("Other libraries:", others)])


def _print_table(kind: str, entries: Iterable[Listed]) -> None:
    from rich.text import Text

    from gyrograd.cli.terminal import print_table

    rows = []
    for entry in entries:
        name = Text(entry.name).append(f" ({', '.join(entry.aliases)})" if entry.aliases else "", "dim")
        source = entry.paper if entry.package == "gyrograd" else f"package {entry.package}"
        rows.append((name, entry.summary, source))
    print_table(("name", "what it is", "paper"), rows, title=kind)


MARKS = ("@register(", "\nregister_all(")
"""Files without these are not parsed, because parsing takes most of the time."""


@dataclass(frozen=True)
class Listed:
    """A name in `gyrograd list --json`; the fields are those of `registry.Entry`."""

    name: str
    aliases: tuple[str, ...]
    summary: str
    paper: str
    equation: str
    differentiable: bool
    label: str
    group: str
    package: str = "gyrograd"


def catalogue(kind: str) -> dict[str, Listed]:
    """All names of a kind, sorted, as in `registry.available`; plug-ins are imported for theirs."""
    check_name("kind", kind, registry.kinds())
    home = registry.HOMES[kind]
    found = [one for path in _files(home) for one in _names_registered_in(path, kind)]
    if not found:
        raise UserError(
            f"{home} has no source files to list names from; install gyrograd unpacked, with pip."
        )
    if registry.load_plugins():
        found += [
            listing_of(entry) for entry in registry.available(kind).values() if entry.package != "gyrograd"
        ]
    return {one.name: one for one in sorted(found, key=lambda one: one.name)}


def listing_of(entry: registry.Entry) -> Listed:
    """The listing of a registry entry."""
    return Listed(**{field.name: getattr(entry, field.name) for field in fields(Listed)})


def _files(package: str) -> Iterator[Path]:
    spec = importlib.util.find_spec(package)
    for folder in (spec.submodule_search_locations if spec else None) or ():
        yield from Path(folder).rglob("*.py")


def _names_registered_in(path: Path, kind: str) -> Iterator[Listed]:
    """The names of this kind that a file registers."""
    text = path.read_text(encoding="utf-8")
    if not any(mark in text for mark in MARKS):
        return
    for node in (tree := ast.parse(text, path)).body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            summary = (ast.get_docstring(node) or "").partition("\n")[0]
            for call in node.decorator_list:
                if isinstance(call, ast.Call) and _is_call(call, "register"):
                    yield from [_entry(call, summary)] if ast.literal_eval(call.args[0]) == kind else []
        elif kind == "experiment" and isinstance(node, ast.Expr) and _is_call(node.value, "register_all"):
            yield from _table_of_experiments(tree, ast.literal_eval(node.value.args[0]))  # type: ignore[attr-defined]


def _table_of_experiments(tree: ast.Module, paper: str) -> Iterator[Listed]:
    """The rows `Listed(name, where, about, ...)` of a paper's table."""
    for call in ast.walk(tree):
        if isinstance(call, ast.Call) and _is_call(call, "Listed"):
            name, where, about = (ast.literal_eval(argument) for argument in call.args[:3])
            name, summary = f"{paper}-{name}", about.partition("\n")[0]
            yield Listed(name, (), summary, paper, where, False, registry.readable(name), "")


def _is_call(node: ast.expr, name: str) -> bool:
    return isinstance(node, ast.Call) and ast.unparse(node.func) == name


def _entry(call: ast.Call, summary: str) -> Listed:
    said: registry.Settings = {str(key.arg): ast.literal_eval(key.value) for key in call.keywords}
    name = ast.literal_eval(call.args[1])
    return Listed(
        name=name,
        aliases=said.get("aliases", ()),
        summary=summary,
        paper=said["paper"],
        equation=said.get("equation", ""),
        differentiable=said.get("differentiable", False),
        label=said.get("label") or registry.readable(name),
        group=said.get("group", ""),
    )
