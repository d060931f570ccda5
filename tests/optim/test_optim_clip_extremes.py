"""Clipping by a global norm for huge and tiny gradients: the step is exact up to rounding."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import thalweg
from rulebook import assert_same
from thalweg import optim
from thalweg._core.clip_factor import Norm, factor_of
from thalweg.optim import tensorflow
from thalweg.rules import ADAM

SHAPES = ((30, 4), (7,), (3, 5))
CLASSES: dict[str, Any] = {"torch": optim.SGD, "TensorFlow": tensorflow.SGD}
by_class = pytest.mark.parametrize("make", CLASSES.values(), ids=list(CLASSES))
# Dtype, largest element, limit: cases whose factor or norm is out of the dtype's range.
EXTREMES: list[tuple[torch.dtype, float, float]] = [
    (torch.float32, 9e36, 1.0),  # the largest in the range of float32's formula
    (torch.float32, 2e37, 1.0),
    (torch.float32, 3.4e38, 1.0),
    (torch.float32, 3.4e38, 1e-7),
    (torch.float32, 3.4e38, 1e10),
    (torch.float32, 1e20, 1e-30),
    (torch.float32, 3.0, 1e-40),
    (torch.float32, 1e-40, 1.0),
    (torch.float32, 1.0, 1e39),
    (torch.bfloat16, 3.3e38, 1.0),
    (torch.bfloat16, 1e38, 1e-3),
    (torch.float16, 6e4, 1e-3),
    (torch.float64, 1e160, 1.0),
    (torch.float64, 1.7e308, 1.0),
    (torch.float64, 1.7e308, 1e200),
    (torch.float64, 1.7e308, 1e-290),
    (torch.float64, 1e140, 1e-200),
    (torch.float64, 1e-310, 1.0),
    (torch.float64, 0.0, 0.0),
]
by_extreme = pytest.mark.parametrize(("dtype", "size", "limit"), EXTREMES)


def params_of(dtype: torch.dtype) -> list[torch.nn.Parameter]:
    return [torch.nn.Parameter(torch.zeros(shape, dtype=dtype)) for shape in SHAPES]


def gradients(dtype: torch.dtype, size: float) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    grads = [torch.rand(shape, generator=generator).double() - 0.5 for shape in SHAPES]
    for grad in grads:
        grad.view(-1)[:3] = torch.tensor([0.0, 1.0, -1.0])
    return [(grad * size).to(dtype) for grad in grads]


def clip(grads: list[Tensor], limit: float, is_torch: bool) -> list[Tensor]:
    """Return clipped gradients in float64, computed relative to their largest element."""
    wide = [grad.double() for grad in grads]
    peak = max(float(tensor.abs().max()) for tensor in wide) or 1.0
    small = [tensor / peak for tensor in wide]
    norm = float(sum((tensor * tensor).sum() for tensor in small) ** 0.5)
    norm += 1e-6 / peak if is_torch else 0.0
    if norm * peak <= limit or not norm:
        return wide
    return [tensor / norm * limit for tensor in small]


def step_of(make: Any, grads: list[Tensor], **options: Any) -> tuple[list[Tensor], Any]:
    """Return the negative parameters after a step of rate 1 from 0, and the step's report."""
    params = params_of(grads[0].dtype)
    opt = make(params, lr=1.0, **options)
    for param, grad in zip(params, grads, strict=True):
        param.grad = grad.clone()
    opt.step()
    return [-param.detach() for param in params], opt.last_step


def assert_quotient(actual: list[Tensor], expected: list[Tensor]) -> None:
    """Compare up to the rounding of factor and product, and to the smallest number."""
    for value, expected_value in zip(actual, expected, strict=True):
        limits = torch.finfo(value.dtype)
        torch.testing.assert_close(
            value.double(),
            expected_value,
            rtol=8 * limits.eps,
            atol=2 * limits.smallest_normal * limits.eps,
        )


@pytest.mark.one_in(3)
@by_class
@by_extreme
@pytest.mark.parametrize("engine", ["cpu", "reference"])
def test_clipped_step_equals_the_quotient(
    make: Any, dtype: torch.dtype, size: float, limit: float, engine: Any
) -> None:
    grads = gradients(dtype, size)
    expected = clip(grads, limit, make is optim.SGD)
    with thalweg.engine(engine, denormals="keep"):
        actual, _ = step_of(make, grads, clip_grad_norm=limit)
    assert_quotient(actual, expected)


