"""The registry of attributions, attacks, metrics, regularizers, kernels, models, data sets and experiments by name.

An entry is registered where it is defined, with every fact about it that other folders need. The folder of its kind and
installed plug-ins are imported on the first look-up. Needs no torch.
"""

from __future__ import annotations

import importlib
import inspect
import math
import numbers
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from functools import lru_cache
from importlib.metadata import EntryPoint, entry_points
from types import NoneType, UnionType
from typing import Any, Literal, TypeAlias, TypeVar, Union, get_args, get_origin, get_type_hints

from gyrograd.errors import UserError, check_name, did_you_mean, in_words

Kind = Literal["attribution", "attack", "metric", "regularizer", "kernel", "model", "dataset", "experiment"]
Direction = Literal["higher is better", "lower is better", "none"]

HOMES: dict[str, str] = {
    "attribution": "gyrograd.attributions",
    "attack": "gyrograd.attacks",
    "metric": "gyrograd.metrics",
    "regularizer": "gyrograd.regularizers",
    "kernel": "gyrograd.smoothing",
    "model": "gyrograd.models",
    "dataset": "gyrograd.data",
    "experiment": "gyrograd.experiments",
}

PLUGINS = "gyrograd.plugins"
"""Entry point group of packages that register methods of their own (docs/how-to/extend.md)."""

Settings: TypeAlias = dict[str, Any]
"""A method's settings by name, as a user or a YAML file writes them: `make` checks their kinds."""
Factory = TypeVar("Factory", bound=Callable[..., Any])

MAX_INTEGER = 1_000_000
"""Largest integer a setting accepts; more steps, draws or classes would not finish."""
UNBOUNDED = {"seed", "max_batch"}
"""Integer settings that do not add work, so they have no limit."""
_WORDS = {
    int: "a whole number",
    float: "a finite number",
    bool: "True or False",
    str: "a word",
    NoneType: "None",
    Sequence: "a list",
}


@dataclass(frozen=True)
class Entry:
    """A registered name with the facts about it; `register` documents each field.

    >>> import gyrograd as gg
    >>> smoothgrad = gg.available("attribution")["smoothgrad"]
    >>> smoothgrad.label, smoothgrad.aliases, smoothgrad.paper
    ('SmoothGrad', ('sg',), 'wang2020')
    """

    name: str
    kind: Kind
    factory: Callable[..., Any]
    paper: str
    equation: str = ""
    aliases: tuple[str, ...] = ()
    direction: Direction = "none"
    differentiable: bool = False
    forward_only: bool = False
    label: str = ""
    about: str = ""
    group: str = ""
    order: int = 100
    passes: int | str = 1
    width: str = ""
    capturable: bool = False
    second_order: bool = True
    replaces_cross_entropy: bool = False
    image_size: int | None = None

    @property
    def summary(self) -> str:
        """The first line of the factory's docstring."""
        return (inspect.getdoc(self.factory) or "").partition("\n")[0]

    @property
    def package(self) -> str:
        """The package that registered it: "gyrograd", or the name of a plug-in."""
        return self.factory.__module__.partition(".")[0]


_DEFAULTS = {field.name: field.default for field in fields(Entry)}
_entries: dict[tuple[str, str], Entry] = {}


def register(
    kind: Kind,
    name: str,
    *,
    paper: str,
    equation: str = "",
    aliases: tuple[str, ...] = (),
    direction: Direction = "none",
    differentiable: bool = False,
    forward_only: bool = False,
    label: str = "",
    about: str = "",
    group: str = "",
    order: int = 100,
    passes: int | str = 1,
    width: str = "",
    capturable: bool = False,
    second_order: bool = True,
    replaces_cross_entropy: bool = False,
    image_size: int | None = None,
) -> Callable[[Factory], Factory]:
    """Decorator that puts a function or dataclass into the registry. A name taken twice is an error.

    This is the one place for facts about a method: lists, tables, audits, pages and training read them from here.
    Write them as literals; `gyrograd list` reads the source without running it.

    Args:
        paper: short name of a page of docs/papers, "own", or "Author et al. 2020".
        equation: where in the paper.
        aliases: other names it is found by.
        direction: of a metric.
        differentiable: an attribution whose map can be differentiated again; attacks search others by transfer.
        forward_only: an attribution made of forward passes, whose derivative is therefore a first derivative of the
            model: attacks follow it through a net of ReLUs itself, without a smooth twin.
        label: the name as people write it ("SmoothGrad"); left out, the name with spaces.
        about: one sentence for people who do not know the field, shown by the explorer; left out, the first line of
            the docstring.
        group: metrics: the part of the table, "noise", "attack", "transform", "certificate" or "faithfulness" (left
            out: "other").
            Attacks: "map", "prediction" or "noise", for what they move.
        order: position in lists that are not sorted by name, lower first; ties are sorted by name.
        passes: attributions: model passes per map, or the name of the setting that holds their number ("draws").
        width: attributions that smooth: the name of the setting for the width ("sigma"); audits sweep it.
        capturable: regularisers that read no value of the batch on the host, so that a CUDA graph can hold them.
        second_order: regularisers that differentiate a gradient, for which half precision is too coarse. True unless
            declared otherwise.
        replaces_cross_entropy: regularisers that take the place of the clean cross-entropy and see the whole batch.
        image_size: models designed for images of this side that take larger ones, too, and have no setting for it.
    """

    def add(factory: Factory) -> Factory:
        entry = Entry(
            name,
            kind,
            factory,
            paper=paper,
            equation=equation,
            aliases=aliases,
            direction=direction,
            differentiable=differentiable,
            forward_only=forward_only,
            label=label or readable(name),
            about=about,
            group=group,
            order=order,
            passes=passes,
            width=width,
            capturable=capturable,
            second_order=second_order,
            replaces_cross_entropy=replaces_cross_entropy,
            image_size=image_size,
        )
        for key in (name, *aliases):
            if (kind, key) in _entries:
                _refuse_second(entry, _entries[kind, key], key)
        for key in (name, *aliases):
            _entries[kind, key] = entry
        if replaces_cross_entropy and inspect.isclass(factory):
            factory.replaces_cross_entropy = True  # type: ignore[attr-defined]  # loops of users' own ask the object
        return factory

    return add


