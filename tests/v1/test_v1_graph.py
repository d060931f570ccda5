"""The base class of v1 optimizers in graph mode: arguments, order, state, errors."""

from __future__ import annotations

import copy
import threading
from typing import Any

import numpy as np
import pytest
import torch

import thalweg
from sessions import initialized
from thalweg import v1 as tf
from thalweg._engines import dispatcher as engine
from thalweg._engines.cpu import sparse
from thalweg.v1 import train

NO_GATE, OP, GRAPH = (getattr(train.Optimizer, f"GATE_{gate}") for gate in ("NONE", "OP", "GRAPH"))


pytestmark = pytest.mark.usefixtures("graph")


def descent(rate: Any = 1.0) -> Any:
    return train.GradientDescentOptimizer(rate)


OPTIMIZERS: dict[str, Any] = {
    "GradientDescent": descent,
    "Momentum": lambda rate=0.1: train.MomentumOptimizer(rate, 0.9),
    "Nesterov": lambda rate=0.1: train.MomentumOptimizer(rate, 0.9, use_nesterov=True),
    "Adagrad": lambda rate=0.1: train.AdagradOptimizer(rate),
    "Adadelta": lambda rate=0.1: train.AdadeltaOptimizer(rate),
    "Adam": lambda rate=0.1: train.AdamOptimizer(rate),
    "Ftrl": lambda rate=0.1: train.FtrlOptimizer(rate),
    "RMSProp": lambda rate=0.1: train.RMSPropOptimizer(rate, momentum=0.5, centered=True),
    "ProximalAdagrad": lambda rate=0.1: train.ProximalAdagradOptimizer(rate),
    "ProximalGradientDescent": lambda rate=0.1: train.ProximalGradientDescentOptimizer(rate),
}
each_optimizer = pytest.mark.parametrize("kind", list(OPTIMIZERS))


# --- minimize and compute_gradients ---------------------------------------------------------------


def test_minimize_gives_an_operation_that_takes_a_step() -> None:
    w = tf.Variable([1.0, 2.0])
    step = train.get_or_create_global_step()
    op = descent(0.5).minimize((w * w).sum(), global_step=step)
    session = initialized()
    assert isinstance(op, tf.Operation)
    assert session.run(w).tolist() == [1.0, 2.0]  # nothing was computed when it was built
    assert session.run(op) is None
    assert session.run(w).tolist() == [0.0, 0.0]
    assert session.run(step) == 1


def test_compute_gradients_gives_a_pair_for_each_variable() -> None:
    a, b, unused = tf.Variable(2.0), tf.Variable(3.0), tf.Variable(1.0)
    pairs = descent().compute_gradients(a * a * b, [b, unused, a])
    assert [var for _, var in pairs] == [b, unused, a]
    assert pairs[1][0] is None
    assert initialized().run([pairs[0][0], pairs[2][0]]) == [4.0, 12.0]


def test_gradients_may_be_changed_on_the_way() -> None:
    w = tf.Variable([3.0, 4.0])
    opt = descent()
    pairs = [(grad / torch.linalg.norm(grad), var) for grad, var in opt.compute_gradients(5 * w)]
    op = opt.apply_gradients(pairs)
    session = initialized()
    session.run(op)
    np.testing.assert_allclose(session.run(w), np.array([3, 4], np.float32) - 0.5**0.5, rtol=1e-6)


def test_a_loss_of_rows_gives_slices() -> None:
    table = tf.Variable(np.zeros((4, 2), np.float32))
    loss = tf.embedding_lookup(table, torch.tensor([1, 3, 1])).sum()
    ((grad, _),) = pairs = descent().compute_gradients(loss)
    assert isinstance(grad, tf.SymbolicSlices)
    op = descent().apply_gradients(pairs)
    session = initialized()
    session.run(op)
    assert session.run(table)[:, 0].tolist() == [0.0, -2.0, 0.0, -1.0]


