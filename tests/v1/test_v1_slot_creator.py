"""Variables beside variables: `slot_creator`, and what is asked of variables of unknown shape."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

import thalweg.v1 as tf
from case_batches import many
from thalweg import Variable
from thalweg.v1.train import slot_creator

SLOT_MAKERS = {
    "value": (lambda w: slot_creator.create_slot(w, [7.0, 8.0], "slot"), [7.0, 8.0], "float32"),
    "zeros": (lambda w: slot_creator.create_zeros_slot(w, "slot"), [0.0, 0.0], "float32"),
    "zeros64": (
        lambda w: slot_creator.create_zeros_slot(w, "slot", "float64"),
        [0.0, 0.0],
        "float64",
    ),
    "initial tensor": (
        lambda w: slot_creator.create_slot_with_initializer(
            w, torch.tensor([3.0, 4.0]), (2,), "float32", "slot"
        ),
        [3.0, 4.0],
        "float32",
    ),
    "initializer": (
        lambda w: slot_creator.create_slot_with_initializer(
            w, tf.ones_initializer(), (2,), "float32", "slot"
        ),
        [1.0, 1.0],
        "float32",
    ),
}


@many("kind", list(SLOT_MAKERS))
def test_slots_are_created_for_an_eager_variable(kind: str) -> None:
    make, expected, dtype = SLOT_MAKERS[kind]
    slot = make(Variable([1.0, 2.5], name="w"))
    assert (slot.name, slot.tolist(), slot.trainable) == ("w/slot:0", expected, False)
    assert slot.dtype == getattr(torch, dtype)


@many("source", ["variable", "tensor"])
@many("kind", list(SLOT_MAKERS))
def test_slots_are_created_in_a_graph(kind: str, source: str) -> None:
    make, expected, dtype = SLOT_MAKERS[kind]
    with tf.Graph().as_default(), tf.Session() as session:
        is_variable = source == "variable"
        w: Any = tf.Variable([1.0, 2.5], name="w") if is_variable else tf.constant([1.0, 2.5])
        slot, second_slot = make(w), make(w)
        session.run(tf.global_variables_initializer())
        assert slot.op.name == f"{w.op.name}/slot"
        assert second_slot.op.name == f"{w.op.name}/slot_1"
        assert slot not in tf.trainable_variables()
        value = session.run(slot)
        assert (value.tolist(), value.dtype) == (expected, np.dtype(dtype))


def test_zeros_slot_has_the_run_time_shape() -> None:
    with tf.Graph().as_default(), tf.Session() as session:
        size = tf.placeholder("float32", [None], name="size")
        w = tf.Variable(size, validate_shape=False, name="w")
        slot = slot_creator.create_zeros_slot(w, "slot")
        session.run(w.initializer, {size: [1.0, 2.0, 3.0]})
        session.run(slot.initializer)
        assert session.run(slot).tolist() == [0.0, 0.0, 0.0]


def test_slot_name_begins_with_its_scope() -> None:
    with tf.Graph().as_default(), tf.variable_scope("scope"):
        w = tf.get_variable("w", initializer=[1.0])
        assert slot_creator.create_slot(w, [1.0], "slot").op.name == "scope/scope/w/slot"
