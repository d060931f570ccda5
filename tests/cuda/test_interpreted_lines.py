"""Measures of rows and columns on a GPU, in Triton's interpreter: the bits of the reference."""

from __future__ import annotations

import contextlib

import pytest
import torch

import thalweg
from no_sync_device import counting_and_waiting_for_nothing
from rulebook import assert_same
from test_lines import FULL, after, numbers, without_payload
from thalweg import optim
from thalweg._engines.cuda import launch

SHAPES = (
    (1, 1), (66, 3), (3, 1029), (2, 5, 4), (70, 140), (9, 40), (70, 2, 3, 3), (2, 8, 8), (2, 8, 1),
)  # fmt: skip
DTYPES = [torch.float32, torch.float64, torch.bfloat16]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_line_measures_equal_the_reference(dtype, monkeypatch):
    launched, real = [], launch.lines_kernel
    monkeypatch.setattr(launch, "lines_kernel", lambda *x: launched.append(x) or real(*x))
    params = [numbers(shape, 1).to(dtype) for shape in SHAPES]
    grads = [[numbers(shape, 2).to(dtype) for shape in SHAPES]] * 2
    actual = after(FULL, "cuda", params, grads)
    assert launched
    assert_same(actual, after(FULL, "reference", params, grads))


@pytest.mark.one_in(2)
@pytest.mark.parametrize("position", [float("nan"), float("inf"), -0.0, 1e-310])
@pytest.mark.parametrize("dtype", DTYPES[:2], ids=str)
def test_nonfinite_and_odd_numbers_equal_the_reference(dtype, position):
    shapes = ((5, 6), (2, 3, 4), (9, 40), (3, 130), (3, 1029))
    params = [numbers(shape, 1).to(dtype) for shape in shapes]
    grads = [numbers(shape, 2).to(dtype) for shape in shapes]
    for grad in grads:
        grad[(..., 1, 2)] = position
        grad[(..., 0, slice(None))] = position
    results = [after(FULL, engine, params, [grads]) for engine in ("cuda", "reference")]
    assert_same(*map(without_payload, results))


@pytest.mark.parametrize("ends", [(3e-308, -2.9e-308), (1e-310, 1e-310)], ids=str)
def test_tile_denormals_are_flushed_after_a_stage(ends):
    params = [torch.ones(shape, dtype=torch.float64) for shape in ((1, 1025), (65, 1), (4, 3))]
    grads = [torch.zeros_like(param) for param in params]
    for grad in grads:
        grad.view(-1)[0], grad.view(-1)[-1] = ends
    results_by_engine = []
    for engine in ("cuda", "reference"):
        chosen_engine = thalweg.engine(engine, denormals="flush")
        results_by_engine.append(after(FULL, chosen_engine, params, [grads], clip_grad_value=1.0))
    assert_same(*results_by_engine)


# Rules of the library

NOISY = {"round": "stochastic", "seed": 3}
TRAININGS = [
    ("Adafactor", {}),
    ("Adafactor", {"dtype": torch.bfloat16, **NOISY}),
    ("Adafactor", {"clip_grad_norm": 0.5, "masters": True, "dtype": torch.bfloat16}),
    # What the device makes of the number of a step is float64 for a stage, too.
    ("Adafactor", {"fused_unscale": True}),
    ("AdafactorHF", {"relative_step": False, "beta1": 0.9, "fused_unscale": True}),
    ("SM3", {"momentum": 0.9, "dtype": torch.bfloat16, **NOISY}),
    ("SM3", {"momentum": 0.9, "state_dtype": torch.bfloat16}),
]


def made_by(name, dtype=torch.float32, shapes=((9, 31), (70, 65), (7,)), **options):
    generator = torch.Generator().manual_seed(0)
    params = [torch.nn.Parameter(torch.randn(x, generator=generator).to(dtype)) for x in shapes]
    return getattr(optim, name)(params, lr=0.01, **options)


def step(optimizer, number):
    for place, param in enumerate(optimizer.param_groups[0]["params"]):
        generator = torch.Generator().manual_seed(1000 * number + place)
        grad = torch.randn(param.shape, generator=generator).to(param.dtype)
        param.grad = grad if param.grad is None else param.grad.copy_(grad)
    optimizer.step()


def written(optimizer):
    state_values = [x for state in optimizer.state.values() for x in state.values()]
    values = (*optimizer.param_groups[0]["params"], *state_values)
    tensors = [x.detach().clone() for x in values if isinstance(x, torch.Tensor)]
    return [x.short() if x.dtype == torch.uint8 else x for x in tensors]


def trained(engine, name, steps=2, context=contextlib.nullcontext, **options):
    with thalweg.engine(engine):
        optimizer = made_by(name, **options)
        for number in range(steps):
            with context(optimizer) if number == steps - 1 else contextlib.nullcontext():
                step(optimizer, number)
    return written(optimizer)


@pytest.mark.one_in(2)
@pytest.mark.parametrize(("name", "options"), TRAININGS, ids=str)
def test_trainings_equal_the_reference(name, options):
    assert_same(trained("cuda", name, **options), trained("reference", name, **options))


@pytest.mark.parametrize("name", ["Adafactor", "SM3"])
def test_replayed_step_does_not_synchronize(name):
    trained("cuda", name, 3, counting_and_waiting_for_nothing, shapes=((9, 31), (7,)))
