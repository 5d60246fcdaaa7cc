"""A device that is not there: tensors that say they are on cuda:1 and keep their numbers on the CPU.

Code under `elsewhere()` takes the branches it takes on CUDA, with real numbers. A tensor that was made without a
device, or fetched to the host and not sent back, is refused as CUDA refuses it; so is `numpy()`. torch's own kernels
are the CPU's, and those compiled for CUDA are their twins in tensor operations: rounding and speed are not emulated.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from gyrograd.numerics import random
from gyrograd.numerics.softplus import bent

DEVICE = torch.device("cuda:1")
GIGABYTE = 2**30
# An index may stay on the host: CUDA copies it.
TAKE_HOST_INDICES = {"index", "index_put", "index_put_", "_index_put_impl_", "_unsafe_index"}
COPIES = {"_to_copy", "copy_"}


class Elsewhere(Tensor):
    """A tensor on the device: `held` has its numbers."""

    held: Tensor

    @staticmethod
    def __new__(cls, held: Tensor) -> Elsewhere:
        made = Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls,
            held.size(),
            strides=held.stride(),
            storage_offset=held.storage_offset(),
            dtype=held.dtype,
            device="cpu",  # to torch's own eyes: its autograd has no threads for a device that is not there
        )
        made.held = held
        return made

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return carried_out(func, args, kwargs or {}, made_by_torch=True)

    device = property(lambda self: DEVICE)
    is_cuda = property(lambda self: True)
    is_cpu = property(lambda self: False)

    def untyped_storage(self) -> Any:
        return self.held.untyped_storage()

    def data_ptr(self) -> int:
        return self.held.data_ptr()

    def numpy(self, *, force: bool = False) -> Any:
        raise TypeError("can't convert cuda:1 device type tensor to numpy")

    __array__ = numpy

    def tolist(self) -> Any:
        return self.held.tolist()

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        if id(self) not in memo:
            with torch.no_grad():
                twin = sent(copy.deepcopy(self.held, memo))
            is_weight = isinstance(self, nn.Parameter)
            memo[id(self)] = (
                nn.Parameter(twin, self.requires_grad)
                if is_weight
                else twin.requires_grad_(self.requires_grad)
            )
        return memo[id(self)]

    def __repr__(self, **_: Any) -> str:
        return f"elsewhere: {self.held!r}"


def sent(tensor: Tensor) -> Tensor:
    """This tensor on the device, without its graph."""
    return tensor if isinstance(tensor, Elsewhere) else Elsewhere(tensor.detach())


def fetched(tensor: Tensor) -> Tensor:
    """This tensor on the host, without its graph."""
    return tensor.held.clone() if isinstance(tensor, Elsewhere) else tensor.detach()


def moved(model: nn.Module) -> nn.Module:
    """A copy of the model whose weights and buffers are on the device."""
    twin = copy.deepcopy(model)
    for module in twin.modules():
        for name, weight in module._parameters.items():
            if weight is not None:
                module._parameters[name] = nn.Parameter(sent(weight), weight.requires_grad)
        for name, buffer in module._buffers.items():
            if buffer is not None:
                module._buffers[name] = sent(buffer)
    return twin


@contextmanager
def elsewhere() -> Iterator[None]:
    """The device is there for the block."""
    twins = {
        "gyrograd.numerics.random.philox_words": _philox_words,
        "gyrograd.numerics.softplus.softplus_bend": _softplus_bend,
        "gyrograd.attributions.batching._device_bytes": lambda device: 16 * GIGABYTE,
        "torch.cuda.is_current_stream_capturing": lambda: False,
        "torch.cuda.get_rng_state": _random_state,
        "torch.cuda.set_rng_state": lambda state, device: _random_state(device),
    }
    patches = [mock.patch(name, twin) for name, twin in twins.items()]
    for patch in patches:
        patch.start()
    state = _State()
    calls = _Calls(state)
    run_backward = torch.autograd._engine_run_backward  # type: ignore[attr-defined]

    def watched(*args: Any, **kwargs: Any) -> Any:
        # A mode does not see what happens inside a call; Python code that a backward pass runs is to be seen.
        with calls, state.inside(called=False):
            return run_backward(*args, **kwargs)

    try:
        with mock.patch("torch.autograd._engine_run_backward", watched), _Kernels(state), calls:
            yield
    finally:
        for patch in patches:
            patch.stop()


class _State:
    """Whether the call that runs came from Python with nothing on the device: a tensor it makes is on the host.

    What torch makes for a call on the device's tensors, or in a backward pass, is where those are.
    """

    def __init__(self) -> None:
        self.called = False

    @contextmanager
    def inside(self, *, called: bool) -> Iterator[None]:
        before, self.called = self.called, called
        try:
            yield
        finally:
            self.called = before


class _Calls(TorchFunctionMode):
    """Calls that name a device: torch itself knows none but the host."""

    def __init__(self, state: _State) -> None:
        super().__init__()
        self.state = state

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if func in _MOVES:
            return _move(func, args, kwargs)
        if func in (Tensor.numpy, Tensor.__array__) and isinstance(args[0], Elsewhere):
            return args[0].numpy()
        there = _is_the_device(kwargs.get("device"))
        if there:
            kwargs.pop("device")
        called = not any(isinstance(item, Elsewhere) for item in _tensors((args, kwargs)))
        with self.state.inside(called=called):
            made = func(*args, **kwargs)
        return _sent_with_graph(made) if there else made


_MOVES = {Tensor.to, Tensor.cpu, Tensor.cuda}


def _move(func: Callable[..., Tensor], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    """`to` in all its forms: where to is taken out of the arguments, the rest is left to torch."""
    tensor, *rest = args
    place = {Tensor.cpu: torch.device("cpu"), Tensor.cuda: DEVICE}.get(func)
    if func in (Tensor.cpu, Tensor.cuda):
        return _placed(tensor, place)
    if "device" in kwargs:
        place = _device(kwargs.pop("device"))
    if rest and isinstance(rest[0], Tensor):
        place, rest[0] = rest[0].device, rest[0].dtype
    elif rest and (rest[0] is None or isinstance(rest[0], str | torch.device)):
        place = _device(rest.pop(0))
        rest = rest if rest and rest[0] is not None else []
    if rest or kwargs:
        tensor = tensor.to(*rest, **kwargs)
    return _placed(tensor, place)


def _device(place: Any) -> torch.device | None:
    return None if place is None else torch.device(place)


def _is_the_device(place: Any) -> bool:
    if place is None:
        return False
    place = torch.device(place)
    assert place == DEVICE or place.type == "cpu", f"{place} is neither the host nor {DEVICE}"
    return place == DEVICE


def _placed(tensor: Tensor, place: torch.device | None) -> Tensor:
    if place is None or place == tensor.device:
        return tensor
    return _Sent.apply(tensor) if _is_the_device(place) else _Fetched.apply(tensor)


class _Sent(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor) -> Tensor:
        return Elsewhere(tensor.detach().clone())

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> Tensor:
        return _Fetched.apply(slope)


class _Fetched(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor) -> Tensor:
        return fetched(tensor)

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> Tensor:
        return _Sent.apply(slope)


def _sent_with_graph(made: Any) -> Any:
    return _changed(made, lambda t: t if isinstance(t, Elsewhere) else _Sent.apply(t))


class _Kernels(TorchDispatchMode):
    """Every kernel torch runs, those of its autograd too."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Else torch imports its compiler here, which takes seconds."""
        return False

    def __init__(self, state: _State) -> None:
        super().__init__()
        self.state = state

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return carried_out(func, args, kwargs or {}, made_by_torch=not self.state.called)


