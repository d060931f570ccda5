"""Record object checkpoints of Keras 2.11 and later, and what training goes on with.

    python tools/record_keras_objects.py tests/goldens/keras_objects

needs tensorflow and tf_keras; 2.21 recorded what is there. A model is trained five steps and saved;
`cases.npz` has the gradients of five more steps, '<case>|gradient|<variable>', and what the model
had then, '<case>|after|<variable>'.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

os.environ["CUDA_VISIBLE_DEVICES"] = ""

import numpy as np
import tensorflow as tf
import tf_keras

optimizers = tf_keras.optimizers
CASES: dict[str, Any] = {
    "adam": lambda: optimizers.Adam(0.01),
    "amsgrad": lambda: optimizers.Adam(0.01, amsgrad=True),
    "adamax": lambda: optimizers.Adamax(0.01),
    "nadam": lambda: optimizers.Nadam(0.01),
    "sgd": lambda: optimizers.SGD(0.1),
    "nesterov": lambda: optimizers.SGD(0.1, momentum=0.9, nesterov=True),
    "rmsprop": lambda: optimizers.RMSprop(0.01, momentum=0.5, centered=True),
    "adagrad": lambda: optimizers.Adagrad(0.1),
    "adadelta": lambda: optimizers.Adadelta(1.0),
    "ftrl": lambda: optimizers.Ftrl(0.1),
}


def main(folder: Path) -> None:
    arrays: dict[str, np.ndarray] = {}
    for name, make in CASES.items():
        random = np.random.default_rng(7)
        layers = [tf_keras.layers.Dense(3, name="layer1"), tf_keras.layers.Dense(2, name="layer2")]
        model = tf_keras.Sequential(layers)
        model.build((None, 2))
        optimizer = make()
        variables = {
            f"{layer.name}/{part}": getattr(layer, part)
            for layer in layers
            for part in ("kernel", "bias")
        }
        numbers = {
            title: random.normal(size=(11, *var.shape)).astype(np.float32)
            for title, var in variables.items()
        }
        for title, var in variables.items():
            var.assign(numbers[title][10])
        for number in range(10):
            if number == 5:
                tf.train.Checkpoint(model=model, optimizer=optimizer).write(str(folder / name))
            pairs = [(tf.constant(numbers[title][number]), var) for title, var in variables.items()]
            optimizer.apply_gradients(pairs)
        for title, var in variables.items():
            arrays[f"{name}|gradient|{title}"] = numbers[title][5:10]
            arrays[f"{name}|after|{title}"] = var.numpy()
    np.savez_compressed(folder / "cases.npz", **arrays)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
