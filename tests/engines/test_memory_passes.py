"""Raw gradients in two sweeps: processed inside the update, measured beforehand, never written."""

from __future__ import annotations

import contextlib
import gc
import weakref
from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from bit_comparison import assert_same
from pairwise import cover_pairs
from rulebook import label, slow_unless
from thalweg import IndexedSlices, Variable
from thalweg._core.gradient_stats import GradientStats
from thalweg._core.gradient_transforms import Decision, GradientTransforms
from thalweg._engines import Tensors
from thalweg._engines.low_precision_copies import saturated
from thalweg._engines.protocol import NO_COLUMNS, PEAKS, Reduction
from thalweg.errors import PerformanceWarning
from thalweg.formula import gradient_squares, variable_squares
from thalweg.openseq2seq.optimizers.novograd import NovoGrad
from thalweg.v1 import train
from thalweg.v1.contrib import opt as contrib
from thalweg.v1.train.apply_gradients import StepArguments

F16, BF16, F32, F64 = torch.float16, torch.bfloat16, torch.float32, torch.float64
DTYPES = (F32, F16, BF16, F64)
SIZES = (1, 3, 8, 17, 70_000)
ROWS = [3, 1, 3, 8, 0, 3]
OPTIMIZERS: dict[str, Callable[[], Any]] = {
    "SGD": lambda: train.GradientDescentOptimizer(0.1),
    "Momentum": lambda: train.MomentumOptimizer(0.1, 0.9, use_nesterov=True),
    "Adam": lambda: train.AdamOptimizer(0.01),
    "AdamW": lambda: contrib.AdamWOptimizer(0.01, 0.01),
    "Adagrad": lambda: train.AdagradOptimizer(0.1),
    "RMSProp": lambda: train.RMSPropOptimizer(0.01, momentum=0.5),
    "Ftrl": lambda: train.FtrlOptimizer(0.1),
    "NovoGrad": lambda: NovoGrad(0.1, weight_decay=0.01),
}


class Case:
    """Variables with gradients in a dtype, and copies where that is a 16-bit one.

    Args:
        dtype: Of the gradients; that of the variables is float32, or float64 for float64.
        kind: "dense", "sparse" (tables and a vector), "constrained", or "twice" (some variables).
    """

    def __init__(self, dtype: torch.dtype, kind: str = "dense", seed: int = 0) -> None:
        self.generator = torch.Generator().manual_seed(seed)
        self.dtype, self.wide = dtype, F64 if dtype == F64 else F32
        shapes: list[tuple[int, ...]] = [(size,) for size in SIZES]
        if kind == "sparse":
            shapes = [(9, 5), (17,), (9, 1), (9, 70)]
        constraint = (lambda value: value.clamp(min=0.0)) if kind == "constrained" else None
        variables = [Variable(self.normal(*shape), f"w{shape[0]}", constraint=constraint)
                for shape in shapes]  # fmt: skip
        copies = [None if dtype in (F32, F64) else var.detach().to(dtype) for var in variables]
        places = [0, 1, 2, 1, 0, 1] if kind == "twice" else range(len(variables))
        self.variables = [variables[place] for place in places]
        self.copies = [copies[place] for place in places]
        self.is_sparse = [kind == "sparse" and var.dim() == 2 for var in self.variables]
        self.unscaling = np.full(len(self.variables), 1 / 128, np.float32)
        self.unscaling[0] = 0.1

    def normal(self, *shape: int) -> Tensor:
        return torch.randn(*shape, generator=self.generator).to(self.wide)

    def gradients(self) -> list[Any]:
        grads: list[Any] = []
        for var, is_sparse in zip(self.variables, self.is_sparse, strict=True):
            shape = (len(ROWS), *var.shape[1:]) if is_sparse else var.shape
            values = self.normal(*shape).mul(64).to(self.dtype)
            grads.append(
                IndexedSlices(values, torch.tensor(ROWS), var.shape) if is_sparse else values
            )
        return grads

    def pairs(self, gradients: list[Any]) -> list[Any]:
        return list(zip(gradients, self.variables, strict=True))


def trust(variables: np.ndarray, gradients: np.ndarray) -> np.ndarray:
    return np.linspace(0.25, 1.0, len(variables), dtype=np.float32)


def values_of(grad: Any) -> Tensor:
    return grad.values if isinstance(grad, IndexedSlices) else grad


