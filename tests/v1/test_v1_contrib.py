"""tf.contrib.opt, eagerly and in graphs, against the oracles of its rules written in NumPy."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from bit_comparison import assert_same
from oracle_arrays import Array, Gradient, as_gradient, starts
from test_contrib_rules import (
    adam,
    adamax,
    lars,
    lazy_adam,
    momentum,
    nesterov,
    nesterov_adam,
    summed,
    with_decay,
)
from thalweg import IndexedSlices, Variable, _graph
from thalweg.errors import InvalidArgumentError
from thalweg.v1 import train
from thalweg.v1.contrib import opt as contrib

STEPS = 5
RATES = [0.05, 0.05, 0.02, 0.1, 0.1]
SHAPES = {"w": (5, 7), "b": (9,), "table": (12, 3), "row": (8,)}
ROWS = ("table", "row")  # these have sparse gradients
EXTENDED = contrib.extend_with_decoupled_weight_decay(train.MomentumOptimizer)
BETAS = {"beta1": 0.8, "beta2": 0.95, "epsilon": 1e-4}
CASES: dict[str, tuple[Any, dict[str, Any], Any]] = {
    "LazyAdam": (contrib.LazyAdamOptimizer, BETAS, lazy_adam),
    "Nadam": (contrib.NadamOptimizer, BETAS, nesterov_adam),
    "AdaMax": (contrib.AdaMaxOptimizer, BETAS, adamax),
    "AdamW": (contrib.AdamWOptimizer, {"weight_decay": 0.03, **BETAS}, with_decay(adam)),
    "MomentumW": (
        contrib.MomentumWOptimizer,
        {"weight_decay": 0.03, "momentum": 0.7},
        with_decay(momentum),
    ),
    "NesterovW": (
        contrib.MomentumWOptimizer,
        {"weight_decay": 0.03, "momentum": 0.7, "use_nesterov": True},
        with_decay(nesterov),
    ),
    "Extended": (EXTENDED, {"weight_decay": 0.03, "momentum": 0.7}, with_decay(momentum)),
    "LARS": (
        contrib.LARSOptimizer,
        {"momentum": 0.7, "weight_decay": 0.03, "eeta": 0.01, "skip_list": ["b"]},
        lars(False),
    ),
    "NesterovLARS": (
        contrib.LARSOptimizer,
        {"momentum": 0.7, "weight_decay": 0.03, "eeta": 0.01, "skip_list": ["b"]}
        | {"use_nesterov": True},
        lars(True),
    ),
}
SLOTS = {name: ["m", "v"] for name in ("LazyAdam", "Nadam", "AdaMax", "AdamW")}
each_case = pytest.mark.parametrize("case", list(CASES))
each_dtype = pytest.mark.parametrize("dtype", [np.float32, np.float64], ids=["f32", "f64"])
each_engine = pytest.mark.parametrize("engine", ["reference", "cpu"])


def gradients(dtype: Any) -> Iterator[dict[str, Gradient]]:
    """The gradients of the steps; rows are named twice, and "b" has none in the second step."""
    rng = np.random.default_rng(6)
    for step in range(STEPS):
        grads: dict[str, Gradient] = {}
        for name, shape in SHAPES.items():
            if name in ROWS:
                values = rng.standard_normal((9, *shape[1:])).astype(dtype)
                grads[name] = values, rng.integers(0, shape[0], 9)
            elif name != "b" or step != 1:
                grads[name] = rng.standard_normal(shape).astype(dtype), None
        yield grads


def hypers(case: str, name: str, dtype: Any, rate: float) -> dict[str, Any]:
    """Return the hyperparameters of one variable's oracle; Python floats pass through float32."""
    kwargs = {key: value for key, value in CASES[case][1].items() if isinstance(value, float)}
    scalars = {key: dtype(np.float32(value)) for key, value in kwargs.items()}
    scalars["learning_rate"] = dtype(np.float32(rate))
    if "weight_decay" in kwargs:
        scalars["weight_decay"] = dtype(kwargs["weight_decay"])  # but not the decay
    if case.endswith("LARS") and name not in ROWS:
        scalars |= {key: dtype(value) for key, value in kwargs.items()} | {
            "learning_rate": dtype(rate)
        }
    return scalars


