"""Numbers and warnings as JSON has them."""

from __future__ import annotations

from typing import Any

from thalweg.diagnostics.jsonl_reader import UNMEASURED
from thalweg.diagnostics.sinks import json_number as json_number
from thalweg.diagnostics.spikes import Warned


def plain_number(value: float) -> float | str | None:
    """Return a number of 4 digits; None for what was not measured, and a text for what JSON
    lacks.
    """
    return None if value == UNMEASURED else json_number(value)


def plain_warned(warned: Warned) -> dict[str, Any]:
    """Return a warning by the names of what it has."""
    numbers = {"number": plain_number(warned.number), "usual": plain_number(warned.usual)}
    return {**warned._asdict(), **numbers}
