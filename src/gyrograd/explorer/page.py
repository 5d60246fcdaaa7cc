"""The page: controls and what happens when they are touched. Everything it shows is computed in `scenes`."""

from __future__ import annotations

import importlib
import tempfile
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from gyrograd.errors import UserError, foreign_code, in_words, printable, wants_frames
from gyrograd.explorer import markup
from gyrograd.explorer.pictures import archive_of_attacks, archive_of_maps, picture_of
from gyrograd.explorer.scenes import Plan, attacked, compared, explained, prediction
from gyrograd.explorer.sessions import Sessions
from gyrograd.explorer.stage import Stage
from gyrograd.explorer.watching import Stopped, Watch
from gyrograd.explorer.wording import HINTS
from gyrograd.numerics.modes import denormals_flushed
from gyrograd.registry import in_order
from gyrograd.reporting.pictures import png
from gyrograd.types import Images

Number = float | int
"""What a slider gives."""
OWN_CHOICE = -1
"""Stands for the class a model predicts."""
SAMPLES = 8
"""Images of the set that can be picked by a look."""
FIRST_METHODS = ("gradient", "smoothgrad", "integrated_gradients")
LARGEST_EPS = 32
MOST_STEPS = 200
Answer = Callable[..., tuple[str, bytes]]
"""A watch and the values of the controls to HTML and an archive."""
QUIET = {"api_visibility": "private", "show_progress": "hidden", "trigger_mode": "always_last"}
"""How Gradio treats what is done at once."""
QUEUE = "one at a time"
"""Computations share one queue: two at once would be slower than one after the other."""


def gradio() -> Any:
    """The library the page is made of, which is an extra."""
    try:
        return importlib.import_module("gradio")
    except ImportError:
        raise UserError("The page needs Gradio: pip install 'gyrograd[explore]'.") from None


@dataclass
class Wish:
    """What the user of one open page wants of the work that is going on or waits in the queue.

    Presses of buttons are numbered. A stop ends all that was asked for before it, begun or not, and nothing that is
    asked for later.
    """

    presses: int = 0
    started: dict[str, int] = field(default_factory=dict)
    """The last press of each button that starts work."""
    stopped: int = 0
    """The last press before the last stop."""

    def start(self, key: str) -> None:
        """A button was pressed that starts work."""
        self.presses += 1
        self.started[key] = self.presses

    def stop(self) -> None:
        """The user wants no more of it."""
        self.stopped = self.presses


@dataclass(frozen=True)
class Answers:
    """The functions behind the buttons: plain values in, HTML and an archive's path out."""

    stage: Stage
    sessions: Sessions

    def chosen(self, index: Number, file: str | None) -> tuple[Images, str]:
        """The image that is looked at and its name: the user's file, or one of the set."""
        if file:
            return self.stage.image_of_file(file), printable(Path(file).name)
        number = int(index)
        x, label = self.stage.image(number), self.stage.label(number)
        name = printable(self.stage.names[number])
        return x, name if label is None else f"{name}, labelled {label}"

    def preview(self, index: Number, file: str | None) -> str:
        """The image and what each model says of it."""
        x, title = self.chosen(index, file)
        return markup.preview(x, title, [(net.name, prediction(net, x)) for net in self.stage.nets])

    def explain(
        self, watch: Watch, index: Number, file: str | None, target: Number, model: str, methods: list[str]
    ) -> tuple[str, bytes]:
        """The maps of one model."""
        x, _ = self.chosen(index, file)
        scene = explained(self.stage.net(model), x, _class(target), methods, watch=watch)
        return markup.maps_page(scene), archive_of_maps(scene)

    def attack(
        self, watch: Watch, index: Number, file: str | None, target: Number, model: str, *plan: Any
    ) -> tuple[str, bytes]:
        """One model under attack."""
        x, _ = self.chosen(index, file)
        net = self.stage.net(model)
        scene = attacked(net, x, _class(target), _plan(*plan), seed=self.stage.seed, watch=watch)
        return markup.attack_page(scene), archive_of_attacks((scene,))

    def compare(
        self, watch: Watch, index: Number, file: str | None, target: Number, a: str, b: str, *plan: Any
    ) -> tuple[str, bytes]:
        """Two models under the same attack."""
        x, _ = self.chosen(index, file)
        if a == b:
            raise UserError("Both models are the same; choose two that differ.")
        nets = [self.stage.net(a), self.stage.net(b)]
        scenes = compared(nets, x, _class(target), _plan(*plan), seed=self.stage.seed, watch=watch)
        return markup.comparison_page(scenes), archive_of_attacks(scenes)

    def kept(self, archive: bytes, name: str) -> str:
        """The path of an archive that can be fetched."""
        place = Path(tempfile.mkdtemp(dir=self.sessions.folder)) / name
        place.write_bytes(archive)
        return str(place)


def _class(target: Number | None) -> int | None:
    return None if target is None or int(target) == OWN_CHOICE else int(target)