def ratio(h: dict[str, Any], x: Array, g: Array, dtype: Any) -> Any:
    norms = (dtype(np.sqrt(np.sum(np.square(a.astype(np.float64))))) for a in (x, g))
    var_norm, grad_norm = norms
    return h["eeta"] * var_norm / (grad_norm + h["weight_decay"] * var_norm + dtype(0))


def expected(case: str, dtype: Any, names: tuple[str, ...] = tuple(SHAPES)) -> Iterator[Any]:
    """Variables and slots after each step, as the oracle has them."""
    oracle = CASES[case][2]
    x, count = starts(SHAPES, dtype), 2 if case in SLOTS else 1
    slots = {name: [np.zeros_like(value) for _ in range(count)] for name, value in x.items()}
    powers = np.array([0.8, 0.95], np.float32)  # float32 beside float64 variables, too
    for rate, grads in zip(RATES, gradients(dtype), strict=True):
        for name, (values, indices) in grads.items():
            h = hypers(case, name, dtype, rate)
            h |= {"beta1_power": dtype(powers[0]), "beta2_power": dtype(powers[1])}
            if name not in names:
                h["weight_decay"] = dtype(0)
            if case.endswith("LARS"):
                h["trust_ratio"] = dtype(1)
                if name == "b":
                    h["weight_decay"] = dtype(0)
                elif indices is None:
                    h["trust_ratio"] = ratio(h, x[name], values, dtype)
            g, rows = (values, None) if indices is None else summed(values, indices)
            oracle(x[name], slots[name], g, rows, h)
        powers = powers * np.array([0.8, 0.95], np.float32)
        yield x, slots


def compare(case: str, got: Any, opt: Any, expected: Any, read: Any) -> None:
    x, slots = expected
    # For LARS, the oracle adds up the squares of a norm in another order; where the two terms of a
    # momentum cancel, what is left has the rounding of the terms, a unit of the largest element.
    tolerance = {np.dtype("f4"): 4e-7, np.dtype("f8"): 1e-14} if case.endswith("LARS") else {}
    for name, var in got.items():
        names = SLOTS.get(case, ["momentum"])
        entries = [(name, var, x[name])]
        entries += zip(names, [opt.get_slot(var, slot) for slot in names], slots[name], strict=True)
        for label, tensor, values in entries:
            got_values = np.asarray(read(tensor))
            assert got_values.dtype == values.dtype
            limit = tolerance.get(values.dtype, 0.0)
            unit = np.spacing(np.abs(values).max()) if limit else 0.0
            np.testing.assert_allclose(got_values, values, rtol=limit, atol=unit, err_msg=label)


