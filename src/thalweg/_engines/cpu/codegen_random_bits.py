"""Lines of CPU kernels that draw random bits; see `thalweg._engines.philox`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from thalweg._engines.codegen import TracedUpdate, fill
from thalweg._engines.cpu.codegen import first_of
from thalweg._engines.philox import INCREMENTS, MASK, MULTIPLIERS, ROUNDS
from thalweg._engines.random_bits import GROUP, SCALARS

# All streams compute a round together, so that their latencies overlap. Bits above the lower 32 are
# masked only where a product needs it.
_PRODUCTS = """
left{k}, right{k} = {first} * (a{k} & {mask}), {second} * (c{k} & {mask})
"""
_WORDS = """
a{k}, b{k} = (right{k} >> 32) ^ b{k} ^ k0, right{k}
c{k}, d{k} = (left{k} >> 32) ^ d{k} ^ k1, left{k}
"""
_COUNTER = """
a{k}, b{k}, c{k}, d{k} = group, step, number, {k} | ((group >> 32) << 8)
"""
_STORE_WORDS = """
words{k}[2 * j] = (a{k} & {mask}) | (b{k} << 32)
words{k}[2 * j + 1] = (c{k} & {mask}) | (d{k} << 32)
"""
# Whole vectors of counters, of eight at most.
_DRAW = """
position = origin + begin
for j in range(((count + (position & {last}) + {most}) >> {shift}) << 3):
    group, k0, k1 = (position >> {of_group}) + j, key_low, key_high
    {draw}
"""
_ADDRESS = "drawn{stream} = uint16_pointer(address_of(words{k}) + 2 * (position & {last}))"


def read_origin(update: TracedUpdate) -> str:
    """Return a line that reads the position of the first element of a chunk.

    The table has the address of the positions of all chunks.
    """
    return f"origin = int64_pointer({first_of(update, len(update.storage) + 1)})[chunk]"


def begin_draws(update: TracedUpdate, indices: Iterable[int]) -> list[str]:
    """Return lines that assign the kernel variables needed to draw a chunk's random bits.

    The lines read `step`, `key_low` and `key_high` from scalars, and `number`, the index of the
    variable in the optimizer, from the kernel's table. The lines also reserve an array `words{k}`
    for each k in `indices`.

    Args:
        update: The traced update. The names in `SCALARS` must be among the update's scalars.
        indices: The `stream` argument of `philox.draw_bits`, for each tensor that is rounded.
    """
    names = dict(zip(SCALARS, ("step", "key_low", "key_high"), strict=True))
    return [
        *(f"{local_name} = int64({update.scalar[name]})" for name, local_name in names.items()),
        f"number = {first_of(update, len(update.storage))}",
        *(f"words{k} = words()" for k in indices),
    ]


def draw_for(streams: Mapping[int, int]) -> list[str]:
    """Return lines that draw random bits for `count` elements of a chunk, from element `begin` on.

    Pointers `drawn{index of a tensor}` are set to the bits of element `begin`.

    Args:
        streams: {index of a tensor: k}, where `words{k}` is the array for the tensor's bits.
    """
    indices, last_index, of_group = streams.values(), GROUP - 1, GROUP.bit_length() - 1
    round_lines = _fill_template(_PRODUCTS, indices) + _fill_template(_WORDS, indices)
    keys = "k0, k1 = k0 + {}, k1 + {}".format(*INCREMENTS)
    loop_lines = [
        *_fill_template(_COUNTER, indices),
        *[*round_lines, keys] * ROUNDS,
        *_fill_template(_STORE_WORDS, indices),
    ]
    draw_lines = fill(
        _DRAW,
        last=last_index,
        most=8 * GROUP - 1,
        shift=of_group + 3,
        of_group=of_group,
        draw=loop_lines,
    )
    addresses = [
        _ADDRESS.format(stream=stream, k=k, last=last_index) for stream, k in streams.items()
    ]
    return [*draw_lines, *addresses]


def _fill_template(template: str, indices: Iterable[int]) -> list[str]:
    """Return the lines of a template filled for each index of a random number."""
    first, second = MULTIPLIERS
    fields = {"first": first, "second": second, "mask": MASK}
    return [line for k in indices for line in fill(template, k=k, **fields)]


def round_by_draw(stream: int, kind: str, value: str) -> str:
    """Return an expression that rounds a value to a 16-bit type by the random bits of a tensor."""
    short = {"float16": "half", "bfloat16": "bfloat"}[kind]
    return f"float_to_{short}_by({value}, drawn{stream}[i])"
