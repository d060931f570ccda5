"""Generator of Triton kernels that update the rows of a sparse gradient, or all other rows."""

from __future__ import annotations

from typing import Literal

from thalweg._engines.codegen import Update, fill, nest
from thalweg._engines.cuda.codegen import (
    CHUNK,
    SIZES,
    THREADS,
    WIDTH,
    Element,
    Kernel,
    Writer,
    assemble_kernel,
    elements_per_load,
    load_scalars,
)

# A program waits twice: for the index of its row, then for the row. Loads of each kind are issued
# together, so that it waits for memory only twice.
_ROWS = """
@triton.jit
def KERNEL_NAME(base, rows, order, count, width, scalars, ALIGNED: tl.constexpr):
    place = tl.program_id(0).to(tl.int64)
    row = tl.load(rows + place)
    begins = tl.load(rows + place - 1, mask=place > 0, other=-1) != row
    entry = tl.load(order + place)
    if ALIGNED:
        width = width // {multiple} * {multiple}  # as it is: now the compiler knows it
    at = tl.program_id(1).to(tl.int64) * {block} + tl.arange(0, {block})
    offset = row * width
    {scalars}
    {pointers}
    gradient = pointer(base + 1, {gradient}, ALIGNED)
    if begins:
        {update}
"""

# Programs divide all elements into chunks, and those into groups that a thread reads at once; each
# group lies in one row. Its row comes from a 32-bit division, since one of 64 bits is slow: a row
# longer than a chunk counts as a chunk, for at most one row ends in it.
_UNTOUCHED = """
@triton.jit
def KERNEL_NAME(base, named, elements, row_size, scalars, ALIGNED: tl.constexpr):
    SHARE: tl.constexpr = {share} if ALIGNED else 1
    begin = tl.program_id(0).to(tl.int64) * {chunk}
    length = tl.minimum(elements - begin, {chunk}).to(tl.int32)
    row = begin // row_size
    left = tl.minimum((row + 1) * row_size - begin, {chunk}).to(tl.int32)
    step = tl.minimum(row_size, {chunk}).to(tl.int32)
    offset = begin + tl.arange(0, SHARE)[None, :]
    {scalars}
    {pointers}
    for start in range(0, length, {block}):
        group = start + tl.arange(0, {block} // SHARE)[:, None] * SHARE
        rows = named + row + (group + step - left) // step
        is_named = tl.load(rows, mask=group < length, other=1)
        element({arguments}, group, tl.where(is_named == 0, length, 0), True)
"""


class _Summed(Element):
    """Writer that updates a row once, with the sum of its entries in the variable's dtype."""

    def pointed_streams(self) -> list[int]:
        return [stream for stream in super().pointed_streams() if stream != 1]

    def read_value(self, stream: int) -> list[str]:
        sum_line = f"{self.update.name_of(1)} = sum_of_entries"
        return [sum_line] if stream == 1 else super().read_value(stream)

    def streams_ahead(self) -> list[int]:
        """Return the streams that are loaded before the entries are summed."""
        return [stream for stream in self.update.read_streams() if stream != 1]

    def load_value(self, stream: int) -> str:
        return f"ahead{stream}" if stream in self.streams_ahead() else super().load_value(stream)

    def extra_parameters(self) -> list[str]:
        """Return further parameters of `element`: the sum, and loaded streams."""
        return ["sum_of_entries", *(f"ahead{stream}" for stream in self.streams_ahead())]

    def update_row(self) -> list[str]:
        """Return lines that load a row, sum its entries and update the row."""
        writer, kind = self.writer, self.update.storage[0]
        total = writer.flush_value(f"found + {self._write_entry_value()}")
        return [
            *(
                f"ahead{stream} = load(p{stream}, at, width, True)"
                for stream in self.streams_ahead()
            ),
            f"found = {self._write_entry_value()}",
            *_loop_while_same(f"found = {total}"),
            f"found = {writer.read_value(writer.value_to_store('found', kind), kind)}",
            self._call_element(),
        ]

    def _write_entry_value(self) -> str:
        """Return the expression of an entry; `entries` formulas transform and round it."""
        start = "gradient + entry * width"
        value = self.writer.read_value(f"load({start}, at, width, True)", self.update.storage[1])
        if not self.update.entries:
            return value
        value, kind = self.update.apply_stages(self.update.entries, value), self.update.storage[0]
        return self.writer.read_value(self.writer.value_to_store(value, kind), kind)

    def _call_element(self) -> str:
        extra_args = ["found", *self.extra_parameters()[1:], "at", "width", "True"]
        return f"element({', '.join([*self.arguments, *extra_args])})"


