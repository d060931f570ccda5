"""Matrices of few rows and columns, many side by side: the bits are those of all other engines."""

from __future__ import annotations

import math
from functools import partial
from itertools import product
from typing import Any

import pytest
import torch
from hypothesis import strategies as st
from torch import Tensor

import thalweg
from pairwise import cover_pairs
from rulebook import assert_same
from shared_examples import check_examples
from thalweg import FusedStage, Hyper, Measure, Rule, RuleError, Slot, Stage, check_rule, optim
from thalweg._engines.cpu.codegen_transpose import LANES
from thalweg._engines.cpu.small_matrices import find_short
from thalweg.formula import (
    absolute,
    exp,
    gradient_squares,
    like_update,
    maximum,
    mean_over_columns,
    mean_over_rows,
    sqrt,
    where,
)
from thalweg.keras.optimizers import RuleOptimizer
from thalweg.rules.modern.sm3 import sm3
from thalweg.rules.torch.adafactor import TORCH_ADAFACTOR

# Around a block of matrices, and two; of up to eight rows and columns.
SHAPES = (
    (1, 1), (1, 8), (8, 1), (3, 3), (2, 8, 8), (LANES - 1, 3, 3), (LANES, 3, 3), (LANES + 1, 3, 3),
    (2, LANES, 2, 4), (5, 7, 5, 3), (3, 1, 7), (70, 2, 1), (2, 1, 1), (0, 3, 3), (9, 3), (3, 9),
)  # fmt: skip
MINI = ((LANES - 1, 3, 3), (LANES, 3, 3), (2 * LANES + 1, 3, 3), (0, 3, 3), (5, 1, 8), (9, 3))


def doubled(value, weight):
    return value + value * weight


def wide_stage(*, rows, columns, tops, sides, beta, row_count, column_count):
    """Everything that a formula of lines may be: scalars, means of both, helpers, choices."""
    share = beta / (row_count * column_count)
    tops = tops * beta + doubled(rows, share)
    sides = where(columns > 1, sides * beta + columns, columns - share)
    low = mean_over_columns(sides - mean_over_rows(tops))
    return tops, sides, sqrt(maximum(tops - low, 0.0)), columns / maximum(sides, share)


@like_update
def narrow_stage(*, rows, columns, tops, sides, beta):
    return tops + rows, sides * mean_over_columns(columns), rows * beta, columns + beta


@like_update
def seen_squares(var, grad, memory, *, rows, columns, tops):
    return grad * rows + columns * memory - tops


def clip(*, length, element_count, row_count):
    return {"length": length / element_count + row_count}


def update(var, grad, memory, *, rows, columns, tops, sides, length, learning_rate):
    return var - grad * rows * columns / (tops + length + 1), memory + sides * grad


def halves(*, rows, columns):
    return rows * 0.5, columns


@like_update
def numbers_alone(*, rows, columns, row_count):
    """Choices and quotients of numbers, which are of the type of the stage."""
    return where(rows > 1, 0.1, 0.3) * rows, columns * (0.1 / 0.3) * where(row_count > 2, 0.7, 0.1)


def wide_numbers_alone(*, rows, columns, row_count):
    return where(rows > 1, 0.1, 0.3) * rows, columns * where(row_count > 2, 0.7, 0.1)


@like_update
def bound_numbers(*, rows, columns, share, count):
    """Numbers that are bound, of which the formula overwrites one."""
    share = share * share / count
    return rows * share, columns * (count / 3) * share


def scale(var, grad, *, rows, columns, learning_rate):
    return (var - learning_rate * grad * rows * columns,)


def rule_without_slots(*stages: Any) -> Rule:
    measures = (
        Measure(gradient_squares, makes="rows", over="row"),
        Measure(gradient_squares, makes="columns", over="column"),
    )
    return Rule(
        name="Bare",
        passes=(*measures, *stages),
        update=scale,
        hypers=(Hyper("learning_rate", 0.1),),
    )


