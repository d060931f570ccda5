"""Loops of CPU kernels whose formulas read vectors, which have a number per row or column."""

from __future__ import annotations

from collections.abc import Mapping

from thalweg._engines.codegen import Kernel, Update, fill, nest
from thalweg._engines.cpu.codegen import STORAGE, Element, write_kernel
from thalweg._engines.formula_source import LITERAL
from thalweg._engines.reduction_order import LANES

SHORT = 8  # elements of a row that is too short for a loop of its own
_TRIPLE = 3  # elements of a row of most kernels of convolutions

_SHORT_ROWS = """
while done < {count} and columns <= {short}:
    block = min({lane_count}, {count} - done)
    start = {first} + done
    line = start // columns
    {spread}
    for i in range(done, done + block):
        {elements}
    done += block
"""

# `column` is the offset of column vectors with which element i finds its number at [i].
_LONG_ROWS = """
while done < {count}:
    line = ({first} + done) // columns
    stop = min((line + 1) * columns - {first}, {count})
    column = (line // rows - line) * columns + {first}
    {vectors}
    for i in range(done, stop):
        {elements}
    done = stop
"""

# Copies numbers of vectors to lanes; rows of three elements are written out.
_SPREAD = """
j = start - line * columns
below = line // rows
along = below * columns
below = line - below * rows
i = 0
while i < {count}:
    while columns == {triple} and j == 0 and i + {triple} <= {count}:
        {see_triple}
        i += {triple}
        {next_row}
    if i < {count}:
        {see}
        i += 1
        j += 1
        if j == columns:
            j = 0
            {next_row}
"""
_NEXT_ROW = [
    "line += 1",
    "below += 1",
    *nest("if below == rows:", ["below = 0", "along += columns"]),
]


def generate_broadcast(update: Update, compute: str) -> Kernel:
    """Return the kernel of an update that reads vectors over rows and columns.

    For each variable, the work table has the addresses of its tensors and of vectors, and the
    numbers of rows and columns of its matrices.
    """
    element = Element(update.traced, compute)
    return write_kernel(element, loop_over_rows(element, "offset", "length"))


def loop_over_rows(element: Element, first: str, count: str) -> list[str]:
    """Return loops that update `count` elements of a tensor from element `first` on.

    Args:
        element: The writer of an element, whose formula reads vectors over rows or columns.
        first, count: Expressions of integers.
    """
    update = element.update
    first_vector, index = f"tensor * {update.width} + {update.vectors_at}", len(update.vectors)
    return [
        f"rows, columns = base[{first_vector} + {index}], base[{first_vector} + {index + 1}]",
        "done = 0",
        *_loop_over_short_rows(element, first, count, first_vector),
        *_loop_over_long_rows(element, first, count, first_vector),
    ]


def _loop_over_short_rows(element: Element, first: str, count: str, first_vector: str) -> list[str]:
    """Return a loop that updates `LANES` elements at a time, in tensors with short rows.

    At run time, it does nothing if rows have over `SHORT` elements. An iteration first copies the
    vectors' numbers to arrays with one number per element.

    Args:
        first_vector: The expression of an index in `base`, at which the first vector's address is.
    """
    vectors, pointer = element.update.vectors, STORAGE[element.compute].pointer
    pointers = {
        vector: f"{pointer}(base[{first_vector} + {k}])"
        for k, vector in enumerate(vectors.values())
    }
    texts = {
        name: f"{LITERAL}({spread_name(vector)}[i - done])" for name, vector in vectors.items()
    }
    return [
        *[f"{spread_name(vector)} = lanes({LANES})" for vector in pointers],
        *fill(
            _SHORT_ROWS,
            first=first,
            count=count,
            short=SHORT,
            lane_count=LANES,
            spread=spread_vectors(pointers, "block"),
            elements=element.update_element(texts),
        ),
    ]


def _loop_over_long_rows(element: Element, first: str, count: str, first_vector: str) -> list[str]:
    """Return a loop, row by row, over the elements that `_loop_over_short_rows` has left."""
    fmt = STORAGE[element.compute]
    templates = {
        "row": "{name} = {pointer}(base[{place} + {k}])[line]",
        "column": "{name} = {pointer}(base[{place} + {k}] + column * {size})",
    }
    vector_lines = [
        templates[name.rstrip("0123456789")].format(
            name=name, pointer=fmt.pointer, size=fmt.size, place=first_vector, k=k
        )
        for k, name in enumerate(element.update.vectors.values())
    ]
    elements = element.update_element()
    return fill(_LONG_ROWS, first=first, count=count, vectors=vector_lines, elements=elements)


def spread_name(vector: str) -> str:
    """Return the name of the lanes that hold a vector's number for each element."""
    return f"each_{vector}"


def spread_vectors(pointers: Mapping[str, str], count: str) -> list[str]:
    """Return kernel lines that copy vectors to arrays with one number for each element.

    The kernel must have set `start`, the index of the first element; `line`, the row of this
    element; `rows` and `columns`, the sides of a matrix. It must have reserved the arrays, named by
    `spread_name`. The lines change `line`.

    Args:
        pointers: {vector: expression of a pointer to its numbers}. A name begins with "row" or
            "column"; digits may follow.
        count: An expression for the number of elements.
    """
    if not pointers:
        return ["pass"]

    def see(lane: str, column: str) -> list[str]:
        indices = {"row": "line", "column": f"along + {column}"}
        return [
            f"{spread_name(name)}[{lane}] = all_{name}[{indices[name.rstrip('0123456789')]}]"
            for name in pointers
        ]

    lines = fill(
        _SPREAD,
        count=count,
        triple=_TRIPLE,
        see_triple=[line for k in range(_TRIPLE) for line in see(f"i + {k}", str(k))],
        see=see("i", "j"),
        next_row=_NEXT_ROW,
    )
    return [*(f"all_{name} = {pointer}" for name, pointer in pointers.items()), *lines]
