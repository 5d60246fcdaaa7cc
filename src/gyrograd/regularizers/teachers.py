"""Teachers: frozen trained nets whose outputs a student learns."""

from __future__ import annotations

import hashlib
from pathlib import Path

import torch
from torch import Tensor

from gyrograd.errors import UserError
from gyrograd.models import load
from gyrograd.numerics.copies import copy_of
from gyrograd.types import Inputs, Logits, Model


class Teacher:
    """A frozen copy of a trained net; two with the same weights are equal."""

    def __init__(self, net: Model, source: str) -> None:
        # A copy: the given net may be the student itself, which goes on learning.
        self.net = copy_of(net).eval().requires_grad_(False)
        self.source = source
        self._cast: dict[torch.dtype, Model] = {}
        digest = hashlib.sha256()
        # Sorted: the order in which layers were defined is no difference between nets.
        for key, value in sorted(self.net.state_dict().items()):
            digest.update(f"{key} {value.dtype} {tuple(value.shape)}".encode())
            digest.update(value.cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
        self.fingerprint = digest.hexdigest()
        """sha256 over the name, shape and bytes of every weight and buffer."""

    def logits(self, x: Inputs) -> Logits:
        """Its logits at x, on the device and in the dtype of x."""
        net = self.to(x)
        with torch.no_grad():
            answer: Logits = net(x)
        return answer

    def to(self, x: Tensor) -> Model:
        """The net on the device of x; in another precision a copy, so that its own weights are not rounded."""
        if all(weight.dtype == x.dtype for weight in self.net.parameters()):
            return self.net.to(x.device)
        if x.dtype not in self._cast:
            self._cast[x.dtype] = copy_of(self.net).to(x.dtype)
        return self._cast[x.dtype].to(x.device)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Teacher) and self.fingerprint == other.fingerprint

    def __hash__(self) -> int:
        return hash(self.fingerprint)

    def __repr__(self) -> str:
        return f"Teacher({self.source!r}, sha256={self.fingerprint[:12]!r})"


def teacher_from(given: str | Path | Model | Teacher | None) -> Teacher | None:
    """A frozen copy of a model, given as a module, the path of a checkpoint, or a name of the zoo."""
    if given is None or isinstance(given, Teacher):
        return given
    if isinstance(given, str | Path):
        return Teacher(load(given), str(given))
    return Teacher(given, type(given).__name__)


def check_classes(student: Tensor, teacher: Tensor) -> None:
    """Refuse a teacher of other classes than the student's."""
    if student.shape != teacher.shape:
        raise UserError(
            f"The teacher has {teacher.shape[1]} classes and the student {student.shape[1]}; give a teacher trained on "
            "the same classes."
        )
