"""Hooks of Keras optimizers in graph mode: called once, when it is built, as one update."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch

import thalweg.tf as tf
from pairwise import cover_pairs
from test_graph_one_update import check_put_back, checked
from thalweg import Variable
from thalweg.keras import optimizers
from thalweg.keras.optimizers import SGD, Adam, Nadam, Optimizer

v1 = tf.compat.v1


@pytest.fixture
def session() -> Iterator[Any]:
    with tf.Graph().as_default(), v1.Session() as session:
        yield session


class Noting(SGD):
    """Notes the scope in which each hook is called."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(0.1, momentum=0.5, name="Mine", **kwargs)
        self.seen: list[Any] = []

    def _note(self, hook: str, *details: Any) -> None:
        scope = v1.get_default_graph().get_name_scope()
        self.seen.append((hook, scope, tf.executing_eagerly(), *details))

    def _create_slots(self, var_list: Any) -> None:
        self._note("slots", *(var.op.name for var in var_list))
        super()._create_slots(var_list)

    def _prepare(self, var_list: Any) -> Any:
        self._note("prepare")
        return super()._prepare(var_list)

    def _prepare_local(self, var_device: Any, var_dtype: Any, apply_state: Any) -> None:
        self._note("local")
        super()._prepare_local(var_device, var_dtype, apply_state)

    def _aggregate_gradients(self, grads_and_vars: Any) -> Any:
        self._note("aggregate")
        return super()._aggregate_gradients(grads_and_vars)

    def _transform_gradients(self, grads_and_vars: Any) -> Any:
        self._note("transform")
        return super()._transform_gradients(grads_and_vars)

    def _resource_apply_dense(self, grad: Any, var: Any, apply_state: Any = None) -> Any:
        self._note("dense", var.op.name)
        return super()._resource_apply_dense(grad * 2.0, var, apply_state)

    def _resource_apply_sparse(
        self, grad: Any, var: Any, indices: Any, apply_state: Any = None
    ) -> Any:
        self._note("sparse", var.op.name)
        return super()._resource_apply_sparse(grad, var, indices, apply_state)


def test_hooks_are_called_once_in_the_scopes_of_tensorflow(session: Any) -> None:
    w = v1.Variable([1.0, 2.0], name="w", constraint=lambda value: value * 0.5)
    e = v1.Variable(np.ones([3, 2], np.float32), name="e")
    loss = tf.reduce_sum(w * w) + tf.reduce_sum(tf.gather(e, [0, 2, 0]))
    opt = Noting(clipvalue=1.5)
    op = opt.minimize(loss, [w, e])
    named_op = opt.minimize(loss, [w, e], name="named")
    assert (op.name, named_op.name) == (
        "Mine/Mine/AssignAddVariableOp",
        "Mine_1/named/AssignAddVariableOp",
    )
    assert opt.seen == [
        op
        for scope, inner in (("Mine", "Mine"), ("Mine_1", "named"))
        for op in (
            ("slots", scope, False, "w", "e"),
            ("prepare", scope, False),
            ("local", scope, False),
            ("aggregate", scope, False),
            ("transform", scope, False),
            ("dense", f"{scope}/{inner}/update_w", False, "w"),
            ("sparse", f"{scope}/{inner}/update_e", False, "e"),
        )
    ]
    calls = len(opt.seen)
    session.run(v1.global_variables_initializer())
    for _ in range(3):
        session.run(op)
    assert len(opt.seen) == calls
    # As TensorFlow 2.21 prints them.
    np.testing.assert_allclose(session.run(w), [-0.06350001, -0.0525], rtol=1e-7)
    np.testing.assert_allclose(session.run(e)[0], [0.14999998] * 2, rtol=1e-7)


class Failing(Optimizer):
    """Momentum with TensorFlow's names, of which one operation fails where it is told to."""

    def __init__(self, fails: Any, hook: str) -> None:
        super().__init__("Failing")
        self._fails, self._hook = fails, hook

    def _create_slots(self, var_list: Any) -> None:
        for var in var_list:
            self.add_slot(var, "m")

    def _guard(self, hook: str, value: Any) -> Any:
        if hook != self._hook:
            return value
        with tf.control_dependencies([v1.assert_equal(self._fails, 0.0)]):
            return tf.identity(value)

    def _transform_gradients(self, grads_and_vars: Any) -> Any:
        return [(self._guard("transform", grad), var) for grad, var in grads_and_vars]

    def _resource_apply_dense(self, grad: Any, var: Any, apply_state: Any = None) -> Any:
        m = self.get_slot(var, "m")
        m_t = m.assign(m * 0.5 + grad)
        return var.assign_sub(self._guard(var.op.name, m_t * 1.0))


