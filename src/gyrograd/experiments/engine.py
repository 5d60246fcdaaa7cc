"""Runs an experiment: trains the missing nets, takes the missing measurements, judges the claims, writes the page."""

from __future__ import annotations

import inspect
import json
import shlex
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch import Tensor

from gyrograd import records
from gyrograd.data import Dataset
from gyrograd.errors import UserError, check_counts, did_you_mean
from gyrograd.experiments.claims import Claims, ClaimVerdict, count_verdicts, judge_claims, read_claims
from gyrograd.experiments.nets import (
    Net,
    PretrainedNet,
    checked_changes,
    is_there,
    lock_path,
    net_key,
    read_net,
    train_or_load,
)
from gyrograd.experiments.report import experiment_page
from gyrograd.experiments.results import Pictures, Results, estimates, read_results, write_results
from gyrograd.experiments.samples import check_present, images_of
from gyrograd.experiments.scales import CHANGES, SCALES, SIZES, Scale, read_scale
from gyrograd.experiments.trained_nets import Columns, Maker, Part, TrainedNet
from gyrograd.measurement import Cell, fingerprint, finished, run_cells, streams
from gyrograd.measurement.cells import Finished, Task, in_this_process
from gyrograd.measurement.machine import hardware, versions
from gyrograd.models import zoo
from gyrograd.numerics.modes import flush_denormals
from gyrograd.occupancy import NAME, free_first, wait_for_lock
from gyrograd.progress import duration_in_words
from gyrograd.records import JsonObject
from gyrograd.registry import Entry, Settings, available, lookup, register
from gyrograd.reporting import Section, write_page
from gyrograd.types import Model

HOME = Path(__file__).parent
CHANGED = "training was changed to"
SAME_OBJECTIVE = {"precision": ("fp32", "tf32")}
"""Training settings whose change leaves the objective as it is, so that values can still be compared."""
SHARD, CUDA_SHARD = 500, 2500
"""Images per shard. 500 small images do not fill a GPU."""
MOST_LISTED = 30
"""Rows named in a sentence."""
TRAIN_IMAGES = 10_000
"""The most training images on which a training accuracy is measured."""
RowRecord: TypeAlias = tuple[str, str, int, records.Record]
"""Setting, row, seed, and the record of every image."""


def begins(row: str, words: str) -> bool:
    """Whether the row's name begins with these whole words."""
    return f"{row} ".startswith(f"{words} ")


@dataclass(frozen=True)
class ExperimentOutput:
    """The output of an experiment: records by row, and arrays for its figures by name."""

    records: tuple[RowRecord, ...] = ()
    pictures: Pictures = field(default_factory=dict)


