"""Optimizers inside of Lightning: fitted, resumed, stepped by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from touched import assert_known, touching, watched
from training import OPTIMIZERS, assert_same_training, data, loss_of, model, schedule, trained

from thalweg import optim

lightning = pytest.importorskip("lightning", reason="Lightning is not installed")

# What Lightning 2.6 asks an optimizer for; `_own` for methods of ours that its wrapper inherits.
ASKED = """
    _on_after_step _on_before_step _optimizer _own _strategy _zero_grad_profile_name
    consolidate_state_dict defaults load_state_dict param_groups state state_dict step zero_grad
"""

# Lightning's own.
pytestmark = [
    pytest.mark.filterwarnings("ignore:The 'train_dataloader' does not have many workers"),
    pytest.mark.filterwarnings("ignore:.isinstance.treespec, LeafSpec.:FutureWarning"),
]


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
    """One that takes its steps itself."""

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


@pytest.mark.parametrize("kind", [Fitted, ByHand])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_training_is_the_plain_loops(name: str, kind: Any, tmp_path: Path) -> None:
    make = OPTIMIZERS[name]
    expected = trained(make, data(4) * 2, clip=1.0)
    assert_same_training(fit(kind(make), 2, tmp_path / "whole"), expected)
    fit(kind(make), 1, tmp_path / "part")
    resumed = fit(kind(make), 2, tmp_path / "rest", tmp_path / "part" / "last.ckpt")
    assert_same_training(resumed, expected)


@pytest.mark.parametrize("kind", [Fitted, ByHand])
def test_what_lightning_asks_for(kind: Any, tmp_path: Path) -> None:
    def make(params: Any) -> Any:
        return watched(optim.AdamW)(params, lr=0.05)

    with touching("lightning") as found:
        fit(kind(make), 1, tmp_path)
        fit(kind(make), 2, tmp_path, tmp_path / "last.ckpt")
    assert_known(found, ASKED)
