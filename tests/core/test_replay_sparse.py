"""Sparse steps like the one before take a short way: the same bits, the same refusals."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch

from bit_comparison import assert_same
from thalweg import IndexedSlices, Variable
from thalweg._core import step as core_step
from thalweg._engines import Dispatcher
from thalweg._engines.cpu import sparse as sparse_engine
from thalweg.keras.optimizers import SGD, Adagrad, Adam, Adamax, Ftrl, Optimizer

ROWS, WIDTH = 12, 5

MAKE: dict[str, Callable[..., Optimizer]] = {
    "SGD": lambda **kw: SGD(0.1, **kw),
    "Momentum": lambda **kw: SGD(0.1, momentum=0.9, **kw),
    "Adagrad": lambda **kw: Adagrad(0.1, **kw),
    "Adam": lambda **kw: Adam(0.1, **kw),
    "Adamax": lambda **kw: Adamax(0.1, **kw),
    "Ftrl": lambda **kw: Ftrl(0.1, **kw),
}
CLIPPED = {"clipvalue": 0.3, "clipnorm": 0.5, "global_clipnorm": 0.5}


def coo(indices: list[int], values: torch.Tensor) -> torch.Tensor:
    size = (ROWS, *values.shape[1:])
    return torch.sparse_coo_tensor(
        torch.tensor([indices]), values, size, check_invariants=False
    )  # fmt: skip


def slices32(indices: list[int], values: torch.Tensor) -> IndexedSlices:
    return IndexedSlices(values, torch.tensor(indices, dtype=torch.int32))


def slices64(indices: list[int], values: torch.Tensor) -> IndexedSlices:
    return IndexedSlices(values, torch.tensor(indices), (ROWS, *values.shape[1:]))


def embedded(indices: list[int], values: torch.Tensor) -> Any:
    table = torch.zeros(ROWS, WIDTH, requires_grad=True)
    embedded_rows = torch.nn.functional.embedding(torch.tensor(indices), table, sparse=True)
    (embedded_rows * values).sum().backward()
    return table.grad


KINDS = [coo, slices32, slices64, embedded]
BATCHES = [[3, 0, 3, 11], [1], [7, 7, 7, 2, 0, 7, 2, 5, 5, 11], [4, 3, 2, 1], [0, 11, 0, 11, 6]]


def values_of(count: int, seed: int) -> torch.Tensor:
    return torch.randn(count, WIDTH, generator=torch.Generator().manual_seed(seed))


class Training:
    """A table, and if wanted a dense variable before it, trained by one optimizer."""

    def __init__(self, opt: Optimizer, engine: str, dense: bool = False) -> None:
        self.opt, self.dense = opt, dense
        opt.engine = engine  # type: ignore[assignment]
        self.table = Variable(values_of(ROWS, 99), name="table")
        self.bias = Variable(values_of(3, 98), name="bias")

    def step(self, number: int, kind: Callable[..., Any]) -> None:
        indices = BATCHES[number % len(BATCHES)]
        pairs = [(kind(indices, values_of(len(indices), number)), self.table)]
        if self.dense:
            pairs.insert(0, (values_of(3, number), self.bias))
        self.opt.apply_gradients(pairs)

    def state(self) -> list[torch.Tensor]:
        return [tensor.detach().clone() for tensor in (self.table, self.bias, *self.opt.weights)]


def refuse(*_: Any, **__: Any) -> None:
    raise AssertionError("the careful path was taken")


@pytest.mark.one_in(3)
@pytest.mark.parametrize("dense", [False, True], ids=["alone", "beside a dense one"])
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("make", MAKE.values(), ids=MAKE)
def test_replayed_sparse_steps_equal_the_reference(make, kind, dense, monkeypatch):
    fast = Training(make(), "cpu", dense)
    reference_training = Training(make(), "reference", dense)
    fast.step(0, kind), reference_training.step(0, kind)
    with monkeypatch.context() as patch:
        patch.setattr(Dispatcher, "plan_step", refuse)
        for number in range(1, 7):
            fast.step(number, kind)
    for number in range(1, 7):
        reference_training.step(number, kind)
    assert_same(fast.state(), reference_training.state())


@pytest.mark.one_in(3)
@pytest.mark.parametrize("dense", [False, True], ids=["alone", "beside a dense one"])
@pytest.mark.parametrize("clipping", CLIPPED.items(), ids=CLIPPED)
def test_replayed_sparse_steps_are_clipped(clipping, dense, monkeypatch):
    options = dict([clipping])
    fast = Training(Adagrad(0.1, **options), "cpu", dense)
    careful = Training(Adagrad(0.1, **options), "cpu", dense)
    fast.step(0, coo), careful.step(0, coo)
    for number in range(1, 4):
        with monkeypatch.context() as patch:
            patch.setattr(Dispatcher, "plan_step", refuse)
            fast.step(number, coo)
        with monkeypatch.context() as patch:
            patch.setattr(core_step, "rebind_plan", lambda *_: None)
            careful.step(number, coo)
    assert_same(fast.state(), careful.state())


# What does not fit, after two steps that did

UNIT = torch.ones(1, WIDTH)


def changed(name: str, value: Any) -> Callable[[Training], Any]:
    """Slices whose parts were exchanged after they were made."""

    def make(_: Training) -> IndexedSlices:
        slices = slices64([2], UNIT)
        setattr(slices, name, value)
        return slices

    return make


BAD_GRADIENTS: dict[str, tuple[Callable[[Training], Any], type[Exception], str]] = {
    "index too large": (lambda _: coo([1, ROWS], values_of(2, 0)), ValueError, "out of range"),
    "index below zero": (lambda _: slices32([1, -1], values_of(2, 0)), ValueError, "out of range"),
    "another dtype": (lambda _: coo([1], UNIT.double()), TypeError, "is float64 but the variable"),
    "wider rows": (lambda _: slices32([1], torch.ones(1, 6)), ValueError, "has rows of shape"),
    "flat rows": (lambda _: slices32([1], torch.ones(1)), ValueError, "has rows of shape"),
    "another table": (
        lambda _: torch.sparse_coo_tensor([[1]], UNIT, (ROWS + 1, WIDTH), check_invariants=True),
        ValueError, "has shape (13, 5) but",
    ),
    "a dense one of another shape": (lambda _: torch.ones(2, WIDTH), ValueError, "has shape"),
    "values without memory": (changed("values", UNIT.to("meta")), ValueError, "on meta"),
}  # fmt: skip


@pytest.mark.parametrize("dense", [False, True], ids=["alone", "beside a dense one"])
@pytest.mark.parametrize(("make_grad", "error", "text"), BAD_GRADIENTS.values(), ids=BAD_GRADIENTS)
def test_a_bad_gradient_raises_and_changes_nothing(make_grad, error, text, dense):
    training = Training(Adagrad(0.1), "cpu", dense)
    training.step(0, coo), training.step(1, coo)
    state_before = training.state()
    pairs = [(make_grad(training), training.table)]
    if dense:
        pairs.insert(0, (torch.ones(3, WIDTH), training.bias))
    with pytest.raises(error) as error_info:
        training.opt.apply_gradients(pairs)
    assert text in str(error_info.value)
    assert_same(training.state(), state_before)
    training.step(2, coo)


def test_shrunken_gradient_raises():
    training = Training(Adagrad(0.1), "cpu")
    training.step(0, coo), training.step(1, coo)
    state_before = training.state()
    values = torch.ones(4, WIDTH)
    grad = slices64([0, 1, 2, 3], values)
    values.untyped_storage().resize_(8)
    with pytest.raises(ValueError, match="has no memory that holds its 20 elements"):
        training.opt.apply_gradients([(grad, training.table)])
    assert_same(training.state(), state_before)


def test_constraint_set_later_raises():
    training = Training(Adagrad(0.1), "cpu")
    training.step(0, coo), training.step(1, coo)
    state_before = training.state()
    training.table.constraint = torch.relu  # type: ignore[misc]
    with pytest.raises(RuntimeError, match="constraint function on a sparse variable"):
        training.step(2, coo)
    assert_same(training.state(), state_before)


# What fits in another way


def table_rows(training: Training) -> Any:
    return slices64([1, 2, 0], training.table[:3].detach())


def slot_rows(training: Training) -> Any:
    slot = training.opt.get_slot(training.table, "accumulator")
    return slices64([1, 2, 0], slot[:3].detach())


def bias_rows(training: Training) -> Any:
    return slices64([0, 1, 0], training.bias.detach())


def columns(_: Training) -> Any:
    return slices64([0, 1, 0], values_of(6, 5)[::2])


def negated(_: Training) -> Any:
    return slices64([0, 1, 0], torch._neg_view(values_of(3, 5)))


def with_history(_: Training) -> Any:
    return slices64([0, 1, 0], values_of(3, 5).requires_grad_() * 2)


def every_other_index(_: Training) -> Any:
    return IndexedSlices(values_of(3, 5), torch.tensor([0, 9, 1, 9, 0, 9])[::2])


def nothing(_: Training) -> Any:
    return IndexedSlices(torch.ones(0, WIDTH), torch.tensor([], dtype=torch.int64))


def whole(_: Training) -> Any:
    return values_of(ROWS, 5)


GRADIENTS = [
    table_rows, slot_rows, bias_rows, columns, negated, with_history, every_other_index, nothing,
    whole,
]  # fmt: skip


@pytest.mark.parametrize("dense", [False, True], ids=["alone", "beside a dense one"])
@pytest.mark.parametrize("make_grad", GRADIENTS, ids=lambda make_grad: make_grad.__name__)
def test_other_gradients_between_replays_equal_the_reference(make_grad, dense):
    trainings = [Training(Adagrad(0.1), engine, dense) for engine in ("cpu", "reference")]
    for training in trainings:
        training.step(0, coo), training.step(1, coo)
        pairs = [(make_grad(training), training.table)]
        if dense:
            pairs.insert(0, (values_of(3, 7), training.bias))
        training.opt.apply_gradients(pairs)
        training.step(2, coo)
    assert_same(*[training.state() for training in trainings])


def test_a_dense_gradient_in_the_table_is_copied_first():
    trainings = [Training(Adagrad(0.1), engine, True) for engine in ("cpu", "reference")]
    for training in trainings:
        training.step(0, coo), training.step(1, coo)
        grad = coo([0, 2, 0], values_of(3, 5))
        training.opt.apply_gradients(
            [(training.table[:3].detach(), training.bias), (grad, training.table)]
        )
    assert_same(*[training.state() for training in trainings])


def moved(training: Training) -> None:
    training.table.data = training.table.data.clone() + 1


def slot_moved(training: Training) -> None:
    slot = training.opt.get_slot(training.table, "accumulator")
    slot.data = slot.data * 2


def slot_set(training: Training) -> None:
    training.opt.get_slot(training.table, "accumulator").assign(torch.ones(ROWS, WIDTH))


def transposed(training: Training) -> None:
    data = training.table.data
    training.table.data = data.t().contiguous().t()


def transposed_in_place(training: Training) -> None:
    training.table.data = training.table.data.as_strided((ROWS, WIDTH), (1, ROWS))


def reloaded(training: Training) -> None:
    training.opt.load_state_dict(training.opt.state_dict())


@pytest.mark.parametrize(
    "change", [moved, slot_moved, slot_set, transposed, transposed_in_place, reloaded]
)
@pytest.mark.filterwarnings("ignore::thalweg.PerformanceWarning")
def test_steps_continue_after_memory_moved(change):
    trainings = [Training(Adagrad(0.1), engine, True) for engine in ("cpu", "reference")]
    for training in trainings:
        training.step(0, coo), training.step(1, coo)
        change(training)
        training.step(2, coo), training.step(3, coo)
    assert_same(*[training.state() for training in trainings])


def test_repeated_table_is_updated_twice():
    trainings = [Training(Adagrad(0.1), engine) for engine in ("cpu", "reference")]
    for training in trainings:
        for number in range(3):
            pairs = [(coo(BATCHES[k], values_of(len(BATCHES[k]), number + k)), training.table)
                     for k in (0, 2)]  # fmt: skip
            training.opt.apply_gradients(pairs)
    assert_same(*[training.state() for training in trainings])


def test_oversized_sparse_gradient_uses_the_reference(monkeypatch):
    trainings = [Training(Adagrad(0.1), engine) for engine in ("cpu", "reference")]
    monkeypatch.setattr(sparse_engine, "ENTRIES", 3)
    monkeypatch.setattr("thalweg._engines.dispatcher.ENTRIES", 3)
    for training in trainings:
        for number in range(4):
            training.step(number, coo)
    assert_same(*[training.state() for training in trainings])


@pytest.mark.parametrize("options", [{}, {"clipvalue": 0.5}], ids=["plain", "clipped"])
def test_replay_does_not_keep_gradients_alive(options):
    training = Training(Adagrad(0.1, **options), "cpu")
    training.step(0, coo)
    for number in range(2):
        values = values_of(4, number)
        values_ref = weakref.ref(values)
        training.opt.apply_gradients([(slices64([0, 1, 0, 2], values), training.table)])
        del values
        gc.collect()
        assert values_ref() is None


def test_backward_through_an_older_graph_raises():
    training = Training(Adagrad(0.1), "cpu")
    training.step(0, coo), training.step(1, coo)
    loss = (training.table * training.table).sum()
    training.step(2, coo)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()