@dataclass(frozen=True)
class ExperimentContext:
    """Scale, folder, seeds, device and selections of one run of an experiment.

    settings, rows, parts: what to measure; empty for everything. images: the number of test images, instead of the
    scale's. train: changes of `TrainSettings`, for all nets. look: whether missing data are an error; False for
    listings. at_work: called before anything is trained or measured; not if all of it is read from files.
    """

    scale: Scale
    out: Path
    seeds: tuple[int, ...]
    device: str = "cpu"
    settings: tuple[str, ...] = ()
    rows: tuple[str, ...] = ()
    images: int | None = None
    parts: tuple[str, ...] = ()
    train: Mapping[str, Any] = field(default_factory=dict)
    look: bool = True
    at_work: Callable[[], None] = lambda: None

    def sizes(self, setting: str) -> Settings:
        """Sizes of a setting at this scale, from `scales.toml`."""
        sizes = dict(self.scale.settings[setting])
        sizes |= {"images": self.images} if self.images else {}
        sizes |= {key: value for key, value in self.train.items() if key in SIZES}
        changes = {key: value for key, value in self.train.items() if key not in SIZES}
        return sizes | ({CHANGES: changes} if changes else {})

    def included(self, settings: Sequence[str], *, look: bool = True) -> list[str]:
        """Settings that this scale has and --settings selects.

        With `look`, missing data are an error now, not after the first nets were trained.
        """
        found = [
            s for s in settings if s in self.scale.settings and (not self.settings or s in self.settings)
        ]
        for setting in found if look and self.look else ():
            check_present(self.sizes(setting))
        return found

    def select_rows(self, rows: Sequence[str]) -> list[str]:
        """Rows selected by --rows; a prefix such as "ssr" also selects "ssr ig"."""
        return [
            row for row in rows if not self.rows or any(begins(row, w) or begins(w, row) for w in self.rows)
        ]

    def trained_nets(
        self,
        settings: Sequence[str],
        rows_of: Callable[[str, Mapping[str, Any]], Mapping[str, Callable[[int], Net | PretrainedNet]]],
    ) -> list[TrainedNet]:
        """The nets of these settings, by row and seed.

        Args:
            settings: names of settings; those that are not selected are skipped.
            rows_of: takes a setting and its sizes and returns, by row, a function from a seed to a net.
        """
        every = [
            TrainedNet(setting, row, seed, net_of(seed), sizes)
            for setting in self.included(settings)
            for sizes in (self.sizes(setting),)
            for row, net_of in rows_of(setting, sizes).items()
            if self.select_rows([row])
            for seed in self.seeds
        ]
        # A pretrained net is one net, whatever the number of seeds.
        return [one for one in every if isinstance(one.net, Net) or one.seed == self.seeds[0]]

    def selects(self, part: Part) -> bool:
        """Whether --rows and --parts select this measurement."""
        named = not self.rows or any(begins(part.row, wanted) for wanted in self.rows)
        return named and (not self.parts or part.what.startswith(self.parts))

    def train_missing(self, nets: Iterable[Net | PretrainedNet]) -> None:
        """Train the nets that do not exist yet. This is the first stage, before anything is measured.

        Nets that another process is training come last, so that several processes with the same command share them.
        """
        folder = self.out / "nets"
        missing = {net_key(net): net for net in nets if isinstance(net, Net) and not is_there(net, folder)}
        for number, net in enumerate(free_first(missing.values(), lambda net: lock_path(net, folder)), 1):
            print(f"training net {number} of {len(missing)}: {net.label}", file=sys.stderr)
            self.at_work()
            train_or_load(net, folder, self.device)

    def net(self, net: Net | PretrainedNet) -> Model:
        """Load a trained net, in evaluation mode on this run's device."""
        if not is_there(net, self.out / "nets"):
            raise RuntimeError(
                f"{net.label} is measured before it is trained; name it among the experiment's nets."
            )
        key = (net_key(net), self.device, str(self.out))
        if key not in _kept:
            # The last four nets stay in memory, since consecutive parts use the same net.
            while len(_kept) >= 4:
                del _kept[next(iter(_kept))]
            _kept[key] = laid_out(read_net(net, self.out / "nets", self.device), self.device)
        return _kept[key]

    def test_images(self, setting: str) -> Dataset:
        """The test images of a setting, on this run's device."""
        return images_of(self.sizes(setting), "test").to(self.device)

    def positions(self, setting: str) -> list[int]:
        """Positions of the measured test images; a larger number of images extends a smaller one."""
        data = images_of(self.sizes(setting), "test")
        return [int(position) for position in data.chosen(min(self.sizes(setting)["images"], len(data)))]

    def unfinished(self, parts: Sequence[Part]) -> list[Part]:
        """The selected parts that have images without a record."""
        left = []
        for part in filter(self.selects, parts):
            places, cell = self._places(part), self._cell(part)
            found = finished([cell], places, self.out, shard=self._shard(part)).get(cell.name)
            left += [part] if found is None or len(found.examples) < len(places) else []
        return left

    def measure_parts(self, parts: Sequence[Part]) -> tuple[RowRecord, ...]:
        """Measure the selected parts net by net, reading what earlier runs finished; returns their records.

        Nets that another process is measuring come last, and its results are read.
        """
        groups: dict[tuple[str, str, int, str], list[Part]] = {}
        for part in filter(self.selects, parts):
            groups.setdefault((part.setting, part.row, part.seed, part.split), []).append(part)
        found: dict[tuple[str, str, int, str], list[RowRecord]] = {key: [] for key in groups}
        for key in free_first(groups, self._measuring):
            (setting, row, seed, _), mine = key, groups[key]
            cells, what = [self._cell(part) for part in mine], f"measuring {setting}, {row}, seed {seed}"
            with wait_for_lock(self._measuring(key), what):
                done = self.run_cells(cells, self._places(mine[0]), self._shard(mine[0]), what)
            found[key] = [(setting, row, seed, done[cell.name]) for cell in cells]
        return tuple(one for records in found.values() for one in records)

    def run_cells(
        self, cells: Sequence[Cell], positions: Sequence[int], shard: int, what: str
    ) -> dict[str, records.Record]:
        """The records of these cells in this run's folder; what is not there yet is measured."""

        def work(cells: Sequence[Cell], tasks: Sequence[Task]) -> Finished:
            if tasks:
                self.at_work()
            return in_this_process(cells, tasks)

        return run_cells(cells, positions, self.out, shard=shard, what=what, workers=work)

    def _measuring(self, group: tuple[str, str, int, str]) -> Path:
        """The lock file held by the process that measures this net on this split."""
        return self.out / "records" / f".{fingerprint(list(group))}.writer"

    def _shard(self, part: Part) -> int:
        return SHARD if self.device == "cpu" and part.split == "test" else CUDA_SHARD

    def _places(self, part: Part) -> list[int]:
        if part.split == "test":
            return self.positions(part.setting)
        return list(range(min(TRAIN_IMAGES, len(images_of(self.sizes(part.setting), "train")))))

    def _cell(self, part: Part) -> Cell:
        data = images_of(self.sizes(part.setting), part.split)
        settings = {
            "net": net_key(part.net),
            "data": _digest(data),
            "seed": part.seed,
            "measure": {"what": part.what, **part.settings},
        }

        def measure(positions: Tensor) -> Columns:
            here = data.rows(positions).to(self.device)
            keys = streams(part.seed, positions).to(self.device)
            columns = part.columns(self.net(part.net), here.pixels(), here.labels, keys)
            return {name: values.detach().cpu() for name, values in columns.items()}

        return Cell(f"{part.setting} {part.net.label} {part.seed} {part.what}", settings, measure)


