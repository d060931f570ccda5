"""`optim.groups`: parameters by name, kind of module or dimensions; groups in one launch."""

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
        {
            "encoder": nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4)),
            "head": nn.Linear(4, 2),
        }
    )


def names(groups: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    found = []
    for group in groups:
        options = tuple(value for key, value in group.items() if key != "params")
        found.append((*options, " ".join(name for name, _ in group["params"])))
    return found


REST = "encoder.0.weight head.weight"
SMALL = "encoder.0.bias encoder.1.weight encoder.1.bias head.bias"
EVERY = "encoder.0.weight encoder.0.bias encoder.1.weight encoder.1.bias head.weight head.bias"
CASES: list[tuple[dict[str, Any], list[tuple[Any, ...]]]] = [
    ({}, [(EVERY,)]),
    ({"decay": 0.1}, [(0.1, EVERY)]),
    ({"decay": 0.1, "no_decay": 1}, [(0.1, REST), (0.0, SMALL)]),
    ({"decay": 0.1, "no_decay": ("bias", nn.LayerNorm)}, [(0.1, REST), (0.0, SMALL)]),
    ({"decay": 0.1, "no_decay": "encoder.*", "frozen": "head"}, [(0.0, EVERY[:-22])]),
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
def test_parameters_are_grouped(arguments: dict[str, Any], expected: list[tuple[Any, ...]]) -> None:
    assert names(optim.groups(model(), **arguments)) == expected


def test_what_needs_no_gradient_is_left_out() -> None:
    made = model()
    made["head"].requires_grad_(False)
    assert names(optim.groups(made)) == [(EVERY[:-22],)]


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
def test_what_selects_nothing_is_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        optim.groups(model(), **arguments)


def test_any_number_of_groups_is_one_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    params = params_of(torch.float32, ((3,),) * 20)
    alone = params_of(torch.float32, ((3,),) * 20)
    options = [{"lr": 0.01 * k, "weight_decay": 0.1 * (k % 3), "eps": 1e-8} for k in range(20)]
    ours = optim.AdamW([{"params": [p], **own} for p, own in zip(params, options, strict=True)])
    others = [optim.AdamW([p], **own) for p, own in zip(alone, options, strict=True)]
    launched = []
    call = launch.Compiled.bind_table
    monkeypatch.setattr(
        launch.Compiled, "bind_table", lambda *given: launched.append(1) or call(*given)
    )
    for step in range(3):
        set_grads(params, step)
        ours.step()
    assert len(launched) == 2
    assert len(ours._cache.replay.launches.all) == 1  # the third step's
    for step in range(3):
        set_grads(alone, step)
        for other in others:
            other.step()
    assert_same([p.detach() for p in params], [p.detach() for p in alone])


def of_three_rules() -> Any:
    params = [torch.nn.Parameter(each.detach()) for each in params_of(torch.float32)]
    groups = [{"params": params[:1]}, {"params": params[1:2], "momentum": 0.9}]
    return optim.SGD([*groups, {"params": params[2:], "momentum": 0.9, "nesterov": True}], lr=0.1)


def everything(made: Any) -> list[torch.Tensor]:
    slots = [each for own in made.state.values() for each in own.values()]
    return [each.detach().clone() for group in made.param_groups for each in group["params"]] + [
        each.clone() for each in slots
    ]


@pytest.mark.parametrize("begun", [False, True])
def test_a_step_of_several_rules_is_whole(begun: bool) -> None:
    def prepared() -> Any:
        made = of_three_rules()
        for count in range(1 + begun):
            set_grads([param for group in made.param_groups for param in group["params"]], count)
            if count < begun:
                made.step()
        return made

    twin = prepared()
    before = everything(twin)
    twin.step()
    after = everything(twin)
    number, is_interrupted, outcomes = 0, True, set()
    while is_interrupted:
        made = prepared()
        is_interrupted = interrupted_at(number, made.step)
        found = everything(made)
        is_new = len(found) == len(after) and all(map(torch.equal, found, after))
        is_old = len(found) == len(before) and all(map(torch.equal, found, before))
        assert is_new or is_old, number
        outcomes.add(is_new)
        number += 7
    assert outcomes == {True, False}
