"""Measurements per variable of some steps, sinks that receive them, and warnings.

from thalweg import diagnostics, keras
from thalweg.diagnostics import JsonLines

optimizer = keras.optimizers.Adam()
recorder = diagnostics.attach(optimizer, every=10, sinks=[JsonLines("run.jsonl")])
"""

from __future__ import annotations

from thalweg.diagnostics.attach import attach, detach, to
from thalweg.diagnostics.recorder import Diagnostics
from thalweg.diagnostics.sinks import JsonLines, TensorBoard
from thalweg.diagnostics.spikes import SpikeAction, Spikes, Warned
from thalweg.diagnostics.table import COLUMNS, NewTables, ParameterRow, Table

__all__ = [
    "COLUMNS",
    "Diagnostics",
    "JsonLines",
    "NewTables",
    "ParameterRow",
    "SpikeAction",
    "Spikes",
    "Table",
    "TensorBoard",
    "Warned",
    "attach",
    "detach",
    "to",
]
