"""A few steps of a rule through Keras' `RuleOptimizer`, with every kind of gradient."""

from __future__ import annotations

from typing import Any

import torch

from modern_inputs import gradients_of, params_of
from thalweg import IndexedSlices, Variable
from thalweg.keras.optimizers import RuleOptimizer

KINDS = ("dense", "sparse", "none")
ROWS = [3, 1, 3]


def train_rule(rule: Any, dtype: torch.dtype, kind: str, rate: float = 0.05) -> list[torch.Tensor]:
    """Return the variables after four steps, and their slots."""
    variables = [Variable(param.detach().clone(), f"w{place}")
                 for place, param in enumerate(params_of(dtype)[2:])]  # fmt: skip
    opt = RuleOptimizer(rule, learning_rate=rate)
    for step in range(4):
        grads: list[Any] = gradients_of(step, dtype)[2:]
        if kind == "sparse":
            grads = [IndexedSlices(g[: len(ROWS)], torch.tensor(ROWS), g.shape) for g in grads]
        if kind == "none" and step != 1:
            grads[0] = None
        opt.apply_gradients(zip(grads, variables, strict=True))
    slots = [slot.name for slot in rule.slots if not slot.scalar]
    return [*variables, *(opt.get_slot(var, name) for var in variables for name in slots)]
