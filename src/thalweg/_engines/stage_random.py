"""Random numbers for stages: the input `random`, equal on every rank, engine and device."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod, tau

import numpy as np
import torch
from torch import Tensor

from thalweg._base.rule_passes import Stage
from thalweg._engines.array_types import Float64
from thalweg._engines.philox import draw_bits
from thalweg._engines.random_bits import STEPS
from thalweg.formula import Rule

_LAST_STREAM = 255  # the streams of stochastic rounding begin at 0


class StageRandom:
    """Random numbers of one call of a stage, computed on the host.

    The numbers depend on the stage's seed and index in the rule, the step number, the variable's
    index in the optimizer, and how many numbers the call has already drawn for the variable.

    Args:
        rule: The rule; its passes include `stage`.
        stage: The stage, which has the seed.
        variable_indices: The index in the optimizer of each variable of the batch.
        step: The number of the step, from 1.
        example: A tensor with the device and the dtype of the results.

    Attributes:
        matrix_count: The number of matrices of each variable for which numbers are drawn.
    """

    matrix_count = 1

    def __init__(
        self, rule: Rule, stage: Stage, variable_indices: Sequence[int], step: int, example: Tensor
    ) -> None:
        self._numbers, self._step = variable_indices, step % STEPS
        self._key = stage.seed % STEPS, stage.seed // STEPS
        self._stream = _LAST_STREAM - rule.passes.index(stage) % _LAST_STREAM
        self._example, self._drawn = example, 0

    def uniform(self, *shape: int) -> Tensor:
        """Return multiples of 2**-24 in [0, 1), of shape (batch, *shape)."""
        return self._to_tensor(self._draw(shape))

    def normal(self, *shape: int) -> Tensor:
        """Return numbers of the standard normal distribution, of shape (batch, *shape)."""
        # The first number may be 0, but not 1, whose logarithm below would be infinite.
        first, second = self._draw(shape), self._draw(shape)
        return self._to_tensor(np.sqrt(-2 * np.log1p(-first)) * np.cos(tau * second))

    def _draw(self, shape: Sequence[int]) -> Float64:
        """Return uniform numbers, (batch, *shape), and count them as drawn."""
        count = 2 * self.matrix_count * prod(shape)  # of 16 bits each
        variables = [(variable_index, self._drawn, count) for variable_index in self._numbers]
        rows = draw_bits(variables, self._step, self._stream, self._key).numpy()
        self._drawn += count
        high, low = np.moveaxis(rows.reshape(-1, *shape, 2), -1, 0)
        return (high << 8 | low >> 8) / 2.0**24

    def _to_tensor(self, values: Float64) -> Tensor:
        return torch.from_numpy(values).to(self._example.dtype).to(self._example.device)  # pyright: ignore[reportUnknownMemberType]
