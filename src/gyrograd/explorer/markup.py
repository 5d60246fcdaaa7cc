"""The results as HTML: grids of pictures, tables of numbers, sentences. All foreign text is escaped."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

import numpy as np

from gyrograd.explorer.pictures import address, array_of, attack_arrays, picture_of
from gyrograd.explorer.scenes import AttackScene, MapsScene, Prediction
from gyrograd.explorer.stage import Stage
from gyrograd.explorer.wording import (
    CHANGES,
    MEANINGS,
    NAMES,
    ONE_IMAGE,
    SCALES,
    Figure,
    attack_sentence,
    attack_title,
    figures,
    flag_sentence,
    method_label,
    prediction_text,
    verdict,
)
from gyrograd.parsing import parse_call
from gyrograd.registry import in_order, lookup
from gyrograd.reporting.figures import Array
from gyrograd.reporting.pictures import colour_map, difference, overlay, scale_bar, scale_end, shared_scale
from gyrograd.types import Images


def problem(sentence: str) -> str:
    """An error message for the user."""
    return f'<p class="gg-problem" role="alert">{escape(sentence)}</p>'


def remark(sentence: str) -> str:
    """A sentence next to the results."""
    return f'<p class="gg-remark">{escape(sentence)}</p>'


def computing_note(number: int) -> str:
    """A mark with the number of the last question, and the note above answers to an earlier one."""
    words = "Computing. The dimmed result below belongs to the previous image or settings."
    return f'<p class="gg-asked" data-asked="{number}" role="status">{words}</p>'


def about_image(html: str, image: str, number: int | None = None) -> str:
    """HTML about an image, marked with the image and, for an answer, with the number of its question.

    From these marks the page's script recognizes answers that are out of date (`style.SCRIPT`).
    """
    answers = "" if number is None else f' data-answers="{number}"'
    return f'<div data-image="{escape(image)}"{answers}>{html}</div>'


def preview(x: Images, title: str, guesses: Sequence[tuple[str, Prediction]]) -> str:
    """The selected image, and the prediction of each model."""
    rows = "".join(
        f"<tr><td><small>{escape(name)}</small><br><b>{escape(prediction_text(guess))}</b></td></tr>"
        for name, guess in guesses
    )
    return (
        f'<div class="gg-preview">{_picture(picture_of(x), title)}'
        f'<table class="gg-table"><caption>What the models say</caption><tbody>{rows}</tbody></table></div>'
    )


def maps_page(scene: MapsScene) -> str:
    """For each method its map, over the image and alone, each on its own scale."""
    image = picture_of(scene.x)
    cards = "".join(_method(image, name, array_of(map)) for name, map in scene.maps.items())
    asked = "its own choice" if scene.target.number == scene.predicted.number else "the class chosen here"
    line = (
        f"{scene.net.name} says {prediction_text(scene.predicted)}. "
        f"Explained: {prediction_text(scene.target)} ({asked}). "
        "Each map has its own scale: compare where it is bright, not how bright."
    )
    empty = [f"{method_label(name)} gave a map of zeros, which says nothing." for name in scene.empty]
    missing = [f"{method_label(name)} is left out: {sentence}" for name, sentence in scene.left_out.items()]
    return (
        f'{remark(line)}<div class="gg-methods">{cards}</div>{_legend(scene.target.label)}'
        f"{_notes((*missing, *empty))}"
    )


def attack_page(scene: AttackScene) -> str:
    """One attack: a sentence, large maps, numbers, flags, and the maps between start and end."""
    return (
        f'<p class="gg-verdict">{escape(attack_sentence(scene))}</p>{_large_maps(scene)}{_legend(scene.target)}'
        f'<div class="gg-result"><div>{_numbers((scene,))}{_notes(_flags(scene))}</div>'
        f"<div>{_grid(_changes(scene), 3)}</div></div>"
        f'<h4 class="gg-below">On the way: the map at parts of the change</h4>{_way(scene)}'
        f"{remark(f'{CHANGES} {SCALES}')}"
    )


def comparison_page(scenes: tuple[AttackScene, ...]) -> str:
    """A comparison of models under attack: a sentence, their maps, and their numbers side by side."""
    rows = "".join(
        f'<h4 class="gg-below">{escape(scene.net.name)}</h4>{_large_maps(scene)}' for scene in scenes
    )
    classes = " and ".join(dict.fromkeys(scene.target for scene in scenes))
    notes = [f"{scene.net.name}: {flag}" for scene in scenes for flag in _flags(scene)]
    return (
        f'<p class="gg-verdict">{escape(verdict(scenes))}</p>{rows}{_legend(classes)}'
        f"{_numbers(scenes)}{_notes(notes)}{remark(SCALES)}{remark(ONE_IMAGE.replace('`', ''))}"
    )


def meanings_page() -> str:
    """Explanations of the numbers, the attacks and the methods."""
    lists = {"Numbers": [(name, MEANINGS[key]) for key, name in NAMES.items()]}
    for title, kind in (("Attacks", "attack"), ("Methods", "attribution")):
        lists[title] = [(entry.label, entry.about or entry.summary) for entry in in_order(kind)]
    html = ""
    for title, entries in lists.items():
        terms = "".join(f"<dt>{escape(name)}</dt><dd>{escape(about)}</dd>" for name, about in entries)
        html += f"<h4>{title}</h4><dl>{terms}</dl>"
    return f'<div class="gg-words">{html}{remark(f"{CHANGES} {SCALES}")}</div>'


def _method(image: Array, name: str, map: Array) -> str:
    entry = lookup("attribution", parse_call(name)[0])
    return (
        f'<section class="gg-method" data-method="{escape(name)}"><h4>{escape(method_label(name))}</h4>'
        f'{_map_picture(image, map, "the map")}<p class="gg-about">{escape(entry.about or entry.summary)}</p>'
        "</section>"
    )


def _large_maps(scene: AttackScene) -> str:
    """The image and the maps before and after, each on its own scale, over its own image and alone."""
    image, attacked, clean, moved = (array[0] for array in attack_arrays(scene).values())
    figures = (
        _picture(image, f"the image: {prediction_text(scene.before)}"),
        _map_picture(image, clean, f"map before: {prediction_text(scene.before)}"),
        _map_picture(attacked, moved, f"map after: {prediction_text(scene.after)}"),
    )
    return f'<div class="gg-grid gg-of-3 gg-large">{"".join(figures)}</div>'


def _map_picture(image: Array, map: Array, caption: str) -> str:
    """A map over its image and alone: the page's switch shows one of the two."""
    words = escape(caption)
    over, alone = address(overlay(image, map)), address(colour_map(map, scale_end(map)))
    return (
        f'<figure class="gg-figure"><img class="gg-over" src="{over}" alt="{words}, over the image">'
        f'<img class="gg-alone" src="{alone}" alt="{words}"><figcaption>{words}</figcaption></figure>'
    )


