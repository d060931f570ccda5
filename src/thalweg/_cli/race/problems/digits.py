"""Problem of handwritten digits: scikit-learn's 1,797 images of 8 x 8, and a small conv net."""

from __future__ import annotations

from typing import cast

import numpy as np
import torch
from torch import nn

from thalweg._cli.race.errors import need_modules
from thalweg._cli.race.problems.problem import Examples, Problem

TEST_IMAGES = 360
OPTIMIZERS = (
    "torch:AdamW", "optim:AdamW", "optim:AdamW8bit", "optim:Muon", "optim:SOAP", "optim:Lion",
    "Adam", "Ftrl",
)  # fmt: skip


def load(seed: int) -> Problem:
    """Load the problem; the seed decides the test images."""
    need_modules("sklearn")
    from sklearn.datasets import load_digits  # pyright: ignore[reportMissingTypeStubs]

    pixels, labels = cast("tuple[np.ndarray, np.ndarray]", load_digits(return_X_y=True))
    images = torch.tensor(pixels, dtype=torch.float32, device="cpu").reshape(-1, 1, 8, 8) / 16
    targets = torch.tensor(labels, dtype=torch.int64, device="cpu")
    generator = torch.Generator(device="cpu").manual_seed(seed)
    order = torch.randperm(len(targets), generator=generator, dtype=torch.int64, device="cpu")
    test, train = order[:TEST_IMAGES], order[TEST_IMAGES:]
    train_examples = Examples(images[train], targets[train])
    return Problem(
        name="digits",
        description=f"{len(targets):,} handwritten digits, 8 x 8 pixels; convolutional network",
        train=train_examples,
        train_sample=train_examples,
        test=Examples(images[test], targets[test]),
        make_model=model,
        batch_size=32,
        epochs=10,
        output="8.*",
    )


def model() -> nn.Module:
    """Build a model of two convolutions and two dense layers; 38,282 parameters."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(512, 64),
        nn.ReLU(),
        nn.Linear(64, 10),
    )
