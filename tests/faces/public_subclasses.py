"""Optimizers as the public writes them, of `tf.train` and of Keras' OptimizerV2.

    python tests/faces/public_subclasses.py tests/goldens/public_subclasses.json

records what TensorFlow and tf_keras make of them, in graphs and in eager mode; 2.21 did.
`test_public_subclasses.py` holds the library to it.
"""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

THALWEG = importlib.util.find_spec("thalweg") is not None  # or TensorFlow records
tf: Any = importlib.import_module("thalweg.tf" if THALWEG else "tensorflow")
v1 = tf.compat.v1
keras: Any = (
    tf.keras.optimizers if THALWEG else importlib.import_module("tf_keras").optimizers.legacy
)
schedules = keras.schedules if THALWEG else importlib.import_module("tf_keras").optimizers.schedules

STEPS = 5
SHAPES = {"dense/kernel": (2, 3), "dense/bias": (3,), "table": (4, 2)}
ROWS = [2, 0, 2]


# --- of tf.train ----------------------------------------------------------------------------------


class Base(v1.train.Optimizer):
    """Hooks of both kinds of variables by one method; rows become whole gradients."""

    def __init__(self, rate: float = 0.1) -> None:
        super().__init__(False, type(self).__name__)
        self._rate = rate

    def _update(self, grad: Any, var: Any) -> Any:
        raise NotImplementedError

    def _apply_dense(self, grad: Any, var: Any) -> Any:
        return self._update(grad, var)

    def _resource_apply_dense(self, grad: Any, var: Any) -> Any:
        return self._update(grad, var)

    def _apply_sparse(self, grad: Any, var: Any) -> Any:
        return self._update(tf.convert_to_tensor(grad), var)

    def _resource_apply_sparse(self, grad: Any, var: Any, indices: Any) -> Any:
        return self._update(tf.math.unsorted_segment_sum(grad, indices, var.shape[0]), var)


class Decaying(Base):
    """A rate that decays with the global step, which is found in `_prepare`."""

    def _prepare(self) -> None:
        rate = v1.train.exponential_decay(
            self._rate, v1.train.get_or_create_global_step(), 2, 0.5, staircase=True
        )
        self._rate_t = rate() if callable(rate) else rate

    def _update(self, grad: Any, var: Any) -> Any:
        return var.assign_sub(self._rate_t * grad)


class Counting(Base):
    """Keeps count in Python, and asks whether it computes at once."""

    calls = 0

    def _update(self, grad: Any, var: Any) -> Any:
        self.calls += 1
        factor = 2.0 if tf.executing_eagerly() else 1.0
        return var.assign_sub(self._rate * factor / self.calls * grad)


class Rectified(Base):
    """RAdam: Adam whose variance is rectified once it can be known."""

    def _create_slots(self, var_list: Any) -> None:
        self._create_non_slot_variable(1.0, "step", var_list[0])
        for var in var_list:
            self._zeros_slot(var, "m", self._name)
            self._zeros_slot(var, "v", self._name)

    def _step(self) -> Any:
        graph = None if tf.executing_eagerly() else v1.get_default_graph()
        return self._get_non_slot_variable("step", graph=graph)

    def _update(self, grad: Any, var: Any) -> Any:
        m, v, t = self.get_slot(var, "m"), self.get_slot(var, "v"), self._step()
        m_t = m.assign(0.9 * m + 0.1 * grad)
        v_t = v.assign(0.8 * v + 0.2 * tf.square(grad))
        power = tf.pow(0.8, t)
        largest = 2.0 / (1.0 - 0.8) - 1.0
        length = largest - 2.0 * t * power / (1.0 - power)
        root = tf.sqrt(
            (length - 4.0) * (length - 2.0) * largest
            / ((largest - 4.0) * (largest - 2.0) * length)
        )  # fmt: skip
        unbiased = m_t / (1.0 - tf.pow(0.9, t))
        adapted = root * unbiased / (tf.sqrt(v_t / (1.0 - power)) + 1e-7)
        step = tf.where(length > 4.0, adapted, unbiased)
        return tf.group(var.assign_sub(self._rate * step), m_t, v_t)

    def _finish(self, update_ops: Any, name_scope: str) -> Any:
        with tf.control_dependencies([op for op in update_ops if op is not None]):
            new_count = self._step().assign_add(1.0)
        return tf.group(*[op for op in update_ops if op is not None], new_count, name=name_scope)


