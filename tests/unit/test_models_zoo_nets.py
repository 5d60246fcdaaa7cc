"""The nets that come with gyrograd: there, whole, and what their cards say."""

from __future__ import annotations

import pytest
import torch

import gyrograd as gg
from gyrograd.metrics import TopKIntersection
from gyrograd.models import zoo

LENETS = ("cifar10/lenet-ce", "cifar10/lenet-l2-cosine", "cifar10/lenet-steady")
PAIRS = [(f"cifar10/{net}-ce", f"cifar10/{net}-steady") for net in ("resnet20", "resnet18")]
NETS = (*LENETS, *PAIRS[0], *PAIRS[1])
WEIGHTS = {"lenet": 1_116_970, "resnet20": 269_722, "resnet18": 11_173_962}


def held(name: str) -> dict[str, float]:
    """What a card's `check` holds, measured now: on made images, for the data set is not at hand."""
    images = 2 if "resnet18" in name else 8
    net, x = gg.load(name), gg.dataset("shapes", split="test", n=images).pixels()
    gradient, y = gg.attribution("gradient"), gg.predict(net, x)
    hit = gg.attack("top_k", eps=4 / 255, k=102, steps=5, judged_by="overlap")(net, gradient, x, y, seed=0)
    kept = TopKIntersection(k=102)(hit.map_clean, hit.map)
    noise = gg.metric("rps", eps=16 / 255, draws=3)(net, gradient, x, y, seed=0)
    return {"rps": float(noise.mean()), "kept": float(kept.mean())}


def test_the_zoo_holds_what_the_readme_names() -> None:
    assert set(NETS) <= set(zoo.names())


@pytest.mark.parametrize("name", NETS)
def test_a_net_loads_offline_and_its_card_tells_what_was_measured(name: str) -> None:
    model, card = gg.load(name), zoo.card(name)
    assert sum(p.numel() for p in model.parameters()) == WEIGHTS[name.split("/")[1].split("-")[0]]
    with torch.no_grad():
        assert model(torch.rand(2, 3, 32, 32)).shape == (2, 10)
    for key in ("data", "objective", "command", "hardware", "sha256", "epochs", "seed"):
        assert card[key] not in (None, "")
    for stat in (card["accuracy"], *card["robustness"].values()):
        assert stat["low"] <= stat["value"] <= stat["high"]
        assert stat["n"] >= 128
    assert card["accuracy"]["n"] == 10_000


def test_cards_match_what_their_weights_measure_and_training_for_it_makes_maps_hold() -> None:
    measured = {name: held(name) for name in NETS}
    for name, numbers in measured.items():
        assert numbers == pytest.approx(zoo.card(name)["check"]["numbers"], abs=0.005), name
    plain, aligned, steady = (measured[name] for name in LENETS)
    assert plain["rps"] + 0.05 < aligned["rps"] < steady["rps"]
    assert plain["kept"] + 0.05 < aligned["kept"] < steady["kept"] - 0.2
    for plain_net, steady_net in PAIRS:
        assert measured[plain_net]["kept"] + 0.2 < measured[steady_net]["kept"]
