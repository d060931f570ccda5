"""Replay a recorded TensorFlow case with the library and compare every step."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch

import thalweg
from golden_files import array_of, cases_of
from thalweg.keras import optimizers

DTYPES = {"float32": torch.float32, "float64": torch.float64, "float16": torch.float16}


cases = partial(cases_of, "keras")
array = partial(array_of, "keras")


def _argument(value: Any, case: dict[str, Any], clock: dict[str, int]) -> Any:
    if isinstance(value, dict) and "callable" in value:
        return lambda: value["callable"][clock["step"] - 1]
    if isinstance(value, dict) and "schedule" in value:
        return getattr(optimizers.schedules, value["schedule"])(**value["config"])
    if case.get("hyper_np64") and isinstance(value, float):
        return np.float64(value)
    return value


def _pair_function(kind: str, amount: float) -> Any:
    functions = {
        "scale": lambda grad, var: grad * amount,
        "clip_value": lambda grad, var: torch.clamp(grad, -amount, amount),
        "add_wd": lambda grad, var: grad + amount * var.detach(),
    }
    return lambda pairs: [(functions[kind](grad, var), var) for grad, var in pairs]


def optimizer(case: dict[str, Any], clock: dict[str, int]) -> Any:
    """Return the optimizer of a case; `clock["step"]` is what its callables read."""
    kwargs = {key: _argument(value, case, clock) for key, value in case["kwargs"].items()}
    if "aggregator" in case:
        kwargs["gradient_aggregator"] = _pair_function(*case["aggregator"])
    if "transformers" in case:
        kwargs["gradient_transformers"] = [_pair_function(*pair) for pair in case["transformers"]]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        opt = getattr(optimizers, case["optimizer"])(**kwargs)
    if "iterations0" in case:
        opt.iterations = thalweg.Variable(np.int64(case["iterations0"]), "iter0", trainable=False)
    return opt


def variables(case: dict[str, Any]) -> dict[str, thalweg.Variable]:
    variables = {}
    for name in case["order"]:
        bounds = case.get("constraint", {}).get(name)
        constraint = None if bounds is None else lambda x, b=bounds: torch.clamp(x, *b)
        # In torch's own memory: that of others is looked up before each plan is made.
        start = torch.tensor(array(case, "var", name)[0])
        variables[name] = thalweg.Variable(start, name, constraint=constraint)
    return variables


def gradient(case: dict[str, Any], name: str, step: int) -> Any:
    """Return the gradient fed to a variable at a step, counted from 1."""
    if step in case.get("none_steps", {}).get(name, ()):
        return None
    if case["vars"][name]["grad"] == "dense":
        return torch.tensor(array(case, "grad", name)[step - 1])
    split = array(case, "gsplit", name)
    part = slice(split[step - 1], split[step])
    values, indices = array(case, "gval", name)[part], array(case, "gidx", name)[part]
    return thalweg.IndexedSlices(
        torch.from_numpy(values.copy()), torch.from_numpy(indices.astype(np.int64))
    )


class Value(NamedTuple):
    """One value after one step: what the library has, TensorFlow's, and TensorFlow's before it."""

    name: str
    got: np.ndarray
    expected: np.ndarray
    previous: np.ndarray


def steps(case: dict[str, Any], engine: str) -> Iterator[tuple[int, Any, dict[str, Any]]]:
    """Run a trajectory; yields the step's number, the optimizer and its variables after each."""
    clock = {"step": 0}
    opt, case_variables = optimizer(case, clock), variables(case)
    opt.engine = engine
    for step in range(1, case["steps"] + 1):
        clock["step"] = step
        for key, changes in case.get("set_hyper", {}).items():
            if str(step) in changes:
                setattr(opt, key, changes[str(step)])
        pairs = [(gradient(case, name, step), case_variables[name]) for name in case["order"]]
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Gradients do not exist", UserWarning)
            opt.apply_gradients(pairs)
        yield step, opt, case_variables


def replay(case: dict[str, Any], engine: str, resume: bool = False) -> Iterator[Value]:
    """Run a trajectory; yields every variable, slot and counter after each step.

    With `resume` each step starts from TensorFlow's state, so that differences do not add up.
    """
    for step, opt, variables in steps(case, engine):
        yield from _compared(case, opt, variables, step, resume)


def trained(case: dict[str, Any]) -> Any:
    return list(steps(case, "reference"))[-1][1]