def measure_cells(
    run: ExperimentContext, setting: str, cells: Mapping[str, Cell], what: str, shard: int = SHARD
) -> tuple[RowRecord, ...]:
    """Measure cells that use no trained net, such as toys, by row; `images` of the scale are their draws."""
    if not run.included((setting,)):
        return ()
    mine = {row: cell for row, cell in cells.items() if run.select_rows([row])}
    draws = range(int(run.sizes(setting)["images"]))
    done = run.run_cells(list(mine.values()), draws, shard, what)
    return tuple((setting, row, 0, done[cell.name]) for row, cell in mine.items())


@dataclass(frozen=True)
class MeasuredNets:
    """The nets of a run and the records of their measurements."""

    run: ExperimentContext
    trained_nets: Sequence[TrainedNet] = ()
    records: tuple[RowRecord, ...] = ()


Nets: TypeAlias = Callable[[ExperimentContext], Sequence[TrainedNet]]
"""Which nets a run needs."""
Finish: TypeAlias = Callable[[MeasuredNets], ExperimentOutput]
"""Turns the nets and their records into the output of an experiment."""
Draw: TypeAlias = Callable[[Results], tuple[Section, ...]]
"""Draws the figures of an experiment; a pure function of its results."""


@dataclass(frozen=True)
class Took:
    """How long a run took: its seconds, the machine, its further options, and the experiment that trained its nets."""

    seconds: int
    machine: str = "one CPU core"
    options: str = ""
    nets_of: str = ""

    @property
    def text(self) -> str:
        """`8 minutes on an H200 with --settings cifar10-lenet`."""
        more = self.options or (f"the nets of {self.nets_of}" if self.nets_of else "")
        return f"{duration_in_words(float(self.seconds))} on {self.machine}{f' with {more}' if more else ''}"


@dataclass(frozen=True)
class Experiment:
    """A table or figure of a paper. Its nets are trained first, then measured.

    Args:
        nets: returns the nets of a run; none by default, for experiments on toys and on untrained nets.
        measures: groups of measurements of each net; a group starts when the one before is done for all nets.
        finish: adds to the records (pictures of maps, correlations between nets, timings).
        looks: whether `finish` needs the trained nets, not only the records.
        sections: draws the figures, if there are any.
        over: what the intervals are taken over.
        took: how long runs took, by scale.
    """

    nets: Nets = lambda _: ()
    measures: Sequence[Sequence[Maker]] = ()
    finish: Finish | None = None
    looks: bool = False
    sections: Draw = lambda _: ()
    over: str = "images"
    took: Mapping[str, Took] = field(default_factory=dict)

    def every_part(self, run: ExperimentContext) -> list[Part]:
        """All measurements of nets, selected or not; `finish` may add others."""
        trained_nets = self.nets(replace(run, settings=(), rows=(), look=False))
        makers = [make for group in self.measures for make in group]
        return [part for s in trained_nets for make in makers for part in make(s)]

    def measure(self, run: ExperimentContext) -> ExperimentOutput:
        """Train the missing nets, then take the missing measurements."""
        makers = [make for group in self.measures for make in group]
        # By their rows too: a row need not begin with the way of its net ("sigma 0.03" of a natural net).
        trained_nets = [
            one
            for one in self.nets(replace(run, rows=()))
            if run.select_rows([one.way]) or any(run.selects(part) for make in makers for part in make(one))
        ]
        groups = [
            [part for s in trained_nets for make in makers for part in make(s)] for makers in self.measures
        ]
        wanted = [part.net for group in groups for part in run.unfinished(group)]
        run.train_missing([*wanted, *(trained_net.net for trained_net in trained_nets if self.looks)])
        records = tuple(record for group in groups for record in run.measure_parts(group))
        found = ExperimentOutput(records)
        return self.finish(MeasuredNets(run, trained_nets, records)) if self.finish else found


