"""The Gradio page: its controls and their events. What it shows is computed in `scenes`."""

from __future__ import annotations

import importlib
import io
import itertools
import tempfile
import threading
import traceback
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from html import escape
from pathlib import Path
from typing import Any, NamedTuple

from gyrograd.errors import UserError, foreign_code, in_words, printable, wants_frames
from gyrograd.explorer import markup
from gyrograd.explorer.pictures import archive_of_attacks, archive_of_maps, picture_of
from gyrograd.explorer.scenes import (
    LARGEST_TRIED,
    AttackPlan,
    attack_image,
    compare_models,
    explain_image,
    opening_image,
    prediction,
)
from gyrograd.explorer.sessions import Sessions
from gyrograd.explorer.stage import Stage
from gyrograd.explorer.watching import Stopped, Watch, unwatched
from gyrograd.explorer.wording import HINTS, usual_settings
from gyrograd.numerics.modes import flush_denormals
from gyrograd.parsing import parse_call, split
from gyrograd.registry import in_order, lookup
from gyrograd.reporting.pictures import png
from gyrograd.types import Images

Number = float | int
"""What a slider gives."""
OWN_CHOICE = -1
"""Stands for the class that the model predicts."""
SAMPLES = 8
"""Number of images shown as thumbnails."""
FIRST_METHODS = ("gradient", "smoothgrad", "integrated_gradients")
LARGEST_EPS = 32
MOST_STEPS = 200
KEPT_ANSWERS = 24
"""Number of cached answers; each is about a megabyte."""
FIRST_TAB = "attack"
VIEWS = [("maps over the image", "over"), ("maps alone", "alone")]
"""How maps are shown: labels and the style sheet's names."""
Answer = Callable[..., tuple[str, bytes]]
"""A function from a watch and the values of the controls to HTML and an archive."""
QUIET = {"api_visibility": "private", "show_progress": "hidden", "trigger_mode": "always_last"}
"""Gradio settings of events that are handled at once."""
QUEUE = "one at a time"
"""Computations share one queue, because two at a time are slower than one after the other."""


def gradio() -> Any:
    """The `gradio` module, which is an optional dependency."""
    try:
        return importlib.import_module("gradio")
    except ImportError:
        raise UserError("The page needs Gradio: pip install 'gyrograd[explore]'.") from None


class Question(NamedTuple):
    """The values of a tab's controls, and the number of the press at which they were read."""

    number: int
    values: tuple[Any, ...]


@dataclass
class Wish:
    """The state of one open page: what its user asked for, and what is computed or waits in the queue.

    Presses of buttons are numbered. A stop ends everything asked for before it, whether it has begun or not.
    """

    presses: int = 0
    questions: dict[str, Question] = field(default_factory=dict)
    """The question of each tab. Computations read it here, because the controls may have changed since."""
    stopped: int = 0
    """The last press before the last stop."""
    answered: dict[str, int] = field(default_factory=dict)
    """By tab: the number of the press whose answer is shown."""
    open: str = FIRST_TAB
    """The visible tab; only its answer is computed without a press of its button."""

    def ask(self, key: str, values: Sequence[Any] = ()) -> str:
        """Note that a tab's answer is wanted again: its button was pressed, or one of its controls was changed.

        A computation that is running goes on. Returns the mark for the page, which dims the answer to the previous
        question until the new one arrives.
        """
        known = self.questions.get(key, Question(0, ()))
        over = max(self.stopped, self.answered.get(key, 0))
        if known.number <= over or known.values != tuple(values):
            self.presses += 1
            self.questions[key] = Question(self.presses, tuple(values))
        return markup.computing_note(self.number(key))

    def number(self, key: str) -> int:
        """The number of the tab's last question; 0 if there is none."""
        return self.questions[key].number if key in self.questions else 0

    def stop(self) -> None:
        """Stop everything asked for so far."""
        self.stopped = self.presses


