"""Random bits: those of Philox, rounding by them, and that the engines agree to the last bit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch

from rulebook import assert_same, bits, values
from thalweg._core import atomic_section
from thalweg._engines import Dispatcher, Selection, philox, random_bits
from thalweg._engines.cpu import codegen_blocks, launch
from thalweg._engines.cpu.codegen_blocks import draw_for
from thalweg._engines.protocol import Columns, StepRequest
from thalweg.formula import Rule, Slot

# Random123's known answers (kat_vectors): counter, key, words.
ONES = 0xFFFFFFFF
ANSWERS = [
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((ONES,) * 4, (ONES,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]
DTYPES = {"float16": torch.float16, "bfloat16": torch.bfloat16}
DRAWS = (0, 1, 32767, 32768, 65535)  # of 16 bits
by_dtype = pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)


@pytest.mark.parametrize(("counter", "key", "words"), ANSWERS)
def test_philox_has_known_answers(counter: Any, key: Any, words: Any) -> None:
    first, step, number, high = counter
    group, upper = torch.tensor([first]), torch.tensor([high])
    draws = philox.philox((group, step, number, upper), key)
    assert tuple(map(int, draws)) == words


def test_kernel_source_philox_has_known_answers() -> None:
    for (group, step, number, stream), (low, high), words in ANSWERS:
        output: dict[int, int] = {}
        variables = {"origin": 8 * group, "begin": 0, "count": 8, "step": step, "number": number}
        variables |= {"key_low": low, "key_high": high, f"words{stream}": output}
        pointers = {"uint16_pointer": int, "address_of": id}
        exec("\n".join(draw_for({0: stream})), variables | pointers)
        halves = [word >> shift & ONES for word in (output[0], output[1]) for shift in (0, 32)]
        assert tuple(halves) == words


def drawn(
    count: int,
    first: int = 0,
    step: int = 3,
    number: int = 2,
    stream: int = 1,
    key: tuple[int, int] = (5, 6),
) -> Any:
    return philox.draw_bits([(number, first, count)], step, stream, key).numpy()


@pytest.mark.parametrize("first", [0, 1, 7, 8, 9, 4097, (1 << 35) - 3, (1 << 40) + 5])
def test_slice_draws_the_bits_of_the_whole(first: int) -> None:
    begin = first - first % 8
    whole_run = drawn(300, begin)
    np.testing.assert_array_equal(drawn(40, first), whole_run[first - begin :][:40])
    for count in (0, 1, 7, 8, 9):
        assert len(drawn(count, first)) == count


CHANGES: list[dict[str, Any]] = [
    {"first": 8 << 32}, {"first": 4096}, {"step": 4}, {"number": 3}, {"number": 0}, {"stream": 0},
    {"stream": 2}, {"key": (6, 6)}, {"key": (5, 7)},
]  # fmt: skip


@pytest.mark.parametrize("changes", CHANGES, ids=str)
def test_every_input_changes_the_draws(changes: dict[str, Any]) -> None:
    matches = int((drawn(4096) == drawn(4096, **changes)).sum())
    assert matches < 5  # of which chance has 1/16 on average


def test_draws_are_uniform() -> None:
    counts = np.bincount(drawn(1 << 22), minlength=1 << 16)
    expected = (1 << 22) / (1 << 16)
    chi = float(((counts - expected) ** 2 / expected).sum())
    assert abs(chi - 65535) < 5 * np.sqrt(2 * 65535)


# What both engines round, as the new values of a slot beside a variable of float32.


def keep(var: Any, grad: Any, s: Any, *, one: Any) -> Any:
    """The gradient, by an operation of which the engines know that it rounds."""
    return var, grad * one


def rounded(
    array: torch.Tensor, dtype: torch.dtype, engine: str = "cpu", place: Any = (0, 0), step: int = 0
) -> torch.Tensor:
    rule = Rule(name="Keep", update=keep, hypers=(), slots=(Slot("s"),))
    var, slot = torch.zeros_like(array), torch.zeros_like(array, dtype=dtype)
    request = StepRequest(rule, (), [var], [array], [[slot]], ["w"], Selection(engine, "keep"))
    ready = Dispatcher().plan_step(request._replace(places=[place]))
    scalars = {"one": 1.0, **random_bits.scalars_of(7**15, step)}
    shared = {kind: {name: kind(x) for name, x in scalars.items()} for kind in ready.dtypes}
    for step_round in ready.make_rounds(Columns(shared, {})):
        atomic_section.run(step_round.calls)
    return slot


def of_bits(numbers: torch.Tensor, dtype: torch.dtype, draw: Any) -> torch.Tensor:
    """Round by the functions of `philox` with given bits."""
    flat = numbers.reshape(-1)
    draws = torch.as_tensor(draw, dtype=torch.int32).expand(flat.shape)
    return philox.round_randomly(flat, dtype, draws).view(numbers.shape)


@pytest.fixture
def same_draw(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Make kernels draw one number for everything."""

    def set_draw(draw: int) -> None:
        def lines(streams: Mapping[int, int]) -> list[str]:
            pointers = [
                f"drawn{x} = uint16_pointer(address_of(words{k}))" for x, k in streams.items()
            ]
            return [
                *pointers,
                "for j in range(count):",
                *(f"    drawn{x}[j] = {draw}" for x in streams),
            ]

        monkeypatch.setattr(codegen_blocks, "draw_for", lines)

    launch.update_kernel.cache_clear()
    yield set_draw
    launch.update_kernel.cache_clear()


