"""wang2020, Wang et al.: Smoothed Geometry for Robust Attribution (supplementary material).

ways: how nets are trained; maps: what is attacked; measures: what is measured; sweeps: nets over a setting; pictures:
what is drawn. The other files are one table or figure each.
"""

from gyrograd.experiments.wang2020 import (
    figure6,
    figure7,
    figure8,
    figure9,
    figure10,
    table2,
    table3,
    table4,
    table5,
    table6,
)

__all__ = [
    "figure6",
    "figure7",
    "figure8",
    "figure9",
    "figure10",
    "table2",
    "table3",
    "table4",
    "table5",
    "table6",
]
