"""When a step that was repeated is planned to be taken in one call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from thalweg.core.plan_cache import PlanCache

Make = Callable[[Any, PlanCache, Any], Any]


class Due:
    """Plans the step that comes next, and takes it.

    Args:
        make: Makes of an optimizer, of what it keeps and of a step what takes that one again in one
            call; None if nothing can.
    """

    def __init__(self, make: Make) -> None:
        self._make = make

    def take(self, optimizer: Any, kept: PlanCache, given: Any) -> bool:
        """Take the step if it can be planned; whether it was taken."""
        kept.quick = self._make(optimizer, kept, given)
        return kept.quick is not None and kept.quick.take(optimizer, kept, given)


def note_repeated(kept: PlanCache, make: Make) -> None:
    """A step was repeated: the next one may be taken in one call."""
    kept.quick = Due(make) if kept.count_repeated() else None
