"""The programs for GPUs give the bits of the reference engine, in Triton's interpreter."""

from __future__ import annotations

import contextlib
from functools import partial
from itertools import product

import numpy as np
import pytest
import torch

import rulebook
import thalweg
from no_sync_device import counting_and_waiting_for_nothing, waiting_for_nothing
from pairwise import cover_pairs
from rulebook import (
    CASES,
    DTYPES,
    FIRST,
    FLUSH,
    KEEP,
    KINDS,
    Problem,
    assert_same,
    by_rule,
    label,
    reference,
    sparse,
    take,
)
from thalweg import IndexedSlices, optim
from thalweg._engines import Dispatcher, Selection
from thalweg._engines.cuda import launch
from thalweg._engines.cuda.codegen import CHUNK
from thalweg._engines.protocol import NO_COLUMNS, PEAKS, Columns, Reduction, StepRequest, as_array
from thalweg.formula import gradient_squares, maximum, sqrt, variable_squares
from thalweg.indexed_slices import assert_in_range
from thalweg.keras.optimizers import Adam
from thalweg.openseq2seq.optimizers.novograd import NovoGrad
from thalweg.openseq2seq.optimizers.training import optimize_loss
from thalweg.rules.clipping import clip_by_norm, clip_by_value
from thalweg.v1.contrib.opt import LARSOptimizer

SHAPES = [(0,), (), (5, 7), (130,)]
SELECTIONS = [KEEP._replace(name="cuda"), FLUSH._replace(name="cuda")]
BY_SELECTION = pytest.mark.parametrize("selection", SELECTIONS, ids=["keep", "flush"])
KIND_CASES = [case for case in FIRST if case.rule.name in KINDS]


def equal_reference(case, problem, selection, **keywords):
    expected = reference(case, problem, selection, **keywords)
    assert_same(take(case, problem, selection, **keywords).written(), expected.written())


@pytest.mark.one_in(2)
@by_rule(CASES)
def test_every_rule_and_dtype_equals_the_reference(case):
    selection = SELECTIONS[CASES.index(case) % 2]
    shapes = [shape for shape in SHAPES for _ in DTYPES]
    problem = Problem.make(case.row, shapes, [*DTYPES] * len(SHAPES), 1, 0.2)
    equal_reference(case, problem, selection, steps=2)


@by_rule(KIND_CASES)
@pytest.mark.parametrize("dtype", DTYPES, ids=label)
def test_inner_and_last_programs_equal_the_reference(case, dtype):
    problem = Problem.make(case.row, [(CHUNK,), (2 * CHUNK + 5,)], [dtype] * 2, 2, 0.01)
    equal_reference(case, problem, SELECTIONS[1])


@by_rule(KIND_CASES)
@pytest.mark.parametrize("stream", ["variable", "gradient", "slot"])
def test_unaligned_elements_equal_the_reference(case, stream):
    problem = Problem.make(case.row, [(CHUNK + 3,)], [torch.float32], 3)
    (var,), (slots,), (grad,) = problem.variables, problem.slots, problem.gradients
    if stream == "variable":
        problem.variables = [moved(var)]
    elif stream == "gradient":
        problem.gradients = [moved(grad)]
    else:
        problem.slots = [list(map(moved, slots))]
    equal_reference(case, problem, SELECTIONS[1])


def moved(tensor):
    """A copy that begins at a multiple of 4 bytes, of no larger number."""
    shifted = torch.empty(len(tensor) + 1)[1:]
    return shifted.copy_(tensor)


@by_rule(KIND_CASES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=label)
def test_stages_run_before_the_update(case, dtype):
    problem = Problem.make(case.row, [(130,), ()], [dtype] * 2, 9)
    extra = {"clipvalue": 0.3, "clipnorm": 1.5, "clip_divisor": 2.7}
    stages = (clip_by_value, clip_by_norm)
    equal_reference(case, problem, SELECTIONS[1], stages=stages, **extra)


@by_rule(KIND_CASES)
@pytest.mark.parametrize("kind", [torch.float16, torch.bfloat16], ids=label)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=label)
def test_copies_equal_their_variables(case, kind, dtype):
    results_by_engine = []
    for name in ("cuda", "reference"):
        problem = Problem.make(case.row, [(130,), (3, 5)], [dtype] * 2, 4, 0.2)
        copies = [torch.zeros_like(var, dtype=kind) for var in problem.variables]
        take(case, problem, Selection(name, "flush"), copies=copies)
        results_by_engine.append([*problem.written(), *copies])
    assert_same(*results_by_engine)


