"""Write the table of names into docs/tensorflow.md: `python tools/names.py`."""

from __future__ import annotations

import re
from pathlib import Path

from thalweg._cli.scan import table

PAGE = Path(__file__).parents[1] / "docs" / "tensorflow.md"
TABLE_PATTERN = re.compile(r"(?<=<!-- names -->\n).*(?=<!-- end of names -->)", re.DOTALL)

if __name__ == "__main__":
    text = f"\n{table.markdown(table.names())}\n\n"
    PAGE.write_text(TABLE_PATTERN.sub(lambda _: text, PAGE.read_text()))
