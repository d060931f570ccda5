"""Have TensorFlow restore what the library wrote, and go on with it.

    python tests/checkpoint/written_cases.py tests/goldens/written
    python tools/record_written.py tests/goldens/written

The second needs tensorflow and tf_keras; 2.21 recorded what is there. `values.npz` gets what each
case had after five more steps, and `sha256.json` the checksums of the files that were restored.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from pathlib import Path
from typing import Any

os.environ["CUDA_VISIBLE_DEVICES"] = ""

import numpy as np
import tensorflow as tf
import tf_keras

v1 = tf.compat.v1
PARTS = ("kernel", "bias")
SHAPES = {"layer1": (4, 6), "layer2": (6, 3)}
OBJECTS: dict[str, Any] = {
    "v1_adam": lambda: v1.train.AdamOptimizer(0.01, beta1=0.8),
    "v1_momentum": lambda: v1.train.MomentumOptimizer(0.1, 0.9, use_nesterov=True),
    "v1_rmsprop": lambda: v1.train.RMSPropOptimizer(0.01, momentum=0.5, centered=True),
    "v1_ftrl": lambda: v1.train.FtrlOptimizer(0.1, l1_regularization_strength=0.01),
    # What is not the file's: restoring sets the hyperparameters.
    "adam": lambda: tf_keras.optimizers.legacy.Adam(),
    "amsgrad": lambda: tf_keras.optimizers.legacy.Adam(amsgrad=True, decay=0.1),
    "sgd": lambda: tf_keras.optimizers.legacy.SGD(),
    "nesterov": lambda: tf_keras.optimizers.legacy.SGD(momentum=0.1, nesterov=True),
    "rmsprop": lambda: tf_keras.optimizers.legacy.RMSprop(momentum=0.1, centered=True),
    "nadam": lambda: tf_keras.optimizers.legacy.Nadam(),
}
SAVERS: dict[str, Any] = {
    "saver_adam": lambda: v1.train.AdamOptimizer(0.01, beta1=0.8),
    "saver_rmsprop": lambda: v1.train.RMSPropOptimizer(0.01, momentum=0.5, centered=True),
    "saver_sgd": lambda: v1.train.GradientDescentOptimizer(0.1),
}


class Model(tf.Module):
    """Two layers, whose variables are model/layer1/kernel and so on."""

    def __init__(self) -> None:
        super().__init__()
        for name, shape in SHAPES.items():
            layer = tf.Module()
            layer.kernel = tf.Variable(tf.zeros(shape), name=f"{name}/kernel")
            layer.bias = tf.Variable(tf.zeros(shape[1:]), name=f"{name}/bias")
            setattr(self, name, layer)

    def named(self) -> dict[str, tf.Variable]:
        return {
            f"{name}/{part}": getattr(getattr(self, name), part)
            for name in SHAPES
            for part in PARTS
        }


def objects(name: str, folder: Path, gradients: Any) -> dict[str, np.ndarray]:
    model, optimizer = Model(), OBJECTS[name]()
    checkpoint = tf.train.Checkpoint(model=model, optimizer=optimizer)
    return gone_on(checkpoint, optimizer, model.named(), str(folder / name / "ckpt"), gradients)


def gone_on(
    checkpoint: tf.train.Checkpoint, optimizer: Any, variables: Any, prefix: str, gradients: Any
) -> dict[str, np.ndarray]:
    """Restore, take five steps, and return the variables; raise unless the file is consumed."""
    status = checkpoint.restore(prefix)
    for number in range(5, 10):
        pairs = [(tf.constant(gradients[title][number]), var) for title, var in variables.items()]
        optimizer.apply_gradients(pairs)
        if number == 5:
            status.assert_consumed()
    return {title: var.numpy() for title, var in variables.items()}


def savers(name: str, folder: Path, gradients: Any) -> dict[str, np.ndarray]:
    with tf.Graph().as_default(), v1.Session() as session:
        variables: dict[str, Any] = {}
        for layer, shape in SHAPES.items():
            for part, form in (("kernel", shape), ("bias", shape[1:])):
                variables[f"{layer}/{part}"] = v1.get_variable(f"{layer}/{part}", form)
        step = v1.train.get_or_create_global_step()
        places = {title: v1.placeholder(tf.float32, var.shape) for title, var in variables.items()}
        pairs = [(places[title], var) for title, var in variables.items()]
        train = SAVERS[name]().apply_gradients(pairs, global_step=step)
        v1.train.Saver().restore(session, str(folder / name / "ckpt"))
        for number in range(5, 10):
            session.run(train, {places[title]: gradients[title][number] for title in variables})
        return {**session.run(variables), "global_step": session.run(step)}


def sequential(name: str, folder: Path, gradients: Any) -> dict[str, np.ndarray]:
    layers = [tf_keras.layers.Dense(6, name="layer1"), tf_keras.layers.Dense(3, name="layer2")]
    model = tf_keras.Sequential(layers)
    model.build((None, 4))
    variables = {f"{layer.name}/{part}": getattr(layer, part) for layer in layers for part in PARTS}
    optimizer = tf_keras.optimizers.legacy.Adam()
    checkpoint = tf.train.Checkpoint(model=model, optimizer=optimizer)
    return gone_on(checkpoint, optimizer, variables, str(folder / name / "ckpt"), gradients)


def main(folder: Path) -> None:
    gradients = np.load(folder / "gradients.npz")
    values: dict[str, np.ndarray] = {}
    for name in OBJECTS:
        values |= {
            f"{name}|{key}": array for key, array in objects(name, folder, gradients).items()
        }
    for name in SAVERS:
        values |= {f"{name}|{key}": array for key, array in savers(name, folder, gradients).items()}
    sequential_arrays = sequential("sequential", folder, gradients)
    values |= {f"sequential|{key}": array for key, array in sequential_arrays.items()}
    np.savez_compressed(folder / "values.npz", **values)
    sums = {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.glob("*/ckpt.*"))
    }
    (folder / "sha256.json").write_text(json.dumps(sums, indent=1) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
