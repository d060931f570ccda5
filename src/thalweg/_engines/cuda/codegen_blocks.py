"""Generator of Triton kernels with stochastic rounding or with slots in 8-bit codes.

A program updates its chunk tile by tile. Tiles hold complete blocks of encoded slots: a row of a
tile is a block of the codec with the shortest blocks, or a part of a longer block.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from thalweg._engines.codecs import CODECS
from thalweg._engines.codecs.codec import SCALE_BYTES, Codec
from thalweg._engines.codecs.linear8 import LINEAR8
from thalweg._engines.codecs.root8 import ROOT8
from thalweg._engines.codecs.split8 import HALF, SPLIT8
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
from thalweg._engines.formula_graph import Node
from thalweg._engines.formula_parser import trace_formula
from thalweg._engines.formula_source import FUNCTION_PREFIX
from thalweg._engines.random_bits import GROUP, NARROW, SCALARS
from thalweg.formula import Formula

_NUMBERS = "float32"  # dtype of decoded slots and of the arithmetic
_MAX_REGISTERS = 128  # of a thread with eight elements

_NUMBER = "number = tl.load(places + 2 * tensor).to(tl.uint32)"
_POSITION = "position = whole_position(tl.load(places + 2 * tensor + 1) + offset, ALIGNED)"

# Of a tile: the first element of each row in the chunk, the index of its record, and the offsets of
# its codes. A record is inside the tensor, as a whole, if its first element is.
_ROWS = """
first = begin + tl.arange(0, {rows})[:, None] * {row}
"""
_RECORDS = """
record{block} = first >> {shift}
begin{block} = first + record{block} * {header} + {header}
codes{block} = begin{block} + tl.arange(0, {row})[None, :]
fours{block} = begin{block} + tl.arange(0, {row} // 4)[None, :] * 4
there{block} = (record{block} << {shift}) < length
"""

_READ = """
scale{stream} = load_where(w{stream}, record{block} * {words}, there{block}, MASKED)
scale{stream} = {scale}
stored{stream} = {read}(load_where(c{stream}, codes{block}, there{block}, MASKED))
{name} = {number}
"""

_WRITE = """
prepared{stream} = tile_of({prepared}, at, length, MASKED)
peak{stream} = peaks_of(prepared{stream}, {parts})
code{stream} = {code}
store_scales(w{stream}, record{block} * {words}, kept_of(peak{stream}), there{block}, MASKED)
store_codes(c{stream}, codes{block}, fours{block}, code{stream}, there{block}, MASKED)
"""

# Functions of `blockwise_functions` replace the formulas of codecs, but for linear8's `decode`.
_CODE = "{round_to}(encode_{name}(prepared{stream}, peak{stream}), {more}dithers{least})"

# The same of codecs with functions in `dynamic8_functions`, and the names of their tables.
_CODE_BY_TABLES = "code_{name}(prepared{stream}, peak{stream}, dithers, {tables})"
_TABLES = ", ".join(f"t{{stream}}_{k}" for k in range(6))
_TABLED = ("dynamic8", "dynamic8_positive")

Coded = Mapping[int, Codec]  # by stream


def generate_blocks(
    formula: Formula,
    storage: tuple[str, ...],
    flush: bool,
    fast: bool = False,
    draws: bool = False,
    **update_options: Any,
) -> Kernel:
    """Return the kernel that updates chunks of tensors in float32.

    Args:
        formula: `update` of a rule.
        storage: As for `Update`; names of codecs for encoded slots.
        flush, fast: As for `generate_update`; with encoded slots `fast` has no effect.
        draws: As for `Update`. The kernel reads `places`, stream numbers and positions, with it and
            for slots in blocks.
        others: What `Update` takes beside.
    """
    codecs = {k: CODECS[name] for k, name in enumerate(storage) if name in CODECS}
    numeric_storage = tuple(_NUMBERS if k in codecs else name for k, name in enumerate(storage))
    dithers = any(not codec.is_beside for codec in codecs.values())
    update = Update(formula, numeric_storage, draws=draws, dithers=dithers, **update_options)
    written_streams = {stream for _, stream in update.written_results()}
    random_streams = {
        k: k and k - 1 for k in sorted(written_streams) if draws and storage[k] in NARROW
    }
    element = _Element(update, Writer(_NUMBERS, flush, fast and not codecs), codecs, random_streams)
    element.writer.has_scalar_branches = not update.vectors
    # A test of eight needs more registers.
    group_limit = 8 if LINEAR8 in codecs.values() else 4
    element.writer.group = min(element.block // THREADS, group_limit)
    parameters = ["places"] * (draws or dithers)
    program = write_dense(element, element.block, element.places_of_tile(), *parameters)
    kernel = assemble_kernel(
        element,
        element.define_functions(*element.extra_parameters) + program,
        imports=BLOCKWISE,
    )
    # Four programs instead of three run at once, for less than 1 % more instructions. Kernels that
    # also draw bits or join split weights would spill registers.
    is_wide = dithers and element.block == THREADS * GROUP
    if is_wide and not draws and not {LINEAR8, SPLIT8}.intersection(codecs.values()):
        kernel = replace(kernel, max_registers=_MAX_REGISTERS)
    return kernel


class _Element(Element):
    """Writer of the function that updates a tile.

    Args:
        update: The formulas and streams.
        writer: Writer for float32.
        codecs: The codec of each encoded stream.
        random_streams: For each stream with stochastic rounding, which of an element's random
            numbers it uses.
    """

    def __init__(
        self, update: Update, writer: Writer, codecs: Coded, random_streams: Mapping[int, int]
    ) -> None:
        self._coded = {k: codec for k, codec in codecs.items() if not codec.is_beside}
        self._lower = next((k for k, codec in codecs.items() if codec.is_beside), None)
        self._random_streams = random_streams
        # With random bits each thread updates the elements of one Philox call.
        plain_storage = [name for k, name in enumerate(update.storage) if k not in codecs]
        self.block = THREADS * (GROUP if random_streams else share_of(plain_storage))
        super().__init__(update, writer)
        records = [f"{kind}{stream}" for stream in self._coded for kind in "wc"]
        tabled = [k for k, codec in self._coded.items() if codec.name in _TABLED]
        tables = [_TABLES.format(stream=stream) for stream in tabled]
        self.arguments = [*records, *tables, *self.arguments]
        blocks = {codec.block: codec for codec in self._coded.values()}
        self._blocks, self._row = list(blocks.values()), min(blocks, default=1)
        self._prepared_nodes = self._prepare_results()
        self.extra_parameters = ["begin", "origin"] if self._coded else []
        self.extra_parameters += (
            ["number", "position", "WHOLE: tl.constexpr"] if random_streams else []
        )

    # The program around it

    def places_of_tile(self) -> str:
        """Return the expression of a tile's element indices, relative to its first element."""
        if not self._coded:
            return f"tl.arange(0, {self.block})"
        rows = f"tl.arange(0, {self.block // self._row})[:, None] * {self._row}"
        return f"{rows} + tl.arange(0, {self._row})[None, :]"

    def pointed_streams(self) -> list[int]:
        return [stream for stream in super().pointed_streams() if stream not in self._coded]

    def type_of(self, stream: int) -> str:
        return "int8" if stream == self._lower else super().type_of(stream)

    def point_at_streams(self, start: str) -> list[str]:
        """See `Element`; records have two pointers, to 32-bit words (w) and to codes (c)."""
        lines = super().point_at_streams(start)
        lines += [_NUMBER] if self._random_streams else []
        lines += [_POSITION] if self._random_streams or self._coded else []
        for stream, codec in self._coded.items():
            record = f"(offset >> {_shift_of(codec)})"
            kind = "int8" if codec.signed else "uint8"
            for name, element_type, size in (
                ("w", "int32", _words_of(codec)),
                ("c", kind, codec.record_bytes),
            ):
                start_of_records = f"records({start}{stream}, tl.{element_type})"
                lines.append(f"{name}{stream} = {start_of_records} + {record} * {size}")
            if codec.name in _TABLED:
                names = _TABLES.format(stream=stream)
                lines.append(f"{names} = dynamic8_tables(tl.program_id(0), {codec.positive})")
        return lines

    def call_over(self, start: str, elements: str, masked: bool) -> str:
        extra_args = [start, "position"] if self._coded else []
        extra_args += ["number", f"position + {start}", "ALIGNED"] if self._random_streams else []
        call_args = [*self.arguments, *extra_args, f"{start} + {elements}", "length", str(masked)]
        return f"element({', '.join(call_args)})"

    # The function

    def called_functions(self) -> dict[str, str]:
        """See `Element`; adds the formulas of codecs."""
        functions = super().called_functions()
        for codec in sorted({*self._coded.values()}, key=lambda entry: entry.name):
            for part in ("decode", "prepare"):
                name, formula = f"{part}_{codec.name}", trace_formula(getattr(codec, part))
                functions[name] = self.writer.define_function(name, formula)
        return functions

    def _prepare_results(self) -> dict[int, Node]:
        """Return the nodes of prepared numbers by stream: the update may have computed them.

        A number that is flushed first is prepared afterwards.
        """
        formula = self.update.formula
        return {
            stream: trace_formula(self._coded[stream].prepare).apply(
                [formula.results[result_index]]
            )[0]
            for result_index, stream in self.update.written_results()
            if stream in self._coded and (formula.is_rounded(result_index) or not self.writer.flush)
        }

    def more_results(self) -> list[Node]:
        return list(self._prepared_nodes.values())

    def update_element(self) -> list[str]:
        lines: list[str] = []
        if self._coded:
            lines += _fill_template(_ROWS, rows=self.block // self._row, row=self._row)
        for codec in self._blocks:
            lines += _fill_template(_RECORDS, codec, row=self._row)
        if self._coded:
            step = f"{self.update.scalar[SCALARS[0]]}.to(tl.int32)"
            lines.append(f"dithers = dithers_of(origin + at, {step})")
        return [*lines, *super().update_element()]

    def read_value(self, stream: int) -> list[str]:
        """See `Element`; decodes slots, and joins the variable with its lower part."""
        name = self.update.name_of(stream)
        # The variable's number is read together with its lower part.
        if self._lower is not None and stream == 0:
            # A pass returns the variable unchanged; nothing stores it.
            return [f"upper = {self.load_value(0)}", f"{name} = upper"]
        if stream == self._lower:
            number = f"joined(upper, {self.load_value(stream)})"
            return [f"{name} = {self.writer.flush_value(number)}"]
        if stream not in self._coded:
            return super().read_value(stream)
        codec = self._coded[stream]
        scale = self.writer.flush_value(f"scale{stream}.to(tl.float32, bitcast=True)")
        args = f"stored{stream}, scale{stream}" + f", t{stream}_2" * (codec.name in _TABLED)
        number = self.writer.flush_value(f"decode_{codec.name}({args})")
        if codec is LINEAR8:
            number = f"{FUNCTION_PREFIX}decode_linear8({args})"
        fields = {"name": name, "scale": scale, "number": number}
        return _fill_template(_READ, codec, stream=stream, **fields)

    def apply_before(self) -> list[str]:
        if not (self.update.before and 0 in self._random_streams):
            return super().apply_before()
        # Not rounded here: the final store rounds once, with random bits.
        var = self.update.name_of(0)
        value = self.update.apply_stages(self.update.before, var)
        return [f"{var} = {self.writer.flush_value(value)}"]

    def write_value(self, stream: int, value: str) -> list[str]:
        """See `Element`; encodes slots, and rounds with random bits."""
        codec, lines = self._coded.get(stream), list[str]()
        if codec is not None:
            fields: dict[str, Any] = {"stream": stream, "parts": codec.block // self._row}
            fields["tables"] = _TABLES.format(stream=stream)
            fields["tables"] += f", {self.writer.flush}" * codec.positive
            template = _CODE_BY_TABLES if codec.name in _TABLED else _CODE
            (code,) = _fill_template(template, codec, **fields)
            fields["prepared"] = f"{FUNCTION_PREFIX}prepare_{codec.name}({value})"
            if stream in self._prepared_nodes:
                place = len(self.update.formula.results) + list(self._prepared_nodes).index(stream)
                fields["prepared"] = f"out{place}"
            return _fill_template(_WRITE, codec, code=code, **fields)
        # Bits are drawn just before the store, which keeps fewer registers busy.
        if stream in self._random_streams:
            lines.append(f"drawn{stream} = {self._draw_bits(stream)}")
        if self._lower is not None and stream in (0, self._lower):
            part = "lower" if stream else "upper"
            bits = "drawn0" if 0 in self._random_streams else str(HALF)
            return [*lines, self.store_value(stream, f"{part}_of({value}, {bits})")]
        if stream not in self._random_streams:
            return super().write_value(stream, value)
        kind = self.update.storage[stream]
        return [*lines, self.store_value(stream, f"to_{kind}_by({value}, drawn{stream})")]

    def _draw_bits(self, stream: int) -> str:
        """Return the expression of a stream's random bits, in the shape of the tile."""
        step, low, high = (
            f"{self.update.scalar[scalar]}.to(tl.int32).to(tl.uint32)" for scalar in SCALARS
        )
        call_args = f"position, {step}, number, {self._random_streams[stream]}, {low}, {high}"
        bits = f"bits_of({call_args}, {self.block}, WHOLE)"
        return f"tl.reshape({bits}, at.shape)" if self._coded else bits


def _fill_template(template: str, codec: Codec | None = None, **fields: object) -> list[str]:
    """Return the lines of a template, filled with fields of a codec and with `fields`."""
    if codec is not None:
        fields |= {"name": codec.name} if "name" not in fields else {}
        fields["read"] = "code_of" if codec is ROOT8 else "number_of"
        fields |= {"block": codec.block, "shift": _shift_of(codec), "header": SCALE_BYTES}
        fields["round_to"] = "positive_code" if codec.positive else "signed_code"
        fields["more"] = ""
        if codec is ROOT8:
            fields |= {"round_to": "root_code", "more": f"prepared{fields.get('stream')}, "}
        fields["least"] = f", {codec.least}" if codec.positive else ""
        fields["words"] = _words_of(codec)
    return template.format(**fields).strip().splitlines()


def _shift_of(codec: Codec) -> int:
    """Return the base-2 logarithm of a codec's block size."""
    return codec.block.bit_length() - 1


def _words_of(codec: Codec) -> int:
    """Return the length of a record in 32-bit words."""
    return codec.record_bytes // SCALE_BYTES
