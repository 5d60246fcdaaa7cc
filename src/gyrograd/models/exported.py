"""Models saved with torch.export (.pt2), opened without running what the file says beyond its tensors' graph.

torch.export.load unpickles parts of the file and evaluates strings in it. So all of it is looked at first: each
pickle must load as tensors alone, each operation must be torch's own, each expression must be arithmetic. What
does not pass is refused, never run.
"""

from __future__ import annotations

import ast
import io
import json
import logging
import warnings
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.export.passes import move_to_device_pass

from gyrograd.errors import UserError
from gyrograd.models.piecewise import FORMS

_OPERATIONS = (
    "torch.ops.aten.",
    "torch.ops.prims.",
    "torch.ops.torchvision.",
    "torch.sym_",
    "_operator.",
    "math.",
)
_WORDS = {
    # what torch writes in sizes and guards: symbols, integer arithmetic, and the looks at a tensor
    "Symbol", "Integer", "Rational", "Float", "Max", "Min", "Mod", "FloorDiv", "CeilDiv", "PythonMod", "Eq", "Ne",
    "Ge", "Gt", "Le", "Lt", "And", "Or", "Not", "Pow", "Mul", "Add", "ceiling", "floor", "oo", "L", "size", "stride",
    "dim", "storage_offset", "int_oo", "max", "min", "math", "isnan", "inf",
}  # fmt: skip
_SYMBOL_PREFIXES = ("s", "u", "z")
_ARITHMETIC = (
    ast.Expression, ast.Name, ast.Attribute, ast.Call, ast.Constant, ast.BinOp, ast.UnaryOp, ast.Compare, ast.BoolOp,
    ast.Subscript, ast.keyword, ast.Load, ast.operator, ast.unaryop, ast.cmpop, ast.boolop,
)  # fmt: skip
_TRAINING = {"training", "train"}
_PROGRAM = "models/model.json"
_ACTIVATIONS: dict[Any, tuple[str, bool]] = {
    getattr(torch.ops.aten, spelled).default: (form, spelled != form)
    for form in FORMS
    for spelled in (form, f"{form}_")
    if hasattr(torch.ops.aten, spelled)
}
"""aten's operation to the activation made of ReLUs that it is, and whether it works in place."""


def exported(path: Path, device: torch.device) -> nn.Module:
    """The module of a .pt2 file on the device; its `image_size` is set where the file fixes it."""
    with zipfile.ZipFile(path) as archive:
        members = _members(path, archive)
        _check_payloads(path, members, archive)
        _check_program(path, _json(path, archive.read(members[_PROGRAM])))
    # Devices are written into the graph, so the program is moved, not the module.
    program = move_to_device_pass(_loaded(path), device)
    module: nn.Module = program.module()
    # The mode is part of the graph, so a change of it is none; torch raises where it could ignore.
    for mode in ("train", "eval"):
        vars(module).pop(mode, None)
    _make_activations_exchangeable(module)
    size = _input_sizes(path, program)
    if len(size) == 4 and isinstance(size[2], int) and size[2] == size[3]:
        module.__dict__["image_size"] = size[2]
    return module


def _members(path: Path, archive: zipfile.ZipFile) -> dict[str, str]:
    """Inner name to name in the zip, all below one folder and each there once, with one program among them."""
    names = archive.namelist()
    inner = {name.partition("/")[2]: name for name in names}
    programs = [name for name in inner if name.startswith("models/")]
    if (
        len({name.partition("/")[0] for name in names}) != 1
        or len(inner) != len(names)
        or programs != [_PROGRAM]
    ):
        raise UserError(
            f"{path} is no torch.export file of one model that this gyrograd can read; "
            "save it again with torch.export.save."
        )
    return inner


def _check_payloads(path: Path, members: dict[str, str], archive: zipfile.ZipFile) -> None:
    """Every member under data/ is raw numbers, JSON, or a pickle that loads as tensors without running anything."""
    raw = _raw_payloads(path, members, archive)
    for inner, name in members.items():
        if not inner.startswith("data/") or inner in raw or inner.endswith("_config.json"):
            continue
        if not inner.startswith(("data/sample_inputs/", "data/weights/weight_", "data/constants/tensor_")):
            raise UserError(
                f"{path} holds compiled code or Python objects ({inner}), which gyrograd does not run; "
                "save the plain program: torch.export.save(torch.export.export(model, (x,)), PATH)."
            )
        try:
            torch.load(io.BytesIO(archive.read(name)), map_location="cpu", weights_only=True)
        except Exception as wrong:
            raise UserError(
                f"{path} holds a pickle that is more than tensors ({inner}), and gyrograd runs no code from files; "
                "export the model again."
            ) from wrong


