"""Slots of 8 bits: what codecs hold, and that the engines agree to the last bit."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from quantized_rules import encode_slots, encoded_case, numbers_of, records_of
from rulebook import FIRST, FLUSH, KEEP, Case, Problem, assert_same, case, label, reference, take
from thalweg._engines.codecs import CODECS, OF_SLOTS
from thalweg._engines.codecs.codec import Codec
from thalweg._engines.codecs.records import decode_array, encode_array
from thalweg._engines.cpu import kernel_group

EVERY = [*OF_SLOTS.values()]
by_codec = pytest.mark.parametrize("codec", EVERY, ids=lambda codec: codec.name)
by_name = pytest.mark.parametrize("name", OF_SLOTS)
CASES = [each for each in FIRST if each.rule.element_slots]
SIZES = (1, 31, 33, 255, 257, 4096, 4097, 65536 + 257)


def numbers(codec: Codec, count: int, seed: int = 0) -> Any:
    rng = np.random.default_rng(seed)
    made = rng.standard_normal(count) * 10.0 ** rng.integers(-4, 3, count)
    return (made * made if codec.positive else made).astype(np.float32)


def blocks_of(codec: Codec, scales: Any) -> Any:
    """Records that have each code beside the largest one, at each scale."""
    codes = np.arange(-127, 128) if codec.signed else np.arange(256)
    largest = -128 if codec.name == "dynamic8" else codes[-1]
    per = codec.block - 1
    count = -(-len(codes) // per)
    rows = np.full((count, codec.block), largest)
    rows[:, 1:] = np.resize(codes, (count, per))
    records = np.zeros((len(scales), count, codec.record_bytes), np.uint8)
    records[:, :, :4] = scales.view(np.uint8).reshape(-1, 1, 4)
    records[:, :, 4:] = rows.astype(np.int16).astype(np.uint8)
    return records.reshape(-1)


# Exponents of the scales that are kept, and that leave all numbers normal.
KEPT = {"root8": (-54, 64), "softsign8": (-118, 128)}
OTHERS = (-100, 128)


@by_codec
def test_every_code_stays_at_every_scale(codec: Codec) -> None:
    """Of 16 bits all scales, and some others of 32."""
    low, high = KEPT.get(codec.name, OTHERS)
    first, last = ((each + 127) << 7 for each in (low, high))
    scales = (np.arange(first + 1, last, dtype=np.uint32) << 16).view(np.float32)
    drawn = np.random.default_rng(1).uniform(low + 0.01, high - 0.01, 2000)
    for some in (*np.array_split(scales, 8), np.exp2(drawn).astype(np.float32)):
        records = blocks_of(codec, some)
        held = decode_array(codec, records, len(records) // codec.record_bytes * codec.block)
        assert np.isfinite(held).all()
        np.testing.assert_array_equal(encode_array(codec, held), records)


@by_codec
def test_what_is_lost_is_a_share_of_the_largest(codec: Codec) -> None:
    """Half of the largest step between two codes."""
    given = numbers(codec, 300 * codec.block)
    held = decode_array(codec, encode_array(codec, given), len(given))
    lost = np.abs(held - given).reshape(-1, codec.block).max(1)
    largest = np.abs(given).reshape(-1, codec.block).max(1)
    bounds = {"softsign8": 2 / 254, "root8": 1 / 255, "linear8": 0.5 / 127, "dynamic8": 0.45 / 64}
    bound = bounds.get(codec.name, 0.225 / 64)
    assert (lost <= largest * bound * 1.001).all()
    own = np.abs(given).reshape(-1, codec.block)
    kept = np.abs(held).reshape(-1, codec.block)[own == own.max(1, keepdims=True)]
    # dynamic8 has 1, and no -1.
    np.testing.assert_allclose(kept, largest, rtol=0.0071 if codec.name == "dynamic8" else 1.3e-7)


NAN, INFINITY = np.float32(np.nan), np.float32(np.inf)
# A number in a block of others near 1, and whether the block is NaN then, or as without it.
STRANGE = [(NAN, True), (-NAN, True), (INFINITY, True), (-INFINITY, True), (1e-40, False),
           (-0.0, False), (3.4e38, False)]  # fmt: skip


@by_codec
@pytest.mark.parametrize(("number", "is_lost"), STRANGE)
def test_a_block_with_nan_or_an_infinity_is_nan_as_a_whole(
    codec: Codec, number: float, is_lost: bool
) -> None:
    if codec.positive:
        number = abs(number)
    given = np.abs(numbers(codec, 3 * codec.block)) + 1
    whole = encode_array(codec, given).reshape(3, -1)
    given[codec.block + 5] = number
    records = encode_array(codec, given)
    held = decode_array(codec, records, len(given)).reshape(3, -1)
    np.testing.assert_array_equal(records.reshape(3, -1)[[0, 2]], whole[[0, 2]])
    assert np.isnan(held[1]).all() == is_lost
    assert np.isnan(held[1]).any() == is_lost
    assert np.isfinite(held[[0, 2]]).all()


@by_codec
def test_zeros_and_what_is_nearly_zero_are_bytes_of_zero(codec: Codec) -> None:
    for number in (0.0, -0.0) if codec.positive else (0.0, -0.0, 1e-45, 1e-38, 2.0**-120):
        given = np.full(codec.block + 3, number, np.float32)
        records = encode_array(codec, given)
        assert not records.any()
        np.testing.assert_array_equal(decode_array(codec, records, len(given)), 0)


def test_a_block_with_a_negative_number_is_nan_where_roots_are_kept() -> None:
    given = np.ones(64, np.float32)
    given[40] = -1e-30
    held = decode_array(CODECS["root8"], encode_array(CODECS["root8"], given), 64)
    assert np.isnan(held).tolist() == [False] * 32 + [True] * 32


@by_codec
def test_the_last_record_is_whole(codec: Codec) -> None:
    for count in (1, codec.block - 1, codec.block, codec.block + 1):
        given = np.abs(numbers(codec, count)) + 1
        records = encode_array(codec, given)
        assert records.shape == (codec.bytes_of(count),)
        assert codec.bytes_of(count) % codec.record_bytes == 0
        padded = np.zeros(-(-count // codec.block) * codec.block, np.float32)
        padded[:count] = given
        np.testing.assert_array_equal(records, encode_array(codec, padded))
        beyond = len(padded) - count
        assert not records[len(records) - beyond :].any()


def theirs(codec: Codec, given: Any) -> tuple[Any, Any]:
    """Codes and scales by the formulas of flashoptim 0.1.4, in NumPy's float32."""
    one = np.float32(1)
    blocks = given.reshape(-1, codec.block)
    taken = np.sqrt(blocks) if codec.positive else blocks
    scale = np.maximum(np.abs(taken).max(1, keepdims=True), np.float32(1e-12))
    share = taken / scale
    if codec.name == "softsign8":
        share = np.float32(2) * share / (one + np.abs(share))
    full = np.float32(127 if codec.signed else 255)
    return np.floor(share * full + np.float32(0.5)), scale


