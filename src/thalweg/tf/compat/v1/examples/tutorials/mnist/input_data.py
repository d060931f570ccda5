"""`tf.examples.tutorials.mnist.input_data`: handwritten digits, read from the files of MNIST."""

from __future__ import annotations

import gzip
import math
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from thalweg.errors import InvalidArgumentError
from thalweg.variable import as_dtype, dtype_name

_FILES = {
    "train": ("train-images-idx3-ubyte", "train-labels-idx1-ubyte"),
    "test": ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"),
}
_CLASSES = 10


class DataSet:
    """Images and their labels, returned in batches.

    Attributes:
        images: (n, 784), or (n, 28, 28, 1); float32 in [0, 1], or uint8.
        labels: uint8 of shape (n,), or float64 of shape (n, 10) with a 1 at each label.
        num_examples: n.
        epochs_completed: Number of finished passes.
    """

    def __init__(self, images: Any, labels: Any, seed: int | None = None) -> None:
        self.images, self.labels = images, labels
        self.num_examples, self.epochs_completed = len(images), 0
        self._random = np.random.default_rng(seed)
        self._order, self._position = np.arange(len(images)), 0

    def next_batch(
        self, batch_size: int, fake_data: bool = False, shuffle: bool = True
    ) -> tuple[Any, Any]:
        """Return (images, labels) of the next examples; a batch may extend into the next epoch.

        Args:
            batch_size: Number of examples, at most `num_examples`.
            fake_data: Not supported; must be False.
            shuffle: True to begin each epoch in a new random order.

        Raises:
            InvalidArgumentError: The batch is larger than an epoch.
        """
        _refuse_fake(fake_data)
        if batch_size > self.num_examples:
            raise InvalidArgumentError(
                f"A batch of {batch_size} is larger than the {self.num_examples} examples."
            )
        if not self._position and not self.epochs_completed:
            self._begin_epoch(shuffle)
        batch_indices = self._order[self._position : self._position + batch_size]
        self._position += batch_size
        if self._position > self.num_examples:
            self.epochs_completed += 1
            self._begin_epoch(shuffle)
            self._position = batch_size - len(batch_indices)
            batch_indices = np.concatenate([batch_indices, self._order[: self._position]])
        return self.images[batch_indices], self.labels[batch_indices]

    def _begin_epoch(self, shuffle: bool) -> None:
        self._order = np.arange(self.num_examples)
        if shuffle:
            self._random.shuffle(self._order)


class Datasets(NamedTuple):
    """The three parts of MNIST."""

    train: DataSet
    validation: DataSet
    test: DataSet


def read_data_sets(
    train_dir: str,
    fake_data: bool = False,
    one_hot: bool = False,
    dtype: object = "float32",
    reshape: bool = True,
    validation_size: int = 5000,
    seed: int | None = None,
    source_url: str | None = None,
) -> Datasets:
    """Return MNIST, read from the files in a folder; nothing is downloaded.

    Args:
        train_dir: Folder of the four files, such as train-images-idx3-ubyte.gz, packed or not.
        fake_data: Not supported; must be False.
        one_hot: True for labels of ten numbers, of which one is 1.
        dtype: float32 for pixels in [0, 1], uint8 for pixels up to 255.
        reshape: True for images of 784 numbers, False for images of shape (28, 28, 1).
        validation_size: Number of the 60,000 training examples that are used for validation.
        seed: Optional. Seed of the order of batches.
        source_url: Ignored.

    Raises:
        FileNotFoundError: A file is missing.
        InvalidArgumentError: A file is not a part of MNIST, or an argument is out of range.
    """
    _refuse_fake(fake_data)
    kind = dtype_name(as_dtype(dtype))
    if kind not in ("float32", "uint8"):
        raise InvalidArgumentError(f"dtype must be float32 or uint8, not {kind}.")
    arrays = {
        name: [_read_idx(Path(train_dir), file) for file in files] for name, files in _FILES.items()
    }
    for images, labels in arrays.values():
        if images.ndim != 3 or len(images) != len(labels):
            raise InvalidArgumentError(f"The files in {train_dir} do not belong together.")
    count = len(arrays["train"][0])
    if not 0 <= validation_size <= count:
        raise InvalidArgumentError(f"validation_size must be in [0, {count}]: {validation_size}.")

    def make_split(split: str, indices: slice) -> DataSet:
        images, labels = (array[indices] for array in arrays[split])
        count, *sizes = images.shape
        images = images.reshape(count, math.prod(sizes)) if reshape else images[..., None]
        images = images if kind == "uint8" else images.astype(np.float32) * np.float32(1 / 255)
        return DataSet(images, np.eye(_CLASSES)[labels] if one_hot else labels, seed)

    validation_slice, training_slice = slice(0, validation_size), slice(validation_size, None)
    return Datasets(
        make_split("train", training_slice),
        make_split("train", validation_slice),
        make_split("test", slice(None)),
    )


def _refuse_fake(fake_data: bool) -> None:
    if fake_data:
        raise InvalidArgumentError("There is no fake data: leave fake_data out.")


def _read_idx(directory: Path, name: str) -> Any:
    """Return the array of bytes in an IDX file, which may be compressed."""
    gzip_path, plain_path = directory / f"{name}.gz", directory / name
    if gzip_path.exists():
        content = gzip.decompress(gzip_path.read_bytes())
    elif plain_path.exists():
        content = plain_path.read_bytes()
    else:
        raise FileNotFoundError(
            f"There is no {name}.gz in '{directory}'. Put the four files of MNIST there: nothing is"
            " downloaded."
        )
    rank = content[3] if content[:3] == b"\0\0\x08" and len(content) > 3 else 0
    sizes = [int.from_bytes(content[4 * k : 4 * k + 4]) for k in range(1, rank + 1)]
    if not rank or len(content) != 4 + 4 * rank + math.prod(sizes):
        raise InvalidArgumentError(f"'{name}' in '{directory}' is no array of bytes in format IDX.")
    return np.frombuffer(content, np.uint8, offset=4 + 4 * rank).reshape(sizes)
