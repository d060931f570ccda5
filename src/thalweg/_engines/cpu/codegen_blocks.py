"""Source of CPU kernels for encoded slots (8-bit codes) and random rounding of 16-bit numbers.

A kernel decodes a block of elements onto the stack, updates it with the lines of a kernel without
codecs, and encodes it. A stream is a tensor of the update: variable, gradient, slot or copy.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from thalweg._base.locks import importing
from thalweg._engines.codecs.codec import LARGEST_PEAK, LEAST_PEAK, NAN, Codec
from thalweg._engines.codecs.dither import PERIOD, TURN
from thalweg._engines.codecs.split8 import HALF
from thalweg._engines.codecs.texts import codec_fields, define_codecs
from thalweg._engines.codegen import (
    DECODED,
    FormulaWriter,
    Kernel,
    TracedUpdate,
    Update,
    fill,
    nest,
)
from thalweg._engines.cpu.codegen import STORAGE, Element, first_of, write_kernel
from thalweg._engines.cpu.work_table import STEP
from thalweg._engines.formula_parser import trace_formula
from thalweg._engines.philox import INCREMENTS, MASK, MULTIPLIERS, ROUNDS
from thalweg._engines.random_bits import GROUP, SCALARS

_LONGEST = 16  # nodes of a formula that decodes in the update's own loop

_CHUNK = """
for begin in range(0, length, {step}):
    count = min({step}, length - begin)
    {pointers}
    {decoding}
    {drawing}
    {elements}
    {encoding}
"""

_RECORD = "record = at{stream} + ((begin + part) >> {shift}) * {record}"

_DECODE = """
{at_record}
stored{stream}, scale = {kind}_pointer(record + {header}), float32_pointer(record)[0]
for j in range({block}):
    p{stream}[part + j] = {decode}(float32(stored{stream}[j]), scale)
"""

# Only for codecs with `_is_decoded_inline`.
_OPEN_RECORD = """
record = at{stream} + (begin >> {shift}) * {record}
stored{stream}, scale{stream} = {kind}_pointer(record + {header}), float32_pointer(record)[0]
"""

# Numbers beyond the last element must not change the peak of a block.
_CLEAR = """
for j in range(count, (count + {block} - 1) & -{block}):
    p{stream}[j] = 0
"""

# The rank of the dither of the first element of a block, which lies in one period.
_TURN = f"""
first = origin + begin + part
turn = ((first >> {PERIOD.bit_length() - 1}) * {TURN} + first) & {PERIOD - 1}
"""

# Peaks of all blocks are stored before any code is computed, so that no block waits for its peak.
_SCALE = """
{at_record}
peak = int32(0)
for j in range({block}):
    size = magnitude_of(p{stream}[part + j])
    peak = size if size > peak else peak
if (peak > {smallest}) & (peak <= {largest}):
    int32_pointer(record)[0] = peak
else:
    int32_pointer(record)[0] = {nan} if peak > {largest} else 0
"""

_ENCODE = """
{at_record}
{turn}
codes, scale = uint8_pointer(record + {header}), float32_pointer(record)[0]
if scale > float32(0):
    for j in range({block}):
        code = {encode}(p{stream}[part + j], scale)
        codes[j] = {round_to}(code, dithers[turn + j]{limits})
else:
    for j in range({block}):
        codes[j] = 0
