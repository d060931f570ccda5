"""Raw gradients in two sweeps: processed inside the update, measured beforehand, never written."""

from __future__ import annotations

import contextlib
import gc
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import thalweg
from thalweg import Variable
from thalweg.core.pairs import Pair
from thalweg.core.pipeline import Clipping
from thalweg.core.sweeps import Measured, Sweep
from thalweg.engines import Tensors
from thalweg.engines.reference import saturate
from thalweg.errors import PerformanceWarning
from thalweg.openseq2seq.optimizers.novograd import NovoGrad
from thalweg.v1 import train
from thalweg.v1.contrib import opt as contrib

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
SIZES = (1, 3, 8, 17, 70_000)
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
    """Variables with gradients in a dtype, and copies where that is a 16-bit one."""

    def __init__(self, dtype: torch.dtype, seed: int = 0) -> None:
        self.generator = torch.Generator().manual_seed(seed)
        self.dtype = dtype
        self.variables = [
            Variable(torch.randn(size, generator=self.generator), name=f"w{size}") for size in SIZES
        ]
        reduced = dtype != torch.float32
        self.copies = [var.detach().to(dtype) if reduced else None for var in self.variables]
        self.unscaling = np.full(len(SIZES), 1 / 128, np.float32)
        self.unscaling[0] = 0.1

    def gradients(self) -> list[Tensor]:
        return [torch.randn(n, generator=self.generator).mul(64).to(self.dtype) for n in SIZES]

    def pairs(self, gradients: list[Tensor]) -> list[Pair]:
        return list(zip(gradients, self.variables, strict=True))


def trust(variables: np.ndarray, gradients: np.ndarray) -> np.ndarray:
    return np.linspace(0.25, 1.0, len(variables), dtype=np.float32)


def clip(norm: float) -> np.float32:
    return np.float32(0.7)


def by_hand(case: Case, gradients: list[Tensor]) -> list[Tensor]:
    factors = trust(case.unscaling, case.unscaling)
    return [
        grad.float() * float(one) * float(clip(0.0)) * float(factor)
        for grad, one, factor in zip(gradients, case.unscaling, factors, strict=True)
    ]


