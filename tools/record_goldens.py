"""Record what TensorFlow's optimizers and schedules compute, for the tests to replay.

Needs `tensorflow-cpu` and `tf_keras` (2.21 recorded the files in `tests/goldens`), which the
library and its tests do not:

    python tools/record_goldens.py --out DIR
        every case of the tables
    python tools/record_goldens.py --out DIR --cases 'v2/Adam/*'
        those whose id matches
    python tools/record_goldens.py --again tests/goldens/keras
        the cases of an existing file, with its own inputs; says which differ in any bit
    python tools/record_goldens.py --out tests/goldens --wide
        digests of long and wide variables and of NaN, infinities and denormals

The first two write DIR/keras.json and DIR/keras.npz; `LAYOUT` describes them,
`tests/support/replay.py` reads them. The last writes DIR/wide.json and DIR/wide.npz, read
by `tests/faces/test_edge_value_goldens.py`. A case is a dict, the one stored in the JSON: the
tables at the top of this file say what is in it, `inputs` draws its variables and gradients,
`record` runs TensorFlow.

TensorFlow's numbers do not depend on the processor but where it takes rsqrt of float32: Adadelta,
and RMSprop with momentum for sparse gradients.
"""

from __future__ import annotations

import argparse
import fnmatch
import hashlib
import itertools
import json
import math
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

Case = dict[str, Any]
Arrays = dict[str, np.ndarray]

LAYOUT = [
    "All keys are '<case id>|<what>|<name>...'.",
    " var|<v>            (steps+1, *shape)  row 0 = initial value, row t = value after step t",
    " grad|<v>           (steps, *shape)    gradient fed at step t (row t-1); NaN row = None",
    " gval|<v>           (rows, *shape[1:]) concatenated IndexedSlices values of all steps",
    " gidx|<v>           (rows,)            matching indices (duplicates allowed, unsorted)",
    " gsplit|<v>         (steps+1,)         rows of step t are gsplit[t-1]:gsplit[t]; equal ends",
    "                                       with t in none_steps = None, else empty IndexedSlices",
    " slot|<v>|<slot>    (steps+1, *shape)  row 0 = value at creation; NaN rows = not yet created",
    " nonslot|<name>     (steps+1,)         momentum_cache of Nadam",
    " iterations         (steps+1,)",
    " const|<name>       constants of 'minimize' cases",
    " steps, values      (n,)               of 'schedule' cases",
    "Steps are 1-based in the JSON (none_steps, set_hyper; entry k of a callable is step k+1).",
    "Python floats given as hyperparameters pass through float32 inside TensorFlow, unless the",
    "case says hyper_np64=true: then they were numpy.float64 scalars.",
]

# --- The tables ----------------------------------------------------------------------------------

EXPONENTIAL = {"schedule": "ExponentialDecay", "config": {
    "initial_learning_rate": 0.2, "decay_steps": 4, "decay_rate": 0.5,
    "staircase": False}}  # fmt: skip
POLYNOMIAL = {"schedule": "PolynomialDecay", "config": {
    "initial_learning_rate": 0.3, "decay_steps": 6, "end_learning_rate": 0.01, "power": 2.0,
    "cycle": False}}  # fmt: skip
PIECEWISE = {"schedule": "PiecewiseConstantDecay", "config": {
    "boundaries": [2, 5], "values": [0.3, 0.1, 0.05]}}  # fmt: skip
RATES = {"callable": [0.5, 0.4, 0.3, 0.2, 0.1, 0.05, 0.05, 0.01, 0.3, 0.2]}
MOMENTA = {"callable": [0.9, 0.8, 0.7, 0.9, 0.5, 0.6, 0.9, 0.95, 0.85, 0.8]}
CUSTOM = {"learning_rate": 0.05, "beta_1": 0.8, "beta_2": 0.9, "epsilon": 0.001}

