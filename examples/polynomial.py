"""A script for torch.optim, of which only an import was changed. Run: python examples/polynomial.py

It fits a cubic polynomial to the sine, saves, and goes on from the file with a smaller rate.
"""

import math
import tempfile
from pathlib import Path

import torch
from torch import nn

from thalweg import optim  # was: from torch import optim


class Cubic(nn.Module):
    """y = a + b x + c x^2 + d x^3"""

    def __init__(self):
        super().__init__()
        self.factors = nn.Parameter(torch.zeros(4))

    def forward(self, x):
        return torch.stack([x**power for power in range(4)], dim=-1) @ self.factors


def train(model, optimizer, scheduler, steps):
    for _ in range(steps):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        scheduler.step()
    return loss.item()


x = torch.linspace(-math.pi, math.pi, 2000)
y = torch.sin(x)
model = Cubic()
optimizer = optim.RMSprop(model.parameters(), lr=0.01)
scheduler = optim.lr_scheduler.StepLR(optimizer, step_size=500, gamma=0.5)
first = train(model, optimizer, scheduler, 1000)

with tempfile.TemporaryDirectory() as folder:
    path = Path(folder, "checkpoint.pt")
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, path)
    saved = torch.load(path, weights_only=True)

# A warm start: another model takes over the weights and the state, under a rate of its own.
warm = Cubic()
warm.load_state_dict(saved["model"])
optimizer = optim.RMSprop(warm.parameters(), lr=0.01)
optimizer.load_state_dict(saved["optimizer"])
for group in optimizer.param_groups:
    group["lr"] = 1e-3
scheduler = optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, total_iters=1000)
last = train(warm, optimizer, scheduler, 1000)

a, b, c, d = warm.factors.tolist()
print(f"loss {first:.5f}, then {last:.5f}: y = {a:.3f} + {b:.3f} x + {c:.3f} x^2 + {d:.3f} x^3")
