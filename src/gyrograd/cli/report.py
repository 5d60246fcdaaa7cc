"""gyrograd report: an audit's page again, from its card."""

from __future__ import annotations

from pathlib import Path

from gyrograd.errors import printable


def report(folder: Path) -> None:
    """Write the report of an audit again, from its card.

    Writes report.html, report.md and figures/ from card.json and pictures.npz.

    Args:
        folder: folder of the audit, or its card.json or report.html.
    """
    from gyrograd.reporting import read_card, write_report
    from gyrograd.reporting.schema import card_path

    print(printable(write_report(read_card(folder), card_path(folder).parent)))
