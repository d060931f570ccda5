"""Of which type a hyperparameter is, and variables of two dtypes: TensorFlow 2.21's numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch

from keras_table import both_engines
from thalweg import Variable
from thalweg import v1 as tf
from thalweg.keras import optimizers
from thalweg.v1 import train

GRADIENTS = np.array([[[0.5, -0.3], [-0.25, 1.5]], [[0.25, -1.5], [-0.7, -0.01]]])
START = np.array([[1.0, -2.0], [0.5, 0.25]])
DOUBLE, HALF = np.float64, np.float16
FTRL = {"l1_regularization_strength": 0.1, "l2_regularization_strength": 0.1, "beta": 0.3}
SHRINKING = {"learning_rate": 0.1, **FTRL}


def array(number: float) -> Any:
    return np.array(number)


def tensor(number: float) -> Any:
    return torch.tensor(number, dtype=torch.float64)


# Optimizer, hyperparameters -> a float64 variable after two steps.
V1: dict[str, tuple[Any, dict[str, Any], list[float]]] = {
    "Ftrl, rate of float64": (  # of which l2 and beta are operands
        train.FtrlOptimizer,
        {"learning_rate": DOUBLE(0.1), **FTRL},
        [0.21028361078629837, -0.1839944996040306, 0.14288993167229302, 0.07835297254153169],
    ),
    "Ftrl, l2 of float64": (
        train.FtrlOptimizer,
        {"learning_rate": 0.1, **FTRL, "l2_regularization_strength": DOUBLE(0.1)},
        [0.21028360720421907, -0.1839944947047994, 0.14288993131552602, 0.07835297085962895],
    ),
    "Ftrl, rate of float16": (
        train.FtrlOptimizer,
        {"learning_rate": HALF(0.1), **FTRL},
        [0.21029695927226738, -0.18401491254898614, 0.14286320377901118, 0.07837227084142137],
    ),
    "Ftrl, all of float16": (
        train.FtrlOptimizer,
        {name: HALF(value) for name, value in SHRINKING.items()},
        [0.21029963679892638, -0.18401814163453584, 0.14286657922351578, 0.07837358813553821],
    ),
    "Adagrad, arrays": (
        train.AdagradOptimizer,
        {"learning_rate": array(0.1), "initial_accumulator_value": array(0.1)},
        [0.8765596273190722, -1.8351476198891594, 0.6486751917772284, 0.15280310323615934],
    ),
}
KERAS: dict[str, tuple[Any, dict[str, Any], list[float]]] = {
    "SGD, arrays": (
        optimizers.SGD,
        {"learning_rate": array(0.1), "momentum": array(0.9), "decay": array(0.1)},
        [0.8822727272727272, -1.8066363636363636, 0.6111363636363637, -0.034090909090909144],
    ),
    "SGD, decay of float64": (
        optimizers.SGD,
        {"learning_rate": 0.1, "momentum": 0.9, "decay": tensor(0.1)},
        [0.8822727267105471, -1.8066363614702765, 0.611136364696378, -0.03409090974791479],
    ),
    "Adam, decay of float64": (
        optimizers.Adam,
        {"learning_rate": 0.1, "epsilon": 1e-3, "decay": tensor(0.1)},
        [0.8257436869644948, -1.83284432878442, 0.6695253348395404, 0.0928517683095606],
    ),
    "Ftrl, shrinkage of float64": (
        optimizers.Ftrl,
        {**SHRINKING, "l2_shrinkage_regularization_strength": DOUBLE(0.1)},
        [0.18388974556421941, -0.12883686702008978, 0.12787279812088728, 0.07484386430397172],
    ),
    "Ftrl, shrinkage in a tensor": (
        optimizers.Ftrl,
        {**SHRINKING, "l2_shrinkage_regularization_strength": tensor(0.1)},
        [0.18388974556421941, -0.12883686702008978, 0.12787279812088728, 0.07484386430397172],
    ),
}


@both_engines
@pytest.mark.parametrize("name", [*V1, *KERAS])
def test_hyperparameter_types_give_equal_steps(name: str, engine: Any) -> None:
    make, kwargs, expected = {**V1, **KERAS}[name]
    opt, var = make(**kwargs), Variable(START)
    opt.engine = engine
    for grad in GRADIENTS:
        opt.apply_gradients([(torch.tensor(grad), var)])
    assert var.numpy().flatten().tolist() == expected


@pytest.mark.parametrize("name", V1)
def test_hyperparameter_types_give_equal_steps_in_a_graph(name: str) -> None:
    make, kwargs, expected = V1[name]
    with tf.Graph().as_default(), tf.Session() as session:
        var, opt = tf.Variable(START), make(**kwargs)
        steps = [opt.apply_gradients([(tf.constant(grad), var)]) for grad in GRADIENTS]
        session.run(tf.global_variables_initializer())
        for step in steps:
            session.run(step)
        assert session.run(var).flatten().tolist() == expected


BOTH_VARS = (0, 1)
LATE: list[Sequence[int]] = [BOTH_VARS, BOTH_VARS, (1,), (1,), (1,), BOTH_VARS]
FIRST: list[Sequence[int]] = [(1,), BOTH_VARS, (0,), (1,), BOTH_VARS]
SINGLE, FLOAT64 = torch.float32, torch.float64
# Dtypes of two variables, which of them each step updates -> the variables and Nadam's cache.
NADAM: list[tuple[Any, list[Sequence[int]], list[float]]] = [
    ((SINGLE, FLOAT64), LATE, [0.8562667369842529, 0.7519581931337824, 0.09125889837741852]),
    ((SINGLE, FLOAT64), FIRST, [0.8602476119995117, 0.8248774950335144, 0.04108662403741411]),
    ((FLOAT64, SINGLE), LATE, [0.8562667102756343, 0.7519583106040955, 0.09125890814998626]),
    ((FLOAT64, SINGLE), FIRST, [0.8602474798152256, 0.8248778581619263, 0.04108662158250809]),
]


class Watching(optimizers.Nadam):
    """Called for each variable, and counts the step as one."""

    def _resource_apply_dense(self, grad: Any, var: Any, apply_state: Any = None) -> Any:
        return super()._resource_apply_dense(grad, var, apply_state)


@both_engines
@pytest.mark.parametrize("make", [optimizers.Nadam, Watching])
@pytest.mark.parametrize(("dtypes", "steps", "expected"), NADAM)
def test_nadam_cache_is_unchanged_by_steps_of_other_dtypes(
    dtypes: Any, steps: list[Sequence[int]], expected: list[float], make: Any, engine: Any
) -> None:
    variables = [torch.nn.Parameter(torch.ones(1, dtype=dtype)) for dtype in dtypes]
    opt = make(0.05)
    opt.engine = engine
    for step in steps:
        opt.apply_gradients([(torch.full_like(variables[i], 0.5), variables[i]) for i in step])
    assert [*(var.item() for var in variables), opt.weights[1].item()] == expected
