"""TensorBoard's messages, which it brings without TensorFlow, or stand-ins for them."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import sys
from typing import Any

from thalweg.v1.summary.stand_ins import EventFileWriter, StandInMessage

PUBLIC = ("Event", "GraphDef", "HistogramProto", "SessionLog", "Summary")  # names of TensorFlow 1
_MESSAGES = {
    "AttrValue": "attr_value_pb2", "Event": "event_pb2", "GraphDef": "graph_pb2",
    "HistogramProto": "summary_pb2", "SessionLog": "event_pb2", "Summary": "summary_pb2",
    "SummaryMetadata": "summary_pb2", "TensorProto": "tensor_pb2",
    "TensorShapeProto": "tensor_shape_pb2",
}  # fmt: skip


def is_installed() -> bool:
    """Return True if TensorBoard is installed."""
    if "tensorboard" in sys.modules:
        return sys.modules["tensorboard"] is not None
    return _can_be_imported()


@functools.cache
def _can_be_imported() -> bool:
    return importlib.util.find_spec("tensorboard") is not None


def message(name: str) -> Any:
    """Return a class of messages, such as `Summary`; without TensorBoard a stand-in."""
    if not is_installed():
        return StandInMessage
    return getattr(importlib.import_module(f"tensorboard.compat.proto.{_MESSAGES[name]}"), name)


def event_file_writer(directory: str, *options: Any) -> Any:
    """Return TensorBoard's writer of events for a folder; without TensorBoard a stand-in.

    Raises:
        OSError: No file can be written in the folder, or no folder made.
    """
    if not is_installed():
        return EventFileWriter(directory)
    module = importlib.import_module("tensorboard.summary.writer.event_file_writer")
    return module.EventFileWriter(directory, *options)
