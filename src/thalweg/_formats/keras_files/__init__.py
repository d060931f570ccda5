"""Files of Keras: `.keras` and `.weights.h5` of Keras 3, and the earlier `.h5` files.

They are read without Keras, TensorFlow and h5py. Nothing in them is executed or imported: the name
of an optimizer's class is a string here, and its configuration is plain JSON.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from thalweg._formats import atomic_write, format_detection
from thalweg._formats.atomic_write import Path, Progress
from thalweg._formats.hdf5 import file
from thalweg._formats.keras_files import archive, keras3, legacy
from thalweg._formats.keras_files.keras3 import Place
from thalweg._formats.source import open_source
from thalweg._formats.stored_tensor import StoredTensor


@dataclass(frozen=True)
class KerasFile:
    """Contents of a Keras file.

    Attributes:
        kind: "keras", "weights.h5" or "h5".
        class_name: The name of the optimizer's class, "Adam"; "Custom>Adam" if it is registered
            under a package. None if the file does not have it.
        config: The optimizer's configuration; None if the file does not have it.
        optimizer: {name: array} of the optimizer, in its order. Keras 3 numbers the arrays:
            "optimizer/vars/0" is the step count. "optimizer/vars/1" is the learning rate, unless it
            is a schedule, or Keras is older than 3. Then come the slots. A `.h5` file has names
            such as "Adam/dense/kernel/m", since Keras 2.11 "Adam/m/dense/kernel".
        variables: {path, such as "dense/kernel": variable} of the model; in the model's order if
            the file has it (`.keras` and `.h5`), else in alphabetical order.
        places: {variable: (number of its layer or None, its group in the file)}; {} for a `.h5`
            file.
        package: "thalweg" in a sorted file whose optimizer's class is one of
            `thalweg.integrations.keras3`; else "".
    """

    kind: str
    class_name: str | None
    config: dict[str, Any] | None
    optimizer: dict[str, StoredTensor]
    variables: dict[str, StoredTensor]
    places: dict[str, Place] = field(default_factory=dict[str, Place])
    package: str = ""


def read(path: Path, progress: Progress | None = None) -> KerasFile:
    """Read a Keras file.

    Args:
        path: The file. The format is detected by the content.
        progress: `progress(bytes_read, total_bytes)` is called during reading.

    Raises:
        MissingFileError: The file does not exist.
        DataLossError: The file is damaged, or not a file of Keras.
        UnsafeCheckpointError: The file refers to other files, or has unsafe names.
        UnsupportedCheckpointError: The file has unsupported content; the message names it.
        InvalidConfigError: The description of the optimizer is invalid.
    """
    with open_source(path, progress) as source:
        if source.begins_with(archive.MAGIC):
            description, optimizer, variables, places = keras3.read_archive(source)
            return KerasFile("keras", *description, optimizer, variables, places)
        if not source.begins_with(file.MAGIC):
            with atomic_write.open_for_reading(path) as stream:
                raise format_detection.refusal_error(source.title, stream, "file of Keras")
        group = file.root_group(source)
        if legacy.is_legacy(group):
            description, optimizer, variables = legacy.read(source, group)
            return KerasFile("h5", *description, optimizer, variables)
        return KerasFile("weights.h5", None, None, *keras3.read_weights(source, group, {}))


def is_keras_file(path: Path) -> bool:
    """Return True for HDF5 files, and for zip archives with a "config.json"; else False."""
    try:
        with open_source(path) as source:
            if source.begins_with(archive.MAGIC):
                return keras3.CONFIG in archive.list_members(source)
            return source.begins_with(file.MAGIC)
    except (OSError, ValueError, NotImplementedError):
        return False
