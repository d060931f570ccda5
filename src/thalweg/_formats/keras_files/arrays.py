"""Datasets as Keras means them."""

from __future__ import annotations

from thalweg._formats.hdf5.datasets import ArrayDataset
from thalweg._formats.stored_tensor import StoredTensor

Arrays = dict[str, StoredTensor]


def array_of(dataset: ArrayDataset) -> StoredTensor:
    """Return the array of a dataset. HDF5 had no bfloat16; an attribute says that two bytes are
    one.
    """
    said = dataset.attributes.get("dtype")
    is_short = (
        said is not None and dataset.elements.size == 2 and said.read_texts() == [b"bfloat16"]
    )
    return dataset.read("BF16" if is_short else None)
