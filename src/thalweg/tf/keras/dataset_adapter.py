"""Adapter of `tf.data` datasets for Keras on its torch backend."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from thalweg.tf.data import Dataset


class _Elements(torch.utils.data.IterableDataset[Any]):
    def __init__(self, dataset: Dataset) -> None:
        super().__init__()
        self._dataset = dataset

    def __iter__(self) -> Iterator[Any]:
        return iter(self._dataset)


class _Counted(_Elements):
    def __len__(self) -> int:
        return len(self._dataset)


def readable(data: object) -> Any:
    """Return a torch DataLoader for a dataset of batches; return other data unchanged."""
    if not isinstance(data, Dataset):
        return data
    kind = _Elements if data.cardinality() < 0 else _Counted
    # The elements of the dataset are batches already.
    return torch.utils.data.DataLoader(kind(data), batch_size=None)
