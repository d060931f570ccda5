"""Constructors with TensorFlow's arguments: TensorFlow's names, order, defaults and positions.

What TensorFlow's classes do not have can only be a keyword behind them.
"""

from __future__ import annotations

import inspect
from inspect import Parameter
from typing import Any

import pytest

from thalweg._core.slot_optimizer import SlotOptimizer
from thalweg.keras import optimizers
from thalweg.openseq2seq.optimizers.novograd import NovoGrad
from thalweg.v1 import train

REQUIRED = Parameter.empty
RATE: dict[str, Any] = {"learning_rate": 0.001}
BETAS = {"beta_1": 0.9, "beta_2": 0.999}
L1_L2 = {"l1_regularization_strength": 0.0, "l2_regularization_strength": 0.0}
KERAS: dict[str, dict[str, Any]] = {
    "Adadelta": {**RATE, "rho": 0.95, "epsilon": 1e-7, "name": "Adadelta"},
    "Adagrad": {**RATE, "initial_accumulator_value": 0.1, "epsilon": 1e-7, "name": "Adagrad"},
    "Adam": {**RATE, **BETAS, "epsilon": 1e-7, "amsgrad": False, "name": "Adam"},
    "Adamax": {**RATE, **BETAS, "epsilon": 1e-7, "name": "Adamax"},
    "Ftrl": {
        **RATE, "learning_rate_power": -0.5, "initial_accumulator_value": 0.1, **L1_L2,
        "name": "Ftrl", "l2_shrinkage_regularization_strength": 0.0, "beta": 0.0,
    },
    "Nadam": {**RATE, **BETAS, "epsilon": 1e-7, "name": "Nadam"},
    "Optimizer": {"name": None, "gradient_aggregator": None, "gradient_transformers": None},
    "RMSprop": {
        **RATE, "rho": 0.9, "momentum": 0.0, "epsilon": 1e-7, "centered": False, "name": "RMSprop",
    },
    "SGD": {"learning_rate": 0.01, "momentum": 0.0, "nesterov": False, "name": "SGD"},
    # The library's own.
    "RuleOptimizer": {"rule": REQUIRED, "learning_rate": None, "name": None},
}  # fmt: skip
LOCKING = {"use_locking": False}
NO_RATE = {"learning_rate": REQUIRED}
V1: dict[str, dict[str, Any]] = {
    "AdadeltaOptimizer": {**RATE, "rho": 0.95, "epsilon": 1e-8, **LOCKING, "name": "Adadelta"},
    "AdagradDAOptimizer": {
        **NO_RATE, "global_step": REQUIRED, "initial_gradient_squared_accumulator_value": 0.1,
        **L1_L2, **LOCKING, "name": "AdagradDA",
    },
    "AdagradOptimizer": {
        **NO_RATE, "initial_accumulator_value": 0.1, **LOCKING, "name": "Adagrad",
    },
    "AdamOptimizer": {
        **RATE, "beta1": 0.9, "beta2": 0.999, "epsilon": 1e-8, **LOCKING, "name": "Adam",
        "use_own_namescope_for_non_slot_vars": False,
    },
    "FtrlOptimizer": {
        **NO_RATE, "learning_rate_power": -0.5, "initial_accumulator_value": 0.1, **L1_L2,
        **LOCKING, "name": "Ftrl", "accum_name": None, "linear_name": None,
        "l2_shrinkage_regularization_strength": 0.0, "beta": None,
    },
    "GradientDescentOptimizer": {**NO_RATE, **LOCKING, "name": "GradientDescent"},
    "MomentumOptimizer": {
        **NO_RATE, "momentum": REQUIRED, **LOCKING, "name": "Momentum", "use_nesterov": False,
    },
    "Optimizer": {
        "use_locking": REQUIRED, "name": REQUIRED, "use_own_namescope_for_non_slot_vars": False,
    },
    "ProximalAdagradOptimizer": {
        **NO_RATE, "initial_accumulator_value": 0.1, **L1_L2, **LOCKING, "name": "ProximalAdagrad",
    },
    "ProximalGradientDescentOptimizer": {
        **NO_RATE, **L1_L2, **LOCKING, "name": "ProximalGradientDescent",
    },
    "RMSPropOptimizer": {
        **NO_RATE, "decay": 0.9, "momentum": 0.0, "epsilon": 1e-10, **LOCKING, "centered": False,
        "name": "RMSProp",
    },
    "SyncReplicasOptimizer": {
        "opt": REQUIRED, "replicas_to_aggregate": REQUIRED, "total_num_replicas": None,
        "variable_averages": None, "variables_to_average": None, **LOCKING,
        "name": "sync_replicas",
    },
}  # fmt: skip
NOVOGRAD: dict[str, Any] = {
    "learning_rate": 1.0, "beta1": 0.95, "beta2": 0.98, "epsilon": 1e-8, "weight_decay": 0.0,
    "grad_averaging": False, **LOCKING, "name": "NovoGrad",
}  # fmt: skip


def assert_first(cls: Any, reference: dict[str, Any]) -> None:
    """Assert that positional arguments are the reference's, and all others keywords."""
    params = [*inspect.signature(cls).parameters.values()]
    first, extra = params[: len(reference)], params[len(reference) :]
    assert [(param.name, param.default) for param in first] == [*reference.items()]
    for param in first:
        assert type(param.default) is type(reference[param.name])
        assert param.kind is Parameter.POSITIONAL_OR_KEYWORD
    assert all(param.kind in (Parameter.KEYWORD_ONLY, Parameter.VAR_KEYWORD) for param in extra)


@pytest.mark.parametrize("name", KERAS)
def test_arguments_of_keras_are_first(name: str) -> None:
    cls = getattr(optimizers, name)
    assert_first(cls, KERAS[name])
    assert [*inspect.signature(cls).parameters][len(KERAS[name]) :] == ["kwargs"]


@pytest.mark.parametrize("name", V1)
def test_arguments_of_tensorflow_1_are_first(name: str) -> None:
    assert_first(getattr(train, name), V1[name])


def test_arguments_of_openseq2seq_are_first() -> None:
    assert_first(NovoGrad, NOVOGRAD)


@pytest.mark.parametrize(("module", "table"), [(optimizers, KERAS), (train, V1)])
def test_all_optimizers_are_in_the_table(module: Any, table: dict[str, Any]) -> None:
    classes = {
        name
        for name in dir(module)
        if isinstance(cls := getattr(module, name), type)
        and (issubclass(cls, SlotOptimizer) or name.endswith("Optimizer"))
    }
    assert classes == {*table}
