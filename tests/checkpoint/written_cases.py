"""Checkpoints written for TensorFlow, the same ones each time.

    python tests/checkpoint/written_cases.py FOLDER

writes them, with the gradients of five more steps; `tools/record_written.py` has TensorFlow go on.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from thalweg import Variable
from thalweg.checkpoint import tensorflow
from thalweg.keras import optimizers as keras
from thalweg.v1 import train

STEPS = 5
SHAPES = {
    "layer1.weight": (6, 4),
    "layer1.bias": (6,),
    "layer2.weight": (3, 6),
    "layer2.bias": (3,),
}
RULES = {"model/*/kernel": "*.weight dense", "model/*/bias": "*.bias"}
# A `Sequential` of Keras tracks its layers so.
SEQUENTIAL_RULES = {
    f"model/layer_with_weights-{index}/{part}": f"layer{index + 1}.{suffix}"
    for index in (0, 1)
    for part, suffix in (("kernel", "weight dense"), ("bias", "bias"))
}
SAVER_RULES = {"*/kernel": "*.weight dense", "*/bias": "*.bias"}


class Written(NamedTuple):
    """A class, its arguments, and the kind of checkpoint."""

    room: Any
    cls: str
    arguments: dict[str, Any]
    kind: str = "tf2"
    rules: dict[str, str] = RULES

    def optimizer(self) -> Any:
        """Return a new optimizer."""
        return getattr(self.room, self.cls)(**self.arguments)


CASES = {
    "v1_adam": Written(train, "AdamOptimizer", {"learning_rate": 0.01, "beta1": 0.8}),
    "v1_momentum": Written(
        train, "MomentumOptimizer", {"learning_rate": 0.1, "momentum": 0.9, "use_nesterov": True}
    ),
    "v1_rmsprop": Written(
        train, "RMSPropOptimizer", {"learning_rate": 0.01, "momentum": 0.5, "centered": True}
    ),
    "v1_ftrl": Written(
        train, "FtrlOptimizer", {"learning_rate": 0.1, "l1_regularization_strength": 0.01}
    ),
    "adam": Written(keras, "Adam", {"learning_rate": 0.01, "beta_1": 0.8}),
    "amsgrad": Written(keras, "Adam", {"learning_rate": 0.01, "amsgrad": True, "decay": 0.1}),
    "sgd": Written(keras, "SGD", {"learning_rate": 0.1}),
    "nesterov": Written(keras, "SGD", {"learning_rate": 0.1, "momentum": 0.9, "nesterov": True}),
    "rmsprop": Written(
        keras, "RMSprop", {"learning_rate": 0.01, "momentum": 0.5, "centered": True}
    ),
    "nadam": Written(keras, "Nadam", {"learning_rate": 0.01}),
    "saver_adam": Written(
        train, "AdamOptimizer", {"learning_rate": 0.01, "beta1": 0.8}, "tf1", SAVER_RULES
    ),
    "saver_rmsprop": Written(
        train,
        "RMSPropOptimizer",
        {"learning_rate": 0.01, "momentum": 0.5, "centered": True},
        "tf1",
        SAVER_RULES,
    ),
    "saver_sgd": Written(
        train, "GradientDescentOptimizer", {"learning_rate": 0.1}, "tf1", SAVER_RULES
    ),
    "sequential": Written(
        keras, "Adam", {"learning_rate": 0.01, "beta_1": 0.8}, "tf2", SEQUENTIAL_RULES
    ),
}


def gradients() -> dict[str, np.ndarray]:
    """Return the gradients of ten steps, in TensorFlow's order of axes."""
    random = np.random.default_rng(11)
    names = {name: name.replace(".", "/").replace("weight", "kernel") for name in SHAPES}
    return {
        names[name]: random.normal(size=(2 * STEPS, *shape[::-1])).astype(np.float32)
        for name, shape in SHAPES.items()
    }


def variables() -> dict[str, Variable]:
    """Return the variables before the first step."""
    random = np.random.default_rng(12)
    return {
        name: Variable(random.normal(size=shape).astype(np.float32), name)
        for name, shape in SHAPES.items()
    }


def turned(name: str, values: Any) -> np.ndarray:
    """Swap the axes of a variable between torch's order and TensorFlow's."""
    return np.ascontiguousarray(values.T) if name.endswith(("weight", "kernel")) else values


def step(optimizer: Any, params: dict[str, Any], number: int, counter: Any = None) -> None:
    """Take a recorded step."""
    grads = gradients()
    pairs = []
    for name, var in params.items():
        grad = grads[name.replace(".", "/").replace("weight", "kernel")][number]
        pairs.append((torch.from_numpy(turned(name, grad).copy()), var))
    if counter is None:
        optimizer.apply_gradients(pairs)
    else:
        optimizer.apply_gradients(pairs, global_step=counter)


def write(case: Written, prefix: Path) -> None:
    """Train five steps, and write the checkpoint."""
    optimizer, params = case.optimizer(), variables()
    counter = Variable(np.int64(0), "global_step", trainable=False)
    is_saver = case.kind == "tf1"
    for number in range(STEPS):
        step(optimizer, params, number, counter if is_saver else None)
    tensorflow.save(
        prefix,
        optimizer,
        params,
        case.rules,
        "tf1" if is_saver else "tf2",
        global_step=counter if is_saver else None,
    )


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    np.savez_compressed(folder / "gradients.npz", **gradients())
    for name, case in CASES.items():
        (folder / name).mkdir(parents=True, exist_ok=True)
        write(case, folder / name / "ckpt")