@by_rule(KIND_CASES)
def test_strided_memory_equals_the_reference(case):
    problem = Problem.make(case.row, [(2, 3, 4, 5)], [torch.float32], 1)
    layout = torch.channels_last
    problem.variables = [var.to(memory_format=layout) for var in problem.variables]
    problem.slots = [[slot.to(memory_format=layout) for slot in slots] for slots in problem.slots]
    equal_reference(case, problem, SELECTIONS[1])


def with_rows(case, indices, width, dtype, seed=5, special=0.1):
    problem = Problem.make(case.row, [(9, *width)], [dtype], seed, special)
    rng = np.random.default_rng(seed)
    values = rulebook.values((len(indices), *width), dtype, rng, special)
    problem.gradients = [sparse(values, indices, problem.variables[0])]
    return problem


@pytest.mark.one_in(2)
@by_rule(FIRST)
@pytest.mark.parametrize(
    ("dtype", "selection"), [*zip((torch.float32, torch.bfloat16), SELECTIONS)], ids=label
)
def test_sparse_gradients_of_every_rule_equal_the_reference(case, dtype, selection):
    problem = with_rows(case, [7, 2, 7, 0, 8, 7, 2], (4,), dtype)
    equal_reference(case, problem, selection, steps=2)


@by_rule(KIND_CASES)
@pytest.mark.parametrize("width", [(), (1,), (3,), (1030,)], ids=label)
@pytest.mark.parametrize("indices", [[], [4], [3] * 5], ids=["none", "one", "repeated"])
def test_rows_of_any_width_equal_the_reference(case, width, indices):
    equal_reference(case, with_rows(case, indices, width, torch.float32), SELECTIONS[1])


@pytest.mark.one_in(2)
@pytest.mark.parametrize("width", [8, 72, 1032, 4100, 9001], ids=label)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=label)
def test_untouched_rows_equal_the_reference(width, dtype):
    case = next(candidate for candidate in FIRST if candidate.rule.name == "Adam")
    equal_reference(case, with_rows(case, [7, 2, 7, 3], (width,), dtype), SELECTIONS[1])


@by_rule(KIND_CASES)
def test_sparse_entries_are_processed_by_stages(case):
    problem = with_rows(case, [7, 2, 7], (5,), torch.bfloat16)
    equal_reference(case, problem, SELECTIONS[1], stages=(clip_by_value,), clipvalue=0.3)


@pytest.mark.parametrize("kind", [torch.float16, torch.bfloat16], ids=label)
def test_sparse_16_bit_gradients_update_masters(kind):
    case = next(candidate for candidate in FIRST if candidate.rule.name == "Adam")
    results_by_engine = []
    for name in ("cuda", "reference"):
        problem = with_rows(case, [7, 2, 7], (5,), torch.float32, special=0)
        grad = problem.gradients[0]
        problem.gradients = [sparse(grad.values.to(kind), grad.indices, problem.variables[0])]
        copies = [torch.zeros_like(problem.variables[0], dtype=kind)]
        take(case, problem, Selection(name, "flush"), copies=copies)
        results_by_engine.append([*problem.written(), *copies])
    assert_same(*results_by_engine)


def shrunk(var, *, decay):
    return var - decay * var


@by_rule([case for case in FIRST if case.rule.before is None and not case.rule.measures])
@pytest.mark.parametrize("indices", [None, [7, 2, 7]], ids=["dense", "sparse"])
def test_formulas_before_the_rule_equal_the_reference(case, indices):
    from dataclasses import replace

    decayed_case = replace(case, row=replace(case.row, rule=replace(case.rule, before=shrunk)))
    if indices is None:
        problem = Problem.make(case.row, [(130,)], [torch.bfloat16], 6)
    else:
        problem = with_rows(case, indices, (5,), torch.bfloat16)
    equal_reference(decayed_case, problem, SELECTIONS[1], decay=0.1)


def test_per_variable_scalars_equal_the_reference():
    case = next(candidate for candidate in FIRST if candidate.rule.name == "SGD")
    results_by_engine = []
    for name in ("cuda", "reference"):
        problem = Problem.make(case.row, [(5,), (7,), (3,)], [torch.float32] * 3, 1)
        rates = {"learning_rate": np.array([0.1, 0.2, 0.3])}
        request = StepRequest(
            case.rule, (), problem.variables, problem.gradients, problem.slots,
            ["a", "b", "c"], Selection(name),
        )  # fmt: skip
        shared = {np.float32: case.scalars(np.float32)}
        for step_round in Dispatcher().plan_step(request).make_rounds(Columns(shared, rates)):
            for call in step_round.calls:
                call()
        results_by_engine.append(problem.written())
    assert_same(*results_by_engine)


