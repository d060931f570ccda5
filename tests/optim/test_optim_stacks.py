"""Stacks of matrices: matrix rules need an explicit option for three-dimensional parameters."""

from __future__ import annotations

import copy
import inspect
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from bit_comparison import assert_same
from thalweg import Pass, Rule, Stage, Variable, checkpoint, optim
from thalweg.errors import CheckpointMismatchError, InvalidArgumentError
from thalweg.keras.optimizers import RuleOptimizer as KerasRuleOptimizer

STACK = (2, 3, 4)
KERNELS = ((2, 3, 2, 2), (2, 3, 1, 2, 2))
PUBLIC = {name: getattr(optim, name) for name in optim.__all__}
CLASSES = [
    name
    for name, cls in PUBLIC.items()
    if isinstance(cls, type)
    and issubclass(cls, torch.optim.Optimizer)
    and name not in ("Mixed", "RuleOptimizer", "SparseAdam", "LBFGS", "Optimizer")
]
OF_MATRICES = [name for name in CLASSES if "heads" in inspect.signature(PUBLIC[name]).parameters]
CHOICES = ("heads=1", "another rule", "AdamW", "layout='batch=1'")


def step_of(var: Any, grad: Any, step: Any, *, learning_rate: Any) -> tuple[Any]:
    return (var - learning_rate * step,)


def ahead(var: Any, grad: Any) -> Any:
    return grad


def center(*, step: torch.Tensor) -> dict[str, torch.Tensor]:
    return {"step": step - step.mean((1, 2), keepdim=True)}


def rule_of(*stages: Stage) -> Rule:
    return Rule(name="Centering", passes=(Pass(ahead, makes=("step",)), *stages), update=step_of)


def param_of(shape: tuple[int, ...], as_matrix: bool = False) -> torch.Tensor:
    dice = torch.Generator().manual_seed(1)
    value, grad = (torch.randn(shape, generator=dice) for _ in range(2))
    if as_matrix:
        value, grad = value.flatten(1), grad.flatten(1)
    param = value.requires_grad_()
    param.grad = grad
    return param


def stepped(make: Callable[..., Any], shape: tuple[int, ...], as_matrix: bool) -> Any:
    param = param_of(shape, as_matrix)
    optimizer = make(param)
    for _ in range(3):
        optimizer.step()
    return param.detach().flatten(1)


def check_raised(message: str) -> None:
    assert all(choice in message for choice in CHOICES), message
    assert str(STACK) in message or "stack" in message


def test_the_classes_of_matrices_are_those_that_take_heads() -> None:
    assert set(OF_MATRICES) == {"Muon", "NorMuon", "AdaMuon", "MuonH", "SOAP", "KLSOAP"}


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", CLASSES)
def test_every_class_over_every_number_of_dimensions(name: str) -> None:
    cls = PUBLIC[name]
    if name in OF_MATRICES:
        for options in ({}, {"heads": None}):
            param = param_of(STACK)
            previous = param.detach().clone()
            with pytest.raises(InvalidArgumentError) as raised:
                cls([param], **options)
            check_raised(str(raised.value))
            assert_same([param.detach()], [previous])
    for shape in (STACK, *KERNELS):
        if name not in OF_MATRICES:
            optimizer = cls([param := param_of(shape)])
            previous = param.detach().clone()
            optimizer.step()
            optimizer.step()
            assert not torch.equal(param.detach(), previous)
            continue
        options = {"heads": 1} if shape == STACK else {}
        expected = stepped(lambda param: cls([param]), shape, as_matrix=True)
        for make in (
            lambda param: cls([param], heads=1),
            lambda param: cls([{"params": [param], "heads": 1}]),
            lambda param, options=options: cls([param], **options),
            lambda param: optim.Mixed([{"params": [param], "rule": name, "heads": 1}]),
        ):
            assert_same([stepped(make, shape, as_matrix=False)], [expected])


class Experts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w1 = nn.Parameter(torch.randn(STACK))
        self.conv = nn.Conv1d(2, 3, 4)
        self.out = nn.Linear(3, 5)


def selected(rule: dict[str, Any], **options: Any) -> Any:
    model = Experts()
    names = optim.hidden_matrices(model, output="out.*", **options)
    return optim.Mixed(optim.groups(model, rules={names: rule, ...: "AdamW"}))


def added(param: torch.Tensor) -> Any:
    optimizer = optim.Muon([param_of((3, 4))])
    try:
        optimizer.add_param_group({"params": [param]})
    finally:
        assert len(optimizer.param_groups) == 1


