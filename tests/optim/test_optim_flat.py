"""`gradients="flat"`: equality with torch, one memset, replaced gradients."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

from rulebook import assert_same
from thalweg import optim
from thalweg.optim import tensorflow
from thalweg.optim.flat_gradients import FlatGradients

MAKERS: dict[str, Any] = {
    "AdamW": lambda p, **o: optim.AdamW(p, lr=0.1, **o),
    "momentum": lambda p, **o: optim.SGD(p, lr=0.1, momentum=0.9, **o),
    "Nadam": lambda p, **o: tensorflow.Nadam(p, lr=0.1, **o),
}


def model() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(4, 5), torch.nn.Tanh(), torch.nn.Linear(5, 2))


def train(opt: Any, module: torch.nn.Module, steps: int, first: int = 0) -> list[torch.Tensor]:
    for step in range(first, first + steps):
        torch.manual_seed(step)
        module(torch.randn(3, 4)).square().sum().backward()
        opt.step()
        opt.zero_grad()
    return [param.detach() for param in module.parameters()]


def create_both(name: str, **options: Any) -> tuple[Any, Any, Any, Any]:
    modules = model(), model()
    opt = MAKERS[name](modules[0].parameters(), gradients="flat", **options)
    return opt, modules[0], MAKERS[name](modules[1].parameters(), **options), modules[1]


@pytest.mark.parametrize(
    "options", [{}, {"clip_grad_norm": 1.0, "ema_decay": 0.9}, {"masters": True}], ids=str
)
@pytest.mark.parametrize("name", MAKERS)
def test_flat_gradient_steps_equal_ordinary_steps(name: str, options: dict[str, Any]) -> None:
    opt, module, reference, ref_module = create_both(name, **options)
    assert_same(train(opt, module, 5), train(reference, ref_module, 5))


def test_repeated_flat_step_is_not_planned(monkeypatch: pytest.MonkeyPatch) -> None:
    opt, module, reference, ref_module = create_both("AdamW")
    expected = train(reference, ref_module, 4)
    train(opt, module, 2)
    monkeypatch.setattr(type(opt), "_take_step", lambda *_: pytest.fail("it was planned anew"))
    assert_same(train(opt, module, 2, 2), expected)


def test_flat_gradients_keep_their_memory_and_are_zeroed() -> None:
    opt, module, *_ = create_both("AdamW")
    gradients = [param.grad for param in module.parameters()]
    assert len(opt.step_cache.flat._buffers) == 1
    train(opt, module, 3)
    assert all(p.grad is grad for p, grad in zip(module.parameters(), gradients, strict=True))
    assert all((grad == 0).all() for grad in gradients)


def _replaced(params: list[Any]) -> None:
    params[0].grad = params[0].grad * 2


def _removed(params: list[Any]) -> None:
    params[1].grad = None


def _moved(params: list[Any]) -> None:
    params[0].data = params[0].data.clone()


def _state(params: list[Any]) -> None:
    """The state is changed by the test."""


@pytest.mark.one_in(3)
@pytest.mark.parametrize("change", [_replaced, _removed, _moved, _state])
@pytest.mark.parametrize("name", MAKERS)
def test_replaced_parameters_and_gradients_are_detected(name: str, change: Any) -> None:
    opt, module, reference, ref_module = create_both(name)
    train(opt, module, 3)
    train(reference, ref_module, 3)
    for stepped, stepped_module in ((opt, module), (reference, ref_module)):
        torch.manual_seed(9)
        stepped_module(torch.randn(3, 4)).square().sum().backward()
        params = list(stepped_module.parameters())
        change(params)
        if change is _state:
            key = list(stepped.state[params[0]])[-1]
            stepped.state[params[0]][key] = torch.ones_like(params[0])
            stepped.param_groups[0]["lr"] = 0.5
        stepped.step()
        stepped.zero_grad()
    assert_same(train(opt, module, 2, 10), train(reference, ref_module, 2, 10))


def test_new_groups_and_copies_are_flat() -> None:
    opt, module, *_ = create_both("AdamW")
    train(opt, module, 2)
    param = torch.nn.Parameter(torch.ones(3))
    opt.add_param_group({"params": [param]})
    assert param.grad is not None
    assert opt.step_cache.flat.lie()
    copied_module, copied_opt = copy.deepcopy((module, opt))
    assert isinstance(copied_opt.step_cache.flat, FlatGradients)
    assert_same(train(copied_opt, copied_module, 2, 2), train(opt, module, 2, 2))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"gradients": "sparse"}, "gradients must be None or 'flat', not 'sparse'"),
        ({"gradients": "flat", "accumulate": 2}, "'flat' keeps gradients, which accumulate frees"),
        ({"gradients": "flat", "in_backward": True}, "gradients, which in_backward frees"),
    ],
)
def test_incompatible_options_raise(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        optim.Adam(model().parameters(), **options)


@pytest.mark.parametrize("name", MAKERS)
def test_frozen_parameters_have_no_flat_gradient(name: str) -> None:
    """A zero gradient would apply decay and momentum."""
    modules = model(), model()
    for module in modules:
        module[0].requires_grad_(False)
    opt = MAKERS[name](modules[0].parameters(), gradients="flat")
    reference = MAKERS[name](modules[1].parameters())
    assert [param.grad is None for param in modules[0].parameters()] == [True, True, False, False]
    assert_same(train(opt, modules[0], 2), train(reference, modules[1], 2))
    for place, is_trained in ((0, True), (2, False)):
        for module, optimizer in zip(modules, (opt, reference), strict=True):
            module[place].requires_grad_(is_trained)
            optimizer.zero_grad()
        assert_same(train(opt, modules[0], 3), train(reference, modules[1], 3))
    assert [param.grad is None for param in modules[0].parameters()] == [False, False, True, True]


def test_existing_sparse_gradients_are_copied_to_the_buffers() -> None:
    param = torch.nn.Parameter(torch.zeros(3, 2))
    indices = torch.tensor([[2, 0, 2]])
    with torch.sparse.check_sparse_tensor_invariants():
        param.grad = torch.sparse_coo_tensor(indices, torch.ones(3, 2), (3, 2))
    optimizer = optim.SGD([param], lr=0.5, gradients="flat")
    optimizer.step()
    assert param.tolist() == [[-0.5, -0.5], [0.0, 0.0], [-1.0, -1.0]]
    assert param.grad.layout == torch.strided
