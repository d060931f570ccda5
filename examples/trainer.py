"""The Trainer of Hugging Face's transformers. Run: python examples/trainer.py

Needs: pip install 'thalweg[integrations]'
"""

import tempfile

import torch
from transformers import Trainer, TrainingArguments

from thalweg import optim


class Regression(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(8, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1)
        )

    def forward(self, x, labels):
        return {"loss": torch.nn.functional.mse_loss(self.layers(x).squeeze(-1), labels)}


torch.manual_seed(0)
inputs = torch.randn(512, 8)
rows = [{"x": x, "labels": x.sin().sum()} for x in inputs]
with tempfile.TemporaryDirectory() as folder:
    trainer = Trainer(
        Regression(),
        TrainingArguments(
            folder,
            num_train_epochs=5,
            per_device_train_batch_size=32,
            max_grad_norm=0.0,  # the step clips
            save_strategy="epoch",
            logging_steps=20,
            report_to=[],
            disable_tqdm=True,
            dataloader_pin_memory=False,
        ),
        train_dataset=rows,
        optimizer_cls_and_kwargs=(optim.AdamW, {"lr": 0.01, "clip_grad_norm": 1.0}),
    )
    trainer.train()
losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
print(f"loss {float(losses[0]):.4f}, then {float(losses[-1]):.4f}")
