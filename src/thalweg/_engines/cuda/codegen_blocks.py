"""Generator of Triton kernels with stochastic rounding or with slots in 8-bit codes.

A program updates its chunk of elements tile by tile. Tiles hold complete blocks of encoded slots. A
row of a tile is a block of the codec with the shortest blocks, or a part of a longer block.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from thalweg._engines.codecs.codec import SCALE_BYTES, Codec
from thalweg._engines.codecs.linear8 import LINEAR8
from thalweg._engines.codecs.root8 import ROOT8
from thalweg._engines.codecs.split8 import HALF
from thalweg._engines.codecs.texts import codec_fields, define_codecs
from thalweg._engines.codegen import DECODED, Field, TracedUpdate, Update, fill, find_codecs
from thalweg._engines.cuda.codegen import (
    BLOCKWISE,
    THREADS,
    Element,
    Kernel,
    Writer,
    assemble_kernel,
    elements_per_load,
    write_dense,
)
from thalweg._engines.formula_graph import Node
from thalweg._engines.formula_parser import trace_formula
from thalweg._engines.formula_source import FUNCTION_PREFIX
from thalweg._engines.random_bits import GROUP, SCALARS

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
_CODE = "{round_to}(encode_{name}(prepared{stream}, peak{stream}), {more}dithers{limits})"

# The same of codecs with functions in `dynamic8_functions`, and the names of their tables.
_CODE_BY_TABLES = "code_{name}(prepared{stream}, peak{stream}, dithers, {tables})"
_TABLES = ", ".join(f"t{{stream}}_{k}" for k in range(6))
_TABLED = ("dynamic8", "dynamic8_positive")


def generate_blocks(update: Update, flush: bool, fast: bool = False) -> Kernel:
    """Return the kernel that updates chunks of tensors in float32, with random bits or codecs.

    The kernel's parameter `places` has two numbers per variable: the index in the optimizer, and
    the position of the first element in the unsharded variable.

    Args:
        flush, fast: As for `generate_update`; with encoded slots `fast` has no effect.
    """
    traced, are_encoded = update.traced, bool(find_codecs(update.storage))
    element = _Element(traced, Writer(DECODED, flush, fast and not are_encoded))
    element.writer.has_scalar_branches = not traced.vectors
    # A test of eight needs more registers.
    group_limit = 8 if LINEAR8 in traced.blocks.values() else 4
    element.writer.group = min(element.block // THREADS, group_limit)
    parameters = ["places"] * (update.draws or bool(traced.blocks))
    program = write_dense(element, element.block, element.places_of_tile(), *parameters)
    kernel = assemble_kernel(element, program, imports=BLOCKWISE)
    # Four programs instead of three run at once, for less than 1 % more instructions. Kernels that
    # also draw bits or join split weights would spill registers.
    draws_whole_groups = bool(traced.blocks) and element.block == THREADS * GROUP
    can_limit = LINEAR8 not in traced.blocks.values() and traced.lower is None
    if draws_whole_groups and can_limit and not update.draws:
        kernel = replace(kernel, max_registers=_MAX_REGISTERS)
    return kernel


class _Element(Element):
    """Writer of the function that updates a tile."""

    def __init__(self, update: TracedUpdate, writer: Writer) -> None:
        # With random bits each thread updates the elements of one Philox call.
        group = GROUP if update.random_streams else _count_plain_elements(update)
        self.block = THREADS * group
        super().__init__(update, writer)
        records = [f"{kind}{stream}" for stream in update.blocks for kind in "wc"]
        tabled = [k for k, codec in update.blocks.items() if codec.name in _TABLED]
        tables = [_TABLES.format(stream=stream) for stream in tabled]
        self.arguments = [*records, *tables, *self.arguments]
        blocks = {codec.block: codec for codec in update.blocks.values()}
        self._blocks, self._row = list(blocks.values()), min(blocks, default=1)
        self._prepared_nodes = self._prepare_results()

    # The program around it

    def places_of_tile(self) -> str:
        """Return the expression of a tile's element indices, relative to its first element."""
        if not self.update.blocks:
            return f"tl.arange(0, {self.block})"
        rows = f"tl.arange(0, {self.block // self._row})[:, None] * {self._row}"
        return f"{rows} + tl.arange(0, {self._row})[None, :]"

    def pointed_streams(self) -> list[int]:
        return [stream for stream in super().pointed_streams() if stream not in self.update.blocks]

    def type_of(self, stream: int) -> str:
        return "int8" if stream == self.update.lower else super().type_of(stream)

    def point_at_streams(self, start: str) -> list[str]:
        """Return lines that load pointers of streams, from a table at `start`.

        An encoded slot has two pointers: w to the scales, as 32-bit words, and c to the codes.
        """
        lines = super().point_at_streams(start)
        lines += [_NUMBER] if self.update.random_streams else []
        lines += [_POSITION] if self.update.random_streams or self.update.blocks else []
        for stream, codec in self.update.blocks.items():
            fields = codec_fields(codec)
            record, kind = f"(offset >> {fields['shift']})", fields["kind"]
            for name, element_type, size in (
                ("w", "int32", _count_words(codec)),
                ("c", kind, codec.record_bytes),
            ):
                start_of_records = f"records({start}{stream}, tl.{element_type})"
                lines.append(f"{name}{stream} = {start_of_records} + {record} * {size}")
            if codec.name in _TABLED:
                names = _TABLES.format(stream=stream)
                lines.append(f"{names} = dynamic8_tables(tl.program_id(0), {codec.positive})")
        return lines

    def extra_parameters(self) -> list[str]:
        of_bits = ["number", "position", "WHOLE: tl.constexpr"] * bool(self.update.random_streams)
        return ["begin", "origin"] * bool(self.update.blocks) + of_bits

    def extra_arguments(self, start: str) -> list[str]:
        of_bits = ["number", f"position + {start}", "ALIGNED"] * bool(self.update.random_streams)
        return [start, "position"] * bool(self.update.blocks) + of_bits

    # The function

    def called_functions(self) -> dict[str, str]:
        """See `Element`; adds the formulas of codecs."""
        functions = super().called_functions()
        codecs = sorted({*self.update.blocks.values()}, key=lambda entry: entry.name)
        return functions | define_codecs(self.writer, codecs, ("decode", "prepare"))

    def _prepare_results(self) -> dict[int, Node]:
        """Return {encoded stream: node of the new value after the codec's formula `prepare`}.

        A value that the kernel flushes before `prepare` is left out; `write_value` prepares it.
        """
        formula = self.update.formula
        return {
            stream: trace_formula(self.update.blocks[stream].prepare).apply(
                [formula.results[result_index]]
            )[0]
            for result_index, stream in self.update.written_results()
            if stream in self.update.blocks
            and (formula.is_rounded(result_index) or not self.writer.flush)
        }

    def more_results(self) -> list[Node]:
        return list(self._prepared_nodes.values())

    def update_element(self) -> list[str]:
        """Return the lines of `element`: offsets of blocks, dithers, lines of the base class."""
        lines: list[str] = []
        if self.update.blocks:
            lines += _fill_template(_ROWS, rows=self.block // self._row, row=self._row)
        for codec in self._blocks:
            lines += _fill_template(_RECORDS, codec, row=self._row)
        if self.update.blocks:
            step = f"{self.update.scalar[SCALARS[0]]}.to(tl.int32)"
            lines.append(f"dithers = dithers_of(origin + at, {step})")
        return [*lines, *super().update_element()]

    def read_value(self, stream: int) -> list[str]:
        """Return lines that load and decode a stream, or join a weight with its lower bits."""
        name = self.update.name_of(stream)
        # The variable's number is read together with its lower part.
        if self.update.lower is not None and stream == 0:
            # A pass returns the variable unchanged; nothing stores it.
            return [f"upper = {self.load_value(0)}", f"{name} = upper"]
        if stream == self.update.lower:
            decoded = f"joined(upper, {self.load_value(stream)})"
            return [f"{name} = {self.writer.flush_value(decoded)}"]
        if stream not in self.update.blocks:
            return super().read_value(stream)
        codec = self.update.blocks[stream]
        scale = self.writer.flush_value(f"scale{stream}.to(tl.float32, bitcast=True)")
        args = f"stored{stream}, scale{stream}" + f", t{stream}_2" * (codec.name in _TABLED)
        decoded = self.writer.flush_value(f"decode_{codec.name}({args})")
        if codec is LINEAR8:
            decoded = f"{FUNCTION_PREFIX}decode_linear8({args})"
        fields = {"name": name, "scale": scale, "number": decoded}
        return _fill_template(_READ, codec, stream=stream, **fields)

    def apply_before(self) -> list[str]:
        if not (self.update.before and 0 in self.update.random_streams):
            return super().apply_before()
        # Not rounded here: the final store rounds once, with random bits.
        var = self.update.name_of(0)
        value = self.update.apply_stages(self.update.before, var)
        return [f"{var} = {self.writer.flush_value(value)}"]

    def write_value(self, stream: int, value: str) -> list[str]:
        """Return lines that encode a number or round it to the stream's dtype, and store it."""
        codec, lines = self.update.blocks.get(stream), list[str]()
        if codec is not None:
            fields: dict[str, Any] = {"stream": stream, "parts": codec.block // self._row}
            fields["tables"] = _TABLES.format(stream=stream)
            fields["tables"] += f", {self.writer.flush}" * codec.positive
            template = _CODE_BY_TABLES if codec.name in _TABLED else _CODE
            (code,) = _fill_template(template, codec, **fields)
            fields["prepared"] = f"{FUNCTION_PREFIX}prepare_{codec.name}({value})"
            if stream in self._prepared_nodes:
                index = len(self.update.formula.results) + list(self._prepared_nodes).index(stream)
                fields["prepared"] = f"out{index}"
            return _fill_template(_WRITE, codec, code=code, **fields)
        # Bits are drawn just before the store, which keeps fewer registers busy.
        if stream in self.update.random_streams:
            lines.append(f"drawn{stream} = {self._draw_bits(stream)}")
        if self.update.lower is not None and stream in (0, self.update.lower):
            half = "lower" if stream else "upper"
            bits = "drawn0" if 0 in self.update.random_streams else str(HALF)
            return [*lines, self.store_value(stream, f"{half}_of({value}, {bits})")]
        if stream not in self.update.random_streams:
            return super().write_value(stream, value)
        kind = self.update.storage[stream]
        return [*lines, self.store_value(stream, f"to_{kind}_by({value}, drawn{stream})")]

    def _draw_bits(self, stream: int) -> str:
        """Return the expression of a stream's random bits, in the shape of the tile."""
        step, low, high = (
            f"{self.update.scalar[scalar]}.to(tl.int32).to(tl.uint32)" for scalar in SCALARS
        )
        call_args = f"position, {step}, number, {self.update.random_streams[stream]}, {low}, {high}"
        bits = f"bits_of({call_args}, {self.block}, WHOLE)"
        return f"tl.reshape({bits}, at.shape)" if self.update.blocks else bits


def _count_plain_elements(update: TracedUpdate) -> int:
    """Return `elements_per_load` for the streams that are not encoded."""
    encoded = {*update.blocks, update.lower}
    return elements_per_load([name for k, name in enumerate(update.storage) if k not in encoded])


def _fill_template(template: str, codec: Codec | None = None, **fields: Field) -> list[str]:
    """Return the lines of a template, filled with the fields of a codec and with `fields`."""
    if codec is not None:
        fields = {"name": codec.name, "more": "", **codec_fields(codec), **fields}
        fields["read"] = "code_of" if codec is ROOT8 else "number_of"
        if codec is ROOT8:
            fields |= {"round_to": "root_code", "more": f"prepared{fields.get('stream')}, "}
        fields["words"] = _count_words(codec)
    return fill(template, **fields)


def _count_words(codec: Codec) -> int:
    """Return the length of a record in 32-bit words."""
    return codec.record_bytes // SCALE_BYTES
