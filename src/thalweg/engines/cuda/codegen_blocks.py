"""Write the source of a GPU's kernel that rounds by random bits, or has slots in codes of 8 bits.

A program goes over its chunk in tiles of whole blocks.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from thalweg.engines.codegen import Update
from thalweg.engines.cuda.codegen import (
    THREADS,
    Element,
    Kernel,
    Writer,
    assemble_kernel,
    write_dense,
)
from thalweg.engines.draws import GROUP, NARROW, SCALARS
from thalweg.formula import Formula

BLOCK = THREADS * GROUP  # elements at a time: each thread has those of one call of Philox

_PLACE = [
    "number = tl.load(places + 2 * tensor).to(tl.uint32)",
    "position = tl.load(places + 2 * tensor + 1) + offset",
]


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
        flush, fast: As for `generate_update`.
        draws: As for `Update`. The kernel is given places of variables then.
        others: What `Update` takes beside.
    """
    update = Update(formula, storage, draws=draws, **others)
    changed = {stream for _, stream in update.written_results()}
    drawn = {k: k and k - 1 for k in sorted(changed) if draws and storage[k] in NARROW}
    element = _Element(update, Writer("float32", flush, fast), drawn)
    program = write_dense(element, BLOCK, element.tile(), *["places"] * draws)
    return assemble_kernel(element, element.define_functions(*element.more) + program, more=_MORE)


_MORE = "from thalweg.engines.cuda.functions_of_blocks import *\n"


class _Element(Element):
    """Writes the function that updates a tile.

    Args:
        update: What becomes of it.
        writer: In which arithmetic.
        drawn: The streams that are rounded by random bits, and which of an element's numbers each
            has.
    """

    def __init__(self, update: Update, writer: Writer, drawn: Mapping[int, int]) -> None:
        super().__init__(update, writer)
        self._drawn = drawn
        self.more = ["number", "position", "WHOLE: tl.constexpr"] if drawn else []

    def tile(self) -> str:
        """The places of a tile's elements, counted from that of the first."""
        return f"tl.arange(0, {BLOCK})"

    def point_at_streams(self, start: str) -> list[str]:
        return [*super().point_at_streams(start), *(_PLACE if self._drawn else [])]

    def call_over(self, start: str, elements: str, masked: bool) -> str:
        draws = ["number", f"position + {start}", "ALIGNED"] if self._drawn else []
        given = [*self.arguments, *draws, f"{start} + {elements}", "length", str(masked)]
        return f"element({', '.join(given)})"

    def apply_before(self) -> list[str]:
        if not (self.update.before and 0 in self._drawn):
            return super().apply_before()
        var = self.update.name_of(0)  # rounded once, at the end
        value = self.update.apply_stages(self.update.before, var)
        return [f"{var} = {self.writer.flush_value(value)}"]

    def write_value(self, stream: int, value: str) -> list[str]:
        if stream not in self._drawn:
            return super().write_value(stream, value)
        # Drawn only now: what an element keeps in registers meanwhile is less.
        kind = self.update.storage[stream]
        return [
            f"drawn = {self._draw_for(stream)}",
            self.store_value(stream, f"to_{kind}_by({value}, drawn)"),
        ]

    def _draw_for(self, stream: int) -> str:
        """Bits for what is stored of a stream."""
        step, low, high = (f"{self.update.scalar[x]}.to(tl.int32).to(tl.uint32)" for x in SCALARS)
        given = f"position, {step}, number, {self._drawn[stream]}, {low}, {high}"
        return f"bits_of({given}, {BLOCK}, WHOLE)"
