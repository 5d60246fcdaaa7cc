"""Metrics: stability, attack response, faithfulness, certificates; one value per example."""

from gyrograd.metrics.accuracy import Accuracy
from gyrograd.metrics.adapters import RunningMetric, as_quantus_explain
from gyrograd.metrics.certificates import (
    CertifiedCosine,
    CertifiedPixels,
    DirectionCertificate,
    PixelCertificate,
)
from gyrograd.metrics.faithfulness import Faithfulness, Infidelity
from gyrograd.metrics.insertion import InsertionCurve, adversarial_insertion, deletion, insertion
from gyrograd.metrics.localization import MassInMask, PointingGame, TopKInMask
from gyrograd.metrics.randomization import ParameterRandomization
from gyrograd.metrics.response import (
    AttackResponse,
    CenterDislocation,
    CosineDistance,
    MapSimilarity,
    RankCorrelation,
    SimilarityToTarget,
    TopKIntersection,
    TopKNearby,
)
from gyrograd.metrics.road import Road
from gyrograd.metrics.sanity_checks import Flag, raised_flags
from gyrograd.metrics.soft_stability import SegmentCertificate, SoftStability
from gyrograd.metrics.sparseness import Sparseness
from gyrograd.metrics.stability import (
    LocalLipschitz,
    MaxSensitivity,
    ModelLipschitz,
    ModelSmoothness,
    RandomPerturbationSimilarity,
)
from gyrograd.metrics.transformations import TransformedSimilarity
from gyrograd.renames import keep_old_names

__all__ = [
    "Accuracy",
    "AttackResponse",
    "CenterDislocation",
    "CertifiedCosine",
    "CertifiedPixels",
    "CosineDistance",
    "DirectionCertificate",
    "Faithfulness",
    "Flag",
    "Infidelity",
    "InsertionCurve",
    "LocalLipschitz",
    "MapSimilarity",
    "MassInMask",
    "MaxSensitivity",
    "ModelLipschitz",
    "ModelSmoothness",
    "ParameterRandomization",
    "PixelCertificate",
    "PointingGame",
    "RandomPerturbationSimilarity",
    "RankCorrelation",
    "Road",
    "RunningMetric",
    "SegmentCertificate",
    "SimilarityToTarget",
    "SoftStability",
    "Sparseness",
    "TopKInMask",
    "TopKIntersection",
    "TopKNearby",
    "TransformedSimilarity",
    "adversarial_insertion",
    "as_quantus_explain",
    "deletion",
    "insertion",
    "raised_flags",
]

keep_old_names(
    __name__,
    suspicions="gyrograd.metrics.raised_flags",
    PixelGame="gyrograd.metrics.InsertionCurve",
)
