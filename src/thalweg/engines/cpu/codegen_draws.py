"""The parts of a CPU kernel's text that draw random bits; see `thalweg.engines.philox`."""

from __future__ import annotations

from thalweg.engines.codegen import Update
from thalweg.engines.cpu.codegen import first_of
from thalweg.engines.draws import GROUP, SCALARS
from thalweg.engines.philox import INCREMENTS, MASK, MULTIPLIERS, ROUNDS

_ROUND = """    left, right = {first} * c0, {second} * c2
    c0, c2 = ((right >> 32) & {mask}) ^ c1 ^ k0, ((left >> 32) & {mask}) ^ c3 ^ k1
    c1, c3 = right & {mask}, left & {mask}
    k0, k1 = (k0 + {low}) & {mask}, (k1 + {high}) & {mask}
"""

_DRAW = """
first = position >> {shift}
for j in range((count + (position & {last}) + {last}) >> {shift}):
    high = {stream} | (((first + j) >> 32) << 8)
    w0, w1, w2, w3 = draw_words((first + j) & {mask}, step, number, high, key_low, key_high)
    words{stream}[4 * j] = w0
    words{stream}[4 * j + 1] = w1
    words{stream}[4 * j + 2] = w2
    words{stream}[4 * j + 3] = w3
drawn{stream} = uint16_pointer(address_of(words{stream}) + 2 * (position & {last}))
"""


def define_draws() -> str:
    """The function that draws four words."""
    parts = {"mask": MASK, "first": MULTIPLIERS[0], "second": MULTIPLIERS[1]}
    once = _ROUND.format(low=INCREMENTS[0], high=INCREMENTS[1], **parts)
    lines = ["def draw_words(c0, c1, c2, c3, k0, k1):", once * ROUNDS + "    return c0, c1, c2, c3"]
    return "\n".join(lines) + "\n"


def begin_draws(update: Update, streams: list[int]) -> list[str]:
    """What a chunk knows of its draws: key, step, number of the variable, room for words."""
    names = dict(zip(SCALARS, ("step", "key_low", "key_high"), strict=True))
    beside = len(update.storage)
    return [
        *(f"{own} = int64({update.scalar[name]})" for name, own in names.items()),
        f"number = {first_of(update, beside)}",
        f"origin = {first_of(update, beside + 1)} + offset",
        *(f"words{stream} = words()" for stream in streams),
    ]


def draw_for(stream: int, number: int) -> list[str]:
    """Draw for `count` elements from `begin` of a chunk on.

    Args:
        stream: Where they are stored.
        number: Which of an element's numbers that is.
    """
    text = _DRAW.format(
        shift=GROUP.bit_length() - 1, last=GROUP - 1, stream=stream, mask=MASK
    ).replace(f"high = {stream} |", f"high = {number} |")
    return ["position = origin + begin", *text.strip().splitlines()]


def rounded(stream: int, kind: str, value: str) -> str:
    """A number of 16 bits, rounded by what was drawn for it."""
    short = {"float16": "half", "bfloat16": "bfloat"}[kind]
    return f"float_to_{short}_by({value}, drawn{stream}[i])"
