"""The nets that come with gyrograd: there, whole, and what their cards say."""

from __future__ import annotations

import pytest
import torch

import gyrograd as gg
from gyrograd.models import zoo

NETS = ("cifar10/lenet-ce", "cifar10/lenet-l2-cosine")


def test_the_zoo_holds_what_the_readme_names() -> None:
    assert set(NETS) <= set(zoo.names())


@pytest.mark.parametrize("name", NETS)
def test_a_net_loads_offline_and_its_card_tells_what_was_measured(name: str) -> None:
    model, card = gg.load(name), zoo.card(name)
    assert sum(p.numel() for p in model.parameters()) == 1_116_970
    with torch.no_grad():
        assert model(torch.rand(2, 3, 32, 32)).shape == (2, 10)
    for key in ("data", "objective", "command", "hardware", "sha256", "epochs", "seed"):
        assert card[key] not in (None, "")
    for stat in (card["accuracy"], *card["robustness"].values()):
        assert stat["low"] <= stat["value"] <= stat["high"]
        assert stat["n"] == 10_000


def test_the_aligned_net_is_steadier_under_noise_than_the_plain_one() -> None:
    # On made images, which neither net has seen: the alignment is a property of the function, not of the data.
    data = gg.dataset("shapes", split="test", n=48)
    x, gradient, rps = data.pixels(), gg.attribution("gradient"), gg.metric("rps", eps=16 / 255, draws=3)
    plain, aligned = (rps(net, gradient, x, gg.predicted(net, x), seed=0) for net in map(gg.load, NETS))
    assert (aligned - plain).mean() > 0.05
