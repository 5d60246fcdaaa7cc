"""The result of an attack, one row per example, and how it is saved."""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from html import escape
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, Int
from PIL import Image
from torch import Tensor

from gyrograd import records
from gyrograd.errors import UserError
from gyrograd.numerics.maps import normalize, reduce
from gyrograd.numerics.wording import eps_text
from gyrograd.records import JsonObject
from gyrograd.types import Flags, Inputs, Labels, PerExample

COLUMNS = ("start", "value", "prediction_kept", "stuck", "linf", "l2", "budget_used", "steps")
MOST_SHOWN = 8
"""Examples a notebook shows."""
SCALE_END = 0.995
"""Share of a map's pixels below the brightest."""


@dataclass(frozen=True, eq=False)
class AttackResult:
    """Result of an attack, one row per example.

    x, x_clean: attacked and clean images. target: the explained class. map, map_clean: their maps. start, value: the
    objective at x_clean and at x, lower is better for the attacker; value is NaN if the search had no derivative to
    follow (`stuck`), because that says nothing about robustness. prediction_kept: True if the predicted class is
    unchanged. linf, l2: size of the change in pixel units. budget_used: its size over eps. steps: gradient steps, over
    all restarts. trace: objective of every iterate, restarts one after the other, if requested. flags: remarks that a
    reader must know.
    beaten_by: by challenger, the images on which it clearly beat the main search. misled: images on which the objective
    fell and the value did not. (The last two only from `auto`; results of challengers count.) class_names: those that
    the model carries.
    """

    x: Inputs
    x_clean: Inputs
    target: Labels
    map_clean: Inputs
    map: Inputs
    start: PerExample
    value: PerExample
    prediction_kept: Flags
    stuck: Flags
    broken: Flags
    unmoved: Flags
    linf: PerExample
    l2: PerExample
    budget_used: PerExample
    steps: Int[Tensor, " b"]
    eps: float
    trace: Float[Tensor, "n b"] | None = None
    flags: tuple[str, ...] = ()
    name: str = ""
    settings: JsonObject = field(default_factory=dict)
    beaten_by: Mapping[str, Flags] = field(default_factory=dict)
    misled: Flags | None = None
    class_names: tuple[str, ...] | None = None

    def __repr__(self) -> str:
        """One line: the tensors of all fields would fill pages."""
        kept = f"prediction kept for {int(self.prediction_kept.sum())} of {len(self)}"
        return f"AttackResult({self.name}, eps {eps_text(self.eps)}: {self._column}{self._moved()}, {kept})"

    @property
    def _column(self) -> str:
        return str(self.settings.get("column", "objective")).replace("_", " ")

    def _moved(self, row: int | slice = slice(None)) -> str:
        """Start and value, on average over the examples the search could move."""
        start, value = (float(column[row].nanmean()) for column in (self.start, self.value))
        return f" {start:.3f} to {value:.3f}"

    def __len__(self) -> int:
        return len(self.x)

    def row(self, i: int) -> AttackResult:
        """The result of one example."""
        one = slice(i, i + 1)
        return replace(
            self,
            **{name: getattr(self, name)[one] for name in PER_EXAMPLE},
            trace=None if self.trace is None else self.trace[:, one],
            beaten_by={name: flags[one] for name, flags in self.beaten_by.items()},
            misled=None if self.misled is None else self.misled[one],
        )

    def save(self, folder: Path | str, examples: Sequence[int] | None = None) -> Path:
        """Write images and maps, clean and attacked, as PNG, then `record.json`; returns its path.

        `examples` are the rows' indices in the data set. Files are written atomically and the record last, so a folder
        with a record is complete. PNG stores bytes, so changes below 1/510 are not visible in it; the numbers of the
        record belong to the exact images.
        """
        if self.x.dim() != 4:
            raise UserError(
                f"Pictures are made of images and these inputs are {tuple(self.x.shape)}; keep them as tensors: "
                "torch.save((result.x, result.map), PATH)."
            )
        folder = Path(folder)
        rows = list(range(len(self))) if examples is None else [int(i) for i in examples]
        record = self.record(rows)
        for row, index in enumerate(rows):
            for what, picture in self._pictures(row).items():
                records.write_bytes(folder / f"{index:05d}_{what}.png", _png(picture))
        records.write(folder / "record.json", record)
        return folder / "record.json"

    def record(self, examples: Sequence[int]) -> records.Record:
        """The numbers of every example, the settings and the flags."""
        if len(examples) != len(self):
            raise UserError(
                f"There are {len(examples)} names for {len(self)} examples; give one index for each."
            )
        values: dict[str, list[float | None]] = {
            key: [float(number) for number in getattr(self, key).tolist()] for key in COLUMNS
        }
        facts = {"flags": list(self.flags), "torch": torch.__version__}
        settings = {**self.settings, "eps": self.eps}
        return records.Record(f"attack {self.name}", settings, [int(i) for i in examples], values, facts)

    def _repr_html_(self) -> str | None:
        """HTML for notebooks: images and maps before and after, and the numbers of each example."""
        if self.x.dim() != 4:
            return None  # __repr__ is shown
        shown = range(min(MOST_SHOWN, len(self)))
        rows = "".join(f"<tr>{self._html_row(row)}</tr>" for row in shown)
        heads = (
            "image",
            "attacked",
            "map before",
            "map after",
            f"{escape(self.name)}, eps {eps_text(self.eps)}",
        )
        notes = [*self.flags, *([f"the first {MOST_SHOWN} of {len(self)}"] if len(self) > MOST_SHOWN else [])]
        below = f"<p>{escape('; '.join(notes))}</p>" if notes else ""
        titles = "".join(f"<th>{title}</th>" for title in heads)
        return f"<table><thead><tr>{titles}</tr></thead><tbody>{rows}</tbody></table>{below}"

    def _html_row(self, row: int) -> str:
        style = "width: 112px; image-rendering: pixelated"
        cells = "".join(
            f'<td><img style="{style}" alt="{what}" src="data:image/png;base64,'
            f'{base64.b64encode(_png(picture)).decode("ascii")}"></td>'
            for what, picture in self._pictures(row).items()
        )
        kept = "kept" if bool(self.prediction_kept[row]) else "changed"
        moved = f"{self._column}:{self._moved(row)}"
        if bool(self.stuck[row]):
            moved = "no derivative to follow: says nothing about robustness"
        target = int(self.target[row])
        explained = f"class {target}" if self.class_names is None else escape(self.class_names[target])
        words = f"explained: {explained}<br>prediction {kept}<br>{moved}"
        return f'{cells}<td style="text-align: left">{words}</td>'

    def _pictures(self, row: int) -> dict[str, Tensor]:
        """The four pictures of an example. Each map has its own scale, whose end one pixel in 200 exceeds."""
        # Divided by its largest pixel, a map with one outlier would be black.
        maps = normalize(reduce(torch.stack([self.map_clean[row], self.map[row]])).float(), "max")
        ends = maps.flatten(1).quantile(SCALE_END, dim=1)[:, None, None]
        maps = maps / torch.where(ends > 0, ends, 1)
        return {
            "clean": self.x_clean[row],
            "attacked": self.x[row],
            "map_clean": maps[:1],
            "map_attacked": maps[1:],
        }


