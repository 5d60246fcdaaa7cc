"""Maximum entropy: joo2023's example of a penalty that shrinks gradients without changing their direction."""

from __future__ import annotations

from dataclasses import dataclass

from gyrograd.errors import UserError
from gyrograd.numerics.quantities import with_full_precision
from gyrograd.registry import register
from gyrograd.regularizers.passes import auxiliary_pass, check_batch, check_choices
from gyrograd.types import Inputs, Labels, Logits, Model, PerExample, Seed


@register(
    "regularizer",
    "max_entropy",
    paper="joo2023",
    equation="Figure 1c",
    capturable=True,
    second_order=False,
)
@dataclass(frozen=True)
class MaxEntropy:
    """Minus the entropy of the predicted probabilities, sum p log p: between -log k and 0.

    joo2023 names no weight; after Pereyra et al. 2017 (confidence penalty). No label and no random number is used.

    >>> import gyrograd as gg
    >>> data = gg.dataset("shapes", n=4)
    >>> model, x, y = gg.model("lenet", num_classes=10, seed=0), data.pixels(), data.labels
    >>> penalty = gg.regularizer("max_entropy")(model, x, y)
    >>> bool((penalty < 0).all() and (penalty >= -2.3026).all())      # log 10 = 2.3026
    True
    """

    batchnorm: str = "batch"

    def __post_init__(self) -> None:
        check_choices(self)

    def __call__(self, model: Model, x: Inputs, y: Labels, *, seed: Seed | None = None) -> PerExample:  # noqa: ARG002
        check_batch(model, x)
        with auxiliary_pass(model, self.batchnorm):
            logits: Logits = model(x)
        if logits.shape[1] < 2:
            raise UserError("A model of one logit has no entropy; give it one logit for each of two classes.")
        log_p = with_full_precision(logits).log_softmax(1)
        return (log_p.exp() * log_p).sum(1)
