"""Measured steps of an optimizer: their interval, the recorder of tables, and the sinks."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar
from weakref import ref

from torch import Tensor

from thalweg._base.exports import exported_from
from thalweg._base.showing import show_value
from thalweg.diagnostics.sinks import Sink
from thalweg.diagnostics.step_watch import StepWatch, fetched, table_of
from thalweg.diagnostics.table import Parameters, Table
from thalweg.errors import (
    FailedPreconditionError,
    InvalidArgumentError,
    InvalidTypeError,
    NumericsWarning,
    warn,
)

SinkLike = Sink | Callable[[Table], object]


class OptimizerReference:
    """Weak reference to an optimizer.

    Attributes:
        OWNER: The object that holds the reference, for the message.
    """

    OWNER: ClassVar[str]

    def __init__(self, optimizer: Any) -> None:
        self._ref: Any = ref(optimizer)

    @property
    def optimizer(self) -> Any:
        """Optimizer; raises FailedPreconditionError if it has been freed."""
        optimizer = self._ref()
        if optimizer is None:
            raise FailedPreconditionError(f"The optimizer of these {self.OWNER} is gone.")
        return optimizer

    def is_gone(self) -> bool:
        """Return True if the optimizer has been freed."""
        return self._ref() is None


@exported_from("thalweg.diagnostics")
class Diagnostics:
    """Interval of measured steps, and sinks that receive the table of each measured step.

    Args:
        every: The number of steps from one measured step to the next.
        sinks: Each is a `JsonLines`, a `TensorBoard`, or a function that is called with the table.
            A sink that fails causes one warning, and the training continues.

    Raises:
        InvalidTypeError, InvalidArgumentError: `every` is not a positive integer, or a sink is
            invalid.

    Example:
        >>> import torch
        >>> from thalweg import optim
        >>> from thalweg.optim.diagnostics import Diagnostics
        >>> model = torch.nn.Linear(2, 1)
        >>> recorder = Diagnostics(every=1, sinks=[lambda table: print(*table)])
        >>> optimizer = optim.AdamW(model.named_parameters(), diagnostics=recorder)
        >>> model(torch.ones(2)).sum().backward()
        >>> optimizer.step()
        weight bias
        >>> optimizer.diagnostics["weight"].unchanged
        0.0
    """

    def __init__(self, every: int = 1, sinks: Iterable[SinkLike] = ()) -> None:
        interval: Any = every
        if type(interval) is not int:
            raise InvalidTypeError(f"every must be an integer from 1 on, not {show_value(every)}.")
        if every < 1:
            raise InvalidArgumentError(f"every must be 1 or more, not {every}.")
        if isinstance(sinks, str | bytes) or not isinstance(sinks, Iterable):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InvalidTypeError(f"sinks must be a list of sinks, not {show_value(sinks)}.")
        self.every = every
        self.sinks: list[SinkLike] = []
        self._failed: set[int] = set()
        self._source: TableRecorder | None = None
        # Last table of a detached optimizer.
        self._last_table: Table | None = None
        # Step number and loss of the next measured step.
        self._loss: tuple[int, float] | None = None
        for sink in sinks:
            self.add(sink)

    def add(self, sink: SinkLike) -> None:
        """Add a sink.

        Raises:
            InvalidTypeError: `sink` is neither a `Sink` nor a callable.
        """
        if not isinstance(sink, Sink) and not callable(sink):
            raise InvalidTypeError(
                "a sink is a JsonLines, a TensorBoard or a function of the table, not"
                f" {sink!r} of {type(sink).__name__}."
            )
        self.sinks.append(sink)

    @property
    def table(self) -> Table | None:
        """Table of the last measured step; None before the first. Synchronizes with the device."""
        return self._last_table if self._source is None else self._source.table()

    def log_loss(self, loss: Any, after: bool = False) -> None:
        """Send the loss of the next step to the sinks; call this method before `step`.

        If the next step is measured, the loss is sent later with its table, else at once.
        `step(closure)` logs the loss that the closure returns.

        Args:
            loss: A number, or a tensor with one element, which synchronizes with its device.
            after: True if `loss` is the loss of the last step. It is sent at once, without a table.

        Raises:
            FailedPreconditionError: This object does not belong to an optimizer.
            InvalidTypeError: `loss` is not a number.
        """
        if self._source is None:
            raise FailedPreconditionError("These diagnostics are of no optimizer yet: make it.")
        number = as_loss(loss)
        if not self.sinks:
            return
        # Sends the pending table first, so that the lines of a file are sorted by step.
        self._source.settle()
        step = self._source.next_step() - after
        if step % self.every == 0 and not after:
            self._loss = step, number
        else:
            self._send("loss", self._source.known_parameters(), step, number)

    def take_loss(self, step: int) -> float | None:
        """Remove and return the logged loss of a step; None if there is none."""
        logged, self._loss = self._loss, None
        return logged[1] if logged is not None and logged[0] == step else None

    def send(self, table: Table, loss: float | None) -> None:
        """Send a table and the loss of its step to the sinks."""
        self._send("table", table, loss)

    def close(self) -> None:
        """Send the pending table and close all sinks."""
        if self._source is not None:
            self._source.settle()
        self._send("close")

    def attach_to(self, source: TableRecorder) -> None:
        """Connect to the recorder of an optimizer; drop the last table.

        Raises:
            FailedPreconditionError: This object is connected to an optimizer that still exists.
        """
        if self._source is not None:
            if not self._source.is_gone():
                raise FailedPreconditionError(
                    "These diagnostics are another optimizer's: give each optimizer its own."
                )
            self._source.settle()
        self._last_table, self._source = None, source

    def detach(self) -> None:
        """Detach from the optimizer, and keep its last table."""
        self._last_table, self._source = self.table, None

    def _send(self, method: str, *args: Any) -> None:
        """Call the method of each `Sink` with `args`; a sink's first error becomes a warning.

        A sink that is a function is called with the table if `method` is "table", else not at all.
        """
        # Iterates over a copy: a sink may remove itself.
        for sink in tuple(self.sinks):
            try:
                if isinstance(sink, Sink):
                    getattr(sink, method)(*args)
                elif method == "table":
                    sink(args[0])
            except Exception as error:
                self._warn_once(sink, error)

    def _warn_once(self, sink: SinkLike, error: Exception) -> None:
        """Warn of a sink's first error; do nothing for further errors of the sink."""
        if id(sink) in self._failed:
            return
        self._failed.add(id(sink))
        warn(
            f"The diagnostics sink {_format_sink(sink)} failed, which is said once:"
            f" {type(error).__name__}: {error}. The training goes on.",
            NumericsWarning,
        )

    def __reduce__(self) -> Any:
        # A copy must not write to files of the original.
        return Diagnostics, (self.every,)

    def __repr__(self) -> str:
        sinks = f", sinks=[{', '.join(map(_format_sink, self.sinks))}]" if self.sinks else ""
        return f"Diagnostics(every={self.every}{sinks})"


