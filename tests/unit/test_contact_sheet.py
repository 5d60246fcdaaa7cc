"""The contact sheet: one scale of colours, captions that say what is seen, and words that cannot break the page."""

from __future__ import annotations

import base64
import io
import re

import numpy as np
from PIL import Image

from gyrograd.reporting.contact_sheet import SheetColumn, SheetRow, contact_sheet
from gyrograd.reporting.pictures import colour_map, shared_scale

GRADIENT = SheetColumn("g", "Gradient", "How the score changes.", "Gradient()")
OTHER = SheetColumn("o", "Other", "Another.", "Other(draws=7)", 7)
REFUSED = SheetColumn("r", "Refuser", "A third.", "Refuser()", refused="It has no <attention>; use 'lrp'.")


def row(**maps: np.ndarray) -> SheetRow:
    return SheetRow("one.png", "predicted bee (90%); explained: bee", np.full((4, 4, 3), 0.5), maps)


def pictures(page: str) -> list[np.ndarray]:
    found = re.findall(r'src="data:image/png;base64,([^"]+)"', page)
    return [np.asarray(Image.open(io.BytesIO(base64.b64decode(text)))) for text in found]


def test_maps_of_any_size_show_the_same_colours_and_tell_their_scale():
    map = np.linspace(0, 1, 16).reshape(4, 4)
    page = contact_sheet("sheet", [GRADIENT, OTHER], [row(g=map, o=100 * map)], [])
    _, _, first, second = pictures(page)
    assert np.array_equal(first, second)
    end = shared_scale(map, map)
    small = first[:: len(first) // 4, :: len(first) // 4]
    assert np.array_equal(small, (colour_map(map, end) * 255).round().astype(np.uint8))
    assert f"0 to {end:.3f}" in page
    assert f"0 to {100 * end:.3f}" in page
    assert "7 passes" in page


def test_a_map_of_zeros_and_a_map_of_nan_are_called_so():
    page = contact_sheet("sheet", [GRADIENT, OTHER], [row(g=np.zeros((4, 4)))], [])
    assert "zero everywhere" in page
    assert "NaN or infinite numbers: no picture" in page
    assert len(pictures(page)) == 3


def test_a_method_that_refuses_says_why_in_its_column_once():
    maps = {"g": np.eye(4)}
    page = contact_sheet("<b>sheet</b>", [GRADIENT, REFUSED], [row(**maps), row(**maps)], ["A note."])
    assert page.count("It has no &lt;attention&gt;") == 1
    assert 'rowspan="2"' in page
    assert "<b>sheet" not in page
    assert "A note." in page
