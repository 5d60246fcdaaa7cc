"""Seconds of a call: on the wall, of the processor, and those of them that are the net's own passes."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any
from unittest import mock

import torch
from torch import nn


def seconds(way: Callable[[], Any]) -> tuple[float, float]:
    """On the wall, and of the processor."""
    wall, cpu = time.perf_counter(), time.process_time()
    way()
    return time.perf_counter() - wall, time.process_time() - cpu


def net_seconds(model: nn.Module, way: Callable[[], Any]) -> tuple[float, float]:
    """Processor seconds in the net (its passes forward and autograd's back), and in all."""
    inside, started, backward = [0.0], [0.0], torch.autograd.grad

    def begin(*_: Any) -> None:
        started[0] = time.process_time()

    def end(*_: Any) -> None:
        inside[0] += time.process_time() - started[0]

    def timed(*given: Any, **more: Any) -> Any:
        begin()
        result = backward(*given, **more)
        end()
        return result

    hooks = (model.register_forward_pre_hook(begin), model.register_forward_hook(end))
    with mock.patch("torch.autograd.grad", timed):
        _, cpu = seconds(way)
    for hook in hooks:
        hook.remove()
    return inside[0], cpu