def _plan(method: str, attack: str, levels: Number, steps: Number) -> Plan:
    return Plan(method, attack, float(levels) / 255, int(steps))


def page(stage: Stage, sessions: Sessions) -> Any:
    """The page of these models and images, to be launched; `sessions` knows who has it open."""
    gr = gradio()
    answers = Answers(stage, sessions)
    with gr.Blocks(title="gyrograd explore", analytics_enabled=False) as blocks:
        gr.HTML(_head(stage), apply_default_css=False, elem_classes="gg-title")
        with gr.Row(equal_height=False):
            with gr.Column(scale=1, min_width=250):
                image = _image_controls(gr, answers)
            wish = gr.State(Wish())  # not among the tabs: Gradio would count it as one
            with gr.Column(scale=3, min_width=300), gr.Tabs():
                _explain_tab(gr, answers, image, wish)
                _attack_tab(gr, answers, image, wish)
                if len(stage.nets) > 1:
                    _compare_tab(gr, answers, image, wish)
                with gr.Tab("Guide"):
                    gr.HTML(markup.meanings_page(), apply_default_css=False, elem_classes="gg-page")
    return blocks


def _head(stage: Stage) -> str:
    from html import escape

    names = " and ".join(net.name for net in stage.nets)
    line = f"{names} on {stage.data.name}. Everything is computed on this machine; nothing leaves it."
    return f"<h1>gyrograd explore</h1><p>{escape(printable(line))}</p>{markup.notes_page(stage)}"


def _image_controls(gr: Any, answers: Answers) -> list[Any]:
    """Which image: of the set by number or by a look, or the user's own. And which class."""
    stage = answers.stage
    many, last = len(stage.data) > 1, max(1, len(stage.data) - 1)
    shown = gr.HTML(answers.preview(0, None), apply_default_css=False, elem_id="gg-preview")
    title = f"Image of {stage.data.name}"
    index = gr.Slider(0, last, 0, step=1, label=title, visible=many, elem_id="gg-index")
    own = gr.File(label="Or an image of your own", height=150, elem_id="gg-file")

    def look(number: Number, file: str | None) -> str:
        return _in_a_sentence(lambda: (answers.preview(number, file), None))[0]

    def look_at_own(number: Number, file: str | None, request: Any) -> str:
        if file:
            answers.sessions.keep(str(request.session_hash), "image", Path(file))
        return look(number, file)

    def back_to_the_set(number: Number) -> tuple[None, str]:
        return None, look(number, None)

    def picked(event: Any) -> tuple[int, None, str]:
        return event.index, *back_to_the_set(event.index)

    # Gradio hands these to arguments of their types, which are not known before Gradio is there.
    picked.__annotations__ = {"event": gr.SelectData}
    look_at_own.__annotations__ = {"request": gr.Request}
    index.change(back_to_the_set, index, [own, shown], **QUIET)
    gr.on([own.upload, own.clear], look_at_own, [index, own], shown, **QUIET)
    if many:
        _samples(gr, stage).select(picked, None, [index, own, shown], **QUIET)
    return [index, own, _class_choice(gr, stage)]


def _samples(gr: Any, stage: Stage) -> Any:
    """The first images of the set, to be picked by a look."""
    look = {"allow_preview": False, "show_label": False, "container": False, "buttons": []}
    with gr.Accordion("Samples", open=False):
        return gr.Gallery(_thumbnails(stage), columns=4, elem_classes="gg-samples", **look)


def _class_choice(gr: Any, stage: Stage) -> Any:
    """The model's own choice, or a class by number and name."""
    widest = max((net.classes for net in stage.nets), key=len)
    named = [
        (name if name == f"class {number}" else f"{number} {name}", number)
        for number, name in enumerate(widest)
    ]
    choices = [("what the model predicts", OWN_CHOICE), *named]
    return gr.Dropdown(choices, value=OWN_CHOICE, label="Class to explain", elem_id="gg-class")


def _thumbnails(stage: Stage) -> list[Any]:
    import io

    from PIL import Image

    return [
        Image.open(io.BytesIO(png(picture_of(stage.image(number)))))
        for number in range(min(SAMPLES, len(stage.data)))
    ]


def _explain_tab(gr: Any, answers: Answers, image: list[Any], wish: Any) -> None:
    with gr.Tab("Explain"):
        model = _model(gr, answers.stage, "Model", 0)
        methods = gr.CheckboxGroup(
            [(entry.label, entry.name) for entry in in_order("attribution")],
            value=list(FIRST_METHODS),
            label="Methods",
        )
        _work(gr, "Explain", answers, answers.explain, [*image, model, methods], wish, "maps.zip")


def _attack_tab(gr: Any, answers: Answers, image: list[Any], wish: Any) -> None:
    with gr.Tab("Attack"):
        with gr.Row():
            model = _model(gr, answers.stage, "Model", 0)
            named = _names(gr)
        plan = [*named, *_amounts(gr)]
        _work(gr, "Attack", answers, answers.attack, [*image, model, *plan], wish, "attack.zip")