@pytest.mark.one_in(3)
@each_engine
@each_dtype
@each_case
def test_steps_equal_the_oracle(case: str, dtype: Any, engine: str) -> None:
    cls, kwargs, _ = CASES[case]
    rates = iter(RATES)
    opt = cls(learning_rate=lambda: next(rates), **kwargs)
    opt.engine = engine
    variables = {name: Variable(value, name=name) for name, value in starts(SHAPES, dtype).items()}
    for targets, grads in zip(expected(case, dtype), gradients(dtype), strict=True):
        opt.apply_gradients(
            [(as_gradient(grads.get(name)), var) for name, var in variables.items()]
        )
        compare(case, variables, opt, targets, lambda var: var.numpy())


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    ("case", "dtype"),
    # LARS takes its numbers as they were written, and a float that is fed is a float32.
    [(case, np.float32) for case in CASES]
    + [(case, np.float64) for case in CASES if "LARS" not in case],
)
def test_graph_steps_equal_the_oracle(case: str, dtype: Any) -> None:
    cls, kwargs, _ = CASES[case]
    kind = torch.float64 if dtype is np.float64 else torch.float32
    with _graph.Graph().as_default(), _graph.Session() as session:
        rate = _graph.placeholder(torch.float32, ())
        variables = {
            name: _graph.Variable(value, name=name) for name, value in starts(SHAPES, dtype).items()
        }
        opt = cls(learning_rate=rate, **kwargs)
        feeds: dict[str, Any] = {}
        pairs = []
        for name, var in variables.items():
            values = _graph.placeholder(
                kind, (9, *SHAPES[name][1:]) if name in ROWS else SHAPES[name]
            )
            indices = _graph.placeholder(torch.int64, (9,))
            feeds[name] = values, indices
            slices = _graph.SymbolicSlices(values, indices)
            pairs.append((slices if name in ROWS else values, var))
        train_all = opt.apply_gradients(pairs)
        without_b = opt.apply_gradients([pair for pair in pairs if pair[1] is not variables["b"]])
        session.run(_graph.global_variables_initializer())
        steps = zip(RATES, expected(case, dtype), gradients(dtype), strict=True)
        for number, targets, grads in steps:
            feed: dict[Any, Any] = {rate: number}
            for name, (values, indices) in grads.items():
                feed[feeds[name][0]] = values
                if indices is not None:
                    feed[feeds[name][1]] = indices
            session.run(train_all if "b" in grads else without_b, feed)
            compare(case, variables, opt, targets, session.run)


@pytest.mark.parametrize("case", ["AdamW", "MomentumW", "NesterovW", "Extended"])
@each_dtype
def test_only_listed_variables_decay(case: str, dtype: Any) -> None:
    cls, kwargs, _ = CASES[case]
    rates = iter(RATES)
    opt = cls(learning_rate=lambda: next(rates), **kwargs)
    variables = {name: Variable(value, name=name) for name, value in starts(SHAPES, dtype).items()}
    decayed_names = ("w", "table")
    for targets, grads in zip(expected(case, dtype, decayed_names), gradients(dtype), strict=True):
        pairs = [(as_gradient(grads.get(name)), var) for name, var in variables.items()]
        opt.apply_gradients(pairs, decay_var_list=[variables[name] for name in decayed_names])
        compare(case, variables, opt, targets, lambda var: var.numpy())


DECAYING = {
    "AdamW": lambda decay: contrib.AdamWOptimizer(decay, 0.0),
    "MomentumW": lambda decay: contrib.MomentumWOptimizer(decay, 0.0, 0.9),
    "Extended": lambda decay: contrib.extend_with_decoupled_weight_decay(
        train.GradientDescentOptimizer
    )(decay, 0.0),
}
decaying = pytest.mark.parametrize("make", list(DECAYING.values()), ids=list(DECAYING))


@decaying
@pytest.mark.parametrize(("decayed_names", "second"), [(None, 0.5), ([], 0.5), (["a"], 1.0)])
def test_minimize_decays_only_listed_variables(
    make: Any, decayed_names: Any, second: float
) -> None:
    a, b = Variable([1.0], name="a"), Variable([1.0], name="b")
    opt = make(0.5)
    decay_vars = None if decayed_names is None else [a for _ in decayed_names]
    opt.minimize(lambda: (a * b).sum(), var_list=[a, b], decay_var_list=decay_vars)
    assert (a.item(), b.item()) == (0.5, second)
    opt.apply_gradients([(torch.ones(1), a), (torch.ones(1), b)])  # the list is not remembered
    assert (a.item(), b.item()) == (0.25, second / 2)


@decaying
def test_train_operations_have_separate_decay_lists(make: Any) -> None:
    with _graph.Graph().as_default(), _graph.Session() as session:
        a, b = _graph.Variable([1.0], name="a"), _graph.Variable([1.0], name="b")
        opt, loss = make(0.5), (a * b).sum()
        first = opt.minimize(loss, decay_var_list=[a])
        second = opt.minimize(loss, decay_var_list=[b])
        train_op = opt.minimize(loss)
        session.run(_graph.global_variables_initializer())
        session.run(first)
        assert [*session.run([a[0], b[0]])] == [0.5, 1.0]
        session.run(second)
        assert [*session.run([a[0], b[0]])] == [0.5, 0.5]
        session.run(train_op)
        assert [*session.run([a[0], b[0]])] == [0.25, 0.25]


