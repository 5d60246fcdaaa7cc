"""Open models saved with torch.jit (TorchScript); nothing of the file runs before it is checked.

torch's interpreter runs no Python, but its operators can write files, and loading alone runs parts of the file's code:
`__setstate__` of each class, and every default value. So the code is first read as text and must have neither. Then
torch compiles it, and every operator of the compiled functions must be on the list of `operators`.
"""

from __future__ import annotations

import ast
import hashlib
import io
import pickle
import pickletools
import re
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.jit._recursive import wrap_cpp_module
from torch.utils._pytree import tree_leaves, tree_map

from gyrograd.errors import UserError
from gyrograd.models.archives import members, repack
from gyrograd.models.operators import DEVICES, allows
from gyrograd.types import Inputs

LONGEST_CODE = 50_000_000
MAX_DATA_DEPTH = 500
"""Most levels of the values in a script; a module in a module is two."""
MOST_NODES = 5_000_000
"""Most operations after all calls are inlined, as torch does to run them."""

_KEPT = re.compile(r"version|byteorder|\.data/\w+|(data|constants)\.pkl|(data|constants)/\d+|code/.+\.py")
_PLAIN_GLOBALS = re.compile(
    r"torch\._utils\._rebuild_tensor_v2|torch\.jit\._pickle\.(build_(int|double|bool|tensor)list|restore_type_tag)"
    r"|torch\.(\w+Storage|device)|collections\.OrderedDict|__torch__(\.\w+)+"
)
_PUSHES = {
    "GLOBAL", "BINUNICODE", "BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT", "NEWTRUE", "NEWFALSE", "NONE",
    "EMPTY_DICT", "EMPTY_LIST", "EMPTY_TUPLE",
}  # fmt: skip
_TAKES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3, "REDUCE": 2, "NEWOBJ": 2, "BINPERSID": 1}
"""Number of values that an opcode combines into one."""
_RUNS_AT_LOADING = {"__setstate__", "__getstate__", "__init__", "__enter__", "__exit__", "__del__"}
_LITERALS = (
    ast.Constant, ast.UnaryOp, ast.unaryop, ast.List, ast.Tuple, ast.Dict, ast.Name, ast.Attribute, ast.Subscript,
    ast.expr_context,
)  # fmt: skip
_NORMALIZATIONS = {
    "aten::batch_norm", "aten::instance_norm", "aten::_batch_norm_impl_index", "aten::native_batch_norm",
}  # fmt: skip
_CUSTOM_CLASS = re.compile(r"torch\s*\.\s*classes\b")


class Scripted(nn.Module):
    """A TorchScript module inside a plain one, because scripted modules take no hooks from Python."""

    def __init__(self, core: nn.Module, normalizes: bool, digest: str) -> None:
        super().__init__()
        self.core = core
        self.normalizes = normalizes
        """True if the script calls batch or instance normalisation."""
        self.digest = digest

    def extra_repr(self) -> str:
        return f"sha256={self.digest}"  # a printed script names its modules only, not what they compute

    def forward(self, x: Inputs) -> Any:
        # A single image that is differentiated on a CPU goes through as two rows: torch's derivative of a
        # normalisation may be wrong for one (docs/decisions/0011), and the inside of a script cannot be changed.
        hidden = isinstance(self.core, torch.jit.ScriptModule)  # not while it is interpreted
        alone = (
            hidden and len(x) == 1 and x.device.type == "cpu" and x.requires_grad and torch.is_grad_enabled()
        )
        if not (alone and self.normalizes):
            return self.core(x)
        with torch.no_grad():
            expected = tree_leaves(self.core(x.detach()))
        try:
            both = tree_map(lambda out: out[:1], self.core(torch.cat([x, x])))
            same = all(_is_close(one, other) for one, other in zip(tree_leaves(both), expected, strict=True))
        except (RuntimeError, IndexError, ValueError, TypeError):
            same = False
        if not same:
            raise UserError(
                "This TorchScript model takes one image at a time, and torch may then differentiate its normalisation "
                "wrongly; trace it with two images or more, or save it with torch.export."
            )
        return both