class Bounded(Base):
    """AdaBound: rates of elements between bounds that close in."""

    def _create_slots(self, var_list: Any) -> None:
        for var in var_list:
            self._zeros_slot(var, "m", self._name)
            self._zeros_slot(var, "v", self._name)

    def _prepare(self) -> None:
        step = tf.cast(v1.train.get_or_create_global_step(), tf.float32) + 1.0
        self._low = 0.1 * (1.0 - 1.0 / (0.1 * step + 1.0))
        self._high = 0.1 * (1.0 + 1.0 / (0.1 * step))

    def _update(self, grad: Any, var: Any) -> Any:
        m, v = self.get_slot(var, "m"), self.get_slot(var, "v")
        m_t = m.assign(m * 0.9 + grad * 0.1)
        v_t = v.assign(v * 0.99 + tf.square(grad) * 0.01)
        rates = tf.clip_by_value(self._rate / (tf.sqrt(v_t) + 1e-8), self._low, self._high)
        return var.assign_sub(rates * m_t)


class Lookahead(Base):
    """Slow weights beside another optimizer's, which every second step brings together."""

    def __init__(self, inner: Any) -> None:
        super().__init__()
        self._inner = inner

    def _create_slots(self, var_list: Any) -> None:
        for var in var_list:
            initial = var if tf.executing_eagerly() else var.initial_value
            self._get_or_make_slot(var, initial, "slow", self._name)

    def apply_gradients(
        self, grads_and_vars: Any, global_step: Any = None, name: Any = None
    ) -> Any:
        pairs = [(grad, var) for grad, var in grads_and_vars if grad is not None]
        variables = [var for _, var in pairs]
        with tf.init_scope():
            self._create_slots(variables)
        step = v1.train.get_or_create_global_step()
        inner_op = self._inner.apply_gradients(pairs, step, name)
        with tf.control_dependencies([] if inner_op is None else [inner_op]):
            is_time = tf.equal(step % 2, 0)

            def together() -> Any:
                updates = []
                for var in variables:
                    slow = self.get_slot(var, "slow")
                    new_slow = slow.assign(slow + 0.5 * (var - slow))
                    updates.append(var.assign(new_slow))
                return tf.group(*updates)

            return tf.group(tf.cond(is_time, together, tf.no_op), name=name)


class Centralized(v1.train.MomentumOptimizer):
    """Gradient centralization: gradients without their means, in `compute_gradients`."""

    def __init__(self) -> None:
        super().__init__(0.1, 0.9)

    def compute_gradients(self, *args: Any, **kwargs: Any) -> Any:
        new_pairs = []
        for grad, var in super().compute_gradients(*args, **kwargs):
            if not isinstance(grad, tf.IndexedSlices) and len(grad.shape) > 1:
                grad = grad - tf.reduce_mean(grad, axis=0, keepdims=True)
            new_pairs.append((grad, var))
        return new_pairs


class Restarting(Base):
    """SGDR: a cosine rate with restarts, counted in variables of its own."""

    def _create_slots(self, var_list: Any) -> None:
        self._create_non_slot_variable(0.0, "current", var_list[0])
        self._create_non_slot_variable(2.0, "period", var_list[0])

    def _own(self, name: str) -> Any:
        graph = None if tf.executing_eagerly() else v1.get_default_graph()
        return self._get_non_slot_variable(name, graph=graph)

    def _update(self, grad: Any, var: Any) -> Any:
        share = self._own("current") / self._own("period")
        rate = self._rate * 0.5 * (1.0 + tf.cos(np.pi * share))
        return var.assign_sub(rate * grad)

    def _finish(self, update_ops: Any, name_scope: str) -> Any:
        ops = [op for op in update_ops if op is not None]
        current, period = self._own("current"), self._own("period")
        with tf.control_dependencies(ops):
            next_step = tf.identity(current) + 1.0
            ends = next_step >= period
            longer = tf.where(ends, period * 2.0, period)
            with tf.control_dependencies([longer]):
                first = current.assign(tf.where(ends, tf.zeros_like(next_step), next_step))
                second = period.assign(longer)
        return tf.group(*ops, first, second, name=name_scope)


