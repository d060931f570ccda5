"""Clipping by a common norm at both ends of the numbers: the step is that of the quotient."""

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
FACES: dict[str, Any] = {"torch": optim.SGD, "TensorFlow": tensorflow.SGD}
FACE = pytest.mark.parametrize("make", FACES.values(), ids=list(FACES))
# Dtype, the largest element, the limit: of each, what a factor or norm of that dtype cannot hold.
ENDS: list[tuple[torch.dtype, float, float]] = [
    (torch.float32, 9e36, 1.0),  # the last that float32's formula holds
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
END = pytest.mark.parametrize(("dtype", "size", "limit"), ENDS)


def params_of(dtype: torch.dtype) -> list[torch.nn.Parameter]:
    return [torch.nn.Parameter(torch.zeros(shape, dtype=dtype)) for shape in SHAPES]


def gradients(dtype: torch.dtype, size: float) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    made = [torch.rand(shape, generator=generator).double() - 0.5 for shape in SHAPES]
    for each in made:
        each.view(-1)[:3] = torch.tensor([0.0, 1.0, -1.0])
    return [(each * size).to(dtype) for each in made]


def clipped(given: list[Tensor], limit: float, is_torchs: bool) -> list[Tensor]:
    """What they become, in float64; computed beside their largest element, which is 1."""
    wide = [each.double() for each in given]
    peak = max(float(each.abs().max()) for each in wide) or 1.0
    small = [each / peak for each in wide]
    norm = float(sum((each * each).sum() for each in small) ** 0.5)
    norm += 1e-6 / peak if is_torchs else 0.0
    if norm * peak <= limit or not norm:
        return wide
    return [each / norm * limit for each in small]


def moved(make: Any, given: list[Tensor], **options: Any) -> tuple[list[Tensor], Any]:
    """What a step of rate 1 takes from parameters of 0, and what is said of it."""
    params = params_of(given[0].dtype)
    made = make(params, lr=1.0, **options)
    for param, grad in zip(params, given, strict=True):
        param.grad = grad.clone()
    made.step()
    return [-param.detach() for param in params], made.last_step


def assert_quotient(found: list[Tensor], wanted: list[Tensor]) -> None:
    """Up to the roundings of factor and product, and to the smallest number."""
    for one, other in zip(found, wanted, strict=True):
        own = torch.finfo(one.dtype)
        torch.testing.assert_close(
            one.double(), other, rtol=8 * own.eps, atol=2 * own.smallest_normal * own.eps
        )


@FACE
@END
@pytest.mark.parametrize("engine", ["cpu", "reference"])
def test_a_step_is_that_of_the_quotient(
    make: Any, dtype: torch.dtype, size: float, limit: float, engine: Any
) -> None:
    given = gradients(dtype, size)
    wanted = clipped(given, limit, make is optim.SGD)
    with thalweg.engine(engine, denormals="keep"):
        found, _ = moved(make, given, clip_grad_norm=limit)
    assert_quotient(found, wanted)


@FACE
@END
def test_engines_agree_at_the_ends(
    make: Any, dtype: torch.dtype, size: float, limit: float
) -> None:
    given, found = gradients(dtype, size), []
    for engine in ("cpu", "reference"):
        with thalweg.engine(engine):
            found.append(moved(make, given, clip_grad_norm=limit))
    assert_same(found[0][0], found[1][0])
    assert found[0][1] == found[1][1]


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


@FACE
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
def test_beside_other_options(make: Any, name: str, dtype: torch.dtype, size: float) -> None:
    params, given = params_of(dtype), gradients(dtype, size)
    split: Any = [{"params": params[:1]}, {"params": params[1:]}] if name == "groups" else params
    made = make(split, lr=1.0, clip_grad_norm=1.0, **OPTIONS[name])
    rows = torch.arange(SHAPES[0][0] - 1, -1, -1) if name == "rows" else None
    calls = OPTIONS[name].get("accumulate", 1)
    wanted = given
    if name == "values" and dtype is torch.float64:
        wanted = [each.clamp(-3e38, 3e38) for each in given]
    for _ in range(calls):
        for param, grad in zip(params, given, strict=True):
            param.grad = grad.clone()
        if rows is not None:
            params[0].grad = torch.sparse_coo_tensor(
                rows[None], given[0][rows], params[0].shape, check_invariants=False
            )
        if name == "a scaler":
            made.grad_scale = torch.tensor(0.75)
        made.step()
    wanted = [calls * each.double() / (0.75 if name == "a scaler" else 1) for each in wanted]
    found = [-param.detach() for param in params]
    assert_quotient(found, clipped(wanted, 1.0, False))


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


@pytest.mark.parametrize("name", MAKERS)
@pytest.mark.parametrize(("dtype", "size"), [(torch.float32, 3e38), (torch.float64, 1.5e308)])
def test_every_class_takes_the_step_of_what_is_clipped(
    name: str, dtype: torch.dtype, size: float
) -> None:
    given = gradients(dtype, size)
    scaled = [each.to(dtype) for each in clipped(given, 1.0, False)]
    (found, said), (wanted, _) = (
        moved(MAKERS[name], each, **own)
        for each, own in ((given, {"clip_grad_norm": 1.0}), (scaled, {}))
    )
    assert said.clip_factor < 1e-37
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)


