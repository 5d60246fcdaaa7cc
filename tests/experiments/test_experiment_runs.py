"""A run: what is kept, what is taken up again, what is refused, and the command line."""

from __future__ import annotations

import hashlib
import importlib
import json
import re
import threading
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import gyrograd as gg
from gyrograd.cli.reproduce import reproduce as command
from gyrograd.data import shapes
from gyrograd.errors import UserError
from gyrograd.experiments import (
    ExperimentContext,
    Net,
    PretrainedNet,
    engine,
    nets,
    read_results,
    reproduce,
    states,
    train_or_load,
)
from gyrograd.experiments.claims import Value
from gyrograd.experiments.engine import CHANGED, HOME, verdicts_of
from gyrograd.experiments.nets import lock_path, net_key, net_path, train_settings
from gyrograd.experiments.samples import images_of, smaller
from gyrograd.experiments.scales import pick_evenly, read_scale
from gyrograd.experiments.trained_nets import Part
from gyrograd.models import save
from gyrograd.occupancy import wait_for_lock
from gyrograd.registry import lookup

NET = Net(
    label="l2 0.1",
    model={"name": "lenet", "image_size": 8, "activation": "softplus", "beta": 3},
    sizes={"data": {"name": "shapes", "n": 50}, "side": 8, "train": 8, "epochs": 2, "batch_size": 4},
    recipe={"optimizer": "adam", "lr": 1e-3, "milestones": (0.5,)},
    terms={"l2_cosine": {"weight": 1.0, "settings": {"l2": 0.1, "cosine": 0.0}}},
)
FEW = {"settings": ("cifar10-lenet",), "rows": ("ce", "l2")}


def digests(folder: Path) -> dict[str, str]:
    files = sorted(path for path in folder.rglob("*.json"))
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


@pytest.mark.parametrize(
    "change",
    [
        {"model": {**NET.model, "beta": 4}},
        {"sizes": {**NET.sizes, "epochs": 3}},
        {"recipe": {**NET.recipe, "lr": 1e-2}},
        {"terms": {"l2_cosine": {"weight": 2.0, "settings": {"l2": 0.1, "cosine": 0.0}}}},
        {"seed": 1},
        {"teacher": NET},
    ],
)
def test_nets_that_can_differ_in_a_weight_have_keys_of_their_own(change):
    assert net_key(replace(NET, **change)) != net_key(NET)


def test_a_net_is_trained_once_and_its_key_does_not_know_its_label(tmp_path):
    assert net_key(replace(NET, label="other")) == net_key(NET)
    first = train_or_load(NET, tmp_path)
    path = net_path(NET, tmp_path)
    stamp = path.stat().st_mtime_ns
    again = train_or_load(NET, tmp_path)
    assert path.stat().st_mtime_ns == stamp
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), again.parameters(), strict=True))
    assert not first.training
    assert sorted(p.suffix for p in tmp_path.iterdir()) == [".jsonl", ".safetensors"]


def test_a_student_starts_from_its_teacher(tmp_path):
    still = {**NET.recipe, "lr": 1e-30}
    student = replace(NET, recipe=still, terms={}, seed=3, teacher=NET)
    taught = train_or_load(student, tmp_path)
    teacher = train_or_load(NET, tmp_path)
    assert torch.allclose(next(taught.parameters()), next(teacher.parameters()), atol=1e-7)


def test_milestones_are_shares_of_the_epochs_and_those_beyond_the_end_are_left_out():
    settings = train_settings(
        replace(NET, sizes={**NET.sizes, "epochs": 8}, recipe={"milestones": (0.5, 0.75)})
    )
    assert (settings.schedule, settings.milestones) == ("multi_step", (4, 6))
    one = train_settings(replace(NET, sizes={**NET.sizes, "epochs": 1}, recipe={"milestones": (0.5, 0.75)}))
    assert (one.schedule, one.milestones) == ("constant", ())


def test_a_given_net_is_read_from_its_file_and_known_by_its_bytes(tmp_path):
    model = gg.model("lenet", image_size=8, seed=1).eval()
    torch.save(model.state_dict(), tmp_path / "a.pt")
    given = PretrainedNet("natural", tmp_path / "a.pt", {"name": "lenet", "image_size": 8})
    loaded = train_or_load(given, tmp_path)
    x = torch.rand(2, 3, 8, 8)
    assert torch.equal(loaded(x), model(x))
    before = net_key(given)
    torch.save(gg.model("lenet", image_size=8, seed=2).state_dict(), tmp_path / "a.pt")
    assert net_key(given) != before


