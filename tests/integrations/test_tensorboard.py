"""Diagnostics of steps, written for TensorBoard and read back."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from thalweg import optim
from training import data, loss_of, model

pytest.importorskip("tensorboard", reason="TensorBoard is not installed")


def test_diagnostics_of_a_step_are_written(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from torch.utils.tensorboard.writer import SummaryWriter

    module = model()
    optimizer = optim.AdamW(module.parameters(), lr=0.05, clip_grad_norm=0.5)
    rate = optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    expected = []
    with SummaryWriter(str(tmp_path)) as writer:
        for batch in data(3):
            loss_of(module, batch).backward()
            norm = nn.utils.get_total_norm([param.grad for param in module.parameters()])
            optimizer.step()
            last_step = optimizer.last_step
            writer.add_scalar("gradient_norm", last_step.grad_norm, last_step.count)
            writer.add_scalar("learning_rate", rate.get_last_lr()[0], last_step.count)
            for slot in optimizer.state.values():
                writer.add_histogram("exp_avg", slot["exp_avg"], last_step.count)
            expected.append((last_step.count, pytest.approx(norm.item(), rel=1e-5)))
            optimizer.zero_grad()
            rate.step()
    read = EventAccumulator(str(tmp_path), size_guidance={"histograms": 0})
    read.Reload()
    assert [(scalar.step, scalar.value) for scalar in read.Scalars("gradient_norm")] == expected
    rates = [scalar.value for scalar in read.Scalars("learning_rate")]
    torch.testing.assert_close(torch.tensor(rates), torch.tensor([0.05, 0.045, 0.0405]))
    assert len(read.Histograms("exp_avg")) == 12
