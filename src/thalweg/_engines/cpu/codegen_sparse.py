"""Source of CPU kernels that group the entries of a sparse gradient, and update rows by them.

An entry is an index and a row of values. Both kernels have one argument of 20 words. A third kernel
lists the rows without entries.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Literal

from thalweg._engines.codegen import Kernel, Update, fill, nest
from thalweg._engines.cpu.codegen import (
    LINE,
    STORAGE,
    Element,
    load_scalars,
    name_kernel,
    write_threads,
)
from thalweg._engines.formula_source import LITERAL

# Writes the entries of each row as a linked list. Rows are in order of first appearance, the
# entries of a row in order of appearance. `row_of` and `first` get the row and the first entry of
# each group, `following` gets for each entry the row's next entry, or -1. `table` is scratch for
# hashing, at least twice as long as the entries. Word 3 gets the number of groups. Word 19 gets -1,
# or the position of the first index that is not in [0, rows).
_GROUP = """
def group_rows(work):
    indices, count, rows = {index}_pointer(work[14]), work[15], work[16]
    row_of, first = int64_pointer(work[6]), int32_pointer(work[7])
    following, table, mask = int32_pointer(work[8]), int32_pointer(work[17]), work[18] - 1
    for i in range(mask + 1):
        table[i] = -1
    groups = 0
    for entry in range(count):
        row = int64(indices[entry])
        if row < 0 or row >= rows:
            return 0, entry
        # The table holds the last entry of each row so far.
        place = ((row * -7046029254386353131) >> 40) & mask
        last_entry = int64(table[place])
        while last_entry >= 0 and indices[last_entry] != row:
            place = (place + 1) & mask
            last_entry = int64(table[place])
        following[entry] = -1
        # These are written for rows that are not new, too: processors cannot predict a branch here.
        following[count if last_entry < 0 else last_entry] = entry
        table[place] = entry
        row_of[groups] = row
        first[groups] = entry
        groups += last_entry < 0
    return groups, -1

def KERNEL_NAME(argument):
    work = int64_pointer(address_of(argument))
    work[3], work[19] = group_rows(work)
"""

# Writes chunks of all rows without entries, of up to `limit` rows each, as in `work_table.Table`.
# `named_rows` are the rows with entries, ascending, each once. Word 6 gets the number of chunks.
_GAPS = """
def KERNEL_NAME(argument):
    work = int64_pointer(address_of(argument))
    named_rows, count, rows = int64_pointer(work[0]), work[1], work[2]
    width, limit, chunks = work[3], work[4], int64_pointer(work[5])
    place, start = 0, 0
    for k in range(count + 1):
        stop = named_rows[k] if k < count else rows
        while start < stop:
            length = min(stop - start, limit)
            chunks[place], chunks[place + 1] = 0, start * width
            chunks[place + 2], chunks[place + 3] = 0, length * width
            place += 4
            start += length
        start = stop + 1
    work[6] = place >> 2
"""

# A thread takes a number from word 13 of the argument, and with it a block of scratch memory.
_SETUP = """
slices, flush, groups, share, width = work[1], work[2], work[3], work[4], work[5]
row_of, first = int64_pointer(work[6]), int32_pointer(work[7])
following, base = int32_pointer(work[8]), int64_pointer(work[9])
scalars = {compute}_pointer(work[10])
scratch = work[11] + take_ticket(int64_pointer(address_of(argument) + 104)) * work[12]
one = {literal}(flush | 1)
row = 0
{scalars}
"""
_ROWS = """
for group in range(ticket * share, min((ticket + 1) * share, groups)):
    {prefetches}
    offset = row_of[group] * width
    entry = int64(first[group])
    {update}
"""

_PREFETCH = """
ahead = group + {ahead}
if ahead < groups:
    there = row_of[ahead] * width
    for i in range(there, there + min(width, {span}), {step}):
        {prefetches}
"""

_AHEAD = 8  # rows between the one that is updated and the one that is prefetched
_SPAN = 256  # elements of a row that are prefetched
_NEXT_ENTRY = "entry = int64(following[entry])"


class _Row(Element, ABC):
    """Writer of lines that update one row; `entry` is the index of the row's first entry."""

    @abstractmethod
    def update_row(self) -> list[str]:
        """Return lines that update the row by all of its entries."""

    def update_by_gradient(self) -> list[str]:
        """Return a loop that updates the elements of the row by the numbers at `gradient`."""
        pointers = map(self.point_at, range(len(self.update.storage)))
        return [*pointers, *_nest_in_row(*self.update_element())]

    def point_at(self, stream: int) -> str:
        """Return a line that points at the row's numbers in a stream."""
        fmt = STORAGE[self.update.storage[stream]]
        address = f"base[{stream}] + offset * {fmt.size}" if stream != 1 else "gradient"
        return f"p{stream} = {fmt.pointer}({address})"

    def write_entry_address(self) -> str:
        return f"base[1] + entry * width * {STORAGE[self.update.storage[1]].size}"

    def write_entry_value(self, pointer: str) -> str:
        """Return an expression for element `i` of an entry, in the type of the arithmetic.

        If `Update.entries` has formulas, the expression applies them, and rounds the result to the
        type of the variable.

        Args:
            pointer: The name of the pointer to the entry.
        """
        value = STORAGE[self.update.storage[1]].load.format(f"{pointer}[i]")
        if not self.update.entries:
            return value
        value, kind = self.update.apply_stages(self.update.entries, value), self.update.storage[0]
        return (
            value
            if kind == self.compute
            else STORAGE[kind].load.format(STORAGE[kind].save.format(value))
        )


