"""State file `checkpoint`: TensorFlow's list of checkpoints in a directory.

It is a CheckpointState of tensorflow/python/training/checkpoint_state.proto, in the text format of
protocol buffers: https://protobuf.dev/reference/protobuf/textformat-spec. Only messages of strings
and numbers are supported. The protobuf package is not used: it would have to be installed wherever
a checkpoint is saved, and tensorboard, which needs it, has no message for this file.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from thalweg._formats import atomic_write
from thalweg._formats.bundle.checkpoint_directory import Folder
from thalweg._formats.bundle.errors import CorruptFileError, locate_flaws, raise_flaws
from thalweg._formats.bundle.proto import decode_text
from thalweg.errors import UnsafeCheckpointError

NAME = "checkpoint"
LIMIT = 1 << 21  # bytes of such a file: some ten thousand checkpoints
_MAX_PATH = 4096  # characters of a path

_FIELDS: dict[str, type] = {
    "model_checkpoint_path": str,
    "all_model_checkpoint_paths": str,
    "all_model_checkpoint_timestamps": float,
    "last_preserved_timestamp": float,
}


@dataclass(frozen=True)
class CheckpointState:
    """List of the checkpoints of a directory.

    Attributes:
        model_checkpoint_path: The prefix of the last checkpoint; "" if unknown.
        all_model_checkpoint_paths: The prefixes of all existing checkpoints, the oldest first.
        all_model_checkpoint_timestamps: The time of each save, in seconds since 1970.
        last_preserved_timestamp: The time of the last save that is never deleted.
    """

    model_checkpoint_path: str
    all_model_checkpoint_paths: list[str] = field(default_factory=list[str])
    all_model_checkpoint_timestamps: list[float] = field(default_factory=list[float])
    last_preserved_timestamp: float | None = None


def read_state(folder: str | os.PathLike[str], name: str = NAME) -> CheckpointState | None:
    """Read the state file of a directory.

    Args:
        folder: The directory of the checkpoints.
        name: The name of the state file.

    Returns:
        The state, with paths that begin with `folder`; None if the file does not exist.

    Raises:
        DataLossError: The file is damaged, or has another format.
        UnsafeCheckpointError: The file is a link, or names a checkpoint in another directory.
    """
    directory = os.fspath(folder)
    full_path = os.path.join(directory, name)
    try:
        with raise_flaws(full_path), Folder(full_path) as opened:
            with closing(opened.open_file("")) as file:
                if file.size > LIMIT:
                    raise CorruptFileError(
                        f"it has {file.size} bytes, no more than {LIMIT} are read"
                    )
                state = _parse_state(decode_text(file.read(0, file.size)))
            return _map_paths(state, partial(_join_path, directory))
    except FileNotFoundError:
        return None


def write_state(folder: str | os.PathLike[str], state: CheckpointState, name: str = NAME) -> None:
    """Write the state file, with paths relative to `folder`, so that `folder` can be moved.

    Args:
        folder: The directory of the checkpoints.
        state: The state; its paths begin with `folder`.
        name: The name of the file.

    Raises:
        UnsafeCheckpointError: A checkpoint is outside of `folder`.
        CheckpointWriteError: The file cannot be written.
    """
    directory = os.fspath(folder)
    full_path = os.path.join(directory, name)
    with raise_flaws(full_path):
        state = _map_paths(state, partial(_relative_to, directory))
    lines = [f"model_checkpoint_path: {quote_text(state.model_checkpoint_path)}"]
    paths, times = state.all_model_checkpoint_paths, state.all_model_checkpoint_timestamps
    lines += [f"all_model_checkpoint_paths: {quote_text(path)}" for path in paths]
    lines += [f"all_model_checkpoint_timestamps: {time!r}" for time in times]
    if state.last_preserved_timestamp is not None:
        lines.append(f"last_preserved_timestamp: {state.last_preserved_timestamp!r}")
    content = "".join(f"{line}\n" for line in lines).encode()
    atomic_write.replace(full_path, [content], len(content))


def _parse_state(text: str) -> CheckpointState:
    """Parse the text of a state file; the paths are not changed. Missing fields are empty.

    Raise CorruptFileError if the text or a field is invalid, or a single field is repeated.
    """
    fields: dict[str, list[Any]] = {name: [] for name in _FIELDS}
    for name, values in parse_fields(text):
        with locate_flaws(name[:80]):
            if name not in _FIELDS:
                raise CorruptFileError("there is no such field")
            if not all(type(content) is _FIELDS[name] for content in values):
                raise CorruptFileError(f"its value is no {_FIELDS[name].__name__}")
            fields[name] += values
    latest, all_paths, times, preserved = fields.values()
    if len(latest) > 1 or len(preserved) > 1:
        raise CorruptFileError("it names more than one checkpoint as the last one")
    return CheckpointState("".join(latest), all_paths, times, preserved[0] if preserved else None)


def _map_paths(state: CheckpointState, convert: Callable[[str], str]) -> CheckpointState:
    """Return a copy of a state in which `convert(path)` replaces each path."""
    latest, *paths = map(convert, (state.model_checkpoint_path, *state.all_model_checkpoint_paths))
    return replace(state, model_checkpoint_path=latest, all_model_checkpoint_paths=paths)


def _join_path(directory: str, path: str) -> str:
    """Join `directory` and `path`; return "" for "". Raise CorruptFileError for a path outside."""
    full_path = os.path.join(directory, path) if path else ""
    _relative_to(directory, full_path)
    return full_path


def _relative_to(directory: str, path: str) -> str:
    """Return `path` relative to `directory`; raise CorruptFileError if it is outside."""
    if not path:
        return ""
    if "\0" in path or len(path) > _MAX_PATH:
        raise CorruptFileError(f"it names {path[:200]!r}, which is no path", UnsafeCheckpointError)
    parent, base = os.path.split(path)
    # A link inside the directory may lead out of it.
    root, real_parent = _real_path(directory), _real_path(parent)
    is_inside = os.path.join(real_parent, "").startswith(os.path.join(root, ""))
    if base in ("", ".", "..") or not is_inside:
        raise CorruptFileError(
            f"it names {path!r}, which is not in its folder; if you trust it, give that path"
            " instead of the folder",
            UnsafeCheckpointError,
        )
    return os.path.relpath(os.path.join(real_parent, base), root)


def _real_path(folder: str) -> str:
    """Return the absolute path of a directory, with links resolved."""
    return os.path.realpath(folder or ".")


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
    """Yield (name, values) of each field; a list in the text has several values.

    Raise CorruptFileError if the text has a syntax error.
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
    # Paths may have bytes that are not UTF-8.
    letters = (
        _ESCAPED.get(byte) or (chr(byte) if 32 <= byte < 127 else f"\\{byte:03o}")
        for byte in text.encode("utf-8", "surrogateescape")
    )
    return f'"{"".join(letters)}"'


def _tokenize(text: str) -> Iterator[Token]:
    """Yield the tokens of a text, and at the end ("end", "")."""
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
    """Return (value that begins with `token`, next token); adjacent strings are joined."""
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
    """Return the bytes for an escape sequence; raise CorruptFileError if it is unknown."""
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
    parsed = float(token.rstrip("f")) if len(token) < _DIGITS else math.inf
    if not math.isfinite(parsed):
        raise CorruptFileError(f"{token[:40]} is beyond all numbers")
    return parsed