def rule_of(*stages: Any, reduce: Any = "sum", before: bool = True) -> Rule:
    measures = (
        Measure(gradient_squares, makes="rows", over="row", reduce=reduce),
        Measure(gradient_squares, makes="columns", over="column"),
    )
    fused = tuple(FusedStage(stage, makes=("tops", "sides", "rows", "columns")) for stage in stages)
    length = Measure(seen_squares, makes="length")
    first = Measure(gradient_squares, makes="length")
    return Rule(
        name="Short",
        passes=(*measures, *fused, length, Stage(clip)) if before else (first, *measures, *fused),
        update=update,
        hypers=(Hyper("learning_rate", 0.1), Hyper("beta", 0.7)),
        slots=(Slot("memory"), Slot("tops", per="row"), Slot("sides", 0.5, per="column")),
    )


def without_slots(var, grad, *, rows, columns, learning_rate):
    return var - learning_rate * grad / (rows + columns + 1)


def kept_share(value, weight):
    return value * (1 - weight)


@like_update
def typed_stage(*, rows, columns, line0, _f_helper0, row_count, beta):
    """Numbers of a type, conditions that have names, and slots that are named as kernels name."""
    is_large = (rows > 1) & (line0 < 3)
    choice = is_large | (beta > 0.5)
    factor = where(columns > mean_over_columns(columns), 0.1, 0.7)
    line0 = kept_share(line0, 0.9) + rows / 3
    _f_helper0 = _f_helper0 * factor + columns * (0.1 + 0.2)
    row_count = kept_share(row_count, beta) + line0
    return (
        row_count,
        line0,
        _f_helper0,
        where(choice, rows, line0),
        where(factor > 0.5, 2, columns),
    )


def typed_update(var, grad, *, rows, columns, line0, _f_helper0, row_count, learning_rate):
    return var - learning_rate * grad * rows / (columns + line0 + _f_helper0 + row_count + 1)


LINES = (
    Measure(gradient_squares, makes="rows", over="row"),
    Measure(gradient_squares, makes="columns", over="column"),
)
TYPED = Rule(
    name="Typed",
    passes=(
        *LINES,
        FusedStage(typed_stage, makes=("line0", "row_count", "_f_helper0", "rows", "columns")),
    ),
    update=typed_update,
    hypers=(Hyper("learning_rate", 0.1), Hyper("beta", 0.7)),
    slots=(
        Slot("line0", 0.5, per="row"),
        Slot("_f_helper0", per="column"),
        Slot("row_count", per="row"),
    ),
)
RULES = {
    "bare": Rule(name="Bare", passes=LINES, update=without_slots),
    "typed": TYPED,
    "wide": rule_of(wide_stage),
    "narrow": rule_of(narrow_stage, reduce="largest"),
    "both": rule_of(narrow_stage, wide_stage),
    "no host": rule_of(wide_stage, before=False),
    "no stage": rule_of(),
    "no slots": rule_without_slots(FusedStage(halves, makes=("rows", "columns"))),
    "numbers": rule_without_slots(FusedStage(numbers_alone, makes=("rows", "columns"))),
    "wide numbers": rule_without_slots(FusedStage(wide_numbers_alone, makes=("rows", "columns"))),
    "bound numbers": rule_without_slots(
        FusedStage(partial(bound_numbers, share=0.1, count=7), makes=("rows", "columns"))
    ),
    "measures alone": rule_without_slots(),
    "Adafactor": TORCH_ADAFACTOR,
    "SM3": sm3(),
    "SM3 with a mean": sm3(True),
}
OPTIONS = [{}, {"clip_grad_norm": 0.5}, {"clip_grad_value": 0.25}, {"masters": True}]


def numbers(shape: Any, seed: int, dtype: Any = torch.float32) -> Tensor:
    dice = torch.Generator().manual_seed(seed)
    return (torch.randn(shape, generator=dice) * 10.0 ** torch.randint(-3, 3, shape, generator=dice)
            ).to(dtype)  # fmt: skip


def kept(optimizer: Any, params: Any) -> list[Tensor]:
    names = [slot.name for slot in optimizer.rule.slots]
    tensors = [[param, *(optimizer.state[param][name] for name in names)] for param in params]
    return [
        torch.where(tensor.isnan(), torch.nan, tensor.detach()) for row in tensors for tensor in row
    ]


