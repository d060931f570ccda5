"""Recorded cases: what TensorFlow and OpenSeq2Seq were given, and what they made of it."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

FOLDER = Path(__file__).parents[1] / "goldens"
Case = dict[str, Any]

# Of what is not float32, kernels take the cases of one rule of each kind unless slow tests are run.
KINDS = (
    "/SGD/", "/GradientDescent/", "/Adam/", "/AdagradDA/", "/Ftrl/power/", "/RMSprop/momentum/",
    "/RMSProp/momentum/",
)  # fmt: skip


@cache
def cases_of(name: str) -> dict[str, Case]:
    return {case["id"]: case for case in json.loads((FOLDER / f"{name}.json").read_text())["cases"]}


@cache
def arrays_of(name: str) -> Any:
    return np.load(FOLDER / f"{name}.npz")


@cache
def _read(name: str, key: str) -> np.ndarray[Any, Any]:
    array = arrays_of(name)[key]
    array.flags.writeable = False  # it is every test's
    return array


def array_of(name: str, case: Case, *names: str) -> np.ndarray[Any, Any]:
    return _read(name, "|".join((case["id"], *names)))


def bound_of(bounds: dict[str, int], case_id: str) -> int | None:
    """Return the permitted difference of a case in ulps; None if the bits must be equal."""
    return next((bound for part, bound in bounds.items() if part in case_id), None)


def is_replayed(case_id: str, engine: str) -> bool:
    """Return whether an engine replays a case in a run without slow tests.

    All are by the reference, whose bits the kernels of every rule have (`test_engines.py`).
    """
    return engine == "reference" or any(kind in case_id for kind in KINDS)
