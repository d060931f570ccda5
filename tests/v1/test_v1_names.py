"""Names of what v1 optimizers make in a graph: TensorFlow's, so that its checkpoints fit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from thalweg import v1 as tf
from thalweg.v1 import train

Names = dict[str, str]


def adagrad_da(**options: Any) -> Any:
    step = tf.Variable(np.int64(0), trainable=False, name="step", collections=[])
    return train.AdagradDAOptimizer(0.1, step, **options)


OPTIMIZERS: dict[str, tuple[Any, Names]] = {
    "GradientDescent": (lambda **k: train.GradientDescentOptimizer(0.1, **k), {}),
    "ProximalGradientDescent": (lambda **k: train.ProximalGradientDescentOptimizer(0.1, **k), {}),
    "Momentum": (lambda **k: train.MomentumOptimizer(0.1, 0.9, **k), {"momentum": ""}),
    "Adagrad": (lambda **k: train.AdagradOptimizer(0.1, **k), {"accumulator": ""}),
    "AdagradDA": (
        adagrad_da,
        {"gradient_accumulator": "", "gradient_squared_accumulator": "_1"},
    ),
    "Adadelta": (lambda **k: train.AdadeltaOptimizer(**k), {"accum": "", "accum_update": "_1"}),
    "Adam": (lambda **k: train.AdamOptimizer(**k), {"m": "", "v": "_1"}),
    "Ftrl": (lambda **k: train.FtrlOptimizer(0.1, **k), {"accum": "", "linear": "_1"}),
    "RMSProp": (lambda **k: train.RMSPropOptimizer(0.1, **k), {"rms": "", "momentum": "_1"}),
    "ProximalAdagrad": (
        lambda **k: train.ProximalAdagradOptimizer(0.1, **k),
        {"accumulator": ""},
    ),
}
POWERS = {"Adam": ["beta1_power", "beta2_power"]}
each_optimizer = pytest.mark.parametrize("kind", list(OPTIMIZERS))


def names_of(opt: Any, var: Any) -> Names:
    """Return the names of a variable's slots by the short names of `get_slot`."""
    slots = {name: opt.get_slot(var, name) for name in opt.get_slot_names()}
    return {name: slot.op.name for name, slot in slots.items()}


def expected(kind: str, prefix: str) -> Names:
    return {slot: prefix + suffix for slot, suffix in OPTIMIZERS[kind][1].items()}


def minimized(opt: Any, *variables: Any) -> Any:
    return opt.minimize(sum(var.sum() for var in variables), var_list=list(variables))


@each_optimizer
def test_slots_are_named_after_variable_and_optimizer(kind: str) -> None:
    with tf.Graph().as_default():
        w = tf.Variable([1.0], name="layer/w")
        opt = OPTIMIZERS[kind][0]()
        minimized(opt, w)
        assert names_of(opt, w) == expected(kind, f"layer/w/{kind}")
        powers = POWERS.get(kind, [])
        names = [*expected(kind, f"layer/w/{kind}").values(), *powers]
        assert [var.op.name for var in opt.variables()] == sorted(names)


@each_optimizer
def test_second_optimizer_of_a_class_has_numbered_slots(kind: str) -> None:
    with tf.Graph().as_default():
        w = tf.Variable([1.0], name="w")
        for _ in range(2):
            opt = OPTIMIZERS[kind][0]()
            minimized(opt, w)
        count = len(OPTIMIZERS[kind][1])
        second = {
            slot: f"w/{kind}_{count + index}" for index, slot in enumerate(OPTIMIZERS[kind][1])
        }
        assert names_of(opt, w) == second
        powers = [f"{power}_1" for power in POWERS.get(kind, [])]
        assert [x.op.name for x in opt.variables()] == sorted([*second.values(), *powers])


@each_optimizer
def test_custom_optimizer_name_names_slots(kind: str) -> None:
    with tf.Graph().as_default():
        w = tf.Variable([1.0], name="w")
        opt = OPTIMIZERS[kind][0](name="Mine")
        op = minimized(opt, w)
        assert op.name == "Mine"
        assert names_of(opt, w) == expected(kind, "w/Mine")
        assert {x.op.name for x in opt.variables()} >= set(POWERS.get(kind, []))


@each_optimizer
def test_names_inside_a_variable_scope_have_its_prefix(kind: str) -> None:
    with tf.Graph().as_default():
        w = tf.get_variable("w", [2])
        with tf.variable_scope("s"):
            inner = tf.get_variable("w", [2])
            opt = OPTIMIZERS[kind][0]()
            minimized(opt, w, inner)
        assert names_of(opt, w) == expected(kind, f"s/w/{kind}")
        assert names_of(opt, inner) == expected(kind, f"s/s/w/{kind}")
        names = {x.op.name for x in opt.variables()}
        assert names >= {f"s/{power}" for power in POWERS.get(kind, [])}