def test_images_are_averaged_down_and_cut():
    data = shapes(split="train", n=50)
    small = smaller(data, 8)
    mean = data.images[3, 1, 4:8, 8:12].double().mean()
    assert abs(float(small.images[3, 1, 1, 2]) - float(mean)) <= 0.5
    sizes = {"data": {"name": "shapes", "n": 50}, "side": 8, "train": 6}
    assert (len(images_of(sizes, "train")), len(images_of(sizes, "test"))) == (6, 50)


def test_settings_of_one_split_reach_that_split_alone():
    sizes = {"data": {"name": "shapes", "n": 50, "test": {"n": 20}}}
    assert (len(images_of(sizes, "train")), len(images_of(sizes, "test"))) == (50, 20)


@pytest.mark.parametrize(
    ("n", "expected"), [(None, [1, 2, 3, 4, 5]), (1, [5]), (2, [1, 5]), (3, [1, 3, 5]), (9, [1, 2, 3, 4, 5])]
)
def test_a_grid_is_picked_evenly_with_both_ends(n, expected):
    assert pick_evenly([1, 2, 3, 4, 5], n) == expected


def test_a_setting_that_is_no_size_is_refused(tmp_path):
    path = tmp_path / "scales.toml"
    path.write_text('[smoke]\ncompares = "nothing"\nseeds = 1\n[smoke.settings.cifar]\nlr = 1.0\n')
    with pytest.raises(UserError, match="smoke, cifar: 'lr' is not a size"):
        read_scale(path, "smoke")
    with pytest.raises(UserError, match="no scale 'huge'"):
        read_scale(path, "huge")


def run_of(out, **changes):
    return ExperimentContext(read_scale(HOME / "joo2023" / "scales.toml", "smoke"), out, (0,), **changes)


def test_more_images_extend_fewer(tmp_path):
    few, many = run_of(tmp_path, images=5), run_of(tmp_path, images=9)
    assert many.positions("cifar10-lenet")[:5] == few.positions("cifar10-lenet")
    assert many.sizes("cifar10-lenet")["images"] == 9


def test_a_run_leaves_out_what_it_was_told_to(tmp_path):
    run = run_of(tmp_path, settings=("cifar10-lenet",), rows=("ce",))
    assert run.included(("cifar10-lenet", "cifar10-resnet18", "elsewhere")) == ["cifar10-lenet"]
    assert run.select_rows(["ce", "l2"]) == ["ce"]


def test_an_interrupted_run_taken_up_again_leaves_the_same_records(tmp_path, monkeypatch):
    from gyrograd.experiments.joo2023 import measures

    whole, broken = tmp_path / "whole", tmp_path / "broken"
    reproduce("joo2023-figure3b", "smoke", whole, **FEW)
    calls = []

    def failing(*args, **settings):
        calls.append(1)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return original(*args, **settings)

    original = measures.similarities
    monkeypatch.setattr(measures, "similarities", failing)
    with pytest.raises(KeyboardInterrupt):
        reproduce("joo2023-appendix-table1", "smoke", broken, **{**FEW, "rows": ("ce",)})
    assert not (broken / "smoke/joo2023-appendix-table1/results.json").exists()
    known = {one.name: one for one in states(broken)}
    assert known["joo2023-appendix-table1"].state == "smoke: begun"
    kept = digests(broken / "smoke/records")
    assert len(kept) == 2, "accuracy and the first similarity were finished"
    monkeypatch.setattr(measures, "similarities", original)
    reproduce("joo2023-appendix-table1", "smoke", broken, **{**FEW, "rows": ("ce",)})
    reproduce("joo2023-appendix-table1", "smoke", whole, **{**FEW, "rows": ("ce",)})
    after = digests(broken / "smoke/records")
    assert kept.items() <= after.items()
    assert after.items() <= digests(whole / "smoke/records").items()