@each_optimizer
@pytest.mark.parametrize("gate", [NO_GATE, OP])
def test_gates_do_not_change_the_values(kind: str, gate: int) -> None:
    results = []
    for gate_used in (gate, GRAPH):
        a, b = tf.Variable([1.0, -2.0]), tf.Variable([0.5, 3.0])
        op = OPTIMIZERS[kind]().minimize(
            (a * b).tanh().sum(), var_list=[a, b], gate_gradients=gate_used
        )
        session = initialized()
        for _ in range(3):
            session.run(op)
        results.append(session.run([a, b]))
    np.testing.assert_array_equal(*results)


@pytest.mark.parametrize("weights", ["array", "placeholder"])
def test_grad_loss_weighs_the_elements(weights: str) -> None:
    w = tf.Variable([1.0, 1.0])
    placeholder = tf.placeholder("float32", [2])
    weight = placeholder if weights == "placeholder" else np.array([1, 10], np.float32)
    op = descent().minimize(2 * w, grad_loss=weight)
    session = initialized()
    session.run(op, {placeholder: [1, 10]} if weights == "placeholder" else None)
    assert session.run(w).tolist() == [-1.0, -19.0]


def test_a_callable_loss_is_called_when_the_graph_is_built() -> None:
    w = tf.Variable([1.0, 2.0])
    calls = []

    def loss() -> Any:
        calls.append(1)
        return (w * w).sum()

    op = descent(0.25).minimize(loss)
    session = initialized()
    for _ in range(2):
        session.run(op)
    assert (session.run(w).tolist(), len(calls)) == ([0.25, 0.5], 1)


@pytest.mark.parametrize("form", ["default", "nested", "bare", "generator", "collection"])
def test_minimize_accepts_lists_of_variables(form: str) -> None:
    a, b = tf.Variable(1.0, name="a"), tf.Variable(1.0, name="b")
    tf.Variable(1.0, name="fixed", trainable=False)
    var_list, expected = {
        "default": (None, [a, b]),
        "nested": ([[b], (a,)], [b, a]),
        "bare": (b, [b]),
        "generator": ((var for var in (b, a)), [b, a]),
        "collection": (tf.get_collection(tf.GraphKeys.TRAINABLE_VARIABLES, "b"), [b]),
    }[form]
    assert [var for _, var in descent().compute_gradients(a * b, var_list)] == expected


def test_the_parameters_of_a_module_are_variables() -> None:
    layer = torch.nn.Linear(2, 1)
    with torch.no_grad():
        layer.weight.fill_(1)
    loss = layer(tf.placeholder_with_default(np.array([[1, 2]], np.float32), [1, 2])).sum()
    op = descent().minimize(loss, var_list=[layer.weight])
    session = initialized()
    session.run(op)
    assert session.run(layer.weight).tolist() == [[0.0, -1.0]]
    assert layer.weight.tolist() == [[1.0, 1.0]]  # the session has a value of its own


def test_gradients_of_tensors_can_be_computed() -> None:
    w = tf.Variable(3.0)
    middle = w * w
    ((grad, tensor),) = pairs = descent().compute_gradients(middle * 2, [middle])
    assert tensor is middle
    assert initialized().run(grad) == 2.0
    with pytest.raises(NotImplementedError, match="Trying to update a Tensor"):
        descent().apply_gradients(pairs)


def _no_variables() -> Any:
    return descent().minimize(tf.constant(1.0))


def _bad_gate() -> Any:
    return descent().minimize(1.0 * tf.Variable(1.0), gate_gradients=7)


def _integer_loss() -> Any:
    return descent().minimize(tf.Variable(np.int64(1), name="w") * 2)


def _integer_weights() -> Any:
    w = tf.Variable([1.0])
    return descent().minimize(w, grad_loss=tf.constant(np.array([1], np.int64), name="c"))


def _complex_variable() -> Any:
    w = tf.Variable(np.complex64(1), name="w")
    return descent().minimize(w.real)


def _no_gradient() -> Any:
    w = tf.Variable(1.0, name="w")
    return descent().minimize(tf.constant(1.0), var_list=[w])


def _all_none() -> Any:
    return descent().apply_gradients([(None, tf.Variable(1.0, name="w"))])


