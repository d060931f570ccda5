"""CRC32C, by each of its three implementations."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import pytest

from thalweg._formats import checksum, checksum_compiled
from thalweg._formats.checksum import crc32c, mask_checksum, unmask_checksum

BY_INSTRUCTION = checksum_compiled.by_instruction()
BY_SLICES = checksum_compiled.by_slices(checksum.byte_table())
WAYS: dict[str, Callable[[memoryview, int], int] | None] = {
    "table": checksum._by_table,
    "slices": BY_SLICES,
    "instruction": BY_INSTRUCTION,
}
READ_PDU = bytes.fromhex(
    "01c00000000000000000000000000000140000000000040000000014000000182800000000000000"
    "0200000000000000"
)
# RFC 3720, appendix B.4, and the check value of the catalogue of CRCs.
CHECKSUMS = [
    (b"", 0),
    (b"123456789", 0xE3069283),
    (bytes(32), 0x8A9136AA),
    (b"\xff" * 32, 0x62A8AB43),
    (bytes(range(32)), 0x46DD794E),
    (bytes(range(31, -1, -1)), 0x113FDB5C),
    (READ_PDU, 0xD9963A56),
]


@pytest.fixture(params=WAYS)
def crc(request: pytest.FixtureRequest) -> Callable[[memoryview, int], int]:
    function = WAYS[request.param]
    if function is None:
        pytest.skip("this processor has no such instruction")
    return function


@pytest.mark.parametrize(("data", "expected"), CHECKSUMS)
def test_crc32c_has_known_values(
    data: bytes, expected: int, crc: Callable[[memoryview, int], int]
) -> None:
    assert crc32c(data) == expected
    if data:
        assert crc(memoryview(data), 0) == expected


def test_crc32c_implementations_agree_for_all_lengths(
    crc: Callable[[memoryview, int], int],
) -> None:
    data = memoryview(random.Random(0).randbytes(400))
    for length in range(1, 300):
        place = length % 9
        part = data[place : place + length]
        value = length * 0x1234567 & 0xFFFFFFFF
        assert crc(part, value) == checksum._by_table(part, value)


@pytest.mark.parametrize("size", [10, 4096, 4097, 100_001])
def test_crc32c_of_parts_equals_crc32c_of_the_whole(size: int) -> None:
    dice = random.Random(size)
    data = dice.randbytes(size)
    for _ in range(20):
        cut = dice.randrange(size + 1)
        assert crc32c(data[cut:], crc32c(data[:cut])) == crc32c(data)
    assert crc32c(b"", 123) == 123


def test_crc32c_reads_any_contiguous_memory() -> None:
    array = np.arange(24, dtype=np.int32).reshape(2, 3, 4)
    assert crc32c(array.data) == crc32c(array.tobytes()) == crc32c(bytearray(array.tobytes()))
    assert crc32c(np.zeros((3, 0)).data) == 0
    array.flags.writeable = False
    assert crc32c(array.data) == crc32c(array.tobytes())


def test_crc32c_masks_equal_tensorflow() -> None:
    assert mask_checksum(0) == 0xA282EAD8
    assert mask_checksum(1) == 0xA284EAD8
    assert mask_checksum(0x8000) == 0xA282EAD9
    dice = random.Random(0)
    for _ in range(1000):
        value = dice.getrandbits(32)
        assert unmask_checksum(mask_checksum(value)) == value != mask_checksum(value)


def test_crc32c_falls_back_to_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checksum_compiled, "_crc_instructions", lambda: None)
    monkeypatch.setattr(checksum_compiled, "by_slices", lambda table: BY_SLICES)
    monkeypatch.setattr(checksum, "_fast_functions", [])
    data = random.Random(0).randbytes(10_000)
    assert crc32c(data) == checksum._by_table(memoryview(data), 0)


def test_arm_crc32c_is_valid_llvm() -> None:
    from llvmlite import binding

    text = str(
        checksum_compiled._build_instruction_module("llvm.aarch64.crc32cx", "llvm.aarch64.crc32cb")
    )
    module = binding.parse_assembly(text)
    module.verify()
    assert text.count('call i32 @"llvm.aarch64.crc32cx"') == 8


@pytest.mark.parametrize("size", [0, 1, 7, 4096, 99_999])
def test_crc32c_checksums_are_combined(size: int) -> None:
    data = random.Random(size).randbytes(size)
    for cut in {0, 1, size // 3, size}:
        first, second = data[:cut], data[cut:]
        assert checksum.combine_checksums(crc32c(first), crc32c(second), len(second)) == crc32c(
            data
        )
