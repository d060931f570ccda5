"""Lion beside the plain formula in torch's operations."""

from __future__ import annotations

import copy
import math
import pickle
from typing import Any

import pytest
import torch

import thalweg
from rulebook import assert_same
from thalweg import checkpoint, optim
from thalweg.checkpoint.torch_adapter import TorchOptimizerAdapter
from thalweg.optim.lion import PlainLion
from torch_inputs import ROWS, params_of, set_grads

EXACT = (0.5, 0.75)  # whose products with small whole numbers are exact


def by_hand(params: Any, means: Any, lr: float, betas: Any, decay: float) -> None:
    """One step, in the order of operations of lion-pytorch."""
    beta1, beta2 = betas
    with torch.no_grad():
        for param, mean in zip(params, means, strict=True):
            param.mul_(1 - lr * decay)
            update = mean * beta1 + param.grad * (1 - beta1)
            param.add_(update.sign(), alpha=-lr)
            mean.mul_(beta2)
            mean.add_(param.grad * (1 - beta2))


def courses(count: int, betas: Any, decay: float, dtype: Any = torch.float32) -> Any:
    """The library's parameters and means after some steps, and those by hand."""
    own, wanted = params_of(dtype), params_of(dtype)
    made = optim.Lion(own, lr=0.01, betas=betas, weight_decay=decay)
    means = [torch.zeros_like(param) for param in wanted]
    for step in range(count):
        set_grads(own, step)
        set_grads(wanted, step)
        made.step()
        by_hand(wanted, means, 0.01, betas, decay)
    return own, [made.state[param]["exp_avg"] for param in own], wanted, means


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("decay", [0.0, 0.1])
@pytest.mark.parametrize("betas", [(0.9, 0.99), (0.95, 0.98), EXACT, (0.0, 0.0)])
def test_the_bits_of_the_formula(betas: Any, decay: float, dtype: Any) -> None:
    own, kept, wanted, means = courses(7, betas, decay, dtype)
    assert_same([each.detach() for each in own], [each.detach() for each in wanted])
    assert_same(kept, means)


@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_as_the_loop_in_torchs_form(decay: float) -> None:
    """Which adds to the mean with `alpha`, and torch may round that once."""
    own, wanted = params_of(torch.float32), params_of(torch.float32)
    made, plain = (cls(each, lr=0.01, weight_decay=decay)
                   for cls, each in ((optim.Lion, own), (PlainLion, wanted)))  # fmt: skip
    for step in range(7):
        set_grads(own, step)
        set_grads(wanted, step)
        made.step()
        plain.step()
    assert_same([each.detach() for each in own], [each.detach() for each in wanted])
    for one, other in zip(own, wanted, strict=True):
        kept = made.state[one]["exp_avg"], plain.state[other]["exp_avg"]
        torch.testing.assert_close(*kept, rtol=1e-6, atol=1e-8)


def test_groups_and_defaults() -> None:
    first, second = params_of(torch.float32, ((3,), (4,)))
    made = optim.Lion([{"params": [first]}, {"params": [second], "lr": 0.5, "weight_decay": 1.0}])
    assert isinstance(made, torch.optim.Optimizer)
    assert {n: made.param_groups[0][n] for n in ("lr", "betas", "weight_decay")} == {
        "lr": 1e-4, "betas": (0.9, 0.99), "weight_decay": 0.0,
    }  # fmt: skip
    before = [first.detach().clone(), second.detach().clone()]
    set_grads([first, second], 0)
    made.step()
    assert first.grad is not None
    assert second.grad is not None
    assert_same([first.detach()], [before[0] - 1e-4 * first.grad.sign()])
    assert_same([second.detach()], [before[1] * 0.5 - 0.5 * second.grad.sign()])


@pytest.mark.parametrize("how", ["state_dict", "pickle", "file"])
def test_saved_and_loaded(how: str, tmp_path: Any) -> None:
    own = params_of(torch.float32)
    made = optim.Lion(own, lr=0.01, weight_decay=0.1)
    for step in range(3):
        set_grads(own, step)
        made.step()
    copies = [param.detach().clone().requires_grad_() for param in own]
    other = optim.Lion(copies, lr=0.01, weight_decay=0.1)
    names = [str(index) for index in range(len(own))]
    if how == "state_dict":
        other.load_state_dict(copy.deepcopy(made.state_dict()))
    elif how == "pickle":
        other = pickle.loads(pickle.dumps(made))
        copies = other.param_groups[0]["params"]
    else:
        path = tmp_path / "training"
        checkpoint.save(path, variables=dict(zip(names, own, strict=True)), optimizer=made)
        checkpoint.restore(path, variables=dict(zip(names, copies, strict=True)), optimizer=other)
    for params, each in ((own, made), (copies, other)):
        set_grads(params, 3)
        each.step()
    assert_same([each.detach() for each in own], [each.detach() for each in copies])


@pytest.mark.parametrize(
    "options",
    [{"clip_grad_norm": 0.5}, {"masters": True}, {"ema_decay": 0.9}, {"lookahead": 2}, {}],
    ids=str,
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_engines_agree(options: dict[str, Any], dtype: torch.dtype) -> None:
    both: list[Any] = []
    for engine in ("cpu", "reference"):
        with thalweg.engine(engine):
            own = params_of(dtype)
            made = optim.Lion(own, lr=0.01, weight_decay=0.1, **options)
            for step in range(5):
                set_grads(own, step)
                made.step()
            both.append([each.detach() for each in own])
    assert_same(both[0], both[1])


def test_a_gradient_that_is_no_number() -> None:
    (own,), (wanted,) = params_of(torch.float32, ((3,),)), params_of(torch.float32, ((3,),))
    for cls, param in ((optim.Lion, own), (PlainLion, wanted)):
        param.grad = torch.tensor([math.nan, math.inf, -math.inf])
        cls([param], lr=0.5).step()
    assert_same([own.detach()], [wanted.detach()])


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"lr": -1.0}, "Invalid learning rate: -1.0"),
        ({"betas": (1.0, 0.9)}, "Invalid beta parameter at index 0: 1.0"),
        ({"betas": (0.9, -0.5)}, "Invalid beta parameter at index 1: -0.5"),
        ({"weight_decay": -0.1}, "Invalid weight_decay value: -0.1"),
    ],
)
def test_refused_by_name(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        optim.Lion(params_of(torch.float32), **given)


def test_rows_are_refused() -> None:
    for cls in (optim.Lion, PlainLion):
        own = params_of(torch.float32, ROWS)
        set_grads(own, 0, sparse=True)
        with pytest.raises(RuntimeError, match="Lion does not support sparse gradients"):
            cls(own).step()


def test_files_name_the_class_that_users_have() -> None:
    assert (
        TorchOptimizerAdapter(optim.Lion([torch.zeros(1, requires_grad=True)])).title
        == "thalweg.optim.Lion"
    )