@pytest.mark.parametrize("name", ["softsign8", "root8"])
def test_codes_are_those_of_flashoptim_but_where_two_are_as_near(name: str) -> None:
    codec = CODECS[name]
    given = numbers(codec, 100_000 // codec.block * codec.block, seed=7)
    codes, scales = theirs(codec, given)
    own_scales, own = records_of(name, torch.from_numpy(encode_array(codec, given)))
    np.testing.assert_array_equal(own_scales.numpy(), scales.ravel())
    differ = own.numpy().astype(np.float32) != codes
    assert differ.sum() <= len(given) / 1000
    assert np.abs(own.numpy().astype(np.float32) - codes).max() <= 1


def numbers_of_bitsandbytes(codec: Codec) -> Any:
    """The table of bitsandbytes 0.50.2, sorted, made as there is said."""
    found = [0.0, 1.0]
    for decade in range(7):
        edges = np.linspace(0.1, 1, 2 ** (decade + (not codec.signed)) + 1, dtype=np.float32)
        middles = (edges[:-1] + edges[1:]) / np.float32(2)
        own = (10.0 ** (decade - 6) * middles.astype(np.float64)).tolist()
        found += [*own, *(-x for x in own)] if codec.signed else own
    return np.sort(np.array(found, np.float32))


@pytest.mark.parametrize("name", ["dynamic8", "dynamic8_positive"])
def test_dynamic_numbers_are_those_of_bitsandbytes(name: str) -> None:
    codec = CODECS[name]
    table = numbers_of_bitsandbytes(codec)
    record = np.zeros(codec.record_bytes, np.uint8)
    record[:4] = np.ones(1, np.float32).view(np.uint8)
    record[4:] = np.arange(256)
    held = decode_array(codec, record, 256)
    np.testing.assert_allclose(np.sort(held), table, rtol=3e-7)
    given = numbers(codec, 256 * 1000, seed=5)
    records = encode_array(codec, given)
    scales = np.repeat(records_of(name, torch.from_numpy(records))[0].numpy(), 256)
    shares = given / scales
    nearest = table[np.searchsorted((table[1:].astype(np.float64) + table[:-1]) / 2, shares)]
    differ = np.abs(decode_array(codec, records, len(given)) / scales - nearest) > 1e-6 * np.abs(
        nearest
    )
    differ &= np.abs(nearest) > 0
    assert differ.sum() <= len(given) / 1000


# Engines


def problem_of(
    own: Case, size: Any, dtype: torch.dtype = torch.float32, seed: int = 0, special: float = 0.0
) -> Problem:
    """A problem with slots of float32, encoded."""
    sizes = size if isinstance(size, list) else [size]
    made = Problem.make(own.row, sizes, [dtype] * len(sizes), seed, special)
    made.slots = [[slot.float() for slot in slots] for slots in made.slots]
    return encode_slots(own, made)


def assert_same_steps(own: Case, problem: Problem, selection: Any = KEEP, steps: int = 2) -> None:
    wanted = reference(own, problem, selection, steps=steps)
    got = take(own, problem, selection, steps=steps)
    assert_same(got.variables, wanted.variables, f"{own.rule.name} variables")
    for slots, others in zip(got.slots, wanted.slots, strict=True):
        for slot, other in zip(slots, others, strict=True):
            assert torch.equal(slot, other), own.rule.name


@by_name
@pytest.mark.parametrize("own", CASES, ids=label)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=label)
def test_the_cpu_engine_has_the_bits_of_the_reference(
    own: Case, name: str, dtype: torch.dtype
) -> None:
    own = encoded_case(own, name)
    assert_same_steps(own, problem_of(own, [4096, (67, 63)], dtype, special=0.01))