# Optimizer -> name of the setting -> keywords. Each is recorded dense, sparse and with some
# gradients None, in float32 and float64.
SETTINGS: dict[str, dict[str, dict[str, Any]]] = {
    "SGD": {
        "default": {},
        "momentum": {"learning_rate": 0.1, "momentum": 0.9},
        "nesterov": {"learning_rate": 0.1, "momentum": 0.9, "nesterov": True},
        "nesterov0": {"learning_rate": 0.1, "momentum": 0.0, "nesterov": True},
        "decay": {"learning_rate": 0.5, "momentum": 0.5, "decay": 0.1},
        "schedule": {"learning_rate": EXPONENTIAL},
        "schedule_decay": {"learning_rate": PIECEWISE, "momentum": 0.4, "decay": 0.2},
        "callable": {"learning_rate": RATES, "momentum": MOMENTA},
    },
    "Adam": {
        "default": {},
        "custom": CUSTOM,
        "amsgrad": {"learning_rate": 0.05, "amsgrad": True},
        "amsgrad_custom": {"learning_rate": 0.03, "beta_1": 0.7, "beta_2": 0.6, "amsgrad": True},
        "decay": {"learning_rate": 0.1, "decay": 0.3},
        "schedule": {"learning_rate": POLYNOMIAL},
    },
    "Adamax": {
        "default": {}, "custom": CUSTOM, "decay": {"learning_rate": 0.1, "decay": 0.3}
    },
    "Nadam": {
        "default": {},
        "custom": CUSTOM,
        "schedule_decay": {"learning_rate": 0.02, "schedule_decay": 0.5},
    },
    "Adagrad": {
        "default": {},
        "zero_init": {"learning_rate": 0.1, "initial_accumulator_value": 0.0},
        "custom": {"learning_rate": 0.3, "initial_accumulator_value": 0.5, "epsilon": 0.01},
        "decay": {"learning_rate": 0.3, "decay": 0.4},
    },
    "Adadelta": {
        "default": {},
        "custom": {"learning_rate": 1.0, "rho": 0.9, "epsilon": 0.0001},
        "decay": {"learning_rate": 1.0, "decay": 0.2},
    },
    "RMSprop": {
        "default": {},
        "custom": {"learning_rate": 0.02, "rho": 0.7, "epsilon": 0.001},
        "momentum": {"learning_rate": 0.01, "momentum": 0.9},
        "centered": {"learning_rate": 0.01, "epsilon": 0.0001, "centered": True},
        "centered_mom": {"learning_rate": 0.01, "rho": 0.8, "momentum": 0.5, "epsilon": 0.001,
                         "centered": True},
        "schedule": {"learning_rate": PIECEWISE, "epsilon": 0.0001},
    },
    "Ftrl": {
        "default": {"learning_rate": 0.5},
        "power": {"learning_rate": 0.5, "learning_rate_power": -0.7},
        "l1l2": {"learning_rate": 0.5, "l1_regularization_strength": 0.4,
                 "l2_regularization_strength": 0.3},
        "shrink": {"learning_rate": 0.5, "l2_shrinkage_regularization_strength": 0.1},
        "beta_decay": {"learning_rate": 0.6, "beta": 0.5, "decay": 0.2},
    },
}  # fmt: skip

# Mode -> variable -> its shape and kind of gradient; and the steps at which None is fed.
MODES: dict[str, dict[str, tuple[tuple[int, ...], str]]] = {
    "dense": {"a": ((3,), "dense"), "b": ((4, 5), "dense"), "c": ((2, 3, 4), "dense")},
    "sparse": {"emb": ((10, 4), "sparse"), "row": ((7,), "sparse"), "bias": ((4,), "dense")},
    "none": {"a": ((3,), "dense"), "emb": ((6, 2), "sparse"), "b": ((2, 3), "dense")},
}
NONE_STEPS = {"a": [1, 2, 5], "b": [4], "emb": [3, 7]}

# Name -> (optimizer, keywords, mode, dtype, further fields of the case).
SPECIALS: dict[str, tuple[str, dict[str, Any], str, str, dict[str, Any]]] = {
    "constraint_SGD": ("SGD", {"learning_rate": 0.5, "momentum": 0.5}, "dense", "float32",
                       {"constraint": {"a": [-0.5, 0.5], "b": [0.0, 1.0]}}),
    "iter0_Adam": ("Adam", {"learning_rate": 0.2}, "dense", "float32", {"iterations0": 5}),
    "iter0_Nadam": ("Nadam", {"learning_rate": 0.02}, "dense", "float32", {"iterations0": 5}),
    "set_lr_SGD": ("SGD", {"learning_rate": 0.2, "decay": 0.1}, "dense", "float32",
                   {"set_hyper": {"learning_rate": {"3": 0.05, "6": 0.5}}}),
    "set_lr_alias": ("SGD", {"learning_rate": 0.5, "momentum": 0.5}, "dense", "float64",
                     {"set_hyper": {"lr": {"2": 0.1}, "momentum": {"5": 0.8}}}),
    "lr_kwarg": ("Adam", {"lr": 0.05}, "dense", "float32", {}),
    "np64_Adam": ("Adam", {"learning_rate": 0.01, "beta_1": 0.9, "beta_2": 0.999}, "dense",
                  "float64", {"hyper_np64": True}),
    "half_SGD": ("SGD", {"learning_rate": 0.1, "momentum": 0.9}, "dense", "float16", {}),
    "empty_slices_Adam": ("Adam", {"learning_rate": 0.1}, "sparse", "float32",
                          {"empty_steps": [2, 3]}),
    "empty_slices_Nadam": ("Nadam", {"learning_rate": 0.1}, "sparse", "float32",
                           {"empty_steps": [2, 3]}),
}  # fmt: skip

# Name -> (keywords, further fields of the case); recorded with SGD and Adam.
PIPELINE: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "clipvalue": ({"clipvalue": 0.4}, {}),
    "clipnorm": ({"clipnorm": 0.9}, {}),
    "global_clipnorm": ({"global_clipnorm": 1.1}, {}),
    "clipvalue_clipnorm": ({"clipvalue": 0.5, "clipnorm": 0.9}, {}),
    "clipvalue_global": ({"clipvalue": 0.5, "global_clipnorm": 1.0}, {}),
    "transform": ({}, {"transformers": [["scale", 0.5], ["clip_value", 0.3]]}),
    "aggregator": ({}, {"aggregator": ["scale", 0.25]}),
    "aggregator_clip": ({"clipnorm": 0.7}, {"aggregator": ["scale", 2.0]}),
}