@dataclass(frozen=True)
class Answers:
    """The functions behind the buttons, from plain values to HTML and an archive."""

    stage: Stage
    sessions: Sessions
    known: OrderedDict[str, tuple[str, bytes]] = field(default_factory=OrderedDict)
    """Cache of the last answers by question; all seeds are fixed, so an answer depends on its question alone."""
    lock: Any = field(default_factory=threading.Lock)

    def cached_or_computed(self, answer: Answer, watch: Watch, *values: Any) -> tuple[str, bytes]:
        """The answer from the cache, or computed."""
        question = repr((answer.__name__, values))
        with self.lock:
            found = self.known.get(question)
        if found is None:
            found = answer(watch, *values)
        with self.lock:
            self.known[question] = found
            self.known.move_to_end(question)
            while len(self.known) > KEPT_ANSWERS:
                self.known.popitem(last=False)
        return found

    def chosen(self, index: Number, file: str | None) -> tuple[Images, str]:
        """The selected image and its name: the user's file, or an image of the data set."""
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
        self,
        watch: Watch,
        index: Number,
        file: str | None,
        target: Number,
        model: str,
        methods: list[str],
        settings: str = "",
    ) -> tuple[str, bytes]:
        """The maps of one model."""
        x, _ = self.chosen(index, file)
        words = _with_settings(methods, settings)
        scene = explain_image(self.stage.net(model), x, _class(target), words, watch=watch)
        return markup.maps_page(scene), archive_of_maps(scene)

    def attack(
        self, watch: Watch, index: Number, file: str | None, target: Number, model: str, *plan: Any
    ) -> tuple[str, bytes]:
        """One model under attack."""
        x, _ = self.chosen(index, file)
        net = self.stage.net(model)
        scene = attack_image(net, x, _class(target), _plan(*plan), seed=self.stage.seed, watch=watch)
        return markup.attack_page(scene), archive_of_attacks((scene,))

    def compare(
        self, watch: Watch, index: Number, file: str | None, target: Number, a: str, b: str, *plan: Any
    ) -> tuple[str, bytes]:
        """Two models under the same attack."""
        x, _ = self.chosen(index, file)
        if a == b:
            raise UserError("Both models are the same; choose two that differ.")
        nets = [self.stage.net(a), self.stage.net(b)]
        scenes = compare_models(nets, x, _class(target), _plan(*plan), seed=self.stage.seed, watch=watch)
        return markup.comparison_page(scenes), archive_of_attacks(scenes)

    def write_archive(self, archive: bytes, name: str) -> str:
        """Write an archive to a file that can be downloaded; returns its path."""
        place = Path(tempfile.mkdtemp(dir=self.sessions.folder)) / name
        place.write_bytes(archive)
        return str(place)


def _class(target: Number | None) -> int | None:
    return None if target is None or int(target) == OWN_CHOICE else int(target)


def _plan(method: str, settings: str, attack: str, levels: Number, steps: Number) -> AttackPlan:
    word = f"{method}({settings})" if settings.strip() else method
    return AttackPlan(word, attack, float(levels) / 255, int(steps))


def _with_settings(methods: list[str], settings: str) -> list[str]:
    """The chosen methods with their settings from `settings`: `smoothgrad(sigma=0.2), lime(draws=50)`."""
    own = {lookup("attribution", parse_call(word)[0]).name: word for word in split(settings)}
    idle = [word for name, word in own.items() if name not in methods]
    if idle:
        raise UserError(f"'{idle[0]}' has settings but is not chosen; check its box or remove it here.")
    return [own.get(name, name) for name in methods]


def image_token(index: Number, file: str | None) -> str:
    """Identifies an image on the page; the script compares the preview's with that of each answer."""
    return str(file) if file else str(int(index))


@dataclass(frozen=True)
class Tab:
    """A tab of the page: its controls, the components that show its answer, and the function that computes it.

    `asked` holds the number of the last question, the answer in `out` the number of its question. If they differ, the
    page's script dims the answer (`style.SCRIPT`).
    """

    key: str
    inputs: list[Any]
    """The controls it depends on, in the argument order of its function in `Answers`: the image's, then its own."""
    own: list[Any]
    asked: Any
    out: Any
    save: Any
    run: Callable[..., Any]

    def after(self, event: Any, wish: Any) -> None:
        """Compute the answer after `event`, if this tab is visible."""
        how = {"api_visibility": "private", "concurrency_id": QUEUE, "show_progress_on": self.out}
        # With Gradio's "once" a second question during a computation would be dropped, and the first answer with it,
        # as it is out of date.
        event.then(self.run, wish, [self.out, self.save], trigger_mode="multiple", **how)


