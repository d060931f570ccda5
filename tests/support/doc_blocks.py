"""The Python of the pages: each block runs alone, as a reader would paste it.

A block that is of no use by itself says so in the line above it, where the page does not show it:

    <!-- continues -->      it goes on from the block before
    <!-- process -->        it has to be the first of its process, as a script is
    <!-- slow -->           it takes more than a second or two, and is run with `-m slow`

Blocks with prompts are doctests. In others, what is printed is said beside: `print(2)  # 2`.
"""

from __future__ import annotations

import contextlib
import doctest
import io
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent

import torch

_BLOCK = re.compile(
    r"(?:^<!-- ([\w ]+) -->\n)?^ *```python\n(.*?)^ *```$", re.DOTALL | re.MULTILINE
)
_PRINTED = re.compile(r"^ *print\(.*\)  # (.*)$", re.MULTILINE)
MARKS = ("continues", "process", "slow")


@dataclass(frozen=True)
class Session:
    """A block of a page and those that continue it, in one text whose lines are the page's."""

    page: Path
    line: int
    text: str
    mark: str = ""

    @property
    def name(self) -> str:
        return f"{self.page.name}:{self.line}"


def sessions(page: Path) -> Iterator[Session]:
    """Yield the sessions of a page: blocks that run together."""
    source, session = page.read_text(), None
    for match in _BLOCK.finditer(source):
        mark, line = match[1] or "", source.count("\n", 0, match.start(2)) + 1
        if mark and mark not in MARKS:
            raise ValueError(f"{page.name}:{line}: '{mark}' is none of {', '.join(MARKS)}.")
        text = dedent(match[2])
        if mark != "continues":
            if session is not None:
                yield session
            session = Session(page, line, text, mark)
        elif session is None:
            raise ValueError(f"{page.name}:{line} continues nothing.")
        else:
            gap = line - session.line - session.text.count("\n")
            session = Session(page, session.line, session.text + "\n" * gap + text, session.mark)
    if session is not None:
        yield session


def run(session: Session, folder: Path) -> str:
    """Run a session in a fresh namespace.

    Returns:
        What differs from what the page says; nothing if all is as it says.
    """
    torch.manual_seed(0)  # in some draws of a page's numbers a training ends otherwise
    if ">>> " in session.text:
        return _run_doctest(session)
    path = folder / "block.py"  # a formula's source is read from its file
    path.write_text("\n" * (session.line - 1) + session.text)
    if session.mark == "process":
        process = subprocess.run(
            [sys.executable, path], capture_output=True, text=True, cwd=folder, timeout=200
        )
        printed, trouble = process.stdout, process.stderr if process.returncode else ""
    else:
        output, trouble = io.StringIO(), ""
        with contextlib.redirect_stdout(output):
            exec(compile(path.read_text(), str(path), "exec"), {"__name__": "__main__"})
        printed = output.getvalue()
    expected_lines = _PRINTED.findall(session.text)
    if printed.splitlines() != expected_lines:
        trouble += f"{session.name} says {expected_lines} and prints {printed.splitlines()}"
    return trouble


def _run_doctest(session: Session) -> str:
    test = doctest.DocTestParser().get_doctest(
        session.text, {"__name__": "__main__"}, session.name, str(session.page), session.line - 1
    )
    output = io.StringIO()
    runner = doctest.DocTestRunner()
    runner.run(test, out=output.write)
    return output.getvalue() if runner.failures else ""
