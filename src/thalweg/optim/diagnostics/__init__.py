"""Per-parameter numbers of some steps, the sinks that get them, and warnings about unusual values.

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
