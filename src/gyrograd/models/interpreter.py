"""Run TorchScript from Python, operation by operation, so that a record sees what torch's own interpreter hides.

A script's graph is a list of nodes, each an operator on values of earlier nodes. Running them in order with torch's
operators gives the script's values and the same derivatives to its weights.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from gyrograd.errors import UserError
from gyrograd.types import Inputs

_DTYPES = {
    0: torch.uint8, 1: torch.int8, 2: torch.int16, 3: torch.int32, 4: torch.int64, 5: torch.float16,
    6: torch.float32, 7: torch.float64, 11: torch.bool, 15: torch.bfloat16,
}  # fmt: skip
_NUMBERS = {dtype: number for number, dtype in _DTYPES.items()}
_ENUMERATIONS: dict[str, dict[int, Any]] = {
    "ScalarType": _DTYPES,
    "Layout": {0: torch.strided},
    "MemoryFormat": {
        0: torch.contiguous_format, 1: torch.preserve_format, 2: torch.channels_last, 3: torch.channels_last_3d,
    },
}  # fmt: skip
"""What a script writes as a number, by the type of the argument."""


@contextmanager
def interpret_scripts(model: nn.Module) -> Iterator[nn.Module]:
    """The model with every TorchScript module run operation by operation, for the block."""
    if isinstance(model, torch.jit.ScriptModule):
        yield Interpreted(model)
        return
    scripts = [
        (parent, name, child)
        for parent in model.modules()
        if not isinstance(parent, torch.jit.ScriptModule)
        for name, child in parent.named_children()
        if isinstance(child, torch.jit.ScriptModule)
    ]
    try:
        for parent, name, child in scripts:
            parent._modules[name] = Interpreted(child)
        yield model
    finally:
        for parent, name, child in scripts:
            parent._modules[name] = child


class Interpreted(nn.Module):
    """A TorchScript module as a plain one: the same weights and values, but every operation is called from Python."""

    def __init__(self, script: torch.jit.ScriptModule) -> None:
        super().__init__()
        self.script = script
        self.training = script.training

    def forward(self, *given: Inputs) -> Any:
        graph = _graph_of(self.script)
        names = [value.unique() for value in graph.inputs()]
        values = dict(zip(names, (self.script, *given), strict=True))
        outputs = _run(graph, values)
        return outputs[0] if len(outputs) == 1 else tuple(outputs)


_GRAPHS: WeakKeyDictionary[nn.Module, Any] = WeakKeyDictionary()


def _graph_of(script: torch.jit.ScriptModule) -> Any:
    """The script's graph with all calls inlined; made once."""
    if script not in _GRAPHS:
        try:
            _GRAPHS[script] = script.inlined_graph
        except (AttributeError, RuntimeError):  # it has no compiled forward
            raise UserError(
                "The model holds a scripted module without a graph; give the nn.Module it was made from, or save it "
                "with torch.export."
            ) from None
    return _GRAPHS[script]


def _run(block: Any, values: dict[int, Any]) -> list[Any]:
    """Run a block and return its results; intermediate values are added to `values`."""
    for node in block.nodes():
        kind = node.kind()
        if kind == "prim::If":
            chosen = list(node.blocks())[0 if bool(_inputs(node, values)[0]) else 1]
            made: Any = _run(chosen, values)
        elif kind == "prim::Loop":
            made = _loop(node, values)
        elif kind == "prim::Constant":
            # A function that was inlined is still named, and nobody calls it.
            named = node.output().type().kind() == "FunctionType"
            made = [None if named else node.output().toIValue()]
        elif kind == "prim::GetAttr":
            made = [getattr(_inputs(node, values)[0], node.s("name"))]
        else:
            made = _call_operator(node, kind, _inputs(node, values))
            made = list(made) if node.outputsSize() > 1 else [made] * node.outputsSize()
        values.update(zip((value.unique() for value in node.outputs()), made, strict=True))
    return [values[value.unique()] for value in block.outputs()]


def _inputs(node: Any, values: dict[int, Any]) -> list[Any]:
    return [values[value.unique()] for value in node.inputs()]


def _loop(node: Any, values: dict[int, Any]) -> list[Any]:
    (body,) = node.blocks()
    most, goes_on, *carried = _inputs(node, values)
    names = [value.unique() for value in body.inputs()]
    for count in range(most):
        if not bool(goes_on):
            break
        goes_on, *carried = _run(body, values | dict(zip(names, (count, *carried), strict=True)))
    return carried


def _call_operator(node: Any, kind: str, given: list[Any]) -> Any:
    namespace, _, name = kind.partition("::")
    if namespace == "prim":
        if name not in _PRIMITIVES:
            raise _unknown(kind)
        return _PRIMITIVES[name](*given)
    if name in _PYTHON and (name in _ALWAYS_PYTHON or not given or not isinstance(given[0], Tensor)):
        return _PYTHON[name](*given)
    overload, arguments = _overload(node.schema())
    positional: list[tuple[Any, Any]] = []
    named: dict[str, Any] = {}
    for (argument, enumeration, default, by_name), value in zip(arguments, given, strict=True):
        # As torch.export does: trailing arguments that have their default are left out.
        if enumeration and isinstance(value, int):
            value = _ENUMERATIONS[enumeration].get(value)
        if by_name:
            named |= {} if _same(value, default) else {argument: value}
        else:
            positional.append((value, default))
    while positional and _same(*positional[-1]):
        positional.pop()
    result = overload(*(value for value, _ in positional), **named)
    return list(result) if isinstance(result, torch.Size) else result


