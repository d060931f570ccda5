"""Datasets as Keras means them."""

from __future__ import annotations

from thalweg.storage.hdf5.datasets import Dataset
from thalweg.storage.stored import Stored

Arrays = dict[str, Stored]


def array_of(dataset: Dataset) -> Stored:
    """Return the array of a dataset. HDF5 had no bfloat16; an attribute says that two bytes are
    one.
    """
    said = dataset.attributes.get("dtype")
    is_short = (
        said is not None and dataset.elements.size == 2 and said.read_texts() == [b"bfloat16"]
    )
    return dataset.read("BF16" if is_short else None)
