"""Time limits of tests grow with the load, and what exceeds them is reported with its output."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

import busy
import fresh_process


@pytest.mark.parametrize(("load", "expected"), [(0.0, 60.0), (2.0, 60.0), (8.0, 240.0)])
def test_limits_grow_with_the_load(
    load: float, expected: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(busy, "read_load", lambda: load)
    monkeypatch.setattr(busy.os, "cpu_count", lambda: 2)
    assert busy.scale_to_load(60) == expected


def test_a_process_that_does_not_end_is_reported_with_its_output(tmp_path: Path) -> None:
    marker = tmp_path / "written"
    program = f"""
import pathlib, sys, time
print("waits", file=sys.stderr, flush=True)
pathlib.Path({str(marker)!r}).touch()
time.sleep(600)
"""
    with fresh_process.Fresh(program) as process:
        while not marker.exists():
            time.sleep(0.01)
        with pytest.raises(TimeoutError, match=r"had not ended after 0 s, at a load .*: waits"):
            process.done(0)
