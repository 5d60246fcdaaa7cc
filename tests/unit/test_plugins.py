"""Methods of somebody else's package are listed, built, audited and explored like gyrograd's own."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

import gyrograd as gg
from gyrograd import cli, registry
from gyrograd.attacks.settings import BallAttack, MapSearch
from gyrograd.contracts import check
from gyrograd.errors import UserError
from gyrograd.reporting.table import grouped_columns

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "tests" / "plugin_package"
METHODS = {
    "attribution": "left_half",
    "attack": "left_shift",
    "metric": "left_mass",
    "regularizer": "left_penalty",
}
Install = Callable[[Path, str], None]


@pytest.fixture
def install(monkeypatch, tmp_path) -> Iterator[Install]:
    """Puts a package on the path with the metadata pip would write; what it registers is gone afterwards."""
    for kind in gg.kinds():
        registry.available(kind)
    known = set(sys.modules)
    monkeypatch.setattr(registry, "_entries", dict(registry._entries))
    monkeypatch.setattr(registry, "_plugins", {})
    registry._installed_plugins.cache_clear()

    def put(folder: Path, module: str) -> None:
        info = tmp_path / "site" / f"{module}-1.0.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {module.replace('_', '-')}\nVersion: 1.0\n"
        )
        (info / "entry_points.txt").write_text(f"[gyrograd.plugins]\nit = {module}\n")
        monkeypatch.syspath_prepend(str(info.parent))
        monkeypatch.syspath_prepend(str(folder))

    yield put
    registry._installed_plugins.cache_clear()
    for name in set(sys.modules) - known:
        if name.startswith(("gyrograd_halves", "a_plugin")):
            del sys.modules[name]


@pytest.fixture
def halves(install):
    install(PACKAGE, "gyrograd_halves")


def test_a_plug_in_is_found_at_the_first_look_up_and_listed_with_its_package(halves, capsys):
    assert gg.available("attribution")["left_half"].package == "gyrograd_halves"
    assert cli.main(["list", "--json"]) == 0
    rows = {row["name"]: row for kind in json.loads(capsys.readouterr().out).values() for row in kind}
    assert set(METHODS.values()) <= set(rows)
    assert rows["left_half"]["package"] == "gyrograd_halves"
    assert rows["left_half"]["label"] == "Left Half"
    assert cli.main(["list", "attribution"]) == 0
    assert "package gyrograd_halves" in " ".join(capsys.readouterr().out.split())  # a row may be wrapped


def test_an_audit_takes_a_plug_ins_method_and_files_its_metric_under_other(halves):
    model = gg.model("lenet", num_classes=3, seed=0)
    images = torch.rand(4, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    few = {
        "steps": 1,
        "draws": 1,
        "points": 2,
        "bound_images": 1,
        "flag_images": 1,
        "pictures": 1,
        "sweep": {},
    }
    asked = {"methods": ["left_half"], "metrics": ["left_mass"], "attacks": ["left_shift"]}
    card = gg.audit(model, images, preset="quick", **asked, **few)
    (row,) = card.document["methods"]
    assert row["label"] == "Left Half"
    assert row["columns"]["left_mass"]["value"] == pytest.approx(1.0, rel=1e-5)
    assert "left_half under left_shift" in card.records
    assert card.document["rerun"]["versions"]["gyrograd-halves"] == "1.0"
    assert card.records["left_half"].settings["plugins"] == {"gyrograd-halves": "1.0"}
    groups = {
        title: [column["label"] for column in columns] for title, columns in grouped_columns(card.document)
    }
    assert groups["Other"] == ["Left mass"]


def test_only_methods_with_a_width_can_be_swept(halves):
    model, images = gg.model("lenet", num_classes=3, seed=0), torch.rand(1, 3, 32, 32)
    with pytest.raises(UserError, match="'left_half', which has no width.*: smoothgrad, unigrad"):
        gg.audit(model, images, preset="quick", methods=["gradient"], sweep={"left_half": (0.1,)})


def test_an_attack_of_a_plug_in_needs_only_its_objective(halves):
    model, x = gg.model("lenet", num_classes=3, seed=0), torch.rand(2, 3, 32, 32)
    attack = gg.attack("left_shift", steps=5, eps=(4 / 255, 8 / 255))
    results = attack(model, gg.attribution("gradient"), x, torch.tensor([0, 1]))
    assert [hit.name for hit in results] == ["left_shift"] * 2
    assert all((hit.value < hit.start).all() for hit in results)
    assert gg.attack("random", like="left_shift").plan().name == "random"
    with pytest.raises(UserError, match="left_shift has no protocol 'papre': known: own"):
        gg.attack("left_shift", protocol="papre")


def test_an_attack_without_an_objective_is_told_to_write_one():
    model, x = gg.model("lenet", num_classes=3, seed=0), torch.rand(1, 3, 32, 32)
    for attack, missing in ((MapSearch(steps=1), "objective"), (BallAttack(), "plan")):
        with pytest.raises(UserError, match=f"has no {missing};.* write {missing}"):
            attack(model, gg.attribution("gradient"), x, torch.tensor([0]))


def test_the_explorer_offers_a_plug_ins_method_in_its_own_words(halves):
    from gyrograd.explorer.markup import meanings_page

    assert "<dt>Left Half</dt><dd>The gradient, on the left half of the image only.</dd>" in meanings_page()


def test_training_takes_a_plug_ins_regulariser_and_assumes_the_costly_case(halves):
    from gyrograd.training import TrainSettings
    from gyrograd.training.objective import objective_of, runs_fast

    objective = objective_of(TrainSettings(terms={"left_penalty": {"weight": 2.0}}))
    assert objective.second_order
    assert not runs_fast(objective.terms.values())
    model, x, y = gg.model("lenet", seed=0), torch.rand(2, 3, 32, 32), torch.tensor([0, 1])
    loss, parts = objective(model, x, y)
    assert parts["left_penalty"] > 0
    loss.backward()


@pytest.mark.parametrize("kind", METHODS)
def test_the_checks_for_authors_run_on_a_plug_ins_methods(halves, kind):
    check(kind, METHODS[kind], **({"steps": 2} if kind == "attack" else {}))


def test_the_guide_shows_the_package_that_is_installed_here():
    guide = (ROOT / "docs" / "how-to" / "extend.md").read_text(encoding="utf-8")
    code = "\n".join(path.read_text(encoding="utf-8") for path in sorted(PACKAGE.rglob("*.py")))
    shown = re.findall(r"```python\n(.*?)```", guide, re.DOTALL)
    ours = [block for block in shown if "@register" in block or "gyrograd_halves import" in block]
    assert len(ours) == 1 + len(METHODS)
    assert all(block in code for block in ours)
    assert 'plugins"]\nhalves = "gyrograd_halves"' in guide


def test_a_package_that_pip_installs_is_listed(tmp_path):
    source, site = tmp_path / "source", tmp_path / "site"
    shutil.copytree(PACKAGE, source)  # pip builds in the folder it is given
    quietly = ["--quiet", "--no-index", "--no-build-isolation", "--no-deps", "--disable-pip-version-check"]
    subprocess.run([sys.executable, "-m", "pip", "install", *quietly, "--target", site, source], check=True)
    paths = os.pathsep.join([str(site), str(ROOT / "src")])
    listing = [sys.executable, "-m", "gyrograd", "list", "--json"]
    done = subprocess.run(listing, env=os.environ | {"PYTHONPATH": paths}, check=True, capture_output=True)
    found = {(kind, row["name"]) for kind, rows in json.loads(done.stdout).items() for row in rows}
    assert set(METHODS.items()) <= found


BROKEN = {
    "import nothing_of_that_name": "ModuleNotFoundError: No module named 'nothing_of_that_name'",
    "raise SystemError": "SystemError",
    "from gyrograd.registry import register\n@register('kernel', 'normal', paper='own')\ndef f(): ...": (
        "The kernel 'normal' of package a_plugin has a name that is taken; rename it there"
    ),
}


@pytest.mark.parametrize("source", BROKEN)
def test_a_plug_in_that_cannot_be_loaded_is_one_sentence_that_names_it_at_every_look_up(
    install, tmp_path, capsys, source
):
    (tmp_path / "a_plugin.py").write_text(source)
    install(tmp_path, "a_plugin")
    sentence = f"The plug-in package 'a-plugin' cannot be loaded ({BROKEN[source]}); fix it or remove it: "
    for _ in range(2):
        with pytest.raises(UserError) as raised:
            gg.kernel("gaussian")
        assert str(raised.value) == sentence + "pip uninstall a-plugin."
    assert cli.main(["list", "kernel"]) == 2
    assert "a-plugin" in capsys.readouterr().err


def test_a_plug_in_may_look_names_up_while_it_is_imported(install, tmp_path):
    (tmp_path / "a_plugin.py").write_text("import gyrograd\nKERNEL = gyrograd.kernel('gaussian')\n")
    install(tmp_path, "a_plugin")
    assert gg.kernel("gaussian") == gg.kernel("normal")
    assert "a_plugin" in sys.modules


def test_a_name_of_a_plug_in_that_ours_takes_later_is_the_plug_ins_mistake(monkeypatch):
    monkeypatch.setattr(registry, "_entries", {})

    def theirs() -> None: ...

    theirs.__module__ = "a_plugin.kernels"
    registry.register("kernel", "gaussian", paper="own")(theirs)
    with pytest.raises(UserError, match="'gaussian' of package a_plugin has a name that is taken"):
        registry.register("kernel", "gaussian", paper="own")(registry.Entry)
