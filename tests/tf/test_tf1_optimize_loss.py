"""`tf.contrib.layers.optimize_loss`, and `tf.contrib.layers` in `thalweg.v1`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import fresh_process
import thalweg.tf.compat.v1 as tf
from thalweg import v1

optimize_loss = tf.contrib.layers.optimize_loss


@pytest.fixture(autouse=True)
def _graph() -> Iterator[None]:
    with tf.Graph().as_default():
        yield


def weights() -> Any:
    return tf.get_variable("w", initializer=np.array([3.0, 4.0], np.float32))


def trained(w: Any, train_op: Any, steps: int = 1) -> tuple[list[float], list[float]]:
    """Return the losses of some steps, and the weights after them."""
    with tf.Session() as session:
        session.run([tf.global_variables_initializer(), tf.local_variables_initializer()])
        losses = [float(session.run(train_op)) for _ in range(steps)]
        return losses, session.run(w).tolist()


def by_name(w: Any) -> dict[Any, float]:
    return {"w:0": 0.5}


def by_variable(w: Any) -> dict[Any, float]:
    return {w: 0.5}


def by_tensor(w: Any) -> dict[Any, Any]:
    return {w: tf.constant(0.5, tf.float64)}


# The gradient of the loss w * w is [6, 8], of norm 10.
STEPS: dict[str, tuple[dict[str, Any], list[float]]] = {
    "name": ({"optimizer": "SGD"}, [0.0, 0.0]),
    "class": ({"optimizer": v1.train.GradientDescentOptimizer}, [0.0, 0.0]),
    "optimizer": ({"optimizer": v1.train.GradientDescentOptimizer(0.25)}, [1.5, 2.0]),
    "clipped": ({"clip_gradients": 1.0}, [2.7, 3.6]),
    "clipped by a function": ({"clip_gradients": lambda pairs: [(g * 0.1, v) for g, v in pairs]},
                              [2.7, 3.6]),
    "multiplied": ({"gradient_multipliers": by_name}, [1.5, 2.0]),
    "multiplied by variable": ({"gradient_multipliers": by_variable}, [1.5, 2.0]),
    "multiplied by a tensor of another dtype": ({"gradient_multipliers": by_tensor}, [1.5, 2.0]),
    "decayed": ({"learning_rate_decay_fn": lambda rate, step: rate * 0.1}, [2.7, 3.6]),
    "rate of an optimizer": ({"learning_rate": None,
                              "optimizer": lambda: v1.train.GradientDescentOptimizer(0.05)},
                             [2.7, 3.6]),
    "momentum": ({"optimizer": "Momentum"}, [0.0, 0.0]),
    "adagrad": ({"optimizer": "Adagrad"}, [2.5, 3.5]),
    "adam": ({"optimizer": "Adam"}, [2.5, 3.5]),
    "noise": ({"gradient_noise_scale": 0.0}, [0.0, 0.0]),
}  # fmt: skip


@pytest.mark.parametrize("name", STEPS)
def test_optimize_loss_takes_one_step(name: str) -> None:
    options, expected = STEPS[name]
    w = weights()
    arguments: dict[str, Any] = {"learning_rate": 0.5, "optimizer": "SGD", **options}
    if "gradient_multipliers" in arguments:
        arguments["gradient_multipliers"] = arguments["gradient_multipliers"](w)
    step = tf.train.get_or_create_global_step()
    losses, w_after = trained(w, optimize_loss(tf.reduce_sum(w * w), step, **arguments))
    assert losses == [25.0]
    assert w_after == pytest.approx(expected, rel=2e-3, abs=1e-6)


def test_optimizer_may_be_a_function_of_the_rate() -> None:
    w, rates = weights(), []

    def make(rate: Any) -> Any:
        rates.append(rate)
        return v1.train.GradientDescentOptimizer(rate * 0.1)

    train_op = optimize_loss(tf.reduce_sum(w * w), None, 0.5, make)
    assert trained(w, train_op)[1] == pytest.approx([2.7, 3.6])
    assert rates[0].name == "OptimizeLoss/learning_rate:0"
    assert rates[0] not in tf.trainable_variables()


@pytest.mark.parametrize("shape", [[], None], ids=str)
def test_a_rate_may_be_a_tensor(shape: Any) -> None:
    w, rate = weights(), tf.placeholder_with_default(tf.constant(0.05), shape)
    assert trained(w, optimize_loss(tf.reduce_sum(w * w), None, rate, "SGD"))[1] == pytest.approx(
        [2.7, 3.6]
    )


def test_noise_is_added_to_gradients() -> None:
    w = weights()
    train_op = optimize_loss(tf.reduce_sum(w * w), None, 0.5, "SGD", gradient_noise_scale=0.1)
    w_after = trained(w, train_op)[1]
    assert w_after != [0.0, 0.0]
    assert w_after == pytest.approx([0.0, 0.0], abs=0.11)


@pytest.mark.parametrize("dtype", [None, tf.float64], ids=str)
def test_sparse_gradients_are_multiplied(dtype: Any) -> None:
    w = tf.get_variable("w", initializer=np.ones((3, 1), np.float32))
    loss = tf.reduce_sum(tf.gather(w, [0, 2]))
    factor = 0.5 if dtype is None else tf.constant(0.5, dtype)
    train_op = optimize_loss(loss, None, 1.0, "SGD", gradient_multipliers={"w:0": factor})
    assert trained(w, train_op)[1] == [[0.5], [1.0], [0.5]]


@pytest.mark.parametrize("counts_steps", [True, False])
def test_optimize_loss_increments_the_global_step(counts_steps: bool) -> None:
    w, step = weights(), tf.train.get_or_create_global_step()
    loss = tf.reduce_sum(w * w)
    train_op = optimize_loss(loss, None, 0.1, "SGD", increment_global_step=counts_steps)
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        session.run([train_op] * 2)
        session.run(train_op)
        assert session.run(step) == (2 if counts_steps else 0)


@pytest.mark.parametrize("is_explicit", [False, True])
def test_update_ops_run_before_the_loss(is_explicit: bool) -> None:
    w = weights()
    scale = tf.get_variable("scale", initializer=1.0, trainable=False)
    with tf.control_dependencies(None):
        update = scale.assign(2.0)
    if not is_explicit:
        tf.add_to_collection(tf.GraphKeys.UPDATE_OPS, update)
    update_ops = [update] if is_explicit else None
    train_op = optimize_loss(tf.reduce_sum(w * w), None, 0.1, "SGD", update_ops=update_ops)
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        session.run(train_op)
        assert session.run(scale) == 2.0


SUMMARIES: dict[str, tuple[Any, Any, list[str]]] = {
    "default": (None, None, ["global_norm/gradient_norm", "loss"]),
    "clipped": (None, 1.0, ["global_norm/clipped_gradient_norm", "global_norm/gradient_norm",
                            "loss"]),
    "none": ([], 1.0, []),
    "all": (
        tf.contrib.layers.OPTIMIZER_SUMMARIES, None,
        ["global_norm/gradient_norm", "gradient_norm/w_0", "gradients/w_0", "learning_rate_1",
         "loss"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", SUMMARIES)
def test_optimize_loss_writes_requested_summaries(name: str) -> None:
    summaries, clip, expected = SUMMARIES[name]
    w = weights()
    decay = (lambda rate, step: rate) if name == "all" else None
    options = {"summaries": summaries, "clip_gradients": clip, "learning_rate_decay_fn": decay}
    step = tf.train.get_or_create_global_step()
    optimize_loss(tf.reduce_sum(w * w), step, 0.5, "SGD", **options)
    merged = tf.summary.merge_all()
    tags = []
    if merged is not None:
        with tf.Session() as session:
            session.run(tf.global_variables_initializer())
            tags = [value.tag for value in tf.Summary.FromString(session.run(merged)).value]
    assert sorted(tags) == [f"OptimizeLoss/{tag}" for tag in expected]


INVALID: dict[str, tuple[dict[str, Any], str]] = {
    "name": ({"optimizer": "SGDD"}, "Optimizer name should be one of"),
    "rate": ({"learning_rate": -0.1}, "learning_rate must be a float"),
    "integer": ({"learning_rate": 1}, "learning_rate must be a float"),
    "no rate": ({"learning_rate": None}, "Learning rate is None"),
    "no rate of a class": (
        {"learning_rate": None, "optimizer": v1.train.AdamOptimizer}, "Learning rate is None",
    ),
    "object": ({"optimizer": 3}, "optimizer must be a name"),
    "function": ({"optimizer": lambda rate: 3}, "optimizer must be a name"),
    "summary": ({"summaries": ["norm"]}, "Summaries should be one of"),
    "clip": ({"clip_gradients": "1"}, "clip_gradients must be a float"),
    "decay": ({"learning_rate_decay_fn": lambda rate, step: rate}, "global_step is required"),
}  # fmt: skip


@pytest.mark.parametrize("name", INVALID)
def test_arguments_that_do_not_fit_raise(name: str) -> None:
    options, match = INVALID[name]
    w = weights()
    arguments: dict[str, Any] = {"learning_rate": 0.5, "optimizer": "SGD", **options}
    with pytest.raises(ValueError, match=match):
        optimize_loss(tf.reduce_sum(w * w), None, **arguments)


def test_v1_contrib_layers_are_the_facade_layers() -> None:
    facade = vars(tf.contrib.layers)
    modules = {"functions", "optimizers", "weights"}
    public = {name for name in facade if not name.startswith("_")} - modules - {"attribute_of"}
    assert public == set(v1.contrib.layers.__all__)
    assert all(getattr(v1.contrib.layers, name) is facade[name] for name in public)


def test_v1_contrib_layers_load_the_facade_lazily() -> None:
    process = fresh_process.run(
        "import sys\n"
        "from thalweg import v1\n"
        "v1.contrib.layers.l2_regularizer\n"
        "print('thalweg.tf' in sys.modules)\n"
        "with v1.Graph().as_default(), v1.Session() as session:\n"
        "    x = v1.placeholder('float32', [None, 3])\n"
        "    y = v1.contrib.layers.fully_connected(x, 2)\n"
        "    loss = v1.convert_to_tensor((y * y).mean())\n"
        "    step = v1.contrib.layers.optimize_loss(loss, None, 0.1, 'Adam')\n"
        "    session.run(v1.global_variables_initializer())\n"
        "    print(session.run(step, {x: [[1.0, 2.0, 3.0]]}) >= 0)\n"
    )
    assert process.stdout.split() == ["False", "True"], process.stderr


SCRIPT = """
import thalweg
thalweg.install_as_tensorflow(1)
import numpy as np
import tensorflow as tf

xs = np.array([[0.0], [1.0], [2.0], [3.0]], np.float32)
x, y = tf.train.slice_input_producer([xs, 2 * xs + 1], num_epochs=50, seed=1)
w, b = tf.get_variable("w", [1]), tf.get_variable("b", [1])
loss = tf.reduce_mean(tf.square(w * x + b - y))
step = tf.train.get_or_create_global_step()
train = tf.contrib.layers.optimize_loss(loss, step, 0.05, "SGD", clip_gradients=5.0)
with tf.Session() as session:
    session.run([tf.global_variables_initializer(), tf.local_variables_initializer()])
    coord = tf.train.Coordinator()
    threads = tf.train.start_queue_runners(session, coord)
    try:
        while not coord.should_stop():
            session.run(train)
    except tf.errors.OutOfRangeError:
        print(session.run(step), np.round(session.run([w, b]), 1).ravel().tolist())
    coord.request_stop()
    coord.join(threads)
"""


def test_a_script_of_version_1_trains_on_slices() -> None:
    process = fresh_process.run(SCRIPT)
    assert process.stdout == "200 [2.0, 1.0]\n", process.stderr
