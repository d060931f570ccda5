"""Slots are loaded by name, or nothing is: twelve slips with the state of every rule."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from case_batches import many
from files import through_a_file
from openseq2seq_small import make_step
from openseq2seq_steps import PARAMS, RULES
from thalweg import CheckpointMismatchError, Variable
from thalweg._cli.registry import applied, by_class, by_rule, named
from thalweg.keras.optimizers import Optimizer as KerasOptimizer
from thalweg.v1 import train
from thalweg.v1.contrib.opt import (
    MovingAverageOptimizer,
    VariableClippingOptimizer,
    extend_with_decoupled_weight_decay,
)
from thalweg.variable import dtype_name

Slots = dict[str, Tensor]  # by "variable/slot"
SHARED = sorted(by_class().keys() - by_rule().keys())  # classes that share a rule with another
SHAPES = {"a": (3,), "b": (2, 3), "c": (3,)}


class OfRule:
    """Three variables and an optimizer, in Keras or `thalweg.v1`."""

    def __init__(self, name: str) -> None:
        self.own = {key: Variable(torch.ones(shape), key) for key, shape in SHAPES.items()}
        self.optimizer = self.made(name)
        self.is_keras = isinstance(self.optimizer, KerasOptimizer)
        self.prefix = "" if self.is_keras else f"The state of {self.optimizer._name}: "

    def made(self, name: str) -> Any:
        return named(name).make(0.1)

    def step(self, number: int) -> None:
        generator = torch.Generator().manual_seed(number)
        applied(self.optimizer)(
            [(torch.randn(var.shape, generator=generator), var) for var in self.own.values()]
        )

    def state(self) -> dict[str, Any]:
        return self.optimizer.state_dict()

    def load(self, state: dict[str, Any], order: str) -> None:
        self.optimizer.load_state_dict(state, [self.own[key] for key in order])

    def slots(self, state: dict[str, Any]) -> Slots:
        if not self.is_keras:
            return {name: value for name, value in state.items() if "/" in name}
        return {
            f"{key.removesuffix(':0')}/{name}": value
            for key, slots in state["slots"].items()
            for name, value in slots.items()
        }

    def with_slots(self, state: dict[str, Any], slots: Slots) -> dict[str, Any]:
        if not self.is_keras:
            return slots | {name: value for name, value in state.items() if "/" not in name}
        nested: dict[str, Slots] = {}
        for name, value in slots.items():
            owner, slot = name.split("/")
            nested.setdefault(f"{owner}:0", {})[slot] = value
        return {**state, "slots": nested}


class Around(OfRule):
    """Three variables and an optimizer of `thalweg.v1` around another."""

    def made(self, name: str) -> Any:
        return WRAPPERS[name](self.own)


WRAPPERS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "averages of Adam": lambda params: MovingAverageOptimizer(train.AdamOptimizer()),
    "averages without slots": lambda params: MovingAverageOptimizer(
        train.GradientDescentOptimizer(0.1)
    ),
    "short averages": lambda params: MovingAverageOptimizer(
        VariableClippingOptimizer(train.AdagradOptimizer(0.1), {params["b"]: [1]}, 0.5)
    ),
    "Adagrad with decay": lambda params: extend_with_decoupled_weight_decay(train.AdagradOptimizer)(
        0.1, 0.1
    ),
}


class OfAverages(OfRule):
    """Three variables and their averages."""

    def made(self, name: str) -> Any:
        return train.ExponentialMovingAverage(0.5)

    def step(self, number: int) -> None:
        for var in self.own.values():
            var.assign_add(torch.full(var.shape, float(number)))
        self.optimizer.apply(self.own.values())


class OfLoss(OfRule):
    """Three float16 variables with masters, and a step of `optimize_loss`."""

    is_keras = False
    prefix = "The state of this training: "

    def __init__(self, rule: str) -> None:
        self.own = {key: Variable(torch.ones(shape).half(), key) for key, shape in SHAPES.items()}
        params = dict(PARAMS.get(rule, {}))
        self.optimizer = make_step(list(self.own.values()), self.inside(rule), 0.1, params=params)

    def inside(self, rule: str) -> Any:
        return RULES[rule]

    def step(self, number: int) -> None:
        generator = torch.Generator().manual_seed(number)
        shapes = [var.shape for var in self.own.values()]
        self.optimizer.apply_gradients(
            [torch.randn(shape, generator=generator).half() for shape in shapes]
        )

    def load(self, state: dict[str, Any], order: str) -> None:
        self.optimizer.load_state_dict(state)


class OfAveragesInLoss(OfLoss):
    """Averages of the masters of a mixed training."""

    def inside(self, rule: str) -> Any:
        return lambda learning_rate: MovingAverageOptimizer(train.AdamOptimizer(learning_rate))


class OfWrapper(OfAveragesInLoss):
    """State of the `MixedPrecisionOptimizerWrapper`."""

    def __init__(self, rule: str) -> None:
        super().__init__(rule)
        self.training, self.optimizer = self.optimizer, self.optimizer.optimizer

    def step(self, number: int) -> None:
        self.training, self.optimizer = self.optimizer, self.training
        super().step(number)
        self.training, self.optimizer = self.optimizer, self.training

    def load(self, state: dict[str, Any], order: str) -> None:
        self.optimizer.load_state_dict(state, list(self.own.values()))


MAKERS: dict[str, Callable[[], Any]] = {
    **{name: partial(OfRule, name) for name in [*by_rule(), *SHARED]},
    **{name: partial(Around, name) for name in WRAPPERS},
    "averages": partial(OfAverages, "averages"),
    **{f"optimize_loss {name}": partial(OfLoss, name) for name in RULES},
    "optimize_loss of averages": partial(OfAveragesInLoss, "averages"),
    "mixed averages": partial(OfWrapper, "averages"),
}
WITHOUT_SLOTS = {name for name in [*by_rule(), *SHARED] if not named(name).rule.slots}


def exchanged(slots: Slots, first: str, second: str) -> Slots:
    turn = {first: second, second: first}
    return {
        name: slots["/".join([turn.get(owner, owner), slot])]
        for name in slots
        for owner, slot in [name.split("/")]
    }


def renamed(slots: Slots, old: str, new: str) -> Slots:
    return {name.replace(old, new, 1): value for name, value in slots.items()}


def of(slots: Slots, variable_name: str) -> list[str]:
    return [name for name in slots if name.startswith(f"{variable_name}/")]


def without(slots: Slots, *names: str) -> Slots:
    return {name: value for name, value in slots.items() if name not in names}


def kind(tensor: Tensor) -> str:
    return f"{dtype_name(tensor.dtype)} of shape {tuple(tensor.shape)}"


def differences(slots: Slots, expected: Slots) -> list[str]:
    """Return the expected complaints about a state, in the order of the slots."""
    lines = []
    for name, slot in slots.items():
        if name not in expected:
            lines.append(f"'{name}' is missing")
        elif kind(expected[name]) != kind(slot):
            lines.append(f"'{name}' is {kind(expected[name])}, not {kind(slot)}")
    return lines + [f"'{name}' belongs to nothing here" for name in expected if name not in slots]


@dataclass(frozen=True)
class Slip:
    """A change of the slots of a state.

    Attributes:
        change: Makes the slots that are given of those that were saved.
        loads: Whether names allow it.
        wants_slots: Whether it changes nothing where there are no slots.
    """

    change: Callable[[Slots], Slots]
    loads: bool = False
    wants_slots: bool = True


def with_last_of(variable_name: str, change: Callable[..., Any]) -> Callable[[Slots], Slots]:
    """Has the last slot of a variable changed; the last of any is of the variable's shape."""

    def changed(slots: Slots) -> Slots:
        name = max(of(slots, variable_name), key=lambda name: slots[name].numel())
        return {**slots, name: change(slots[name])}

    return changed


