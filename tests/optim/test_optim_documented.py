"""Claims of the documentation on modern rules, `Mixed`, `radial_brake` and spheres."""

from __future__ import annotations

import inspect
import itertools
import operator
import re
import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from case_batches import many
from test_optim_options import STEP_OPTIONS
from thalweg import optim
from thalweg.errors import CheckpointMismatchError, InvalidArgumentError, RuleError
from thalweg.optim import tensorflow
from thalweg.optim.rule_names import KINDS

DOCS = Path(__file__).parents[2] / "docs"
OPTIONS_PAGE = (DOCS / "options.md").read_text()
OPTIMIZERS_PAGE = (DOCS / "optimizers.md").read_text()
SHAPE = (30, 17)
# Classes of which `radial_brake` says that they do not tell step and decay apart.
PAIR_ROWS = re.search(r"as in AdamW, Lion and Muon.*?(Adan, .*?KLSOAP)", OPTIONS_PAGE, re.DOTALL)
CLASSES = (
    "Adam", "AdamW", "SGD", "NAdam", "Lion", "LaProp", "ADOPT",
    "Adan", "LAMB", "MARS", "Muon", "SOAP",
)  # fmt: skip


def new_param(shape: tuple[int, ...] = SHAPE, dtype: torch.dtype = torch.float32) -> Any:
    """Return a parameter with the same random values each time."""
    generator = torch.Generator().manual_seed(len(shape))
    return torch.nn.Parameter(torch.randn(shape, generator=generator).to(dtype))


def norm_after_steps(name: str, decay: float, **options: Any) -> Any:
    """Return a parameter after steps against gradients that point away from 0."""
    param = new_param()
    cls = getattr(optim, name)
    if "weight_decay" in inspect.signature(cls).parameters:
        options["weight_decay"] = decay
    optimizer = cls([param], lr=0.02, **options)
    for _ in range(3):
        start_norm = param.detach().norm()
        param.grad = param.detach().clone()
        optimizer.step()
        assert param.norm() <= start_norm
    return param.detach()


@many("name", CLASSES)
def test_brake_keeps_steps_that_do_not_increase_the_norm(name: str) -> None:
    assert PAIR_ROWS is not None
    for decay in (0.0, 0.1):
        free, braked = (
            norm_after_steps(name, decay),
            norm_after_steps(name, decay, radial_brake=0.5),
        )
        if name in PAIR_ROWS[1]:
            torch.testing.assert_close(free, braked, rtol=1e-6, atol=1e-7)
        else:
            assert torch.equal(free, braked)


def test_a_brake_measures_growth_after_the_decay() -> None:
    """Decay halves the parameter before it moves outward: the norm grows beyond the half."""
    param = torch.nn.Parameter(torch.tensor([2.0, 0.0]))
    optimizer = optim.AdamWIndependent([param], lr=0.1, weight_decay=0.5, radial_brake=0.5)
    param.grad = torch.tensor([-1.0, 0.0])
    optimizer.step()
    torch.testing.assert_close(param.detach(), torch.tensor([1.05, 0.0]))


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    ("options", "bound"),
    [({}, 0.01), ({"weights": "split"}, 0.01), ({"masters": True}, 1e-6)],
    ids=str,
)
@pytest.mark.parametrize("shape", [(4,), (8, 8)], ids=str)
def test_sphere_keeps_the_radius(
    options: dict[str, Any], bound: float, shape: tuple[int, ...]
) -> None:
    param = new_param(shape, torch.bfloat16)
    optimizer = optim.AdamW([param], lr=1e-3, sphere=True, **options)
    radius = param.detach().double().norm()
    for step in range(100):
        generator = torch.Generator().manual_seed(step)
        param.grad = torch.randn(shape, generator=generator).bfloat16()
        optimizer.step()
        assert abs(param.detach().double().norm() / radius - 1) <= 0.01
    weight: Any = optimizer.state[param].get("master", param.detach())
    if "weights" in options:
        weight = optim.full_precision(optimizer, masters=True)["state"][0]["master"]
    assert abs(weight.double().norm() / radius - 1) <= bound


REQUIRED: dict[str, dict[str, Any]] = {
    "wide_sums": {"accumulate": 2},
    "lookahead_alpha": {"lookahead": 2},
    "seed": {"round": "stochastic"},
}


@many("name", STEP_OPTIONS)
def test_options_of_mixed_hold_for_all_groups_or_raise(name: str) -> None:
    groups: list[dict[str, Any]] = [
        {"params": [new_param(dtype=torch.bfloat16)], "rule": rule, "lr": 0.01}
        for rule in ("AdamW", "Muon")
    ]
    options = {name: STEP_OPTIONS[name], **REQUIRED.get(name, {})}
    assert optim.Mixed(groups, **options).defaults[name] == STEP_OPTIONS[name]
    if name not in REQUIRED:
        with pytest.raises(InvalidArgumentError, match=f"'{name}' of group 0 .* constructor"):
            optim.Mixed([{**groups[0], name: STEP_OPTIONS[name]}, groups[1]])


