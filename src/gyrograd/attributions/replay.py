"""Record a model's run and go back through it with other rules: how guided backprop and LRP stay exact.

`record` runs the model once and writes down each operation with its true inputs and outputs.

LRP is the plain gradient of *another* network: one in which every operation is a linear map whose coefficients are
taken from the true run. `modified_gradient` sends a fresh leaf through the linear maps that a table of rules makes of
the record, and differentiates. A linear map's derivative holds nothing but its coefficients, and those live in the
graph of the true run, so the map can be differentiated again, to x and to every weight, exactly. The replay reads the
record instead of running the model a second time: it is cheaper, and a model that branches on its values stays on its
path.

Guided backprop changes what arrives at some operations and nothing else, so `pulled_back` goes back through the graph
of the true run itself, with hooks on the recorded outputs that are gone before anyone differentiates again.

Operations are seen by a `TorchFunctionMode`, so modules, functions, in-place and reused activations are all alike, and
an operation without a rule is an error, never a silent gap. Attention and its like are written down in the small
operations they are made of (`decompositions`).
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._ops import OpOverload
from torch.overrides import TorchFunctionMode

from gyrograd.attributions.decompositions import DECOMPOSITIONS, as_torch_function
from gyrograd.errors import UserError
from gyrograd.models.interpreter import interpret_scripts
from gyrograd.numerics.normalization import ExactNormalization
from gyrograd.numerics.second_order import missing_derivatives
from gyrograd.types import Inputs, Model


class Traced:
    """A tensor the model computed from x: its true value and the call it came from (None for x itself)."""

    def __init__(self, value: Tensor, call: Call | None = None) -> None:
        self.value = value
        # A call holds its outputs; were it held by them in turn, all activations of a run would stay until Python's
        # collector of cycles comes by, which may be hundreds of maps later.
        self._call = None if call is None else weakref.ref(call)

    @property
    def call(self) -> Call | None:
        """The call it came from, while the record is there."""
        return None if self._call is None else self._call()


class Call:
    """One operation as it was carried out; arguments that depend on x are `Traced`.

    `inputs` are those, one entry for each time they occur; `constants` the other tensors among the arguments; `tensors`
    both, in order.
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
        """Take these inputs for constants from now on, at their true values."""
        if any(item in items for item in self.inputs):
            self.args, self.kwargs = _changed(
                (self.args, self.kwargs),
                lambda item: item.value if isinstance(item, Traced) and item in items else item,
            )
            self._sort_arguments()

    def run(self, values: Mapping[Traced, Tensor]) -> Any:
        """The same operation on other values of the arguments that depend on x."""
        return self.run_with(lambda item: _value_in(item, values))

    def run_with(self, change: Callable[[Any], Any]) -> Any:
        """The same operation with each argument changed."""
        args, kwargs = _changed((self.args, self.kwargs), change)
        return self.func(*args, **kwargs)

    def forget(self) -> None:
        """Let go of every tensor."""
        self.args, self.kwargs, self.outputs = (), {}, []
        self._sort_arguments()

    def __str__(self) -> str:
        shapes = ", ".join("x".join(map(str, item.value.shape)) for item in self.inputs)
        place = f", after layer '{self.after}'" if self.after else ""
        return f"'{self.name}' (operation {self.number}, on {shapes}{place})"


Values: TypeAlias = Mapping[Traced, Tensor]
Rule: TypeAlias = Callable[[Call, Values], Any]
"""A call and the replayed values of its inputs to the replayed value(s) of its outputs, linear in them."""


@dataclass(frozen=True, eq=False)
class Tape:
    """The calls that lead from x to the logits, in order. `marked` is the output of the module that was asked about."""

    x: Traced
    logits: Traced
    path: tuple[Call, ...]
    marked: Traced | None = None


