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
from thalweg.errors import DataLossError, MissingFileError, UnsupportedCheckpointError
from thalweg.storage import bundle, container, keras_files

_SUFFIXES = (".index", ".meta")


def _reader(path: str) -> str:
    document: Any = container.describe(path).document
    return reader_of(document.get("kind"))


def load(
    path: str | os.PathLike[str],
    progress: Callable[[int, int], None] | None = None,
    *,
    names: Container[str] | None = None,
) -> TensorFlowCheckpoint:
    """Read a checkpoint that TensorFlow or Keras wrote; neither is needed for it.

    Args:
        path: The prefix of a checkpoint of `tf.train.Saver` or `tf.train.Checkpoint`, such as
            "run7/model.ckpt-5", or its `.index` file; or a `.keras`, `.weights.h5` or `.h5` file.
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
    given = os.fspath(path)
    prefix = next((given.removesuffix(end) for end in _SUFFIXES if given.endswith(end)), given)
    for each in dict.fromkeys((given, prefix)):
        if bundle.is_bundle(each):
            found = bundle.read(each, names, progress)
            if found.graph is not None:
                graph = found.graph if names is None else only(found.graph, found.tensors)
                file = sorted_objects(each, found.tensors, graph)
            else:
                file = sorted_names(each, found.tensors)
            return replace(file, texts=tuple(found.strings))
    if not os.path.exists(given):
        raise MissingFileError(
            f"{given}: there is no checkpoint: neither {prefix}.index nor a file of this name."
        )
    if container.is_container(given):
        raise UnsupportedCheckpointError(f"{given} is a checkpoint of thalweg: {_reader(given)}.")
    if os.path.isdir(given):
        raise MissingFileError(
            f"{given} is a folder: give a checkpoint in it, as"
            " thalweg.v1.train.latest_checkpoint finds those of TensorFlow."
        )
    if not keras_files.is_keras_file(given):
        raise DataLossError(
            f"{given} is no checkpoint of TensorFlow and no file of Keras, or its first bytes are"
            " damaged."
        )
    return sorted_file(given, keras_files.read(given))
