"""Random numbers against the published answers, a generator in plain integers, and scipy's tests."""

import math

import numpy as np
import pytest
import scipy.stats
import torch
from hypothesis import given
from hypothesis import strategies as st

from gyrograd.errors import UserError
from gyrograd.numerics import random

KNOWN = [
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]


def philox_in_integers(counter: tuple[int, ...], key: tuple[int, ...]) -> tuple[int, ...]:
    """The generator as its paper prints it, on unbounded integers."""
    c, k = list(counter), list(key)
    for _ in range(10):
        first, second = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [
            (second >> 32) ^ c[1] ^ k[0],
            second % 2**32,
            (first >> 32) ^ c[3] ^ k[1],
            first % 2**32,
        ]
        k = [(k[0] + 0x9E3779B9) % 2**32, (k[1] + 0xBB67AE85) % 2**32]
    return tuple(c)


@pytest.mark.parametrize(("counter", "key", "answer"), KNOWN)
def test_philox_gives_the_published_answers(counter, key, answer):
    tensors = [tuple(torch.tensor([word]) for word in words) for words in (counter, key)]
    assert tuple(int(word) for word in random._philox(*tensors)) == answer
    assert philox_in_integers(counter, key) == answer


@given(key=st.integers(-(2**63), 2**63 - 1), stream=st.integers(0, 2**63 - 1), n=st.integers(1, 9))
def test_uniform_numbers_are_those_of_the_integer_generator(key: int, stream: int, n: int):
    halves = (key % 2**32, (key >> 32) % 2**32)
    words = [
        word
        for block in range((n + 3) // 4)
        for word in philox_in_integers((block, 0, stream % 2**32, stream >> 32), halves)
    ]
    fast = random.uniform(torch.tensor([key]), (n,), stream=stream, dtype=torch.float64)[0]
    assert fast.tolist() == [(word >> 8) / 2**24 for word in words[:n]]


def test_float32_and_float64_hold_the_same_uniform_numbers():
    keys = random.keys(0, 3)
    single, double = (random.uniform(keys, (1000,), dtype=dtype) for dtype in (torch.float32, torch.float64))
    assert torch.equal(single.double(), double)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_uniform_numbers_stay_below_one_in_every_dtype(dtype: torch.dtype):
    draws = random.uniform(random.keys(0, 4), (20000,), dtype=dtype)
    assert draws.dtype == dtype
    assert draws.min() >= 0
    assert draws.max() < 1
    assert draws.double().mean().item() == pytest.approx(0.5, abs=0.01)


def test_uniform_numbers_are_uniform():
    draws = random.uniform(random.keys(0, 50), (400,)).flatten().numpy()
    assert scipy.stats.kstest(draws, "uniform").pvalue > 0.01
    assert draws.std() == pytest.approx(1 / math.sqrt(12), abs=0.005)


def test_normal_numbers_are_normal():
    draws = random.normal(random.keys(0, 50), (401,)).flatten().numpy()
    assert scipy.stats.kstest(draws, "norm").pvalue > 0.01
    assert draws.mean() == pytest.approx(0, abs=0.03)
    assert draws.var() == pytest.approx(1, abs=0.04)
    assert scipy.stats.kurtosis(draws) == pytest.approx(0, abs=0.15)


def test_the_two_normal_numbers_of_a_pair_are_unrelated():
    pairs = random.normal(random.keys(0, 5000), (2,)).T
    assert abs(np.corrcoef(pairs)[0, 1]) < 0.05
    assert abs(np.corrcoef(pairs**2)[0, 1]) < 0.05


@pytest.mark.parametrize("word", [0, 0xFFFFFFFF])
def test_normal_numbers_are_finite_at_the_extreme_words(word: int, monkeypatch: pytest.MonkeyPatch):
    def every_word(_: np.ndarray, keys: np.ndarray, *counters: int) -> tuple[np.ndarray, ...]:
        return tuple(np.full(len(keys) * counters[1], word, np.uint64) for _ in range(4))

    monkeypatch.setattr(random, "_block", every_word)
    assert random.uniform(torch.zeros(1, dtype=torch.int64), (4,)).eq((word >> 8) / 2**24).all()
    assert random.normal(torch.zeros(1, dtype=torch.int64), (4,)).isfinite().all()


@pytest.mark.parametrize("block", [1, 3, 8, 1 << 14])
@pytest.mark.parametrize(("rows", "n"), [(1, 1), (1, 50), (5, 7), (5, 32), (9, 33), (3, 0), (0, 4)])
def test_block_borders_change_nothing(rows: int, n: int, block: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(random, "_BLOCK", block)
    keys, stream = random.keys(11, rows), 5 + (7 << 32)
    words = random._words(keys, (n,), stream)
    assert words.shape == (rows, n)
    assert words.is_contiguous()
    for key, row in zip(keys.tolist(), words.tolist(), strict=True):
        halves = (key % 2**32, key >> 32)
        blocks = [philox_in_integers((i, 0, 5, 7), halves) for i in range((n + 3) // 4)]
        assert row == [word for four in blocks for word in four][:n]
    monkeypatch.undo()
    whole = random.normal(keys, (n,), stream=stream)
    monkeypatch.setattr(random, "_BLOCK", block)
    assert torch.equal(random.normal(keys, (n,), stream=stream), whole)


@given(
    keys=st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=5),
    n=st.integers(1, 30),
    stream=st.integers(0, 2**63 - 1),
)
def test_the_blocks_of_a_cpu_give_the_words_of_the_tensor_operations(keys, n, stream):
    """Tensor operations are what devices without a kernel of their own run."""
    keyed = torch.tensor(keys)
    counter = (torch.arange((n + 3) // 4)[None], 0, stream & 0xFFFFFFFF, stream >> 32)
    halves = ((keyed & 0xFFFFFFFF)[:, None], ((keyed >> 32) & 0xFFFFFFFF)[:, None])
    words = torch.stack(random._philox(counter, halves), -1).flatten(1)[:, :n]
    assert torch.equal(random._words(keyed, (n,), stream), words)


def test_counters_above_32_bits_carry_into_the_second_word():
    keys = np.array([[3 + (9 << 32)]], dtype=np.uint64)
    words = random._block(np.empty((8, 2), np.uint64), keys, (5 << 32) + 4, 2, 1, 2)
    for i in range(2):
        assert tuple(int(word[i]) for word in words) == philox_in_integers((4 + i, 5, 1, 2), (3, 9))


def test_signs_are_fair():
    draws = random.signs(random.keys(0, 10), (1000,))
    assert set(draws.unique().tolist()) == {-1.0, 1.0}
    assert scipy.stats.binomtest(int((draws > 0).sum()), 10000).pvalue > 0.01


def test_integers_are_uniform_below_high():
    counts = random.integers(random.keys(0, 10), (1000,), 7).flatten().bincount()
    assert len(counts) == 7
    assert scipy.stats.chisquare(counts.numpy()).pvalue > 0.01
    assert random.integers(random.keys(0, 10), (100,), 1).eq(0).all()
    assert random.integers(random.keys(0, 10), (1000,), 2**31).max() > 2**30


def test_permutations_hold_every_place_once_and_all_orders_are_as_likely():
    orders = random.permutation(random.keys(0, 6000), 3)
    assert orders.sort(dim=1).values.eq(torch.arange(3)).all()
    counts = (orders * torch.tensor([9, 3, 1])).sum(1).unique(return_counts=True)[1]
    assert len(counts) == 6
    assert scipy.stats.chisquare(counts.numpy()).pvalue > 0.01


DRAWS = {
    "uniform": lambda keys, stream=0: random.uniform(keys, (3, 5), stream=stream),
    "normal": lambda keys, stream=0: random.normal(keys, (3, 5), stream=stream),
    "signs": lambda keys, stream=0: random.signs(keys, (3, 5), stream=stream),
    "integers": lambda keys, stream=0: random.integers(keys, (3, 5), 1000, stream=stream),
    "permutation": lambda keys, stream=0: random.permutation(keys, 15, stream=stream),
}


@pytest.mark.parametrize("name", DRAWS)
def test_draws_do_not_depend_on_how_the_batch_is_split(name: str):
    keys = random.keys(5, 7)
    parts = [DRAWS[name](part) for part in (keys[:2], keys[2:3], keys[3:])]
    assert torch.equal(torch.cat(parts), DRAWS[name](keys))


@pytest.mark.parametrize("name", DRAWS)
def test_draws_leave_the_global_generators_alone_and_do_not_read_them(name: str):
    torch.manual_seed(1)
    before = torch.get_rng_state()
    first = DRAWS[name](random.keys(0, 4))
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(2)
    assert torch.equal(DRAWS[name](random.keys(0, 4)), first)


@pytest.mark.parametrize("name", DRAWS)
def test_streams_seeds_and_rows_differ(name: str):
    keys = random.keys(0, 4)
    draws = DRAWS[name](keys)
    assert not torch.equal(draws, DRAWS[name](keys, 1))
    assert not torch.equal(draws, DRAWS[name](keys, 2**40))
    assert not torch.equal(draws, DRAWS[name](random.keys(1, 4)))
    assert not torch.equal(draws, DRAWS[name](random.subkeys(keys, 0)))
    assert not torch.equal(draws[0], draws[1])


@given(n=st.integers(0, 9), more=st.integers(1, 9), name=st.sampled_from(["uniform", "normal"]))
def test_fewer_draws_are_a_prefix_of_more(n: int, more: int, name: str):
    draw, keys = getattr(random, name), random.keys(0, 2)
    assert torch.equal(draw(keys, (n, 3)), draw(keys, (n + more, 3))[:, :n])


def test_neighbouring_keys_and_streams_are_unrelated():
    plain = torch.arange(20)  # the worst keys there are: the examples' numbers, unmixed
    rows = [random.uniform(plain, (2000,)), random.uniform(plain, (2000,), stream=1)]
    rows += [random.uniform(random.subkeys(plain, s), (2000,)) for s in (0, 1)]
    correlation = np.corrcoef(torch.cat(rows).numpy()) - np.eye(80)
    assert np.abs(correlation).max() < 5 / math.sqrt(2000)


def test_keys_are_a_prefix_at_any_batch_size_and_do_not_repeat():
    assert torch.equal(random.keys(3, 100)[:10], random.keys(3, 10))
    assert len(torch.cat([random.keys(s, 1000) for s in range(5)]).unique()) == 5000
    assert not torch.equal(random.keys(2**40, 3), random.keys(0, 3))


def test_the_parts_of_an_example_have_other_keys_than_the_examples_of_a_seed():
    # A key that serves as a seed: part 3 of the example must not draw what example 3 of that seed draws.
    for seed in (0, 7, 2**40):
        parts = torch.cat([random.subkeys(torch.tensor([seed]), stream) for stream in range(20)])
        assert not set(parts.tolist()) & set(random.keys(seed, 20).tolist())


def test_keys_given_are_taken_as_they_are():
    mine = torch.tensor([5, -3, 2**62])
    assert torch.equal(random.keys(mine, 3), mine)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: random.keys(torch.tensor([1, 2]), 3), "one key for each example"),
        (lambda: random.keys(-1, 3), "from 0 to"),
        (lambda: random.keys(2**64, 3), "from 0 to"),
        (lambda: random.uniform(random.keys(0, 1), (2,), stream=-1), "Stream -1"),
        (lambda: random.uniform(random.keys(0, 1), (2,), dtype=torch.int64), "no dtype"),
        (lambda: random.integers(random.keys(0, 1), (2,), 0), "high is 0"),
    ],
)
def test_mistakes_get_a_sentence(call, words: str):
    with pytest.raises(UserError, match=words):
        call()
