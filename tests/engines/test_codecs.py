"""Slots of 8 bits: what codecs hold, and that the engines agree to the last bit."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch

from pairwise import cover_values
from quantized_rules import (
    decode_array,
    encode_array,
    encode_slots,
    encoded_case,
    numbers_of,
    records_of,
    shard_of,
)
from rulebook import FIRST, FLUSH, KEEP, Case, Problem, assert_same, case, label, reference, take
from thalweg._engines.codecs import CODECS, OF_SLOTS
from thalweg._engines.codecs.codec import Codec
from thalweg._engines.cpu import kernel_group
from thalweg._engines.random_bits import ElementRuns

SLOT_CODECS = [*OF_SLOTS.values()]
by_codec = pytest.mark.parametrize("codec", SLOT_CODECS, ids=lambda codec: codec.name)
by_name = pytest.mark.parametrize("name", OF_SLOTS)
CASES = [candidate for candidate in FIRST if candidate.rule.element_slots]
SIZES = (1, 31, 33, 255, 257, 4096, 4097, 65536 + 257)


def numbers(codec: Codec, count: int, seed: int = 0) -> Any:
    rng = np.random.default_rng(seed)
    numbers_drawn = rng.standard_normal(count) * 10.0 ** rng.integers(-4, 3, count)
    return (numbers_drawn * numbers_drawn if codec.positive else numbers_drawn).astype(np.float32)


def blocks_of(codec: Codec, scales: Any) -> Any:
    """Records that have each code beside the largest one, at each scale."""
    codes = np.arange(-127, 128) if codec.signed else np.arange(256)
    largest = -128 if codec.name == "dynamic8" else codes[-1]
    data_per_block = codec.block - 1
    count = -(-len(codes) // data_per_block)
    rows = np.full((count, codec.block), largest)
    rows[:, 1:] = np.resize(codes, (count, data_per_block))
    records = np.zeros((len(scales), count, codec.record_bytes), np.uint8)
    records[:, :, :4] = scales.view(np.uint8).reshape(-1, 1, 4)
    records[:, :, 4:] = rows.astype(np.int16).astype(np.uint8)
    return records.reshape(-1)


# Exponents of the scales that are kept, and that leave all numbers normal.
RANGES = {"root8": (-54, 64), "softsign8": (-118, 128)}
FULL_RANGE = (-100, 128)


@by_codec
def test_codes_round_trip_at_every_scale(codec: Codec) -> None:
    low, high = RANGES.get(codec.name, FULL_RANGE)
    first, last_scale = ((exponent + 127) << 7 for exponent in (low, high))
    scales = (np.arange(first + 1, last_scale, dtype=np.uint32) << 16).view(np.float32)
    exponents = np.random.default_rng(1).uniform(low + 0.01, high - 0.01, 2000)
    for part in (*np.array_split(scales, 8), np.exp2(exponents).astype(np.float32)):
        records = blocks_of(codec, part)
        decoded = decode_array(codec, records, len(records) // codec.record_bytes * codec.block)
        assert np.isfinite(decoded).all()
        np.testing.assert_array_equal(encode_array(codec, decoded), records)


@by_codec
def test_encoding_errors_are_bounded_by_the_largest_value(codec: Codec) -> None:
    values = numbers(codec, 300 * codec.block)
    decoded = decode_array(codec, encode_array(codec, values), len(values))
    errors = np.abs(decoded - values).reshape(-1, codec.block).max(1)
    largest = np.abs(values).reshape(-1, codec.block).max(1)
    bounds = {"softsign8": 2 / 254, "root8": 1 / 255, "linear8": 0.5 / 127, "dynamic8": 0.45 / 64}
    bound = bounds.get(codec.name, 0.225 / 64)
    assert (errors <= largest * bound * 1.001).all()
    blocks = np.abs(values).reshape(-1, codec.block)
    peaks = np.abs(decoded).reshape(-1, codec.block)[blocks == blocks.max(1, keepdims=True)]
    # dynamic8 has 1, and no -1.
    np.testing.assert_allclose(peaks, largest, rtol=0.0071 if codec.name == "dynamic8" else 1.3e-7)


NAN, INFINITY = np.float32(np.nan), np.float32(np.inf)
# A number in a block of others near 1, and whether the block is NaN then, or as without it.
SPECIAL_NUMBERS = [(NAN, True), (-NAN, True), (INFINITY, True), (-INFINITY, True), (1e-40, False),
           (-0.0, False), (3.4e38, False)]  # fmt: skip


@by_codec
@pytest.mark.parametrize(("number", "is_lost"), SPECIAL_NUMBERS)
def test_a_block_with_nan_or_an_infinity_is_nan_as_a_whole(
    codec: Codec, number: float, is_lost: bool
) -> None:
    if codec.positive:
        number = abs(number)
    values = np.abs(numbers(codec, 3 * codec.block)) + 1
    clean = encode_array(codec, values).reshape(3, -1)
    values[codec.block + 5] = number
    records = encode_array(codec, values)
    decoded = decode_array(codec, records, len(values)).reshape(3, -1)
    np.testing.assert_array_equal(records.reshape(3, -1)[[0, 2]], clean[[0, 2]])
    assert np.isnan(decoded[1]).all() == is_lost
    assert np.isnan(decoded[1]).any() == is_lost
    assert np.isfinite(decoded[[0, 2]]).all()


@by_codec
def test_zeros_and_tiny_numbers_encode_as_zero_bytes(codec: Codec) -> None:
    for number in (0.0, -0.0) if codec.positive else (0.0, -0.0, 1e-45, 1e-38, 2.0**-120):
        values = np.full(codec.block + 3, number, np.float32)
        records = encode_array(codec, values)
        assert not records.any()
        np.testing.assert_array_equal(decode_array(codec, records, len(values)), 0)


def test_a_block_with_a_negative_number_is_nan_where_roots_are_kept() -> None:
    values = np.ones(64, np.float32)
    values[40] = -1e-30
    decoded = decode_array(CODECS["root8"], encode_array(CODECS["root8"], values), 64)
    assert np.isnan(decoded).tolist() == [False] * 32 + [True] * 32


@by_codec
def test_last_record_is_complete(codec: Codec) -> None:
    for count in (1, codec.block - 1, codec.block, codec.block + 1):
        values = np.abs(numbers(codec, count)) + 1
        records = encode_array(codec, values)
        assert records.shape == (codec.bytes_of(count),)
        assert codec.bytes_of(count) % codec.record_bytes == 0
        padded = np.zeros(-(-count // codec.block) * codec.block, np.float32)
        padded[:count] = values
        np.testing.assert_array_equal(records, encode_array(codec, padded))
        padding = len(padded) - count
        assert not records[len(records) - padding :].any()


def theirs(codec: Codec, values: Any) -> tuple[Any, Any]:
    """Codes and scales by the formulas of flashoptim 0.1.4, in NumPy's float32."""
    unit = np.float32(1)
    blocks = values.reshape(-1, codec.block)
    mapped = np.sqrt(blocks) if codec.positive else blocks
    scale = np.maximum(np.abs(mapped).max(1, keepdims=True), np.float32(1e-12))
    share = mapped / scale
    if codec.name == "softsign8":
        share = np.float32(2) * share / (unit + np.abs(share))
    full = np.float32(127 if codec.signed else 255)
    return np.floor(share * full + np.float32(0.5)), scale


