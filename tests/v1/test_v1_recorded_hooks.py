"""Hooks in graph mode: called once, when it is built, and what they record is one update."""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

import subclasses_for_tensorflow as written
import thalweg.tf as tf
from golden_files import FOLDER
from thalweg import FailedPreconditionError, Variable
from thalweg.v1 import contrib, train

v1 = tf.compat.v1
FOREACH: Any = torch  # which does not export these functions
RECORDED_CASES = json.loads((FOLDER / "subclasses.json").read_text())

# Where TensorFlow adds up in another order, or takes an approximate root or power: the distance in
# ulp of the largest element.
BOUNDS = {"Decaying": 2, "LayerWise": 4, "Factored": 4, "Largest": 2, "Around/Adam": 1}
# Hooks that our optimizers answer with another number of operations than TensorFlow's.
OTHERWISE = ("Largest", "Rated", "Gathering", "Around/Adam")


@pytest.mark.one_in(3)
@pytest.mark.parametrize("case", RECORDED_CASES)
def test_subclasses_have_tensorflow_values_and_names(case: str) -> None:
    name, _, kind = case.rpartition("/")
    recording, actual = RECORDED_CASES[case], written.taken(name, kind == "counted")
    parts = ["train_op", "collected", "seen", "summaries"]
    parts += [] if name in OTHERWISE else ["updates"]
    assert json.loads(json.dumps({part: actual[part] for part in parts})) == {
        part: recording[part] for part in parts
    }
    assert list(actual["values"]) == list(recording["values"])
    for variable, steps in recording["values"].items():
        expected = np.array(steps, np.float32)
        distance = np.abs(np.array(actual["values"][variable], np.float32) - expected)
        bound = BOUNDS.get(name, 0) * np.spacing(np.abs(expected).max())
        assert distance.max() <= bound, variable


@pytest.fixture
def session() -> Iterator[Any]:
    with tf.Graph().as_default(), v1.Session() as session:
        yield session


class Failing(train.Optimizer):
    """Momentum with TensorFlow's names, of which one operation fails where it is told to."""

    def __init__(self, fails: Any = 0.0, hook: str = "b", name: str = "Failing") -> None:
        super().__init__(False, name)
        self._fails, self._hook = fails, hook

    def _create_slots(self, var_list: Any) -> None:
        for var in var_list:
            self._zeros_slot(var, "m", self._name)
        self._create_non_slot_variable(1.0, "total", var_list[0])

    def _read_slot(self, slot: Any) -> Any:
        return slot

    def _guard(self, hook: str, value: Any) -> Any:
        if hook != self._hook:
            return value
        with tf.control_dependencies([v1.assert_equal(self._fails, 0.0)]):
            return tf.identity(value)

    def _apply_dense(self, grad: Any, var: Any) -> Any:
        m, grad = self.get_slot(var, "m"), self._guard("before", grad)
        m_t = m.assign(self._read_slot(m) * 0.5 + grad)
        with tf.control_dependencies([m_t]):
            return var.assign_sub(self._guard(var.op.name, m_t * 1.0))

    def _finish(self, update_ops: Any, name_scope: str) -> Any:
        total = self._get_non_slot_variable("total", graph=v1.get_default_graph())
        with tf.control_dependencies(update_ops):
            doubled = total.assign(total * 2.0)
        with tf.control_dependencies([doubled]):
            last_update = self._guard("finish", tf.constant(0.0))
        return tf.group(*update_ops, doubled, last_update, name=name_scope)


