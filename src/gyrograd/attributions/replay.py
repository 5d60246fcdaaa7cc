"""Record a model's run and replay it with other rules: guided backprop and LRP with exact derivatives of any order.

`record` runs the model once and keeps each operation with its true inputs and outputs.

LRP is the plain gradient of *another* network, in which every operation is a linear map whose coefficients come from
the true run. `modified_gradient` sends a fresh leaf through these linear maps and differentiates. The derivative of a
linear map contains only its coefficients, and those are part of the graph of the true run, so the map can be
differentiated again, to x and to every weight, exactly. The replay reads the record and does not run the model again:
this is cheaper, and a model that branches on its values stays on its path.

Guided backprop changes the gradients that arrive at activations and nothing else, so `hooked_gradient` goes back
through the graph of the true run, with hooks that are removed before anyone differentiates again.

A `TorchFunctionMode` sees the operations, so modules, functions, in-place and reused activations are treated alike. An
operation without a rule is an error. Attention and other large operations are recorded as the small ones they consist
of (`decompositions`).
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Container, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from threading import get_ident
from typing import Any, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._ops import OpOverload
from torch.nn.modules.module import register_module_forward_hook
from torch.overrides import TorchFunctionMode

from gyrograd.attributions.decompositions import DECOMPOSITIONS, as_torch_function
from gyrograd.errors import UserError
from gyrograd.models.interpreter import interpret_scripts
from gyrograd.numerics.checks import check_not_compiled
from gyrograd.numerics.cpu_layers import CpuLayers
from gyrograd.numerics.second_order import missing_derivatives
from gyrograd.smoothing import in_one_pass
from gyrograd.types import Inputs, Model


class Traced:
    """A tensor that the model computed from x: its true value and the call it came from (None for x itself)."""

    def __init__(self, value: Tensor, call: Call | None = None) -> None:
        self.value = value
        # A weak reference: a call holds its outputs, and a cycle would keep all activations of a run in memory until
        # Python's garbage collector runs, which may be hundreds of maps later.
        self._call = None if call is None else weakref.ref(call)

    @cached_property
    def memory(self) -> int:
        """Where its values are; views share it."""
        return _memory(self.value)

    @property
    def call(self) -> Call | None:
        """The call it came from, while the record is there."""
        return None if self._call is None else self._call()


class Call:
    """One recorded operation; arguments that depend on x are `Traced`.

    `inputs` are those arguments, with repetitions; `constants` are the other tensors; `tensors` are both, in order.
    """

    def __init__(
        self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], number: int, after: str
    ) -> None:
        self.name = operation_name(func)
        self.func = func
        self.args = args
        self.kwargs = kwargs
        self.number = number
        self.after = after
        self._sort_arguments()
        self.outputs: list[Traced] = []

    def _sort_arguments(self) -> None:
        leaves = _leaves((self.args, self.kwargs))
        self.tensors = [item for item in leaves if isinstance(item, Traced | Tensor)]
        self.inputs = [item for item in self.tensors if isinstance(item, Traced)]
        self.constants = [item for item in self.tensors if isinstance(item, Tensor)]

    def hold(self, items: Container[Traced]) -> None:
        """Treat these inputs as constants from now on, at their true values."""
        if any(item in items for item in self.inputs):
            self.args, self.kwargs = _map_leaves(
                (self.args, self.kwargs),
                lambda item: item.value if isinstance(item, Traced) and item in items else item,
            )
            self._sort_arguments()

    def run(self, values: Mapping[Traced, Tensor]) -> Any:
        """The same operation on other values of the arguments that depend on x."""
        return self.run_with(lambda item: values[item] if isinstance(item, Traced) else item)

    def run_with(self, change: Callable[[Any], Any]) -> Any:
        """The same operation with each argument changed."""
        args, kwargs = _map_leaves((self.args, self.kwargs), change)
        return self.func(*args, **kwargs)

    def forget(self) -> None:
        """Release every tensor."""
        self.args, self.kwargs, self.outputs = (), {}, []
        self._sort_arguments()

    def __str__(self) -> str:
        shapes = ", ".join("x".join(map(str, item.value.shape)) for item in self.inputs)
        place = f", after layer '{self.after}'" if self.after else ""
        return f"'{self.name}' (operation {self.number}, on {shapes}{place})"


Values: TypeAlias = Mapping[Traced, Tensor]
Rule: TypeAlias = Callable[[Call, Values], Any]
"""Maps a call and the replayed values of its inputs to the replayed values of its outputs, linearly."""


@dataclass(frozen=True, eq=False)
class Tape:
    """The calls that lead from x to the logits, in order.

    `returned`: the modules in the order in which they returned, each with its output if that was computed from x.
    """

    x: Traced
    logits: Traced
    path: tuple[Call, ...]
    returned: tuple[tuple[nn.Module, Traced | None], ...] = ()


def record(model: Model, x: Tensor, *, create_graph: bool, apart: bool = False) -> Tape:
    """Run the model once and keep every operation between x and the logits.

    Args:
        model: the model.
        x: its input.
        create_graph: keep the graph of the run, so that the map can be differentiated.
        apart: keep a graph for `hooked_gradient` that the model does not see: its own no_grad() and custom functions do
            not cut it, and nothing of it remains on x.
    """
    if torch.is_inference_mode_enabled() or x.is_inference():
        raise UserError("Maps cannot be made inside torch.inference_mode(); use torch.no_grad() instead.")
    check_not_compiled(model)
    start = x if create_graph else x.detach()  # a map that is not differentiated leaves no graph on x
    layers = {id(weight): name.rpartition(".")[0] or name for name, weight in model.named_parameters()}
    recorder = _Recorder(start, layers, create_graph, apart)
    # The other modes are outside the recorder, so that it sees each layer as one call.
    with (
        # A replay has a graph of its own. Only hooks, and derivatives of the map, need that of the run.
        torch.set_grad_enabled(create_graph or apart),
        in_one_pass(model),  # parts that backward computes again would not be the recorded ones
        missing_derivatives(),
        CpuLayers(),
        # TorchScript runs in C++, where no mode of Python sees its operations.
        interpret_scripts(model) as seen,
        watch_modules(model, recorder.note_returned) as modules,
        recorder,
    ):
        returned = seen(start)
    return recorder.tape(returned, modules)


def record_through(model: Model, x: Tensor, *, create_graph: bool) -> Tape:
    """A record whose graph leads back to x: the graph of the run if the map is differentiated, else one apart."""
    if create_graph:
        return record(model, x if x.requires_grad else x.detach().requires_grad_(), create_graph=True)
    return record(model, x, create_graph=False, apart=True)


@contextmanager
def watch_modules(model: Model, hear: Callable[[int, Any], Any]) -> Iterator[list[nn.Module]]:
    """Yield a list that fills with the model's submodules in the order in which they return, for the block.

    `hear` gets the position and the output of each, and may return a replacement for the output.
    """
    own, thread = {id(module) for module in model.modules() if module is not model}, get_ident()
    heard: list[nn.Module] = []

    def note(module: nn.Module, _: Any, returned: Any) -> Any:
        # One global hook is cheap, but it also sees the modules of other models and of other threads.
        if id(module) not in own or get_ident() != thread:
            return None
        heard.append(module)
        return hear(len(heard) - 1, returned)

    handle = register_module_forward_hook(note)
    try:
        yield heard
    finally:
        handle.remove()


def upstream(logits: Traced) -> tuple[Call, ...]:
    """The calls that a value depends on, in order."""
    calls = {logits.call} if logits.call else set()
    open_ends = list(calls)  # a walk instead of a recursion: nets have thousands of calls
    while open_ends:
        new = {item.call for item in open_ends.pop().inputs if item.call} - calls
        calls |= new
        open_ends += new
    # The walk finds calls in any order; a replay needs the inputs of a call before the call.
    return tuple(sorted(calls, key=lambda call: call.number))


def modified_gradient(tape: Tape, rule: Rule, cotangent: Tensor, *, create_graph: bool) -> Inputs:
    """Gradient of the replayed logits, weighted by the cotangent, to the replay's input."""
    with torch.enable_grad():
        # The replay is linear, so its derivative is the same at every value: zero does.
        leaf = torch.zeros_like(tape.x.value, requires_grad=True)
        values = {tape.x: leaf}
        for call in tape.path:
            values.update(zip(call.outputs, _tensors(rule(call, values)), strict=True))
        # A scalar: given a cotangent, torch imports sympy, which takes a second.
        weighted = (values[tape.logits] * cotangent).sum()
        (map,) = torch.autograd.grad(weighted, leaf, create_graph=create_graph)
    return map


