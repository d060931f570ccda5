"""Functions of formulas on NumPy arrays, for the reference engine."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from thalweg._engines import libm
from thalweg._engines.formula_parser import bind_formula
from thalweg.formula import Formula, maximum, minimum, narrow, sign, wide


def _round_once(function: Callable[..., float], arity: int) -> Callable[..., Any]:
    """Return a function of arrays that calls a double function of C for each element.

    The result is rounded once, to the promoted dtype of the arguments.
    """
    elementwise = np.frompyfunc(function, arity, 1)

    def apply(*values: Any) -> Any:
        dtype = np.result_type(*values)
        result = elementwise(*(np.asarray(value, np.float64) for value in values))
        # The index () makes a NumPy scalar of an array without dimensions.
        return np.asarray(result, np.float64).astype(dtype)[()]

    return apply


def square(x: Any) -> Any:
    return x * x


NUMPY: dict[str, Callable[..., Any]] = {
    "sqrt": np.sqrt,
    "absolute": np.absolute,
    "sign": sign,
    "where": np.where,
    "maximum": maximum,
    "minimum": minimum,
    "square": square,
    "exp": _round_once(libm.exp, 1),
    "log": _round_once(libm.log, 1),
    "power": _round_once(libm.power, 2),
    "wide": wide,
    "narrow": narrow,
}


@cache
def numpy_formula(formula: Formula, dtype: type[np.floating]) -> Formula:
    """Return a function over NumPy arrays of a dtype that returns a formula's results, a tuple."""
    return bind_formula(formula, NUMPY, dtype)
