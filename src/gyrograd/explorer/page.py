"""The Gradio page: its controls and their events. What it shows is computed in `scenes`."""

from __future__ import annotations

import importlib
import tempfile
import threading
import traceback
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
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
        return markup.asked(self.number(key))

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

    def recalled(self, answer: Answer, watch: Watch, *values: Any) -> tuple[str, bytes]:
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
    image: list[Any]
    own: list[Any]
    asked: Any
    out: Any
    save: Any
    run: Callable[..., Any]

    @property
    def inputs(self) -> list[Any]:
        """The controls it depends on, in the argument order of its function in `Answers`."""
        return [*self.image, *self.own]

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
    with gr.Blocks(title="gyrograd explore", analytics_enabled=False) as blocks:
        gr.HTML(_head(stage), apply_default_css=False, elem_classes="gg-title")
        with gr.Row(equal_height=False):
            with gr.Column(scale=1, min_width=250, elem_classes="gg-picker"):
                image = _image_controls(gr, answers, first)
            wish = gr.State(Wish())  # outside of the tabs, because Gradio would count it as one
            with gr.Column(scale=3, min_width=300), gr.Tabs():
                tabs = [_attack_tab(gr, answers, image.inputs, wish)]
                if len(stage.nets) > 1:
                    tabs.append(_compare_tab(gr, answers, image.inputs, wish))
                tabs.append(_explain_tab(gr, answers, image.inputs, wish))
                with gr.Tab("Guide"):
                    gr.HTML(markup.meanings_page(), apply_default_css=False, elem_classes="gg-page")
        _react_to_image(gr, answers, image, tabs, wish)

        def opened(wanted: Wish, *values: Any) -> str:
            return wanted.ask(FIRST_TAB, values)

        tabs[0].after(blocks.load(opened, [wish, *tabs[0].inputs], tabs[0].asked, **QUIET), wish)
    _prepare(answers, first)
    return blocks


def _prepare(answers: Answers, first: int) -> None:
    """Compute the first answer before the page opens, unless that takes long."""
    if max(answers.stage.data.images.shape[2:]) <= LARGEST_TRIED:
        usual = (AttackPlan.method, "", AttackPlan.attack, AttackPlan.eps * 255, AttackPlan.steps)
        values = (first, None, OWN_CHOICE, answers.stage.nets[0].name, *usual)
        _in_a_sentence(lambda: answers.recalled(answers.attack, unwatched, *values))


def _head(stage: Stage) -> str:
    from html import escape

    names = " and ".join(net.name for net in stage.nets)
    line = f"{names} on {stage.data.name}. Everything is computed on this machine; nothing leaves it."
    return f"<h1>gyrograd explore</h1><p>{escape(printable(line))}</p>{markup.notes_page(stage)}"


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
    stage = answers.stage
    many, last = len(stage.data) > 1, max(1, len(stage.data) - 1)
    shown = gr.HTML(
        markup.about_image(answers.preview(first, None), image_token(first, None)),
        apply_default_css=False,
        elem_id="gg-preview",
    )
    title = f"Image of {stage.data.name}"
    index = gr.Slider(0, last, first, step=1, label=title, visible=many, elem_id="gg-index")
    samples = _samples(gr, stage) if many else None
    target = _class_choice(gr, stage)
    own = gr.File(label="Or an image of your own", height=150, elem_id="gg-file")
    return ImageControls(shown, index, own, target, samples)


def _react_to_image(gr: Any, answers: Answers, image: ImageControls, tabs: list[Tab], wish: Any) -> None:
    """Events of the image's controls: update the preview, and mark all answers as out of date."""
    asked = [tab.asked for tab in tabs]
    own_controls = [control for tab in tabs for control in tab.own]

    def look(number: Number, file: str | None) -> str:
        html = _in_a_sentence(lambda: (answers.preview(number, file), None))[0]
        return markup.about_image(html, image_token(number, file))

    def ask_all(wanted: Wish, seen: tuple[Any, ...], values: Sequence[Any]) -> tuple[str, ...]:
        """Ask every tab about the current image, with the tab's own controls."""
        rest = list(values)
        own = [[rest.pop(0) for _ in tab.own] for tab in tabs]
        return tuple(wanted.ask(tab.key, (*seen, *of_tab)) for tab, of_tab in zip(tabs, own, strict=True))

    def of_file(
        wanted: Wish, request: Any, number: Number, file: str | None, target: Number, *values: Any
    ) -> tuple[str, ...]:
        if file:
            answers.sessions.keep(str(request.session_hash), "image", Path(file))
        return look(number, file), *ask_all(wanted, (number, file, target), values)

    def of_set(wanted: Wish, number: Number, target: Number, *values: Any) -> tuple[Any, ...]:
        return None, look(number, None), *ask_all(wanted, (number, None, target), values)

    def of_sample(wanted: Wish, event: Any, target: Number, *values: Any) -> tuple[Any, ...]:
        return event.index, *of_set(wanted, event.index, target, *values)

    def of_class(
        wanted: Wish, number: Number, file: str | None, target: Number, *values: Any
    ) -> tuple[str, ...]:
        return ask_all(wanted, (number, file, target), values)

    # Gradio passes these by the types of the arguments, which exist only once Gradio is imported.
    of_sample.__annotations__ = {"event": gr.SelectData}
    of_file.__annotations__ = {"request": gr.Request}
    index, own, shown, target = image.index, image.own, image.shown, image.target
    everything = [wish, index, own, target, *own_controls]
    in_the_set = [wish, index, target, *own_controls]
    events = [
        index.change(of_set, in_the_set, [own, shown, *asked], **QUIET),
        gr.on([own.upload, own.clear], of_file, everything, [shown, *asked], **QUIET),
        target.change(of_class, everything, asked, **QUIET),
    ]
    if image.samples is not None:
        picked = [wish, target, *own_controls]
        events.append(image.samples.select(of_sample, picked, [index, own, shown, *asked], **QUIET))
    for event in events:
        for tab in tabs:
            tab.after(event, wish)