MINIMIZE = {
    "SGD": {"learning_rate": 0.1, "momentum": 0.5},
    "Adam": {"learning_rate": 0.1, "amsgrad": True},
}
MINIMIZE_LOSS = (
    "per-row: r=A@w-y; mean(r*r)+sum(emb[ix]*c); with grad_loss: vector r*r + scalar, weighted by"
    " grad_loss"
)

LINEAR = {"initial_learning_rate": 0.1, "decay_steps": 6_000}
SCHEDULES: list[tuple[str, dict[str, Any]]] = [
    ("ExponentialDecay", {"initial_learning_rate": 0.1, "decay_steps": 700, "decay_rate": 0.9}),
    ("ExponentialDecay", {"initial_learning_rate": 0.1, "decay_steps": 700, "decay_rate": 0.9,
                          "staircase": True}),
    ("InverseTimeDecay", {"initial_learning_rate": 0.1, "decay_steps": 30, "decay_rate": 0.5}),
    ("InverseTimeDecay", {"initial_learning_rate": 0.1, "decay_steps": 30, "decay_rate": 0.5,
                          "staircase": True}),
    ("PolynomialDecay", {"initial_learning_rate": 0.1, "decay_steps": 7_000, "power": 2.0}),
    ("PolynomialDecay", {"initial_learning_rate": 0.1, "decay_steps": 7_000, "power": 0.5}),
    ("PolynomialDecay", {"initial_learning_rate": 0.1, "decay_steps": 1_000, "cycle": True}),
    ("PiecewiseConstantDecay", {"boundaries": [10, 2_000], "values": [1.0, 0.5, 0.1]}),
    ("CosineDecay", {"initial_learning_rate": 0.1, "decay_steps": 6_000, "alpha": 0.1}),
    ("CosineDecay", {"initial_learning_rate": 0.1, "decay_steps": 6_000, "warmup_target": 0.3,
                     "warmup_steps": 500}),
    ("CosineDecayRestarts", {"initial_learning_rate": 0.1, "first_decay_steps": 300,
                             "m_mul": 0.75}),
    ("CosineDecayRestarts", {"initial_learning_rate": 0.1, "first_decay_steps": 300, "t_mul": 1.0,
                             "m_mul": 0.9}),
    ("CosineDecayRestarts", {"initial_learning_rate": 0.1, "first_decay_steps": 300, "t_mul": 1.5,
                             "alpha": 0.05}),
    ("LinearCosineDecay", LINEAR),
    ("LinearCosineDecay", {**LINEAR, "num_periods": 2.5, "alpha": 0.1, "beta": 0.01}),
    ("NoisyLinearCosineDecay", {**LINEAR, "initial_variance": 0.0}),
]  # fmt: skip
SCHEDULE_STEPS = [*range(300), *range(300, 10_001, 97), 2**31 - 1, 2**31, 2**31 + 1]

# Rule -> (optimizer, keywords that select it, three settings), for `--wide`.
_BETAS: list[dict[str, Any]] = [
    {}, {"learning_rate": 0.05, "beta_1": 0.8, "beta_2": 0.9, "epsilon": 1e-3},
    {"learning_rate": 0.1, "beta_1": 0.5, "beta_2": 0.98},
]  # fmt: skip
_RHOS: list[dict[str, Any]] = [
    {}, {"learning_rate": 0.02, "rho": 0.7, "epsilon": 1e-3}, {"learning_rate": 0.3, "rho": 0.99}
]  # fmt: skip
_FTRL: list[dict[str, Any]] = [
    {}, {"learning_rate": 0.5, "l1_regularization_strength": 0.4,
         "l2_regularization_strength": 0.3, "beta": 0.5},
    {"learning_rate": 0.1, "l2_shrinkage_regularization_strength": 0.1},
]  # fmt: skip
_RATES: list[dict[str, Any]] = [
    {}, {"learning_rate": 0.3}, {"learning_rate": 0.7, "decay": 0.1}
]  # fmt: skip
_MOMENTA: list[dict[str, Any]] = [
    {"momentum": 0.9}, {"learning_rate": 0.1, "momentum": 0.5},
    {"learning_rate": 0.3, "momentum": 0.99, "decay": 0.1},
]  # fmt: skip
WIDE_RULES: dict[str, tuple[str, dict[str, Any], list[dict[str, Any]]]] = {
    "SGD": ("SGD", {}, _RATES),
    "Momentum": ("SGD", {}, _MOMENTA),
    "Nesterov": ("SGD", {"nesterov": True}, _MOMENTA),
    "Adagrad": ("Adagrad", {}, [{}, {"learning_rate": 0.3, "epsilon": 0.01},
                                {"learning_rate": 0.1, "initial_accumulator_value": 0.0}]),
    "Adadelta": ("Adadelta", {}, _RHOS),
    "RMSprop": ("RMSprop", {}, _RHOS),
    "CenteredRMSprop": ("RMSprop", {"centered": True}, _RHOS),
    "MomentumRMSprop": ("RMSprop", {"momentum": 0.9}, _RHOS),
    "CenteredMomentumRMSprop": ("RMSprop", {"centered": True, "momentum": 0.5}, _RHOS),
    "Adamax": ("Adamax", {}, _BETAS),
    "Adam": ("Adam", {}, _BETAS),
    "AMSGrad": ("Adam", {"amsgrad": True}, _BETAS),
    "Nadam": ("Nadam", {}, [*_BETAS[:2], {"learning_rate": 0.02, "schedule_decay": 0.5}]),
    "Ftrl": ("Ftrl", {}, _FTRL),
    "FtrlPower": ("Ftrl", {"learning_rate_power": -0.7}, _FTRL),
}  # fmt: skip
# Kind of a wide case -> its variables. "edges" are NaN, infinities, signed zeros and denormals.
WIDE_VARIABLES: dict[str, dict[str, tuple[tuple[int, ...], str]]] = {
    "wide": {
        "empty": ((0,), "dense"), "one": ((1,), "dense"), "long": ((200_003,), "dense"),
        "rows": ((20, 64), "sparse"), "wide": ((20, 100), "sparse"), "single": ((50, 1), "sparse"),
    },
    "edges": {"flat": ((3_001,), "dense"), "rows": ((30, 20), "sparse"),
              "single": ((40,), "sparse")},
}  # fmt: skip
WIDE_STEPS = 5
WIDE_SAMPLES = 16
WIDE_SEED = 2026


