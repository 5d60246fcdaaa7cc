"""Smooth any model with a kernel and get a model back."""

from gyrograd.smoothing.kernels import Gaussian, Laplace, Uniform
from gyrograd.smoothing.model import Smoothed, in_one_pass, smoothed

__all__ = ["Gaussian", "Laplace", "Smoothed", "Uniform", "in_one_pass", "smoothed"]