@by_class
@by_extreme
def test_engines_agree_on_extreme_norms(
    make: Any, dtype: torch.dtype, size: float, limit: float
) -> None:
    grads, actual = gradients(dtype, size), []
    for engine in ("cpu", "reference"):
        with thalweg.engine(engine):
            actual.append(step_of(make, grads, clip_grad_norm=limit))
    assert_same(actual[0][0], actual[1][0])
    assert actual[0][1] == actual[1][1]


OPTIONS: dict[str, dict[str, Any]] = {
    "values": {"clip_grad_value": 3e38},
    "masters": {"masters": True},
    "an average": {"ema_decay": 0.5},
    "a type of slots": {"state_dtype": torch.float64},
    "flat": {"gradients": "flat"},
    "another device": {"state_device": "cpu"},
    "sums": {"accumulate": 2},
    "wide sums": {"accumulate": 2, "wide_sums": True},
    "a scaler": {"fused_unscale": True},
    "groups": {},
    "rows": {},
}


@pytest.mark.one_in(3)
@by_class
@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize(
    ("dtype", "size"),
    [
        (torch.float32, 1.6e38),
        (torch.bfloat16, 1.6e38),
        (torch.float16, 3e4),
        (torch.float64, 8e307),
    ],
)
def test_extremes_with_other_options(make: Any, name: str, dtype: torch.dtype, size: float) -> None:
    params, grads = params_of(dtype), gradients(dtype, size)
    split: Any = [{"params": params[:1]}, {"params": params[1:]}] if name == "groups" else params
    opt = make(split, lr=1.0, clip_grad_norm=1.0, **OPTIONS[name])
    rows = torch.arange(SHAPES[0][0] - 1, -1, -1) if name == "rows" else None
    calls = OPTIONS[name].get("accumulate", 1)
    expected = grads
    if name == "values" and dtype is torch.float64:
        expected = [grad.clamp(-3e38, 3e38) for grad in grads]
    for _ in range(calls):
        for param, grad in zip(params, grads, strict=True):
            param.grad = grad.clone()
        if rows is not None:
            params[0].grad = torch.sparse_coo_tensor(
                rows[None], grads[0][rows], params[0].shape, check_invariants=False
            )
        if name == "a scaler":
            opt.grad_scale = torch.tensor(0.75)
        opt.step()
    expected = [calls * grad.double() / (0.75 if name == "a scaler" else 1) for grad in expected]
    actual = [-param.detach() for param in params]
    assert_quotient(actual, clip(expected, 1.0, False))


MAKERS: dict[str, Any] = {
    **{
        f"torch's {name}": getattr(optim, name)
        for name in (
            "Adam", "AdamW", "SGD", "RMSprop", "Adagrad", "Adadelta", "Adamax", "NAdam", "RAdam",
            "ASGD", "Rprop",
        )
    },
    **{name: getattr(tensorflow, name) for name in tensorflow.__all__},
    "a rule": lambda p, **o: optim.RuleOptimizer(p, ADAM, **o),
}  # fmt: skip


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", MAKERS)
@pytest.mark.parametrize(("dtype", "size"), [(torch.float32, 3e38), (torch.float64, 1.5e308)])
def test_every_class_clips_gradients(name: str, dtype: torch.dtype, size: float) -> None:
    grads = gradients(dtype, size)
    clipped_grads = [grad.to(dtype) for grad in clip(grads, 1.0, False)]
    (actual, report), (expected, _) = (
        step_of(MAKERS[name], tensors, **options)
        for tensors, options in ((grads, {"clip_grad_norm": 1.0}), (clipped_grads, {}))
    )
    assert report.clip_factor < 1e-37
    for value, expected_value in zip(actual, expected, strict=True):
        torch.testing.assert_close(value, expected_value, rtol=1e-4, atol=1e-6)


