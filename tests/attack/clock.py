"""The time that an attack may take: cases that come after it are not tried."""

from __future__ import annotations

import math
import time

_end = math.inf


def allow(minutes: float) -> None:
    global _end
    _end = time.monotonic() + 60 * minutes


def is_over() -> bool:
    return time.monotonic() > _end
