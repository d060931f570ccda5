"""Subclasses written for TensorFlow give the trajectories of TensorFlow Addons' optimizers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import thalweg.tf as tf
import written_for_tensorflow as written
from golden_files import array_of, cases_of

pytestmark = pytest.mark.usefixtures("with_keras")  # for its initializers
OPTIMIZERS = tf.keras.optimizers

# Where TensorFlow adds up in another order, takes an approximate rsqrt, or decomposes a matrix: the
# distance in ulp of the largest element.
BOUNDS = {"NovoGrad": 4, "ProximalAdagrad": 4, "LAMB": 4, "/nuclear": 16}


def inner(spec: Any) -> Any:
    return getattr(OPTIMIZERS, spec[0])(**spec[1])


def around(cls: Any, **names: str) -> Callable[..., Any]:
    """A class that takes an optimizer; `names` are its arguments by Addons' names."""

    def make(variables: Any, inner: Any, **arguments: Any) -> Any:
        opt = getattr(OPTIMIZERS, inner[0])(**inner[1])
        return cls(opt, **{names.get(key, key): value for key, value in arguments.items()})

    return make


def plain(cls: Any, **names: str) -> Callable[..., Any]:
    """A class of its own; `names` are its arguments by Addons' names."""

    def make(variables: Any, **arguments: Any) -> Any:
        kwargs = {names.get(key, key): value for key, value in arguments.items()}
        decay = kwargs.get("weight_decay")
        if isinstance(decay, dict):
            options = {key: value for key, value in decay.items() if key != "schedule"}
            kwargs["weight_decay"] = getattr(OPTIMIZERS.schedules, decay["schedule"])(**options)
        return cls(**kwargs)

    return make


def triangles(variables: Any, learning_rate: Any) -> Any:
    low, high = learning_rate["initial_learning_rate"], learning_rate["maximal_learning_rate"]
    return OPTIMIZERS.SGD(written.Triangles(low, high, learning_rate["step_size"]))


def several(variables: Any, parts: Any) -> Any:
    return written.Several([(inner(spec), [variables[n] for n in names]) for spec, names in parts])


EXCLUDED = {"exclude_from_weight_decay": "exclude"}
MAKE: dict[str, Callable[..., Any]] = {
    "AdaBelief": plain(written.Believing),
    "AdamW": plain(written.DecayedAdam, **EXCLUDED),
    "COCOB": plain(written.CoinBetting),
    "ConditionalGradient": plain(written.FrankWolfe),
    "LAMB": plain(written.LayerAdaptive, **EXCLUDED),
    "LazyAdam": plain(written.Lazy),
    "Lookahead": around(written.SlowAndFast),
    "MovingAverage": around(written.Averaged),
    "MultiOptimizer": several,
    "NovoGrad": plain(written.NormalizedLayers),
    "ProximalAdagrad": plain(written.Proximal),
    "RectifiedAdam": plain(written.Rectified),
    "SGD": triangles,
    "SGDW": plain(written.DecayedSGD),
    "SWA": around(written.Snapshots, start_averaging="start", average_period="period"),
    "Yogi": plain(
        written.Additive, initial_accumulator_value="start", beta1="beta_1",
        l1_regularization_strength="l1",
    ),
}  # fmt: skip

CASES = cases_of("addons")


def bound_of(case_id: str) -> int:
    return next((bound for part, bound in BOUNDS.items() if part in case_id), 0)


def check(case_id: str, label: str, got: Any, golden: Any) -> None:
    """Assert equal bits, or values within the case's bound."""
    got = np.asarray(got)
    assert (got.shape, got.dtype) == (golden.shape, golden.dtype), label
    bound = bound_of(case_id) * np.spacing(np.abs(golden).max(initial=0))
    distance = np.abs(got - golden).max(initial=0)
    assert distance <= bound, f"{label} is off by {distance}, of {bound}"


def gradient(case: Any, name: str, step: int) -> Any:
    if name == "emb":
        values, rows = (array_of("addons", case, key, name) for key in ("values", "indices"))
        shape = array_of("addons", case, "start", name).shape
        grads, places = tf.constant(values[step].copy()), tf.constant(rows[step].copy())
        return tf.IndexedSlices(grads, places, tf.constant(list(shape)))
    return tf.constant(array_of("addons", case, "grad", name)[step].copy())


@pytest.mark.one_in(7)
@pytest.mark.parametrize("case_id", CASES)
def test_addons_trajectory_has_recorded_values(case_id: str) -> None:
    case = CASES[case_id]
    variables = {
        name: tf.Variable(array_of("addons", case, "start", name), name=name)
        for name in case["variables"]
    }
    opt = MAKE[case["optimizer"]](variables, **case["arguments"])
    parts = {"": opt}
    if hasattr(opt, "_optimizer"):
        parts["inner/"] = opt._optimizer
    for step in range(8):
        opt.apply_gradients([(gradient(case, name, step), var) for name, var in variables.items()])
        for name, var in variables.items():
            title = f"{name} after step {step + 1}"
            check(case_id, title, var, array_of("addons", case, "var", name)[step])
            for prefix, part in parts.items():
                for slot in part.get_slot_names():
                    golden = array_of("addons", case, "slot", name, f"{prefix}{slot}")[step]
                    check(case_id, f"{prefix}{slot} of {title}", part.get_slot(var, slot), golden)


IN_GRAPHS = ["COCOB", "LAMB", "LazyAdam", "Lookahead", "MovingAverage", "NovoGrad", "AdamW", "SWA"]


@pytest.mark.parametrize("name", IN_GRAPHS)
def test_addons_trajectory_in_a_graph_has_recorded_values(name: str) -> None:
    case = CASES[f"{name}/float32"]
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        variables = {
            key: tf.Variable(array_of("addons", case, "start", key), name=key)
            for key in case["variables"]
        }
        feeds: dict[str, Any] = {}
        for key in ("grad", "values", "indices"):
            for var_name, var in variables.items():
                if (key == "grad") == (var_name != "emb"):
                    kind = tf.int64 if key == "indices" else tf.float32
                    rows = {"grad": var.shape, "values": (4, *var.shape[1:]), "indices": (4,)}
                    shape = rows[key]
                    feeds[f"{key}|{var_name}"] = tf.compat.v1.placeholder(kind, shape)
        pairs = [
            (tf.IndexedSlices(feeds["values|emb"], feeds["indices|emb"]), var)
            if key == "emb"
            else (feeds[f"grad|{key}"], var)
            for key, var in variables.items()
        ]
        opt = MAKE[case["optimizer"]](variables, **case["arguments"])
        train = opt.apply_gradients(pairs)
        session.run(tf.compat.v1.global_variables_initializer())
        for step in range(8):
            arrays = {key: array_of("addons", case, *key.split("|"))[step] for key in feeds}
            session.run(train, {feeds[key]: value for key, value in arrays.items()})
            for var_name, var in variables.items():
                golden = array_of("addons", case, "var", var_name)[step]
                check(case["id"], f"{var_name} after step {step + 1}", session.run(var), golden)


def test_every_addons_optimizer_is_available() -> None:
    assert {case["optimizer"] for case in CASES.values()} == set(MAKE)
