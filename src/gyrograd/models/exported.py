"""Open models saved with torch.export (.pt2) without running anything but their graph of tensor operations.

torch.export.load unpickles parts of the file, passes texts of it to sympy, imports modules it names, and builds Python
source from its names. So nothing of the file reaches torch unchecked. Pickles are read as tensors only and written
again; every text and number of the program is checked, its notes about the source are dropped, and the rest is written
again. Anything that fails a check is refused, never run.
"""

from __future__ import annotations

import io
import json
import logging
import math
import re
import warnings
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.export.passes import move_to_device_pass

from gyrograd.errors import UserError
from gyrograd.models.archives import json_object, members, repack
from gyrograd.models.expressions import is_guard, is_size
from gyrograd.models.operators import DEVICES, allows
from gyrograd.models.piecewise import FORMS
from gyrograd.records import JsonObject

MAX_DEPTH = 60
"""Most levels of the program's JSON; torch writes about a dozen."""
LONGEST_TEXT = 2_000
MOST_BITS = 512
"""Most bits of an integer that the program computes from sizes: Python's integers grow without limit."""

_PYTHON_FUNCTIONS = {
    *(f"_operator.{name}" for name in (
        "abs", "add", "and_", "eq", "floordiv", "ge", "getitem", "gt", "le", "lt", "mod", "mul", "ne", "neg", "not_",
        "or_", "pos", "sub", "truediv", "xor",
    )),
    *(f"torch.sym_{name}" for name in ("float", "int", "ite", "max", "min", "not", "sum")),
    *(f"math.{name}" for name in ("ceil", "floor", "trunc", "sqrt")),
}  # fmt: skip
"""Functions that a program may call on sizes."""
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_PATH = re.compile(r"[A-Za-z0-9_.\-]*")
_PATHS = {"parameter_name", "buffer_name", "tensor_constant_name", "fqn"}
"""Names of weights and modules; all other names become names in Python source, so they must be names."""
_VERSION = re.compile(r"[\w.+-]*")
_PAYLOAD = re.compile(r"(weight|tensor)_\d{1,6}")
_FOREIGN_CODE = {"as_graph", "as_operator", "as_custom_obj", "custom_obj", "token"}
"""Functions and objects of other programs as arguments."""
_TREES = {None, "builtins.tuple", "builtins.list", "builtins.dict", "collections.OrderedDict"}
_TRAINING = {"training", "train"}
_MARKS = ("archive_format", "archive_version", "byteorder", ".data/version", ".data/serialization_id")
_PROGRAM = "models/model.json"
_SAMPLE = "data/sample_inputs/model.pt"
"""Inputs the model was exported with: checked, then left out."""
_ACTIVATIONS: dict[Any, tuple[str, bool]] = {
    getattr(torch.ops.aten, spelled).default: (form, spelled != form)
    for form in FORMS
    for spelled in (form, f"{form}_")
    if hasattr(torch.ops.aten, spelled)
}
"""aten's operation to the activation made of ReLUs that it is, and whether it works in place."""


def open_export(path: Path, device: torch.device) -> nn.Module:
    """The module of a .pt2 file on the device, with `image_size` if the file fixes it."""
    contents = members(path)
    if [name for name in contents if name.startswith("models/")] != [_PROGRAM]:
        raise UserError(
            f"{path} is not a torch.export file of one model that this gyrograd can read; "
            "save it again with torch.export.save."
        )
    payloads = _check_payloads(path, contents)
    program_text = json.dumps(_check_program(path, json_object(path, contents[_PROGRAM]))).encode()
    archive = repack({**payloads, _PROGRAM: program_text, _SAMPLE: b""})
    program, module = _load(path, archive, device)
    # The mode is part of the graph, so train() and eval() have nothing to change; torch would raise.
    for mode in ("train", "eval"):
        vars(module).pop(mode, None)
    _make_activations_exchangeable(module)
    size = _input_sizes(path, program)
    if len(size) == 4 and isinstance(size[2], int) and size[2] == size[3]:
        module.__dict__["image_size"] = size[2]
    return module


def _check_payloads(path: Path, contents: dict[str, bytes]) -> dict[str, bytes]:
    """Weights and constants as files torch may read: raw numbers as they are, pickles written again."""
    kept = {name: contents[name] for name in _MARKS if name in contents}
    for folder in ("weights", "constants"):
        listing = f"data/{folder}/model_{folder}_config.json"
        if listing not in contents:
            raise _damage_error(path, f"it has no {listing}")
        entries = json_object(path, contents[listing]).get("config")
        if not isinstance(entries, dict):
            raise _damage_error(path, f"{listing} lists nothing")
        for name, entry in entries.items():
            file = f"data/{folder}/{entry.get('path_name')}" if isinstance(entry, dict) else ""
            if not _PATH.fullmatch(name) or not _PAYLOAD.fullmatch(file.rpartition("/")[2]):
                raise _holds_objects(path, file or name)
            if file not in contents:
                raise _damage_error(path, f"it lists {file} and lacks it")
            if entry.get("use_pickle") is False:
                _check_extent(path, file, entry.get("tensor_meta"), len(contents[file]))
                kept[file] = contents[file]
            else:
                kept[file] = _repickle(path, file, contents[file])
        kept[listing] = json.dumps({"config": _check_value(path, entries, "config", MAX_DEPTH)}).encode()
    for name in contents:
        if name == _SAMPLE and contents[name]:
            _repickle(path, name, contents[name])
        elif name.startswith("data/") and name not in kept and name != _SAMPLE:
            raise _holds_objects(path, name)
    return kept


