"""Diagnostics of optimizers in Lightning, logged by `log_dict` of the module."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from thalweg.diagnostics import COLUMNS, NewTables
from thalweg.integrations.versions import require_version

require_version("lightning", "2.0")
from lightning.pytorch import Callback  # noqa: E402


class LogDiagnostics(Callback):
    """Callback that logs the diagnostics of all optimizers with the logger of the trainer.

    Entries have names such as `gradient_norm/layer.weight`; names of a second optimizer begin with
    `1/`. Only optimizers made with `diagnostics=` are logged.

    Args:
        columns: The names of the logged columns.

    Raises:
        InvalidArgumentError: A column is unknown.
    """

    def __init__(self, columns: Iterable[str] = COLUMNS) -> None:
        self._tables = NewTables(columns)

    def on_train_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Log the numbers of new tables."""
        for index, optimizer in enumerate(trainer.optimizers):
            scalars = self._tables.numbers_of(optimizer, f"{index}/" if index else "")
            if scalars:
                pl_module.log_dict(scalars, on_step=True, on_epoch=False, batch_size=1)