def every(dtype: torch.dtype) -> torch.Tensor:
    patterns = torch.arange(-(1 << 15), 1 << 15, dtype=torch.int32).to(torch.int16)
    return patterns.view(dtype).float()


@pytest.mark.one_in(3)
@by_dtype
@pytest.mark.parametrize("draw", DRAWS)
def test_representable_numbers_round_to_themselves(
    dtype: torch.dtype, draw: int, same_draw: Any
) -> None:
    same_draw(draw)
    numbers = every(dtype)
    expected = bits(numbers.to(dtype))
    for actual in (rounded(numbers, dtype), of_bits(numbers, dtype, draw)):
        assert torch.equal(bits(actual), expected)


def between(dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Numbers between two neighbours of a type, and these: the one nearer to 0 first."""
    low = every(dtype)
    low = low[low.isfinite() & (low.abs() < torch.finfo(dtype).max)]
    neighbor = (low.to(dtype).view(torch.int16) + 1).view(dtype).float()
    middle = low.double() + (neighbor.double() - low.double()) * 0.375
    return middle.float(), low, neighbor


@by_dtype
@pytest.mark.parametrize("draw", [0, 65535])
def test_extreme_draws_round_down_and_up(dtype: torch.dtype, draw: int, same_draw: Any) -> None:
    same_draw(draw)
    middle, low, high = between(dtype)
    exact = middle.double() == low.double() + (high.double() - low.double()) * 0.375
    assert (
        exact.float().mean() > 0.99
    )  # all but the least of bfloat16, which float32 has no part of
    expected = (low, high)[draw > 0][exact].to(dtype)
    for actual in (rounded(middle, dtype), of_bits(middle, dtype, draw)):
        assert_same([actual[exact]], [expected])


# Numbers, each with its lower neighbour in size, the place between it and the next, and the share
# of the way that the number has gone.
SHARES = [
    (torch.bfloat16, 1.0, 2.0**-7, 0.5),
    (torch.bfloat16, -1.0, 2.0**-7, 2.0**-16),
    (torch.bfloat16, 3.0e-39, 2.0**-133, 0.25),
    (torch.float16, 1.0, 2.0**-10, 2.0**-13),
    (torch.float16, -1.5, 2.0**-10, 0.6875),
    (torch.float16, 65472.0, 32.0, 0.75),
    (torch.float16, 2.0**-14, 2.0**-24, 0.125),
    (torch.float16, 3 * 2.0**-24, 2.0**-24, 0.4375),  # denormals
    (torch.float16, 0.0, 2.0**-24, 2.0**-16),
]


@pytest.mark.parametrize(("dtype", "low", "place", "share"), SHARES)
def test_rounding_up_is_proportional(
    dtype: torch.dtype, low: float, place: float, share: float
) -> None:
    low = float(torch.tensor(low).to(dtype))
    numbers = torch.full((1 << 16,), low + np.copysign(place, low) * share)
    drawn_values = of_bits(numbers, dtype, np.arange(1 << 16)).double()
    is_up = drawn_values != low
    assert int(is_up.sum()) == share * 65536
    assert set(drawn_values[is_up].tolist()) == {low + float(np.copysign(place, low))}


@pytest.mark.one_in(3)
@pytest.mark.parametrize("engine", ["cpu", "reference", "torch"])
@pytest.mark.parametrize(("dtype", "low", "place", "share"), SHARES)
def test_mean_of_rounded_numbers_is_the_number(
    dtype: torch.dtype, low: float, place: float, share: float, engine: str
) -> None:
    low = float(torch.tensor(low).to(dtype))
    count, up_count = 1 << 16, 0
    numbers = torch.full((count,), low + np.copysign(place, low) * share)
    for step in range(4):
        up_count += int((rounded(numbers, dtype, engine, step=step).double() != low).sum())
    sigma = np.sqrt(4 * count * share * (1 - share))
    assert abs(up_count - 4 * count * share) <= 5 * sigma


# Numbers, and what becomes of them whatever is drawn.
AT_THE_END = [
    (torch.float16, 65504.0, 65504.0),
    (torch.float16, 65519.0, 65504.0),
    (torch.float16, -65520.0, -np.inf),
    (torch.float16, 1e30, np.inf),
    (torch.bfloat16, 3.3895313892515355e38, 3.3895313892515355e38),
    (torch.bfloat16, -3.4028234663852886e38, -np.inf),
    (torch.bfloat16, 3.39e38, 3.3895313892515355e38),
    *((dtype, x, x) for dtype in DTYPES.values() for x in (0.0, -0.0, np.inf, -np.inf, np.nan)),
]


@pytest.mark.parametrize(("dtype", "number", "expected"), AT_THE_END)
@pytest.mark.parametrize("engine", ["cpu", "reference", "torch"])
def test_overflow_rounds_as_to_nearest(
    dtype: torch.dtype, number: float, expected: float, engine: str
) -> None:
    actual = rounded(torch.full((300,), number), dtype, engine)
    assert torch.equal(bits(actual), bits(torch.full((300,), expected).to(dtype)))


# Engines

SIZES = (1, 7, 8, 9, 255, 256, 257, 65536 + 257)
PLACES = ((0, 0), (3, 0), (1, 5), (0, 8), (2, 65536 + 3), (9, (1 << 35) - 9))


def patterns(count: int, seed: int = 0) -> torch.Tensor:
    """Any bits at all, and numbers of sizes that types of 16 bits have."""
    rng = np.random.default_rng(seed)
    any_bits = rng.integers(0, 1 << 32, count, dtype=np.uint32).view(np.float32).copy()
    ordinary = values(count, torch.float32, rng, special=0.1).numpy()
    return torch.from_numpy(np.where(rng.random(count) < 0.5, any_bits, ordinary))


@pytest.mark.one_in(3)
@by_dtype
@pytest.mark.parametrize("place", PLACES, ids=str)
@pytest.mark.parametrize("size", SIZES)
def test_engines_draw_equal_bits(size: int, place: tuple[int, int], dtype: torch.dtype) -> None:
    numbers = patterns(size)
    key = tuple(int(x) for x in list(random_bits.scalars_of(7**15, 5).values())[1:])
    draws = drawn(size, place[1], 5, place[0], 1, key)
    expected = bits(of_bits(numbers, dtype, draws))
    for engine in ("cpu", "reference", "torch"):
        assert torch.equal(bits(rounded(numbers, dtype, engine, place, 5)), expected)


@by_dtype
@pytest.mark.parametrize("engine", ["cpu", "reference", "torch"])
def test_partial_launches_draw_the_bits_of_the_whole(engine: str, dtype: torch.dtype) -> None:
    numbers = patterns(70_000, 1)
    expected_bits, begin = bits(rounded(numbers, dtype, engine, (4, 0))), 0
    for size in (1, 6, 250, 4096, 65536, 111):
        part = numbers[begin : begin + size].clone()
        actual = rounded(part, dtype, engine, (4, begin))
        assert torch.equal(bits(actual), expected_bits[begin : begin + size])
        begin += size


@by_dtype
def test_draws_follow_memory_order(dtype: torch.dtype) -> None:
    """Of dense memory, whatever the strides; the reference alone takes what has gaps."""
    numbers = patterns(12 * 70, 2)
    flat = bits(rounded(numbers, dtype))
    for laid_out in (numbers.view(70, 12).t(), numbers.view(2, 6, 70).transpose(0, 1)):
        for engine in ("cpu", "reference"):
            actual = rounded(laid_out, dtype, engine)
            assert actual.stride() == laid_out.stride()
            assert torch.equal(bits(actual.as_strided((840,), (1,))), flat)


@pytest.mark.parametrize("seed", [0, 1, (1 << 24) - 1, 1 << 24, (1 << 48) - 1])
@pytest.mark.parametrize("step", [0, 1, (1 << 24) - 1])
def test_scalars_of_float32_hold_seed_and_step(seed: int, step: int) -> None:
    scalars = [np.float32(scalar) for scalar in random_bits.scalars_of(seed, step).values()]
    number, low, high = map(int, scalars)
    assert (number, low + high * random_bits.STEPS) == (step, seed)
    assert random_bits.scalars_of(seed, step + random_bits.STEPS) == random_bits.scalars_of(
        seed, step
    )
