"""Optimizers inside of Accelerate: prepared, accumulated, clipped, saved and loaded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from attribute_access import assert_known, touching, watched
from thalweg import optim
from training import OPTIMIZERS, assert_same_training, data, loss_of, model, schedule, trained

accelerate = pytest.importorskip("accelerate", reason="Accelerate is not installed")

# What Accelerate 1.15 asks an optimizer for.
ATTRIBUTES = "_is_accelerate_prepared load_state_dict state_dict step zero_grad"


def prepared(make: Any) -> tuple[Any, nn.Module, Any, Any]:
    accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=2)
    module = model()
    optimizer = make(module.parameters())
    rate = schedule(optimizer)
    return accelerator, *accelerator.prepare(module, optimizer, rate)


def run(accelerator: Any, module: nn.Module, optimizer: Any, rate: Any, batches: Any) -> None:
    for batch in batches:
        with accelerator.accumulate(module):
            accelerator.backward(loss_of(module, batch))
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(module.parameters(), 1.0)
            optimizer.step()
            rate.step()
            optimizer.zero_grad()


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_accelerate_training_equals_the_plain_loop(name: str, tmp_path: Path) -> None:
    make = OPTIMIZERS[name]
    expected = trained(make, data(), accumulate=2, clip=1.0)
    first = prepared(make)
    run(*first, data()[:4])
    first[0].save_state(tmp_path)
    run(*first, data()[4:])
    assert_same_training((first[1], first[2].optimizer), expected)
    resumed = prepared(make)
    resumed[0].load_state(tmp_path)
    run(*resumed, data()[4:])
    assert_same_training((resumed[1], resumed[2].optimizer), expected)


def test_accelerate_uses_only_available_attributes(tmp_path: Path) -> None:
    with touching("accelerate") as accessed:
        training = prepared(lambda params: watched(optim.AdamW)(params, lr=0.05))
        run(*training, data()[:2])
        training[0].save_state(tmp_path)
        training[0].load_state(tmp_path)
        training[0].free_memory()
    assert_known(accessed, ATTRIBUTES)


def test_steps_skipped_by_a_scaler_are_reported() -> None:
    from accelerate.optimizer import AcceleratedOptimizer

    accelerate.Accelerator(cpu=True)  # its state is that of the process
    module, scaler = model(), torch.amp.GradScaler("cpu", init_scale=2.0)
    inner = OPTIMIZERS["AdamW"](module.parameters())
    optimizer = AcceleratedOptimizer(inner, scaler=scaler)
    for factor in (float("inf"), 1.0):
        scaler.scale(loss_of(module, data()[0]) * factor).backward()
        optimizer.step()
        assert optimizer.step_was_skipped == (factor != 1.0)
        optimizer.zero_grad()
    assert {state["step"].item() for state in inner.state.values()} == {1}