def applied(param: torch.Tensor) -> Any:
    variable = Variable(param.detach().clone(), name="w")
    try:
        KerasRuleOptimizer(rule_of(Stage(center))).apply_gradients([(param.grad, variable)])
    finally:
        assert_same([variable.detach()], [param.detach()])


WAYS: dict[str, Callable[[torch.Tensor], Any]] = {
    "Mixed": lambda param: optim.Mixed([{"params": [param], "rule": "SOAP"}]),
    "Mixed, own rule": lambda param: optim.Mixed(
        [{"params": [param], "rule": rule_of(Stage(center))}]
    ),
    "RuleOptimizer": lambda param: optim.RuleOptimizer([param], rule_of(Stage(center))),
    "one of two stages": lambda param: optim.RuleOptimizer(
        [param], rule_of(Stage(center, heads=1), Stage(center))
    ),
    "Muon's own rule": lambda param: optim.RuleOptimizer(
        [param], optim.Muon._choose_rule(optim.Muon([param_of((3, 4))]).param_groups[0])
    ),
    "row_floor": lambda param: optim.Muon([param], row_floor=0.1),
    "a later group": added,
    "Keras": applied,
    "groups": lambda _: selected({"rule": "Muon"}, allow="w1", leave="conv.*"),
    "groups of Conv1d": lambda _: selected({"rule": "Muon"}, leave="w1"),
    "groups, own rule": lambda _: selected({"rule": rule_of(Stage(center))}, leave="w1"),
    "hidden_matrices": lambda _: selected({"rule": "Muon", "heads": 1}),
}


@pytest.mark.parametrize("maker", WAYS)
def test_stacked_params_raise_for_every_matrix_front_end(maker: str) -> None:
    param = param_of(STACK)
    previous = param.detach().clone()
    with pytest.raises(InvalidArgumentError) as raised:
        WAYS[maker](param)
    check_raised(str(raised.value))
    assert_same([param.detach()], [previous])


def test_explicit_heads_are_accepted_by_every_front_end() -> None:
    for make in (
        lambda param: optim.RuleOptimizer([param], rule_of(Stage(center, heads=1))),
        lambda param: optim.Mixed([{"params": [param], "rule": rule_of(Stage(center, heads=1))}]),
    ):
        param = param_of(STACK)
        previous = param.detach().clone()
        make(param).step()
        assert not torch.equal(param.detach(), previous)
    opt = selected({"rule": "Muon", "heads": 1}, allow="w1")
    assert [len(group["params"]) for group in opt.param_groups if group["rule"] == "Muon"] == [2]


@pytest.mark.parametrize("name", OF_MATRICES)
def test_changed_heads_are_validated_by_step_and_load(name: str, tmp_path: Path) -> None:
    cls, param = PUBLIC[name], param_of(STACK)
    optimizer = cls([param], heads=1)
    for _ in range(3):
        optimizer.step()
    previous, state = param.detach().clone(), copy.deepcopy(optimizer.state_dict())
    optimizer.param_groups[0]["heads"] = None
    with pytest.raises(InvalidArgumentError) as raised:
        optimizer.step()
    check_raised(str(raised.value))
    assert_same([param.detach()], [previous])
    unset = copy.deepcopy(state)
    unset["param_groups"][0]["heads"] = None
    optimizer.param_groups[0]["heads"] = 1
    with pytest.raises(CheckpointMismatchError, match="heads=1"):
        optimizer.load_state_dict(unset)
    assert optimizer.param_groups[0]["heads"] == 1
    reloaded = cls([fresh := param_of(STACK)], heads=1)
    checkpoint.save(good := tmp_path / "good.thalweg", optimizer=optimizer, variables={"w": param})
    optimizer.param_groups[0]["heads"] = None
    checkpoint.save(bad := tmp_path / "bad.thalweg", optimizer=optimizer, variables={"w": param})
    optimizer.param_groups[0]["heads"] = 1
    with pytest.raises(CheckpointMismatchError, match="heads=1"):
        checkpoint.restore(bad, optimizer=reloaded, variables={"w": fresh})
    assert not reloaded.state
    checkpoint.restore(good, optimizer=reloaded, variables={"w": fresh})
    optimizer.step()
    reloaded.step()
    assert_same([fresh.detach()], [param.detach()])
    assert pickle.loads(pickle.dumps(optimizer)).param_groups[0]["heads"] == 1
