"""Base class of problems: examples with labels, and a model that maps the first to the second."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from thalweg.optim import hidden_matrices

CHUNK = 1024


class Examples(NamedTuple):
    """Inputs and the class of each."""

    inputs: Tensor
    targets: Tensor


class Scores(NamedTuple):
    """A model after some steps: cross-entropy in nats, accuracy as a share of 1."""

    train_loss: float
    test_loss: float
    test_accuracy: float


@dataclass(frozen=True, kw_only=True)
class Problem:
    """Data and a model.

    Args:
        name: Name on the command line.
        description: One line on data and model.
        train: Examples to train on.
        train_sample: The fixed part of them on which the train loss is measured.
        test: Examples to measure the test accuracy on.
        make_model: Makes the model with new weights from torch's random generator.
        batch_size: Examples in a step.
        epochs: Passes over the training examples, unless the user says otherwise.
        output: The parameters of the model's last layer, by a pattern of names; None asks it.
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
        """Full batches in one pass."""
        return len(self.train.targets) // self.batch_size

    def order(self, epochs: int, seed: int) -> Tensor:
        """Return the indices of the examples of each step, a row per step; a new shuffle every
        epoch.
        """
        generator = torch.Generator(device="cpu").manual_seed(seed)
        count = self.steps_per_epoch * self.batch_size
        shuffle = partial(
            torch.randperm,
            len(self.train.targets),
            generator=generator,
            dtype=torch.int64,
            device="cpu",
        )
        passes = [shuffle()[:count] for _ in range(epochs)]
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
        """Return the parameters for rules of matrices: all weights of layers but the first and
        last.
        """
        named = dict(model.named_parameters())
        return [named[name] for name in hidden_matrices(model, output=self.output)]


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
