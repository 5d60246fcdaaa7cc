"""gyrograd: explanations that hold still. Attack, measure and train for robust feature attribution.

The verbs here build everything by name; `available(kind)` lists the names. Nothing heavy is imported until a
verb needs it, so records and reports work where torch is not installed.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from gyrograd.errors import UserError
from gyrograd.registry import Entry, available, kinds, make
from gyrograd.renames import keep_old_names
from gyrograd.version import __version__ as __version__

if TYPE_CHECKING:
    from gyrograd.attributions import predict as predict
    from gyrograd.audit import audit as audit
    from gyrograd.data import Dataset
    from gyrograd.hardening import harden as harden
    from gyrograd.models import load as load
    from gyrograd.models import save as save
    from gyrograd.reporting.sheet import show as show
    from gyrograd.smoothing import smoothed as smoothed
    from gyrograd.types import Attack, Attribution, Kernel, Metric, Model, Regularizer
else:
    # They are defined with torch, which nothing here may import.
    Attack = Attribution = Dataset = Kernel = Metric = Model = Regularizer = Any

# Waiting threads spin by default, which on a busy machine keeps the others from finishing: a forward pass of a small
# net then costs up to forty times as much. torch reads this when it is loaded, so gyrograd is to be imported first.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

__all__ = [
    "Entry",
    "UserError",
    "attack",
    "attribution",
    "audit",
    "available",
    "dataset",
    "harden",
    "kernel",
    "kinds",
    "load",
    "metric",
    "model",
    "predict",
    "regularizer",
    "save",
    "show",
    "smoothed",
]

# Verbs that are functions of their own, by the module that holds them (imported on first use).
_LAZY = {
    "audit": "gyrograd.audit",
    "harden": "gyrograd.hardening",
    "smoothed": "gyrograd.smoothing",
    "load": "gyrograd.models",
    "save": "gyrograd.models",
    "predict": "gyrograd.attributions",
    "show": "gyrograd.reporting.sheet",
}


def attack(name: str, **settings: Any) -> Attack:
    """Build an attack by name; call it with `(model, attribution, x, target)`.

    >>> import gyrograd as gg
    >>> model, x = gg.load("cifar10/lenet-ce"), gg.dataset("shapes", n=2).pixels()
    >>> attack = gg.attack("targeted_map", eps=4 / 255, steps=3)
    >>> hit = attack(model, gg.attribution("gradient"), x, gg.predict(model, x))
    >>> hit.x.shape, hit.prediction_kept.tolist()
    (torch.Size([2, 3, 32, 32]), [True, True])
    """
    made: Attack = make("attack", name, **settings)
    return made


def metric(name: str, **settings: Any) -> Metric:
    """Build a metric by name; `(model, attribution, x, target)` then gives one value per example.

    >>> import gyrograd as gg
    >>> model, x = gg.load("cifar10/lenet-ce"), gg.dataset("shapes", n=2).pixels()
    >>> similarity = gg.metric("rps", eps=16 / 255, draws=2)
    >>> similarity(model, gg.attribution("gradient"), x, gg.predict(model, x)).shape
    torch.Size([2])
    """
    made: Metric = make("metric", name, **settings)
    return made


def attribution(name: str | Callable[..., Any], **settings: Any) -> Attribution:
    """Build an attribution by name; `(model, x, target)` then gives maps shaped like x.

    Give a function of your own, `f(model, x, target)`, instead of a name to use it in attacks, metrics and audits.

    >>> import gyrograd as gg
    >>> model, x = gg.load("cifar10/lenet-ce"), gg.dataset("shapes", n=2).pixels()
    >>> gg.attribution("ig", steps=5)(model, x, gg.predict(model, x)).shape
    torch.Size([2, 3, 32, 32])
    >>> brightness = gg.attribution(lambda model, x, target: x)
    >>> bool((brightness(model, x, gg.predict(model, x)) == x).all())
    True
    """
    if not isinstance(name, str):
        from gyrograd.attributions import as_attribution

        if settings:
            raise UserError(
                f"Settings go with a name ({', '.join(settings)}); bind those of a function with a lambda."
            )
        return as_attribution(name)
    made: Attribution = make("attribution", name, **settings)
    return made


def kernel(name: str, **settings: Any) -> Kernel:
    """Build a smoothing kernel by name, for `smoothed`.

    >>> import gyrograd as gg
    >>> gg.kernel("gaussian", sigma=0.1)
    Gaussian(sigma=0.1)
    """
    made: Kernel = make("kernel", name, **settings)
    return made


def model(name: str | Model, **settings: Any) -> Model:
    """Build a model by name, from images in [0, 1] to logits. Its weights are untrained; `load` opens trained ones.

    `torchvision:NAME`, `timm:NAME` and `hf:KIND` are names, too. A module of your own that returns an object, a dict or
    a tuple becomes one that returns its logits: `model(module)`.

    >>> import torch, gyrograd as gg
    >>> model = gg.model("lenet", num_classes=7, activation="softplus", beta=3, seed=0)
    >>> model(torch.rand(2, 3, 32, 32)).shape
    torch.Size([2, 7])
    """
    from gyrograd.models import build

    return build(name, **settings)


def regularizer(name: str, **settings: Any) -> Regularizer:
    """Build a regulariser by name; `(model, x, y)` then gives one penalty per example, to add to the loss.

    >>> import gyrograd as gg
    >>> data = gg.dataset("shapes", n=4)
    >>> model, x, y = gg.model("lenet", num_classes=10, seed=0), data.pixels(), data.labels
    >>> penalty = gg.regularizer("l2_cosine", eps=4 / 255)(model, x, y)
    >>> penalty.shape, penalty.requires_grad
    (torch.Size([4]), True)
    """
    made: Regularizer = make("regularizer", name, **settings)
    return made


def dataset(name: str, **settings: Any) -> Dataset:
    """Load a data set by name; `.pixels()` are its images in [0, 1], `.labels` their classes.

    >>> import gyrograd as gg
    >>> gg.dataset("shapes", split="test", n=4)
    Dataset(shapes test: 4 examples of 3 x 32 x 32, 10 classes)
    """
    made: Dataset = make("dataset", name, **settings)
    return made


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(importlib.import_module(_LAZY[name]), name)
    raise AttributeError(f"module 'gyrograd' has no attribute '{name}'")


keep_old_names(__name__, predicted="gyrograd.predict")


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
