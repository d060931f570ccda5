"""Learning rates as functions of the global step, at once or in a graph."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from thalweg.errors import InvalidTypeError
from thalweg.graph import Output, executing_eagerly, is_symbolic, operation

Formula = Callable[[Any], Any]

_KINDS = {np.float16: torch.float16, np.float32: torch.float32, np.float64: torch.float64}


def follow(formula: Formula, global_step: Any, dtype: type[np.floating[Any]], name: str) -> Any:
    """The learning rate that a formula makes of the global step.

    Args:
        formula: Takes the step, a number; returns a NumPy scalar of `dtype`.
        global_step: The variable that counts steps, or a number.
        dtype: The NumPy type of the result.
        name: Name of the tensor in graph mode.

    Returns:
        A callable without arguments that reads the step anew and returns a 0-d tensor; in graph
        mode a tensor.

    Raises:
        ValueError: There is no global step.
    """
    if global_step is None:
        raise ValueError(f"global_step is required for {name}: the variable that counts steps.")

    def at(step: Any) -> Tensor:
        number = step.detach().item() if isinstance(step, Tensor) else step
        with np.errstate(all="ignore"):
            return torch.tensor(formula(number), dtype=_KINDS[dtype], device="cpu")

    if executing_eagerly() and not is_symbolic(global_step):
        return lambda: at(global_step)
    return operation(at, [global_step], name, kind="pure", outputs=Output(_KINDS[dtype], ()))


def check_rate(learning_rate: Any) -> None:
    """Refuse a learning rate whose dtype a policy cannot compute in.

    Raises:
        InvalidTypeError: It is no float, and no float32 or float64 scalar.
    """
    dtype = str(getattr(learning_rate, "dtype", "")).removeprefix("torch.")
    if is_symbolic(learning_rate) or not (
        dtype in ("float32", "float64") or isinstance(learning_rate, float)
    ):
        raise InvalidTypeError(
            "learning_rate must be a float, or a float32 or float64 scalar, not"
            f" {learning_rate!r}. The policy computes in its dtype."
        )