def after(rule: Rule, engine: Any, params: Any, grads: Any, **options: Any) -> list[Tensor]:
    params = [param.clone().requires_grad_() for param in params]
    with thalweg.engine(engine):
        optimizer = optim.RuleOptimizer(params, rule, **options)
        for param_grads in grads:
            for param, grad in zip(params, param_grads, strict=True):
                param.grad = grad.clone()
            optimizer.step()
    return kept(optimizer, params)


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> list[list[bool]]:
    answers: list[list[bool]] = []

    def asked(*args: Any) -> list[bool]:
        answers.append(find_short(*args))
        return answers[-1]

    monkeypatch.setattr("thalweg._engines.cpu.small_matrices.find_short", asked)
    return answers


def _check_bits(name: str, dtype: Any, shapes: Any, answers: Any) -> None:
    rule = RULES[name]
    check_rule(rule)
    params = [numbers(shape, 1, dtype) for shape in shapes]
    grads = [[numbers(shape, 2 + step, dtype) for shape in shapes] for step in range(3)]
    actual = after(rule, "cpu", params, grads)
    assert answers[0] == [0 < max(shape[-2:]) <= 8 and 0 not in shape for shape in shapes]
    assert_same(actual, after(rule, "reference", params, grads))


@pytest.mark.parametrize("name", RULES)
@pytest.mark.one_in(7)
def test_small_matrices_equal_the_reference(name: str, answers: Any) -> None:
    _check_bits(name, torch.float32, MINI, answers)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", ["both", pytest.param("Adafactor", marks=pytest.mark.slow)])
def test_small_matrices_of_other_dtypes_equal_the_reference(
    name: str, dtype: Any, answers: Any
) -> None:
    _check_bits(name, dtype, MINI, answers)


SIDES = cover_pairs(
    product(
        ("both", "typed", "Adafactor", "SM3 with a mean"),
        (torch.float32, torch.float64, torch.bfloat16),
        SHAPES,
    )
)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", ["both", "typed", "Adafactor", "SM3 with a mean"])
def test_all_side_lengths_equal_the_reference(name: str, dtype: Any, answers: Any) -> None:
    _check_bits(name, dtype, [row[2] for row in SIDES if row[:2] == (name, dtype)], answers)


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.one_in(2)
def test_small_matrix_kernels_support_options(options: Any) -> None:
    shapes = ((40, 3, 3), (9, 4))
    dtype = torch.bfloat16 if "masters" in options else torch.float32
    params = [numbers(shape, 1, dtype) for shape in shapes]
    grads = [[numbers(shape, 2 + step, dtype) for shape in shapes] for step in range(2)]
    for rule in (RULES["both"], TORCH_ADAFACTOR):
        assert_same(
            *(after(rule, engine, params, grads, **options) for engine in ("cpu", "reference"))
        )


@pytest.mark.parametrize("special", [float("nan"), float("inf"), -0.0, 1e-42, 3e38])
@pytest.mark.parametrize("denormals", ["flush", "keep"])
@pytest.mark.one_in(7)
def test_nonfinite_numbers_spread_as_in_the_reference(special: float, denormals: Any) -> None:
    shapes = ((40, 3, 3), (3, 4))
    results = []
    for engine in ("cpu", "reference"):
        with thalweg.engine(engine, denormals=denormals):
            params = [thalweg.Variable(numbers(shape, 1)) for shape in shapes]
            optimizer = RuleOptimizer(RULES["both"], clipvalue=2.0)
            for step in range(2):
                grads = [numbers(shape, 2 + step) for shape in shapes]
                for grad in grads:
                    grad[..., 1, 1:] = special
                    grad[0] = special
                    grad[1] = 0.0
                optimizer.apply_gradients(zip(grads, params, strict=True))
        tensors = [[param, *map(optimizer.get_slot, [param] * 3, ("memory", "tops", "sides"))]
               for param in params]  # fmt: skip
        results.append([torch.where(x.isnan(), torch.nan, x) for row in tensors for x in row])
    assert_same(*results)


