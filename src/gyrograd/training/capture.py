"""A training step as one CUDA graph, recorded once and replayed: small nets spend most of a step waiting for Python."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field

import torch
from torch import Tensor

from gyrograd.training.loop import Step
from gyrograd.types import Inputs, Labels

WARM_UP = 3
"""Steps before the recording, in which libraries choose their kernels and allocate workspaces."""


@dataclass(frozen=True, eq=False)
class CapturedStep:
    """Called like the step it holds, with the same result. Batches of another size than the first are not captured.

    Steps with and without the penalty have a graph each. The next replay overwrites the returned losses.
    """

    step: Step
    inputs: dict[str, Tensor] = field(default_factory=dict)
    graphs: dict[bool, tuple[torch.cuda.CUDAGraph, dict[str, Tensor]]] = field(default_factory=dict)
    refusals: list[str] = field(default_factory=list)
    """Why no graph could be recorded; steps then run one by one, with the same result."""

    @property
    def optimizer(self) -> torch.optim.Optimizer:
        return self.step.optimizer

    def __call__(
        self, x: Inputs, y: Labels, keys: Labels, whole: int | None = None, number: int = 0
    ) -> dict[str, Tensor]:
        # A graph replays fixed shapes: the smaller last batch of an epoch runs without it.
        if self.inputs and x.shape != self.inputs["x"].shape:
            return self.step(x, y, keys, whole, number)
        due = self.step.objective.due(number)  # the two kinds of step run different kernels
        if due not in self.graphs and not self.refusals:
            self._place({"x": x, "y": y, "keys": keys})
            self._record(due, whole, number)
        if due not in self.graphs:
            return self.step(x, y, keys, whole, number)
        self._place({"x": x, "y": y, "keys": keys})
        graph, losses = self.graphs[due]
        graph.replay()
        return losses

    def _place(self, given: dict[str, Tensor]) -> None:
        """Copy the batch to the fixed addresses that the graphs read."""
        for name, tensor in given.items():
            if name not in self.inputs:
                # Channels-last inputs stay so: a graph recorded for one layout would read the other wrongly.
                self.inputs[name] = tensor.clone(memory_format=torch.preserve_format)
            self.inputs[name].copy_(tensor)

    def _record(self, due: bool, whole: int | None, number: int) -> None:
        """Record the graph of one step; weights, statistics and optimizer are restored afterwards."""
        for group in self.optimizer.param_groups:
            if not isinstance(group["lr"], Tensor):
                # A Python number would be baked into the recording; a tensor can change between replays.
                group["lr"] = torch.tensor(float(group["lr"]), device=self.inputs["x"].device)
        before = self._state()
        try:
            self.graphs[due] = self._recorded(whole, number)
        except RuntimeError as wrong:
            # The net or a term reads a value on the host, which a graph cannot hold.
            self.refusals.append(str(wrong).partition("\n")[0])
            words = f"fast: no CUDA graph could be recorded ({self.refusals[0]}); going on step by step."
            warnings.warn(words, stacklevel=2)
            device = self.inputs["x"].device
            if device.type == "cuda":
                # A failed recording leaves the device's generator in recording mode, in which every draw would raise.
                generator = torch.cuda.default_generators[device.index or 0]
                generator.graphsafe_set_state(generator.clone_state())
        finally:
            self._restore(*before)

    def _recorded(self, whole: int | None, number: int) -> tuple[torch.cuda.CUDAGraph, dict[str, Tensor]]:
        # Warm up on a side stream, as torch asks for: a capture must not depend on work of the default stream.
        aside = torch.cuda.Stream()
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):
            for _ in range(WARM_UP):
                self.step(**self.inputs, whole=whole, number=number)
        torch.cuda.current_stream().wait_stream(aside)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            losses = self.step(**self.inputs, whole=whole, number=number)
        return graph, losses

    def _state(self) -> tuple[dict[str, Tensor], dict[tuple[int, str], Tensor]]:
        """Copies of weights and buffers by name, and of the optimizer's tensors by parameter and name."""
        optimizer = {
            (index, key): value.detach().clone()
            for index, state in enumerate(self.optimizer.state.values())
            for key, value in state.items()
            if isinstance(value, Tensor)
        }
        model = {key: value.detach().clone() for key, value in self.step.model.state_dict().items()}
        return model, optimizer

    @torch.no_grad()
    def _restore(self, model: dict[str, Tensor], optimizer: dict[tuple[int, str], Tensor]) -> None:
        """Restore in place, because graphs refer to tensors by address; optimizer state that is new becomes zero."""
        for key, value in self.step.model.state_dict().items():
            value.copy_(model[key])
        for index, state in enumerate(self.optimizer.state.values()):
            for key, value in state.items():
                if isinstance(value, Tensor):
                    old = optimizer.get((index, key))
                    value.zero_() if old is None else value.copy_(old)
