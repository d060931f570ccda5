"""Optimizers as people write them for TensorFlow 1: subclasses of its own, in graph mode.

    python tests/v1/subclasses_for_tensorflow.py tests/goldens/subclasses.json

records what TensorFlow makes of them; 2.21 did. `test_v1_recorded_hooks.py` holds the library to
it.
"""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

IN_THALWEG = importlib.util.find_spec("thalweg") is not None  # or TensorFlow records
tf: Any = importlib.import_module(f"{'thalweg.tf' if IN_THALWEG else 'tensorflow'}.compat.v1")

STEPS = 4
SHAPES = {"w": (2, 3), "b": (3,), "emb": (4, 2)}
ROWS = [2, 0, 2]


class Noting(tf.train.Optimizer):
    """Notes the scope in which each hook is called, and by which name `_finish`."""

    def __init__(self, name: str) -> None:
        super().__init__(False, name)
        self.seen: list[Any] = []

    def _note(self, hook: str, *details: Any) -> None:
        scope = tf.get_default_graph().get_name_scope()
        self.seen.append([hook, scope, bool(tf.executing_eagerly()), *details])

    def _create_slots(self, var_list: Any) -> None:
        self._note("slots", [var.op.name for var in var_list])

    def _prepare(self) -> None:
        self._note("prepare")

    def _finish(self, update_ops: Any, name_scope: str) -> Any:
        self._note("finish", name_scope, len(update_ops))
        return super()._finish(update_ops, name_scope)


class ByStep(Noting):
    """A rate that falls with the global step, which the hook itself finds."""

    def __init__(self, rate: float = 0.1) -> None:
        super().__init__("ByStep")
        self._rate = rate

    def _apply_dense(self, grad: Any, var: Any) -> Any:
        self._note("dense", var.op.name)
        step = tf.cast(tf.train.get_or_create_global_step(), tf.float32)
        return var.assign_sub(self._rate / (step + 1.0) * grad)

    def _apply_sparse(self, grad: Any, var: Any) -> Any:
        self._note("sparse", var.op.name)
        step = tf.cast(tf.train.get_or_create_global_step(), tf.float32)
        return tf.scatter_sub(var, grad.indices, self._rate / (step + 1.0) * grad.values)


class Decaying(Noting):
    """Momentum with a rate that decays, of which there is a summary."""

    def __init__(self) -> None:
        super().__init__("Decaying")

    def _create_slots(self, var_list: Any) -> None:
        super()._create_slots(var_list)
        for var in var_list:
            self._zeros_slot(var, "velocity", self._name)

    def _prepare(self) -> None:
        super()._prepare()
        step = tf.train.get_or_create_global_step()
        self._rate = tf.train.exponential_decay(0.2, step, 2, 0.5)
        tf.summary.scalar("rate", self._rate)

    def _apply_dense(self, grad: Any, var: Any) -> Any:
        velocity = self.get_slot(var, "velocity")
        step = tf.assign(velocity, 0.9 * velocity + grad)
        return tf.assign_sub(var, self._rate * step)

    def _apply_sparse(self, grad: Any, var: Any) -> Any:
        velocity = self.get_slot(var, "velocity")
        with tf.control_dependencies([tf.assign(velocity, 0.9 * velocity)]):
            step = tf.scatter_add(velocity, grad.indices, grad.values)
        return tf.group(tf.assign_sub(var, self._rate * step))


