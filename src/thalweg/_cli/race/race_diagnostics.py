"""Diagnostics of the steps of a contestant, where a page of the race is asked for."""

from __future__ import annotations

from typing import Any

import numpy as np
from torch import nn

from thalweg._cli.registry.apply_gradients_adapter import ApplyGradientsAdapter
from thalweg._cli.report.history import WANTED, History
from thalweg.diagnostics import Diagnostics, Table
from thalweg.diagnostics.jsonl_reader import UNMEASURED, LogHeader, Record


def is_measurable(optimizer: object) -> bool:
    """Return True if an optimizer measures its steps; of others only losses are recorded."""
    return isinstance(optimizer, ApplyGradientsAdapter) and optimizer.is_measurable


class MeasuredSteps:
    """The steps of one contestant.

    Args:
        optimizer: Its optimizer, before the first step.
        model: Its model.
        every: Which steps are measured: 10 for every tenth.

    Attributes:
        history: What was measured so far; of an optimizer that measures nothing the losses alone.
    """

    def __init__(self, optimizer: Any, model: nn.Module, every: int) -> None:
        self.history, self._every = History(), every
        self._table: Table | None = None
        if is_measurable(optimizer):
            named = dict(model.named_parameters())
            # In the order of the model, whatever groups the optimizer has.
            self.history.names = [*named]
            optimizer.measure(Diagnostics(every, [self._keep_table]), named.items())

    def add_step(self, step: int, loss: float) -> None:
        """Add a step that was taken, with the loss before it."""
        table, self._table = self._table, None
        header, rows = LogHeader(self._every, (), (), (), ()), {}
        if table is not None:
            own = table.parameters
            header = header._replace(names=tuple(own.names), sizes=tuple(own.sizes))
            rows = {key: np.where(table.measured[key], table.records[key], UNMEASURED)
                    for key in WANTED}  # fmt: skip
        self.history.add(Record(header, step, loss, rows))

    def _keep_table(self, table: Table) -> None:
        self._table = table