def _refuse_second(entry: Entry, known: Entry, key: str) -> None:
    foreign = [one.package for one in (entry, known) if one.package != "gyrograd"]
    if foreign:
        raise UserError(
            f"The {entry.kind} '{key}' of package {foreign[0]} has a name that is taken; rename it there."
        )
    raise RuntimeError(f"{entry.kind} '{key}' is registered twice: {known.name} and {entry.name}")


def readable(name: str) -> str:
    """`zero_derivative` as `Zero derivative`."""
    words = name.replace("_", " ").strip()
    return words[:1].upper() + words[1:]


def kinds() -> tuple[str, ...]:
    """The kinds of things that can be built by name.

    >>> import gyrograd as gg
    >>> gg.kinds()
    ('attribution', 'attack', 'metric', 'regularizer', 'kernel', 'model', 'dataset', 'experiment')
    """
    return get_args(Kind)


def available(kind: str) -> dict[str, Entry]:
    """The entries of one kind by name, in alphabetical order; aliases are not listed.

    >>> import gyrograd as gg
    >>> list(gg.available("kernel"))
    ['gaussian', 'laplace', 'uniform']
    >>> gg.available("metric")["insertion"].direction
    'higher is better'
    """
    check_name("kind", kind, HOMES)
    importlib.import_module(HOMES[kind])
    load_plugins()
    mine = {entry.name: entry for (k, _), entry in _entries.items() if k == kind}
    return dict(sorted(mine.items()))


def in_order(kind: str) -> list[Entry]:
    """The entries of one kind, sorted by `order`: the best known first."""
    return sorted(available(kind).values(), key=lambda entry: (entry.order, entry.name))


_plugins: dict[EntryPoint, UserError | None] = {}
"""Plug-ins that were tried, each with the error that it raised, or None."""


def load_plugins() -> dict[str, str]:
    """Import the installed plug-in packages, once. A plug-in that cannot be imported is an error.

    Returns the version of each by name; records keep them, because plug-ins can affect the numbers.
    """
    for plugin in _installed_plugins():
        if plugin not in _plugins:
            _plugins[plugin] = None  # before the import, during which a plug-in may look up names
            try:
                plugin.load()
            except Exception as wrong:
                package = _package_of(plugin)
                why = str(wrong).rstrip(".") if isinstance(wrong, UserError) else in_words(wrong)
                _plugins[plugin] = UserError(
                    f"The plug-in package '{package}' cannot be loaded ({why}); fix it or remove it: "
                    f"pip uninstall {package}."
                )
        if (known := _plugins[plugin]) is not None:
            raise known
    return {_package_of(plugin): plugin.dist.version if plugin.dist else "unknown" for plugin in _plugins}


@lru_cache(maxsize=1)
def _installed_plugins() -> tuple[EntryPoint, ...]:
    return tuple(entry_points(group=PLUGINS))


def _package_of(plugin: EntryPoint) -> str:
    return plugin.module.partition(".")[0] if plugin.dist is None else plugin.dist.name


def lookup(kind: str, name: str) -> Entry:
    """The entry of a name or alias; a near miss is suggested."""
    names = available(kind)
    if (kind, name) not in _entries:
        known = {key for k, key in _entries if k == kind} if names else set()
        raise UserError(f"There is no {kind} '{name}': {did_you_mean(name, known)}")
    return _entries[kind, name]


def label_of(kind: str, name: str) -> str:
    """The label of a registered name; any other name is returned unchanged."""
    entries = available(kind)
    return entries[name].label if name in entries else name


