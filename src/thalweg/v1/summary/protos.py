"""TensorBoard's protobuf messages, and stand-ins for programs without TensorBoard.

With stand-ins, graphs with summaries run and write nothing.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import os
import sys
import warnings
from typing import Any, ClassVar

# Fields that code reads before it sets them.
_REPEATED_FIELDS = ("value", "node", "string_val", "bucket", "bucket_limit")
_SCALAR_FIELDS: dict[str, Any] = {"wall_time": 0.0, "step": 0, "simple_value": 0.0, "tag": ""}


class _RepeatedField(list[Any]):
    """Stand-in for a repeated field of a message."""

    def add(self, **fields: object) -> StandInMessage:
        """Append a message, and return it."""
        self.append(StandInMessage(**fields))
        return self[-1]


class StandInMessage:
    """Stand-in for a message of any kind: accepts all fields and serializes to nothing."""

    # Kinds of message, and a constant, that code reads from the classes of messages.
    Value: ClassVar[Any]
    Image: ClassVar[Any]
    Audio: ClassVar[Any]
    START: ClassVar[int] = 1
    STOP: ClassVar[int] = 2

    def __init__(self, **fields: Any) -> None:
        vars(self).update({name: _RepeatedField() for name in _REPEATED_FIELDS}, **_SCALAR_FIELDS)
        self._set: dict[str, None] = {}
        for name, field in fields.items():
            setattr(self, name, _RepeatedField(field) if isinstance(field, list) else field)

    def __getattr__(self, name: str) -> StandInMessage:
        # `copy` and `pickle` look for methods such as `__deepcopy__`.
        if name.startswith("_"):
            raise AttributeError(name)
        return vars(self).setdefault(name, StandInMessage())

    def __setattr__(self, name: str, field: object) -> None:
        if not name.startswith("_"):
            self._set[name] = None
        super().__setattr__(name, field)

    def HasField(self, name: str) -> bool:
        """Return True if a field was set."""
        return name in self._set

    def WhichOneof(self, group: str) -> str | None:
        """Return the name of the first field set except "tag" and "metadata", or None."""
        return next((name for name in self._set if name not in ("tag", "metadata")), None)

    @classmethod
    def FromString(cls, serialized: bytes) -> StandInMessage:
        """Return an empty message."""
        return cls()

    def SerializeToString(self) -> bytes:
        """Return the bytes of an empty message."""
        return b""

    def MergeFromString(self, serialized: bytes) -> int:
        """Ignore the bytes of another message, and return their number."""
        return len(serialized)

    def Clear(self) -> None:
        """Reset all fields."""
        vars(self).clear()
        self.__init__()

    def ParseFromString(self, serialized: bytes) -> int:
        """Reset all fields, ignore the bytes, and return their number."""
        self.Clear()
        return len(serialized)

    def CopyFrom(self, other_msg: object) -> None:
        """Ignore another message."""

    MergeFrom = CopyFrom

    def ByteSize(self) -> int:
        """Return the size of an empty message."""
        return 0


StandInMessage.Value = StandInMessage.Image = StandInMessage.Audio = StandInMessage


class EventFileWriter:
    """Stand-in writer that drops events, and warns once per process.

    Args:
        directory: The folder; created if missing.

    Raises:
        OSError: The folder cannot be created.
    """

    _warning_issued: ClassVar[bool] = False

    def __init__(self, directory: str) -> None:
        os.makedirs(directory, exist_ok=True)

    def add_event(self, event: object) -> None:
        """Drop an event; the first one causes a UserWarning."""
        if not EventFileWriter._warning_issued:
            EventFileWriter._warning_issued = True
            warnings.warn(
                "Summaries are not written, because TensorBoard is not installed:"
                " pip install tensorboard, or thalweg[summary].",
                stacklevel=4,
            )

    def flush(self) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""


# Messages that TensorFlow 1 has under public names.
PUBLIC = ("Event", "GraphDef", "HistogramProto", "SessionLog", "Summary")
_MESSAGES = {
    "AttrValue": "attr_value_pb2", "Event": "event_pb2", "GraphDef": "graph_pb2",
    "HistogramProto": "summary_pb2", "SessionLog": "event_pb2", "Summary": "summary_pb2",
    "SummaryMetadata": "summary_pb2", "TensorProto": "tensor_pb2",
    "TensorShapeProto": "tensor_shape_pb2",
}  # fmt: skip


def is_installed() -> bool:
    """Return True if TensorBoard is installed."""
    # A module that is None blocks its import; tests hide TensorBoard in this way.
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
    """Return a new writer of event files: TensorBoard's `EventFileWriter`, or a stand-in.

    `options` are TensorBoard's further arguments; the stand-in ignores them.

    Raises:
        OSError: The folder cannot be created, or a file cannot be written in the folder.
    """
    if not is_installed():
        return EventFileWriter(directory)
    module = importlib.import_module("tensorboard.summary.writer.event_file_writer")
    return module.EventFileWriter(directory, *options)