def test_two_dtypes_have_one_norm() -> None:
    """Use norms beyond float32's factors, and beyond float64."""
    for size in (1e60, 1.5e308):
        params = [
            torch.nn.Parameter(torch.zeros(9, dtype=t)) for t in (torch.float32, torch.float64)
        ]
        opt = optim.SGD(params, lr=1.0, clip_grad_norm=1.0)
        params[0].grad = torch.full((9,), 3e38)
        params[1].grad = torch.full((9,), size, dtype=torch.float64)
        opt.step()
        assert_quotient([-params[1].detach()], [torch.full((9,), 1 / 3, dtype=torch.float64)])
        assert_quotient([-params[0].detach()], [params[0].grad.double() / size / 3])


def test_rules_share_a_norm_at_extremes() -> None:
    for dtype, size in ((torch.float32, 3e38), (torch.float64, 1.5e308)):
        grads, params = gradients(dtype, size), params_of(dtype)
        groups = [{"params": params[:1]}, {"params": params[1:], "momentum": 0.5}]
        opt = optim.SGD(groups, lr=1.0, clip_grad_norm=1.0)
        for _ in range(2):  # the second is like the first
            for param, grad in zip(params, grads, strict=True):
                param.data.zero_()
                param.grad = grad.clone()
            opt.state.clear()
            opt.step()
        assert_quotient([-param.detach() for param in params], clip(grads, 1.0, True))


@by_class
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("bad", [float("inf"), float("nan")])
@pytest.mark.parametrize("limit", [0.0, 1e-40, 1.0, 1e39])
def test_nonfinite_gradients_are_clipped_to_nan_or_zero(
    make: Any, dtype: torch.dtype, bad: float, limit: float
) -> None:
    """An infinite norm turns infinities into NaN, and other elements into 0 (TensorFlow: NaN)."""
    grads = gradients(dtype, 1.0)
    grads[1][2] = bad
    actual, info = step_of(make, grads, clip_grad_norm=limit)
    all_nan = make is tensorflow.SGD or bad != bad
    assert (info.grad_norm, actual[1].isnan()[2].item()) == (
        pytest.approx(bad, nan_ok=True),
        True,
    )
    assert all(bool(tensor.isnan().all()) for tensor in actual) is all_nan
    if not all_nan:
        assert not actual[0].any()
        assert int(actual[1].isnan().sum()) == 1


# Norm, limit, and the factor of float32's formula, by bits: torch's and TensorFlow's.
FACTORS = [
    (3.7, 1.0, "0x1.14c1b60000000p-2", "0x1.14c1ba0000000p-2"),
    (1e30, 0.3, "0x1.856c1a0000000p-102", "0x1.856c1a0000000p-102"),
    (0.2, 7.0, "0x1.0000000000000p+0", "0x1.0000000000000p+0"),
    (8e37, 1.0, "0x1.1039d40000000p-126", "0x1.1039d40000000p-126"),
]


@pytest.mark.parametrize(("norm", "limit", "torch_bits", "tensorflow_bits"), FACTORS)
def test_factor_has_the_bits_of_the_formula(
    norm: float, limit: float, torch_bits: str, tensorflow_bits: str
) -> None:
    for epsilon, expected in ((1e-6, torch_bits), (None, tensorflow_bits)):
        actual = factor_of(Norm(np.float64(norm)), limit, np.float32, epsilon, True)
        assert actual.scale.dtype == np.float32
        assert (float(actual.scale).hex(), actual.unit) == (expected, 1.0)
        device_factor = factor_of(
            Norm(torch.tensor(norm, dtype=torch.float64)), limit, np.float32, epsilon, True
        )
        assert float(device_factor.scale).hex() == expected


@pytest.mark.parametrize("epsilon", [1e-6, None])
@by_extreme
def test_device_factor_equals_host_factor(
    dtype: torch.dtype, size: float, limit: float, epsilon: float | None
) -> None:
    dtype_type = np.float64 if dtype is torch.float64 else np.float32
    host_norm = Norm(np.float64(size), 0)
    if dtype_type is np.float64 and size > 1e150:
        host_norm = Norm(np.float64(size * 2.0**-600), 600)
    exponent: Any = host_norm.exponent
    if dtype_type is np.float64:
        exponent = torch.tensor(float(exponent), dtype=torch.float64)
    device_norm = Norm(torch.tensor(host_norm.root, dtype=torch.float64), exponent)
    actual, expected = (
        factor_of(norm, limit, dtype_type, epsilon, False) for norm in (device_norm, host_norm)
    )
    assert (float(actual.scale), float(actual.unit)) == (
        float(expected.scale),
        float(expected.unit),
    )
