"""Regressions that the comparison with torch has found: dtypes of scalars, and options."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

from thalweg import optim

NUMBERS = {"ASGD": ("eta", "mu"), "NAdam": ("mu_product",)}
OPTION_SETS = [{}, {"ema_decay": 0.9}, {"state_device": "cpu"}]


def trained(cls: Any, **options: Any) -> tuple[Any, list[torch.Tensor]]:
    kinds = (torch.float32, torch.float64)
    params = [torch.nn.Parameter(torch.linspace(0.1, 1, 3, dtype=kind)) for kind in kinds]
    return cls(params, lr=0.1, **options), params


def step(opt: Any, params: list[torch.Tensor]) -> None:
    for param in params:
        param.grad = torch.ones_like(param)
    opt.step()


@pytest.mark.parametrize("extras", OPTION_SETS, ids=str)
@pytest.mark.parametrize("name", NUMBERS)
def test_loaded_scalars_have_torch_dtypes(name: str, extras: dict[str, Any]) -> None:
    scalars: list[Any] = []
    for module, options in ((optim, extras), (torch.optim, {})):
        opt, params = trained(getattr(module, name), **options)
        step(opt, params[1:])  # the first one begins after the load
        opt.load_state_dict(copy.deepcopy(opt.state_dict()))
        for _ in range(3):
            step(opt, params)
        scalars.append([opt.state[param][key] for param in params for key in NUMBERS[name]])
        scalars[-1] += params
    for actual, expected in zip(*scalars, strict=True):
        assert actual.dtype == expected.dtype
        torch.testing.assert_close(
            actual, expected, rtol=1e-6 if actual.dtype == torch.float32 else 1e-14, atol=0
        )


@pytest.mark.parametrize("text", ["0.1", b"0.1"])
@pytest.mark.parametrize("name", ["lr", "weight_decay"])
def test_string_options_raise(name: str, text: Any) -> None:
    opt, params = trained(optim.SGD)
    opt.param_groups[0][name] = text
    with pytest.raises(TypeError, match=f"{name} must be a number, not"):
        step(opt, params)


def test_unread_group_entries_are_kept() -> None:
    opt, params = trained(optim.RMSprop)
    opt.param_groups[0]["betas"] = None
    step(opt, params)
    judge, torch_param = trained(torch.optim.RMSprop)
    step(judge, torch_param)
    torch.testing.assert_close(params, torch_param)


@pytest.mark.parametrize(
    "option", [{"betas": (torch.tensor(0.9), 0.99)}, {"betas": torch.ones(2) / 2}]
)
def test_tensors_rejected_by_torch_foreach_raise(option: dict[str, Any]) -> None:
    messages: list[Any] = []
    for module in (optim, torch.optim):
        opt, params = trained(module.Adam, foreach=True)
        opt.param_groups[0].update(option)
        try:
            step(opt, params)
            messages.append(None)
        except (ValueError, RuntimeError) as error:
            messages.append(type(error))
    assert messages[0] is messages[1]
