"""Conversion of numbers and warnings to JSON values."""

from __future__ import annotations

from typing import Any

from thalweg.diagnostics.jsonl_reader import UNMEASURED
from thalweg.diagnostics.sinks import json_number as json_number
from thalweg.diagnostics.spikes import Warned


def plain_number(value: float) -> float | str | None:
    """Return a number with 4 digits, None if not measured, or text for NaN and infinity."""
    return None if value == UNMEASURED else json_number(value)


def plain_warned(warning: Warned) -> dict[str, Any]:
    """Return a warning as a dictionary of JSON values."""
    values = {"number": plain_number(warning.number), "usual": plain_number(warning.usual)}
    return {**warning._asdict(), **values}
