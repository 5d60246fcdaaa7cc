"""tan2023, Tan and Tian: Robust Explanation for Free or At the Cost of Faithfulness.

ways: how nets are trained; explainers: the six; measures: what is measured; sweeps: SmoothGrad over its noise. The
other files are one table or figure each.
"""

from gyrograd.experiments.tan2023 import figure1, figure2, figure3, figure4, figure5, figure6, table1

__all__ = ["figure1", "figure2", "figure3", "figure4", "figure5", "figure6", "table1"]
