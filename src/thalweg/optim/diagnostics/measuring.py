"""Diagnostics of torch-style optimizers."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

import torch
from torch import Tensor

from thalweg._core.param_groups import group_indices_of, names_in, params_of, states_of
from thalweg._core.state import positioned
from thalweg.diagnostics.recorder import Diagnostics, TableRecorder
from thalweg.diagnostics.step_watch import StepWatch
from thalweg.diagnostics.table import Parameters
from thalweg.errors import FailedPreconditionError, InvalidTypeError
from thalweg.optim.param_scalars import STEP
from thalweg.optim.replay import ReplayedStep


class UnmeasuredStep(ReplayedStep):
    """Replayed step whose `take` returns False for steps that diagnostics measure."""

    def take(self, optimizer: Any, has_sums: bool = False, unrecorded: bool = False) -> bool:
        """Return False for a step to be measured, else as `ReplayedStep.take`."""
        is_measured_step = optimizer.step_cache.diagnosing.is_due()
        return not is_measured_step and super().take(optimizer, has_sums, unrecorded)


def diagnose(optimizer: Any, option: int | Diagnostics, is_copy: bool) -> None:
    """Set `step_cache.diagnosing` to a new `Diagnosing`, unless one is set already.

    Args:
        option: The interval between measured steps, or a `Diagnostics` with the interval.
        is_copy: True for a copied optimizer, which gets a new `Diagnostics` of equal interval.

    Raises:
        FailedPreconditionError: `option` is used by another optimizer.
    """
    cache = optimizer.step_cache
    if cache.diagnosing is None:
        if is_copy and isinstance(option, Diagnostics):
            option = Diagnostics(option.every)
        cache.diagnosing = Diagnosing(optimizer, option)


class Diagnosing(TableRecorder):
    """Object that measures every n-th step of an optimizer, for the option `diagnostics`.

    Args:
        option: The option `diagnostics` of the constructor.
    """

    replay_class = UnmeasuredStep  # leaves measured steps to the slow path

    def __init__(self, optimizer: Any, option: int | Diagnostics) -> None:
        # Steps before this object existed, and steps that only a device knows to be applied.
        self._start = self._device_steps = 0
        self._table_parameters: Parameters | None = None
        self._param_ids: list[int] = []
        self._names: list[str] = []
        config = option if isinstance(option, Diagnostics) else Diagnostics(option)
        super().__init__(optimizer, config)

    def restart_count(self) -> None:
        """Restart the step count at the count of a loaded state, if the host has that count."""
        # A loaded state may bring other names of parameters.
        self._param_ids = []
        if step_count := _steps_in(self.optimizer):
            self._start = step_count - self.optimizer.step_cache.total - self._device_steps

    def next_step(self) -> int:
        """Return the number of the next step, counted from the step count of the state."""
        cache = self.optimizer.step_cache
        if cache.total + self._device_steps == 0:
            self._start = _steps_in(self.optimizer)
        return self._start + cache.total + self._device_steps + 1

    def known_parameters(self) -> Parameters:
        """Return the parameters of the last table; before the first, those of the next table."""
        return self._table_parameters or self._parameters()

    def _parameters(self) -> Parameters:
        """Return names, sizes and groups of all parameters, and store them in this recorder."""
        groups = self.optimizer.param_groups
        params = params_of(groups)
        param_ids = [id(param) for param in params]
        # Names are computed only for new parameters.
        if self._param_ids != param_ids:
            labels = [
                f"parameter {index}" if name is None else name
                for index, name in enumerate(names_in(groups, params))
            ]
            self._param_ids, self._names = param_ids, positioned(labels, " (index {})")
        sizes, group_indices = [param.numel() for param in params], group_indices_of(groups)
        self._table_parameters = Parameters(self.config.every, self._names, sizes, group_indices)
        return self._table_parameters

    def note_loss(self, loss: object) -> None:
        """Send the loss that a closure returned to the sinks, if it is a number."""
        if self.config.sinks:
            with suppress(InvalidTypeError):
                self.config.log_loss(loss)

    @contextmanager
    def measure_step(self, optimizer: Any) -> Generator[None]:
        """Measure the step in the `with` block if its number is a multiple of `config.every`.

        A measured step is recorded at the end of the block.

        Raises:
            FailedPreconditionError: A CUDA graph is being captured.
        """
        if torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing():
            raise FailedPreconditionError(
                "No replay of a captured CUDA graph measures its step: leave out diagnostics=."
            )
        cache, step = optimizer.step_cache, self.next_step()
        is_measured_step, former_total = step % self.config.every == 0, cache.total
        cache.watch = watch = StepWatch() if is_measured_step else None
        try:
            yield
        finally:
            cache.watch = None
        # A device that decides on the step counts it, too; `total` counts on the host only.
        self._device_steps += cache.total == former_total and cache.apply_flag is not None
        if watch is not None and watch.is_begun:
            self.record(watch, step, cache.apply_flag)

    def _rows(self, watch: StepWatch) -> tuple[Parameters, Mapping[int, int]]:
        """Return the parameters of the table, and {id(param): row}."""
        groups = self.optimizer.param_groups
        rows = {id(p): row for row, p in enumerate(p for group in groups for p in group["params"])}
        return self._parameters(), rows


def _steps_in(optimizer: Any) -> int:
    """Return the largest step count in a state, as far as the host has it; else 0."""
    states = [entries for _, entries in states_of(optimizer.state)]
    step_counts = [entries[STEP] for entries in states if STEP in entries]
    host_counts = [x for x in step_counts if not isinstance(x, Tensor) or x.device.type == "cpu"]
    return max((int(count) for count in host_counts), default=0)
