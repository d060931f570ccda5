"""What is told of each parameter in some steps, where it is written, and what of it is not usual.

from thalweg import optim
from thalweg.optim.diagnostics import Diagnostics, JsonLines

told = Diagnostics(every=10, sinks=[JsonLines("run.jsonl")])
optimizer = optim.AdamW(model.named_parameters(), diagnostics=told)
"""

from __future__ import annotations

from thalweg.diagnostics import (
    COLUMNS,
    Diagnostics,
    JsonLines,
    NewTables,
    Row,
    Spikes,
    Table,
    TensorBoard,
    Warned,
    to,
)

__all__ = [
    "COLUMNS",
    "Diagnostics",
    "JsonLines",
    "NewTables",
    "Row",
    "Spikes",
    "Table",
    "TensorBoard",
    "Warned",
    "to",
]
