"""Random numbers per example: the same at any batch size, on any device and with any number of processes.

A number is a pure function of (key of the example, stream, position): Philox4x32-10 (Salmon et al. 2011), a counter
that goes through ten keyed rounds. On a CPU the rounds run in numpy over blocks that fit the cache, on CUDA in one
kernel, elsewhere in tensor operations; the bits are the same. torch's global generators are neither read nor moved.
`stream` keeps draws for different purposes apart. A shape (n, ...) is a prefix of every (m, ...) with m > n.

Uniform numbers have the same bits everywhere; normal ones go through log and cos in float64, where devices may differ
in the last digit.
"""

import math
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from gyrograd.errors import UserError
from gyrograd.numerics.kernels import philox_words
from gyrograd.types import Inputs, Seed

Keys: TypeAlias = Int[Tensor, " b"]
Halves: TypeAlias = Float[Tensor, "*places"]
Column: TypeAlias = npt.NDArray[Any]
Columns: TypeAlias = tuple[Column, Column, Column, Column]
"""The four words of each counter value of a block, or what was made of them."""

_WORD = 0xFFFFFFFF  # masks 32 bits
# The constants of Salmon et al.: the bits below, and the golden files of the tests, depend on them.
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)
_ROUNDS = 10
# Bits of a uniform number: as many as its type holds below 1 without rounding. float64 takes those of float32, so that
# a model gets the same draws in both.
_BITS = {torch.float16: 11, torch.bfloat16: 8, torch.float32: 24, torch.float64: 24}
_NUMPY: dict[torch.dtype, type[np.generic]] = {torch.float32: np.float32, torch.float64: np.float64}
_BLOCK = 1 << 14
"""Counter values in one block on a CPU: eight columns of them, 1 MB, stay in the cache of a core."""
_MASK, _HALF = np.array(_WORD, np.uint64), np.array(32, np.uint64)
_FACTORS, _BUMPS = (tuple(np.array(c, np.uint64) for c in pair) for pair in (_MULTIPLIERS, _WEYL))
# Counter words 2 and 3 of key derivation; no stream number reaches them (streams are below 2**63).
_DERIVE = 1 << 63


def keys(seed: Seed, b: int, device: torch.device | str | None = None) -> Keys:
    """One key per example: mixed from (seed, row) for an int; a tensor of b keys is returned as it is."""
    if isinstance(seed, Tensor):
        if seed.shape != (b,):
            raise UserError(
                f"The seeds have shape {tuple(seed.shape)} for {b} examples; give one key for each example."
            )
        return seed.to(device=device, dtype=torch.int64)
    if not 0 <= seed < 1 << 64:
        raise UserError(f"Seed {seed} is out of range; give an integer from 0 to 2**64 - 1.")
    rows = torch.arange(b, device=device)
    return _join_words(_philox((rows & _WORD, rows >> 32, 0, _DERIVE >> 32), (seed & _WORD, seed >> 32)))


def subkeys(keys: Keys, stream: int) -> Keys:
    """A new key per example, for a part with its own streams, such as the map at one attack step."""
    low, high = _split_stream(stream)
    if keys.is_cuda and stream < 1 << 61:  # so that the counter, 4 * stream, fits 63 bits
        places = 4 * stream + torch.arange(2, device=keys.device)
        return _join_words(philox_words(keys[:, None], places, _DERIVE | 1).unbind(1))
    return _join_words(_philox((low, high, 1, _DERIVE >> 32), _split_keys(keys)))


def uniform(
    keys: Keys, shape: tuple[int, ...], *, stream: int = 0, dtype: torch.dtype = torch.float32
) -> Inputs:
    """Uniform in [0, 1), multiples of 2**-24; float32 and float64 hold the same numbers."""
    if dtype not in _BITS:
        raise UserError(f"Random numbers have no dtype {dtype}; give torch.float32 or torch.float64.")
    bits = _BITS[dtype]
    if not keys.is_cpu:
        return (_words(keys, shape, stream) >> (32 - bits)).to(dtype) * 2.0**-bits

    def fractions(*words: Column) -> Columns:
        a, b, c, d = (np.right_shift(word, np.uint64(32 - bits), out=word) for word in words)
        return a, b, c, d

    wide = _NUMPY.get(dtype, np.float32)
    return _fill(fractions, keys, shape, stream, wide).mul_(2.0**-bits).to(dtype)


