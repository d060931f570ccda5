"""Powers of a beta as TensorFlow 1 keeps them: a product that grows by a factor each step."""

from __future__ import annotations

from itertools import count
from typing import Any

import numpy as np

from thalweg.scalars import ScalarType


def running_power(beta: Any, kind: ScalarType, steps: int) -> Any:
    """What the variable `beta1_power` is after so many steps.

    Args:
        beta: The factor.
        kind: The dtype of the variable.
        steps: How many steps were taken. The power belongs to the next one: it is `beta` before
            the first.
    """
    factor = product = kind(beta)
    with np.errstate(under="ignore"):
        for _ in range(steps):
            before, product = product, product * factor
            if product == before:  # 0, 1, or too small to become smaller
                break
    return product


def steps_of(power: Any, beta: Any, kind: ScalarType) -> int | None:
    """After how many steps a variable that is multiplied by `beta` has this value.

    Args:
        power: The value.
        beta: The factor.
        kind: The dtype of the variable.

    Returns:
        The number, or None if there is none, or more than one.
    """
    factor = product = kind(beta)
    with np.errstate(under="ignore"):
        for steps in count():
            before, product = product, product * factor
            if product == before:
                return None  # it is the same from now on
            if before == power:
                return steps
            if not before > power:
                return None
    return None