@decaying
def test_weight_decay_may_be_a_callable(make: Any) -> None:
    decay, w = [0.5], Variable([1.0], name="w")
    opt = make(lambda: decay[0])
    for number, remaining in ((0.5, 0.5), (0.0, 0.5), (0.75, 0.125), (0.5, 0.0625)):
        decay[0] = number
        opt.apply_gradients([(torch.ones(1), w)])
        assert w.item() == remaining


@decaying
def test_a_step_that_fails_decays_nothing(make: Any) -> None:
    w, v = Variable([1.0], name="w"), Variable([1.0, 2.0], name="v")
    opt = make(0.5)
    with pytest.raises(InvalidArgumentError):
        opt.apply_gradients([(torch.ones(1), w), (torch.ones(3), v)])
    assert w.tolist() == [1.0]


def test_failing_hook_restores_decayed_variables() -> None:
    class Failing(train.Optimizer):
        def __init__(self) -> None:
            super().__init__(False, "Failing")

        def _apply_dense(self, grad: Any, var: Any) -> Any:
            raise RuntimeError("no")

    w = Variable([1.0], name="w")
    opt = contrib.extend_with_decoupled_weight_decay(Failing)(0.5)
    with pytest.raises(RuntimeError, match="no"):
        opt.apply_gradients([(torch.ones(1), w)])
    assert w.tolist() == [1.0]


@pytest.mark.parametrize("make", [DECAYING["AdamW"], DECAYING["Extended"]])
def test_a_variable_given_twice_decays_twice(make: Any) -> None:
    w = Variable([1.0], name="w")
    make(0.5).apply_gradients([(torch.ones(1), w), (torch.ones(1), w)])
    assert w.tolist() == [0.25]


@pytest.mark.parametrize("clone", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))])
@pytest.mark.parametrize("case", ["AdamW", "Extended", "LARS"])
def test_copies_take_the_same_steps(case: str, clone: Any) -> None:
    cls, kwargs, _ = CASES[case]
    w = Variable([1.0, 2.0], name="w")
    opt = cls(learning_rate=0.1, **kwargs)
    opt.apply_gradients([(torch.ones(2), w)])
    opt_copy, v = clone((opt, w))
    opt.apply_gradients([(torch.ones(2), w)])
    opt_copy.apply_gradients([(torch.ones(2), v)])
    assert_same([w], [v])


def test_default_names_equal_tensorflow() -> None:
    optimizers = [
        contrib.LazyAdamOptimizer(),
        contrib.NadamOptimizer(),
        contrib.AdaMaxOptimizer(),
        contrib.AdamWOptimizer(0.1),
        contrib.MomentumWOptimizer(0.1, 0.1, 0.9),
        contrib.LARSOptimizer(0.1),
    ]
    names = [opt.get_name() for opt in optimizers]
    assert names == ["Adam", "Adam", "AdaMax", "AdamW", "MomentumW", "LARSOptimizer"]


@pytest.mark.parametrize("name", ["momentum", "weight_decay"])
def test_lars_rejects_negative_arguments(name: str) -> None:
    options: dict[str, Any] = {name: -0.1}
    with pytest.raises(ValueError, match=f"{name} should be positive: -0.1"):
        contrib.LARSOptimizer(0.1, **options)


@pytest.mark.parametrize(("w", "g"), [([0.0, 0.0], [3.0, 4.0]), ([3.0, 4.0], [0.0, 0.0])])
def test_lars_has_the_ratio_1_where_a_norm_is_0(w: list[float], g: list[float]) -> None:
    var = Variable(w, name="w")
    contrib.LARSOptimizer(0.5, weight_decay=0.0).apply_gradients([(torch.tensor(g), var)])
    assert var.tolist() == [w[0] - 0.5 * g[0], w[1] - 0.5 * g[1]]


