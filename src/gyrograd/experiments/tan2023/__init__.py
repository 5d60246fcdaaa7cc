"""tan2023, Tan and Tian: Robust Explanation for Free or At the Cost of Faithfulness.

experiments: the list of tables and figures; variants: how the nets are trained; explainers: the six explainers;
measures: what is measured; drawings: plots and tables. Figures 1 and 2 have files of their own.
"""

from gyrograd.experiments.tan2023 import experiments

__all__ = ["experiments"]
