"""Small kernels that return a number, made by way of the folder in which kernels are kept."""

from __future__ import annotations

import ctypes

import pytest

from thalweg._engines.cpu import kernel_cache

TEXT = "def NAME(argument):\n    float64_pointer(address_of(argument))[0] = float64(VALUE)\n"


def forget(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_cache, "_addresses", {})
    monkeypatch.setattr(kernel_cache, "_warned_paths", set())


def made(name: str, value: float) -> float:
    """Return the result of the named kernel: `value`, unless another one is stored."""
    text = TEXT.replace("NAME", name).replace("VALUE", str(value))
    number = ctypes.c_double()
    ctypes.CFUNCTYPE(None, ctypes.c_void_p)(kernel_cache.address_of(name, text))(
        ctypes.byref(number)
    )
    return number.value