def test_lars_measures_a_variable_that_comes_twice_before_both_updates() -> None:
    w = Variable([3.0, 4.0], name="w")
    opt = contrib.LARSOptimizer(1.0, momentum=0.5, weight_decay=0.0, eeta=0.25)
    opt.apply_gradients([(torch.tensor(grad), w) for grad in ([30.0, 40.0], [0.0, 2.0])])
    first, second = 0.25 * 5.0 / 50.0, 0.25 * 5.0 / 2.0  # the norm of w is 5 for both
    velocity = [first * 30.0, first * 40.0]
    expected = [3.0 - velocity[0], 4.0 - velocity[1]]
    velocity = [0.5 * velocity[0], 0.5 * velocity[1] + second * 2.0]
    np.testing.assert_allclose(w.numpy(), np.subtract(expected, velocity), rtol=1e-6)


def averaged(values: list[float], decay: float) -> float:
    """The average that has followed these values of a variable, from the first."""
    average = np.float32(values[0])
    for value in values[1:]:
        average = average - (average - np.float32(value)) * (np.float32(1) - np.float32(decay))
    return float(average)


def test_averages_are_updated_after_steps() -> None:
    w, untouched = Variable(1.0, name="w"), Variable(1.0, name="u")
    opt = contrib.MovingAverageOptimizer(train.MomentumOptimizer(0.5, 0.0), average_decay=0.75)
    steps = [opt.apply_gradients([(1.0, w), (None, untouched)]) for _ in range(3)]
    assert steps == [None] * 3
    # The average starts at the value after the first step, where it is made.
    assert opt.average(w).item() == averaged([0.5, 0.5, 0.0, -0.5], 0.75)
    assert opt.average(w).name == "w/ExponentialMovingAverage:0"
    assert opt.average(untouched) is None
    assert opt.get_slot_names() == ["momentum"]
    assert opt.get_slot(w, "momentum").item() == 1.0
    assert opt.get_name() == "Momentum"


@pytest.mark.parametrize("sequential", [True, False])
def test_averages_are_updated_after_steps_in_a_graph(sequential: bool) -> None:
    with _graph.Graph().as_default(), _graph.Session() as session:
        w, step = _graph.Variable(1.0, name="w"), train.create_global_step()
        inner = train.GradientDescentOptimizer(0.5)
        opt = contrib.MovingAverageOptimizer(inner, 0.75, None, sequential)
        op = opt.minimize(w * 1.0, global_step=step)
        assert op.name == "train_with_avg"
        session.run(_graph.global_variables_initializer())
        for _ in range(3):
            session.run(op)
        assert session.run(w) == -0.5
        if sequential:
            assert session.run(opt.average(w)) == averaged([1.0, 0.5, 0.0, -0.5], 0.75)
        assert session.run(step) == 3


def test_averages_move_faster_at_the_start_by_the_count_of_steps() -> None:
    w, step = Variable(0.0, name="w"), Variable(np.int64(0), name="step", trainable=False)
    opt = contrib.MovingAverageOptimizer(train.GradientDescentOptimizer(1.0), 0.99, step)
    opt.apply_gradients([(-1.0, w)], global_step=step)
    opt.apply_gradients([(-1.0, w)], global_step=step)
    share = np.float32(1) - np.float32(3) / np.float32(12)  # two steps have been counted by now
    assert opt.average(w).item() == float(np.float32(1) - (np.float32(1) - np.float32(2)) * share)


def clipped(x: Array, dims: list[int], bound: float) -> Array:
    norm = np.sqrt(np.sum(x.astype(np.float64) ** 2, axis=tuple(dims), keepdims=True))
    return x - (x - x * x.dtype.type(bound) / np.maximum(norm.astype(x.dtype), x.dtype.type(bound)))