class Around:
    """An `apply_gradients` of its own around that of a class, after which something fails."""

    fails: Any = None

    def apply_gradients(self, grads_and_vars: Any, name: Any = None, **kwargs: Any) -> Any:
        first, second = list(grads_and_vars)
        parent: Any = super()
        first_op = parent.apply_gradients([first], name, **kwargs)
        two = parent.apply_gradients([second], name, **kwargs)
        return tf.group(first_op, checked(self.fails, two))  # fails after both


class OwnAdam(Around, Adam):
    pass


class OwnNadam(Around, Nadam):
    pass


FAILING: dict[str, Callable[[Any], Any]] = {
    "transform": lambda fails: Failing(fails, "transform"),
    "first": lambda fails: Failing(fails, "a"),
    "second": lambda fails: Failing(fails, "b"),
    "own": lambda _: OwnAdam(0.1),
    "own of Nadam": lambda _: OwnNadam(0.1),
}


@pytest.mark.parametrize("case", FAILING)
@pytest.mark.parametrize("nested", [False, True], ids=["outside", "in a branch"])
def test_failing_operation_restores_all_variables(session: Any, case: str, nested: bool) -> None:
    a, b = v1.Variable([1.0], name="a"), v1.Variable([2.0], name="b")
    fails = v1.placeholder(tf.float32, [])
    opt, pairs = FAILING[case](fails), [(a * 1.0, a), (tf.ones([1]), b)]
    opt.fails = fails

    def apply() -> Any:
        return tf.group(opt.apply_gradients(pairs))

    op = tf.cond(fails > -1.0, apply, tf.no_op) if nested else apply()
    session.run(v1.global_variables_initializer())
    check_put_back(session, op, fails, (a, b))


class InTorch(Optimizer):
    """Momentum by torch's functions that write in place."""

    def __init__(self) -> None:
        super().__init__("InTorch")

    def _create_slots(self, var_list: Any) -> None:
        for var in var_list:
            self.add_slot(var, "m")

    def _resource_apply_dense(self, grad: Any, var: Any, apply_state: Any = None) -> None:
        m = self.get_slot(var, "m")
        m.mul_(0.5).add_(grad)
        var.data.sub_(m, alpha=0.1)

    def _resource_apply_sparse(
        self, grad: Any, var: Any, indices: Any, apply_state: Any = None
    ) -> Any:
        return self._resource_scatter_add(var, indices, -0.1 * grad)


class AtEachRun(InTorch):
    HOOKS_AT_EACH_RUN = True


class ByValue(AtEachRun):
    """An optimizer whose hook reads values, which only a run has."""

    def _resource_apply_dense(self, grad: Any, var: Any, apply_state: Any = None) -> None:
        if float(grad.sum()) != 0.0:
            super()._resource_apply_dense(grad, var)


def steps(make: Callable[..., Any], dtype: torch.dtype = torch.float32) -> dict[str, Any]:
    """The values of all variables after three steps in a session."""
    with tf.Graph().as_default(), v1.Session() as session:
        w = v1.Variable(torch.tensor([1.0, 2.0], dtype=dtype), name="w")
        e = v1.Variable(torch.ones(3, 2, dtype=dtype), name="e")
        loss = tf.reduce_sum(w * w) + tf.reduce_sum(tf.gather(e, [0, 2, 0]) * w)
        op = make().minimize(loss, [w, e])
        session.run(v1.global_variables_initializer())
        for _ in range(3):
            session.run(op)
        variables = {var.op.name: var for var in v1.global_variables()}
        return {name: value.tolist() for name, value in session.run(variables).items()}


@pytest.mark.parametrize("other_cls", [AtEachRun, ByValue])
def test_torch_functions_in_hooks_run_in_order(other_cls: Any) -> None:
    assert steps(InTorch) == steps(other_cls)


def passed_on(cls: Any, *hooks: str, late: bool = False) -> Any:
    """A class whose hooks call those of the class that it is derived from."""

    def hook(name: str) -> Any:
        return lambda self, *args, **kwargs: getattr(super(sub, self), name)(*args, **kwargs)

    hook_methods = {name: hook(name) for name in hooks}
    sub = type(cls.__name__, (cls,), {**hook_methods, "HOOKS_AT_EACH_RUN": late})
    return sub


CLASS_NAMES = ("SGD", "Adam", "Adamax", "Nadam", "Adagrad", "Adadelta", "RMSprop", "Ftrl")
KINDS = {
    "dense": ("_resource_apply_dense",),
    "sparse": ("_resource_apply_sparse",),
    "all": ("_resource_apply_dense", "_resource_apply_sparse", "_prepare_local"),
    "rate": ("_decayed_lr",),
    "gradients": ("_transform_gradients",),
}