class Averaging(v1.train.GradientDescentOptimizer):
    """SWA: an average of the weights, in slots, from the second step on."""

    def __init__(self) -> None:
        super().__init__(0.1, name="Averaging")

    def apply_gradients(
        self, grads_and_vars: Any, global_step: Any = None, name: Any = None
    ) -> Any:
        pairs = list(grads_and_vars)
        step = v1.train.get_or_create_global_step()
        op = super().apply_gradients(pairs, step, name)
        updates = []
        with tf.control_dependencies([] if op is None else [op]):
            count = tf.maximum(tf.cast(step, tf.float32) - 1.0, 1.0)
            for _, var in pairs:
                average = self._zeros_slot(var, "average", self._name)
                updates.append(average.assign_add((var - average) / count))
        return tf.group(*updates)


class Multiplied(Base):
    """Rates by the names of variables."""

    RATES = {"kernel": 0.5, "table": 2.0}

    def _update(self, grad: Any, var: Any) -> Any:
        name = var.op.name if hasattr(var, "op") and not tf.executing_eagerly() else var.name
        factor = next((rate for part, rate in self.RATES.items() if part in name), 1.0)
        return var.assign_sub(self._rate * factor * grad)


class Noisy(v1.train.GradientDescentOptimizer):
    """Gradient noise that falls with the step; made of what was given, so that it is known."""

    def __init__(self) -> None:
        super().__init__(0.1, name="Noisy")

    def apply_gradients(
        self, grads_and_vars: Any, global_step: Any = None, name: Any = None
    ) -> Any:
        step = tf.cast(v1.train.get_or_create_global_step(), tf.float32)
        deviation = tf.sqrt(0.3 / tf.pow(1.0 + step, 0.55))
        noisy = []
        for grad, var in grads_and_vars:
            if isinstance(grad, tf.IndexedSlices):
                values = grad.values + deviation * tf.sin(100.0 * grad.values)
                noisy.append((tf.IndexedSlices(values, grad.indices, grad.dense_shape), var))
            else:
                noisy.append((grad + deviation * tf.sin(100.0 * grad), var))
        return super().apply_gradients(noisy, global_step, name)


class Lars(Base):
    """LARS as the TPU models have it: momentum of a rate that is scaled by layer."""

    def _create_slots(self, var_list: Any) -> None:
        for var in var_list:
            self._zeros_slot(var, "momentum", self._name)

    def _update(self, grad: Any, var: Any) -> Any:
        rate: Any = self._rate
        if not any(part in var.name for part in ("bias", "beta")):
            norm, size = tf.norm(var, ord=2), tf.norm(grad, ord=2)
            ratio = tf.where(
                tf.greater(norm, 0.0),
                tf.where(tf.greater(size, 0.0), 0.1 * norm / (size + 1e-3 * norm + 1e-9), 1.0),
                1.0,
            )
            rate = self._rate * ratio
            grad = grad + 1e-3 * var
        momentum = self.get_slot(var, "momentum")
        new_m = momentum.assign(momentum * 0.9 - rate * grad)
        return var.assign_add(new_m)


class Accumulating(Base):
    """Adds gradients up, and has another optimizer take a step at every second."""

    def __init__(self, inner: Any) -> None:
        super().__init__()
        self._inner = inner

    def apply_gradients(
        self, grads_and_vars: Any, global_step: Any = None, name: Any = None
    ) -> Any:
        pairs = [(tf.convert_to_tensor(grad), var) for grad, var in grads_and_vars]
        variables = [var for _, var in pairs]
        sums = [self._zeros_slot(var, "sum", self._name) for var in variables]
        if tf.executing_eagerly():
            self._inner._create_slots(variables)
        count = self._create_non_slot_variable(0.0, "count", variables[0])
        sums_op = [total.assign_add(grad) for total, (grad, _) in zip(sums, pairs)]
        with tf.control_dependencies([*sums_op, count.assign_add(1.0)]):

            def step() -> Any:
                means = [(total / 2.0, var) for total, var in zip(sums, variables)]
                op = self._inner.apply_gradients(means, global_step)
                with tf.control_dependencies([] if op is None else [op]):
                    return tf.group(*[total.assign(tf.zeros_like(total)) for total in sums])

            is_time = tf.equal(count % 2.0, 0.0)
            return tf.group(tf.cond(is_time, step, tf.no_op), name=name)


