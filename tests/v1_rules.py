"""Replay a recorded trajectory of a TensorFlow 1 optimizer with the rule alone, by a `Runner`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from replay import Value
from thalweg import IndexedSlices, Rule
from thalweg.engines import Runner, Selection, check_gradients, compute_dtype, prepared
from thalweg.keras.optimizers import schedules
from thalweg.rules import (
    ADADELTA_V1,
    ADAGRAD_DA,
    ADAGRAD_V1,
    ADAM_V1,
    CENTERED_RMSPROP_V1,
    FTRL_POWER_V1,
    FTRL_V1,
    HEAVY_BALL,
    NESTEROV_BALL,
    PROXIMAL_ADAGRAD,
    PROXIMAL_GRADIENT_DESCENT,
    RMSPROP_V1,
    SGD,
)
from thalweg.rules.ftrl_v1 import adjusted_l2
from thalweg.scalars import as_scalar, scalar_type

FOLDER = Path(__file__).with_name("goldens")
Case = dict[str, Any]


@cache
def cases() -> dict[str, Case]:
    return {case["id"]: case for case in json.loads((FOLDER / "v1.json").read_text())["cases"]}


@cache
def _arrays() -> Any:
    return np.load(FOLDER / "v1.npz")


def array(case: Case, *names: str) -> np.ndarray:
    return _arrays()["|".join((case["id"], *names))]


RULES: dict[str, Rule] = {
    "GradientDescent": SGD,
    "Momentum": HEAVY_BALL,
    "Adagrad": ADAGRAD_V1,
    "AdagradDA": ADAGRAD_DA,
    "Adadelta": ADADELTA_V1,
    "Adam": ADAM_V1,
    "Ftrl": FTRL_V1,
    "RMSProp": RMSPROP_V1,
    "ProximalAdagrad": PROXIMAL_ADAGRAD,
    "ProximalGradientDescent": PROXIMAL_GRADIENT_DESCENT,
}
# An argument that chooses another rule, and what an argument is called in the rule.
VARIANTS = {
    "use_nesterov": NESTEROV_BALL,
    "centered": CENTERED_RMSPROP_V1,
    "learning_rate_power": FTRL_POWER_V1,
}
HYPERS = {
    "decay": "rho",
    "l1_regularization_strength": "l1",
    "l2_regularization_strength": "l2",
    "l2_shrinkage_regularization_strength": "l2_shrinkage",
}
# What an argument fills: the slot of the rule, counted from 0.
STARTS = {"initial_accumulator_value": 0, "initial_gradient_squared_accumulator_value": 1}


def rule_of(case: Case) -> Rule:
    """The rule of a case, its slots as the arguments start them."""
    rule, kwargs = RULES[case["optimizer"].removesuffix("Optimizer")], case["kwargs"]
    for argument, variant in VARIANTS.items():
        rule = variant if kwargs.get(argument) else rule
    if kwargs.get("learning_rate_power", -0.5) == 0:
        rule = FTRL_POWER_V1
    slots = list(rule.slots)
    for argument, index in STARTS.items():
        if argument in kwargs:
            slots[index] = replace(slots[index], initial=kwargs[argument])
    return replace(rule, slots=tuple(slots))


@dataclass
class Trajectory:
    """The state of an optimizer that takes the steps of a case."""

    case: Case
    rule: Rule
    variables: dict[str, torch.Tensor]
    slots: dict[str, list[torch.Tensor]] = field(default_factory=dict)
    powers: dict[str, Any] = field(default_factory=dict)  # running products, as variables hold them
    runner: Runner = field(default_factory=Runner)

    @classmethod
    def of(cls, case: Case) -> Trajectory:
        rule = rule_of(case)
        made = cls(case, rule, {n: _tensor(array(case, "var", n)[0]) for n in case["order"]})
        for power, hyper in rule.powers.items():
            beta = made.given(hyper, 1)
            made.powers[power] = as_scalar(beta, scalar_type(beta))
        return made

    def given(self, hyper: str, step: int) -> Any:
        """The value a user gave for a hyperparameter, in this step."""
        kwargs = {HYPERS.get(key, key): value for key, value in self.case["kwargs"].items()}
        default = next(each.default for each in self.rule.hypers if each.name == hyper)
        value = kwargs.get(hyper, default)
        decay = self.case.get("global_step", {})
        if hyper == "learning_rate" and "decay_fn" in decay:
            return _decayed(decay["decay_fn"], decay["decay_kwargs"], step - 1)
        if isinstance(value, dict):
            value = value["callable"][step - 1]
        return np.float64(value) if self.case.get("hyper_np64") else float(value or 0)

    def scalars(self, dtype: type[np.floating], step: int) -> dict[str, Any]:
        """The scalars of a step, as TensorFlow's optimizer prepares them."""
        given = {hyper.name: self.given(hyper.name, step) for hyper in self.rule.hypers}
        if "beta" in given:
            kind = scalar_type(given["learning_rate"])
            parts = [as_scalar(given[name], kind) for name in ("learning_rate", "l2", "beta")]
            given |= {"l2": adjusted_l2(*parts), "beta": 0.0}
        values = {name: as_scalar(value, dtype) for name, value in given.items()}
        values |= {name: dtype(value) for name, value in self.powers.items()}
        if self.case["optimizer"] == "AdagradDAOptimizer":
            values["t"] = dtype(array(self.case, "iterations")[step - 1] + 1)
        return prepared(self.rule, values)

    def take(self, step: int, selection: Selection) -> None:
        """One step, counted from 1."""
        pairs = {name: gradient(self.case, name, step) for name in self.case["order"]}
        names = [name for name, grad in pairs.items() if grad is not None]
        for name in names:
            if name not in self.slots:
                var = self.variables[name]
                made = [torch.full_like(var, slot.initial) for slot in self.rule.slots]
                self.slots[name] = made
        variables = [self.variables[name] for name in names]
        gradients, slots = [pairs[name] for name in names], [self.slots[name] for name in names]
        check_gradients(variables, gradients, names)
        self.runner.plan(self.rule, (), variables, gradients, slots, names, selection)
        dtypes = dict.fromkeys(compute_dtype(var.dtype) for var in variables)
        shared = {dtype: self.scalars(dtype, step) for dtype in dtypes}
        self.runner.run(shared, {}, selection.denormals == "flush")
        for power, hyper in self.rule.powers.items():
            product = self.powers[power]
            self.powers[power] = product * as_scalar(self.given(hyper, step), type(product))
        for name, bounds in self.case.get("constraint", {}).items():
            self.variables[name].clamp_(*bounds)


