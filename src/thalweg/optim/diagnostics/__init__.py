"""What is told of each parameter in some steps, where it is written, and what of it is not usual.

from thalweg import optim
from thalweg.optim.diagnostics import Diagnostics, JsonLines

told = Diagnostics(every=10, sinks=[JsonLines("run.jsonl")])
optimizer = optim.AdamW(model.named_parameters(), diagnostics=told)
"""

from __future__ import annotations

from thalweg.optim.diagnostics.asked import Diagnostics, to
from thalweg.optim.diagnostics.sinks import JsonLines, TensorBoard
from thalweg.optim.diagnostics.spikes import Spikes, Warned
from thalweg.optim.diagnostics.table import COLUMNS, NewTables, Row, Table

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