V1: dict[str, Callable[[], Any]] = {
    "decaying": Decaying,
    "counting": Counting,
    "rectified": Rectified,
    "bounded": Bounded,
    "lookahead": lambda: Lookahead(v1.train.AdamOptimizer(0.1)),
    "lookahead of hooks": lambda: Lookahead(Rectified()),
    "centralized": Centralized,
    "restarting": Restarting,
    "averaging": Averaging,
    "multiplied": Multiplied,
    "noisy": Noisy,
    "lars": Lars,
    "accumulating": lambda: Accumulating(v1.train.MomentumOptimizer(0.1, 0.9)),
    "accumulating hooks": lambda: Accumulating(Lars()),
}


# --- of Keras -------------------------------------------------------------------------------------


class Slotted(keras.Optimizer):
    """Keras' base class with slots, whose rows are whole gradients."""

    SLOTS: tuple[str, ...] = ()

    def __init__(self, rate: Any = 0.1, name: Any = None, **kwargs: Any) -> None:
        super().__init__(name or type(self).__name__, **kwargs)
        self._set_hyper("learning_rate", rate)
        self._set_hyper("decay", self._initial_decay)

    def _create_slots(self, var_list: Any) -> None:
        for slot in self.SLOTS:
            for var in var_list:
                self.add_slot(var, slot)

    def _update(self, grad: Any, var: Any, apply_state: Any) -> Any:
        raise NotImplementedError

    def _resource_apply_dense(self, grad: Any, var: Any, apply_state: Any = None) -> Any:
        return self._update(grad, var, apply_state)

    def _resource_apply_sparse(
        self, grad: Any, var: Any, indices: Any, apply_state: Any = None
    ) -> Any:
        dense = tf.math.unsorted_segment_sum(grad, indices, var.shape[0])
        return self._update(dense, var, apply_state)

    def get_config(self) -> Any:
        rate = self._serialize_hyperparameter("learning_rate")
        return {**super().get_config(), "learning_rate": rate}


def rate_of(optimizer: Any, var: Any, apply_state: Any) -> Any:
    device, dtype = var.device, var.dtype.base_dtype
    hypers = (apply_state or {}).get((device, dtype)) or optimizer._fallback_apply_state(
        device, dtype
    )
    return hypers["lr_t"]


class KerasDecaying(Slotted):
    """A rate that decays with `iterations`, by a function of TensorFlow 1."""

    def _prepare_local(self, var_device: Any, var_dtype: Any, apply_state: Any) -> None:
        super()._prepare_local(var_device, var_dtype, apply_state)
        rate = v1.train.exponential_decay(0.1, self.iterations, 2, 0.5)
        apply_state[var_device, var_dtype]["lr_t"] = rate() if callable(rate) else rate

    def _update(self, grad: Any, var: Any, apply_state: Any) -> Any:
        return var.assign_sub(rate_of(self, var, apply_state) * grad)


class KerasCounting(Slotted):
    """Keeps count in Python, and asks whether it computes at once."""

    calls = 0

    def _update(self, grad: Any, var: Any, apply_state: Any) -> Any:
        self.calls += 1
        factor = 2.0 if tf.executing_eagerly() else 1.0
        return var.assign_sub(factor * rate_of(self, var, apply_state) / self.calls * grad)


class KerasLamb(Slotted):
    """LAMB: Adam's moments, and a step as long as the layer's weights are."""

    SLOTS = ("m", "v")

    def _update(self, grad: Any, var: Any, apply_state: Any) -> Any:
        m, v = self.get_slot(var, "m"), self.get_slot(var, "v")
        step = tf.cast(self.iterations + 1, var.dtype)
        m_t = m.assign(m * 0.9 + grad * 0.1)
        v_t = v.assign(v * 0.99 + tf.square(grad) * 0.01)
        unbiased = m_t / (1.0 - tf.pow(0.9, step))
        direction = unbiased / (tf.sqrt(v_t / (1.0 - tf.pow(0.99, step))) + 1e-6)
        if "bias" not in var.name:
            direction += 0.01 * var
        norm, size = tf.norm(var, ord=2), tf.norm(direction, ord=2)
        ratio = tf.where(norm > 0, tf.where(size > 0, norm / size, 1.0), 1.0)
        var_update = var.assign_sub(ratio * rate_of(self, var, apply_state) * direction)
        return tf.group(var_update, m_t, v_t)


