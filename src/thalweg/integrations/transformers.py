"""Diagnostics of the optimizer in Hugging Face's Trainer, logged by its own `log`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from transformers import TrainerCallback

from thalweg._base.showing import show_value
from thalweg.diagnostics import COLUMNS, NewTables
from thalweg.errors import InvalidTypeError


class LogDiagnostics(TrainerCallback):
    """Logs the diagnostics of a trainer's optimizer wherever that logs.

    `trainer.add_callback(LogDiagnostics(trainer))`; the numbers are `gradient_norm/layer.weight`
    and so on. The optimizer is measured if it was made with `diagnostics=`.

    Args:
        trainer: The trainer.
        columns: Those that are logged.

    Raises:
        InvalidTypeError: The first is no trainer.
        InvalidArgumentError: A column is not known.
    """

    def __init__(self, trainer: Any, columns: Iterable[str] = COLUMNS) -> None:
        if not callable(getattr(trainer, "log", None)):
            raise InvalidTypeError(f"trainer must be a Trainer, not {show_value(trainer)}.")
        self._trainer, self._tables = trainer, NewTables(columns)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Log what is new."""
        optimizer = kwargs.get("optimizer")
        numbers = self._tables.numbers_of(getattr(optimizer, "optimizer", optimizer))
        if numbers:
            self._trainer.log(numbers)
