"""Record TensorFlow's numbers on sparse gradients whose rows are as wide as its packets, or not.

    python tools/record_rows.py tests/goldens/rows.npz

needs tensorflow and tf_keras. The inputs are drawn by `problem`, which the tests call, too.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

WIDTHS = (1, 7, 8, 9, 17, 64)
STEPS, ROWS = 10, 5

# name: (class of tf.compat.v1.train, arguments, slots)
V1: dict[str, tuple[str, dict[str, Any], tuple[str, ...]]] = {
    "GradientDescent": ("GradientDescentOptimizer", {"learning_rate": 0.1}, ()),
    "Momentum": ("MomentumOptimizer", {"learning_rate": 0.1, "momentum": 0.9}, ("momentum",)),
    "Adam": ("AdamOptimizer", {"learning_rate": 0.1}, ("m", "v")),
    "Ftrl": ("FtrlOptimizer", {"learning_rate": 0.1}, ("accum", "linear")),
    "Adagrad": ("AdagradOptimizer", {"learning_rate": 0.1}, ("accumulator",)),
    "ProximalAdagrad": (
        "ProximalAdagradOptimizer",
        {"learning_rate": 0.1, "l1_regularization_strength": 0.01},
        ("accumulator",),
    ),
    "Adadelta": ("AdadeltaOptimizer", {"learning_rate": 1.0}, ("accum", "accum_update")),
    "RMSProp": ("RMSPropOptimizer", {"learning_rate": 0.1, "momentum": 0.5}, ("rms", "momentum")),
    "CenteredRMSProp": (
        "RMSPropOptimizer",
        {"learning_rate": 0.1, "momentum": 0.5, "centered": True},
        ("rms", "mg", "momentum"),
    ),
}
# name: (class of tf.keras.optimizers, arguments, slots)
KERAS: dict[str, tuple[str, dict[str, Any], tuple[str, ...]]] = {
    "SGD": ("SGD", {"learning_rate": 0.1, "momentum": 0.9}, ("momentum",)),
    "Adam": ("Adam", {"learning_rate": 0.1}, ("m", "v")),
    "Adamax": ("Adamax", {"learning_rate": 0.1}, ("m", "v")),
    "Ftrl": ("Ftrl", {"learning_rate": 0.1}, ("accumulator", "linear")),
    "Adagrad": ("Adagrad", {"learning_rate": 0.1}, ("accumulator",)),
    "Adadelta": ("Adadelta", {"learning_rate": 1.0}, ("accum_grad", "accum_var")),
    "RMSprop": ("RMSprop", {"learning_rate": 0.1}, ("rms",)),
    "MomentumRMSprop": ("RMSprop", {"learning_rate": 0.1, "momentum": 0.5}, ("rms", "momentum")),
}


def problem(width: int) -> tuple[np.ndarray, list[tuple[np.ndarray, np.ndarray]]]:
    """Return a table and, for each step, rows of a gradient and their repeating indices."""
    random = np.random.default_rng(width)
    table = random.normal(size=(ROWS, width)).astype(np.float32)
    steps = [
        (random.normal(size=(4, width)).astype(np.float32), random.integers(0, ROWS - 1, 4))
        for _ in range(STEPS)
    ]
    return table, steps


def _recorded() -> dict[str, np.ndarray]:
    import tensorflow as tf  # pyright: ignore[reportMissingImports]
    import tf_keras  # pyright: ignore[reportMissingImports]

    arrays: dict[str, np.ndarray] = {"tensorflow": np.array(tf.__version__)}
    for face, table in (("v1", V1), ("keras", KERAS)):
        home: Any = tf.compat.v1.train if face == "v1" else tf_keras.optimizers.legacy
        for name, (cls, arguments, slots) in table.items():
            for width in WIDTHS:
                start, steps = problem(width)
                var, opt = tf.Variable(start), getattr(home, cls)(**arguments)
                for values, indices in steps:
                    slices = tf.IndexedSlices(
                        tf.constant(values), tf.constant(indices), tf.constant(start.shape)
                    )
                    opt.apply_gradients([(slices, var)])
                arrays[f"{face}/{name}/{width}/var"] = var.numpy()
                for slot in slots:
                    arrays[f"{face}/{name}/{width}/{slot}"] = opt.get_slot(var, slot).numpy()
    return arrays


if __name__ == "__main__":
    np.savez_compressed(sys.argv[1], **_recorded())  # pyright: ignore[reportArgumentType]