@dataclass(frozen=True)
class Listed:
    """An entry of a paper's list of experiments: its name, its place in the paper, a description, and run times."""

    name: str
    where: str
    about: str
    experiment: Experiment
    took: Mapping[str, Took] = field(default_factory=dict)


def register_all(paper: str, table: Sequence[Listed]) -> None:
    """Register a paper's experiments under PAPER-NAME."""

    def factory_of(listed: Listed) -> Callable[[], Experiment]:
        def factory() -> Experiment:
            return replace(listed.experiment, took=listed.took)

        factory.__doc__ = listed.about  # shown on the page and by `gyrograd list experiment`
        return factory

    for listed in table:
        add = register("experiment", f"{paper}-{listed.name}", paper=paper, equation=listed.where)
        add(factory_of(listed))


def reproduce(
    name: str,
    scale: str = "smoke",
    out: Path = Path("out/reproduce"),
    *,
    seeds: int | None = None,
    device: str = "cpu",
    settings: Sequence[str] = (),
    rows: Sequence[str] = (),
    images: int | None = None,
    parts: Sequence[str] = (),
    train: Mapping[str, Any] | None = None,
) -> Path:
    """Run an experiment and write `out/SCALE/NAME/`: results.json, pictures.npz, index.html; returns the page's path.

    `train` changes settings of `TrainSettings` for all nets (epochs, lr, schedule, precision, ...). Then the paper's
    orders can be compared, but not its values, unless tf32 is the only change.
    """
    train = checked_changes(train or {})
    entry = lookup("experiment", name)
    size = read_scale(HOME / entry.paper / "scales.toml", scale)
    for setting in settings:
        if setting not in size.settings:
            raise UserError(
                f"The scale '{scale}' has no setting '{setting}': {did_you_mean(setting, size.settings)}"
            )
    n = size.seeds if seeds is None else seeds
    check_counts(seeds=n, images=1 if images is None else images)
    folder = out / scale / entry.name
    run = ExperimentContext(
        size,
        out / scale,
        tuple(range(n)),
        device,
        tuple(settings),
        tuple(rows),
        images,
        tuple(parts),
        train,
        at_work=cache(
            lambda: _add_to_account(folder, machine={"hardware": hardware(device), "versions": versions()})
        ),
    )
    experiment: Experiment = entry.factory()
    _check_selected(experiment, entry.name, run)
    _add_to_account(folder)
    started = time.monotonic()
    try:
        with flush_denormals():
            found = experiment.measure(run)
    finally:
        _add_to_account(folder, seconds=time.monotonic() - started)
    _check_found(found, entry.name, run)
    facts = {"command": _command(entry.name, run, seeds), **_facts(folder)}
    measured_in = list(dict.fromkeys(m[0] for m in found.records))
    sizes = {s: run.sizes(s) for s in measured_in}
    chance = {}
    for setting, own in sizes.items():
        if "data" in own:
            test = images_of(own, "test")
            own["images"] = min(own["images"], len(test))
            # The accuracy of guessing, in per cent.
            chance[setting] = 100 / len(test.classes)
    about = {"sizes": sizes, "chance": chance}
    about |= {"over": experiment.over} | ({CHANGED: dict(train)} if train else {})
    results = Results(entry.name, scale, about, estimates(found.records), found.pictures, facts)
    with wait_for_lock(folder / NAME, f"the page of {entry.name}"):
        write_results(folder, results)
        return render(folder)


