"""OpenSeq2Seq's page about its optimizers: the formula of clipping, and every signature."""

from __future__ import annotations

import importlib
import inspect
from operator import attrgetter

import numpy as np
import pytest

import thalweg.tf as tf

VALUES = [[3.0, 0.0], [0.0, 4.0, 0.0]]


@pytest.mark.parametrize("clip_norm", [1.0, 2.5, 5.0, 10.0])
@pytest.mark.parametrize("use_norm", [None, 5.0, 20.0])
def test_example_of_clip_by_global_norm(clip_norm: float, use_norm: float | None) -> None:
    t_list = [tf.constant(value) for value in VALUES]
    l2norms = [np.linalg.norm(value) for value in VALUES]
    global_norm = np.sqrt(np.sum(np.square(l2norms))) if use_norm is None else use_norm
    list_clipped, norm = tf.clip_by_global_norm([*t_list, None], clip_norm, use_norm)
    assert list_clipped.pop() is None
    assert float(norm) == global_norm
    for value, clipped in zip(VALUES, list_clipped, strict=True):
        expected = np.multiply(value, clip_norm / max(global_norm, clip_norm))
        np.testing.assert_allclose(clipped.numpy(), expected, rtol=1e-6)


def test_t_list_must_be_a_sequence() -> None:
    with pytest.raises(TypeError, match="t_list should be a sequence"):
        tf.clip_by_global_norm(iter([1.0]), 1.0)


MODULES = "thalweg.openseq2seq.optimizers."
SIGNATURES = {
    "optimizers._clip_by_global_norm": "t_list, clip_norm, use_norm=None, name=None",
    "optimizers.get_regularization_loss": "scope=None, name='total_regularization_loss'",
    "optimizers.optimize_loss": (
        "loss, optimizer, optimizer_params, learning_rate_decay_fn, var_list=None,"
        " dtype=torch.float32, clip_gradients=None, summaries=None, larc_params=None,"
        " loss_scaling=1.0, loss_scaling_params=None, on_horovod=False, iter_size=1,"
        " skip_update_ph=None, model=None"
    ),
    "mp_wrapper.MixedPrecisionOptimizerWrapper": "optimizer, loss_scale=None",
    "mp_wrapper.MixedPrecisionOptimizerWrapper.compute_gradients": (
        "self, loss, var_list=None, gate_gradients=1, aggregation_method=None,"
        " colocate_gradients_with_ops=False, grad_loss=None"
    ),
    "automatic_loss_scaler.AutomaticLossScaler": "algorithm='Backoff', params=None",
    "lr_policies.exp_decay": (
        "global_step, learning_rate, decay_steps, decay_rate, use_staircase_decay,"
        " begin_decay_at=0, min_lr=0.0"
    ),
    "lr_policies.inv_poly_decay": (
        "global_step, learning_rate, decay_steps, min_lr, power=1.0, begin_decay_at=0,"
        " warmup_steps=0, name='learning_rate'"
    ),
    "lr_policies.piecewise_constant": (
        "global_step, learning_rate, boundaries, decay_rates, steps_per_epoch=None"
    ),
    "lr_policies.poly_decay": (
        "global_step, learning_rate, decay_steps, power=1.0, begin_decay_at=0, min_lr=0.0,"
        " warmup_steps=0"
    ),
    "lr_policies.transformer_policy": (
        "global_step, learning_rate, d_model, warmup_steps, max_lr=None, coefficient=1.0,"
        " dtype=torch.float32"
    ),
}


@pytest.mark.parametrize("name", SIGNATURES)
def test_arguments_have_the_documented_order(name: str) -> None:
    module, _, function = name.partition(".")
    signature = inspect.signature(attrgetter(function)(importlib.import_module(MODULES + module)))
    positional = [
        parameter.replace(annotation=inspect.Parameter.empty)
        for parameter in signature.parameters.values()
        if parameter.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD
    ]
    assert ", ".join(map(str, positional)) == SIGNATURES[name]


def test_optimizers_module_exports_the_original_names() -> None:
    package = importlib.import_module("thalweg.openseq2seq.optimizers")
    assert {"optimize_loss", "get_regularization_loss"} <= set(package.__all__)