def test_a_residual_net_with_batchnorm_goes_through_table_1(tmp_path):
    """`smoke` has none, for the sake of its seconds; `small` and `paper` do."""
    smoke = read_scale(HOME / "joo2023" / "scales.toml", "smoke")
    sizes = smoke.settings["cifar10-resnet18"] | {"model": {"name": "resnet20", "normalize": "cifar10"}}
    scale = replace(smoke, settings={"cifar10-resnet18": sizes})
    run = ExperimentContext(scale, tmp_path, (0,), rows=("l2_cosine",))
    found = [
        record for _, _, _, record in lookup("experiment", "joo2023-table1").factory().measure(run).records
    ]
    assert len(found) == 13
    assert all(value is not None for record in found for column in record.values.values() for value in column)


def test_the_first_words_of_a_row_and_of_a_measurement_are_enough(tmp_path):
    page = reproduce(
        "wang2020-table2", "smoke", tmp_path, settings=("cifar10",), rows=("natural sm",), parts=("sm top_k",)
    )
    record = json.loads((page.parent / "results.json").read_text())
    assert {key.split(" | ")[1] for key in record["values"]} == {"natural sm"}
    assert {key.split(" | ")[2].split()[0] for key in record["values"]} == {"top_k"}
    assert record["facts"]["command"].endswith("--rows 'natural sm' --parts 'sm top_k'")
    again = reproduce(
        "wang2020-table2", "smoke", tmp_path, settings=("cifar10",), rows=("natural",), parts=("sm",)
    )
    rows = json.loads((again.parent / "results.json").read_text())["values"]
    assert {key.split(" | ")[1] for key in rows} == {"natural sm"}
    with pytest.raises(UserError, match="nothing whose name begins with lrp"):
        reproduce("wang2020-table2", "smoke", tmp_path, settings=("cifar10",), parts=("lrp",))
    with pytest.raises(UserError, match="has no row 'nat'"):
        reproduce("wang2020-table2", "smoke", tmp_path, settings=("cifar10",), rows=("nat",))


def test_a_row_is_selected_though_its_name_does_not_begin_with_that_of_its_net(tmp_path, monkeypatch):
    """The rows of Figure 4 are widths of SmoothGrad's noise; the net behind them is called natural."""
    monkeypatch.setattr(engine, "render", lambda folder: folder / "index.html")
    few = {"settings": ("lenet",), "rows": ("sigma 0.3",), "images": 1}
    found = read_results(reproduce("tan2023-figure4", "smoke", tmp_path, **few).parent)
    assert found.rows("lenet") == ["sigma 0.3"]


def test_every_net_is_trained_before_anything_is_measured(tmp_path, monkeypatch, capsys):
    done = []
    fit, cells = nets.fit, engine.run_cells
    monkeypatch.setattr(nets, "fit", lambda *a, **k: done.append("fit") or fit(*a, **k))
    monkeypatch.setattr(engine, "run_cells", lambda *a, **k: done.append("measure") or cells(*a, **k))
    reproduce("joo2023-figure3b", "smoke", tmp_path, **FEW)
    assert done == ["fit", "fit", "measure", "measure"]
    assert "training net 2 of 2: l2 0.1" in capsys.readouterr().err
    # What is measured needs no net: nothing is trained for it, though the nets are gone.
    for path in (tmp_path / "smoke/nets").iterdir():
        path.unlink()
    reproduce("joo2023-figure3b", "smoke", tmp_path, **FEW)
    assert done == ["fit", "fit", *["measure"] * 4]
    # One image more, and they are trained again, first.
    reproduce("joo2023-figure3b", "smoke", tmp_path, **FEW, images=4)
    assert done[6:] == ["fit", "fit", "measure", "measure"]


def test_a_net_that_was_not_trained_first_is_not_trained_while_measuring(tmp_path):
    with pytest.raises(RuntimeError, match="measured before it is trained"):
        run_of(tmp_path).net(NET)
    assert not list(tmp_path.iterdir())


@contextmanager
def held_by_another(path):
    """A lock that someone else holds until the event is set; another thread counts as another process."""
    taken, free = threading.Event(), threading.Event()

    def hold():
        with wait_for_lock(path, "the work"):
            taken.set()
            free.wait(60)

    thread = threading.Thread(target=hold)
    thread.start()
    assert taken.wait(60)
    yield free
    free.set()
    thread.join()


