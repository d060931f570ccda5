"""TensorBoard's files: `FileWriter`, and graph operations that compute summaries."""

from thalweg.v1.summary.operations import histogram, image, merge, merge_all, scalar, text
from thalweg.v1.summary.protos import message
from thalweg.v1.summary.writer import FileWriter, FileWriterCache

__all__ = [
    "FileWriter", "FileWriterCache", "histogram", "image", "merge", "merge_all", "message",
    "scalar", "text",
]  # fmt: skip

__dir__ = __all__.copy
