"""joo2023, Joo et al.: Towards More Robust Interpretation via Local Gradient Alignment.

experiments: the list of tables and figures; variants: how the nets are trained; measures: what is measured; pictures:
maps before and after the attack. The other files serve one figure or table each.
"""

from gyrograd.experiments.joo2023 import experiments

__all__ = ["experiments"]
