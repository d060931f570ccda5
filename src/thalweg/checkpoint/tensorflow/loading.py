"""`load`: reads a checkpoint of TensorFlow or Keras, whichever kind it is."""

from __future__ import annotations

import os
from collections.abc import Callable, Container
from dataclasses import replace
from typing import Any

from thalweg.checkpoint.saving import reader_of
from thalweg.checkpoint.tensorflow.sorting.contents import TensorFlowCheckpoint
from thalweg.checkpoint.tensorflow.sorting.keras_names import sorted_file
from thalweg.checkpoint.tensorflow.sorting.objects import only, sorted_objects
from thalweg.checkpoint.tensorflow.sorting.saver_names import sorted_names
from thalweg.errors import UnsupportedCheckpointError
from thalweg.storage import bundle, container, keras_files
from thalweg.storage.located import located


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
    place = located(path).checked()
    if place.writer == "keras":
        return sorted_file(place.path, keras_files.read(place.path))
    if place.writer == "thalweg":
        kind: Any = container.describe(place.path).document.get("kind")
        raise UnsupportedCheckpointError(
            f"{place.path} is a checkpoint of thalweg: {reader_of(kind)}."
        )
    found = bundle.read(place.path, names, progress)
    if found.graph is None:
        file = sorted_names(place.path, found.tensors)
    else:
        graph = found.graph if names is None else only(found.graph, found.tensors)
        file = sorted_objects(place.path, found.tensors, graph)
    return replace(file, texts=tuple(found.strings))