def _samples(gr: Any, stage: Stage) -> Any:
    """A gallery of the first images of the data set."""
    look = {"allow_preview": False, "show_label": False, "container": False, "buttons": []}
    with gr.Accordion("Samples", open=False):
        return gr.Gallery(_thumbnails(stage), columns=4, elem_classes="gg-samples", **look)


def _class_choice(gr: Any, stage: Stage) -> Any:
    """A menu of classes; the first entry is the predicted class."""
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


def _explain_tab(gr: Any, answers: Answers, image: list[Any], wish: Any) -> Tab:
    with gr.Tab("Explain", id="explain") as tab:
        model = _model(gr, answers.stage, "Model", 0)
        methods = gr.CheckboxGroup(
            [(entry.label, entry.name) for entry in in_order("attribution")],
            value=list(FIRST_METHODS),
            label="Methods",
        )
        settings = gr.Textbox(
            value="",
            label="Settings of methods",
            placeholder="smoothgrad(sigma=0.2, draws=20), integrated_gradients(steps=20)",
            elem_id="gg-explain-settings",
        )
        changes = [model.change, methods.change, settings.submit, settings.blur]
        own = [model, methods, settings]
        return _work(gr, "Explain", answers, answers.explain, image, own, wish, "maps.zip", tab, changes)


def _attack_tab(gr: Any, answers: Answers, image: list[Any], wish: Any) -> Tab:
    with gr.Tab("Attack", id="attack") as tab:
        with gr.Row():
            model = _model(gr, answers.stage, "Model", 0)
            method, attack = _names(gr)
        own = [model, *_plan_controls(gr, method, attack, "attack")]
        work = _work(
            gr, "Attack", answers, answers.attack, image, own, wish, "attack.zip", tab, _changes(own)
        )
        _new_method(method, own[2], work, wish)
        return work


def _compare_tab(gr: Any, answers: Answers, image: list[Any], wish: Any) -> Tab:
    with gr.Tab("Compare", id="compare") as tab:
        with gr.Row():
            a, b = (_model(gr, answers.stage, f"Model {letter}", place) for place, letter in enumerate("AB"))
            method, attack = _names(gr)
        own = [a, b, *_plan_controls(gr, method, attack, "compare")]
        work = _work(
            gr,
            "Compare",
            answers,
            answers.compare,
            image,
            own,
            wish,
            "comparison.zip",
            tab,
            _changes(own),
        )
        _new_method(method, own[3], work, wish)
        return work


def _plan_controls(gr: Any, method: Any, attack: Any, key: str) -> list[Any]:
    """The controls of an attack plan, in the argument order of `_plan`."""
    with gr.Row():
        amounts = _amounts(gr)
        settings = gr.Textbox(
            label="Settings of the method",
            value="",
            placeholder=usual_settings(AttackPlan.method),
            elem_id=f"gg-{key}-settings",
            min_width=220,
        )
    return [method, settings, attack, *amounts]


def _changes(controls: list[Any]) -> list[Any]:
    """Events after which an answer is out of date; a text counts once it is submitted. Methods are handled apart."""
    changes: list[Any] = []
    for control in controls:
        if control.get_block_name() == "textbox":
            changes += [control.submit, control.blur]
        elif control.label != "Method":
            changes.append(control.change)
    return changes


def _new_method(method: Any, settings: Any, tab: Tab, wish: Any) -> None:
    """If the method changes, clear the settings of the previous one in the same event."""

    place = next(place for place, control in enumerate(tab.inputs) if control is settings)

    def clear(wanted: Wish, name: str, *values: Any) -> tuple[Any, str]:
        empty = type(settings)(value="", placeholder=usual_settings(name))
        return empty, wanted.ask(tab.key, (*values[:place], "", *values[place + 1 :]))

    event = method.change(clear, [wish, method, *tab.inputs], [settings, tab.asked], **QUIET)
    tab.after(event, wish)


