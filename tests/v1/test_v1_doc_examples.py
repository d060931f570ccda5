"""The code blocks of TensorFlow's pages on `tf.compat.v1.train.Optimizer`, and of its source.

Only the imports differ; values that a block leaves open are filled in.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import thalweg.tf as tf

GradientDescentOptimizer = tf.compat.v1.train.GradientDescentOptimizer
keras_needed = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")


def test_example_of_structural_mapping_before() -> None:
    with tf.Graph().as_default() as graph:
        var0, var1 = tf.Variable([1.0, 2.0]), tf.Variable([3.0, 4.0])
        cost = 5 * var0 + 3 * var1
        global_step = tf.compat.v1.train.create_global_step()
        init_op = tf.compat.v1.global_variables_initializer()
        sgd_op = tf.compat.v1.train.GradientDescentOptimizer(3.0)
        opt_op = sgd_op.minimize(cost, global_step, [var0, var1])
    session = tf.compat.v1.Session(graph=graph)
    session.run(init_op)
    opt_op.run(session=session)
    assert session.run(global_step) == 1
    np.testing.assert_array_equal(session.run(var1), [-6.0, -5.0])


def test_example_of_structural_mapping_after() -> None:
    var0, var1 = tf.Variable([1.0, 2.0]), tf.Variable([3.0, 4.0])
    cost_fn = lambda: 5 * var0 + 3 * var1  # noqa: E731
    sgd = tf.keras.optimizers.SGD(3.0)
    sgd.minimize(cost_fn, [var0, var1])
    np.testing.assert_array_equal(var1.numpy(), [-6.0, -5.0])


def test_example_of_usage_before_migration(capsys: Any) -> None:
    g = tf.compat.v1.Graph()
    with g.as_default():
        var0 = tf.compat.v1.Variable([1.0, 2.0])
        var1 = tf.compat.v1.Variable([3.0, 4.0])
        cost = 5 * var0 + 3 * var1
        global_step = tf.compat.v1.Variable(
            tf.compat.v1.zeros([], tf.compat.v1.int64), name="global_step"
        )
        init_op = tf.compat.v1.initialize_all_variables()
        sgd_op = tf.compat.v1.train.GradientDescentOptimizer(3.0)
        opt_op = sgd_op.minimize(cost, global_step, [var0, var1])
    session = tf.compat.v1.Session(graph=g)
    session.run(init_op)
    opt_op.run(session=session)
    print(session.run(var0))  # noqa: T201
    assert capsys.readouterr().out == "[-14. -13.]\n"


def test_example_of_usage_after_migration(capsys: Any) -> None:
    var0 = tf.Variable([1.0, 2.0])
    var1 = tf.Variable([3.0, 4.0])
    cost_fn = lambda: 5 * var0 + 3 * var1  # noqa: E731
    sgd = tf.keras.optimizers.SGD(3.0)
    sgd.minimize(cost_fn, [var0, var1])
    print(var0.numpy())  # noqa: T201
    assert capsys.readouterr().out == "[-14. -13.]\n"


def test_example_of_usage() -> None:
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        variable = tf.Variable([1.0, 2.0])
        cost = tf.reduce_sum(variable * variable)
        # Create an optimizer with the desired parameters.
        opt = GradientDescentOptimizer(learning_rate=0.1)
        # Add Ops to the graph to minimize a cost by updating a list of variables.
        # "cost" is a Tensor, and the list of variables contains tf.Variable
        # objects.
        opt_op = opt.minimize(cost, var_list=[variable])
        tf.compat.v1.global_variables_initializer().run()
        # Execute opt_op to do one step of training:
        opt_op.run()
        np.testing.assert_allclose(session.run(variable), [0.8, 1.6], rtol=1e-6)


def MyCapper(gradient: Any) -> Any:
    return tf.clip_by_value(gradient, -1.0, 1.0)


def test_example_of_processing_gradients_in_a_graph() -> None:
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        variables = [tf.Variable([1.0, 0.25])]
        loss = tf.reduce_sum(tf.square(variables[0]))
        # Create an optimizer.
        opt = GradientDescentOptimizer(learning_rate=0.1)
        # Compute the gradients for a list of variables.
        grads_and_vars = opt.compute_gradients(loss, variables)
        # grads_and_vars is a list of tuples (gradient, variable).  Do whatever you
        # need to the 'gradient' part, for example cap them, etc.
        capped_grads_and_vars = [(MyCapper(gv[0]), gv[1]) for gv in grads_and_vars]
        # Ask the optimizer to apply the capped gradients.
        train_op = opt.apply_gradients(capped_grads_and_vars)
        session.run(tf.compat.v1.global_variables_initializer())
        session.run(train_op)
        np.testing.assert_allclose(session.run(variables[0]), [0.9, 0.2], rtol=1e-6)


def test_example_of_processing_gradients_in_eager_mode() -> None:
    variables = [tf.Variable([1.0, 0.25])]
    loss = lambda: tf.reduce_sum(tf.square(variables[0]))  # noqa: E731
    opt = GradientDescentOptimizer(learning_rate=0.1)
    grads_and_vars = opt.compute_gradients(loss, variables)
    capped_grads_and_vars = [(MyCapper(gv[0]), gv[1]) for gv in grads_and_vars]
    opt.apply_gradients(capped_grads_and_vars)
    np.testing.assert_allclose(variables[0].numpy(), [0.9, 0.2], rtol=1e-6)


@pytest.mark.parametrize("gate", ["GATE_NONE", "GATE_OP", "GATE_GRAPH"])
def test_example_of_gating_gradients(gate: str) -> None:
    opt = GradientDescentOptimizer(learning_rate=0.1)
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        variable = tf.Variable([1.0, 2.0])
        opt_op = opt.minimize(variable * variable, gate_gradients=getattr(opt, gate))
        session.run(tf.compat.v1.global_variables_initializer())
        session.run(opt_op)
        np.testing.assert_allclose(session.run(variable), [0.8, 1.6], rtol=1e-6)


def test_example_of_slots() -> None:
    opt = tf.compat.v1.train.MomentumOptimizer(0.1, 0.9)
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        variable = tf.Variable([1.0, 2.0])
        opt_op = opt.minimize(variable * variable)
        session.run(tf.compat.v1.global_variables_initializer())
        session.run(opt_op)
        (name,) = opt.get_slot_names()
        np.testing.assert_allclose(session.run(opt.get_slot(variable, name)), [2, 4], rtol=1e-6)
        assert opt.get_slot(variable, "missing") is None
        assert len(opt.variables()) == 1


@keras_needed
def test_example_of_compute_gradients_in_tf2() -> None:
    pytest.importorskip("keras", reason="Keras 3 is not installed")
    model = tf.keras.Sequential([tf.keras.layers.Dense(3, activation="softmax")])
    optimizer = tf.keras.optimizers.Adam(0.1)
    batch = np.eye(3, dtype="f4"), np.eye(3, dtype="f4")
    losses = []

    @tf.function
    def train_step(inputs: Any) -> None:
        batch_data, labels = inputs
        with tf.GradientTape() as tape:
            predictions = model(batch_data, training=True)
            loss = tf.keras.losses.CategoricalCrossentropy(
                reduction=tf.keras.losses.Reduction.NONE
            )(labels, predictions)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))
        losses.append(loss.detach().numpy())

    for _ in range(5):
        train_step(batch)
    assert losses[0].shape == (3,)
    assert losses[-1].sum() < losses[0].sum()
    assert optimizer.iterations.numpy() == 5