def render(folder: Path) -> Path:
    """Write the page of a folder again, from its results.json, its pictures and the paper's claims alone."""
    if not (folder / "results.json").exists():
        raise UserError(
            f"{folder} holds no finished run; run the experiment first (`gyrograd reproduce --list` shows them)."
        )
    results = read_results(folder)
    entry = lookup("experiment", results.name)
    claims, verdicts = verdicts_of(results)
    figures = entry.factory().sections(results)
    title, page = f"{entry.paper} {entry.equation}", folder / "index.html"
    paragraphs = (inspect.getdoc(entry.factory) or "").split("\n\n")
    about = tuple(" ".join(paragraph.split()) for paragraph in paragraphs)
    write_page(page, experiment_page(title, about, results, claims, verdicts, figures))
    return page


def verdicts_of(results: Results) -> tuple[Claims, tuple[ClaimVerdict, ...]]:
    """The paper's claims about this experiment, and the verdict of these results on each."""
    entry = lookup("experiment", results.name)
    claims = read_claims(HOME / entry.paper / "claims.toml", entry.name)
    scale = read_scale(HOME / entry.paper / "scales.toml", results.scale)
    changes = results.settings.get(CHANGED, {})
    changed = any(value not in SAME_OBJECTIVE.get(key, ()) for key, value in changes.items())
    compares = "orders" if scale.compares == "values" and changed else scale.compares
    return claims, judge_claims(claims, results, compares)


@dataclass(frozen=True)
class State:
    """An experiment in a listing: its description, needs, costs, and finished runs."""

    name: str
    paper: str
    place: str
    about: str
    needs: dict[str, tuple[str, ...]]
    """Data and files by scale."""
    nets: dict[str, int]
    """Number of nets to train, by scale."""
    took: Mapping[str, Took]
    state: str


def states(out: Path) -> list[State]:
    """All experiments, with their finished runs under `out`."""
    return [_state(entry, out) for entry in available("experiment").values()]


def _state(entry: Entry, out: Path) -> State:
    experiment: Experiment = entry.factory()
    needs, nets = {}, {}
    for scale in SCALES:
        size = read_scale(HOME / entry.paper / "scales.toml", scale)
        run = ExperimentContext(size, out / scale, tuple(range(size.seeds)), look=False)
        trained_nets = experiment.nets(run)
        sets = [run.sizes(trained_net.setting).get("data", {}) for trained_net in trained_nets]
        # The name of a registered data set, or the path of a folder of images.
        data = [f"folder {d['path']}" if d.get("name") == "folder" else d.get("name") for d in sets]
        given = [one.net.path for one in trained_nets if isinstance(one.net, PretrainedNet)]
        files = [f"weights {path.name}" for path in given if not path.is_relative_to(zoo.HOME)]
        needs[scale] = tuple(dict.fromkeys(str(name) for name in (*data, *files) if name))
        # By key: settings may share a net, which is then trained once.
        nets[scale] = len({net_key(one.net) for one in trained_nets if isinstance(one.net, Net)})
    state = "; ".join(_states_of(out, entry.name)) or "not run"
    return State(entry.name, entry.paper, entry.equation, entry.summary, needs, nets, experiment.took, state)


def _states_of(out: Path, name: str) -> list[str]:
    found = []
    for scale in SCALES:
        folder = out / scale / name
        if (folder / "results.json").exists():
            _, verdicts = verdicts_of(read_results(folder))
            counts = count_verdicts(verdicts)
            judgeable = len(verdicts) - counts["not comparable"]
            confirmed = f"{counts['confirmed']} of {judgeable} comparable claims confirmed"
            found.append(f"{scale}: done, {confirmed if judgeable else 'nothing comparable with the paper'}")
        elif (folder / "run.json").exists():
            found.append(f"{scale}: begun")
    return found


def _add_to_account(folder: Path, *, seconds: float = 0.0, machine: JsonObject | None = None) -> None:
    """Add to run.json the seconds of a run, or the machine of one that trains or measures something.

    Several runs may share the folder, so each adds to what is there now.
    """
    with wait_for_lock(folder / NAME, f"the page of {folder.name}"):
        account = _account(folder)
        account["seconds"] += seconds
        account["machines"] += [machine] if machine and machine not in account["machines"] else []
        records.write_text(folder / "run.json", json.dumps(account) + "\n")


def _account(folder: Path) -> JsonObject:
    """The seconds that an experiment's runs took so far, and their machines."""
    account: JsonObject = {"seconds": 0.0}
    with suppress(FileNotFoundError, ValueError):
        account |= records.read_json(folder / "run.json")
    if "machines" not in account:
        account["machines"] = []
        # Earlier versions named the machine in the results alone.
        with suppress(UserError):
            facts = records.read(folder / "results.json").facts
            account["machines"] += [{key: facts[key] for key in ("hardware", "versions")}]
    return account


