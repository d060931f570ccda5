"""Base class of problems: examples with labels, and a model that predicts them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from thalweg.optim import hidden_matrices

CHUNK = 1024


class Examples(NamedTuple):
    """Inputs with their classes."""

    inputs: Tensor
    targets: Tensor


class Scores(NamedTuple):
    """Scores of a model: cross-entropy in nats, accuracy from 0 to 1."""

    train_loss: float
    test_loss: float
    test_accuracy: float


@dataclass(frozen=True, kw_only=True)
class Problem:
    """Data and model of a race.

    Args:
        name: Name on the command line.
        description: One line on data and model.
        train: Examples to train on.
        train_sample: The fixed training examples on which the train loss is measured.
        test: Examples to measure the test accuracy on.
        make_model: Builds the model with new weights from torch's random generator.
        batch_size: Examples in a step.
        epochs: Default number of passes over the training examples.
        output: Name pattern of the last layer's parameters; None uses the model's method.
    """

    name: str
    description: str
    train: Examples
    train_sample: Examples
    test: Examples
    make_model: Callable[[], nn.Module]
    batch_size: int
    epochs: int
    output: str | None = None

    @property
    def steps_per_epoch(self) -> int:
        """Return the number of full batches in one epoch."""
        return len(self.train.targets) // self.batch_size

    def order(self, epochs: int, seed: int) -> Tensor:
        """Return indices of examples, shape (steps, batch size). Each epoch has a new order."""
        generator = torch.Generator(device="cpu").manual_seed(seed)
        count = self.steps_per_epoch * self.batch_size
        size, dtype = len(self.train.targets), torch.int64
        passes = [
            torch.randperm(size, generator=generator, dtype=dtype, device="cpu")[:count]
            for _ in range(epochs)
        ]
        return torch.cat(passes).reshape(-1, self.batch_size)

    def loss(self, model: nn.Module, rows: Tensor) -> Tensor:
        """Return the loss of one batch, to be differentiated."""
        return functional.cross_entropy(model(self.train.inputs[rows]), self.train.targets[rows])

    def scores(self, model: nn.Module) -> Scores:
        """Measure the losses and the accuracy of a model."""
        train_loss, _ = _measure(model, self.train_sample)
        return Scores(train_loss, *_measure(model, self.test))

    def test_loss(self, model: nn.Module) -> float:
        """Return the mean loss on the test examples."""
        return _measure(model, self.test)[0]

    def hidden_matrices(self, model: nn.Module) -> list[nn.Parameter]:
        """Return the weights for matrix rules: those of all layers but the first and last."""
        params_by_name = dict(model.named_parameters())
        return [params_by_name[name] for name in hidden_matrices(model, output=self.output)]


@torch.no_grad()
def _measure(model: nn.Module, examples: Examples) -> tuple[float, float]:
    loss, right, count = 0.0, 0, examples.targets.numel()
    for inputs, targets in zip(
        examples.inputs.split(CHUNK), examples.targets.split(CHUNK), strict=True
    ):
        output = model(inputs)
        loss += functional.cross_entropy(output, targets, reduction="sum").item()
        right += int((output.argmax(1) == targets).sum())
    return loss / count, right / count
