"""Models to explain: backbones of the three papers, models of other libraries, and wrappers.

`build` makes a model by name; `open_model` opens one from a file or a name; `wrappers` and `activations` turn a model
into another; `checkpoints` saves and loads models, and `zoo` holds trained ones.
"""

from gyrograd.models import googlenet, lenet, mlp, resnet, swin, vgg
from gyrograd.models.activations import SwapReport, swap_report, with_activation
from gyrograd.models.assembly import build, rebuild
from gyrograd.models.checkpoints import save
from gyrograd.models.opening import load, open_model
from gyrograd.models.specs import ModelSpec, spec_of
from gyrograd.models.weights import load_state
from gyrograd.models.wrappers import InShape, Normalized, Probability, Standardized, ZeroShot, logits_of
from gyrograd.renames import keep_old_names

__all__ = [
    "InShape",
    "ModelSpec",
    "Normalized",
    "Probability",
    "Standardized",
    "SwapReport",
    "ZeroShot",
    "build",
    "googlenet",
    "lenet",
    "load",
    "load_state",
    "logits_of",
    "mlp",
    "open_model",
    "rebuild",
    "resnet",
    "save",
    "spec_of",
    "swap_report",
    "swin",
    "vgg",
    "with_activation",
]

keep_old_names(__name__, opened="gyrograd.models.open_model", rebuilt="gyrograd.models.rebuild")
