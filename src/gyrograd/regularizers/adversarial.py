"""Adversarial training: the loss at the worst image nearby instead of at x."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from gyrograd.attacks import Pgd
from gyrograd.errors import UserError
from gyrograd.numerics.modes import eval_mode
from gyrograd.numerics.quantities import loss_to_climb, with_full_precision
from gyrograd.registry import register
from gyrograd.regularizers.inner import ascend, check_radius
from gyrograd.regularizers.passes import auxiliary_pass, check_choices, fresh_keys, score_of
from gyrograd.regularizers.teachers import Teacher, check_classes, teacher_from
from gyrograd.types import Images, Labels, Model, PerExample, Seed


@register(
    "regularizer",
    "adversarial",
    aliases=("madry",),
    paper="tan2023",
    equation="Section 5 (adversarial training, after Madry et al. 2018)",
    capturable=True,
    second_order=False,
    replaces_cross_entropy=True,
)
@dataclass(frozen=True)
class Adversarial:
    """Cross-entropy at images found by projected gradient ascent on it; it replaces the clean loss.

    The attack takes seven steps from x and keeps the worst iterate, with the model in evaluation mode, as in Madry et
    al.'s code; tan2023 uses eps 8/255 and step_size 2/255 (default: 2.5 eps / steps). `selection="last"` keeps the last
    iterate without evaluating any, so that one step costs only one forward and one backward pass. The images are
    constants with respect to the weights. This is the training pass, so it updates BatchNorm's running statistics
    (`batchnorm="train"`).

    `teacher`: a model, the path of a checkpoint or a zoo name. The student then learns, at the attacked image, the
    teacher's output at x: temperature^2 KL(teacher || student), both logits divided by the temperature (Hinton et al.
    2015; at attacked images Zi et al. 2021). The attack still uses the loss of the label.

    >>> import gyrograd as gg
    >>> data = gg.dataset("shapes", n=4)
    >>> model, x, y = gg.model("lenet", num_classes=10, seed=0), data.pixels(), data.labels
    >>> loss = gg.regularizer("adversarial", eps=2 / 255, steps=1)(model, x, y).mean()      # the whole loss
    >>> loss.backward()
    """

    eps: float = 8 / 255
    norm: str = "linf"
    steps: int = 7
    step_size: float | None = None
    start: str = "clean"
    selection: str = "best"
    batchnorm: str = "train"
    teacher: str | Path | Model | Teacher | None = None
    temperature: float = 2.0

    def __post_init__(self) -> None:
        check_choices(self)
        object.__setattr__(self, "teacher", teacher_from(self.teacher))
        if not 0 < self.temperature < float("inf"):
            raise UserError(f"temperature is {self.temperature}; give a finite number above 0, such as 2.")
        check_radius(self.eps, self.norm)
        _ = self.attack  # its own settings are checked there

    @property
    def attack(self) -> Pgd:
        """The attack that finds the images."""
        return Pgd(
            eps=self.eps,
            norm=self.norm,
            steps=self.steps,
            step_size=self.step_size,
            start=self.start,
            selection=self.selection,
        )

    def __call__(self, model: Model, x: Images, y: Labels, *, seed: Seed | None = None) -> PerExample:
        found = self.images(model, x, y, seed=seed)
        with auxiliary_pass(model, self.batchnorm):
            if isinstance(self.teacher, Teacher):
                return self._divergence(model(found), self.teacher.logits(x.detach()))
            return score_of(model, x, y, "loss")(found)

    def _divergence(self, student: Tensor, teacher: Tensor) -> PerExample:
        """Divergence of the student's softened output from the teacher's."""
        check_classes(student, teacher)
        mine = (with_full_precision(student) / self.temperature).log_softmax(1)
        its = (with_full_precision(teacher) / self.temperature).log_softmax(1)
        # The square keeps the gradient's magnitude independent of the temperature.
        return self.temperature**2 * (its.exp() * (its - mine)).sum(1)

    def images(self, model: Model, x: Images, y: Labels, *, seed: Seed | None = None) -> Images:
        """The images at which the loss is computed: in the ball around x and in [0, 1]."""
        keys = fresh_keys(seed, x)
        if self.selection == "best":
            # The attack evaluates every iterate, in the pass that gives its slope; `ascend` evaluates none.
            return self.attack.images(model, x, y, seed=keys)
        step_size = 2.5 * self.eps / self.steps if self.step_size is None else self.step_size
        with eval_mode(model):
            loss = score_of(model, x, y, "loss")
            return ascend(
                lambda z: loss_to_climb(loss(z)),
                x,
                eps=self.eps,
                norm=self.norm,
                steps=self.steps,
                step_size=step_size,
                keys=keys,
                start=self.start,
            )
