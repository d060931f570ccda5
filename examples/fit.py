"""Lightning. Run: python examples/fit.py

Needs: pip install 'thalweg[integrations]'
"""

import tempfile

import lightning
import torch

from thalweg import optim


class Regression(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(8, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1)
        )
        self.losses = []

    def training_step(self, batch, index):
        x, y = batch
        loss = torch.nn.functional.mse_loss(self.layers(x).squeeze(-1), y)
        self.losses.append(loss.item())
        return loss

    def configure_optimizers(self):
        # With TensorFlow's numbers, and an average of the parameters to evaluate with.
        optimizer = optim.tensorflow.Adam(self.parameters(), lr=0.01, ema_decay=0.99)
        return [optimizer], [optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=10)]


torch.manual_seed(0)
inputs = torch.randn(512, 8)
targets = inputs.sin().sum(1)
data = torch.utils.data.TensorDataset(inputs, targets)
module = Regression()
with tempfile.TemporaryDirectory() as folder:
    trainer = lightning.Trainer(
        accelerator="cpu",
        max_epochs=10,
        default_root_dir=folder,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(module, torch.utils.data.DataLoader(data, batch_size=32, shuffle=True))
with trainer.optimizers[0].swapped():
    average = torch.nn.functional.mse_loss(module.layers(inputs).squeeze(-1), targets).item()
print(f"loss {module.losses[0]:.4f}, then {module.losses[-1]:.4f}; of the average {average:.4f}")