def _check_drawn(rows: int, columns: int, count: int, dtype: Any, rate: Any, seed: int) -> None:
    """Parameters that have rates of their own, and slots that do not lie line after line."""
    shapes = ((count, rows, columns), (rows, columns))
    grads = [[numbers(shape, seed + step, dtype) for shape in shapes] for step in range(2)]
    results = []
    for engine in ("cpu", "reference"):
        params = [numbers(shape, 1, dtype).requires_grad_() for shape in shapes]
        groups = [{"params": [param], "lr": rate * (k + 1)} for k, param in enumerate(params)]
        with thalweg.engine(engine):
            optimizer = optim.RuleOptimizer(groups, RULES["wide"])
            for step, param_grads in enumerate(grads):
                for param, grad in zip(params, param_grads, strict=True):
                    param.grad = grad.clone()
                optimizer.step()
                if step == 0:
                    tops = optimizer.state[params[0]]["tops"]
                    optimizer.state[params[0]]["tops"] = tops.repeat(1, 1, 2)[..., 1:]
        results.append(kept(optimizer, params))
    assert_same(*results)


def test_random_side_lengths_equal_the_reference() -> None:
    sides, kinds = st.integers(1, 8), st.sampled_from([torch.float32, torch.float64])
    counts, rates = st.integers(1, 3 * LANES), st.sampled_from([0.0, 0.1, 1e-3])
    check_examples(_check_drawn, 5, st.tuples(sides, sides, counts, kinds, rates, st.just(3)))


def test_threads_and_neighbours_change_no_bit(threads: Any) -> None:
    params = [numbers((300, 64, 3, 3), 1), numbers((5, 3, 3), 1)]
    grads = [[numbers(param.shape, 2) for param in params]]
    results = []
    for count in (1, 2):
        threads(count)
        results.append(after(TORCH_ADAFACTOR, "cpu", params, grads))
    assert_same(*results)
    single = after(TORCH_ADAFACTOR, "cpu", params[1:], [grads[0][1:]])
    assert_same(single, results[0][len(single) :])


def test_a_step_that_fails_between_sweeps_has_changed_nothing() -> None:
    armed: list[None] = []

    def stop(*, length):
        if armed:
            raise KeyboardInterrupt
        return {}

    rule = RULES["wide"]
    stopped = Rule(
        name="Stopped",
        passes=(*rule.passes[:-1], Stage(stop)),
        update=update,
        hypers=rule.hypers,
        slots=rule.slots,
    )
    param = numbers((9, 3, 3), 1).requires_grad_()
    optimizer = optim.RuleOptimizer([param], stopped)
    param.grad = numbers((9, 3, 3), 2)
    param_before = param.detach().clone()
    armed.append(None)
    with pytest.raises(KeyboardInterrupt):
        optimizer.step()
    assert_same([param.detach()], [param_before])
    assert not any(tensor.any() for tensor in kept(optimizer, [param])[1:3])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_slots_wider_than_the_compute_dtype_round_as_the_reference(dtype: Any) -> None:
    results = []
    for engine in ("cpu", "reference"):
        param = numbers((40, 3, 3), 1, dtype).requires_grad_()
        param.grad = numbers((40, 3, 3), 2, dtype)
        with thalweg.engine(engine):
            optimizer = optim.RuleOptimizer([param], RULES["both"])
            optimizer.step()
            slots = optimizer.state[param]
            slots["tops"], slots["sides"] = slots["tops"].double(), slots["sides"].double()
            optimizer.step()
        results.append(kept(optimizer, [param]))
    assert_same(*results)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("shape", [(100, 3, 3), (100, 9)], ids=str)
@pytest.mark.parametrize("first", [0, 240, 400, 600])
def test_gradient_may_share_memory_with_slots(first: int, shape: Any) -> None:
    results = []
    for engine in ("cpu", "reference"):
        params = [numbers(size, 1).requires_grad_() for size in ((100, 3, 3), shape)]
        for param in params:
            param.grad = numbers(param.shape, 2)
        with thalweg.engine(engine):
            optimizer = optim.RuleOptimizer(params, RULES["wide"])
            for step in range(2):
                optimizer.step()
                memory, slots = numbers((900,), 3 + step), optimizer.state[params[0]]
                memory[first : first + 300] = slots["tops"].view(-1)
                slots["tops"] = memory[first : first + 300].view(100, 3, 1)
                params[shape == (100, 9)].grad = memory.view(shape)
                optimizer.step()
                for param in params:
                    param.grad = numbers(param.shape, 2)
        results.append(kept(optimizer, params))
    assert_same(*results)