@pytest.mark.parametrize("engine", ["cpu", "reference"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_step_in_sweeps_is_the_plain_step_of_processed_gradients(
    name: str, dtype: torch.dtype, engine: Any
) -> None:
    swept, plain = Case(dtype), Case(dtype)
    ours, theirs = OPTIMIZERS[name](), OPTIMIZERS[name]()
    ours.engine = theirs.engine = engine
    sweep = Sweep(unscaling=swept.unscaling, clip=clip, trust=trust)
    for _ in range(3):
        gradients = swept.gradients()
        kept = [grad.clone() for grad in gradients]
        pairs = swept.pairs(gradients)
        assert ours.can_sweep(pairs)
        assert ours.apply_in_sweeps(pairs, sweep, swept.copies, None)
        theirs.apply_gradients(plain.pairs(by_hand(plain, plain.gradients())))
        assert all(torch.equal(a, b) for a, b in zip(gradients, kept, strict=True))
    rtol, atol = (1e-6, 1e-7) if name == "NovoGrad" else (0.0, 0.0)  # it measures norms
    for a, b in zip(swept.variables, plain.variables, strict=True):
        torch.testing.assert_close(a.detach(), b.detach(), rtol=rtol, atol=atol)
    for var, copy in zip(swept.variables, swept.copies, strict=True):
        if copy is not None:
            assert torch.equal(copy, var.detach().to(dtype))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("engine", ["cpu", "reference"])
def test_copies_saturate_and_keep_nan(dtype: torch.dtype, engine: Any) -> None:
    values = torch.tensor([3e38, -3e38, 3.4e38, -3.4e38, float("nan"), 1.0, 65519.0, -0.0, 70000.0])
    var, grad = Variable(values), torch.zeros(len(values), dtype=dtype)
    copy, wanted = torch.empty_like(grad), torch.empty_like(grad)
    saturate(var, wanted)
    opt = train.GradientDescentOptimizer(1.0)
    opt.engine = engine
    sweep = Sweep(unscaling=np.ones(1, np.float32))
    assert opt.apply_in_sweeps([(grad, var)], sweep, [copy], None)
    torch.testing.assert_close(copy, wanted, rtol=0, atol=0, equal_nan=True)
    assert copy.signbit()[values == 0].all()
    assert copy.isnan().tolist() == values.isnan().tolist()
    assert not copy.isinf().any()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("special", [None, "inf", "-inf", "nan"])
@pytest.mark.parametrize("position", [0, 5, 16, 69_999])
def test_peaks_and_squares_see_every_element(
    dtype: torch.dtype, special: str | None, position: int
) -> None:
    grad = torch.linspace(-1, 1, 70_000, dtype=torch.float64).to(dtype)
    grad[position] = -3.0 if special is None else float(special)
    found = Tensors([grad, grad[:0]], [grad, grad[:0]])
    peak, empty = found.peaks()
    assert empty == 0
    assert np.isnan(peak) if special == "nan" else peak == abs(float(special or -3.0))
    wanted = float(grad.double().square().sum())
    np.testing.assert_allclose(found.squares()[0], wanted, rtol=1e-12)
    np.testing.assert_allclose(found.variable_squares()[0], wanted, rtol=1e-12)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("special", ["inf", "-inf", "nan"])
@pytest.mark.parametrize("exact", [False, True])
def test_a_step_that_is_skipped_changes_nothing(
    dtype: torch.dtype, special: str, exact: bool
) -> None:
    case, opt, step = Case(dtype), train.AdamOptimizer(0.01), Variable(np.int64(0))
    asked: list[tuple[bool, float]] = []

    def decide(has_nan: bool, amax: float) -> bool:
        asked.append((has_nan, amax))
        return has_nan or not np.isfinite(amax)

    sweep = Sweep(unscaling=case.unscaling, decide=decide, exact=exact)
    assert opt.apply_in_sweeps(case.pairs(case.gradients()), sweep, case.copies, step)
    before = [t.detach().clone() for t in (*case.variables, *opt.variables(), step)]
    copies = [None if copy is None else copy.clone() for copy in case.copies]
    for index, position in ((0, 0), (3, 16), (4, 69_999), (4, 40_000)):
        gradients = case.gradients()
        gradients[index][position] = float(special)
        assert not opt.apply_in_sweeps(case.pairs(gradients), sweep, case.copies, step)
        assert asked[-1][0] == (special == "nan")
        assert np.isnan(asked[-1][1]) if special == "nan" else asked[-1][1] == np.inf
        after = [t.detach() for t in (*case.variables, *opt.variables(), step)]
        assert all(torch.equal(a, b) for a, b in zip(after, before, strict=True))
        for copy, kept in zip(case.copies, copies, strict=True):
            assert copy is kept is None or torch.equal(copy, kept)  # pyright: ignore
    assert opt.apply_in_sweeps(case.pairs(case.gradients()), sweep, case.copies, step)
    assert int(step) == 2


@pytest.mark.parametrize("steps", [0, 2])
def test_gradients_of_a_skipped_step_are_let_go(steps: int) -> None:
    case, opt = Case(torch.float32), train.MomentumOptimizer(0.1, 0.9)
    plain = Sweep(unscaling=case.unscaling)
    skipping = Sweep(unscaling=case.unscaling, decide=lambda has_nan, amax: True)
    for _ in range(steps):
        opt.apply_in_sweeps(case.pairs(case.gradients()), plain, None, None)
    arrays = [grad.numpy().copy() for grad in case.gradients()]
    seen = [weakref.ref(array) for array in arrays]  # a tensor over an array keeps it alive
    gradients = [torch.from_numpy(array) for array in arrays]
    assert not opt.apply_in_sweeps(case.pairs(gradients), skipping, None, None)
    del arrays, gradients
    gc.collect()
    assert all(ref() is None for ref in seen)


def test_clipping_by_value_behind_a_sweep_is_refused() -> None:
    case = Case(torch.float32)
    sweep = Sweep(unscaling=case.unscaling, inner=Clipping(clipvalue=1.0, clipnorm=1.0))
    measure = Tensors(case.gradients(), case.variables)
    with pytest.raises(ValueError, match="Clipping by value"):
        sweep.separate(measure, np.float32)


def test_the_largest_magnitude_is_that_of_processed_gradients() -> None:
    case = Case(torch.float16)
    gradients = case.gradients()
    seen: list[float] = []
    sweep = Sweep(
        unscaling=case.unscaling, clip=clip, trust=trust, exact=True,
        decide=lambda has_nan, amax: seen.append(amax) or False,
    )  # fmt: skip
    opt = train.GradientDescentOptimizer(0.1)
    wanted = max(float(grad.abs().max()) for grad in by_hand(case, gradients))
    opt.apply_in_sweeps(case.pairs(gradients), sweep, case.copies, None)
    opt.apply_in_sweeps(case.pairs(gradients), sweep, case.copies, None)
    assert seen == [wanted, wanted]


def test_norms_are_of_unscaled_gradients_and_of_variables_before_the_step() -> None:
    case, found = Case(torch.bfloat16), []
    sweep = Sweep(unscaling=case.unscaling, clip=clip, trust=trust, watch=found.append)
    opt = train.MomentumOptimizer(0.1, 0.9)
    for _ in range(2):
        gradients = case.gradients()
        own = [
            float(torch.linalg.vector_norm(grad.double() * float(one)))
            for grad, one in zip(gradients, case.unscaling, strict=True)
        ]
        sizes = [float(torch.linalg.vector_norm(var.detach().double())) for var in case.variables]
        opt.apply_in_sweeps(case.pairs(gradients), sweep, case.copies, None)
        known: Measured = found[-1]
        np.testing.assert_allclose(known.gradient_norms, own, rtol=1e-7)
        np.testing.assert_allclose(known.variable_norms, sizes, rtol=1e-12)
        np.testing.assert_allclose(known.global_norm, np.linalg.norm(own), rtol=1e-7)


def test_what_cannot_be_swept_is_told() -> None:
    opt = train.MomentumOptimizer(0.1, 0.9)
    narrow = Variable(torch.ones(2, dtype=torch.float16))
    constrained = Variable([1.0, 2.0], constraint=torch.relu)
    plain = Variable([1.0, 2.0])
    rows = thalweg.IndexedSlices(torch.ones(1), torch.tensor([0]), (2,))
    assert opt.can_sweep([(torch.ones(2), plain)])
    assert not opt.can_sweep([(torch.ones(2).half(), narrow)])
    assert not opt.can_sweep([(torch.ones(2), constrained)])
    assert not opt.can_sweep([(rows, plain)])
    assert not opt.can_sweep([(torch.ones(2), plain), (torch.ones(2), plain)])


def test_a_gradient_of_another_dtype_or_shape_changes_nothing() -> None:
    case, opt = Case(torch.float16), train.MomentumOptimizer(0.1, 0.9)
    sweep = Sweep(unscaling=case.unscaling)
    opt.apply_in_sweeps(case.pairs(case.gradients()), sweep, case.copies, None)
    before = [var.detach().clone() for var in case.variables]
    for bad in (torch.ones(5), torch.ones(SIZES[-1], dtype=torch.float64)):
        gradients = [*case.gradients()[:-1], bad]
        with pytest.raises(ValueError, match="w70000"):
            opt.apply_in_sweeps(case.pairs(gradients), sweep, case.copies, None)
    assert all(torch.equal(a, b) for a, b in zip(case.variables, before, strict=True))


@pytest.mark.parametrize("engine", ["cpu", "reference"])
@pytest.mark.parametrize("crossed", [False, True])
def test_variables_and_copies_of_other_strides(crossed: bool, engine: Any) -> None:
    var = torch.nn.Parameter(torch.randn(6, 4).t())
    copy = torch.empty(4, 6) if crossed else torch.empty(6, 4).t()
    copy = copy.half()
    opt = train.GradientDescentOptimizer(0.5)
    opt.engine = engine
    before, grad = var.detach().clone(), torch.ones(4, 6, dtype=torch.float16)
    sweep = Sweep(unscaling=np.ones(1, np.float32))
    slow = crossed and engine == "cpu"
    with pytest.warns(PerformanceWarning) if slow else contextlib.nullcontext():
        opt.apply_in_sweeps([(grad, var)], sweep, [copy], None)
    assert torch.equal(var.detach(), before - 0.5)
    assert torch.equal(copy, (before - 0.5).half())
