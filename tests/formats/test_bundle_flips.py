"""A bundle with any byte changed raises an error, or its values are those that were written."""

from __future__ import annotations

import contextlib
import random
from pathlib import Path
from typing import IO

import pytest
import torch

import bundle_examples
from bundle_files import BUNDLES, DATA, bits, small
from thalweg._formats import bundle, stored_tensor
from thalweg._formats.bundle.table import FOOTER
from thalweg.errors import DataLossError

PLACES = 4  # bytes at the end of a small table that say where two blocks are


def harmless(prefix: Path, flips: list[int]) -> set[int]:
    """Return the positions in the index whose flips change no value and raise no error."""
    expected: dict[str, object] = bits(prefix)
    positions: set[int] = set()
    for suffix in (".index", DATA):
        with Path(f"{prefix}{suffix}").open("r+b", buffering=0) as file:
            for place, byte in enumerate(file.read()):
                for flipped in flips:
                    put(file, place, byte ^ flipped)
                    with contextlib.suppress(DataLossError):
                        assert (bits(prefix), suffix) == (expected, ".index"), (place, flipped)
                        positions.add(place)
                put(file, place, byte)
    return positions


def put(file: IO[bytes], place: int, byte: int) -> None:
    file.seek(place)
    file.write(bytes([byte]))


def test_flipped_bits_of_a_small_bundle_raise(tmp_path: Path) -> None:
    prefix = small(tmp_path / "ckpt")
    end = Path(f"{prefix}.index").stat().st_size
    # What the end of a table is filled up with says nothing. The last bit of the number before it
    # makes it a longer way to write the same.
    filling = set(range(end - FOOTER + PLACES, end - 8))
    positions = harmless(prefix, [1 << bit for bit in range(8)])
    assert filling <= positions <= filling | {min(filling) - 1}


@pytest.mark.slow
def test_flipped_bytes_of_an_object_checkpoint_raise(tmp_path: Path) -> None:
    bundle.write(tmp_path / "ckpt", *bundle_examples.as_objects())
    end = (tmp_path / "ckpt.index").stat().st_size
    assert harmless(tmp_path / "ckpt", [0xFF]) <= set(range(end - FOOTER + PLACES, end - 8))


def test_flipped_bytes_of_slices_raise(tmp_path: Path) -> None:
    for path in (BUNDLES / "boxes").iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    prefix = tmp_path / "model.ckpt"
    end = Path(f"{prefix}.index").stat().st_size
    assert harmless(prefix, [0x10]) <= set(range(end - FOOTER + PLACES, end - 8))


def test_flipped_bit_error_has_name_and_both_checksums(tmp_path: Path) -> None:
    prefix = small(tmp_path / "ckpt")
    data = bytearray(Path(f"{prefix}{DATA}").read_bytes())
    data[-1] ^= 1
    Path(f"{prefix}{DATA}").write_bytes(data)
    with pytest.raises(DataLossError) as error:
        bundle.read(prefix)
    assert str(error.value) == (
        f"{prefix}: 'dec/kernel': Checksum does not match: stored 3944279238"
        " vs. calculated on the restored bytes 426995653"
    )


def test_unrequested_tensors_are_not_read(tmp_path: Path) -> None:
    prefix = small(tmp_path / "ckpt")
    data = bytearray(Path(f"{prefix}{DATA}").read_bytes())
    data[-1] ^= 1
    Path(f"{prefix}{DATA}").write_bytes(data)
    assert bundle.read(prefix, ["dec/bias"]).tensors.keys() == {"dec/bias"}
    assert bundle.read(prefix, []).tensors == {}
    assert len(bundle.describe(prefix)) == 2


def test_truncated_data_raises(tmp_path: Path) -> None:
    prefix = small(tmp_path / "ckpt")
    data = Path(f"{prefix}{DATA}").read_bytes()
    for length in range(len(data)):
        Path(f"{prefix}{DATA}").write_bytes(data[:length])
        with pytest.raises(DataLossError, match=f"which has {length} bytes"):
            bundle.read(prefix)


@pytest.mark.slow
def test_random_flipped_bits_of_a_large_bundle_raise(tmp_path: Path) -> None:
    tensors = {f"w{place}": torch.randn(1 << 20) for place in range(4)}
    bundle.write(
        tmp_path / "ckpt",
        {name: stored_tensor.of_tensor(tensor) for name, tensor in tensors.items()},
    )
    path, dice = tmp_path / f"ckpt{DATA}", random.Random(0)
    with path.open("r+b", buffering=0) as file:
        for _ in range(200):
            place, bit = dice.randrange(1 << 24), 1 << dice.randrange(8)
            file.seek(place)
            initial = file.read(1)[0]
            put(file, place, initial ^ bit)
            with pytest.raises(DataLossError, match=f"'w{place >> 22}': Checksum"):
                bundle.read(tmp_path / "ckpt", [f"w{place >> 22}"])
            put(file, place, initial)
    assert len(bundle.read(tmp_path / "ckpt").tensors) == 4
