"""Text format of protocol buffers: https://protobuf.dev/reference/protobuf/textformat-spec.

Only messages of strings and numbers are supported. The protobuf package is not used: it would have
to be installed wherever a checkpoint is saved, and tensorboard, which needs it, has no message for
the file `checkpoint`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator

from thalweg._formats.bundle.errors import CorruptFileError

Token = tuple[str, str]  # its kind, its text

_TOKENS = re.compile(
    r"""(?P<blank>[ \t\r\n\f\v]+|\#[^\n]*)
    |(?P<name>[A-Za-z_][A-Za-z0-9_]*)
    |(?P<number>-?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?f?)
    |(?P<string>"[^"\\\n]*(?:\\[^\n][^"\\\n]*)*"|'[^'\\\n]*(?:\\[^\n][^'\\\n]*)*')
    |(?P<mark>[:,;\[\]])""",
    re.VERBOSE,
)
_ESCAPES = re.compile(
    rb"\\(?:([0-7]{1,3})|x([0-9A-Fa-f]{1,2})|u([0-9A-Fa-f]{4})|U([0-9A-Fa-f]{8})|(.))", re.DOTALL
)
_LETTERS = {
    b"a": b"\a", b"b": b"\b", b"f": b"\f", b"n": b"\n", b"r": b"\r", b"t": b"\t", b"v": b"\v",
    b"?": b"?", b"\\": b"\\", b"'": b"'", b'"': b'"',
}  # fmt: skip
_ESCAPED = {10: "\\n", 13: "\\r", 9: "\\t", 34: '\\"', 39: "\\'", 92: "\\\\"}
_DIGITS = 400


def parse_fields(text: str) -> Iterator[tuple[str, list[str | float]]]:
    """Yield the name of each field and its values, several if the text has a list.

    Raises:
        CorruptFileError: The text has another syntax.
    """
    tokens = _tokenize(text)
    kind, name = next(tokens)
    while kind != "end":
        if kind != "name" or next(tokens) != ("mark", ":"):
            raise CorruptFileError(f"there is {name[:40]!r} where a name and a colon are due")
        values: list[str | float] = []
        token = next(tokens)
        if token == ("mark", "["):
            while token != ("mark", "]"):
                literal, token = _parse_value(tokens, next(tokens))
                values.append(literal)
                if token not in (("mark", ","), ("mark", "]")):
                    raise CorruptFileError(f"there is {token[1][:40]!r} in a list")
            token = next(tokens)
        else:
            literal, token = _parse_value(tokens, token)
            values.append(literal)
        yield name, values
        kind, name = next(tokens) if token in (("mark", ","), ("mark", ";")) else token


def quote_text(text: str) -> str:
    """Return text as a quoted string of the text format, in ASCII with escape sequences."""
    letters = (
        _ESCAPED.get(byte) or (chr(byte) if 32 <= byte < 127 else f"\\{byte:03o}")
        for byte in text.encode("utf-8", "surrogateescape")
    )
    return f'"{"".join(letters)}"'


def _tokenize(text: str) -> Iterator[Token]:
    """Yield the tokens of a text, and an "end" token."""
    position = 0
    while position < len(text):
        match = _TOKENS.match(text, position)
        if match is None:
            excerpt = text[position : position + 40]
            raise CorruptFileError(f"it makes no sense at character {position}: {excerpt!r}")
        position = match.end()
        if match.lastgroup and match.lastgroup != "blank":
            yield match.lastgroup, match.group()
    yield "end", ""


def _parse_value(tokens: Iterator[Token], token: Token) -> tuple[str | float, Token]:
    """Return (value, next token); adjacent strings are joined."""
    kind, text = token
    if kind == "number":
        return _parse_number(text), next(tokens)
    if kind != "string":
        raise CorruptFileError(f"there is {text[:40]!r} where a value is due")
    pieces: list[bytes] = []
    while token[0] == "string":
        pieces.append(_ESCAPES.sub(_unescape_match, token[1][1:-1].encode()))
        token = next(tokens)
    return b"".join(pieces).decode("utf-8", "surrogateescape"), token


def _unescape_match(match: re.Match[bytes]) -> bytes:
    """Return the bytes of an escape sequence."""
    octal, hexadecimal, short, long, letter = match.groups()
    if letter is not None:
        if letter not in _LETTERS:
            raise CorruptFileError(f"there is no escape {match.group()!r}")
        return _LETTERS[letter]
    if octal or hexadecimal:
        return bytes([(int(octal, 8) if octal else int(hexadecimal, 16)) & 0xFF])
    point = int(short or long, 16)
    if point > 0x10FFFF or 0xD800 <= point < 0xE000:
        raise CorruptFileError(f"there is no character {match.group()!r}")
    return chr(point).encode()


def _parse_number(token: str) -> float:
    """Return a number token as a float; raise CorruptFileError if invalid."""
    number = float(token.rstrip("f")) if len(token) < _DIGITS else math.inf
    if not math.isfinite(number):
        raise CorruptFileError(f"{token[:40]} is beyond all numbers")
    return number
