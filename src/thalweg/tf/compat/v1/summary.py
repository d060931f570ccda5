"""`tf.summary`: summaries of a graph's tensors in files that TensorBoard shows.

What a run of a summary operation gives are the bytes of a `tf.Summary`, for
`FileWriter.add_summary`. It needs the package tensorboard.
"""

from typing import Any

from thalweg.tf.missing import attribute_of
from thalweg.v1.summary.operations import histogram, image, merge, merge_all, scalar, text
from thalweg.v1.summary.protos import PUBLIC as MESSAGES
from thalweg.v1.summary.protos import message
from thalweg.v1.summary.writer import FileWriter, FileWriterCache

_missing = attribute_of("compat.v1.summary")


def __getattr__(name: str) -> Any:
    return message(name) if name in MESSAGES else _missing(name)
