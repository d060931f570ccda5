"""`optim.groups(width_scale=)`: the multipliers of mup, spectral ones of Muon, and errors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from thalweg import optim
from thalweg.errors import InvalidArgumentError, InvalidTypeError
from width_models import DELTA, WIDTHS, model

RECORDED_SCALES = json.loads((Path(__file__).parent.parent / "goldens" / "widths.json").read_text())
BASE = WIDTHS[0]


def scales_of(groups: list[dict[str, Any]]) -> dict[str, list[float]]:
    return {
        name: [group["lr"], group["weight_decay"]]
        for group in groups
        for name, _ in group["params"]
    }


@pytest.mark.parametrize("has_delta", [False, True])
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("rule", ["AdamW", "SGD"])
def test_rates_and_decays_equal_those_of_mup(
    rule: str, width: tuple[int, int], has_delta: bool
) -> None:
    base, delta = model(*BASE, device="meta"), model(*DELTA, device="meta")
    groups = optim.groups(
        model(*width), rules={...: rule}, lr=0.3, decay=0.7,
        width_scale=(base, delta) if has_delta else base,
    )  # fmt: skip
    assert scales_of(groups) == RECORDED_SCALES[f"{rule} {width} {has_delta}"]


# A matrix of which one dimension is that of the base, by rule, name and whether there is a pair.
ONE_CHANGED = [
    ("AdamW", "up", False, 1.0), ("AdamW", "up", True, 1 / 3), ("AdamW", "down", False, 1.0),
    ("AdamW", "down", True, 1.0), ("SGD", "up", False, 3.0), ("SGD", "up", True, 1 / 3),
    ("SGD", "down", False, 3.0), ("SGD", "down", True, 3.0),
]  # fmt: skip


@pytest.mark.parametrize(("rule", "name", "has_delta", "factor"), ONE_CHANGED)
def test_matrix_with_one_changed_dimension_has_the_rate_of_mup(
    rule: str, name: str, has_delta: bool, factor: float
) -> None:
    base, delta = model(*BASE), model(*DELTA)
    width_scale = (base, delta) if has_delta else base
    groups = optim.groups(
        model(12, 6), rules={...: rule}, lr=0.3, decay=0.7, width_scale=width_scale
    )
    (rate, _) = scales_of(groups)[f"{name}.weight"]
    assert rate == RECORDED_SCALES[f"{rule} (12, 6) {has_delta}"][f"{name}.weight"][0]
    assert rate == pytest.approx(0.3 * factor)


def test_shapes_by_name_and_files_of_mup_equal_a_base_model() -> None:
    base = {name: tuple(p.shape) for name, p in model(*BASE).named_parameters()}
    delta = {name: tuple(p.shape) for name, p in model(*DELTA).named_parameters()}
    pairs = {name: zip(shape, delta[name], strict=True) for name, shape in base.items()}
    width_marks = {name: [a if a != b else None for a, b in sizes] for name, sizes in pairs.items()}
    for has_delta, shapes in ((False, base), (True, width_marks)):
        groups = optim.groups(
            model(12, 6), rules={...: "AdamW"}, lr=0.3, decay=0.7, width_scale=shapes
        )
        assert scales_of(groups) == RECORDED_SCALES[f"AdamW (12, 6) {has_delta}"]


# By options of Muon: the factor for a matrix of shape (rows, columns) with a base of (4, 2).
SPECTRAL = [
    ({"rule": "Muon"}, (8, 4), 1.0),
    ({"rule": "Muon"}, (4, 8), 0.5 * 2**0.5),
    ({"rule": "Muon", "adjust_lr_fn": "rms_to_rms"}, (4, 8), 1.0),
    ({"rule": "Muon", "adjust_lr_fn": "match_rms_adamw"}, (16, 8), 0.5),
    ({"rule": "Muon", "heads": 2}, (8, 4), 1.0),
    ({"rule": "NorMuon", "update_scale": "match_rms"}, (16, 8), 0.5),
    ({"rule": "AdaMuon"}, (16, 8), 0.5),
]


@pytest.mark.parametrize(("options", "shape", "factor"), SPECTRAL)
def test_steps_of_matrix_rules_keep_their_spectral_norm(
    options: dict[str, Any], shape: tuple[int, int], factor: float
) -> None:
    net = nn.Linear(shape[1], shape[0], bias=False)
    delta = {"weight": (3, 1)}
    groups = optim.groups(
        net, rules={...: options}, lr=0.1, decay=0.2, width_scale=({"weight": (4, 2)}, delta)
    )
    (group,) = groups
    assert group["lr"] == pytest.approx(0.1 * factor)
    assert group["lr"] * group["weight_decay"] == pytest.approx(0.1 * 0.2)


def test_spectral_norm_of_a_step_follows_the_root_of_the_shape() -> None:
    torch.manual_seed(0)
    norms = []
    for width in (16, 64):
        net = nn.Linear(width, width, bias=False)
        options = {"rule": "Muon", "adjust_lr_fn": "match_rms_adamw", "ns_steps": 12}
        (group,) = optim.groups(
            net, rules={...: options}, lr=1.0, decay=0.0, width_scale={"weight": (16, 16)}
        )
        optimizer = optim.Mixed([group])
        previous_weight = net.weight.detach().clone()
        net.weight.grad = torch.randn(width, width)
        optimizer.step()
        norms.append(torch.linalg.matrix_norm(net.weight.detach() - previous_weight, 2).item())
    assert norms[1] == pytest.approx(norms[0], rel=0.25)


def test_decay_stays_on_request_and_where_it_is_no_product() -> None:
    base = {"weight": (2, 2)}
    net = nn.Linear(4, 4, bias=False)
    for rule, scale_decay, decay in (
        ("AdamW", True, 0.02),  # the default of AdamW, times 2
        ("AdamW", False, None),
        ("AdamWIndependent", True, None),
    ):
        (group,) = optim.groups(
            net, rules={...: rule}, lr=1.0, width_scale=base, scale_decay=scale_decay
        )
        assert (group["lr"], group.get("weight_decay")) == (0.5, decay)


def test_groups_of_another_rule_are_rejected() -> None:
    groups = optim.groups(
        nn.Linear(4, 4), rules={...: "AdamW"}, lr=1.0, width_scale=nn.Linear(2, 2)
    )
    optim.AdamW(groups)
    with pytest.raises(ValueError, match="rule"):
        optim.SGD(groups)


ERRORS = [
    ({"rules": None}, InvalidArgumentError, "width_scale needs rules and lr"),
    ({"lr": None}, InvalidArgumentError, "width_scale needs rules and lr"),
    ({"width_scale": 2}, InvalidTypeError, "width_scale must be a module"),
    ({"width_scale": {"weight": (2, 2)}}, InvalidArgumentError, "lacks 'bias'"),
    ({"width_scale": {"weight": (2, 2), "bias": (2,), "b": (1,)}}, InvalidArgumentError, "has 'b'"),
    ({"width_scale": {"weight": (2,), "bias": (2,)}}, InvalidArgumentError, "'weight' is .2,."),
    ({"width_scale": {"weight": (2, 0), "bias": (2,)}}, InvalidArgumentError, "expected 2 sizes"),
    ({"width_scale": (nn.Linear(2, 2),) * 2}, InvalidArgumentError, "only widths may differ"),
    ({"rules": {...: "LAMB"}}, InvalidArgumentError, "no factor for 'weight'.*not of 'LAMB'"),
    (
        {"rules": {"weight": "Muon", ...: "AdamW"}, "width_scale": nn.Linear(4, 2)},
        InvalidArgumentError,
        "'weight' of shape .4, 4. has one dimension that differs",
    ),
]


@pytest.mark.parametrize(("arguments", "error", "message"), ERRORS)
def test_invalid_widths_are_rejected(
    arguments: dict[str, Any], error: type[Exception], message: str
) -> None:
    defaults = {"rules": {...: "AdamW"}, "lr": 1.0, "width_scale": nn.Linear(2, 2)}
    with pytest.raises(error, match=message):
        optim.groups(nn.Linear(4, 4), **{**defaults, **arguments})