def rooted(var, grad, slot, *, rate):
    return sqrt(maximum(slot, 0.5)) * grad * rate + var


MEASURES = [(gradient_squares,), (variable_squares, gradient_squares), (gradient_squares, rooted)]


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    ("formulas", "dtype", "stages"),
    cover_pairs(product(MEASURES, DTYPES, ((), (clip_by_value,)))),
    ids=lambda value: str(len(value)) if isinstance(value, tuple) else label(value),
)
def test_measures_add_in_the_order_of_all_engines(formulas, dtype, stages):
    case = next(candidate for candidate in FIRST if candidate.rule.name == "Momentum")
    scalars = {"rate": 0.3, "clipvalue": 0.7}
    results_by_engine = []
    for name in ("cuda", "reference"):
        problem = Problem.make(case.row, [(65_536 + 1025,), (7,), (0,)], [dtype] * 3, 3)
        request = StepRequest(
            case.rule, stages, problem.variables, problem.gradients, problem.slots,
            ["a", "b", "c"], Selection(name, "flush"),
        )  # fmt: skip
        ready = Dispatcher().plan_step(request)
        common = {
            kind: {k: kind(v) for k, v in scalars.items()} for kind in (np.float32, np.float64)
        }
        columns = Columns(common, {})
        sums = as_array(ready.reduce(Reduction("sums", formulas, stages), columns))
        leaves = np.concatenate(ready.reduce(Reduction("leaves", formulas, stages), columns))
        results_by_engine.append([torch.from_numpy(sums), torch.from_numpy(leaves)])
    assert_same(*results_by_engine)


@pytest.mark.parametrize("dtype", DTYPES, ids=label)
@pytest.mark.parametrize("special", [None, np.nan, np.inf, -np.inf])
def test_peaks_equal_the_reference(dtype, special):
    case = next(candidate for candidate in FIRST if candidate.rule.name == "SGD")
    problem = Problem.make(case.row, [(70_000,), (3,), (0,)], [dtype] * 3, 3)
    if special is not None:
        problem.gradients[0][69_999] = special
    results_by_engine = []
    for name in ("cuda", "reference"):
        request = StepRequest(
            case.rule, (), problem.variables, problem.gradients, problem.slots,
            ["a", "b", "c"], Selection(name),
        )  # fmt: skip
        peaks = Dispatcher().plan_step(request).reduce(PEAKS, NO_COLUMNS)
        results_by_engine.append([torch.from_numpy(as_array(peaks))])
    assert_same(*results_by_engine)


@by_rule(KIND_CASES)
def test_repeated_launch_reads_new_gradients(case):
    engines = rulebook.Engines()
    problem = Problem.make(case.row, [(130,), (5,)], [torch.float32] * 2, 1)
    expected = problem.copy()
    for seed in (2, 3):
        gradients = Problem.make(case.row, [(130,), (5,)], [torch.float32] * 2, seed).gradients
        problem.gradients = expected.gradients = gradients
        take(case, problem, SELECTIONS[1], engines=engines)
        take(case, expected, FLUSH._replace(name="reference"))
        assert_same(problem.written(), expected.written())


@by_rule([case for case in FIRST if not case.rule.measures])
def test_replayed_step_does_not_synchronize(case):
    engines = rulebook.Engines()
    problem = Problem.make(case.row, [(130,), (5,)], [torch.float32] * 2, 1)
    take(case, problem, SELECTIONS[1], engines=engines)
    with waiting_for_nothing():
        take(case, problem, SELECTIONS[1], engines=engines)


@by_rule(FIRST)
@pytest.mark.parametrize("indices", [None, [7, 2, 7]], ids=["dense", "sparse"])
def test_an_empty_launch_writes_nothing(case, indices, monkeypatch):
    def over_nothing(self):
        function = getattr(
            launch.load_module(self._kernel.name, self._kernel.source), self._kernel.name
        )
        arguments = map(launch._make_empty_argument, function.arg_names[:-1], self._arguments)
        with np.errstate(all="ignore"):
            function[self._grid](*arguments, ALIGNED=self._aligned)
        starts.append(self)

    starts = []
    problem = Problem.make(case.row, [(9, 4)], [torch.float32], 1)
    if indices is not None:
        problem = with_rows(case, indices, (4,), torch.float32)
    copied = problem.copy()
    monkeypatch.setattr(launch._Interpreted, "run", over_nothing)
    take(case, problem, SELECTIONS[1])
    assert_same(problem.written(), copied.written())
    assert starts


