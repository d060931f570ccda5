"""Representations of optimizers."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import thalweg
from keras_table import Row, all_rows, pair, train
from thalweg.keras.optimizers import SGD, Adam, Optimizer, schedules


def test_repr_before_and_after_a_step() -> None:
    opt, variables = Adam(0.1, clipnorm=1.0), pair()
    prefix = (
        "<Adam 'Adam' decay=0.0 learning_rate=0.1 beta_1=0.9 beta_2=0.999 engine=auto clipnorm=1.0:"
    )
    assert repr(opt) == f"{prefix} 0 bytes of slots for 0 variables>"
    assert opt.weights == []
    train(opt, variables, 2)
    assert repr(opt) == f"{prefix} 48 bytes of slots for 2 variables>"


def refuse() -> float:
    raise AssertionError("called")


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (refuse, "refuse"),
        (schedules.ExponentialDecay(0.1, 1, 0.5), "ExponentialDecay"),
        (torch.tensor(0.25), "0.25"),
        (torch.tensor(0.25, dtype=torch.bfloat16), "0.25"),
        (thalweg.Variable(0.1), "0.1"),
        (1, "1"),
    ],
)
def test_repr_calls_nothing(value: Any, expected: str) -> None:
    assert f" learning_rate={expected} " in repr(SGD(value))


@all_rows
def test_repr_is_one_line(row: Row) -> None:
    opt = row.make()
    train(opt, pair(), 1)
    assert "\n" not in repr(opt)
    assert repr(opt).startswith(f"<{row.name} '{row.name}' ")


def test_repr_of_a_partially_constructed_optimizer() -> None:
    class Late(Optimizer):
        def __init__(self) -> None:
            self.text = repr(self)
            super().__init__("Late")

    assert "Late object at" in Late().text
