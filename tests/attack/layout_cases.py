"""Layouts that have crashed optimizers, each inside canaries, for `attack.server`."""

from __future__ import annotations

import warnings

import numpy as np
import torch
from torch import Tensor

import rulebook
from rulebook import FIRST, FLUSH, ROWS, Engines, Problem, case, reference, sparse, take
from thalweg.errors import InvalidArgumentError, LayoutError, PerformanceWarning

CANARY = 64


class Memory:
    """Bytes with a pattern, of which tensors are views."""

    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        self.dtype = dtype
        self.bytes = np.full(4096, 0xA5, np.uint8)

    def base(self, count: int, shift: int = 0) -> torch.Tensor:
        return torch.frombuffer(self.bytes, dtype=self.dtype, count=count, offset=CANARY + shift)

    def around(self, tensor: Tensor) -> bytes:
        """All bytes that are not the tensor's."""
        values, memory = tensor.detach().clone(), self.bytes.copy()
        tensor.detach().zero_()
        outside_bytes = self.bytes.tobytes()
        self.bytes[:] = memory
        assert torch.equal(tensor.detach().isnan(), values.isnan())
        return outside_bytes


LAYOUTS = {
    "contiguous": lambda m: m.base(24).view(4, 6),
    "with an offset": lambda m: m.base(30)[6:].view(4, 6),
    "transposed": lambda m: m.base(24).view(6, 4).t(),
    "channels last": lambda m: m.base(120).view(2, 5, 4, 3).permute(0, 3, 1, 2),
    "rows of a matrix": lambda m: m.base(48).view(8, 6)[2:6],
    "columns of a matrix": lambda m: m.base(48).view(4, 12)[:, 3:9],
    "every second element": lambda m: m.base(48)[::2],
    "every second row": lambda m: m.base(48).view(8, 6)[::2],
    "interleaved dimensions": lambda m: m.base(24).as_strided((3, 2), (2, 3)),
    "free strides": lambda m: m.base(24).as_strided((1, 24, 1), (7, 1, 99)),
    "no dimensions": lambda m: m.base(1).view(()),
    "no elements": lambda m: m.base(4)[:0].view(0, 3),
    "odd address": lambda m: m.base(24, 1).view(4, 6),
    "expanded rows": lambda m: m.base(6).expand(4, 6),
    "expanded scalar": lambda m: m.base(1).expand(24),
    "overlapping": lambda m: m.base(24).as_strided((4, 6), (1, 1)),
    "sliding windows": lambda m: m.base(24).unfold(0, 4, 2),
    "negative view": lambda m: torch._neg_view(m.base(24).view(4, 6)),
}
FOREIGN = {
    "too short": lambda m: m.base(2),
    "too long": lambda m: m.base(48),
    "another rank": lambda m: m.base(24).view(4, 6),
    "the variable": None,
    "the other slot": None,
}
SHARED = ["expanded rows", "expanded scalar", "overlapping", "sliding windows"]
ROLES = ["variable", "gradient", "slot", "table", "values"]


def refused(role: str, layout: str) -> bool:
    """Return whether this layout must raise LayoutError in this role."""
    is_written = role in ("variable", "slot", "table")
    return is_written and (layout in SHARED or layout == "negative view")


def possible(rule: str, role: str, layout: str) -> bool:
    """Return whether a rule has a tensor in this role, and the role accepts the layout.

    torch's public functions give contiguous negative views of one element only, and a repeated
    step looks for those; see `test_deferred_gradient_signs_are_resolved`.
    """
    if (role, layout) == ("gradient", "negative view"):
        return False
    if role == "slot" and not ROWS[rule].rule.slots:
        return False
    return not (role in ("table", "values") and layout in ("no dimensions", "no elements"))


def run(rule: str, role: str, layout: str) -> str:
    """Take two steps of a rule; return "ok", "LayoutError" or the failure."""
    memory, rng, rule_case = Memory(), np.random.default_rng(1), case(rule)
    tensor = LAYOUTS[layout](memory)
    fill = memory.base(900)
    fill.copy_(rulebook.values(900, torch.float32, rng, low=0.5))
    problem = Problem.make(rule_case.row, [tuple(tensor.shape)], [torch.float32], 1)
    if role in ("table", "values"):
        rows = tensor.shape[0]
        indices = [row * 7 % rows for row in range(rows)]
        values = tensor if role == "values" else problem.gradients[0]
        problem.gradients = [sparse(values, indices, tensor)]
    if role in ("variable", "table"):
        problem.variables = [tensor]
    elif role == "gradient":
        problem.gradients = [tensor]
    elif role == "slot":
        problem.slots[0][-1] = tensor
    copies = problem.copy()
    if role == "gradient":
        copies.gradients = [tensor.clone(memory_format=torch.contiguous_format)]
    expected = reference(rule_case, copies, FLUSH, steps=2).written()
    bytes_before = memory.bytes.copy() if role in ("gradient", "values") else None
    outside_bytes = None if layout in SHARED else memory.around(tensor)
    try:
        take(rule_case, problem, FLUSH, steps=2, engines=Engines())
    except LayoutError:
        return "LayoutError"
    if bytes_before is not None and not np.array_equal(bytes_before, memory.bytes):
        return "the gradient changed"
    if outside_bytes is not None and memory.around(tensor) != outside_bytes:
        return "foreign memory changed"
    for got, want in zip(problem.written(), expected, strict=True):
        if not torch.equal(rulebook.bits(got), rulebook.bits(want)):
            return "wrong numbers"
    return "ok"


def run_foreign(rule: str, layout: str) -> str:
    """Take a step with a slot of another variable; return as `run`."""
    memory, rule_case = Memory(), case(rule)
    problem = Problem.make(rule_case.row, [24], [torch.float32], 1)
    if layout == "the variable":
        problem.slots[0][-1] = problem.variables[0]
    elif layout == "the other slot":
        problem.slots[0][-1] = problem.slots[0][0]
    else:
        problem.slots[0][-1] = FOREIGN[layout](memory)
    var_before, memory_before = problem.variables[0].clone(), memory.bytes.copy()
    try:
        take(rule_case, problem, FLUSH)
    except (InvalidArgumentError, LayoutError) as error:
        untouched = torch.equal(var_before, problem.variables[0])
        return type(error).__name__ if untouched else "half a step"
    return "ok" if np.array_equal(memory_before, memory.bytes) else "foreign memory changed"


def attempt(rule: str, role: str, layout: str) -> str:
    """Run one case; return "ok", the class of the error, or the failure."""
    return run_foreign(rule, layout) if role == "foreign slot" else run(rule, role, layout)


def warm() -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", PerformanceWarning)
    for rule_case in FIRST:
        for role in ("variable", "values"):
            attempt(rule_case.rule.name, role, "contiguous")