PER_EXAMPLE = tuple(
    f.name
    for f in fields(AttackResult)
    if f.name not in {"eps", "trace", "flags", "name", "settings", "beaten_by", "misled", "class_names"}
)


def in_shape_of(x: Inputs, result: AttackResult) -> AttackResult:
    """The result with its images and maps reshaped like x."""
    names = ("x", "x_clean", "map_clean", "map")
    return replace(result, **{name: getattr(result, name).reshape(x.shape) for name in names})


def concatenate_results(parts: Sequence[AttackResult]) -> AttackResult:
    """The results of the parts of a batch as one."""
    columns: dict[str, Any] = {
        name: torch.cat([getattr(part, name) for part in parts]) for name in PER_EXAMPLE
    }
    traces = [part.trace for part in parts if part.trace is not None]
    # A challenger that did not run in a part won on none of its images.
    names = dict.fromkeys(name for part in parts for name in part.beaten_by)
    beaten_by = {
        name: torch.cat([part.beaten_by.get(name, torch.zeros_like(part.stuck)) for part in parts])
        for name in names
    }
    misled = [part.misled for part in parts if part.misled is not None]
    return replace(
        parts[0],
        **columns,
        trace=torch.cat(traces, 1) if traces else None,
        beaten_by=beaten_by,
        misled=torch.cat(misled) if misled else None,
    )


def _png(pixels: Float[Tensor, "c h w"]) -> bytes:
    """The image as PNG, grey or colour by its number of channels."""
    levels = (pixels.detach().clamp(0, 1) * 255).round().byte().cpu()
    if len(levels) not in (1, 3):
        levels = levels[:1]
    array = levels[0].numpy() if len(levels) == 1 else levels.movedim(0, -1).numpy()
    encoded = io.BytesIO()
    Image.fromarray(array).save(encoded, "PNG")
    return encoded.getvalue()