def test_slot_with_changed_dtype_is_detected() -> None:
    param = numbers((9, 3, 3), 1).requires_grad_()
    param.grad = numbers((9, 3, 3), 2)
    optimizer = optim.RuleOptimizer([param], RULES["wide"])
    optimizer.step()
    slot = optimizer.state[param]["tops"]
    slot.data = slot.data.view(torch.int32)
    with pytest.raises(TypeError, match=r"'tops' of .* is int32"):
        optimizer.step()


def counted(*, rows, columns, row_count):
    return rows * row_count, columns


def test_size_is_not_a_fused_stage_hyperparameter() -> None:
    rule = Rule(
        name="Counted",
        passes=(*LINES, FusedStage(counted, makes=("rows", "columns"))),
        update=without_slots,
        hypers=(Hyper("learning_rate", 0.1), Hyper("row_count", 3.0)),
    )
    with pytest.raises(RuleError, match="asks for row_count, which is a size, and a scalar"):
        check_rule(rule)


def asks_for_one(row_count, *, rows, columns):
    return rows, columns


def mixes(*, rows, columns):
    return where(columns > 0, rows, 1.0), columns


def mixes_sums(*, rows, columns):
    return -(rows + 1) * columns, columns


def mixes_powers(*, rows, columns):
    rows = rows * rows
    rows = rows * rows
    rows = rows * rows
    rows = rows * rows
    rows = rows * rows
    rows = rows * rows
    rows = rows * rows
    rows = rows * rows
    rows = rows * rows
    rows = rows * rows
    rows = rows * rows
    rows = rows * rows
    rows = rows * rows
    rows = rows * rows
    rows = rows * rows
    rows = rows * rows
    rows = rows * rows
    rows = rows * rows
    rows = rows * rows
    rows = rows * rows
    rows = rows * rows
    rows = rows * rows
    rows = rows * rows
    rows = rows * rows
    rows = rows * rows
    rows = rows * rows
    rows = rows * rows
    rows = rows * rows
    rows = rows * rows
    rows = rows * rows
    rows = rows * rows
    rows = rows * rows
    rows = rows * rows
    rows = rows * rows
    rows = rows * rows
    rows = rows * rows
    rows = rows * rows
    rows = rows * rows
    rows = rows * rows
    rows = rows * rows
    return rows * columns, columns


def turns(*, rows, columns):
    return columns, rows


def averages(*, rows, columns):
    return mean_over_rows(columns) * rows, columns


def keeps_one(*, rows, columns):
    return mean_over_rows(rows), columns


def returns_one(*, rows, columns):
    return rows


def returns_a_dict(*, rows, columns):
    return {"rows": rows, "columns": columns}


def asks_for_var(*, rows, columns, var):
    return rows * var, columns


def takes_one(*, rows):
    return rows, rows


def calls_torch(*, rows, columns):
    return rows / rows.mean(), columns


def cubes(*, rows, columns):
    return rows**3, columns


def grows(*, rows, columns):
    return exp(rows), columns


def helper(value):
    return mean_over_rows(value)


def hides(*, rows, columns):
    return rows * helper(rows), columns


def sees(*, rows, length, columns):
    return rows * length, columns


BAD_STAGES = {
    "takes row_count by position": asks_for_one,
    "in `where\\(columns > 0.0, rows, 1.0\\)`, which makes a number of each element": mixes,
    r"in `-\(rows \+ 1.0\) \* columns`, which makes": mixes_sums,
    r"in `\(\(\(\.\.\. \* \.\.\.\) \* .{,60} \* columns`, which makes": mixes_powers,
    "returns for rows a number of each column, where it must return a number of each row": turns,
    "gives mean_over_rows a number of each column, where it must be": averages,
    "returns for rows one number of the matrix, where": keeps_one,
    "returns 1 value, and makes rows, columns": returns_one,
    "returns_a_dict .*cannot contain `{.*}`; return several results as": returns_a_dict,
    "calls exp, whose last bits differ between torch and kernels; have `prepare`": grows,
    "raises to a power, .*; write products and sqrt, or": cubes,
    "cannot call `rows.mean\\(\\)`; a FusedStage may call mean_over_rows": calls_torch,
    "`mean_over_rows` is for a FusedStage, and there for the formula itself": hides,
    "asks for length, which is of no row and no column: a Stage may": sees,
    "FusedStage asks_for_var .* asks for var, which is for formulas of elements": asks_for_var,
    "makes columns, which it must take, too: columns after": takes_one,
    "halves .* has no scalar share to bind": partial(halves, share=0.1),
}


