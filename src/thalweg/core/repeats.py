"""When a step that was repeated is planned to be taken in one call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar


class Repeats:
    """The step that may be taken in one call, if there is one.

    Attributes:
        longest_wait: After how many repeated steps one is planned again at most: what changes at
            each step is not planned at each.
        quick: Takes it; has `taken`, how many it has taken.
    """

    longest_wait: ClassVar[int] = 1024

    def __init__(self) -> None:
        self.quick: Any = None
        self._due: Callable[..., Any] | None = None
        self._waits, self._patience = 0, 1

    def forget(self) -> None:
        """Something is not as it was: the next step is looked at carefully."""
        self.quick = self._due = None

    def note(self, make: Callable[..., Any]) -> None:
        """A step was repeated; `make` makes what takes the next one, or None."""
        self.forget()
        self._waits += 1
        if self._waits >= self._patience:
            self._waits, self._patience = 0, min(2 * self._patience, self.longest_wait)
            self._due = make

    def step(self, *given: Any) -> Any:
        """What takes a step like the one before, if there is such a step.

        Args:
            *given: What `make` of `note` is given.
        """
        if self._due is not None:
            due, self._due = self._due, None
            self.quick = due(*given)
        return self.quick
