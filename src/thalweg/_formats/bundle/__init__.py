"""TensorFlow's checkpoint bundles, which `tf.train.Saver` and `Checkpoint` write.

A bundle is an index, which is a sorted table, and data files. Nothing in them is trusted: sizes are
compared with the file sizes before memory is allocated, all that is read is compared with its
checksum, and names are only used as dictionary keys.
"""

from thalweg._formats.bundle.contents import Bundle
from thalweg._formats.bundle.object_graph import (
    Node,
    ObjectGraph,
    SavedAttribute,
    SlotVariable,
    select_values,
)
from thalweg._formats.bundle.reading import describe, is_bundle, read
from thalweg._formats.bundle.state_file import NAME as STATE
from thalweg._formats.bundle.state_file import CheckpointState, read_state, write_state
from thalweg._formats.bundle.writing import write

__all__ = [
    "STATE",
    "Bundle",
    "CheckpointState",
    "Node",
    "ObjectGraph",
    "SavedAttribute",
    "SlotVariable",
    "describe",
    "is_bundle",
    "read",
    "read_state",
    "select_values",
    "write",
    "write_state",
]
