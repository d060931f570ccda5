"""An exception in the user's code: a step of `thalweg.v1` is taken as a whole or not at all."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from failing_callable import NOT_TAKEN, Fuse, errors
from thalweg import IndexedSlices, Variable
from thalweg.v1 import train
from thalweg.v1.contrib import opt as contrib
from thalweg.v1.contrib.opt import extend_with_decoupled_weight_decay

afterwards = pytest.mark.parametrize("steps", [0, 3], ids=["first step", "fourth step"])
TABLE = (4, 2)


class Hooked(train.AdamOptimizer):
    """Adam with one hook that may fail, after its work is done; at "b" where it comes twice."""

    def __init__(self, fuse: Fuse, hook: str) -> None:
        super().__init__(0.1)
        self.fuse, self.hook = fuse, hook

    def at(self, hook: str, var: Any = None) -> None:
        if hook == self.hook and getattr(var, "name", "b:0") in ("b:0", "table:0"):
            self.fuse()

    def _create_slots(self, var_list: Any) -> None:
        super()._create_slots(var_list)
        self.at("_create_slots")

    def _prepare(self) -> None:
        super()._prepare()
        self.at("_prepare")

    def _valid_dtypes(self) -> Any:
        self.at("_valid_dtypes")
        return super()._valid_dtypes()

    def _finish(self, update_ops: list[Any], name_scope: str) -> Any:
        super()._finish(update_ops, name_scope)
        self.at("_finish")


class Dense(Hooked):
    def _apply_dense(self, grad: Any, var: Any) -> Any:
        super()._apply_dense(grad, var)
        self.at("_apply_dense", var)

    def _resource_apply_dense(self, grad: Any, handle: Any) -> Any:
        super()._resource_apply_dense(grad, handle)
        self.at("_resource_apply_dense", handle)


class Sparse(Hooked):
    def _resource_apply_sparse(self, grad: Any, handle: Any, indices: Any) -> Any:
        super()._resource_apply_sparse(grad, handle, indices)
        self.at("_resource_apply_sparse", handle)


def decayed(fuse: Fuse) -> Any:
    return extend_with_decoupled_weight_decay(Dense)(0.1, fuse, "_resource_apply_dense")


# Each makes an optimizer of a fuse, which burns within a step.
SITES: dict[str, Callable[[Fuse], Any]] = {
    "learning rate": lambda fuse: train.AdamOptimizer(lambda: fuse(0.5)),
    "hyperparameter": lambda fuse: train.AdamOptimizer(beta1=lambda: fuse(0.5)),
    "momentum": lambda fuse: train.MomentumOptimizer(0.5, lambda: fuse(0.5)),
    "weight decay": lambda fuse: contrib.AdamWOptimizer(lambda: fuse(0.5)),
    "_create_slots": lambda fuse: Hooked(fuse, "_create_slots"),
    "_prepare": lambda fuse: Hooked(fuse, "_prepare"),
    "_resource_apply_dense": lambda fuse: Dense(fuse, "_resource_apply_dense"),
    "_resource_apply_sparse": lambda fuse: Sparse(fuse, "_resource_apply_sparse"),
    "an update after its decay": decayed,
}
CASES = [
    pytest.param(make, steps, id=f"{site}, {description}")
    for site, make in SITES.items()
    for steps, description in ((0, "first step"), (3, "fourth step"))
    if not (site == "_create_slots" and steps)  # there are slots by then
]


class Training:
    """Two variables and a table with an optimizer that may fail, and a counter."""

    def __init__(self, make: Callable[..., Any], error: type[BaseException], **options: Any):
        self.fuse = Fuse(error)
        self.optimizer = make(self.fuse)
        self.variables = [
            Variable(torch.ones(3), "a"),
            Variable(torch.ones(2, 3), "b", **options),
            Variable(torch.ones(TABLE), "table"),
        ]
        self.counter = Variable(torch.zeros((), dtype=torch.int64), "step", trainable=False)

    def step(self, number: int) -> None:
        a, b, _ = (torch.full(var.shape, 1.0 + number) for var in self.variables)
        rows = IndexedSlices(torch.full((3, 2), 2.0 + number), torch.tensor([2, 0, 2]), TABLE)
        self.optimizer.apply_gradients(zip([a, b, rows], self.variables, strict=True), self.counter)

    def steps(self, first: int, count: int) -> None:
        for number in range(first, first + count):
            self.step(number)

    def bits(self) -> dict[str, bytes]:
        tensors = {var.name: var for var in self.variables} | self.optimizer.state_dict()
        tensors["counter"] = self.counter
        return {name: bytes_of(tensor) for name, tensor in tensors.items()}

    def burn(self, call: Callable[..., Any]) -> BaseException:
        self.fuse.lit = True
        with pytest.raises(self.fuse.error, match="burnt") as raised:
            call()
        self.fuse.lit = False
        return raised.value


def bytes_of(tensor: Tensor) -> bytes:
    return tensor.detach().reshape(-1).view(torch.uint8).numpy().tobytes()


@pytest.mark.one_in(3)
@errors
@pytest.mark.parametrize(("make", "steps"), CASES)
def test_interrupted_step_is_not_taken(make: Any, steps: int, error: Any) -> None:
    training, twin = Training(make, error), Training(make, error)
    training.steps(0, steps), twin.steps(0, steps)
    bits_before = training.bits()
    failure = training.burn(lambda: training.step(9))
    assert failure.__notes__ == [NOT_TAKEN]
    bits_after = training.bits()
    assert {name: bits_after[name] for name in bits_before} == bits_before
    assert steps or not training.counter
    training.steps(steps, 2), twin.steps(steps, 2)  # as if nothing had happened
    assert training.bits() == twin.bits()


@pytest.mark.one_in(3)
@errors
@afterwards
@pytest.mark.parametrize(
    ("site", "gate"), [("loss", 0), ("loss", 1), ("loss", 2), ("_valid_dtypes", 1)]
)
def test_failing_gradients_change_nothing(site: str, gate: int, steps: int, error: Any) -> None:
    training = Training(lambda fuse: Hooked(fuse, site), error)
    training.steps(0, steps)
    bits_before = training.bits()

    def loss() -> Any:
        loss_value = sum(var.square().sum() for var in training.variables)
        return training.fuse(loss_value) if site == "loss" else loss_value

    def minimize() -> None:
        training.optimizer.minimize(loss, training.counter, training.variables, gate_gradients=gate)

    training.burn(minimize)
    assert training.bits() == bits_before
    minimize()
    assert training.counter == steps + 1


COMMITTED = {
    "_finish": (
        lambda fuse: Hooked(fuse, "_finish"),
        {},
        "The step was taken, but `_finish` failed.",
    ),
    "constraint": (
        lambda fuse: train.AdamOptimizer(0.1),
        {"constraint": lambda training, value: training.fuse(value)},
        "The step was taken, but without the constraint of 'b:0'.",
    ),
}


@errors
@afterwards
@pytest.mark.parametrize(("make", "options", "note"), COMMITTED.values(), ids=COMMITTED)
def test_interrupted_step_is_atomic(
    make: Any, options: dict[str, Any], note: str, steps: int, error: Any
) -> None:
    pair: list[Training] = []
    for place in range(2):
        bound = {
            name: lambda value, call=call, place=place: call(pair[place], value)
            for name, call in options.items()
        }
        pair.append(Training(make, error, **bound))
    training, twin = pair
    training.steps(0, steps), twin.steps(0, steps + 1)
    failure = training.burn(lambda: training.step(steps))
    assert failure.__notes__ == [note]
    assert training.bits() == twin.bits()