def record(
    model: Model, x: Tensor, *, create_graph: bool, apart: bool = False, mark: nn.Module | None = None
) -> Tape:
    """Run the model once and keep every operation between x and the logits, with graph if asked for.

    `mark` is a module of the model whose output (of its last call) the tape points to. `apart` keeps a graph for
    `pulled_back` that the model does not see: what it does to gradients inside (no_grad, custom functions) does not cut
    it, and nothing of it is left on x.
    """
    if torch.is_inference_mode_enabled() or x.is_inference():
        raise UserError("Maps cannot be made inside torch.inference_mode(); use torch.no_grad() instead.")
    start = x if create_graph else x.detach()
    recorder = _Recorder(start, _layer_names(model), create_graph, apart)
    marking = mark.register_forward_hook(recorder.mark) if mark is not None else None
    try:
        # Outside the recorder, which is to see a layer as one call.
        with (
            torch.set_grad_enabled(create_graph or apart),
            missing_derivatives(),
            ExactNormalization(),
            interpret_scripts(model) as seen,
            recorder,
        ):
            returned = seen(start)
    finally:
        if marking is not None:
            marking.remove()
    return recorder.tape(returned)


def upstream(logits: Traced) -> tuple[Call, ...]:
    """The calls that a value depends on, in order."""
    calls = {logits.call} if logits.call else set()
    open_ends = list(calls)
    while open_ends:
        new = {item.call for item in open_ends.pop().inputs if item.call} - calls
        calls |= new
        open_ends += new
    return tuple(sorted(calls, key=lambda call: call.number))


def modified_gradient(tape: Tape, rule: Rule, cotangent: Tensor, *, create_graph: bool) -> Inputs:
    """Gradient of the replayed logits, weighted by the cotangent, to the replay's input."""
    with torch.enable_grad():
        # The replay is linear, so the value it is taken at does not matter.
        leaf = torch.zeros_like(tape.x.value, requires_grad=True)
        values = {tape.x: leaf}
        for call in tape.path:
            values.update(zip(call.outputs, _tensors(rule(call, values)), strict=True))
        (map,) = torch.autograd.grad(values[tape.logits], leaf, cotangent, create_graph=create_graph)
    return map


def gradient_inside(
    tape: Tape, at: Traced, score: Callable[[Tensor], Tensor], *, create_graph: bool
) -> Tensor:
    """Gradient of the score of the logits to a value inside the model, summed over the examples.

    With a graph it is taken in the graph of the true run. Without one there is none: only the calls after `at` run
    again, with a graph, which for a late layer costs next to nothing.
    """
    with torch.enable_grad():
        inside, logits = at.value, tape.logits.value
        if not create_graph:
            inside = at.value.detach().requires_grad_()
            logits = _again_from(tape, at, inside)
        (gradient,) = torch.autograd.grad(score(logits).sum(), inside, create_graph=create_graph)
    return gradient


def _again_from(tape: Tape, at: Traced, inside: Tensor) -> Tensor:
    """The logits, with another tensor in the place of `at`."""
    moved = {at: inside}
    with ExactNormalization():
        for call in tape.path:
            if any(item in moved for item in call.inputs):
                result = call.run({item: moved.get(item, item.value) for item in call.inputs})
                moved.update(zip(call.outputs, _tensors(result), strict=True))
    return moved[tape.logits]


def pulled_back(
    tape: Tape,
    change: Callable[[Tensor], Tensor],
    where: Container[str],
    cotangent: Tensor,
    *,
    create_graph: bool,
) -> Inputs:
    """The cotangent of the logits taken back to x; what arrives at the outputs of the calls `where` is changed first.

    One pass back through the graph of the true run. Without a graph it uses the tape up, so that activations are freed
    on the way.
    """
    logits, x = tape.logits.value, tape.x.value
    hooks = [
        out.value.register_hook(change)
        for call in tape.path
        if call.name in where
        for out in call.outputs
        if out.value.requires_grad
    ]
    if not create_graph:
        for call in tape.path:
            call.forget()
    try:
        (map,) = torch.autograd.grad(logits, x, cotangent, create_graph=create_graph)
    finally:
        # Whoever differentiates the map goes back through the same graph, where nothing is to be changed any more.
        for hook in hooks:
            hook.remove()
    return map


def refuse_unknown(method: str, tape: Tape, known: Container[str]) -> None:
    """Every operation between x and the logits must have a rule; the first that has none is named."""
    for call in tape.path:
        if call.name not in known:
            raise no_rule(method, call)


def no_rule(method: str, call: Call, why: str = "") -> UserError:
    """The sentence for an operation that a method has no rule for."""
    reason = f": {why}" if why else ""
    return UserError(
        f"{method} has no rule for {call}{reason}; explain this model with a gradient method instead, "
        "such as 'integrated_gradients' or 'smoothgrad'."
    )


