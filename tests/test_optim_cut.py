"""Storages that were cut by `resize_` are refused by name, before anything is read or written."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from thalweg import InvalidArgumentError, LayoutError, optim

SIZE = 33


def cut(tensor: torch.Tensor) -> None:
    tensor.untyped_storage().resize_(0)


def made(**options: Any) -> tuple[Any, Any]:
    param = torch.nn.Parameter(torch.ones(SIZE))
    return optim.SGD([param], lr=0.1, **options), param


def give(param: Any) -> None:
    param.grad = torch.ones(SIZE)


def rows(param: Any) -> None:
    indices, values = torch.arange(30)[None], torch.ones(30, 3)
    param.grad = torch.sparse_coo_tensor(indices, values, (40, 3), check_invariants=False)


def a_first_gradient() -> Callable[[], Any]:
    optimizer, param = made(accumulate=2)
    give(param)
    cut(param.grad)
    return optimizer.step


def a_second_gradient() -> Callable[[], Any]:
    optimizer, param = made(accumulate=2)
    give(param)
    optimizer.step()
    give(param)
    cut(param.grad)
    return optimizer.step


def a_sum() -> Callable[[], Any]:
    optimizer, param = made(accumulate=2)
    give(param)
    optimizer.step()
    cut(optimizer.state[param]["gradient_sum"])
    give(param)
    return optimizer.step


def a_flat_buffer() -> Callable[[], Any]:
    optimizer, param = made(gradients="flat")
    optimizer.step()
    cut(param.grad)
    return optimizer.zero_grad


def an_average() -> Callable[[], Any]:
    optimizer, param = made(ema_decay=0.5)
    give(param)
    optimizer.step()
    cut(optimizer.state[param]["ema"])
    return lambda: optimizer.swapped().__enter__()


def a_parameter_to_be_swapped() -> Callable[[], Any]:
    optimizer, param = made(ema_decay=0.5)
    give(param)
    optimizer.step()
    cut(param.data)
    return lambda: optimizer.swapped().__enter__()


def in_torchs_step(part: str) -> Callable[[], Any]:
    """Torch takes a step with momentum of rows, and would read beyond what was cut."""
    param = torch.nn.Parameter(torch.ones(40, 3))
    optimizer = optim.SGD([param], lr=0.1, momentum=0.9)
    for _ in range(2):
        rows(param)
        optimizer.step()
    rows(param)
    cut(getattr(param.grad, part)())
    return optimizer.step


def values_in_torchs_step() -> Callable[[], Any]:
    return in_torchs_step("_values")


def indices_in_torchs_step() -> Callable[[], Any]:
    return in_torchs_step("_indices")


CASES = [
    a_first_gradient, a_second_gradient, a_sum, a_flat_buffer, an_average,
    a_parameter_to_be_swapped, values_in_torchs_step, indices_in_torchs_step,
]  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_what_was_cut_is_refused(case: Callable[[], Callable[[], Any]]) -> None:
    call = case()
    with pytest.raises(LayoutError, match="has no memory that holds its"):
        call()


def test_a_sum_that_was_refused_is_as_it_was() -> None:
    optimizer, param = made(accumulate=2)
    give(param)
    optimizer.step()
    give(param)
    kept = param.grad.clone()
    cut(param.grad)
    with pytest.raises(LayoutError, match="The gradient of"):
        optimizer.step()
    assert optimizer.state[param]["gradient_sum"].tolist() == [1.0] * SIZE
    param.grad = kept
    optimizer.step()
    assert optimizer.last_step.taken
    assert torch.allclose(param, torch.full((SIZE,), 0.8))


@pytest.mark.parametrize("bad", [-1, 40, 2**31])
def test_rows_beyond_a_sum_are_refused(bad: int) -> None:
    param = torch.nn.Parameter(torch.ones(40, 3))
    optimizer = optim.SGD([param], lr=0.1, accumulate=2)
    param.grad = torch.ones(40, 3)
    optimizer.step()
    indices, values = torch.tensor([[1, bad]]), torch.ones(2, 3)
    param.grad = torch.sparse_coo_tensor(indices, values, (40, 3), check_invariants=False)
    with pytest.raises(InvalidArgumentError, match=r"indices\[1\] = .* is not in it"):
        optimizer.step()
    assert optimizer.state[param]["gradient_sum"].tolist() == torch.ones(40, 3).tolist()


def single(row: int, shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> torch.Tensor:
    values = torch.ones(1, *shape[1:], dtype=dtype)
    return torch.sparse_coo_tensor(torch.tensor([[row]]), values, shape, check_invariants=False)


@pytest.mark.parametrize("bad", [-(10**9), -1, 5, 10**9])
@pytest.mark.parametrize("kind", ["momentum", "complex", "elements", "a buffer"])
def test_rows_that_torchs_step_would_add_elsewhere_are_refused(kind: str, bad: int) -> None:
    dtype = torch.complex64 if kind == "complex" else torch.float32
    param = torch.nn.Parameter(torch.ones(5, 2, dtype=dtype))
    optimizer = optim.SGD([("w", param)], lr=0.1, momentum=0.0 if kind == "complex" else 0.9)
    if kind == "elements":
        indices = torch.tensor([[1, bad], [1, 1]])
        param.grad = torch.sparse_coo_tensor(indices, torch.ones(2), (5, 2), check_invariants=False)
    elif kind == "a buffer":
        param.grad = single(1, (5, 2))
        optimizer.step()
        optimizer.state[param]["momentum_buffer"]._indices().fill_(bad)
    else:
        param.grad = single(bad, (5, 2), dtype)
    before = param.detach().clone()
    with pytest.raises(InvalidArgumentError, match=r"of 'w' has shape .* is not in it"):
        optimizer.step()
    assert torch.equal(param, before)


def test_elements_that_torchs_step_would_add_elsewhere_are_refused() -> None:
    memory = torch.zeros(20)
    param = torch.nn.Parameter(memory[3:9])
    optimizer = optim.SGD([("w", param)], lr=0.1, momentum=0.9)
    param.grad = single(1, (6,))
    with pytest.raises(LayoutError, match="'w' does not begin where its storage does"):
        optimizer.step()
    assert not memory.any()
    indices = torch.tensor([[1, 1]])
    param.grad = torch.sparse_coo_tensor(indices, torch.ones(2), (6,), check_invariants=True)
    optimizer.step()
    param.grad = single(5, (6,))
    optimizer.step()
    wanted = torch.zeros(20)
    wanted[[4, 8]] = -0.1 * torch.tensor([2 + 0.9 * 2, 1])
    torch.testing.assert_close(memory, wanted)


def test_momentum_in_a_block_is_beside_nothing_for_torchs_step() -> None:
    found: list[list[torch.Tensor]] = []
    for module in (torch.optim, optim):
        params = [torch.nn.Parameter(torch.zeros(size)) for size in (5, 6)]
        optimizer = module.SGD(params, lr=0.5, momentum=0.5)
        for step in range(4):
            for param in params:
                is_single = step % 2 and len(param) == 6
                param.grad = single(step, (6,)) if is_single else torch.ones(len(param))
            optimizer.step()
        found.append([param.detach() for param in params])
    assert [each.tolist() for each in found[0]] == [each.tolist() for each in found[1]]


def test_dense_gradients_beside_sparse_momentum_are_refused_whole() -> None:
    params = [torch.nn.Parameter(torch.ones(5, 2)) for _ in range(2)]
    optimizer = optim.SGD(zip("ab", params, strict=True), lr=0.1, momentum=0.9)
    for param in params:
        param.grad = single(1, (5, 2))
    optimizer.step()
    params[1].grad = torch.ones(5, 2)
    kept = [optimizer.state[param]["momentum_buffer"].to_dense() for param in params]
    before = [param.detach().clone() for param in params]
    with pytest.raises(InvalidArgumentError, match="gradient of 'b' is dense, and its momentum sp"):
        optimizer.step()
    assert all(map(torch.equal, params, before))
    now = [optimizer.state[param]["momentum_buffer"].to_dense() for param in params]
    assert all(map(torch.equal, now, kept))
