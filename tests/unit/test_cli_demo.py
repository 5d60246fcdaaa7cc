"""The demo's words: intervals where there are any, and none made up for one image."""

from __future__ import annotations

from gyrograd.cli import demo
from gyrograd.cli.demo import COLUMNS, Measured
from gyrograd.numerics.statistics import bootstrap_interval, paired_difference


def nets(n: int) -> list[Measured]:
    values = [{key: [shift + i / 10 for i in range(n)] for key in COLUMNS} for shift in (0.1, 0.3)]
    return [
        Measured(name, 2.0, 0.5, own, None) for name, own in zip(("plain", "aligned"), values, strict=True)
    ]


def test_one_image_has_a_value_and_no_interval() -> None:
    for row in demo._rows(nets(1))[1:-1]:
        assert row[1:] == ("0.100", "0.300")
    verdict = " ".join(demo._verdict(nets(1)))
    assert "inf" not in verdict
    assert "RPS (cosine, noise 16/255) +0.200." in verdict


def test_several_images_have_their_bootstrap_interval() -> None:
    plain, aligned = nets(6)
    found = bootstrap_interval(plain.values["RPS"])
    assert demo._rows([plain, aligned])[1][1] == f"{found.value:.3f} [{found.low:.3f}, {found.high:.3f}]"
    change = paired_difference(aligned.values["RPS"], plain.values["RPS"])
    assert (
        f"{change.value:+.3f} [{change.low:+.3f}, {change.high:+.3f}]" in demo._verdict([plain, aligned])[0]
    )
