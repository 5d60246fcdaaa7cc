"""What the page shows as HTML: pictures in a grid, numbers in a table, sentences. Texts from elsewhere are escaped."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

import numpy as np

from gyrograd.explorer.pictures import (
    Array,
    address,
    array_of,
    attack_arrays,
    picture_of,
)
from gyrograd.explorer.scenes import Attacked, Explained, Prediction
from gyrograd.explorer.stage import Stage
from gyrograd.explorer.wording import (
    MEANINGS,
    NAMES,
    ONE_IMAGE,
    PICTURES,
    Figure,
    attack_title,
    figures,
    flag_sentence,
    reading,
    said,
    verdict,
)
from gyrograd.registry import in_order, label_of, lookup
from gyrograd.reporting.pictures import coloured, difference, overlay, shared_scale
from gyrograd.types import Images


def problem(sentence: str) -> str:
    """A user's mistake, in one sentence."""
    return f'<p class="gg-problem" role="alert">{escape(sentence)}</p>'


def remark(sentence: str) -> str:
    """A sentence beside the results."""
    return f'<p class="gg-remark">{escape(sentence)}</p>'


def preview(x: Images, title: str, guesses: Sequence[tuple[str, Prediction]]) -> str:
    """The image that is looked at and what each model says of it."""
    rows = "".join(
        f"<tr><td><small>{escape(name)}</small><br><b>{escape(said(guess))}</b></td></tr>"
        for name, guess in guesses
    )
    return (
        f'<div class="gg-preview">{_picture(picture_of(x), title)}'
        f'<table class="gg-table"><caption>What the models say</caption><tbody>{rows}</tbody></table></div>'
    )


def maps_page(scene: Explained) -> str:
    """Every method: its map alone and over the image, each on its own scale."""
    image = picture_of(scene.x)
    cards = "".join(_method(image, name, array_of(map)) for name, map in scene.maps.items())
    asked = "its own choice" if scene.target.number == scene.predicted.number else "the class chosen here"
    line = (
        f"{scene.net.name} says {said(scene.predicted)}. Explained: {said(scene.target)} ({asked}). "
        "Each map has its own scale: compare where it is bright, not how bright."
    )
    empty = [
        f"{label_of('attribution', name)} gave a map of zeros, which says nothing." for name in scene.empty
    ]
    missing = [
        f"{label_of('attribution', name)} is left out: {sentence}"
        for name, sentence in scene.left_out.items()
    ]
    return f'{remark(line)}<div class="gg-methods">{cards}</div>{_notes((*missing, *empty))}'


def attack_page(scene: Attacked) -> str:
    """One attack: pictures, numbers, flags, and the map on the way."""
    return (
        f'<div class="gg-result"><div>{_grid(_attack_pictures(scene), 3)}</div>'
        f'<div>{_numbers((scene,))}<p class="gg-reading">{escape(reading(scene))}</p>'
        f"{_notes(_flags(scene))}</div></div>"
        f'<h4 class="gg-below">On the way: the map at parts of the change</h4>{_way(scene)}{remark(PICTURES)}'
    )


def comparison_page(scenes: tuple[Attacked, ...]) -> str:
    """Models below one another, then their numbers side by side."""
    rows = "".join(
        f'<h4 class="gg-below">{escape(scene.net.name)}</h4>{_grid(_attack_pictures(scene), 6)}'
        for scene in scenes
    )
    notes = [f"{scene.net.name}: {flag}" for scene in scenes for flag in _flags(scene)]
    return (
        f'<p class="gg-verdict">{escape(verdict(scenes))}</p>{rows}{_numbers(scenes)}{_notes(notes)}'
        f"{remark(PICTURES)}{remark(ONE_IMAGE.replace('`', ''))}"
    )


def meanings_page() -> str:
    """What the numbers mean and what the attacks and methods are."""
    numbers = "".join(
        f"<dt>{escape(name)}</dt><dd>{escape(MEANINGS[key])}</dd>" for key, name in NAMES.items()
    )
    kinds = {"attack": "Attacks", "attribution": "Methods"}
    lists = "".join(f"<h4>{title}</h4><dl>{_summaries(kind)}</dl>" for kind, title in kinds.items())
    return f'<div class="gg-words"><h4>Numbers</h4><dl>{numbers}</dl>{lists}{remark(PICTURES)}</div>'