def name_of(kind: str, made: Any) -> str:
    """The registered name of an object's class, or the class's own name if it is not registered."""
    found = _facts_of_class(kind, made.__class__, len(_entries))["name"]
    return str(found[0]) if len(found) == 1 else type(made).__name__


def fact(kind: str, made: Any, name: str) -> Any:
    """A field of the `Entry` that belongs to an object.

    The entry is found by the object's class: the class is registered, or is the declared return type of registered
    functions that agree on the field. For other objects an attribute of that name is used, if there is one.
    """
    found = _facts_of_class(kind, made.__class__, len(_entries)).get(name, [])
    if len(found) == 1:
        return found[0]
    return getattr(made, name, _DEFAULTS[name])


@lru_cache(maxsize=256)
def _facts_of_class(kind: str, made: type, _registered: int) -> dict[str, list[Any]]:
    """The different values of each field among the entries that build this class; the class's own entry wins."""
    entries = {entry for (k, _), entry in _entries.items() if k == kind}
    own = [entry for entry in entries if entry.factory is made]
    building = own or [
        e for e in entries if not inspect.isclass(e.factory) and _return_type(e.factory) is made
    ]
    return {name: list({getattr(entry, name) for entry in building}) for name in _DEFAULTS}


def _return_type(factory: Callable[..., Any]) -> Any:
    try:
        return get_type_hints(factory).get("return")
    except (NameError, TypeError):  # a hint that only type checkers know
        return None


def make(kind: str, name: str, /, *args: Any, **settings: Any) -> Any:
    """Build an entry with these settings. Unknown names and wrong types are errors that suggest the right one."""
    entry = lookup(kind, name)
    signature = inspect.signature(entry.factory)
    parameters = signature.parameters
    open_ended = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values())
    for key in settings:
        if key not in parameters and not open_ended:
            raise UserError(f"{kind} '{entry.name}' has no setting '{key}': {did_you_mean(key, parameters)}")
    try:
        signature.bind(*args, **settings)
    except TypeError as wrong:
        raise UserError(
            f"{kind} '{entry.name}': {wrong}; its settings are {', '.join(parameters)}."
        ) from None
    return entry.factory(*args, **_of_their_kinds(entry, parameters, settings))


def _of_their_kinds(
    entry: Entry, parameters: Mapping[str, inspect.Parameter], settings: Settings
) -> Settings:
    """The settings, converted to their declared types: 100.0 is accepted as 100; True and NaN are not numbers."""
    maker = entry.factory
    hints = get_type_hints(maker)
    if inspect.isclass(maker) and not is_dataclass(maker):
        # not for a dataclass, whose __init__ would look inherited hints up in the wrong module
        hints |= get_type_hints(maker.__init__)
    kept = {}
    for name, value in settings.items():
        kinds = _members(hints.get(name, Any))
        value = _as_declared(value, kinds)
        if not any(_fits(value, kind) for kind in kinds):
            wanted = " or ".join(dict.fromkeys(_in_words(kind) for kind in kinds))
            usual = parameters[name].default
            shown = f"{usual:.4g}" if isinstance(usual, float) else repr(usual)
            such_as = f", such as {shown}" if isinstance(usual, int | float | str) else ""
            raise UserError(f"{entry.kind} '{entry.name}' has {name}={value!r:.60}; give {wanted}{such_as}.")
        if isinstance(value, int) and abs(value) > MAX_INTEGER and name not in UNBOUNDED:
            raise UserError(
                f"{entry.kind} '{entry.name}' has {name}={value}, which would not finish; give at most {MAX_INTEGER:,}."
            )
        kept[name] = value
    return kept


def _as_declared(value: Any, kinds: tuple[Any, ...]) -> Any:
    """numpy numbers as Python numbers, and whole floats (1e2) as integers if an integer is declared."""
    if isinstance(value, numbers.Integral) and not isinstance(value, bool):
        return int(value)
    if not isinstance(value, numbers.Real) or isinstance(value, bool):
        return value
    number = float(value)
    return int(number) if int in kinds and float not in kinds and number.is_integer() else number


def _members(hint: Any) -> tuple[Any, ...]:
    return get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)


def _fits(value: Any, kind: Any) -> bool:
    """True if a value has a declared type; types that isinstance cannot check accept anything."""
    if kind is float:
        return isinstance(value, numbers.Real) and not isinstance(value, bool) and math.isfinite(value)
    if kind is int:
        return isinstance(value, numbers.Integral) and not isinstance(value, bool)
    if get_origin(kind) in (tuple, list):
        parts = {part for part in get_args(kind) if part is not Ellipsis}
        return isinstance(value, tuple | list) and all(
            any(_fits(item, member) for part in parts for member in _members(part)) for item in value
        )
    try:
        return isinstance(value, get_origin(kind) or kind)
    except TypeError:
        return True


def _in_words(kind: Any) -> str:
    if get_origin(kind) in (tuple, list):
        return "several of them"
    named = str(getattr(get_origin(kind) or kind, "__name__", kind))
    return _WORDS.get(get_origin(kind) or kind, f"a {named}")
