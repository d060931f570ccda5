"""`tf.examples.tutorials.mnist.input_data`, on files that the tests write."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from thalweg.errors import InvalidArgumentError
from thalweg.tf.compat.v1.examples.tutorials.mnist import input_data

PIXELS = np.arange(9 * 784, dtype=np.uint8).reshape(9, 28, 28)
LABELS = np.array([3, 0, 9, 1, 1, 2, 7, 8, 4], np.uint8)


def idx(array: np.ndarray) -> bytes:
    sizes = np.array(array.shape, ">u4").tobytes()
    return bytes([0, 0, 8, array.ndim]) + sizes + array.tobytes()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for part, count in (("train", 9), ("t10k", 4)):
        (tmp_path / f"{part}-images-idx3-ubyte.gz").write_bytes(gzip.compress(idx(PIXELS[:count])))
        (tmp_path / f"{part}-labels-idx1-ubyte").write_bytes(idx(LABELS[:count]))
    return tmp_path


def test_mnist_splits_have_documented_shapes(folder: Path) -> None:
    data_sets = input_data.read_data_sets(str(folder), one_hot=True, validation_size=2)
    assert [data_set.num_examples for data_set in data_sets] == [7, 2, 4]
    assert data_sets.train.images.shape == (7, 784)
    assert data_sets.train.images.dtype == np.float32
    np.testing.assert_array_equal(
        data_sets.train.images[0], PIXELS[2].reshape(-1) * np.float32(1 / 255)
    )
    np.testing.assert_array_equal(data_sets.validation.labels.argmax(1), LABELS[:2])
    assert data_sets.test.labels.sum() == 4
    images_only = input_data.read_data_sets(
        str(folder), dtype="uint8", reshape=False, validation_size=0
    ).train
    np.testing.assert_array_equal(images_only.images, PIXELS[..., None])
    np.testing.assert_array_equal(images_only.labels, LABELS)


@pytest.mark.parametrize("shuffle", [False, True])
def test_batches_continue_with_the_next_epoch(folder: Path, shuffle: bool) -> None:
    train = input_data.read_data_sets(str(folder), validation_size=0, seed=1).train
    batches = [train.next_batch(5, shuffle=shuffle) for _ in range(9)]
    pixels = np.concatenate([images[:, :2] for images, _ in batches]).tolist()
    assert train.epochs_completed == 4
    epoch_pixels = sorted(train.images[:, :2].tolist())
    for epoch in range(5):
        assert sorted(pixels[9 * epoch : 9 * epoch + 9]) == epoch_pixels
    assert (pixels[:9] == train.images[:, :2].tolist()) != shuffle


@pytest.mark.parametrize(
    ("spoil", "options", "words"),
    [
        (lambda f: (f / "t10k-labels-idx1-ubyte").unlink(), {}, "no t10k-labels-idx1-ubyte.gz"),
        (
            lambda f: (f / "t10k-labels-idx1-ubyte").write_bytes(b"\0\0\x08\x01abc"),
            {},
            "format IDX",
        ),
        (lambda f: (f / "t10k-labels-idx1-ubyte").write_bytes(b"\0\0\x08"), {}, "format IDX"),
        (lambda f: (f / "t10k-labels-idx1-ubyte").write_bytes(idx(LABELS)), {}, "belong together"),
        (lambda f: None, {"validation_size": 10}, "validation_size must be in"),
        (lambda f: None, {"dtype": "int32"}, "float32 or uint8, not int32"),
        (lambda f: None, {"fake_data": True}, "no fake data"),
    ],
)
def test_damaged_or_invalid_mnist_files_raise(
    folder: Path, spoil: Callable[[Path], Any], options: dict[str, Any], words: str
) -> None:
    spoil(folder)
    with pytest.raises((FileNotFoundError, InvalidArgumentError), match=words):
        input_data.read_data_sets(str(folder), **{"validation_size": 0, **options})


def test_batch_larger_than_an_epoch_raises(folder: Path) -> None:
    with pytest.raises(InvalidArgumentError, match="A batch of 10 is larger than the 9"):
        input_data.read_data_sets(str(folder), validation_size=0).train.next_batch(10)
