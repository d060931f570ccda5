"""One step of the core, by hooks as small as they can be: groups, measures, rounds."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from bit_comparison import assert_same
from thalweg import Hyper, Rule, Slot, Variable, sqrt
from thalweg._core.gradient_transforms import NOTHING, GradientTransforms
from thalweg._core.plan_cache import PlanCache
from thalweg._core.step import plan_step, run_step
from thalweg._core.step_adapter import StepAdapter
from thalweg._core.step_scalars import derived
from thalweg._core.validation import check_pairs
from thalweg._engines import Selection
from thalweg._engines.cpu.launch import Compiled
from thalweg.formula import narrow
from thalweg.rules import ADAM, MOMENTUM

ENGINES = ("cpu", "reference")


class Plain(StepAdapter):
    """A step of a rule with hyperparameters by group."""

    def __init__(
        self,
        rule: Rule,
        slots: dict[int, list[Tensor]],
        engine: Any,
        groups: Sequence[Hashable] | None = None,
        special: dict[Hashable, dict[str, float]] | None = None,
        steps: dict[Hashable, int] | None = None,
    ) -> None:
        super().__init__()
        self._rule, self._slots, self._groups = rule, slots, groups
        self._overrides, self._steps = special or {}, steps or {}
        self.selection = Selection(engine)
        self.requested: list[Hashable] = []

    def step_rule(self) -> Rule:
        return self._rule

    def names_of(self, variables: Sequence[Tensor]) -> list[str]:
        return [f"w{index}" for index in range(len(variables))]

    def check_pairs(self, pairs: Any, narrow: bool) -> None:
        check_pairs(pairs, self.names_of(pairs), scatter=True, narrow=narrow)

    def group_variables(self, variables: Any, gradients: Any) -> Any:
        return self._groups

    def scalars_of(self, dtype: Any, group: Hashable) -> dict[str, Any]:
        self.requested.append((dtype, group))
        hypers = {hyper.name: hyper.default for hyper in self._rule.hypers} | self._overrides.get(
            group, {}
        )
        values = {name: dtype(value) for name, value in hypers.items()}
        return derived(self._rule, values, dtype, self._steps.get(group, 1))

    def slots_of(self, var: Tensor) -> list[Tensor]:
        return self._slots[id(var)]


def made(sizes: Sequence[int], dtypes: Sequence[torch.dtype], rule: Rule) -> Any:
    generator = torch.Generator().manual_seed(3)
    variables = [
        Variable(torch.randn(size, generator=generator).to(dtype))
        for size, dtype in zip(sizes, dtypes, strict=True)
    ]
    kinds = {torch.float64: torch.float64}
    slots = {
        id(var): [
            torch.full((), slot.initial, dtype=kinds.get(var.dtype, torch.float32))
            if slot.scalar
            else torch.full_like(var.detach(), slot.initial)
            for slot in rule.slots
        ]
        for var in variables
    }
    gradients = [torch.randn(var.shape, generator=generator).to(var.dtype) for var in variables]
    return variables, slots, gradients


MIXED = [torch.float32, torch.bfloat16, torch.float64, torch.float32, torch.float32]
SIZES = [300, 17, 40, 1, 70_000]


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("rule", [ADAM, MOMENTUM], ids=lambda rule: rule.name)
def test_groups_in_one_step_equal_single_steps(rule: Rule, engine: str) -> None:
    groups = ["a", "b", "a", "c", "b"]
    special = {"a": {"learning_rate": 0.5}, "b": {"learning_rate": 0.1}, "c": {}}
    steps = {"a": 1, "b": 7, "c": 3}
    variables, slots, gradients = made(SIZES, MIXED, rule)
    hooks = Plain(rule, slots, engine, groups, special, steps)
    run_step(hooks, PlanCache(), list(zip(gradients, variables, strict=True)))
    single_vars, single_slots, single_grads = made(SIZES, MIXED, rule)
    for group in ("a", "b", "c"):
        members = [index for index, name in enumerate(groups) if name == group]
        pairs = [(single_grads[index], single_vars[index]) for index in members]
        single_hooks = Plain(rule, single_slots, engine, [group] * len(members), special, steps)
        run_step(single_hooks, PlanCache(), pairs)
    for var, single in zip(variables, single_vars, strict=True):
        assert_same([var], [single])
        assert_same(slots[id(var)], single_slots[id(single)])
    assert len(hooks.requested) == len(set(hooks.requested))  # prepare runs once for each


def test_all_groups_are_one_kernel_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    variables, slots, gradients = made([64] * 100, [torch.float32] * 100, ADAM)
    groups = list(range(100))
    special = {group: {"learning_rate": 0.01 * (group + 1)} for group in groups}
    launches: list[int] = []
    call = Compiled.bind_table
    monkeypatch.setattr(Compiled, "bind_table", lambda *args: launches.append(1) or call(*args))
    run_step(
        Plain(ADAM, slots, "cpu", groups, special),
        PlanCache(),
        list(zip(gradients, variables, strict=True)),
    )
    assert len(launches) == 1


def per_variable(*, ratio_squares, steps, learning_rate):
    ratio = narrow(sqrt(ratio_squares), like=learning_rate)
    return {"own_rate": learning_rate * ratio, "steps": steps + 1}


def update(var, grad, m, *, own_rate):
    m = m * 0.5 + grad
    return var - own_rate * m, m


def ratio_squares(var, grad, m):
    return (var * grad + m) * (var * grad + m)


MEASURING = Rule(
    name="Measuring",
    update=update,
    measures={"ratio_squares": ratio_squares},
    per_variable=per_variable,
    hypers=(Hyper("learning_rate", 0.01),),
    slots=(Slot("m", 0.25), Slot("steps", 2.0, scalar=True)),
)


@pytest.mark.parametrize(
    "changes", [NOTHING, GradientTransforms(global_clipnorm=0.7)], ids=["plain", "clip"]
)
def test_measures_have_equal_bits_in_both_engines(
    changes: GradientTransforms,
) -> None:
    results = []
    for engine in ENGINES:
        variables, slots, gradients = made(SIZES, MIXED, MEASURING)
        cache = PlanCache()
        for _ in range(3):
            run_step(
                Plain(MEASURING, slots, engine),
                cache,
                list(zip(gradients, variables, strict=True)),
                changes,
            )
        results.append([*variables, *(slot for var in variables for slot in slots[id(var)])])
    assert_same(*results)
    assert [slots[id(var)][1].item() for var in variables] == [5.0] * len(variables)


def test_repeated_variable_is_measured_once_and_updated_twice() -> None:
    var = Variable(torch.tensor([3.0, 4.0]))
    slots = {id(var): [torch.zeros(2), torch.zeros(())]}
    first, second = torch.tensor([1.0, 0.0]), torch.tensor([0.0, 1.0])
    run_step(Plain(MEASURING, slots, "cpu"), PlanCache(), [(first, var), (second, var)])
    rate = np.float32(0.01)
    m = np.array([1.0, 0.0], np.float32)
    expected = np.array([3.0, 4.0], np.float32) - rate * np.float32(3) * m
    expected = expected - rate * np.float32(4) * (m * np.float32(0.5) + np.array([0.0, 1.0]))
    assert var.tolist() == pytest.approx(expected.tolist())
    assert slots[id(var)][1].item() == 2.0


@pytest.mark.parametrize("is_refused", [False, True])
def test_a_plan_that_is_refused_creates_no_state(is_refused: bool) -> None:
    class Recording(Plain):
        created: list[Tensor] = []

        def one_by_one(self, pairs: Any) -> bool:
            return is_refused

        def create_state(self, variables: Sequence[Tensor]) -> None:
            self.created = [*variables]

    variables, slots, gradients = made([4], [torch.float32], MOMENTUM)
    adapter = Recording(MOMENTUM, slots, "reference")
    pairs = list(zip(gradients, variables, strict=True))
    plan = plan_step(adapter, PlanCache(), pairs, NOTHING, None)
    assert (plan is None) == is_refused
    assert len(adapter.created) == (not is_refused)