def gradient_inside(
    tape: Tape, at: Traced, score: Callable[[Tensor], Tensor], *, create_graph: bool
) -> Tensor:
    """Gradient of the score of the logits to a value inside the model, summed over the examples.

    With `create_graph` it uses the graph of the true run. Otherwise only the calls after `at` run again, which is cheap
    for a late layer.
    """
    with torch.enable_grad():
        inside, logits = at.value, tape.logits.value
        if not create_graph:
            inside = at.value.detach().requires_grad_()
            logits = _again_from(tape, at, inside)
        (gradient,) = torch.autograd.grad(score(logits).sum(), inside, create_graph=create_graph)
    return gradient


def _again_from(tape: Tape, at: Traced, inside: Tensor) -> Tensor:
    """The logits with another tensor in place of `at`."""
    moved = {at: inside}
    with CpuLayers():
        for call in tape.path:
            if any(item in moved for item in call.inputs):
                # Inputs that do not depend on `at`, as of a skip connection around it, keep their recorded values.
                result = call.run({item: moved.get(item, item.value) for item in call.inputs})
                moved.update(zip(call.outputs, _tensors(result), strict=True))
    return moved[tape.logits]


def hooked_gradient(
    tape: Tape,
    change: Callable[[Tensor], Tensor],
    where: Container[str],
    cotangent: Tensor,
    *,
    create_graph: bool,
) -> Inputs:
    """Gradient to x of the logits, weighted by the cotangent, with changed gradients at some operations.

    Args:
        tape: the record; without `create_graph` it is used up, so that activations are freed on the way back.
        change: applied to the gradient that arrives at an output.
        where: names of the operations to whose outputs it is applied.
        cotangent: the weight of each logit.
        create_graph: keep the graph, so that the map can be differentiated.
    """
    logits, x = tape.logits.value, tape.x.value
    hooks = [
        out.value.register_hook(change)
        for call in tape.path
        if call.name in where
        for out in call.outputs
        if out.value.requires_grad
    ]
    # Before the gradient is computed: autograd can then free each activation as soon as it has been used.
    if not create_graph:
        for call in tape.path:
            call.forget()
    try:
        (map,) = torch.autograd.grad(logits, x, cotangent, create_graph=create_graph)
    finally:
        # Differentiating the map goes back through the same graph, where nothing must be changed any more.
        for hook in hooks:
            hook.remove()
    return map