def page(stage: Stage, sessions: Sessions) -> Any:
    """Build the page of these models and images; `sessions` records which pages are open."""
    gr = gradio()
    answers = Answers(stage, sessions)
    first = opening_image(stage, AttackPlan())
    names = " and ".join(net.name for net in stage.nets)
    line = f"{names} on {stage.data.name}. Everything is computed on this machine; nothing leaves it."
    head = f"<h1>gyrograd explore</h1><p>{escape(printable(line))}</p>{markup.notes_page(stage)}"
    with gr.Blocks(title="gyrograd explore", analytics_enabled=False) as blocks:
        gr.HTML(head, apply_default_css=False, elem_classes="gg-title")
        with gr.Row(equal_height=False):
            with gr.Column(scale=1, min_width=250, elem_classes="gg-picker"):
                image = _image_controls(gr, answers, first)
            wish = gr.State(Wish())  # outside of the tabs, because Gradio would count it as one
            make = TabMaker(gr, answers, image, wish)
            with gr.Column(scale=3, min_width=300), gr.Tabs():
                tabs = [make.attack_tab("Attack", ["Model"], answers.attack, "attack.zip")]
                if len(stage.nets) > 1:
                    models = ["Model A", "Model B"]
                    tabs.append(make.attack_tab("Compare", models, answers.compare, "comparison.zip"))
                tabs.append(make.explain_tab())
                with gr.Tab("Guide"):
                    gr.HTML(markup.meanings_page(), apply_default_css=False, elem_classes="gg-page")
        _react_to_image(gr, answers, image, tabs, wish)

        def opened(wanted: Wish, *values: Any) -> str:
            return wanted.ask(FIRST_TAB, values)

        tabs[0].after(blocks.load(opened, [wish, *tabs[0].inputs], tabs[0].asked, **QUIET), wish)
    if max(stage.data.images.shape[2:]) <= LARGEST_TRIED:
        # The first answer is computed before the page opens, unless that takes long.
        usual = (AttackPlan.method, "", AttackPlan.attack, AttackPlan.eps * 255, AttackPlan.steps)
        values = (first, None, OWN_CHOICE, stage.nets[0].name, *usual)
        _in_a_sentence(lambda: answers.cached_or_computed(answers.attack, unwatched, *values))
    return blocks


@dataclass(frozen=True)
class ImageControls:
    """Controls for the image (by number, by thumbnail, or a file of the user) and for the class."""

    shown: Any
    index: Any
    own: Any
    target: Any
    samples: Any

    @property
    def inputs(self) -> list[Any]:
        """The controls that every answer depends on, in the argument order of `Answers`."""
        return [self.index, self.own, self.target]


def _image_controls(gr: Any, answers: Answers, first: int) -> ImageControls:
    from PIL import Image

    stage = answers.stage
    many, last = len(stage.data) > 1, max(1, len(stage.data) - 1)
    shown = gr.HTML(
        markup.about_image(answers.preview(first, None), image_token(first, None)),
        apply_default_css=False,
        elem_id="gg-preview",
    )
    title = f"Image of {stage.data.name}"
    index = gr.Slider(0, last, first, step=1, label=title, visible=many, elem_id="gg-index")
    samples = None
    if many:
        pictures = [png(picture_of(stage.image(number))) for number in range(min(SAMPLES, len(stage.data)))]
        look = {"allow_preview": False, "show_label": False, "container": False, "buttons": []}
        with gr.Accordion("Samples", open=False):
            thumbnails = [Image.open(io.BytesIO(picture)) for picture in pictures]
            samples = gr.Gallery(thumbnails, columns=4, elem_classes="gg-samples", **look)
    widest = max((net.classes for net in stage.nets), key=len)
    classes = [
        (name if name == f"class {number}" else f"{number} {name}", number)
        for number, name in enumerate(widest)
    ]
    choices = [("what the model predicts", OWN_CHOICE), *classes]
    target = gr.Dropdown(choices, value=OWN_CHOICE, label="Class to explain", elem_id="gg-class")
    own = gr.File(label="Or an image of your own", height=150, elem_id="gg-file")
    return ImageControls(shown, index, own, target, samples)


def _react_to_image(gr: Any, answers: Answers, image: ImageControls, tabs: list[Tab], wish: Any) -> None:
    """Events of the image's controls: update the preview, and mark all answers as out of date."""
    asked = [tab.asked for tab in tabs]
    own_controls = [control for tab in tabs for control in tab.own]

    def look(number: Number, file: str | None) -> str:
        html = _in_a_sentence(lambda: (answers.preview(number, file), None))[0]
        return markup.about_image(html, image_token(number, file))

    def ask_all(wanted: Wish, *values: Any) -> tuple[str, ...]:
        """Ask every tab about the current image and class, the first three values, with the tab's own controls."""
        seen, rest = values[:3], iter(values[3:])
        return tuple(wanted.ask(tab.key, (*seen, *itertools.islice(rest, len(tab.own)))) for tab in tabs)

    def of_file(
        wanted: Wish, request: Any, number: Number, file: str | None, *values: Any
    ) -> tuple[str, ...]:
        if file:
            answers.sessions.keep(str(request.session_hash), "image", Path(file))
        return look(number, file), *ask_all(wanted, number, file, *values)

    def of_set(wanted: Wish, number: Number, *values: Any) -> tuple[Any, ...]:
        return None, look(number, None), *ask_all(wanted, number, None, *values)

    def of_sample(wanted: Wish, event: Any, *values: Any) -> tuple[Any, ...]:
        return event.index, *of_set(wanted, event.index, *values)

    # Gradio passes these by the types of the arguments, which exist only once Gradio is imported.
    of_sample.__annotations__ = {"event": gr.SelectData}
    of_file.__annotations__ = {"request": gr.Request}
    index, own, shown = image.index, image.own, image.shown
    rest = [image.target, *own_controls]
    everything = [wish, index, own, *rest]
    events = [
        index.change(of_set, [wish, index, *rest], [own, shown, *asked], **QUIET),
        gr.on([own.upload, own.clear], of_file, everything, [shown, *asked], **QUIET),
        image.target.change(ask_all, everything, asked, **QUIET),
    ]
    if image.samples is not None:
        events.append(image.samples.select(of_sample, [wish, *rest], [index, own, shown, *asked], **QUIET))
    for event in events:
        for tab in tabs:
            tab.after(event, wish)


