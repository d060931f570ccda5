"""8-bit state and split weights of DTensors; `codec_cases` compares them with one process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from torch import distributed

from parallel_workers import run_ranks

pytestmark = [
    pytest.mark.skipif(not distributed.is_available(), reason="torch without torch.distributed"),
    pytest.mark.slow,
]

SCRIPT = Path(__file__).with_name("codec_cases.py")


def reports_of(folder: Path, count: int, *names: str) -> list[dict[str, Any]]:
    """Return what each rank reports of the named cases."""
    return run_ranks(SCRIPT, folder, count, str(folder), *names)


@pytest.mark.parametrize("count", [1, 2, 4])
def test_a_mesh_has_the_bits_of_one_process(count: int, tmp_path: Path) -> None:
    for report in reports_of(tmp_path, count, "trained"):
        assert len(report["trained"]) == 12 * 7 // 3
        for name, differing in report["trained"].items():
            assert not differing, name


@pytest.mark.parametrize("count", [2, 4])
def test_states_continue_on_other_meshes_and_in_one_process(count: int, tmp_path: Path) -> None:
    for report in reports_of(tmp_path, count, "resharded", "converted"):
        assert len(report["resharded"]) == 3 * 4 // 2 * 4 * 2
        for name, is_continued in report["resharded"].items():
            assert is_continued, name
        for name, differing in report["converted"].items():
            assert not differing, name


def test_placements_that_cut_blocks_raise(tmp_path: Path) -> None:
    for reports in reports_of(tmp_path, 2, "unsupported"):
        messages = reports["unsupported"]
        for name, block in (("cut 8bit", 32), ("row dynamic8", 256)):
            assert messages[name].startswith(f"InvalidArgumentError: '{name.split()[0]}' is a DT")
            assert f"inside of the blocks of {block} that share a scale" in messages[name]
        assert "NotImplementedError: 'pending' is a DTensor" in messages["pending 8bit"]
        # Their slots are not encoded, or no rank cuts a block.
        assert not any(messages[name] for name in ("cut dynamic8", "pending dynamic8", "row 8bit"))
