"""Certificates in an audit: bounds for every change within a Euclidean radius, next to the attacked numbers.

Certificates take a thousand draws per image and method, so they are optional (`certified_images`) and only for methods
of one pass; for others every draw would cost as much as a whole map. Methods with segments (LIME, SHAP) have another
certificate, soft stability, whose draws are passes of the model, not maps.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from gyrograd.attributions.segments import has_segments
from gyrograd.audit.methods import Method
from gyrograd.audit.plans import GRADIENT, OTHER, AuditInputs
from gyrograd.audit.presets import Preset
from gyrograd.audit.table import stat
from gyrograd.measurement import CLEAN, Column, Look, Metric, Plan, Table
from gyrograd.measurement.plan import described
from gyrograd.metrics import CertifiedCosine, CertifiedPixels, SoftStability
from gyrograd.metrics.certificates import find_refuted, per_value
from gyrograd.reporting.schema import Certificates, CertifiedPicture, CertifiedRow

LOOKS = 4
PICTURED = 3
"""Most methods whose certified pixels are drawn (for one image)."""
STATES = "-.+x"
"""State of a pixel: certainly not in the top, undecided, certainly in the top, refuted (it does change)."""
COLUMNS = ("certified_pixels", "certified_cosine", "soft_stability")
"""Certified numbers by their keys on the card."""


def certified_methods(methods: Sequence[Method], preset: Preset) -> list[Method]:
    """The methods whose pixels and direction are certified."""
    return [method for method in methods if preset.certified_images and method.passes == 1]


def segment_methods(methods: Sequence[Method], preset: Preset) -> list[Method]:
    """The methods whose soft stability is certified."""
    rest = [method for method in methods if method not in certified_methods(methods, preset)]
    return [method for method in rest if preset.certified_images and has_segments(method.attribution)]


def row_of(method: str) -> str:
    """The table's row of a method's certificates."""
    return f"{method}, certified"


def metrics_of(inputs: AuditInputs) -> tuple[CertifiedPixels, CertifiedCosine, SoftStability]:
    """The certificate metrics with an audit's settings; the guess uses a tenth as many draws as the test."""
    draws, most = inputs.preset.certified_draws, inputs.max_batch
    settings: dict[str, Any] = {
        "draws": draws,
        "held_out": max(1, draws // 10),
        "looks": LOOKS,
        "max_batch": most,
    }
    return (
        CertifiedPixels(**settings),
        CertifiedCosine(**settings),
        SoftStability(draws=draws, max_batch=most),
    )


def certificate_plans(inputs: AuditInputs, methods: Sequence[Method]) -> list[Plan]:
    """Plans of the certificates of all methods that have one, on the first images."""
    preset = inputs.preset
    pixels, cosine, stable = metrics_of(inputs)

    def values(at: Look) -> dict[str, Tensor]:
        by_pixel = pixels.certificate(at.model, at.attribution, at.x, at.target, seed=at.seed)
        by_angle = cosine.certificate(at.model, at.attribution, at.x, at.target, seed=at.seed)
        return {
            "certified_pixels": by_pixel.share(pixels.radius),
            # -1 means that nothing is certain; counted as 0, so that means make sense.
            "certified_cosine": by_angle.cosine(cosine.radius).clamp_min(0),
            "draws": (by_pixel.draws + by_angle.draws).double(),
        }

    def stability(at: Look) -> dict[str, Tensor]:
        low = stable(at.model, at.attribution, at.x, at.target, seed=at.seed)
        return {"soft_stability": low, "draws": torch.full_like(low, stable.draws)}

    draws = preset.certified_draws
    kinds = (
        (
            certified_methods,
            2 * GRADIENT * draws,
            Metric("certificates", values, settings={"draws": draws, "looks": LOOKS}),
        ),
        (
            segment_methods,
            draws,
            Metric("soft_stability", stability, settings={"settings": described(repr(stable))}),
        ),
    )
    return [
        Plan(
            {row_of(method.name): method.attribution for method in certified},
            (replace(CLEAN, effort=(OTHER, float(passes))),),
            (metric,),
            preset.certified_images,
            inputs.seed,
        )
        for chosen, passes, metric in kinds
        if (certified := chosen(methods, preset))
    ]


def certified_columns(table: Table, method: str) -> dict[str, Column]:
    """A method's certified columns by their keys on the card; empty if it was not certified."""
    return {
        key: table.of(method=row_of(method), metric=key)
        for key in COLUMNS
        if table.has(method=row_of(method), metric=key)
    }


def card_certificates(
    inputs: AuditInputs, table: Table, methods: Sequence[Method], *, pictures: bool
) -> Certificates | None:
    """The card's section of certificates: certified and attacked numbers, and the pixels of one image."""
    preset, shape = inputs.preset, tuple(inputs.sample.x.shape[1:])
    certified, segmented = certified_methods(methods, preset), segment_methods(methods, preset)
    if not certified and not segmented:
        return None
    pixels, cosine, stable = metrics_of(inputs)
    rows: list[CertifiedRow] = []
    for method in [*certified, *segmented]:
        columns = certified_columns(table, method.name)
        rows.append(
            {
                "method": method.name,
                "label": method.label,
                "pixels": stat(columns.get("certified_pixels")),
                "cosine": stat(columns.get("certified_cosine")),
                "stability": stat(columns.get("soft_stability")),
                "draws": stat(table.of(method=row_of(method.name), metric="draws")),
            }
        )
    return {
        "images": min(preset.certified_images, len(inputs.sample.x)),
        "alpha": pixels.alpha,
        "draws": preset.certified_draws,
        "top": pixels.top,
        "radius": pixels.radius,
        "radius_per_value": per_value(pixels.radius, shape),
        "sigma": pixels.sigma,
        "cosine_radius": cosine.radius,
        "cosine_radius_per_value": per_value(cosine.radius, shape),
        "cosine_sigma": cosine.sigma,
        "segments_shown": stable.top,
        "segments_added": stable.radius,
        "rows": rows,
        "pictures": list(_pictures(inputs, certified[:PICTURED], pixels)) if pictures else [],
    }


def _pictures(
    inputs: AuditInputs, methods: Sequence[Method], metric: CertifiedPixels
) -> Iterator[CertifiedPicture]:
    """The pixels of the first image, one character each."""
    x, target, seed = inputs.rows(inputs.sample.index[:1])
    for method in methods:
        at = (inputs.model, method.attribution, x, target)
        found = metric.certificate(*at, seed=seed)
        moved = find_refuted(metric, *at, found, draws=min(400, metric.draws), seed=seed)[0]
        states = torch.where(moved, 2, found.states(metric.radius)[0]) + 1
        yield {
            "example": inputs.sample.index[0],
            "method": method.name,
            "label": method.label,
            "rows": ["".join(STATES[state] for state in row) for row in states.tolist()],
        }
