"""Attributions: how much each input feature mattered to the model's output; for any model, also smoothed ones."""

from gyrograd.attributions.attention import AttentionRollout, GradientXAttention
from gyrograd.attributions.cam import GradCAM, GradCAMPlusPlus, HiResCAM, LayerCAM
from gyrograd.attributions.deep_lift import DeepLift, DeepShap
from gyrograd.attributions.function import FunctionAttribution, as_attribution
from gyrograd.attributions.gradient import Gradient, InputXGradient
from gyrograd.attributions.gradient_shap import GradientShap
from gyrograd.attributions.guided_backprop import GuidedBackprop
from gyrograd.attributions.lime import Lime
from gyrograd.attributions.lrp import LRP, AutoLRP
from gyrograd.attributions.masking import Occlusion, Rise
from gyrograd.attributions.path import IntegratedGradients
from gyrograd.attributions.shap import Shap
from gyrograd.attributions.smooth import OnSmoothed, smoothgrad, unigrad
from gyrograd.attributions.targets import predict
from gyrograd.renames import keep_old_names

__all__ = [
    "LRP",
    "AttentionRollout",
    "AutoLRP",
    "DeepLift",
    "DeepShap",
    "FunctionAttribution",
    "GradCAM",
    "GradCAMPlusPlus",
    "Gradient",
    "GradientShap",
    "GradientXAttention",
    "GuidedBackprop",
    "HiResCAM",
    "InputXGradient",
    "IntegratedGradients",
    "LayerCAM",
    "Lime",
    "Occlusion",
    "OnSmoothed",
    "Rise",
    "Shap",
    "as_attribution",
    "predict",
    "smoothgrad",
    "unigrad",
]

keep_old_names(__name__, predicted="gyrograd.predict")