def plain_config(config: dict[str, Any]) -> dict[str, Any]:
    """Return a configuration in Python types, without Keras-specific fields of schedules."""
    result = {}
    for key, value in config.items():
        if isinstance(value, dict):
            value = {name: value[name] for name in ("class_name", "config")}
        result[key] = value.item() if isinstance(value, np.generic) else value
    return result


def _compared(
    case: dict[str, Any], opt: Any, variables: dict[str, Any], step: int, resume: bool
) -> Iterator[Value]:
    state: list[tuple[str, Any, np.ndarray]] = [
        ("iterations", opt.iterations, array(case, "iterations"))
    ]
    if case["nonslot"]:
        series = array(case, "nonslot", "momentum_cache")
        state.append(("momentum_cache", opt.weights[1], series))
    for name, var in variables.items():
        state.append((name, var, array(case, "var", name)))
        for slot in case["slots"].get(name, case["slot_names"]):
            series = array(case, "slot", name, slot)
            state.append((f"{name}/{slot}", _slot(opt, var, slot), series))
    for name, weight, series in state:
        expected = series[step]
        got = np.full_like(expected, np.nan) if weight is None else weight.numpy()
        yield Value(f"{name} after step {step}", got, expected, series[step - 1])
        if resume and weight is not None:
            weight.assign(np.array(expected))


def _slot(opt: Any, var: Any, name: str) -> Any:
    try:
        return opt.get_slot(var, name)
    except KeyError:
        return None  # as NaN in the recording: not yet created


def minimized(case: dict[str, Any], engine: str) -> Iterator[Value]:
    """Run a recorded `minimize`, gradients and all; yields as `replay` does."""
    opt = optimizer(case, {"step": 0})
    opt.engine = engine
    w, emb, u = (thalweg.Variable(array(case, "var", name)[0], name) for name in case["order"])
    matrix, target, weight = (torch.tensor(array(case, "const", name)) for name in ("A", "y", "c"))
    rows = torch.from_numpy(array(case, "const", "ix").astype(np.int64))
    grad_loss = None
    if case["grad_loss"]:
        grad_loss = torch.tensor(array(case, "const", "grad_loss"))

    def loss() -> torch.Tensor:
        square = (matrix @ w - target) ** 2
        square = square if case["grad_loss"] else square.mean()
        return square + (thalweg.embedding_lookup(emb, rows) * weight).sum()

    for step in range(1, case["steps"] + 1):
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Gradients do not exist", UserWarning)
            opt.minimize(loss, [w, emb, u], grad_loss=grad_loss)
        for name, var in zip(case["order"], (w, emb, u), strict=True):
            series = array(case, "var", name)
            yield Value(f"{name} after step {step}", var.numpy(), *series[[step, step - 1]])


def distances(got: np.ndarray, expected: np.ndarray) -> np.ndarray:
    """Return ulps between elements; NaN equals NaN, and 0 is one unit from -0."""
    got, expected = np.asarray(got), np.asarray(expected)
    a, b = _ranked(got), _ranked(expected)
    distance = np.maximum(a, b).view(np.uint64) - np.minimum(a, b).view(np.uint64)
    return np.where(np.isnan(got) & np.isnan(expected), 0, distance)


def _ranked(values: np.ndarray) -> np.ndarray:
    """Return integers in the order of the floats, without gaps."""
    integer = {2: np.int16, 4: np.int32, 8: np.int64}[values.dtype.itemsize]
    bits = np.ascontiguousarray(values).view(integer)
    if values.dtype.kind == "f":
        bits = np.where(bits < 0, np.invert(bits & np.iinfo(integer).max), bits)
    return np.atleast_1d(bits).astype(np.int64).reshape(values.shape)


def report(case: dict[str, Any], value: Value, bad: np.ndarray) -> str:
    """Describe a failed comparison: index, both values in hexadecimal, ulps, and a command."""
    got, expected = np.asarray(value.got), np.asarray(value.expected)
    index = tuple(int(i) for i in np.argwhere(bad)[0])
    pair = f"got {float(got[index]).hex()}, recorded {float(expected[index]).hex()}"
    ulps = distances(got, expected)[index]
    command = f"pytest 'tests/keras/test_keras_goldens.py' -k '{case['id']}'"
    return f"{case['id']}: {value.name} at {index}: {pair}, {ulps:.0f} ulp apart\n  {command}"
