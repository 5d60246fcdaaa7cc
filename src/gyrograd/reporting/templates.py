"""Pages from templates: all text is escaped, one style for all, nothing fetched from elsewhere."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from gyrograd.errors import printable
from gyrograd.numerics import wording as numbers
from gyrograd.registry import readable
from gyrograd.reporting import wording
from gyrograd.reporting.palette import DARK, LIGHT

FILTERS = {
    "number": numbers.number,
    "bracket": numbers.bracket,
    "with_interval": numbers.interval_text,
    "signed": wording.signed,
    "eps_text": numbers.eps_text,
    "duration": wording.duration,
    "readable": readable,
    "counted_images": wording.counted_images,
    "notes_of": wording.notes_of,
}


def rendered(name: str, **values: Any) -> str:
    """The page of the template `NAME.html.jinja`."""
    text: str = _environment().get_template(f"{name}.html.jinja").render(light=LIGHT, dark=DARK, **values)
    # Names of files and models stand on pages as they are; their control characters are written out.
    return "\n".join(printable(line.replace("\t", " ")) for line in text.split("\n"))


@cache
def _environment() -> Any:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        autoescape=True,
        loader=FileSystemLoader(Path(__file__).parent),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(FILTERS)
    return environment
