"""Piecewise constant learning rates."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch

from thalweg._base.scalars import Number, Scalar, ScalarType, as_scalar
from thalweg.schedules import formulas
from thalweg.schedules.base import FormulaSchedule, Step, kind_of
from thalweg.variable import check_held


@dataclass(eq=False)
class PiecewiseConstantDecay(FormulaSchedule):
    """Constant learning rates, one for each interval between boundaries.

        values[0]  if step <= boundaries[0]
        values[i]  if boundaries[i - 1] < step <= boundaries[i]
        values[-1] if boundaries[-1] < step

    Args:
        boundaries: Steps, ascending; each keeps the value before it.
        values: Learning rates, one more than boundaries. The result is float64 if a value is
            `numpy.float64` or a float64 tensor, else float32.
        name: Kept for the config.

    Example:
        >>> schedule = PiecewiseConstantDecay([100, 200], [1.0, 0.5, 0.1])
        >>> schedule(100), schedule(101), schedule(201)
        (tensor(1.), tensor(0.5000), tensor(0.1000))

    Differs from:
        Boundaries are cast to the type of the step: with integer steps 1.5 acts as 1;
        inside an optimizer, where the step is a float, it acts as 1.5. TensorFlow does the same.
        TensorFlow finds an empty list of boundaries, or a descending one, when it is called; here
        the constructor raises ValueError. Integer values give float32; TensorFlow returns int32.
        `torch.optim.lr_scheduler.MultiStepLR` changes *at* a milestone, this after it.

    Reference: `tf.keras.optimizers.schedules.PiecewiseConstantDecay`
    """

    boundaries: Sequence[Number]
    values: Sequence[Number]
    name: str | None = None

    def __post_init__(self) -> None:
        boundaries, values = self.boundaries, self.values
        if len(boundaries) != len(values) - 1:
            raise ValueError(
                "The length of boundaries should be 1 less than the length of values. Received: "
                f"boundaries={boundaries} of length {len(boundaries)}, "
                f"and values={values} of length {len(values)}."
            )
        if len(boundaries) == 0:
            raise ValueError(
                f"PiecewiseConstantDecay needs a boundary. Received: boundaries={boundaries}. "
                "Pass the number itself for a constant learning rate."
            )
        if any(second < first for first, second in pairwise(boundaries)):
            raise ValueError(f"Boundaries should be ascending. Received: boundaries={boundaries}.")

    def _kind(self) -> ScalarType:
        return kind_of(self.values)

    def formula(self, step: Step) -> Scalar:
        dtype = self._kind()
        count = _comparable(step)
        boundaries = [_cast_like(count, boundary) for boundary in self.boundaries]
        rate = formulas.piecewise_constant(count, boundaries, self.values)
        return as_scalar(rate, dtype)


def _comparable(step: Step) -> Any:
    if isinstance(step, torch.Tensor):
        check_held(step, "step")
        return step.detach().cpu()
    if isinstance(step, np.floating):
        return step
    return np.float32(step) if isinstance(step, float) else int(step)


def _cast_like(step: Any, boundary: Any) -> Any:
    if isinstance(step, torch.Tensor):
        dtype = torch.float32 if type(boundary) is float else None
        return torch.as_tensor(boundary, dtype=dtype, device="cpu").to(step.dtype)
    if isinstance(step, int):
        return int(boundary) if math.isfinite(boundary) else boundary
    return as_scalar(boundary, step.dtype.type)