@by_name
@pytest.mark.parametrize("flush", [False, True], ids=["keep", "flush"])
def test_sizes_around_the_ends_of_blocks_and_chunks(name: str, flush: bool) -> None:
    own = encoded_case(case("Adam"), name)
    for size in SIZES:
        for special in (0.0, 0.001):
            problem = problem_of(own, size, seed=size, special=special)
            assert_same_steps(own, problem, FLUSH if flush else KEEP, steps=3)


@by_name
@pytest.mark.parametrize("count", [1, 2, 3])
def test_threads_and_chunks_do_not_change_bits(
    name: str, count: int, threads: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = encoded_case(case("Adam"), name)
    problem = problem_of(own, [5000, 70_000])
    monkeypatch.setattr(kernel_group, "chunk_of", lambda elements: 256 * count)
    threads(count)
    assert_same_steps(own, problem)


def test_only_the_block_of_a_nan_is_nan() -> None:
    own = encoded_case(case("Adam"), "softsign8")
    problem = problem_of(own, 4096)
    problem.gradients[0][100] = np.nan
    problem.gradients[0][300] = np.inf
    assert_same_steps(own, problem, steps=1)
    blocks = {index // 32 for index in (100, 300)}
    for held in numbers_of(own, problem):
        lost = {index // 32 for index in held.isnan().nonzero().ravel().tolist()}
        assert lost == blocks
        assert int(held.isnan().sum()) == 32 * len(blocks)
    assert set(problem.variables[0].isnan().nonzero().ravel().tolist()) <= {100, 300}


def test_slots_that_a_formula_leaves_alone_are_not_encoded_again() -> None:
    own = encoded_case(case("Adam"), "softsign8")

    def update(var: Any, grad: Any, m: Any, v: Any) -> Any:
        return var - m, m, v + grad * grad

    own = replace(own, row=replace(own.row, rule=replace(own.rule, update=update, prepare=None)))
    problem = problem_of(own, 4096)
    problem.slots[0][0].view(-1, 36)[:, :4] = 255  # a NaN that no encoder writes
    before = problem.slots[0][0].clone()
    assert_same_steps(own, problem)
    assert torch.equal(problem.slots[0][0], before)


def test_variables_that_are_not_contiguous_are_left_to_the_reference() -> None:
    own = encoded_case(case("Adam"), "softsign8")
    problem = problem_of(own, [(64, 80)])
    wanted = take(own, problem.copy())
    problem.variables = [problem.variables[0].t().contiguous().t()]
    with pytest.warns(match="strides"):
        take(own, problem)
    assert_same(problem.variables, wanted.variables)
    assert torch.equal(problem.slots[0][0], wanted.slots[0][0])


def test_small_slots_of_numbers_are_updated_beside_encoded_ones() -> None:
    own = encoded_case(case("Adam"), "softsign8")
    problem = Problem.make(own.row, [100, 5000], [torch.float32] * 2, seed=3)
    encoded = encode_slots(own, problem.copy())
    problem.slots[1] = encoded.slots[1]
    assert_same_steps(own, problem)