def test_nets_that_another_process_trains_come_last(tmp_path, monkeypatch):
    run, other = run_of(tmp_path), replace(NET, seed=1)
    order = []
    with held_by_another(lock_path(NET, run.out / "nets")) as free:
        monkeypatch.setattr(engine, "train_or_load", lambda net, *rest: (order.append(net.seed), free.set()))
        run.train_missing([NET, other])
    assert order == [1, 0]


def test_nets_that_another_process_measures_come_last_and_keep_their_place(tmp_path):
    run, order = run_of(tmp_path), []
    save(net_path(NET, run.out / "nets"), gg.model("lenet", image_size=8, activation="softplus", beta=3))

    def part(row):
        def columns(model, x, y, keys):
            order.append(row)
            free.set()
            return {"one": torch.ones(len(x))}

        return Part("cifar10-lenet", row, 0, f"{row} one", NET, {}, columns)

    with held_by_another(run._measuring(("cifar10-lenet", "ce", 0, "test"))) as free:
        found = run.measure_parts([part("ce"), part("l2")])
    assert order == ["l2", "ce"]
    assert [row for _, row, _, _ in found] == ["ce", "l2"]


def test_another_training_is_another_net_and_its_values_are_not_compared(tmp_path, monkeypatch):
    few = {"settings": ("cifar10-lenet",), "rows": ("ce",), "parts": ("accuracy",)}
    seen = []
    original = nets.fit
    monkeypatch.setattr(nets, "fit", lambda *a, **k: seen.append((a[2], k["objective"])) or original(*a, **k))
    reproduce("joo2023-table1", "smoke", tmp_path, **few)
    changes = {"epochs": 2, "schedule": "one_cycle", "lr": 0.01, "regularize_every": 3}
    page = reproduce("joo2023-table1", "smoke", tmp_path, **few, train=changes)
    assert len(list((tmp_path / "smoke/nets").glob("*.safetensors"))) == len(seen) == 2
    (plain, _), (changed, objective) = seen
    assert (plain.epochs, plain.lr) == (1, 1e-3)
    assert (changed.epochs, changed.lr, changed.schedule, objective.regularize_every) == (
        2,
        0.01,
        "one_cycle",
        3,
    )
    results = read_results(page.parent)
    assert results.facts["command"].endswith("--train epochs=2,schedule=one_cycle,lr=0.01,regularize_every=3")
    assert "one_cycle" in page.read_text()
    _, verdicts = verdicts_of(replace(results, scale="paper"))
    accuracy = next(v for v in verdicts if isinstance(v.claim, Value) and v.ours)
    assert (accuracy.verdict, accuracy.why) == (
        "not comparable",
        "the nets were trained in another way than the paper's",
    )
    # tf32 rounds otherwise and trains the same objective; bf16 rounds too coarsely to be called the same.
    for precision, comparable in (("tf32", True), ("bf16", False)):
        one = replace(
            results, scale="paper", settings={**results.settings, CHANGED: {"precision": precision}}
        )
        accuracy = next(v for v in verdicts_of(one)[1] if isinstance(v.claim, Value) and v.ours)
        assert ("trained in another way" not in accuracy.why) is comparable


@pytest.mark.parametrize("name", ["wang2020-table3", "tan2023-table1"])
def test_every_papers_nets_take_the_changes(name, tmp_path):
    paper = name.partition("-")[0]
    smoke = read_scale(HOME / paper / "scales.toml", "smoke")
    setting = "cifar10" if paper == "wang2020" else "resnet18"
    run = ExperimentContext(
        smoke, tmp_path, (0,), settings=(setting,), train={"epochs": 3, "lr": 0.5, "precision": "tf32"}
    )
    variants = importlib.import_module(f"gyrograd.experiments.{paper}.variants")
    nets = variants.nets_by_row((setting,), ("natural",)) if paper == "wang2020" else variants.nets_by_row()
    settings = train_settings(nets(run)[0].net)
    assert (settings.epochs, settings.lr, settings.precision) == (3, 0.5, "tf32")


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("epoch=3", "train has no setting 'epoch' to change: did you mean 'epochs'"),
        ("model=vgg16", "train has no setting 'model'"),
        ("epochs", "write setting=value between commas, such as epochs=12"),
        ("epochs=0", "epochs"),
        ("lr=[", "opens a bracket that is not closed"),
    ],
)
def test_a_change_of_training_that_is_none_is_refused(text, sentence, tmp_path):
    with pytest.raises(UserError, match=sentence):
        command("joo2023-table1", out=tmp_path, train=text)
    assert not list(tmp_path.iterdir())


