"""Record TensorFlow's numbers on float16 and bfloat16 variables, for the bounds of docs/numbers.md.

    python tools/record_halves.py tests/goldens/halves.npz

needs tensorflow and tf_keras. Cases and inputs are those of `cases` and `problem`, which the tests
call, too. What TensorFlow has no kernel for is left out.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import numpy as np

STEPS, SHAPE, ROWS = 10, (6, 4), 5
RECORDED_STEPS = (0, 4, 9)  # steps whose values are kept
DTYPES = ("float16", "bfloat16")

_L1L2 = {"l1_regularization_strength": 0.2, "l2_regularization_strength": 0.05}
_SHRINKING = {"beta": 0.3, "l2_shrinkage_regularization_strength": 0.1}
_POWER = {"learning_rate": 0.3, "learning_rate_power": -0.7}
# The differences of two powers cancel most where the accumulator begins low.
_CANCELLING = {
    "learning_rate": 1.0,
    "learning_rate_power": -0.7,
    "initial_accumulator_value": 0.01,
    "l2_shrinkage_regularization_strength": 0.1,
}
_KERAS_BETAS = {"beta_1": 0.5, "beta_2": 0.95, "epsilon": 0.05}
# Row of the table in docs/numbers.md: (face, class, settings of it).
RULES: list[tuple[str, str, str, list[dict[str, Any]]]] = [
    ("GradientDescent", "v1", "GradientDescentOptimizer", [{"learning_rate": 0.1}]),
    ("GradientDescent", "keras", "SGD", [{"learning_rate": 0.37}]),
    ("Momentum", "v1", "MomentumOptimizer", [
        {"learning_rate": 0.05, "momentum": 0.9},
        {"learning_rate": 0.05, "momentum": 0.95, "use_nesterov": True}]),
    ("Momentum", "keras", "SGD", [
        {"learning_rate": 0.01, "momentum": 0.9},
        {"learning_rate": 0.1, "momentum": 0.5, "nesterov": True}]),
    ("Adagrad", "v1", "AdagradOptimizer", [{"learning_rate": 0.1}, {"learning_rate": 0.4}]),
    ("Adagrad", "keras", "Adagrad", [
        {"learning_rate": 0.1, "epsilon": 0.001},
        {"learning_rate": 0.3, "initial_accumulator_value": 0.5, "epsilon": 0.01}]),
    ("Adadelta", "v1", "AdadeltaOptimizer", [
        {"learning_rate": 1.0, "epsilon": 0.001},
        {"learning_rate": 0.3, "rho": 0.8, "epsilon": 0.03}]),
    ("Adadelta", "keras", "Adadelta", [
        {"learning_rate": 1.0, "rho": 0.9, "epsilon": 0.001},
        {"learning_rate": 0.3, "rho": 0.5, "epsilon": 0.03}]),
    ("Adam", "v1", "AdamOptimizer", [
        {"learning_rate": 0.1, "beta2": 0.9, "epsilon": 0.001},
        {"learning_rate": 0.02, "beta1": 0.5, "beta2": 0.95, "epsilon": 0.05}]),
    ("Adam", "keras", "Adam", [
        {"learning_rate": 0.1, "beta_2": 0.9, "epsilon": 0.001},
        {"learning_rate": 0.02, **_KERAS_BETAS, "amsgrad": True}]),
    ("Adam", "keras", "Nadam", [
        {"learning_rate": 0.1, "beta_2": 0.9, "epsilon": 0.001},
        {"learning_rate": 0.02, **_KERAS_BETAS}]),
    ("Adam", "keras", "Adamax", [
        {"learning_rate": 0.1, "beta_2": 0.9, "epsilon": 0.001},
        {"learning_rate": 0.02, **_KERAS_BETAS}]),
    ("RMSprop", "v1", "RMSPropOptimizer", [
        {"learning_rate": 0.01, "momentum": 0.9, "epsilon": 0.001},
        {"learning_rate": 0.1, "decay": 0.5, "epsilon": 0.03}]),
    ("RMSprop", "keras", "RMSprop", [
        {"learning_rate": 0.01, "epsilon": 0.001},
        {"learning_rate": 0.1, "rho": 0.5, "momentum": 0.5, "epsilon": 0.03}]),
    ("RMSprop, centered", "v1", "RMSPropOptimizer", [
        {"learning_rate": 0.01, "momentum": 0.5, "epsilon": 0.001, "centered": True}]),
    ("RMSprop, centered", "keras", "RMSprop", [
        {"learning_rate": 0.01, "epsilon": 0.001, "centered": True},
        {"learning_rate": 0.1, "rho": 0.5, "momentum": 0.5, "epsilon": 0.03, "centered": True}]),
    ("Ftrl", "v1", "FtrlOptimizer", [
        {"learning_rate": 0.5}, {"learning_rate": 0.1, **_L1L2, **_SHRINKING}, _POWER,
        _CANCELLING]),
    ("Ftrl", "keras", "Ftrl", [
        {"learning_rate": 0.5}, {"learning_rate": 0.1, **_L1L2, **_SHRINKING}, _POWER,
        _CANCELLING]),
]  # fmt: skip


def cases() -> Iterator[tuple[str, str, str, str, dict[str, Any], str, bool]]:
    """Yield id, row of the table, face, class, settings, dtype and use of rows of each case."""
    for row, face, cls, settings in RULES:
        for number, kwargs in enumerate(settings):
            for dtype in DTYPES:
                for sparse in (False, True):
                    kind = "rows" if sparse else "dense"
                    name = f"{face}/{cls}/{row}/{number}/{dtype}/{kind}"
                    yield name, row, face, cls, kwargs, dtype, sparse


def problem(name: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return a variable and float32 gradients in [-2, 2], one in four 0, and indices of rows."""
    random = np.random.default_rng(list(name.encode()))
    var = 4 * random.random(SHAPE, np.float32) - 2
    grads = 4 * random.random((STEPS, *SHAPE), np.float32) - 2
    grads[random.random(grads.shape) < 0.25] = 0
    return var, grads, random.integers(0, SHAPE[0], (STEPS, ROWS))