class LayerWise(tf.train.Optimizer):
    """LAMB: Adam's moments, and a step as long as the layer's weights are."""

    def __init__(self, rate: float = 0.05, decay: float = 0.01) -> None:
        super().__init__(False, "LayerWise")
        self._rate, self._decay = rate, decay

    def _create_slots(self, var_list: Any) -> None:
        first = min(var_list, key=lambda var: var.name)
        self._create_non_slot_variable(initial_value=1.0, name="power", colocate_with=first)
        for var in var_list:
            self._zeros_slot(var, "m", self._name)
            self._zeros_slot(var, "v", self._name)

    def _prepare(self) -> None:
        self._rate_t = tf.convert_to_tensor(self._rate, name="rate")
        self._decay_t = tf.convert_to_tensor(self._decay, name="decay")

    def _power(self) -> Any:
        return self._get_non_slot_variable("power", graph=tf.get_default_graph())

    def _moved(self, m: Any, v: Any, var: Any) -> Any:
        correction = 1.0 - self._power() * 0.9
        direction = (m / correction) / (tf.sqrt(v) + 1e-6)
        direction += tf.cast(self._decay_t, var.dtype.base_dtype) * var
        norm, size = tf.norm(var), tf.norm(direction)
        ratio = tf.where(tf.greater(norm, 0), tf.where(tf.greater(size, 0), norm / size, 1.0), 1.0)
        return var.assign_sub(ratio * self._rate_t * direction, use_locking=self._use_locking)

    def _apply_dense(self, grad: Any, var: Any) -> Any:
        m, v = self.get_slot(var, "m"), self.get_slot(var, "v")
        m_t = m.assign(0.9 * m + 0.1 * grad, use_locking=self._use_locking)
        v_t = v.assign(0.99 * v + 0.01 * tf.square(grad), use_locking=self._use_locking)
        return tf.group(self._moved(m_t, v_t, var), m_t, v_t)

    def _resource_apply_dense(self, grad: Any, var: Any) -> Any:
        return self._apply_dense(grad, var)

    def _apply_sparse(self, grad: Any, var: Any) -> Any:
        m, v = self.get_slot(var, "m"), self.get_slot(var, "v")
        m_t, v_t = m.assign(0.9 * m), v.assign(0.99 * v)
        with tf.control_dependencies([m_t]):
            m_t = tf.scatter_add(m, grad.indices, 0.1 * grad.values)
        with tf.control_dependencies([v_t]):
            v_t = tf.scatter_add(v, grad.indices, 0.01 * tf.square(grad.values))
        return tf.group(self._moved(m_t, v_t, var), m_t, v_t)

    def _resource_apply_sparse(self, grad: Any, var: Any, indices: Any) -> Any:
        return self._apply_sparse(tf.IndexedSlices(grad, indices), var)

    def _finish(self, update_ops: Any, name_scope: str) -> Any:
        with tf.control_dependencies(update_ops):
            power = self._power()
            new_power = power.assign(power * 0.9, use_locking=self._use_locking)
        return tf.group(*update_ops, new_power, name=name_scope)


class Factored(tf.train.Optimizer):
    """Adafactor: the second moment of a matrix as one of its rows and one of its columns."""

    def __init__(self, multiplies: bool = True) -> None:
        super().__init__(False, "Factored")
        self._multiplies = multiplies

    def _create_slots(self, var_list: Any) -> None:
        for var in var_list:
            shape = var.get_shape().as_list()
            if len(shape) == 2:
                self._get_or_make_slot(var, tf.zeros([shape[0]]), "rows", "rows")
                self._get_or_make_slot(var, tf.zeros([shape[1]]), "columns", "columns")
            else:
                self._zeros_slot(var, "whole", "whole")

    def _apply_dense(self, grad: Any, var: Any) -> Any:
        step = tf.cast(tf.train.get_or_create_global_step(), tf.float32) + 1.0
        decay = 1.0 - tf.pow(step, -0.8)
        squares = tf.square(grad) + 1e-30
        size = tf.sqrt(tf.reduce_mean(tf.square(var)))
        rate = tf.minimum(0.01, tf.rsqrt(step))
        if self._multiplies:
            rate *= tf.maximum(size, 1e-3)
        updates = []
        if len(var.get_shape().as_list()) == 2:
            rows, columns = self.get_slot(var, "rows"), self.get_slot(var, "columns")
            new_rows = rows * decay + tf.reduce_mean(squares, 1) * (1.0 - decay)
            new_columns = columns * decay + tf.reduce_mean(squares, 0) * (1.0 - decay)
            updates = [tf.assign(rows, new_rows), tf.assign(columns, new_columns)]
            by_rows = tf.rsqrt(new_rows / tf.reduce_mean(new_rows))
            update = grad * tf.expand_dims(by_rows, 1)
            update *= tf.expand_dims(tf.rsqrt(new_columns), 0)
        else:
            slot = self.get_slot(var, "whole")
            new = slot * decay + squares * (1.0 - decay)
            updates = [tf.assign(slot, new)]
            update = grad * tf.rsqrt(new)
        update /= tf.maximum(1.0, tf.sqrt(tf.reduce_mean(tf.square(update))))
        return tf.group(*updates, tf.assign_sub(var, rate * update))

    def _apply_sparse(self, grad: Any, var: Any) -> Any:
        return self._apply_dense(tf.convert_to_tensor(grad), var)


