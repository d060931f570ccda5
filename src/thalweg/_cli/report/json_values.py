"""Conversion of numbers and warnings to JSON values."""

from __future__ import annotations

import math
from typing import Any, cast

from thalweg.diagnostics.jsonl_reader import UNMEASURED
from thalweg.diagnostics.sinks import json_number as json_number
from thalweg.diagnostics.spikes import Warned


def plain_number(value: float) -> float | str | None:
    """Return a number with 4 digits, None if not measured, or text for NaN and infinity."""
    return None if value == UNMEASURED else json_number(value)


def plain_values(value: object) -> Any:
    """Return nested values as JSON values: None for NaN and infinity, `str` of unknown types."""
    match value:
        case dict():
            items = cast("dict[object, object]", value).items()
            return {str(key): plain_values(element) for key, element in items}
        case list() | tuple():
            return [plain_values(element) for element in cast("list[object]", value)]
        case float() if not math.isfinite(value):
            return None
        case None | bool() | int() | float() | str():
            return value
        case _:
            return str(value)


def plain_warned(warning: Warned) -> dict[str, Any]:
    """Return a warning as a dictionary of JSON values."""
    values = {"number": plain_number(warning.number), "usual": plain_number(warning.usual)}
    return {**warning._asdict(), **values}
