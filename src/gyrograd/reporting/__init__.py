"""Reports: pages and figures as pure functions of plain values and arrays. No torch."""

from gyrograd.reporting.figures import map_grid
from gyrograd.reporting.page import Figure, Section, Table, page, write_page

__all__ = ["Figure", "Section", "Table", "map_grid", "page", "write_page"]
