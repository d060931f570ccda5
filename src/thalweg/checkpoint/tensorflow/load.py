"""`load`: read a checkpoint of TensorFlow or Keras in any format."""

from __future__ import annotations

import os
from collections.abc import Container, Mapping
from dataclasses import replace
from typing import Any

from thalweg._formats import bundle, container, keras_files
from thalweg._formats.atomic_write import Path, Progress
from thalweg._formats.bundle import ObjectGraph
from thalweg._formats.format_detection import reader_of
from thalweg._formats.path_resolution import locate_checkpoint
from thalweg._formats.stored_tensor import ITEM_BYTES, StoredTensor
from thalweg.checkpoint.tensorflow.detection.checkpoint_contents import TensorFlowCheckpoint
from thalweg.checkpoint.tensorflow.detection.keras_file import sorted_file
from thalweg.checkpoint.tensorflow.detection.object_checkpoint import sorted_objects
from thalweg.checkpoint.tensorflow.detection.saver_names import sorted_names
from thalweg.errors import UnsupportedCheckpointError


def load(
    path: Path,
    progress: Progress | None = None,
    *,
    names: Container[str] | None = None,
) -> TensorFlowCheckpoint:
    """Read a checkpoint that TensorFlow or Keras wrote; neither needs to be installed.

    Args:
        path: A `.keras`, `.weights.h5` or `.h5` file; or the prefix of a checkpoint of
            `tf.train.Saver` or `tf.train.Checkpoint`, such as "run7/model.ckpt-5", or a file of
            this checkpoint. The format is detected by the content.
        progress: `progress(bytes_read, total_bytes)` is called during reading.
        names: Optional. The tensors to read, if a checkpoint has tensors that cannot be read.
            Ignored for Keras.

    Returns:
        The checkpoint, sorted into variables and optimizers.

    Raises:
        MissingFileError: The file does not exist.
        DataLossError: The file is damaged.
        UnsafeCheckpointError: The file refers to other files.
        UnsupportedCheckpointError: The file has unsupported content; the message names it.
    """
    location = locate_checkpoint(path).check_readable()
    if location.writer == "keras":
        return sorted_file(location.path, keras_files.read(location.path, progress))
    if location.writer == "thalweg":
        kind: Any = container.describe(location.path).document.get("kind")
        index = f"{os.fsdecode(path)}.index"
        advice = f" TensorFlow's beside it is {index}." if os.path.isfile(index) else ""
        raise UnsupportedCheckpointError(
            f"{location.path} is a checkpoint of thalweg: {reader_of(kind)}.{advice}"
        )
    contents = bundle.read(location.path, names, progress)
    graph = contents.graph
    if graph is not None and names is not None:
        graph = bundle.select_values(graph, contents.tensors.__contains__)
    checkpoint = _sort_tensors(location.path, contents.tensors, graph)
    return replace(checkpoint, texts=(*contents.strings, *contents.variants))


def load_outline(path: Path) -> TensorFlowCheckpoint:
    """Read a Keras file as `load` does; of a TensorFlow file, read only the values of scalars.

    Other tensors of a TensorFlow file have a dtype and a shape, but no bytes. Tensors of
    unsupported dtypes are omitted.
    """
    location = locate_checkpoint(path).check_readable()
    if location.writer != "tensorflow":
        return load(path)
    headers = bundle.describe(location.path)
    entries = [header for header in headers if header.dtype in ITEM_BYTES]
    skipped = {header.name for header in headers if header.dtype not in ITEM_BYTES}
    contents = bundle.read(location.path, {header.name for header in entries if not header.shape})
    empty = {
        header.name: StoredTensor(header.dtype, header.shape, memoryview(b""))
        for header in entries
        if header.shape
    }
    graph = contents.graph
    if graph is not None:
        graph = bundle.select_values(graph, lambda key: key not in skipped)
    return _sort_tensors(location.path, {**empty, **contents.tensors}, graph)


def _sort_tensors(
    path: str, stored_tensors: Mapping[str, StoredTensor], graph: ObjectGraph | None
) -> TensorFlowCheckpoint:
    """Return the checkpoint, sorted by the object graph if there is one, else by names."""
    if graph is None:
        return sorted_names(path, stored_tensors)
    return sorted_objects(path, stored_tensors, graph)
