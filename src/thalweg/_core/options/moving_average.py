"""Moving averages as TensorFlow 1 has them, of variables and of values that a program computes."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from thalweg._base.scalars import ScalarType, as_scalar, power, scalar_type
from thalweg._core.atomic_section import Call, run
from thalweg._core.commit import raise_first
from thalweg._core.plan_cache import PlanCache
from thalweg._core.single_rule_step import OneRule
from thalweg._core.step import run_step
from thalweg.errors import InvalidArgumentError
from thalweg.formula import Hyper, Rule
from thalweg.variable import check_held, name_of


def move_toward(var: Any, grad: Any, *, share: Any) -> Any:
    """Once per element; `grad` is the value that is averaged."""
    return (var - (var - grad) * share,)


MOVING_AVERAGE = Rule(
    name="MovingAverage",
    update=move_toward,
    hypers=(Hyper("share", 0.1, "how far the average goes toward the value"),),
    source="tf.train.ExponentialMovingAverage",
)


def share_of(decay: Any, num_updates: Any, kind: ScalarType) -> Any:
    """1 - d, in float32 unless the decay is a float64."""
    kept = as_scalar(decay, kind)
    if num_updates is not None:
        count = as_scalar(num_updates, np.float32)
        kept = min(kept, kind((np.float32(1) + count) / (np.float32(10) + count)))
    return kind(1) - kept


def move(
    kept: PlanCache,
    averages: Sequence[Tensor],
    values: Sequence[Tensor],
    share: object,
    counts: Sequence[Call] = (),
    begun: list[str] | None = None,
) -> None:
    """Bring averages nearer to values, all in one pass.

    Args:
        kept: From the moves before.
        averages, values: What is moved, and to what.
        share: How far.
        counts: Is called after it.
        begun: Optional. Is given a sentence when they are moved.
    """
    if averages:
        hooks = OneRule(MOVING_AVERAGE, {"share": share}, counts=counts)
        hooks.begun = hooks.begun if begun is None else begun
        hooks.constrains = True  # whoever was handed an average may have given it a constraint
        pairs = [(value.detach(), slot) for value, slot in zip(values, averages, strict=True)]
        raise_first(run_step(hooks, kept, pairs).errors)


def debias_divisor(average: Tensor, biased: Tensor, step: Tensor, share: object) -> list[Call]:
    """What divides an average that began at 0 by the weight it will have gathered."""
    weight = _gather_weight(share, step.item() + 1, scalar_type(step))
    source, target = biased.detach(), average.detach()
    return [partial(step.detach().add_, 1), partial(torch.div, source, float(weight), out=target)]


def assign_average(
    variable: Tensor, value: Tensor, decay: Any, biased: Tensor | None, step: Tensor | None
) -> Tensor:
    """Move a variable toward a value; see `assign_moving_average`.

    Args:
        variable, value, decay: As there.
        biased: Optional. The sum of which the variable is the debiased form.
        step: Optional. Counts its moves; without it each is the first one.

    Returns:
        The variable's new value.
    """
    check_held(variable)
    check_held(value, f"The value for '{name_of(variable, 'Tensor')}'")
    kind = scalar_type(variable)
    share = as_scalar(1.0 - decay, kind)
    own = variable.detach()
    before = own if biased is None else biased.detach()
    factor = torch.tensor(share, dtype=own.dtype, device="cpu")
    (moved,) = move_toward(before, value.detach(), share=factor)
    if moved.shape != own.shape:
        raise InvalidArgumentError(
            f"The value for '{name_of(variable, 'Tensor')}' has shape {tuple(value.shape)}, and the"
            f" variable has shape {tuple(own.shape)}."
        )
    found, writes = moved, [partial(before.copy_, moved)]
    if biased is not None:
        weight = _gather_weight(share, 1 if step is None else int((step.detach() + 1).item()), kind)
        found = moved / torch.tensor(weight, dtype=own.dtype, device="cpu")
        writes.append(partial(own.copy_, found))
    run([*writes, *(() if step is None else [partial(step.detach().add_, 1)])])
    return found


def _gather_weight(share: Any, count: float, kind: ScalarType) -> Any:
    """The weight of all values in an average that began at 0."""
    return kind(1) - power(kind(1) - kind(share), kind(count))
