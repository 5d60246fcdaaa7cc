"""joo2023, Joo et al.: Towards More Robust Interpretation via Local Gradient Alignment.

ways: how nets are trained; measures: what is measured of them; pictures: maps before and after the attack. The other
files are one table or figure each.
"""

from gyrograd.experiments.joo2023 import (
    appendix_figure1,
    appendix_figure2,
    appendix_figure3,
    appendix_figure4,
    appendix_figure5,
    appendix_figure6,
    appendix_table1,
    appendix_table2,
    appendix_table3,
    appendix_table4,
    figure1,
    figure2a,
    figure2b,
    figure3a,
    figure3b,
    table1,
    table2,
)

__all__ = [
    "appendix_figure1",
    "appendix_figure2",
    "appendix_figure3",
    "appendix_figure4",
    "appendix_figure5",
    "appendix_figure6",
    "appendix_table1",
    "appendix_table2",
    "appendix_table3",
    "appendix_table4",
    "figure1",
    "figure2a",
    "figure2b",
    "figure3a",
    "figure3b",
    "table1",
    "table2",
]
