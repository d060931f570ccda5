"""Base class of the recorders of optimizers whose steps are measured."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from weakref import ref

from torch import Tensor

from thalweg.diagnostics.config import Diagnostics
from thalweg.diagnostics.step_watch import StepWatch, fetched, table_of
from thalweg.diagnostics.table import Parameters, Table
from thalweg.errors import FailedPreconditionError, NumericsWarning, warn


class TableRecorder(ABC):
    """The last table of an optimizer, and the sinks that get it.

    Args:
        optimizer: The optimizer.
        asked: In which steps, and where to.
    """

    def __init__(self, optimizer: Any, asked: Diagnostics) -> None:
        self.asked = asked
        self._ref: Any = ref(optimizer)
        self._last: Table | None = None
        # What makes the table of a step that a device may still measure, and the loss of that step.
        self._pending: tuple[Callable[[], Table | None], float | None] | None = None
        asked.belong_to(self)

    @property
    def _optimizer(self) -> Any:
        found = self._ref()
        if found is None:
            raise FailedPreconditionError("The optimizer of these diagnostics is gone.")
        return found

    def is_gone(self) -> bool:
        """Return True if the optimizer has been freed."""
        return self._ref() is None

    @abstractmethod
    def next_step(self) -> int:
        """Return the number of the step to come."""

    @abstractmethod
    def known_parameters(self) -> Parameters:
        """Return the parameters of the last table, or of the first one to come."""

    @abstractmethod
    def _rows(self, watch: Any) -> tuple[Parameters, Mapping[int, int]]:
        """What the table of a step is of, and the rows of its parameters by their `id`."""

    def is_due(self) -> bool:
        """Return True if the next step is measured."""
        return self.next_step() % self.asked.every == 0

    def record(self, watch: StepWatch, step: int, taken: Tensor | None) -> None:
        """Record a step that was measured and taken; warns if measuring cannot be finished.

        Args:
            watch: What was measured.
            step: The number of the step.
            taken: Whether it was taken, if a device has decided.
        """
        try:
            # First what other ranks wait for, whatever becomes of the table of the step before.
            make = self._finished(watch, step, taken)
            self.settle()
            self._pending = make, self.asked.take_loss(step)
            if not watch.is_there:
                self.settle()
        except Exception as error:  # such as of memory that runs out
            warn(
                f"Step {step} was taken, and could not be measured to its end:"
                f" {type(error).__name__}: {error}. There is no table of it.",
                NumericsWarning,
            )

    def _finished(self, watch: StepWatch, step: int, taken: Tensor | None) -> Callable[[], Any]:
        """What makes a table of all that is measured, which may be on its way from a device."""
        given, (parameters, rows) = watch.finish(), self._rows(watch)
        decided = None if taken is None else fetched(taken)
        return lambda: table_of(given, rows, parameters, step, decided)

    def settle(self) -> None:
        """Make the table of what was measured, for which a device is waited for, and send it on."""
        if self._pending is not None:
            (make, loss), self._pending = self._pending, None
            table = make()
            if table is not None:
                self._last = table
                self.asked.send(table, loss)

    def table(self) -> Table | None:
        """Return the table of the last measured step; None before the first."""
        self.settle()
        return self._last


def apart(names: Sequence[str]) -> list[str]:
    """Names, each with its index where several parameters have it: two models in one optimizer."""
    counts = Counter(names)
    return [n if counts[n] == 1 else f"{n} (index {k})" for k, n in enumerate(names)]