def _holds_objects(path: Path, file: str) -> UserError:
    return UserError(
        f"{path} holds compiled code or Python objects ({file}), which gyrograd does not run; "
        "save the plain program: torch.export.save(torch.export.export(model, (x,)), PATH)."
    )


def _check_extent(path: Path, file: str, meta: Any, held: int) -> None:
    """Refuse a tensor with more elements than its file has bytes, which strides of zero make possible."""
    try:
        sizes = [size["as_int"] for size in meta["sizes"]]
        fits = all(type(size) is int and size >= 0 for size in sizes) and math.prod(sizes) <= max(held, 2**20)
    except (TypeError, KeyError):
        fits = False
    if not fits:
        raise _damage_error(path, f"{file} has {held:,} bytes and should hold a larger tensor")


def _repickle(path: Path, file: str, content: bytes) -> bytes:
    """The same tensors in a pickle written here; torch would run code in the one of the file."""
    try:
        tensor = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
        if not isinstance(tensor, torch.Tensor) and file != _SAMPLE:
            raise TypeError
        buffer = io.BytesIO()
        torch.save(tensor, buffer)
    except Exception as wrong:
        raise UserError(
            f"{path} holds a pickle that is more than tensors ({file}), and gyrograd runs no code from files; "
            "export the model again."
        ) from wrong
    return buffer.getvalue()


def _check_program(path: Path, document: JsonObject) -> JsonObject:
    """The program without notes about its source, after every text and number in it has been checked."""
    program: JsonObject = _check_value(path, document, "", MAX_DEPTH)
    try:
        # Expressions here stand for names, and those are checked as names.
        program["graph_module"]["treespec_namedtuple_fields"] = {}
        nodes = program["graph_module"]["graph"]["nodes"]
        _check_growth(path, nodes)
        for node in nodes:
            if any(one["name"] in _TRAINING and one["arg"].get("as_bool") for one in node["inputs"]):
                raise UserError(
                    f"{path} was exported in train mode ({node['target']}), so that its answers depend on chance or "
                    "on the batch; call model.eval() and export it again."
                )
    except (KeyError, TypeError, AttributeError):
        raise _damage_error(path, "its program lacks parts of a graph") from None
    return program


def _check_value(path: Path, value: Any, key: str, depth: int) -> Any:
    """The value, if all texts in it are allowed under their keys; `metadata` is left out."""
    if depth == 0:
        raise _damage_error(path, "its program is nested too deep")
    if isinstance(value, str):
        _check_text(path, key, value)
    elif isinstance(value, int) and value.bit_length() > 64:
        raise _damage_error(path, f"'{key}' is a number of {value.bit_length()} bits")
    elif isinstance(value, list):
        return [_check_value(path, item, key, depth - 1) for item in value]
    elif isinstance(value, dict):
        foreign = _FOREIGN_CODE & value.keys()
        if foreign:
            raise UserError(
                f"{path} hands functions or objects to its operators ({min(foreign)}), which gyrograd does not run; "
                "give the model as file.py:factory with its weights."
            )
        inner = {name: {} if name == "metadata" else item for name, item in value.items()}
        for name in inner:
            # Keys are names too: of tensors, of symbols, of weights, of fields.
            if not (_PATH.fullmatch(name) if key == "config" else _NAME.fullmatch(name) or is_size(name)):
                raise _damage_error(path, f"'{name[:60]}' is not a name")
        return {name: _check_value(path, item, name, depth - 1) for name, item in inner.items()}
    return value


def _check_text(path: Path, key: str, text: str) -> None:
    """Refuse a text that torch would evaluate or import, unless it is of an allowed kind."""
    if key == "target":
        if not _is_allowed_call(text):
            raise UserError(
                f"{path} calls '{text[:80]}', which is not an operation that a model needs; "
                "give the model as file.py:factory with its weights."
            )
    elif key in {"expr_str", "guards_code"}:
        if not (is_size(text) if key == "expr_str" else is_guard(text)):
            raise UserError(
                f"{path} holds the expression '{text[:60]}', which is more than arithmetic on sizes; "
                "export the model again, or give it as file.py:factory with its weights."
            )
    elif key in {"in_spec", "out_spec"}:
        _check_tree(path, text)
    elif key == "type":
        if text not in DEVICES:
            raise UserError(
                f"{path} puts tensors on the device '{text[:20]}', which gyrograd does not use; export it on the CPU."
            )
    elif key in {"as_float", "as_floats", "real", "imag"}:
        if text not in {"Infinity", "-Infinity", "NaN"}:
            raise _damage_error(path, f"'{text[:60]}' under '{key}' is not a number")
    elif key in {"as_string", "as_strings"}:
        # An argument such as "tanh": torch quotes it wherever it is written.
        if len(text) > LONGEST_TEXT:
            raise _damage_error(path, f"'{key}' is a text of {len(text):,} letters")
    else:
        pattern = _PATH if key in _PATHS else _VERSION if key == "torch_version" else _NAME
        if key == "path_name":
            pattern = _PAYLOAD
        # An argument without a name is positional.
        if not pattern.fullmatch(text) and (key, text) != ("name", ""):
            raise _damage_error(path, f"'{text[:60]}' under '{key}' is not a name")


