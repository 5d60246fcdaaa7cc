"""Random numbers that belong to an example, not to a batch.

A number is a pure function of (key of the example, stream, position): Philox4x32-10 (Salmon et al. 2011), a
counter through ten keyed rounds, written in tensor operations; on CUDA in one kernel, to the same bits. So the
results do not depend on batch size, device or number of processes, and the global generators are neither read nor
moved. `stream` keeps the draws of different purposes apart. A shape (n, ...) is a prefix of every (m, ...) with
m > n.

Uniform numbers are the same bits everywhere; normal ones go through log and cos in float64, where devices may
differ in the last place.
"""

import math
from typing import TypeAlias

import torch
from jaxtyping import Int
from torch import Tensor

from gyrograd.errors import UserError
from gyrograd.numerics.kernels import philox_words
from gyrograd.types import Inputs, Seed

Keys: TypeAlias = Int[Tensor, " b"]

_WORD = 0xFFFFFFFF
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)
_ROUNDS = 10
# Bits a uniform number gets: the most that leave it exact below 1. float64 takes the bits of float32, so that
# a model gives the same draws in both.
_BITS = {torch.float16: 11, torch.bfloat16: 8, torch.float32: 24, torch.float64: 24}
# Counter words 2 and 3 of key derivation; no stream number reaches them (streams are below 2**63).
_DERIVE = 1 << 63


def keys(seed: Seed, b: int, device: torch.device | str | None = None) -> Keys:
    """One key for each of b examples: well mixed from (seed, row) for an int, a tensor of b keys as it is."""
    if isinstance(seed, Tensor):
        if seed.shape != (b,):
            raise UserError(
                f"The seeds have shape {tuple(seed.shape)} for {b} examples; give one key for each example."
            )
        return seed.to(device=device, dtype=torch.int64)
    if not 0 <= seed < 1 << 64:
        raise UserError(f"Seed {seed} is out of range; give an integer from 0 to 2**64 - 1.")
    rows = torch.arange(b, device=device)
    return _joined(_philox((rows & _WORD, rows >> 32, 0, _DERIVE >> 32), (seed & _WORD, seed >> 32)))


def subkeys(keys: Keys, stream: int) -> Keys:
    """A new key for each example, for a part with streams of its own (say, the map at each attack step)."""
    low, high = _split_stream(stream)
    if keys.is_cuda and stream < 1 << 61:
        places = 4 * stream + torch.arange(2, device=keys.device)
        return _joined(philox_words(keys[:, None], places, _DERIVE | 1).unbind(1))
    return _joined(_philox((low, high, 1, _DERIVE >> 32), _split_keys(keys)))


def uniform(
    keys: Keys, shape: tuple[int, ...], *, stream: int = 0, dtype: torch.dtype = torch.float32
) -> Inputs:
    """Uniform in [0, 1), multiples of 2**-24; float32 and float64 hold the same numbers."""
    if dtype not in _BITS:
        raise UserError(f"Random numbers have no dtype {dtype}; give torch.float32 or torch.float64.")
    bits = _BITS[dtype]
    return (_words(keys, shape, stream) >> (32 - bits)).to(dtype) * 2.0**-bits


def normal(
    keys: Keys, shape: tuple[int, ...], *, stream: int = 0, dtype: torch.dtype = torch.float32
) -> Inputs:
    """Standard normal by Box-Muller in float64; finite always (at most 6.7 from zero)."""
    n = math.prod(shape)
    words = _words(keys, (n + n % 2,), stream).view(len(keys), -1, 2).to(torch.float64)
    # The radius takes (0, 1], so its logarithm is finite.
    radius = ((words[..., 0] + 1) * 2.0**-32).log_().mul_(-2).sqrt_()
    angle = words[..., 1] * (2 * math.pi * 2.0**-32)
    pairs = torch.stack((radius * angle.cos(), radius * angle.sin()), -1)
    return pairs.flatten(1)[:, :n].to(dtype).reshape(len(keys), *shape)


def signs(
    keys: Keys, shape: tuple[int, ...], *, stream: int = 0, dtype: torch.dtype = torch.float32
) -> Inputs:
    """-1 or 1, equally likely."""
    return (_words(keys, shape, stream) >> 31).to(dtype) * 2 - 1


def integers(keys: Keys, shape: tuple[int, ...], high: int, *, stream: int = 0) -> Int[Tensor, "b ..."]:
    """Integers in [0, high); their probabilities differ by less than 2**-32."""
    if not 1 <= high <= 1 << 31:
        raise UserError(f"high is {high}; give an integer from 1 to 2**31.")
    return (_words(keys, shape, stream) * high) >> 32


def permutation(keys: Keys, n: int, *, stream: int = 0) -> Int[Tensor, "b n"]:
    """A random order of 0 ... n-1 for each example: the order of n random 63-bit numbers."""
    pairs = _words(keys, (n, 2), stream)
    return ((pairs[..., 0] << 31) ^ pairs[..., 1]).argsort(dim=1, stable=True)


def _words(keys: Keys, shape: tuple[int, ...], stream: int) -> Int[Tensor, "b ..."]:
    """One 32-bit word for each position, four from each counter value."""
    n = math.prod(shape)
    if keys.is_cuda:
        _split_stream(stream)
        places = torch.arange(n, device=keys.device)
        return philox_words(keys[:, None], places, stream).reshape(len(keys), *shape)
    blocks = torch.arange((n + 3) // 4, device=keys.device)
    low, high = _split_keys(keys)
    counter = ((blocks & _WORD)[None], (blocks >> 32)[None], *_split_stream(stream))
    words = torch.stack(_philox(counter, (low[:, None], high[:, None])), -1)
    return words.reshape(len(keys), words[0].numel())[:, :n].reshape(len(keys), *shape)


def _split_keys(keys: Keys) -> tuple[Tensor, Tensor]:
    wide = keys.to(torch.int64)
    return wide & _WORD, (wide >> 32) & _WORD


def _split_stream(stream: int) -> tuple[int, int]:
    if not 0 <= stream < _DERIVE:
        raise UserError(f"Stream {stream} is out of range; give an integer from 0 to 2**63 - 1.")
    return stream & _WORD, stream >> 32


def _joined(words: tuple[Tensor, ...]) -> Tensor:
    """A non-negative 63-bit key of the first two words."""
    return (words[0] << 31) ^ words[1]


Word: TypeAlias = Tensor | int


def _philox(counter: tuple[Word, Word, Word, Word], key: tuple[Word, Word]) -> tuple[Tensor, ...]:
    """Philox4x32-10: four counter words and two key words to four random words, 32-bit values in int64.

    The int64 product wraps at 2**64; its bits are those of the unsigned product, and the masks read them so.
    """
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(_ROUNDS):
        p0, p1 = c0 * _MULTIPLIERS[0], c2 * _MULTIPLIERS[1]
        c0, c1, c2, c3 = _high(p1) ^ c1 ^ k0, p1 & _WORD, _high(p0) ^ c3 ^ k1, p0 & _WORD
        k0, k1 = (k0 + _WEYL[0]) & _WORD, (k1 + _WEYL[1]) & _WORD
    return tuple(torch.broadcast_tensors(*(torch.as_tensor(c) for c in (c0, c1, c2, c3))))


def _high(product: Word) -> Word:
    return (product >> 32) & _WORD
