"""Escaping of untrusted text, such as file names, for a terminal."""

from __future__ import annotations


def escape_text(text: object) -> str:
    """Return text with each unprintable or control character replaced by its escape sequence.

    Example:
        >>> escape_text("w\\x1b[2J")
        'w\\\\x1b[2J'
    """
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode("ascii")
        for character in str(text)
    )
