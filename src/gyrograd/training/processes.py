"""Training in one process or several: the rows of a batch per process, and the all-reduce of gradients.

The forward pass runs on the bare module and the gradients are summed here, once per step, not in a DDP wrapper. The
regularisers run the model several times and differentiate inside the loss. DDP's hooks expect one forward pass through
the wrapper per backward pass, and each such pass broadcasts BatchNorm's buffers, which the graph still needs. A sum
after the backward pass is exact for every loss.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from gyrograd.errors import UserError
from gyrograd.occupancy import exclusive_folder
from gyrograd.training.settings import TrainSettings
from gyrograd.types import Model


@dataclass(frozen=True)
class Share:
    """Every `of`-th row of a batch, from row `index` on: the first rows of a batch are shared evenly, too."""

    index: int = 0
    of: int = 1

    def count(self, whole: int) -> int:
        """This process's share of the first `whole` rows."""
        return len(range(self.index, whole, self.of))


@dataclass(frozen=True, eq=False)
class Group:
    """The processes of a run: one alone, or several connected by Lightning Fabric."""

    device: torch.device
    """Where this process computes."""
    autocast: Callable[[], AbstractContextManager[Any]] = nullcontext
    """The precision of the forward passes."""
    share: Share = Share()
    """The rows of this process."""
    fabric: Any = None
    """Connects the processes; None for a single one."""

    @property
    def first(self) -> bool:
        """True if this process writes the files."""
        return self.share.index == 0

    def broadcast(self, value: Any) -> Any:
        """The value of rank 0, on every rank."""
        return value if self.share.of == 1 else self.fabric.broadcast(value, src=0)

    @contextmanager
    def holding(self, folder: Path | None) -> Iterator[None]:
        """Lock the folder against other runs for the block; if rank 0 cannot, every rank raises."""
        with ExitStack() as held:
            trouble = None
            if self.first and folder is not None:
                try:
                    held.enter_context(exclusive_folder(folder, ranks=True))
                except UserError as wrong:
                    trouble = str(wrong)
            trouble = self.broadcast(trouble)
            if trouble is not None:
                raise UserError(trouble)
            yield

    def any(self, flag: bool) -> bool:
        """True if the flag is set on any rank; every rank must call this."""
        if self.share.of == 1:
            return flag
        votes = self.fabric.all_reduce(torch.tensor(float(flag), device=self.device), reduce_op="sum")
        return bool(votes > 0)

    def all_reduce(self, numbers: Tensor) -> Tensor:
        """The sum over the processes."""
        if self.share.of == 1:
            return numbers
        total: Tensor = self.fabric.all_reduce(numbers, reduce_op="sum")
        return total

    def all_reduce_gradients(self, model: Model, losses: dict[str, Tensor]) -> dict[str, Tensor]:
        """Sum gradients and losses over the processes and average BatchNorm's statistics, in one all-reduce.

        Afterwards every process holds the same model. Each loss is a sum over own rows divided by the size of the whole
        batch, so the sum over processes is the loss of a single process.
        """
        n = self.share.of
        parameters = [p for p in model.parameters() if p.requires_grad]
        gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
        buffers = [b for b in model.buffers() if b.is_floating_point()]
        parts = [*gradients, *(b / n for b in buffers), *losses.values()]
        flat = self.all_reduce(torch.cat([part.detach().float().reshape(-1) for part in parts]))
        pieces = iter(flat.split([part.numel() for part in parts]))
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = next(pieces).view_as(gradient).to(gradient.dtype)
        for buffer in buffers:
            buffer.copy_(next(pieces).view_as(buffer))
        return {name: next(pieces).reshape(()) for name in losses}


@contextmanager
def in_bf16(kind: str) -> Iterator[None]:
    """Autocast to bfloat16 on this kind of device, Softplus included."""
    with torch.autocast(kind, dtype=torch.bfloat16), SoftplusAsGiven(kind):
        yield


class SoftplusAsGiven(TorchFunctionMode):
    """Softplus in the precision of its input, for the block.

    autocast computes it in float32. The convolution after it rounds to bfloat16 all the same, so that all this gains
    are tensors of twice the size, which take a GPU longer than the convolutions between them.
    """

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is not F.softplus:
            return func(*args, **(kwargs or {}))
        with torch.autocast(self.kind, enabled=False):
            return func(*args, **(kwargs or {}))


def process_group(settings: TrainSettings) -> Group:
    """The processes of this run: those that torchrun started, or this one alone."""
    # A single process does not import Fabric, which takes seconds. Tasks of SLURM's srun are separate runs (one seed
    # each, for example); if they share a folder its lock refuses them and gives the command for one common run.
    elastic = torch.distributed.is_available() and torch.distributed.is_torchelastic_launched()
    several = elastic and int(os.environ.get("WORLD_SIZE", 1)) > 1
    if several or any(key.startswith("LT_") for key in os.environ):  # a variable of Fabric
        return _fabric_group(settings)
    kind, number = _device(settings.device)
    device = torch.device(kind) if kind == "cpu" else torch.device(kind, number)
    if kind == "cuda":
        torch.cuda.set_device(device)
    return Group(device, _precision(settings, kind))


def _precision(settings: TrainSettings, kind: str) -> Callable[[], AbstractContextManager[Any]]:
    return partial(in_bf16, kind) if settings.precision == "bf16" else nullcontext


def _fabric_group(settings: TrainSettings) -> Group:
    """The processes that torchrun or Fabric started."""
    from lightning.fabric import Fabric
    from lightning.fabric.strategies.ddp import DDPStrategy

    accelerator, number = _device(settings.device)
    local, world = (int(os.environ.get(name, 1)) for name in ("LOCAL_WORLD_SIZE", "WORLD_SIZE"))
    where: dict[str, Any] = {"devices": [number] if accelerator == "cuda" else 1}
    if world > 1 and torch.distributed.is_torchelastic_launched():
        strategy = DDPStrategy(process_group_backend="nccl" if accelerator == "cuda" else "gloo")
        where = {"devices": local, "num_nodes": world // local, "strategy": strategy}
    fabric = Fabric(accelerator=accelerator, **where)
    fabric.launch()
    share = Share(int(fabric.global_rank), int(fabric.world_size))
    return Group(torch.device(fabric.device), _precision(settings, accelerator), share, fabric)


def _device(name: str) -> tuple[str, int]:
    """The kind of a device and its number."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    kind, _, number = name.partition(":")
    if kind == "cpu" and not number:
        return "cpu", 0
    if kind == "mps" and torch.backends.mps.is_available():
        return "mps", 0
    if kind == "cuda" and (not number or number.isdecimal()):
        if int(number or 0) < torch.cuda.device_count():
            return "cuda", int(number or 0)
        raise UserError(f"There is no device '{name}' ({torch.cuda.device_count()} CUDA devices); use cpu.")
    raise UserError(f"There is no device '{name}' here; give auto, cpu, cuda, cuda:N or mps.")
