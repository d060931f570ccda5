"""`in_backward`: gradients are applied and freed during the backward pass."""

from __future__ import annotations

import copy
import gc
from typing import Any

import pytest
import torch

from rulebook import assert_same
from thalweg import optim
from thalweg.optim import tensorflow

MAKERS: dict[str, Any] = {
    "AdamW": lambda p, **o: optim.AdamW(p, lr=0.1, **o),
    "momentum": lambda p, **o: optim.SGD(p, lr=0.1, momentum=0.9, **o),
    "Adam": lambda p, **o: tensorflow.Adam(p, lr=0.1, **o),
    "LazyAdam": lambda p, **o: tensorflow.LazyAdam(p, lr=0.1, **o),
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


@pytest.mark.one_in(3)
@pytest.mark.parametrize("options", [{}, {"ema_decay": 0.9, "clip_grad_value": 0.5}], ids=str)
@pytest.mark.parametrize("name", MAKERS)
def test_in_backward_steps_equal_ordinary_steps(name: str, options: dict[str, Any]) -> None:
    modules = model(), model()
    opt = MAKERS[name](modules[0].parameters(), in_backward=True, **options)
    reference = MAKERS[name](modules[1].parameters(), **options)
    assert_same(train(opt, modules[0], 4), train(reference, modules[1], 4))
    for param, expected in zip(modules[0].parameters(), reference.state.values(), strict=True):
        state = opt.state[param]
        assert list(state) == list(expected)
        assert [float(v.sum()) for v in state.values()] == [
            float(v.sum()) for v in expected.values()
        ]
    assert opt.last_step is not None
    assert opt.last_step.count == 4


def test_in_backward_frees_gradients_in_the_pass() -> None:
    module = model()
    opt = optim.SGD(module.parameters(), lr=0.1, in_backward=True)
    module(torch.ones(3, 4)).sum().backward()
    assert [param.grad for param in module.parameters()] == [None] * 4
    opt.step()
    assert opt.last_step is not None
    assert opt.last_step.taken


@pytest.mark.parametrize("name", ["AdamW", "Adam"])
def test_copies_register_hooks_and_freed_optimizers_do_not(name: str) -> None:
    module = model()
    opt = MAKERS[name](module.parameters(), in_backward=True)
    train(opt, module, 2)
    copies = copy.deepcopy((module, opt))
    assert_same(train(copies[1], copies[0], 2, 2), train(opt, module, 2, 2))
    del opt
    gc.collect()
    previous = [param.detach().clone() for param in module.parameters()]
    module(torch.ones(3, 4)).sum().backward()
    assert_same([param.detach() for param in module.parameters()], previous)


@pytest.mark.parametrize(
    ("options", "name"),
    [({"clip_grad_norm": 1.0}, "clip_grad_norm"), ({"accumulate": 2}, "accumulate"),
     ({"fused_unscale": True}, "fused_unscale")],
)  # fmt: skip
def test_options_needing_all_gradients_raise(options: dict[str, Any], name: str) -> None:
    with pytest.raises(ValueError, match=f"{name} needs all of them first"):
        optim.Adam(model().parameters(), in_backward=True, **options)


def test_invalid_option_raises_in_the_backward_pass() -> None:
    module = model()
    opt = optim.SGD(module.parameters(), lr=0.1, in_backward=True)
    opt.param_groups[0]["lr"] = "much"
    with pytest.raises(TypeError, match="lr must be a number"):
        module(torch.ones(3, 4)).sum().backward()


def test_copied_optimizer_counts_its_steps() -> None:
    model = torch.nn.Linear(2, 1)
    opt = tensorflow.Adam(model.parameters(), lr=0.1, in_backward=True)
    copies = [(model, opt), copy.deepcopy((model, opt))]
    for _ in range(2):
        for module, optimizer in copies:
            module(torch.ones(1, 2)).sum().backward()
            optimizer.step()
    steps = [[int(state["step"]) for state in opt.state.values()] for _, opt in copies]
    assert steps == [[2, 2], [2, 2]]


@pytest.mark.parametrize("name", MAKERS)
def test_unfrozen_parameters_are_updated(name: str) -> None:
    modules = model(), model()
    for module in modules:
        module[0].requires_grad_(False)
    opt = MAKERS[name](modules[0].parameters(), in_backward=True)
    reference = MAKERS[name](modules[1].parameters())
    assert_same(train(opt, modules[0], 2), train(reference, modules[1], 2))
    modules = copy.deepcopy((modules[0], opt)), copy.deepcopy((modules[1], reference))
    for module, optimizer in modules:
        module[0].requires_grad_(True)
        train(optimizer, module, 1, 2)
        assert [param.grad for param in module.parameters()] == [None] * 4
        module[2].requires_grad_(False)
        module(torch.ones(3, 4)).sum().backward()
    is_freed = [[param.grad is None for param in module.parameters()] for module, _ in modules]
    assert is_freed == [[True] * 4, [False] * 2 + [True] * 2]
    (module, opt), (ref_module, reference) = modules
    for optimizer in (opt, reference):
        optimizer.step()
        optimizer.zero_grad()
    assert_same(train(opt, module, 2, 3), train(reference, ref_module, 2, 3))


@pytest.mark.parametrize("name", ["AdamW", "momentum"])
def test_removed_parameter_is_not_updated(name: str) -> None:
    module = model()
    opt = MAKERS[name](module.parameters(), in_backward=True)
    train(opt, module, 2)
    removed_param = opt.param_groups[0]["params"].pop(0)
    previous = removed_param.detach().clone()
    module(torch.ones(3, 4)).sum().backward()
    opt.step()
    assert [param.grad is None for param in module.parameters()] == [False, True, True, True]
    assert_same([removed_param], [previous])