class DecayedAdam(tf.train.Optimizer):
    """Adam with weight decay as BERT has it: an `apply_gradients` of its own, and its variables."""

    def __init__(self, exclude: Any = ("b",)) -> None:
        super().__init__(False, "DecayedAdam")
        self._exclude = exclude

    def apply_gradients(
        self, grads_and_vars: Any, global_step: Any = None, name: Any = None
    ) -> Any:
        assignments = []
        for grad, var in grads_and_vars:
            if grad is None or var is None:
                continue
            grad = tf.convert_to_tensor(grad)
            options = {"shape": var.shape.as_list(), "dtype": tf.float32, "trainable": False}
            zeros = tf.zeros_initializer()
            m = tf.get_variable(f"{var.op.name}/adam_m", initializer=zeros, **options)
            v = tf.get_variable(f"{var.op.name}/adam_v", initializer=zeros, **options)
            next_m = tf.multiply(0.9, m) + tf.multiply(1.0 - 0.9, grad)
            next_v = tf.multiply(0.999, v) + tf.multiply(1.0 - 0.999, tf.square(grad))
            update = next_m / (tf.sqrt(next_v) + 1e-6)
            if var.op.name not in self._exclude:
                update += 0.01 * var
            assignments += [var.assign(var - 0.02 * update), m.assign(next_m), v.assign(next_v)]
        if global_step is not None:
            assignments.append(global_step.assign_add(1))
        return tf.group(*assignments, name=name)


class Largest(tf.train.AdamOptimizer):
    """AMSGrad, by the tensors and the powers that TensorFlow's Adam keeps."""

    def __init__(self) -> None:
        super().__init__(0.1, name="Largest")

    def _create_slots(self, var_list: Any) -> None:
        super()._create_slots(var_list)
        for var in var_list:
            self._zeros_slot(var, "vhat", self._name)

    def _apply_dense(self, grad: Any, var: Any) -> Any:
        beta1_power, two = self._get_beta_accumulators()
        rate = self._lr_t * tf.sqrt(1 - two) / (1 - beta1_power)
        m, v, vhat = (self.get_slot(var, name) for name in ("m", "v", "vhat"))
        m_t = tf.assign(m, m * self._beta1_t + grad * (1 - self._beta1_t))
        v_t = tf.assign(v, v * self._beta2_t + grad * grad * (1 - self._beta2_t))
        vhat_t = tf.assign(vhat, tf.maximum(v_t, vhat))
        step = rate * m_t / (tf.sqrt(vhat_t) + self._epsilon_t)
        return tf.group(tf.assign_sub(var, step), m_t, v_t, vhat_t)


class Doubled(tf.train.MomentumOptimizer):
    """Hands what it makes of the gradient to the class that it is derived from."""

    def __init__(self) -> None:
        super().__init__(0.1, 0.5, name="Doubled")
        self.calls = 0

    def _apply_dense(self, grad: Any, var: Any) -> Any:
        self.calls += 1
        return super()._apply_dense(grad * (1.0 + self.calls), var)

    def _apply_sparse(self, grad: Any, var: Any) -> Any:
        return super()._apply_sparse(tf.IndexedSlices(grad.values * 2.0, grad.indices), var)


class Rated(tf.train.GradientDescentOptimizer):
    """Sets the rate of a step, where the class that it is derived from looks for it."""

    def __init__(self) -> None:
        super().__init__(0.3, name="Rated")

    def _prepare(self) -> None:
        super()._prepare()
        step = tf.cast(tf.train.get_or_create_global_step(), tf.float32)
        self._learning_rate_tensor = self._learning_rate_tensor / (step + 1.0)


