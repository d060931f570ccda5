"""One problem through every face: graphs, eager mode and Keras give the same bits.

The arguments are chosen so that the faces must agree: numbers that float32 holds exactly, as each
face rounds hyperparameters in its own way, and powers of 2 as learning rates, as some faces
multiply by them earlier than others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch

import thalweg
from rulebook import label, slow_unless
from thalweg import v1
from thalweg.keras import optimizers as keras
from thalweg.openseq2seq.optimizers.novograd import NovoGrad
from thalweg.v1 import train
from thalweg.v1.contrib import opt as contrib

STEPS = 5
DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
SHAPE, TABLE = (3, 7), (6, 3)
ROWS = torch.tensor([4, 1, 4, 0])  # row 4 twice, three rows not at all
Maker = Callable[[], Any]


@dataclass(frozen=True)
class Row:
    """An optimizer in the faces that have it.

    Attributes:
        v1: Makes that of TensorFlow 1; it also gets the variable that counts steps.
        keras: Makes that of Keras, None where no arguments make it the same.
        starts: Slots of Keras that must start from other values than its own.
    """

    v1: Callable[[Any], Any]
    keras: Maker | None = None
    starts: tuple[tuple[str, float], ...] = ()


# Powers of these are exact in float32: TensorFlow 1 multiplies them up there, Keras calls pow.
BETAS: dict[str, Any] = {"beta1": 0.5, "beta2": 0.75, "epsilon": 2.0**-10}
KERAS_BETAS: dict[str, Any] = {"beta_1": 0.5, "beta_2": 0.75, "epsilon": 2.0**-10}
RMSPROP: dict[str, Any] = {"momentum": 0.5, "epsilon": 2.0**-10}
FTRL: dict[str, Any] = {
    "learning_rate": 0.5,
    "l1_regularization_strength": 0.125,
    "l2_regularization_strength": 0.25,
    "l2_shrinkage_regularization_strength": 0.0625,
    "beta": 0.75,
}
TABLE_OF_RULES = {
    "GradientDescent": Row(lambda _: train.GradientDescentOptimizer(0.1), lambda: keras.SGD(0.1)),
    "Momentum": Row(
        lambda _: train.MomentumOptimizer(0.5, 0.9), lambda: keras.SGD(0.5, momentum=0.9)
    ),
    "Nesterov": Row(
        lambda _: train.MomentumOptimizer(0.5, 0.9, use_nesterov=True),
        lambda: keras.SGD(0.5, momentum=0.9, nesterov=True),
    ),
    "Adadelta": Row(
        lambda _: train.AdadeltaOptimizer(0.3, 0.9, 2.0**-10),
        lambda: keras.Adadelta(0.3, 0.9, 2.0**-10),
    ),
    "RMSProp": Row(
        lambda _: train.RMSPropOptimizer(0.1, **RMSPROP),
        lambda: keras.RMSprop(0.1, **RMSPROP),
        (("rms", 1.0),),
    ),
    "CenteredRMSProp": Row(
        lambda _: train.RMSPropOptimizer(0.1, **RMSPROP, centered=True),
        lambda: keras.RMSprop(0.1, **RMSPROP, centered=True),
        (("rms", 1.0),),
    ),
    "Adam": Row(
        lambda _: train.AdamOptimizer(0.125, **BETAS), lambda: keras.Adam(0.125, **KERAS_BETAS)
    ),
    "AdaMax": Row(
        lambda _: contrib.AdaMaxOptimizer(0.125, **BETAS),
        lambda: keras.Adamax(0.125, **KERAS_BETAS),
    ),
    "Ftrl": Row(lambda _: train.FtrlOptimizer(**FTRL), lambda: keras.Ftrl(**FTRL)),
    "FtrlPower": Row(
        lambda _: train.FtrlOptimizer(**FTRL, learning_rate_power=-0.75),
        lambda: keras.Ftrl(**FTRL, learning_rate_power=-0.75),
    ),
    # Keras' Adagrad divides by a root where this one multiplies by its reciprocal, and its Nadam
    # has a schedule of the momentum. It has none of the others.
    "Adagrad": Row(lambda _: train.AdagradOptimizer(0.1)),
    "Nadam": Row(lambda _: contrib.NadamOptimizer(0.1)),
    "AdagradDA": Row(lambda step: train.AdagradDAOptimizer(0.1, step, 0.1, 0.01, 0.02)),
    "ProximalAdagrad": Row(lambda _: train.ProximalAdagradOptimizer(0.1, 0.1, 0.01, 0.02)),
    "ProximalGradientDescent": Row(
        lambda _: train.ProximalGradientDescentOptimizer(0.1, 0.01, 0.02)
    ),
    "LazyAdam": Row(lambda _: contrib.LazyAdamOptimizer(0.1)),
    "AdamW": Row(lambda _: contrib.AdamWOptimizer(0.01, 0.1)),
    "MomentumW": Row(lambda _: contrib.MomentumWOptimizer(0.01, 0.1, 0.9)),
    "NesterovW": Row(lambda _: contrib.MomentumWOptimizer(0.01, 0.1, 0.9, use_nesterov=True)),
    "LARS": Row(lambda _: contrib.LARSOptimizer(64.0)),
    "NovoGrad": Row(lambda _: NovoGrad(0.1, weight_decay=0.01)),
}
KINDS = ("Adam", "LazyAdam")  # a dense and a sparse one, which are quick in all dtypes


def every_dtype(names: Iterable[str]) -> pytest.MarkDecorator:
    """Parametrises a test with rule and dtype."""
    cases = [
        slow_unless(dtype == torch.float32 or name in KINDS, name, dtype)
        for name in names
        for dtype in DTYPES
    ]
    return pytest.mark.parametrize(("rule", "dtype"), cases, ids=label)


with_keras = [name for name, row in TABLE_OF_RULES.items() if row.keras is not None]


def values(shape: Sequence[int], seed: int, dtype: torch.dtype) -> torch.Tensor:
    """Numbers around 0 that float16 has, too."""
    numbers = np.random.default_rng(seed).normal(size=shape)
    return torch.from_numpy(numbers).to(torch.float16).to(dtype)


def start(dtype: torch.dtype) -> list[torch.Tensor]:
    return [values(SHAPE, 0, dtype), values(TABLE, 1, dtype)]


def gradients(step: int, dtype: torch.dtype) -> list[torch.Tensor]:
    """Return the gradients of `loss`: of the full variable, and of the rows that are looked up."""
    return [
        values(SHAPE, 10 + step, dtype),
        values((len(ROWS), TABLE[1]), 20 + step, dtype),
    ]


def loss(lookup: Any, w: Any, table: Any, full: Any, rows: Any) -> Any:
    return (w * full).sum() + (lookup(table, ROWS) * rows).sum()


def bits(tensors: Sequence[Any]) -> list[np.ndarray]:
    """Copies in float64, which holds all four dtypes; its bits tell -0 from 0."""
    arrays = [x.detach().double().numpy() if isinstance(x, torch.Tensor) else x for x in tensors]
    return [np.array(array, np.float64).view(np.int64) for array in arrays]


def slots_of(opt: Any, variables: Sequence[Any]) -> list[Any]:
    return [opt.get_slot(var, name) for var in variables for name in opt.get_slot_names()]


def in_a_graph(make: Callable[..., Any], dtype: torch.dtype) -> list[list[np.ndarray]]:
    """Variables and slots after each step."""
    with v1.Graph().as_default(), v1.Session() as session:
        variables = [v1.Variable(value) for value in start(dtype)]
        feeds = [v1.placeholder(dtype, value.shape) for value in gradients(0, dtype)]
        count = train.get_or_create_global_step()
        opt = make(count)
        step = opt.minimize(loss(v1.embedding_lookup, *variables, *feeds), count)
        session.run(v1.global_variables_initializer())
        outcomes = []
        for number in range(STEPS):
            session.run(step, dict(zip(feeds, gradients(number, dtype), strict=True)))
            outcomes.append(bits(session.run([*variables, *slots_of(opt, variables)])))
        return outcomes


def eagerly(make: Callable[..., Any], dtype: torch.dtype) -> list[list[np.ndarray]]:
    """Variables and slots after each step."""
    variables = [thalweg.Variable(value) for value in start(dtype)]
    count = thalweg.Variable(np.int64(0), trainable=False)
    opt, outcomes = make(count), []
    for number in range(STEPS):
        inputs = [*variables, *gradients(number, dtype)]
        opt.minimize(lambda inputs=inputs: loss(thalweg.embedding_lookup, *inputs), count)
        outcomes.append(bits([*variables, *slots_of(opt, variables)]))
    return outcomes


def with_keras_api(row: Row, dtype: torch.dtype) -> list[list[np.ndarray]]:
    """Variables after each step."""
    assert row.keras is not None
    variables = [thalweg.Variable(value) for value in start(dtype)]
    opt, outcomes = row.keras(), []
    opt._create_all_weights(variables)
    for name, value in row.starts:
        for var in variables:
            opt.get_slot(var, name).fill_(value)
    for number in range(STEPS):
        inputs = [*variables, *gradients(number, dtype)]
        opt.minimize(lambda inputs=inputs: loss(thalweg.embedding_lookup, *inputs), variables)
        outcomes.append(bits(variables))
    return outcomes


def assert_same(actual: list[list[np.ndarray]], expected: list[list[np.ndarray]]) -> None:
    for number, (a_step, b_step) in enumerate(zip(actual, expected, strict=True)):
        for place, (a, b) in enumerate(zip(a_step, b_step, strict=True)):
            np.testing.assert_array_equal(a, b, f"tensor {place} after step {number + 1}")
    assert not any(map(np.array_equal, actual[0][:2], actual[-1][:2]))  # both variables moved


@pytest.mark.one_in(3)
@every_dtype(TABLE_OF_RULES)
def test_a_session_takes_the_steps_of_eager_mode(rule: str, dtype: torch.dtype) -> None:
    make = TABLE_OF_RULES[rule].v1
    assert_same(in_a_graph(make, dtype), eagerly(make, dtype))


@every_dtype(with_keras)
def test_keras_takes_the_steps_of_tensorflow_1(rule: str, dtype: torch.dtype) -> None:
    row = TABLE_OF_RULES[rule]
    classic = [arrays[:2] for arrays in eagerly(row.v1, dtype)]
    assert_same(with_keras_api(row, dtype), classic)


@pytest.mark.parametrize("dtype", DTYPES[:2], ids=lambda dtype: str(dtype)[6:])
def test_rows_of_one_element_make_both_adagrads_divide(dtype: torch.dtype) -> None:
    """Beside an accumulator of 0.1 or more an epsilon of 1e-30 is nothing."""
    tables = []
    for opt in (train.AdagradOptimizer(0.1), keras.Adagrad(0.1, epsilon=1e-30)):
        table = thalweg.Variable(values((6, 1), 1, dtype))
        for number in range(STEPS):
            rows = values((len(ROWS), 1), number, dtype)
            opt.apply_gradients([(thalweg.IndexedSlices(rows, ROWS, (6, 1)), table)])
        tables.append(bits([table]))
    np.testing.assert_array_equal(*tables)


# What is denormal in float32, as a Python float is even beside float64 variables, counts as 0.


@pytest.mark.one_in(3)
@pytest.mark.parametrize("denormals", ["flush", "keep"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(
    "rate",
    [1e-40, -1e-40, np.float32(1e-40), np.float64(1e-40), np.float64(1e-310), lambda: 1e-40],
    ids=["float", "negative", "float32", "float64", "tiny float64", "callable"],
)
@pytest.mark.parametrize("make", [keras.SGD, train.GradientDescentOptimizer], ids=["keras", "v1"])
def test_denormal_hyperparameters_are_flushed(
    make: Any, rate: Any, dtype: Any, denormals: Any
) -> None:
    number = rate() if callable(rate) else rate
    wide = isinstance(number, np.float64)
    float_rate = dtype(number if wide else np.float32(number))
    is_normal = wide and dtype is np.float64 and abs(number) >= np.finfo(np.float64).tiny
    w = thalweg.Variable(np.zeros(9, dtype))
    with thalweg.engine(denormals=denormals):
        opt = make(rate)
        opt.apply_gradients([(torch.full((9,), -1e6, dtype=w.dtype), w)])
    expected = float_rate * dtype(1e6) if is_normal or denormals == "keep" else dtype(0)
    np.testing.assert_array_equal(w.numpy(), np.full(9, expected))


def test_denormal_rate_is_flushed_before_use() -> None:
    w, opt = thalweg.Variable([0.0]), keras.Adamax(5e-39, beta_1=0.999, beta_2=0.0)
    for grad in (1000.0, 1.0):
        opt.apply_gradients([([grad], w)])
    assert w.item() == 0.0
    decaying = keras.SGD(1e-37, decay=99.0)  # 1e-39 in the second step
    for expected in (-1e-35, -1e-35):
        decaying.apply_gradients([([100.0], w)])
        assert w.item() == np.float32(expected)
