"""Private hooks and processors that an overriding `apply_gradients` calls."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import thalweg.v1 as tf
from case_batches import many
from thalweg import Variable
from thalweg.v1 import train
from thalweg.v1.train import optimizer as base

MAKERS: dict[str, Callable[[], Any]] = {
    "GradientDescent": lambda: train.GradientDescentOptimizer(0.5),
    "Momentum": lambda: train.MomentumOptimizer(0.5, 0.9),
    "Nesterov": lambda: train.MomentumOptimizer(0.5, 0.9, use_nesterov=True),
    "Adagrad": lambda: train.AdagradOptimizer(0.5),
    "Adadelta": lambda: train.AdadeltaOptimizer(0.5),
    "Adam": lambda: train.AdamOptimizer(0.1),
    "AdaMax": lambda: tf.contrib.opt.AdaMaxOptimizer(0.1),
    "RMSProp": lambda: train.RMSPropOptimizer(0.1, momentum=0.9),
    "Ftrl": lambda: train.FtrlOptimizer(0.5, l1_regularization_strength=0.01),
}


def applied(opt: Any, pairs: list[tuple[Any, Any]]) -> Any:
    """Call the hooks of a step one by one, as an overriding `apply_gradients` does."""
    opt._create_slots([var for _, var in pairs])
    opt._prepare()
    updates = [base._get_processor(var).update_op(opt, grad) for grad, var in pairs]
    return opt._finish(updates, "train/")


def gradients() -> tuple[torch.Tensor, Any]:
    rows = tf.IndexedSlices(torch.tensor([[1.0], [2.0], [4.0]]), torch.tensor([2, 0, 2]))
    return torch.tensor([0.5, -1.0]), rows


def eagerly(opt: Any, step: Callable[..., Any]) -> list[Any]:
    w, table = Variable([1.0, 2.0], name="w"), Variable(np.ones((3, 1), np.float32), name="t")
    for _ in range(3):
        step(opt, list(zip(gradients(), (w, table), strict=True)))
    return [w.numpy(), table.numpy()]


def in_graph(opt: Any, step: Callable[..., Any]) -> list[Any]:
    with tf.Graph().as_default(), tf.Session() as session:
        w = tf.Variable([1.0, 2.0], name="w")
        table = tf.Variable(np.ones((3, 1), np.float32), name="t")
        dense, rows = gradients()
        symbols = (
            tf.constant(dense),
            tf.IndexedSlices(tf.constant(rows.values), tf.constant(rows.indices)),
        )
        train_op = step(opt, list(zip(symbols, (w, table), strict=True)))
        session.run(tf.global_variables_initializer())
        for _ in range(3):
            session.run(train_op)
        return session.run([w, table])


def usual(opt: Any, pairs: list[tuple[Any, Any]]) -> Any:
    return opt.apply_gradients(pairs)


@many("run", [eagerly, in_graph])
@many("name", list(MAKERS))
def test_hooks_called_singly_equal_a_step(name: str, run: Callable[..., Any]) -> None:
    expected = run(MAKERS[name](), usual)
    states = run(MAKERS[name](), applied)
    for array, expected_array in zip(states, expected, strict=True):
        np.testing.assert_array_equal(array, expected_array)


def test_processors_of_non_variables_raise() -> None:
    opt = train.GradientDescentOptimizer(1.0)
    with pytest.raises(NotImplementedError, match="Trying to update a Tensor"):
        base._get_processor(torch.ones(2)).update_op(opt, torch.ones(2))
    with pytest.raises(NotImplementedError, match="Trying to optimize unsupported type"):
        base._get_processor("w")
    with tf.Graph().as_default():
        assert isinstance(base._get_processor(tf.Variable(1.0)), base._OptimizableVariable)
        assert isinstance(base._get_processor(tf.constant(1.0)), base._TensorProcessor)
    parameter = torch.nn.Parameter(torch.ones(1))
    processor = base._get_processor(parameter)
    assert isinstance(processor, base._DenseResourceVariableProcessor)
    assert processor.target() is parameter
    assert base._StreamingModelPortProcessor(parameter).update_op(opt, 3) == 3


@many("make", [Variable, tf.Variable])
@many("kind", ["_DenseResourceVariableProcessor", "_RefVariableProcessor"])
def test_constraints_follow_an_update(kind: str, make: Any) -> None:
    w = Variable([1.0, 5.0], constraint=lambda x: torch.clamp(x, max=2.0))
    opt, processor = train.GradientDescentOptimizer(1.0), getattr(base, kind)(w)
    processor.update_op(opt, torch.tensor([1.0, 1.0]))
    assert w.tolist() == [0.0, 2.0]
    rows = tf.IndexedSlices(torch.tensor([1.0]), torch.tensor([0]))
    with pytest.raises(RuntimeError, match="constraint function on a sparse variable"):
        processor.update_op(opt, rows)


def test_repeated_rows_are_summed_in_both_modes() -> None:
    rows, places = torch.tensor([[1.0], [2.0], [4.0]]), torch.tensor([5, 0, 5])
    values, unique = base._deduplicate_indexed_slices(rows, places)
    assert (values.flatten().tolist(), unique.tolist()) == ([5.0, 2.0], [5, 0])
    with tf.Graph().as_default(), tf.Session() as session:
        x = tf.placeholder("float32", [None, 1])
        unique_slices = base._deduplicate_indexed_slices(x, tf.constant(places))
        values, unique = session.run(unique_slices, {x: rows.numpy()})
    assert (values.ravel().tolist(), unique.tolist()) == ([5.0, 2.0], [5, 0])


def test_slots_are_found_by_the_key_of_their_variable() -> None:
    w, opt = Variable([1.0]), train.MomentumOptimizer(0.1, 0.9)
    opt.apply_gradients([([1.0], w)])
    slot_dict = opt._slot_dict("momentum")
    assert slot_dict[base._var_key(w)] is opt.get_slot(w, "momentum")
    assert (len(slot_dict), list(slot_dict)) == (1, [base._var_key(w)])


class Accumulating(train.Optimizer):
    """Keeps its slots by itself, in the dict that `_slot_dict` returns."""

    def __init__(self) -> None:
        super().__init__(False, "Accumulating")

    def _create_slots(self, var_list: Any) -> None:
        slots = self._slot_dict("acc")
        for var in var_list:
            if base._var_key(var) not in slots:
                slots[base._var_key(var)] = train.slot_creator.create_zeros_slot(var, "acc")

    def _apply_dense(self, grad: Any, var: Any) -> Any:
        total = self.get_slot(var, "acc").assign_add(grad)
        return var.assign_sub(total)


@pytest.mark.parametrize("mode", ["eager", "resource", "reference"])
def test_slots_are_put_under_the_key_of_their_variable(mode: str) -> None:
    optimizer, gradients = Accumulating(), [[1.0, 2.0], [3.0, 4.0]]
    if mode == "eager":
        variables = [Variable([0.0, 0.0], name="a"), Variable([0.0, 0.0], name="b")]
        for _ in range(2):
            optimizer.apply_gradients(list(zip(gradients, variables, strict=True)))
        values = [var.tolist() for var in variables]
        slots = [optimizer.get_slot(var, "acc").tolist() for var in variables]
    else:
        with tf.Graph().as_default(), tf.Session() as session:
            variables = [
                tf.get_variable(name, initializer=[0.0, 0.0], use_resource=mode == "resource")
                for name in "ab"
            ]
            pairs = [(tf.constant(grad), var) for grad, var in zip(gradients, variables)]
            step = optimizer.apply_gradients(pairs)
            session.run(tf.global_variables_initializer())
            for _ in range(2):
                session.run(step)
            values = [value.tolist() for value in session.run(variables)]
            old = [optimizer.get_slot(var, "acc") for var in variables]
            fetched_slots = session.run(optimizer._slot_dict("acc"))
            assert type(fetched_slots) is dict
            slots = [fetched_slots[base._var_key(var)].tolist() for var in variables]
            new = [optimizer.get_slot(var, "acc") for var in variables]
            assert all(slot is new_slot for slot, new_slot in zip(old, new, strict=True))
    assert values == [[-3.0, -6.0], [-9.0, -12.0]]
    assert slots == [[2.0, 4.0], [6.0, 8.0]]
    assert optimizer.get_slot_names() == ["acc"]


def test_slots_are_written_to_and_deleted_as_in_a_dict() -> None:
    w, optimizer = Variable([1.0]), train.MomentumOptimizer(0.1, 0.9)
    key, slots = base._var_key(w), optimizer._slot_dict("momentum")
    slots[key] = Variable([2.0], trainable=False)
    assert (len(slots), key in slots, key in optimizer._slots["momentum"]) == (1, True, True)
    optimizer.apply_gradients([([1.0], w)])
    assert optimizer.get_slot(w, "momentum") is slots[key]
    assert slots[key].numpy() == pytest.approx([2.8])
    slots[key] = variable = Variable([0.0], trainable=False)
    assert optimizer.get_slot(w, "momentum") is variable
    del slots[key]
    assert optimizer.get_slot(w, "momentum") is None
    for action in (lambda: slots[key], lambda: slots.pop(key), lambda: optimizer._slots["no"]):
        with pytest.raises(KeyError):
            action()


def _overriding(*names: str, base_cls: type[Any] = train.GradientDescentOptimizer) -> Any:
    """Return an optimizer whose hooks of these names note their calls and change nothing."""
    calls: list[str] = []

    def hook_named(name: str) -> Any:
        return lambda self, grad, var, *args: calls.append(name) or tf.no_op()

    cls: Any = type("Overriding", (base_cls,), {name: hook_named(name) for name in names})
    opt = cls(0.5) if base_cls is not train.Optimizer else cls(False, "Overriding")
    return opt, calls


DENSE = ("_apply_dense", "_resource_apply_dense")
SPARSE = ("_apply_sparse", "_resource_apply_sparse")
# What TensorFlow calls for a reference variable; "" for the update of the class itself.
HOOKS_OF_REFERENCES = [
    (DENSE, train.GradientDescentOptimizer, "_apply_dense"),
    (DENSE[:1], train.GradientDescentOptimizer, "_apply_dense"),
    (DENSE[1:], train.GradientDescentOptimizer, ""),
    (DENSE, train.Optimizer, "_apply_dense"),
    (SPARSE, train.AdamOptimizer, "_apply_sparse"),
    (SPARSE[1:], train.AdamOptimizer, ""),
    (SPARSE, train.Optimizer, "_apply_sparse"),
]


@pytest.mark.parametrize(("names", "base_cls", "hook_called"), HOOKS_OF_REFERENCES)
@pytest.mark.parametrize("is_resource", [False, True])
def test_reference_variables_are_updated_by_plain_hooks(
    names: tuple[str, ...], base_cls: type[Any], hook_called: str, is_resource: bool
) -> None:
    optimizer, calls = _overriding(*names, base_cls=base_cls)
    with tf.Graph().as_default(), tf.Session() as session:
        w = tf.get_variable("w", initializer=[[1.0], [1.0]], use_resource=is_resource)
        dense = tf.constant([[1.0], [1.0]])
        sparse = tf.IndexedSlices(dense, tf.constant([0, 1]), tf.constant([2, 1]))
        step = optimizer.apply_gradients([(dense if names[0] in DENSE else sparse, w)])
        session.run(tf.global_variables_initializer())
        session.run(step)
        value = session.run(w).ravel().tolist()
    expected = names[-1] if is_resource else hook_called
    assert calls == [expected] * bool(expected)
    assert value == ([1.0, 1.0] if expected else pytest.approx([0.5, 0.5]))


def test_tensors_have_gradients_and_cannot_be_updated() -> None:
    opt, x = train.GradientDescentOptimizer(1.0), torch.tensor(3.0)
    ((grad, source),) = opt.compute_gradients(lambda: x * x, [x])
    assert (grad.item(), source is x, x.requires_grad) == (6.0, True, False)
    with pytest.raises(NotImplementedError, match="Trying to update a Tensor"):
        opt.apply_gradients([(grad, source)])
    with tf.Graph().as_default(), tf.Session() as session:
        x = tf.constant(3.0)
        ((grad, source),) = opt.compute_gradients(x * x, [x])
        assert (session.run(grad), source) == (6.0, x)
        with pytest.raises(NotImplementedError, match="Trying to update a Tensor"):
            opt.apply_gradients([(grad, source)])


def test_dense_shape_of_slices_is_not_read() -> None:
    w = Variable([1.0, 2.0])
    rows = tf.IndexedSlices(torch.tensor([1.0]), torch.tensor([1]), dense_shape=(1,))
    train.GradientDescentOptimizer(0.5).apply_gradients([(rows, w)])
    assert w.tolist() == [1.0, 1.5]
