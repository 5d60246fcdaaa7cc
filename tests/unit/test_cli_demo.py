"""The demo's words: intervals where there are any, losses called losses, and an image whose plain map moves."""

from __future__ import annotations

from dataclasses import replace

from gyrograd.cli import demo
from gyrograd.cli.demo import COLUMNS, NetResult
from gyrograd.numerics.statistics import bootstrap_interval


def nets(n: int) -> list[NetResult]:
    values = [{key: [shift + i / 10 for i in range(n)] for key in COLUMNS} for shift in (0.1, 0.3)]
    return [
        NetResult(name, 2.0 + at, 0.8 - 0.027 * at, own)
        for at, (name, own) in enumerate(zip(("plain", "steady"), values, strict=True))
    ]


def test_one_image_has_a_value_and_no_interval_and_several_have_theirs():
    for row in demo._rows(nets(1))[1:-1]:
        assert row[1:] == ("0.100", "0.300")
    assert "inf" not in " ".join(demo._verdict(nets(1)))
    found = bootstrap_interval(nets(6)[0].values["kept"])
    assert demo._rows(nets(6))[1][1] == f"{found.value:.3f} [{found.low:.3f}, {found.high:.3f}]"


def test_what_got_worse_is_said_and_called_a_fall():
    plain, steady = nets(4)
    worse = replace(steady, values={**steady.values, "Insertion": [0.0, 0.1, 0.2, 0.3]})
    said = " ".join(demo._verdict([plain, worse]))
    assert "The price: accuracy falls by 2.7 points, from 80.0% to 77.3%" in said
    assert "Insertion falls from 0.250 to 0.150 (-0.100" in said
    assert "training takes 1.5 times as long" in said


def test_the_price_is_what_a_reader_who_subtracts_finds():
    """82.67 and 80.53 % are printed as 82.7 and 80.5 %: 2.2 points apart, not 2.1."""
    plain, steady = (
        replace(net, accuracy=share) for net, share in zip(nets(4), (0.8267, 0.8053), strict=True)
    )
    assert "falls by 2.2 points, from 82.7% to 80.5%" in " ".join(demo._verdict([plain, steady]))


def test_the_picture_shows_the_image_whose_two_maps_are_furthest_apart_and_whose_class_stays():
    kept = {"plain": [0.5, 0.0, 0.3, 0.1], "steady": [0.6, 0.9, 0.9, 0.5]}
    same = {"plain": [1.0, 0.0, 1.0, 1.0], "steady": [1.0, 1.0, 1.0, 1.0]}
    both = [NetResult(name, 1.0, 0.5, {"kept": kept[name], "prediction": same[name]}) for name in kept]
    assert demo._apart_most(both) == 2