def _row_constraint() -> Any:
    table = tf.Variable(np.ones((3, 2), np.float32), name="t", constraint=torch.relu)
    return descent().minimize(tf.embedding_lookup(table, [1]).sum())


def _malformed_gradient() -> Any:
    return descent().apply_gradients([("x", tf.Variable(1.0, name="w"))])


def _two() -> Any:
    return tf.Variable([1.0, 2.0], name="w")


def _other_graph() -> Any:
    with tf.Graph().as_default():
        variable = tf.Variable(1.0)
    return descent().apply_gradients([(tf.constant(1.0), variable)])


@pytest.mark.parametrize(
    ("build", "error", "message"),
    [
        (_no_variables, ValueError, r"^No variables to optimize\.$"),
        (
            _bad_gate,
            ValueError,
            "^gate_gradients must be one of: Optimizer.GATE_NONE, Optimizer.GATE_OP,"
            " Optimizer.GATE_GRAPH. Not 7$",
        ),
        (
            _integer_loss,
            ValueError,
            r"^Invalid type torch.int64 for mul:0, expected: \[float32, float64, float16,"
            r" bfloat16\]\.$",
        ),
        (_integer_weights, ValueError, "^Invalid type torch.int64 for c:0"),
        (_complex_variable, ValueError, "^Invalid type torch.complex64 for w:0"),
        (
            _no_gradient,
            ValueError,
            r"^No gradients provided for any variable, check your graph for ops that do not support"
            r" gradients, between variables \['w:0'\] and loss .*Const",
        ),
        (_all_none, ValueError, r"^No gradients provided for any variable: \['w:0'\]\.$"),
        (lambda: descent().apply_gradients([]), ValueError, r"^No variables provided\.$"),
        (
            _row_constraint,
            RuntimeError,
            "^Cannot use a constraint function on a sparse variable: 't:0'",
        ),
        (
            lambda: descent().minimize(1.0 * tf.Variable(1.0), var_list=["w"]),
            TypeError,
            "^var_list must hold variables, not 'w'",
        ),
        (
            lambda: descent().minimize(1.0 * tf.Variable(1.0), var_list=[torch.ones(1)]),
            TypeError,
            "not a variable of the graph",
        ),
        (_malformed_gradient, TypeError, "^Gradient must be convertible to a Tensor"),
        (
            lambda: descent().apply_gradients([(1.0, torch.ones(()))]),
            NotImplementedError,
            "^Trying to update a Tensor",
        ),
        (_other_graph, ValueError, "from another graph"),
        (
            lambda: descent().apply_gradients([(tf.placeholder("float64", [2]), _two())]),
            TypeError,
            r"^Gradient of 'w:0' is float64 but the variable is float32\. Cast the gradient\.$",
        ),
        (
            lambda: descent().apply_gradients([(tf.placeholder("float32", [None, 3]), _two())]),
            ValueError,
            r"^Gradient of 'w:0' has shape \(None, 3\) but the variable has shape \(2,\)\.$",
        ),
        (lambda: descent().apply_gradients(5), TypeError, "iterable"),
    ],
)
def test_invalid_graph_steps_raise_when_built(build: Any, error: Any, message: str) -> None:
    with pytest.raises(error, match=message):
        build()
    assert not tf.get_collection(tf.GraphKeys.TRAIN_OP)


@pytest.mark.parametrize(
    ("fed_x", "error", "message"),
    [
        (np.ones(3, np.float32), ValueError, r"Gradient of 'w:0' has shape \(3,\)"),
        (np.ones(2), TypeError, "Gradient of 'w:0' is float64"),
    ],
)
def test_mismatched_gradient_in_a_run_changes_nothing(fed_x: Any, error: Any, message: str) -> None:
    w = tf.Variable([1.0, 2.0], name="w")
    step = train.get_or_create_global_step()
    placeholder = tf.placeholder(fed_x.dtype.name, None)
    grad = tf.operation(lambda x: x, [placeholder], "grad", kind="pure", outputs=tf.Output())
    opt = train.AdamOptimizer()
    op = opt.apply_gradients([(grad, w)], global_step=step)
    session = initialized()
    with pytest.raises(error, match=message) as info:
        session.run(op, {placeholder: fed_x})
    assert any("In operation 'Adam'" in note for note in info.value.__notes__)
    assert session.run([step, *opt.variables()])[0] == 0
    assert session.run(w).tolist() == [1.0, 2.0]
    assert not any(session.run(opt.get_slot(w, name)).any() for name in ("m", "v"))


