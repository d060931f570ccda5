"""Sums have one order: the same bits from NumPy, torch and kernels, whatever else there is."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
import torch
from torch import Tensor

from pairwise import cover_pairs
from rulebook import slow_unless
from thalweg import Hyper, Rule, RuleError, Slot, Variable, optim, sqrt, where
from thalweg import engine as use_engine
from thalweg._engines import Dispatcher, Selection, Tensors
from thalweg._engines.codegen import Measurement
from thalweg._engines.cpu import launch
from thalweg._engines.cpu.offsets import Offsets
from thalweg._engines.cpu.reductions import Leaves, sums_of
from thalweg._engines.denormals import set_denormals
from thalweg._engines.layout import STORAGE_NAMES, compute_dtype
from thalweg._engines.numpy_functions import numpy_formula
from thalweg._engines.protocol import NO_COLUMNS, Columns, Reduction, StepRequest
from thalweg._engines.reduction_order import (
    LANES,
    LEAF,
    Tree,
    combine_leaves,
    leaf_counts,
    leaves_of,
)
from thalweg.formula import gradient_squares, maximum, minimum, variable_squares
from thalweg.keras.optimizers import SGD
from thalweg.rules.clipping import clip_by_norm, clip_by_value, scale_by_trust, unscale
from thalweg.rules.modern.common import ones

DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
SIZES = (0, 1, 7, 1023, 1024, 1025, 8191, 8193, 65535, 65536, 65537, 200003, 3 * 65536 + 5)
SPECIAL = (np.nan, np.inf, -np.inf, -0.0)


def numbers(size: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    """Numbers over many powers of two, whose sum depends on the order."""
    generator = torch.Generator().manual_seed(size + seed)
    normal = torch.randn(size, generator=generator, dtype=torch.float64)
    return (normal * torch.exp2(torch.randint(-9, 7, (size,), generator=generator))).to(dtype)


def bounded(grad, *, bound):
    return maximum(minimum(grad, bound), -bound)


def wide(tensor: Tensor) -> np.ndarray:
    return tensor.double().numpy()


def measured(
    formulas, tensors, stages=(), scalars=None, flush=False, leaves=False, copies=False, places=None
):
    """Return what the kernel makes of tensors of several streams each, all of one signature.

    Args:
        copies: Whether the last stream is a copy, at which the variable begins.
        places: Optional. The `Offsets` of the tensors, for a kernel that gathers.
    """
    first = tensors[0]
    storage = tuple(STORAGE_NAMES[stream.dtype] for stream in first)
    compute = compute_dtype(first[0].dtype)
    name = np.dtype(compute).name
    measurement = Measurement(tuple(formulas), storage, name, stages, copies, copies)
    kernel = launch.sum_kernel(measurement, places is not None)
    base = np.array([[stream.data_ptr() for stream in streams] for streams in tensors], np.int64)
    table = Leaves([streams[0].numel() for streams in tensors], places)
    leaf_sums = table.measure(kernel, base, scalars, flush)
    return leaf_sums if leaves else table.combine(leaf_sums)


def specified(formula, streams, stages=(), scalars=None):
    """The leaves of one tensor as the specification has them."""
    named_scalars = scalars or {}
    compute = compute_dtype(streams[0].dtype)
    arrays = [
        stream.numpy() if stream.element_size() > 2 else stream.float().numpy()
        for stream in streams
    ]

    def called(function, dtype, *values):
        code = function.__code__
        names = code.co_varnames[code.co_argcount : code.co_argcount + code.co_kwonlyargcount]
        arguments = {name: dtype(named_scalars[name]) for name in names}
        return numpy_formula(function, dtype)(*values, **arguments)[0]

    with np.errstate(all="ignore"):
        for stage in stages:
            arrays[1] = called(stage, compute, arrays[1].astype(compute))
        arrays = [array.astype(np.float64) for array in arrays[: formula.__code__.co_argcount]]
        return leaves_of(called(formula, np.float64, *arrays))


def one_by_one(values: np.ndarray) -> float:
    """A tensor's sum as the text of the specification says it, in Python's own floats."""
    leaves = []
    for start in range(0, len(values), LEAF):
        lanes = [0.0] * LANES
        for index, value in enumerate(values[start : start + LEAF].tolist()):
            lanes[index % LANES] += value
        while len(lanes) > 1:
            half = len(lanes) // 2
            lanes = [a + b for a, b in zip(lanes[:half], lanes[half:], strict=True)]
        leaves += lanes
    while len(leaves) > 1:
        leaves += [0.0] * (len(leaves) % 2)
        leaves = [a + b for a, b in zip(leaves[::2], leaves[1::2], strict=True)]
    return leaves[0] if leaves else 0.0


def assert_bits(actual, expected) -> None:
    actual, expected = np.asarray(actual), np.asarray(expected)
    np.testing.assert_array_equal(actual, expected)
    np.testing.assert_array_equal(
        np.signbit(actual[actual == 0]), np.signbit(expected[expected == 0])
    )


# The specification


@pytest.mark.parametrize("size", SIZES)
def test_the_specification_equals_its_text(size):
    values = wide(numbers(size))
    (actual,) = combine_leaves(leaves_of(values), leaf_counts([size]))
    assert_bits(actual, one_by_one(values))


@pytest.mark.parametrize("count", [2, 3, 5, 6, 7, 8, 9, 37])
def test_leaves_are_added_in_pairs_of_neighbours(count):
    values = wide(numbers(count))
    expected = values
    while len(expected) > 1:
        expected = np.append(expected, [0.0] * (len(expected) % 2))
        expected = expected[::2] + expected[1::2]
    assert_bits(combine_leaves(values, np.array([count])), expected)


def test_batched_leaves_combine_as_single_tensors():
    counts = np.array([0, 3, 1, 0, 17, 2, 1, 4, 0])
    leaves = wide(numbers(int(2 * counts.sum()))).reshape(-1, 2)
    leaves_before = leaves.copy()
    parts = np.split(leaves, np.cumsum(counts)[:-1])
    single = [combine_leaves(part, np.array([len(part)]))[0] for part in parts]
    assert_bits(combine_leaves(leaves, counts), single)
    in_torch = combine_leaves(torch.from_numpy(leaves), counts)
    assert_bits(in_torch.numpy(), single)
    assert_bits(leaves, leaves_before)
    assert combine_leaves(np.zeros((0, 2)), np.zeros(3, np.int64)).tolist() == [[0, 0]] * 3


@pytest.mark.parametrize("size", SIZES)
def test_torch_adds_in_the_same_order(size):
    values = numbers(size).double().square()
    assert_bits(leaves_of(values).numpy(), leaves_of(values.numpy()))


# The kernels


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("formula", [gradient_squares, variable_squares])
def test_kernels_add_in_the_same_order(dtype, formula):
    tensors = [(numbers(size, dtype), numbers(size, dtype, 1)) for size in SIZES]
    actual = measured((formula,), tensors, leaves=True)
    expected = np.concatenate([specified(formula, streams) for streams in tensors])
    assert_bits(actual[:, 0], expected)
    column = int(formula is gradient_squares)
    actual = sums_of(gradient_squares, [streams[column] for streams in tensors])
    assert_bits(actual, combine_leaves(expected, leaf_counts(SIZES)))


@pytest.mark.one_in(3)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("special", SPECIAL)
@pytest.mark.parametrize("position", [0, 1023, 1024, 65_535, 70_000])
def test_nonfinite_numbers_equal_the_specification(dtype, special, position):
    grad = torch.zeros(70_001, dtype=dtype)
    grad[position] = special

    def plain(var, grad):
        return grad

    for formula in (plain, gradient_squares):
        actual = measured((formula,), [(grad, grad)], leaves=True)[:, 0]
        assert_bits(actual, specified(formula, (grad, grad)))
        assert not np.signbit(actual[actual == 0]).any()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_denormals_are_summed_in_any_thread_mode(dtype):
    grad = torch.full((3000,), torch.finfo(dtype).smallest_normal, dtype=torch.float64)
    grad = (grad / 4).to(dtype)
    assert (grad != 0).all()

    def plain(var, grad):
        return grad

    expected = specified(plain, (grad, grad))
    assert expected[0] > 0
    with set_denormals(flush=True):
        assert_bits(measured((plain,), [(grad, grad)])[:, 0], expected)


def test_denormals_are_flushed_where_the_update_flushes_them():
    grad = torch.full((3000,), 1e-38)
    scalars = {"clipnorm": 0.5, "clip_divisor": 1.0}
    halved = measured((gradient_squares,), [(grad, grad)], (clip_by_norm,), scalars)
    flushed = measured((gradient_squares,), [(grad, grad)], (clip_by_norm,), scalars, flush=True)
    assert halved[0, 0] > 0
    assert flushed[0, 0] == 0


# What a sum does not depend on


@pytest.mark.parametrize("count", [1, 2, 8])
def test_threads_do_not_change_bits(count, threads):
    tensors = [(grad, grad) for grad in (numbers(1_000_003), numbers(5), numbers(70_000))]
    threads(count)
    actual = measured((gradient_squares,), tensors)[:, 0]
    expected = [
        combine_leaves(specified(gradient_squares, s), leaf_counts([len(s[0])]))[0] for s in tensors
    ]
    assert_bits(actual, expected)


def test_the_other_tensors_do_not_change_bits():
    tensors = [numbers(size) for size in (200_003, 1000, 65_537, 12)]
    single = [sums_of(gradient_squares, [tensor])[0] for tensor in tensors]
    assert_bits(sums_of(gradient_squares, tensors), single)
    assert_bits(sums_of(gradient_squares, tensors[::-1]), single[::-1])
    more_tensors = [*tensors, *(numbers(100, seed=seed) for seed in range(500)), numbers(3_000_000)]
    assert_bits(sums_of(gradient_squares, more_tensors)[: len(tensors)], single)


@pytest.mark.parametrize("cut", [LEAF, 2 * LEAF])
def test_tensor_parts_share_the_leaves_of_the_whole(cut):
    grad = numbers(200_003)
    leaves = measured((gradient_squares,), [(grad, grad)], leaves=True)
    parts = [(grad[:cut], grad[:cut]), (grad[cut:], grad[cut:])]
    assert_bits(measured((gradient_squares,), parts, leaves=True), leaves)


def permuted(tensor, order):
    inverse = [order.index(dim) for dim in range(tensor.dim())]
    return tensor.permute(order).contiguous().permute(inverse)


LAYOUTS = [
    lambda x: x.clone(memory_format=torch.contiguous_format),
    lambda x: x.contiguous(memory_format=torch.channels_last),
    lambda x: permuted(x, [3, 1, 0, 2]),
    lambda x: torch.stack([x, x], -1)[..., 0],
    lambda x: torch._neg_view(-x),
]


def _decayed(var, grad, mean, *, learning_rate):
    mean = mean * 0.5 + grad
    return var - learning_rate * mean, mean


def _with_slot(var, grad, mean):
    return (var * grad + mean) * mean


SLOTTED = Rule(name="Slotted", update=_decayed, hypers=(Hyper("learning_rate", 0.1),),
               slots=(Slot("mean"),))  # fmt: skip
READING = gradient_squares, variable_squares, _with_slot


def of_step(streams, engine: str, repeats: int = 1) -> np.ndarray:
    """Return sums over a variable, its gradient and its slot, one column for each step."""
    var, grad, slot = streams
    gate, selection = Dispatcher(), Selection(name=engine)
    columns = Columns({np.float32: {}, np.float64: {}}, {})
    totals = []
    for _ in range(repeats):
        ready = gate.plan_step(StepRequest(SLOTTED, (), [var], [grad], [[slot]], ["x"], selection))
        (sums,) = ready.reduce(Reduction("sums", READING), columns)
        (leaves,) = ready.reduce(Reduction("leaves", READING[2:]), columns)
        totals.append(np.append(sums, leaves.sum()))
        ready.release_gradients()
        for tensor in (grad, slot):
            tensor.mul_(0.75)
    return np.stack(totals)


@pytest.mark.one_in(7)
@pytest.mark.filterwarnings("ignore::thalweg.errors.PerformanceWarning")
@pytest.mark.parametrize(
    ("of_var", "of_grad", "dtype"),
    cover_pairs(product(range(4), range(5), (torch.float32, torch.float64, torch.bfloat16))),
    ids=str,
)
def test_elements_count_in_row_major_order_whatever_their_layout(of_var, of_grad, dtype):
    """Every engine measures what it would of contiguous tensors, to the last bit."""
    shape = (8, 4, 67, 35)
    tensors = [numbers(8 * 4 * 67 * 35, dtype, seed).view(shape) for seed in range(3)]
    expected = of_step([tensor.clone() for tensor in tensors], "cpu", 2)
    for engine in ("cpu", "reference"):
        for of_slot in (0, of_var):
            orders = of_var, of_grad, of_slot
            streams = [
                LAYOUTS[k](tensor.clone()) for k, tensor in zip(orders, tensors, strict=True)
            ]
            assert_bits(of_step(streams, engine, 2), expected)
    var, grad = LAYOUTS[of_var](tensors[0]), LAYOUTS[of_grad](tensors[1])
    (actual,) = Tensors([grad], [var]).reduce(Reduction("sums", READING[:2]), NO_COLUMNS)
    assert_bits(actual, expected[0, :2])


def test_transposed_matrix_is_measured_from_a_copy():
    tensors = [numbers(30 * 1100, seed=seed).view(30, 1100) for seed in range(3)]
    expected = of_step([tensor.clone() for tensor in tensors], "cpu", 2)
    assert not Offsets([layout_of(permuted(tensors[0], [1, 0]))]).are_compact
    assert_bits(of_step([permuted(tensor, [1, 0]) for tensor in tensors], "cpu", 2), expected)


# Shapes, and the orders of dimensions in memory, from the outermost.
ORDERS = [
    ((130, 64, 3, 3), [0, 2, 3, 1]),
    ((5, 700, 31, 2), [0, 2, 3, 1]),
    ((3, 4, 5, 6), [3, 1, 0, 2]),
    ((64, 3, 1, 49), [0, 2, 3, 1]),
    ((90_001, 3), [1, 0]),
    ((3, 40_001), [1, 0]),
    ((130, 1100), [1, 0]),
    ((2, 3, 16_411), [2, 0, 1]),
    ((2, 16_411, 3), [2, 1, 0]),
    ((300, 300), [0, 1]),
]


def layout_of(tensor):
    return tuple(tensor.shape), tensor.stride()


@pytest.mark.parametrize(("shape", "order"), ORDERS, ids=str)
def test_offset_tables_have_each_element(shape, order):
    tensor = permuted(torch.arange(np.prod(shape)).view(shape), order)
    in_memory = tensor.permute(order).reshape(-1)
    offsets = Offsets([layout_of(tensor)])
    period = offsets.table[0, 0]
    if tensor.is_contiguous():
        assert period == 0
        return
    (tables,) = offsets._tables.values()
    offsets_within, periods = tables.period_offsets, tables.period_starts
    assert len(offsets_within) == period
    assert len(periods) == -(-tensor.numel() // period)
    places = (periods[:, None] + offsets_within).reshape(-1)[: tensor.numel()]
    assert (in_memory[torch.from_numpy(places)] == torch.arange(tensor.numel())).all()


@pytest.mark.parametrize(
    ("shape", "order", "expected"),
    [
        ((256, 256, 3, 3), [0, 2, 3, 1], True),
        ((64, 3, 7, 7), [0, 2, 3, 1], True),
        ((9000, 3), [1, 0], True),
        ((64, 8), [0, 1], True),
        ((4096, 1024), [1, 0], False),
        ((1 << 20, 1 << 20), [1, 0], False),
    ],
    ids=str,
)
def test_copies_are_measured_where_periods_are_spread_over_memory(shape, order, expected):
    strides = [
        int(np.prod([shape[k] for k in order[order.index(d) + 1 :]])) for d in range(len(shape))
    ]
    assert Offsets([(shape, tuple(strides))]).are_compact is expected


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.one_in(3)
def test_kernels_gather_other_memory_orders(dtype, count, threads):
    tensors = [
        tuple(numbers(int(np.prod(shape)), dtype, seed).view(shape) for seed in range(3))
        for shape, _ in ORDERS
    ]
    orders = [order for _, order in ORDERS]
    laid_out = [tuple(permuted(x, o) for x in row) for row, o in zip(tensors, orders, strict=True)]
    places = Offsets([layout_of(row[0]) for row in laid_out])
    threads(count)
    for formulas in ((gradient_squares, ones), (_with_slot,), (ones,)):
        for stages, scalars in (((), {}), ((clip_by_value,), {"clipvalue": 0.5})):
            expected = measured(formulas, tensors, stages, scalars, leaves=True)
            actual = measured(formulas, laid_out, stages, scalars, leaves=True, places=places)
            assert_bits(actual, expected)


def test_kernels_gather_copies_at_which_variables_begin():
    ((shape, order), *_) = ORDERS
    tensors = tuple(numbers(int(np.prod(shape)), seed=seed).view(shape) for seed in range(2))
    tensors = (*tensors, tensors[0].bfloat16() * (torch.rand(shape) < 0.5))
    laid_out = tuple(permuted(x, order) for x in tensors)
    expected = measured((variable_squares,), [tensors], copies=True)
    assert expected != measured((variable_squares,), [tensors[:2]])
    places = Offsets([layout_of(laid_out[0])])
    assert_bits(measured((variable_squares,), [laid_out], copies=True, places=places), expected)


# Formulas and stages


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_two_measures_in_one_sweep_equal_each_alone(dtype):
    tensors = [(numbers(size, dtype), numbers(size, dtype, 1)) for size in (200_003, 10, 1025)]
    sums = measured((gradient_squares, variable_squares), tensors)
    for column, formula in enumerate((gradient_squares, variable_squares)):
        assert_bits(sums[:, column], measured((formula,), tensors)[:, 0])


STAGES = {
    "value": ((clip_by_value,), {"clipvalue": 0.1}),
    "two": (
        (unscale, scale_by_trust, clip_by_value),
        {
            "unscaling": np.array([0.3, 0.7]),
            "trust_factor": np.array([1.0, 0.9]),
            "clipvalue": 0.1,
        },
    ),
    "bounded": ((bounded,), {"bound": 0.1}),
}


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    ("stages", "scalars", "dtype"),
    [
        slow_unless(dtype == torch.float32 or name == "value", *row, dtype)
        for name, row in STAGES.items()
        for dtype in DTYPES
    ],
)
def test_stages_run_first_in_the_update_dtype(dtype, stages, scalars):
    tensors = [(numbers(size, dtype), numbers(size, dtype, 1)) for size in (70_001, 900)]
    actual = measured((gradient_squares, variable_squares), tensors, stages, scalars)
    for index, streams in enumerate(tensors):
        row_scalars = {name: np.broadcast_to(value, 2)[index] for name, value in scalars.items()}
        for column, formula in enumerate((gradient_squares, variable_squares)):
            leaves = specified(formula, streams, stages, row_scalars)
            assert_bits(actual[index, column], combine_leaves(leaves, np.array([len(leaves)]))[0])


def half(x):
    return x * 0.5


def with_slot(value, slope, memory, *, rate):
    positive = memory > 0
    mixed = where(positive, memory, -memory) * rate + half(slope)
    return sqrt(mixed * mixed + 0.1) / (1 + slope * slope)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_custom_formula_with_slot_and_scalar_is_summed(dtype):
    streams = tuple(numbers(70_001, dtype, seed) for seed in (1, 2, 3))
    stages, scalars = (clip_by_value,), {"rate": 0.3, "clipvalue": 2.0}
    actual = measured((with_slot, gradient_squares), [streams], stages, scalars, leaves=True)
    assert_bits(actual[:, 0], specified(with_slot, streams, stages, scalars))
    assert_bits(actual[:, 1], specified(gradient_squares, streams, stages, scalars))


def nearly_ones(var, grad):
    return where(grad > 0, 1.0, 2.0)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_counts_and_other_measures_are_summed_together(dtype):
    formulas = (gradient_squares, ones, nearly_ones, ones, variable_squares)
    tensors = [(numbers(size, dtype), numbers(size, dtype, 1)) for size in SIZES]
    tensors[4][0][7:9] = torch.nan
    actual = measured(formulas, tensors)
    for row, streams, size in zip(actual, tensors, SIZES, strict=True):
        expected = [combine_leaves(specified(formula, streams), leaf_counts([size]))[0]
                  for formula in formulas]  # fmt: skip
        assert_bits(row, expected)
        assert row[1] == size
    assert_bits(measured((ones, gradient_squares), tensors), actual[:, [1, 0]])


def test_streams_of_several_dtypes_are_summed():
    streams = (numbers(70_001), numbers(70_001, torch.float16, 1), numbers(70_001, torch.bfloat16))
    scalars = {"rate": 0.3}
    actual = measured((with_slot,), [streams], (), scalars, leaves=True)
    assert_bits(actual[:, 0], specified(with_slot, streams, (), scalars))


def test_unused_streams_are_not_read():
    grad = numbers(3000)
    kernel = launch.sum_kernel(Measurement((gradient_squares,), ("float32",) * 2, "float32"))
    base = np.array([[0, grad.data_ptr()]], np.int64)  # a variable at address 0 cannot be read
    leaves = Leaves([3000])
    sums = leaves.combine(leaves.measure(kernel, base))
    assert_bits(sums, [sums_of(gradient_squares, [grad])])


def test_products_are_rounded_before_summing():
    grad = numbers(2048, torch.float64)
    square = wide(grad) * wide(grad)
    assert_bits(sums_of(gradient_squares, [grad]), [one_by_one(square)])


def too_many(var, grad, first, second):
    return first * second


def two_results(var, grad):
    return var, grad


@pytest.mark.parametrize("formula", [too_many, two_results])
def test_invalid_measure_formula_raises(formula):
    with pytest.raises(RuleError, match=rf"{formula.__name__} .* a measure of 2 tensors takes up"):
        launch.sum_kernel(Measurement((formula,), ("float32",) * 2, "float32"))


def count(var, grad):
    return 1.0


def rate_of_count(var, grad, *, learning_rate):
    return learning_rate


def as_it_is(*, total):
    return {"found": total}


def set_to_total(var, grad, *, found):
    return (found,)


@pytest.mark.parametrize("engine", ["cpu", "reference"])
@pytest.mark.parametrize(("formula", "expected"), [(count, 15.0), (rate_of_count, 3.75)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_constant_formula_is_summed_per_element(engine, formula, expected, dtype):
    rule = Rule(
        name="Counting",
        update=set_to_total,
        measures={"total": formula},
        per_variable=as_it_is,
        hypers=(Hyper("learning_rate", 0.25),),
    )
    param = torch.zeros(3, 5, dtype=dtype).requires_grad_()
    param.grad = torch.zeros_like(param)
    with use_engine(engine):
        optim.RuleOptimizer([param], rule).step()
    assert (param == expected).all()


def test_reduction_tree_is_cached():
    tree = Tree(np.array([3, 1]))
    for seed in range(3):
        leaves = wide(numbers(4, seed=seed))
        assert_bits(tree.combine(leaves), [(leaves[0] + leaves[1]) + leaves[2], leaves[3]])


def test_norms_do_not_depend_on_strides() -> None:
    grad, results = torch.rand(300, 400, dtype=torch.float64), []
    for layout in (grad, grad.t().contiguous().t()):
        w = Variable(torch.zeros(300, 400, dtype=torch.float64), name="w")
        SGD(1.0, clipnorm=0.5).apply_gradients([(layout, w)])
        results.append(w.detach().clone())
    assert torch.equal(*results)


def test_sums_beyond_float64_are_infinite_without_a_warning() -> None:
    # Each leaf has a sum, both together have none.
    var = Variable(torch.zeros(2 * LEAF, dtype=torch.float64))
    SGD(1.0, clipnorm=1.0).apply_gradients([(torch.full_like(var, 4e151), var)])
    assert (var == 0).all()
    leaves = np.array([np.inf, -np.inf, 1e308, 1e308])
    np.testing.assert_array_equal(combine_leaves(leaves, np.array([2, 2])), [np.nan, np.inf])
    assert np.isnan(leaves_of(np.array([np.inf, *[0.0] * (LANES - 1), -np.inf])))
