"""Steps without kernels: torch functions give the bits of the reference engine, on any device."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import thalweg
from bit_comparison import assert_same
from thalweg import optim
from thalweg._base import device_numbers
from thalweg._engines import dispatcher
from thalweg._engines.torch_part import TorchPart
from thalweg.errors import PerformanceWarning
from thalweg.optim.rule_names import KINDS

OPTIONS: list[dict[str, Any]] = [
    {}, {"clip_grad_norm": 0.1}, {"clip_grad_value": 0.5}, {"state_storage": "8bit"},
    {"state_storage": "dynamic8"}, {"round": "stochastic"}, {"weights": "split"},
    {"weights": "split", "round": "stochastic", "state_storage": "8bit"}, {"masters": True},
    {"masters": True, "ema_decay": 0.9}, {"lookahead": 2}, {"accumulate": 2}, {"row_floor": True},
    {"cautious": True}, {"cautious_decay": True}, {"trust_ratio": True}, {"sphere": True},
    {"radial_brake": True}, {"state_dtype": torch.bfloat16, "round": "stochastic"},
    {"diagnostics": 1},
]  # fmt: skip
DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
# Batches of one shape and of several, 8-bit blocks, and memory in another order.
SHAPES = ((64, 80), (5, 7), (33, 8), (5, 7))
Row = tuple[str, int, torch.dtype]


def params_of(dtype: torch.dtype, device: str = "cpu") -> list[torch.nn.Parameter]:
    generator = torch.Generator().manual_seed(0)
    tensors = [torch.randn(shape, generator=generator) for shape in SHAPES]
    tensors[2] = tensors[2].t()
    return [torch.nn.Parameter(tensor.to(device, dtype)) for tensor in tensors]


def optimizer_of(row: Row, params: list[torch.nn.Parameter]) -> Any:
    name, option, _ = row
    return getattr(optim, name)(params, **OPTIONS[option])


def set_gradients(params: list[torch.nn.Parameter], seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    for param in params:
        grad = torch.randn(param.shape, generator=generator)
        param.grad = grad.to(param.device, param.dtype)


def is_valid(row: Row) -> bool:
    """Return whether a class has an option and supports the dtype."""
    # The first is left to torch, and the others raise in the step.
    is_of_rows = row[0] in ("Adafactor", "AdafactorHF", "SM3") or "row_floor" in OPTIONS[row[1]]
    if is_of_rows and row[2] == torch.float16:
        return False
    try:
        optimizer_of(row, params_of(row[2], "meta"))
    except (TypeError, ValueError, NotImplementedError):
        return False
    return True


@cache
def rows(count: int = 2) -> list[Row]:
    """Return so many options for each class, with options and dtypes in turn."""
    names = [name for name in KINDS if name != "SparseAdam"]
    turns = itertools.count()
    table: list[Row] = []
    for name in names:
        candidates = ((name, turn % len(OPTIONS), DTYPES[turn % len(DTYPES)]) for turn in turns)
        valid = (row for row in candidates if is_valid(row))
        table += itertools.islice(valid, count)
    return table


def trained(row: Row, engine: Any, steps: int = 2) -> list[Tensor]:
    params = params_of(row[2])
    optimizer = optimizer_of(row, params)
    with thalweg.engine(engine):
        for step in range(steps):
            set_gradients(params, step)
            optimizer.step()
    states = [optimizer.state[param] for param in params]
    values = [state[key] for state in states for key in sorted(state)]
    return [*(p.detach() for p in params), *(x for x in values if isinstance(x, Tensor))]


@pytest.fixture
def torch_steps(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """List that grows with each step of torch functions."""
    sizes: list[int] = []
    make_calls = TorchPart.make_calls

    def counted(part: TorchPart, columns: Any) -> Any:
        sizes.append(len(part.written))
        return make_calls(part, columns)

    monkeypatch.setattr(TorchPart, "make_calls", counted)
    yield sizes
    assert sizes


def check_rows(table: list[Row], torch_steps: list[int]) -> None:
    for row in table:
        torch_steps.clear()
        actual = trained(row, "torch")
        assert torch_steps, row
        try:
            assert_same(actual, trained(row, "reference"))
        except AssertionError as error:
            error.add_note(f"{row[0]}, {OPTIONS[row[1]]}, {row[2]}")
            raise


def test_torch_functions_give_the_bits_of_the_reference(torch_steps: list[int]) -> None:
    check_rows(rows(), torch_steps)


@pytest.mark.slow
def test_more_options_give_the_bits_of_the_reference(torch_steps: list[int]) -> None:
    check_rows(rows(6), torch_steps)


class WithoutFloat64(TorchDispatchMode):
    """Raises for a float64 tensor of the meta device, as a device without float64 does."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        outputs = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(outputs):
            if isinstance(tensor, Tensor) and tensor.is_meta:
                assert tensor.dtype != torch.float64, func
        return outputs


@pytest.mark.slow
def test_all_classes_step_on_a_device_without_float64(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_numbers, "WITHOUT_FLOAT64", {"meta"})
    for row in rows()[::2]:
        if row[2] == torch.float64:
            row = (*row[:2], torch.float32)
        if "diagnostics" in OPTIONS[row[1]]:
            continue
        params = params_of(row[2], "meta")
        optimizer = optimizer_of(row, params)
        try:
            for step in range(2):
                set_gradients(params, step)
                with WithoutFloat64():
                    optimizer.step()
        except Exception as error:
            error.add_note(str(row))
            raise


def test_first_automatic_step_of_a_device_warns(monkeypatch: pytest.MonkeyPatch) -> None:
    dispatcher._warn_unfused.cache_clear()
    with pytest.warns(PerformanceWarning, match="no kernels for xpu:0, because there are none"):
        dispatcher._warn_unfused(torch.device("xpu", 0))
    dispatcher._warn_unfused(torch.device("xpu", 0))
    dispatcher._warn_unfused.cache_clear()
