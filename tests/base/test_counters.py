"""Counters on a device; here the CPU stands for it."""

from __future__ import annotations

import gc

import pytest
import torch
from torch import Tensor

from thalweg import Variable
from thalweg._base import device_counters
from thalweg._core.atomic_section import run

CPU = torch.device("cpu")


def counter(value: float, dtype: torch.dtype = torch.float32) -> Variable:
    return Variable(value, dtype=dtype, trainable=False)


def move(*moves: tuple[Tensor, float | None], step_taken: bool = True) -> None:
    run(device_counters.moved(moves, torch.tensor(step_taken)))


@pytest.fixture
def unasked(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(self: Tensor) -> float:
        raise AssertionError("a device is waited for, or may lack float64")

    monkeypatch.setattr(Tensor, "item", refused)
    monkeypatch.setattr(Tensor, "double", refused)


@pytest.mark.parametrize("step_taken", [True, False])
def test_counter_advances_only_if_the_step_is_taken(step_taken: bool) -> None:
    step, power = counter(4, torch.int64), counter(0.9)
    move((power, 0.5), (step, None), step_taken=step_taken)
    assert step.item() == (5 if step_taken else 4)
    assert power.item() == torch.tensor(0.45 if step_taken else 0.9).item()
    assert step.dtype == torch.int64
    assert power.dtype == torch.float32


@pytest.mark.usefixtures("unasked")
def test_counter_value_needs_no_device_read() -> None:
    step, power, short = counter(2**60, torch.int64), counter(0.9), counter(2, torch.bfloat16)
    move((power, 0.5), (step, None), (short, 0.5))
    assert device_counters.number_of(short) == 1.0
    number = device_counters.number_of(step)
    assert number == 2**60 + 1
    assert type(number) is int
    assert device_counters.number_of(power) == float(torch.tensor(0.45).numpy())
    move((power, 0.5), (step, None), step_taken=False)
    assert device_counters.number_of(step) == 2**60 + 1


def test_counter_changed_by_others_is_read_again() -> None:
    step = counter(1, torch.int64)
    move((step, None))
    step.assign(7)
    assert device_counters.number_of(step) == 7
    calls = device_counters.moved([(step, None)], torch.tensor(True))
    assert device_counters.number_of(step) == 7
    step.assign(1)  # in place of the calls
    assert device_counters.number_of(step) == 1
    run(calls)
    assert device_counters.number_of(step) == step.item() == 2


def test_tensors_without_moves_are_read() -> None:
    assert device_counters.number_of(torch.tensor([3])) == 3


def test_plain_numbers_are_not_cached_as_counters() -> None:
    gc.collect()
    initial = len(device_counters._transfers)
    move((counter(1.0), 2.0))
    gc.collect()
    assert len(device_counters._transfers) == initial


def test_counter_with_replaced_memory_is_read_again() -> None:
    step = counter(1, torch.int64)
    move((step, None))
    step.data = torch.tensor(40)
    assert device_counters.number_of(step) == 40


def test_cached_counts_continue_after_writes() -> None:
    """Write in a way that torch does not count: the write is not seen at once, and not lost."""
    power = counter(1.0)
    move((power, 0.5))
    power.data.fill_(8.0)
    move((power, 0.5))
    assert power.item() == device_counters.number_of(power) == 4.0


def test_steps_of_two_threads_both_count() -> None:
    step = counter(0, torch.int64)
    plans = [device_counters.moved([(step, None)], torch.tensor(True)) for _ in range(2)]
    for calls in plans:
        run(calls)
    assert device_counters.number_of(step) == step.item() == 2


def test_a_product_below_the_normal_numbers_is_zero() -> None:
    power = counter(1e-30)
    move((power, 1e-9))
    assert power.item() == 0.0
    wide = counter(1e-30, torch.float64)
    move((wide, 1e-9))
    assert wide.item() == 1e-30 * 1e-9


def test_a_counter_of_inference_mode_counts() -> None:
    with torch.inference_mode():
        step = torch.tensor(3)
        move((step, None))
        assert device_counters.number_of(step) == 4


def test_moving_no_counters_returns_an_empty_list() -> None:
    assert device_counters.moved([], torch.tensor(True)) == []
    step = counter(1, torch.int64)
    assert device_counters.at(CPU, step).data_ptr() == step.data_ptr()
