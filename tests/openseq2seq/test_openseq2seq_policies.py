"""OpenSeq2Seq's learning-rate policies: its recorded bits, in eager mode and in sessions."""

from __future__ import annotations

import copy
import re
from typing import Any

import numpy as np
import pytest
import torch

from golden_files import Case
from openseq2seq_goldens import assert_bits, by_case
from thalweg import Variable, _graph
from thalweg.errors import InvalidTypeError
from thalweg.openseq2seq.optimizers import lr_policies
from thalweg.v1 import train

RAISES = {kind.__name__: kind for kind in (ValueError, TypeError)}


def policy(case: Case, step: Any, **changes: Any) -> Any:
    if case["policy"] == "inv_poly_decay":
        changes["as_shipped"] = True
    return getattr(lr_policies, case["policy"])(step, **{**case["params"], **changes})


@by_case("lr/")
def test_rates_have_the_recorded_bits(case: Case) -> None:
    for step, expected in zip(case["steps"], case["expected"], strict=True):
        rate = policy(case, step)
        assert_bits(rate() if callable(rate) else rate, expected, f"step {step}")


@by_case("lr/")
def test_policy_reads_its_variable_at_each_call(case: Case) -> None:
    step = Variable(np.int64(0), name="global_step", trainable=False)
    rate = policy(case, step)
    for number, expected in zip(case["steps"], case["expected"], strict=True):
        step.assign(number)
        assert_bits(rate() if callable(rate) else rate, expected, f"step {number}")


@by_case("lr/")
def test_session_rates_have_the_recorded_bits(case: Case) -> None:
    with _graph.Graph().as_default(), _graph.Session() as session:
        step = train.get_or_create_global_step()
        rate = policy(case, step)
        session.run(_graph.global_variables_initializer())
        for number, expected in zip(case["steps"], case["expected"], strict=True):
            got = session.run(rate, {step: number}) if _graph.is_symbolic(rate) else rate
            assert_bits(got, expected, f"step {number}")


# TensorFlow 2.21 computed these values: the published functions of OpenSeq2Seq in sessions with the
# default configuration, whose graph optimizer rewrites powers, divisions and constants.
SESSION_VALUES: list[tuple[str, dict[str, Any], dict[int, float]]] = [
    (
        "transformer_policy",
        {"learning_rate": 0.3, "d_model": 1024, "warmup_steps": 400, "coefficient": 0.002},
        {2: 7.031250248701326e-09, 4: 1.171875130268063e-08, 6: 1.6406250580303094e-08},
    ),
    (
        "transformer_policy",
        {"learning_rate": 0.7, "d_model": 300, "warmup_steps": 25},
        {0: 0.0003233161405660212, 1: 0.0006466322811320424, 50: 0.005659164395183325},
    ),
    (
        "transformer_policy",
        {
            "learning_rate": 0.1,
            "d_model": 512,
            "warmup_steps": 4000,
            "max_lr": 0.001,
            "coefficient": 0.7,
        },
        {6: 8.55994812809513e-08, 10: 1.3451347058435204e-07, 13: 1.711989625619026e-07},
    ),
    (
        "inv_poly_decay",
        {"learning_rate": 0.1, "decay_steps": 180, "min_lr": 0.01, "power": 0.5},
        {3: 0.06142950803041458, 11: 0.03766217827796936, 20: 0.028867512941360474},
    ),
    (
        "inv_poly_decay",
        {"learning_rate": 0.001, "decay_steps": 77777, "min_lr": 0.0, "power": 0.5},
        {3: 1.6101428172987653e-06, 4: 1.3944251122666174e-06, 7: 1.0540866242081393e-06},
    ),
    (
        "inv_poly_decay",
        {"learning_rate": 0.02, "decay_steps": 1000, "min_lr": 1e-05, "power": 2.0},
        {7: 0.011724940501153469, 999: 1.0019581168307923e-05},
    ),
    (
        "inv_poly_decay",
        {"learning_rate": 0.02, "decay_steps": 1000, "min_lr": 1e-05, "power": 3.0},
        {7: 0.015824081376194954, 999: 1.0027670214185491e-05},
    ),
    (
        "poly_decay",
        {"learning_rate": 0.3, "decay_steps": 77777, "power": 3.0},
        {3: 0.2999653220176697, 12: 0.2998611629009247, 22: 0.29974547028541565},
    ),
    (
        "poly_decay",
        {
            "learning_rate": 0.1,
            "decay_steps": 77777,
            "power": 3.0,
            "min_lr": 0.01,
            "begin_decay_at": 30,
        },
        {37: 0.09997570514678955, 40: 0.09996528923511505, 48: 0.09993752092123032},
    ),
    (
        "poly_decay",
        {
            "learning_rate": 0.1,
            "decay_steps": 77777,
            "power": 3.0,
            "min_lr": 0.01,
            "warmup_steps": 20,
        },
        {37: 0.09987162798643112, 999: 0.09657635539770126},
    ),
    (
        "poly_decay",
        {"learning_rate": 0.1, "decay_steps": 77777, "power": 2.0, "warmup_steps": 20},
        {1159: 0.09704189002513885, 2234: 0.09433787316083908},
    ),
    (
        "poly_decay",
        {"learning_rate": 0.1, "decay_steps": 77777, "power": 0.5, "min_lr": 0.01},
        {752: 0.0995638519525528, 1425: 0.0991717129945755},
    ),
    (
        "poly_decay",
        {"learning_rate": 0.1, "decay_steps": 77777, "power": -1.0, "min_lr": 0.01},
        {2167: 0.10257941484451294, 2715: 0.10325530171394348},
    ),
    (
        "transformer_policy",
        {"learning_rate": 0.3, "d_model": 300, "warmup_steps": 25, "dtype": "float16"},
        {6: 0.0009708404541015625, 99: 0.00173187255859375},
    ),
    (
        "transformer_policy",
        {"learning_rate": 0.3, "d_model": 300, "warmup_steps": 25, "dtype": "float64"},
        {6: 0.0009699484522385713, 10: 0.0015242047106606119},
    ),
]


