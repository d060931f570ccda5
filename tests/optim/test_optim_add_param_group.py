"""A group that is refused leaves groups and state as they were."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from thalweg import LayoutError, optim
from thalweg.optim import tensorflow

OPTIONS = [{}, {"masters": True}, {"ema_decay": 0.5}, {"gradients": "flat"}, {"accumulate": 2}]


def trained(cls: Any, **options: Any) -> tuple[Any, torch.nn.Parameter]:
    param = torch.nn.Parameter(torch.ones(3, dtype=torch.bfloat16))
    opt = cls([param], lr=0.5, **options)
    for _ in range(2):
        param.grad = torch.ones_like(param)
        opt.step()
    return opt, param


def new() -> torch.nn.Parameter:
    return torch.nn.Parameter(torch.ones(2))


def without_numbers(opt: Any, param: Any) -> tuple[Any, Any, str]:
    opt.state[param]["step"].data = torch.zeros(0, dtype=torch.int64)
    return {"params": [new()]}, ValueError, r"'step' of .* has shape \(0,\), and is no number"


def a_gradient_that_is_cut(opt: Any, param: Any) -> tuple[Any, Any, str]:
    other = new()
    other.grad = torch.ones(2)
    other.grad.untyped_storage().resize_(0)
    return {"params": [other]}, LayoutError, "The gradient of .* has no memory"


def a_rate_of_words(opt: Any, param: Any) -> tuple[Any, Any, str]:
    return {"params": [new()], "lr": "fast"}, TypeError, "lr must be"


def a_parameter_that_is_there(opt: Any, param: Any) -> tuple[Any, Any, str]:
    return {"params": [new(), param]}, ValueError, "more than one parameter group"


CASES = [
    *((tensorflow.Ftrl, each, change) for each in OPTIONS
      for change in (without_numbers, a_rate_of_words, a_parameter_that_is_there)),
    *((cls, {"gradients": "flat"}, a_gradient_that_is_cut)
      for cls in (tensorflow.Adam, optim.Adam, optim.Adagrad)),
    *((optim.Adam, each, a_parameter_that_is_there) for each in OPTIONS),
]  # fmt: skip


@pytest.mark.parametrize(("cls", "options", "change"), CASES)
def test_a_group_that_is_refused_leaves_nothing(cls: Any, options: Any, change: Any) -> None:
    opt, param = trained(cls, **options)
    kept = opt.state[param].get("step").clone()
    group, kind, message = change(opt, param)
    before = repr(opt.state_dict())
    with pytest.raises(kind, match=message):
        opt.add_param_group(group)
    assert repr(opt.state_dict()) == before
    assert list(opt.state) == [param]
    opt.state[param]["step"] = kept
    other = new()
    opt.add_param_group({"params": [other]})
    for _ in range(2):
        param.grad, other.grad = torch.ones_like(param), torch.ones_like(other)
        opt.step()
    assert (other < 1).all()


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("cls", [tensorflow.Ftrl, optim.Adam])
def test_a_load_leaves_the_state_of_parameters_that_were_taken_out(cls: Any, options: Any) -> None:
    opt, param = trained(cls, **options)
    saved = opt.state_dict()
    other = new()
    opt.add_param_group({"params": [other]})
    for _ in range(2):
        param.grad, other.grad = torch.ones_like(param), torch.ones_like(other)
        opt.step()
    del opt.param_groups[1]
    opt.load_state_dict(saved)
    assert list(opt.state) == [param]
    assert opt.state_dict()["state"].keys() == saved["state"].keys()