def _model(gr: Any, stage: Stage, label: str, place: int) -> Any:
    names = [net.name for net in stage.nets]
    return gr.Dropdown(names, value=names[place], label=label, min_width=240)


def _names(gr: Any) -> list[Any]:
    """Method and attack, in the order `AttackPlan` takes them."""
    methods, attacks = (
        [(entry.label, entry.name) for entry in in_order(kind)] for kind in ("attribution", "attack")
    )
    return [
        gr.Dropdown(methods, value=AttackPlan.method, label="Method", min_width=180),
        gr.Dropdown(attacks, value=AttackPlan.attack, label="Attack", min_width=180),
    ]


def _amounts(gr: Any) -> list[Any]:
    """eps in grey levels and steps, in the order `AttackPlan` takes them."""
    eps = gr.Slider(0, LARGEST_EPS, AttackPlan.eps * 255, step=0.5, label="eps, in 255ths", min_width=220)
    steps = gr.Slider(1, MOST_STEPS, AttackPlan.steps, step=1, label="Steps", min_width=220)
    return [eps, steps]


def _work(
    gr: Any,
    name: str,
    answers: Answers,
    answer: Answer,
    image: list[Any],
    own: list[Any],
    wish: Any,
    archive: str,
    tab: Any,
    changes: list[Any],
) -> Tab:
    """The buttons of a tab (compute, stop, save pictures) and the component that shows its answer.

    The answer is computed again after each event in `changes`, and when a tab with an outdated answer is opened.
    """
    key = name.lower()
    with gr.Row(elem_classes="gg-buttons"):
        start = gr.Button(name, variant="primary", size="md", elem_id=f"gg-{key}", min_width=90)
        stop = gr.Button("Stop", size="md", elem_id=f"gg-{key}-stop", min_width=80)
        save = gr.DownloadButton("Pictures (ZIP)", interactive=False, elem_id=f"gg-{key}-save", min_width=130)
        look = {"show_label": False, "container": False, "elem_classes": "gg-view", "min_width": 230}
        view = gr.Radio(VIEWS, value="over", label="Maps", elem_id=f"gg-{key}-view", **look)
    view.change(None, view, None, js="view => { document.body.dataset.maps = view; }")
    asked = gr.HTML(markup.asked(0), apply_default_css=False, elem_id=f"gg-{key}-asked")
    place = {"elem_id": f"gg-{key}-out", "elem_classes": "gg-page", "min_height": 60}
    out = gr.HTML(markup.remark(HINTS[key]), apply_default_css=False, **place)

    # Gradio recognizes the progress bar by its default and the request by its type.
    def run(wanted: Wish, request: Any, progress: Any = gr.Progress()) -> tuple[Any, Any]:  # noqa: B008
        question = wanted.questions.get(key, Question(0, ()))
        number, values = question.number, question.values
        if wanted.open != key or wanted.answered.get(key, 0) == number:
            return gr.skip(), gr.skip()
        session, sessions = str(request.session_hash), answers.sessions
        watch = watch_of(wanted, key, progress, partial(sessions.is_gone, session, sessions.clock()))
        html, packed = _in_a_sentence(lambda: answered(partial(answers.recalled, answer), watch, *values))
        if wanted.number(key) != number:  # there is a newer question, whose answer will follow
            return gr.skip(), gr.skip()
        wanted.answered[key] = number
        path = answers.write_archive(packed, archive) if packed else None
        if path is not None:
            sessions.keep(session, key, Path(path))
        shown = markup.about_image(html, image_token(*values[:2]), number)
        return shown, gr.DownloadButton(value=path, interactive=path is not None)

    run.__annotations__ = {"request": gr.Request}
    work = Tab(key, image, own, asked, out, save, run)

    def pressed(wanted: Wish, *values: Any) -> str:
        wanted.open = key
        return wanted.ask(key, values)

    def changed(wanted: Wish, *values: Any) -> str:
        return wanted.ask(key, values)

    def opened(wanted: Wish, *values: Any) -> str:
        wanted.open = key
        return markup.asked(wanted.number(key)) if key in wanted.questions else wanted.ask(key, values)

    # The press is recorded at once and the work is queued after it, since a stop may come while the work waits.
    aside = {"api_visibility": "private", "queue": False, "show_progress": "hidden"}
    inputs = [wish, *work.inputs]
    work.after(start.click(pressed, inputs, asked, **aside), wish)
    work.after(gr.on(changes, changed, inputs, asked, **QUIET), wish)
    work.after(tab.select(opened, inputs, asked, **aside), wish)
    stop.click(Wish.stop, wish, None, **aside)
    return work


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


def answered(answer: Answer, watch: Watch, *values: Any) -> tuple[str, bytes]:
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
