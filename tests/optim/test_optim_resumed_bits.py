"""Trainings of 16-bit parameters that are saved, loaded and continued, for each class."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from thalweg import engine, optim
from thalweg.optim.class_lookup import class_named
from thalweg.optim.rule_names import KINDS


def turns(param: nn.Parameter, optimizer: Any, *seeds: int) -> list[Any]:
    """Take a step with the gradient of each seed; return the parameter and its state."""
    for seed in seeds:
        grad = torch.randn(param.shape, generator=torch.Generator().manual_seed(seed))
        is_sparse = isinstance(optimizer, optim.SparseAdam)
        param.grad = grad.to_sparse(1).to(param.dtype) if is_sparse else grad.to(param.dtype)
        with engine("reference"):
            optimizer.step()
    return [param.detach(), *optimizer.state[param].values()]


def have_equal_bits(values: list[Any], expected: list[Any]) -> bool:
    """Return whether tensors have the dtypes and bits of others, and numbers are equal."""
    return len(values) == len(expected) and all(
        value.dtype == expected_value.dtype and torch.equal(value, expected_value)
        if isinstance(value, Tensor)
        else value == expected_value
        for value, expected_value in zip(values, expected, strict=True)
    )


WITHOUT_FLOAT16 = (
    "AdafactorHF", "AdaMuon", "KLSOAP", "Muon", "MuonH", "NorMuon", "SM3", "SOAP",
)  # fmt: skip


@pytest.mark.one_in(3)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", KINDS)
def test_a_resumed_training_has_the_bits_of_one_without_a_stop(
    name: str, dtype: torch.dtype
) -> None:
    if dtype == torch.float16 and name in WITHOUT_FLOAT16:
        return
    kind, options = class_named(name), {"momentum": 0.9} if name == "SGD" else {}
    param = nn.Parameter(torch.linspace(-1, 1, 24, dtype=dtype).view(6, 4))
    optimizer = kind([param], **options)
    turns(param, optimizer, 0, 1, 2)
    resumed_param = nn.Parameter(param.detach().clone())
    resumed = kind([resumed_param], **options)
    resumed.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    expected = turns(param, optimizer, 3, 4)
    assert have_equal_bits(turns(resumed_param, resumed, 3, 4), expected)