def by_hand(case: Case, gradients: list[Any], clip_scale: Any, trusts: bool) -> list[Any]:
    """Gradients processed one after the other, in the arithmetic of the update."""
    dtype, processed = np.float64 if case.wide == F64 else np.float32, []
    factors = trust(case.unscaling, case.unscaling)
    for grad, scale, factor in zip(gradients, case.unscaling, factors, strict=True):
        rows = grad if isinstance(grad, IndexedSlices) else None
        wide = values_of(grad).to(case.wide)
        if rows is not None and trusts:
            wide = IndexedSlices(wide, rows.indices, rows.dense_shape).to_dense()
        array = wide.numpy()
        for number in (scale, clip_scale, factor if trusts else 1):
            array = array * dtype(number)
        values = torch.from_numpy(array)
        if rows is not None and not trusts:
            processed.append(IndexedSlices(values, rows.indices, rows.dense_shape))
        else:
            processed.append(values)
    return processed


def oracle(case: Case, gradients: list[Any], limit: float) -> float:
    """The factor of clipping by the common norm."""
    squares = [
        np.square(values_of(grad).double().numpy() * np.float64(scale)).sum()
        for grad, scale in zip(gradients, case.unscaling, strict=True)
    ]
    return limit / max(float(np.sqrt(np.sum(squares))), limit)


KINDS = [
    *(("dense", dtype) for dtype in DTYPES),
    *(("sparse", dtype) for dtype in DTYPES),
    *(("constrained", dtype) for dtype in (F32, F16, F64)),
    *(("twice", dtype) for dtype in (F32, F16, F64)),
]


@pytest.mark.parametrize(
    ("name", "inputs", "trusts", "engine"),
    cover_pairs(product(OPTIMIZERS, KINDS, (False, True), ("cpu", "reference"))),
    ids=label,
)
@pytest.mark.one_in(7)
def test_swept_step_equals_step_of_processed_gradients(
    name: str, inputs: tuple[str, torch.dtype], trusts: bool, engine: Any
) -> None:
    kind, dtype = inputs
    swept, plain_case = Case(dtype, kind), Case(dtype, kind)
    swept_opt, plain_opt = OPTIMIZERS[name](), OPTIMIZERS[name]()
    swept_opt.engine = plain_opt.engine = engine
    stats: list[GradientStats] = []
    options = GradientTransforms(
        unscaling=swept.unscaling, global_clipnorm=5.0, nan_if_not_finite=False, overflow=False,
        trust=trust if trusts else None, watch=stats.append, narrow=True,
    )  # fmt: skip
    for _ in range(3):
        gradients = swept.gradients()
        originals = [values_of(grad).clone() for grad in gradients]
        assert swept_opt._take(
            swept.pairs(gradients), StepArguments(None, "step"), options, swept.copies
        ).taken
        assert all(torch.equal(values_of(a), b) for a, b in zip(gradients, originals, strict=True))
        scale = stats[-1].clip_scale
        if not (trusts and kind == "sparse"):  # rows are added up before they are measured there
            np.testing.assert_allclose(scale, oracle(swept, gradients, 5.0), rtol=1e-6)
        processed = by_hand(plain_case, plain_case.gradients(), scale, trusts)
        plain_opt.apply_gradients(plain_case.pairs(processed))
    # It measures norms.
    rtol, atol = (1e-6, 1e-7) if name == "NovoGrad" else (0.0, 0.0)
    for a, b in zip(swept.variables, plain_case.variables, strict=True):
        torch.testing.assert_close(a.detach(), b.detach(), rtol=rtol, atol=atol)
    for var, copy in zip(swept.variables, swept.copies, strict=True):
        if copy is not None:
            value = var.detach().to(dtype)
            assert kind == "constrained" or torch.equal(copy, value)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("engine", ["cpu", "reference"])
def test_copies_saturate_and_keep_nan(dtype: torch.dtype, engine: Any) -> None:
    values = torch.tensor([3e38, -3e38, 3.4e38, -3.4e38, float("nan"), 1.0, 65519.0, -0.0, 70000.0])
    var, grad = Variable(values), torch.zeros(len(values), dtype=dtype)
    copy, expected = torch.empty_like(grad), saturated(var, dtype)
    opt = train.GradientDescentOptimizer(1.0)
    opt.engine = engine
    assert opt._take(
        [(grad, var)], StepArguments(None, "step"), GradientTransforms(narrow=True), [copy]
    ).taken
    torch.testing.assert_close(copy, expected, rtol=0, atol=0, equal_nan=True)
    assert copy.signbit()[values == 0].all()
    assert copy.isnan().tolist() == values.isnan().tolist()
    assert not copy.isinf().any()