def carried_out(func: Any, args: Any, kwargs: Any, *, made_by_torch: bool) -> Any:
    """The kernel on the numbers; its result is on the device if its arguments are."""
    given = _tensors((args, kwargs))
    there = [item for item in given if isinstance(item, Elsewhere)]
    if there:
        _refuse_mixture(func, given)
    held = _changed((args, kwargs), lambda t: t.held if isinstance(t, Elsewhere) else t)
    out = func(*held[0], **held[1])
    if not there and not (made_by_torch and not given):
        return out
    names = {id(t.held): t for t in there}  # what is written in place keeps its name
    return _changed(out, lambda t: names[id(t)] if id(t) in names else Elsewhere(t))


def _tensors(item: Any) -> list[Tensor]:
    """The tensors in a nest of tuples, lists and dicts. (torch's own tree functions take most of a test's time.)"""
    if isinstance(item, Tensor):
        return [item]
    parts = item.values() if isinstance(item, dict) else item if isinstance(item, tuple | list) else ()
    return [tensor for part in parts for tensor in _tensors(part)]


def _changed(item: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """The nest with each tensor changed."""
    if isinstance(item, Tensor):
        return change(item)
    if isinstance(item, dict):
        return {key: _changed(part, change) for key, part in item.items()}
    return type(item)(_changed(part, change) for part in item) if type(item) in (tuple, list) else item


def _refuse_mixture(func: Any, given: list[Tensor]) -> None:
    """A number may come from the host, more may not."""
    here = [item for item in given if not isinstance(item, Elsewhere) and item.dim() > 0]
    name = func.overloadpacket.__name__
    if not here or name in COPIES or (name in TAKE_HOST_INDICES and isinstance(given[0], Elsewhere)):
        return
    raise RuntimeError(
        f"Expected all tensors to be on the same device, but {name} got {[tuple(t.shape) for t in here]} on the host"
    )


def _random_state(device: Any) -> Tensor:
    assert _is_the_device(device), f"the random state of {device} was asked for"
    return torch.zeros(1)


def _philox_words(key: Tensor, place: Tensor, upper: int) -> Tensor:
    """The twin of the CUDA kernel: the same bits out of tensor operations."""
    assert isinstance(key, Elsewhere), "the kernel was given a key on the host"
    assert isinstance(place, Elsewhere), "the kernel was given places on the host"
    block, word = place >> 2, 0xFFFFFFFF
    counter = block & word, block >> 32, upper & word, upper >> 32
    words = torch.stack(random._philox(counter, (key & word, (key >> 32) & word)), -1)
    return words.gather(-1, (place & 3).expand(words.shape[:-1])[..., None])[..., 0]


def _softplus_bend(z: Tensor, tangent: Tensor, slope: Tensor, beta: float, threshold: float) -> Tensor:
    with torch.enable_grad():  # which makes `bent` write it out
        return bent(z.detach(), slope.detach(), tangent.detach(), beta, threshold)
