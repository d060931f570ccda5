"""Write the source of a GPU's kernel that rounds by random bits, or has slots in codes of 8 bits.

A program goes over its chunk in tiles, of whole blocks where slots are encoded: a row is a block of
the shortest of codecs, or a part of one of the others.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from thalweg._engines.codecs import CODECS
from thalweg._engines.codecs.codec import SCALE_BYTES, Codec
from thalweg._engines.codecs.split8 import HALF
from thalweg._engines.codegen import Update
from thalweg._engines.cuda.codegen import (
    BLOCKWISE,
    THREADS,
    Element,
    Kernel,
    Writer,
    assemble_kernel,
    share_of,
    write_dense,
)
from thalweg._engines.formula_parser import FUNCTION_PREFIX, transcribe
from thalweg._engines.random_bits import GROUP, NARROW, SCALARS
from thalweg.formula import Formula

_NUMBERS = "float32"  # what codecs hold, and all that is computed beside them
_PARTS = ("decode", "prepare", "encode")  # the formulas of a codec

_PLACE = [
    "number = tl.load(places + 2 * tensor).to(tl.uint32)",
    "position = tl.load(places + 2 * tensor + 1) + offset",
]

# Of a tile: where its rows begin in the chunk, in which records they are, and where they have codes
# there. A record is there, as a whole, if its first element is.
_ROWS = """
first = begin + tl.arange(0, {rows})[:, None] * {row}
"""
_RECORDS = """
record{block} = first >> {shift}
codes{block} = record{block} * {bytes} + {header} + first % {block} + tl.arange(0, {row})[None, :]
there{block} = (record{block} << {shift}) < length
"""

_READ = """
scale{stream} = load_where(w{stream}, record{block} * {words}, there{block}, MASKED)
scale{stream} = {scale}
stored{stream} = load_where(c{stream}, codes{block}, there{block}, MASKED).to(tl.float32)
{name} = {decode}(stored{stream}, scale{stream})
"""

_WRITE = """
prepared{stream} = tile_of({prepare}({value}), at, length, MASKED)
peak{stream} = peaks_of(prepared{stream}, {parts})
scale{stream} = scale_of(peak{stream})
real{stream} = {encode}(usual(prepared{stream}, peak{stream}), scale{stream})
code{stream} = {round_to}(real{stream}, dithers{least})
store_where(w{stream}, record{block} * {words}, kept_of(peak{stream}), there{block}, MASKED)
store_where(c{stream}, codes{block}, code{stream}, there{block}, MASKED)
"""

Coded = Mapping[int, Codec]  # by stream


def generate_blocks(
    formula: Formula,
    storage: tuple[str, ...],
    flush: bool,
    fast: bool = False,
    draws: bool = False,
    **others: Any,
) -> Kernel:
    """The kernel of an update of chunks of tensors, in float32.

    Args:
        formula: `update` of a rule.
        storage: As for `Update`; the names of codecs for slots that are encoded.
        flush, fast: As for `generate_update`; where slots are encoded, all is exact.
        draws: As for `Update`. The kernel is given places of variables then.
        others: What `Update` takes beside.
    """
    every = {k: CODECS[name] for k, name in enumerate(storage) if name in CODECS}
    plain = tuple(_NUMBERS if k in every else name for k, name in enumerate(storage))
    dithers = any(not codec.is_beside for codec in every.values())
    update = Update(formula, plain, draws=draws, dithers=dithers, **others)
    changed = {stream for _, stream in update.written_results()}
    drawn = {k: k and k - 1 for k in sorted(changed) if draws and storage[k] in NARROW}
    element = _Element(update, Writer(_NUMBERS, flush, fast and not every), every, drawn)
    program = write_dense(element, element.block, element.places_of_tile(), *["places"] * draws)
    return assemble_kernel(
        element, element.define_functions(*element.more) + program, more=BLOCKWISE
    )


class _Element(Element):
    """Writes the function that updates a tile.

    Args:
        update: What becomes of it.
        writer: In which arithmetic.
        codecs: Those of slots that are encoded.
        drawn: The streams that are rounded by random bits, and which of an element's numbers each
            has.
    """

    def __init__(
        self, update: Update, writer: Writer, codecs: Coded, drawn: Mapping[int, int]
    ) -> None:
        self._coded = {k: codec for k, codec in codecs.items() if not codec.is_beside}
        self._lower = next((k for k, codec in codecs.items() if codec.is_beside), None)
        self._drawn = drawn
        # Elements at a time: where bits are drawn each thread has those of one call of Philox.
        self.block = THREADS * (GROUP if drawn else share_of(update.storage))
        super().__init__(update, writer)
        records = [f"{kind}{stream}" for stream in self._coded for kind in "wc"]
        self.arguments = [*records, *self.arguments]
        blocks = {codec.block: codec for codec in self._coded.values()}
        self._blocks, self._row = list(blocks.values()), min(blocks, default=1)
        self.more = ["begin", "offset"] if self._coded else []
        self.more += ["number", "position", "WHOLE: tl.constexpr"] if drawn else []

    # The program around it

    def places_of_tile(self) -> str:
        """The places of a tile's elements, counted from that of the first."""
        if not self._coded:
            return f"tl.arange(0, {self.block})"
        rows = f"tl.arange(0, {self.block // self._row})[:, None] * {self._row}"
        return f"{rows} + tl.arange(0, {self._row})[None, :]"

    def pointed_streams(self) -> list[int]:
        return [each for each in super().pointed_streams() if each not in self._coded]

    def type_of(self, stream: int) -> str:
        return "int8" if stream == self._lower else super().type_of(stream)

    def point_at_streams(self, start: str) -> list[str]:
        lines = [*super().point_at_streams(start), *(_PLACE if self._drawn else [])]
        for stream, codec in self._coded.items():
            record = f"(offset >> {_shift_of(codec)})"
            kind = "int8" if codec.signed else "uint8"
            for name, own, size in (
                ("w", "int32", _words_of(codec)),
                ("c", kind, codec.record_bytes),
            ):
                found = f"records({start}{stream}, tl.{own})"
                lines.append(f"{name}{stream} = {found} + {record} * {size}")
        return lines

    def call_over(self, start: str, elements: str, masked: bool) -> str:
        more = [start, "offset"] if self._coded else []
        more += ["number", f"position + {start}", "ALIGNED"] if self._drawn else []
        given = [*self.arguments, *more, f"{start} + {elements}", "length", str(masked)]
        return f"element({', '.join(given)})"

    # What it does

    def called_functions(self) -> dict[str, str]:
        found = super().called_functions()
        for codec in sorted({*self._coded.values()}, key=lambda each: each.name):
            for part in _PARTS:
                name, formula = f"{part}_{codec.name}", transcribe(getattr(codec, part))
                found[name] = self.writer.define_function(name, formula)
        return found

    def update_element(self) -> list[str]:
        lines: list[str] = []
        if self._coded:
            lines += _lines_of(_ROWS, rows=self.block // self._row, row=self._row)
        for codec in self._blocks:
            lines += _lines_of(_RECORDS, codec, row=self._row)
        if self._coded:
            step = f"{self.update.scalar[SCALARS[0]]}.to(tl.int32)"
            lines.append(f"dithers = dithers_of(offset + at, {step})")
        return [*lines, *super().update_element()]

    def read_value(self, stream: int) -> list[str]:
        name = self.update.name_of(stream)
        if self._lower is not None and stream == 0:  # of which there is no number but the whole
            return [f"upper = {self.load_value(0)}"]
        if stream == self._lower:
            whole = f"joined(upper, {self.load_value(stream)})"
            return [f"{name} = {self.writer.flush_value(whole)}"]
        if stream not in self._coded:
            return super().read_value(stream)
        scale = self.writer.flush_value(f"scale{stream}.to(tl.float32, bitcast=True)")
        return _lines_of(_READ, self._coded[stream], stream=stream, name=name, scale=scale)

    def apply_before(self) -> list[str]:
        if not (self.update.before and 0 in self._drawn):
            return super().apply_before()
        var = self.update.name_of(0)  # rounded once, at the end
        value = self.update.apply_stages(self.update.before, var)
        return [f"{var} = {self.writer.flush_value(value)}"]

    def write_value(self, stream: int, value: str) -> list[str]:
        codec, lines = self._coded.get(stream), list[str]()
        if codec is not None:
            parts = codec.block // self._row
            return _lines_of(_WRITE, codec, stream=stream, value=value, parts=parts)
        if stream in self._drawn:  # only now: so an element has less in registers meanwhile
            lines.append(f"drawn{stream} = {self._draw_for(stream)}")
        if self._lower is not None and stream in (0, self._lower):
            part = "lower" if stream else "upper"
            bits = "drawn0" if 0 in self._drawn else str(HALF)
            return [*lines, self.store_value(stream, f"{part}_of({value}, {bits})")]
        if stream not in self._drawn:
            return super().write_value(stream, value)
        kind = self.update.storage[stream]
        return [*lines, self.store_value(stream, f"to_{kind}_by({value}, drawn{stream})")]

    def _draw_for(self, stream: int) -> str:
        """Bits for what is stored of a stream, in the shape of the tile."""
        step, low, high = (f"{self.update.scalar[x]}.to(tl.int32).to(tl.uint32)" for x in SCALARS)
        given = f"position, {step}, number, {self._drawn[stream]}, {low}, {high}"
        made = f"bits_of({given}, {self.block}, WHOLE)"
        return f"tl.reshape({made}, at.shape)" if self._coded else made


def _lines_of(template: str, codec: Codec | None = None, **given: object) -> list[str]:
    """The lines of a template, for a codec."""
    if codec is not None:
        given |= {part: f"{FUNCTION_PREFIX}{part}_{codec.name}" for part in _PARTS}
        given |= {"block": codec.block, "shift": _shift_of(codec), "header": SCALE_BYTES}
        given["round_to"] = "positive_code" if codec.positive else "signed_code"
        given["least"] = f", {codec.least}" if codec.positive else ""
        given |= {"bytes": codec.record_bytes, "words": _words_of(codec)}
    return template.format(**given).strip().splitlines()


def _shift_of(codec: Codec) -> int:
    return codec.block.bit_length() - 1


def _words_of(codec: Codec) -> int:
    """How many words of 32 bits a record has."""
    return codec.record_bytes // SCALE_BYTES