# --- apply_gradients ------------------------------------------------------------------------------


def test_variables_without_a_gradient_get_no_slots() -> None:
    a, b = tf.Variable([1.0]), tf.Variable([1.0])
    opt = train.MomentumOptimizer(1.0, 0.9)
    op = opt.apply_gradients([(None, a), (torch.ones(1), b)])
    session = initialized()
    session.run(op)
    assert session.run([a, b])[1].tolist() == [0.0]
    assert opt.get_slot(a, "momentum") is None
    assert session.run(opt.get_slot(b, "momentum")).tolist() == [1.0]


def test_gradients_may_be_lists_numbers_and_arrays() -> None:
    w = tf.Variable([1.0, 2.0])
    ops = [
        descent().apply_gradients([(grad, w)])
        for grad in (
            [1.0, 1.0],
            np.array([1, 1], np.float32),
            torch.ones(2),
            tf.constant([1.0, 1.0]),
        )
    ]
    session = initialized()
    for op in ops:
        session.run(op)
    assert session.run(w).tolist() == [-3.0, -2.0]


def test_a_variable_given_twice_is_updated_twice() -> None:
    w, step = tf.Variable(1.0), tf.Variable(np.int64(0), trainable=False)
    grad = tf.constant(1.0)
    opt = train.MomentumOptimizer(1.0, 0.5)
    op = opt.apply_gradients([(grad, w), (grad, w)], global_step=step)
    session = initialized()
    session.run(op)
    assert session.run([w, step]) == [1 - 1 - 1.5, 1]


def test_a_constraint_follows_each_update() -> None:
    w = tf.Variable([1.0, -1.0], constraint=torch.relu)
    op = descent().apply_gradients([(torch.tensor([0.5, 0.5]), w)])
    session = initialized()
    session.run(op)
    assert session.run(w).tolist() == [0.5, 0.0]


def test_a_float_global_step_counts() -> None:
    w, step = tf.Variable(1.0), tf.Variable(0.5, trainable=False)
    op = descent().minimize(1.0 * w, global_step=step)
    session = initialized()
    session.run(op)
    assert session.run(step) == 1.5


class OfUser(train.GradientDescentOptimizer):
    """Optimizer whose hook is called while the graph is built."""

    def _prepare(self) -> None:
        super()._prepare()


@pytest.mark.parametrize("kind", [train.MomentumOptimizer, OfUser])
def test_a_step_that_cannot_count_is_an_error_when_the_graph_is_built(kind: Any) -> None:
    w, args = tf.Variable(1.0), (0.1, 0.9)[: 1 + (kind is train.MomentumOptimizer)]
    for step in (tf.constant(43, torch.int64), tf.Variable([1, 2], trainable=False), 5):
        variables_before = tf.global_variables()
        with pytest.raises(TypeError, match=r"^global_step must be a scalar variable or None, not"):
            kind(*args).minimize(w * w, global_step=step)
        assert tf.global_variables() == variables_before


def test_dependents_of_the_operation_see_the_taken_step() -> None:
    w = tf.Variable(3.0)
    op = descent().minimize(1.0 * w)
    with tf.control_dependencies([op]):
        scaled_w = w.read_value() * 10
    session = initialized()
    assert session.run([w, scaled_w]) == [3.0, 20.0]


def test_the_operation_waits_for_its_control_inputs() -> None:
    w, rate = tf.Variable(3.0), tf.Variable(1.0, trainable=False)
    doubled = tf.assign(rate, rate * 2)
    with tf.control_dependencies([doubled]):
        op = descent(rate).minimize(1.0 * w)
    session = initialized()
    session.run(op)
    assert session.run([w, rate]) == [1.0, 2.0]