def trajectory(
    name: str, optimizer: str, kwargs: dict[str, Any], mode: str, dtype: str, steps: int = 10,
    **fields: Any,
) -> Case:  # fmt: skip
    """Return a case that feeds gradients; its variables are those of the mode."""
    case: Case = {
        "id": f"{name}/{mode}/f{np.dtype(dtype).itemsize * 8}", "kind": "trajectory", "api": "v2",
        "optimizer": optimizer, "kwargs": kwargs, "mode": mode, "dtype": dtype, "steps": steps,
        "order": list(MODES[mode]),
        "vars": {name: {"shape": list(shape), "dtype": dtype, "grad": kind}
                 for name, (shape, kind) in MODES[mode].items()},
    }  # fmt: skip
    if mode == "none":
        case["none_steps"] = NONE_STEPS
    return {**case, **fields}


def cases() -> Iterator[Case]:
    """Return every case of the tables but the wide ones."""
    dtypes = ("float32", "float64")
    for optimizer, settings in SETTINGS.items():
        for (name, kwargs), mode, dtype in itertools.product(settings.items(), MODES, dtypes):
            yield trajectory(f"v2/{optimizer}/{name}", optimizer, kwargs, mode, dtype)
    for name, (optimizer, kwargs, mode, dtype, fields) in SPECIALS.items():
        yield trajectory(f"v2/special/{name}", optimizer, kwargs, mode, dtype, 6, **fields)
    for (name, (kwargs, fields)), optimizer in itertools.product(PIPELINE.items(), MINIMIZE):
        rate = {"learning_rate": 1.0 if optimizer == "SGD" else 0.05}
        for mode in ("dense",) if fields else MODES:
            title = f"v2/pipeline/{name}_{optimizer}"
            yield trajectory(title, optimizer, {**rate, **kwargs}, mode, "float32", 5, **fields)
    for (optimizer, kwargs), weighted, dtype in itertools.product(
        MINIMIZE.items(), (False, True), dtypes
    ):
        name = f"{optimizer}_{'gl' if weighted else 'mean'}/f{np.dtype(dtype).itemsize * 8}"
        yield {"id": f"v2/minimize/{name}", "kind": "minimize", "api": "v2", "dtype": dtype,
               "optimizer": optimizer, "kwargs": kwargs, "order": ["w", "emb", "u"], "steps": 6,
               "grad_loss": weighted, "loss": MINIMIZE_LOSS}  # fmt: skip
    for (index, (cls, config)), dtype in itertools.product(enumerate(SCHEDULES), dtypes):
        if cls == "NoisyLinearCosineDecay" and dtype == "float64":
            continue  # TensorFlow refuses it
        yield {"id": f"schedule/{cls}/{index}/f{np.dtype(dtype).itemsize * 8}", "kind": "schedule",
               "api": "schedule", "cls": cls, "config": config, "dtype": dtype}  # fmt: skip


def wide_cases() -> Iterator[Case]:
    """Return every rule with three settings on wide variables and with the first on edges."""
    for rule, (optimizer, base_kwargs, settings) in WIDE_RULES.items():
        kinds = [("wide", 0), ("wide", 1), ("wide", 2), ("edges", 0)]
        for (kind, number), dtype in itertools.product(kinds, ("float32", "float64")):
            yield {
                "id": f"{rule}/{kind}{number}/f{np.dtype(dtype).itemsize * 8}", "rule": rule,
                "inputs": kind, "optimizer": optimizer,
                "kwargs": {**base_kwargs, **settings[number]}, "dtype": dtype,
            }  # fmt: skip


