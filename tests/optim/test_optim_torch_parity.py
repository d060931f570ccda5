"""Parity with `torch.optim`: its test inputs, its loop over tensors, a bound for each rule."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

import thalweg
from rulebook import assert_same, slow_unless
from thalweg import optim
from thalweg.optim import tensorflow
from torch_inputs import INPUTS, ROWS, Input, params_of, set_grads, shapes_of

STEPS = 8
# For parameters and for slots, in units in the last place: at the largest magnitude that an element
# of a parameter, or any element of a slot, had so far. Torch rounds a product and a sum together,
# and its square root is one such unit off for some numbers; decay that nearly cancels a gradient,
# and a square that nearly cancels another in a variance, make more of that.
BOUNDS = {
    "ASGD": (3, 3), "Adadelta": (3, 80), "Adagrad": (3, 3), "Adam": (3, 3), "AdamW": (3, 3),
    "Adamax": (4, 3), "NAdam": (3, 3), "RAdam": (3, 3), "RMSprop": (16, 4), "Rprop": (0, 0),
    "SGD": (3, 3), "SparseAdam": (3, 3), "Adafactor": (8, 8),
}  # fmt: skip


def _flat(optimizer: Any) -> Iterator[tuple[str, Any]]:
    """Return all tensors that a step writes, by name."""
    params = [param for group in optimizer.param_groups for param in group["params"]]
    for index, param in enumerate(params):
        yield f"{index}", param.detach()
        for key, value in optimizer.state.get(param, {}).items():
            yield f"{index}.{key}", value


class Judge:
    """Comparison of two optimizers, step by step."""

    def __init__(self, name: str) -> None:
        self.bounds = BOUNDS[name]
        self.max_abs: dict[str, torch.Tensor] = {}

    def compare(self, opt: Any, torch_opt: Any) -> None:
        actual, expected = dict(_flat(opt)), dict(_flat(torch_opt))
        assert list(actual) == list(expected)
        for name, value in expected.items():
            if not isinstance(value, torch.Tensor):
                assert actual[name] == value, name
                continue
            assert actual[name].dtype == value.dtype, name
            assert actual[name].stride() == value.stride(), name
            is_slot = not name.isdigit()
            size = value.abs().max() if is_slot and value.numel() else value.abs()
            peak = self.max_abs[name] = torch.maximum(self.max_abs.get(name, size), size)
            unit = torch.finfo(value.dtype).eps * peak
            bad = (actual[name] - value).abs() > self.bounds[is_slot] * unit
            assert not bad.any(), f"{name}: {actual[name][bad][:3]} {value[bad][:3]}"


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    ("case", "dtype"),
    [
        slow_unless(dtype in (torch.float32, torch.complex64), case, dtype)
        for case in INPUTS
        for dtype in (torch.float32, torch.float64, torch.complex64, torch.complex128)
        if case.name != "SparseAdam" and not (case.name == "Adafactor" and dtype.is_complex)
    ],
    ids=lambda value: str(value).removeprefix("torch."),
)
def test_steps_equal_torch(case: Input, dtype: torch.dtype) -> None:
    judge = Judge(case.name)
    opt = case.make(optim, params_of(dtype, shapes_of(case.name)))
    torchs = case.make(torch.optim, params_of(dtype, shapes_of(case.name)))
    for step in range(STEPS):
        for stepped in (opt, torchs):
            set_grads([param for group in stepped.param_groups for param in group["params"]], step)
            stepped.step()
        judge.compare(opt, torchs)


def _rows(case: Input, engine: str) -> list[torch.Tensor]:
    params = params_of(torch.float32, ROWS)
    opt = case.make(optim, params)
    with thalweg.engine(engine):
        for step in range(STEPS):
            set_grads(params, step, sparse=True)
            opt.step()
    return [value for _, value in _flat(opt) if isinstance(value, torch.Tensor)]


SPARSE = [
    case for case in INPUTS
    if case.name in ("SparseAdam", "SGD", "Adagrad")
    and not case.arguments.get("weight_decay") and not case.arguments.get("momentum")
]  # fmt: skip


@pytest.mark.filterwarnings("ignore:Sparse invariant checks")  # torch's own sparse tensors
@pytest.mark.parametrize("case", SPARSE, ids=str)
def test_sparse_steps_equal_torch(case: Input) -> None:
    judge = Judge(case.name)
    opts = []
    for module in (optim, torch.optim):
        opts.append(case.make(module, params_of(torch.float32, ROWS)))
    for step in range(STEPS):
        for stepped in opts:
            set_grads(stepped.param_groups[0]["params"], step, sparse=True)
            stepped.step()
        judge.compare(*opts)


@pytest.mark.parametrize("case", SPARSE, ids=str)
def test_engines_agree_on_rows(case: Input) -> None:
    assert_same(_rows(case, "cpu"), _rows(case, "reference"))


@pytest.mark.one_in(3)
@pytest.mark.parametrize("case", [case for case in INPUTS if case.name != "SparseAdam"], ids=str)
def test_engines_agree_on_torch_rules(case: Input) -> None:
    results = []
    for engine in ("auto", "reference"):
        opt = case.make(optim, params_of(torch.float32))
        with thalweg.engine(engine):
            for step in range(3):
                set_grads(opt.param_groups[0]["params"], step)
                opt.step()
        results.append([value for _, value in _flat(opt)])
    assert_same(*results)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("case", "dtype"),
    [
        (case, dtype)
        for case in INPUTS
        for dtype in (torch.bfloat16, torch.float16)
        # A float16 step of Adafactor is torch's own.
        if case.name != "SparseAdam" and (case.name, dtype) != ("Adafactor", torch.float16)
    ],
    ids=str,
)
def test_narrow_dtypes_compute_in_float32_and_round_once(case: Input, dtype: torch.dtype) -> None:
    params = params_of(dtype, shapes_of(case.name))
    opt = case.make(optim, params)
    for step in range(STEPS):
        wide = [param.detach().float().requires_grad_() for param in params]
        torchs = case.make(torch.optim, wide)
        torchs.load_state_dict(opt.state_dict())
        torchs.state = {
            param: {
                key: value.clone() if isinstance(value, torch.Tensor) else value
                for key, value in state.items()
            }
            for param, state in torchs.state.items()
        } or torchs.state
        set_grads(params, step)
        for param, wide_param in zip(params, wide, strict=True):
            assert param.grad is not None
            wide_param.grad = param.grad.float()
        opt.step()
        torchs.step()
        for (name, got), (_, expected) in zip(_flat(opt), _flat(torchs), strict=True):
            target = expected.to(got.dtype).double()
            unit = torch.finfo(got.dtype).eps * torch.maximum(got.abs(), target.abs()).double()
            unit += torch.finfo(got.dtype).smallest_normal * torch.finfo(got.dtype).eps
            assert ((got.double() - target).abs() <= unit).all(), (name, step)


@pytest.mark.parametrize("name", [name for name in BOUNDS if name != "SparseAdam"])
def test_nonfinite_values_spread_as_in_torch(name: str) -> None:
    extremes = torch.tensor(
        [1.0, float("nan"), float("inf"), -float("inf"), 0.0, 1e30, 1e-40, -2.0]
    )
    pairs = [
        (getattr(module, name), torch.nn.Parameter(torch.ones(8)))
        for module in (optim, torch.optim)
    ]
    opts = [make([param], **({"foreach": False})) for make, param in pairs]
    for gradient in (torch.ones(8), extremes, -torch.ones(8), torch.ones(8)):
        for (_, param), opt in zip(pairs, opts, strict=True):
            param.grad = gradient.clone()
            opt.step()
        for (key, got), (_, expected) in zip(_flat(opts[0]), _flat(opts[1]), strict=True):
            assert_same([got.isnan()], [expected.isnan()], f"{key}")
            assert_same([got.isinf()], [expected.isinf()], f"{key}")


TENSORS: list[tuple[str, str, Any]] = [
    ("RMSprop", "momentum", torch.tensor(0.5)),
    ("NAdam", "betas", (torch.tensor(0.5), torch.tensor(0.75))),
    ("NAdam", "momentum_decay", torch.tensor(0.25)),
]


@pytest.mark.parametrize(("name", "option", "value"), TENSORS)
def test_options_may_be_tensors(name: str, option: str, value: Any) -> None:
    results: list[list[torch.Tensor]] = []
    for module in (torch.optim, optim):
        params = params_of(torch.float32)
        optimizer = getattr(module, name)(params, lr=0.125)
        optimizer.param_groups[0][option] = value
        for step in range(4):
            set_grads(params, step)
            optimizer.step()
        results.append([param.detach() for param in params])
    for got, expected in zip(*results, strict=True):
        torch.testing.assert_close(got, expected)


@pytest.mark.parametrize(
    ("option", "value", "text"),
    [
        ("eps", torch.ones(2), r"eps must be a (number|scalar), not"),
        ("lr", 10**400, "lr is too large: an integer of 1329 bits"),
        ("betas", 0.9, "betas must be a pair of numbers, not 0.9"),
        ("betas", (0.9, 0.9, 0.9), r"betas must be a pair of numbers, not \(0.9"),
    ],
)
@pytest.mark.parametrize("home", [optim, tensorflow])
def test_non_numeric_option_raises_with_its_name(
    home: Any, option: str, value: Any, text: str
) -> None:
    params = params_of(torch.float32)
    optimizer = home.Adam(params)
    previous = [param.detach().clone() for param in params]
    optimizer.param_groups[0][option] = value
    set_grads(params, 0)
    with pytest.raises((TypeError, ValueError), match=text):
        optimizer.step()
    assert_same([param.detach() for param in params], previous)


@pytest.mark.parametrize("etas", [(1.0, 1.2), (0.5, 1.0), (1.0, 1.0), (0.5, 0.5)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_rprop_accepts_contradictory_group_factors_as_torch(
    etas: tuple[float, float], dtype: torch.dtype
) -> None:
    """Groups may have contradictory factors that the constructor rejects."""
    opts = [
        make(params_of(dtype, shapes_of("Rprop")), lr=0.1)
        for make in (optim.Rprop, torch.optim.Rprop)
    ]
    for step in range(STEPS):
        for opt in opts:
            opt.param_groups[0]["etas"] = etas
            set_grads(opt.param_groups[0]["params"], step)
            opt.step()
        Judge("Rprop").compare(*opts)
