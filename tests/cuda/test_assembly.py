"""Inline assembly of kernels, run by an emulator: the bits of plain arithmetic."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from ptx_emulator import FLOAT, WORD, Machine
from thalweg._engines.codecs import root8, softsign8
from thalweg._engines.codecs.split8 import join_numbers, split_numbers
from thalweg._engines.philox import round_to_bfloat

functions = pytest.importorskip("thalweg._engines.cuda.device_functions")
blockwise = pytest.importorskip("thalweg._engines.cuda.blockwise_functions")

OFFSETS = pytest.mark.parametrize("offset", [-1, 0, 1])  # of approximations
SPECIAL = np.array(
    [0, -0.0, 1, 2**-126, 1e-40, 1e-45, 2**-101, 2**-100, 2**-99, 3.4e38, np.inf, np.nan, -1],
    FLOAT,
)


def words_of(*arrays):
    return [np.ascontiguousarray(array).view(WORD) for array in arrays]


def run(text, n_outputs, *inputs, offset=0):
    """Run assembly whose operands are arrays of words; return the outputs."""
    zeros = [np.zeros(len(inputs[0]), WORD) for _ in range(n_outputs)]
    machine = Machine([*zeros, *words_of(*inputs)], offset)
    machine.run(text.value)
    return [machine.output(k) for k in range(n_outputs)]


def same(actual, expected):
    """Assert the same bits; a NaN counts as one NaN."""
    actual, expected = np.asarray(actual).view(FLOAT), np.asarray(expected, FLOAT)
    is_equal = (actual.view(WORD) == expected.view(WORD)) | (np.isnan(actual) & np.isnan(expected))
    assert is_equal.all(), (actual[~is_equal][:3], expected[~is_equal][:3])


def random_numbers(rng, count, low, high):
    """Return positive numbers of random magnitudes, among them special ones."""
    numbers = (2.0 ** rng.uniform(low, high, count)).astype(FLOAT)
    numbers[: len(SPECIAL) * 10] = np.tile(SPECIAL, 10)
    return rng.permutation(numbers)


@OFFSETS
@pytest.mark.parametrize("correction", [1.0, 0.0316227, 1 - 2.0**-24, 0.3])
@pytest.mark.parametrize("epsilon", [0.0, 1e-8])
@pytest.mark.parametrize("group", [1, 4])
def test_quotients_by_roots_are_correctly_rounded(offset, correction, epsilon, group):
    rng = np.random.default_rng(5)
    rows = 20_000 // group
    a, v = (random_numbers(rng, rows * group, *ends).reshape(group, rows)
            for ends in ((-60, 20), (-70, 10)))  # fmt: skip
    a *= rng.choice([1, -1], a.shape).astype(FLOAT)
    c, epsilon = FLOAT(correction), FLOAT(epsilon)
    reciprocal = FLOAT(1) / c
    least_quotient = max(
        FLOAT(2.0**-100) / max(epsilon, reciprocal * FLOAT(2.0**-50)), FLOAT(2.0**-120)
    )
    scalars = [np.full(rows, x, FLOAT) for x in (c, reciprocal, epsilon, least_quotient)]
    inputs = [*a, *v, *(scalar for scalar in scalars for _ in range(group))]
    text = functions._BY_CORRECTED_ROOT if group == 1 else functions._BY_CORRECTED_ROOT4
    outputs = run(text, 2 * group, *inputs, offset=offset)
    with np.errstate(all="ignore"):
        roots = np.sqrt(v)
        same(np.stack(outputs[group:]), roots)
        same(np.stack(outputs[:group]), a / (roots / c + epsilon))


@OFFSETS
def test_quotients_in_range_are_correctly_rounded(offset):
    rng = np.random.default_rng(6)
    a, b = (rng.uniform(1, 4, 200_000).astype(FLOAT) for _ in range(2))
    # Numbers next to the middle of two quotients
    b[:1000] = 1 + np.arange(1000) * 2.0**-23
    a[:1000] = 1 + np.arange(1000)[::-1] * 2.0**-22
    same(run(functions._WITHIN, 1, a, b, offset=offset)[0], a / b)


def test_quotients_by_the_nearest_reciprocal_are_correctly_rounded():
    """Only numerators that are a few units of the product away from a midpoint could fail."""
    rng = np.random.default_rng(7)
    tested = 0
    for divisor in (rng.integers(1 << 23, 1 << 24, 3000) | 1).tolist():
        for shift in (24, 25):
            inverse = pow(1 << (shift - 1), -1, divisor)
            for distance in range(-15, 16, 2):
                numerator = (divisor + distance) // 2 * inverse % divisor
                numerator += divisor * (numerator < 1 << 23)
                if not 1 << 23 <= numerator < 1 << 24:
                    continue
                tested += 1
                a, b = (np.array([x], FLOAT) for x in (numerator, divisor))
                y = FLOAT(1) / b
                q = a * y
                assert multiply_add_of(a, b, y, q) == (a / b)[0], (numerator, divisor)
    assert tested > 10_000


def multiply_add_of(a, b, y, q):
    from ptx_emulator import multiply_add

    return multiply_add(multiply_add(-q, b, a), y, q)[0]


@pytest.mark.parametrize("offset", range(-3, 4))
def test_codes_of_softsign8_are_decoded_exactly(offset):
    codes = np.arange(-128, 128).astype(FLOAT)
    quotients = run(blockwise._SOFTSIGN8, 1, codes, 254 - np.abs(codes), offset=offset)[0]
    same(quotients, softsign8.decode(codes, FLOAT(1)))


def packed(codes):
    """Return rows of bytes as words, four in each."""
    return np.ascontiguousarray(codes.astype(np.uint8)).reshape(-1, 4).view(WORD)[:, 0]


def test_codes_are_converted():
    codes = np.arange(256, dtype=np.uint8)
    for text, kind in ((blockwise._FROM_INT8, np.int8), (blockwise._FROM_UINT8, np.uint8)):
        numbers = np.stack(run(text, 4, packed(codes)), axis=1).reshape(-1)
        same(numbers, codes.view(kind).astype(FLOAT))
    roots = np.stack(run(blockwise._ROOT8, 4, packed(codes)), axis=1).reshape(-1)
    same(roots, codes.astype(FLOAT) * FLOAT(root8.STEP))


def test_only_positive_roots_have_codes():
    roots = np.array([0, 2**-75, 1, 2**64, np.nan], FLOAT)
    reals, dithers = np.array([3, 3, 4.5, 255, 3], FLOAT), np.full(5, 0.75, FLOAT)
    dithered = run(blockwise._POSITIVE, 1, roots, reals, dithers)[0]
    same(dithered, np.where(roots > 0, reals, 0) + dithers)


def tensor_of(halves):
    """Return a bfloat16 tensor with the bits of 16-bit words."""
    return torch.from_numpy(np.ascontiguousarray(halves).view(np.int16)).view(torch.bfloat16)


def all_halves():
    return np.arange(1 << 16).astype(np.uint16)


def test_split_weights_are_joined():
    halves = np.repeat(all_halves(), 8)
    codes = np.random.default_rng(8).integers(0, 256, len(halves)).astype(np.uint8)
    uppers = halves.reshape(-1, 4).view(WORD)
    outputs = run(blockwise._JOINING, 4, uppers[:, 0], uppers[:, 1], packed(codes))
    joined_words = np.stack(outputs, axis=1).reshape(-1)
    expected_numbers = join_numbers(tensor_of(halves), torch.from_numpy(codes)).numpy()
    assert (joined_words == expected_numbers.view(WORD)).all()
    is_number = ~np.isnan(joined_words.view(FLOAT))
    words = (joined_words + WORD(0x80))[is_number]
    words = words[: len(words) // 4 * 4]
    lower = run(blockwise._LOWER, 1, *words.reshape(-1, 4).T)[0]
    expected = split_numbers(torch.from_numpy((words - WORD(0x80)).view(FLOAT)))[1]
    assert (lower == packed(expected.numpy())).all()


def test_codes_are_packed():
    codes = np.random.default_rng(9).integers(-128, 256, (100, 4)).astype(np.int32)
    assert (run(blockwise._PACKING, 1, *codes.T)[0] == packed(codes)).all()


def test_bfloat16_halves_are_numbers():
    halves = all_halves()
    pairs = run(functions._FROM_BFLOAT16, 2, halves.view(WORD))
    assert (np.stack(pairs, axis=1).reshape(-1) == halves.astype(WORD) << WORD(16)).all()


def test_random_bits_round_to_bfloat16():
    rng = np.random.default_rng(10)
    halves = np.repeat(all_halves(), 2).astype(WORD)
    numbers = halves << WORD(16) | rng.integers(0, 1 << 16, len(halves)).astype(WORD)
    bits = rng.integers(0, 1 << 16, len(halves)).astype(WORD)
    inputs = [*numbers.reshape(-1, 8).T, *bits.reshape(-1, 8).T]
    rounded_halves = np.stack(run(blockwise._ROUNDING, 4, *inputs), axis=1)
    draws = torch.from_numpy(bits.astype(np.int32))
    expected = round_to_bfloat(torch.from_numpy(numbers.view(FLOAT)), draws)
    assert torch.equal(
        tensor_of(rounded_halves.reshape(-1)).view(torch.int16), expected.view(torch.int16)
    )