class _SummedRow(_Row):
    """Writer of one update of a row, by the sum of the row's entries."""

    def update_row(self) -> list[str]:
        return [*self._sum_entries(), *self.update_by_gradient()]

    def point_at(self, stream: int) -> str:
        if stream != 1:
            return super().point_at(stream)
        return f"p1 = {STORAGE[self.update.storage[0]].pointer}(gradient)"

    def read_value(self, stream: int) -> str:
        if stream != 1:
            return super().read_value(stream)
        return STORAGE[self.update.storage[0]].load.format("p1[i]")

    def _sum_entries(self) -> list[str]:
        """Return lines that set pointer `gradient` to the sum of the row's entries.

        The sum is in scratch memory. If the row has one entry without transform and conversion,
        `gradient` points at the entry itself.
        """
        var, grad = self.update.storage[:2]
        start = [f"gradient = {self.write_entry_address()}", _NEXT_ENTRY]
        pointers = f"{STORAGE[grad].pointer}(gradient), {self.compute}_pointer(scratch)"
        pointer_line = f"values, wide = {pointers}"
        value = self.write_entry_value("values")
        if self.update.entries or var != grad:
            copy = _nest_in_row(f"wide[i] = {value}")
            return [*start, pointer_line, *copy, *self._add_entries()]
        lines = [pointer_line, *self._add_entry(value), *self._add_entries()]
        return [*start, *nest("if entry >= 0:", lines)]

    def _add_entry(self, value: str) -> list[str]:
        """Return lines that store the sum of `value` and the next entry, and advance `entry`."""
        pointer = STORAGE[self.update.storage[1]].pointer
        add = _nest_in_row(f"wide[i] = {value} + {self.write_entry_value('more')}")
        return [f"more = {pointer}({self.write_entry_address()})", *add, _NEXT_ENTRY]

    def _add_entries(self) -> list[str]:
        """Return lines that add all further entries, and point `gradient` at the rounded sum."""
        lines = [*nest("while entry >= 0:", self._add_entry("wide[i]")), "gradient = scratch"]
        fmt = STORAGE[self.update.storage[0]]
        if self.update.storage[0] == self.compute:
            return lines
        return [
            *lines,
            f"gradient = scratch + width * {STORAGE[self.compute].size}",
            f"narrow = {fmt.pointer}(gradient)",
            *_nest_in_row(f"narrow[i] = {fmt.save.format('wide[i]')}"),
        ]


class _SuccessiveRow(_Row):
    """Writer of successive updates of a row, one per entry."""

    def update_row(self) -> list[str]:
        entry_lines = [
            f"gradient = {self.write_entry_address()}",
            _NEXT_ENTRY,
            *self.update_by_gradient(),
        ]
        return [*self._begin_row(), *nest("while entry >= 0:", entry_lines)]

    def read_value(self, stream: int) -> str:
        return super().read_value(stream) if stream != 1 else self.write_entry_value("p1")

    def begins_at(self, stream: int) -> str:
        # `_begin_row` has applied `before`, once for all entries.
        return self.load_value(stream)

    def _begin_row(self) -> list[str]:
        """Return lines that apply `before` to the row once; [] if the update has no `before`."""
        if not self.update.before:
            return []
        pointers, writes = [self.point_at(0)], [f"p0[i] = {self.prepare_variable()}"]
        if self.update.from_copy:
            pointers.append(self.point_at(len(self.update.storage) - 1))
            writes.append(self.store_copy("p0[i]"))
        return [*pointers, *_nest_in_row(*writes)]


def generate_rows(update: Update, compute: str, duplicates: Literal["sum", "successive"]) -> Kernel:
    """Return the kernel that updates the rows of a sparse gradient.

    Args:
        update: The update; it takes a gradient.
        duplicates: "sum" updates a row once, by the sum of the row's entries. "successive" updates
            a row by one entry after another.
    """
    element = (_SummedRow if duplicates == "sum" else _SuccessiveRow)(update.traced, compute)
    scalars = load_scalars(len(update.traced.scalars))
    setup = fill(_SETUP, literal=LITERAL, compute=compute, scalars=scalars)
    rows = fill(_ROWS, prefetches=_prefetch_rows(update.storage), update=element.update_row())
    lines = write_threads(setup, rows)
    return name_kernel("k", element.define_functions(), lines, update.traced.scalars)


def generate_grouping(index: str) -> Kernel:
    """Return the kernel that groups the entries of a sparse gradient by row.

    Args:
        index: The type of the indices, "int32" or "int64".
    """
    return name_kernel("g", "", fill(_GROUP, index=index), ())


def generate_gaps() -> Kernel:
    """Return the kernel that lists the rows of a variable without entries, as chunks."""
    return name_kernel("g", "", fill(_GAPS), ())


def _prefetch_rows(storage: tuple[str, ...]) -> list[str]:
    """Return lines that prefetch a later row of all tensors except the gradient."""
    # One loop for all streams: each loop adds to the time of LLVM.
    sizes = {k: STORAGE[kind].size for k, kind in enumerate(storage) if k != 1}
    return fill(
        _PREFETCH,
        ahead=_AHEAD,
        span=_SPAN,
        step=LINE // max(sizes.values()),
        # Gradients are read almost in order, which processors fetch ahead themselves.
        prefetches=[f"prefetch(base[{k}] + i * {size})" for k, size in sizes.items()],
    )


def _nest_in_row(*lines: str) -> list[str]:
    """Return a loop over the elements of a row."""
    return nest("for i in range(width):", lines)