@pytest.mark.parametrize(("name", "params", "values"), SESSION_VALUES)
def test_policies_have_the_bits_of_default_sessions(
    name: str, params: dict[str, Any], values: dict[int, float]
) -> None:
    case: Case = {"policy": name, "params": params}
    for step, expected in values.items():
        assert policy(case, step)().item() == expected, f"step {step}"


@by_case("lr/exp", "lr/poly", "lr/cos", "lr/trans", "lr/inv")
def test_policies_return_float32_tensors(case: Case) -> None:
    rate = policy(case, 3)()
    assert (rate.dtype, rate.shape) == (torch.float32, ())
    with _graph.Graph().as_default():
        rate = policy(case, _graph.placeholder(torch.int64, ()))
    assert (rate.dtype, rate.shape) == (torch.float32, ())


@by_case("lr/exp", "lr/poly", "lr/cos", "lr/inv")
def test_a_float64_learning_rate_is_computed_in_float64(case: Case) -> None:
    wide = np.float64(case["params"]["learning_rate"])
    for step, expected in zip(case["steps"], case["expected"], strict=True):
        rate = policy(case, step, learning_rate=wide)()
        assert rate.dtype == torch.float64
        assert rate.item() == pytest.approx(expected, rel=2e-5, abs=1e-9)


@pytest.mark.parametrize("begin", [0, 4])
def test_inv_poly_decay_starts_at_begin_decay_at(begin: int) -> None:
    options = {"learning_rate": 0.1, "decay_steps": 20, "min_lr": 0.01, "power": 2.0}
    steps = (0, 3, 4, 5, 14, 20, 24, 30)
    rates = [lr_policies.inv_poly_decay(max(step - begin, 0), **options)() for step in steps]
    count = Variable(np.int64(0), name="global_step", trainable=False)
    rate = lr_policies.inv_poly_decay(count, **options, begin_decay_at=begin)
    for step, expected in zip(steps, rates, strict=True):
        count.assign(step)
        assert torch.equal(rate(), expected)
        if step == begin + 20:
            np.testing.assert_allclose(rate(), 0.01, rtol=1e-6)
    with _graph.Graph().as_default(), _graph.Session() as session:
        placeholder = _graph.placeholder(torch.int64, ())
        rate = lr_policies.inv_poly_decay(placeholder, **options, begin_decay_at=begin)
        for step, expected in zip(steps, rates, strict=True):
            assert_bits(session.run(rate, {placeholder: step}), expected, f"step {step}")


