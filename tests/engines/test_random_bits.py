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
from thalweg._engines.cpu.codegen_random_bits import draw_for
from thalweg._engines.protocol import Columns, StepRequest
from thalweg.formula import Rule, Slot

# Random123's known answers (kat_vectors): counter, key, words.
ONES = 0xFFFFFFFF
KNOWN = [
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((ONES,) * 4, (ONES,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]
DTYPES = {"float16": torch.float16, "bfloat16": torch.bfloat16}
ROUND = {torch.float16: philox.round_to_half, torch.bfloat16: philox.round_to_bfloat}
DRAWS = (0, 1, 32767, 32768, 65535)  # of 16 bits
by_dtype = pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)


@pytest.mark.parametrize(("counter", "key", "words"), KNOWN)
def test_known_answers(counter: Any, key: Any, words: Any) -> None:
    first, step, number, high = counter
    made = philox.philox((np.uint64(first), step, number, np.uint64(high)), key)
    assert tuple(map(int, made)) == words


def test_the_text_of_kernels_has_the_known_answers() -> None:
    """In Python's own numbers, which do not wrap."""
    for (group, step, number, stream), (low, high), words in KNOWN:
        made: dict[int, int] = {}
        given = {"origin": 8 * group, "begin": 0, "count": 8, "step": step, "number": number}
        given |= {"key_low": low, "key_high": high, f"words{stream}": made}
        pointers = {"uint16_pointer": int, "address_of": id}
        exec("\n".join(draw_for({0: stream})), given | pointers)
        halves = [each >> shift & ONES for each in (made[0], made[1]) for shift in (0, 32)]
        assert tuple(halves) == words


def drawn(count: int, first: int = 0, step: int = 3, number: int = 2, stream: int = 1, **key: Any):
    return philox.draw_bits(count, first, step, number, stream, key.get("key", (5, 6)))


@pytest.mark.parametrize("first", [0, 1, 7, 8, 9, 4097, (1 << 35) - 3, (1 << 40) + 5])
def test_a_part_has_the_bits_of_the_whole(first: int) -> None:
    begin = first - first % 8
    whole = drawn(300, begin)
    np.testing.assert_array_equal(drawn(40, first), whole[first - begin :][:40])
    for count in (0, 1, 7, 8, 9):
        assert len(drawn(count, first)) == count


OTHERS: list[dict[str, Any]] = [
    {"first": 8 << 32}, {"first": 4096}, {"step": 4}, {"number": 3}, {"number": 0}, {"stream": 0},
    {"stream": 2}, {"key": (6, 6)}, {"key": (5, 7)},
]  # fmt: skip


@pytest.mark.parametrize("other", OTHERS, ids=str)
def test_nothing_else_draws_the_same(other: dict[str, Any]) -> None:
    same = int((drawn(4096) == drawn(4096, **other)).sum())
    assert same < 5  # of which chance has 1/16 on average


def test_all_draws_come_equally_often() -> None:
    counts = np.bincount(drawn(1 << 22), minlength=1 << 16)
    expected = (1 << 22) / (1 << 16)
    chi = float(((counts - expected) ** 2 / expected).sum())
    assert abs(chi - 65535) < 5 * np.sqrt(2 * 65535)


# What both engines round, as the new values of a slot beside a variable of float32.


def keep(var: Any, grad: Any, s: Any, *, one: Any) -> Any:
    """The gradient, by an operation of which the engines know that it rounds."""
    return var, grad * one


def rounded(
    given: torch.Tensor, dtype: torch.dtype, engine: str = "cpu", place: Any = (0, 0), step: int = 0
) -> torch.Tensor:
    """Numbers of float32 as an engine rounds them."""
    rule = Rule(name="Keep", update=keep, hypers=(), slots=(Slot("s"),))
    var, slot = torch.zeros_like(given), torch.zeros_like(given, dtype=dtype)
    asked = StepRequest(rule, (), [var], [given], [[slot]], ["w"], Selection(engine, "keep"))
    ready = Dispatcher().plan_step(asked._replace(places=[place]))
    scalars = {"one": 1.0, **random_bits.scalars_of(7**15, step)}
    shared = {each: {name: each(x) for name, x in scalars.items()} for each in ready.dtypes}
    for each in ready.make_rounds(Columns(shared, {})):
        atomic_section.run(each.calls)
    return slot


def of_bits(given: torch.Tensor, dtype: torch.dtype, own: Any) -> torch.Tensor:
    """The same by the functions of `philox`, for given bits."""
    flat = given.numpy().reshape(-1)
    made = ROUND[dtype](flat, np.broadcast_to(np.asarray(own, np.uint32), flat.shape))
    return torch.from_numpy(made.view(np.int16)).view(dtype).view(given.shape)


@pytest.fixture
def same_draw(monkeypatch: pytest.MonkeyPatch) -> Any:
    """What has kernels draw one number for everything."""

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
    """All numbers of a type, in float32."""
    patterns = torch.arange(-(1 << 15), 1 << 15, dtype=torch.int32).to(torch.int16)
    return patterns.view(dtype).float()


@by_dtype
@pytest.mark.parametrize("draw", DRAWS)
def test_what_a_type_holds_stays(dtype: torch.dtype, draw: int, same_draw: Any) -> None:
    """All of its numbers, denormals, infinities and NaN among them, whatever is drawn."""
    same_draw(draw)
    given = every(dtype)
    wanted = bits(given.to(dtype))
    for made in (rounded(given, dtype), of_bits(given, dtype, draw)):
        assert torch.equal(bits(made), wanted)


def between(dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Numbers between two neighbours of a type, and these: the one nearer to 0 first."""
    low = every(dtype)
    low = low[low.isfinite() & (low.abs() < torch.finfo(dtype).max)]
    toward = (low.to(dtype).view(torch.int16) + 1).view(dtype).float()
    middle = low.double() + (toward.double() - low.double()) * 0.375
    return middle.float(), low, toward


@by_dtype
@pytest.mark.parametrize("draw", [0, 65535])
def test_the_least_draw_stays_below_and_the_largest_goes_up(
    dtype: torch.dtype, draw: int, same_draw: Any
) -> None:
    """In size: a number has its sign."""
    same_draw(draw)
    middle, low, high = between(dtype)
    exact = middle.double() == low.double() + (high.double() - low.double()) * 0.375
    assert (
        exact.float().mean() > 0.99
    )  # all but the least of bfloat16, which float32 has no part of
    wanted = (low, high)[draw > 0][exact].to(dtype)
    for made in (rounded(middle, dtype), of_bits(middle, dtype, draw)):
        assert_same([made[exact]], [wanted])


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
def test_of_all_draws_just_the_share_goes_up(
    dtype: torch.dtype, low: float, place: float, share: float
) -> None:
    low = float(torch.tensor(low).to(dtype))
    given = torch.full((1 << 16,), low + np.copysign(place, low) * share)
    made = of_bits(given, dtype, np.arange(1 << 16)).double()
    up = made != low
    assert int(up.sum()) == share * 65536
    assert set(made[up].tolist()) == {low + float(np.copysign(place, low))}


@pytest.mark.parametrize("engine", ["cpu", "reference"])
@pytest.mark.parametrize(("dtype", "low", "place", "share"), SHARES)
def test_the_mean_of_what_is_drawn_is_the_number(
    dtype: torch.dtype, low: float, place: float, share: float, engine: str
) -> None:
    """Within 5 sigma of what so many elements have."""
    low = float(torch.tensor(low).to(dtype))
    count, up = 1 << 16, 0
    given = torch.full((count,), low + np.copysign(place, low) * share)
    for step in range(4):
        up += int((rounded(given, dtype, engine, step=step).double() != low).sum())
    sigma = np.sqrt(4 * count * share * (1 - share))
    assert abs(up - 4 * count * share) <= 5 * sigma


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


@pytest.mark.parametrize(("dtype", "given", "wanted"), AT_THE_END)
@pytest.mark.parametrize("engine", ["cpu", "reference"])
def test_beyond_the_largest_is_as_to_nearest(
    dtype: torch.dtype, given: float, wanted: float, engine: str
) -> None:
    made = rounded(torch.full((300,), given), dtype, engine)
    assert torch.equal(bits(made), bits(torch.full((300,), wanted).to(dtype)))


# Engines

SIZES = (1, 7, 8, 9, 255, 256, 257, 65536 + 257)
PLACES = ((0, 0), (3, 0), (1, 5), (0, 8), (2, 65536 + 3), (9, (1 << 35) - 9))


def patterns(count: int, seed: int = 0) -> torch.Tensor:
    """Any bits at all, and numbers of sizes that types of 16 bits have."""
    rng = np.random.default_rng(seed)
    made = rng.integers(0, 1 << 32, count, dtype=np.uint32).view(np.float32).copy()
    usual = values(count, torch.float32, rng, special=0.1).numpy()
    return torch.from_numpy(np.where(rng.random(count) < 0.5, made, usual))


@by_dtype
@pytest.mark.parametrize("place", PLACES, ids=str)
@pytest.mark.parametrize("size", SIZES)
def test_engines_and_draws_agree(size: int, place: tuple[int, int], dtype: torch.dtype) -> None:
    given = patterns(size)
    key = tuple(int(x) for x in list(random_bits.scalars_of(7**15, 5).values())[1:])
    own = philox.draw_bits(size, place[1], 5, place[0], 1, key)
    wanted = bits(of_bits(given, dtype, own))
    for engine in ("cpu", "reference"):
        assert torch.equal(bits(rounded(given, dtype, engine, place, 5)), wanted)


@by_dtype
@pytest.mark.parametrize("engine", ["cpu", "reference"])
def test_parts_are_drawn_as_the_whole(engine: str, dtype: torch.dtype) -> None:
    given = patterns(70_000, 1)
    whole, begin = bits(rounded(given, dtype, engine, (4, 0))), 0
    for size in (1, 6, 250, 4096, 65536, 111):
        part = given[begin : begin + size].clone()
        made = rounded(part, dtype, engine, (4, begin))
        assert torch.equal(bits(made), whole[begin : begin + size])
        begin += size


@by_dtype
def test_the_order_is_that_of_memory(dtype: torch.dtype) -> None:
    """Of dense memory, whatever the strides; the reference alone takes what has gaps."""
    given = patterns(12 * 70, 2)
    flat = bits(rounded(given, dtype))
    for like in (given.view(70, 12).t(), given.view(2, 6, 70).transpose(0, 1)):
        for engine in ("cpu", "reference"):
            made = rounded(like, dtype, engine)
            assert made.stride() == like.stride()
            assert torch.equal(bits(made.as_strided((840,), (1,))), flat)


@pytest.mark.parametrize("seed", [0, 1, (1 << 24) - 1, 1 << 24, (1 << 48) - 1])
@pytest.mark.parametrize("step", [0, 1, (1 << 24) - 1])
def test_scalars_of_float32_hold_seed_and_step(seed: int, step: int) -> None:
    made = [np.float32(each) for each in random_bits.scalars_of(seed, step).values()]
    number, low, high = map(int, made)
    assert (number, low + high * random_bits.STEPS) == (step, seed)
    assert random_bits.scalars_of(seed, step + random_bits.STEPS) == random_bits.scalars_of(
        seed, step
    )