# --- Inputs: from uniform numbers and exact operations only, so the same with every NumPy ---------


def magnitudes(rng: np.random.Generator, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    """Return numbers of either sign between 2**-20 and 2**7, even over the exponents."""
    exponents = np.floor(rng.random(shape) * 27).astype(np.int64) - 20
    values = np.ldexp(1 + rng.random(shape), exponents)
    return np.where(rng.random(shape) < 0.5, -values, values).astype(dtype)


def edges(rng: np.random.Generator, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    """Return numbers that are easily got wrong, one in four an ordinary one."""
    tiny, largest = float(np.finfo(dtype).tiny), float(np.finfo(dtype).max)
    special = [math.nan, math.inf, -math.inf, 0.0, -0.0, tiny, -tiny, 0.3 * tiny, -0.3 * tiny,
              1.5 * tiny, largest, -largest]  # fmt: skip
    pool = np.array([*special, 1.0, -1.0, 0.5, -3.0], dtype)
    return pool[np.floor(rng.random(shape) * len(pool)).astype(np.int64)]


def uniform(rng: np.random.Generator, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    """Return numbers between -2 and 2."""
    return (4 * rng.random(shape) - 2).astype(dtype)


def inputs(case: Case, seed: int, draw: Any = uniform) -> Arrays:
    """Return initial values and gradients of a trajectory, in the layout of the recordings."""
    rng = np.random.default_rng(seed)
    arrays: Arrays = {}
    for name in case["order"]:
        shape, dtype = tuple(case["vars"][name]["shape"]), case["vars"][name]["dtype"]
        arrays[f"var|{name}"] = draw(rng, shape, dtype)[None]
        if case["vars"][name]["grad"] == "dense":
            arrays[f"grad|{name}"] = _dense_inputs(case, name, rng, draw)
        else:
            arrays.update(_sparse_inputs(case, name, rng, draw))
    return arrays


def _dense_inputs(case: Case, name: str, rng: np.random.Generator, draw: Any) -> np.ndarray:
    shape = (case["steps"], *case["vars"][name]["shape"])
    gradients = draw(rng, shape, case["vars"][name]["dtype"])
    for step in case.get("none_steps", {}).get(name, ()):
        gradients[step - 1] = math.nan
    return gradients


def _sparse_inputs(case: Case, name: str, rng: np.random.Generator, draw: Any) -> Arrays:
    rows, *row = case["vars"][name]["shape"]
    counts = []
    for step in range(1, case["steps"] + 1):
        absent = step in case.get("none_steps", {}).get(name, ())
        absent = absent or step in case.get("empty_steps", ())
        counts.append(0 if absent else 1 + int(rng.random() * rows))
    total = sum(counts)
    return {
        f"gval|{name}": draw(rng, (total, *row), case["vars"][name]["dtype"]),
        f"gidx|{name}": np.floor(rng.random(total) * rows).astype(np.int16),
        f"gsplit|{name}": np.cumsum([0, *counts]).astype(np.int16),
    }


def minimize_inputs(case: Case, seed: int) -> Arrays:
    """Return initial values and constants of a 'minimize' case."""
    rng, dtype = np.random.default_rng(seed), case["dtype"]
    shapes = {"var|w": (3,), "var|emb": (7, 2), "var|u": (2,), "const|A": (5, 3), "const|y": (5,),
              "const|c": (4, 2), "const|grad_loss": (5,)}  # fmt: skip
    arrays = {key: uniform(rng, shape, dtype) for key, shape in shapes.items()}
    arrays = {key: value[None] if key[:3] == "var" else value for key, value in arrays.items()}
    return {**arrays, "const|ix": np.array([1, 4, 1, 6], np.int16)}


# --- TensorFlow -----------------------------------------------------------------------------------


def _modules() -> tuple[Any, Any]:
    import tensorflow
    import tf_keras

    tensorflow.get_logger().setLevel("ERROR")
    return tensorflow, tf_keras


def _schedule(cls: str, config: dict[str, Any], wide: bool = False) -> Any:
    _, keras = _modules()
    config = dict(config)
    for key in ("initial_learning_rate", "values") if wide else ():
        if key in config:
            value = config[key]
            is_list = isinstance(value, list)
            config[key] = [np.float64(v) for v in value] if is_list else np.float64(value)
    home = keras.optimizers.schedules
    if not hasattr(home, cls):
        from tf_keras.src.optimizers.schedules import learning_rate_schedule as home
    return getattr(home, cls)(**config)


def _argument(value: Any, case: Case, clock: dict[str, int]) -> Any:
    if isinstance(value, dict) and "callable" in value:
        return lambda: value["callable"][clock["step"] - 1]
    if isinstance(value, dict):
        return _schedule(value["schedule"], value["config"])
    return np.float64(value) if case.get("hyper_np64") and isinstance(value, float) else value


def _pairs(kind: str, amount: float) -> Any:
    tf, _ = _modules()
    functions = {
        "scale": lambda grad, var: grad * amount,
        "clip_value": lambda grad, var: tf.clip_by_value(grad, -amount, amount),
        "add_wd": lambda grad, var: grad + amount * var,
    }
    return lambda pairs: [(functions[kind](grad, var), var) for grad, var in pairs]


def optimizer(case: Case, clock: dict[str, int]) -> Any:
    """Return the optimizer of a case; `clock["step"]` is what its callables read."""
    tf, keras = _modules()
    kwargs = {key: _argument(value, case, clock) for key, value in case["kwargs"].items()}
    if "aggregator" in case:
        kwargs["gradient_aggregator"] = _pairs(*case["aggregator"])
    if "transformers" in case:
        kwargs["gradient_transformers"] = [
            _pairs(*transformer) for transformer in case["transformers"]
        ]
    opt = getattr(keras.optimizers.legacy, case["optimizer"])(**kwargs)
    if "iterations0" in case:
        start = np.int64(case["iterations0"])
        opt.iterations = tf.Variable(start, name="iter0", trainable=False)
    return opt


def _variables(case: Case, arrays: Arrays) -> dict[str, Any]:
    tf, _ = _modules()
    variables = {}
    for name in case["order"]:
        bounds = case.get("constraint", {}).get(name)
        clip = None if bounds is None else lambda x, b=bounds: tf.clip_by_value(x, *b)
        variables[name] = tf.Variable(arrays[f"var|{name}"][0], name=name, constraint=clip)
    return variables


def _gradient(case: Case, arrays: Arrays, name: str, step: int, var: Any) -> Any:
    tf, _ = _modules()
    if step in case.get("none_steps", {}).get(name, ()):
        return None
    if f"grad|{name}" in arrays:
        return tf.constant(arrays[f"grad|{name}"][step - 1])
    split = arrays[f"gsplit|{name}"]
    part = slice(split[step - 1], split[step])
    indices = arrays[f"gidx|{name}"][part].astype(np.int32)
    values = tf.constant(arrays[f"gval|{name}"][part])
    return tf.IndexedSlices(values, tf.constant(indices), tf.constant(var.shape))


class Log:
    """The values of variables, slots and counters, row after row."""

    def __init__(self, case: Case, opt: Any, variables: dict[str, Any]) -> None:
        self.case, self.opt, self.variables = case, opt, variables
        self.rows: dict[str, list[np.ndarray | None]] = {}

    def _slots(self, var: Any) -> dict[str, Any]:
        return self.opt._slots.get(_key(var), {})

    def take(self) -> None:
        """Append one row."""
        for name, var in self.variables.items():
            self.rows.setdefault(f"var|{name}", []).append(var.numpy())
            for slot, value in self._slots(var).items():
                key = f"slot|{name}|{slot}"
                late = [None] * (len(self.rows[f"var|{name}"]) - 1)
                self.rows.setdefault(key, list(late)).append(value.numpy())
        self.rows.setdefault("iterations", []).append(self.opt.iterations.numpy())
        if getattr(self.opt, "_m_cache", None) is not None:
            key = "nonslot|momentum_cache"
            late = [None] * (len(self.rows["iterations"]) - 1)
            self.rows.setdefault(key, list(late)).append(self.opt._m_cache.numpy())

    def arrays(self) -> Arrays:
        """Return the rows stacked; NaN where a slot was not yet created."""
        stacked = {key: _stacked(rows) for key, rows in self.rows.items()}
        return {**stacked, "iterations": stacked["iterations"].astype(np.int32)}

    def fields(self) -> Case:
        """Return the JSON entries about an optimizer after its run."""
        slots = {name: list(self._slots(var)) for name, var in self.variables.items()}
        nonslot = [key.split("|")[1] for key in self.rows if key.startswith("nonslot")]
        config = {key: value.item() if isinstance(value, np.generic) else value
                  for key, value in self.opt.get_config().items()}  # fmt: skip
        return {
            "config": config,
            "nonslot": nonslot,
            "slots": {name: names for name, names in slots.items() if names},
            "slot_names": list(dict.fromkeys(itertools.chain(*slots.values()))),
            "weight_names": [weight.name for weight in self.opt.weights],
        }


def _key(var: Any) -> str:
    return var._unique_id if hasattr(var, "_unique_id") else var._shared_name


def _stacked(rows: list[np.ndarray | None]) -> np.ndarray:
    first_row = next(row for row in rows if row is not None)
    return np.stack([np.full_like(first_row, np.nan) if row is None else row for row in rows])


def record(case: Case, arrays: Arrays) -> tuple[Case, Arrays]:
    """Run a trajectory; the case with what TensorFlow reported, and all arrays."""
    clock = {"step": 0}
    opt, variables = optimizer(case, clock), _variables(case, arrays)
    log = Log(case, opt, variables)
    if "none_steps" not in case:
        clock["step"] = 1
        opt._create_all_weights(list(variables.values()))
    log.take()
    for step in range(1, case["steps"] + 1):
        clock["step"] = step
        for key, changes in case.get("set_hyper", {}).items():
            if str(step) in changes:
                setattr(opt, key, changes[str(step)])
        opt.apply_gradients(
            [(_gradient(case, arrays, name, step, var), var) for name, var in variables.items()]
        )
        log.take()
    return {**case, **log.fields()}, {**arrays, **log.arrays()}


def record_minimize(case: Case, arrays: Arrays) -> tuple[Case, Arrays]:
    """Run a 'minimize' case; gradients are recorded dense, NaN for None."""
    tf, _ = _modules()
    opt, variables = optimizer(case, {}), _variables(case, arrays)
    const = {key[6:]: tf.constant(value) for key, value in arrays.items() if key[:5] == "const"}
    indices = tf.cast(const["ix"], tf.int32)

    def loss() -> Any:
        r = tf.linalg.matvec(const["A"], variables["w"]) - const["y"]
        scalar = tf.reduce_sum(tf.gather(variables["emb"], indices) * const["c"])
        return r * r + scalar if case["grad_loss"] else tf.reduce_mean(r * r) + scalar

    weights = const["grad_loss"] if case["grad_loss"] else None
    log, gradients = Log(case, opt, variables), {"w": [], "emb": []}
    opt._create_all_weights([variables["w"], variables["emb"]])
    log.take()
    for _ in range(case["steps"]):
        with tf.GradientTape() as tape:
            value = loss()
        found = tape.gradient(value, variables, output_gradients=weights)
        for name, rows in gradients.items():
            rows.append(tf.convert_to_tensor(found[name]).numpy())
        opt.minimize(loss, list(variables.values()), grad_loss=weights)
        log.take()
    gradient_arrays = {f"grad|{name}": np.stack(rows) for name, rows in gradients.items()}
    found = {key: value for key, value in log.arrays().items() if not key.startswith("slot|")}
    return case, {**arrays, **gradient_arrays, **found}


def record_schedule(case: Case) -> tuple[Case, Arrays]:
    """Call a schedule with int64 steps; float64 cases have a float64 initial rate."""
    tf, _ = _modules()
    schedule = _schedule(case["cls"], case["config"], case["dtype"] == "float64")
    values = [schedule(tf.constant(step, tf.int64)).numpy() for step in SCHEDULE_STEPS]
    return case, {"steps": np.array(SCHEDULE_STEPS, np.int64), "values": np.array(values)}


def run(case: Case, seed: int) -> tuple[Case, Arrays]:
    """Record a case of any kind with inputs drawn from a seed."""
    seeds = [seed, *case["id"].encode()]
    if case["kind"] == "schedule":
        return record_schedule(case)
    if case["kind"] == "minimize":
        return record_minimize(case, minimize_inputs(case, seeds))  # pyright: ignore
    return record(case, inputs(case, seeds))  # pyright: ignore


# --- Files ----------------------------------------------------------------------------------------


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")


def _write(
    path: Path, cases_: list[Case], arrays: Arrays, layout: list[str], extra_head: Case
) -> None:
    tf, _ = _modules()
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(path.with_suffix(".npz"), **arrays)
    head = {"layout": layout, "tensorflow": tf.__version__, **extra_head}
    lines = ",\n".join(json.dumps(case, sort_keys=True) for case in cases_)
    text = json.dumps(head, indent=1)[:-2] + f',\n "cases": [\n{lines}\n ]\n}}\n'
    path.with_suffix(".json").write_text(text)


def record_all(out: Path, pattern: str, seed: int) -> None:
    """Record the cases whose id matches, into DIR/keras.json and DIR/keras.npz."""
    recorded_cases: list[Case] = []
    arrays: Arrays = {}
    for case in cases():
        if fnmatch.fnmatch(case["id"], pattern):
            case, case_arrays = run(case, seed)
            recorded_cases.append(case)
            arrays.update({f"{case['id']}|{key}": value for key, value in case_arrays.items()})
    _write(out / "keras", recorded_cases, arrays, LAYOUT, {"seed": seed})
    _say(f"{len(recorded_cases)} cases, {len(arrays)} arrays")


def _given(case: Case, archive: Any) -> Arrays:
    """Return the inputs of a recorded case, out of its file."""
    names = [key for key in archive.files if key.startswith(case["id"] + "|")]
    arrays = {key.split("|", 1)[1]: archive[key] for key in names}
    inner = ("var|", "grad|", "gval|", "gidx|", "gsplit|", "const|")
    return {key: value for key, value in arrays.items() if key.startswith(inner)}


def record_again(prefix: Path, pattern: str) -> int:
    """Record an existing file's cases with its own inputs; returns how many differ in any bit."""
    archive = np.load(prefix.with_suffix(".npz"))
    case_list = json.loads(prefix.with_suffix(".json").read_text())["cases"]
    case_list = [case for case in case_list if fnmatch.fnmatch(case["id"], pattern)]
    difference_count = 0
    for case in case_list:
        recorder = record_minimize if case["kind"] == "minimize" else record
        _, arrays = recorder(case, _given(case, archive))
        wrong = [key for key, value in arrays.items() if not _same(value, archive, case, key)]
        difference_count += bool(wrong)
        if wrong:
            _say(" ".join((case["id"], *wrong)))
    _say(f"{len(case_list)} cases recorded again, {difference_count} differ")
    return difference_count


def _same(value: np.ndarray, archive: Any, case: Case, key: str) -> bool:
    name = f"{case['id']}|{key}"
    if name not in archive.files:
        return False
    old_value = archive[name]
    return old_value.dtype == value.dtype and np.array_equal(old_value, value, equal_nan=True)


# --- Wide recordings ------------------------------------------------------------------------------

WIDE_LAYOUT = [
    "All keys are '<case id>|<what>'. 'keys' of a case are its arrays: var|<v> or slot|<v>|<slot>.",
    " digest   (steps, keys) uint64: blake2b of each array's bytes after each step, any NaN as one",
    " sample   (steps, ...): elements of each array after each step, one array after the other;",
    "                        sample_positions(size) says which",
    "Inputs are drawn again, from a seed: see wide_inputs; 'inputs' has a digest of each.",
]


def wide_spec(kind: str, dtype: str) -> Case:
    """Return variables and steps of the wide cases of a kind."""
    variables = {name: {"shape": list(shape), "dtype": dtype, "grad": gradient}
                 for name, (shape, gradient) in WIDE_VARIABLES[kind].items()}  # fmt: skip
    return {"order": list(variables), "vars": variables, "steps": WIDE_STEPS}


@cache
def wide_inputs(kind: str, dtype: str) -> Arrays:
    """Return finite initial values and gradients of the wide cases of a kind."""
    spec = wide_spec(kind, dtype)
    ordinary = inputs(spec, WIDE_SEED, magnitudes)
    if kind == "wide":
        return ordinary
    arrays = inputs(spec, WIDE_SEED, edges)
    for key in (key for key in arrays if key.startswith("var|")):
        arrays[key] = np.where(np.abs(arrays[key]) <= 1, arrays[key], ordinary[key])
    return arrays


def digest(array: np.ndarray) -> int:
    """Return 64 bits of the blake2b of an array's bytes; all NaN count as one."""
    missing = np.isnan(array)
    if missing.any():
        array = np.where(missing, array.dtype.type(math.nan), array)
    content = np.ascontiguousarray(array).data
    return int.from_bytes(hashlib.blake2b(content, digest_size=8).digest(), "little")


def inputs_digest(kind: str, dtype: str) -> str:
    """Return one digest of the inputs of a kind."""
    arrays = wide_inputs(kind, dtype)
    parts = [np.ascontiguousarray(arrays[key]).tobytes() for key in sorted(arrays)]
    return hashlib.blake2b(b"".join(parts), digest_size=8).hexdigest()


def sample_positions(size: int) -> np.ndarray:
    """Return up to `WIDE_SAMPLES` positions, spread evenly from the first to the last."""
    count = min(size, WIDE_SAMPLES)
    return np.array([(size - 1) * k // max(count - 1, 1) for k in range(count)], np.int64)


def _condensed(arrays: list[np.ndarray]) -> Arrays:
    """Return digests and samples of arrays whose first dimension is the step (0: initial)."""
    flat = [array[1:].reshape(WIDE_STEPS, -1) for array in arrays]
    digests = [[digest(array[step]) for array in flat] for step in range(WIDE_STEPS)]
    samples = [array[:, sample_positions(array.shape[1])] for array in flat]
    return {"digest": np.array(digests, np.uint64), "sample": np.concatenate(samples, axis=1)}


def record_wide(out: Path, pattern: str) -> None:
    """Record the wide cases, into DIR/wide.json and DIR/wide.npz."""
    recorded_cases: list[Case] = []
    arrays: Arrays = {}
    for case in wide_cases():
        if not fnmatch.fnmatch(case["id"], pattern):
            continue
        kind, dtype = case["inputs"], case["dtype"]
        _, case_arrays = record({**case, **wide_spec(kind, dtype)}, wide_inputs(kind, dtype))
        keys = [key for key in case_arrays if key.startswith(("var|", "slot|"))]
        for title, value in _condensed([case_arrays[key] for key in keys]).items():
            arrays[f"{case['id']}|{title}"] = value
        recorded_cases.append({**case, "keys": keys})
    digests = {
        f"{kind}/{dtype}": inputs_digest(kind, dtype)
        for kind, dtype in itertools.product(WIDE_VARIABLES, ("float32", "float64"))
    }
    _write(out / "wide", recorded_cases, arrays, WIDE_LAYOUT, {"inputs": digests})
    _say(f"{len(recorded_cases)} cases")


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--out", type=Path, help="folder to write to")
    parser.add_argument("--cases", default="*", metavar="PATTERN", help="ids, with * and ?")
    parser.add_argument("--seed", type=int, default=0, help="of the inputs")
    parser.add_argument("--again", type=Path, metavar="PREFIX", help="check PREFIX.json and .npz")
    parser.add_argument("--wide", action="store_true", help="record the wide cases")
    options = parser.parse_args(arguments)
    if options.again:
        return 1 if record_again(options.again, options.cases) else 0
    if options.out is None:
        parser.error("--out or --again is needed")
    if options.wide:
        record_wide(options.out, options.cases)
    else:
        record_all(options.out, options.cases, options.seed)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
