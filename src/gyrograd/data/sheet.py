"""A picture of a data set: rows of examples, or points of the plane."""

from __future__ import annotations

import io
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from gyrograd.data.dataset import Dataset

Pixels: TypeAlias = NDArray[np.uint8]

CELL, GAP, MARGIN = 96, 4, 92
MOST_CLASSES = 20


def draw_sheet(data: Dataset, n: int = 8) -> Image.Image:
    """A contact sheet with n images per class, or a scatter plot if the examples are points."""
    return scatter(data) if data.images.ndim == 2 else contact_sheet(data, n)


def contact_sheet(data: Dataset, n: int) -> Image.Image:
    """One row per class (the first twenty): its name and its first n examples."""
    shown = list(enumerate(data.classes))[:MOST_CLASSES]
    step = CELL + GAP
    sheet = Image.new("RGB", (MARGIN + n * step, len(shown) * step + GAP), "white")
    write = ImageDraw.Draw(sheet)
    for row, (label, name) in enumerate(shown):
        write.text((GAP, row * step + CELL // 2), name[:14], fill="black", font_size=13, anchor="lm")
        for column, index in enumerate(np.flatnonzero(data.labels.cpu().numpy() == label)[:n]):
            cell = Image.fromarray(_cell(data, int(index), outline=column % 2 == 1))
            sheet.paste(cell, (MARGIN + column * step, row * step + GAP))
    return sheet


def _cell(data: Dataset, index: int, outline: bool) -> Pixels:
    """One example enlarged to the cell without smoothing, with a white line about its object if wished."""
    image = data.pixels(data.labels.new_tensor([index]).long())[0].movedim(0, -1)
    pixels = (image * 255).round().byte().expand(-1, -1, 3).cpu().numpy()
    h, w, _ = pixels.shape
    rows, columns = np.arange(CELL) * h // CELL, np.arange(CELL) * w // CELL
    cell: Pixels = pixels[rows][:, columns].copy()
    if outline and data.masks is not None:
        cell[_edge(data.masks[index].cpu().numpy()[rows][:, columns])] = 255
    return cell


def _edge(mask: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Pixels just outside a mask: those with a neighbour in it."""
    wide = np.pad(mask, 1)
    near = wide[:-2, 1:-1] | wide[2:, 1:-1] | wide[1:-1, :-2] | wide[1:-1, 2:]
    return near & ~mask


def scatter(data: Dataset) -> Image.Image:
    """Points of the plane, coloured by class."""
    from matplotlib.figure import Figure  # slow to import, and needed for points alone

    figure = Figure(figsize=(5, 5), dpi=120)
    axes = figure.add_subplot(xlim=(0, 1), ylim=(0, 1), aspect="equal", title=data.name)
    for label, name in enumerate(data.classes):
        points = data.images[data.labels == label].cpu().numpy()
        axes.scatter(points[:, 0], points[:, 1], s=8, label=name)
    axes.legend()
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    return Image.open(buffer)
