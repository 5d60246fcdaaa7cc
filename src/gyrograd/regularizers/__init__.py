"""Regularisers: a penalty for each example that training makes small so that explanations hold still.

Files: alignment (l2, cosine), curvature (Hessian, SSR), adversarial, entropy; passes (how they look at the model).
"""

from gyrograd.regularizers.adversarial import Adversarial
from gyrograd.regularizers.alignment import L2Cosine, cosine, l2
from gyrograd.regularizers.curvature import Hessian, Ssr
from gyrograd.regularizers.entropy import MaxEntropy

__all__ = ["Adversarial", "Hessian", "L2Cosine", "MaxEntropy", "Ssr", "cosine", "l2"]