@pytest.mark.one_in(3)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("special", [None, "inf", "-inf", "nan"])
@pytest.mark.parametrize("position", [0, 5, 16, 69_999])
def test_peaks_and_squares_see_every_element(
    dtype: torch.dtype, special: str | None, position: int
) -> None:
    grad = torch.linspace(-1, 1, 70_000, dtype=torch.float64).to(dtype)
    grad[position] = -3.0 if special is None else float(special)
    tensors = Tensors([grad, grad[:0]], [grad, grad[:0]])
    peak, empty = tensors.reduce(PEAKS, NO_COLUMNS)
    sums = Reduction("sums", (gradient_squares, variable_squares))
    squares, squares_of_vars = tensors.reduce(sums, NO_COLUMNS).T
    assert empty == 0
    assert np.isnan(peak) if special == "nan" else peak == abs(float(special or -3.0))
    expected = float(grad.double().square().sum())
    np.testing.assert_allclose(squares[0], expected, rtol=1e-12)
    np.testing.assert_allclose(squares_of_vars[0], expected, rtol=1e-12)


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    "dtype", [slow_unless(dtype in (F32, F16), dtype) for dtype in DTYPES], ids=str
)
@pytest.mark.parametrize("special", ["inf", "-inf", "nan"])
@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("kind", ["dense", "twice"])
def test_skipped_step_changes_nothing(
    dtype: torch.dtype, special: str, exact: bool, kind: str
) -> None:
    case, opt, step = Case(dtype, kind), train.AdamOptimizer(0.01), Variable(np.int64(0))
    calls: list[tuple[bool, float]] = []
    events: list[str] = []

    def decide(has_nan: bool, amax: float) -> Decision:
        calls.append((has_nan, amax))
        is_applied = not has_nan and bool(np.isfinite(amax))
        return Decision(is_applied, [lambda: events.append("taken" if is_applied else "skipped")])

    options = GradientTransforms(
        unscaling=case.unscaling, decide=decide, exact=exact, narrow=True,
        calls=[lambda: events.append("either")],
    )  # fmt: skip

    def take(gradients: list[Any]) -> bool:
        return opt._take(
            case.pairs(gradients), StepArguments(step, "step"), options, case.copies
        ).taken

    assert take(case.gradients())
    values_before = [t.detach().clone() for t in (*case.variables, *opt.variables(), step)]
    copies = [None if copy is None else copy.clone() for copy in case.copies]
    places = ((0, 0), (3, 2), (5, 1)) if kind == "twice" else (
        (0, 0), (3, 16), (4, 69_999), (4, 40_000),
    )  # fmt: skip
    for index, position in places:
        gradients = case.gradients()
        gradients[index][position] = float(special)
        assert not take(gradients)
        assert calls[-1][0] == (special == "nan")
        assert np.isnan(calls[-1][1]) if special == "nan" else calls[-1][1] == np.inf
        values = [t.detach() for t in (*case.variables, *opt.variables(), step)]
        assert all(torch.equal(a, b) for a, b in zip(values, values_before, strict=True))
        for copy, copy_before in zip(case.copies, copies, strict=True):
            assert copy is copy_before is None or torch.equal(copy, copy_before)  # pyright: ignore
    assert take(case.gradients())
    assert int(step) == 2
    skips = ["skipped", "either"] * len(places)
    assert events == ["taken", "either", *skips, "taken", "either"]


@pytest.mark.parametrize("steps", [0, 2])
def test_gradients_of_a_skipped_step_are_freed(steps: int) -> None:
    case, opt = Case(torch.float32), train.MomentumOptimizer(0.1, 0.9)
    options = GradientTransforms(unscaling=case.unscaling)
    skipping = GradientTransforms(
        unscaling=case.unscaling, decide=lambda has_nan, amax: Decision(False, [])
    )
    for _ in range(steps):
        opt._take(case.pairs(case.gradients()), StepArguments(None, "step"), options)
    arrays = [grad.numpy().copy() for grad in case.gradients()]
    references = [weakref.ref(array) for array in arrays]  # a tensor over an array keeps it alive
    gradients = [torch.from_numpy(array) for array in arrays]
    assert not opt._take(case.pairs(gradients), StepArguments(None, "step"), skipping).taken
    del arrays, gradients
    gc.collect()
    assert all(ref() is None for ref in references)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_the_largest_magnitude_is_that_of_processed_gradients(dtype: torch.dtype) -> None:
    case = Case(dtype)
    gradients, stats = case.gradients(), []
    peaks: list[float] = []

    def decide(has_nan: bool, amax: float) -> Decision:
        peaks.append(amax)
        return Decision(True, [])

    options = GradientTransforms(
        unscaling=case.unscaling, global_clipnorm=5.0, trust=trust, exact=True, narrow=True,
        decide=decide, watch=stats.append,
    )  # fmt: skip
    opt = train.GradientDescentOptimizer(0.1)
    for _ in range(2):
        opt._take(case.pairs(gradients), StepArguments(None, "step"), options, case.copies)
        processed = by_hand(case, gradients, stats[-1].clip_scale, trusts=True)
        assert peaks[-1] == max(float(grad.abs().max()) for grad in processed)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_norms_are_of_unscaled_gradients_and_of_variables_before_the_step(
    dtype: torch.dtype,
) -> None:
    case, stats = Case(dtype), []
    options = GradientTransforms(
        unscaling=case.unscaling, global_clipnorm=5.0, trust=trust, watch=stats.append, narrow=True
    )
    opt = train.MomentumOptimizer(0.1, 0.9)
    for _ in range(2):
        gradients = case.gradients()
        norms = [
            float(torch.linalg.vector_norm(grad.double() * float(scale)))
            for grad, scale in zip(gradients, case.unscaling, strict=True)
        ]
        sizes = [float(torch.linalg.vector_norm(var.detach().double())) for var in case.variables]
        opt._take(case.pairs(gradients), StepArguments(None, "step"), options, case.copies)
        latest: GradientStats = stats[-1]
        np.testing.assert_allclose(latest.gradient_norms, norms, rtol=1e-12)
        np.testing.assert_allclose(latest.variable_norms, sizes, rtol=1e-12)
        np.testing.assert_allclose(latest.global_norm, np.linalg.norm(norms), rtol=1e-12)
        np.testing.assert_allclose(latest.clipped_global_norm, 5.0, rtol=1e-6)


