"""The rules of tf.contrib.opt against NumPy, written whole array by whole array as TensorFlow is.

The oracles gather and scatter rows, keep running products of the betas, and add repeated indices
first; the rules work element by element. Both must give the same bits.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from bit_comparison import assert_same
from rulebook import Engines
from thalweg import IndexedSlices, Rule
from thalweg._engines import Selection, apply_prepare
from thalweg._engines.protocol import StepRequest
from thalweg.rules import (
    ADAM_V1,
    ADAM_W,
    ADAMAX_V1,
    HEAVY_BALL,
    LARS,
    LAZY_ADAM,
    MOMENTUM_W,
    NESTEROV_ADAM,
    NESTEROV_BALL,
    NESTEROV_LARS,
    NESTEROV_W,
)
from thalweg.rules.lars import per_variable
from thalweg.rules.weight_decay import WEIGHT_DECAY

STEPS = 6
HYPERS = {
    "learning_rate": 0.05, "beta1": 0.8, "beta2": 0.95, "epsilon": 1e-4, "momentum": 0.7,
    "weight_decay": 0.03, "eeta": 0.01,
}  # fmt: skip
Array = np.ndarray[Any, Any]
Oracle = Callable[[Array, list[Array], Array, Any, dict[str, Any]], None]


def summed(values: Array, indices: Array) -> tuple[Array, Array]:
    """Each row once, with its values added in order of appearance."""
    rows = np.unique(indices)
    total = np.zeros((len(rows), *values.shape[1:]), values.dtype)
    for value, row in zip(values, indices, strict=True):
        total[np.searchsorted(rows, row)] += value
    return total, rows


# Each changes the variable `x` and its `slots` in place; `rows` is None for a dense gradient.


def _alpha(h: dict[str, Any]) -> Any:
    return h["learning_rate"] * np.sqrt(1 - h["beta2_power"]) / (1 - h["beta1_power"])


def _averages(slots: list[Array], g: Array, rows: Any, h: dict[str, Any]) -> None:
    for slot, beta, value in zip(slots, (h["beta1"], h["beta2"]), (g, g * g), strict=True):
        if rows is None:
            slot += (value - slot) * (1 - beta)
        else:
            slot *= beta
            slot[rows] += value * (1 - beta)


def adam(x: Array, slots: list[Array], g: Array, rows: Any, h: dict[str, Any]) -> None:
    _averages(slots, g, rows, h)
    x -= _alpha(h) * slots[0] / (np.sqrt(slots[1]) + h["epsilon"])


def lazy_adam(x: Array, slots: list[Array], g: Array, rows: Any, h: dict[str, Any]) -> None:
    if rows is None:
        return adam(x, slots, g, rows, h)
    m, v = (slot[rows] for slot in slots)
    m = h["beta1"] * m + (1 - h["beta1"]) * g
    v = h["beta2"] * v + (1 - h["beta2"]) * (g * g)
    slots[0][rows], slots[1][rows] = m, v
    x[rows] -= _alpha(h) * m / (np.sqrt(v) + h["epsilon"])
    return None


def nesterov_adam(x: Array, slots: list[Array], g: Array, rows: Any, h: dict[str, Any]) -> None:
    _averages(slots, g, rows, h)
    touched = slice(None) if rows is None else rows
    ahead = g * (1 - h["beta1"]) + h["beta1"] * slots[0][touched]
    x[touched] -= _alpha(h) * ahead / (np.sqrt(slots[1][touched]) + h["epsilon"])


def adamax(x: Array, slots: list[Array], g: Array, rows: Any, h: dict[str, Any]) -> None:
    touched, (m, v) = slice(None) if rows is None else rows, slots
    if rows is None:
        m += (g - m) * (1 - h["beta1"])
    else:
        m[rows] = m[rows] * h["beta1"] + g * (1 - h["beta1"])
    v[touched] = np.maximum(h["beta2"] * v[touched], np.abs(g))
    rate = h["learning_rate"] / (1 - h["beta1_power"])
    x[touched] -= rate * (m[touched] / (v[touched] + h["epsilon"]))


def momentum(x: Array, slots: list[Array], g: Array, rows: Any, h: dict[str, Any]) -> None:
    touched = slice(None) if rows is None else rows
    slots[0][touched] = slots[0][touched] * h["momentum"] + g
    x[touched] -= h["learning_rate"] * slots[0][touched]


def nesterov(x: Array, slots: list[Array], g: Array, rows: Any, h: dict[str, Any]) -> None:
    touched, rate, mu = slice(None) if rows is None else rows, h["learning_rate"], h["momentum"]
    slots[0][touched] = a = slots[0][touched] * mu + g
    x[touched] -= g * rate + (a * mu * rate if rows is None else rate * mu * a)


def with_decay(base: Oracle) -> Oracle:
    def step(x: Array, slots: list[Array], g: Array, rows: Any, h: dict[str, Any]) -> None:
        touched = slice(None) if rows is None else rows
        if h["weight_decay"]:
            x[touched] += -h["weight_decay"] * x[touched]
        base(x, slots, g, rows, h)

    return step


def lars(look_ahead: bool) -> Oracle:
    def step(x: Array, slots: list[Array], g: Array, rows: Any, h: dict[str, Any]) -> None:
        if rows is not None:
            return (nesterov if look_ahead else momentum)(x, slots, g, rows, h)
        if h["weight_decay"]:
            g = g + h["weight_decay"] * x
        g = g * (h["learning_rate"] * h["trust_ratio"])
        slots[0][:] = slots[0] * h["momentum"] + g
        x -= g + slots[0] * h["momentum"] if look_ahead else slots[0]
        return None

    return step


ORACLES: list[tuple[Rule, Oracle]] = [
    (ADAM_V1, adam),
    (LAZY_ADAM, lazy_adam),
    (NESTEROV_ADAM, nesterov_adam),
    (ADAMAX_V1, adamax),
    (ADAM_W, with_decay(adam)),
    (HEAVY_BALL, momentum),
    (NESTEROV_BALL, nesterov),
    (MOMENTUM_W, with_decay(momentum)),
    (NESTEROV_W, with_decay(nesterov)),
    (LARS, lars(False)),
    (NESTEROV_LARS, lars(True)),
]
each_rule = pytest.mark.parametrize(
    ("rule", "oracle"), ORACLES, ids=lambda x: getattr(x, "name", "")
)
each_engine = pytest.mark.parametrize("engine", ["reference", "cpu"])
each_dtype = pytest.mark.parametrize("dtype", [np.float32, np.float64], ids=["f32", "f64"])


def _rates(names: list[str], decay: dict[str, float]) -> dict[str, Array]:
    """Return scalars that differ by variable: the trust ratio and the decay."""
    ratios = np.linspace(0.25, 0.75, len(names))
    return {"trust_ratio": ratios, "weight_decay": np.array([decay[name] for name in names])}


def _take(rule: Rule, engines: Engines, engine: Any, names: list[str],
          x: dict[str, torch.Tensor], slots: dict[str, list[torch.Tensor]], grads: dict[str, Any],
          h: dict[str, Any], separate: dict[str, Array]) -> None:  # fmt: skip
    variables, slot_lists = [x[name] for name in names], [slots[name] for name in names]
    gradients, selection = [grads[name] for name in names], Selection(engine, "flush")
    request = StepRequest(rule, (), variables, gradients, slot_lists, names, selection)
    engines.take(
        request, lambda dtypes: {dtype: apply_prepare(rule, h) for dtype in dtypes}, separate
    )


@pytest.mark.one_in(3)
@each_engine
@each_dtype
@each_rule
def test_rule_equals_its_oracle(rule: Rule, oracle: Oracle, dtype: Any, engine: str) -> None:
    rng, shapes = np.random.default_rng(11), {"w": (5, 7), "b": (9,), "table": (12, 3), "row": (8,)}
    decay = {"w": 0.03, "b": 0.0, "table": 0.03, "row": 0.0}
    x = {name: rng.standard_normal(shape).astype(dtype) for name, shape in shapes.items()}
    slots = {n: [np.full(s, slot.initial, dtype) for slot in rule.slots] for n, s in shapes.items()}
    tensors = {name: torch.from_numpy(value.copy()) for name, value in x.items()}
    own_slots = {n: [torch.from_numpy(slot.copy()) for slot in row] for n, row in slots.items()}
    h = {name: dtype(value) for name, value in HYPERS.items()}
    h |= {"beta1_power": h["beta1"], "beta2_power": h["beta2"], "trust_ratio": dtype(1)}
    engines, names = Engines(), list(shapes)
    separate = _rates(names, decay)
    for _ in range(STEPS):
        grads: dict[str, Any] = {}
        for number, name in enumerate(names):
            scalars_of_var = {key: dtype(values[number]) for key, values in separate.items()}
            if name in ("w", "b"):
                g, rows = rng.standard_normal(shapes[name]).astype(dtype), None
                grads[name] = torch.from_numpy(g.copy())
            else:
                indices = rng.integers(0, shapes[name][0], 9)
                values = rng.standard_normal((9, *shapes[name][1:])).astype(dtype)
                grads[name] = IndexedSlices(torch.from_numpy(values), torch.from_numpy(indices))
                g, rows = summed(values, indices)
            oracle(x[name], slots[name], g, rows, {**h, **scalars_of_var})
        _take(rule, engines, engine, names, tensors, own_slots, grads, h, separate)
        h |= {"beta1_power": h["beta1_power"] * h["beta1"]}
        h |= {"beta2_power": h["beta2_power"] * h["beta2"]}
        for name in names:
            np.testing.assert_array_equal(tensors[name].numpy(), x[name], name, strict=True)
            for got, expected in zip(own_slots[name], slots[name], strict=True):
                np.testing.assert_array_equal(got.numpy(), expected, name, strict=True)


@each_engine
@pytest.mark.parametrize("value", [np.inf, -np.inf, -0.0])
def test_a_variable_left_out_of_the_decay_keeps_its_bits(value: float, engine: str) -> None:
    x = {"a": torch.tensor([value, 2.0]), "b": torch.tensor([1.0, 2.0])}
    grads = {name: torch.zeros(2) for name in x}
    separate = {"weight_decay": np.array([0.0, 0.5])}
    h = {"weight_decay": np.float32(0)}
    slots: dict[str, list[torch.Tensor]] = {"a": [], "b": []}
    _take(WEIGHT_DECAY, Engines(), engine, ["a", "b"], x, slots, grads, h, separate)
    assert x["a"].numpy().tobytes() == np.array([value, 2.0], np.float32).tobytes()
    assert x["b"].tolist() == [0.5, 1.0]


@each_engine
def test_weight_decay_before_another_rule_is_the_fused_rule(engine: str) -> None:
    rng = np.random.default_rng(3)
    start = rng.standard_normal((6, 4)).astype(np.float32)
    indices, values = torch.tensor([4, 1, 4]), torch.from_numpy(rng.standard_normal((3, 4))).float()
    grads = {"x": IndexedSlices(values, indices)}
    results = []
    for rules in ((MOMENTUM_W,), (WEIGHT_DECAY, HEAVY_BALL)):
        x, slot = {"x": torch.from_numpy(start.copy())}, torch.ones(6, 4)
        for rule in rules:
            slots = {"x": [slot] if rule.slots else []}
            h = {name: np.float32(value) for name, value in HYPERS.items()}
            _take(rule, Engines(), engine, ["x"], x, slots, grads, h, {})
        results.append((x["x"], slot))
    assert_same([results[0][0]], [results[1][0]])
    assert_same([results[0][1]], [results[1][1]])
    assert_same([results[0][0][[0, 2, 3, 5]]], [torch.from_numpy(start)[[0, 2, 3, 5]]])


@pytest.mark.parametrize(
    ("variable", "gradient", "ratio"),
    [
        (2.0, 3.0, 0.01 * 2.0 / (3.0 + 0.5 * 2.0 + 0.25)),
        (0.0, 3.0, 1.0),
        (2.0, 0.0, 1.0),
        (np.nan, 3.0, 1.0),
        (2.0, np.inf, 0.0),
    ],
)
def test_trust_ratio_equals_formula(variable: float, gradient: float, ratio: float) -> None:
    with np.errstate(all="ignore"):
        scalars = dict(zip(("eeta", "weight_decay", "epsilon"), map(np.float64, (0.01, 0.5, 0.25))))
        (got,) = per_variable(
            variable_squares=np.square([variable]),
            gradient_squares=np.square([gradient]),
            adaptive=np.float64(1),
            **scalars,
        )["trust_ratio"]
    assert got == ratio
    assert type(got) is np.float64