def _compare_tab(gr: Any, answers: Answers, image: list[Any], wish: Any) -> None:
    with gr.Tab("Compare"):
        with gr.Row():
            a, b = (_model(gr, answers.stage, f"Model {letter}", place) for place, letter in enumerate("AB"))
        with gr.Row():
            named = _names(gr)
        plan = [*named, *_amounts(gr)]
        _work(gr, "Compare", answers, answers.compare, [*image, a, b, *plan], wish, "comparison.zip")


def _model(gr: Any, stage: Stage, label: str, place: int) -> Any:
    names = [net.name for net in stage.nets]
    return gr.Dropdown(names, value=names[place], label=label, min_width=240)


def _names(gr: Any) -> list[Any]:
    """Method and attack, in the order `Plan` takes them."""
    methods, attacks = (
        [(entry.label, entry.name) for entry in in_order(kind)] for kind in ("attribution", "attack")
    )
    return [
        gr.Dropdown(methods, value=Plan.method, label="Method", min_width=180),
        gr.Dropdown(attacks, value=Plan.attack, label="Attack", min_width=180),
    ]


def _amounts(gr: Any) -> list[Any]:
    """eps in grey levels and steps, in the order `Plan` takes them."""
    with gr.Row():
        eps = gr.Slider(0, LARGEST_EPS, Plan.eps * 255, step=0.5, label="eps, in 255ths", min_width=220)
        steps = gr.Slider(1, MOST_STEPS, Plan.steps, step=1, label="Steps", min_width=220)
    return [eps, steps]


def _work(
    gr: Any, name: str, answers: Answers, answer: Answer, inputs: list[Any], wish: Any, archive: str
) -> None:
    """A button that computes, one that stops it, one for the pictures, and the place where the answer appears."""
    key = name.lower()
    with gr.Row(elem_classes="gg-buttons"):
        start = gr.Button(name, variant="primary", size="md", elem_id=f"gg-{key}", min_width=120)
        stop = gr.Button("Stop", size="md", elem_id=f"gg-{key}-stop", min_width=80)
        save = gr.DownloadButton("Pictures (ZIP)", interactive=False, elem_id=f"gg-{key}-save", min_width=150)
    place = {"elem_id": f"gg-{key}-out", "elem_classes": "gg-page", "min_height": 60}
    out = gr.HTML(markup.remark(HINTS[key]), apply_default_css=False, **place)

    # Gradio finds the bar by its default, the request by its type, and hands both over by their places.
    def run(wanted: Wish, request: Any, progress: Any = gr.Progress(), *values: Any) -> tuple[str, Any]:  # noqa: B008
        session, sessions = str(request.session_hash), answers.sessions
        watch = watch_of(wanted, key, progress, partial(sessions.is_gone, session, sessions.clock()))
        html, packed = _in_a_sentence(lambda: answered(answer, watch, *values))
        path = answers.kept(packed, archive) if packed else None
        if path is not None:
            sessions.keep(session, key, Path(path))
        return html, gr.DownloadButton(value=path, interactive=path is not None)

    run.__annotations__ = {"request": gr.Request}

    def pressed(wanted: Wish) -> None:
        wanted.start(key)

    # The press is noted at once and the work queued after it: a stop may come while the work still waits its turn.
    aside = {"api_visibility": "private", "queue": False, "show_progress": "hidden"}
    how = {"api_visibility": "private", "concurrency_id": QUEUE, "show_progress_on": out}
    start.click(pressed, wish, None, **aside).then(run, [wish, *inputs], [out, save], **how)
    stop.click(Wish.stop, wish, None, **aside)


def watch_of(
    wanted: Wish, key: str, bar: Callable[..., Any], is_gone: Callable[[], bool] = lambda: False
) -> Watch:
    """Moves the bar, and ends the work once its user wants no more of it or has left."""
    number = wanted.started.get(key, 0)

    def watch(share: float, what: str) -> None:
        if wanted.stopped >= number or is_gone():
            raise Stopped(what)
        bar(share, desc=what)

    return watch


def answered(answer: Answer, watch: Watch, *values: Any) -> tuple[str, bytes]:
    """The answer, unless it was stopped while it waited in the queue."""
    watch(0.0, "the start")
    return answer(watch, *values)


def _in_a_sentence(compute: Callable[[], tuple[str, bytes | None]]) -> tuple[str, bytes | None]:
    """What was computed; a mistake of the user's, or a stop, is a sentence in its place."""
    try:
        # The processor's state belongs to a thread, and the page answers in threads of its own.
        with denormals_flushed():
            return compute()
    except UserError as mistake:
        return markup.problem(str(mistake)), None
    except Stopped as where:
        return markup.remark(f"Stopped at {where}."), None
    except Exception as error:
        if wants_frames():
            traceback.print_exc()
        place = foreign_code(error) or "a defect of gyrograd; --debug shows where"
        return markup.problem(printable(f"{in_words(error)} ({place}).")), None
