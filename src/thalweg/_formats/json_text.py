"""JSON as it was meant: no key twice, no NaN, no number or depth beyond reason.

What Python's parser takes beside that would mean one thing here and another to the next reader, or
would cost more than the text is worth.
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
PARTS = 8_000_000  # quotes, brackets and commas: what a text may cost beyond its own size

_HALF = re.compile(r"\\u[dD][89a-fA-F]")
_AS_SQUARE = bytes.maketrans(b"{}", b"[]")
_NO_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))


class DuplicateKeyError(InvalidConfigError):
    """An object names one thing twice."""


def loads(text: str | bytes) -> Any:
    """Return the value of a JSON text.

    Raises:
        InvalidConfigError: It is no JSON, or has a key twice (DuplicateKeyError), NaN, an infinite
            or very long number, more than 100 levels, or more parts than a description has.
    """
    try:
        found = text.decode() if isinstance(text, bytes) else text
    except UnicodeDecodeError as error:
        raise InvalidConfigError(f"Not UTF-8 at byte {error.start}.") from error
    if sum(found.count(part) for part in '"[{,') > PARTS:
        raise InvalidConfigError(f"More than {PARTS} parts.")
    if _is_deep(found):
        raise InvalidConfigError(f"More than {DEPTH} levels.")
    try:
        value = json.loads(
            found,
            object_pairs_hook=_reject_duplicates,
            parse_constant=_reject_constant,
            parse_float=_parse_float,
            parse_int=_parse_int,
        )
    except json.JSONDecodeError as error:
        raise InvalidConfigError(f"No JSON: {error.msg} at character {error.pos}.") from error
    if _HALF.search(found) and not is_unicode(json.dumps(value, ensure_ascii=False)):
        raise InvalidConfigError("A text holds one half of a pair of surrogates.")
    return value


def dumps(value: object) -> str:
    """Return the text of a value, which `loads` reads back: tuples come back as lists.

    Raises:
        InvalidTypeError: It holds something else than dictionaries with strings as keys, lists,
            tuples, strings, numbers, booleans and None.
        InvalidArgumentError: It holds NaN, an infinite or very long number, text that is no
            Unicode, or more than 100 levels.
    """
    _check_value(value, ())
    return json.dumps(value, allow_nan=False, ensure_ascii=False, separators=(",", ":"))


def _is_deep(text: str) -> bool:
    """Return whether brackets stand in more than `DEPTH` others, by searches that take no stack.

    Python's parser would need one as deep as the text.
    """
    if text.count("[") + text.count("{") <= DEPTH:
        return False
    outside = text.replace("\\\\", "").replace('\\"', "").split('"')[::2]
    left = "".join(outside).encode(errors="replace").translate(_AS_SQUARE, _NO_BRACKETS)
    for _ in range(DEPTH):
        left, before = left.replace(b"[]", b""), len(left)
        if len(left) == before:
            break
    return b"[" in left


def _reject_duplicates(pairs: list[tuple[str, object]]) -> dict[str, object]:
    made = dict(pairs)
    if len(made) < len(pairs):
        seen: set[str] = set()
        twice = next(name for name, _ in pairs if name in seen or seen.add(name))
        raise DuplicateKeyError(f"{twice[:80]!r} is there twice.")
    return made


def as_object(value: Any) -> dict[str, Any]:
    """Return an object of JSON; an empty one in the place of anything else."""
    return cast(dict[str, Any], value) if isinstance(value, dict) else {}


def _reject_constant(name: str) -> object:
    raise InvalidConfigError(f"{name} is no JSON.")


def _parse_float(digits: str) -> float:
    value = float(digits)
    if math.isinf(value):
        raise InvalidConfigError(f"{digits[:20]} is beyond all numbers.")
    return value


def _parse_int(digits: str) -> int:
    if len(digits) > DIGITS:
        raise InvalidConfigError(f"A number of {len(digits)} digits.")
    return int(digits)


def _check_value(value: object, path: tuple[str, ...]) -> None:
    if len(path) > DEPTH:
        raise InvalidArgumentError(f"{'/'.join(path[:3])}... has more than {DEPTH} levels.")
    if value is None or isinstance(value, bool):
        return
    if type(value) is str:
        _check_text(value, path)
    elif type(value) is int:
        if abs(value) >= 10 ** (DIGITS - 1):
            raise InvalidArgumentError(f"{_path_text(path)} has more than {DIGITS - 1} digits.")
    elif type(value) is float:
        if not math.isfinite(value):
            raise InvalidArgumentError(
                f"{_path_text(path)} is {value}, which JSON has no word for."
            )
    elif isinstance(value, dict):
        _check_items(cast(dict[Any, Any], value), path)
    elif isinstance(value, list | tuple):
        items = enumerate(cast(Iterable[Any], value))
        _check_all(((str(number), each) for number, each in items), path)
    else:
        raise InvalidTypeError(
            f"{_path_text(path)} is a {type(value).__name__}, which JSON cannot hold."
        )


def _check_items(value: Mapping[Any, Any], path: tuple[str, ...]) -> None:
    for key in value:
        if type(key) is not str:
            raise InvalidTypeError(
                f"{_path_text(path)} has a key that is a {type(key).__name__}, no string."
            )
        _check_text(key, path)
    _check_all(value.items(), path)


def _check_all(items: Iterable[tuple[str, object]], path: tuple[str, ...]) -> None:
    for name, each in items:
        _check_value(each, (*path, name))


def _check_text(text: str, path: tuple[str, ...]) -> None:
    if not is_unicode(text):
        raise InvalidArgumentError(f"{_path_text(path)} holds {text[:80]!r}, which is no Unicode.")


def _path_text(path: tuple[str, ...]) -> str:
    return "/".join(path) or "the value"


def is_unicode(text: str) -> bool:
    """Return True if a text can be encoded in UTF-8: it may hold half a pair of surrogates."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
