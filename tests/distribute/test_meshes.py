"""DTensors on meshes of several dimensions; `mesh_cases` compares them with one process."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from torch import distributed

from fresh_process import Fresh

pytestmark = pytest.mark.skipif(
    not distributed.is_available(), reason="torch without torch.distributed"
)

SCRIPT = Path(__file__).with_name("mesh_cases.py")
QUICK = (
    "Muon on FSDP x TP", "SOAP on FSDP x TP", "AdamW bf16 on FSDP x TP", "KLSOAP on TP",
    "Muon bf16 masters on HSDP x TP", "Mixed on two meshes", "NorMuon on experts x FSDP",
    "MuonH on experts x HSDP", "SOAP bf16 on experts x TP", "module, Muon on FSDP x TP",
)  # fmt: skip


@pytest.mark.parametrize(
    ("count", "names"),
    [
        (4, QUICK),
        # Eight ranks take long on two cores.
        pytest.param(8, QUICK[1::2], marks=pytest.mark.slow),
        *(pytest.param(count, (), marks=pytest.mark.slow) for count in (2, 4)),
    ],
    ids=lambda value: value if isinstance(value, int) else "some" if value else "all",
)
def test_a_mesh_has_the_bits_of_one_process(
    count: int, names: tuple[str, ...], tmp_path: Path
) -> None:
    """Train on meshes, and continue from checkpoints on other meshes."""
    with Fresh(SCRIPT, str(count), str(tmp_path), *names) as process:
        finished = process.done(1800)
    assert finished.returncode == 0, finished.stderr[-5000:]
    reports: list[dict[str, Any]] = json.loads(finished.stdout.splitlines()[-1])
    for report in reports:
        assert len(report) == len(names) or (not names and len(report) > len(QUICK))
        for name, outcome in report.items():
            is_module = name.startswith("module")
            assert outcome == ([] if is_module else {"params": [], "state": [], "moved": True}), (
                name
            )
