"""Inputs of any shape: images of one to five channels, tables, time series and volumes."""

from __future__ import annotations

import json

import pytest
import torch
from every_method import small
from torch import Tensor, nn

import gyrograd as gg
from gyrograd.attributions.lrp import LRP
from gyrograd.audit import Preset
from gyrograd.measurement import Cell
from gyrograd.models import InShape, Standardized

TARGET = torch.tensor([0, 2, 1])


def drawn(*shape: int) -> Tensor:
    return torch.randn(3, *shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def net_for(shape: tuple[int, ...]) -> nn.Module:
    """A net of two layers and more for inputs of this shape, smooth, in float64."""
    torch.manual_seed(0)
    axes = len(shape) - 1
    if axes == 0:
        layers = [nn.Linear(shape[0], 12), nn.Softplus(), nn.Linear(12, 8), nn.SiLU(), nn.Linear(8, 3)]
        return nn.Sequential(*layers).double().eval()
    conv, norm, pool, mean = (
        getattr(nn, f"{name}{axes}d") for name in ("Conv", "BatchNorm", "MaxPool", "AdaptiveAvgPool")
    )
    layers = [
        conv(shape[0], 4, 3, padding=1), norm(4), nn.Softplus(), pool(2), conv(4, 4, 3, padding=1), nn.SiLU(), mean(2),
        nn.Flatten(), nn.Linear(4 * 2**axes, 3),
    ]  # fmt: skip
    return nn.Sequential(*layers).double().eval()


SHAPES = {"table": (6,), "series": (2, 12), "volume": (1, 4, 6, 4)}
GRADIENT_METHODS = (
    "gradient", "input_x_gradient", "integrated_gradients", "smoothgrad", "unigrad", "gradient_shap", "lrp",
    "guided_backprop", "deep_lift",
)  # fmt: skip


@pytest.mark.parametrize("form", SHAPES)
@pytest.mark.parametrize("name", GRADIENT_METHODS)
def test_maps_of_any_shape_are_those_of_the_flat_input_with_all_derivatives(form, name):
    """The same net behind a reshape has the same map; and its derivative is that of differences."""
    x, model = drawn(*SHAPES[form]), net_for(SHAPES[form])
    flat = InShape(model, SHAPES[form]).eval()
    explain = small("attribution", name)
    map = explain(model, x, TARGET)
    assert map.shape == x.shape
    torch.testing.assert_close(explain(flat, x.reshape(3, 1, 1, -1), TARGET).reshape(x.shape), map)
    along = torch.randn(x.shape, dtype=x.dtype, generator=torch.Generator().manual_seed(1))
    leaf = x.clone().requires_grad_()
    (slope,) = torch.autograd.grad((explain(model, leaf, TARGET, create_graph=True) * along).sum(), leaf)
    h = 1e-6
    moved = [(explain(model, x + side * h * along, TARGET) * along).sum() for side in (1, -1)]
    expected = float(moved[0] - moved[1]) / (2 * h)
    assert abs(float((slope * along).sum()) - expected) <= 1e-5 * max(abs(expected), float(slope.norm()))


def test_lrp_of_inputs_that_are_no_images_has_no_box_of_pixels_in_its_first_layer():
    x, model = drawn(6), net_for((6,))
    torch.testing.assert_close(
        gg.attribution("lrp")(model, x, TARGET), LRP.variant("paper", first="same")(model, x, TARGET)
    )
    assert not torch.allclose(gg.attribution("lrp")(model, x, TARGET), LRP()(model, x, TARGET))


@pytest.mark.parametrize("name", ["lime", "shap"])
def test_each_feature_of_a_table_is_a_part_of_its_own(name):
    x, linear = drawn(6), nn.Linear(6, 3).double()
    map = gg.attribution(name, draws=400)(linear, x, TARGET)
    # Of a linear model a feature's part is its weight times its value.
    expected = x * linear.weight[TARGET]
    tolerance = {"shap": 1e-6, "lime": 0.2}[name]
    assert (map - expected).abs().max() <= tolerance * expected.abs().max()


# --- attacks and metrics --------------------------------------------------------------------------------


@pytest.mark.parametrize("form", SHAPES)
@pytest.mark.parametrize("name", ["auto", "top_k", "untargeted_map", "mass_center", "random", "pgd"])
def test_attacks_stay_in_their_ball_and_know_no_box(form, name):
    x, model = 5 * drawn(*SHAPES[form]), net_for(SHAPES[form])
    hit = small("attack", name, eps=0.2, **{"k": 2} if name == "top_k" else {})(
        model, gg.attribution("gradient"), x, TARGET, seed=3
    )
    assert hit.x.shape == hit.map.shape == x.shape
    assert torch.equal(hit.x_clean, x)
    assert (hit.x - x).abs().max() <= 0.2 + 1e-9
    outside = (x < 0) | (x > 1)
    if name != "auto":  # it moves nothing where no search lowers the share of the top
        assert (hit.x - x)[outside].abs().max() > 0  # values outside [0, 1] are moved, too, and not cut to it
    torch.testing.assert_close(hit.map, gg.attribution("gradient")(model, hit.x, TARGET))


def test_an_attack_on_a_table_finds_what_the_attack_on_its_row_of_pixels_finds():
    x, model = drawn(6), net_for((6,))
    attack, map = gg.attack("top_k", eps=0.3, k=2, steps=5), gg.attribution("gradient")
    hit = attack(model, map, x, TARGET, seed=1)
    free = gg.attack("top_k", eps=0.3, k=2, steps=5, box="none")
    row = free(InShape(model, (6,)).eval(), map, x.reshape(3, 1, 1, 6), TARGET, seed=1)
    assert torch.equal(hit.x, row.x.reshape(3, 6))
    with pytest.raises(gg.UserError, match="keep them as tensors"):
        hit.save("nowhere")


@pytest.mark.parametrize("form", SHAPES)
@pytest.mark.parametrize("name", ["insertion", "deletion"])
def test_pixel_games_take_features_in_the_order_of_the_map(form, name):
    x, model = drawn(*SHAPES[form]), net_for(SHAPES[form])
    map, flat = gg.attribution("gradient"), InShape(model, SHAPES[form]).eval()
    found = gg.metric(name, ratios=(0.0, 0.5, 1.0))(model, map, x, TARGET)
    torch.testing.assert_close(
        found, gg.metric(name, ratios=(0.0, 0.5, 1.0))(flat, map, x.reshape(3, 1, 1, -1), TARGET)
    )
    ends = [model(t).softmax(1)[range(3), TARGET] for t in (torch.zeros_like(x), x)]
    whole = gg.metric(name, ratios=(0.0, 1.0))(model, map, x, TARGET)
    torch.testing.assert_close(whole, (ends[0] + ends[1]) / 2)


def test_noise_around_what_is_no_image_is_not_cut_to_pixels():
    x, model = 3 * drawn(6), net_for((6,))
    metric = {"eps": 0.1, "draws": 4}
    cut = gg.metric("rps", clip=True, **metric)(model, gg.attribution("gradient"), x, TARGET)
    free = gg.metric("rps", clip=False, **metric)(model, gg.attribution("gradient"), x, TARGET)
    assert torch.equal(cut, free)


# --- images of other channels and sides -----------------------------------------------------------------


@pytest.mark.parametrize("shape", [(1, 8, 8), (2, 6, 10), (4, 8, 8), (5, 7, 12)])
def test_images_of_one_to_five_channels_and_any_sides_are_explained_attacked_and_audited(shape, tmp_path):
    model = net_for(shape).float()
    x = torch.rand(3, *shape, generator=torch.Generator().manual_seed(0))
    for name in ("gradient", "lrp", "guided_backprop", "grad_cam", "occlusion"):
        map = small("attribution", name)(model, x, TARGET)
        assert map.shape == x.shape
        assert map.abs().max() > 0
    hit = gg.attack("top_k", steps=2)(model, gg.attribution("gradient"), x, TARGET)
    assert hit.x.shape == x.shape
    if shape[0] != 5:
        return  # the audit of one of them will do
    card = gg.audit(model, x[:2], TARGET[:2], methods=["gradient"], steps=1, sweep={}, points=3, draws=1)
    page = card.to_html(tmp_path / "card.html").read_text()
    assert page.count("data:image/png") >= 1
    assert card.document["data"]["shape"] == list(shape)


# --- the audit of features ------------------------------------------------------------------------------


def test_standardising_gives_deviations_of_one_and_leaves_still_features_alone():
    scales = torch.tensor([1.0, 100.0, 0.0], dtype=torch.float64)
    x = 7 + scales * torch.randn(20, 3, dtype=torch.float64)
    linear = nn.Linear(3, 2).double()
    model, u = Standardized.of(linear, x)
    torch.testing.assert_close(u[:, :2].std(0, correction=0), torch.ones(2, dtype=torch.float64))
    assert torch.equal(u[:, 2], torch.zeros(20, dtype=torch.float64))
    torch.testing.assert_close(model(u), linear(x))
    map = gg.attribution("gradient")(model, u, torch.zeros(20, dtype=torch.int64))
    torch.testing.assert_close(map, (model.std * linear.weight[0]).expand_as(map))
    assert torch.equal(map[:, 2], torch.zeros(20, dtype=torch.float64))
    channels, v = Standardized.of(nn.Identity(), torch.randn(5, 2, 30, dtype=torch.float64))
    assert channels.std.shape == (1, 2, 1)
    torch.testing.assert_close(v.std((0, 2), correction=0), torch.ones(2, dtype=torch.float64))


@pytest.mark.parametrize("form", ["table", "series"])
def test_the_audit_of_features_is_in_standard_deviations_and_does_not_depend_on_their_units(form, tmp_path):
    x, core = torch.cat([drawn(*SHAPES[form]), 2 * drawn(*SHAPES[form])]), net_for(SHAPES[form])
    y = TARGET.repeat(2)
    units = torch.tensor([10.0, 0.1, 3.0, 1.0, 100.0, 7.0], dtype=torch.float64)
    units = (units if form == "table" else units[: SHAPES[form][0]]).view(-1, *[1] * (x.dim() - 2))

    class InOtherUnits(nn.Module):
        def forward(self, z: Tensor) -> Tensor:
            return core(z / units - 2)

    methods = ["gradient"]
    one = gg.audit(core, x, y, methods=methods, eps=0.2, steps=2)
    other = gg.audit(
        InOtherUnits().eval(), (x + 2) * units, y, methods=methods, eps=0.2, steps=2, out=tmp_path
    )
    for a, b in zip(one.document["methods"], other.document["methods"], strict=True):
        for key, column in a["columns"].items():
            assert column["value"] == pytest.approx(b["columns"][key]["value"], rel=1e-3, abs=1e-3), key
    assert one.document["form"] == form
    card = json.loads((tmp_path / "card.json").read_text())
    assert card["settings"]["eps"] == 0.2
    page = (tmp_path / "report.html").read_text()
    assert "standard deviations" in page
    assert "255" not in page.split("</style>")[-1].split("base64")[0]
    assert page.count("data:image/png") >= len(methods)
    assert "gradient" in other.summary().lower()
    assert len(other.records["gradient"].values["top_k_kept"]) == len(x)


def test_the_audit_of_a_table_names_its_features_and_tries_lime_and_shap(tmp_path):
    x = torch.randn(5, 4, generator=torch.Generator().manual_seed(0)) * torch.tensor([1.0, 5.0, 0.0, 1.0])
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2)).eval()
    card = gg.audit(model, x, features=["age", "<weight>", "ward", "score"], steps=1)
    names = [method["name"] for method in card.document["methods"]]
    assert {"gradient", "integrated_gradients", "smoothgrad", "lime", "shap"} <= set(names)
    assert "ward" in card.summary()  # it never varies
    assert card.document["methods"][names.index("lrp")]["notes"] == ["variant paper, which suits this model"]
    assert card.grade in {"steady", "shaky", "unsafe"}
    share = card.document["methods"][0]["share"]
    assert share[2] == 0
    assert sum(share) == pytest.approx(1)
    assert "<weight>" not in card.to_html(tmp_path / "page.html").read_text()


