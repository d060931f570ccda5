"""Values in messages: short, and never read where they are not in memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch

from thalweg import Variable
from thalweg._base.showing import show_value


def cut_tensor() -> torch.Tensor:
    tensor = torch.ones(4, 3)
    tensor.untyped_storage().resize_(0)
    return tensor


@dataclass
class Holder:
    value: Any


class Reading:
    """Object whose `repr` reads a tensor."""

    def __init__(self, value: torch.Tensor) -> None:
        self.value = value

    def __repr__(self) -> str:
        return f"Reading({self.value.tolist()})"


def cut_variable() -> Variable:
    variable = Variable(torch.ones(3), name="w")
    variable.untyped_storage().resize_(0)
    return variable


CUT = "a Tensor of shape (4, 3) and type float32 whose storage was cut"


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (cut_tensor, CUT),
        (lambda: [cut_tensor()], f"[{CUT}]"),
        (lambda: {"a": cut_tensor()}, f"{{'a': {CUT}}}"),
        (lambda: Holder(cut_tensor()), f"Holder(value={CUT})"),
        (lambda: Reading(cut_tensor()), "a Reading"),
        (lambda: Reading(torch.ones(2)), "Reading([1.0, 1.0])"),
        (cut_variable, "<tf.Variable 'w:0' shape=(3,) dtype=float32, numpy=<its storage was cut>>"),
        (lambda: torch.ones(2), "tensor([1., 1.])"),
        (lambda: torch.ones(10**7), "a Tensor of shape (10000000,) and type float32"),
        (lambda: torch.ones(3, device="meta"), "tensor(..., device='meta', size=(3,))"),
        (lambda: 10**1000, "an integer of 3322 bits"),
        (lambda: "x" * 200, "'" + "x" * 76 + "..."),
        (lambda: 1.5, "1.5"),
    ],
)
def test_values_are_shown(make: Any, expected: str) -> None:
    assert show_value(make()) == expected
