"""Steps after memory has moved, or state was set, give the bits of a fresh optimizer."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import thalweg
from bit_comparison import assert_same
from keras_table import ROWS, Row, assert_same_bits, both_engines, snapshot
from thalweg.keras.optimizers import Adam, RMSprop

GRADIENTS = [torch.tensor([0.5, -1.0, 2.0, 0.25]) * k for k in (1.0, -0.5, 2.0, 0.75)]


def step(opt: Any, module: torch.nn.Module, number: int) -> None:
    module.weight.grad = GRADIENTS[number].to(module.weight.dtype).clone()
    opt.apply_gradients([(module.weight.grad, module.weight)])


def made(row: Row, engine: str) -> tuple[Any, torch.nn.Module]:
    module = torch.nn.Module()
    module.weight = torch.nn.Parameter(torch.tensor([1.0, 2.0, -1.0, 0.0]))
    opt = row.make()
    opt.engine = engine
    step(opt, module, 0), step(opt, module, 1)
    return opt, module


def fresh(row: Row, opt: Any, module: torch.nn.Module) -> tuple[Any, torch.nn.Module]:
    twin = torch.nn.Module()
    twin.weight = torch.nn.Parameter(module.weight.detach().clone())
    twin_opt = row.make()
    twin_opt.engine = "reference"
    twin_opt.load_state_dict(opt.state_dict(), [twin.weight])
    return twin_opt, twin


def data_replaced(opt: Any, module: Any) -> None:
    module.weight.data = module.weight.data.clone() + 1


def data_of_another_layout(opt: Any, module: Any) -> None:
    module.weight.data = torch.stack([module.weight.data, module.weight.data], 1)[:, 0]


def gradient_none(opt: Any, module: Any) -> None:
    module.zero_grad(set_to_none=True)
    torch.empty(4).fill_(7)  # takes the memory that was the gradient's


def slot_assigned(opt: Any, module: Any) -> None:
    for name in opt.get_slot_names():
        opt.get_slot(module.weight, name).assign(torch.full((4,), 0.5))


def slot_data_replaced(opt: Any, module: Any) -> None:
    for name in opt.get_slot_names():
        slot = opt.get_slot(module.weight, name)
        slot.data = slot.data * 0.5 + 1


def weights_set(opt: Any, module: Any) -> None:
    opt.set_weights([value * 2 for value in opt.get_weights()])


def state_loaded(opt: Any, module: Any) -> None:
    state = opt.state_dict()
    step(opt, module, 3)
    opt.load_state_dict(state)


def written_in_place(opt: Any, module: Any) -> None:
    with torch.no_grad():
        module.weight.mul_(0.5)


def swapped(opt: Any, module: Any) -> None:
    torch.utils.swap_tensors(module.weight, torch.nn.Parameter(torch.full((4,), 3.0)))


def resized_and_back(opt: Any, module: Any) -> None:
    original = module.weight.detach().clone()
    module.weight.data = torch.zeros(9)
    module.weight.data = original


MOVES: list[Callable[[Any, Any], None]] = [
    data_replaced,
    data_of_another_layout,
    gradient_none,
    slot_assigned,
    slot_data_replaced,
    weights_set,
    state_loaded,
    written_in_place,
    swapped,
    resized_and_back,
]


@pytest.mark.one_in(3)
@both_engines
@pytest.mark.parametrize("row", [ROWS[0], ROWS[5], ROWS[7]], ids=lambda row: row.name)
@pytest.mark.parametrize("move", MOVES, ids=lambda move: move.__name__)
@pytest.mark.filterwarnings("ignore::thalweg.PerformanceWarning")
def test_steps_after_move_equal_a_fresh_optimizer(row: Row, engine: str, move: Any) -> None:
    opt, module = made(row, engine)
    move(opt, module)
    twin_opt, twin = fresh(row, opt, module)
    for number in (2, 3):
        step(opt, module, number), step(twin_opt, twin, number)
        assert_same([module.weight], [twin.weight])
    for name in opt.get_slot_names():
        slots = opt.get_slot(module.weight, name), twin_opt.get_slot(twin.weight, name)
        assert torch.equal(*slots)


@pytest.mark.parametrize("shape", [(6,), (2,), (2, 2), (4, 1)])
@pytest.mark.parametrize("engine", ["reference", "cpu"])
def test_changed_shape_raises(engine: str, shape: tuple[int, ...]) -> None:
    refused_with_gradient_of(shape, shape, engine)


@pytest.mark.parametrize(
    ("engine", "shape"),
    [
        ("reference", (6,)),
        ("reference", (2,)),
        ("reference", (2, 2)),
        ("reference", (4, 1)),
        ("cpu", (6,)),
        ("cpu", (2,)),
        ("cpu", (2, 2)),
        ("cpu", (4, 1)),
    ],
)
def test_changed_shape_with_old_gradient_raises(engine: str, shape: tuple[int, ...]) -> None:
    refused_with_gradient_of((4,), shape, engine)


def refused_with_gradient_of(wrong: tuple[int, ...], shape: tuple[int, ...], engine: str) -> None:
    opt, module = made(ROWS[5], engine)
    data = torch.ones(8) if shape == (6,) else module.weight.data
    module.weight.data = data[: math.prod(shape)].reshape(shape)
    state_before = snapshot(opt, [module.weight])
    with pytest.raises(ValueError, match=r"has shape .*\(4,\)"):
        opt.apply_gradients([(torch.ones(wrong), module.weight)])
    assert_same_bits(snapshot(opt, [module.weight]), state_before)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_module_to_another_dtype_keeps_its_slots(row: Row, dtype: torch.dtype) -> None:
    (opt, module), (plain_opt, twin) = made(row, "cpu"), made(row, "reference")
    module.to(dtype), twin.to(dtype)
    for number in (2, 3):
        step(opt, module, number), step(plain_opt, twin, number)
    assert module.weight.dtype == dtype
    assert_same([module.weight], [twin.weight])
    assert opt.get_slot(module.weight, row.slots[0]).dtype == torch.float32


@both_engines
def test_module_to_another_dtype_steps_without_slots(engine: str) -> None:
    module = torch.nn.Linear(2, 1, bias=False)
    opt = thalweg.keras.optimizers.SGD(0.5)
    opt.engine = engine
    opt.apply_gradients([(torch.ones(1, 2), module.weight)])
    module.to(torch.float64)
    old = module.weight.detach().clone()
    opt.apply_gradients([(torch.ones(1, 2, dtype=torch.float64), module.weight)])
    assert_same([module.weight], [old - 0.5])


@both_engines
def test_gradients_of_other_layouts_equal_the_reference(engine: str) -> None:
    opt, w = RMSprop(0.1), thalweg.Variable(np.ones(6, "f4"))
    plain_opt, twin = RMSprop(0.1), thalweg.Variable(np.ones(6, "f4"))
    opt.engine, plain_opt.engine = engine, "reference"
    wide = torch.arange(12.0).reshape(6, 2)
    for grad in (wide[:, 0].clone(), wide[:, 1], wide.flip(0)[:, 0], torch.ones(1).expand(6)):
        opt.apply_gradients([(grad, w)]), plain_opt.apply_gradients([(grad, twin)])
        assert_same([w], [twin])


@both_engines
def test_freed_variables_are_not_confused_with_new_ones(engine: str) -> None:
    opt = Adam(0.5)
    opt.engine = engine
    for _ in range(20):
        w = thalweg.Variable(np.zeros(3, "f4"))
        opt.apply_gradients([(torch.ones(3), w)])
        assert (opt.get_slot(w, "m").numpy() == np.float32(1) - np.float32(0.9)).all()
        del w


@both_engines
def test_backward_through_an_older_graph_raises(engine: str) -> None:
    w, opt = thalweg.Variable([1.0, 2.0]), Adam()
    opt.engine = engine
    loss = (w * w).sum()
    opt.apply_gradients([(torch.ones(2), w)])
    opt.apply_gradients([(torch.ones(2), w)])
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_slots_of_one_block_share_a_version_counter() -> None:
    variables, opt = [thalweg.Variable([1.0, 2.0], name) for name in "ab"], Adam()
    opt.apply_gradients([(torch.ones(2), var) for var in variables])
    first, second = (opt.get_slot(var, "m") for var in variables)
    graph = (first * torch.ones(2, requires_grad=True)).sum()
    version_before = first._version
    second.assign([3.0, 4.0])
    assert first._version > version_before
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        graph.backward()
