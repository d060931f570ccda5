"""`Diagnostics`: which steps are measured, and which sinks get the tables."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Protocol

from torch import Tensor

from thalweg._base.showing import show_value
from thalweg.diagnostics.sinks import Sink
from thalweg.diagnostics.table import Parameters, Table
from thalweg.errors import (
    FailedPreconditionError,
    InvalidArgumentError,
    InvalidTypeError,
    NumericsWarning,
    warn,
)

SinkLike = Sink | Callable[[Table], object]


class StepSource(Protocol):
    """Interface of the recorder of an optimizer's steps."""

    def next_step(self) -> int:
        """Return the number of the step to come."""
        ...

    def known_parameters(self) -> Parameters:
        """Return the parameters of the last table, or of the first one to come."""
        ...

    def settle(self) -> None:
        """Send on what was measured."""
        ...

    def table(self) -> Table | None:
        """Return the table of the last measured step; None before the first."""
        ...

    def is_gone(self) -> bool:
        """Return True if the optimizer has been freed."""
        ...


class Diagnostics:
    """Interval at which `optimizer.diagnostics` is measured again, and receivers of its tables.

    Args:
        every: The number of steps between two measured ones: 10 for every tenth.
        sinks: Each is a `JsonLines`, a `TensorBoard`, or a function that is called with the table.
            One that fails is named in a warning, once, and the training goes on.

    Raises:
        InvalidTypeError, InvalidArgumentError: `every` is not an integer from 1 on, or a sink is
        not one.

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
        given: Any = every
        if type(given) is not int:
            raise InvalidTypeError(f"every must be an integer from 1 on, not {show_value(every)}.")
        if every < 1:
            raise InvalidArgumentError(f"every must be 1 or more, not {every}.")
        if isinstance(sinks, str | bytes) or not isinstance(sinks, Iterable):
            raise InvalidTypeError(f"sinks must be a list of sinks, not {show_value(sinks)}.")
        self.every = every
        self.sinks: list[SinkLike] = []
        self._failed: set[int] = set()
        self._source: StepSource | None = None
        self._kept: Table | None = None  # the last, of an optimizer that was left
        self._loss: tuple[int, float] | None = None  # of a step that is to be measured, its number
        for each in sinks:
            self.add(each)

    def add(self, sink: SinkLike) -> None:
        """Add a sink.

        Raises:
            InvalidTypeError: It is none.
        """
        if not isinstance(sink, Sink) and not callable(sink):
            raise InvalidTypeError(
                "a sink is a JsonLines, a TensorBoard or a function of the table, not"
                f" {sink!r} of {type(sink).__name__}."
            )
        self.sinks.append(sink)

    @property
    def table(self) -> Table | None:
        """The table of the last measured step; None before the first.

        A device that has measured it is waited for here.
        """
        return self._kept if self._source is None else self._source.table()

    def log_loss(self, loss: Any, after: bool = False) -> None:
        """Send the sinks the loss of the step to come: call it before `step`.

        In a measured step it is a part of the record, else it stands alone. `step(closure)`
        does so with the loss that the closure returns.

        Args:
            loss: A number, or a tensor of one, for which a device is waited for.
            after: Whether it is the loss of the step that was just taken, as `minimize` and
                sessions give it; it stands alone.

        Raises:
            FailedPreconditionError: No optimizer was made with this object.
            InvalidTypeError: It is no number.
        """
        if self._source is None:
            raise FailedPreconditionError("These diagnostics are of no optimizer yet: make it.")
        try:
            number = float(loss.detach() if isinstance(loss, Tensor) else loss)
        except (TypeError, ValueError, OverflowError, RuntimeError) as error:
            raise InvalidTypeError(f"loss must be a number, not {show_value(loss)}.") from error
        if not self.sinks:
            return
        # A table that a device has comes before: lines of a file go up by their steps.
        self._source.settle()
        step = self._source.next_step() - after
        if step % self.every == 0 and not after:
            self._loss = step, number
        else:
            self._send("loss", self._source.known_parameters(), step, number)

    def take_loss(self, step: int) -> float | None:
        """Return the loss of a step, if that was logged; once."""
        logged, self._loss = self._loss, None
        return logged[1] if logged is not None and logged[0] == step else None

    def send(self, table: Table, loss: float | None) -> None:
        """Give the sinks a table, with the loss of its step if there was one."""
        self._send("table", table, loss)

    def close(self) -> None:
        """Write out what waits, such as a table that a device has, and close files of events."""
        if self._source is not None:
            self._source.settle()
        self._send("close")

    def belong_to(self, source: StepSource) -> None:
        """Be those of an optimizer from now on.

        Raises:
            FailedPreconditionError: They are another one's, which is there still.
        """
        if self._source is not None:
            if not self._source.is_gone():
                raise FailedPreconditionError(
                    "These diagnostics are another optimizer's: give each optimizer its own."
                )
            self._source.settle()
        self._kept, self._source = None, source

    def leave(self) -> None:
        """Be those of no optimizer; the last table stays."""
        self._kept, self._source = self.table, None

    def _send(self, what: str, *given: Any) -> None:
        for sink in tuple(self.sinks):  # one may take itself out
            try:
                if isinstance(sink, Sink):
                    getattr(sink, what)(*given)
                elif what == "table":
                    sink(given[0])
            except Exception as error:
                self._say(sink, error)

    def _say(self, sink: SinkLike, error: Exception) -> None:
        if id(sink) in self._failed:
            return
        self._failed.add(id(sink))
        warn(
            f"The diagnostics sink {_title(sink)} failed, which is said once:"
            f" {type(error).__name__}: {error}. The training goes on.",
            NumericsWarning,
        )

    def __reduce__(self) -> Any:
        return Diagnostics, (self.every,)  # a copy writes to no file of the original

    def __repr__(self) -> str:
        sinks = f", sinks=[{', '.join(map(_title, self.sinks))}]" if self.sinks else ""
        return f"Diagnostics(every={self.every}{sinks})"


def _title(sink: SinkLike) -> str:
    try:
        return getattr(sink, "__qualname__", None) or repr(sink)
    except Exception:  # of the user's own
        return f"of {type(sink).__name__}"