@pytest.mark.parametrize("hook", ["before", "a", "b", "finish"])
@pytest.mark.parametrize("in_loss_scale", [False, True], ids=["outside", "in a branch"])
def test_failing_operation_restores_all_variables(
    session: Any, hook: str, in_loss_scale: bool
) -> None:
    a, b = v1.Variable([1.0], name="a"), v1.Variable([2.0], name="b")
    fails = v1.placeholder(tf.float32, [])
    step = v1.train.get_or_create_global_step()
    opt = Failing(fails, hook)
    pairs = [(tf.ones([1]), a), (tf.ones([1]), b)]
    if in_loss_scale:
        op = tf.cond(fails > -1.0, lambda: opt.apply_gradients(pairs, step), tf.no_op)
    else:
        op = opt.apply_gradients(pairs, step)
    session.run(v1.global_variables_initializer())
    session.run(op, {fails: 0.0})
    everything = v1.global_variables()
    values_before = session.run(everything)
    with pytest.raises(Exception, match="assert") as excinfo:
        session.run(op, {fails: 1.0})
    assert "The step was not taken: no variable and no slot has changed." in excinfo.value.__notes__
    for array, array_before in zip(session.run(everything), values_before, strict=True):
        np.testing.assert_array_equal(array, array_before)
    session.run(op, {fails: 0.0})
    assert session.run([a, b, step])[:2] == [[1.0 - 1.0 - 1.5], [2.0 - 1.0 - 1.5]]
    assert session.run(step) == 2


def test_interruption_restores_all_variables(session: Any) -> None:
    a, b = v1.Variable([1.0], name="a"), v1.Variable([2.0], name="b")
    calls = []

    def interrupted(value: Any) -> Any:
        if calls:
            raise KeyboardInterrupt
        return value

    class Interrupted(Failing):
        def _guard(self, hook: str, value: Any) -> Any:
            return value if hook != "b" else v1.py_func(interrupted, [value], tf.float32)

    op = Interrupted().apply_gradients([(tf.ones([1]), a), (tf.ones([1]), b)])
    session.run(v1.global_variables_initializer())
    values_before = session.run(v1.global_variables())
    calls.append(1)
    with pytest.raises(KeyboardInterrupt):
        session.run(op)
    calls.clear()
    assert session.run(v1.global_variables()) == values_before
    session.run(op)
    assert session.run([a, b]) == [[0.0], [1.0]]


def test_failed_step_undoes_initialization_by_assignment(session: Any) -> None:
    class First(Failing):
        def _prepare(self) -> None:
            self._fresh = v1.get_variable("fresh", [1], trainable=False)

        def _apply_dense(self, grad: Any, var: Any) -> Any:
            with tf.control_dependencies([self._fresh.assign(grad)]):
                return super()._apply_dense(self._guard("first", grad), var)

    w, fails = v1.Variable([1.0], name="w"), v1.placeholder(tf.float32, [])
    opt = First(fails, "first")
    op = opt.apply_gradients([(tf.ones([1]), w)])
    session.run(
        v1.variables_initializer([v for v in v1.global_variables() if "fresh" not in v.name])
    )
    with pytest.raises(Exception, match="assert"):
        session.run(op, {fails: 1.0})
    with pytest.raises(FailedPreconditionError, match="uninitialized value fresh"):
        session.run(opt._fresh)
    session.run(op, {fails: 0.0})
    assert session.run([opt._fresh, w]) == [[1.0], [0.0]]