def _tensor(values: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(np.array(values))


def _decayed(function: str, kwargs: dict[str, Any], step: int) -> Any:
    kwargs = {**kwargs, "initial_learning_rate": kwargs["learning_rate"]}
    del kwargs["learning_rate"]
    kind = {"exponential_decay": "ExponentialDecay", "polynomial_decay": "PolynomialDecay"}
    return np.float32(getattr(schedules, kind[function])(**kwargs)(step))


def gradient(case: Case, name: str, step: int) -> Any:
    """The gradient fed to a variable at a step, counted from 1."""
    if step in case.get("none_steps", {}).get(name, ()):
        return None
    if case["vars"][name]["grad"] == "dense":
        return _tensor(array(case, "grad", name)[step - 1])
    split = array(case, "gsplit", name)
    part = slice(split[step - 1], split[step])
    values, indices = array(case, "gval", name)[part], array(case, "gidx", name)[part]
    return IndexedSlices(_tensor(values), _tensor(indices.astype(np.int64)))


def replay(case: Case, engine: Any, resume: bool = False) -> Iterator[Value]:
    """Run a trajectory; yields every variable, slot and power after each step.

    With `resume` each step starts from TensorFlow's state, so that differences do not add up.
    """
    run, selection = Trajectory.of(case), Selection(engine, "flush")
    for step in range(1, case["steps"] + 1):
        run.take(step, selection)
        state = [(name, var, array(case, "var", name)) for name, var in run.variables.items()]
        for name, own in run.slots.items():
            for slot, tensor in zip(run.rule.slots, own, strict=True):
                state.append((f"{name}/{slot.name}", tensor, array(case, "slot", name, slot.name)))
        for what, kept, recorded in state:
            got, now = kept.numpy().copy(), recorded[step]
            yield Value(f"{what} after step {step}", got, now, recorded[step - 1])
            if resume:
                kept.copy_(_tensor(now))
        for name, product in run.powers.items():
            recorded = array(case, "nonslot", name)
            yield Value(f"{name} after step {step}", product, *recorded[[step, step - 1]])