def refuse_unknown(method: str, tape: Tape, known: Container[str]) -> None:
    """Refuse a record that contains an operation without a rule."""
    for call in tape.path:
        if call.name not in known:
            raise no_rule(method, call)


def no_rule(method: str, call: Call, why: str = "") -> UserError:
    """The error for an operation that a method has no rule for."""
    reason = f": {why}" if why else ""
    return UserError(
        f"{method} has no rule for {call}{reason}; explain this model with a gradient method instead, "
        "such as 'integrated_gradients' or 'smoothgrad'."
    )


class _Recorder(TorchFunctionMode):
    """Records each outermost torch call that touches a tensor computed from x.

    An in-place operation returns a new tensor, and the old name points to it from then on: the earlier value stays in
    the record, and no tensor of the caller is overwritten.
    """

    def __init__(self, x: Tensor, layers: dict[int, str], create_graph: bool, apart: bool) -> None:
        super().__init__()
        self._start = Traced(x.detach().requires_grad_() if apart else x)
        # By id, because tensors compare by value. It holds the tensors, so that Python does not use an id again.
        self._known: dict[int, tuple[Tensor, Traced | None]] = {id(x): (x, self._start)}
        self._calls: list[Call] = []
        self._layers = layers
        self._layer = ""
        self._create_graph = create_graph
        self._apart = apart
        self._returned: list[Traced | None] = []
        self._count = 1

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        given = kwargs or {}
        if func in _SHAPES:
            return func(*args, **given)
        if isinstance(func, OpOverload):
            # Models saved with torch.export call aten operators, also on shapes and constants, which have no record.
            if not any(id(item) in self._known for item in _leaves((args, given))):
                return func(*args, **given)
            func, args, given = as_torch_function(func, args, given)
        # torch switches a mode off while it handles a call. Entered again, it records the small operations.
        if func in DECOMPOSITIONS:
            with self:
                return DECOMPOSITIONS[func](*args, **given)
        called, named = _map_leaves((args, given), self._as_traced)
        call = Call(func, called, named, self._count, self._layer)
        # Nothing in it depends on x: it computes a constant, such as a mask or a scaled weight.
        if not call.inputs:
            return func(*args, **given)
        whole_copy = _is_whole_copy(call)
        # The source takes the place of the old values, so this is a copy of it under the old name.
        if whole_copy:
            call = Call(Tensor.clone, called[1:2], {}, self._count, self._layer)
        self._count += 1
        self._calls.append(call)
        overwrites = whole_copy or _make_out_of_place(call)
        result = self._execute(call)
        if not isinstance(result, Tensor) and not _tensors(result):
            return _plain(result, call)
        # Not remembered as computed from x, so later calls treat it as a constant.
        if call.name in _MAKES_CONSTANTS and len(call.inputs) == 1:
            return result
        self._refuse_hidden_graph(call)
        return self._overwrite(args, given, result, call) if overwrites else self._keep(args, result, call)

    def _execute(self, call: Call) -> Any:
        values = {item: item.value for item in call.inputs}
        # The model may be inside its own no_grad(), which must not end our graph.
        if not self._apart or torch.is_grad_enabled():
            return call.run(values)
        with torch.enable_grad():
            return call.run(values)

    def tape(self, returned: Any, modules: list[nn.Module]) -> Tape:
        """The recorded calls that the logits depend on, and what these modules returned."""
        found = self._known.get(id(returned), (None, None))[1]
        if found is None or found.call is None:
            raise UserError(
                "The model's output is not a tensor computed from x by torch functions; "
                "let the model return its logits, b x k."
            )
        return Tape(self._start, found, upstream(found), tuple(zip(modules, self._returned, strict=True)))

    def note_returned(self, _: int, returned: Any) -> None:
        """Remember what a module returned, or the first of several tensors."""
        tensors = _tensors(returned)
        self._returned.append(self._known.get(id(tensors[0]), (None, None))[1] if tensors else None)

    def _as_traced(self, item: Any) -> Any:
        """The argument, or its `Traced` if it depends on x."""
        if not isinstance(item, Tensor):
            return item
        # Parameters name the layer that is running; errors say "after layer 'features.3'".
        self._layer = self._layers.get(id(item), self._layer)
        if id(item) not in self._known:
            return item
        traced = self._known[id(item)][1]
        if traced is None:
            raise UserError(
                f"The model reads a tensor of shape {tuple(item.shape)} after another view of it was "
                "overwritten in place; use the out-of-place operation there."
            )
        return traced

    def _keep(self, args: tuple[Any, ...], result: Any, call: Call) -> Any:
        """Remember the results. A call that returns its own argument (`contiguous`) is not recorded."""
        # The model gets back the tensor that it passed, which with `apart` is a detached one.
        unchanged = {id(item.value): item for item in call.inputs}
        if isinstance(result, Tensor) and id(result) in unchanged:
            names = [item for item in _leaves(args) if isinstance(item, Tensor) and id(item) in self._known]
            return next(item for item in names if self._known[id(item)][1] is unchanged[id(result)])
        if isinstance(result, tuple) and type(result) is not tuple:
            # A named tuple, as torch.max returns: its type takes one sequence.
            return type(result)([self._add_output(item, call) for item in result])
        return _map_leaves(result, lambda item: self._add_output(item, call))

    def _add_output(self, item: Any, call: Call) -> Any:
        """Add an output to the record and return it as the model will see it."""
        if not isinstance(item, Tensor):
            return item
        call.outputs.append(Traced(item, call))
        # With `apart` the model gets a detached copy, so that its own no_grad() cannot cut our graph.
        seen = item.detach() if self._apart else item
        self._known[id(seen)] = (seen, call.outputs[-1])
        return seen

    def _overwrite(self, args: tuple[Any, ...], kwargs: dict[str, Any], result: Tensor, call: Call) -> Tensor:
        """Let the overwritten tensor stand for the result; reading other views of its memory is an error."""
        name: Tensor = args[0] if args else kwargs["input"]
        old = self._known.get(id(name), (name, None))[1]
        memory = _memory(name) if old is None else old.memory
        for key, (tensor, traced) in self._known.items():
            # A view would have changed, too, in the true model; here it did not, so nobody may read it.
            if traced is not None and traced.memory == memory:
                self._known[key] = (tensor, None)
        call.outputs.append(Traced(result, call))
        self._known[id(name)] = (name, call.outputs[0])
        return name

    def _refuse_hidden_graph(self, call: Call) -> None:
        if self._create_graph and not torch.is_grad_enabled():
            raise UserError(
                f"The model switches gradients off before {call}, so its map cannot be differentiated; "
                "remove the no_grad() or the custom autograd function there, or ask without create_graph."
            )


