"""Tests of the engine for GPUs, which need Triton: `pip install 'thalweg[triton]'`.

Those of its programs run in Triton's interpreter, `TRITON_INTERPRET=1 pytest tests/cuda`; those of
what it compiles run without that, for Triton reads it once in a process.
"""

from __future__ import annotations

import importlib.util
import os

import pytest

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    missing = importlib.util.find_spec("triton") is None
    for item in items:
        if "/tests/cuda/" not in item.path.as_posix():
            continue
        if missing:
            item.add_marker(pytest.mark.skip(reason="needs Triton"))
        elif ("interpreted" in item.path.stem) != INTERPRETED:
            reason = (
                "runs without TRITON_INTERPRET=1" if INTERPRETED else "needs TRITON_INTERPRET=1"
            )
            item.add_marker(pytest.mark.skip(reason=reason))
