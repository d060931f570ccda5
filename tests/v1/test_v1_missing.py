"""Names that `thalweg.v1` does not have say what to use; dtypes are those of torch."""

from __future__ import annotations

import operator
from typing import Any

import pytest
import torch

import thalweg.v1 as tf

MISSING = {
    "Sesion": r"Did you mean 'Session'\?$",
    "placeholdr": r"Did you mean 'placeholder'\?$",
    "get_varable": r"Did you mean 'get_variable'\?$",
    "Float32": r"Did you mean 'float32'\?$",
    "layers": "call a torch.nn layer",
    "data": "use torch.utils.data",
    "estimator": "call Session.run in a loop",
    "reduce_mean": "use torch.mean",
    "keras": "use thalweg.keras",
    "ConfigProto": "thalweg.tf.compat.v1 has it",
    "nothing_of_the_kind": "for the rest call torch",
    "train.RuleOptimizer": "use thalweg.keras.optimizers.RuleOptimizer",
    "train.Supervisor": "use MonitoredTrainingSession",
    "train.WorkerSessionCreator": "workers are threads in the session of the chief",
    "train.export_meta_graph": "build it by the same Python code, and restore its variables",
    "train.import_meta_graph": "a graph holds Python functions, which no file can",
    "train.latest_chekpoint": r"Did you mean 'latest_checkpoint'\?$",
    "train.AdamOptimiser": r"Did you mean 'AdamOptimizer'\?$",
    "train.adam_optimizer": r"Did you mean 'AdamOptimizer'\?$",
    "train.nothing": "for the rest call torch",
    "contrib.rnn": "call torch.nn.LSTM",
    "contrib.slim": "use thalweg.tf.layers",
    "contrib.nothing": "for the rest call torch",
    "contrib.opt.AdamwOptimizer": r"Did you mean 'AdamWOptimizer'\?$",
    "contrib.layers.nothing": "for the rest call torch",
    "contrib.layers.l2_regulariser": r"Did you mean 'l2_regularizer'\?$",
}


@pytest.mark.parametrize("path", MISSING)
def test_missing_name_error_names_a_replacement(path: str) -> None:
    with pytest.raises(AttributeError, match=f"^thalweg.v1 has no '{path}'; .*{MISSING[path]}"):
        operator.attrgetter(path)(tf)


@pytest.mark.parametrize("owner", [tf, tf.train, tf.contrib, tf.contrib.opt, tf.contrib.layers])
def test_private_names_are_missing_as_in_any_module(owner: Any) -> None:
    for name in ("__wrapped__", "_private"):
        with pytest.raises(AttributeError, match="has no attribute"):
            getattr(owner, name)


@pytest.mark.parametrize(
    "name", ["float16", "float32", "float64", "bfloat16", "int32", "int64", "bool", "uint8"]
)
def test_dtypes_are_torch_dtypes(name: str) -> None:
    assert getattr(tf, name) is getattr(torch, name)
    with tf.Graph().as_default():
        assert tf.placeholder(getattr(tf, name), [2]).dtype is getattr(torch, name)


def test_every_exported_name_exists() -> None:
    assert all(hasattr(tf, name) for name in tf.__all__)
