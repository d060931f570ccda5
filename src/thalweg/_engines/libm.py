"""Addresses of exp, log and pow of the C library, equal for both engines.

NumPy has versions of these functions with other bits. LLVM rewrites calls that it knows by name:
pow(x, 0.5) into a square root, pow(2, x) into exp2, which differ in the last bit of float64.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable

_LIBRARY = ctypes.CDLL("ucrtbase" if os.name == "nt" else None)


def _load_function(name: str, arity: int) -> Callable[..., float]:
    return ctypes.CFUNCTYPE(ctypes.c_double, *[ctypes.c_double] * arity)((name, _LIBRARY))


exp, log, power = _load_function("exp", 1), _load_function("log", 1), _load_function("pow", 2)

# Compiled code uses names that LLVM does not know, so that it does not rewrite the calls.
SYMBOLS = {"thalweg_exp": exp, "thalweg_log": log, "thalweg_pow": power}


def address_of(function: Callable[..., float]) -> int:
    """Return the address of the machine code of `exp`, `log` or `power`."""
    return ctypes.cast(function, ctypes.c_void_p).value or 0  # pyright: ignore[reportArgumentType]