_SYNONYMS = {
    "iadd": "add", "radd": "add", "isub": "sub", "subtract": "sub", "imul": "mul", "rmul": "mul",
    "multiply": "mul", "truediv": "div", "itruediv": "div", "true_divide": "div", "divide": "div",
    "rtruediv": "rdiv", "negative": "neg", "concat": "cat", "concatenate": "cat", "mm": "matmul",
    "bmm": "matmul", "clip": "clamp",
}  # fmt: skip
# Questions about shape and type, asked at almost every layer: they depend on no value, so they are not recorded.
_SHAPES = {
    Tensor.dim,
    Tensor.size,
    *(getattr(Tensor, name).__get__ for name in ("shape", "ndim", "dtype", "device")),
}
# They return Python numbers, and what the model computes with those would be missing from the record.
_LEAVES_TORCH = {"item", "tolist", "numpy", "__array__", "__float__", "__int__", "__index__", "__complex__"}
# They use only the shape and type of their argument.
_MAKES_CONSTANTS = {"zeros_like", "ones_like", "full_like", "new_zeros", "new_ones", "new_full", "new_tensor"}
_WRITES_INTO = {"__setitem__", "copy_", "index_put_", "set_", "zero_", "requires_grad_", "detach_"}
# A truth value is allowed: the model may branch on it, and the record holds the branch that was taken.
_PLAIN = (
    bool,
    int,
    str,
    torch.Size,
    torch.dtype,
    torch.device,
    torch.layout,
    torch.memory_format,
    type(None),
)


