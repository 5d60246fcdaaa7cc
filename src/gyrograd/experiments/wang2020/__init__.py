"""wang2020, Wang et al.: Smoothed Geometry for Robust Attribution (supplementary material).

experiments: every table and figure, a row each; ways: how nets are trained; maps: what is attacked; measures: what is
measured; sweeps: nets over a setting; pictures: what is drawn.
"""

from gyrograd.experiments.wang2020 import experiments

__all__ = ["experiments"]
