"""Private names of TensorFlow's optimizers that subclasses and scripts use."""

from __future__ import annotations

import copy
import json
import pickle
from typing import Any

import numpy as np
import pytest
import torch

import thalweg.tf  # noqa: F401  (hooks here are written for TensorFlow)
import thalweg.v1 as tf
from thalweg import Variable
from thalweg.errors import InvalidTypeError
from thalweg.keras import optimizers
from thalweg.keras.optimizers import optimizer as of_keras
from thalweg.v1 import train
from thalweg.v1.train import optimizer as base

CLASSES = [base._DenseResourceVariableProcessor, base._RefVariableProcessor, base._TensorProcessor]


def two() -> tuple[Any, Any]:
    return Variable([1.0, 2.0], name="w"), torch.nn.Parameter(torch.ones(3))


def stepped(opt: Any) -> tuple[Any, Any]:
    w, p = two()
    opt.apply_gradients([(torch.ones(2), w), (torch.ones(3), p)])
    return w, p


def test_slots_of_keras_are_a_dict_by_variable() -> None:
    opt = optimizers.Adam()
    assert (dict(opt._slots), len(opt._slots), list(opt._slots)) == ({}, 0, [])
    w, p = stepped(opt)
    key = of_keras._var_key(w)
    assert list(opt._slots) == list(opt._slots.keys()) == [key, of_keras._var_key(p)]
    assert list(opt._slots[key].items()) == [(k, opt.get_slot(w, k)) for k in "mv"]
    assert opt._slots[key]["m"] is opt._slots.get(key)["m"] is opt.get_slot(w, "m")
    assert [list(slots) for _, slots in opt._slots.items()] == [["m", "v"], ["m", "v"]]
    assert opt._slots.get("nothing") is None
    assert opt._slots.get("nothing", 7) == 7
    assert key in opt._slots
    with pytest.raises(KeyError, match="nothing"):
        opt._slots["nothing"]
    with pytest.raises(TypeError):
        opt._slots[key]["m"] = w  # pyright: ignore[reportIndexIssue]


def test_slots_of_version_1_are_a_dict_by_name() -> None:
    opt = train.AdamOptimizer()
    w, p = stepped(opt)
    assert list(opt._slots) == ["m", "v"]
    assert list(opt._slots["v"]) == [base._var_key(w), base._var_key(p)]
    assert opt._slots["m"][base._var_key(p)] is opt.get_slot(p, "m")
    assert dict(opt._slot_dict("m")) == dict(opt._slots["m"])
    assert dict(opt._slot_dict("nothing")) == {}
    for opt_copy in (copy.deepcopy(opt), pickle.loads(pickle.dumps(opt))):
        assert list(opt_copy._slots) == ["m", "v"]
        assert all(len(slots) == 2 for slots in opt_copy._slots.values())


def test_slots_of_a_graph_have_its_key() -> None:
    with tf.Graph().as_default() as graph:
        w, opt = tf.Variable([1.0], name="w"), train.MomentumOptimizer(0.1, 0.9)
        opt.minimize((w * w).sum())
        assert base._var_key(w) == (graph, "w")
        assert opt._slots["momentum"][graph, "w"] is opt.get_slot(w, "momentum")
        assert w._graph_key == graph._graph_key
        graph_opt = optimizers.SGD(0.1, momentum=0.9)
        graph_opt.minimize((w * w).sum(), [w])
        assert of_keras._var_key(w) == "w"
        assert list(graph_opt._slots["w"]) == ["momentum"]


def test_replayed_step_sees_changes_through_slot_dicts() -> None:
    w, twin = Variable([1.0]), Variable([1.0])
    opts = [train.MomentumOptimizer(0.1, 0.9), train.MomentumOptimizer(0.1, 0.9)]
    for _ in range(3):
        for opt, var in zip(opts, (w, twin), strict=True):
            opt.apply_gradients([([1.0], var)])
    opts[0]._slots["momentum"][base._var_key(w)].data = torch.zeros(1)
    opts[1].get_slot(twin, "momentum").assign([0.0])
    for opt, var in zip(opts, (w, twin), strict=True):
        opt.apply_gradients([([1.0], var)])
    assert torch.equal(w, twin)


