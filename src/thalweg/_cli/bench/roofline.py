"""Limit of this machine's memory: one addition over the tensors that a rule reads and writes.

The roofline is itself a rule, run by the same engine, over the same tensors, on the same threads:
the additional time of an update is arithmetic and host work.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from thalweg._core.atomic_section import run
from thalweg._engines.cpu.kernel_group import Group
from thalweg._engines.dense_plan import DensePlan
from thalweg._engines.engine_selection import DEFAULT
from thalweg._engines.protocol import Columns, StepRequest
from thalweg.formula import Rule, Slot


def add_0(var, grad):
    """2 reads, 1 write."""
    return (var + grad,)


def add_1(var, grad, a):
    """3 reads, 2 writes."""
    return var + grad, a + grad


def add_2(var, grad, a, b):
    """4 reads, 3 writes."""
    return var + grad, a + grad, b + grad


def add_3(var, grad, a, b, c):
    """5 reads, 4 writes."""
    return var + grad, a + grad, b + grad, c + grad


def add_4(var, grad, a, b, c, d):
    """6 reads, 5 writes."""
    return var + grad, a + grad, b + grad, c + grad, d + grad


def add_5(var, grad, a, b, c, d, e):
    """7 reads, 6 writes."""
    return var + grad, a + grad, b + grad, c + grad, d + grad, e + grad


def add_6(var, grad, a, b, c, d, e, f):
    """8 reads, 7 writes."""
    return var + grad, a + grad, b + grad, c + grad, d + grad, e + grad, f + grad


_UPDATES = (add_0, add_1, add_2, add_3, add_4, add_5, add_6)
MOST_SLOTS = len(_UPDATES) - 1

RULES: tuple[Rule, ...] = tuple(
    Rule(
        name=f"Roofline{count}", update=update, hypers=(), slots=tuple(map(Slot, "abcdef"[:count]))
    )
    for count, update in enumerate(_UPDATES)
)


def count_streams(slots: int) -> int:
    """Count reads and writes of an update: two for the variable and each slot, one gradient."""
    return 2 * (1 + slots) + 1


def roofline(
    slots: int,
    variables: Sequence[Tensor],
    gradients: Sequence[Tensor],
    copies: Sequence[Tensor] = (),
) -> Callable[[], None]:
    """Return a step that reads and writes as much memory as a rule's step, with one addition.

    Args:
        slots: State tensors per variable, with the variable's shape and dtype; allocated here.
        variables: Contiguous CPU tensors, which the step changes.
        gradients: One tensor per variable.
        copies: Empty, or one 16-bit tensor per variable, to which the step copies the variable.
    """
    slot_tensors = [[torch.zeros_like(var.detach()) for _ in range(slots)] for var in variables]
    names = [""] * len(variables)
    request = StepRequest(
        RULES[slots], (), variables, gradients, slot_tensors, names, DEFAULT, list(copies) or None
    )
    plan = DensePlan(request, Group)
    columns = Columns({np.float32: {}, np.float64: {}}, {})

    # The plan has pointers to the gradients, so the default argument keeps the gradients alive.
    def step(kept_gradients: Sequence[Tensor] = tuple(gradients)) -> None:
        run(plan.make_calls(columns))

    return step