@each_optimizer
def test_only_powers_have_the_name_scope_prefix(kind: str) -> None:
    with tf.Graph().as_default():
        w = tf.Variable([1.0], name="w")
        with tf.name_scope("ns"):
            opt = OPTIMIZERS[kind][0]()
            op = minimized(opt, w)
        assert op.name == f"ns/{kind}"
        assert names_of(opt, w) == expected(kind, f"w/{kind}")
        names = {x.op.name for x in opt.variables()}
        assert names >= {f"ns/{power}" for power in POWERS.get(kind, [])}


@pytest.mark.parametrize(
    ("make", "names"),
    [
        (
            lambda: train.RMSPropOptimizer(0.1, centered=True),
            {"rms": "w/RMSProp", "mg": "w/RMSProp_1", "momentum": "w/RMSProp_2"},
        ),
        (
            lambda: train.FtrlOptimizer(0.1, accum_name="AC", linear_name="LI"),
            {"accum": "w/AC", "linear": "w/LI"},
        ),
        (
            lambda: train.FtrlOptimizer(0.1, linear_name="LI"),
            {"accum": "w/Ftrl", "linear": "w/LI"},
        ),
    ],
)
def test_slot_names_depend_on_arguments(make: Any, names: Names) -> None:
    with tf.Graph().as_default():
        w = tf.Variable([1.0], name="w")
        opt = make()
        minimized(opt, w)
        assert names_of(opt, w) == names


@each_optimizer
def test_state_variables_are_global_and_not_trainable(kind: str) -> None:
    with tf.Graph().as_default():
        a, b = tf.Variable([1.0], name="a"), tf.Variable([1.0], name="b")
        opt = OPTIMIZERS[kind][0]()
        minimized(opt, a, b)
        assert tf.trainable_variables() == [a, b]
        # As TensorFlow makes them: first the powers, then variable by variable.
        names = [*POWERS.get(kind, [])]
        slots = expected(kind, kind).values()
        names += [f"{var}/{slot}" for var in ("a", "b") for slot in slots]
        assert [x.op.name for x in tf.global_variables()] == ["a", "b", *names]
        assert not any(x.trainable for x in opt.variables())


def test_slots_belong_to_the_operation_that_first_needs_them() -> None:
    with tf.Graph().as_default():
        w = tf.Variable([1.0], name="w")
        opt = train.AdamOptimizer()
        pairs = opt.compute_gradients(w.sum())
        assert (opt.variables(), opt.get_slot_names(), opt.get_slot(w, "m")) == ([], [], None)
        opt.apply_gradients(pairs)
        variables_before = opt.variables()
        opt.apply_gradients(pairs)
        assert opt.variables() == variables_before


def test_training_operations_are_named_and_collected() -> None:
    with tf.Graph().as_default() as graph:
        w = tf.Variable([1.0], name="w")
        step = train.get_or_create_global_step()
        opt = train.AdamOptimizer()
        operations = [
            opt.minimize(w.sum()),
            opt.minimize(w.sum(), global_step=step),
            opt.minimize(w.sum(), name="train_it"),
            opt.apply_gradients([(torch.ones(1), w)], name="train_it"),
        ]
        assert [op.name for op in operations] == ["Adam", "Adam_1", "train_it", "train_it_1"]
        assert graph.get_collection(tf.GraphKeys.TRAIN_OP) == operations
        assert graph.get_operation_by_name("train_it") is operations[2]


def test_powers_are_colocated_with_the_first_variable_by_name() -> None:
    colocations = []

    class Watching(train.AdamOptimizer):
        def _create_non_slot_variable(self, initial_value: Any, name: str, colocate_with: Any):
            colocations.append((name, colocate_with.op.name))
            return super()._create_non_slot_variable(initial_value, name, colocate_with)

    with tf.Graph().as_default():
        b, a = tf.Variable([1.0], name="b"), tf.Variable([1.0], name="a")
        minimized(Watching(), b, a)
    assert colocations == [("beta1_power", "a"), ("beta2_power", "a")]


def test_module_parameter_slots_have_parameter_names() -> None:
    with tf.Graph().as_default():
        layer = torch.nn.Linear(2, 1)
        loss = layer(tf.placeholder("float32", [None, 2])).sum()
        opt = train.MomentumOptimizer(0.1, 0.9)
        opt.minimize(loss)
        assert [x.op.name for x in opt.variables()] == [
            "Linear/bias/Momentum",
            "Linear/weight/Momentum",
        ]
        assert opt.get_slot(tf.graph_variable_of(layer.weight), "momentum").shape == (1, 2)


def test_average_is_named_like_a_slot() -> None:
    with tf.Graph().as_default():
        w = tf.Variable([1.0], name="w")
        average = train.ExponentialMovingAverage(0.9)
        with tf.variable_scope("s"), tf.name_scope("ns"):
            average.apply([w])
        assert average.average(w).op.name == "s/w/ExponentialMovingAverage"