def test_a_method_without_a_derivative_is_not_the_steadiest_of_a_table():
    """Its map is the same for every example, so that no attack by transfer moves it."""

    def constant(model: nn.Module, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return torch.arange(6.0).expand_as(x)

    x = torch.randn(16, 6, generator=torch.Generator().manual_seed(1))
    card = gg.audit(
        net_for((6,)).float(),
        x,
        methods={"gradient": gg.attribution("gradient"), "constant": constant},
        steps=1,
        eps=1.0,
    )
    kept = {method["name"]: method["columns"]["top_k_kept"]["value"] for method in card.document["methods"]}
    assert kept["constant"] == 1 > kept["gradient"]
    assert "gradient, the steadiest map measured" in card.document["verdict"]["sentences"][0]
    assert next(m for m in card.document["methods"] if m["name"] == "constant")["grade"] == "shaky"


def test_maps_of_features_that_mean_nothing_are_flagged_and_not_recommended():
    def squares(model: nn.Module, x: Tensor, target: Tensor, *, create_graph: bool = False) -> Tensor:
        return x * x

    def lost(model: nn.Module, x: Tensor, target: Tensor, *, create_graph: bool = False) -> Tensor:
        return x * torch.nan

    x = torch.randn(6, 6, generator=torch.Generator().manual_seed(1))
    methods = {"lost": lost, "squares": squares}
    card = gg.audit(net_for((6,)).float(), x, methods=methods, steps=1, eps=0.01)
    found = {(flag["where"], flag["name"]) for flag in card.document["flags"]}
    assert {("lost", "not_finite_map"), ("squares", "ignores_model")} <= found
    assert [method["grade"] for method in card.document["methods"]] == [None, "shaky"]
    assert card.document["methods"][0]["columns"]["top_k_kept"] is None
    told = card.summary()
    assert "note: squares: ignores model. " in told
    assert "note: 6 examples are few" in told
    assert (
        "Nothing is recommended"
        in gg.audit(net_for((6,)).float(), x, methods={"squares": squares}, steps=1, eps=0.01).summary()
    )
    with pytest.raises(gg.UserError, match="ranks nothing"):
        gg.audit(nn.Linear(1, 2), x[:, :1])


def test_one_map_for_all_rows_of_a_table_is_no_flag_since_a_linear_model_has_one():
    x, linear = drawn(6), nn.Linear(6, 3).double()
    card = gg.audit(linear, x, [0, 0, 0], methods=["gradient"], steps=1)
    assert card.document["flags"] == []


def test_numbers_of_an_audit_of_features_are_those_of_metric_attack_and_noise():
    x = torch.randn(16, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    model, gradient, y = net_for((6,)), gg.attribution("gradient"), torch.arange(16) % 3
    found = gg.audit(model, x, y, methods=["gradient"], eps=1.0, steps=1).values["gradient"]
    standard, u = Standardized.of(model, x)
    search = gg.attack("auto", eps=(0.25, 0.5, 1.0), steps=1, top_fraction=0.5)
    hit = search(standard, gradient, u, y, seed=0)[-1]
    noise = gg.attack("random", eps=1.0)(standard, gradient, u, y, seed=0)

    def kept(after):
        tops = [{*map.abs().topk(3).indices.tolist()} for map in (*after.map_clean, *after.map)]
        return [len(a & b) / 3 for a, b in zip(tops[: len(x)], tops[len(x) :], strict=True)]

    alike = list(zip(kept(hit), kept(noise), noise.prediction_kept.tolist(), strict=True))
    assert any(drawn < attacked and same for attacked, drawn, same in alike)  # or noise would not show
    expected = {
        "top_k_kept": [min(attacked, drawn) if same else attacked for attacked, drawn, same in alike],
        "noise_kept": kept(noise),
        "noise_cosine": gg.metric("rps", eps=2.0, draws=10)(standard, gradient, u, y, seed=0).tolist(),
        "insertion": gg.metric("insertion", substrate="zero")(standard, gradient, u, y).tolist(),
    }
    for key, values in expected.items():
        assert list(found[key].values()) == pytest.approx(values, abs=1e-9), key


def test_an_audit_of_features_measures_only_what_its_folder_lacks(tmp_path, monkeypatch):
    x, model = drawn(6), net_for((6,))
    given = {"methods": ["gradient"], "steps": 1, "out": tmp_path}
    first = gg.audit(model, x, TARGET, **given)
    shards = {path: path.read_bytes() for path in (tmp_path / "records").glob("*/*.json")}
    gone = next(path for path in shards if "under-auto" in path.parent.name)
    gone.unlink()
    measured = []
    record = Cell.record
    monkeypatch.setattr(Cell, "record", lambda cell, at: measured.append(cell.name) or record(cell, at))
    again = gg.audit(model, x, TARGET, **given)
    assert measured == ["gradient under auto"]
    assert {path: path.read_bytes() for path in shards} == shards
    assert again.values == first.values
    assert again.document["verdict"] == first.document["verdict"]


def test_probabilities_of_a_table_become_logits_and_wrong_labels_are_noted():
    x, net = drawn(6), net_for((6,))
    model = nn.Sequential(net, nn.Softmax(1)).eval()
    predicted = gg.predict(net, x)
    card = gg.audit(model, x, predicted, methods=["gradient"], steps=1)
    first, *_ = card.document["settings"]["notes"]
    assert first.startswith("The model returns probabilities")
    assert not any("guessing" in note for note in card.document["settings"]["notes"])
    wrong = gg.audit(model, x, (predicted + 1) % 3, methods=["gradient"], steps=1)
    assert "note: Accuracy is not measurably above guessing (1 of 3 classes)" in wrong.summary()
    with pytest.raises(gg.UserError, match="one number per example"):
        gg.audit(nn.Linear(6, 1).double(), x)


def test_settings_that_an_audit_of_features_does_not_have_are_refused():
    x, model = drawn(6), net_for((6,))
    for changes, sentence in (
        ({"attacks": ["auto"]}, "has no setting 'attacks'"),
        ({"eps": -1.0}, "in standard deviations"),
        ({"features": ["a"]}, "name each column"),
        ({"preset": "slow"}, "preset"),
        ({"preset": Preset(methods=("gradient",))}, "quick, standard or thorough"),
        ({"pointz": 3}, "has no setting 'pointz'"),
        ({"index": [1, 2, 3]}, "has no setting 'index'"),
        ({"classes": ["one"]}, "1 names of classes and the model has 3"),
    ):
        with pytest.raises(gg.UserError, match=sentence):
            gg.audit(model, x, TARGET, **changes)
    with pytest.raises(gg.UserError, match="two or more"):
        gg.audit(model, x[:1], TARGET[:1])
