"""Steps that are left to torch: what torch refuses changes nothing."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from thalweg import optim
from thalweg.optim import torchs_step


def rows(indices: list[int], shape: tuple[int, ...]) -> Tensor:
    values = torch.ones(len(indices), *shape[1:])
    return torch.sparse_coo_tensor(torch.tensor([indices]), values, shape, check_invariants=False)


def two(**options: Any) -> tuple[Any, list[Tensor]]:
    params = [torch.nn.Parameter(torch.ones(4, 3)) for _ in range(2)]
    return optim.SGD(params, lr=0.5, momentum=0.5, **options), params


def sparse_after_dense_with_decay() -> tuple[Any, list[Tensor]]:
    opt, params = two(weight_decay=0.5)
    params[0].grad, params[1].grad = torch.ones(4, 3), rows([1], (4, 3))
    return opt, params


def dense_after_sparse() -> tuple[Any, list[Tensor]]:
    opt, params = two()
    for grad in (rows([1], (4, 3)), torch.ones(4, 3)):
        params[0].grad, params[1].grad = rows([1], (4, 3)), grad
        if grad.is_sparse:
            opt.step()
    return opt, params


def a_buffer_of_another_shape() -> tuple[Any, list[Tensor]]:
    opt, params = two()
    for _ in range(2):
        params[0].grad, params[1].grad = torch.ones(4, 3), torch.ones(4, 3)
        opt.step()
    buffer = opt.state[params[1]]["momentum_buffer"]
    buffer.data = torch.ones(5)
    params[1].grad = rows([1], (4, 3))
    return opt, params


def a_buffer_that_is_expanded() -> tuple[Any, list[Tensor]]:
    opt, params = two()
    for _ in range(2):
        params[0].grad, params[1].grad = torch.ones(4, 3), torch.ones(4, 3)
        opt.step()
    opt.state[params[1]]["momentum_buffer"].data = torch.ones(3).expand(4, 3)
    params[0].grad = rows([1], (4, 3))
    return opt, params


def another_class_of_gradients() -> tuple[Any, list[Tensor]]:
    params = [torch.nn.Parameter(torch.ones(3, dtype=kind)) for kind in (torch.cfloat, torch.float)]
    opt = optim.RMSprop([{"params": params[:1]}, {"params": params[1:], "differentiable": True}])
    with torch.no_grad():
        params[0].grad, params[1].grad = torch.ones(3, dtype=torch.cfloat), rows([1], (3,))
    return opt, params


def options_that_torch_refuses() -> tuple[Any, list[Tensor]]:
    params = [torch.nn.Parameter(torch.ones(4, 3)) for _ in range(2)]
    groups = [{"params": params[:1]}, {"params": params[1:], "lr": torch.tensor(0.5)}]
    opt = optim.Adam(groups, foreach=True, capturable=False)
    for param in params:
        param.grad = torch.ones(4, 3)
    return opt, params


CASES = [
    sparse_after_dense_with_decay, dense_after_sparse, a_buffer_of_another_shape,
    a_buffer_that_is_expanded, another_class_of_gradients, options_that_torch_refuses,
]  # fmt: skip


def everything(opt: Any, params: list[Tensor]) -> Any:
    return copy.deepcopy(opt.state_dict()), [param.detach().clone() for param in params]


@pytest.mark.parametrize("made", CASES)
def test_what_torch_refuses_changes_nothing(made: Callable[[], tuple[Any, list[Tensor]]]) -> None:
    opt, params = made()
    before, known = everything(opt, params), len(opt.state)
    with pytest.raises((RuntimeError, ValueError)) as refused:
        opt.step()
    assert "no variable and no slot has changed" in "".join(refused.value.__notes__)
    assert repr(everything(opt, params)) == repr(before)
    assert len(opt.state) == known


def test_steps_of_one_kind_are_copied_once(monkeypatch: pytest.MonkeyPatch) -> None:
    opt, params = two()
    copied: list[Tensor] = []
    made = torchs_step._putting_back

    def counting(optimizer: Any, param: Tensor) -> Any:
        copied.append(param)
        return made(optimizer, param)

    monkeypatch.setattr(torchs_step, "_putting_back", counting)
    for _ in range(4):
        params[0].grad = rows([1, 1], (4, 3))
        opt.step()
    assert len(copied) == 2  # the first step makes the buffer