def _summaries(kind: str) -> str:
    return "".join(
        f"<dt>{escape(entry.label)}</dt><dd>{escape(entry.about or entry.summary)}</dd>"
        for entry in in_order(kind)
    )


def _method(image: Array, name: str, map: Array) -> str:
    end, entry = shared_scale(map, map), lookup("attribution", name)
    pair = [(coloured(map, end), "the map"), (overlay(image, map, end), "over the image")]
    return (
        f'<section class="gg-method" data-method="{escape(name)}"><h4>{escape(entry.label)}</h4>'
        f'{_grid(pair, 2)}<p class="gg-about">{escape(entry.about or entry.summary)}</p></section>'
    )


def _attack_pictures(scene: Attacked) -> list[tuple[Array, str]]:
    """Image, attacked image, difference; map before, map after, attacked map over the image. One scale for maps."""
    image, attacked, clean, moved = (array[0] for array in attack_arrays(scene).values())
    end = shared_scale(clean, moved)
    return [
        (image, "image"),
        (attacked, "attacked"),
        (difference(image, attacked), "what changed"),
        (coloured(clean, end), "map before"),
        (coloured(moved, end), "map after"),
        (coloured(np.abs(moved) - np.abs(clean), end), "change of the map"),
    ]


def _way(scene: Attacked) -> str:
    drawn = [array_of(point.map) for point in scene.way]
    end = max(shared_scale(map, map) for map in drawn)
    cells = [
        (
            coloured(map, end),
            f"{point.share * 100:.0f}\u00a0%: {said(point.predicted)}",
        )
        for map, point in zip(drawn, scene.way, strict=True)
    ]
    return _grid(cells, 6)


def _numbers(scenes: tuple[Attacked, ...]) -> str:
    """A row for each number, a column for each model."""
    columns = [figures(scene) for scene in scenes]
    titles = [scene.net.name for scene in scenes]
    head = "".join(f"<th>{escape(title)}</th>" for title in titles) if len(scenes) > 1 else ""
    body = "".join(
        f'<tr title="{escape(MEANINGS[row[0].key])}"><th>{escape(NAMES[row[0].key])}</th>'
        f"{''.join(_cell(figure, place) for place, figure in enumerate(row))}</tr>"
        for row in zip(*columns, strict=True)
    )
    top = f"<thead><tr><th></th>{head}</tr></thead>" if head else ""
    caption = f"<caption>{escape(attack_title(scenes[0]))}</caption>"
    return f'<table class="gg-table">{caption}{top}<tbody>{body}</tbody></table>'


def _cell(figure: Figure, place: int) -> str:
    exact = "" if figure.value is None else f' data-value="{figure.value!r}"'
    rest = f"<small>{escape(figure.remark)}</small>" if figure.remark else ""
    bad = ' class="gg-bad"' if figure.key == "prediction" and figure.value == 0 else ""
    return f'<td data-number="{figure.key}" data-model="{place}"{exact}{bad}><b>{escape(figure.text)}</b> {rest}</td>'


def _flags(scene: Attacked) -> tuple[str, ...]:
    return tuple(flag_sentence(flag) for flag in scene.hit.flags)


def _notes(sentences: Iterable[str]) -> str:
    items = "".join(f"<li>{escape(sentence)}</li>" for sentence in dict.fromkeys(sentences))
    return f'<ul class="gg-notes">{items}</ul>' if items else ""


def _grid(cells: Sequence[tuple[Array, str]], columns: int) -> str:
    pictures = "".join(_picture(picture, caption) for picture, caption in cells)
    return f'<div class="gg-grid gg-of-{columns}">{pictures}</div>'


def _picture(picture: Array, caption: str) -> str:
    words = escape(caption)
    image = f'<img src="{address(picture)}" alt="{words}">'
    return f'<figure class="gg-figure">{image}<figcaption>{words}</figcaption></figure>'


def notes_page(stage: Stage) -> str:
    """What must be known of images and models before anything is asked of them."""
    return _notes((*stage.notes, *(f"{net.name}: {note}" for net in stage.nets for note in net.notes)))
