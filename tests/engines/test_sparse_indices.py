"""Sparse gradients that do not fit: the exact error, nothing changed, canaries intact."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from case_batches import many
from rulebook import CASES, FIRST, ROWS, by_rule
from thalweg import IndexedSlices, InvalidArgumentError, InvalidTypeError, Variable
from thalweg.keras.optimizers import Nadam, RuleOptimizer

CANARY = 12345.0
ROWS_OF_TABLE = 4


class Table:
    """A variable of 4 rows of 3 in the middle of a buffer."""

    def __init__(self, width=(3,)):
        size = ROWS_OF_TABLE * int(np.prod(width))
        self.memory = torch.full((size + 64,), CANARY)
        view = self.memory[32 : 32 + size].view(ROWS_OF_TABLE, *width)
        view.copy_(torch.arange(float(size)).view(view.shape))
        self.var = view.requires_grad_()
        self.before = self.memory.clone()

    def assert_unchanged(self):
        assert torch.equal(self.memory.detach(), self.before)

    def assert_canaries(self):
        is_outside = torch.ones(len(self.memory), dtype=torch.bool)
        is_outside[32 : 32 + self.var.numel()] = False
        assert bool((self.memory[is_outside] == CANARY).all())


def optimizer(case, engine):
    if case.rule.name == "Nadam":  # whose momentum schedule is state of the optimizer
        options = {name.replace("beta", "beta_"): value for name, value in case.hypers.items()}
        new_optimizer = Nadam(**options)
    else:
        new_optimizer = RuleOptimizer(case.rule, **case.hypers)
    new_optimizer.engine = engine
    return new_optimizer


def message(case, index, offset):
    if optimizer(case, "cpu")._scatters():
        return f"indices[{offset}] = {index} is not in [0, {ROWS_OF_TABLE})"
    return f"Index {index} at offset {offset} in indices is out of range"


def slices(indices, dtype=torch.int64, width=(3,)):
    indices = torch.tensor(indices, dtype=dtype)
    return IndexedSlices(torch.ones(len(indices), *width), indices)


BAD_INDICES = [-1, 4, 9, 10**9, 2**31, 2**62, -(2**31) - 1, -(2**63)]
ENGINES = ["cpu", "reference"]
engines = pytest.mark.parametrize("engine", ENGINES)


@pytest.mark.one_in(3)
@by_rule(FIRST)
@many("engine", ENGINES)
@many("index", BAD_INDICES)
def test_an_index_out_of_range_is_named(case, engine, index):
    table, opt = Table(), optimizer(case, engine)
    with pytest.raises(InvalidArgumentError) as error_info:
        opt.apply_gradients([(slices([1, index, 3, -7]), table.var)])
    assert str(error_info.value) == message(case, index, 1)
    assert isinstance(error_info.value, ValueError | IndexError)
    table.assert_unchanged()
    assert opt.get_slot_names() == []


@by_rule(FIRST)
@many("index", [-1, 4, 2**31 - 1, -(2**31)])
def test_an_int32_index_out_of_range_is_named(case, index):
    table, opt = Table(), optimizer(case, "cpu")
    with pytest.raises(InvalidArgumentError) as error_info:
        opt.apply_gradients([(slices([0, index], torch.int32), table.var)])
    assert str(error_info.value) == message(case, index, 1)
    table.assert_unchanged()


@pytest.mark.one_in(3)
@by_rule(FIRST)
@engines
def test_a_bad_index_after_a_good_step_changes_nothing(case, engine):
    table, opt = Table(), optimizer(case, engine)
    opt.apply_gradients([(slices([1, 1, 3]), table.var)])
    table.before = table.memory.detach().clone()
    slots = [slot.clone() for slot in opt.weights[1:]]
    second_var = Variable([1.0])
    with pytest.raises(InvalidArgumentError):
        opt.apply_gradients([(torch.ones(1), second_var), (slices([4]), table.var)])
    table.assert_unchanged()
    assert all(torch.equal(a, b) for a, b in zip(slots, opt.weights[1:], strict=False))
    assert second_var.tolist() == [1.0]
    assert int(opt.iterations) == 1


@by_rule()
@many("engine", ENGINES)
@many("indices", [[], [3, 0, 2], [2, 2, 0, 2], [0, 3]])
@many("width", [(3,), ()])
@pytest.mark.one_in(3)
def test_valid_indices_do_not_touch_adjacent_memory(case, engine, indices, width):
    table = Table(width)
    optimizer(case, engine).apply_gradients([(slices(indices, width=width), table.var)])
    table.assert_canaries()


@pytest.mark.parametrize(
    ("indices", "error", "text"),
    [
        ([0.0, 1.0], InvalidTypeError, "indices must be int32 or int64, not float32."),
        (torch.tensor([0, 1], dtype=torch.uint8), InvalidTypeError, "not uint8."),
        (torch.tensor([True, False]), InvalidTypeError, "not bool."),
        (torch.tensor([0, 1], dtype=torch.int16), InvalidTypeError, "not int16."),
        (torch.tensor([[0, 1]]), InvalidArgumentError, "they have shape (1, 2)."),
        (torch.tensor(0), InvalidArgumentError, "they have shape ()."),
        (torch.tensor([0, 1, 2]), InvalidArgumentError, "do not match 3 indices"),
    ],
    ids=["float", "uint8", "bool", "int16", "matrix", "scalar", "too many"],
)
def test_invalid_index_dtypes_and_shapes_raise(indices, error, text):
    with pytest.raises(error) as error_info:
        IndexedSlices(torch.ones(2, 3), indices)
    assert text in str(error_info.value)


LYING = {
    "wider": (torch.ones(1, 6), None, "has rows of shape (6,) but the variable has shape (4, 3)"),
    "narrower": (
        torch.ones(1, 2),
        None,
        "has rows of shape (2,) but the variable has shape (4, 3)",
    ),
    "flat": (torch.ones(1), None, "has rows of shape () but the variable has shape (4, 3)"),
    "deeper": (torch.ones(1, 3, 1), None, "has rows of shape (3, 1) but the variable"),
}


@pytest.mark.parametrize(("values", "shape", "text"), LYING.values(), ids=LYING)
@engines
@pytest.mark.parametrize("name", ["SGD", "Adam", "Adagrad"])
def test_inconsistent_shapes_raise(values, shape, text, engine, name):
    table = Table()
    opt = RuleOptimizer(ROWS[name].rule)
    opt.engine = engine
    with pytest.raises(InvalidArgumentError) as error_info:
        opt.apply_gradients([(IndexedSlices(values, [1], shape), table.var)])
    assert text in str(error_info.value)
    table.assert_unchanged()


@engines
@pytest.mark.parametrize("rows", [2, 5])
def test_dense_shape_of_slices_is_not_read(rows, engine):
    results = []
    for shape in ((rows, 3), None):
        table, opt = Table(), optimizer(CASES[0], engine)
        opt.apply_gradients([(IndexedSlices(torch.ones(1, 3), [1], shape), table.var)])
        results.append(table.var.detach())
    assert torch.equal(*results)


@engines
def test_values_of_another_dtype_raise(engine):
    table, opt = Table(), optimizer(CASES[0], engine)
    with pytest.raises(
        InvalidTypeError, match=r"is float64 but the variable is float32\. Cast the"
    ):
        opt.apply_gradients([(IndexedSlices(torch.ones(1, 3).double(), [1]), table.var)])
    table.assert_unchanged()


@engines
def test_a_scalar_variable_has_no_rows(engine):
    var = Variable(1.0)
    with pytest.raises(InvalidArgumentError, match="has rows of shape"):
        optimizer(CASES[0], engine).apply_gradients([(IndexedSlices([1.0], [0]), var)])
    assert float(var.detach()) == 1.0


@engines
def test_sparse_tensor_with_invalid_index_raises(engine):
    table, opt = Table(), optimizer(CASES[0], engine)
    coo = torch.sparse_coo_tensor(
        torch.tensor([[1, 9]]), torch.ones(2, 3), (4, 3), check_invariants=False
    )
    with pytest.raises(InvalidArgumentError, match=r"indices\[1\] = 9 is not in \[0, 4\)"):
        opt.apply_gradients([(coo, table.var)])
    table.assert_unchanged()


@engines
def test_empty_table_takes_only_empty_gradients(engine):
    var = torch.zeros(0, 3, requires_grad=True)
    opt = optimizer(next(case for case in FIRST if case.rule.name == "Adam"), engine)
    opt.apply_gradients(
        [(IndexedSlices(torch.ones(0, 3), torch.tensor([], dtype=torch.int64)), var)]
    )
    with pytest.raises(InvalidArgumentError, match=r"indices\[0\] = 0 is not in \[0, 0\)"):
        opt.apply_gradients([(IndexedSlices(torch.ones(1, 3), [0]), var)])
