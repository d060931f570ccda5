"""Record files of Keras, with the numbers that training goes on with.

    python tools/record_keras_files.py tests/goldens/keras_files

needs tensorflow, keras and tf_keras; 2.21, 3.15 and 2.21 recorded what is there. A model is trained
five steps and saved; `cases.json` and `cases.npz` say what it had, which gradients the optimizer
was given in five more steps, and what it had then.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

os.environ["KERAS_BACKEND"] = "tensorflow"
os.environ["CUDA_VISIBLE_DEVICES"] = ""

import keras
import numpy as np
import tensorflow as tf
import tf_keras

STEPS = 5
Case = dict[str, Any]
DECAY = ("ExponentialDecay", {"initial_learning_rate": 0.1, "decay_steps": 3, "decay_rate": 0.5})

# id: class, arguments, model, kind of file
KERAS_3: dict[str, tuple[str, dict[str, Any], str, str]] = {
    "adam": ("Adam", {"learning_rate": 0.01, "beta_1": 0.8}, "dense", "keras"),
    "adam_amsgrad": ("Adam", {"learning_rate": 0.01, "amsgrad": True}, "dense", "keras"),
    "adam_schedule": ("Adam", {"learning_rate": DECAY}, "dense", "keras"),
    "adam_conv": ("Adam", {"learning_rate": 0.01}, "conv", "keras"),
    "sgd": ("SGD", {"learning_rate": 0.1}, "dense", "keras"),
    "sgd_nesterov": (
        "SGD", {"learning_rate": 0.1, "momentum": 0.9, "nesterov": True}, "dense", "keras",
    ),
    "rmsprop": (
        "RMSprop", {"learning_rate": 0.01, "momentum": 0.5, "centered": True}, "dense", "keras",
    ),
    "adagrad": ("Adagrad", {"learning_rate": 0.1}, "dense", "keras"),
    "nadam": ("Nadam", {"learning_rate": 0.01}, "dense", "keras"),
    "ftrl": ("Ftrl", {"learning_rate": 0.1, "l1_regularization_strength": 0.01}, "dense", "keras"),
    "mixed": ("SGD", {"learning_rate": 0.1, "momentum": 0.9}, "mixed_float16", "keras"),
    "adam_old": ("Adam", {"learning_rate": 0.01, "beta_1": 0.8}, "dense", "h5"),
    "adam_weights": ("Adam", {"learning_rate": 0.01, "beta_1": 0.8}, "conv", "weights.h5"),
    "bfloat16": ("SGD", {"learning_rate": 0.1, "momentum": 0.9}, "bfloat16", "weights.h5"),
}  # fmt: skip
LEGACY: dict[str, tuple[str, dict[str, Any], str]] = {
    "adam": ("Adam", {"learning_rate": 0.01, "beta_1": 0.8}, "dense"),
    "adam_amsgrad": ("Adam", {"learning_rate": 0.01, "amsgrad": True, "decay": 0.1}, "dense"),
    "adam_schedule": ("Adam", {"learning_rate": DECAY}, "dense"),
    "adam_conv": ("Adam", {"learning_rate": 0.01}, "conv"),
    "sgd": ("SGD", {"learning_rate": 0.1}, "dense"),
    "sgd_nesterov": ("SGD", {"learning_rate": 0.1, "momentum": 0.9, "nesterov": True}, "dense"),
    "rmsprop": ("RMSprop", {"learning_rate": 0.01, "momentum": 0.5, "centered": True}, "dense"),
    "rmsprop_plain": ("RMSprop", {"learning_rate": 0.01}, "dense"),
    "adagrad": ("Adagrad", {"learning_rate": 0.1}, "dense"),
    "nadam": ("Nadam", {"learning_rate": 0.01}, "dense"),
    "ftrl": ("Ftrl", {"learning_rate": 0.1, "l1_regularization_strength": 0.01}, "dense"),
}
# Optimizers of Keras 2.11 to 2.15, which tf_keras still has.
KERAS_2_15: dict[str, tuple[str, dict[str, Any], str]] = {
    "adam_schedule": ("Adam", {"learning_rate": DECAY, "beta_1": 0.8}, "conv"),
    "adam_amsgrad": ("Adam", {"learning_rate": 0.01, "amsgrad": True}, "dense"),
    "sgd": ("SGD", {"learning_rate": 0.1}, "dense"),
    "rmsprop": ("RMSprop", {"learning_rate": 0.01, "momentum": 0.5, "centered": True}, "dense"),
    "nadam": ("Nadam", {"learning_rate": 0.01}, "dense"),
}


def batches(model: str) -> tuple[np.ndarray, np.ndarray]:
    """Return inputs and targets of ten steps."""
    random = np.random.default_rng(11)
    shape = (5, 5, 2) if model == "conv" else (4,)
    x = random.normal(size=(2 * STEPS, 8, *shape)).astype(np.float32)
    return x, random.normal(size=(2 * STEPS, 8, 3)).astype(np.float32)


def built(module: Any, model: str) -> Any:
    """Return a small model; its layers are named, or have the names that they are given."""
    module.utils.set_random_seed(3)
    layers = module.layers
    if model == "conv":
        inner = [
            layers.Input((5, 5, 2)),
            layers.Conv2D(3, 3, activation="tanh", bias_initializer="ones"),
            layers.Flatten(),
            layers.Dense(3),
        ]
    else:
        kind = {} if model == "dense" else {"dtype": model}
        inner = [
            layers.Input((4,)),
            layers.Dense(6, activation="tanh", name="layer1", bias_initializer="ones", **kind),
            layers.Dense(3, name="layer2", **kind),
        ]
    return module.Sequential(inner)


def arguments(module: Any, options: dict[str, Any]) -> dict[str, Any]:
    arguments_ = dict(options)
    if isinstance(arguments_["learning_rate"], tuple):
        name, values = arguments_["learning_rate"]
        arguments_["learning_rate"] = getattr(module.optimizers.schedules, name)(**values)
    return arguments_


def gradients(model: Any, optimizer: Any, x: np.ndarray, y: np.ndarray) -> list[tf.Tensor]:
    with tf.GradientTape() as tape:
        error = tf.cast(model(x, training=True), tf.float32) - y
        loss = tf.reduce_mean(error * error)
        if hasattr(optimizer, "scale_loss"):
            loss = optimizer.scale_loss(loss)
    return tape.gradient(loss, model.trainable_variables)


def numbers(value: Any) -> np.ndarray:
    """Return an array; bfloat16 as its bits, for which NumPy has no dtype."""
    array = np.asarray(value)
    return array.view(np.uint16) if array.dtype.name == "bfloat16" else array


def record(
    case: Case,
    arrays: dict[str, np.ndarray],
    folder: Path,
    model_and_optimizer: Any,
    model_kind: Any,
) -> None:
    """Train, save, train on."""
    is_keras_3 = case["keras"] == 3
    model, optimizer = model_and_optimizer
    x, y = batches(model_kind)
    model.compile(optimizer=optimizer, loss="mse")
    optimizer = model.optimizer

    def apply(step: int) -> list[tf.Tensor]:
        grads = gradients(model, optimizer, x[step], y[step])
        optimizer.apply_gradients(zip(grads, model.trainable_variables))
        return grads

    def remembered() -> dict[str, np.ndarray]:
        if is_keras_3:
            return {
                f"{number}|{variable.path}": numbers(variable)
                for number, variable in enumerate(optimizer.variables)
            }
        if case["keras"] == 2.15:
            names = [variable.name.removesuffix(":0") for variable in optimizer.variables]
            return {
                f"{number}|{name}": numbers(variable)
                for number, (name, variable) in enumerate(
                    zip(names, optimizer.variables, strict=True)
                )
            }
        return {
            variable.name.removesuffix(":0"): numbers(variable) for variable in optimizer.weights
        }

    def trained() -> dict[str, np.ndarray]:
        name = "path" if is_keras_3 else "name"
        return {
            getattr(variable, name).removesuffix(":0"): numbers(variable)
            for variable in model.weights
        }

    for step in range(STEPS):
        apply(step)
    if case["file"].endswith(".weights.h5"):
        model.save_weights(folder / case["file"])
    else:
        model.save(folder / case["file"])
    case["variables"], case["optimizer"] = list(trained()), list(remembered())
    case["dtypes"] = {
        name: str(value.dtype) for name, value in {**trained(), **remembered()}.items()
    }
    for kind, values in (("value", trained()), ("slot", remembered())):
        arrays.update({f"{case['id']}|{kind}|{name}": each for name, each in values.items()})
    gradients_by_step = [apply(step) for step in range(STEPS, 2 * STEPS)]
    names = [
        getattr(each, "path" if is_keras_3 else "name").removesuffix(":0")
        for each in model.trainable_variables
    ]
    for number, name in enumerate(names):
        stacked = np.stack([numbers(each[number]) for each in gradients_by_step])
        arrays[f"{case['id']}|gradient|{name}"] = stacked
    for kind, values in (("value_after", trained()), ("slot_after", remembered())):
        arrays.update({f"{case['id']}|{kind}|{name}": each for name, each in values.items()})


def main(out: str) -> None:
    folder = Path(out)
    folder.mkdir(parents=True, exist_ok=True)
    cases: list[Case] = []
    arrays: dict[str, np.ndarray] = {}
    for name, (kind, options, model, form) in KERAS_3.items():
        keras.backend.clear_session()
        case = {"id": f"keras3/{name}", "keras": 3, "file": f"{name}.{form}", "class_name": kind}
        optimizer = getattr(keras.optimizers, kind)(**arguments(keras, options))
        if model == "mixed_float16":
            optimizer = keras.optimizers.LossScaleOptimizer(optimizer, initial_scale=1024.0)
        record(case, arrays, folder, (built(keras, model), optimizer), model)
        case |= {"arguments": options, "model": model}
        cases.append(case)
    for name, (kind, options, model) in LEGACY.items():
        tf_keras.backend.clear_session()
        case = {"id": f"legacy/{name}", "keras": 2, "file": f"{name}.h5", "class_name": kind}
        optimizer = getattr(tf_keras.optimizers.legacy, kind)(**arguments(tf_keras, options))
        record(case, arrays, folder, (built(tf_keras, model), optimizer), model)
        case |= {"arguments": options, "model": model}
        cases.append(case)
    for name, (kind, options, model) in KERAS_2_15.items():
        tf_keras.backend.clear_session()
        case = {"id": f"keras2.15/{name}", "keras": 2.15, "file": f"k215_{name}.h5"}
        case["class_name"] = f"Custom>{kind}"
        optimizer = getattr(tf_keras.optimizers, kind)(**arguments(tf_keras, options))
        record(case, arrays, folder, (built(tf_keras, model), optimizer), model)
        case |= {"arguments": options, "model": model}
        cases.append(case)
    description = [
        "Files of keras 3.15.1 and tf_keras 2.21.0 over TensorFlow 2.21.0, CPU, after five steps.",
        "Keys of cases.npz are '<id>|<what>|<name>'.",
        " value, slot              what the model's variables and the optimizer had in the file",
        " gradient                 (5, *shape), given to the optimizer in five more steps",
        " value_after, slot_after  what they had then",
        "Names of an optimizer since Keras 2.11 are '<number>|<path>'; bfloat16 is kept as bits.",
    ]
    (folder / "cases.json").write_text(
        json.dumps({"about": description, "cases": cases}, indent=1) + "\n"
    )
    np.savez_compressed(folder / "cases.npz", **arrays)


if __name__ == "__main__":
    main(sys.argv[1])