"""

# Random bits, as of `thalweg._engines.philox`.
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

Coded = dict[int, Codec]  # by stream


def generate_blocks(update: Update) -> Kernel:
    """Return the kernel of an update in float32, with random rounding or encoded slots."""
    element = _Element(update.traced)
    return write_kernel(element, _update_chunk(element))


class _Element(Element):
    """Writer of lines that update element `i`, for kernels with encoded slots or random rounding.

    The new number of an encoded slot is stored on the stack, as `prepare(number)` of the codec.
    """

    def __init__(self, update: TracedUpdate) -> None:
        super().__init__(update, DECODED)

    def define_functions(self) -> str:
        codecs = sorted({*self.update.blocks.values()}, key=lambda codec: codec.name)
        functions = define_codecs(FormulaWriter(), codecs).values()
        return super().define_functions() + "\n" + "\n\n".join(functions) + "\n"

    def point_at_chunk(self) -> list[str]:
        """Return lines that set `at{k}` to the address of the chunk in tensor k, for each k.

        For an encoded tensor, the lines also reserve an array `p{k}` for decoded numbers.
        """
        lines: list[str] = []
        update = self.update
        for stream, kind in enumerate(update.storage):
            codec, first = update.blocks.get(stream), first_of(update, stream)
            if codec is None:
                start = "grad_offset" if stream == 1 else "offset"
                size = 1 if stream == update.lower else STORAGE[kind].size
                lines.append(f"at{stream} = {first} + {start} * {size}")
            else:
                # Chunks begin at multiples of `STEP`, runs of a shard's elements at whole blocks.
                records = "(offset >> {shift}) * {record}".format(**codec_fields(codec))
                lines += [f"at{stream} = {first} + {records}", f"p{stream} = numbers({STEP})"]
        return lines

    def begins_at(self, stream: int) -> str:
        if self.update.before and stream == 0 and 0 in self.update.random_streams:
            # Random bits round the variable once, when it is stored.
            return self.update.apply_stages(self.update.before, self.load_value(0))
        return super().begins_at(stream)

    def load_value(self, stream: int) -> str:
        """Return the expression of element i of a tensor: joined from parts, decoded, or loaded."""
        if stream == self.update.lower:
            return f"join_bfloat(p0[i], p{stream}[i])"
        codec = self.update.blocks.get(stream)
        if codec is not None and _is_decoded_inline(codec):
            decode = codec_fields(codec)["decode"]
            return f"{decode}(float32(stored{stream}[i]), scale{stream})"
        return super().load_value(stream)

    def store_value(self, stream: int, value: str) -> str:
        """Return a statement that stores expression `value` as element `i` of tensor `stream`."""
        if self.update.lower is not None and stream in (0, self.update.lower):
            half = "lower" if stream else "upper"
            bits = "drawn0[i]" if 0 in self.update.random_streams else f"uint16({HALF})"
            return f"p{stream}[i] = {half}_of({value}, {bits})"
        codec = self.update.blocks.get(stream)
        if codec is not None:
            value = f"{codec_fields(codec)['prepare']}({value})"
        if stream in self.update.random_streams:
            return f"p{stream}[i] = {_round_by_draw(stream, self.update.storage[stream], value)}"
        return super().store_value(stream, value)


def _update_chunk(element: Element) -> list[str]:
    """Return lines that decode slots, draw bits, update and encode, for `STEP` elements at once."""
    update = element.update
    random_streams, output_codecs = update.random_streams, update.written_blocks
    inline_codecs = {k: codec for k, codec in update.blocks.items() if _is_decoded_inline(codec)}
    block_codecs = {k: codec for k, codec in update.blocks.items() if k not in inline_codecs}
    elements = nest("for i in each(count):", element.update_element())
    if update.vectors:
        with importing:
            from thalweg._engines.cpu.codegen_broadcast import loop_over_rows
        elements = loop_over_rows(element, "(offset + begin)", "count")
    encoding = _fill(_CLEAR, output_codecs)
    for template in (_SCALE, _ENCODE):
        encoding += _fill_blocks(template, output_codecs)
    lines = fill(
        _CHUNK,
        step=STEP,
        pointers=_point_at_elements(update),
        decoding=[*_fill(_OPEN_RECORD, inline_codecs), *_fill_blocks(_DECODE, block_codecs)],
        drawing=draw_for(random_streams) if random_streams else [],
        elements=elements,
        encoding=encoding,
    )
    return [*_begin_chunk(update), *lines]


def _is_decoded_inline(codec: Codec) -> bool:
    """Return True if the update's own loop decodes a slot; a separate loop decodes other slots.

    This holds for codecs with blocks of `STEP` numbers and a short formula `decode`.
    """
    return codec.block == STEP and len(trace_formula(codec.decode).nodes) <= _LONGEST


def _fill_blocks(template: str, coded: Coded) -> list[str]:
    """Return loops over blocks of encoded slots; `coded` is {slot: codec}.

    Slots with equal block lengths share a loop, with the lines of `template` for each slot. Its
    variable `part` is the index of a block's first element.
    """
    lines: list[str] = []
    # All slots of one block length share a loop, so that their latencies overlap.
    for block in dict.fromkeys(codec.block for codec in coded.values()):
        block_codecs = {k: codec for k, codec in coded.items() if codec.block == block}
        lines += nest(f"for part in range(0, count, {block}):", _fill(template, block_codecs))
    return lines


def _fill(template: str, coded: Coded) -> list[str]:
    """Return the lines of a template, filled once for each slot in `coded`, {slot: codec}."""
    lines: list[str] = []
    for stream, codec in coded.items():
        fields = codec_fields(codec)
        lines += fill(
            template,
            stream=stream,
            at_record=_RECORD.format(stream=stream, **fields),
            turn=fill(_TURN),
            smallest=LEAST_PEAK,
            largest=LARGEST_PEAK,
            nan=NAN,
            **fields,
        )
    return lines


def _begin_chunk(update: TracedUpdate) -> list[str]:
    """Return lines that prepare the random bits and dithers (rounding offsets) of a chunk.

    `origin` is the position of the chunk's first element. For random bits, the lines load `step`,
    `key_low`, `key_high`, and `number`, the index of the variable in the optimizer. They also
    reserve an array `words{k}` for each `k`, the `stream` argument of `philox.draw_bits`. For
    encoded slots, they fill an array with two periods of dithers, so that reads need not wrap.
    """
    lines: list[str] = []
    if update.random_streams or update.written_blocks:
        positions = first_of(update, len(update.storage) + 1)
        lines.append(f"origin = int64_pointer({positions})[chunk]")
    if update.random_streams:
        names = zip(("step", "key_low", "key_high"), SCALARS, strict=True)
        lines += [f"{local_name} = int64({update.scalar[name]})" for local_name, name in names]
        lines.append(f"number = {first_of(update, len(update.storage))}")
        lines += [f"words{k} = words()" for k in update.random_streams.values()]
    if update.written_blocks:
        lines += [
            f"dithers, step_number = numbers({2 * PERIOD}), int64({update.scalar[SCALARS[0]]})",
            f"for rank in range({2 * PERIOD}):",
            "    dithers[rank] = dither_of(step_number, rank)",
        ]
    return lines


def _point_at_elements(update: TracedUpdate) -> list[str]:
    """Return lines that set pointer `p{k}` to element `begin` of each tensor k without a codec."""
    lines: list[str] = []
    for stream, kind in enumerate(update.storage):
        if stream in update.blocks:
            continue
        fmt = STORAGE[kind]
        pointer, size = (fmt.pointer, fmt.size) if stream != update.lower else ("uint8_pointer", 1)
        lines.append(f"p{stream} = {pointer}(at{stream} + begin * {size})")
    return lines


def draw_for(streams: Mapping[int, int]) -> list[str]:
    """Return lines that draw random bits for `count` elements of a chunk, from element `begin` on.

    The lines set pointer `drawn{j}` to the bits of element `begin` of tensor j.

    Args:
        streams: {index j of a tensor: index k of the array `words{k}` that receives its bits}.
    """
    indices, last_index, of_group = streams.values(), GROUP - 1, GROUP.bit_length() - 1
    round_lines = _fill_round(_PRODUCTS, indices) + _fill_round(_WORDS, indices)
    keys = "k0, k1 = k0 + {}, k1 + {}".format(*INCREMENTS)
    loop_lines = [
        *_fill_round(_COUNTER, indices),
        *[*round_lines, keys] * ROUNDS,
        *_fill_round(_STORE_WORDS, indices),
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


def _fill_round(template: str, indices: Iterable[int]) -> list[str]:
    """Return the lines of a template filled for each index of a random number."""
    first, second = MULTIPLIERS
    fields = {"first": first, "second": second, "mask": MASK}
    return [line for k in indices for line in fill(template, k=k, **fields)]


def _round_by_draw(stream: int, kind: str, value: str) -> str:
    """Return an expression that rounds a value to a 16-bit type by the random bits of a tensor."""
    short = {"float16": "half", "bfloat16": "bfloat"}[kind]
    return f"float_to_{short}_by({value}, drawn{stream}[i])"