class _Successive(_Summed):
    """Writer that updates a row once for each of its entries, in order."""

    def streams_ahead(self) -> list[int]:
        return []

    def apply_before(self) -> list[str]:
        return []

    def update_row(self) -> list[str]:
        update_entry = [f"found = {self._write_entry_value()}", self._call_element()]
        return [*self._begin_row(), *update_entry, *_loop_while_same(*update_entry)]

    def _begin_row(self) -> list[str]:
        """Return lines that apply the rule's formula `before` to a row; [] without a formula."""
        if not self.update.before:
            return []
        writer, storage = self.writer, self.update.storage
        lines = [f"begun = {writer.read_value('load(p0, at, width, True)', storage[0])}"]
        if self.update.from_copy:
            lines += writer.resume_at_copy("begun", storage, "at", "width", "True")
        lines.append(f"begun = {self.prepare_variable('begun')}")
        lines.append("store(p0, at, begun, width, True)")
        # Without a new copy the first entry would start from the old one.
        if self.update.from_copy:
            value = writer.value_of_copy(writer.read_value("begun", storage[0]), storage[-1])
            lines.append(f"store(p{len(storage) - 1}, at, {value}, width, True)")
        return lines


def generate_rows(
    update: Update,
    compute: str,
    flush: bool,
    duplicates: Literal["sum", "successive"],
    fast: bool = False,
    threads: int = THREADS,
) -> Kernel:
    """Return the kernel that updates the rows of a sparse gradient.

    Args:
        update, compute, flush, fast: As for `generate_update` of `codegen`.
        duplicates: "sum" adds the entries of a row first; "successive" updates for each entry.
    """
    element = (_Summed if duplicates == "sum" else _Successive)(
        update.traced, Writer(compute, flush, fast)
    )
    lines = fill(
        _ROWS,
        multiple=WIDTH // min(SIZES[kind] for kind in update.storage),
        block=threads * elements_per_load(update.storage),
        scalars=load_scalars(element.writer, len(update.traced.scalars), "scalars + "),
        pointers=element.point_at_streams("base + "),
        gradient=f"tl.{update.storage[1]}",
        update=element.update_row(),
    )
    return assemble_kernel(element, lines, "count", "width", threads=threads)


def generate_untouched(update: Update, compute: str, flush: bool, fast: bool = False) -> Kernel:
    """Return the kernel that updates rows without entries in the sparse gradient.

    Args:
        update: The update; it reads no gradient.
        compute, flush, fast: As for `generate_update` of `codegen`.
    """
    element = Element(update.traced, Writer(compute, flush, fast))
    elements_per_thread = elements_per_load(update.storage)
    lines = fill(
        _UNTOUCHED,
        chunk=CHUNK,
        share=elements_per_thread,
        block=THREADS * elements_per_thread,
        scalars=load_scalars(element.writer, len(update.traced.scalars), "scalars + "),
        pointers=element.point_at_streams("base + "),
        arguments=", ".join(element.arguments),
    )
    return assemble_kernel(element, lines, "elements", "row_size")


def _loop_while_same(*body: str) -> list[str]:
    """Return lines of a loop over further entries of a row; it sets `entry` and runs `body`."""
    advance = ["place += 1", "more = tl.load(rows + place, mask=place < count, other=-1) == row"]
    loop_body = ["entry = tl.load(order + place)", *body, *advance]
    return [*advance, *nest("while more:", loop_body)]
