"""Certified numbers beside attacked ones: what no change within a Euclidean radius can do to the smoothed maps.

Certificates take a thousand draws per image and method, so an audit has them on request alone (`certified_images`), and
of methods that take one pass: of the others every draw would cost as much as a map.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from gyrograd.audit.methods import Method
from gyrograd.audit.plans import GRADIENT, OTHER, AuditInputs
from gyrograd.audit.presets import Preset
from gyrograd.measurement import CLEAN, Column, Look, Metric, Plan, Table
from gyrograd.metrics import CertifiedCosine, CertifiedPixels
from gyrograd.metrics.certificates import per_value, refuted
from gyrograd.numerics.statistics import Stat, bootstrap_interval
from gyrograd.reporting.schema import Certificates, CertifiedPicture, CertifiedRow

LOOKS = 4
PICTURED = 3
"""Methods whose certified pixels are drawn, of one image."""
STATES = "-.+x"
"""Of a pixel: certainly not in the top, undecided, certainly in the top, refuted (its place does change)."""


def certified_methods(methods: Sequence[Method], preset: Preset) -> list[Method]:
    """The methods that are certified."""
    return [method for method in methods if preset.certified_images and method.passes == 1]


def row_of(method: str) -> str:
    """The table's row of a method's certificates."""
    return f"{method}, certified"


def pixel_metric(preset: Preset, max_batch: int) -> CertifiedPixels:
    """Certifies the places of pixels, as audits do."""
    draws = preset.certified_draws
    return CertifiedPixels(draws=draws, held_out=held_out(draws), looks=LOOKS, max_batch=max_batch)


def cosine_metric(preset: Preset, max_batch: int) -> CertifiedCosine:
    """Certifies directions, as audits do."""
    draws = preset.certified_draws
    return CertifiedCosine(draws=draws, held_out=held_out(draws), looks=LOOKS, max_batch=max_batch)


def held_out(draws: int) -> int:
    """Draws that guess what the others test: a tenth as many."""
    return max(1, draws // 10)


def certificate_plans(inputs: AuditInputs, methods: Sequence[Method]) -> list[Plan]:
    """Both certificates of every method that is certified, over the first images."""
    preset = inputs.preset
    certified = certified_methods(methods, preset)
    if not certified:
        return []
    pixels, cosine = pixel_metric(preset, inputs.max_batch), cosine_metric(preset, inputs.max_batch)

    def values(at: Look) -> dict[str, Tensor]:
        by_pixel = pixels.certificate(at.model, at.attribution, at.x, at.target, seed=at.seed)
        by_angle = cosine.certificate(at.model, at.attribution, at.x, at.target, seed=at.seed)
        return {
            "certified_pixels": by_pixel.share(pixels.radius),
            # Nothing is certain: as a cosine that is 0, so that means can be taken.
            "certified_cosine": by_angle.cosine(cosine.radius).clamp_min(0),
            "draws": (by_pixel.draws + by_angle.draws).double(),
        }

    settings = {"draws": preset.certified_draws, "looks": LOOKS}
    passes = 2 * GRADIENT * preset.certified_draws
    return [
        Plan(
            {row_of(method.name): method.attribution for method in certified},
            (replace(CLEAN, effort=(OTHER, float(passes))),),
            (Metric("certificates", values, settings=settings),),
            preset.certified_images,
            inputs.seed,
        )
    ]


def certified_columns(table: Table, method: str) -> dict[str, Column]:
    """A method's certified numbers by their keys on the card; none if it was not certified."""
    return {
        key: table.of(method=row_of(method), metric=key)
        for key in ("certified_pixels", "certified_cosine")
        if table.has(method=row_of(method), metric=key)
    }


def card_certificates(
    inputs: AuditInputs, table: Table, methods: Sequence[Method], *, pictures: bool
) -> Certificates | None:
    """The card's section: certified beside attacked, and one image's pixels."""
    preset, shape = inputs.preset, tuple(inputs.sample.x.shape[1:])
    certified = certified_methods(methods, preset)
    if not certified:
        return None
    pixels, cosine = pixel_metric(preset, inputs.max_batch), cosine_metric(preset, inputs.max_batch)
    rows: list[CertifiedRow] = []
    for method in certified:
        columns = certified_columns(table, method.name)
        rows.append(
            {
                "method": method.name,
                "label": method.label,
                "pixels": _stat(columns["certified_pixels"]),
                "cosine": _stat(columns["certified_cosine"]),
                "draws": _stat(table.of(method=row_of(method.name), metric="draws")),
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
        "rows": rows,
        "pictures": list(_pictures(inputs, certified[:PICTURED], pixels)) if pictures else [],
    }


def _pictures(
    inputs: AuditInputs, methods: Sequence[Method], metric: CertifiedPixels
) -> Iterator[CertifiedPicture]:
    """The first image's pixels, one character each."""
    x, target, seed = inputs.rows(inputs.sample.index[:1])
    for method in methods:
        at = (inputs.model, method.attribution, x, target)
        found = metric.certificate(*at, seed=seed)
        moved = refuted(metric, *at, found, draws=min(400, metric.draws), seed=seed)[0]
        states = torch.where(moved, 2, found.states(metric.radius)[0]) + 1
        yield {
            "example": inputs.sample.index[0],
            "method": method.name,
            "label": method.label,
            "rows": ["".join(STATES[state] for state in row) for row in states.tolist()],
        }


def _stat(column: Column) -> Stat | None:
    present = [value for value in column.values() if value is not None]
    return bootstrap_interval(present).plain() if present else None
