"""Wrapped steps on a GPU, in Triton's interpreter: the bits of the CPU."""

from __future__ import annotations

import pytest
import torch

import thalweg
from modern_inputs import gradients_of, params_of
from pairwise import cover_values
from rulebook import assert_same
from thalweg import optim

STEPS = 3


def trained(engine, make, dtype, sparse=False):
    params = params_of(dtype)[1:4]  # which an interpreter has done in time
    optimizer = make(params)
    with thalweg.engine(engine):
        for step in range(STEPS):
            for param, grad in zip(params, gradients_of(step, dtype)[1:4], strict=True):
                param.grad = grad.to_sparse(1) if sparse else grad
            optimizer.step()
    slots = [tensor for param in params for tensor in optimizer.state[param].values()]
    return [tensor.detach() for tensor in (*params, *slots) if isinstance(tensor, torch.Tensor)]


OPTIONS = [
    {"cautious": True},
    {"cautious_decay": True},
    {"trust_ratio": True},
    {"sphere": True},
    {"radial_brake": True},
    {"cautious": True, "trust_ratio": True, "radial_brake": 0.0},
    {"cautious": True, "cautious_decay": True, "clip_grad_norm": 0.5},
    {"sphere": True, "masters": True, "ema_decay": 0.9},
]
COVER = cover_values(
    (
        (name, options, dtype)
        for name in ("AdamW", "NAdam", "tensorflow.AdamW", "Muon")
        for options in OPTIONS
        for dtype in (torch.float32, torch.bfloat16, torch.float64)
        # NAdam has no decay beside its step.
        if not (name == "NAdam" and "cautious_decay" in options)
    ),
    2,
)


@pytest.mark.one_in(2)
@pytest.mark.parametrize(("name", "options", "dtype"), COVER, ids=str)
def test_wrappers_equal_the_cpu(name, options, dtype):
    kind = optim.tensorflow.AdamW if "." in name else getattr(optim, name)

    def make(params):
        matrix_params = [param for param in params if name != "Muon" or param.dim() > 1]
        return kind(matrix_params, lr=0.01, weight_decay=0.1, **options)

    actual, expected = (trained(engine, make, dtype) for engine in ("cuda", "cpu"))
    assert_same(actual, expected)


@pytest.mark.parametrize("option", ["cautious", "trust_ratio", "sphere"])
def test_row_wrappers_equal_the_cpu(option):
    def make(params):
        return optim.SGD(params, lr=0.01, **{option: True})

    actual, expected = (trained(engine, make, torch.float32, True) for engine in ("cuda", "cpu"))
    assert_same(actual, expected)


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    ("name", "options", "dtype"),
    [
        ("LAMB", {"cautious": True}, torch.float32),
        ("Prodigy", {"radial_brake": True}, torch.bfloat16),
        ("SM3", {"trust_ratio": True}, torch.bfloat16),
        ("SM3", {"cautious": True, "row_floor": True}, torch.float32),
        ("AdamW", {"row_floor": True, "clip_grad_norm": 0.5}, torch.bfloat16),
        ("Muon", {"row_floor": True, "sphere": True}, torch.float32),
    ],
    ids=str,
)
def test_level_and_row_wrappers_equal_the_cpu(name, options, dtype):
    def make(params):
        return getattr(optim, name)([x for x in params if x.dim() == 2], lr=0.01, **options)

    actual, expected = (trained(engine, make, dtype) for engine in ("cuda", "cpu"))
    assert_same(actual, expected)