class KerasFactored(Slotted):
    """Adafactor: the second moment of a matrix as one of its rows and one of its columns."""

    def _create_slots(self, var_list: Any) -> None:
        for var in var_list:
            shape = var.shape.as_list()
            if len(shape) == 2:
                self.add_slot(var, "rows", tf.zeros(shape[:-1]))
                self.add_slot(var, "columns", tf.zeros(shape[1:]))
            else:
                self.add_slot(var, "whole")

    def _update(self, grad: Any, var: Any, apply_state: Any) -> Any:
        step = tf.cast(self.iterations, tf.float32) + 1.0
        decay = 1.0 - tf.pow(step, -0.8)
        squares = tf.square(grad) + 1e-30
        size = tf.sqrt(tf.reduce_mean(tf.square(var)))
        if len(var.shape) == 2:
            rows, columns = self.get_slot(var, "rows"), self.get_slot(var, "columns")
            new_rows = rows.assign(rows * decay + tf.reduce_mean(squares, 1) * (1.0 - decay))
            new_columns = columns.assign(
                columns * decay + tf.reduce_mean(squares, 0) * (1.0 - decay)
            )
            by_rows = tf.math.rsqrt(new_rows / tf.reduce_mean(new_rows))
            move = grad * tf.expand_dims(by_rows, 1) * tf.expand_dims(tf.math.rsqrt(new_columns), 0)
        else:
            slot = self.get_slot(var, "whole")
            move = grad * tf.math.rsqrt(slot.assign(slot * decay + squares * (1.0 - decay)))
        move /= tf.maximum(1.0, tf.sqrt(tf.reduce_mean(tf.square(move))))
        rate = rate_of(self, var, apply_state) * tf.maximum(size, 1e-3)
        return var.assign_sub(rate * move)


class KerasDecayedAdam(keras.Adam):
    """Adam with weight decay as the official models have it: decay before the update."""

    def __init__(self, rate: Any = 0.05, **kwargs: Any) -> None:
        super().__init__(rate, name="KerasDecayedAdam", **kwargs)

    def _prepare_local(self, var_device: Any, var_dtype: Any, apply_state: Any) -> None:
        super()._prepare_local(var_device, var_dtype, apply_state)
        apply_state[var_device, var_dtype]["decay"] = tf.constant(0.01, name="decay")

    def _decayed(self, var: Any, apply_state: Any) -> Any:
        if "bias" in var.name:
            return tf.no_op()
        hypers = apply_state[var.device, var.dtype.base_dtype]
        return var.assign_sub(hypers["lr_t"] * var * hypers["decay"], use_locking=self._use_locking)

    def apply_gradients(self, grads_and_vars: Any, name: Any = None, **kwargs: Any) -> Any:
        grads, variables = list(zip(*grads_and_vars))
        grads, _ = tf.clip_by_global_norm(grads, clip_norm=1.0)
        return super().apply_gradients(zip(grads, variables), name=name, **kwargs)

    def _resource_apply_dense(self, grad: Any, var: Any, apply_state: Any = None) -> Any:
        decay_op = self._decayed(var, apply_state)
        with tf.control_dependencies([] if decay_op is None else [decay_op]):
            return super()._resource_apply_dense(grad, var, apply_state=apply_state)

    def _resource_apply_sparse(
        self, grad: Any, var: Any, indices: Any, apply_state: Any = None
    ) -> Any:
        decay_op = self._decayed(var, apply_state)
        with tf.control_dependencies([] if decay_op is None else [decay_op]):
            return super()._resource_apply_sparse(grad, var, indices, apply_state=apply_state)


