"""Numbers that may harm no other element than their own, and places for them in 67 elements."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

LONG = 67  # whole vectors and a tail for every vector width
PLACES = {"first": 0, "middle": 30, "tail": 64, "last": 66}

# Of a torch.finfo.
BAD: dict[str, Callable[[Any], float]] = {
    "nan": lambda info: math.nan,
    "inf": lambda info: math.inf,
    "-inf": lambda info: -math.inf,
    "max": lambda info: info.max,
    "-max": lambda info: info.min,
    "denormal": lambda info: info.smallest_normal / 4,
}
