"""Text of files, whose names and contents anybody may have written, for a terminal."""

from __future__ import annotations


def escape_text(text: object) -> str:
    """Text in which what a terminal would obey, or not show, stands as its escape.

    Example:
        >>> escape_text("w\\x1b[2J")
        'w\\\\x1b[2J'
    """
    return "".join(
        each if each.isprintable() else each.encode("unicode_escape").decode("ascii")
        for each in str(text)
    )
