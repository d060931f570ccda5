"""Diagnostics of a contestant's steps, for the HTML page of a race."""

from __future__ import annotations

from typing import Any

import numpy as np
from torch import nn

from thalweg._cli.registry.apply_gradients_adapter import ApplyGradientsAdapter
from thalweg._cli.report.history import READ_COLUMNS, History
from thalweg.diagnostics import Diagnostics, Table
from thalweg.diagnostics.jsonl_reader import UNMEASURED, LogHeader, Record


def is_measurable(optimizer: object) -> bool:
    """Return True if an optimizer records diagnostics of its steps, not only losses."""
    return isinstance(optimizer, ApplyGradientsAdapter) and optimizer.is_measurable


class MeasuredSteps:
    """Recorder of one contestant's steps.

    Args:
        optimizer: The contestant's optimizer, before the first step.
        model: The contestant's model.
        interval: Steps per measurement: 10 measures every tenth step.

    Attributes:
        history: The records so far; only losses if the optimizer is not measurable.
    """

    def __init__(self, optimizer: Any, model: nn.Module, interval: int) -> None:
        self.history, self._interval = History(), interval
        self._table: Table | None = None
        if is_measurable(optimizer):
            params_by_name = dict(model.named_parameters())
            # In the order of the model, which may differ from that of the optimizer's groups.
            self.history.names = [*params_by_name]
            optimizer.measure(Diagnostics(interval, [self._keep_table]), params_by_name.items())

    def add_step(self, step: int, loss: float) -> None:
        """Add a step to `history`, with its diagnostics if measured and with `loss`."""
        table, self._table = self._table, None
        header, rows = LogHeader(self._interval, (), (), (), ()), {}
        if table is not None:
            params = table.parameters
            header = header._replace(names=tuple(params.names), sizes=tuple(params.sizes))
            rows = {key: np.where(table.measured[key], table.records[key], UNMEASURED)
                    for key in READ_COLUMNS}  # fmt: skip
        self.history.add(Record(header, step, loss, rows))

    def _keep_table(self, table: Table) -> None:
        self._table = table
