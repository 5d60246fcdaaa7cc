"""Training: one loop, any objective."""

from gyrograd.training.loop import Objective, Recipe, cross_entropy, predictions, train

__all__ = ["Objective", "Recipe", "cross_entropy", "predictions", "train"]