class Kernels(tf.train.Optimizer):
    """Momentum by TensorFlow's own kernels."""

    def __init__(self) -> None:
        super().__init__(False, "Kernels")

    def _create_slots(self, var_list: Any) -> None:
        for var in var_list:
            self._zeros_slot(var, "accum", self._name)

    def _apply_dense(self, grad: Any, var: Any) -> Any:
        accum = self.get_slot(var, "accum")
        return tf.raw_ops.ApplyMomentum(
            var=var, accum=accum, lr=0.1, grad=grad, momentum=0.9, use_nesterov=True
        ).op

    def _apply_sparse(self, grad: Any, var: Any) -> Any:
        accum = self.get_slot(var, "accum")
        return tf.raw_ops.SparseApplyMomentum(
            var=var, accum=accum, lr=0.1, grad=grad.values, indices=grad.indices, momentum=0.9
        ).op


class Gathering(tf.train.GradientDescentOptimizer):
    """Adds up gradients in a slot, and takes a step at every second."""

    def __init__(self) -> None:
        super().__init__(0.1, name="Gathering")

    def _create_slots(self, var_list: Any) -> None:
        first = min(var_list, key=lambda var: var.name)
        self._create_non_slot_variable(initial_value=0, name="seen", colocate_with=first)
        for var in var_list:
            self._zeros_slot(var, "sum", self._name)

    def _apply_dense(self, grad: Any, var: Any) -> Any:
        total = self.get_slot(var, "sum")
        new_total = tf.assign_add(total, grad)
        count = self._get_non_slot_variable("seen", graph=tf.get_default_graph())

        def step() -> Any:
            with tf.control_dependencies([tf.assign_sub(var, 0.1 * new_total / 2.0)]):
                return tf.group(tf.assign(total, tf.zeros_like(total)))

        return tf.cond(tf.equal(count % 2, 1), step, tf.no_op)

    def _apply_sparse(self, grad: Any, var: Any) -> Any:
        return self._apply_dense(tf.convert_to_tensor(grad), var)

    def _finish(self, update_ops: Any, name_scope: str) -> Any:
        count = self._get_non_slot_variable("seen", graph=tf.get_default_graph())
        with tf.control_dependencies(update_ops):
            new_count = count.assign_add(1)
        return tf.group(*update_ops, new_count, name=name_scope)


class Around(tf.train.Optimizer):
    """Hands all hooks to another optimizer, and draws slow weights after it at its end."""

    def __init__(self, inner: Any) -> None:
        super().__init__(False, "Around")
        self._inner = inner

    def compute_gradients(self, *args: Any, **kwargs: Any) -> Any:
        return self._inner.compute_gradients(*args, **kwargs)

    def _create_slots(self, var_list: Any) -> None:
        self._inner._create_slots(var_list)
        self._variables = list(var_list)
        for var in var_list:
            self._get_or_make_slot(var, var.initialized_value(), "slow", self._name)

    def _prepare(self) -> None:
        self._inner._prepare()

    def _apply_dense(self, grad: Any, var: Any) -> Any:
        return self._inner._apply_dense(grad, var)

    def _apply_sparse(self, grad: Any, var: Any) -> Any:
        return self._inner._apply_sparse(grad, var)

    def _finish(self, update_ops: Any, name_scope: str) -> Any:
        inner_update = self._inner._finish(update_ops, f"{name_scope.rstrip('/')}_inner")
        with tf.control_dependencies([inner_update]):
            slow = [
                tf.assign_add(self.get_slot(var, "slow"), 0.5 * (var - self.get_slot(var, "slow")))
                for var in self._variables
            ]
        return tf.group(inner_update, *slow, name=name_scope)


class Wrapping(tf.train.Optimizer):
    """Has another optimizer apply gradients that it scales, and counts in its own variable."""

    def __init__(self, inner: Any) -> None:
        super().__init__(False, "Wrapping")
        self._inner = inner

    def compute_gradients(self, *args: Any, **kwargs: Any) -> Any:
        pairs = self._inner.compute_gradients(*args, **kwargs)
        scaled_pairs = []
        for grad, var in pairs:
            if isinstance(grad, tf.IndexedSlices):
                grad = tf.IndexedSlices(grad.values * 0.5, grad.indices, grad.dense_shape)
            else:
                grad = grad * 0.5
            scaled_pairs.append((grad, var))
        return scaled_pairs

    def apply_gradients(
        self, grads_and_vars: Any, global_step: Any = None, name: Any = None
    ) -> Any:
        count = tf.get_variable("count", initializer=0, trainable=False)
        op = self._inner.apply_gradients(grads_and_vars, global_step=global_step, name=name)
        with tf.control_dependencies([op]):
            return tf.group(op, count.assign_add(1))


