"""Record what the optimizers of TensorFlow Addons compute, for the tests to compare with.

Needs `tensorflow-cpu` and `tf_keras` (2.21 recorded `tests/goldens/addons.*`) and the source of
Addons 0.23, of which nothing but its imports is changed:

    python tools/record_addons.py --addons .../tensorflow_addons --out tests/goldens

writes addons.json, the cases, and addons.npz; `LAYOUT` describes the arrays.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import sys
import types
import zlib
from pathlib import Path
from typing import Any

import numpy as np

os.environ["TF_USE_LEGACY_KERAS"] = "1"  # tf.keras is tf_keras, which has OptimizerV2
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"

LAYOUT = [
    "All keys are '<case id>|<what>|<variable>...'.",
    " start|<v>         (*shape)          initial value",
    " grad|<v>          (steps, *shape)   dense gradient of each step",
    " values|<v>        (steps, n, *row)  values of the IndexedSlices of each step",
    " indices|<v>       (steps, n)        their indices; rows repeat",
    " var|<v>           (steps, *shape)   value after each step",
    " slot|<v>|<slot>   (steps, *shape)   of the optimizer; 'inner/<slot>' of the one it wraps",
]

STEPS = 8
FLOAT32_ALONE = (
    "SWA",
)  # it mixes float32 with the dtype of its variables, which TensorFlow refuses
# variable: its shape, and the rows of its sparse gradient, 0 for a dense one
VARIABLES = {"a": ((3,), 0), "b": ((4, 5), 0), "emb": ((6, 3), 4)}
DENSE = ("a", "b")

SGD = ("SGD", {"learning_rate": 0.1, "momentum": 0.9})
ADAM = ("Adam", {"learning_rate": 0.05})

# name: class, arguments ("inner" an optimizer, "schedule" one of Keras' schedules), variables
CASES: dict[str, tuple[str, dict[str, Any], tuple[str, ...]]] = {
    "AdaBelief": ("AdaBelief", {"learning_rate": 0.05}, tuple(VARIABLES)),
    "AdaBelief/plain": (
        "AdaBelief",
        {"learning_rate": 0.05, "rectify": False, "amsgrad": True, "weight_decay": 0.01},
        tuple(VARIABLES),
    ),
    "COCOB": ("COCOB", {}, DENSE),
    "ConditionalGradient": (
        "ConditionalGradient",
        {"learning_rate": 0.9, "lambda_": 0.1},
        tuple(VARIABLES),
    ),
    "ConditionalGradient/nuclear": (
        "ConditionalGradient",
        {"learning_rate": 0.9, "lambda_": 0.1, "ord": "nuclear"},
        DENSE,
    ),
    "CyclicalLearningRate": (
        "SGD",
        {
            "learning_rate": {
                "cyclical": "Triangular2CyclicalLearningRate",
                "initial_learning_rate": 0.01,
                "maximal_learning_rate": 0.1,
                "step_size": 2.0,
            }
        },
        tuple(VARIABLES),
    ),
    "LAMB": (
        "LAMB",
        {"learning_rate": 0.05, "weight_decay": 0.01, "exclude_from_weight_decay": ["b"]},
        tuple(VARIABLES),
    ),
    "LazyAdam": ("LazyAdam", {"learning_rate": 0.05}, tuple(VARIABLES)),
    "Lookahead": ("Lookahead", {"inner": SGD, "sync_period": 3}, tuple(VARIABLES)),
    "Lookahead/Adam": ("Lookahead", {"inner": ADAM, "sync_period": 2}, DENSE),
    "MovingAverage": ("MovingAverage", {"inner": SGD, "average_decay": 0.8}, tuple(VARIABLES)),
    "MovingAverage/dynamic": (
        "MovingAverage",
        {"inner": ADAM, "average_decay": 0.9, "start_step": 2, "dynamic_decay": True},
        tuple(VARIABLES),
    ),
    "MultiOptimizer": (
        "MultiOptimizer",
        {"parts": [(SGD, ["a"]), (ADAM, ["b", "emb"])]},
        tuple(VARIABLES),
    ),
    "NovoGrad": ("NovoGrad", {"learning_rate": 0.05}, tuple(VARIABLES)),
    "NovoGrad/averaged": (
        "NovoGrad",
        {"learning_rate": 0.05, "weight_decay": 0.01, "grad_averaging": True, "amsgrad": True},
        DENSE,
    ),
    "ProximalAdagrad": (
        "ProximalAdagrad",
        {
            "learning_rate": 0.1,
            "l1_regularization_strength": 0.05,
            "l2_regularization_strength": 0.1,
        },
        tuple(VARIABLES),
    ),
    "RectifiedAdam": ("RectifiedAdam", {"learning_rate": 0.05}, tuple(VARIABLES)),
    "RectifiedAdam/warmup": (
        "RectifiedAdam",
        {
            "learning_rate": 0.05,
            "weight_decay": 0.01,
            "amsgrad": True,
            "total_steps": 6,
            "warmup_proportion": 0.5,
            "min_lr": 0.01,
        },
        tuple(VARIABLES),
    ),
    "SWA": ("SWA", {"inner": SGD, "start_averaging": 2, "average_period": 2}, tuple(VARIABLES)),
    "AdamW": (
        "AdamW",
        {"learning_rate": 0.05, "weight_decay": 0.01, "exclude_from_weight_decay": ["b"]},
        tuple(VARIABLES),
    ),
    "SGDW": (
        "SGDW",
        {
            "learning_rate": 0.05,
            "momentum": 0.9,
            "weight_decay": {
                "schedule": "ExponentialDecay",
                "initial_learning_rate": 0.02,
                "decay_steps": 2,
                "decay_rate": 0.5,
            },
        },
        tuple(VARIABLES),
    ),
    "Yogi": (
        "Yogi",
        {"learning_rate": 0.05, "initial_accumulator_value": 0.1},
        tuple(VARIABLES),
    ),
    "Yogi/l1": (
        "Yogi",
        {"learning_rate": 0.05, "l1_regularization_strength": 0.01, "beta1": 0.0},
        tuple(VARIABLES),
    ),
}


def inputs(case_id: str, names: tuple[str, ...], dtype: str) -> dict[str, np.ndarray]:
    """Return the initial values and the gradients of a case, by key."""
    random = np.random.default_rng(zlib.crc32(case_id.encode()))
    arrays: dict[str, np.ndarray] = {}
    for name in names:
        shape, rows = VARIABLES[name]
        arrays[f"start|{name}"] = random.normal(size=shape).astype(dtype)
        if rows:
            arrays[f"values|{name}"] = random.normal(size=(STEPS, rows, *shape[1:])).astype(dtype)
            arrays[f"indices|{name}"] = random.integers(0, shape[0] - 1, (STEPS, rows))
        else:
            arrays[f"grad|{name}"] = random.normal(size=(STEPS, *shape)).astype(dtype)
    return arrays


def addons(folder: Path) -> Any:
    """Return `tensorflow_addons.optimizers`, without the rest of the package."""
    package = types.ModuleType("tensorflow_addons")
    package.__path__ = [str(folder)]
    types_checked = types.ModuleType("typeguard")
    types_checked.typechecked = lambda function: function  # pyright: ignore
    sys.modules.update({"tensorflow_addons": package, "typeguard": types_checked})
    return importlib.import_module("tensorflow_addons.optimizers")


def optimizer(
    tf: Any, tfa: Any, name: str, arguments: dict[str, Any], variables: dict[str, Any]
) -> Any:
    """Return the optimizer of a case."""

    def value(argument: Any) -> Any:
        if not isinstance(argument, dict):
            return argument
        config = {
            key: entry for key, entry in argument.items() if key not in ("schedule", "cyclical")
        }
        if "schedule" in argument:
            return getattr(tf.keras.optimizers.schedules, argument["schedule"])(**config)
        return getattr(tfa, argument["cyclical"])(**config)

    def inner(spec: tuple[str, dict[str, Any]]) -> Any:
        return getattr(tf.keras.optimizers.legacy, spec[0])(**spec[1])

    if "parts" in arguments:
        layers = [
            (inner(each), types.SimpleNamespace(weights=[variables[name] for name in names]))
            for each, names in arguments["parts"]
        ]
        return getattr(tfa, name)(layers)
    made = {key: value(each) for key, each in arguments.items() if key != "inner"}
    if "inner" in arguments:
        return getattr(tfa, name)(inner(arguments["inner"]), **made)
    if not hasattr(tfa, name):  # one of Keras', with a schedule of Addons'
        return getattr(tf.keras.optimizers.legacy, name)(**made)
    return getattr(tfa, name)(**made)


def record(tf: Any, tfa: Any, case: dict[str, Any]) -> dict[str, np.ndarray]:
    """Return the arrays of a case, by key."""
    arrays = inputs(case["id"], tuple(case["variables"]), case["dtype"])
    variables = {
        name: tf.Variable(arrays[f"start|{name}"], name=name) for name in case["variables"]
    }
    opt = optimizer(tf, tfa, case["optimizer"], case["arguments"], variables)
    recordings: dict[str, list[np.ndarray]] = {}
    for step in range(STEPS):
        pairs = []
        for name, var in variables.items():
            if f"grad|{name}" in arrays:
                grad = tf.constant(arrays[f"grad|{name}"][step])
            else:
                rows = arrays[f"values|{name}"][step], arrays[f"indices|{name}"][step]
                grad = tf.IndexedSlices(*map(tf.constant, rows), tf.constant(var.shape.as_list()))
            pairs.append((grad, var))
        opt.apply_gradients(pairs)
        for name, var in variables.items():
            recordings.setdefault(f"var|{name}", []).append(var.numpy())
            wrapped = [getattr(opt, "_optimizer", None)]
            wrapped += [spec["optimizer"] for spec in getattr(opt, "optimizer_specs", ())]
            for title, each in [("", opt), *(("inner/", each) for each in wrapped if each)]:
                for slot in each.get_slot_names():
                    try:
                        value = each.get_slot(var, slot).numpy()
                    except KeyError:
                        continue
                    recordings.setdefault(f"slot|{name}|{title}{slot}", []).append(value)
    return {**arrays, **{key: np.stack(values) for key, values in recordings.items()}}


def addons_version(folder: Path) -> str:
    """Return the version that the source says it is."""
    namespace: dict[str, Any] = {}
    exec((folder / "version.py").read_text(), namespace)
    return namespace["__version__"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--addons", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    tf = importlib.import_module("tensorflow")
    tf_keras = importlib.import_module("tf_keras")
    tfa = addons(options.addons)
    cases, arrays = [], {}
    for name, (cls, arguments, variables) in CASES.items():
        for dtype in ("float32", "float64"):
            if dtype == "float64" and cls in FLOAT32_ALONE:
                continue
            case = {
                "id": f"{name}/{dtype}",
                "optimizer": cls,
                "arguments": arguments,
                "variables": list(variables),
                "dtype": dtype,
            }
            cases.append(case)
            case_arrays = record(tf, tfa, case)
            arrays.update({f"{case['id']}|{key}": value for key, value in case_arrays.items()})
    versions = {
        "tensorflow": tf.__version__,
        "tf_keras": tf_keras.__version__,
        "tensorflow_addons": addons_version(options.addons),
    }
    text = json.dumps({"versions": versions, "layout": LAYOUT, "cases": cases}, indent=1)
    (options.out / "addons.json").write_text(text + "\n")
    np.savez_compressed(options.out / "addons.npz", **arrays)


if __name__ == "__main__":
    main()