def _facts(folder: Path) -> JsonObject:
    """Seconds, hardware and versions of all runs of an experiment so far."""
    account = _account(folder)
    # All of it may have been measured in runs of other experiments, which share the nets and the records.
    others = (_account(path.parent) for path in sorted(folder.parent.glob("*/run.json")))
    machines = account["machines"] or [machine for other in others for machine in other["machines"]]
    names = dict.fromkeys(name for machine in machines for name in machine["versions"])
    return {
        "seconds": account["seconds"],
        "hardware": _different(machine["hardware"] for machine in machines),
        "versions": {name: _different(one["versions"].get(name) for one in machines) for name in names},
    }


def _different(texts: Iterable[str | None]) -> str:
    """The different ones of these texts: `torch 2.11 and 2.15`."""
    return " and ".join(dict.fromkeys(text for text in texts if text))


def _check_selected(experiment: Experiment, name: str, run: ExperimentContext) -> None:
    """Refuse names that select nothing, before anything is trained."""
    every = experiment.every_part(run)
    measured = list(dict.fromkeys(part.what for part in every))
    for wanted in run.parts:
        if not any(what.startswith(wanted) for what in measured):
            advice = f"it measures {_listed(measured)}" if measured else "leave out --parts"
            raise UserError(f"{name} measures nothing whose name begins with {wanted}; {advice}.")
    if every:
        # Settings without data hold numbers of all nets together, which `finish` adds.
        together = [setting for setting, sizes in run.scale.settings.items() if "data" not in sizes]
        settings = list(dict.fromkeys(part.setting for part in every))
        _check_named(name, run, "setting", [s for s in run.settings if s not in together], settings)
    if every and experiment.finish is None:
        here = [part.row for part in every if not run.settings or part.setting in run.settings]
        _check_named(name, run, "row", run.rows, list(dict.fromkeys(here)))


def _check_found(found: ExperimentOutput, name: str, run: ExperimentContext) -> None:
    """Refuse selections that matched nothing, instead of showing an empty table."""
    if run.parts and not found.records:
        raise UserError(
            f"{name} measures nothing whose name begins with {' or '.join(run.parts)}; leave out --parts for all."
        )
    for what, asked, place in (("row", run.rows, 1), ("setting", run.settings, 0)):
        known = list(dict.fromkeys(str(measured[place]) for measured in found.records))
        _check_named(name, run, what, asked, known)


def _check_named(
    name: str, run: ExperimentContext, what: str, asked: Sequence[str], known: Sequence[str]
) -> None:
    """Refuse unknown names, and list the known ones if there are any."""
    unknown = [wanted for wanted in asked if not any(begins(one, wanted) for one in known)]
    if unknown:
        advice = (
            f"its {what}s are {_listed(known)}: give one of these with --{what}s, or leave it out for all."
        )
        if not known:
            advice = f"leave out --{what}s to see all that it has."
        raise UserError(f"{name} has no {what} '{unknown[0]}' at the scale '{run.scale.name}'; {advice}")


def _listed(names: Sequence[str]) -> str:
    """Names as text, the first ones if there are many."""
    return ", ".join(names[:MOST_LISTED]) + (", ..." if len(names) > MOST_LISTED else "")


def _command(name: str, run: ExperimentContext, seeds: int | None) -> str:
    """The command line that reproduces these results. `seeds`: as given, None for those of the scale."""
    options = {
        "seeds": seeds,
        "settings": ",".join(run.settings) or None,
        "rows": ",".join(run.rows) or None,
        "images": run.images,
        "parts": ",".join(run.parts) or None,
        "train": ",".join(f"{key}={value}" for key, value in run.train.items()) or None,
        "device": None if run.device == "cpu" else run.device,
    }
    words = ["gyrograd", "reproduce", name, "--scale", run.scale.name]
    for option, value in options.items():
        words += [] if value is None else [f"--{option}", str(value)]
    return shlex.join(words)  # names of rows have spaces


def laid_out(model: Model, device: str) -> Model:
    """The model with channels-last weights on CUDA: activations follow, and ResNets run a tenth faster."""
    return model.to(memory_format=torch.channels_last) if device.startswith("cuda") else model


_kept: dict[tuple[str, ...], Model] = {}


@lru_cache(maxsize=16)
def _digest(data: Dataset) -> str:
    return data.digest()
