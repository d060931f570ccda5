"""The table of an atlas as one SVG, whose text is text."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape

from thalweg.conform.atlas import NOT_DRIVEN, REFERENCE, Atlas, Cell, Row

COLORS = {"bits": "#8fd19e", "rounding": "#ffe08a", "parts": "#f4a59a",
          NOT_DRIVEN: "#d5d9dd", REFERENCE: "#eef1f4"}  # fmt: skip
LEGEND = (
    ("bits", "the same bits"), ("rounding", "rounding: within 1e-5 of the movement"),
    ("parts", "another formula"), (NOT_DRIVEN, "not driven"),
)  # fmt: skip
LEFT, WIDE, HIGH, HEAD, GAP = 190, 172, 40, 128, 2
LONGEST = 30  # letters of small type in a cell


def draw(atlas: Atlas) -> str:
    """The picture, with the command that makes it beneath."""
    notes = [*_notes(atlas)]
    width = LEFT + WIDE * len(atlas.columns) + 16
    below = HEAD + HIGH * len(atlas.rows)
    height = below + 46 + 15 * len(notes)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}"'
        f' viewBox="0 0 {width} {height}" font-family="Helvetica, Arial, sans-serif">',
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
        _text(12, 24, "Same name, same optimizer?", 16, weight="bold"),
        _text(12, 42, atlas.summary(), 11, "#555555"),
        _text(12, 58, f"The number is the difference after {atlas.steps} steps over the same"
                      " gradients, as a share of the movement.", 11, "#555555"),
        *_legend(),
        *_heads(atlas),
    ]  # fmt: skip
    for place, row in enumerate(atlas.rows):
        lines += _row(row, HEAD + HIGH * place)
    for place, note in enumerate(notes):
        lines.append(_text(12, below + 20 + 15 * place, note, 10, "#555555"))
    versions = ", ".join(f"{name} {each}" for name, each in atlas.versions.items())
    lines.append(
        _text(12, height - 10, f"thalweg conform --atlas docs/atlas.svg   ({versions})", 10,
              "#555555")
    )  # fmt: skip
    return "\n".join([*lines, "</svg>", ""])


def _legend() -> Iterator[str]:
    x = 12
    for verdict, words in LEGEND:
        yield f'<rect x="{x}" y="69" width="12" height="12" fill="{COLORS[verdict]}"/>'
        yield _text(x + 17, 79, words, 11)
        x += 34 + 6 * len(words)


def _heads(atlas: Atlas) -> Iterator[str]:
    for place, column in enumerate(atlas.columns):
        x = LEFT + WIDE * place + WIDE / 2
        yield _text(x, HEAD - 20, column.name, 12, weight="bold", anchor="middle")
        told = column.version or ("not installed" if column.module else "packages of their own")
        yield _text(x, HEAD - 7, told, 10, "#555555", anchor="middle")


def _row(row: Row, y: float) -> Iterator[str]:
    yield f"<g><title>{escape(_listed(row.arguments) or 'defaults')}</title>"
    yield _text(12, y + 16, row.optimizer, 12, weight="bold")
    yield _text(12, y + 29, _short(row.rule), 9, "#555555") + "</g>"
    if not any(cell.name for cell in row.cells):
        yield _text(LEFT + 8, y + 23, "none of these packages has it", 10, "#555555")
    for place, cell in enumerate(row.cells):
        if cell.name:
            yield from _cell(cell, LEFT + WIDE * place, y)


def _cell(cell: Cell, x: float, y: float) -> Iterator[str]:
    yield f"<g><title>{escape(_told(cell))}</title>"
    yield (
        f'<rect x="{x}" y="{y}" width="{WIDE - GAP}" height="{HIGH - GAP}" rx="3"'
        f' fill="{COLORS[cell.verdict]}"/>'
    )
    first, second = _words(cell)
    middle = x + (WIDE - GAP) / 2
    yield _text(middle, y + 16, first, 12, weight="bold", anchor="middle")
    yield _text(middle, y + 30, _short(second), 9, "#333333", anchor="middle") + "</g>"


def _words(cell: Cell) -> tuple[str, str]:
    name = cell.name.rpartition(":")[2]
    if cell.verdict == REFERENCE:
        return name, "reference"
    if cell.verdict == NOT_DRIVEN:
        return NOT_DRIVEN, cell.note
    if cell.verdict != "parts":
        return ("bits" if cell.verdict == "bits" else f"{cell.difference:.1e}"), (
            f"{name}: {cell.way}"
        )
    number = "not finite" if cell.difference is None else f"{cell.difference:.2g}"
    closing = cell.closed_by[0] if cell.closed_by else f"none of {cell.tried} tried closes it"
    if not cell.tried:
        closing = "no argument to try"
    return f"{number}, from step {cell.step}", closing


def _told(cell: Cell) -> str:
    parts = [cell.name, cell.verdict, cell.way]
    if cell.closed_by:
        parts.append(f"closed by: {'; or '.join(cell.closed_by)}")
    return "\n".join(each for each in (*parts, cell.note, cell.command) if each)


def _notes(atlas: Atlas) -> Iterator[str]:
    """What does not fit in cells, each once."""
    told: dict[str, list[str]] = {}
    for _, _, cell in atlas.cells():
        if own := _listed({**cell.arguments, **cell.group}):
            told.setdefault(f"given {own}", []).append(cell.name)
        if len(cell.note) > LONGEST:
            told.setdefault(cell.note, []).append(cell.name)
    for note, names in told.items():
        packages = sorted({name.partition(":")[0] for name in names})
        yield f"{names[0] if len(names) == 1 else ', '.join(packages)}: {note}"


def _listed(values: dict[str, object]) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in values.items())


def _short(text: str) -> str:
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"


def _text(
    x: float, y: float, text: str, size: int, fill: str = "#111111", *, weight: str = "normal",
    anchor: str = "start",
) -> str:  # fmt: skip
    return (
        f'<text x="{x:g}" y="{y:g}" font-size="{size}" fill="{fill}" font-weight="{weight}"'
        f' text-anchor="{anchor}">{escape(text)}</text>'
    )