@pytest.mark.parametrize("var_key", [of_keras._var_key, base._var_key])
def test_every_tensor_has_a_key_of_its_own(var_key: Any) -> None:
    w, p = two()
    tensors = [w, p, torch.ones(2), torch.ones(2, requires_grad=True), Variable([1.0], name="w")]
    keys = [var_key(tensor) for tensor in tensors]
    assert len(set(keys)) == len(keys)
    assert keys == [var_key(tensor) for tensor in tensors]


def test_variables_of_eager_mode_have_the_key_of_the_graph_outside() -> None:
    for var in two():
        assert var._graph_key == tf.get_default_graph()._graph_key
        with tf.Graph().as_default() as graph:
            assert var._graph_key == graph._graph_key


def test_hyperparameters_are_a_dict() -> None:
    opt = optimizers.SGD(0.25)
    assert dict(opt._hyper) == {"learning_rate": 0.25, "momentum": 0.0, "decay": 0.0}
    assert (len(opt._hyper), opt._hyper.get("beta"), opt._hyper["decay"]) == (3, None, 0.0)
    stepped(opt)
    assert opt._hyper["learning_rate"] is opt.learning_rate
    assert sorted(float(non_tensor) for non_tensor in opt._hyper.values()) == [0.0, 0.0, 0.25]
    assert dict(opt._hyper.items()).keys() == set(opt._hyper.keys())


def test_optimizer_has_checkpoint_children() -> None:
    opt = optimizers.SGD(0.25)
    stepped(opt)
    children = {child.name: child.ref for child in opt._checkpoint_dependencies}
    assert children == opt._trackable_children()
    assert children["iter"] is opt.iterations
    ((name, ref),) = train.Checkpoint(opt=opt)._checkpoint_dependencies
    assert (name, ref) == ("opt", opt)


def test_gradients_of_none_are_filtered() -> None:
    pairs = [(None, 1), (torch.ones(1), 2)]
    outs = base.get_filtered_grad_fn(lambda *args, **kwargs: [*pairs, (args, kwargs)])(3, a=4)
    assert [var for _, var in outs] == [2, {"a": 4}]


@pytest.mark.parametrize("target", [3, "w", None, [1.0], np.ones(2)])
def test_processors_reject_non_tensors(target: Any) -> None:
    for make in (base._get_processor, *CLASSES):
        with pytest.raises(NotImplementedError, match="Trying to optimize unsupported type"):
            make(target)


@pytest.mark.parametrize("cls", CLASSES)
def test_processors_do_not_update_tensors(cls: Any) -> None:
    x, opt = torch.ones(2), train.GradientDescentOptimizer(1.0)
    for grad in (torch.ones(2), tf.IndexedSlices(torch.ones(1), torch.tensor([0]))):
        with pytest.raises(NotImplementedError, match="Trying to update a Tensor"):
            cls(x).update_op(opt, grad)
    assert x.tolist() == [1.0, 1.0]
    text = "Trying to update a Tensor"
    with tf.Graph().as_default(), pytest.raises(NotImplementedError, match=text):
        cls(tf.constant([1.0, 1.0])).update_op(opt, tf.constant([1.0, 1.0]))


# Nests of variables


def nests() -> dict[str, Any]:
    a, b, c = (Variable([1.0], name=name) for name in "abc")
    return {
        "sorted keys": ({"z": a, "a": b, "m": c}, [b, c, a]),
        "inside": ([{"y": [a, b], "x": (c,)}], [c, a, b]),
        "numbers": ({10: a, 9: b, -1: c}, [c, b, a]),
    }


@pytest.mark.parametrize("nest", nests())
def test_variables_in_dicts_are_taken_in_the_order_of_their_keys(nest: str) -> None:
    var_list, names = nests()[nest]
    names = [var.name for var in names]

    def loss() -> Any:
        return sum(var.sum() for var in tf_flat(var_list))

    pairs = train.GradientDescentOptimizer(1.0).compute_gradients(loss, var_list)
    assert [var.name for _, var in pairs] == names
    pairs = optimizers.SGD(1.0)._compute_gradients(loss, var_list)
    assert [var.name for _, var in pairs] == names


def tf_flat(nest: Any) -> list[Any]:
    if isinstance(nest, dict):
        nest = list(nest.values())
    return (
        [leaf for part in nest for leaf in tf_flat(part)]
        if isinstance(nest, list | tuple)
        else [nest]
    )


def test_unsortable_keys_raise() -> None:
    w, v = Variable([1.0]), Variable([1.0])
    with pytest.raises(
        InvalidTypeError, match=r"must have keys that can be sorted, not \[1, 'a'\]"
    ):
        optimizers.SGD(1.0).minimize(lambda: (w + v).sum(), {1: w, "a": v})


