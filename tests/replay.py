"""Replay a recorded TensorFlow case with the library and compare every step."""

from __future__ import annotations

import json
import warnings
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

import thalweg
from thalweg.keras import optimizers

FOLDER = Path(__file__).with_name("goldens")
DTYPES = {"float32": torch.float32, "float64": torch.float64, "float16": torch.float16}


@cache
def cases() -> dict[str, dict[str, Any]]:
    return {case["id"]: case for case in json.loads((FOLDER / "keras.json").read_text())["cases"]}


@cache
def _arrays() -> Any:
    return np.load(FOLDER / "keras.npz")


def array(case: dict[str, Any], *names: str) -> np.ndarray:
    return _arrays()["|".join((case["id"], *names))]


def has(case: dict[str, Any], *names: str) -> bool:
    return "|".join((case["id"], *names)) in _arrays().files


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
    """The optimizer of a case; `clock["step"]` is what its callables read."""
    kwargs = {key: _argument(value, case, clock) for key, value in case["kwargs"].items()}
    if "aggregator" in case:
        kwargs["gradient_aggregator"] = _pair_function(*case["aggregator"])
    if "transformers" in case:
        kwargs["gradient_transformers"] = [_pair_function(*each) for each in case["transformers"]]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        opt = getattr(optimizers, case["optimizer"])(**kwargs)
    if "iterations0" in case:
        opt.iterations = thalweg.Variable(np.int64(case["iterations0"]), "it", trainable=False)
    return opt


def variables(case: dict[str, Any]) -> dict[str, thalweg.Variable]:
    made = {}
    for name in case["order"]:
        bounds = case.get("constraint", {}).get(name)
        constraint = None if bounds is None else lambda x, b=bounds: torch.clamp(x, *b)
        made[name] = thalweg.Variable(array(case, "var", name)[0], name, constraint=constraint)
    return made


def gradient(case: dict[str, Any], name: str, step: int) -> Any:
    """The gradient fed to a variable at a step, counted from 1."""
    if step in case.get("none_steps", {}).get(name, ()):
        return None
    if case["vars"][name]["grad"] == "dense":
        return torch.from_numpy(np.array(array(case, "grad", name)[step - 1]))
    split = array(case, "gsplit", name)
    part = slice(split[step - 1], split[step])
    values, indices = array(case, "gval", name)[part], array(case, "gidx", name)[part]
    return thalweg.IndexedSlices(torch.from_numpy(values.copy()), torch.from_numpy(indices.astype(np.int64)))


def replay(case: dict[str, Any], engine: str) -> list[tuple[str, np.ndarray, np.ndarray]]:
    """Run a trajectory; returns (what, got, recorded) for every value of every step."""
    clock = {"step": 0}
    opt, own = optimizer(case, clock), variables(case)
    opt.engine = engine
    found = []
    for step in range(1, case["steps"] + 1):
        clock["step"] = step
        for key, changes in case.get("set_hyper", {}).items():
            if str(step) in changes:
                setattr(opt, key, changes[str(step)])
        pairs = [(gradient(case, name, step), own[name]) for name in case["order"]]
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Gradients do not exist", UserWarning)
            opt.apply_gradients(pairs)
        for name, var in own.items():
            found.append((f"{name} step {step}", var.numpy(), array(case, "var", name)[step]))
            for slot in case["slots"].get(name, case["slot_names"]):
                recorded = array(case, "slot", name, slot)[step]
                if slot in opt._slots.all_of(var):
                    got = opt.get_slot(var, slot).numpy()
                else:
                    got = np.full_like(recorded, np.nan)
                found.append((f"{name}/{slot} step {step}", got, recorded))
        found.append((f"iterations {step}", opt.iterations.numpy(), array(case, "iterations")[step]))
        if case["nonslot"]:
            cache = opt._extra_weights()["momentum_cache"].numpy()
            found.append((f"cache {step}", cache, array(case, "nonslot", "momentum_cache")[step]))
    return found


def ulps(got: np.ndarray, recorded: np.ndarray) -> int:
    """The largest distance in units in the last place; NaN equals NaN."""
    got, recorded = np.asarray(got), np.asarray(recorded)
    if got.dtype.kind != "f":
        return 0 if np.array_equal(got, recorded) else 1 << 30
    integer = {2: np.int16, 4: np.int32, 8: np.int64}[got.dtype.itemsize]
    if got.dtype != recorded.dtype or got.shape != recorded.shape:
        return 1 << 62
    if not np.array_equal(np.isnan(got), np.isnan(recorded)):
        return 1 << 62
    keep = ~np.isnan(got)

    def ordered(values: np.ndarray) -> list[int]:
        bits = np.ascontiguousarray(values).view(integer).astype(object)
        lowest = int(np.iinfo(integer).min)
        return [int(b) if b >= 0 else lowest - int(b) for b in np.atleast_1d(bits)]

    a, b = ordered(np.atleast_1d(got[keep])), ordered(np.atleast_1d(recorded[keep]))
    return max((abs(x - y) for x, y in zip(a, b, strict=True)), default=0)
