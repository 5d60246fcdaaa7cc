"""Reports: pages and figures as pure functions of plain values and arrays. No torch."""

from gyrograd.renames import keep_old_names
from gyrograd.reporting.card import write_report
from gyrograd.reporting.comparison import compare_audits, comparison_page
from gyrograd.reporting.figures import map_grid
from gyrograd.reporting.leaderboard import boards, find_audits, leaderboard_page
from gyrograd.reporting.page import Figure, Section, Table, page, write_page
from gyrograd.reporting.schema import read_card
from gyrograd.reporting.values import write_values

__all__ = [
    "Figure",
    "Section",
    "Table",
    "boards",
    "compare_audits",
    "comparison_page",
    "find_audits",
    "leaderboard_page",
    "map_grid",
    "page",
    "read_card",
    "write_page",
    "write_report",
    "write_values",
]

keep_old_names(
    __name__,
    compared="gyrograd.reporting.compare_audits",
    found_audits="gyrograd.reporting.find_audits",
)