def _bits(tensor: Any) -> np.ndarray:
    return tensor.numpy().view(np.int16)


def _recorded() -> dict[str, np.ndarray]:
    import tensorflow as tf  # pyright: ignore[reportMissingImports]
    import tf_keras  # pyright: ignore[reportMissingImports]

    homes: dict[str, Any] = {"v1": tf.compat.v1.train, "keras": tf_keras.optimizers.legacy}
    arrays: dict[str, np.ndarray] = {"tensorflow": np.array(tf.__version__)}
    for name, _, face, cls, kwargs, dtype, sparse in cases():
        start, grads, indices = problem(name)
        var, opt = tf.Variable(tf.cast(start, dtype)), getattr(homes[face], cls)(**kwargs)
        recordings: dict[str, list[np.ndarray]] = {}
        try:
            for step in range(STEPS):
                grad: Any = tf.cast(grads[step], dtype)
                if sparse:
                    rows = tf.constant(indices[step])
                    grad = tf.IndexedSlices(grad[:ROWS], rows, tf.constant(SHAPE))
                opt.apply_gradients([(grad, var)])
                if step in RECORDED_STEPS:
                    recordings.setdefault("var", []).append(_bits(var))
                    for slot in opt.get_slot_names():
                        recordings.setdefault(slot, []).append(_bits(opt.get_slot(var, slot)))
        except tf.errors.InvalidArgumentError:  # it has no kernel
            continue
        arrays |= {f"{name}|{title}": np.stack(values) for title, values in recordings.items()}
    return arrays


if __name__ == "__main__":
    np.savez_compressed(sys.argv[1], **_recorded())  # pyright: ignore[reportArgumentType]
