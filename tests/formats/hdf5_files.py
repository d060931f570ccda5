"""HDF5 files made by h5py, and read by the library's own reader."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py

from thalweg._formats.hdf5 import file
from thalweg._formats.hdf5.file import Group
from thalweg._formats.source import open_source
from thalweg._formats.stored_tensor import StoredTensor


def made(path: Path, fill: Callable[[h5py.File], Any], **kwargs: Any) -> Path:
    """Write a file with h5py, filled by a function; return its path."""
    with h5py.File(path, "w", **kwargs) as hdf5:
        fill(hdf5)
    return path


def arrays(path: Path) -> dict[str, StoredTensor]:
    """Return all arrays of a file by path."""
    with open_source(path) as source:
        return {array.name: array.read() for array in file.root_group(source).iterate_datasets()}


def texts(path: Path, group_path: str = "") -> dict[str, list[bytes]]:
    """Return the attributes of a group."""
    with open_source(path) as source:
        group: Any = file.root_group(source)
        for name in group_path.split("/") if group_path else []:
            group = group.members[name]
        assert isinstance(group, Group)
        return {name: attribute.texts for name, attribute in group.attributes.items()}
