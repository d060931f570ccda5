"""JSON of the library's files, and texts that only Python's `json` accepts."""

from __future__ import annotations

import math
import sys
from typing import Any

import pytest

from thalweg._formats import json_text
from thalweg.errors import InvalidArgumentError, InvalidConfigError, InvalidTypeError

INVALID_TEXTS = {
    "300,000 levels": "[" * 300_000 + "]" * 300_000,
    "300,000 levels of objects": '{"a":' * 300_000 + "1" + "}" * 300_000,
    "300,000 brackets": "[" * 300_000,
    "101 levels": "[" * 101 + "]" * 101,
    "a key twice": '{"a": 1, "b": 2, "a": 1}',
    "a key twice inside": '[{"a": {"b": 1, "\\u0062": 2}}]',
    "NaN": '{"a": NaN}',
    "Infinity": "[-Infinity]",
    "10^400": "1e400",
    "-10^400": "-1e400",
    "401 digits": "1" + "0" * 400,
    "a million digits": "[" + "9" * 1_000_000 + "]",
    "nothing": "",
    "half a text": '{"a": "b',
    "two texts": "{} {}",
    "a comment": "{} // x",
    "a comma": "[1,]",
    "half a character": b'{"\xc3": 1}',
    "half a surrogate": '["\\ud800"]',
    "a mark of byte order": "\ufeff{}",
    "nine million parts": "[" + "[]," * 9_000_000 + "[]]",
}


@pytest.mark.one_in(3)
@pytest.mark.parametrize("text", INVALID_TEXTS.values(), ids=INVALID_TEXTS)
def test_invalid_texts_raise(text: str | bytes) -> None:
    with pytest.raises(InvalidConfigError):
        json_text.loads(text)


def test_depth_limit_is_independent_of_recursion_limit() -> None:
    old_limit = sys.getrecursionlimit()
    sys.setrecursionlimit(10**6)
    try:
        with pytest.raises(InvalidConfigError, match="More than 100 levels"):
            json_text.loads(INVALID_TEXTS["300,000 levels"])
    finally:
        sys.setrecursionlimit(old_limit)


READ: list[tuple[str | bytes, Any]] = [
    ("[" * 100 + "]" * 100, None),
    ("[" + ",".join(["[{}]"] * 200) + "]", [[{}]] * 200),
    ('["' + "[{" * 200 + '\\"\\\\"]', ["[{" * 200 + '"\\']),
    ('{"\\ud83d\\ude00": "\\ud83d\\ude00"}', {"😀": "😀"}),
    ("18446744073709551616", 2**64),
    ("[true, false, null, 0.1, -0.0, 1e308]", [True, False, None, 0.1, -0.0, 1e308]),
    (b'{"\xc3\xa4": []}', {"ä": []}),
]


@pytest.mark.parametrize(("text", "expected"), READ)
def test_valid_texts_are_read(text: str | bytes, expected: Any) -> None:
    document = json_text.loads(text)
    assert expected is None or repr(document) == repr(expected)


ROUND_TRIPS: list[Any] = [
    {"": [], "a": {"b": [1, -2.5, "ü\n\"'\\\u2028", None, True]}},
    2**63,
    5e-324,
    -0.0,
    "\x00",
]


@pytest.mark.parametrize("value", ROUND_TRIPS, ids=repr)
def test_json_values_round_trip(value: Any) -> None:
    document = json_text.loads(json_text.dumps(value))
    assert repr(document) == repr(value)


def test_tuples_are_read_as_lists() -> None:
    assert json_text.loads(json_text.dumps({"a": (1, (2,))})) == {"a": [1, [2]]}


def _deep(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


class Text(str):
    """String with overridden methods."""


UNWRITABLE: list[tuple[Any, type[Exception], str]] = [
    ({"a": {"b": math.nan}}, InvalidArgumentError, "a/b is nan"),
    ([math.inf], InvalidArgumentError, "0 is inf"),
    ({"a": {1, 2}}, InvalidTypeError, "a is a set, which JSON cannot hold"),
    ({1: 2}, InvalidTypeError, "a key that is a int, no string"),
    ({"a": b"x"}, InvalidTypeError, "a is a bytes"),
    (10**100, InvalidArgumentError, "more than 99 digits"),
    ("\ud800", InvalidArgumentError, "no Unicode"),
    ({"\udfff": 1}, InvalidArgumentError, "no Unicode"),
    (_deep(101), InvalidArgumentError, "more than 100 levels"),
    ({"a": Text("x")}, InvalidTypeError, "a is a Text"),
]


@pytest.mark.parametrize(("value", "error", "message"), UNWRITABLE)
def test_unsupported_values_raise(value: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        json_text.dumps(value)


def test_cyclic_values_raise() -> None:
    value: list[Any] = []
    value.append(value)
    with pytest.raises(InvalidArgumentError, match="more than 100 levels"):
        json_text.dumps(value)


def test_write_depth_equals_read_depth() -> None:
    assert json_text.loads(json_text.dumps(_deep(100))) == _deep(100)
