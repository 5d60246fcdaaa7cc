"""Regularisers: one penalty per example, added to the loss so that explanations become stable.

Files: alignment (l2, cosine), curvature (Hessian, SSR), path (IG-NORM), triplet (IGA), adversarial, distillation
(ATEX), entropy; inner (inner maximisation), passes (BatchNorm and input space of extra passes).
"""

from gyrograd.regularizers.adversarial import Adversarial
from gyrograd.regularizers.alignment import L2Cosine, cosine, l2
from gyrograd.regularizers.curvature import Hessian, Ssr
from gyrograd.regularizers.distillation import Atex
from gyrograd.regularizers.entropy import MaxEntropy
from gyrograd.regularizers.path import IgNorm
from gyrograd.regularizers.triplet import Iga

__all__ = ["Adversarial", "Atex", "Hessian", "IgNorm", "Iga", "L2Cosine", "MaxEntropy", "Ssr", "cosine", "l2"]
