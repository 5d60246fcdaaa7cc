"""Elementwise CUDA kernels that torch compiles at first use: one launch where tensor operations need a hundred.

Each has its twin in tensor operations, which the CPU uses and the tests compare with.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from torch import Tensor
from torch.cuda import jiterator

_PHILOX = """
template <typename T> T philox_word(T key, T place, T upper) {
  unsigned int k0 = (unsigned int)key, k1 = (unsigned int)((unsigned long long)key >> 32);
  unsigned long long block = (unsigned long long)place >> 2;
  unsigned int c0 = (unsigned int)block, c1 = (unsigned int)(block >> 32);
  unsigned int c2 = (unsigned int)upper, c3 = (unsigned int)((unsigned long long)upper >> 32);
  for (int round = 0; round < 10; ++round) {
    unsigned long long p0 = 0xD2511F53ull * c0, p1 = 0xCD9E8D57ull * c2;
    c0 = (unsigned int)(p1 >> 32) ^ c1 ^ k0;
    c1 = (unsigned int)p1;
    c2 = (unsigned int)(p0 >> 32) ^ c3 ^ k1;
    c3 = (unsigned int)p0;
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  int lane = (int)(place & 3);
  return (T)(lane == 0 ? c0 : lane == 1 ? c1 : lane == 2 ? c2 : c3);
}
"""

_SOFTPLUS_BEND = """
template <typename T> T softplus_bend(T z, T tangent, T slope, T beta, T threshold) {
  T scaled = beta * z;
  if (scaled > threshold) return (T)0;
  T gate = (T)1 / ((T)1 + exp(-scaled));
  return beta * gate * ((T)1 - gate) * tangent * slope;
}
"""


def philox_words(key: Tensor, place: Tensor, upper: int) -> Tensor:
    """The random 32-bit word of each place under each key, in int64; `upper` holds counter words 2 and 3."""
    # A kernel takes signed 64-bit numbers; the bits are the same.
    signed = upper - (1 << 64) if upper >= 1 << 63 else upper
    words: Tensor = _compiled(_PHILOX, ("upper",))(key, place, upper=signed)
    return words


def softplus_bend(z: Tensor, tangent: Tensor, slope: Tensor, beta: float, threshold: float) -> Tensor:
    """The second derivative of Softplus at z, times tangent and slope."""
    settings = {"beta": beta, "threshold": threshold}
    bent: Tensor = _compiled(_SOFTPLUS_BEND, tuple(settings))(z, tangent, slope, **settings)
    return bent


@cache
def _compiled(code: str, settings: tuple[str, ...]) -> Callable[..., Any]:
    made: Callable[..., Any] = jiterator._create_jit_fn(code, **dict.fromkeys(settings, 0))
    return made
