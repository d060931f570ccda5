"""Trainings of Lightning, imported by tests when they run, for it takes seconds to import."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lightning
import torch
from torch import Tensor

from training import data, loss_of, model, schedule


class Fitted(lightning.LightningModule):
    """The model with its optimizer; Lightning passes a closure to `step`."""

    def __init__(self, make: Any) -> None:
        super().__init__()
        self.inner = model()
        self._make = make

    def training_step(self, batch: Any, index: int) -> Tensor:
        return loss_of(self.inner, batch)

    def configure_optimizers(self) -> Any:
        optimizer = self._make(self.inner.parameters())
        return [optimizer], [{"scheduler": schedule(optimizer), "interval": "step"}]


class ByHand(Fitted):
    """Model that takes its steps itself."""

    def __init__(self, make: Any) -> None:
        super().__init__(make)
        self.automatic_optimization = False

    def training_step(self, batch: Any, index: int) -> None:
        optimizer = self.optimizers()
        optimizer.zero_grad()
        self.manual_backward(loss_of(self.inner, batch))
        self.clip_gradients(optimizer, gradient_clip_val=1.0)
        optimizer.step()
        self.lr_schedulers().step()


def fit(module: Any, epochs: int, path: Path, resume: Path | None = None) -> tuple[Any, Any]:
    by_hand = isinstance(module, ByHand)
    trainer = lightning.Trainer(
        accelerator="cpu",
        max_epochs=epochs,
        default_root_dir=path,
        gradient_clip_val=None if by_hand else 1.0,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    loader = torch.utils.data.DataLoader(data(4), batch_size=None)
    trainer.fit(module, loader, ckpt_path=resume)
    trainer.save_checkpoint(path / "last.ckpt")
    return module.inner, trainer.optimizers[0]


def fit_by_fabric(make: Any, path: Path, resume: Path | None = None) -> tuple[Any, Any]:
    """Train by Fabric for one epoch, or from a checkpoint for another."""
    fabric = lightning.Fabric(accelerator="cpu", devices=1)
    inner = model()
    module, optimizer = fabric.setup(inner, make(inner.parameters()))
    rate = schedule(optimizer)
    state = {"module": module, "optimizer": optimizer, "rate": rate}
    if resume is not None:
        fabric.load(resume, state)
    for batch in data(4):
        fabric.backward(loss_of(module, batch))
        fabric.clip_gradients(module, optimizer, max_norm=1.0)
        optimizer.step()
        rate.step()
        optimizer.zero_grad()
    fabric.save(path, state)
    return inner, optimizer.optimizer


def logged_by(module: Any, path: Path, callback: Any) -> dict[str, float]:
    """Return the metrics that a training of one epoch logs, with a callback."""
    trainer = lightning.Trainer(
        accelerator="cpu",
        max_epochs=1,
        default_root_dir=path,
        callbacks=[callback],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(module, torch.utils.data.DataLoader(data(4), batch_size=None))
    return {name: float(value) for name, value in trainer.callback_metrics.items()}
