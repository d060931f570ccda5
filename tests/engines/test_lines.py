"""Measures of rows, columns and variables: the order of their sums, and what engines make of it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import strategies as st
from torch import Tensor

import line_rules
import thalweg
from line_rules import FIRST, SECOND, below, beside, gradients, keep_first, products, rule_of
from rulebook import assert_same
from shared_examples import check_examples
from thalweg import Hyper, Measure, Pass, Rule, RuleError, Slot, Stage, check_rule, optim
from thalweg._engines.row_column_reductions import TILE_COLUMNS, TILE_ROWS, reduce_lines
from thalweg.errors import InvalidArgumentError, InvalidTypeError

# Around tiles of 64 rows and 1,024 columns.
SHAPES = (
    (1, 1), (1, 7), (7, 1), (2, 3), (63, 5), (64, 5), (65, 5), (200, 3), (3, 1023), (3, 1024),
    (3, 1025), (2, 2100), (129, 1100), (5, 4, 3), (300, 2, 2), (2, 3, 65, 6), (4, 1, 1), (1, 130),
    (130, 1), (3, 8, 1030),
    # Rows as short as those of kernels of convolutions, over more than one block of elements.
    (40, 9, 3, 3), (3, 10, 7, 7), (700, 3), (3, 140, 8), (70, 9),
)  # fmt: skip
OVERS, REDUCES = ("row", "column", "variable"), ("sum", "largest")
SIDES = {"row": 2, "column": 1}


def numbers(shape: Any, seed: int = 0) -> Tensor:
    """Of many sizes, so that another order of their sum has other bits."""
    dice = torch.Generator().manual_seed(seed)
    values = torch.randn(shape, generator=dice, dtype=torch.float64)
    return values * 10.0 ** torch.randint(-8, 9, shape, generator=dice)


# The order, written as `_engines/lines.py` says it, one number after the other


def in_pairs(values: list[float], join: Any) -> float:
    while len(values) > 1:
        last_value = values[len(values) - len(values) % 2 :]
        values = [join(a, b) for a, b in zip(values[::2], values[1::2], strict=False)] + last_value
    return values[0]


def folded(values: list[float], join: Any, start: float) -> float:
    places = 1
    while places < len(values):
        places *= 2
    values = values + [start] * (places - len(values))
    while len(values) > 1:
        half = len(values) // 2
        values = [join(a, b) for a, b in zip(values[:half], values[half:], strict=True)]
    return values[0]


def columns_of(tile: Any, join: Any, start: float) -> list[float]:
    columns = []
    for column in tile.T:
        total = start
        for value in column:
            total = join(total, float(value))
        columns.append(total)
    return columns


def by_hand(matrix: Any, axis: str) -> list[float]:
    """The sums of one matrix."""

    def add(a: float, b: float) -> float:
        return a + b

    rows, columns = matrix.shape
    tops, lefts = range(0, rows, TILE_ROWS), range(0, columns, TILE_COLUMNS)
    if axis == "row":
        lines = [[list(map(float, row[k : k + TILE_COLUMNS])) for k in lefts] for row in matrix]
        # All tiles of a row are as wide as the first one.
        wide = TILE_COLUMNS if len(lefts) > 1 else 0
        return [
            in_pairs([folded(line + [0.0] * (wide - len(line)), add, 0.0) for line in bands], add)
            for bands in lines
        ]
    tiles = [[matrix[top : top + TILE_ROWS, k : k + TILE_COLUMNS] for k in lefts] for top in tops]
    parts = [[columns_of(tile, add, 0.0) for tile in band] for band in tiles]
    if axis == "column":
        bands = [[value for band_values in band for value in band_values] for band in parts]
        return [in_pairs(list(column), add) for column in zip(*bands, strict=True)]
    wide = TILE_COLUMNS if len(lefts) > 1 else 0
    return [folded(line + [0.0] * (wide - len(line)), add, 0.0) for band in parts for line in band]


@pytest.mark.parametrize("axis", OVERS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_sums_have_the_documented_order(shape: Any, axis: str) -> None:
    values = numbers(shape)
    matrices = values.reshape(-1, *shape[-2:])
    actual = reduce_lines(matrices, axis, "sum")
    lines = [by_hand(matrix.numpy(), axis) for matrix in matrices]
    if axis == "variable":
        expected = [in_pairs([value for line in lines for value in line], lambda a, b: a + b)]
    else:
        expected = [value for line in lines for value in line]
    assert_same([actual.reshape(-1)], [torch.tensor(expected, dtype=torch.float64)])


@pytest.mark.parametrize("reduce", REDUCES)
@pytest.mark.parametrize("side", OVERS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_line_sums_equal_numpy(shape: Any, side: str, reduce: str) -> None:
    values = numbers(shape).reshape(-1, *shape[-2:])
    actual = reduce_lines(values, side, reduce).numpy()
    function = np.sum if reduce == "sum" else np.max
    axis = SIDES.get(side, (0, 1, 2))
    expected = function(values.numpy(), axis=axis, keepdims=True)
    assert actual.shape == expected.shape
    bound = 1e-13 * np.sum(np.abs(values.numpy()), axis=axis, keepdims=True)
    assert (np.abs(actual - expected) <= (bound if reduce == "sum" else 0)).all()


@pytest.mark.parametrize(
    ("values", "total", "largest"),
    [
        ([1.0, float("nan"), 2.0], "nan", "nan"),
        ([1.0, float("inf"), 2.0], "inf", "inf"),
        ([float("inf"), -float("inf"), 2.0], "nan", "inf"),
        ([-float("inf"), -1.0, -2.0], "-inf", "-1.0"),
        ([-0.0, -0.0, -0.0], "0.0", "0.0"),
        ([-float("inf")] * 3, "-inf", "-inf"),
    ],
    ids=str,
)
@pytest.mark.parametrize("axis", OVERS)
def test_reductions_handle_nan_infinity_and_signed_zero(
    axis: str, values: list[float], total: str, largest: str
) -> None:
    matrix = torch.tensor([values], dtype=torch.float64)
    laid_out = matrix.t().contiguous() if axis == "column" else matrix
    for reduce, expected in (("sum", total), ("largest", largest)):
        assert str(reduce_lines(laid_out[None], axis, reduce).item()) == expected


# Engines


def squares(var, grad, memory):
    return grad * grad


def keep_all(*, rows, columns, whole, top, left, most, tops, sides, others, more):
    return {"tops": rows, "sides": columns, "others": top, "more": left, "whole": whole + most}


def update_all(var, grad, memory, *, whole, tops, sides):
    return var - grad * tops / (whole + sides), memory + grad


FULL = Rule(
    name="Every",
    passes=(
        Measure(gradients, makes="rows", over="row"),
        Measure(gradients, makes="columns", over="column"),
        Measure(squares, makes="whole"),
        Measure(gradients, makes="top", over="row", reduce="largest"),
        Measure(squares, makes="left", over="column", reduce="largest"),
        Measure(gradients, makes="most", reduce="largest"),
        Stage(keep_all),
    ),
    update=update_all,
    hypers=(Hyper("learning_rate", 1.0),),
    slots=(
        Slot("memory"),
        Slot("tops", per="row"),
        Slot("sides", per="column"),
        Slot("others", per="row"),
        Slot("more", per="column"),
    ),
)


def kept(optimizer: Any, params: Any) -> list[Tensor]:
    names = [slot.name for slot in optimizer.rule.slots]
    tensors = [[param, *(optimizer.state[param][name] for name in names)] for param in params]
    return [tensor.detach() for row in tensors for tensor in row]


def after(
    rule: Rule, engine: Any, params: list[Tensor], grads: Any, **options: Any
) -> list[Tensor]:
    params = [param.clone().requires_grad_() for param in params]
    with thalweg.engine(engine) if isinstance(engine, str) else engine:
        optimizer = optim.RuleOptimizer(params, rule, **options)
        for param_grads in grads:
            for param, grad in zip(params, param_grads, strict=True):
                param.grad = grad.clone()
            optimizer.step()
    return kept(optimizer, params)


def without_payload(tensors: list[Tensor]) -> list[Tensor]:
    return [torch.where(tensor.isnan(), torch.nan, tensor) for tensor in tensors]


@pytest.mark.one_in(3)
@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_kernel_equals_the_documented_order(dtype: Any, count: int, threads: Any) -> None:
    threads(count)
    params = [numbers(shape, 1).to(dtype) for shape in SHAPES]
    grads = [[numbers(shape, 2 + step).to(dtype) for shape in SHAPES] for step in range(2)]
    actual = after(FULL, "cpu", params, grads)
    assert_same(actual, after(FULL, "reference", params, grads))
    if dtype == torch.float64:  # and what was measured is what the order says
        expected = [
            reduce_lines(grad.reshape(-1, *grad.shape[-2:]), "row", "sum") for grad in grads[1]
        ]
        for slot, value in zip(actual[2 :: 1 + len(FULL.slots)], expected, strict=True):
            assert_same([slot.reshape(-1)], [value.reshape(-1)])


# Rows that are added up several at once, and tiles side by side, with some left over.
LONG = (
    (1, 768), (63, 640), (64, 896), (65, 1023), (130, 1024), (1, 1025), (64, 1025), (130, 1025),
    (63, 1026), (65, 2048), (6, 3072), (66, 4096), (9, 5121), (2, 7, 2049), (3, 9216),
    (5, 1500), (70, 300), (12, 1100),
)  # fmt: skip
# The second measure reads what the first has made of each row or column.
READING = [
    rule_of(products, below, overs, ("sum", "sum"), None, False, False)
    for overs in (("row", "column"), ("column", "row"))
]


@pytest.mark.parametrize("special", [1.0, float("nan"), float("inf"), -0.0])
@pytest.mark.parametrize("rule", [FULL, *READING], ids=["every", "rows", "columns"])
@pytest.mark.one_in(7)
def test_long_rows_equal_the_documented_order(rule: Rule, special: float, threads: Any) -> None:
    threads(2)
    params = [numbers(shape, 1).float() for shape in LONG]
    grads = [[numbers(shape, 2).float() for shape in LONG]]
    for grad in grads[0]:
        grad[(..., 0, slice(None, None, 2))] = special
        grad[..., -1] = -special
        grad[(..., -1, -3)] = special
    results = [after(rule, engine, params, grads) for engine in ("cpu", "reference")]
    assert_same(*map(without_payload, results))


@pytest.mark.one_in(3)
@pytest.mark.parametrize("special", [float("nan"), float("inf"), -float("inf"), -0.0, 1e-310, 1e30])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_nonfinite_numbers_spread_as_in_the_reference(dtype: Any, special: float) -> None:
    shapes = ((70, 6), (3, 1030), (2, 5, 4))
    params = [numbers(shape, 1).to(dtype) for shape in shapes]
    grads = [[numbers(shape, 2).to(dtype) for shape in shapes] for _ in range(2)]
    for grad in grads[0]:
        grad[(..., 1, 2)] = special
        grad[(..., 0, slice(None))] = special
    results = [after(FULL, engine, params, grads) for engine in ("cpu", "reference")]
    assert_same(*map(without_payload, results))


def test_variables_do_not_affect_each_other() -> None:
    params = [numbers(shape, 1).float() for shape in SHAPES]
    grads = [[numbers(shape, 2).float() for shape in SHAPES]]
    joint = after(FULL, "cpu", params, grads)
    for place in (0, 8, 12, 17):
        single = after(FULL, "cpu", [params[place]], [[grads[0][place]]])
        assert_same(single, joint[len(single) * place : len(single) * (place + 1)])


def test_transposed_variable_equals_contiguous_variable() -> None:
    lying = numbers((70, 40), 1).float().t()
    grad = numbers((40, 70), 2).float()
    transposed = [torch.empty_strided((40, 70), (1, 40)).copy_(tensor) for tensor in (lying, grad)]
    param = transposed[0].requires_grad_()
    optimizer = optim.RuleOptimizer([param], FULL)
    param.grad = transposed[1]
    with pytest.warns(thalweg.PerformanceWarning, match="strides"):
        optimizer.step()
    assert_same(
        [tensor.contiguous() for tensor in kept(optimizer, [param])],
        after(FULL, "cpu", [lying.contiguous()], [[grad]]),
    )


@pytest.mark.parametrize("flush", [True, False])
def test_denormals_are_treated_as_in_the_reference(flush: bool) -> None:
    grads = [[torch.full((65, 9), 1e-40)]]
    results = []
    for engine in ("cpu", "reference"):
        with thalweg.engine(engine, denormals="flush" if flush else None):
            (param,) = [torch.ones(65, 9, requires_grad=True)]
            optimizer = optim.RuleOptimizer([param], FULL)
            param.grad = grads[0][0].clone()
            optimizer.step()
        results.append(kept(optimizer, [param]))
    assert_same(*results)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("ends", [(3e-308, -2.9e-308), (1e-310, 1e-310), (-1e-310, -0.0)], ids=str)
@pytest.mark.parametrize("shape", [(1, 1025), (65, 1), (1, 2049), (2, 3), (40, 3, 3)], ids=str)
def test_tile_denormals_are_flushed_after_a_stage(shape: Any, ends: tuple[float, float]) -> None:
    grad = torch.zeros(shape, dtype=torch.float64)
    grad.view(-1)[0], grad.view(-1)[-1] = ends
    results = []
    for engine in ("cpu", "reference"):
        setting = thalweg.engine(engine, denormals="flush")
        results.append(after(FULL, setting, [torch.ones_like(grad)], [[grad]], clip_grad_value=1.0))
    assert_same(*results)


CASES = st.tuples(
    st.sampled_from(FIRST),
    st.sampled_from(SECOND),
    st.tuples(st.sampled_from(OVERS), st.sampled_from(OVERS)),
    st.tuples(st.sampled_from(REDUCES), st.sampled_from(REDUCES)),
    st.sampled_from([None, keep_first]),
    st.booleans(),
    st.booleans(),
    st.lists(
        st.tuples(
            st.integers(0, 2),
            st.sampled_from([1, 2, 3, 63, 65, 130]),
            st.sampled_from([1, 2, 7, 64, 1025]),
            st.sampled_from([torch.float32, torch.float64, torch.bfloat16]),
        ),
        min_size=1,
        max_size=4,
    ),
    st.integers(0, 2**31),
    st.sampled_from([{}, {"clip_grad_norm": 0.5}, {"clip_grad_value": 0.25}, {"ema_decay": 0.5}]),
)


def _check_drawn(
    first: Any, second: Any, overs: Any, reduces: Any, stage: Any, has_pass: bool, splits: bool,
    sides: Any, seed: int, options: Any,
) -> None:  # fmt: skip
    rule = rule_of(first, second, overs, reduces, stage, has_pass, splits)
    check_rule(rule)
    shapes = [((2,) if is_stack else ()) + (rows, columns) for is_stack, rows, columns, _ in sides]
    forms = list(zip(shapes, (side[3] for side in sides), strict=True))
    values = [numbers(shape, seed + place).to(kind) for place, (shape, kind) in enumerate(forms)]
    grads = [
        [torch.randn(shape, generator=torch.Generator().manual_seed(seed + step)).to(kind)
         for shape, kind in forms]
        for step in range(2)
    ]  # fmt: skip
    results = [after(rule, engine, values, grads, **options) for engine in ("cpu", "reference")]
    assert_same(*map(without_payload, results))


@pytest.mark.parametrize("count", [3, pytest.param(40, marks=pytest.mark.slow)])
def test_random_row_rules_equal_the_reference(count: int) -> None:
    check_examples(_check_drawn, count, CASES)


# What is refused


def returns_two(var, grad, memory):
    return grad, memory


def asks_for_itself(var, grad, memory, *, rows):
    return grad + rows


def asks_for_a_later_one(var, grad, memory, *, columns):
    return grad + columns


def asks_for_nothing_known(var, grad, memory, *, row):
    return grad + row


def takes_a_slot_by_place(var, grad, memory, tops):
    return grad + tops


def branches(var, grad, memory):
    return grad if grad > 0 else var


def loses_a_side(*, rows, tops):
    return {"tops": rows[..., 0]}


def makes_another(*, rows):
    return {"row": rows}


def takes_the_memory(*, rows, memory):
    return {"rows": rows}


def first_is(measure: Any) -> dict[str, Any]:
    return {"passes": (measure, *FULL.passes[1:])}


def rows_of(formula: Any) -> Measure:
    return Measure(formula, makes="rows", over="row")


WRONG: list[tuple[dict[str, Any], str]] = [
    (first_is(rows_of(returns_two)), r"Measure returns_two .* returns 2; .* and returns 1"),
    (
        first_is(rows_of(asks_for_itself)),
        r"Measure asks_for_itself \(.*:\d+\) asks for rows, which it makes",
    ),
    (first_is(rows_of(asks_for_a_later_one)), r"asks_for_a_later_one \(.*:\d+\) asks for columns"),
    (
        first_is(rows_of(asks_for_nothing_known)),
        r"asks_for_nothing_known \(.*:\d+\) asks for row, which is neither a hyperparameter",
    ),
    (first_is(rows_of(takes_a_slot_by_place)), "takes 4 values"),
    (first_is(rows_of(branches)), r"branches \(.*:\d+\): .* write `where"),
    (first_is(Measure(gradients, makes="tops", over="row")), "are named 'tops'"),
    (first_is(Measure(gradients, makes="columns", over="row")), "are named 'columns'"),
    ({"passes": (*FULL.passes[:1], Stage(loses_a_side))}, "of shape"),
    ({"passes": (*FULL.passes[:1], Stage(makes_another))}, "returns 'row', which is neither"),
    ({"passes": (*FULL.passes[:1], Stage(takes_the_memory))}, "asks for memory, which is a slot"),
    ({"passes": (*FULL.passes[:6], Stage(keep_all, heads=2))}, "they have neither heads="),
    (
        {"slots": (*FULL.slots, Slot("turn", shape=lambda rows, columns: (rows, rows)))},
        "nor slots with a shape=",
    ),
    ({"passes": ()}, "no Stage that reads it"),
    ({"update_sparse": update_all}, "beside which there are no formulas for rows"),
]


@pytest.mark.parametrize(("changes", "message"), WRONG, ids=[message for _, message in WRONG])
def test_invalid_row_rule_raises(changes: Any, message: str) -> None:
    with pytest.raises(RuleError, match=message) as error_info:
        check_rule(replace(FULL, **changes))
    assert "Every" in str(error_info.value)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Measure(3, makes="a"), "A Measure needs a function, not 3"),
        (lambda: Measure(gradients, makes=""), "makes of a Measure must be a name, not ''"),
        (lambda: Measure(gradients, makes=("a", "b")), "makes of a Measure must be a name"),
        (lambda: Measure(gradients, "a", over="rows"), "row, column, variable, not 'rows'"),
        (lambda: Measure(gradients, "a", reduce="mean"), "must be one of sum, largest, not 'mean'"),
        (lambda: Slot("a", per="rows"), "per of Slot 'a' must be 'row', 'column' or 'optimizer'"),
        (lambda: Slot("a", per="row", scalar=True), "is one number for each row, and no scalar"),
        (lambda: Slot("a", per="row", shape=lambda r, c: (r, c)), "and of no shape= beside"),
    ],
)  # fmt: skip
def test_invalid_passes_raise(make: Any, message: str) -> None:
    with pytest.raises(RuleError, match=message):
        make()


@pytest.mark.parametrize(
    ("param", "error", "message"),
    [
        (torch.ones(3), InvalidArgumentError, "is for matrices, of two dimensions or more"),
        (torch.ones(()), InvalidArgumentError, "is for matrices"),
        (torch.ones(3, 2, dtype=torch.float16), InvalidTypeError, "is float16"),
        (torch.ones(3, 2, dtype=torch.complex64), InvalidTypeError, "is complex64"),
    ],
    ids=str,
)
def test_parameters_without_rows_raise_by_name(param: Any, error: Any, message: str) -> None:
    with pytest.raises(error, match=message):
        optim.RuleOptimizer([("up", param.requires_grad_())], FULL)


def test_sparse_gradients_raise_or_become_dense() -> None:
    grad = torch.zeros(6, 3)
    grad[2] = 1.5
    whole_rule, results = replace(FULL, whole=True), []
    for form in (grad, grad.to_sparse(1)):
        param = torch.ones(6, 3, requires_grad=True)
        optimizer = optim.RuleOptimizer([param], whole_rule)
        param.grad = form
        optimizer.step()
        results.append(kept(optimizer, [param]))
    assert_same(*results)
    param = torch.ones(6, 3, requires_grad=True)
    param.grad = grad.to_sparse(1)
    with pytest.raises((InvalidTypeError, RuntimeError), match="sparse"):
        optim.RuleOptimizer([param], FULL).step()
    assert_same([param.detach()], [torch.ones(6, 3)])


class Stopped(Exception):
    """A stage's own."""