@pytest.mark.parametrize("dtype", ["float16", torch.float16, torch.float64, np.float32])
def test_the_transformers_policy_has_a_dtype(dtype: Any) -> None:
    rate = lr_policies.transformer_policy(99, 2.0, 512, 10, dtype=dtype)()
    assert str(rate.dtype).removeprefix("torch.") in str(dtype)
    assert rate.item() == pytest.approx(2.0 * 512**-0.5 * 0.1, rel=1e-3)


@pytest.mark.parametrize(("step", "expected"), [(0, np.nan), (1, 0.0)])
def test_zero_decay_steps_give_nan_at_step_0(step: int, expected: float) -> None:
    rate = lr_policies.exp_decay(step, 1.0, 0, 0.5, False)()
    np.testing.assert_equal(rate.item(), expected)


def test_fixed_lr_returns_its_argument() -> None:
    rate = lambda: 0.1  # noqa: E731
    assert lr_policies.fixed_lr(None, rate) is rate


@by_case("error/inv", "error/pw")
def test_invalid_params_raise_recorded_errors(case: Case) -> None:
    kwargs, expected = case["kwargs"], case["expected"]
    params = {
        name: tuple(value[1:]) if isinstance(value, list) and value[:1] == ["TUPLE"] else value
        for name, value in kwargs["params"].items()
    }
    step = Variable(np.int64(0), name="global_step", trainable=False)
    with pytest.raises(RAISES[expected["raises"]]) as excinfo:
        getattr(lr_policies, kwargs["policy"])(step, **params)
    assert all(word in str(excinfo.value) for word in expected["mentions"])


PIECES: dict[str, Any] = {"learning_rate": 0.1, "boundaries": [5], "decay_rates": [0.5]}
SLOPE: dict[str, Any] = {"learning_rate": 0.1, "decay_steps": 10}
FALL: dict[str, Any] = {**SLOPE, "decay_rate": 0.5, "use_staircase_decay": False}


@pytest.mark.parametrize(
    ("name", "params", "kind", "text"),
    [
        (
            "piecewise_constant",
            {**PIECES, "boundaries": [], "decay_rates": []},
            IndexError,
            "empty",
        ),
        ("piecewise_constant", {**PIECES, "steps_per_epoch": 2.5}, ValueError, "same dtype"),
        (
            "piecewise_constant",
            {**PIECES, "boundaries": [5, 2], "decay_rates": [0.5, 0.1]},
            ValueError,
            "ascending",
        ),
        ("exp_decay", {**FALL, "learning_rate": 1}, TypeError, "must be a float"),
        ("poly_decay", {**SLOPE, "learning_rate": 1}, TypeError, "must be a float"),
        ("cosine_decay", {**SLOPE, "learning_rate": "0.1"}, TypeError, "must be a float"),
        ("inv_poly_decay", {**SLOPE, "min_lr": 0.0, "power": -1.0}, ValueError, "power"),
        ("inv_poly_decay", {**SLOPE, "decay_steps": 0, "min_lr": 0.01}, ZeroDivisionError, "zero"),
        (
            "inv_poly_decay",
            {**SLOPE, "learning_rate": 0.0, "min_lr": 0.0},
            ZeroDivisionError,
            "zero",
        ),
        ("inv_poly_decay", {**SLOPE, "min_lr": 1e-8, "power": 1e-3}, OverflowError, "range"),
        ("inv_poly_decay", SLOPE, TypeError, "min_lr"),
        (
            "transformer_policy",
            {"learning_rate": 1.0, "d_model": 4, "warmup_steps": 2, "dtype": "int32"},
            InvalidTypeError,
            "float16, float32, float64, not int32",
        ),
    ],
)
def test_invalid_params_raise(name: str, params: dict[str, Any], kind: Any, text: str) -> None:
    step = Variable(np.int64(0), name="global_step", trainable=False)
    with pytest.raises(kind, match=re.escape(text)):
        getattr(lr_policies, name)(step, **params)