PAIRS = runpy.run_path(str(Path(__file__).parents[2] / "tools" / "option_pairs.py"))
EXCEPTIONS = PAIRS["read_page"](OPTIONS_PAGE)


def is_listed(title: str, *options: str) -> bool:
    """Return whether the page lists a class with options as a combination that raises."""
    names = tuple("round" if option == "seed" else option for option in options)
    return EXCEPTIONS.lists(PAIRS["Case"](title, names))


ALL_CLASSES = [*KINDS, *(f"tensorflow.{name}" for name in tensorflow.__all__)]


@many("option", STEP_OPTIONS)
def test_all_classes_except_documented_ones_have_an_option(option: str) -> None:
    raising: set[str] = set()
    dtype = torch.bfloat16 if option == "weights" else torch.float32
    for title in ALL_CLASSES:
        cls = operator.attrgetter(title)(optim)
        arguments = {"lr": 0.1, **({"relative_step": False} if title == "AdafactorHF" else {})}
        try:
            cls(
                [new_param(dtype=dtype)],
                **arguments,
                **{option: STEP_OPTIONS[option], **REQUIRED.get(option, {})},
            )
        except (InvalidArgumentError, RuleError):
            raising.add(title)
    assert raising == {title for title in ALL_CLASSES if is_listed(title, option)}


def test_options_that_exclude_each_other_are_listed() -> None:
    """Compare the table of the page with the constructor of `AdamW`, for every pair of options."""
    pairs = list(itertools.combinations([name for name in STEP_OPTIONS if name not in REQUIRED], 2))
    raising: set[frozenset[str]] = set()
    for pair in pairs:
        options = {name: STEP_OPTIONS[name] for name in pair}
        try:
            optim.AdamW([new_param(dtype=torch.bfloat16)], lr=0.1, **options)
        except (InvalidArgumentError, RuleError):
            raising.add(frozenset(pair))
    assert raising == {frozenset(pair) for pair in pairs if is_listed("AdamW", *pair)}


def laprop_decay() -> None:
    param = torch.nn.Parameter(torch.ones(2))
    optimizer = optim.LaProp([param], lr=0.1, weight_decay=0.5)
    param.grad = torch.zeros(2)
    optimizer.step()
    torch.testing.assert_close(param.detach(), torch.full((2,), 0.95))


def mars_first_step() -> None:
    ends: list[list[Any]] = []
    for gamma in (0.0, 0.5):
        param = new_param((2, 3, 4))
        optimizer = optim.MARS([param], gamma=gamma)
        values: list[Any] = []
        for factor in (0.01, 0.02):
            param.grad = factor * new_param((2, 3, 4)).detach().roll(int(100 * factor))
            optimizer.step()
            values.append(param.detach().clone())
        ends.append(values)
    (first, second), (other_first, other_second) = ends
    assert torch.equal(first, other_first)
    assert not torch.equal(second, other_second)  # three dimensions take MARS's steps


def default_alpha() -> None:
    assert inspect.signature(optim.AdEMAMix).parameters["alpha"].default == 5.0


def default_clipping() -> None:
    assert inspect.signature(optim.ADOPT).parameters["clip_exp"].default == 0.25


@pytest.mark.parametrize(
    ("row", "check"),
    [
        ("| `ADOPT` | The default of `clip_exp` is 0.25. |", default_clipping),
        ("| `AdEMAMix` | The default of `alpha` is 5,", default_alpha),
        ("| `LaProp` | The decay is multiplied by the learning rate,", laprop_decay),
        ("| `MARS` | The first step uses the gradient without a correction,", mars_first_step),
        ("| `MARS` | Parameters with two or more dimensions take MARS's", mars_first_step),
    ],
    ids=lambda value: value if isinstance(value, str) else value.__name__,
)
def test_documented_differences_from_reference_code_hold(
    row: str, check: Callable[[], None]
) -> None:
    assert row in OPTIMIZERS_PAGE
    check()


def test_a_state_with_names_of_another_package_raises() -> None:
    param = new_param()
    optimizer = optim.Adan([param])
    param.grad = torch.ones_like(param)
    optimizer.step()
    state = optimizer.state_dict()
    state["state"][0]["neg_pre_grad"] = state["state"][0].pop("last_grad")
    with pytest.raises(CheckpointMismatchError, match="last_grad"):
        optim.Adan([new_param()]).load_state_dict(state)
