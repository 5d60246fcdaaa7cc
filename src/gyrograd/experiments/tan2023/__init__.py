"""tan2023, Tan and Tian: Robust Explanation for Free or At the Cost of Faithfulness.

experiments: the table and every figure, a row each; ways: how nets are trained; explainers: the six; measures: what is
measured; drawings: what is drawn of the numbers. Figures 1 and 2 have files of their own.
"""

from gyrograd.experiments.tan2023 import experiments

__all__ = ["experiments"]