class Own(Noting):
    """Makes a variable in a hook, and returns what `_finish` returns as a tensor."""

    def __init__(self) -> None:
        super().__init__("Own")

    def _apply_dense(self, grad: Any, var: Any) -> Any:
        scale = tf.get_variable(f"{var.op.name}_scale", initializer=0.5, trainable=False)
        with tf.control_dependencies([scale.assign(scale * 0.5)]):
            return var.assign_sub(scale.read_value() * grad)

    def _apply_sparse(self, grad: Any, var: Any) -> Any:
        return tf.scatter_sub(var, grad.indices, 0.1 * grad.values)

    def _finish(self, update_ops: Any, name_scope: str) -> Any:
        self._note("finish", name_scope, len(update_ops))
        with tf.control_dependencies(update_ops):
            return tf.identity(tf.constant(7.0), name="seven")


CASES: dict[str, Callable[[], Any]] = {
    "ByStep": ByStep,
    "Decaying": Decaying,
    "LayerWise": LayerWise,
    "Factored": Factored,
    "DecayedAdam": DecayedAdam,
    "Largest": Largest,
    "Doubled": Doubled,
    "Rated": Rated,
    "Kernels": Kernels,
    "Gathering": Gathering,
    "Own": Own,
    "Around/Adam": lambda: Around(tf.train.AdamOptimizer(0.1)),
    "Around/ByStep": lambda: Around(ByStep()),
    "Wrapping/Adagrad": lambda: Wrapping(tf.train.AdagradOptimizer(0.1)),
    "Wrapping/Doubled": lambda: Wrapping(Doubled()),
}
WITHOUT_ROWS = ("Largest",)  # whose sparse gradients TensorFlow leaves to Adam's


def taken(name: str, counts: bool) -> dict[str, Any]:
    """Return names, operations and values after each of a few steps.

    Args:
        name: One of `CASES`.
        counts: Whether there is a `global_step`.
    """
    random = np.random.default_rng(5)
    with tf.Graph().as_default() as graph, tf.Session() as session:
        params = {
            key: tf.Variable(random.normal(size=shape).astype(np.float32), name=key)
            for key, shape in SHAPES.items()
            if key != "emb" or name not in WITHOUT_ROWS
        }
        step = tf.train.get_or_create_global_step()
        loss = tf.reduce_sum(tf.square(params["w"] - 1.0))
        loss += tf.reduce_sum(params["w"] * params["b"])
        if "emb" in params:
            loss += tf.reduce_sum(tf.square(tf.gather(params["emb"], ROWS)) * [1.0, 2.0])
        optimizer = CASES[name]()
        train_op = optimizer.minimize(
            loss, global_step=step if counts else None, var_list=list(params.values())
        )
        session.run(tf.global_variables_initializer())
        variables = {var.op.name: var for var in tf.global_variables()}
        values: dict[str, list[Any]] = {var_name: [] for var_name in variables}
        for _ in range(STEPS):
            session.run(train_op)
            for var_name, value in session.run(variables).items():
                values[var_name].append([float(str(x)) for x in np.ravel(value)])
        merged = tf.summary.merge_all()
        return {
            "train_op": train_op.name,
            "collected": [op.name for op in tf.get_collection(tf.GraphKeys.TRAIN_OP)],
            "seen": getattr(optimizer, "seen", None),
            "updates": sorted(
                op.name
                for op in graph.get_operations()
                if op.type
                in ("Assign", "AssignAdd", "AssignSub", "ScatterSub", "ScatterAdd", "NoOp")
                and "/" in op.name
                and op.name.startswith(train_op.name)
            ),
            "summaries": None if merged is None else len(session.run(merged)) > 0,
            "values": values,
        }


if __name__ == "__main__":
    tf.disable_v2_behavior()
    cases = {
        f"{name}/{'counted' if counts else 'alone'}": taken(name, counts)
        for name in CASES
        for counts in (True, False)
    }
    lines = [f"{json.dumps(case)}: {json.dumps(outcome)}" for case, outcome in cases.items()]
    Path(sys.argv[1]).write_text("{\n" + ",\n".join(lines) + "\n}\n")