def test_threads_lose_no_update(session: Any) -> None:
    def slowly(value: Any) -> Any:
        new_value = value.copy()
        time.sleep(1e-4)  # another thread may come between what reads and what writes
        return new_value

    class Slow(Failing):
        def _read_slot(self, slot: Any) -> Any:
            return v1.py_func(slowly, [slot], tf.float64)

    w = v1.Variable(np.zeros(3), name="w")
    opt = Slow()
    op = opt.apply_gradients([(tf.ones([3], tf.float64), w)])
    session.run(v1.global_variables_initializer())

    def train_some() -> None:
        for _ in range(25):
            session.run(op)

    threads = [threading.Thread(target=train_some) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    velocity, expected = 0.0, 0.0
    for _ in range(100):
        velocity = velocity * 0.5 + 1.0
        expected -= velocity
    assert session.run(w).tolist() == [expected] * 3
    assert session.run(opt._get_non_slot_variable("total", w.graph)) == 2.0**100


class Counted(train.GradientDescentOptimizer):
    """Keeps count in Python, and says whether it computes at once."""

    calls = 0
    eager: Any = None

    def _apply_dense(self, grad: Any, var: Any) -> Any:
        self.calls += 1
        self.eager = tf.executing_eagerly()
        return super()._apply_dense(grad * self.calls, var)


def test_hook_attributes_are_those_of_the_build(session: Any) -> None:
    a, b = v1.Variable([0.0], name="a"), v1.Variable([0.0], name="b")
    opt = Counted(1.0)
    op = opt.apply_gradients([(tf.ones([1]), a), (tf.ones([1]), b)])
    assert (opt.calls, opt.eager) == (2, False)
    session.run(v1.global_variables_initializer())
    for _ in range(3):
        session.run(op)
    assert opt.calls == 2
    assert session.run([a, b]) == [[-3.0], [-6.0]]


@pytest.mark.parametrize("in_graph", [True, False])
def test_apply_gradients_returns_the_result_of_finish(in_graph: bool) -> None:
    update_lists: list[Any] = []

    class Finishing(train.GradientDescentOptimizer):
        def _apply_dense(self, grad: Any, var: Any) -> Any:
            super()._apply_dense(grad, var)
            return "an update"

        def _finish(self, update_ops: Any, name_scope: str) -> Any:
            update_lists.append(list(update_ops))
            return ["done", *update_ops]

    def check(w: Any) -> None:
        opt, pairs = Finishing(1.0), [(tf.ones([1]), w)]
        for outcome in (opt.apply_gradients(pairs), opt.minimize(lambda: w * 1.0, var_list=[w])):
            assert outcome == ["done", "an update"]
        assert update_lists == [["an update"]] * 2

    if in_graph:
        with tf.Graph().as_default():
            check(v1.Variable([1.0], name="w"))
    else:
        w, step = Variable([1.0], name="w"), Variable(np.int64(0), trainable=False)
        check(w)
        assert w.item() == -1.0
        assert Finishing(1.0).apply_gradients([(torch.ones(1), w)], step) is None


@pytest.mark.parametrize("in_graph", [True, False])
@pytest.mark.parametrize("gate", [train.Optimizer.GATE_OP, train.Optimizer.GATE_NONE])
@pytest.mark.parametrize("hook", [True, False], ids=["with a hook", "fused"])
def test_finish_gets_the_tensorflow_name_scope(in_graph: bool, gate: int, hook: bool) -> None:
    names_and_counts: list[Any] = []

    class Finishing(train.GradientDescentOptimizer):
        def _finish(self, update_ops: Any, name_scope: str) -> Any:
            names_and_counts.append((name_scope, len(update_ops)))
            return super()._finish(update_ops, name_scope)

    class Hooked(Finishing):
        def _apply_dense(self, grad: Any, var: Any) -> Any:
            return super()._apply_dense(grad, var)

    def check(w: Any, o: Any, step: Any) -> None:
        opt, variables = (Hooked if hook else Finishing)(1.0, name="Mine"), [w, o]
        for _ in range(2):
            opt.minimize(loss, var_list=variables, gate_gradients=gate)
            opt.minimize(loss, step, variables, gate)
            opt.minimize(loss, step, variables, gate, name="named")
            opt.minimize(loss, var_list=variables, gate_gradients=gate, name="named")
        names = [re.sub(r"_\d+/", "/", name) for name, _ in names_and_counts]
        assert names == ["Mine/", "update", "update", "named/"] * 2
        assert {count for _, count in names_and_counts} == {2}

    if in_graph:
        with tf.Graph().as_default():
            w, o = v1.Variable([1.0], name="w"), v1.Variable([1.0], name="o")
            loss: Any = tf.reduce_sum(w + o)
            check(w, o, v1.train.get_or_create_global_step())
    else:
        w, o = Variable([1.0], name="w"), Variable([1.0], name="o")
        loss = lambda: tf.reduce_sum(w + o)  # noqa: E731
        check(w, o, Variable(np.int64(0), trainable=False))


@pytest.mark.parametrize("in_graph", [True, False])
def test_a_rate_that_prepare_sets_is_the_rate(in_graph: bool) -> None:
    class Rated(train.AdamOptimizer):
        def _prepare(self) -> None:
            super()._prepare()
            self._lr_t = tf.convert_to_tensor(0.25)

    def steps(make: Any) -> Any:
        if not in_graph:
            w = Variable([1.0])
            make().apply_gradients([(torch.ones(1), w)])
            return w.tolist()
        with tf.Graph().as_default(), v1.Session() as session:
            w = v1.Variable([1.0])
            op = make().apply_gradients([(tf.ones([1]), w)])
            session.run(v1.global_variables_initializer())
            session.run(op)
            return session.run(w).tolist()

    assert steps(lambda: Rated(0.5)) == steps(lambda: train.AdamOptimizer(0.25))


def test_hooks_work_in_two_graphs_and_eagerly() -> None:
    opt = Counted(1.0)
    for _ in range(2):
        with tf.Graph().as_default(), v1.Session() as session:
            opt.calls = 0
            w = v1.Variable([0.0])
            op = opt.apply_gradients([(tf.ones([1]), w)])
            session.run(v1.global_variables_initializer())
            session.run(op)
            assert session.run(w) == [-1.0]
    opt.calls, w = 0, Variable([0.0])
    opt.apply_gradients([(torch.ones(1), w)])
    assert (w.item(), opt._learning_rate_tensor.item()) == (-1.0, 1.0)


def test_weight_decay_precedes_hooks(session: Any) -> None:
    class Reading(train.GradientDescentOptimizer):
        def _apply_dense(self, grad: Any, var: Any) -> Any:
            return super()._apply_dense(grad * var, var)

    make = contrib.opt.extend_with_decoupled_weight_decay(Reading)
    a, b = v1.Variable([8.0], name="a"), v1.Variable([8.0], name="b")
    pairs = [(tf.ones([1]), a), (tf.ones([1]), b)]
    op = make(0.5, learning_rate=0.5).apply_gradients(pairs, decay_var_list=[a])
    session.run(v1.global_variables_initializer())
    session.run(op)
    assert session.run([a, b]) == [[4.0 - 0.5 * 4.0], [8.0 - 0.5 * 8.0]]


# --- torch's functions ----------------------------------------------------------------------------


class InTorch(train.Optimizer):
    """Adam's like by torch's functions that write in place: on variables, and on slots."""

    returns = False

    def _create_slots(self, var_list: Any) -> None:
        for var in var_list:
            self._zeros_slot(var, "m", "m")
            self._zeros_slot(var, "v", "v")
        self._create_non_slot_variable(0.0, "count", var_list[0])
        self._create_non_slot_variable(1.0, "total", var_list[0])

    def _prepare(self) -> None:
        self._get_non_slot_variable("count").add_(1)

    def _apply_dense(self, grad: Any, var: Any) -> Any:
        m, v = self.get_slot(var, "m"), self.get_slot(var, "v")
        count = self._get_non_slot_variable("count")
        scaled_var = var * 0.25
        with torch.no_grad():
            m.mul_(0.9).add_(grad.data, alpha=0.1)
            v.data.mul_(0.99).addcmul_(grad, grad, value=0.01)
            FOREACH._foreach_mul_([var, m], 0.5)
            FOREACH._foreach_add_([var], [scaled_var])
            root = (v / (1 - 0.99**count)).sqrt() + 1e-8
            var.addcdiv_(m / (1 - 0.9**count), root, value=-0.1)
            m.sub_(var).copy_(m + 0.5 * var)
        return grad if self.returns else None

    def _finish(self, update_ops: Any, name_scope: str) -> Any:
        self._get_non_slot_variable("total").mul_(2)
        return update_ops[0]


@pytest.mark.parametrize("returns", [False, True])
@pytest.mark.parametrize("counts", [False, True])
def test_torch_functions_in_hooks_run_in_order(returns: bool, counts: bool) -> None:
    def steps(at_each_run: bool) -> Any:
        cls = type("Own", (InTorch,), {"HOOKS_AT_EACH_RUN": at_each_run, "returns": returns})
        with tf.Graph().as_default(), v1.Session() as session:
            w, b = v1.Variable([1.0, 2.0], name="w"), v1.Variable([[3.0]], name="b")
            step = v1.train.get_or_create_global_step()
            pairs = [(w * 2.0, w), (torch.tensor([[-1.0]]), b)]
            op = cls(False, "Own").apply_gradients(pairs, step if counts else None)
            session.run(v1.global_variables_initializer())
            for _ in range(3):
                session.run(op)
            variables = sorted(v1.global_variables(), key=lambda var: var.name)
            return {var.name: value.tolist() for var, value in zip(
                variables, session.run(variables), strict=True
            )}  # fmt: skip

    outcomes = steps(False)
    assert outcomes == steps(True)
    assert (outcomes["count:0"], outcomes["total:0"]) == (3.0, 8.0)
    assert outcomes["global_step:0"] == 3 * counts


def test_failing_torch_function_restores_all_variables(session: Any) -> None:
    class Broken(InTorch):
        divisor: Any = None

        def _apply_dense(self, grad: Any, var: Any) -> Any:
            super()._apply_dense(grad, var)
            var.add_(self.divisor)

    w, divisor = v1.Variable([1.0, 2.0], name="w"), v1.placeholder(tf.float32, None)
    opt = Broken(False, "Broken")
    opt.divisor = divisor
    op = opt.apply_gradients([(tf.ones([2]), w)])
    session.run(v1.global_variables_initializer())
    session.run(op, {divisor: 1.0})
    values_before = session.run(v1.global_variables())
    with pytest.raises(RuntimeError, match="must match the size") as excinfo:
        session.run(op, {divisor: [1.0, 2.0, 3.0]})
    assert any("The step was not taken" in note for note in excinfo.value.__notes__)
    for array, two in zip(session.run(v1.global_variables()), values_before, strict=True):
        np.testing.assert_array_equal(array, two)


@pytest.mark.parametrize("scale", [8.0, "dynamic"])
@pytest.mark.parametrize("optimizer", [written.ByStep, InTorch, written.DecayedAdam])
def test_loss_scale_wraps_recorded_hooks(session: Any, scale: Any, optimizer: Any) -> None:
    arguments = {written.ByStep: (0.5,), InTorch: (False, "Own")}
    opt = optimizer(*arguments.get(optimizer, ()))
    w, placeholder = v1.Variable([1.0], name="w"), v1.placeholder(tf.float32, [1])
    outer = train.experimental.MixedPrecisionLossScaleOptimizer(opt, scale)
    step = v1.train.get_or_create_global_step()
    op = outer.apply_gradients([(placeholder, w)], step)
    session.run(v1.global_variables_initializer())
    values = []
    for grad in (1.0, 1.0, float("inf"), 1.0):
        session.run(op, {placeholder: [grad]})
        values.append(session.run(w).item())
    if scale == "dynamic":
        assert (values[2], session.run(step)) == (values[1], 3)
        assert session.run(outer._loss_scale()) == 2.0**14
    else:
        assert session.run(step) == 4
    if optimizer is written.ByStep and scale == "dynamic":
        np.testing.assert_allclose(values[3], 1.0 - 0.5 * (1 + 1 / 2 + 1 / 3), rtol=1e-6)
    assert v1.get_collection(v1.GraphKeys.TRAIN_OP) == [op]


def viewed(self: Any, grad: Any, var: Any) -> Any:
    flat = var.view(-1)
    var.mul_(2)
    var.add_(flat)


def added(self: Any, grad: Any, var: Any) -> Any:
    var -= grad


def branched(self: Any, grad: Any, var: Any) -> Any:
    return tf.cond(tf.reduce_sum(grad) > 0, lambda: var.add_(grad), lambda: var * 1.0)


@pytest.mark.parametrize(
    ("hook", "pattern"),
    [
        (viewed, "'view:0' was made before '.*mul' wrote to the memory that it looks into"),
        (added, r"by \+=, -= and the like in a hook\. These methods can write to .*: add_, sub_"),
        (
            lambda self, grad, var: torch.Tensor.add_(var, grad),
            r"^torch\.Tensor\.add_ takes no tensor of a graph: call add_ as the tensor's own",
        ),
        (branched, "outside of branches: add_, sub_, mul_, addcmul_, addcdiv_, copy_"),
        (lambda self, grad, var: torch.add(var, grad, out=var), "add with out= writes in place"),
        (
            lambda self, grad, var: FOREACH._foreach_div_([var], 2.0),
            "_foreach_div_ writes in place",
        ),
        (
            lambda self, grad, var: FOREACH._foreach_mul_([grad], 2.0),
            "_foreach_mul_ writes in place",
        ),
        (lambda self, grad, var: var.add_(torch.ones(3, 2)), "broadcast"),
    ],
)
def test_torch_writes_outside_of_the_recording_raise(hook: Any, pattern: str) -> None:
    error = refused(hook)
    text = "\n".join([str(error), *getattr(error, "__notes__", [])])
    assert re.search(pattern, text.replace("Own/update_w/view", "view"))
    assert "HOOKS_AT_EACH_RUN = True" in text


# --- hooks at each run ----------------------------------------------------------------------------


def refused(apply: Any, **attributes: Any) -> Any:
    """The error of a build with a hook."""
    cls = type("Own", (train.Optimizer,), {"_apply_dense": apply, **attributes})
    with tf.Graph().as_default():
        w = v1.Variable([1.0], name="w")
        with pytest.raises((TypeError, ValueError)) as excinfo:
            cls(False, "Own").apply_gradients([(tf.ones([1]), w)])
    return excinfo.value


NEEDS_VALUES = {
    "a number": lambda self, grad, var: var.assign(float(grad)),
    "a branch": lambda self, grad, var: var.assign(grad) if grad > 0 else None,
    "NumPy": lambda self, grad, var: var.assign(grad.numpy()),
    "in place": lambda self, grad, var: var.clamp_(0),
    "a gradient in place": lambda self, grad, var: grad.mul_(2),
    "torch's own": lambda self, grad, var: torch.nn.init.zeros_(var),
    "an element": lambda self, grad, var: var.__setitem__(0, 1.0),
    "the other's value": lambda self, grad, var: grad.tolist(),
}


@pytest.mark.parametrize("name", NEEDS_VALUES)
def test_hook_that_needs_values_raises_with_its_line(name: str) -> None:
    error = str(refused(NEEDS_VALUES[name]))
    line = NEEDS_VALUES[name].__code__.co_firstlineno
    assert f"{__file__}:{line}, in the update of 'w' of Own" in error
    assert "HOOKS_AT_EACH_RUN = True" in error


def test_hooks_at_each_run_read_the_session_global_step(session: Any) -> None:
    class Each(train.Optimizer):
        HOOKS_AT_EACH_RUN = True
        calls = 0

        def _apply_dense(self, grad: Any, var: Any) -> None:
            self.calls += 1
            step = v1.train.get_or_create_global_step()
            var.sub_(0.1 / (step.item() + 1) * grad)

    w, step = v1.Variable([1.0]), v1.train.get_or_create_global_step()
    opt = Each(False, "Each")
    op = opt.apply_gradients([(tf.ones([1]), w)], step)
    session.run(v1.global_variables_initializer())
    for _ in range(3):
        session.run(op)
    assert (opt.calls, session.run(step)) == (3, 3)
    np.testing.assert_allclose(session.run(w), [1.0 - 0.1 * (1 + 1 / 2 + 1 / 3)], rtol=1e-6)


def test_hooks_at_each_run_create_no_global_step(session: Any) -> None:
    class Each(train.Optimizer):
        HOOKS_AT_EACH_RUN = True

        def _apply_dense(self, grad: Any, var: Any) -> None:
            v1.train.get_or_create_global_step()

    w = v1.Variable([1.0])
    op = Each(False, "Each").apply_gradients([(tf.ones([1]), w)])
    session.run(v1.global_variables_initializer())
    with pytest.raises(FailedPreconditionError, match="create it when the graph is built"):
        session.run(op)