def normal(
    keys: Keys, shape: tuple[int, ...], *, stream: int = 0, dtype: torch.dtype = torch.float32
) -> Inputs:
    """Standard normal by Box-Muller in float64; always finite (at most 6.7 from zero)."""
    if keys.is_cpu:
        return _fill(_normal_columns, keys, shape, stream, _NUMPY.get(dtype, np.float64)).to(dtype)
    n = math.prod(shape)
    words = _words(keys, (n + n % 2,), stream).view(len(keys), -1, 2).to(torch.float64)
    pairs = torch.stack(_box_muller(*words.unbind(-1)), -1)
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
    # The integer part of u * high for u in [0, 1), without floating point.
    return (_words(keys, shape, stream) * high) >> 32


def permutation(keys: Keys, n: int, *, stream: int = 0) -> Int[Tensor, "b n"]:
    """A random order of 0 ... n-1 per example: the order of n random 63-bit numbers."""
    pairs = _words(keys, (n, 2), stream)
    # Stable, so that equal numbers have the same order on every device.
    return ((pairs[..., 0] << 31) ^ pairs[..., 1]).argsort(dim=1, stable=True)


def _box_muller(first: Halves, second: Halves) -> tuple[Halves, Halves]:
    """Two independent normal numbers from two 32-bit words in float64, which are overwritten."""
    # Adding 1 gives the radius a number in (0, 1], whose logarithm is finite.
    radius = first.add_(1).mul_(2.0**-32).log_().mul_(-2).sqrt_()
    angle = second.mul_(2 * math.pi * 2.0**-32)
    return angle.cos().mul_(radius), angle.sin().mul_(radius)


