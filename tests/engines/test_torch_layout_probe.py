"""Places of torch's tensors in memory; without them, replay tests are skipped."""

from __future__ import annotations

import platform
import sys

import pytest

from thalweg._engines import torch_layout_probe
from thalweg._engines.cpu import guard_table

IS_TESTED = sys.platform == "linux" and platform.python_implementation() == "CPython"


@pytest.mark.skipif(not IS_TESTED, reason="tested with CPython on Linux")
def test_torch_layout_is_found_on_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("THALWEG_NATIVE_LOOK", raising=False)
    assert isinstance(torch_layout_probe.layout(), torch_layout_probe.Layout), (
        torch_layout_probe.layout()
    )
    assert not guard_table.find_obstacle()