@each_optimizer
def test_two_optimizers_of_one_variable_have_separate_slots(kind: str) -> None:
    w = tf.Variable([1.0, -2.0])
    optimizers = [OPTIMIZERS[kind]() for _ in range(2)]
    first, second = (opt.minimize((w * w).sum()) for opt in optimizers)
    session = initialized()
    session.run(first)
    changes = []
    for opt in optimizers:
        values = [session.run([variable.initial_value, variable]) for variable in opt.variables()]
        changes.append(any(not np.array_equal(*pair) for pair in values))
    assert changes == [bool(optimizers[0].variables()), False]
    session.run(second)


# --- state ----------------------------------------------------------------------------------------


def test_a_slot_that_is_not_initialized_is_named() -> None:
    w = tf.Variable([1.0], name="w")
    initialize = tf.global_variables_initializer()
    op = train.AdamOptimizer().minimize(w.sum())
    session = tf.Session()
    session.run(initialize)
    with pytest.raises(tf.FailedPreconditionError, match="uninitialized value w/Adam\n") as info:
        session.run(op)
    assert f"made at {__file__}:" in " ".join(info.value.__notes__)
    assert session.run(w).tolist() == [1.0]


def test_eagerly_trained_variable_keeps_its_value_in_a_graph() -> None:
    w = thalweg.Variable([1.0, 2.0], name="w")
    opt = train.MomentumOptimizer(1.0, 0.5)
    eager = threading.Thread(  # a thread of its own builds no graph
        target=lambda: [opt.apply_gradients([(torch.ones(2), w)]) for _ in range(3)]
    )
    eager.start()
    eager.join()
    op = opt.apply_gradients([(torch.ones(2), w)])
    assert isinstance(op, tf.Operation)
    assert w.tolist() == [1 - 1 - 1.5 - 1.75, 2 - 1 - 1.5 - 1.75]
    session = initialized()
    session.run(op)
    assert session.run(w).tolist() == [-3.25 - 1, -2.25 - 1]
    assert w.tolist() == [-3.25, -2.25]


def test_sessions_have_separate_values() -> None:
    w = tf.Variable(8.0)
    opt = train.MomentumOptimizer(1.0, 0.5)
    op = opt.minimize(1.0 * w)
    first, second = initialized(), initialized()
    for session, steps in ((first, 3), (second, 1), (first, 1)):
        for _ in range(steps):
            session.run(op)
    assert first.run([w, opt.get_slot(w, "momentum")]) == [8 - 1 - 1.5 - 1.75 - 1.875, 1.875]
    assert second.run([w, opt.get_slot(w, "momentum")]) == [7.0, 1.0]


@each_optimizer
def test_optimizer_works_in_two_graphs_and_eagerly(kind: str) -> None:
    opt = OPTIMIZERS[kind]()
    results = []
    for _ in range(2):
        with tf.Graph().as_default():
            w = tf.Variable([1.0, -2.0], name="w")
            op = opt.minimize((w * w).sum())
            slots = opt.variables()
            assert all(x.graph is w.graph for x in slots)
            with initialized() as session:
                for _ in range(3):
                    session.run(op)
                results.append(session.run([w, *slots]))
    for array, other_array in zip(*results, strict=True):
        np.testing.assert_array_equal(array, other_array)
    assert opt.variables() == []  # this graph has none


@each_optimizer
def test_copied_optimizer_continues_with_the_same_variables(kind: str) -> None:
    w = tf.Variable([1.0, -2.0])
    opt = OPTIMIZERS[kind]()
    op = opt.minimize((w * w).sum())
    opt_copy = copy.deepcopy(opt)
    assert opt_copy.variables() == opt.variables()
    second_op = opt_copy.minimize((w * w).sum())
    assert opt_copy.variables() == opt.variables()
    session, other_session = initialized(), initialized()
    for _ in range(2):
        session.run(op)
        other_session.run(second_op)
    np.testing.assert_array_equal(session.run(w), other_session.run(w))