def _choices(kind: str) -> list[tuple[str, str]]:
    return [(entry.label, entry.name) for entry in in_order(kind)]


@dataclass(frozen=True)
class TabMaker:
    """Builds the tabs, which share the image's controls and the state of the open page."""

    gr: Any
    answers: Answers
    image: ImageControls
    wish: Any

    def explain_tab(self) -> Tab:
        """The tab that shows the maps of several methods."""
        with self.gr.Tab("Explain", id="explain") as tab:
            model = self._model("Model", 0)
            methods = self.gr.CheckboxGroup(
                _choices("attribution"), value=list(FIRST_METHODS), label="Methods"
            )
            settings = self.gr.Textbox(
                value="",
                label="Settings of methods",
                placeholder="smoothgrad(sigma=0.2, draws=20), integrated_gradients(steps=20)",
                elem_id="gg-explain-settings",
            )
            changes = [model.change, methods.change, settings.submit, settings.blur]
            own = [model, methods, settings]
            return self._finish("Explain", self.answers.explain, own, "maps.zip", tab, changes)

    def attack_tab(self, name: str, model_labels: list[str], answer: Answer, archive: str) -> Tab:
        """A tab that attacks one or several models, whose menus have these labels."""
        gr, usual, key = self.gr, AttackPlan, name.lower()
        with gr.Tab(name, id=key) as tab:
            with gr.Row():
                models = [self._model(label, place) for place, label in enumerate(model_labels)]
                menu = {"min_width": 180}
                method = gr.Dropdown(_choices("attribution"), value=usual.method, label="Method", **menu)
                attack = gr.Dropdown(_choices("attack"), value=usual.attack, label="Attack", **menu)
            with gr.Row():
                wide = {"min_width": 220}
                eps = gr.Slider(0, LARGEST_EPS, usual.eps * 255, step=0.5, label="eps, in 255ths", **wide)
                steps = gr.Slider(1, MOST_STEPS, usual.steps, step=1, label="Steps", **wide)
                settings = gr.Textbox(
                    label="Settings of the method",
                    value="",
                    placeholder=usual_settings(usual.method),
                    elem_id=f"gg-{key}-settings",
                    **wide,
                )
            own = [*models, method, settings, attack, eps, steps]  # the argument order of `_plan`
            # A text counts once it is submitted. The method is handled apart, because it also clears the settings.
            changes = [control.change for control in (*models, attack, eps, steps)]
            changes += [settings.submit, settings.blur]
            work = self._finish(name, answer, own, archive, tab, changes)
        place = work.inputs.index(settings)

        def clear(wanted: Wish, name: str, *values: Any) -> tuple[Any, str]:
            """Clear the settings of the previous method, in the same event as the question about the new one."""
            empty = gr.Textbox(value="", placeholder=usual_settings(name))
            return empty, wanted.ask(key, (*values[:place], "", *values[place + 1 :]))

        event = method.change(clear, [self.wish, method, *work.inputs], [settings, work.asked], **QUIET)
        work.after(event, self.wish)
        return work

    def _model(self, label: str, place: int) -> Any:
        names = [net.name for net in self.answers.stage.nets]
        return self.gr.Dropdown(names, value=names[place], label=label, min_width=240)

    def _finish(
        self, name: str, answer: Answer, own: list[Any], archive: str, tab: Any, changes: list[Any]
    ) -> Tab:
        """The buttons of a tab (compute, stop, save pictures) and the component that shows its answer.

        The answer is computed again after each event in `changes`, and when a tab with an outdated answer is opened.
        """
        gr, key = self.gr, name.lower()
        with gr.Row(elem_classes="gg-buttons"):
            start = gr.Button(name, variant="primary", size="md", elem_id=f"gg-{key}", min_width=90)
            stop = gr.Button("Stop", size="md", elem_id=f"gg-{key}-stop", min_width=80)
            saved = {"interactive": False, "elem_id": f"gg-{key}-save", "min_width": 130}
            save = gr.DownloadButton("Pictures (ZIP)", **saved)
            look = {"show_label": False, "container": False, "elem_classes": "gg-view", "min_width": 230}
            view = gr.Radio(VIEWS, value="over", label="Maps", elem_id=f"gg-{key}-view", **look)
        view.change(None, view, None, js="view => { document.body.dataset.maps = view; }")
        asked = gr.HTML(markup.computing_note(0), apply_default_css=False, elem_id=f"gg-{key}-asked")
        place = {"elem_id": f"gg-{key}-out", "elem_classes": "gg-page", "min_height": 60}
        out = gr.HTML(markup.remark(HINTS[key]), apply_default_css=False, **place)

        work = Tab(key, [*self.image.inputs, *own], own, asked, out, save, self._runner(key, answer, archive))

        def changed(wanted: Wish, *values: Any) -> str:
            return wanted.ask(key, values)

        def pressed(wanted: Wish, *values: Any) -> str:
            wanted.open = key
            return wanted.ask(key, values)

        def opened(wanted: Wish, *values: Any) -> str:
            wanted.open = key
            return (
                markup.computing_note(wanted.number(key))
                if key in wanted.questions
                else wanted.ask(key, values)
            )

        # The press is recorded at once and the work is queued after it, since a stop may come while the work waits.
        aside = {"api_visibility": "private", "queue": False, "show_progress": "hidden"}
        inputs = [self.wish, *work.inputs]
        work.after(start.click(pressed, inputs, asked, **aside), self.wish)
        work.after(gr.on(changes, changed, inputs, asked, **QUIET), self.wish)
        work.after(tab.select(opened, inputs, asked, **aside), self.wish)
        stop.click(Wish.stop, self.wish, None, **aside)
        return work

    def _runner(self, key: str, answer: Answer, archive: str) -> Callable[..., tuple[Any, Any]]:
        """The function that answers the tab's newest question and writes its archive.

        It changes nothing if another tab is open, the question has been answered, or a newer one arrives meanwhile.
        """
        gr, answers = self.gr, self.answers

        # Gradio recognizes the progress bar by its default and the request by its type.
        def run(wanted: Wish, request: Any, progress: Any = gr.Progress()) -> tuple[Any, Any]:  # noqa: B008
            question = wanted.questions.get(key, Question(0, ()))
            number, values = question.number, question.values
            if wanted.open != key or wanted.answered.get(key, 0) == number:
                return gr.skip(), gr.skip()
            session, sessions = str(request.session_hash), answers.sessions
            watch = watch_of(wanted, key, progress, partial(sessions.is_gone, session, sessions.clock()))
            html, packed = _in_a_sentence(
                lambda: compute_answer(partial(answers.cached_or_computed, answer), watch, *values)
            )
            if wanted.number(key) != number:  # there is a newer question, whose answer will follow
                return gr.skip(), gr.skip()
            wanted.answered[key] = number
            path = answers.write_archive(packed, archive) if packed else None
            if path is not None:
                sessions.keep(session, key, Path(path))
            shown = markup.about_image(html, image_token(*values[:2]), number)
            return shown, gr.DownloadButton(value=path, interactive=path is not None)

        run.__annotations__ = {"request": gr.Request}
        return run


def watch_of(
    wanted: Wish, key: str, bar: Callable[..., Any], is_gone: Callable[[], bool] = lambda: False
) -> Watch:
    """A watch that moves the progress bar, and raises `Stopped` if the user stopped the work or closed the page."""
    number = wanted.number(key)

    def watch(share: float, what: str) -> None:
        if wanted.stopped >= number or wanted.number(key) != number or is_gone():
            raise Stopped(what)
        bar(share, desc=what)

    return watch


def compute_answer(answer: Answer, watch: Watch, *values: Any) -> tuple[str, bytes]:
    """Compute the answer, unless it was stopped while it waited in the queue."""
    watch(0.0, "the start")
    return answer(watch, *values)


def _in_a_sentence(compute: Callable[[], tuple[str, bytes | None]]) -> tuple[str, bytes | None]:
    """The result of `compute`; a user's mistake or a stop becomes a sentence in its place."""
    try:
        # The processor's floating-point state belongs to a thread, and Gradio answers in its own threads.
        with flush_denormals():
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
