"""A plug-in for gyrograd: each file registers one method, each line here loads one."""

from gyrograd_halves import left_half as left_half
from gyrograd_halves import left_mass as left_mass
from gyrograd_halves import left_penalty as left_penalty
from gyrograd_halves import left_shift as left_shift