# --- hyperparameters ------------------------------------------------------------------------------


@pytest.mark.one_in(3)
@each_optimizer
@pytest.mark.parametrize("source", ["placeholder", "variable", "decay", "tensor"])
def test_hyperparameters_are_read_in_each_run(kind: str, source: str) -> None:
    step = tf.Variable(np.int64(0), trainable=False)
    placeholder = tf.placeholder("float32", [])
    variable = tf.Variable(0.5, trainable=False)
    rate = {
        "placeholder": placeholder,
        "variable": variable,
        "tensor": variable * 1.0,
        "decay": train.piecewise_constant(step, [0], [0.5, 0.125]),
    }[source]
    w, expected = tf.Variable([1.0, -2.0]), tf.Variable([1.0, -2.0])
    op = OPTIMIZERS[kind](rate).minimize((w * w).sum(), step)
    plain_opt = OPTIMIZERS[kind](0.5)
    plain_op = plain_opt.minimize((expected * expected).sum())
    for attribute in ("_lr", "_learning_rate"):
        if hasattr(plain_opt, attribute):
            setattr(plain_opt, attribute, 0.125)
    later_op = plain_opt.minimize((expected * expected).sum())
    session = initialized()
    session.run(plain_op)
    session.run(op, {placeholder: 0.5})
    session.run(later_op)
    variable.load(0.125, session)
    session.run(op, {placeholder: 0.125})
    np.testing.assert_array_equal(*session.run([w, expected]))


@pytest.mark.parametrize("hyper", ["beta1", "beta2", "epsilon"])
def test_every_hyperparameter_of_adam_may_be_a_tensor(hyper: str) -> None:
    variable = tf.Variable(0.5, trainable=False)
    w, expected = tf.Variable([1.0, -2.0]), tf.Variable([1.0, -2.0])
    initialize = variable.initializer
    session = tf.Session()
    session.run(initialize)
    options: dict[str, Any] = {hyper: variable}
    op = train.AdamOptimizer(0.1, **options).minimize((w * w).sum())
    options = {hyper: 0.5}
    plain_op = train.AdamOptimizer(0.1, **options).minimize((expected * expected).sum())
    session.run(tf.global_variables_initializer())
    for _ in range(3):
        session.run([op, plain_op])
    np.testing.assert_array_equal(*session.run([w, expected]))


def test_callables_are_called_once_when_the_graph_is_built() -> None:
    calls = []

    def rate() -> float:
        calls.append(1)
        return 0.5 / len(calls)

    w = tf.Variable(1.0)
    op = train.GradientDescentOptimizer(rate).minimize(1.0 * w)
    session = initialized()
    for _ in range(3):
        session.run(op)
    assert (len(calls), session.run(w)) == (1, -0.5)


@pytest.mark.parametrize("kind", ["Ftrl", "ProximalAdagrad", "ProximalGradientDescent"])
def test_callable_rate_raises_for_some_optimizers(kind: str) -> None:
    w = tf.Variable(1.0)
    with pytest.raises(ValueError, match="takes numbers and tensors as learning_rate"):
        OPTIMIZERS[kind](lambda: 0.1).minimize(1.0 * w)


def test_non_scalar_rate_raises() -> None:
    w = tf.Variable(1.0)
    with pytest.raises(ValueError, match="learning_rate must be a scalar, not of shape"):
        descent(tf.constant([1.0, 2.0])).minimize(1.0 * w)


# --- subclasses -----------------------------------------------------------------------------------