def _same(value: Any, default: Any) -> bool:
    return not isinstance(value, Tensor) and type(value) is type(default) and bool(value == default)


_NO_DEFAULT = object()


@cache
def _overload(schema: str) -> tuple[Any, list[tuple[str, str, Any, bool]]]:
    """torch's operator of a schema, and per argument its name, enumeration, default, and whether it is keyword-only."""
    spelled, _, _ = schema.partition("(")
    namespace, _, name = spelled.partition("::")
    packet, _, overload = name.partition(".")
    try:
        found = getattr(getattr(getattr(torch.ops, namespace), packet), overload or "default")
    except (AttributeError, RuntimeError):
        raise _unknown(spelled) from None
    arguments = []
    for argument in found._schema.arguments:
        kind = str(argument.real_type).removeprefix("Optional[").removesuffix("]").removesuffix("?")
        enumeration = kind if kind in _ENUMERATIONS else ""
        default = argument.default_value if argument.has_default_value() else _NO_DEFAULT
        if enumeration and isinstance(default, int):
            default = _ENUMERATIONS[enumeration].get(default)
        arguments.append((argument.name, enumeration, default, argument.kwarg_only))
    return found, arguments


def _unknown(kind: str) -> UserError:
    return UserError(
        f"The model is scripted and calls '{kind}', which cannot be followed from Python; give the nn.Module it was "
        "made from, or save it with torch.export."
    )


def _raise(message: Any, *_: Any) -> None:
    raise RuntimeError(message)


def _set_item(holder: Any, key: Any, value: Any) -> Any:
    holder[key] = value
    return holder


def _tensor(data: Any, dtype: Any = None, device: Any = None, *_: Any) -> Tensor:
    return torch.tensor(data, dtype=_DTYPES.get(dtype) if isinstance(dtype, int) else dtype, device=device)


_PRIMITIVES: dict[str, Callable[..., Any]] = {
    "ListConstruct": lambda *items: list(items),
    "TupleConstruct": lambda *items: tuple(items),
    "DictConstruct": lambda *items: dict(zip(items[::2], items[1::2], strict=True)),
    "ListUnpack": lambda items: list(items) if len(items) != 1 else items[0],
    "TupleUnpack": lambda items: list(items) if len(items) != 1 else items[0],
    "TupleIndex": lambda items, index: items[index],
    "NumToTensor": torch.tensor,
    "RaiseException": _raise,
    "Uninitialized": lambda: None,
    "unchecked_cast": lambda item: item,
    "unchecked_unwrap_optional": lambda item: item,
    "dtype": lambda tensor: _NUMBERS[tensor.dtype],
    "device": lambda tensor: tensor.device,
    "layout": lambda tensor: 0,  # noqa: ARG005 - models are dense
    "type": lambda device: device.type,
    "is_cuda": lambda tensor: tensor.is_cuda,
    "is_nested": lambda tensor: False,  # noqa: ARG005
    # True, so that attention takes the path that has a second derivative.
    "requires_grad": lambda tensor: True,  # noqa: ARG005
    "min": min,
    "max": max,
    "Print": lambda *items: None,  # noqa: ARG005
}
_ALWAYS_PYTHON = {
    "__is__", "__isnot__", "Int", "Float", "Bool", "IntImplicit", "FloatImplicit", "ScalarImplicit", "len",
}  # fmt: skip
_PYTHON: dict[str, Callable[..., Any]] = {
    **{name: getattr(operator, name) for name in ("add", "sub", "mul", "neg", "floordiv", "pow", "abs")},
    **{name: getattr(operator, name) for name in ("eq", "ne", "lt", "le", "gt", "ge")},
    "div": operator.truediv,
    "remainder": operator.mod,
    "__and__": operator.and_,
    "__or__": operator.or_,
    "__xor__": operator.xor,
    "__not__": operator.not_,
    "__is__": operator.is_,
    "__isnot__": operator.is_not,
    "__contains__": operator.contains,
    "__getitem__": operator.getitem,
    "__range_length": lambda low, high, step: len(range(low, high, step)),
    "__derive_index": lambda index, start, step: start + index * step,
    "_set_item": _set_item,
    "len": len,
    "append": lambda items, item: items.append(item) or items,
    "extend": lambda items, others: items.extend(others),
    "list": list,
    "copy": lambda items: items.copy(),
    "slice": lambda items, start=None, end=None, step=1: items[start:end:step],
    "keys": lambda items: list(items.keys()),
    "values": lambda items: list(items.values()),
    "format": lambda text, *items: text.format(*items),
    "str": str,
    "warn": lambda *items: None,  # noqa: ARG005
    "Int": int,
    "IntImplicit": int,
    "Float": float,
    "FloatImplicit": float,
    "Bool": bool,
    "ScalarImplicit": lambda tensor: tensor.item(),
    "sqrt": lambda number: number**0.5,
    "floor": lambda number: int(number // 1),
    "ceil": lambda number: int(-(-number // 1)),
    "tensor": _tensor,
    "is_grad_enabled": lambda: True,
    "is_autocast_enabled": lambda *items: False,  # noqa: ARG005
}  # fmt: skip
"""Operators on numbers, lists and texts, which torch offers only to scripts."""
