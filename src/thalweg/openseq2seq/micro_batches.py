"""Counting of the batches that make one update."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from thalweg._base.tracing import untraced
from thalweg._core.atomic_section import Call
from thalweg._core.config_registry import OPTIMIZERS, Configurable
from thalweg._core.state import Entry, Loading, Names, keys_of, restore
from thalweg.openseq2seq.optimizers.optimizers import TrainingStep

_COUNT = "micro_batches"


class MicroBatches:
    """Counter of micro-batches, which decides after which batches there is an update.

    Args:
        iter_size: The number of batches per update.
        short_first: True to make the first update after the first batch. That batch's gradient
            is divided by `iter_size`, as in OpenSeq2Seq.
    """

    def __init__(self, iter_size: int, short_first: bool = False) -> None:
        self.count = 0
        self._iter_size = iter_size
        self._updating = 0 if short_first else iter_size - 1

    def skips(self) -> bool:
        """Return True if the next batch makes no update."""
        return self.count % self._iter_size != self._updating

    def counting(self) -> list[Call]:
        """Return calls of C functions that count the next batch."""
        # The sum is computed here, because a commit runs C functions only.
        return [partial(setattr, self, "count", self.count + 1)]


class MicroBatchStep(Configurable):
    """`TrainingStep` that updates at every `iter_size`-th call; other calls add gradients.

    Attributes of the `TrainingStep` are available, too.

    Attributes:
        step: The `TrainingStep`.
    """

    def __init__(self, step: TrainingStep, batches: MicroBatches) -> None:
        self.step, self._batches = step, batches
        # The batch is counted in the same commit as all other writes of a run.
        step._counts = batches.counting

    @untraced
    def __call__(self) -> Tensor:
        """Take a step with one batch as `TrainingStep` does; a failed batch is not counted."""
        return self.step()

    @untraced
    def apply_gradients(self, gradients: Iterable[object]) -> bool | Tensor:
        """Apply the gradients of one batch, as `TrainingStep.apply_gradients` does."""
        return self.step.apply_gradients(gradients)

    def __getattr__(self, name: str) -> Any:
        # An object that is being copied has no `step` yet: avoid endless recursion.
        if name == "step":
            raise AttributeError(name)
        return getattr(self.step, name)

    @untraced
    def state_dict(self) -> dict[str, Tensor]:
        """See `TrainingStep.state_dict`; the number of batches so far is `micro_batches`."""
        return self._saved()

    def _count_tensor(self) -> Tensor:
        """Return the number of micro-batches so far as an int64 scalar on the CPU."""
        return torch.tensor(self._batches.count, dtype=torch.int64, device="cpu")

    def _saved(self, names: Names = keys_of) -> dict[str, Tensor]:
        with self.step._lock:
            return {**self.step._saved(names), _COUNT: self._count_tensor()}

    @untraced
    def load_state_dict(self, state_dict: Mapping[str, object]) -> None:
        """See `TrainingStep.load_state_dict`.

        Raises:
            CheckpointMismatchError: Names, shapes or dtypes differ.
        """
        with self._loading(state_dict) as loading:
            restore(loading)

    @contextmanager
    def _loading(
        self, state_dict: Mapping[str, object], var_list: object = None, names: Names = keys_of
    ) -> Generator[Loading]:
        with self.step._lock.to_load():
            count = _Count(_COUNT, self._count_tensor(), lowest=0, batches=self._batches)
            with self.step._loading(state_dict, var_list, names, [count]) as loading:
                yield loading


@dataclass(frozen=True)
class _Count(Entry):
    batches: Any = None

    def _set(self, value: Any) -> list[object]:
        return [partial(setattr, self.batches, "count", int(value))]


OPTIMIZERS.add("openseq2seq:optimize_loss", TrainingStep, MicroBatchStep)
