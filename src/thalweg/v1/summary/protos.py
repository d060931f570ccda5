"""TensorBoard's messages, which it brings without TensorFlow."""

from __future__ import annotations

import importlib
import importlib.util
from types import ModuleType
from typing import Any

PUBLIC = ("Event", "GraphDef", "HistogramProto", "SessionLog", "Summary")  # names of TensorFlow 1
_MESSAGES = {
    "AttrValue": "attr_value_pb2",
    "Event": "event_pb2",
    "GraphDef": "graph_pb2",
    "HistogramProto": "summary_pb2",
    "SessionLog": "event_pb2",
    "Summary": "summary_pb2",
    "SummaryMetadata": "summary_pb2",
    "TensorProto": "tensor_pb2",
}


def is_installed() -> bool:
    """Whether there is TensorBoard."""
    return importlib.util.find_spec("tensorboard") is not None


def tensorboard(path: str) -> ModuleType:
    """A module of TensorBoard.

    Raises:
        ModuleNotFoundError: It is not installed; says how to.
    """
    try:
        return importlib.import_module(f"tensorboard.{path}")
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "Summaries are written with TensorBoard, which is not installed:"
            " pip install tensorboard, or thalweg[summary]."
        ) from error


def message(name: str) -> Any:
    """A class of messages, such as `Summary`."""
    return getattr(tensorboard(f"compat.proto.{_MESSAGES[name]}"), name)