def operation_name(func: Any) -> str:
    """One name for torch.add, Tensor.add_, + and +=; a property goes by its own name."""
    name = getattr(func, "__name__", None) or str(func)
    if name == "__get__":
        name = getattr(func.__self__, "__name__", name)
    bare = name.strip("_")
    return _SYNONYMS.get(bare, bare)


def _is_whole_copy(call: Call) -> bool:
    """True if all values of a tensor are copied from another, both computed from x, as in-place activations do."""
    # A copy into a tensor that was not computed from x is refused elsewhere: its other views are not known here.
    if getattr(call.func, "__name__", "") != "copy_" or len(call.inputs) != 2:
        return False
    there, source = (item.value for item in call.inputs)
    return there.shape == source.shape and there.dtype == source.dtype


def _make_out_of_place(call: Call) -> bool:
    """Turn an in-place call into its out-of-place version; True if it was one."""
    name = getattr(call.func, "__name__", "")
    if name == "__setitem__" and len(call.inputs) == 2 and call.inputs == [call.args[0], call.args[2]]:
        call.func = _setitem
        return True
    if call.kwargs.get("out") is not None or name in _WRITES_INTO:
        raise UserError(
            f"The model writes into a tensor with {call}; build the result with torch.cat or torch.where."
        )
    if call.func is Tensor.view and not call.inputs[0].value.is_contiguous():
        # Recorded values can have another layout than the model's. Nothing is overwritten, so a copy will do.
        call.func = Tensor.reshape
    if call.kwargs.get("inplace"):
        call.kwargs = call.kwargs | {"inplace": False}
        return True
    if name.startswith("__i") and hasattr(Tensor, f"__{name[3:]}"):
        call.func = getattr(Tensor, f"__{name[3:]}")
        return True
    if name.endswith("_") and not name.endswith("__"):
        call.func = _twin(call, name)
        return True
    return False