class Counting(train.Optimizer):
    """Gradient descent in plain torch that counts how often each element has moved."""

    HOOKS_AT_EACH_RUN = True

    def __init__(self, rate: Any) -> None:
        super().__init__(False, "Counting")
        self._rate = rate
        self.calls: list[Any] = []

    def _create_slots(self, var_list: Any) -> None:
        self.calls.append(("slots", [var.name for var in var_list]))
        for var in var_list:
            self._zeros_slot(var, "moved", self._name)
            self._get_or_make_slot(var, np.float32(7), "seven", "Seven")
            self._get_or_make_slot(var, var.initialized_value() * 2, "twice", "Twice")
            self._get_or_make_slot_with_initializer(
                var, lambda shape, dtype: torch.full(shape, 3.0, dtype=dtype), (2,), "float32",
                "three", "Three",
            )  # fmt: skip
        self._create_non_slot_variable(1.0, "total", var_list[0])

    def _prepare(self) -> None:
        self.calls.append("prepare")
        self._rate_now = self._call_if_callable(self._rate)

    def _apply_dense(self, grad: Any, var: Any) -> None:
        self.calls.append(("dense", var.name))
        self.get_slot(var, "moved").add_(grad != 0)
        var.sub_(self._rate_now * grad)

    def _apply_sparse(self, grad: Any, var: Any) -> None:
        self.calls.append(("sparse", var.name, grad.indices.tolist()))
        self.get_slot(var, "moved")[grad.indices] += 1
        var.index_add_(0, grad.indices, -self._rate_now * grad.values)

    def _finish(self, update_ops: Any, name_scope: str) -> None:
        self.calls.append(("finish", name_scope))
        self._get_non_slot_variable("total").mul_(2)


def test_the_hooks_of_a_subclass_are_called_in_order_in_the_run() -> None:
    w, table = tf.Variable([1.0, 2.0], name="w"), tf.Variable(np.ones((3, 2), np.float32), name="t")
    rate = tf.placeholder("float32", [])
    loss = w.sum() + tf.embedding_lookup(table, [2, 0, 2]).sum()
    opt = Counting(rate)
    op = opt.minimize(loss, var_list=[w, table])
    assert opt.calls == [("slots", ["w:0", "t:0"]), "prepare"]
    assert opt._rate_now is rate
    opt.calls.clear()
    session = initialized()
    session.run(op, {rate: 0.5})
    session.run(op, {rate: 1.0})
    step_calls = ["prepare", ("dense", "w:0"), ("sparse", "t:0", [2, 0]), ("finish", "Counting/")]
    assert [call for call in opt.calls if call != ("slots", ["w:0", "t:0"])] == step_calls * 2
    assert session.run(w).tolist() == [-0.5, 0.5]
    assert session.run(table)[:, 0].tolist() == [-0.5, 1.0, -2.0]
    assert session.run(opt.get_slot(table, "moved"))[:, 0].tolist() == [2.0, 0.0, 2.0]
    assert session.run(opt.get_slot(w, "seven")) == 7.0
    assert session.run(opt.get_slot(w, "twice")).tolist() == [2.0, 4.0]
    assert session.run(opt.get_slot(w, "three")).tolist() == [3.0, 3.0]
    assert session.run(opt._get_non_slot_variable("total", w.graph)) == 4.0
    assert [var.op.name for var in opt.variables()] == [
        *("t/Counting", "t/Seven", "t/Three", "t/Twice", "total"),
        *("w/Counting", "w/Seven", "w/Three", "w/Twice"),
    ]


def test_a_hook_that_fails_in_a_run_changes_nothing() -> None:
    class Failing(train.MomentumOptimizer):
        HOOKS_AT_EACH_RUN = True

        def _apply_dense(self, grad: Any, var: Any) -> None:
            self.get_slot(var, "momentum").add_(1)
            var.add_(1)
            if var.name == "b:0":
                raise RuntimeError("no")

    a, b = tf.Variable([1.0], name="a"), tf.Variable([1.0], name="b")
    step = train.get_or_create_global_step()
    opt = Failing(0.1, 0.9)
    op = opt.minimize((a + b).sum(), global_step=step)
    session = initialized()
    with pytest.raises(RuntimeError, match="no") as info:
        session.run(op)
    assert any("The step was not taken" in note for note in info.value.__notes__)
    slot = opt.get_slot(a, "momentum")
    assert [array.item() for array in session.run([a, b, step, slot])] == [1.0, 1.0, 0, 0.0]


