"""Lion compared with its formula in torch operations."""

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

EXACT = (0.5, 0.75)  # products with small integers are exact


def step_by_hand(params: Any, means: Any, lr: float, betas: Any, decay: float) -> None:
    """Take a step with the operations of lion-pytorch, in the same order."""
    beta1, beta2 = betas
    with torch.no_grad():
        for param, mean in zip(params, means, strict=True):
            param.mul_(1 - lr * decay)
            update = mean * beta1 + param.grad * (1 - beta1)
            param.add_(update.sign(), alpha=-lr)
            mean.mul_(beta2)
            mean.add_(param.grad * (1 - beta2))


def train_both(count: int, betas: Any, decay: float, dtype: Any = torch.float32) -> Any:
    """Return parameters and momenta of the library after some steps, then those by hand."""
    weights, expected = params_of(dtype), params_of(dtype)
    opt = optim.Lion(weights, lr=0.01, betas=betas, weight_decay=decay)
    means = [torch.zeros_like(param) for param in expected]
    for step in range(count):
        set_grads(weights, step)
        set_grads(expected, step)
        opt.step()
        step_by_hand(expected, means, 0.01, betas, decay)
    return weights, [opt.state[param]["exp_avg"] for param in weights], expected, means


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("decay", [0.0, 0.1])
@pytest.mark.parametrize("betas", [(0.9, 0.99), (0.95, 0.98), EXACT, (0.0, 0.0)])
def test_lion_equals_formula_bitwise(betas: Any, decay: float, dtype: Any) -> None:
    weights, momenta, expected, means = train_both(7, betas, decay, dtype)
    assert_same([tensor.detach() for tensor in weights], [tensor.detach() for tensor in expected])
    assert_same(momenta, means)


@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_lion_matches_torch_style_loop(decay: float) -> None:
    """Torch may round the addition with `alpha` only once."""
    weights, expected = params_of(torch.float32), params_of(torch.float32)
    opt, reference = (cls(params, lr=0.01, weight_decay=decay)
                   for cls, params in ((optim.Lion, weights), (PlainLion, expected)))  # fmt: skip
    for step in range(7):
        set_grads(weights, step)
        set_grads(expected, step)
        opt.step()
        reference.step()
    assert_same([tensor.detach() for tensor in weights], [tensor.detach() for tensor in expected])
    for param, expected_param in zip(weights, expected, strict=True):
        momenta = opt.state[param]["exp_avg"], reference.state[expected_param]["exp_avg"]
        torch.testing.assert_close(*momenta, rtol=1e-6, atol=1e-8)


def test_groups_override_lion_defaults() -> None:
    first, second = params_of(torch.float32, ((3,), (4,)))
    opt = optim.Lion([{"params": [first]}, {"params": [second], "lr": 0.5, "weight_decay": 1.0}])
    assert isinstance(opt, torch.optim.Optimizer)
    assert {n: opt.param_groups[0][n] for n in ("lr", "betas", "weight_decay")} == {
        "lr": 1e-4, "betas": (0.9, 0.99), "weight_decay": 0.0,
    }  # fmt: skip
    previous = [first.detach().clone(), second.detach().clone()]
    set_grads([first, second], 0)
    opt.step()
    assert first.grad is not None
    assert second.grad is not None
    assert_same([first.detach()], [previous[0] - 1e-4 * first.grad.sign()])
    assert_same([second.detach()], [previous[1] * 0.5 - 0.5 * second.grad.sign()])


@pytest.mark.parametrize("method", ["state_dict", "pickle", "file"])
def test_lion_state_round_trips(method: str, tmp_path: Any) -> None:
    weights = params_of(torch.float32)
    opt = optim.Lion(weights, lr=0.01, weight_decay=0.1)
    for step in range(3):
        set_grads(weights, step)
        opt.step()
    copies = [param.detach().clone().requires_grad_() for param in weights]
    loaded = optim.Lion(copies, lr=0.01, weight_decay=0.1)
    names = [str(index) for index in range(len(weights))]
    if method == "state_dict":
        loaded.load_state_dict(copy.deepcopy(opt.state_dict()))
    elif method == "pickle":
        loaded = pickle.loads(pickle.dumps(opt))
        copies = loaded.param_groups[0]["params"]
    else:
        path = tmp_path / "training"
        checkpoint.save(path, variables=dict(zip(names, weights, strict=True)), optimizer=opt)
        checkpoint.restore(path, variables=dict(zip(names, copies, strict=True)), optimizer=loaded)
    for params, stepped in ((weights, opt), (copies, loaded)):
        set_grads(params, 3)
        stepped.step()
    assert_same([tensor.detach() for tensor in weights], [tensor.detach() for tensor in copies])


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    "options",
    [{"clip_grad_norm": 0.5}, {"masters": True}, {"ema_decay": 0.9}, {"lookahead": 2}, {}],
    ids=str,
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_engines_agree_on_lion(options: dict[str, Any], dtype: torch.dtype) -> None:
    results: list[Any] = []
    for engine in ("cpu", "reference"):
        with thalweg.engine(engine):
            weights = params_of(dtype)
            opt = optim.Lion(weights, lr=0.01, weight_decay=0.1, **options)
            for step in range(5):
                set_grads(weights, step)
                opt.step()
            results.append([tensor.detach() for tensor in weights])
    assert_same(results[0], results[1])


def test_lion_with_nonfinite_gradient_equals_formula() -> None:
    (weights,), (expected,) = params_of(torch.float32, ((3,),)), params_of(torch.float32, ((3,),))
    for cls, param in ((optim.Lion, weights), (PlainLion, expected)):
        param.grad = torch.tensor([math.nan, math.inf, -math.inf])
        cls([param], lr=0.5).step()
    assert_same([weights.detach()], [expected.detach()])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lr": -1.0}, "Invalid learning rate: -1.0"),
        ({"betas": (1.0, 0.9)}, "Invalid beta parameter at index 0: 1.0"),
        ({"betas": (0.9, -0.5)}, "Invalid beta parameter at index 1: -0.5"),
        ({"weight_decay": -0.1}, "Invalid weight_decay value: -0.1"),
    ],
)
def test_invalid_lion_options_raise(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        optim.Lion(params_of(torch.float32), **options)


def test_sparse_gradient_raises() -> None:
    for cls in (optim.Lion, PlainLion):
        weights = params_of(torch.float32, ROWS)
        set_grads(weights, 0, sparse=True)
        with pytest.raises(RuntimeError, match="Lion does not support sparse gradients"):
            cls(weights).step()


def test_error_title_is_the_public_class() -> None:
    assert (
        TorchOptimizerAdapter(optim.Lion([torch.zeros(1, requires_grad=True)])).title
        == "thalweg.optim.Lion"
    )