class TableRecorder(OptimizerReference, ABC):
    """Recorder that makes the tables of one optimizer, and sends the tables to sinks.

    Args:
        optimizer: The optimizer, held by a weak reference.
        config: The interval and the sinks.
    """

    OWNER = "diagnostics"

    def __init__(self, optimizer: Any, config: Diagnostics) -> None:
        super().__init__(optimizer)
        self.config = config
        self._last_table: Table | None = None
        # Constructor of the table of a step that a device may still measure, and the step's loss.
        self._pending: tuple[Callable[[], Table | None], float | None] | None = None
        config.attach_to(self)

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

        If a parameter is not on the CPU, the next call of `settle` makes and sends the table.
        `device_flag`, a bool tensor, is False if the device has skipped the step, which then has no
        table; None for a step that was taken.
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


def as_loss(loss: Any) -> float:
    """Return a loss as a number; raise InvalidTypeError if it is not a number."""
    try:
        return float(loss.detach() if isinstance(loss, Tensor) else loss)
    except (TypeError, ValueError, OverflowError, RuntimeError) as error:
        raise InvalidTypeError(f"loss must be a number, not {show_value(loss)}.") from error


def _format_sink(sink: SinkLike) -> str:
    """Return the name of a sink for messages."""
    try:
        return getattr(sink, "__qualname__", None) or repr(sink)
    # A user's `__repr__` may raise any exception.
    except Exception:
        return f"of {type(sink).__name__}"
