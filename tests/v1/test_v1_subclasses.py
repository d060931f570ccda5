"""Optimizers derived from those of `tf.train`, written for TensorFlow's names and hooks."""

from __future__ import annotations

import types
from typing import Any

import numpy as np
import torch

import thalweg.tf as tf
from case_batches import many
from thalweg import Variable
from thalweg import v1 as base
from thalweg._base.scatter import repeat_last
from thalweg.v1 import contrib, train

v1 = tf.compat.v1


class Scheduled(train.Optimizer):
    """Its rate depends on a variable of the graph; some variables are left out."""

    def __init__(self, step: Any, excluded: Any = ()) -> None:
        super().__init__(False, "Scheduled")
        self._step, self._excluded = step, set(excluded)
        self._rate_t: Any = None

    def _prepare(self) -> None:
        self._rate_t = 1.0 / tf.cast(self._step + 1, tf.float32)

    def _resource_apply_dense(self, grad: Any, handle: Any) -> Any:
        if handle in self._excluded:
            return tf.no_op()
        rate = tf.cast(self._rate_t, handle.dtype.base_dtype)
        with tf.control_dependencies([handle.assign_sub(rate * grad)]):
            return tf.group(self._step.assign_add(0))


def test_symbols_have_values_in_hooks_and_stay_symbols_outside() -> None:
    with tf.Graph().as_default(), v1.Session() as session:
        step = v1.train.get_or_create_global_step()
        w, fixed = v1.Variable([4.0], name="w"), v1.Variable([4.0], name="fixed")
        opt = Scheduled(step, [fixed])
        train_op = opt.apply_gradients([(tf.ones([1]), w), (tf.ones([1]), fixed)], step)
        session.run(v1.global_variables_initializer())
        rate = opt._rate_t
        for expected in ([3.0], [2.5]):
            session.run(train_op)
            assert session.run(w).tolist() == expected
        assert session.run(fixed).tolist() == [4.0]
        assert opt._rate_t is rate
        assert session.run(rate) == np.float32(1 / 3)


class Counting(train.AdamOptimizer):
    """Replaces what both kinds of sparse gradients come by."""

    def _apply_sparse_shared(self, grad: Any, var: Any, indices: Any, scatter_add: Any) -> Any:
        slot = self.get_slot(var, "m")
        return tf.group(scatter_add(slot, indices, grad), scatter_add(var, indices, -grad))


@many("hook", ["_apply_sparse", "_resource_apply_sparse"])
def test_adam_shared_sparse_hook_is_called(hook: str) -> None:
    w, opt = Variable([1.0, 1.0, 1.0]), Counting(0.1)
    opt.apply_gradients([(tf.IndexedSlices(torch.tensor([1.0, 2.0]), torch.tensor([2, 2])), w)])
    assert w.tolist() == [1.0, 1.0, -2.0]
    assert opt.get_slot(w, "m").tolist() == [0.0, 0.0, 3.0]
    rows = tf.IndexedSlices(torch.tensor([1.0]), torch.tensor([0]))
    opt._create_slots([w])
    if hook == "_apply_sparse":
        opt._apply_sparse(rows, w)
    else:
        opt._resource_apply_sparse(rows.values, w, rows.indices)
    assert w.tolist() == [0.0, 1.0, -2.0]


def test_instance_hook_is_called() -> None:
    opt, grads = train.MomentumOptimizer(1.0, 0.0), []
    original_hook = opt._resource_apply_dense

    def only_if_positive(self: Any, grad: Any, handle: Any) -> Any:
        grads.append(grad.tolist())
        return original_hook(grad, handle) if (grad > 0).all() else None

    setattr(opt, "_resource_apply_dense", types.MethodType(only_if_positive, opt))  # noqa: B010
    w = Variable([3.0])
    for grad in ([1.0], [-1.0], [1.0]):
        opt.apply_gradients([(torch.tensor(grad), w)])
    assert (w.tolist(), grads) == ([1.0], [[1.0], [-1.0], [1.0]])