# Graphs


@pytest.mark.parametrize("method", [17, -1, "ADD_N", 0.5])
def test_unsupported_aggregation_raises_in_graphs(method: Any) -> None:
    opt, text = train.GradientDescentOptimizer(1.0), "Invalid `aggregation_method` specified"
    with tf.Graph().as_default():
        w = tf.Variable([1.0])
        loss = (w * w).sum()
        for use in (
            lambda: opt.compute_gradients(loss, aggregation_method=method),
            lambda: opt.minimize(loss, aggregation_method=method),
            lambda: tf.gradients(loss, [w], aggregation_method=method),
        ):
            with pytest.raises(ValueError, match=text):
                use()
        for number in (None, 0, 1, 2):
            assert len(opt.compute_gradients(loss, aggregation_method=number)) == 1
    v = Variable([1.0])
    opt.minimize(lambda: (v * v).sum(), var_list=[v], aggregation_method=method)  # as there


def test_variables_of_the_other_collection_are_trained() -> None:
    with tf.Graph().as_default() as graph:
        w, v = tf.Variable([1.0], name="w"), tf.Variable([1.0], name="v", trainable=False)
        for var in (v, w):
            graph.add_to_collection(tf.GraphKeys.TRAINABLE_RESOURCE_VARIABLES, var)
        pairs = train.GradientDescentOptimizer(1.0).compute_gradients((w * v).sum())
        assert [var for _, var in pairs] == [w, v]
        assert all(grad is not None for grad, _ in pairs)


# Configurations


class Switched(optimizers.Optimizer):
    """As NovoGrad of TensorFlow Addons: a hyperparameter that is a bool."""

    def __init__(self, learning_rate: Any = 0.1, averages: Any = False, name: str = "Switched"):
        super().__init__(name)
        self._set_hyper("learning_rate", learning_rate)
        self._set_hyper("averages", averages)

    def _resource_apply_dense(self, grad: Any, var: Any, apply_state: Any = None) -> None:
        rate = 1.0 if self._get_hyper("averages") else self._get_hyper("learning_rate", var.dtype)
        var.assign_sub(rate * grad)

    def get_config(self) -> dict[str, Any]:
        names = "learning_rate", "averages"
        options = {name: self._serialize_hyperparameter(name) for name in names}
        return {**super().get_config(), **options}


@pytest.mark.parametrize("averages", [False, True, np.bool_(True)])
def test_a_configuration_after_a_step_makes_the_same_optimizer(averages: Any) -> None:
    opt = Switched(averages=averages)
    w, _ = stepped(opt)
    config = json.loads(json.dumps(opt.get_config()))
    assert config["averages"] is bool(averages)
    new_opt = Switched.from_config(config)
    assert torch.equal(stepped(new_opt)[0], w)
    assert new_opt.get_config() == opt.get_config()


OPTIMIZERS = [
    *(cls(np.float32(0.1), clipnorm=1.0) for cls in (optimizers.SGD, optimizers.Nadam)),
    *(cls(0.1) for cls in (optimizers.Adam, optimizers.Adamax, optimizers.Ftrl)),
    *(cls(torch.tensor(0.1)) for cls in (optimizers.Adagrad, optimizers.Adadelta)),
    optimizers.RMSprop(lambda: np.float32(0.1)),
    optimizers.RMSprop(np.float64(0.1), momentum=np.int32(0)),
    optimizers.SGD(Variable(0.1)),
]


@pytest.mark.parametrize("opt", OPTIMIZERS, ids=lambda opt: type(opt).__name__)
def test_configurations_are_json(opt: Any) -> None:
    opt, end = copy.deepcopy(opt), []
    json.dumps(opt.get_config())
    stepped(opt)
    config = json.loads(json.dumps(opt.get_config()))
    for new_opt in (type(opt).from_config(config), type(opt).from_config(opt.get_config())):
        end.append(stepped(new_opt)[0])
    assert torch.equal(*end)
    assert np.float32(config["learning_rate"]) == np.float32(0.1)
    with tf.Graph().as_default(), tf.Session() as session:
        opt_copy, w = type(opt).from_config(config), tf.Variable([1.0])
        opt_copy.minimize((w * w).sum(), [w])
        session.run(tf.global_variables_initializer())
        json.dumps(opt_copy.get_config())