def _digest(contents: Mapping[str, bytes]) -> str:
    """Of the code and the attributes, not of the weights."""
    names = sorted(name for name in contents if name.endswith((".py", ".pkl")))
    return hashlib.sha256(b"".join(name.encode() + contents[name] for name in names)).hexdigest()[:12]


def open_script(path: Path, device: torch.device) -> nn.Module:
    """The module of a TorchScript file on the device, after checking that all of its code is harmless."""
    contents = {name: content for name, content in members(path).items() if _KEPT.fullmatch(name)}
    _check_code(path, contents)
    for part in ("data", "constants"):
        _check_pickle(path, part, contents)
    compiler: Any = torch._C  # its type stubs are incomplete
    functions = compiler.CompilationUnit()
    try:
        with warnings.catch_warnings():
            # torch.jit is deprecated, with a category that depends on the version; its files still exist
            for kind in (FutureWarning, DeprecationWarning):
                warnings.simplefilter("ignore", kind)
            archive = repack(contents).getvalue()
            loaded = compiler.import_ir_module_from_buffer(functions, archive, device, {}, False)
            seen = _check_graphs(path, functions.get_functions())
            core, normalizes = wrap_cpp_module(loaded), bool(_NORMALIZATIONS & seen)
            return Scripted(core, normalizes, _digest(contents))
    except UserError:
        raise
    except Exception as wrong:
        raise UserError(
            f"{path} is damaged or not a TorchScript file that this torch can read ({_first_line(wrong)}); "
            "save it again with torch.jit.save."
        ) from None


def _check_code(path: Path, contents: Mapping[str, bytes]) -> None:
    """Refuse code that would run while torch loads it, and anything but the plain text that torch writes."""
    for name, content in contents.items():
        if not name.startswith("code/"):
            continue
        try:
            text = content.decode("ascii")
            if len(text) > LONGEST_CODE or not text.replace("\n", "").isprintable():
                raise ValueError
            tree = ast.parse(text)
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            raise UserError(
                f"{path} holds code that torch did not write ({name}); save it again with torch.jit.save."
            ) from None
        reason = _runs_when_loaded(text, tree)
        if reason is not None:
            raise UserError(
                f"{path} would run code while it is opened ({reason} in {name}), and gyrograd runs no code from files; "
                "give the model as file.py:factory with its weights."
            )


def _runs_when_loaded(text: str, tree: ast.Module) -> str | None:
    """The part that would run at loading (a method torch calls, a compiled class, a computed value), or None."""
    if _CUSTOM_CLASS.search(text):
        return "a custom class"
    for word in _RUNS_AT_LOADING:
        if word in text:
            return word
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            values = [*node.args.defaults, *node.args.kw_defaults]
            if node.decorator_list or not all(value is None or _is_literal(value) for value in values):
                return f"a computed default of {node.name}"
        elif isinstance(node, ast.ClassDef):
            for line in node.body:
                value = getattr(line, "value", None)
                if (
                    isinstance(line, ast.Assign | ast.AnnAssign)
                    and value is not None
                    and not _is_literal(value)
                ):
                    return f"a computed value of {node.name}"
    return None


def _is_literal(node: ast.AST) -> bool:
    """True for numbers, texts, lists of them, constants of the file and types; the only call is float("inf")."""
    if isinstance(node, ast.Call):
        named = isinstance(node.func, ast.Name) and node.func.id == "float"
        return named and not node.keywords and all(isinstance(item, ast.Constant) for item in node.args)
    return isinstance(node, _LITERALS) and all(_is_literal(part) for part in ast.iter_child_nodes(node))


