"""Device computations of a step, on tensors without values that claim to be on a device.

They refuse to be mixed with tensors of the host, and to tell a number.
"""

from __future__ import annotations

from collections.abc import Generator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch._subclasses import FakeTensorMode

from thalweg import Rule, rules
from thalweg._core import norms
from thalweg._core.device_scalars import device_columns, device_derived_scalars, expand_to_variables
from thalweg._core.gradient_stats import GradientStats
from thalweg._core.gradient_transforms import GradientTransforms
from thalweg._core.plan_cache import CachedPlan
from thalweg._core.step_scalars import processed
from thalweg._core.variable_reductions import per_variable
from thalweg._engines.engine_selection import Selection
from thalweg._engines.protocol import Columns, Reduction, StepRequest
from thalweg.optim.device_param_scalars import DeviceColumn
from thalweg.optim.global_norm import clip_factor
from thalweg.optim.param_scalars import STEP
from thalweg.optim.step_options import GradientReport, StepOptions, gradient_transforms
from thalweg.rules.torch import TORCH_RULES

COUNT = 3
GPU = torch.device("cuda", 0)
FLOAT32 = np.float32


@pytest.fixture(autouse=True)
def fake() -> Generator[None]:
    with FakeTensorMode():
        yield


def vector(dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.ones(COUNT, dtype=dtype, device=GPU)


def assert_there(values: Any, shape: tuple[int, ...] = (COUNT,)) -> None:
    assert isinstance(values, Tensor)
    assert (values.device, tuple(values.shape)) == (GPU, shape)


def label(value: Any) -> str:
    return str(getattr(value, "name", value))


def torchs_hypers(rule: Rule, rate: Any) -> dict[str, Any]:
    hypers: dict[str, Any] = {hyper.name: float(hyper.default) for hyper in rule.hypers}
    slots = {slot.name: vector(torch.float32) for slot in rule.scalar_slots}
    scalars = {**hypers, **slots, "t": vector() + 1, "is_first": False}
    return scalars | ({"learning_rate": rate} if "learning_rate" in hypers else {})


@pytest.mark.parametrize("rate", [0.1, "there"])
@pytest.mark.parametrize("rule", TORCH_RULES, ids=label)
def test_torch_rules_prepare_on_the_device(rule: Rule, rate: Any) -> None:
    scalars = torchs_hypers(rule, torch.full((), 0.1, device=GPU) if rate == "there" else rate)
    assert rule.prepare is not None
    expected = rule.prepare.__kwdefaults__ or {}
    names = rule.prepare.__code__.co_varnames[: rule.prepare.__code__.co_kwonlyargcount]
    prepared = rule.prepare(**{name: scalars.get(name, expected.get(name)) for name in names})
    for value in prepared.values():
        assert isinstance(value, float) or value.device == GPU
    moving = {name for name, value in prepared.items() if isinstance(value, Tensor)}
    assert bool(moving) == ("t" in names or (rate == "there" and "learning_rate" in names))


TENSORFLOW = [rules.ADAM, rules.AMSGRAD, rules.ADAMAX, rules.NADAM, rules.FTRL, rules.LAZY_ADAM]


@pytest.mark.parametrize("rate", [0.1, "there"])
@pytest.mark.parametrize("rule", TENSORFLOW, ids=label)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_tensorflow_rules_prepare_on_the_device(rule: Rule, rate: Any, dtype: Any) -> None:
    kind = torch.float32 if dtype is np.float32 else torch.float64
    values: dict[str, Any] = {hyper.name: dtype(hyper.default) for hyper in rule.hypers}
    if rate == "there":
        values["learning_rate"] = torch.full((), 0.1, dtype=kind, device=GPU)
    values["momentum_cache"] = vector(kind)
    derived = device_derived_scalars(rule, dict(values), dtype, vector(torch.int64) + 1, GPU)
    for name in (*rule.powers, "t"):
        assert_there(derived[name])
        assert derived[name].dtype == kind
    assert all(isinstance(scalar, Tensor | np.floating) for scalar in derived.values())
    # What the host knows stays there.
    assert derived["learning_rate"] is values["learning_rate"]


def test_device_counters_advance_on_the_device() -> None:
    was_applied = torch.ones((), dtype=torch.bool, device=GPU)
    for kind in (torch.float32, torch.int64):
        block = torch.zeros(COUNT, dtype=kind, device=GPU)
        for flag in (None, was_applied):
            assert_there(DeviceColumn(STEP, [], block).counting(flag)())
            moving: Any = DeviceColumn("eta", [], block).moving(vector(), flag)
            assert_there(moving.args[0])


def test_groups_have_device_scalar_columns() -> None:
    scalars = {
        "a": {"own": vector(), "one": torch.ones((), device=GPU), "either": 0.5, "both": 0.1},
        "b": {"own": vector(), "one": torch.ones((), device=GPU), "either": vector(), "both": 0.2},
    }
    variables = [torch.ones(2, device=GPU) for _ in range(COUNT)]
    columns = device_columns(
        ["a", "b", "b"], lambda dtype, key: scalars[str(key)], (FLOAT32,), variables, GPU
    )
    for name in ("own", "one", "either"):
        assert_there(columns.by_variable[name])
    np.testing.assert_array_equal(columns.by_variable["both"], [0.1, 0.2, 0.2])
    assert_there(expand_to_variables(["a"] * COUNT, {"a": 0.5}, GPU))


class Measured:
    """The reductions of a step whose sums stay on the device."""

    device = GPU

    def reduce(self, reduction: Reduction, columns: Columns) -> Any:
        assert reduction.kind == "sums"
        return torch.stack([vector() for _ in reduction.formulas], dim=-1)


@pytest.mark.parametrize(
    "options",
    [StepOptions(clip_grad_norm=0.5), StepOptions(clip_grad_norm=0.5, clip_grad_value=0.1)],
)
@pytest.mark.parametrize("is_torchs", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_unscaling_and_clipping_run_on_the_device(
    options: StepOptions, is_torchs: bool, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A tensor of a GPU that is not there cannot be indexed.
    monkeypatch.setattr(norms, "sum_in_order", Tensor.sum)
    report = GradientReport()
    variables = [torch.ones(2, dtype=dtype, device=GPU) for _ in range(COUNT)]
    scale = torch.ones((), device=GPU)
    transforms = gradient_transforms(options, scale, COUNT, report, is_torchs)
    columns = Columns({FLOAT32: {}, np.float64: {}}, {}, scale > 0)
    stats = GradientStats(transforms, Measured(), variables, columns)
    columns = processed(columns, stats, (FLOAT32,))
    stats.decision()
    assert_there(columns.by_variable["unscaling"])
    assert_there(columns.by_variable["clip_scale"])
    assert_there(columns.by_variable["clip_unit"])
    assert_there(report.grad_norm, ())
    assert columns.apply_flag is not None


def test_rules_share_a_norm_on_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(norms, "sum_in_order", Tensor.sum)
    options, scale, report = (
        StepOptions(clip_grad_norm=0.5),
        torch.ones((), device=GPU),
        GradientReport(),
    )
    variables = [torch.ones(2, device=GPU) for _ in range(COUNT)]
    transforms = gradient_transforms(options, scale, COUNT, report, is_torchs=True)
    request = StepRequest(rules.SGD, (), variables, variables, [], [""] * COUNT, Selection("cuda"))
    plan: Any = CachedPlan(request, Measured(), (), False)
    adapter: Any = SimpleNamespace(selection=Selection("cuda"), sharing=None)
    factor, _ = clip_factor([adapter], [([], None)], [(plan, True)], transforms)
    assert_there(factor.scale, ())
    assert_there(report.grad_norm, ())
    transforms = gradient_transforms(options, scale, COUNT, report, is_torchs=True, factor=factor)
    stats = GradientStats(transforms, Measured(), variables)
    stats.decision()
    assert not transforms.measured
    assert_there(stats.variable_scalars["clip_scale"])


@pytest.mark.parametrize("rule", [rules.NOVOGRAD, rules.LARS], ids=label)
def test_per_variable_scalars_stay_on_the_device(rule: Rule) -> None:
    variables = [torch.ones(2, device=GPU) for _ in range(COUNT)]
    slots = [[torch.zeros((), device=GPU) for _ in rule.scalar_slots] for _ in variables]
    hypers: dict[str, Any] = {hyper.name: FLOAT32(hyper.default) for hyper in rule.hypers}
    hypers |= {"fresh": FLOAT32(0.5), "share": FLOAT32(1)}
    was_applied = torch.ones((), dtype=torch.bool, device=GPU)
    by_variable = {"learning_rate": vector(torch.float32)}
    columns = Columns({FLOAT32: hypers}, by_variable, was_applied)
    request = StepRequest(rule, (), variables, variables, [], [""] * COUNT, Selection("cuda"))
    stats = GradientStats(GradientTransforms(), Measured(), variables, columns)
    results, calls = per_variable(request, slots, columns, stats)
    assert results.apply_flag is was_applied
    for name, column in results.by_variable.items():
        if name != "learning_rate":
            assert_there(column)
    for call in calls:
        call()