def _is_allowed_call(target: str) -> bool:
    parts = target.split(".")
    if parts[:2] == ["torch", "ops"]:
        return len(parts) == 5 and _NAME.fullmatch(parts[4]) is not None and allows(parts[2], parts[3])
    return target in _PYTHON_FUNCTIONS


def _check_tree(path: Path, text: str) -> None:
    """Refuse inputs and outputs in other containers than tuples, lists and dicts: torch would import their module."""
    try:
        version, tree = json.loads(text)
        ok = version == 1 and _is_plain_tree(tree, MAX_DEPTH)
    except (ValueError, TypeError, KeyError, RecursionError):
        ok = False
    if not ok:
        raise UserError(
            f"{path} takes or returns more than tensors in tuples, lists and dictionaries; "
            "export a model of one image batch that returns its logits."
        )


def _is_plain_tree(tree: Any, depth: int) -> bool:
    if depth == 0 or set(tree) != {"type", "context", "children_spec"} or tree["type"] not in _TREES:
        return False
    context = None if tree["context"] is None else json.loads(tree["context"])
    keys = [] if context is None else context
    return (
        isinstance(keys, list)
        and all(isinstance(key, str) and _NAME.fullmatch(key) for key in keys)
        and isinstance(tree["children_spec"], list)
        and all(_is_plain_tree(child, depth - 1) for child in tree["children_spec"])
    )


def _check_growth(path: Path, nodes: list[JsonObject]) -> None:
    """Bound the integers that Python computes: a product has as many bits as its factors together."""
    bits: dict[str, int] = {}
    for node in nodes:
        if not node["target"].startswith(("_operator.", "torch.sym_")):
            continue
        widths = [_bits(argument["arg"], bits) for argument in node["inputs"]]
        total = sum(widths) if node["target"] == "_operator.mul" else max(widths, default=0) + 1
        if total > MOST_BITS:
            raise UserError(
                f"{path} computes a size of more than {MOST_BITS} bits; "
                "give the model as file.py:factory with its weights."
            )
        for output in node["outputs"]:
            for name in output.get("as_sym_int", {}).values():
                bits[str(name)] = total


def _bits(value: Any, known: dict[str, int]) -> int:
    """Bits of the largest value of an argument; 64 for the size of a tensor."""
    if isinstance(value, dict):
        return max((_bits(item, known) for item in value.values()), default=64)
    if isinstance(value, list):
        return sum(_bits(item, known) for item in value)
    return known.get(value, 64) if isinstance(value, str) else 64


def _damage_error(path: Path, reason: str) -> UserError:
    return UserError(f"{path} is damaged ({reason}); export the model again.")


def _load(path: Path, archive: io.BytesIO, device: torch.device) -> tuple[Any, nn.Module]:
    """The program and its module on the device; torch's errors about the file become one sentence."""
    log = logging.getLogger("torch.export")
    level = log.level
    log.setLevel(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            # The graph contains devices, so the program has to be moved, not the module.
            program = move_to_device_pass(torch.export.load(archive), device)
            return program, program.module()
    except Exception as wrong:
        raise UserError(
            f"{path} cannot be read by torch {torch.__version__} ({type(wrong).__name__}); "
            "export it again with this version."
        ) from wrong
    finally:
        log.setLevel(level)


def _make_activations_exchangeable(module: nn.Module) -> None:
    """Replace aten calls by torch.nn.functional: the same values, and `with_activation` can swap them."""
    graph: Any = module.graph
    for node in graph.nodes:
        if node.op == "call_function" and node.target in _ACTIVATIONS:
            form, in_place = _ACTIVATIONS[node.target]
            node.target = getattr(F, form)
            node.kwargs = {**node.kwargs, **({"inplace": True} if in_place else {})}
    module.recompile()  # type: ignore[operator]


def _input_sizes(path: Path, program: Any) -> tuple[Any, ...]:
    """Sizes of the one input; a fixed batch size is refused, since every result would depend on it."""
    inputs = program.graph_signature.user_inputs
    if len(inputs) != 1:
        raise UserError(f"{path} takes {len(inputs)} inputs; export a model of one input, a batch of images.")
    node = next(node for node in program.graph.nodes if node.name == inputs[0])
    sizes = tuple(node.meta["val"].shape)
    if sizes and isinstance(sizes[0], int):
        raise UserError(
            f"{path} was exported for batches of exactly {sizes[0]}; export it with "
            "dynamic_shapes=({0: torch.export.Dim('batch')},)."
        )
    return sizes
