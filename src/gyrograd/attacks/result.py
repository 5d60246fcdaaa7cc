"""What an attack did, example by example, and how it is kept on disk."""

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


@dataclass(frozen=True, eq=False)
class AttackResult:
    """One row for each example.

    x: the attacked images; x_clean: as they were; target: the class explained. map_clean and map: the maps of
    both. start and value: the objective at x_clean and at x, lower is better for the attacker; value is NaN
    where the search had no derivative to follow (`stuck`), for then it says nothing about robustness.
    prediction_kept: the model's class at x is that at x_clean. linf, l2: sizes of the change in pixel units;
    budget_used: its size over eps. steps: gradient steps taken, over all restarts. trace: objective of every
    iterate, restarts one after the other, if asked for. flags: what a reader must know of the run. beaten_by: by
    name, where a challenger clearly did better than the main search; misled: where what was descended fell and the
    value did not (both of `auto`; what a challenger found counts).
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

    def __len__(self) -> int:
        return len(self.x)

    def save(self, folder: Path | str, examples: Sequence[int] | None = None) -> Path:
        """Write clean and attacked image and map of each example as PNG, then `record.json`; returns its path.

        `examples` names the rows (their index in the data set). Each file is written whole or not at all, and
        the record last, so a folder with a record is complete. PNG holds bytes: a change below 1/510 is not
        in the picture; the numbers of the record are those of the exact images.
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

    def _repr_html_(self) -> str:
        """For notebooks: each example's images and maps before and after, and its numbers in words."""
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
        number = str(self.settings.get("column", "objective")).replace("_", " ")
        moved = f"{number}: {float(self.start[row]):.3f} to {float(self.value[row]):.3f}"
        if bool(self.stuck[row]):
            moved = "no derivative to follow: says nothing of robustness"
        words = f"class explained {int(self.target[row])}<br>prediction {kept}<br>{moved}"
        return f'{cells}<td style="text-align: left">{words}</td>'

    def _pictures(self, row: int) -> dict[str, Tensor]:
        """Both maps on the scale of their own largest pixel."""
        maps = normalize(reduce(torch.stack([self.map_clean[row], self.map[row]])), "max")
        return {
            "clean": self.x_clean[row],
            "attacked": self.x[row],
            "map_clean": maps[:1],
            "map_attacked": maps[1:],
        }


PER_EXAMPLE = tuple(
    f.name
    for f in fields(AttackResult)
    if f.name not in {"eps", "trace", "flags", "name", "settings", "beaten_by", "misled"}
)


def in_shape_of(x: Inputs, result: AttackResult) -> AttackResult:
    """A result that was searched in another shape, in the shape of x."""
    names = ("x", "x_clean", "map_clean", "map")
    return replace(result, **{name: getattr(result, name).reshape(x.shape) for name in names})


def joined(parts: Sequence[AttackResult]) -> AttackResult:
    """The parts of one batch, one after the other."""
    columns: dict[str, Any] = {
        name: torch.cat([getattr(part, name) for part in parts]) for name in PER_EXAMPLE
    }
    traces = [part.trace for part in parts if part.trace is not None]
    # A challenger that was not needed in one part has beaten nothing there.
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
    """Grey or colour by the number of channels."""
    levels = (pixels.detach().clamp(0, 1) * 255).round().byte().cpu()
    if len(levels) not in (1, 3):
        levels = levels[:1]
    array = levels[0].numpy() if len(levels) == 1 else levels.movedim(0, -1).numpy()
    encoded = io.BytesIO()
    Image.fromarray(array).save(encoded, "PNG")
    return encoded.getvalue()
