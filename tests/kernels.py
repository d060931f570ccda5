"""Small kernels that return a number, made by way of the folder in which kernels are kept."""

from __future__ import annotations

import ctypes

import pytest

from thalweg.engines.cpu import store

TEXT = "import numba\n\n@numba.cfunc('float64()')\ndef NAME():\n    return VALUE\n"


def forget(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is in memory, as in a new process."""
    for name in ("_loaded", "_addresses"):
        monkeypatch.setattr(store, name, {})
    monkeypatch.setattr(store, "_warned", set())


def made(name: str, value: float) -> float:
    """What the kernel of this name returns: `value`, unless another lies under its name."""
    text = TEXT.replace("NAME", name).replace("VALUE", str(value))
    return ctypes.CFUNCTYPE(ctypes.c_double)(store.address(name, text))()
