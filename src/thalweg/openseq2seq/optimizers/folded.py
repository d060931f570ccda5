"""Arithmetic with constants as TensorFlow's sessions do it, after their optimizer of graphs.

That optimizer multiplies by the reciprocal of a constant instead of dividing by the constant, and
replaces powers by simpler functions where it can. Results may differ in the last bits from the
formula as it is written; these are the bits that trainings saw.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from thalweg.scalars import power


def reciprocal(constant: Any) -> Any:
    """1 / constant, in the dtype of the constant, a NumPy scalar or a tensor."""
    return 1 / constant


def raised(base: Any, exponent: float) -> Any:
    """`base` to the power of a constant, in the dtype of `base`: float16, float32 or float64."""
    dtype = type(base)
    if exponent == 3:
        return base * (base * base)
    if exponent == -0.5:
        return reciprocal(np.sqrt(base))
    if dtype is np.float16:
        return dtype(power(np.float32(base), np.float32(exponent)))
    return power(base, dtype(exponent))
