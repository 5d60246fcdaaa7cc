"""Regularisers: a penalty for each example that training makes small so that explanations hold still."""

from gyrograd.regularizers.alignment import L2Cosine, cosine, l2

__all__ = ["L2Cosine", "cosine", "l2"]