def on(machine, monkeypatch):
    monkeypatch.setattr(engine, "hardware", lambda device: machine)
    monkeypatch.setattr(engine, "versions", lambda: {"torch": f"2 of {machine}"})


def test_a_page_names_the_machines_that_measured_not_the_one_that_wrote_it(tmp_path, monkeypatch):
    monkeypatch.setattr(engine, "render", lambda folder: folder / "index.html")

    def facts(name="tan2023-figure2", **settings):
        return read_results(reproduce(name, "smoke", tmp_path, images=2, **settings).parent).facts

    run_json = tmp_path / "smoke/tan2023-figure2/run.json"
    on("a GPU", monkeypatch)
    assert facts(rows=("gradient",))["hardware"] == "a GPU"
    on("a laptop", monkeypatch)
    again = facts(rows=("gradient",))
    assert (again["hardware"], again["versions"]) == ("a GPU", {"torch": "2 of a GPU"})
    # Folders of earlier versions: the results alone name the machine.
    run_json.write_text('{"seconds": 100.0}')
    assert facts(rows=("gradient",))["hardware"] == "a GPU"
    both = facts()
    assert (both["hardware"], both["seconds"] > 100) == ("a GPU and a laptop", True)
    assert both["versions"] == {"torch": "2 of a GPU and 2 of a laptop"}
    # Everything was measured by another experiment that shares the records.
    run_json.parent.rename(tmp_path / "smoke/other")
    on("a phone", monkeypatch)
    assert facts()["hardware"] == "a GPU and a laptop"


def test_the_seconds_of_runs_at_the_same_time_add_up(tmp_path, monkeypatch):
    folder = tmp_path / "smoke/tan2023-figure2"
    monkeypatch.setattr(engine, "render", lambda folder: folder / "index.html")
    measure = engine.Experiment.measure

    def while_another_ends(*args):
        engine._add_to_account(folder, seconds=1000.0)
        return measure(*args)

    monkeypatch.setattr(engine.Experiment, "measure", while_another_ends)
    reproduce("tan2023-figure2", "smoke", tmp_path, rows=("gradient",))
    assert 1000 < read_results(folder).facts["seconds"] < 1100


def test_the_page_has_the_number_of_images_that_were_measured(tmp_path, monkeypatch):
    monkeypatch.setattr(engine, "render", lambda folder: folder / "index.html")
    few = {**FEW, "rows": ("ce",), "parts": ("accuracy",)}
    page = reproduce("joo2023-table1", "smoke", tmp_path, **few, images=10**6)
    found = read_results(page.parent)
    (accuracy,) = found.estimates.values()
    assert found.settings["sizes"]["cifar10-lenet"]["images"] == accuracy.images == 50


def test_a_pretrained_net_is_measured_once_whatever_the_seeds(tmp_path):
    run = replace(run_of(tmp_path), seeds=(0, 1, 2))
    given = PretrainedNet("natural", tmp_path / "a.pt", {"name": "lenet"})
    rows = {"natural": lambda seed: given, "ssr": lambda seed: replace(NET, seed=seed)}
    found = run.trained_nets(("cifar10-lenet",), lambda setting, sizes: rows)
    assert [(one.way, one.seed) for one in found] == [("natural", 0), ("ssr", 0), ("ssr", 1), ("ssr", 2)]


