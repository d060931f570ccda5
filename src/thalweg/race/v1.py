"""TensorFlow 1's optimizers by name: `v1:AdamOptimizer` for that of `thalweg.v1.train`.

`openseq2seq:NovoGrad`, which derives from them, is that of `thalweg.openseq2seq`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from functools import cache, partial
from typing import Any

import numpy as np

from thalweg.openseq2seq.optimizers.novograd import NovoGrad
from thalweg.v1 import train
from thalweg.v1.contrib import opt
from thalweg.v1.train import AdagradDAOptimizer, Optimizer
from thalweg.variable import Variable

PREFIX = "v1:"
OTHERS: dict[str, type[Any]] = {"openseq2seq:NovoGrad": NovoGrad}
# What a constructor wants besides the learning rate, as TensorFlow's users give it.
ARGUMENTS: dict[str, dict[str, float]] = {
    "v1:AdamWOptimizer": {"weight_decay": 1e-4},
    "v1:MomentumOptimizer": {"momentum": 0.9},
    "v1:MomentumWOptimizer": {"weight_decay": 1e-4, "momentum": 0.9},
}
# Arguments that choose another rule.
VARIANTS: dict[str, dict[str, Any]] = {
    "v1:FtrlOptimizer": {"learning_rate_power": -0.6},
    "v1:LARSOptimizer": {"use_nesterov": True},
    "v1:MomentumOptimizer": {"use_nesterov": True},
    "v1:MomentumWOptimizer": {"use_nesterov": True},
    "v1:RMSPropOptimizer": {"centered": True},
}
# What a name alone does not make.
REFUSED = {
    "DecoupledWeightDecayExtension": "it extends the class of another optimizer, as"
    " v1:AdamWOptimizer and v1:MomentumWOptimizer do.",
    "MovingAverageOptimizer": "it needs another optimizer; a function of yours that makes both"
    " can race, as file.py:NAME.",
    "Optimizer": "it is the base class of the others.",
    "SyncReplicasOptimizer": "it needs another optimizer, and replicas that train with it.",
    "VariableClippingOptimizer": "it needs another optimizer, and the variables to clip.",
}


@cache
def classes() -> dict[str, type[Any]]:
    """The optimizers that a name alone makes, by name: `v1:AdamOptimizer` and the like."""
    found = {name: getattr(room, name) for room in (train, opt) for name in room.__all__}
    named = {
        PREFIX + name: each
        for name, each in found.items()
        if name not in REFUSED
        and inspect.isclass(each)
        and issubclass(each, Optimizer)
        and "learning_rate" in inspect.signature(each).parameters
    }
    return {**named, **OTHERS}


@cache
def by_rule() -> dict[str, tuple[str, dict[str, Any]]]:
    """For each rule the name of the optimizer that runs it, and what it is given for that."""
    given = [(name, {}) for name in classes()] + list(VARIANTS.items())
    return {make(name, 0.1, **options)._rule().name: (name, options) for name, options in given}


def refusal(name: str) -> str | None:
    """Why that name cannot be had, where it is an optimizer's; in any case of letters."""
    for refused, reason in REFUSED.items():
        if name.lower() == (PREFIX + refused).lower():
            return f"'{PREFIX}{refused}' cannot be named here: {reason}"
    return None


def arguments(name: str) -> dict[str, float]:
    """What the optimizer of a name of `classes` is given besides the learning rate."""
    return dict(ARGUMENTS.get(name, {}))


def make(name: str, learning_rate: float, **options: Any) -> Any:
    """The optimizer of a name of `classes`, with its `arguments` and these options.

    One that reads the number of the step gets a variable of its own for it; see `applied`.
    """
    cls = classes()[name]
    given: dict[str, Any] = {**arguments(name), **options}
    if issubclass(cls, AdagradDAOptimizer):
        given["global_step"] = Variable(np.int64(0), "global_step", trainable=False)
    return cls(learning_rate=learning_rate, **given)


def applied(optimizer: Any) -> Callable[[Iterable[tuple[Any, Any]]], Any]:
    """`apply_gradients`; it also counts the steps for an optimizer that reads their number."""
    if isinstance(optimizer, AdagradDAOptimizer):
        return partial(optimizer.apply_gradients, global_step=optimizer._global_step)
    return optimizer.apply_gradients


def rate_name(optimizer: Any) -> str | None:
    """The attribute that holds the learning rate; None where that is not known."""
    if isinstance(optimizer, Optimizer):
        return getattr(optimizer, "HYPERS", {}).get("learning_rate")
    return "learning_rate"
