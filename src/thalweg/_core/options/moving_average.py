"""Moving averages of variables and computed values, as in TensorFlow 1."""

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
    """Return the new average of an element; `grad` is the averaged value."""
    return (var - (var - grad) * share,)


MOVING_AVERAGE = Rule(
    name="MovingAverage",
    update=move_toward,
    hypers=(Hyper("share", 0.1, "how far the average goes toward the value"),),
    source="tf.train.ExponentialMovingAverage",
)


def share_of(decay: Any, num_updates: Any, scalar_cls: ScalarType) -> Any:
    """Return 1 - decay as a scalar of `scalar_cls`.

    With `num_updates`, the decay is at most (1 + num_updates) / (10 + num_updates), as in
    `tf.train.ExponentialMovingAverage`.
    """
    effective_decay = as_scalar(decay, scalar_cls)
    if num_updates is not None:
        count = as_scalar(num_updates, np.float32)
        effective_decay = min(
            effective_decay, scalar_cls((np.float32(1) + count) / (np.float32(10) + count))
        )
    return scalar_cls(1) - effective_decay


def move(
    plan_cache: PlanCache,
    averages: Sequence[Tensor],
    values: Sequence[Tensor],
    share: object,
    count_calls: Sequence[Call] = (),
    commit_messages: list[str] | None = None,
) -> None:
    """Move averages toward values in place, in one pass over memory.

    Args:
        plan_cache: Plans of earlier moves; updated.
        averages, values: Averages, and the values to average.
        share: Interpolation factor: 1 sets an average to its value.
        count_calls: Functions in C that run in the commit that writes the averages.
        commit_messages: Optional list; a sentence is appended when the averages are written.
    """
    if averages:
        adapter = OneRule(MOVING_AVERAGE, {"share": share}, counts=count_calls)
        adapter.begun = adapter.begun if commit_messages is None else commit_messages
        # Users get the averages as variables, and may give them constraints.
        adapter.constrains = True
        pairs = [(value.detach(), slot) for value, slot in zip(values, averages, strict=True)]
        raise_first(run_step(adapter, plan_cache, pairs).errors)


def debias_divisor(average: Tensor, biased: Tensor, step: Tensor, share: object) -> list[Call]:
    """Return calls that count a step and set `average` to `biased` over its total weight."""
    weight = _gather_weight(share, step.item() + 1, scalar_type(step))
    source, target = biased.detach(), average.detach()
    return [partial(step.detach().add_, 1), partial(torch.div, source, float(weight), out=target)]


def assign_average(
    variable: Tensor, value: Tensor, decay: Any, biased: Tensor | None, step: Tensor | None
) -> Tensor:
    """Move a variable toward a value in place; return the variable's new value.

    Args:
        variable: The average, which keeps the fraction `decay` of its value.
        value: The value to average.
        decay: A number, or a tensor of shape ().
        biased: Optional tensor, an average that began at 0. It is moved toward `value`, and
            `variable` is set to `biased` divided by the total weight of all values.
        step: Optional counter of moves; increased. None computes the weight of a first move.

    Raises:
        InvalidArgumentError: The shapes of value and variable differ.
    """
    check_held(variable)
    check_held(value, f"The value for '{name_of(variable, 'Tensor')}'")
    scalar_cls = scalar_type(variable)
    share = as_scalar(1.0 - decay, scalar_cls)
    target = variable.detach()
    averaged = target if biased is None else biased.detach()
    factor = torch.tensor(share, dtype=target.dtype, device="cpu")
    (new_average,) = move_toward(averaged, value.detach(), share=factor)
    if new_average.shape != target.shape:
        raise InvalidArgumentError(
            f"The value for '{name_of(variable, 'Tensor')}' has shape {tuple(value.shape)}, and the"
            f" variable has shape {tuple(target.shape)}."
        )
    new_value, writes = new_average, [partial(averaged.copy_, new_average)]
    if biased is not None:
        weight = _gather_weight(
            share, 1 if step is None else int((step.detach() + 1).item()), scalar_cls
        )
        new_value = new_average / torch.tensor(weight, dtype=target.dtype, device="cpu")
        writes.append(partial(target.copy_, new_value))
    run([*writes, *(() if step is None else [partial(step.detach().add_, 1)])])
    return new_value


def _gather_weight(share: Any, count: float, scalar_cls: ScalarType) -> Any:
    """Return the total weight of `count` values in an average that began at 0."""
    return scalar_cls(1) - power(scalar_cls(1) - scalar_cls(share), scalar_cls(count))