@many("in_graph", [True, False])
def test_the_powers_of_betas_are_those_of_the_present_graph(in_graph: bool) -> None:
    def check(w: Any) -> None:
        adam, adamax = train.AdamOptimizer(0.1), contrib.opt.AdaMaxOptimizer(0.1)
        for opt in (adam, adamax):
            opt.apply_gradients([(tf.ones([1]), w)])
        first, second = adam._get_beta_accumulators()
        power = adamax._get_beta_accumulators()
        assert [x.name.split(":")[0].split("_1")[0] for x in (first, second, power)] == [
            *("beta1_power", "beta2_power", "beta1_power")
        ]
        assert all(any(x is variable for variable in adam.variables()) for x in (first, second))
        assert len(adam.variables()) == 4
        assert len(adamax.variables()) == 3

    if in_graph:
        with tf.Graph().as_default():
            check(v1.Variable([1.0]))
    else:
        check(Variable([1.0]))


def test_an_assignment_initializes_a_variable_of_a_graph() -> None:
    with tf.Graph().as_default(), v1.Session() as session:
        w = v1.Variable([1.0, 2.0])
        assert session.run(w.assign([3.0, 4.0])).tolist() == [3.0, 4.0]
        session.run(w.assign_add([1.0, 1.0]))
        assert session.run(w).tolist() == [4.0, 5.0]


SCATTERED = {
    "add": [11.0, 2.0, 33.0],
    "sub": [-9.0, 2.0, -27.0],
    "mul": [10.0, 2.0, 600.0],
    "div": [0.1, 2.0, 0.015],
    "min": [1.0, 2.0, 3.0],
    "max": [10.0, 2.0, 20.0],
    "update": [10.0, 2.0, 20.0],
}


@many("in_graph", [True, False])
@many("kind", list(SCATTERED))
def test_hooks_can_scatter_to_rows(kind: str, in_graph: bool) -> None:
    scatter, rows = getattr(v1, f"scatter_{kind}"), ([2, 0, 2], [10.0, 10.0, 20.0])
    if in_graph:
        with tf.Graph().as_default(), v1.Session() as session:
            w = v1.Variable([1.0, 2.0, 3.0])
            session.run(w.initializer)
            scattered = session.run(scatter(w, tf.constant(rows[0]), tf.constant(rows[1])))
    else:
        w = Variable([1.0, 2.0, 3.0])
        assert scatter(w, *rows) is w
        scattered = w.numpy()
    np.testing.assert_allclose(scattered, np.array(SCATTERED[kind], np.float32), rtol=1e-6)


def test_repeated_rows_have_equal_values_where_writes_have_no_order() -> None:
    values, rows = torch.arange(5.0), torch.tensor([2, 0, 2, 1, 0])
    assert repeat_last(values, rows, 4).tolist() == [2.0, 4.0, 2.0, 3.0, 4.0]
    assert repeat_last(values[:0], rows[:0], 4).shape == (0,)


def test_slices_combined_with_a_tensor_are_dense() -> None:
    rows = tf.IndexedSlices(torch.tensor([1.0, 2.0]), torch.tensor([2, 2]), dense_shape=(3,))
    ones = torch.ones(3)
    sums = [ones + rows, rows + ones, ones - rows, rows - ones, rows + rows]
    assert [tensor.tolist() for tensor in sums] == [
        *([1.0, 1.0, 4.0], [1.0, 1.0, 4.0], [1.0, 1.0, -2.0], [-1.0, -1.0, 2.0], [0.0, 0.0, 6.0])
    ]


def test_eager_tensors_do_not_synchronize() -> None:
    w = Variable([1.0])
    with base.control_dependencies([w.assign_add([1.0]), None]):
        group = base.group(w.assign_add([1.0]), None)
    assert (w.tolist(), group) == ([3.0], None)
