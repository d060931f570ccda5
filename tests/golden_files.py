"""Recorded cases: what TensorFlow and OpenSeq2Seq were given, and what they made of it."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

FOLDER = Path(__file__).with_name("goldens")
Case = dict[str, Any]


@cache
def cases_of(name: str) -> dict[str, Case]:
    """The cases of a file by id."""
    return {case["id"]: case for case in json.loads((FOLDER / f"{name}.json").read_text())["cases"]}


@cache
def arrays_of(name: str) -> Any:
    """The arrays of a file's cases."""
    return np.load(FOLDER / f"{name}.npz")


def array_of(name: str, case: Case, *names: str) -> np.ndarray[Any, Any]:
    return arrays_of(name)["|".join((case["id"], *names))]


def bound_of(bounds: dict[str, int], case_id: str) -> int | None:
    """How many units in the last place a case may be off; None: not a bit."""
    return next((bound for part, bound in bounds.items() if part in case_id), None)