@pytest.mark.parametrize(
    ("unscaling", "overflow", "norm"),
    [(1.0, False, 2e20), (1.0, True, np.inf), (2.0**-20, True, 2e20 * 2.0**-20)],
)
def test_a_norm_overflows_where_the_squares_of_unscaled_gradients_do(
    unscaling: float, overflow: bool, norm: float
) -> None:
    var, stats = Variable(torch.zeros(4)), []
    options = GradientTransforms(
        unscaling=np.array([unscaling], np.float32), global_clipnorm=1.0, overflow=overflow,
        nan_if_not_finite=False, watch=stats.append,
    )  # fmt: skip
    train.GradientDescentOptimizer(1.0)._take(
        [(torch.full((4,), 1e20), var)], StepArguments(None, "step"), options
    )
    np.testing.assert_allclose(stats[0].global_norm, norm, rtol=1e-6)
    np.testing.assert_allclose(stats[0].gradient_norms, [norm], rtol=1e-6)
    # A gradient that is finite is finite after clipping, too.
    clipped = 0.0 if norm == np.inf else 1.0
    np.testing.assert_allclose(stats[0].clipped_norms, [clipped], rtol=1e-6)
    np.testing.assert_allclose(var.detach().norm(), clipped, rtol=1e-6)


@pytest.mark.parametrize("dtype", [F16, BF16], ids=str)
def test_rows_that_repeat_are_added_up_in_the_dtype_of_the_variable(dtype: torch.dtype) -> None:
    grad = IndexedSlices(torch.full((64, 1), 1638.0, dtype=dtype), torch.zeros(64).long(), (2, 1))
    value = float(grad.values[0].float())
    for options in (
        GradientTransforms(narrow=True),
        GradientTransforms(trust=lambda v, g: np.ones(1), narrow=True),
    ):
        var = Variable([[0.0], [0.0]])
        train.GradientDescentOptimizer(1.0)._take(
            [(grad, var)], StepArguments(None, "step"), options
        )
        assert var.tolist() == [[-64 * value], [0.0]]


def test_a_gradient_of_another_dtype_or_shape_changes_nothing() -> None:
    case, opt = Case(torch.float16), train.MomentumOptimizer(0.1, 0.9)
    options = GradientTransforms(unscaling=case.unscaling, narrow=True)
    opt._take(case.pairs(case.gradients()), StepArguments(None, "step"), options, case.copies)
    values_before = [var.detach().clone() for var in case.variables]
    for bad in (torch.ones(5), torch.ones(SIZES[-1], dtype=torch.float64)):
        gradients = [*case.gradients()[:-1], bad]
        with pytest.raises(ValueError, match="w70000"):
            opt._take(case.pairs(gradients), StepArguments(None, "step"), options, case.copies)
    assert all(torch.equal(a, b) for a, b in zip(case.variables, values_before, strict=True))


@pytest.mark.parametrize("engine", ["cpu", "reference"])
@pytest.mark.parametrize("crossed", [False, True])
def test_strided_variables_and_copies_equal_contiguous_ones(crossed: bool, engine: Any) -> None:
    var = torch.nn.Parameter(torch.randn(6, 4).t())
    copy = torch.empty(4, 6) if crossed else torch.empty(6, 4).t()
    copy = copy.half()
    opt = train.GradientDescentOptimizer(0.5)
    opt.engine = engine
    values_before, grad = var.detach().clone(), torch.ones(4, 6, dtype=torch.float16)
    slow = crossed and engine == "cpu"
    with pytest.warns(PerformanceWarning) if slow else contextlib.nullcontext():
        opt._take(
            [(grad, var)], StepArguments(None, "step"), GradientTransforms(narrow=True), [copy]
        )
    assert_same([var.detach()], [values_before - 0.5])
    assert_same([copy], [(values_before - 0.5).half()])
