"""Sparse rows and elements out of range, which torch would add elsewhere."""

from __future__ import annotations

import pytest
import torch

from bit_comparison import assert_same
from thalweg import InvalidArgumentError, LayoutError, optim


@pytest.mark.parametrize("bad", [-1, 40, 2**31])
def test_rows_beyond_a_gradient_sum_raise(bad: int) -> None:
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
def test_rows_out_of_range_of_the_torch_step_raise(kind: str, bad: int) -> None:
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
    previous = param.detach().clone()
    with pytest.raises(InvalidArgumentError, match=r"of 'w' has shape .* is not in it"):
        optimizer.step()
    assert_same([param], [previous])


def test_elements_out_of_range_of_the_torch_step_raise() -> None:
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
    expected = torch.zeros(20)
    expected[[4, 8]] = -0.1 * torch.tensor([2 + 0.9 * 2, 1])
    torch.testing.assert_close(memory, expected)


def test_block_momentum_is_separated_for_the_torch_step() -> None:
    tensors: list[list[torch.Tensor]] = []
    for module in (torch.optim, optim):
        params = [torch.nn.Parameter(torch.zeros(size)) for size in (5, 6)]
        optimizer = module.SGD(params, lr=0.5, momentum=0.5)
        for step in range(4):
            for param in params:
                is_single = step % 2 and len(param) == 6
                param.grad = single(step, (6,)) if is_single else torch.ones(len(param))
            optimizer.step()
        tensors.append([param.detach() for param in params])
    assert [tensor.tolist() for tensor in tensors[0]] == [tensor.tolist() for tensor in tensors[1]]


def test_dense_gradients_with_sparse_momentum_raise_and_change_nothing() -> None:
    params = [torch.nn.Parameter(torch.ones(5, 2)) for _ in range(2)]
    optimizer = optim.SGD(zip("ab", params, strict=True), lr=0.1, momentum=0.9)
    for param in params:
        param.grad = single(1, (5, 2))
    optimizer.step()
    params[1].grad = torch.ones(5, 2)
    momenta = [optimizer.state[param]["momentum_buffer"].to_dense() for param in params]
    previous = [param.detach().clone() for param in params]
    with pytest.raises(InvalidArgumentError, match="gradient of 'b' is dense, and its momentum sp"):
        optimizer.step()
    assert_same(params, previous)
    momenta_after = [optimizer.state[param]["momentum_buffer"].to_dense() for param in params]
    assert_same(momenta_after, momenta)