def _raw_payloads(path: Path, members: dict[str, str], archive: zipfile.ZipFile) -> set[str]:
    """Members whose bytes are numbers and nothing else, as the file itself will have them read."""
    raw = set()
    for inner, name in members.items():
        if not inner.endswith("_config.json"):
            continue
        payloads = _json(path, archive.read(name)).get("config", {})
        folder = inner.rpartition("/")[0]
        raw |= {
            f"{folder}/{one.get('path_name')}" for one in payloads.values() if one.get("use_pickle") is False
        }
    return raw


def _check_program(path: Path, document: dict[str, Any]) -> None:
    for key, value in _strings(document):
        if key == "target" and not value.startswith(_OPERATIONS):
            raise UserError(
                f"{path} calls '{value}', which is no operation of torch's own; "
                "give the model as file.py:factory with its weights."
            )
        if key in {"expr_str", "guards_code"} and not _is_arithmetic(value):
            raise UserError(
                f"{path} holds the expression '{value[:60]}', which is more than arithmetic on sizes; "
                "export the model again, or give it as file.py:factory with its weights."
            )
    for node in document.get("graph_module", {}).get("graph", {}).get("nodes", []):
        if any(
            one.get("name") in _TRAINING and one.get("arg", {}).get("as_bool")
            for one in node.get("inputs", [])
        ):
            raise UserError(
                f"{path} was exported in train mode ({node.get('target')}), so that its answers depend on chance or "
                "on the batch; call model.eval() and export it again."
            )


def _strings(value: Any, key: str = "") -> Iterator[tuple[str, str]]:
    """Every string of a document with the key it stands under."""
    if isinstance(value, str):
        yield key, value
    elif isinstance(value, dict):
        for name, item in value.items():
            yield from _strings(item, str(name))
    elif isinstance(value, list):
        for item in value:
            yield from _strings(item, key)


def _is_arithmetic(text: str) -> bool:
    """Sums, products, comparisons and known words; nothing else can be reached from them."""
    try:
        tree = ast.parse(text, mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return all(isinstance(node, _ARITHMETIC) and _is_known_word(node) for node in ast.walk(tree))


def _is_known_word(node: ast.AST) -> bool:
    if isinstance(node, ast.Attribute):
        return node.attr in _WORDS
    if isinstance(node, ast.Name):
        symbol = node.id[:1] in _SYMBOL_PREFIXES and node.id[1:].isdigit()
        return node.id in _WORDS or symbol
    return True


def _loaded(path: Path) -> Any:
    """The program; torch's own complaints about a file it cannot read become one sentence."""
    log = logging.getLogger("torch.export")
    level = log.level
    log.setLevel(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with path.open("rb") as file:
                return torch.export.load(io.BytesIO(file.read()))
    except Exception as wrong:
        raise UserError(
            f"{path} cannot be read by torch {torch.__version__} ({type(wrong).__name__}); "
            "export it again with this version."
        ) from wrong
    finally:
        log.setLevel(level)


def _make_activations_exchangeable(module: nn.Module) -> None:
    """Calls of torch.nn.functional in place of aten's: the same numbers, and an attack's twin can exchange them."""
    graph: Any = module.graph
    for node in graph.nodes:
        if node.op == "call_function" and node.target in _ACTIVATIONS:
            form, in_place = _ACTIVATIONS[node.target]
            node.target = getattr(F, form)
            node.kwargs = {**node.kwargs, **({"inplace": True} if in_place else {})}
    module.recompile()  # type: ignore[operator]


def _input_sizes(path: Path, program: Any) -> tuple[Any, ...]:
    """Sizes of the one input; a batch size that is fixed would make every result depend on it."""
    inputs = program.graph_signature.user_inputs
    if len(inputs) != 1:
        raise UserError(
            f"{path} takes {len(inputs)} inputs; gyrograd explains models of one, a batch of images."
        )
    node = next(node for node in program.graph.nodes if node.name == inputs[0])
    sizes = tuple(node.meta["val"].shape)
    if sizes and isinstance(sizes[0], int):
        raise UserError(
            f"{path} was exported for batches of exactly {sizes[0]}; export it with "
            "dynamic_shapes=({0: torch.export.Dim('batch')},)."
        )
    return sizes


def _json(path: Path, content: bytes) -> dict[str, Any]:
    try:
        document = json.loads(content)
    except ValueError:
        document = None
    if not isinstance(document, dict):
        raise UserError(f"{path} is damaged (its program is no JSON); export the model again.")
    return document
