"""`optim.groups`: selection by name, module class or dimensions; groups in one launch."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from interruptions import interrupted_at
from rulebook import assert_same
from thalweg import optim
from thalweg._engines.cpu import launch
from torch_inputs import params_of, set_grads


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.ModuleDict(
        {"encoder": nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4)), "head": nn.Linear(4, 2)}
    )


def names(groups: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    param_names = []
    for group in groups:
        options = tuple(value for key, value in group.items() if key != "params")
        param_names.append((*options, " ".join(name for name, _ in group["params"])))
    return param_names


DECAYED = "encoder.0.weight head.weight"
SMALL = "encoder.0.bias encoder.1.weight encoder.1.bias head.bias"
ALL_NAMES = "encoder.0.weight encoder.0.bias encoder.1.weight encoder.1.bias head.weight head.bias"
CASES: list[tuple[dict[str, Any], list[tuple[Any, ...]]]] = [
    ({}, [(ALL_NAMES,)]),
    ({"decay": 0.1}, [(0.1, ALL_NAMES)]),
    ({"decay": 0.1, "no_decay": 1}, [(0.1, DECAYED), (0.0, SMALL)]),
    ({"decay": 0.1, "no_decay": ("bias", nn.LayerNorm)}, [(0.1, DECAYED), (0.0, SMALL)]),
    ({"decay": 0.1, "no_decay": "encoder.*", "frozen": "head"}, [(0.0, ALL_NAMES[:-22])]),
    (
        {"lr": 1.0, "lr_scale": {"encoder": 0.5, "bias": 2.0}},
        [
            (0.5, "encoder.0.weight encoder.1.weight"),
            (1.0, "encoder.0.bias encoder.1.bias head.weight"),
            (2.0, "head.bias"),
        ],
    ),
]


@pytest.mark.parametrize(("arguments", "expected"), CASES)
def test_groups_splits_parameters_by_rules(
    arguments: dict[str, Any], expected: list[tuple[Any, ...]]
) -> None:
    assert names(optim.groups(model(), **arguments)) == expected


def test_groups_leaves_out_frozen_parameters() -> None:
    net = model()
    net["head"].requires_grad_(False)
    assert names(optim.groups(net)) == [(ALL_NAMES[:-22],)]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"decay": 1.0, "no_decay": "biass"}, "no_decay 'biass' selects no parameter. Did you"),
        ({"frozen": nn.Conv2d}, "frozen <class .*Conv2d'> selects no parameter"),
        ({"frozen": [1.5]}, "frozen must hold names, classes of modules or numbers of dim"),
        ({"lr_scale": {"bias": 2.0}}, "lr_scale needs lr"),
        ({"no_decay": "bias"}, "no_decay needs decay"),
    ],
)
def test_groups_raises_for_unmatched_selectors(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        optim.groups(model(), **arguments)


def test_all_groups_are_one_kernel_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    params = params_of(torch.float32, ((3,),) * 20)
    ref_params = params_of(torch.float32, ((3,),) * 20)
    options = [{"lr": 0.01 * k, "weight_decay": 0.1 * (k % 3), "eps": 1e-8} for k in range(20)]
    opt = optim.AdamW([{"params": [p], **extra} for p, extra in zip(params, options, strict=True)])
    references = [optim.AdamW([p], **extra) for p, extra in zip(ref_params, options, strict=True)]
    launched = []
    call = launch.Compiled.bind_table
    monkeypatch.setattr(
        launch.Compiled, "bind_table", lambda *args: launched.append(1) or call(*args)
    )
    for step in range(3):
        set_grads(params, step)
        opt.step()
    assert len(launched) == 2
    assert len(opt.step_cache.replay.launches.all) == 1  # the third step's
    for step in range(3):
        set_grads(ref_params, step)
        for reference in references:
            reference.step()
    assert_same([p.detach() for p in params], [p.detach() for p in ref_params])


def of_three_rules() -> Any:
    params = [torch.nn.Parameter(param.detach()) for param in params_of(torch.float32)]
    groups = [{"params": params[:1]}, {"params": params[1:2], "momentum": 0.9}]
    return optim.SGD([*groups, {"params": params[2:], "momentum": 0.9, "nesterov": True}], lr=0.1)


def tensors_of(opt: Any) -> list[torch.Tensor]:
    slots = [slot for state in opt.state.values() for slot in state.values()]
    return [param.detach().clone() for group in opt.param_groups for param in group["params"]] + [
        slot.clone() for slot in slots
    ]


@pytest.mark.parametrize("is_trained", [False, True])
def test_failed_step_of_several_rules_is_atomic(is_trained: bool) -> None:
    def prepared() -> Any:
        opt = of_three_rules()
        for count in range(1 + is_trained):
            set_grads([param for group in opt.param_groups for param in group["params"]], count)
            if count < is_trained:
                opt.step()
        return opt

    twin = prepared()
    previous = tensors_of(twin)
    twin.step()
    expected = tensors_of(twin)
    number, is_interrupted, outcomes = 0, True, set()
    while is_interrupted:
        opt = prepared()
        is_interrupted = interrupted_at(number, opt.step)
        actual = tensors_of(opt)
        is_new = len(actual) == len(expected) and all(map(torch.equal, actual, expected))
        is_old = len(actual) == len(previous) and all(map(torch.equal, actual, previous))
        assert is_new or is_old, number
        outcomes.add(is_new)
        number += 13
    assert outcomes == {True, False}
