"""Gradients applied and freed in the course of the backward pass."""

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


def trained(made: Any, module: torch.nn.Module, steps: int, first: int = 0) -> list[torch.Tensor]:
    for step in range(first, first + steps):
        torch.manual_seed(step)
        module(torch.randn(3, 4)).square().sum().backward()
        made.step()
        made.zero_grad()
    return [param.detach() for param in module.parameters()]


@pytest.mark.parametrize("options", [{}, {"ema_decay": 0.9, "clip_grad_value": 0.5}], ids=str)
@pytest.mark.parametrize("name", MAKERS)
def test_steps_are_those_after_the_pass(name: str, options: dict[str, Any]) -> None:
    modules = model(), model()
    made = MAKERS[name](modules[0].parameters(), in_backward=True, **options)
    other = MAKERS[name](modules[1].parameters(), **options)
    assert_same(trained(made, modules[0], 4), trained(other, modules[1], 4))
    for param, wanted in zip(modules[0].parameters(), other.state.values(), strict=True):
        own = made.state[param]
        assert list(own) == list(wanted)
        assert [float(v.sum()) for v in own.values()] == [float(v.sum()) for v in wanted.values()]
    assert made.last_step is not None
    assert made.last_step.count == 4


def test_gradients_are_freed_as_they_arrive() -> None:
    module = model()
    made = optim.SGD(module.parameters(), lr=0.1, in_backward=True)
    module(torch.ones(3, 4)).sum().backward()
    assert [param.grad for param in module.parameters()] == [None] * 4
    made.step()
    assert made.last_step is not None
    assert made.last_step.taken


@pytest.mark.parametrize("name", ["AdamW", "Adam"])
def test_copies_listen_and_what_is_gone_does_not(name: str) -> None:
    module = model()
    made = MAKERS[name](module.parameters(), in_backward=True)
    trained(made, module, 2)
    both = copy.deepcopy((module, made))
    assert_same(trained(both[1], both[0], 2, 2), trained(made, module, 2, 2))
    del made
    gc.collect()
    before = [param.detach().clone() for param in module.parameters()]
    module(torch.ones(3, 4)).sum().backward()
    assert_same([param.detach() for param in module.parameters()], before)


@pytest.mark.parametrize(
    ("options", "name"),
    [({"clip_grad_norm": 1.0}, "clip_grad_norm"), ({"accumulate": 2}, "accumulate"),
     ({"fused_unscale": True}, "fused_unscale")],
)  # fmt: skip
def test_what_needs_all_gradients_first_is_refused(options: dict[str, Any], name: str) -> None:
    with pytest.raises(ValueError, match=f"{name} needs all of them first"):
        optim.Adam(model().parameters(), in_backward=True, **options)


def test_what_fails_fails_in_the_pass() -> None:
    module = model()
    made = optim.SGD(module.parameters(), lr=0.1, in_backward=True)
    made.param_groups[0]["lr"] = "much"
    with pytest.raises(TypeError, match="lr must be a number"):
        module(torch.ones(3, 4)).sum().backward()


def test_a_copy_counts_its_steps() -> None:
    model = torch.nn.Linear(2, 1)
    made = tensorflow.Adam(model.parameters(), lr=0.1, in_backward=True)
    both = [(model, made), copy.deepcopy((model, made))]
    for _ in range(2):
        for module, optimizer in both:
            module(torch.ones(1, 2)).sum().backward()
            optimizer.step()
    steps = [[int(own["step"]) for own in each.state.values()] for _, each in both]
    assert steps == [[2, 2], [2, 2]]


@pytest.mark.parametrize("name", MAKERS)
def test_frozen_parameters_are_listened_to_when_they_no_longer_are(name: str) -> None:
    modules = model(), model()
    for module in modules:
        module[0].requires_grad_(False)
    made = MAKERS[name](modules[0].parameters(), in_backward=True)
    other = MAKERS[name](modules[1].parameters())
    assert_same(trained(made, modules[0], 2), trained(other, modules[1], 2))
    modules = copy.deepcopy((modules[0], made)), copy.deepcopy((modules[1], other))
    for module, optimizer in modules:
        module[0].requires_grad_(True)
        trained(optimizer, module, 1, 2)
        assert [param.grad for param in module.parameters()] == [None] * 4
        module[2].requires_grad_(False)
        module(torch.ones(3, 4)).sum().backward()
    found = [[param.grad is None for param in module.parameters()] for module, _ in modules]
    assert found == [[True] * 4, [False] * 2 + [True] * 2]
    (module, made), (theirs, other) = modules
    for optimizer in (made, other):
        optimizer.step()
        optimizer.zero_grad()
    assert_same(trained(made, module, 2, 3), trained(other, theirs, 2, 3))


@pytest.mark.parametrize("name", ["AdamW", "momentum"])
def test_a_parameter_that_left_its_group_is_left_alone(name: str) -> None:
    module = model()
    made = MAKERS[name](module.parameters(), in_backward=True)
    trained(made, module, 2)
    left = made.param_groups[0]["params"].pop(0)
    before = left.detach().clone()
    module(torch.ones(3, 4)).sum().backward()
    made.step()
    assert [param.grad is None for param in module.parameters()] == [False, True, True, True]
    assert torch.equal(left, before)