@pytest.mark.parametrize(
    ("name", "params"),
    [
        ("exp_decay", FALL),
        ("poly_decay", SLOPE),
        ("cosine_decay", SLOPE),
        ("inv_poly_decay", {**SLOPE, "min_lr": 0.01}),
        ("transformer_policy", {"learning_rate": 1.0, "d_model": 4, "warmup_steps": 2}),
        ("piecewise_constant", PIECES),
    ],
)
def test_a_global_step_is_required(name: str, params: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="global_step is required"):
        getattr(lr_policies, name)(None, **params)


def test_an_optimizer_follows_a_policy() -> None:
    w, step = Variable([0.0], name="w"), Variable(np.int64(0), name="step", trainable=False)
    rate = lr_policies.poly_decay(step, 1.0, 2)
    opt = train.GradientDescentOptimizer(rate)
    weights_seen = []
    for _ in range(3):
        opt.apply_gradients([(torch.ones(1), w)], global_step=step)
        weights_seen.append(w.item())
    assert weights_seen == [-1.0, -1.5, -1.5]


DERIVED_POLICIES: dict[str, Any] = {
    "0.5 * rate": lambda rate: 0.5 * rate,
    "rate * 0.5": lambda rate: rate * 0.5,
    "numpy * rate": lambda rate: np.float32(0.3) * rate,
    "1 - rate": lambda rate: 1 - rate,
    "rate + rate": lambda rate: rate + rate,
    "rate / 3": lambda rate: rate / 3,
    "2 / rate": lambda rate: 2 / rate,
    "rate ** 2": lambda rate: rate**2,
    "-rate": lambda rate: -rate,
    "minimum": lambda rate: torch.minimum(rate, torch.tensor(0.06)),
    "clamp": lambda rate: torch.clamp(rate * 2, min=0.15),
}


@pytest.mark.parametrize("name", DERIVED_POLICIES)
@pytest.mark.parametrize("decay", [lr_policies.poly_decay, train.polynomial_decay])
def test_a_policy_may_be_built_on_another(name: str, decay: Any) -> None:
    def policy(step: Any) -> Any:
        order = (step, 0.1) if decay is lr_policies.poly_decay else (0.1, step)
        return DERIVED_POLICIES[name](decay(*order, 10))

    step = Variable(np.int64(0), name="global_step", trainable=False)
    rate = policy(step)
    eager = {}
    for number in (0, 3, 7, 12):
        step.assign(number)
        eager[number] = rate()
    with _graph.Graph().as_default(), _graph.Session() as session:
        symbolic_step = train.get_or_create_global_step()
        symbolic = policy(symbolic_step)
        session.run(_graph.global_variables_initializer())
        for number, expected in eager.items():
            assert_bits(expected, session.run(symbolic, {symbolic_step: number}), f"step {number}")


@pytest.mark.parametrize(
    "use", [float, bool, lambda rate: max(rate, 0.1), lambda rate: rate < 0.1, lambda rate: rate[0]]
)
def test_eager_rate_is_not_a_number(use: Any) -> None:
    with pytest.raises(TypeError, match=r"poly_decay is no number in eager mode: .* called"):
        use(lr_policies.poly_decay(0, 0.1, 10))


def test_a_copy_of_an_optimizer_follows_the_same_step() -> None:
    step = Variable(np.int64(0), name="global_step", trainable=False)
    opt = copy.deepcopy(train.GradientDescentOptimizer(0.5 * lr_policies.poly_decay(step, 2.0, 10)))
    step.assign(5)
    w = Variable([1.0])
    opt.apply_gradients([(torch.ones(1), w)])
    assert w.item() == 0.5
