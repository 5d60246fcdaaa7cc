"""Reports: pages and figures as pure functions of plain values and arrays. No torch."""

from gyrograd.reporting.card import write_report
from gyrograd.reporting.comparison import compared, comparison_page
from gyrograd.reporting.figures import map_grid
from gyrograd.reporting.leaderboard import boards, found_audits, leaderboard_page
from gyrograd.reporting.page import Figure, Section, Table, page, write_page
from gyrograd.reporting.schema import read_card
from gyrograd.reporting.values import write_values

__all__ = [
    "Figure",
    "Section",
    "Table",
    "boards",
    "compared",
    "comparison_page",
    "found_audits",
    "leaderboard_page",
    "map_grid",
    "page",
    "read_card",
    "write_page",
    "write_report",
    "write_values",
]
