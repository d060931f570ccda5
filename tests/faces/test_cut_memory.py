"""No memory is touched that a storage no longer has: a named refusal, and nothing changes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from attack.server import Server
from cut_memory import CASES, GOOD
from cut_values import SIZE, cut
from thalweg import InvalidArgumentError, LayoutError, optim

REFUSALS = ("LayoutError: ", "InvalidTypeError: ", "CheckpointMismatchError: ")
NAMES = (
    "'Variable", "p:0", "q:0", "w:0", "p_1:0", "'p'", "'p/", "/p", "/m'", "'0/", "parameter 0",
    "Variable:0", "slices", "IndexedSlices", "A tensor of shape", "A value of shape", "lr has",
    "learning_rate has", "momentum has",
)  # fmt: skip


def is_good(name: str, message: str) -> bool:
    if name in GOOD:
        return message == "taken"
    has_name = any(name in message for name in NAMES)
    return (
        message.startswith(REFUSALS)
        and has_name
        and (not message.startswith("LayoutError: ") or "has no memory that holds its" in message)
    )


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server("cut_memory") as server:
        yield server


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize("share", [0.0, 0.5])
def test_truncated_memory_raises(server: Server, share: float) -> None:
    texts = dict(zip(CASES, server.run([(name, share) for name in CASES]), strict=True))
    assert {name: text for name, text in texts.items() if not is_good(name, text)} == {}


def accumulating(shape: tuple[int, ...]) -> tuple[Any, Any]:
    """An optimizer that has added up a first gradient, of ones."""
    param = torch.nn.Parameter(torch.ones(shape))
    optimizer = optim.SGD([param], lr=0.1, accumulate=2)
    param.grad = torch.ones(shape)
    optimizer.step()
    return optimizer, param


def test_rejected_gradient_sum_is_unchanged() -> None:
    optimizer, param = accumulating((SIZE,))
    param.grad = torch.ones(SIZE)
    copy = param.grad.clone()
    cut(param.grad)
    with pytest.raises(LayoutError, match="The gradient of"):
        optimizer.step()
    assert optimizer.state[param]["gradient_sum"].tolist() == [1.0] * SIZE
    param.grad = copy
    optimizer.step()
    assert optimizer.last_step.taken
    assert torch.allclose(param, torch.full((SIZE,), 0.8))


@pytest.mark.parametrize("bad", [-1, 40, 2**31])
def test_rows_beyond_a_gradient_sum_raise(bad: int) -> None:
    optimizer, param = accumulating((40, 3))
    indices, values = torch.tensor([[1, bad]]), torch.ones(2, 3)
    param.grad = torch.sparse_coo_tensor(indices, values, (40, 3), check_invariants=False)
    with pytest.raises(InvalidArgumentError, match=r"indices\[1\] = .* is not in it"):
        optimizer.step()
    assert optimizer.state[param]["gradient_sum"].tolist() == torch.ones(40, 3).tolist()
