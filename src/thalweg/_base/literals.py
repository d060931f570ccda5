"""Parsing of lists, values and names on a command line."""

from __future__ import annotations

import ast
import re

# The end of the name of a file; a module such as `nn.pytorch` has ".py" within its name.
_FILE = re.compile(r"\.py(?=:|$)")
_OPENING, _CLOSING, _QUOTES = "([{", ")]}", "\"'"


def names_file(text: str) -> bool:
    """Return True if a text is `file.py`, or `file.py:NAME` for an object in the file."""
    return _FILE.search(text) is not None


def split_at_commas(text: str) -> list[str]:
    """Split a text at commas outside of brackets and quotes; return the stripped pieces.

    Empty pieces are left out.
    """
    pieces, depth, quote = [""], 0, ""
    for character in text:
        if quote:
            quote = "" if character == quote else quote
        elif character in _QUOTES:
            # The name of a file may have an apostrophe.
            quote = character if depth or pieces[-1].rstrip().endswith("=") else ""
        elif character in _OPENING:
            depth += 1
        elif character in _CLOSING:
            depth -= 1
        elif character == "," and depth <= 0:
            pieces.append("")
            continue
        pieces[-1] += character
    return [piece.strip() for piece in pieces if piece.strip()]


def parse_argument(text: str) -> tuple[str, object]:
    """Return the name and the value of `NAME=VALUE`; the value is a word or a Python literal.

    Raises:
        ValueError: The text is not NAME=VALUE, or the value is neither a word nor a literal.
    """
    name, _, value = (piece.strip() for piece in text.partition("="))
    if not (name.isidentifier() and value):
        raise ValueError(f"'{text}' is not NAME=VALUE, such as lr=0.01.")
    try:
        return name, ast.literal_eval(value)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        if not re.fullmatch(r"[\w-]+", value):
            raise ValueError(
                f"'{value}' is neither a word nor a literal of Python, such as 0.01, True,"
                " None or (0.9, 0.99)."
            ) from None
        return name, value