class DecayExtension:
    """A mixin that decays weights before each update, as the addons have it."""

    def __init__(self, decay: float, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._set_hyper("weight_decay", decay)  # type: ignore[attr-defined]

    def _decay_weights(self, var: Any) -> Any:
        return var.assign_sub(
            self._get_hyper("weight_decay", var.dtype) * var,  # type: ignore[attr-defined]
            use_locking=self._use_locking,  # type: ignore[attr-defined]
        )

    def _resource_apply_dense(self, grad: Any, var: Any, apply_state: Any = None) -> Any:
        with tf.control_dependencies([self._decay_weights(var)]):
            return super()._resource_apply_dense(  # type: ignore[misc]
                grad, var, apply_state=apply_state
            )

    def _resource_apply_sparse(
        self, grad: Any, var: Any, indices: Any, apply_state: Any = None
    ) -> Any:
        with tf.control_dependencies([self._decay_weights(var)]):
            return super()._resource_apply_sparse(  # type: ignore[misc]
                grad, var, indices, apply_state=apply_state
            )


class DecayedMomentum(DecayExtension, keras.SGD):
    """SGD with momentum and decoupled decay."""


class DecayedAdagrad(DecayExtension, keras.Adagrad):
    """Adagrad with decoupled decay."""


class KerasLookahead(Slotted):
    """Slow weights beside another optimizer's, which every second step brings together."""

    def __init__(self, inner: Any) -> None:
        keras.Optimizer.__init__(self, "KerasLookahead")
        self._inner = inner

    def apply_gradients(self, grads_and_vars: Any, name: Any = None, **kwargs: Any) -> Any:
        self._inner._iterations = self.iterations
        return super().apply_gradients(grads_and_vars, name, **kwargs)

    def _create_slots(self, var_list: Any) -> None:
        self._inner._create_slots(var_list)
        for var in var_list:
            self.add_slot(var, "slow", initializer=var if tf.executing_eagerly() else "ones")

    def _create_hypers(self) -> None:
        self._inner._create_hypers()

    def _prepare(self, var_list: Any) -> Any:
        return self._inner._prepare(var_list)

    def _together(self, var: Any) -> Any:
        slow = self.get_slot(var, "slow")
        is_time = tf.equal((self.iterations + 1) % 2, 0)
        new_slow = slow + 0.5 * (var - slow)
        slow_t = slow.assign(tf.where(is_time, new_slow, slow))
        with tf.control_dependencies([slow_t]):
            return var.assign(tf.where(is_time, new_slow, var))

    def _resource_apply_dense(self, grad: Any, var: Any, apply_state: Any = None) -> Any:
        op = self._inner._resource_apply_dense(grad, var)
        with tf.control_dependencies([] if op is None else [op]):
            return self._together(var)

    def _resource_apply_sparse(
        self, grad: Any, var: Any, indices: Any, apply_state: Any = None
    ) -> Any:
        op = self._inner._resource_apply_sparse(grad, var, indices)
        with tf.control_dependencies([] if op is None else [op]):
            return self._together(var)


class KerasAveraging(keras.SGD):
    """SWA: an average of the weights in a slot, by an `apply_gradients` around its class's."""

    def __init__(self) -> None:
        super().__init__(0.1, name="KerasAveraging")

    def _create_slots(self, var_list: Any) -> None:
        super()._create_slots(var_list)
        for var in var_list:
            self.add_slot(var, "average")

    def apply_gradients(self, grads_and_vars: Any, name: Any = None, **kwargs: Any) -> Any:
        pairs = list(grads_and_vars)
        op = super().apply_gradients(pairs, name=name, **kwargs)
        with tf.control_dependencies([op]):
            count = tf.cast(self.iterations, tf.float32)
            averages = [(self.get_slot(var, "average"), var) for _, var in pairs]
            return tf.group(
                *[average.assign(average + (var - average) / count) for average, var in averages]
            )


class KerasCentralized(keras.RMSprop):
    """Gradient centralization in `_transform_gradients`, after clipping."""

    def __init__(self) -> None:
        super().__init__(0.05, momentum=0.5, name="KerasCentralized", clipnorm=1.0)

    def _transform_gradients(self, grads_and_vars: Any) -> Any:
        pairs = super()._transform_gradients(grads_and_vars)
        return [
            (grad, var)
            if isinstance(grad, tf.IndexedSlices) or len(grad.shape) < 2
            else (grad - tf.reduce_mean(grad, axis=0, keepdims=True), var)
            for grad, var in pairs
        ]


class KerasMultiplied(keras.Adam):
    """Rates by the names of variables: another `lr_t` and `lr` in a copy of the coefficients."""

    def __init__(self) -> None:
        super().__init__(0.05, name="KerasMultiplied")

    def _resource_apply_dense(self, grad: Any, var: Any, apply_state: Any = None) -> Any:
        factor = 0.5 if "kernel" in var.name else 1.0
        return super()._resource_apply_dense(grad * factor, var, apply_state)


class KerasAccumulating(Slotted):
    """Adds gradients up, and takes a step of momentum at every second."""

    SLOTS = ("sum", "momentum")

    def _update(self, grad: Any, var: Any, apply_state: Any) -> Any:
        total, momentum = self.get_slot(var, "sum"), self.get_slot(var, "momentum")
        new_total = total.assign_add(grad)
        rate = rate_of(self, var, apply_state)

        def step() -> Any:
            new_m = momentum.assign(0.9 * momentum - rate * new_total / 2.0)
            with tf.control_dependencies([var.assign_add(new_m)]):
                return tf.group(total.assign(tf.zeros_like(total)))

        return tf.cond(tf.equal((self.iterations + 1) % 2, 0), step, tf.no_op)


class KerasRectified(Slotted):
    """RAdam with Keras' hyperparameters, and warmup by `_get_hyper`."""

    SLOTS = ("m", "v")

    def __init__(self) -> None:
        super().__init__(0.1)
        self._set_hyper("beta_1", 0.9)
        self._set_hyper("beta_2", 0.8)
        self._set_hyper("warmup", 3.0)

    def _update(self, grad: Any, var: Any, apply_state: Any) -> Any:
        m, v = self.get_slot(var, "m"), self.get_slot(var, "v")
        beta1, two = self._get_hyper("beta_1", var.dtype), self._get_hyper("beta_2", var.dtype)
        step = tf.cast(self.iterations + 1, var.dtype.base_dtype)
        share = tf.minimum(step / self._get_hyper("warmup", var.dtype), 1.0)
        rate = self._decayed_lr(var.dtype.base_dtype) * share
        m_t = m.assign(beta1 * m + (1.0 - beta1) * grad, use_locking=self._use_locking)
        v_t = v.assign(two * v + (1.0 - two) * tf.square(grad), use_locking=self._use_locking)
        largest = 2.0 / (1.0 - two) - 1.0
        power = tf.pow(two, step)
        length = largest - 2.0 * step * power / (1.0 - power)
        root = tf.sqrt(
            (length - 4.0) / (largest - 4.0)
            * (length - 2.0) / (largest - 2.0)
            * largest / length
        )  # fmt: skip
        unbiased = m_t / (1.0 - tf.pow(beta1, step))
        move = tf.where(
            length >= 5.0, root * unbiased / (tf.sqrt(v_t / (1.0 - power)) + 1e-7), unbiased
        )
        return tf.group(var.assign_sub(rate * move, use_locking=self._use_locking), m_t, v_t)


class KerasFalling(keras.SGD):
    """A rate of its own for each step, in `_decayed_lr`."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(0.2, momentum=0.5, name="KerasFalling", **kwargs)

    def _decayed_lr(self, var_dtype: Any) -> Any:
        step = tf.cast(self.iterations, var_dtype)
        return super()._decayed_lr(var_dtype) / (1.0 + step)


def scheduled() -> Any:
    """Return SGD with a schedule, and gradients that functions change."""
    rate = schedules.PolynomialDecay(0.2, 4, 0.01)
    return keras.SGD(rate, name="Scheduled", gradient_transformers=[_halved], decay=0.1)


def _halved(grads_and_vars: Any) -> Any:
    return [
        (tf.convert_to_tensor(grad) * 0.5 if isinstance(grad, tf.IndexedSlices) else grad * 0.5, v)
        for grad, v in grads_and_vars
    ]


KERAS: dict[str, Callable[[], Any]] = {
    "decaying": KerasDecaying,
    "counting": KerasCounting,
    "lamb": KerasLamb,
    "lamb on a schedule": lambda: KerasLamb(schedules.ExponentialDecay(0.1, 2, 0.5)),
    "factored": KerasFactored,
    "decayed Adam": KerasDecayedAdam,
    "clipped lamb": lambda: KerasLamb(global_clipnorm=0.5),
    "decayed momentum": lambda: DecayedMomentum(0.01, 0.1, momentum=0.9, name="DecayedMomentum"),
    "decayed Adagrad": lambda: DecayedAdagrad(0.01, 0.1, name="DecayedAdagrad"),
    "lookahead": lambda: KerasLookahead(keras.Adam(0.1)),
    "lookahead of hooks": lambda: KerasLookahead(KerasLamb(0.1)),
    "averaging": KerasAveraging,
    "centralized": KerasCentralized,
    "multiplied": KerasMultiplied,
    "accumulating": KerasAccumulating,
    "rectified": KerasRectified,
    "falling": KerasFalling,
    "falling, clipped": lambda: KerasFalling(clipvalue=0.5),
    "scheduled": scheduled,
}


# --- what they make of a few steps ----------------------------------------------------------------


def starts() -> dict[str, np.ndarray[Any, Any]]:
    random = np.random.default_rng(7)
    return {name: random.normal(size=shape).astype(np.float32) for name, shape in SHAPES.items()}


def loss_of(params: dict[str, Any]) -> Any:
    kernel, bias, table = params.values()
    rows = tf.square(tf.gather(table, ROWS)) * tf.constant([1.0, 2.0])
    return tf.reduce_sum(tf.square(kernel - 1.0) + kernel * bias) + tf.reduce_sum(rows)


def numbers(value: Any) -> list[float]:
    return [float(str(x)) for x in np.ravel(np.asarray(value))]


def in_a_graph(face: str, name: str) -> dict[str, Any]:
    """Return the values of all variables after each step, and the name of the operation."""
    with tf.Graph().as_default(), v1.Session() as session:
        params = {name: v1.Variable(start, name=name) for name, start in starts().items()}
        step = v1.train.get_or_create_global_step()
        optimizer = {"v1": V1, "keras": KERAS}[face][name]()
        if face == "v1":
            gate = optimizer.GATE_GRAPH  # or TensorFlow may read what it has updated
            op = optimizer.minimize(loss_of(params), step, list(params.values()), gate)
        else:
            grads = v1.gradients(loss_of(params), list(params.values()))
            op = optimizer.apply_gradients(list(zip(v1.tuple(grads), params.values())))
        session.run(v1.global_variables_initializer())
        variables = {var.op.name: var for var in v1.global_variables()}
        values: dict[str, list[Any]] = {name: [] for name in variables}
        for _ in range(STEPS):
            session.run(op)
            for key, value in session.run(variables).items():
                values[key].append(numbers(value))
        return {"name": op.name, "values": values}


def eagerly(face: str, name: str) -> dict[str, Any]:
    """Return the values of the trained variables after each step."""
    params = {name: tf.Variable(start, name=name) for name, start in starts().items()}
    optimizer = {"v1": V1, "keras": KERAS}[face][name]()
    step = v1.train.get_or_create_global_step()
    step.assign(0)
    values: dict[str, list[Any]] = {name: [] for name in params}
    for _ in range(STEPS):
        if face == "v1":
            optimizer.minimize(lambda: loss_of(params), step, list(params.values()))
        else:
            optimizer.minimize(lambda: loss_of(params), list(params.values()))
        for key, var in params.items():
            values[key].append(numbers(var.numpy()))
    return {"values": values}


CASES = {
    f"{face}/{name}/{mode.__name__}": (mode, face, name)
    for face, names in (("v1", V1), ("keras", KERAS))
    for name in names
    for mode in (in_a_graph, eagerly)
}


def taken(case: str) -> dict[str, Any]:
    """Return the outcomes of one of `CASES`."""
    mode, face, name = CASES[case]
    return mode(face, name)


if __name__ == "__main__":
    cases = {case: taken(case) for case in CASES}
    lines = [f"{json.dumps(case)}: {json.dumps(outcome)}" for case, outcome in cases.items()]
    Path(sys.argv[1]).write_text("{\n" + ",\n".join(lines) + "\n}\n")
