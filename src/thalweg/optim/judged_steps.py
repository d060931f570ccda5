"""Optimizer whose steps `Spikes` judges: copies of its state, and records of steps left out."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from operator import is_
from typing import Any
from weakref import ref

import torch
from torch import Tensor

from thalweg._base.locks import importing
from thalweg._core.atomic_section import Call
from thalweg._core.dtensor import local
from thalweg._core.options.accumulation import SUM
from thalweg._core.param_groups import params_of, states_of
from thalweg._engines.layout import may_overlap
from thalweg.errors import FailedPreconditionError
from thalweg.optim.step_options import GradientReport, LastStep


class JudgedSteps:
    """Interface of an optimizer to `Spikes`.

    Args:
        optimizer: A `FusedOptimizer`, held by a weak reference.
    """

    def __init__(self, optimizer: Any) -> None:
        self._ref: Any = ref(optimizer)

    @property
    def _optimizer(self) -> Any:
        optimizer = self._ref()
        if optimizer is None:
            raise FailedPreconditionError("The optimizer of these Spikes is gone.")
        return optimizer

    def is_gone(self) -> bool:
        """Return True if the optimizer has been freed."""
        return self._ref() is None

    def keep(self) -> Callable[[], list[Call]]:
        """Copy the parameters and the state; return a function that returns calls which restore
        them.
        """
        optimizer = self._optimizer
        params = [(param, _copied(param)) for param in params_of(optimizer.param_groups)]
        states = [
            (param, {name: _copied(entry) for name, entry in entries.items() if name != SUM})
            for param, entries in states_of(optimizer.state)
        ]
        return partial(self._restoring, params, states)

    def _restoring(
        self, params: list[tuple[Tensor, Any]], states: list[tuple[Tensor, dict[str, Any]]]
    ) -> list[Call]:
        """Return the calls that restore copies; state that has been created since is emptied.

        There are none if parameters were added or have other shapes: then the step is left out.

        A dictionary of tensors would run Python's `Tensor.__hash__`, which signals interrupt.
        """
        live_params = params_of(self._optimizer.param_groups)
        is_same = len(live_params) == len(params) and all(map(is_, live_params, dict(params)))
        if not (is_same and all(_fits(local(param).detach(), copy) for param, copy in params)):
            return []
        live_state = self._optimizer.state
        calls: list[Call] = [partial(local(p).detach().copy_, value) for p, value in params]
        former_entries = {id(param): entries for param, entries in states}
        for param, live_entries in states_of(live_state):
            former = former_entries.get(id(param))
            if former is None:
                calls.append(live_entries.clear)
                continue
            for name in live_entries.keys() - former.keys() - {SUM}:
                calls.append(partial(live_entries.pop, name, None))
            for name, entry in former.items():
                calls.append(_restoring_entry(live_entries, name, entry))
        return calls

    def leave_out(self, reason: str) -> list[Call]:
        """Return calls that record a step that is left out, and clear accumulated gradients."""
        cache = self._optimizer.step_cache
        report = LastStep(False, reason, cache.total)
        updates = {"last_step": report, "report": GradientReport(), "last_apply_flag": None}
        calls = [] if cache.sums is None else self._optimizer.clearing_sums()
        return [*calls, partial(vars(cache).update, updates)]

    def mean_over_ranks(self, loss: float) -> float:
        """Return the mean of a number over the ranks of the default process group."""
        if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
            return loss
        with importing:
            from thalweg.distribute.process_group import Ranks
        ranks = Ranks()
        if ranks.is_alone:
            return loss
        total = torch.tensor([loss], dtype=torch.float64, device=ranks.device)
        ranks.add(total)
        return total.item() / ranks.size


def _copied(value: Any) -> Any:
    """Return a copy of this rank's part of a tensor; any other value itself."""
    return local(value).detach().clone() if isinstance(value, Tensor) else value


def _fits(memory: Tensor, value: Tensor) -> bool:
    """Return whether a tensor can take over the values of a copy."""
    form = memory.shape, memory.dtype, memory.device
    return form == (value.shape, value.dtype, value.device) and not may_overlap(memory)


def _restoring_entry(entries: dict[str, Any], name: str, value: Any) -> Call:
    """Return the call that restores an entry, in the memory that it has."""
    live = entries.get(name)
    if not isinstance(value, Tensor) or not isinstance(live, Tensor):
        return partial(entries.__setitem__, name, _copied(value))
    memory = local(live).detach()
    if _fits(memory, value):
        return partial(memory.copy_, value)
    return partial(entries.__setitem__, name, value.clone())
