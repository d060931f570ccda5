"""Base class of recorders of measured steps."""

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
    """Recorder that makes the tables of one optimizer, and sends the tables to sinks.

    Args:
        optimizer: The optimizer, held by a weak reference.
        config: The interval and the sinks.
    """

    def __init__(self, optimizer: Any, config: Diagnostics) -> None:
        self.config = config
        self._ref: Any = ref(optimizer)
        self._last_table: Table | None = None
        # Constructor of the table of a step that a device may still measure, and the step's loss.
        self._pending: tuple[Callable[[], Table | None], float | None] | None = None
        config.attach_to(self)

    @property
    def _optimizer(self) -> Any:
        optimizer = self._ref()
        if optimizer is None:
            raise FailedPreconditionError("The optimizer of these diagnostics is gone.")
        return optimizer

    def is_gone(self) -> bool:
        """Return True if the optimizer has been freed."""
        return self._ref() is None

    @abstractmethod
    def next_step(self) -> int:
        """Return the number of the step to come."""

    @abstractmethod
    def known_parameters(self) -> Parameters:
        """Return the parameters of the last table, or of the first table."""

    @abstractmethod
    def _rows(self, watch: Any) -> tuple[Parameters, Mapping[int, int]]:
        """Return the parameters of the table, and {id(parameter): row}."""

    def is_due(self) -> bool:
        """Return True if the next step is measured."""
        return self.next_step() % self.config.every == 0

    def record(self, watch: StepWatch, step: int, device_flag: Tensor | None) -> None:
        """Make the table of a committed step and send it to the sinks. An error causes a warning.

        On a GPU, `settle` later makes and sends the table.

        Args:
            watch: The measurements.
            step: The number of the step.
            device_flag: Optional. A bool tensor; False if the device has skipped the step.
        """
        try:
            # Finishes first, since other ranks wait for it even if the previous table fails.
            make = self._finish(watch, step, device_flag)
            self.settle()
            self._pending = make, self.config.take_loss(step)
            if not watch.is_there:
                self.settle()
        except Exception as error:
            # The parameters are written: an error here, such as of memory, must not stop training.
            warn(
                f"Step {step} was taken, and could not be measured to its end:"
                f" {type(error).__name__}: {error}. There is no table of it.",
                NumericsWarning,
            )

    def _finish(self, watch: StepWatch, step: int, device_flag: Tensor | None) -> Callable[[], Any]:
        """Return a function that waits for device transfers and returns the table."""
        measurements, (parameters, rows) = watch.finish(), self._rows(watch)
        fetch_flag = None if device_flag is None else fetched(device_flag)
        return lambda: table_of(measurements, rows, parameters, step, fetch_flag)

    def settle(self) -> None:
        """Make the table of a recorded step if it is not made yet; send the table to the sinks."""
        if self._pending is not None:
            (make, loss), self._pending = self._pending, None
            table = make()
            if table is not None:
                self._last_table = table
                self.config.send(table, loss)

    def table(self) -> Table | None:
        """Return the table of the last measured step; None before the first."""
        self.settle()
        return self._last_table


def make_distinct(names: Sequence[str]) -> list[str]:
    """Return the names in order; append the index to each name that occurs several times."""
    counts = Counter(names)
    return [
        name if counts[name] == 1 else f"{name} (index {index})" for index, name in enumerate(names)
    ]