@pytest.mark.parametrize("message", BAD_STAGES)
def test_fused_stage_without_line_formula_raises(message: str) -> None:
    rule = Rule(
        name="Refused",
        passes=(
            *rule_of().passes[:2],
            Measure(gradient_squares, makes="length"),
            FusedStage(BAD_STAGES[message], makes=("rows", "columns")),
        ),
        update=lambda var, grad: var,
    )
    with pytest.raises(RuleError, match=message):
        check_rule(rule)


def test_invalid_fused_stage_raises_for_large_matrices() -> None:
    stage = FusedStage(mixes, makes=("rows", "columns"))
    rule = Rule(name="Refused", passes=(*LINES, stage), update=without_slots, hypers=TYPED.hypers)
    param = thalweg.Variable(numbers((9, 9), 1))
    param_before = param.numpy().copy()
    with pytest.raises(RuleError, match="mixes rows and columns"):
        RuleOptimizer(rule).apply_gradients([(numbers((9, 9), 2), param)])
    assert (param.numpy() == param_before).all()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"makes": ()}, "makes of a FusedStage must be names"),
        ({"makes": ("rows", 3)}, "makes of a FusedStage must be names"),
        ({"makes": ("rows", "rows")}, "has a name twice: rows, rows"),
        ({"makes": ("rows",), "every": 2}, "has no every="),
        ({"makes": ("rows",), "heads": 2}, "has no every="),
    ],
)
def test_fused_stage_with_invalid_outputs_raises(options: Any, message: str) -> None:
    with pytest.raises(RuleError, match=message):
        FusedStage(narrow_stage, **options)


@pytest.mark.parametrize(
    "function",
    [
        partial(halves, 1.0),
        *(partial(bound_numbers, share=share) for share in ("0.1", math.nan, -math.inf, 10**400)),
    ],
    ids=["position", "str", "nan", "inf", "int"],
)
def test_fused_stage_binds_only_numbers_by_keyword(function: Any) -> None:
    with pytest.raises(RuleError, match="binds finite numbers by keyword, not "):
        FusedStage(function, makes=("rows", "columns"))


def test_formulas_of_elements_are_not_partial() -> None:
    for options in (
        {"update": partial(gradient_squares, share=1.0)},
        {"update": without_slots, "passes": (Measure(partial(gradient_squares, 1.0), makes="a"),)},
    ):
        with pytest.raises(RuleError, match="must be a function written with def"):
            check_rule(Rule(name="Refused", **options))


@pytest.mark.parametrize("count", [1, 2, 3, 5, 8])
def test_means_add_pairs_of_neighbours(count: int) -> None:
    values = [float(number) for number in numbers((count,), 1)]
    tree = list(values)
    while len(tree) > 1:
        last_value = tree[len(tree) - len(tree) % 2 :]
        tree = [a + b for a, b in zip(tree[::2], tree[1::2], strict=False)] + last_value
    expected = torch.tensor(tree, dtype=torch.float64) / count
    tensor = torch.tensor(values, dtype=torch.float64)
    assert_same([mean_over_rows(tensor.view(1, 1, -1, 1)).view(1)], [expected])
    assert_same([mean_over_columns(tensor.view(1, 1, 1, -1)).view(1)], [expected])


def gradient_share(var, grad, *, length):
    return grad / length


def test_row_formula_can_read_the_variable_length() -> None:
    rule = Rule(
        name="Seeing",
        passes=(
            Measure(gradient_squares, makes="length"),
            Measure(gradient_share, makes="rows", over="row"),
            Measure(gradient_squares, makes="columns", over="column"),
            *rule_of(wide_stage).passes[2:3],
        ),
        update=update,
        hypers=RULES["wide"].hypers,
        slots=RULES["wide"].slots,
    )
    params, grads = [numbers((50, 3, 3), 1)], [[numbers((50, 3, 3), 2)]]
    assert_same(*(after(rule, engine, params, grads) for engine in ("cpu", "reference")))