@pytest.mark.parametrize(
    ("name", "kind", "dtype"),
    cover_pairs(product(CLASS_NAMES, KINDS, (torch.float32, torch.float16, torch.float64))),
)
@pytest.mark.one_in(7)
def test_recorded_super_hooks_equal_hooks_of_each_run(
    name: str, kind: str, dtype: torch.dtype
) -> None:
    cls = getattr(optimizers, name)
    rate = 0.1 if name == "Nadam" else optimizers.schedules.ExponentialDecay(0.1, 2, 0.5)
    options = [{"clipnorm": 0.5}, {}, {"global_clipnorm": 1.0}][len(kind) % 3]
    early_cls, late_cls = (passed_on(cls, *KINDS[kind], late=late) for late in (False, True))
    outcome = steps(lambda: early_cls(rate, **options), dtype)
    assert outcome == steps(lambda: late_cls(rate, **options), dtype)
    if dtype is not torch.float16:  # in which hooks get rounded gradients
        assert outcome == steps(lambda: cls(rate, **options), dtype)


def test_rate_left_in_coefficients_is_used() -> None:
    class Halved(Adam):
        def _prepare_local(self, var_device: Any, var_dtype: Any, apply_state: Any) -> None:
            super()._prepare_local(var_device, var_dtype, apply_state)
            apply_state[var_device, var_dtype]["lr_t"] *= 0.5

        def _resource_apply_dense(self, grad: Any, var: Any, apply_state: Any = None) -> Any:
            return super()._resource_apply_dense(grad, var, apply_state)

    actual, expected = steps(lambda: Halved(0.5, name="A")), steps(lambda: Adam(0.25, name="A"))
    assert [outcome.pop("A/learning_rate") for outcome in (actual, expected)] == [0.5, 0.25]
    assert actual == expected


def test_variables_of_hyperparameters_are_read_at_each_run(session: Any) -> None:
    rate = v1.Variable(0.5, name="rate", trainable=False)
    w = v1.Variable([1.0], name="w")
    opt = passed_on(SGD, "_resource_apply_dense")(rate)
    op = opt.apply_gradients([(tf.ones([1]), w)])
    session.run(v1.global_variables_initializer())
    session.run(op)
    rate.load(0.25, session)
    session.run(op)
    assert session.run(w) == [0.25]


def test_aggregators_and_transformers_are_called_once(session: Any) -> None:
    calls: list[str] = []

    def halved(pairs: Any) -> Any:
        calls.append("halved")
        return [(grad * 0.5, var) for grad, var in pairs]

    w = v1.Variable([1.0], name="w")
    opt = SGD(1.0, gradient_aggregator=halved, gradient_transformers=[halved, halved])
    op = opt.apply_gradients([(tf.ones([1]), w)])
    unsummed = opt.apply_gradients([(tf.ones([1]), w)], experimental_aggregate_gradients=False)
    assert len(calls) == 5
    session.run(v1.global_variables_initializer())
    session.run(op)
    session.run(unsummed)
    assert session.run(w) == [1.0 - 0.125 - 0.25]
    assert len(calls) == 5


NEEDS_VALUES = {
    "a number": lambda self, grad, var: var.assign(float(grad)),
    "a branch": lambda self, grad, var: var.assign(grad) if grad > 0 else None,
    "in place": lambda self, grad, var: var.clamp_(0),
    "an element": lambda self, grad, var: var.__setitem__(0, 1.0),
}


@pytest.mark.parametrize("name", NEEDS_VALUES)
def test_hook_that_needs_values_raises_with_its_line(name: str) -> None:
    cls = type("Mine", (Optimizer,), {"_resource_apply_dense": NEEDS_VALUES[name]})
    with tf.Graph().as_default():
        w = v1.Variable([1.0], name="w")
        with pytest.raises(TypeError) as excinfo:
            cls("Mine").apply_gradients([(tf.ones([1]), w)])
    line = NEEDS_VALUES[name].__code__.co_firstlineno
    assert f"{__file__}:{line}, in the update of 'w' of Mine" in str(excinfo.value)
    assert "HOOKS_AT_EACH_RUN = True" in str(excinfo.value)


def test_transform_that_drops_all_gradients_raises() -> None:
    class Empty(SGD):
        def _transform_gradients(self, grads_and_vars: Any) -> Any:
            return [(None, var) for _, var in grads_and_vars]

    with tf.Graph().as_default():
        w = v1.Variable([1.0], name="w")
        with pytest.raises(ValueError, match="returned no gradients"):
            Empty(0.1).apply_gradients([(tf.ones([1]), w)])


def test_hook_class_works_in_a_graph_and_eagerly() -> None:
    w = Variable([1.0], name="w")
    InTorch().apply_gradients([(torch.ones(1), w)])
    assert w.item() == pytest.approx(0.9)
