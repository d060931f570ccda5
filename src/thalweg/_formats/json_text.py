"""Strict JSON: no duplicate keys, no NaN, no excessive numbers or depth.

Python's parser accepts texts that other readers interpret differently, or that cost far more memory
than their size.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping
from typing import Any, cast

from thalweg.errors import InvalidArgumentError, InvalidConfigError, InvalidTypeError

DEPTH = 100
DIGITS = 100
MAX_MARKS = 8_000_000  # quotes, brackets and commas, each of which costs memory

_HALF = re.compile(r"\\u[dD][89a-fA-F]")
_AS_SQUARE = bytes.maketrans(b"{}", b"[]")
_NO_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))


class DuplicateKeyError(InvalidConfigError):
    """A JSON object has a key twice."""


def loads(text: str | bytes) -> Any:
    """Return the value of a JSON text.

    Raises:
        InvalidConfigError: The text is not JSON, repeats a key (DuplicateKeyError), has NaN, an
            infinite or very long number, more than 100 levels, or too many elements.
    """
    try:
        decoded = text.decode() if isinstance(text, bytes) else text
    except UnicodeDecodeError as error:
        raise InvalidConfigError(f"Not UTF-8 at byte {error.start}.") from error
    if sum(decoded.count(mark) for mark in '"[{,') > MAX_MARKS:
        raise InvalidConfigError(f"More than {MAX_MARKS} parts.")
    if _is_deep(decoded):
        raise InvalidConfigError(f"More than {DEPTH} levels.")
    try:
        parsed = json.loads(
            decoded,
            object_pairs_hook=_reject_duplicates,
            parse_constant=_reject_constant,
            parse_float=_parse_float,
            parse_int=_parse_int,
        )
    except json.JSONDecodeError as error:
        raise InvalidConfigError(f"No JSON: {error.msg} at character {error.pos}.") from error
    if _HALF.search(decoded) and not is_unicode(json.dumps(parsed, ensure_ascii=False)):
        raise InvalidConfigError("A text holds one half of a pair of surrogates.")
    return parsed


def dumps(content: object) -> str:
    """Return JSON text that `loads` reads; tuples become lists.

    Raises:
        InvalidTypeError: The content is not made of dictionaries with strings as keys, lists,
            tuples, strings, numbers, booleans and None.
        InvalidArgumentError: The content has NaN, an infinite or very long number, text that is not
            Unicode, or more than 100 levels.
    """
    _check_value(content, ())
    return json.dumps(content, allow_nan=False, ensure_ascii=False, separators=(",", ":"))


def _is_deep(text: str) -> bool:
    """Return True if brackets are nested deeper than `DEPTH`, without recursive calls."""
    if text.count("[") + text.count("{") <= DEPTH:
        return False
    # Without escaped quotes, every second part between quotes is outside of strings.
    unquoted = text.replace("\\\\", "").replace('\\"', "").split('"')[::2]
    brackets = "".join(unquoted).encode(errors="replace").translate(_AS_SQUARE, _NO_BRACKETS)
    # A round removes the innermost level.
    for _ in range(DEPTH):
        brackets, length = brackets.replace(b"[]", b""), len(brackets)
        if len(brackets) == length:
            break
    return b"[" in brackets


def _reject_duplicates(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """Return the pairs as a dict; raise DuplicateKeyError if a key occurs twice."""
    mapping = dict(pairs)
    if len(mapping) < len(pairs):
        names: set[str] = set()
        repeated = next(name for name, _ in pairs if name in names or names.add(name))
        raise DuplicateKeyError(f"{repeated[:80]!r} is there twice.")
    return mapping


def as_object(parsed: Any) -> dict[str, Any]:
    """Return `parsed` if it is a dict, else {}."""
    return cast(dict[str, Any], parsed) if isinstance(parsed, dict) else {}


def _reject_constant(name: str) -> object:
    """Raise InvalidConfigError for NaN and infinities."""
    raise InvalidConfigError(f"{name} is no JSON.")


def _parse_float(digits: str) -> float:
    """Return a float; raise InvalidConfigError if infinite."""
    parsed = float(digits)
    if math.isinf(parsed):
        raise InvalidConfigError(f"{digits[:20]} is beyond all numbers.")
    return parsed


def _parse_int(digits: str) -> int:
    """Return an int; raise InvalidConfigError if too long."""
    # The time that `int` takes grows with the square of the number of digits.
    if len(digits) > DIGITS:
        raise InvalidConfigError(f"A number of {len(digits)} digits.")
    return int(digits)


def _check_value(content: object, path: tuple[str, ...]) -> None:
    """Raise if a value cannot be strict JSON; `path` has the keys that lead to the value."""
    if len(path) > DEPTH:
        raise InvalidArgumentError(f"{'/'.join(path[:3])}... has more than {DEPTH} levels.")
    if content is None or isinstance(content, bool):
        return
    if type(content) is str:
        _check_text(content, path)
    elif type(content) is int:
        if abs(content) >= 10 ** (DIGITS - 1):
            raise InvalidArgumentError(f"{_path_text(path)} has more than {DIGITS - 1} digits.")
    elif type(content) is float:
        if not math.isfinite(content):
            raise InvalidArgumentError(
                f"{_path_text(path)} is {content}, which JSON has no word for."
            )
    elif isinstance(content, dict):
        _check_items(cast(dict[Any, Any], content), path)
    elif isinstance(content, list | tuple):
        for index, entry in enumerate(cast(Iterable[Any], content)):
            _check_value(entry, (*path, str(index)))
    else:
        raise InvalidTypeError(
            f"{_path_text(path)} is a {type(content).__name__}, which JSON cannot hold."
        )


def _check_items(mapping: Mapping[Any, Any], path: tuple[str, ...]) -> None:
    """Raise unless all keys are strings, and all values pass `_check_value`."""
    for key in mapping:
        if type(key) is not str:
            raise InvalidTypeError(
                f"{_path_text(path)} has a key that is a {type(key).__name__}, no string."
            )
        _check_text(key, path)
    for name, entry in mapping.items():
        _check_value(entry, (*path, name))


def _check_text(text: str, path: tuple[str, ...]) -> None:
    """Raise InvalidArgumentError unless a text is Unicode."""
    if not is_unicode(text):
        raise InvalidArgumentError(f"{_path_text(path)} holds {text[:80]!r}, which is no Unicode.")


def _path_text(path: tuple[str, ...]) -> str:
    """Return the keys that lead to a value as text for messages."""
    return "/".join(path) or "the value"


def is_unicode(text: str) -> bool:
    """Return True if a text can be encoded in UTF-8: half a surrogate pair cannot."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