def _check_pickle(path: Path, part: str, contents: Mapping[str, bytes]) -> None:
    """Refuse data other than tensors, plain values and objects of the file's classes, or nested too deeply."""
    pickled = contents.get(f"{part}.pkl", b"")
    try:
        _Nesting().follow(pickled)
        _TensorBounds(pickled, part, contents).load()
    except Exception:
        raise UserError(
            f"{path} is damaged, or is TorchScript with more than tensors and its own modules; "
            "save it again with torch.jit.save."
        ) from None


class _StandIn:
    """Takes the place of every class a pickle names, so that reading it runs nothing."""

    def __init__(self, *_: Any) -> None:
        pass

    def __setstate__(self, _: Any) -> None:
        pass


class _TensorBounds(pickle.Unpickler):
    """Reads a pickle with stand-ins for its classes; raises ValueError if a tensor reaches beyond its bytes."""

    # torch's reader of scripts trusts the sizes in the pickle: a tensor whose file in the archive is shorter would get
    # whatever follows it in memory, or crash the process.

    def __init__(self, pickled: bytes, part: str, contents: Mapping[str, bytes]) -> None:
        super().__init__(io.BytesIO(pickled))
        self.part, self.contents = part, contents

    def find_class(self, module: str, name: str) -> Any:
        if name == "_rebuild_tensor_v2":
            return self._tensor
        if module == "torch" and name.endswith("Storage"):
            return getattr(torch, name)._dtype
        return _StandIn

    def persistent_load(self, pid: Any) -> int:
        """The number of elements of a storage."""
        _, dtype, key, _, elements = pid
        if elements * dtype.itemsize > len(self.contents[f"{self.part}/{key}"]):
            raise ValueError("a tensor lacks bytes")
        return int(elements)

    def _tensor(
        self, elements: int, offset: int, size: tuple[int, ...], stride: tuple[int, ...], *_: Any
    ) -> None:
        if min((offset, *size, *stride)) < 0:
            raise ValueError("a negative size")
        furthest = offset + sum((n - 1) * step for n, step in zip(size, stride, strict=True))
        if 0 not in size and furthest >= elements:
            raise ValueError("a tensor reaches beyond its storage")


class _Nesting:
    """Follows a pickle as torch's reader would, tracking only the depth of each value; raises ValueError."""

    # torch reads values by recursion, and one that is nested a hundred thousand times would crash the process.

    def __init__(self) -> None:
        # Each value is a list with its depth, and whether it is new: a value from the memo must not be added to, or its
        # depth would change after others counted it. None marks the start of a group.
        self.stack: list[tuple[list[int], bool] | None] = []
        self.memo: dict[Any, list[int]] = {}

    def follow(self, content: bytes) -> None:
        for opcode, argument, _ in pickletools.genops(content):
            name = opcode.name
            if name == "GLOBAL":
                imported = str(argument).replace(" ", ".")
                if not _PLAIN_GLOBALS.fullmatch(imported) or _CUSTOM_CLASS.search(imported):
                    raise ValueError(imported)
            if name in _PUSHES:
                self._push(0)
            elif name in _TAKES:
                self._push(1 + max([self._pop() for _ in range(_TAKES[name])]))
            elif name == "MARK":
                self.stack.append(None)
            elif name == "TUPLE":
                self._push(1 + self._group())
            elif name in {"APPENDS", "SETITEMS"}:
                self._add(self._group())
            elif name in {"APPEND", "BUILD"}:
                self._add(self._pop())
            elif name == "SETITEM":
                self._add(max(self._pop(), self._pop()))
            elif name in {"BINPUT", "LONG_BINPUT"}:
                self.memo[argument] = self._top()[0]
            elif name in {"BINGET", "LONG_BINGET"}:
                self.stack.append((self.memo[argument], False))
            elif name == "POP":
                self.stack.pop()
            elif name not in {"PROTO", "STOP"}:
                raise ValueError(name)
            if len(self.stack) > MAX_DATA_DEPTH * 100:
                raise ValueError("too many open values")

    def _push(self, depth: int) -> None:
        if depth > MAX_DATA_DEPTH:
            raise ValueError("too deep")
        self.stack.append(([depth], True))

    def _top(self) -> tuple[list[int], bool]:
        value = self.stack[-1]
        if value is None:
            raise ValueError("a mark")
        return value

    def _pop(self) -> int:
        depth = self._top()[0][0]
        self.stack.pop()
        return depth

    def _group(self) -> int:
        """Pop the values back to the mark, and the mark; returns their greatest depth."""
        deepest = 0
        while self.stack[-1] is not None:
            deepest = max(deepest, self._pop())
        self.stack.pop()
        return deepest

    def _add(self, depth: int) -> None:
        """Add a value of this depth to the one on top."""
        holder, own = self._top()
        if not own or depth >= MAX_DATA_DEPTH:
            raise ValueError("too deep")
        holder[0] = max(holder[0], 1 + depth)


