"""Loops of CPU kernels whose formulas read vectors over rows and columns."""

from __future__ import annotations

from collections.abc import Mapping

from thalweg._engines.codegen import Kernel, Update, indent_by
from thalweg._engines.cpu.codegen import STORAGE, Element, point_at_chunk, write_kernel
from thalweg._engines.formula_parser import LITERAL
from thalweg._engines.reduction_order import LANES

SHORT = 8  # elements of a row that is too short for a loop of its own
_TRIPLE = 3  # elements of a row of most kernels of convolutions


def generate_seeing(update: Update, compute: str) -> Kernel:
    """Return the kernel of an update that reads vectors over rows and columns.

    The table has for each tensor the addresses of its streams and vectors, and the numbers of rows
    and columns of its matrices.
    """
    element = Element(update, compute)
    definitions, pointers = element.define_functions(), point_at_chunk(update)
    return write_kernel(element, definitions, pointers, each_line(element, "offset", "length"))


def each_line(element: Element, first: str, count: str) -> list[str]:
    """Return loops that update `count` elements from element `first` of a tensor on.

    Rows of up to `SHORT` elements are taken together: the vectors are first copied to lanes, an
    element for each. Longer rows have a loop each.

    Args:
        element: The writer of an element, with vectors of rows and columns.
        first, count: Expressions.
    """
    update = element.update
    place = f"tensor * {update.width} + {update.vectors_at}"
    sides = f"base[{place} + {len(update.vectors)}], base[{place} + {len(update.vectors) + 1}]"
    vectors = {
        "row": "{name} = {pointer}(base[{place} + {k}])[line]",
        "column": "{name} = {pointer}(base[{place} + {k}] + column * {size})",
    }
    short = {
        name: f"{LITERAL}({spread_name(vector)}[i - done])"
        for name, vector in update.vectors.items()
    }
    fmt = STORAGE[element.compute]
    vector_lines = [
        vectors[name.rstrip("0123456789")].format(
            name=name, pointer=fmt.pointer, size=fmt.size, place=place, k=k
        )
        for k, name in enumerate(update.vectors.values())
    ]
    pointers = {
        vector: f"{fmt.pointer}(base[{place} + {k}])"
        for k, vector in enumerate(update.vectors.values())
    }
    return [
        f"rows, columns = {sides}",
        "done = 0",
        *[f"{spread_name(vector)} = lanes({LANES})" for vector in pointers],
        f"while done < {count} and columns <= {SHORT}:",
        f"    block = min({LANES}, {count} - done)",
        f"    start = {first} + done",
        "    line = start // columns",
        *indent_by(spread_vectors(pointers, "block"), 1).splitlines(),
        "    for i in range(done, done + block):",
        *indent_by(element.update_element(short), 2).splitlines(),
        "    done += block",
        f"while done < {count}:",
        f"    line = ({first} + done) // columns",
        f"    stop = min((line + 1) * columns - {first}, {count})",
        # Offset of the column vectors with which element i finds its number at [i].
        f"    column = (line // rows - line) * columns + {first}",
        *indent_by([*vector_lines, "for i in range(done, stop):"], 1).splitlines(),
        *indent_by(element.update_element(), 2).splitlines(),
        "    done = stop",
    ]


def spread_name(vector: str) -> str:
    """Return the name of the lanes that hold a vector's number for each element."""
    return f"each_{vector}"


def spread_vectors(pointers: Mapping[str, str], count: str) -> list[str]:
    """Return lines that copy the vectors' numbers of each element into lanes.

    The elements are those from `start` on, in row `line`. A loop over many short rows is then one
    loop over lanes.

    Args:
        pointers: Expressions for pointers to the vectors of the tensor, by name.
        count: An expression for the number of elements.
    """
    if not pointers:
        return ["pass"]

    def see(place: str, j: str) -> list[str]:
        indices = {"row": "line", "column": f"along + {j}"}
        return [f"{spread_name(name)}[{place}] = all_{name}[{indices[name.rstrip('0123456789')]}]"
                for name in pointers]  # fmt: skip

    next_row = ["line += 1", "below += 1", "if below == rows:", "    below = 0",
                 "    along += columns"]  # fmt: skip
    return [
        *[f"all_{name} = {pointer}" for name, pointer in pointers.items()],
        "j = start - line * columns",
        "below = line // rows",
        "along = below * columns",
        "below = line - below * rows",
        "i = 0",
        f"while i < {count}:",
        f"    while columns == {_TRIPLE} and j == 0 and i + {_TRIPLE} <= {count}:",
        *(f"        {line}" for k in range(_TRIPLE) for line in see(f"i + {k}", str(k))),
        f"        i += {_TRIPLE}",
        *(f"        {line}" for line in next_row),
        f"    if i < {count}:",
        *(f"        {line}" for line in see("i", "j")),
        "        i += 1",
        "        j += 1",
        "        if j == columns:",
        "            j = 0",
        *(f"            {line}" for line in next_row),
    ]
