"""HDF5 files made by h5py, and read by the library's own reader."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py

from thalweg._formats.hdf5 import file
from thalweg._formats.hdf5.file import Group
from thalweg._formats.keras_files.file_source import open_source
from thalweg._formats.stored_tensor import StoredTensor


def made(path: Path, fill: Callable[[h5py.File], Any], **given: Any) -> Path:
    """A file that a function has filled."""
    with h5py.File(path, "w", **given) as hdf5:
        fill(hdf5)
    return path


def arrays(path: Path) -> dict[str, StoredTensor]:
    """All arrays of a file by path."""
    with open_source(path) as source:
        return {each.name: each.read() for each in file.root_group(source).iterate_datasets()}


def texts(path: Path, at: str = "") -> dict[str, list[bytes]]:
    """The attributes of a group."""
    with open_source(path) as source:
        group: Any = file.root_group(source)
        for name in at.split("/") if at else []:
            group = group.members[name]
        assert isinstance(group, Group)
        return {name: each.read_texts() for name, each in group.attributes.items()}