@pytest.mark.parametrize("error", [Stopped, KeyboardInterrupt, RuleError])
def test_a_step_that_ends_early_has_changed_nothing(error: type[BaseException]) -> None:
    fails = False

    def stops(*, rows, tops, sides):
        if fails and error is RuleError:
            return {"tops": tops[:, :1, :1]}
        if fails:
            raise error
        return {"tops": rows, "sides": sides + 1}

    rule = replace(FULL, passes=(*FULL.passes, Stage(stops)))
    params = [numbers(shape, 1).float().requires_grad_() for shape in ((70, 6), (3, 2, 4))]
    optimizer = optim.RuleOptimizer(params, rule)
    for fails in (False, False, True):
        for param in params:
            param.grad = numbers(param.shape, 7).float()
        before_step = [tensor.clone() for tensor in kept(optimizer, params)] if fails else []
        if fails:
            with pytest.raises(error):
                optimizer.step()
            assert_same(kept(optimizer, params), before_step)
        else:
            optimizer.step()
    fails = False
    optimizer.step()
    assert not torch.equal(params[0].detach(), before_step[0])


def test_a_step_that_overflows_changes_nothing() -> None:
    params = [numbers((70, 6), 1).float().requires_grad_()]
    optimizer = optim.RuleOptimizer(params, FULL, fused_unscale=True)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    scaler.scale(torch.ones(()))
    for factor in (1.0, float("inf")):
        before_step = [tensor.clone() for tensor in kept(optimizer, params)] if factor != 1 else []
        params[0].grad = torch.full((70, 6), factor)
        scaler.step(optimizer)
        scaler.update()
    assert not optimizer.last_step.taken
    assert_same(kept(optimizer, params), before_step)


