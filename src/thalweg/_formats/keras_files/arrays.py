"""Arrays of datasets with the dtypes of Keras."""

from __future__ import annotations

from thalweg._formats.hdf5.datasets import ArrayDataset
from thalweg._formats.stored_tensor import StoredTensor

Arrays = dict[str, StoredTensor]


def array_of(dataset: ArrayDataset) -> StoredTensor:
    """Return the array of a dataset; two-byte elements with an attribute "dtype" may be
    bfloat16.
    """
    attribute = dataset.attributes.get("dtype")
    is_bfloat16 = (
        attribute is not None and dataset.elements.size == 2 and attribute.texts == [b"bfloat16"]
    )
    return dataset.read("BF16" if is_bfloat16 else None)
