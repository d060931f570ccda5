"""The dtypes of slots: of every class beside masters, and those that a constructor makes."""

from __future__ import annotations

import copy
import pickle
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

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


def params_of(made: Any) -> list[Tensor]:
    return [param for group in made.param_groups for param in group["params"]]


def step(made: Any) -> None:
    for param in params_of(made):
        param.grad = torch.full_like(param, 0.5)
    made.step()


def assert_wide(made: Any) -> None:
    found = {name: each for own in made.state.values() for name, each in own.items()}
    floats = {
        n: x.dtype for n, x in found.items() if isinstance(x, Tensor) and x.is_floating_point()
    }
    assert set(floats.values()) <= {torch.float32}, floats


def stepped(made: Any, dtype: torch.dtype) -> Any:
    step(made)
    return made


def further(made: Any, dtype: torch.dtype) -> Any:
    step(made)
    made.add_param_group({"params": [torch.nn.Parameter(torch.ones(3, dtype=dtype))]})
    return made


def loading(masters: bool, steps: int) -> Callable[[Any, Any, torch.dtype], Any]:
    def loaded(make: Any, made: Any, dtype: torch.dtype) -> Any:
        other = made_by(make, dtype, masters)
        for _ in range(steps):
            step(other)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", CheckpointWarning)
            made.load_state_dict(copy.deepcopy(other.state_dict()))
        return made

    return loaded


WAYS: dict[str, Callable[[Any, Any, torch.dtype], Any]] = {
    "made": lambda _, made, __: made,
    "stepped": lambda _, made, dtype: stepped(made, dtype),
    "a group more": lambda _, made, dtype: further(made, dtype),
    "copied": lambda _, made, dtype: copy.deepcopy(stepped(made, dtype)),
    "pickled": lambda _, made, dtype: pickle.loads(pickle.dumps(stepped(made, dtype))),
    "loaded": loading(True, 1),
    "loaded before a step": loading(True, 0),
    "loaded from one without masters": loading(False, 1),
}


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("make", MAKERS.values(), ids=list(MAKERS))
def test_slots_beside_masters_are_float32(make: Any, dtype: torch.dtype) -> None:
    for way in WAYS.values():
        made = way(make, made_by(make, dtype), dtype)
        assert_wide(made)
        step(made)
        assert_wide(made)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("make", MAKERS.values(), ids=list(MAKERS))
def test_masters_have_the_bits_of_float32(make: Any, dtype: torch.dtype) -> None:
    made, wide = made_by(make, dtype), made_by(make, torch.float32, False)
    for _ in range(4):
        step(made), step(wide)
        made.load_state_dict(copy.deepcopy(made.state_dict()))
    (param,), (other,) = params_of(made), params_of(wide)
    assert_same([made.state[param]["master"]], [other.detach()])


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
    other, made = made_by(MAKERS[name], dtype), made_by(MAKERS[name], dtype)
    step(other)
    state = copy.deepcopy(other.state_dict())
    state["state"][0][slot] = state["state"][0][slot].to(dtype)
    made.load_state_dict(state)
    assert_wide(made)
    (own,) = made.state.values()
    assert_same([own[slot]], [state["state"][0][slot].float()])
    (own,) = other.state.values()
    own[slot] = own[slot].to(dtype)
    checkpoint.save(tmp_path / "old", variables={"w": params_of(other)[0]}, optimizer=other)
    made = made_by(MAKERS[name], dtype)
    checkpoint.restore(tmp_path / "old", variables={"w": params_of(made)[0]}, optimizer=made)
    assert_wide(made)
    step(made)
    assert_wide(made)


def test_slots_of_a_constructor_follow_the_options() -> None:
    """Exactly: 0.1 is none of the numbers of 16 bits."""
    param = torch.nn.Parameter(torch.ones(3, dtype=torch.bfloat16))
    made = optim.Adagrad([param], initial_accumulator_value=0.1, masters=True)
    assert_same([made.state[param]["sum"]], [torch.full((3,), 0.1)])
    wide = torch.nn.Parameter(torch.ones(3))
    made = optim.Adagrad([wide], state_dtype=torch.bfloat16)
    assert made.state[wide]["sum"].dtype == torch.bfloat16
    assert optim.Adagrad([param]).state[param]["sum"].dtype == torch.bfloat16
