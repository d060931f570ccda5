"""Steps by torch: an error of torch changes nothing."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from thalweg import optim
from thalweg.optim import torch_fallback


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


@pytest.mark.parametrize("make", CASES)
def test_torch_fallback_error_changes_nothing(make: Callable[..., Any]) -> None:
    opt, params = make()
    previous, state_count = everything(opt, params), len(opt.state)
    with pytest.raises((RuntimeError, ValueError)) as error_info:
        opt.step()
    assert "no variable and no slot has changed" in "".join(error_info.value.__notes__)
    assert repr(everything(opt, params)) == repr(previous)
    assert len(opt.state) == state_count


CLASSES: dict[str, dict[str, Any]] = {
    "Adadelta": {}, "Adafactor": {}, "Adagrad": {}, "Adam": {"amsgrad": True}, "Adamax": {},
    "AdamW": {}, "ASGD": {}, "NAdam": {}, "RAdam": {}, "RMSprop": {"momentum": 0.5}, "Rprop": {},
    "SGD": {"momentum": 0.5},
}  # fmt: skip
SHAPES = ((4, 3), (), (5,), (1,))


def _last_slot(opt: Any, param: Tensor, change: Callable[..., Any]) -> None:
    numbers = ("step", "mu_product", "eta", "mu")
    name = [key for key in opt.state[param] if key not in numbers][-1]
    opt.state[param][name] = change(opt.state[param][name])


FAULTS: dict[str, Callable[[Any, Tensor, int], Any]] = {
    "a parameter of another dtype": lambda opt, param, index: setattr(
        param, "data", param.detach().double()
    ),
    "integers": lambda opt, param, index: _last_slot(opt, param, lambda slot: slot.long()),
    "a number": lambda opt, param, index: _last_slot(opt, param, lambda slot: 1.5),
    "another shape": lambda opt, param, index: _last_slot(opt, param, lambda slot: torch.ones(7)),
    "no step": lambda opt, param, index: opt.state[param].pop("step", None),
    "a step of bools": lambda opt, param, index: opt.state[param].update(step=torch.tensor(True)),
    "a step below 0": lambda opt, param, index: opt.state[param].update(step=torch.tensor(-1.0)),
    "a rate beyond float32": lambda opt, param, index: opt.param_groups[index].update(lr=1e308),
    "betas above 1": lambda opt, param, index: opt.param_groups[index].update(betas=(2.0, 2.0)),
    "no rate": lambda opt, param, index: opt.param_groups[index].pop("lr"),
    "capturable": lambda opt, param, index: opt.param_groups[index].update(capturable=True),
}


def _text(opt: Any, params: list[Tensor]) -> str:
    """Return all values of an optimizer, of which some may be no state."""
    states = [dict(opt.state[param]) if param in opt.state else None for param in params]
    return repr(([param.detach() for param in params], states, opt.param_groups))


@pytest.mark.parametrize("name", CLASSES)
@pytest.mark.one_in(3)
def test_failed_torch_fallback_step_changes_nothing(name: str) -> None:
    """Let the step fail at different parameters, with scalars among them."""
    failed = 0
    for fault, index in itertools.product(FAULTS, (1, 3)):
        params = [torch.nn.Parameter(torch.ones(shape).bfloat16()) for shape in SHAPES]
        groups = [{"params": [param]} for param in params]
        opt = getattr(optim, name)(groups, lr=0.01, **CLASSES[name])
        for _ in range(2):
            for param in params:
                param.grad = torch.ones_like(param).detach()
            opt.step()
        FAULTS[fault](opt, params[index], index)
        params[index].grad = torch.ones_like(params[index]).detach()
        previous = _text(opt, params)
        try:
            opt.step()
        except Exception:
            assert _text(opt, params) == previous, (fault, index)
            failed += 1
    assert failed > 8


def test_sparse_fallback_with_block_slots_equals_torch() -> None:
    """Torch adds a single coalesced element at twice the offset of a slot."""
    results: list[list[Tensor]] = []
    for module in (optim, torch.optim):
        params = [torch.nn.Parameter(torch.ones(shape)) for shape in ((4, 3), (1,), (5,))]
        opt = module.SparseAdam(params, lr=0.1)
        for number in range(3):
            for param in params:
                param.grad = torch.ones_like(param).detach().to_sparse(1)
            if number == 2:  # which no engine takes
                state = opt.state[params[0]]
                state.update({key: state[key].double() for key in ("exp_avg", "exp_avg_sq")})
            opt.step()
        slots = [opt.state[param][key] for param in params for key in ("exp_avg", "exp_avg_sq")]
        results.append([*(param.detach() for param in params), *slots])
    for actual, expected in zip(*results, strict=True):
        torch.testing.assert_close(actual, expected)


def test_fallback_step_counts_are_copied_once(monkeypatch: pytest.MonkeyPatch) -> None:
    opt, params = two()
    copies: list[Tensor] = []
    original = torch_fallback._restore_calls

    def counting(optimizer: Any, param: Tensor) -> Any:
        copies.append(param)
        return original(optimizer, param)

    monkeypatch.setattr(torch_fallback, "_restore_calls", counting)
    for _ in range(4):
        params[0].grad = rows([1, 1], (4, 3))
        opt.step()
    assert len(copies) == 2  # the first step makes the buffer