def _setitem(there: Tensor, index: Any, value: Tensor) -> Tensor:
    """`there` with some values replaced; both are computed from x, the index is not."""
    changed = there.clone()
    changed[index] = value
    return changed


def _twin(call: Call, name: str) -> Callable[..., Any]:
    """The out-of-place function of the same namespace: relu for relu_."""
    for home in (Tensor, F, torch):
        if getattr(home, name, None) is call.func and callable(getattr(home, name[:-1], None)):
            twin: Callable[..., Any] = getattr(home, name[:-1])
            return twin
    raise UserError(
        f"The model writes into a tensor with {call}; use an operation that returns a new tensor."
    )


def _plain(result: Any, call: Call) -> Any:
    """The result if it is a shape, type or truth value; a number taken out of a tensor is an error."""
    name = getattr(call.func, "__name__", "")
    known = isinstance(result, _PLAIN) or (
        isinstance(result, tuple) and all(isinstance(i, int) for i in result)
    )
    if name in _LEAVES_TORCH or not known:
        raise UserError(
            f"The model takes values out of a tensor with {call}; let it compute with tensors only."
        )
    return result


def _memory(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _map_leaves(item: Any, change: Callable[[Any], Any]) -> Any:
    """Nested tuples, lists and dicts with each leaf changed."""
    if isinstance(item, dict):
        return {
            key: _map_leaves(part, change) if isinstance(part, _NESTS) else change(part)
            for key, part in item.items()
        }
    if type(item) in (tuple, list):
        return type(item)(
            [_map_leaves(part, change) if isinstance(part, _NESTS) else change(part) for part in item]
        )
    return change(item)


def _leaves(item: Any) -> list[Any]:
    """The leaves of nested tuples, lists and dicts, in order."""
    if not isinstance(item, _NESTS):
        return [item]
    parts = item.values() if isinstance(item, dict) else item
    return [leaf for part in parts for leaf in (_leaves(part) if isinstance(part, _NESTS) else (part,))]


_NESTS = (tuple, list, dict)


def _tensors(item: Any) -> list[Tensor]:
    return [leaf for leaf in _leaves(item) if isinstance(leaf, Tensor)]
