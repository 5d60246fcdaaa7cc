from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import gyrograd as gg
from gyrograd.errors import UserError
from gyrograd.registry import lookup
from gyrograd.training import TrainSettings, objective_of, recipe, recipes
from gyrograd.training.building import datasets, model_for
from gyrograd.training.settings import merge_settings, read_tree

OBJECTIVES = ("ce", "hessian", "iga", "atex", "l2", "l2-cosine")
PAPERS = {
    "joo2023": {
        *(f"{net}-{way}" for net in ("lenet", "resnet18") for way in OBJECTIVES),
        *(f"imagenet100-{way}" for way in ("ce", "hessian", "l2", "l2-cosine")),
    },
    "wang2020": {f"resnet20-{way}" for way in ("natural", "ssr", "adversarial", "ig-norm")},
    "tan2023": {
        f"{net}-{way}"
        for net in ("resnet18", "resnet50", "vgg16", "googlenet", "swin")
        for way in ("natural", "adversarial")
    },
}  # fmt: skip


STEADY = ("lenet", "resnet18", "resnet20", "imagenette", "shapes")


@pytest.mark.parametrize("net", STEADY)
def test_a_steady_recipe_differs_from_its_plain_twin_in_its_terms_alone(net):
    steady, plain = recipe(f"steady-{net}"), recipe(f"steady-{net}-ce")
    assert plain.terms == {}
    assert replace(steady, terms={}) == plain
    step = steady.terms["adversarial"]
    assert step == {"eps": (2 if net in {"shapes", "resnet18"} else 1) / 255, "steps": 1, "selection": "last"}
    assert (steady.ema, steady.regularized_fraction, steady.regularize_every) == (0.999, 0.25, 4)


@pytest.mark.parametrize("net", ["resnet18", "resnet20", "imagenette"])
def test_steady_residual_nets_train_with_sgd_and_no_clip(net):
    settings = recipe(f"steady-{net}")
    assert (settings.optimizer, settings.schedule, settings.weight_decay) == ("sgd", "one_cycle", 5e-4)
    assert settings.clip is None


def test_every_net_and_objective_of_the_papers_has_a_recipe():
    names = {f"{paper}-{rest}" for paper, rests in PAPERS.items() for rest in rests}
    assert names <= set(recipes())
    assert all(found.about for found in recipes().values())


@pytest.mark.parametrize("name", sorted(recipes()))
def test_a_recipes_settings_and_objective_hold(name):
    settings = recipe(name)
    assert isinstance(settings, TrainSettings)
    objective = objective_of(settings)
    assert set(objective.terms) == set(settings.terms)
    lookup("dataset", settings.data)


def test_every_recipes_model_can_be_built():
    points = gg.dataset("shapes", n=10)
    chosen = {
        (recipe(n).model, str(recipe(n).model_settings)): n
        for n in recipes()
        if "swin" not in n and "50" not in n
    }
    for name in chosen.values():
        model = model_for(recipe(name), points).eval()
        with torch.no_grad():
            assert model(points.pixels(torch.arange(1))).shape == (1, 10), name


@pytest.mark.parametrize("test", [{}, {"n": 5}, {"seed": 1}])
def test_images_of_training_are_no_test_images(test):
    with pytest.raises(
        UserError, match="test has the images of training; name others, such as --test.split test"
    ):
        datasets(TrainSettings(data="shapes", data_settings={"seed": 1, "n": 10}, test=test))
    data, other = datasets(
        TrainSettings(data="shapes", data_settings={"n": 10}, test={**test, "split": "test"})
    )
    assert len(data) == 10
    assert other is not None


def test_a_folder_and_a_file_of_ones_own_are_sent_where_they_are_taken(tmp_path):
    with pytest.raises(UserError, match=f"give --data folder --data_settings.path {tmp_path}"):
        datasets(TrainSettings(data=str(tmp_path)))
    with pytest.raises(UserError, match="net.py:make is a file of your own; train it in Python"):
        model_for(TrainSettings(model="net.py:make"), gg.dataset("shapes", n=10))


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        # joo2023 Appendix A, and the weights of its Table 1
        (
            "joo2023-lenet-ce",
            {"optimizer": "adam", "lr": 1e-3, "weight_decay": 4e-5, "epochs": 200, "terms": {}},
        ),
        (
            "joo2023-lenet-iga",
            {"optimizer": "sgd", "lr": 0.1, "weight_decay": 2e-4, "milestones": (50, 80, 150)},
        ),
        (
            "joo2023-resnet18-ce",
            {"optimizer": "adamw", "weight_decay": 1e-2, "milestones": (100, 150), "clip": 0.5},
        ),
        ("joo2023-imagenet100-ce", {"epochs": 90, "milestones": (40, 60, 80), "batch_size": 128}),
        # wang2020: beta s lambda + (1 - beta) CE, beta 0.3
        ("wang2020-resnet20-ssr", {"cross_entropy": 0.7, "terms": {"ssr": {"weight": 0.3}}, "epochs": 50}),
        # tan2023 Appendix B, Table 2
        ("tan2023-resnet18-adversarial", {"epochs": 150, "lr": 0.1, "nesterov": False, "weight_decay": 5e-4}),
        ("tan2023-swin-natural", {"epochs": 400, "optimizer": "adam"}),
        ("tan2023-vgg16-natural", {"epochs": 200, "milestones": (50, 100, 150), "terms": {}}),
    ],
)
def test_recipes_have_the_papers_numbers(name, expected):
    settings = recipe(name)
    assert {key: getattr(settings, key) for key in expected} == expected


