"""Replay a recorded trajectory through the v1 optimizers, in eager mode."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from replay import Value
from thalweg import Variable
from thalweg.v1 import train
from v1_rules import array, gradient

Case = dict[str, Any]


def argument(value: Any, case: Case, clock: dict[str, int]) -> Any:
    if isinstance(value, dict):
        return lambda: value["callable"][clock["step"] - 1]
    return np.float64(value) if case.get("hyper_np64") and isinstance(value, float) else value


def optimizer(case: Case, clock: dict[str, int], global_step: Any) -> Any:
    """The optimizer of a case; `clock["step"]` is what its callables read."""
    kwargs = {key: argument(value, case, clock) for key, value in case["kwargs"].items()}
    decay = case.get("global_step", {})
    if "decay_fn" in decay:
        function = getattr(train, decay["decay_fn"])
        kwargs["learning_rate"] = function(global_step=global_step, **decay["decay_kwargs"])
    if case["optimizer"] == "AdagradDAOptimizer":
        kwargs["global_step"] = global_step
    return getattr(train, case["optimizer"])(**kwargs)


def constraint(case: Case, name: str) -> Any:
    bounds = case.get("constraint", {}).get(name)
    return None if bounds is None else lambda x: torch.clamp(x, *bounds)


def counted(case: Case) -> bool:
    """Whether the global step is given to `apply_gradients`."""
    return "global_step" in case and case["global_step"].get("increment", True)


def replay(case: Case, engine: str, resume: bool = False) -> Iterator[Value]:
    """Run a trajectory; yields every variable, slot and counter after each step.

    With `resume` each step starts from TensorFlow's state, so that differences do not add up.
    """
    clock = {"step": 0}
    start = case.get("global_step", {}).get("initial", 0)
    step_variable = Variable(np.int64(start), "global_step", trainable=False)
    opt = optimizer(case, clock, step_variable)
    opt.engine = engine
    own = {
        name: Variable(array(case, "var", name)[0], name, constraint=constraint(case, name))
        for name in case["order"]
    }
    for step in range(1, case["steps"] + 1):
        clock["step"] = step
        pairs = [(gradient(case, name, step), own[name]) for name in case["order"]]
        opt.apply_gradients(pairs, global_step=step_variable if counted(case) else None)
        kept = [(name, var, array(case, "var", name)) for name, var in own.items()]
        for name, var in own.items():
            for slot in case["slots"].get(name, case.get("slot_names", ())):
                recorded = array(case, "slot", name, slot)
                tensor = opt.get_slot(var, slot)
                if tensor is None:
                    assert np.isnan(recorded[step]).all()
                else:
                    kept.append((f"{name}/{slot}", tensor, recorded))
        for name in case["nonslot"]:
            kept.append((name, opt._get_non_slot_variable(name), array(case, "nonslot", name)))
        if counted(case):
            kept.append(("global_step", step_variable, array(case, "iterations")))
        for what, tensor, recorded in kept:
            got = np.asarray(tensor.numpy()).copy()
            yield Value(f"{what} after step {step}", got, recorded[step], recorded[step - 1])
            if resume:
                tensor.data.copy_(torch.as_tensor(np.array(recorded[step])))