def test_two_dtypes_have_one_norm() -> None:
    """Beyond what a factor of float32 may be, and beyond float64."""
    for size in (1e60, 1.5e308):
        params = [
            torch.nn.Parameter(torch.zeros(9, dtype=t)) for t in (torch.float32, torch.float64)
        ]
        made = optim.SGD(params, lr=1.0, clip_grad_norm=1.0)
        params[0].grad = torch.full((9,), 3e38)
        params[1].grad = torch.full((9,), size, dtype=torch.float64)
        made.step()
        assert_quotient([-params[1].detach()], [torch.full((9,), 1 / 3, dtype=torch.float64)])
        assert_quotient([-params[0].detach()], [params[0].grad.double() / size / 3])


def test_rules_share_a_norm_at_the_ends() -> None:
    for dtype, size in ((torch.float32, 3e38), (torch.float64, 1.5e308)):
        given, params = gradients(dtype, size), params_of(dtype)
        groups = [{"params": params[:1]}, {"params": params[1:], "momentum": 0.5}]
        made = optim.SGD(groups, lr=1.0, clip_grad_norm=1.0)
        for _ in range(2):  # the second is like the first
            for param, grad in zip(params, given, strict=True):
                param.data.zero_()
                param.grad = grad.clone()
            made.state.clear()
            made.step()
        assert_quotient([-p.detach() for p in params], clipped(given, 1.0, True))


@FACE
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("bad", [float("inf"), float("nan")])
@pytest.mark.parametrize("limit", [0.0, 1e-40, 1.0, 1e39])
def test_what_is_not_finite_stays_what_it_was(
    make: Any, dtype: torch.dtype, bad: float, limit: float
) -> None:
    """An infinite norm makes NaN of infinities, and 0 of all else or NaN, as TensorFlow's does."""
    given = gradients(dtype, 1.0)
    given[1][2] = bad
    found, said = moved(make, given, clip_grad_norm=limit)
    all_nan = make is tensorflow.SGD or bad != bad
    assert (said.grad_norm, found[1].isnan()[2].item()) == (pytest.approx(bad, nan_ok=True), True)
    assert all(bool(each.isnan().all()) for each in found) is all_nan
    if not all_nan:
        assert not found[0].any()
        assert int(found[1].isnan().sum()) == 1


# Norm, limit, and the factor of float32's formula, by bits: torch's and TensorFlow's.
FACTORS = [
    (3.7, 1.0, "0x1.14c1b60000000p-2", "0x1.14c1ba0000000p-2"),
    (1e30, 0.3, "0x1.856c1a0000000p-102", "0x1.856c1a0000000p-102"),
    (0.2, 7.0, "0x1.0000000000000p+0", "0x1.0000000000000p+0"),
    (8e37, 1.0, "0x1.1039d40000000p-126", "0x1.1039d40000000p-126"),
]


@pytest.mark.parametrize(("norm", "limit", "torchs", "tensorflows"), FACTORS)
def test_between_the_ends_a_factor_has_the_bits_of_its_formula(
    norm: float, limit: float, torchs: str, tensorflows: str
) -> None:
    for epsilon, wanted in ((1e-6, torchs), (None, tensorflows)):
        found = factor_of(Norm(np.float64(norm)), limit, np.float32, epsilon, True)
        assert found.scale.dtype == np.float32
        assert (float(found.scale).hex(), found.unit) == (wanted, 1.0)
        there = factor_of(
            Norm(torch.tensor(norm, dtype=torch.float64)), limit, np.float32, epsilon, True
        )
        assert float(there.scale).hex() == wanted


@pytest.mark.parametrize("epsilon", [1e-6, None])
@END
def test_a_device_finds_the_factor_of_the_host(
    dtype: torch.dtype, size: float, limit: float, epsilon: float | None
) -> None:
    kind = np.float64 if dtype is torch.float64 else np.float32
    own = Norm(np.float64(size), 0)
    if kind is np.float64 and size > 1e150:
        own = Norm(np.float64(size * 2.0**-600), 600)
    exponent: Any = own.exponent
    if kind is np.float64:
        exponent = torch.tensor(float(exponent), dtype=torch.float64)
    there = Norm(torch.tensor(own.root, dtype=torch.float64), exponent)
    found, wanted = (factor_of(each, limit, kind, epsilon, False) for each in (there, own))
    assert (float(found.scale), float(found.unit)) == (float(wanted.scale), float(wanted.unit))