@pytest.mark.parametrize("name", ["softsign8", "root8"])
def test_codes_equal_flashoptim_except_at_ties(name: str) -> None:
    codec = CODECS[name]
    values = numbers(codec, 100_000 // codec.block * codec.block, seed=7)
    codes, scales = theirs(codec, values)
    own_scales, own_codes = records_of(name, torch.from_numpy(encode_array(codec, values)))
    np.testing.assert_array_equal(own_scales.numpy(), scales.ravel())
    differ = own_codes.numpy().astype(np.float32) != codes
    assert differ.sum() <= len(values) / 1000
    assert np.abs(own_codes.numpy().astype(np.float32) - codes).max() <= 1


def numbers_of_bitsandbytes(codec: Codec) -> Any:
    """The table of bitsandbytes 0.50.2, sorted, made as there is said."""
    levels = [0.0, 1.0]
    for decade in range(7):
        edges = np.linspace(0.1, 1, 2 ** (decade + (not codec.signed)) + 1, dtype=np.float32)
        middles = (edges[:-1] + edges[1:]) / np.float32(2)
        positive = (10.0 ** (decade - 6) * middles.astype(np.float64)).tolist()
        levels += [*positive, *(-x for x in positive)] if codec.signed else positive
    return np.sort(np.array(levels, np.float32))


@pytest.mark.parametrize("name", ["dynamic8", "dynamic8_positive"])
def test_dynamic_codebook_equals_bitsandbytes(name: str) -> None:
    codec = CODECS[name]
    table = numbers_of_bitsandbytes(codec)
    record = np.zeros(codec.record_bytes, np.uint8)
    record[:4] = np.ones(1, np.float32).view(np.uint8)
    record[4:] = np.arange(256)
    decoded = decode_array(codec, record, 256)
    np.testing.assert_allclose(np.sort(decoded), table, rtol=3e-7)
    values = numbers(codec, 256 * 1000, seed=5)
    records = encode_array(codec, values)
    scales = np.repeat(records_of(name, torch.from_numpy(records))[0].numpy(), 256)
    shares = values / scales
    nearest = table[np.searchsorted((table[1:].astype(np.float64) + table[:-1]) / 2, shares)]
    differ = np.abs(decode_array(codec, records, len(values)) / scales - nearest) > 1e-6 * np.abs(
        nearest
    )
    differ &= np.abs(nearest) > 0
    assert differ.sum() <= len(values) / 1000


# Engines


def problem_of(
    base: Case, size: Any, dtype: torch.dtype = torch.float32, seed: int = 0, special: float = 0.0
) -> Problem:
    sizes = size if isinstance(size, list) else [size]
    problem = Problem.make(base.row, sizes, [dtype] * len(sizes), seed, special)
    problem.slots = [[slot.float() for slot in slots] for slots in problem.slots]
    return encode_slots(base, problem)


def assert_same_steps(base: Case, problem: Problem, selection: Any = KEEP, steps: int = 2) -> None:
    expected = reference(base, problem, selection, steps=steps)
    got = take(base, problem, selection, steps=steps)
    assert_same(got.variables, expected.variables, f"{base.rule.name} variables")
    for slots, expected_slots in zip(got.slots, expected.slots, strict=True):
        for slot, expected_slot in zip(slots, expected_slots, strict=True):
            assert_same([slot], [expected_slot], f"{base.rule.name}")


@pytest.mark.parametrize(
    ("base", "name", "dtype"),
    cover_values(product(CASES, OF_SLOTS, (torch.float32, torch.bfloat16)), 2),
    ids=label,
)
@pytest.mark.one_in(7)
def test_the_cpu_engine_has_the_bits_of_the_reference(
    base: Case, name: str, dtype: torch.dtype
) -> None:
    base = encoded_case(base, name)
    assert_same_steps(base, problem_of(base, [4096, (67, 63)], dtype, special=0.01))


@pytest.mark.one_in(3)
@by_name
@pytest.mark.parametrize("flush", [False, True], ids=["keep", "flush"])
def test_sizes_around_block_and_chunk_ends_equal_the_reference(name: str, flush: bool) -> None:
    base = encoded_case(case("Adam"), name)
    for size in SIZES:
        for special in (0.0, 0.001):
            problem = problem_of(base, size, seed=size, special=special)
            assert_same_steps(base, problem, FLUSH if flush else KEEP, steps=3)


@pytest.mark.one_in(3)
@by_name
@pytest.mark.parametrize("count", [1, 2, 3])
def test_threads_and_chunks_do_not_change_bits(
    name: str, count: int, threads: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = encoded_case(case("Adam"), name)
    problem = problem_of(base, [5000, 70_000])
    monkeypatch.setattr(kernel_group, "choose_chunk_size", lambda elements: 256 * count)
    threads(count)
    assert_same_steps(base, problem)


def test_nan_affects_only_its_block() -> None:
    base = encoded_case(case("Adam"), "softsign8")
    problem = problem_of(base, 4096)
    problem.gradients[0][100] = np.nan
    problem.gradients[0][300] = np.inf
    assert_same_steps(base, problem, steps=1)
    blocks = {index // 32 for index in (100, 300)}
    for decoded in numbers_of(base, problem):
        nan_blocks = {index // 32 for index in decoded.isnan().nonzero().ravel().tolist()}
        assert nan_blocks == blocks
        assert int(decoded.isnan().sum()) == 32 * len(blocks)
    assert set(problem.variables[0].isnan().nonzero().ravel().tolist()) <= {100, 300}


def test_unchanged_slots_are_not_encoded_again() -> None:
    base = encoded_case(case("Adam"), "softsign8")

    def update(var: Any, grad: Any, m: Any, v: Any) -> Any:
        return var - m, m, v + grad * grad

    rule = replace(base.rule, update=update, prepare=None)
    base = replace(base, row=replace(base.row, rule=rule))
    problem = problem_of(base, 4096)
    problem.slots[0][0].view(-1, 36)[:, :4] = 255  # a NaN that no encoder writes
    slot_before = problem.slots[0][0].clone()
    assert_same_steps(base, problem)
    assert torch.equal(problem.slots[0][0], slot_before)


def test_non_contiguous_variables_use_the_reference() -> None:
    base = encoded_case(case("Adam"), "softsign8")
    problem = problem_of(base, [(64, 80)])
    expected = take(base, problem.copy())
    problem.variables = [problem.variables[0].t().contiguous().t()]
    with pytest.warns(match="strides"):
        take(base, problem)
    assert_same(problem.variables, expected.variables)
    assert torch.equal(problem.slots[0][0], expected.slots[0][0])


def test_unencoded_small_slots_update_beside_encoded_slots() -> None:
    base = encoded_case(case("Adam"), "softsign8")
    problem = Problem.make(base.row, [100, 5000], [torch.float32] * 2, seed=3)
    encoded = encode_slots(base, problem.copy())
    problem.slots[1] = encoded.slots[1]
    assert_same_steps(base, problem)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("engine", ["cpu", "reference"])
@pytest.mark.parametrize(
    ("rule", "name", "runs"),
    [
        *(("Momentum", name, [(256 * 5, 256 * 300)]) for name in OF_SLOTS if name != "root8"),
        ("Adam", "softsign8", [(32 * 3, 32 * 9)]),
        ("Adam", "softsign8", [(start + 96, start + 224) for start in range(0, 80_000, 256)]),
    ],
)
def test_a_shard_has_the_bits_of_the_full_variable(
    rule: str, name: str, runs: list[tuple[int, int]], engine: str
) -> None:
    if CODECS[name].positive:
        rule = "Adagrad"
    base = encoded_case(case(rule), name)
    full = problem_of(base, 80_128)
    positions = torch.cat([torch.arange(*run) for run in runs])
    shard = shard_of(base, full, positions)
    starts, stops = np.array(runs).T
    origin = ElementRuns(starts, stops - starts) if len(runs) > 1 else runs[0][0]
    selection = KEEP._replace(name=engine)
    take(base, full, selection, steps=2, draw_step=7.0)
    for number in (None, 3):  # without and with stochastic rounding, of which there is none here
        places = [(number, origin)]
        stepped = take(base, shard.copy(), selection, steps=2, places=places, draw_step=7.0)
        assert_same(stepped.written(), shard_of(base, full, positions).written())
    beginning = take(base, shard.copy(), selection, steps=2, draw_step=7.0)
    assert not all(map(torch.equal, beginning.written(), stepped.written()))