SLIPS = {
    "in another order": Slip(lambda slots: dict(reversed(slots.items())), True),
    "exchanged by variables of one shape": Slip(lambda slots: exchanged(slots, "a", "c"), True),
    "exchanged by variables of two shapes": Slip(lambda slots: exchanged(slots, "a", "b")),
    "of a renamed variable": Slip(lambda slots: renamed(slots, "a/", "d/")),
    "renamed": Slip(lambda slots: renamed(slots, of(slots, "b")[-1], "b/other")),
    "of a variable missing": Slip(lambda slots: without(slots, *of(slots, "b"))),
    "missing": Slip(lambda slots: without(slots, of(slots, "c")[0])),
    "one more": Slip(lambda slots: {**slots, "a/more": torch.zeros(3)}, wants_slots=False),
    "of one more variable": Slip(lambda slots: {**slots, "d/m": torch.zeros(3)}, wants_slots=False),
    "longer": Slip(with_last_of("a", lambda slot: torch.cat([slot, slot]))),
    "of as many elements": Slip(with_last_of("b", lambda slot: slot.reshape(3, 2))),
    "broadcastable": Slip(with_last_of("b", lambda slot: slot[0])),
    "of another dtype": Slip(with_last_of("c", torch.Tensor.double)),
}


def bits(training: Any) -> dict[str, bytes]:
    tensors = {**training.own, **training.state(), **training.slots(training.state())}
    return {
        name: tensor.detach().reshape(-1).view(torch.uint8).numpy().tobytes()
        for name, tensor in tensors.items()
        if isinstance(tensor, Tensor)
    }


@pytest.mark.parametrize("name", MAKERS)
@many("slip", SLIPS)
@pytest.mark.one_in(7)
def test_slots_are_loaded_by_name_or_not_at_all(name: str, slip: str) -> None:
    make, change = MAKERS[name], SLIPS[slip]
    if change.wants_slots and name in WITHOUT_SLOTS:
        return
    training, fresh = make(), make()
    training.step(0), training.step(1)
    state = through_a_file(training.state())
    training.step(2)
    slots = training.slots(state)
    new_slots = change.change(dict(slots))
    new_state = training.with_slots(state, new_slots)
    for target in (training, fresh):
        bits_before = bits(target)
        if change.loads:
            target.load(new_state, "cab")
            loaded_slots = target.slots(target.state())
            assert loaded_slots.keys() == new_slots.keys()
            assert all(torch.equal(loaded_slots[name], new_slots[name]) for name in new_slots)
            continue
        with pytest.raises(CheckpointMismatchError) as raised:
            target.load(new_state, "abc")
        lines = differences(slots, new_slots)
        if len(lines) > 10:
            lines[10:] = [f"and {len(lines) - 10} more"]
        assert str(raised.value) == f"{target.prefix}{'; '.join(lines)}. Nothing was loaded."
        assert bits(target) == bits_before
