"""Statistics of parameters in some steps, sinks that record them, and warnings of outliers.

from thalweg import optim
from thalweg.optim.diagnostics import Diagnostics, JsonLines

recorder = Diagnostics(every=10, sinks=[JsonLines("run.jsonl")])
optimizer = optim.AdamW(model.named_parameters(), diagnostics=recorder)
"""

from __future__ import annotations

from thalweg.diagnostics import (
    COLUMNS,
    Diagnostics,
    JsonLines,
    NewTables,
    ParameterRow,
    SpikeAction,
    Spikes,
    Table,
    TensorBoard,
    Warned,
    to,
)

__all__ = [
    "COLUMNS", "Diagnostics", "JsonLines", "NewTables", "ParameterRow", "SpikeAction", "Spikes",
    "Table", "TensorBoard", "Warned", "to",
]  # fmt: skip