OPTIMIZERS = {
    "plain": partial(Adam, 0.1),
    "clipnorm": partial(Adam, 0.1, clipnorm=0.5),
    "global_clipnorm": partial(Adam, 0.1, global_clipnorm=0.5),
    "clipvalue": partial(Adam, 0.1, clipvalue=0.1),
    "LARS": partial(LARSOptimizer, 0.1, skip_list=("unknown",)),
    "NovoGrad": partial(NovoGrad, 0.1),
}
BY_OPTIMIZER = pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=list(OPTIMIZERS))


def trained(engine, make, context=contextlib.nullcontext):
    """Variables and slots of an optimizer after some steps over mixed dtypes."""
    generator = torch.Generator().manual_seed(0)
    variables = [
        torch.randn(shape, generator=generator).to(dtype).requires_grad_()
        for shape, dtype in (((5, 7), torch.float32), ((130,), torch.bfloat16), ((), torch.float32))
    ]
    optimizer = make()
    with thalweg.engine(engine):
        for seed in range(3):
            generator.manual_seed(seed)
            gradients = [
                torch.randn(var.shape, generator=generator).to(var.dtype) for var in variables
            ]
            with context() if seed == 2 else contextlib.nullcontext():
                optimizer.apply_gradients(zip(gradients, variables, strict=True))
    slots = [slot for slot in optimizer.variables() if slot.is_floating_point()]
    return [*variables, *slots]


@BY_OPTIMIZER
def test_optimizer_steps_equal_the_cpu(make):
    assert_same(trained("cuda", make), trained("cpu", make))


@BY_OPTIMIZER
def test_replayed_optimizer_step_does_not_synchronize(make):
    trained("cuda", make, waiting_for_nothing)


def clipped(context=contextlib.nullcontext):
    """Return the last step of a `thalweg.optim` optimizer that clips by a norm."""
    generator = torch.Generator().manual_seed(0)
    params = [torch.nn.Parameter(torch.randn(4, 3, generator=generator)) for _ in range(2)]
    optimizer = optim.tensorflow.Adam(params, lr=0.1, clip_grad_norm=0.5)
    for seed in range(3):
        params[0].grad = torch.randn(4, 3, generator=generator.manual_seed(seed))
        with context(optimizer) if seed == 2 else contextlib.nullcontext():
            optimizer.step()
    return optimizer.last_step


def test_norms_are_copied_to_the_host_when_read():
    with thalweg.engine("cpu"):
        expected = clipped()
    with thalweg.engine("cuda"):
        assert clipped() == expected
        clipped(counting_and_waiting_for_nothing)


LARC = {"larc_eta": 0.01, "larc_mode": "clip"}


def processed(context=contextlib.nullcontext, **options):
    """Variables after steps of `optimize_loss`, of which gradients are clipped or scaled."""
    torch.manual_seed(0)
    variables = [thalweg.Variable(torch.randn(4, 3), name=name) for name in "abc"]
    step = optimize_loss(
        lambda: sum((var * torch.arange(1.0, 4.0)).sum() for var in variables), "Momentum",
        {"momentum": 0.9}, lambda step: 0.1, var_list=variables, **options,
    )  # fmt: skip
    gradients = [torch.randn(4, 3) for _ in variables]
    for number in range(3):
        with context(step._rate.tensors) if number == 2 else contextlib.nullcontext():
            step.apply_gradients(gradients)
    return [var.detach() for var in variables]


@pytest.mark.parametrize(
    "options",
    [
        {"clip_gradients": 0.1},
        {"larc_params": LARC},
        {"larc_params": {**LARC, "larc_mode": "scale"}},
    ],
    ids=str,
)
def test_gradient_processing_does_not_synchronize(options):
    with thalweg.engine("cpu"):
        expected = processed(**options)
    with thalweg.engine("cuda"):
        assert_same(processed(**options), expected)
        processed(lambda host: waiting_for_nothing(host=host), **options)


def test_sparse_step_does_not_synchronize(monkeypatch):
    monkeypatch.setattr(
        IndexedSlices, "check_range", lambda self, rows, style: assert_in_range(self.indices, rows)
    )
    var = torch.randn(9, 4, requires_grad=True)
    optimizer = Adam(0.1)
    with thalweg.engine("cuda"):
        for seed in range(3):
            grad = IndexedSlices(torch.randn(3, 4), torch.tensor([7, 2, 7]), (9, 4))
            with waiting_for_nothing() if seed == 2 else contextlib.nullcontext():
                optimizer.apply_gradients([(grad, var)])
        with pytest.raises(RuntimeError, match=r"not in \[0, 9\)"):
            optimizer.apply_gradients([(IndexedSlices(torch.ones(1, 4), [9], (9, 4)), var)])
