"""What a step computes on a device, with tensors that claim to be on one and have no values.

They refuse to be mixed with tensors of the host, and to tell a number.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch._subclasses import FakeTensorMode

from thalweg import Rule, rules
from thalweg._core import norms
from thalweg._core.device_scalars import device_columns, device_derived_scalars, expand_to_variables
from thalweg._core.gradient_stats import known_of
from thalweg._core.gradient_transforms import GradientTransforms
from thalweg._core.step_scalars import processed
from thalweg._core.variable_reductions import per_variable
from thalweg._engines.engine_selection import Selection
from thalweg._engines.protocol import Columns, StepRequest
from thalweg.formula import Formula
from thalweg.optim.device_param_scalars import DeviceColumn
from thalweg.optim.global_norm import CommonNorm
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
    hypers: dict[str, Any] = {each.name: float(each.default) for each in rule.hypers}
    kept = {slot.name: vector(torch.float32) for slot in rule.scalar_slots}
    given = {**hypers, **kept, "t": vector() + 1, "is_first": False}
    return given | ({"learning_rate": rate} if "learning_rate" in hypers else {})


@pytest.mark.parametrize("rate", [0.1, "there"])
@pytest.mark.parametrize("rule", TORCH_RULES, ids=label)
def test_prepare_of_torch_s_rules(rule: Rule, rate: Any) -> None:
    given = torchs_hypers(rule, torch.full((), 0.1, device=GPU) if rate == "there" else rate)
    assert rule.prepare is not None
    wanted = rule.prepare.__kwdefaults__ or {}
    names = rule.prepare.__code__.co_varnames[: rule.prepare.__code__.co_kwonlyargcount]
    made = rule.prepare(**{name: given.get(name, wanted.get(name)) for name in names})
    for value in made.values():
        assert isinstance(value, float) or value.device == GPU
    moving = {name for name, value in made.items() if isinstance(value, Tensor)}
    assert bool(moving) == ("t" in names or (rate == "there" and "learning_rate" in names))


TENSORFLOW = [rules.ADAM, rules.AMSGRAD, rules.ADAMAX, rules.NADAM, rules.FTRL, rules.LAZY_ADAM]


@pytest.mark.parametrize("rate", [0.1, "there"])
@pytest.mark.parametrize("rule", TENSORFLOW, ids=label)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_scalars_of_tensorflow_s_rules(rule: Rule, rate: Any, dtype: Any) -> None:
    kind = torch.float32 if dtype is np.float32 else torch.float64
    values: dict[str, Any] = {each.name: dtype(each.default) for each in rule.hypers}
    if rate == "there":
        values["learning_rate"] = torch.full((), 0.1, dtype=kind, device=GPU)
    values["momentum_cache"] = vector(kind)
    found = device_derived_scalars(rule, dict(values), dtype, vector(torch.int64) + 1, GPU)
    for name in (*rule.powers, "t"):
        assert_there(found[name])
        assert found[name].dtype == kind
    assert all(isinstance(each, Tensor | np.floating) for each in found.values())
    # What the host knows stays there.
    assert found["learning_rate"] is values["learning_rate"]


def test_numbers_of_a_device_are_counted_there() -> None:
    taken = torch.ones((), dtype=torch.bool, device=GPU)
    for kind in (torch.float32, torch.int64):
        block = torch.zeros(COUNT, dtype=kind, device=GPU)
        for each in (None, taken):
            assert_there(DeviceColumn(STEP, [], block).counting(each)())
            moved: Any = DeviceColumn("eta", [], block).moving(vector(), each)
            assert_there(moved.args[0])


def test_columns_of_groups() -> None:
    made = {
        "a": {"own": vector(), "one": torch.ones((), device=GPU), "either": 0.5, "both": 0.1},
        "b": {"own": vector(), "one": torch.ones((), device=GPU), "either": vector(), "both": 0.2},
    }
    variables = [torch.ones(2, device=GPU) for _ in range(COUNT)]
    columns = device_columns(
        ["a", "b", "b"], lambda dtype, key: made[str(key)], (FLOAT32,), variables, GPU
    )
    for name in ("own", "one", "either"):
        assert_there(columns.separate[name])
    np.testing.assert_array_equal(columns.separate["both"], [0.1, 0.2, 0.2])
    assert_there(expand_to_variables(["a"] * COUNT, {"a": 0.5}, GPU))


class Measured:
    """The measures of a step whose sums stay on the device."""

    def compute_sums(self, formulas: tuple[Formula, ...], stages: Any, columns: Columns) -> Any:
        raise AssertionError("the device is asked")

    def sums_on_device(self, formulas: tuple[Formula, ...], stages: Any, columns: Columns) -> Any:
        return [vector() for _ in formulas]

    def max_abs(self) -> Any:
        raise AssertionError("the device is asked")


@pytest.mark.parametrize(
    "around",
    [StepOptions(clip_grad_norm=0.5), StepOptions(clip_grad_norm=0.5, clip_grad_value=0.1)],
)
@pytest.mark.parametrize("is_torchs", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_unscaling_and_clipping(
    around: StepOptions, is_torchs: bool, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A tensor of a GPU that is not there cannot be indexed.
    monkeypatch.setattr(norms, "sum_in_order", Tensor.sum)
    seen = GradientReport()
    variables = [torch.ones(2, dtype=dtype, device=GPU) for _ in range(COUNT)]
    scale = torch.ones((), device=GPU)
    how = gradient_transforms(around, scale, COUNT, seen, is_torchs)
    columns = Columns({FLOAT32: {}, np.float64: {}}, {}, scale > 0)
    known = known_of(how, Measured(), variables, columns)
    columns = processed(columns, known, (FLOAT32,))
    known.decision()
    assert_there(columns.separate["unscaling"])
    assert_there(columns.separate["clip_scale"])
    assert_there(columns.separate["clip_unit"])
    assert_there(seen.grad_norm, ())
    assert columns.apply_flag is not None


def test_a_norm_of_several_rules(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(norms, "sum_in_order", Tensor.sum)
    monkeypatch.setattr(CommonNorm, "_measure_anew", lambda *_: (Measured(), variables))
    around, scale, seen = (
        StepOptions(clip_grad_norm=0.5),
        torch.ones((), device=GPU),
        GradientReport(),
    )
    variables = [torch.ones(2, device=GPU) for _ in range(COUNT)]
    how = gradient_transforms(around, scale, COUNT, seen, is_torchs=True)
    factor = CommonNorm().clip_factor([], how, seen)
    assert_there(factor.scale, ())
    assert_there(seen.grad_norm, ())
    how = gradient_transforms(around, scale, COUNT, seen, is_torchs=True, factor=factor)
    known = known_of(how, Measured(), variables)
    known.decision()
    assert not how.measured
    assert_there(known.separate["clip_scale"])


@pytest.mark.parametrize("rule", [rules.NOVOGRAD, rules.LARS], ids=label)
def test_what_a_rule_makes_of_its_measures(rule: Rule) -> None:
    variables = [torch.ones(2, device=GPU) for _ in range(COUNT)]
    slots = [[torch.zeros((), device=GPU) for _ in rule.scalar_slots] for _ in variables]
    hypers: dict[str, Any] = {each.name: FLOAT32(each.default) for each in rule.hypers}
    hypers |= {"fresh": FLOAT32(0.5), "share": FLOAT32(1)}
    taken = torch.ones((), dtype=torch.bool, device=GPU)
    separate = {"learning_rate": vector(torch.float32)}
    columns = Columns({FLOAT32: hypers}, separate, taken)
    asked = StepRequest(rule, (), variables, variables, [], [""] * COUNT, Selection("cuda"))
    known = known_of(GradientTransforms(), Measured(), variables, columns)
    found, calls = per_variable(asked, slots, columns, known)
    assert found.apply_flag is taken
    for name, each in found.separate.items():
        if name != "learning_rate":
            assert_there(each)
    for call in calls:
        call()
