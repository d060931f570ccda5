"""The code blocks of TensorFlow's page on `tf.keras.optimizers.Optimizer`.

Only the imports differ; values that a block leaves open are filled in. The blocks that need no
name but those of optimizers run with `import thalweg as tf`, too; there, a stand-in with the same
variables takes the place of a model. The blocks on strategies of `tf.distribute` have no
counterpart.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import thalweg
import thalweg.tf as tf

pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")


each_import = pytest.mark.parametrize("tf", [thalweg, tf], ids=["thalweg", "thalweg.tf"])


def test_example_of_usage_in_graph_mode() -> None:
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        var1, var2 = tf.Variable(10.0), tf.Variable(10.0)
        # Create an optimizer with the desired parameters.
        opt = tf.keras.optimizers.SGD(learning_rate=0.1)
        # `loss` is a callable that takes no argument and returns the value
        # to minimize.
        loss = lambda: 3 * var1 * var1 + 2 * var2 * var2  # noqa: E731
        # In graph mode, returns op that minimizes the loss by updating the listed
        # variables.
        opt_op = opt.minimize(loss, var_list=[var1, var2])
        session.run(tf.compat.v1.global_variables_initializer())
        opt_op.run()
        np.testing.assert_allclose(session.run([var1, var2]), [4.0, 6.0], rtol=1e-6)


def test_example_of_callable_var_list() -> None:
    pytest.importorskip("keras", reason="Keras 3 is not installed")
    num_hidden, num_classes = 4, 2
    data = [(np.ones((3, 2), "f4"), np.ones((3, 2), "f4"))] * 2
    opt = tf.keras.optimizers.SGD(learning_rate=0.1)
    model = tf.keras.Sequential()
    model.add(tf.keras.layers.Dense(num_hidden, activation="relu"))
    model.add(tf.keras.layers.Dense(num_classes, activation="sigmoid"))
    loss_fn = lambda: tf.keras.losses.mse(model(input), output)  # noqa: E731
    var_list_fn = lambda: model.trainable_weights  # noqa: E731
    previous_loss = np.inf
    for input, output in data:  # noqa: B007
        current_loss = loss_fn().sum().item()
        opt.minimize(loss_fn, var_list_fn)
        assert current_loss < previous_loss
        previous_loss = current_loss
    assert loss_fn().sum().item() < previous_loss
    assert opt.iterations.numpy() == 2


def test_example_of_three_steps() -> None:
    var_list = vars = [tf.Variable([1.0, 2.0])]

    def process_gradient(g: Any) -> Any:
        return tf.clip_by_value(g, -3.0, 3.0)

    # Create an optimizer.
    opt = tf.keras.optimizers.SGD(learning_rate=0.1)
    # Compute the gradients for a list of variables.
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(tf.square(vars[0]))
    grads = tape.gradient(loss, vars)
    # Process the gradients, for example cap them, etc.
    # capped_grads = [MyCapper(g) for g in grads]
    processed_grads = [process_gradient(g) for g in grads]
    # Ask the optimizer to apply the processed gradients.
    opt.apply_gradients(zip(processed_grads, var_list))
    np.testing.assert_allclose(vars[0].numpy(), [0.8, 1.7], rtol=1e-6)


def trained(capsys: Any) -> Any:
    opt = tf.keras.optimizers.RMSprop()
    m = tf.keras.models.Sequential([tf.keras.layers.Dense(10)])
    m.compile(opt, loss="mse")
    data = np.arange(100).reshape(5, 20)
    labels = np.zeros(5)
    print("Training")  # noqa: T201
    results = m.fit(data, labels)
    assert capsys.readouterr().out.startswith("Training")
    assert np.isfinite(float(results.history["loss"][0]))
    return opt


def test_example_of_get_weights(capsys: Any) -> None:
    pytest.importorskip("keras", reason="Keras 3 is not installed")
    opt = trained(capsys)
    assert len(opt.get_weights()) == 3
    assert [np.shape(weight) for weight in opt.get_weights()] == [(), (20, 10), (10,)]
    assert opt.get_weights()[0] == 1


def test_example_of_set_weights(capsys: Any) -> None:
    pytest.importorskip("keras", reason="Keras 3 is not installed")
    opt = trained(capsys)
    new_weights = [np.array(10), np.ones([20, 10]), np.zeros([10])]
    opt.set_weights(new_weights)
    assert repr(opt.iterations) == "<tf.Variable 'RMSprop/iter:0' shape=() dtype=int64, numpy=10>"


def test_example_of_manual_aggregation() -> None:
    vars = [tf.Variable([1.0])]
    optimizer = tf.keras.optimizers.SGD(learning_rate=0.1)
    with tf.GradientTape() as tape:
        loss = tf.math.reduce_sum(vars[0] * 2)
    grads = tape.gradient(loss, vars)
    # Processing aggregated gradients.
    optimizer.apply_gradients(zip(grads, vars), experimental_aggregate_gradients=False)
    np.testing.assert_allclose(vars[0].numpy(), [0.8], rtol=1e-6)


def lr_callable() -> float:
    return 0.1


RATES = {
    "schedule": lambda: tf.keras.optimizers.schedules.ExponentialDecay(
        initial_learning_rate=0.1, decay_steps=20, decay_rate=0.1
    ),
    "callable": lambda: lr_callable,
}


@pytest.mark.parametrize("kind", RATES)
def test_example_of_callable_learning_rate(kind: str) -> None:
    var = tf.Variable(np.random.default_rng(0).random(size=(1,)))
    start = var.numpy()
    opt = tf.keras.optimizers.SGD(learning_rate=RATES[kind]())
    loss = lambda: 3 * var  # noqa: E731
    assert repr(opt.minimize(loss, var_list=[var])).startswith("<tf.Variable")
    np.testing.assert_allclose(var.numpy(), start - 0.3, rtol=1e-6)


@each_import
def test_example_of_usage(tf: Any) -> None:
    var1, var2 = tf.Variable(10.0), tf.Variable(10.0)
    # Create an optimizer with the desired parameters.
    opt = tf.keras.optimizers.SGD(learning_rate=0.1)
    # `loss` is a callable that takes no argument and returns the value
    # to minimize.
    loss = lambda: 3 * var1 * var1 + 2 * var2 * var2  # noqa: E731
    # In eager mode, simply call minimize to update the list of variables.
    opt.minimize(loss, var_list=[var1, var2])
    np.testing.assert_allclose([var1.numpy(), var2.numpy()], [4.0, 6.0], rtol=1e-6)


@each_import
def test_example_of_callable_var_list_of_a_stand_in(tf: Any) -> None:
    class Model:
        """Creates its variables when it is first called, as a Keras model without a shape."""

        trainable_weights: list[Any] = []

        def __call__(self, x: Any) -> Any:
            if not self.trainable_weights:
                self.trainable_weights = [tf.Variable(np.ones((2, 1), "f4"))]
            return x @ self.trainable_weights[0]

    data = [(tf.Variable([[1.0, 2.0]]).value(), tf.Variable([[1.0]]).value())] * 2
    opt = tf.keras.optimizers.SGD(learning_rate=0.1)
    model = Model()
    loss_fn = lambda: (model(input) - output).square().mean()  # noqa: E731
    var_list_fn = lambda: model.trainable_weights  # noqa: E731
    for input, output in data:  # noqa: B007
        opt.minimize(loss_fn, var_list_fn)
    assert opt.iterations.numpy() == 2


@each_import
def test_example_of_three_steps_with_a_scaled_gradient(tf: Any) -> None:
    vars = [tf.Variable([1.0, 2.0])]

    def process_gradient(g: Any) -> Any:
        return g * 0.5

    # Create an optimizer.
    opt = tf.keras.optimizers.SGD(learning_rate=0.1)
    # Compute the gradients for a list of variables.
    with tf.GradientTape() as tape:
        loss = (vars[0] ** 2).sum()
    grads = tape.gradient(loss, vars)
    # Process the gradients, for example cap them, etc.
    # capped_grads = [MyCapper(g) for g in grads]
    processed_grads = [process_gradient(g) for g in grads]
    # Ask the optimizer to apply the processed gradients.
    opt.apply_gradients(zip(processed_grads, vars))
    np.testing.assert_allclose(vars[0].numpy(), [0.9, 1.8], rtol=1e-6)


@each_import
def test_example_of_overwritten_hyperparameters(tf: Any) -> None:
    var1, var2 = tf.Variable(10.0), tf.Variable(10.0)
    # Create an optimizer with the desired parameters.
    opt = tf.keras.optimizers.SGD(learning_rate=0.1)
    # `loss` is a callable that takes no argument and returns the value
    # to minimize.
    loss = lambda: 3 * var1 + 2 * var2  # noqa: E731
    # In eager mode, simply call minimize to update the list of variables.
    opt.minimize(loss, var_list=[var1, var2])
    # update learning rate
    opt.learning_rate = 0.05
    opt.minimize(loss, var_list=[var1, var2])
    np.testing.assert_allclose([var1.numpy(), var2.numpy()], [9.55, 9.7], rtol=1e-6)


@each_import
def test_example_of_learning_rate_schedule(tf: Any) -> None:
    var = tf.Variable(np.random.default_rng(0).random(size=(1,)))
    start = var.numpy()
    learning_rate = tf.keras.optimizers.schedules.ExponentialDecay(
        initial_learning_rate=0.01, decay_steps=20, decay_rate=0.1
    )
    opt = tf.keras.optimizers.SGD(learning_rate=learning_rate)
    loss = lambda: 3 * var  # noqa: E731
    result = opt.minimize(loss, var_list=[var])
    assert repr(result).startswith("<tf.Variable")
    np.testing.assert_allclose(var.numpy(), start - 0.03, rtol=1e-6)


@each_import
def test_example_of_learning_rate_callable(tf: Any) -> None:
    var = tf.Variable(np.random.default_rng(0).random(size=(1,)))
    start = var.numpy()

    def lr_callable() -> float:
        return 0.1

    opt = tf.keras.optimizers.SGD(learning_rate=lr_callable)
    loss = lambda: 3 * var  # noqa: E731
    result = opt.minimize(loss, var_list=[var])
    assert repr(result) == "<tf.Variable 'SGD/iter:0' shape=() dtype=int64, numpy=1>"
    np.testing.assert_allclose(var.numpy(), start - 0.3, rtol=1e-6)


@each_import
def test_example_of_aggregated_gradients(tf: Any) -> None:
    var = tf.Variable([1.0])
    vars, optimizer = [var], tf.keras.optimizers.SGD(learning_rate=0.1)
    with tf.GradientTape() as tape:
        loss = (var * 2).sum()
    grads = tape.gradient(loss, vars)
    # Processing aggregated gradients.
    optimizer.apply_gradients(zip(grads, vars), experimental_aggregate_gradients=False)
    np.testing.assert_allclose(var.numpy(), [0.8], rtol=1e-6)


@each_import
def test_example_of_weights_shown_and_set(tf: Any) -> None:
    opt = tf.keras.optimizers.RMSprop()
    kernel, bias = tf.Variable(np.zeros((20, 10), "f4")), tf.Variable(np.zeros(10, "f4"))
    data = np.arange(100, dtype="f4").reshape(5, 20)
    labels = np.zeros((5, 1), "f4")
    x, y = tf.Variable(data).value(), tf.Variable(labels).value()
    opt.minimize(lambda: (x @ kernel + bias - y).square().mean(), [kernel, bias])
    assert len(opt.get_weights()) == 3
    new_weights = [np.array(10), np.ones([20, 10]), np.zeros([10])]
    opt.set_weights(new_weights)
    assert repr(opt.iterations) == "<tf.Variable 'RMSprop/iter:0' shape=() dtype=int64, numpy=10>"


@each_import
def test_example_of_slots(tf: Any) -> None:
    var = tf.Variable([1.0, 2.0], name="var")
    opt = tf.keras.optimizers.Adam()
    opt.minimize(lambda: (var**2).sum(), [var])
    assert opt.get_slot_names() == ["m", "v"]
    np.testing.assert_allclose(opt.get_slot(var, "m").numpy(), [0.2, 0.4], rtol=1e-6)
