"""Dtypes of slots: with master weights for all classes, and of slots that constructors create."""

from __future__ import annotations

import copy
import pickle
import warnings
from collections.abc import Callable
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor

from pairwise import cover_values
from rulebook import assert_same
from thalweg import checkpoint, optim
from thalweg.errors import CheckpointWarning
from thalweg.optim import tensorflow
from thalweg.rules import ADAM

TORCHS = (
    "Adam", "AdamW", "SGD", "RMSprop", "Adagrad", "Adadelta", "Adamax", "NAdam", "RAdam", "ASGD",
    "Rprop",
)  # fmt: skip
MAKERS: dict[str, Any] = {
    **{f"torch's {name}": getattr(optim, name) for name in TORCHS},
    **{name: getattr(tensorflow, name) for name in tensorflow.__all__},
    "amsgrad": lambda p, **o: optim.Adam(p, amsgrad=True, **o),
    "momentum": lambda p, **o: optim.SGD(p, momentum=0.9, **o),
    "centered": lambda p, **o: optim.RMSprop(p, momentum=0.9, centered=True, **o),
    "a rule": lambda p, **o: optim.RuleOptimizer(p, ADAM, **o),
}


def made_by(make: Any, dtype: torch.dtype, masters: bool = True) -> Any:
    options: dict[str, Any] = {"masters": True} if masters else {}
    return make([torch.nn.Parameter(torch.ones(5, dtype=dtype))], lr=0.1, **options)


def params_of(opt: Any) -> list[Tensor]:
    return [param for group in opt.param_groups for param in group["params"]]


def step(opt: Any) -> None:
    for param in params_of(opt):
        param.grad = torch.full_like(param, 0.5)
    opt.step()


def assert_wide(opt: Any) -> None:
    slots = {name: slot for state in opt.state.values() for name, slot in state.items()}
    floats = {
        n: x.dtype for n, x in slots.items() if isinstance(x, Tensor) and x.is_floating_point()
    }
    assert set(floats.values()) <= {torch.float32}, floats


def step_opt(opt: Any, dtype: torch.dtype) -> Any:
    step(opt)
    return opt


def add_group(opt: Any, dtype: torch.dtype) -> Any:
    step(opt)
    opt.add_param_group({"params": [torch.nn.Parameter(torch.ones(3, dtype=dtype))]})
    return opt


def loading(masters: bool, steps: int) -> Callable[[Any, Any, torch.dtype], Any]:
    def loaded(make: Any, opt: Any, dtype: torch.dtype) -> Any:
        loaded = made_by(make, dtype, masters)
        for _ in range(steps):
            step(loaded)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", CheckpointWarning)
            opt.load_state_dict(copy.deepcopy(loaded.state_dict()))
        return opt

    return loaded


PREPARATIONS: dict[str, Callable[[Any, Any, torch.dtype], Any]] = {
    "made": lambda _, opt, __: opt,
    "stepped": lambda _, opt, dtype: step_opt(opt, dtype),
    "a group more": lambda _, opt, dtype: add_group(opt, dtype),
    "copied": lambda _, opt, dtype: copy.deepcopy(step_opt(opt, dtype)),
    "pickled": lambda _, opt, dtype: pickle.loads(pickle.dumps(step_opt(opt, dtype))),
    "loaded": loading(True, 1),
    "loaded before a step": loading(True, 0),
    "loaded from one without masters": loading(False, 1),
}


@pytest.mark.parametrize(
    ("name", "dtype"), cover_values(product(MAKERS, (torch.float16, torch.bfloat16)), 1), ids=str
)
@pytest.mark.one_in(3)
def test_slots_beside_masters_are_float32(name: str, dtype: torch.dtype) -> None:
    make = MAKERS[name]
    for prepare in PREPARATIONS.values():
        opt = prepare(make, made_by(make, dtype), dtype)
        assert_wide(opt)
        step(opt)
        assert_wide(opt)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("make", MAKERS.values(), ids=list(MAKERS))
def test_masters_have_the_bits_of_float32(make: Any, dtype: torch.dtype) -> None:
    opt, wide = made_by(make, dtype), made_by(make, torch.float32, False)
    for _ in range(4):
        step(opt), step(wide)
        opt.load_state_dict(copy.deepcopy(opt.state_dict()))
    (param,), (wide_param,) = params_of(opt), params_of(wide)
    assert_same([opt.state[param]["master"]], [wide_param.detach()])


# What earlier versions kept in 16 bits beside masters.
NARROW = {
    "torch's Adagrad": "sum",
    "torch's ASGD": "eta",
    "torch's NAdam": "mu_product",
    "Nadam": "momentum_cache",
}


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("name", "slot"), NARROW.items())
def test_states_of_earlier_versions_are_widened(
    name: str, slot: str, dtype: torch.dtype, tmp_path: Any
) -> None:
    source, opt = made_by(MAKERS[name], dtype), made_by(MAKERS[name], dtype)
    step(source)
    state = copy.deepcopy(source.state_dict())
    state["state"][0][slot] = state["state"][0][slot].to(dtype)
    opt.load_state_dict(state)
    assert_wide(opt)
    (slots,) = opt.state.values()
    assert_same([slots[slot]], [state["state"][0][slot].float()])
    (slots,) = source.state.values()
    slots[slot] = slots[slot].to(dtype)
    checkpoint.save(tmp_path / "old", variables={"w": params_of(source)[0]}, optimizer=source)
    opt = made_by(MAKERS[name], dtype)
    checkpoint.restore(tmp_path / "old", variables={"w": params_of(opt)[0]}, optimizer=opt)
    assert_wide(opt)
    step(opt)
    assert_wide(opt)


def test_slots_of_a_constructor_follow_the_options() -> None:
    """0.1 is not a 16-bit number, so equality is exact. Options that need state make all of it in
    the first step.
    """
    param = torch.nn.Parameter(torch.ones(3, dtype=torch.bfloat16))
    opt = optim.Adagrad([param], initial_accumulator_value=0.1, masters=True)
    param.grad = torch.zeros_like(param)
    opt.step()
    assert_same([opt.state[param]["sum"]], [torch.full((3,), 0.1)])
    wide = torch.nn.Parameter(torch.ones(3))
    opt = optim.Adagrad([wide], state_dtype=torch.bfloat16)
    wide.grad = torch.zeros_like(wide)
    opt.step()
    assert opt.state[wide]["sum"].dtype == torch.bfloat16
    assert optim.Adagrad([param]).state[param]["sum"].dtype == torch.bfloat16
