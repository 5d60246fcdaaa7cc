"""What a method and a model say of images: its map and logits, from one pass, shared between attacks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from threading import get_ident
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from gyrograd.attributions.function import FunctionAttribution
from gyrograd.numerics.cpu_layers import CpuLayers
from gyrograd.numerics.modes import eval_mode, freeze_weights
from gyrograd.types import Attribution, Images, Inputs, Labels, Logits, Model


def look(
    model: Model, attribution: Attribution | None, x: Images, target: Labels, *, graph: bool
) -> tuple[Tensor, Logits]:
    """The map and the logits at x, from one forward pass if a method of this package runs the model at x.

    Without an attribution the map is empty.
    """
    with torch.set_grad_enabled(graph), CpuLayers():
        if attribution is None:
            return x.new_zeros(len(x), 0), model(x)
        with _overheard(model) as heard:
            map = attribution(model, x, target, create_graph=graph)
        if _is_own(attribution) and heard and _same_images(heard[0][0], x):
            return map, heard[0][1] if graph else heard[0][1].detach()
        return map, model(x)


def _is_own(attribution: Attribution) -> bool:
    """True for a method of this package, perhaps wrapped.

    For its own passes a user's method may put hooks on the model, turn dropout on, or write into the logits.
    """
    inner = getattr(attribution, "attribution", attribution)
    ours = all(getattr(each, "__module__", "").startswith("gyrograd.") for each in (attribution, inner))
    return ours and not isinstance(inner, FunctionAttribution)


def _same_images(heard: Tensor, x: Tensor) -> bool:
    """True if these are the images of x, perhaps in another layout. Comparing values would wait for a GPU."""
    where = [(each.data_ptr(), each.shape, each.stride()) for each in (heard, x)]
    return where[0] == where[1] or torch.equal(heard, x)


@contextmanager
def _overheard(model: Model) -> Iterator[list[tuple[Tensor, Tensor]]]:
    """Yield a list that receives input and output of the model's first call.

    They are only stored: the attribution may record every tensor operation, so none may be added before it is done.
    """
    heard: list[tuple[Tensor, Tensor]] = []
    thread, graph = get_ident(), torch.is_grad_enabled()

    def note(_: Any, inputs: tuple[Any, ...], output: Any) -> None:
        # Logits of another thread's call, or of a trial of a new model, are equal for the same images, and have another
        # graph or none.
        if not heard and inputs and get_ident() == thread and torch.is_grad_enabled() >= graph:
            heard.append((inputs[0], output))

    handle = model.register_forward_hook(note)
    try:
        yield heard
    finally:
        handle.remove()


class _Shared(NamedTuple):
    """Cached maps and logits of clean images, and cached guides and surrogates of models."""

    looks: dict[Any, tuple[Tensor, Tensor, Logits]]
    """Images with map and logits; the images are stored so that their memory is not reused for others."""
    of_models: dict[Any, Any]


_SHARED: ContextVar[_Shared | None] = ContextVar("shared clean looks", default=None)
MAX_SHARED = 16
"""Most clean maps in the cache."""


@contextmanager
def shared_clean_looks() -> Iterator[None]:
    """Share work between attacks in the block: clean maps and logits of the same images and equal attributions, and per
    model the guide and the test for a derivative, which cost as much as several steps.

    The images must be the same tensor, and neither they nor the model's weights may be changed in the block.
    """
    token = _SHARED.set(_Shared({}, {}))
    try:
        yield
    finally:
        _SHARED.reset(token)


def look_at_clean(model: Model, attribution: Attribution, x: Images, target: Labels) -> tuple[Tensor, Logits]:
    if (found := _SHARED.get()) is None or not has_hash(attribution):
        return look(model, attribution, x, target, graph=False)
    shared = found.looks
    where = (x.data_ptr(), tuple(x.shape), x.stride(), x.dtype)
    key = (id(model), attribution, *where, tuple(target.tolist()))
    if key not in shared:
        if len(shared) >= MAX_SHARED:
            del shared[next(iter(shared))]
        shared[key] = (x, *look(model, attribution, x, target, graph=False))
    return shared[key][1:]


def shared_clean_map(model: Model, attribution: Attribution, x: Inputs, target: Labels) -> Tensor:
    """The map of clean images; that of an attack on them in the same `shared_clean_looks`, if this package makes it.

    Attacks on inputs that are not images have clean looks of their own, in the shape of images.
    """
    if _SHARED.get() is None or not _is_own(attribution) or x.dim() != 4:
        return attribution(model, x, target).detach()
    # As in `run`: linear layers and LRP round otherwise if weights may be trained, and the last digit of the shared map
    # must not depend on who asked for it first.
    with eval_mode(model), freeze_weights(model):
        return look_at_clean(model, attribution, x, target)[0]


def has_hash(attribution: Attribution) -> bool:
    """True if the attribution can be part of a cache key."""
    return type(attribution).__hash__ is not None


T = TypeVar("T")


def once_per_model(make: Callable[[], T], model: Model, *key: Any) -> T:
    """The result of `make`; inside `shared_clean_looks` it is called once per model and key."""
    shared = _SHARED.get()
    if shared is None:
        return make()
    whole = (id(model), *key)
    if whole not in shared.of_models:
        shared.of_models[whole] = (model, make())  # a reference to the model, so that its id is not reused
    found: T = shared.of_models[whole][1]
    return found