def plain_stage(*, rows, columns):
    return rows * 2, columns / 3


def plain_update(var, grad, *, rows, columns, learning_rate):
    return var - learning_rate * grad * rows * columns


def line_stage(*, rows, columns, line0, line1):
    return columns * 2 + 1, rows + line0 * 2, line1 / 3 + (rows + line0 * 2)


def halved(*, length, element_count):
    return {"length": length * 0.5 / math.sqrt(element_count)}


def seeing_update(var, grad, *, rows, length, learning_rate):
    return var - learning_rate * grad * rows / length


def choosing_update(var, grad, memory, *, rows, columns):
    return var, memory + where(rows > 0, 1.0, 0.0) + where(columns > 0, 2.0, 0.0)


def gradient_sizes(var, grad):
    return absolute(grad)


SUMS = (
    Measure(gradient_squares, makes="rows", over="row"),
    Measure(gradient_squares, makes="columns", over="column"),
)
RATE = Hyper("learning_rate", 0.1)
ODD_RULES = {
    "no slot of rows": Rule(
        name="Slotless",
        passes=(*SUMS, FusedStage(plain_stage, makes=("rows", "columns"))),
        update=plain_update,
        hypers=(RATE,),
    ),
    "slots named as statements": Rule(
        name="Lines",
        passes=(*SUMS, FusedStage(line_stage, makes=("columns", "line0", "line1"))),
        update=plain_update,
        hypers=(RATE,),
        slots=(Slot("line0", per="row"), Slot("line1", per="row")),
    ),
    "sizes are numbers": Rule(
        name="Sizes",
        passes=(SUMS[0], Measure(gradient_squares, makes="length"), Stage(halved)),
        update=seeing_update,
        hypers=(RATE,),
    ),
    "a stage changes what a row has seen": Rule(
        name="Changing",
        passes=(
            Measure(gradient_squares, makes="length"),
            Measure(gradient_share, makes="rows", over="row"),
            Stage(halved),
        ),
        update=seeing_update,
        hypers=(RATE,),
    ),
}


@pytest.mark.parametrize("name", ODD_RULES)
@pytest.mark.one_in(2)
def test_unusual_rules_equal_the_reference(name: str, answers: Any) -> None:
    rule, shapes = ODD_RULES[name], ((40, 3, 3), (4, 5))
    check_rule(rule)
    params = [numbers(shape, 1) for shape in shapes]
    grads = [[numbers(shape, 2 + step) for shape in shapes] for step in range(2)]
    actual = after(rule, "cpu", params, grads)
    assert_same(actual, after(rule, "reference", params, grads))
    assert not torch.equal(actual[0], params[0])
    assert answers[0] == ([] if "has seen" in name else [True, True])


@pytest.mark.parametrize("kind", [torch.float64, torch.float16], ids=str)
def test_slots_of_other_dtypes_equal_the_reference(kind: Any) -> None:
    results = []
    for engine in ("cpu", "reference"):
        param = numbers((40, 3, 3), 1).requires_grad_()
        with thalweg.engine(engine):
            optimizer = optim.RuleOptimizer([param], RULES["wide"])
            for step in range(3):
                param.grad = numbers((40, 3, 3), 2 + step)
                optimizer.step()
                if step == 0:
                    slots = optimizer.state[param]
                    slots |= {name: slots[name].to(kind) for name in ("memory", "tops", "sides")}
        results.append(kept(optimizer, [param]))
    assert_same(*results)


def test_conditions_see_flushed_denormals() -> None:
    rule = Rule(
        name="Choosing",
        passes=tuple(
            Measure(gradient_sizes, makes=f"{axis}s", over=axis, reduce="largest")
            for axis in ("row", "column")
        ),
        update=choosing_update,
        slots=(Slot("memory"),),
    )
    for denormals, expected in (("flush", 0.0), ("keep", 3.0)):
        for engine in ("cpu", "reference"):
            with thalweg.engine(engine, denormals=denormals):
                param = thalweg.Variable(torch.ones(40, 3, 3))
                optimizer = RuleOptimizer(rule)
                optimizer.apply_gradients([(torch.full((40, 3, 3), 1e-42), param)])
                memory = optimizer.get_slot(param, "memory")
            assert (memory == expected).all(), (denormals, engine)
