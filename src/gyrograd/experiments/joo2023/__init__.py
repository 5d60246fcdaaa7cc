"""joo2023, Joo et al.: Towards More Robust Interpretation via Local Gradient Alignment.

experiments: every table and figure, a row each; ways: how nets are trained; measures: what is measured of them;
pictures: maps before and after the attack. The other files are what one figure or table alone needs.
"""

from gyrograd.experiments.joo2023 import experiments

__all__ = ["experiments"]
