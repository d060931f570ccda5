"""Failing `add_param_group`: groups and state stay unchanged."""

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
    new_param = new()
    new_param.grad = torch.ones(2)
    new_param.grad.untyped_storage().resize_(0)
    return {"params": [new_param]}, LayoutError, "The gradient of .* has no memory"


def a_rate_of_words(opt: Any, param: Any) -> tuple[Any, Any, str]:
    return {"params": [new()], "lr": "fast"}, TypeError, "lr must be"


def a_parameter_that_is_there(opt: Any, param: Any) -> tuple[Any, Any, str]:
    return {"params": [new(), param]}, ValueError, "more than one parameter group"


CASES = [
    *((tensorflow.Ftrl, option, change) for option in OPTIONS
      for change in (without_numbers, a_rate_of_words, a_parameter_that_is_there)),
    *((cls, {"gradients": "flat"}, a_gradient_that_is_cut)
      for cls in (tensorflow.Adam, optim.Adam, optim.Adagrad)),
    *((optim.Adam, option, a_parameter_that_is_there) for option in OPTIONS),
]  # fmt: skip


@pytest.mark.one_in(3)
@pytest.mark.parametrize(("cls", "options", "change"), CASES)
def test_rejected_group_changes_nothing(cls: Any, options: Any, change: Any) -> None:
    opt, param = trained(cls, **options)
    previous_count = opt.state[param].get("step").clone()
    group, kind, message = change(opt, param)
    previous_text = repr(opt.state_dict())
    with pytest.raises(kind, match=message):
        opt.add_param_group(group)
    assert repr(opt.state_dict()) == previous_text
    assert list(opt.state) == [param]
    opt.state[param]["step"] = previous_count
    new_param = new()
    opt.add_param_group({"params": [new_param]})
    for _ in range(2):
        param.grad, new_param.grad = torch.ones_like(param), torch.ones_like(new_param)
        opt.step()
    assert (new_param < 1).all()


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("cls", [tensorflow.Ftrl, optim.Adam])
def test_load_keeps_the_state_of_removed_parameters(cls: Any, options: Any) -> None:
    opt, param = trained(cls, **options)
    state_dict = opt.state_dict()
    new_param = new()
    opt.add_param_group({"params": [new_param]})
    for _ in range(2):
        param.grad, new_param.grad = torch.ones_like(param), torch.ones_like(new_param)
        opt.step()
    del opt.param_groups[1]
    opt.load_state_dict(state_dict)
    assert list(opt.state) == [param]
    assert opt.state_dict()["state"].keys() == state_dict["state"].keys()