def _legend(explained: str) -> str:
    """The meaning of the colours."""
    return (
        '<p class="gg-legend"><span>hardly counts</span>'
        f'<img src="{scale_bar()}" alt="colours from dark to bright">'
        f"<span>counts most for {escape(explained)}</span></p>"
    )


def _changes(scene: AttackScene) -> list[tuple[Array, str]]:
    """What the attack changed: the image, enlarged, and the map."""
    image, attacked, clean, moved = (array[0] for array in attack_arrays(scene).values())
    end = shared_scale(clean, moved)
    return [
        (attacked, "attacked image"),
        (difference(image, attacked), "what changed"),
        (colour_map(np.abs(moved) - np.abs(clean), end), "change of the map"),
    ]


def _way(scene: AttackScene) -> str:
    drawn = [array_of(point.map) for point in scene.way]
    end = max(scale_end(map) for map in drawn)
    cells = [
        (colour_map(map, end), f"{point.share * 100:.0f}\u00a0%: {prediction_text(point.predicted)}")
        for map, point in zip(drawn, scene.way, strict=True)
    ]
    return _grid(cells, 6)


def _numbers(scenes: tuple[AttackScene, ...]) -> str:
    """A table with one row per number and one column per model."""
    columns = [figures(scene) for scene in scenes]
    titles = [scene.net.name for scene in scenes] if len(scenes) > 1 else []
    head = "".join(f"<th>{escape(title)}</th>" for title in titles)
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


def _flags(scene: AttackScene) -> tuple[str, ...]:
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
    """Notes about the images and the models, shown at the top of the page."""
    return _notes((*stage.notes, *(f"{net.name}: {note}" for net in stage.nets for note in net.notes)))
