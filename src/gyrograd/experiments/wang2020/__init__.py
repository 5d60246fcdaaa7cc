"""wang2020, Wang et al.: Smoothed Geometry for Robust Attribution (supplementary material).

experiments: the list of tables and figures; variants: how the nets are trained; maps: the attacked maps; measures: what
is measured; sweeps: nets over a training setting; pictures: maps as pictures.
"""

from gyrograd.experiments.wang2020 import experiments

__all__ = ["experiments"]