@pytest.mark.parametrize("hook", ["_apply_dense", "_resource_apply_dense"])
def test_a_subclass_of_a_fused_optimizer_sees_each_gradient(hook: str) -> None:
    def apply(self: Any, grad: Any, var: Any) -> Any:
        return getattr(train.AdamOptimizer, hook)(self, grad * 2, var)

    custom = type("Custom", (train.AdamOptimizer,), {hook: apply})
    w, expected = tf.Variable([1.0, 2.0]), tf.Variable([1.0, 2.0])
    ops = [
        custom(0.1).apply_gradients([(torch.tensor([0.5, -1.0]), w)]),
        train.AdamOptimizer(0.1).apply_gradients([(torch.tensor([1.0, -2.0]), expected)]),
    ]
    session = initialized()
    session.run(ops)
    np.testing.assert_array_equal(*session.run([w, expected]))


# --- beside other operations ----------------------------------------------------------------------


def test_moving_average_is_updated_after_the_step() -> None:
    w = tf.Variable([4.0])
    op = descent(1.0).minimize(w.sum())
    average = train.ExponentialMovingAverage(0.5)
    with tf.control_dependencies([op]):
        both_ops = average.apply([w])
    session = initialized()
    assert session.run(average.average(w)).tolist() == [4.0]
    session.run(both_ops)
    assert session.run([w, average.average(w)])[1].tolist() == [0.5 * 4 + 0.5 * 3]
    session.run(both_ops)
    assert session.run([w, average.average(w)])[1].tolist() == [0.5 * 3.5 + 0.5 * 2]


def test_module_with_buffers_trains_and_updates_buffers() -> None:
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4), torch.nn.ReLU())
    twin = copy.deepcopy(net)
    x = tf.placeholder("float32", [None, 3])
    op = train.MomentumOptimizer(0.1, 0.9).minimize(net(x).square().mean())
    session = initialized()
    torch_opt = torch.optim.SGD(twin.parameters(), 0.1, momentum=0.9)
    batches = torch.randn(4, 8, 3)
    for batch in batches:
        session.run(op, {x: batch})
        torch_opt.zero_grad()
        twin(batch).square().mean().backward()
        torch_opt.step()
    for tensor, twin_tensor in zip(net.parameters(), twin.parameters(), strict=True):
        np.testing.assert_allclose(session.run(tensor), twin_tensor.detach(), rtol=1e-5, atol=1e-7)
    for tensor, twin_tensor in zip(net.buffers(), twin.buffers(), strict=True):
        np.testing.assert_allclose(session.run(tensor), twin_tensor, rtol=1e-5, atol=1e-7)
    assert session.run(net[1].num_batches_tracked) == 4


@each_optimizer
@pytest.mark.parametrize("is_sparse", [False, True])
def test_repeated_runs_do_not_plan(
    kind: str, is_sparse: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan_names: list[str] = []
    for home, name in ((engine, "DensePlan"), (sparse, "SparsePlan")):
        plan = getattr(home, name)

        def counted(self: Any, *args: Any, plan: Any = plan, name: str = name) -> None:
            plan_names.append(name)
            plan.__init__(self, *args)

        monkeypatch.setattr(home, name, type(name, (plan,), {"__init__": counted}))
    a, table = tf.Variable([[1.0], [2.0]]), tf.Variable(np.ones((4, 2), np.float32))
    x = tf.placeholder("int64", [None])
    rows = tf.embedding_lookup(table, x) if is_sparse else table.index_select(0, x)
    opt = OPTIMIZERS[kind]()
    step = train.get_or_create_global_step()
    op = opt.minimize((rows @ a).square().sum(), global_step=step)
    with thalweg.engine("cpu"):
        session = initialized()
        session.run(op, {x: [1, 3]})
        assert sorted(plan_names) == ["DensePlan"] + ["SparsePlan"] * is_sparse
        plan_count = session.plans_made
        for _ in range(3):
            session.run(op, {x: [0, 1]})
    assert session.plans_made == plan_count
    assert len(plan_names) == 1 + is_sparse