class _Recorder(TorchFunctionMode):
    """Writes down each outermost torch call that touches a tensor computed from x.

    In-place operations are carried out on a new tensor, and the old name points to it from then on: the value
    before stays in the record, and no tensor of the caller is overwritten.
    """

    def __init__(self, x: Tensor, layers: dict[int, str], create_graph: bool, apart: bool) -> None:
        super().__init__()
        self._start = Traced(x.detach().requires_grad_() if apart else x)
        # Holds every tensor the model has seen, so that no id is used twice.
        self._known: dict[int, tuple[Tensor, Traced | None]] = {id(x): (x, self._start)}
        self._calls: list[Call] = []
        self._layers = layers
        self._layer = ""
        self._create_graph = create_graph
        self._apart = apart
        self._marked: Traced | None = None
        self._count = 1

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        given = kwargs or {}
        if func in _SHAPES:
            return func(*args, **given)
        if isinstance(func, OpOverload):
            if not any(id(item) in self._known for item in _leaves((args, given))):
                return func(*args, **given)
            func, args, given = as_torch_function(func, args, given)
        if func in DECOMPOSITIONS:
            with self:
                return DECOMPOSITIONS[func](*args, **given)
        called, named = _changed((args, given), self._traced)
        call = Call(func, called, named, self._count, self._layer)
        if not call.inputs:
            return func(*args, **given)
        whole_copy = _is_whole_copy(call)
        if whole_copy:
            call = Call(Tensor.clone, called[1:2], {}, self._count, self._layer)
        self._count += 1
        self._calls.append(call)
        overwrites = whole_copy or _make_out_of_place(call)
        result = self._carried_out(call)
        if not isinstance(result, Tensor) and not _tensors(result):
            return _plain(result, call)
        if call.name in _MAKES_CONSTANTS and len(call.inputs) == 1:
            return result
        self._refuse_hidden_graph(call)
        return self._overwrite(args, given, result, call) if overwrites else self._keep(args, result, call)

    def _carried_out(self, call: Call) -> Any:
        values = {item: item.value for item in call.inputs}
        if not self._apart or torch.is_grad_enabled():
            return call.run(values)
        with torch.enable_grad():
            return call.run(values)

    def tape(self, returned: Any) -> Tape:
        """What was recorded, less the calls the logits do not depend on."""
        found = self._known.get(id(returned), (None, None))[1]
        if found is None or found.call is None:
            raise UserError(
                "The model's output is not a tensor computed from x by torch functions; "
                "let the model return its logits, b x k."
            )
        return Tape(self._start, found, upstream(found), self._marked)

    def mark(self, _module: nn.Module, _given: Any, returned: Any) -> None:
        """A forward hook: what this module returned, its first tensor if there are several."""
        tensors = _tensors(returned)
        self._marked = self._known.get(id(tensors[0]), (None, None))[1] if tensors else None

    def _traced(self, item: Any) -> Any:
        """An argument, or what stands for it if it depends on x."""
        if not isinstance(item, Tensor):
            return item
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
        """Remember the results. A call that hands back its own argument (`contiguous`) is no call at all."""
        unchanged = {id(item.value): item for item in call.inputs}
        if isinstance(result, Tensor) and id(result) in unchanged:
            names = [item for item in _leaves(args) if isinstance(item, Tensor) and id(item) in self._known]
            return next(item for item in names if self._known[id(item)][1] is unchanged[id(result)])
        if isinstance(result, tuple) and type(result) is not tuple:
            # Named results, as those of torch.max: made anew of what stands for their parts.
            return type(result)([self._noted(item, call) for item in result])
        return _changed(result, lambda item: self._noted(item, call))

    def _noted(self, item: Any, call: Call) -> Any:
        """An output as the model gets to see it."""
        if not isinstance(item, Tensor):
            return item
        call.outputs.append(Traced(item, call))
        seen = item.detach() if self._apart else item
        self._known[id(seen)] = (seen, call.outputs[-1])
        return seen

    def _overwrite(self, args: tuple[Any, ...], kwargs: dict[str, Any], result: Tensor, call: Call) -> Tensor:
        """Let the overwritten tensor's name stand for the result; other views of its memory are void."""
        name: Tensor = args[0] if args else kwargs["input"]
        old = self._known.get(id(name), (name, None))[1]
        memory = _memory(name if old is None else old.value)
        for key, (tensor, traced) in self._known.items():
            if traced is not None and _memory(traced.value) == memory:
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
# They ask what no rule changes, at almost every layer.
_SHAPES = {
    Tensor.dim,
    Tensor.size,
    *(getattr(Tensor, name).__get__ for name in ("shape", "ndim", "dtype", "device")),
}
# Their results are plain numbers: whatever the model does with those would be missing from the record.
_LEAVES_TORCH = {"item", "tolist", "numpy", "__array__", "__float__", "__int__", "__index__", "__complex__"}
# They take no more than shape and type from their argument.
_MAKES_CONSTANTS = {"zeros_like", "ones_like", "full_like", "new_zeros", "new_ones", "new_full", "new_tensor"}
_WRITES_INTO = {"__setitem__", "copy_", "index_put_", "set_", "zero_", "requires_grad_", "detach_"}
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
    """True if a tensor takes all its values from another, both computed from x: so ends an in-place activation's twin.

    Into a tensor that is not computed from x it is refused: views of that one are not known here.
    """
    if getattr(call.func, "__name__", "") != "copy_" or len(call.inputs) != 2:
        return False
    there, source = (item.value for item in call.inputs)
    return there.shape == source.shape and there.dtype == source.dtype