@each_dtype
@pytest.mark.parametrize("dims", [[0], [1], [0, 1], [-1], []])
@pytest.mark.parametrize("rows", [None, [4, 1, 4]], ids=["dense", "sparse"])
def test_variables_are_clipped_after_the_step(rows: Any, dims: list[int], dtype: Any) -> None:
    x = np.random.default_rng(1).standard_normal((6, 4)).astype(dtype)
    var = Variable(x, name="w")
    opt = contrib.VariableClippingOptimizer(train.GradientDescentOptimizer(1.0), {var: dims}, 0.7)
    values = np.zeros((6, 4) if rows is None else (3, 4), dtype)
    opt.apply_gradients([(as_gradient((values, None if rows is None else np.array(rows))), var)])
    expected, positive = x.copy(), [dim % 2 for dim in dims]
    rows_clipped = slice(None) if rows is None or 0 in positive else np.unique(rows)
    expected[rows_clipped] = clipped(x[rows_clipped], positive, 0.7)
    np.testing.assert_array_equal(var.numpy(), expected)


@pytest.mark.parametrize("rows", [None, [0, 0]], ids=["dense", "sparse"])
def test_variables_are_clipped_in_a_graph(rows: Any) -> None:
    with _graph.Graph().as_default(), _graph.Session() as session:
        w = _graph.Variable([[3.0, 4.0], [30.0, 40.0]], name="w")
        inner = train.AdamOptimizer(0.0)
        opt = contrib.VariableClippingOptimizer(inner, {w: [1]}, 2.5)
        dense = torch.ones(2, 2)
        op = opt.apply_gradients([(dense if rows is None else IndexedSlices(dense, rows), w)])
        assert op.name == "VariableClipping"
        session.run(_graph.global_variables_initializer())
        session.run(op)
        second = [1.5, 2.0] if rows is None else [30.0, 40.0]
        assert session.run(w).tolist() == [[1.5, 2.0], second]
        assert opt.get_slot_names() == ["m", "v"]


def test_only_listed_variables_are_clipped() -> None:
    a, b = Variable([[3.0, 4.0]], name="a"), Variable([[3.0, 4.0]], name="b")
    dims = {a: [1]}
    inner = train.GradientDescentOptimizer(1.0)
    opt = contrib.VariableClippingOptimizer(inner, dims, 2.5)
    dims[b] = [1]  # too late
    opt.minimize(lambda: 0.0 * (a + b).sum(), var_list=[a, b])
    assert (a.tolist(), b.tolist()) == ([[1.5, 2.0]], [[3.0, 4.0]])
    opt.apply_gradients([(None, a), (torch.zeros(1, 2), b)])
    assert a.tolist() == [[1.5, 2.0]]


def test_variables_are_clipped_whatever_finish_returns() -> None:
    class Returning(train.GradientDescentOptimizer):
        def _finish(self, update_ops: Any, name_scope: str) -> Any:
            return 7

    w = Variable([[3.0, 4.0]], name="w")
    opt = contrib.VariableClippingOptimizer(Returning(1.0), {w: [1]}, 2.5)
    opt.apply_gradients([(torch.zeros(1, 2), w)])
    assert w.tolist() == [[1.5, 2.0]]


def test_missing_dimension_raises_in_the_constructor() -> None:
    w = Variable([1.0], name="w")
    with pytest.raises(InvalidArgumentError, match="Cannot clip 'w' over dimension 1"):
        contrib.VariableClippingOptimizer(train.GradientDescentOptimizer(1.0), {w: [1]}, 1.0)


@pytest.mark.parametrize("bound", [float("nan"), -1.0])
def test_negative_clip_norm_raises(bound: float) -> None:
    with pytest.raises(ValueError, match="max_norm must be 0 or more"):
        contrib.VariableClippingOptimizer(
            train.GradientDescentOptimizer(0.1), {Variable([[1.0]]): [0]}, bound
        )


@pytest.mark.parametrize("clone", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))])
def test_copied_optimizer_clips_the_copied_variables(clone: Any) -> None:
    w = Variable([3.0, 4.0], name="w")
    inner = train.GradientDescentOptimizer(1.0)
    opt, v = clone((contrib.VariableClippingOptimizer(inner, {w: [0]}, 2.5), w))
    opt.apply_gradients([(torch.zeros(2), v)])
    assert v.tolist() == [1.5, 2.0]
