"""NovoGrad: recorded steps, and an oracle in NumPy for what was not recorded."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from bit_comparison import assert_same
from golden_files import Case
from openseq2seq_goldens import by_case, float32
from oracle_arrays import Array, Gradient, as_gradient, starts
from thalweg import IndexedSlices, Variable, _graph
from thalweg._core.plan_cache import PlanCaches
from thalweg.errors import InvalidArgumentError
from thalweg.openseq2seq.optimizers import lr_policies
from thalweg.openseq2seq.optimizers.novograd import NovoGrad

BOUND = 1.5  # ulp of a variable's largest element; TensorFlow adds up the squares in float32
AVERAGE = "grads_ema"
each_engine = pytest.mark.parametrize("engine", ["reference", "cpu"])
each_dtype = pytest.mark.parametrize("dtype", [np.float32, np.float64], ids=["f32", "f64"])


# Recorded numbers


@pytest.mark.one_in(3)
@each_engine
@by_case("traj/novograd/as_documented", *(f"traj/novograd/as_shipped_{n}" for n in "dbew"))
def test_steps_equal_the_recording(case: Case, engine: Any) -> None:
    config, rate = case["config"], case["config"]["lr_policy"]
    as_shipped = config["optimizer"] == "NovoGrad"
    learning_rate = getattr(lr_policies, rate["name"])(None, **rate["params"])
    opt = NovoGrad(learning_rate, **config["optimizer_params"], as_shipped=as_shipped)
    opt.engine = engine
    params = {var["name"]: Variable(float32(var["init"]), name=var["name"]) for var in case["vars"]}
    for step, record in zip(case["steps"], case["expected"], strict=True):
        opt.apply_gradients([(float32(step["coef"][name]), var) for name, var in params.items()])
        for name, var in params.items():
            expected = float32(record["vars"][name])
            unit = np.spacing(np.abs(expected).max())
            np.testing.assert_allclose(var.numpy(), expected, rtol=0, atol=BOUND * unit)


# The oracle

STEPS = 5
RATES = [0.05, 0.05, 0.02, 0.1, 0.1]
SHAPES = {"w": (5, 7), "b": (9,), "zero": (3,), "table": (12, 3)}
CONFIGS: dict[str, dict[str, Any]] = {
    "default": {},
    "decay": {"weight_decay": 0.03, "beta1": 0.8, "beta2": 0.5, "epsilon": 1e-3},
    "averaging": {"grad_averaging": True, "weight_decay": 0.03},
    "shipped": {"as_shipped": True, "weight_decay": 0.03},
}
each_config = pytest.mark.parametrize("config", list(CONFIGS))


def gradients(dtype: Any) -> Iterator[dict[str, Gradient]]:
    """Rows are named twice, "b" has no gradient in step 1, "zero" has one of 0 up to step 1."""
    rng = np.random.default_rng(6)
    for step in range(STEPS):
        grads: dict[str, Gradient] = {}
        for name, shape in SHAPES.items():
            if name == "table":
                rows = rng.integers(0, shape[0], 9)
                grads[name] = rng.standard_normal((9, *shape[1:])).astype(dtype), rows
            elif name != "b" or step != 1:
                value = rng.standard_normal(shape).astype(dtype)
                grads[name] = value * dtype(name != "zero" or step > 1), None
        yield grads


def expected(config: str, dtype: Any) -> Iterator[tuple[dict[str, Array], ...]]:
    """Variables, velocities and averages after each step, whole array by whole array."""
    hypers = {"beta1": 0.95, "beta2": 0.98, "epsilon": 1e-8, "weight_decay": 0.0, **CONFIGS[config]}
    beta1, beta2, epsilon, decay = (
        dtype(np.float32(hypers[name])) for name in ("beta1", "beta2", "epsilon", "weight_decay")
    )
    complement1, complement2 = (dtype(np.float32(1 - hypers[name])) for name in ("beta1", "beta2"))
    x = starts(SHAPES, dtype)
    velocity = {name: np.zeros_like(value) for name, value in x.items()}
    average = {name: dtype(0) for name in x}
    for rate, grads in zip(RATES, gradients(dtype), strict=True):
        for name, (values, indices) in grads.items():
            g = values
            if indices is not None:
                g = np.zeros_like(x[name])
                np.add.at(g, indices, values)
            square = dtype(np.sum(np.square(g.astype(np.float64))))
            v = square if average[name] == 0 else average[name] * beta2 + square * complement2
            if hypers.get("as_shipped"):
                v = square
            else:
                average[name] = v
            h = g * (dtype(1) / np.sqrt(v + epsilon))
            if decay > 0:
                h = h + decay * x[name]
            if hypers.get("grad_averaging"):
                h = h * complement1
            velocity[name] = velocity[name] * beta1 + h
            x[name] = x[name] - velocity[name] * dtype(np.float32(rate))
        yield x, velocity, average


def compare(params: dict[str, Any], opt: Any, expected: Any, read: Any) -> None:
    for name, var in params.items():
        tensors = (var, opt.get_slot(var, "momentum"), opt.get_slot(var, AVERAGE))
        for got, values in zip(tensors, (arrays[name] for arrays in expected), strict=True):
            array = np.asarray(read(got))
            assert array.dtype == values.dtype
            # The oracle adds up the squares in another order.
            limit = 4 * np.finfo(values.dtype).eps
            scale = float(np.abs(values).max())
            np.testing.assert_allclose(array, values, rtol=0, atol=limit * scale, err_msg=name)


@pytest.mark.one_in(3)
@each_engine
@each_dtype
@each_config
def test_steps_equal_the_oracle(config: str, dtype: Any, engine: Any) -> None:
    rates = iter(RATES)
    opt = NovoGrad(lambda: next(rates), **CONFIGS[config])
    opt.engine = engine
    params = {name: Variable(value, name=name) for name, value in starts(SHAPES, dtype).items()}
    for targets, grads in zip(expected(config, dtype), gradients(dtype), strict=True):
        opt.apply_gradients((as_gradient(grads.get(name)), var) for name, var in params.items())
        compare(params, opt, targets, lambda var: var.numpy())


@each_dtype
@each_config
def test_graph_steps_equal_the_oracle(config: str, dtype: Any) -> None:
    kind = torch.float64 if dtype is np.float64 else torch.float32
    with _graph.Graph().as_default(), _graph.Session() as session:
        rate = _graph.placeholder(torch.float32, ())
        params = {
            name: _graph.Variable(value, name=name) for name, value in starts(SHAPES, dtype).items()
        }
        opt = NovoGrad(rate, **CONFIGS[config])
        feeds = {
            name: (
                _graph.placeholder(kind, (9, 3) if name == "table" else SHAPES[name]),
                _graph.placeholder(torch.int64, (9,)),
            )
            for name in params
        }
        pairs = {
            name: _graph.SymbolicSlices(*feeds[name]) if name == "table" else feeds[name][0]
            for name in params
        }
        train_all = opt.apply_gradients([(pairs[name], var) for name, var in params.items()])
        without_b = opt.apply_gradients(
            [(pairs[name], var) for name, var in params.items() if name != "b"]
        )
        session.run(_graph.global_variables_initializer())
        for number, targets, grads in zip(
            RATES, expected(config, dtype), gradients(dtype), strict=True
        ):
            feed: dict[Any, Any] = {rate: number}
            for name, (values, indices) in grads.items():
                feed[feeds[name][0]] = values
                if indices is not None:
                    feed[feeds[name][1]] = indices
            session.run(train_all if "b" in grads else without_b, feed)
            compare(params, opt, targets, session.run)


# What the oracle does not tell


def dense(grad: IndexedSlices) -> torch.Tensor:
    return IndexedSlices(grad.values, grad.indices, (6, 2)).to_dense()


@each_engine
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_sparse_gradient_equals_the_dense_gradient(dtype: torch.dtype, engine: Any) -> None:
    start = torch.linspace(-1, 1, 12).reshape(6, 2).to(dtype)
    w, twin = Variable(start, name="one"), Variable(start, name="other")
    opt = NovoGrad(0.1, weight_decay=0.01, grad_averaging=True)
    opt.engine = engine
    for step in range(4):
        values = torch.tensor([[1.0, 2.0], [0.5, -1.0], [3.0, step]]).to(dtype)
        grad = IndexedSlices(values, torch.tensor([4, 1, 4]))
        opt.apply_gradients([(grad, w), (dense(grad), twin)])
        assert_same([w], [twin])
    assert_same([opt.get_slot(w, AVERAGE)], [opt.get_slot(twin, AVERAGE)])
    assert opt.get_slot(w, AVERAGE).dtype == torch.float32


@pytest.mark.parametrize(("as_shipped", "averages"), [(False, [25.0, 20.0, 25.0]), (True, [0] * 3)])
def test_the_average_is_kept_unless_as_shipped(as_shipped: bool, averages: list[float]) -> None:
    w = Variable([0.0, 0.0], name="w")
    opt = NovoGrad(0.1, beta2=0.8, as_shipped=as_shipped)
    averages_seen = []
    for grad in ([3.0, 4.0], [0.0, 0.0], [3.0, 6.0]):
        opt.apply_gradients([(grad, w)])
        averages_seen.append(opt.get_slot(w, AVERAGE).item())
    assert averages_seen == pytest.approx(averages)


def test_gradients_of_zero_do_not_move_a_variable() -> None:
    w = Variable([1.0, 2.0], name="w")
    NovoGrad(0.1).apply_gradients([(torch.zeros(2), w)])
    assert w.tolist() == [1.0, 2.0]


def test_slots_have_names_and_shapes() -> None:
    w = Variable([[1.0, 2.0]], name="w")
    opt = NovoGrad(0.1)
    opt.apply_gradients([(torch.ones(1, 2), w)])
    assert opt.get_slot_names() == [AVERAGE, "momentum"]
    assert [var.name for var in opt.variables()] == ["w/NovoGrad:0", "w/NovoGrad/grads_ema:0"]
    assert opt.get_slot(w, AVERAGE).shape == ()
    assert opt.get_name() == "NovoGrad"


@each_engine
def test_a_variable_given_twice_is_stepped_twice(engine: Any) -> None:
    w, twin = Variable([1.0, 2.0], name="w"), Variable([1.0, 2.0], name="w")
    first, second = NovoGrad(0.1), NovoGrad(0.1)
    first.engine = second.engine = engine
    grads = [torch.tensor([3.0, 4.0]), torch.tensor([1.0, 0.0])]
    first.apply_gradients([(grad, w) for grad in grads])
    for grad in grads:
        second.apply_gradients([(grad, twin)])
    assert_same([w], [twin])
    assert_same([first.get_slot(w, AVERAGE)], [second.get_slot(twin, AVERAGE)])


def test_a_step_that_fails_changes_nothing() -> None:
    w, v = Variable([1.0], name="w"), Variable([1.0, 2.0], name="v")
    opt = NovoGrad(0.5)
    opt.apply_gradients([(torch.ones(1), w), (torch.ones(2), v)])
    tensors_before = [var.clone() for var in (w, v, *opt.variables())]
    with pytest.raises(InvalidArgumentError):
        opt.apply_gradients([(torch.ones(1), w), (torch.ones(3), v)])
    tensors_after = [w, v, *opt.variables()]
    assert all(torch.equal(a, b) for a, b in zip(tensors_after, tensors_before, strict=True))


def test_failing_hook_restores_the_average() -> None:
    class Failing(NovoGrad):
        def _resource_apply_dense(self, grad: Any, handle: Any) -> Any:
            super()._resource_apply_dense(grad, handle)
            if handle.numel() == 2:
                raise RuntimeError("no")

    w, v = Variable([1.0], name="w"), Variable([1.0, 2.0], name="v")
    opt = Failing(0.5)
    with pytest.raises(RuntimeError, match="no"):
        opt.apply_gradients([(torch.ones(1), w), (torch.ones(2), v)])
    assert w.tolist() == [1.0]
    assert opt.get_slot(w, AVERAGE) == 0


def test_repeated_steps_equal_a_new_plan() -> None:
    start = torch.linspace(-1, 1, 50)
    w, twin = Variable(start, name="one"), Variable(start, name="other")
    reused, fresh = NovoGrad(0.1), NovoGrad(0.1)
    for step in range(4):
        grad = torch.sin(torch.arange(50.0) + step)
        reused.apply_gradients([(grad, w)])
        fresh._plans = PlanCaches()
        fresh.apply_gradients([(grad, twin)])
        assert torch.equal(w, twin)


@pytest.mark.parametrize("clone", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))])
def test_copies_take_the_same_steps(clone: Any) -> None:
    w = Variable([1.0, 2.0], name="w")
    opt = NovoGrad(0.1)
    opt.apply_gradients([(torch.tensor([3.0, 4.0]), w)])
    opt_copy, v = clone((opt, w))
    for optimizer, var in ((opt, w), (opt_copy, v)):
        optimizer.apply_gradients([(torch.tensor([1.0, 4.0]), var)])
    assert_same([w], [v])
    assert_same([opt.get_slot(w, AVERAGE)], [opt_copy.get_slot(v, AVERAGE)])


def test_minimize_with_each_gate_gives_the_same_numbers() -> None:
    results = []
    for gate in (NovoGrad.GATE_NONE, NovoGrad.GATE_OP, NovoGrad.GATE_GRAPH):
        a, b = Variable([1.0, 2.0], name="a"), Variable([3.0], name="b")
        opt = NovoGrad(0.1)
        for _ in range(3):
            opt.minimize(lambda a=a, b=b: (a * a).sum() * b.sum(), gate_gradients=gate)
        results.append((a.tolist(), b.tolist()))
    assert results[0] == results[1] == results[2]