def _make_out_of_place(call: Call) -> bool:
    """Turn an in-place call into its out-of-place twin; true if it was one."""
    name = getattr(call.func, "__name__", "")
    if name == "__setitem__" and len(call.inputs) == 2 and call.inputs == [call.args[0], call.args[2]]:
        call.func = _setitem
        return True
    if call.kwargs.get("out") is not None or name in _WRITES_INTO:
        raise UserError(
            f"The model writes into a tensor with {call}; build the result with torch.cat or torch.where."
        )
    if call.func is Tensor.view and not call.inputs[0].value.is_contiguous():
        # Nothing is ever overwritten here, so a copy is as good as a view, and it exists for every layout.
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
    """`there` with some of its values replaced; both are computed from x, and the index is not."""
    changed = there.clone()
    changed[index] = value
    return changed


def _twin(call: Call, name: str) -> Callable[..., Any]:
    """relu for relu_, from the same place."""
    for home in (Tensor, F, torch):
        if getattr(home, name, None) is call.func and callable(getattr(home, name[:-1], None)):
            twin: Callable[..., Any] = getattr(home, name[:-1])
            return twin
    raise UserError(
        f"The model writes into a tensor with {call}; use an operation that returns a new tensor."
    )


def _plain(result: Any, call: Call) -> Any:
    """A shape, a type, a truth value; not a number taken out of a tensor, which would leave the record."""
    name = getattr(call.func, "__name__", "")
    known = isinstance(result, _PLAIN) or (
        isinstance(result, tuple) and all(isinstance(i, int) for i in result)
    )
    if name in _LEAVES_TORCH or not known:
        raise UserError(
            f"The model takes values out of a tensor with {call}; let it compute with tensors only."
        )
    return result


def _layer_names(model: Model) -> dict[int, str]:
    return {id(weight): name.rpartition(".")[0] or name for name, weight in model.named_parameters()}


def _memory(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _value_in(item: Any, values: Values) -> Any:
    return values[item] if isinstance(item, Traced) else item


def _changed(item: Any, change: Callable[[Any], Any]) -> Any:
    """The same nest of tuples, lists and dicts with each leaf changed."""
    if isinstance(item, dict):
        return {
            key: _changed(part, change) if isinstance(part, _NESTS) else change(part)
            for key, part in item.items()
        }
    if type(item) in (tuple, list):
        return type(item)(
            [_changed(part, change) if isinstance(part, _NESTS) else change(part) for part in item]
        )
    return change(item)


def _leaves(item: Any) -> list[Any]:
    """What a nest of tuples, lists and dicts holds, in order."""
    if not isinstance(item, _NESTS):
        return [item]
    parts = item.values() if isinstance(item, dict) else item
    return [leaf for part in parts for leaf in (_leaves(part) if isinstance(part, _NESTS) else (part,))]


_NESTS = (tuple, list, dict)


def _tensors(item: Any) -> list[Tensor]:
    return [leaf for leaf in _leaves(item) if isinstance(leaf, Tensor)]
