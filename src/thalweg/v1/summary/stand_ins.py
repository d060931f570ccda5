"""Stand-ins for TensorBoard's messages and writer, where TensorBoard is not installed.

Graphs with summaries are built and run without TensorBoard, and nothing is written.
"""

from __future__ import annotations

import os
import warnings
from typing import Any, ClassVar


class _RepeatedField(list[Any]):
    """A repeated field of a message."""

    def add(self, **fields: object) -> Message:
        """Append a message, and return it."""
        self.append(Message(**fields))
        return self[-1]


class Message:
    """A message of any kind, which takes all fields and serializes to nothing."""

    # Kinds of message, and a constant, that code reads from the classes of messages.
    Value: ClassVar[Any]
    Image: ClassVar[Any]
    Audio: ClassVar[Any]
    START: ClassVar[int] = 1
    STOP: ClassVar[int] = 2

    def __init__(self, **fields: Any) -> None:
        self.wall_time = 0.0
        self.step = 0
        self.value = _RepeatedField()
        self.node = _RepeatedField()
        self.string_val = _RepeatedField()
        for name, field in fields.items():
            setattr(self, name, _RepeatedField(field) if isinstance(field, list) else field)

    def __getattr__(self, name: str) -> Message:
        if name.startswith("_"):
            raise AttributeError(name)
        return vars(self).setdefault(name, Message())

    @classmethod
    def FromString(cls, serialized: bytes) -> Message:
        """Return an empty message."""
        return cls()

    def SerializeToString(self) -> bytes:
        """Return the bytes of an empty message."""
        return b""

    def MergeFromString(self, serialized: bytes) -> None:
        """Ignore the bytes of another message."""

    def CopyFrom(self, other: object) -> None:
        """Ignore another message."""


Message.Value = Message.Image = Message.Audio = Message


class EventFileWriter:
    """A writer of events that drops them, and warns once in a process.

    Args:
        folder: Made if it is not there.

    Raises:
        OSError: The folder cannot be made.
    """

    _has_warned: ClassVar[bool] = False

    def __init__(self, folder: str) -> None:
        os.makedirs(folder, exist_ok=True)

    def add_event(self, event: object) -> None:
        """Drop an event; the first one causes a UserWarning."""
        if not EventFileWriter._has_warned:
            EventFileWriter._has_warned = True
            warnings.warn(
                "Summaries are not written, because TensorBoard is not installed:"
                " pip install tensorboard, or thalweg[summary].",
                stacklevel=4,
            )

    def flush(self) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""