@pytest.mark.parametrize("over", ["row", "variable"])
@pytest.mark.parametrize("engine", ["cpu", "reference"])
def test_dependent_measure_has_a_separate_sweep(engine: Any, over: Any) -> None:
    rule = rule_of(gradients, beside, (over, "row"), ("sum", "sum"), None, False, False)
    grads = [torch.tensor([[1.0, 2.0]]), torch.tensor([[5.0, 1.0]])]
    param, memory, _, _ = after(rule, engine, [torch.ones(1, 2)], [[grad] for grad in grads])
    var, memory_before, tops, sides = 1.0, 0.0, 0.5, 0.25
    for grad in grads:
        first = grad.sum()
        second = (grad / (first.abs() + 0.5)).sum()
        step = grad / (second.abs() + 1) + first * 0.125 - sides * tops
        var, memory_before = var - 0.125 * step, memory_before * 0.5 + step
        tops, sides = tops * 0.5 + 0.125, sides + 0.25
    torch.testing.assert_close([param, memory], [var, memory_before])


def test_a_measure_may_come_after_a_pass() -> None:
    rule = rule_of(gradients, gradients, ("row", "column"), ("sum", "sum"), None, True, False)
    assert [type(rule_pass) for rule_pass in rule.passes] == [Measure, Pass, Measure, Stage]
    (param,) = [torch.ones(2, 2, requires_grad=True)]
    optimizer = optim.RuleOptimizer([param], rule)
    param.grad = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    optimizer.step()
    value = param.new_tensor([[1 * 3 + 1, 1 * 3 + 2], [1 * 7 + 3, 1 * 7 + 4]]).detach()
    second = value.sum(0, keepdim=True)
    step = value + param.grad / (second + 1) - 0.5 * 0.25  # slots as they were before the step
    torch.testing.assert_close(param.detach(), 1 - 0.125 * step)


def test_all_library_passes_are_tested() -> None:
    assert {*FIRST, *SECOND} <= {part for part in vars(line_rules).values() if callable(part)}
