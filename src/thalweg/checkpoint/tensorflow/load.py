"""`load`: reads a checkpoint of TensorFlow or Keras, whichever kind it is."""

from __future__ import annotations

import os
from collections.abc import Callable, Container, Mapping
from dataclasses import replace
from typing import Any

from thalweg._formats import bundle, container, keras_files
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
    path: str | os.PathLike[str],
    progress: Callable[[int, int], None] | None = None,
    *,
    names: Container[str] | None = None,
) -> TensorFlowCheckpoint:
    """Read a checkpoint that TensorFlow or Keras wrote; neither is needed for it.

    Args:
        path: The prefix of a checkpoint of `tf.train.Saver` or `tf.train.Checkpoint`, such as
            "run7/model.ckpt-5", or one of its files; or a `.keras`, `.weights.h5` or `.h5` file.
            What it is is told by its content.
        progress: Called now and then with the bytes that are read and those there are.
        names: Optional. The tensors to read, of a checkpoint with tensors that cannot be read.

    Returns:
        Its variables, and the optimizers beside them.

    Raises:
        MissingFileError: There is none.
        DataLossError: It is damaged.
        UnsafeCheckpointError: It leads to other files.
        UnsupportedCheckpointError: It holds what is not read; the error names it.
    """
    place = locate_checkpoint(path).check_readable()
    if place.writer == "keras":
        return sorted_file(place.path, keras_files.read(place.path, progress))
    if place.writer == "thalweg":
        kind: Any = container.describe(place.path).document.get("kind")
        index = f"{os.fsdecode(path)}.index"
        beside = f" TensorFlow's beside it is {index}." if os.path.isfile(index) else ""
        raise UnsupportedCheckpointError(
            f"{place.path} is a checkpoint of thalweg: {reader_of(kind)}.{beside}"
        )
    found = bundle.read(place.path, names, progress)
    graph = found.graph
    if graph is not None and names is not None:
        graph = bundle.select_values(graph, found.tensors.__contains__)
    file = _sort_tensors(place.path, found.tensors, graph)
    return replace(file, texts=(*found.strings, *found.variants))


def load_outline(path: str | os.PathLike[str]) -> TensorFlowCheckpoint:
    """Read a checkpoint as `load` does, but of one of TensorFlow only the values of scalars.

    Tensors whose dtype is not read, such as strings, are left out.
    """
    place = locate_checkpoint(path).check_readable()
    if place.writer != "tensorflow":
        return load(path)
    described = bundle.describe(place.path)
    entries = [each for each in described if each.dtype in ITEM_BYTES]
    skipped = {each.name for each in described if each.dtype not in ITEM_BYTES}
    found = bundle.read(place.path, {each.name for each in entries if not each.shape})
    empty = {
        each.name: StoredTensor(each.dtype, each.shape, memoryview(b""))
        for each in entries
        if each.shape
    }
    graph = found.graph
    if graph is not None:
        graph = bundle.select_values(graph, lambda key: key not in skipped)
    return _sort_tensors(place.path, {**empty, **found.tensors}, graph)


def _sort_tensors(
    path: str, tensors: Mapping[str, StoredTensor], graph: ObjectGraph | None
) -> TensorFlowCheckpoint:
    return sorted_names(path, tensors) if graph is None else sorted_objects(path, tensors, graph)
