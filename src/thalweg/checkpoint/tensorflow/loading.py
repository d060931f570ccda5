"""`load`: reads a checkpoint of TensorFlow or Keras, whichever kind it is."""

from __future__ import annotations

import os
from collections.abc import Callable

from thalweg.checkpoint.tensorflow.contents import TensorFlowCheckpoint
from thalweg.checkpoint.tensorflow.keras_names import sorted_file
from thalweg.checkpoint.tensorflow.objects import sorted_objects
from thalweg.checkpoint.tensorflow.saver_names import sorted_names
from thalweg.errors import MissingFileError, UnsupportedCheckpointError
from thalweg.storage import bundle, container, keras_files

_SUFFIXES = (".index", ".meta")


def load(
    path: str | os.PathLike[str], progress: Callable[[int, int], None] | None = None
) -> TensorFlowCheckpoint:
    """Read a checkpoint that TensorFlow or Keras wrote; neither is needed for it.

    Args:
        path: The prefix of a checkpoint of `tf.train.Saver` or `tf.train.Checkpoint`, such as
            "run7/model.ckpt-5", or its `.index` file; or a `.keras`, `.weights.h5` or `.h5` file.
            What it is is told by its content.
        progress: Called now and then with the bytes that are read and those there are.

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
            found = bundle.read(each, progress=progress)
            if found.graph is not None:
                return sorted_objects(each, found.tensors, found.graph)
            return sorted_names(each, found.tensors)
    if not os.path.exists(given):
        raise MissingFileError(
            f"{given}: there is no checkpoint: neither {prefix}.index nor a file of this name."
        )
    if container.is_container(given):
        raise UnsupportedCheckpointError(
            f"{given} is a checkpoint of thalweg: thalweg.checkpoint.restore reads it."
        )
    if os.path.isdir(given):
        raise MissingFileError(
            f"{given} is a folder: give the checkpoint that thalweg.checkpoint.latest finds there."
        )
    return sorted_file(given, keras_files.read(given))