def test_seeds_are_nets_of_their_own_and_widen_what_is_said(tmp_path):
    page = reproduce("joo2023-figure3b", "smoke", tmp_path, seeds=2, **FEW)
    record = json.loads((page.parent / "results.json").read_text())
    column = record["values"]["cifar10-lenet | l2 | criterion"]
    assert len(column) == 2
    assert column[0] != column[1]
    assert "images and seeds" in page.read_text()
    assert len(list((tmp_path / "smoke/nets").glob("*.safetensors"))) == 4
    assert "--seeds 2 --settings cifar10-lenet --rows ce,l2" in record["facts"]["command"]


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"name": "joo2023-tabel1"}, "did you mean 'joo2023-table1'"),
        ({"name": "joo2023-table1", "scale": "smok"}, "no scale 'smok'"),
        ({"name": "joo2023-table1", "settings": "cifar10-lenett"}, "did you mean 'cifar10-lenet'"),
        ({"name": "joo2023-table1", "seeds": 0}, "at least 1"),
        ({}, "--list"),
        ({"name": "joo2023-table1", "render": True}, "holds no finished run; run the experiment first"),
        ({"name": "joo2023-table1", "rows": "l3"}, "no row 'l3' at the scale 'smoke'"),
        ({"name": "joo2023-figure2a", "settings": "cifar10-lenet"}, "no setting 'cifar10-lenet'"),
        (
            {"name": "joo2023-figure3b", "settings": "cifar10-lenet,cifar10-resnet18"},
            "no setting 'cifar10-resnet18' at the scale 'smoke'; its settings are cifar10-lenet",
        ),
        (
            {"name": "joo2023-figure3b", "parts": "bound,typo"},
            "nothing whose name begins with typo; it measures bound",
        ),
        ({"name": "tan2023-figure2", "parts": "typo"}, "begins with typo; leave out --parts"),
        ({"name": "joo2023-figure3b", "images": 0}, "images is 0"),
    ],
)
def test_a_mistake_is_one_sentence(settings, sentence, tmp_path):
    with pytest.raises(UserError, match=sentence) as mistake:
        command(out=tmp_path, **settings)
    assert "\n" not in str(mistake.value)
    assert not list(tmp_path.rglob("*.safetensors"))


def test_the_command_prints_numbers_verdicts_and_last_the_page(tmp_path, capsys):
    command("joo2023-figure3b", out=tmp_path, settings="cifar10-lenet", rows="ce,l2")
    lines = capsys.readouterr().out.rstrip().splitlines()
    assert lines[-1] == str(tmp_path / "smoke/joo2023-figure3b/index.html")
    assert any("claim of the paper: 1 not comparable" in line for line in lines)
    assert any("criterion" in line and "[" in line for line in lines)
    command(list=True, out=tmp_path)
    table = capsys.readouterr().out
    assert "not run" in table
    assert "smoke: done, nothing comparable with the paper" in table
    assert "  small:  14 nets, needs cifar10, shapes, 26 minutes on one CPU core\n" in re.sub(
        " +\n", "\n", table
    )
    assert "38 seconds on one CPU core with the nets of joo2023-table1" in table
    assert "8 minutes on an H200 with --settings cifar10-lenet-fast" in table
    command("joo2023-figure3b", out=tmp_path, render=True)
    assert capsys.readouterr().out.rstrip().splitlines() == lines


def test_a_net_saved_by_hand_is_not_mistaken_for_one(tmp_path):
    """The name of the file holds the key: another recipe looks elsewhere."""
    save(net_path(NET, tmp_path), gg.model("lenet", image_size=8, num_classes=10))
    other = replace(NET, seed=9)
    assert not net_path(other, tmp_path).exists()


def test_the_list_says_what_each_experiment_is_needs_and_costs_without_its_data(tmp_path, monkeypatch):
    monkeypatch.setenv("GYROGRAD_DATA", str(tmp_path))
    known = {one.name: one for one in states(tmp_path)}
    table = known["joo2023-table1"]
    assert (table.place, table.state) == ("Table 1", "not run")
    assert table.about.endswith(".")
    # 87, not 90: the three CE nets of the setting in normalised pixels are those of the paper's setting.
    assert table.nets == {"smoke": 14, "small": 14, "paper": 87}
    # Two of these three settings have the same net, on drawings.
    assert known["wang2020-table2"].nets["small"] == 2
    assert table.needs["smoke"] == ("shapes",)
    assert "folder imagenet100" in table.needs["paper"]
    assert any(what.startswith("weights ") for what in known["wang2020-table2"].needs["paper"])
    assert all(one.about for one in known.values())


def test_a_row_that_is_not_there_lists_those_that_are_before_anything_is_trained(tmp_path):
    with pytest.raises(
        UserError, match="no row 'bogus' at the scale 'smoke'; its rows are ce, atex, iga, hessian, l2, l2_c"
    ):
        reproduce("joo2023-table1", "smoke", tmp_path, rows=("bogus",))
    assert not list(tmp_path.iterdir())