def _words(keys: Keys, shape: tuple[int, ...], stream: int) -> Int[Tensor, "b ..."]:
    """One 32-bit word per position, four from each counter value."""
    n = math.prod(shape)
    if keys.is_cpu:
        return _fill(lambda *words: words, keys, shape, stream, np.int64)
    if keys.is_cuda:
        _split_stream(stream)  # for its check
        places = torch.arange(n, device=keys.device)
        return philox_words(keys[:, None], places, stream).reshape(len(keys), *shape)
    blocks = torch.arange((n + 3) // 4, device=keys.device)
    low, high = _split_keys(keys)
    counter = ((blocks & _WORD)[None], (blocks >> 32)[None], *_split_stream(stream))
    words = torch.stack(_philox(counter, (low[:, None], high[:, None])), -1)
    return words.reshape(len(keys), words[0].numel())[:, :n].reshape(len(keys), *shape)


def _fill(
    numbers: Callable[..., Columns],
    keys: Keys,
    shape: tuple[int, ...],
    stream: int,
    dtype: type[np.generic],
) -> Shaped[Tensor, "b ..."]:
    """Four numbers per counter value, from its four words, one block of keys and counters at a time."""
    n, (low, high) = math.prod(shape), _split_stream(stream)
    width = -(-n // 4)
    out = np.empty((len(keys), width, 4), dtype)
    keyed = keys.to(torch.int64).numpy().view(np.uint64)[:, None]
    across = min(width, _BLOCK)  # one long row, or several short ones, fill a block
    rows = max(1, _BLOCK // max(1, across))
    scratch = np.empty((8, min(rows, len(keys)) * across), np.uint64)
    for top in range(0, len(keys), rows):
        for left in range(0, width, max(1, across)):
            place = out[top : top + rows, left : left + across]
            words = _block(scratch, keyed[top : top + rows], left, place.shape[1], low, high)
            for i, column in enumerate(numbers(*words)):
                np.copyto(place[..., i], column.reshape(place.shape[:2]), casting="unsafe")
    flat = torch.from_numpy(out).reshape(len(keys), 4 * width)[:, :n]
    return flat.contiguous().view(len(keys), *shape)


def _block(scratch: Column, keys: Column, left: int, width: int, low: int, high: int) -> Columns:
    """Philox words for each key and `width` counter values from `left` on, held in scratch."""
    c0, c1, c2, c3, k0, k1, p0, p1 = scratch[:, : len(keys) * width]
    shape = (len(keys), width)
    # A block does not cross a multiple of 2**32, so the counter's upper half is one number.
    c0.reshape(shape)[:] = np.arange(left & _WORD, (left & _WORD) + width, dtype=np.uint64)
    c1[:], c2[:], c3[:] = left >> 32, low, high
    if len(keys) == 1:
        k0, k1 = k0[:1], k1[:1]  # a single key is one number, which saves two columns of sums per round
    k0.reshape(len(keys), -1)[:], k1.reshape(len(keys), -1)[:] = keys & _MASK, keys >> _HALF
    # The ten rounds of `_philox`, in place, with two spare columns for the products. c1, c3 and the keys may exceed 32
    # bits in between: the mask after the exclusive-ors removes the excess, and masking only there saves four passes.
    for _ in range(_ROUNDS):
        np.multiply(c0, _FACTORS[0], out=p0)
        np.multiply(c2, _FACTORS[1], out=p1)
        for product, beside, key, out in ((p1, c1, k0, c0), (p0, c3, k1, c2)):
            np.right_shift(product, _HALF, out=out)
            np.bitwise_xor(out, beside, out=out)
            np.bitwise_xor(out, key, out=out)
            np.bitwise_and(out, _MASK, out=out)
        c1, p1, c3, p0 = p1, c1, p0, c3
        np.add(k0, _BUMPS[0], out=k0)
        np.add(k1, _BUMPS[1], out=k1)
    return c0, np.bitwise_and(c1, _MASK, out=c1), c2, np.bitwise_and(c3, _MASK, out=c3)


def _normal_columns(*words: Column) -> Columns:
    """Box-Muller of words 0 and 1 and of words 2 and 3."""
    a, b, c, d = (torch.from_numpy(word.view(np.int64).astype(np.float64)) for word in words)
    (a, b), (c, d) = _box_muller(a, b), _box_muller(c, d)
    return a.numpy(), b.numpy(), c.numpy(), d.numpy()


def _split_keys(keys: Keys) -> tuple[Tensor, Tensor]:
    wide = keys.to(torch.int64)
    return wide & _WORD, (wide >> 32) & _WORD


def _split_stream(stream: int) -> tuple[int, int]:
    if not 0 <= stream < _DERIVE:
        raise UserError(f"Stream {stream} is out of range; give an integer from 0 to 2**63 - 1.")
    return stream & _WORD, stream >> 32


def _join_words(words: tuple[Tensor, ...]) -> Tensor:
    """A non-negative 63-bit key from the first two words."""
    return (words[0] << 31) ^ words[1]


Word: TypeAlias = Tensor | int


def _philox(counter: tuple[Word, Word, Word, Word], key: tuple[Word, Word]) -> tuple[Tensor, ...]:
    """Philox4x32-10: four counter words and two key words to four random words, 32-bit values in int64."""
    # The int64 product wraps at 2**64; its bits are those of the unsigned product, and the masks read them as such.
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(_ROUNDS):
        p0, p1 = c0 * _MULTIPLIERS[0], c2 * _MULTIPLIERS[1]
        high0, high1 = (p0 >> 32) & _WORD, (p1 >> 32) & _WORD
        c0, c1, c2, c3 = high1 ^ c1 ^ k0, p1 & _WORD, high0 ^ c3 ^ k1, p0 & _WORD
        k0, k1 = (k0 + _WEYL[0]) & _WORD, (k1 + _WEYL[1]) & _WORD
    return tuple(torch.broadcast_tensors(*(torch.as_tensor(c) for c in (c0, c1, c2, c3))))
