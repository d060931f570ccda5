"""Docstrings as Sphinx reads them: what is indented under a first paragraph is a formula."""

from __future__ import annotations

from typing import Any


def show_formulas(app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Have formulas keep their lines, which reStructuredText would fill as a quotation."""
    outer = ""
    for number in range(len(lines) - 1, 0, -1):
        line, before = lines[number], lines[number - 1]
        if not line.startswith("    ") or before.strip():
            continue
        outer = next((each for each in reversed(lines[:number]) if each.strip()), "")
        if outer and not outer.startswith(" ") and not outer.endswith(":"):
            lines[number:number] = ["::", ""]


def setup(app: Any) -> dict[str, bool]:
    """What Sphinx calls; before napoleon, which reads sections."""
    app.connect("autodoc-process-docstring", show_formulas, priority=400)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
