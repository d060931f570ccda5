"""SVG image of an atlas (table of comparisons), with selectable text."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape

from thalweg.conform.atlas import NOT_DRIVEN, REFERENCE, Atlas, AtlasRow, Cell

COLORS = {"bits": "#8fd19e", "rounding": "#ffe08a", "parts": "#f4a59a",
          NOT_DRIVEN: "#d5d9dd", REFERENCE: "#eef1f4"}  # fmt: skip
LEGEND = (
    ("bits", "the same bits"), ("rounding", "rounding: within 1e-5 of the movement"),
    ("parts", "another formula; beneath: what closes it"), (NOT_DRIVEN, "not driven"),
)  # fmt: skip
LABEL_WIDTH, CELL_WIDTH, CELL_HEIGHT, HEADER_HEIGHT, GAP = 190, 172, 40, 128, 2
# Letters of small type in a cell.
LONGEST = 30


def draw(atlas: Atlas, command: str) -> str:
    """Return an SVG image as text. `command`, which creates the image, is printed at the bottom."""
    notes = [*_draw_notes(atlas)]
    width = LABEL_WIDTH + CELL_WIDTH * len(atlas.columns) + 16
    bottom = HEADER_HEIGHT + CELL_HEIGHT * len(atlas.rows)
    height = bottom + 46 + 15 * len(notes)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}"'
        f' viewBox="0 0 {width} {height}" font-family="Helvetica, Arial, sans-serif">',
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
        _draw_text(12, 24, "Same name, same optimizer?", 16, weight="bold"),
        _draw_text(12, 42, atlas.summarize(), 11, "#555555"),
        _draw_text(12, 58, f"The number is the difference after {atlas.steps} steps over the same"
                      " gradients, as a share of the movement.", 11, "#555555"),
        *_draw_legend(),
        *_draw_heads(atlas),
    ]  # fmt: skip
    for index, row in enumerate(atlas.rows):
        lines += _draw_row(row, HEADER_HEIGHT + CELL_HEIGHT * index)
    for index, note in enumerate(notes):
        lines.append(_draw_text(12, bottom + 20 + 15 * index, note, 10, "#555555"))
    versions = ", ".join(f"{name} {text}" for name, text in atlas.versions.items())
    lines.append(_draw_text(12, height - 10, f"{command}   ({versions})", 10, "#555555"))
    return "\n".join([*lines, "</svg>", ""])


def _draw_legend() -> Iterator[str]:
    """Yield the SVG elements of the legend."""
    x = 12
    for verdict, label in LEGEND:
        yield f'<rect x="{x}" y="69" width="12" height="12" fill="{COLORS[verdict]}"/>'
        yield _draw_text(x + 17, 79, label, 11)
        x += 34 + 6 * len(label)


def _draw_heads(atlas: Atlas) -> Iterator[str]:
    """Yield the SVG elements of the column titles."""
    for index, column in enumerate(atlas.columns):
        x = LABEL_WIDTH + CELL_WIDTH * index + CELL_WIDTH / 2
        yield _draw_text(x, HEADER_HEIGHT - 20, column.name, 12, weight="bold", anchor="middle")
        version = column.version or ("not installed" if column.module else "packages of their own")
        yield _draw_text(x, HEADER_HEIGHT - 7, version, 10, "#555555", anchor="middle")


def _draw_row(row: AtlasRow, y: float) -> Iterator[str]:
    """Yield the SVG elements of a row at height `y`, in pixels."""
    yield f"<g><title>{escape(_list_values(row.arguments) or 'defaults')}</title>"
    yield _draw_text(12, y + 16, row.optimizer, 12, weight="bold")
    yield _draw_text(12, y + 29, _cut_short(row.rule), 9, "#555555") + "</g>"
    if not any(cell.name for cell in row.cells):
        yield _draw_text(LABEL_WIDTH + 8, y + 23, "none of these packages has it", 10, "#555555")
    for index, cell in enumerate(row.cells):
        if cell.name:
            yield from _draw_cell(cell, LABEL_WIDTH + CELL_WIDTH * index, y)


def _draw_cell(cell: Cell, x: float, y: float) -> Iterator[str]:
    """Yield the SVG elements of a cell; `x` and `y` are pixels."""
    yield f"<g><title>{escape(_title_of(cell))}</title>"
    yield (
        f'<rect x="{x}" y="{y}" width="{CELL_WIDTH - GAP}" height="{CELL_HEIGHT - GAP}" rx="3"'
        f' fill="{COLORS[cell.verdict]}"/>'
    )
    first, second = _words_of(cell)
    middle = x + (CELL_WIDTH - GAP) / 2
    yield _draw_text(middle, y + 16, first, 12, weight="bold", anchor="middle")
    yield _draw_text(middle, y + 30, _cut_short(second), 9, "#333333", anchor="middle") + "</g>"


def _words_of(cell: Cell) -> tuple[str, str]:
    """Return (first line, second line) of a cell's text: the verdict and a detail."""
    name = cell.name.rpartition(":")[2]
    if cell.verdict == REFERENCE:
        return name, "reference"
    if cell.verdict == NOT_DRIVEN:
        return NOT_DRIVEN, cell.note
    if cell.verdict != "parts":
        return ("bits" if cell.verdict == "bits" else f"{cell.difference:.1e}"), (
            f"{name}: {cell.way}"
        )
    text = "not finite" if cell.difference is None else f"{cell.difference:.2g}"
    closing = cell.closed_by[0] if cell.closed_by else f"none of {cell.tried} tried closes it"
    if not cell.tried:
        closing = "no argument to try"
    return f"{text}, from step {cell.step}", closing


def _title_of(cell: Cell) -> str:
    """Return the tooltip of a cell."""
    lines = [cell.name, cell.verdict, cell.way]
    if cell.closed_by:
        lines.append(f"closed by: {'; or '.join(cell.closed_by)}")
    return "\n".join(line for line in (*lines, cell.note, cell.command) if line)


def _draw_notes(atlas: Atlas) -> Iterator[str]:
    """Yield a line of text for each note too long for a cell, and for each list of extra arguments.

    A line begins with its class. A text of several classes is one line, which begins with packages.
    """
    names_by_note: dict[str, list[str]] = {}
    for _, _, cell in atlas.list_cells():
        if values := _list_values({**cell.arguments, **cell.group}):
            names_by_note.setdefault(f"given {values}", []).append(cell.name)
        if len(cell.note) > LONGEST:
            names_by_note.setdefault(cell.note, []).append(cell.name)
    for note, names in names_by_note.items():
        packages = sorted({name.partition(":")[0] for name in names})
        yield f"{names[0] if len(names) == 1 else ', '.join(packages)}: {note}"


def _list_values(values: dict[str, object]) -> str:
    """Return arguments as text: "lr=0.1"."""
    return ", ".join(f"{name}={value!r}" for name, value in values.items())


def _cut_short(text: str) -> str:
    """Return a text, shortened to the width of a cell."""
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"


def _draw_text(
    x: float, y: float, text: str, size: int, fill: str = "#111111", *, weight: str = "normal",
    anchor: str = "start",
) -> str:  # fmt: skip
    """Return an SVG text element; `x`, `y` and `size` are pixels."""
    return (
        f'<text x="{x:g}" y="{y:g}" font-size="{size}" fill="{fill}" font-weight="{weight}"'
        f' text-anchor="{anchor}">{escape(text)}</text>'
    )