def _check_graphs(path: Path, functions: list[Any]) -> set[str]:
    """The operators of all functions; unknown operators and code that expands without end are refused."""
    sizes: dict[str, int] = {}
    graphs = {function.qualified_name: function.graph for function in functions}
    for name in graphs:
        if _count_operations(path, name, graphs, sizes, ()) > MOST_NODES:
            raise UserError(
                f"{path} unfolds to more than {MOST_NODES:,} operations; "
                "give the model as file.py:factory with its weights."
            )
    return {node.kind() for graph in graphs.values() for node in _nodes(graph)}


def _count_operations(
    path: Path, name: str, graphs: Mapping[str, Any], sizes: dict[str, int], callers: tuple[str, ...]
) -> int:
    """Number of operations of a function with those it calls, after checking each of its own."""
    if name in callers or len(callers) > 200:
        raise UserError(
            f"{path} calls '{name}' from itself or too deep; give the model as file.py:factory with its weights."
        )
    if name not in graphs:
        raise UserError(
            f"{path} calls '{name}', which is not in the file; give the model as file.py:factory with its weights."
        )
    if name not in sizes:
        total = 0
        for node in _nodes(graphs[name]):
            _check_node(path, node)
            called = _callee(node)
            total += 1 if called is None else _count_operations(path, called, graphs, sizes, (*callers, name))
        sizes[name] = total
    return sizes[name]


def _nodes(block: Any) -> Iterator[Any]:
    for node in block.nodes():
        yield node
        for inner in node.blocks():
            yield from _nodes(inner)


def _callee(node: Any) -> str | None:
    """The qualified name of the function that a node calls."""
    if node.kind() == "prim::CallMethod":
        return f"{next(node.inputs()).type().annotation_str}.{node.s('name')}"
    if node.kind() == "prim::CallFunction":
        return str(next(node.inputs()).type().annotation_str)
    return None


def _check_node(path: Path, node: Any) -> None:
    namespace, _, name = node.kind().partition("::")
    if not allows(namespace, name):
        raise UserError(
            f"{path} calls '{node.kind()}', which is not an operator that a model needs; "
            "give the model as file.py:factory with its weights."
        )
    if node.kind() == "prim::Constant" and node.output().type().kind() == "DeviceObjType":
        kind = node.s("value").partition(":")[0]
        if kind not in DEVICES:
            raise UserError(
                f"{path} puts tensors on the device '{kind}', which gyrograd does not use; save it on the CPU."
            )


def _is_close(one: Any, other: Any) -> bool:
    """True if equal up to the rounding of another batch size."""
    largest = other.abs().max().clamp_min(torch.finfo(other.dtype).tiny)
    return bool(((one.detach() - other).abs() <= 1e-3 * largest).all())


def _first_line(wrong: Exception) -> str:
    return next((line.strip() for line in str(wrong).splitlines() if line.strip()), type(wrong).__name__)