@pytest.mark.parametrize(
    ("name", "term", "key", "value"),
    [
        ("joo2023-lenet-hessian", "hessian", "weight", 1e-3),
        ("joo2023-lenet-l2", "l2", "weight", 0.1),
        ("joo2023-lenet-l2-cosine", "l2_cosine", "l2", 0.1),
        ("joo2023-lenet-l2-cosine", "l2_cosine", "cosine", 1.0),
        ("joo2023-lenet-atex", "atex", "weight", 3),
        ("joo2023-lenet-iga", "iga", "weight", 1),
        ("joo2023-resnet18-hessian", "hessian", "weight", 1e-5),
        ("joo2023-resnet18-l2", "l2", "weight", 1.0),
        ("joo2023-imagenet100-hessian", "hessian", "weight", 1e-4),
        ("joo2023-imagenet100-l2", "l2", "weight", 0.3),
        ("joo2023-imagenet100-l2-cosine", "l2_cosine", "l2", 1.0),
        ("tan2023-swin-adversarial", "adversarial", "eps", 8 / 255),
        ("tan2023-swin-adversarial", "adversarial", "step_size", 2 / 255),
        ("wang2020-resnet20-adversarial", "adversarial", "eps", 0.25),
        ("wang2020-resnet20-ig-norm", "ig_norm", "weight", 0.1),
    ],
)
def test_terms_have_the_papers_weights(name, term, key, value):
    assert recipe(name).terms[term][key] == value


def test_iga_has_its_own_activation():
    assert recipe("joo2023-lenet-iga").model_settings["beta"] == 50
    assert recipe("joo2023-lenet-l2").model_settings["beta"] == 3


def test_a_near_miss_is_suggested():
    with pytest.raises(UserError, match="did you mean 'joo2023-lenet-l2-cosine'"):
        recipe("joo2023-lenet-l2_cosine")


def test_changes_go_over_a_recipe_and_deep_ones_keep_their_neighbours():
    settings = recipe("joo2023-lenet-l2-cosine", epochs=3, terms={"l2_cosine": {"cosine": 0.1}})
    assert settings.epochs == 3
    assert settings.terms["l2_cosine"] == {"l2": 0.1, "cosine": 0.1, "batchnorm": "train"}
    assert recipe("joo2023-lenet-l2-cosine").terms["l2_cosine"]["cosine"] == 1.0
    assert recipe("joo2023-lenet-l2-cosine", terms={"l2_cosine": None}).terms == {}


def test_merging_leaves_both_trees_alone():
    under, over = {"a": {"b": 1, "c": 2}}, {"a": {"b": 3}, "d": {"e": 4}}
    assert merge_settings(under, over) == {"a": {"b": 3, "c": 2}, "d": {"e": 4}}
    assert (under, over) == ({"a": {"b": 1, "c": 2}}, {"a": {"b": 3}, "d": {"e": 4}})


def test_a_file_of_settings_may_begin_with_a_recipe(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text("recipe: shapes-quick\nepochs: 2\nmodel_settings: {beta: 3}\n")
    tree = read_tree(path)
    assert (tree["epochs"], tree["model_settings"]["beta"], tree["model_settings"]["init"]) == (2, 3, "he")
    for text, sentence in (("- a\n- b\n", "holds no settings"), ("a: [\n", "not valid YAML")):
        path.write_text(text)
        with pytest.raises(UserError, match=sentence):
            read_tree(path)
    with pytest.raises(UserError, match="cannot be read"):
        read_tree(tmp_path / "none.yaml")


@pytest.mark.parametrize(
    "content",
    [
        bytes(range(256)),
        b"\0\0\0",
        b"epochs: " + b"9" * 5_000,
        b"[" * 5_000,
        b"a: " + b"{a: " * 400 + b"1" + b"}" * 400,
        b"a: &a [1, 2]\n"
        + b"".join(b"%c: &%c [*%c, *%c, *%c]\n" % (c, c, c - 1, c - 1, c - 1) for c in range(98, 120)),
        b"a: !!python/object/apply:os.system [true]",
        b"- 1",
        b"",
    ],
)
def test_a_file_that_holds_no_settings_is_one_sentence(content, tmp_path):
    path = tmp_path / "a.yaml"
    path.write_bytes(content)
    with pytest.raises(UserError, match="not valid YAML|no settings|too deep"):
        read_tree(path)
