"""Callback for Keras 3 that adds diagnostics to the `logs` of other callbacks."""

# Keras has no types.
# pyright: reportUnknownMemberType=false
from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any

from thalweg._base.showing import show_value
from thalweg.diagnostics import COLUMNS, Diagnostics, Table
from thalweg.diagnostics.table import check_columns
from thalweg.errors import InvalidTypeError
from thalweg.integrations.keras3.backend import import_keras

keras: Any = import_keras()


class LogDiagnostics(keras.callbacks.CallbackList):
    """Callback that adds diagnostics to the `logs` of callbacks such as `CSVLogger`.

    If a batch's step was measured, the batch's logs get entries such as `gradient_norm/kernel`. The
    logs of an epoch get the entries of its last measured step. Callbacks outside `callbacks`, such
    as the progress bar, do not see these entries.

    Args:
        recorder: The argument `diagnostics` of the optimizer.
        callbacks: Callbacks whose `logs` get the entries.
        columns: The names of the logged columns.

    Raises:
        InvalidTypeError: `recorder` is not a `Diagnostics`.
        InvalidArgumentError: A column is unknown.
    """

    def __init__(
        self, recorder: Diagnostics, callbacks: Sequence[Any], columns: Iterable[str] = COLUMNS
    ) -> None:
        if not isinstance(recorder, Diagnostics):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InvalidTypeError(f"recorder must be a Diagnostics, not {show_value(recorder)}.")
        self._columns = check_columns(columns)
        self._of_batch: dict[str, float] = {}
        self._of_epoch: dict[str, float] = {}
        super().__init__(list(callbacks))
        self._recorder = recorder

    def _keep_table(self, table: Table) -> None:
        """Store a table until the end of the batch."""
        self._of_batch = self._of_epoch = table.scalars(self._columns)

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Start to receive tables."""
        self._of_batch, self._of_epoch = {}, {}
        # After a training that failed, `on_train_end` was not called.
        if self._keep_table not in self._recorder.sinks:
            self._recorder.add(self._keep_table)
        super().on_train_begin(logs)

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        """Stop to receive tables: a recorder may outlive many trainings."""
        with suppress(ValueError):
            self._recorder.sinks.remove(self._keep_table)
        super().on_train_end(logs)

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Add the numbers of a new table to the logs; call the callbacks."""
        new, self._of_batch = self._of_batch, {}
        super().on_train_batch_end(batch, {**(logs or {}), **new})

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Add the numbers of the last table to the logs; call the callbacks."""
        new, self._of_epoch = self._of_epoch, {}
        super().on_epoch_end(epoch, {**(logs or {}), **new})
