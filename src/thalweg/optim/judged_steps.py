"""Interface of optimizers to `Spikes`, which skips or rolls back steps with an unusual loss."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from operator import is_
from typing import Any

import torch
from torch import Tensor

from thalweg._base.locks import importing
from thalweg._core.atomic_section import Call
from thalweg._core.commit import SKIPPED
from thalweg._core.dtensor import local
from thalweg._core.options.accumulation import SUM
from thalweg._core.options.spikes import HISTORY
from thalweg._core.param_groups import params_of, states_of
from thalweg._engines.layout import may_overlap
from thalweg.diagnostics.spike_judge import StepSource
from thalweg.optim.step_options import GradientReport, LastStep


class JudgedSteps(StepSource):
    """Interface of a `FusedOptimizer` to `Spikes`."""

    def copy_state(self) -> Callable[[], list[Call]]:
        """Copy the parameters and the state now; return a function `restore()`.

        `restore()` returns callables that restore the copies, or [] if parameters were added or
        reshaped meanwhile.
        """
        optimizer = self.optimizer
        params = [(param, _copy(param)) for param in params_of(optimizer.param_groups)]
        states = [
            (param, {name: _copy(entry) for name, entry in entries.items() if name != SUM})
            for param, entries in states_of(optimizer.state)
        ]
        return partial(self._restore_calls, params, states)

    def _restore_calls(
        self, params: list[tuple[Tensor, Any]], states: list[tuple[Tensor, dict[str, Any]]]
    ) -> list[Call]:
        """Return callables that restore copies of parameters and state.

        State entries added after the copy are removed. Return [] if parameters were added or
        reshaped after the copy.

        Args:
            params: (parameter, copy) pairs.
            states: (parameter, {state key: copy}) pairs.
        """
        live_params = params_of(self.optimizer.param_groups)
        # A copy of other parameters cannot be restored.
        is_same = len(live_params) == len(params) and all(map(is_, live_params, dict(params)))
        if not (is_same and all(_fits(local(param).detach(), copy) for param, copy in params)):
            return []
        live_state = self.optimizer.state
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
                calls.append(_restore_entry_call(live_entries, name, entry))
        return calls

    def skip_calls(self, reason: str) -> list[Call]:
        """Return calls that record a step that is left out, and clear accumulated gradients."""
        cache = self.optimizer.step_cache
        report = LastStep(False, reason, cache.total)
        updates: dict[str, Any] = {"last_step": report, "progress": (f"{SKIPPED}.",)}
        updates |= {"report": GradientReport(), "last_apply_flag": None}
        calls: list[Call] = [] if cache.sums is None else self.optimizer.clearing_sums()
        return [*calls, partial(cache.__dict__.update, updates)]

    def mean_over_ranks(self, loss: float) -> float:
        """Return the mean of `loss` over the ranks of the default process group.

        Return `loss` itself without a process group.
        """
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


def _copy(value: Any) -> Any:
    """Return a copy of this rank's part of a tensor; any other value itself."""
    return local(value).detach().clone() if isinstance(value, Tensor) else value


def _fits(memory: Tensor, value: Tensor) -> bool:
    """Return True if a tensor can take over the values of a copy."""
    form = memory.shape, memory.dtype, memory.device
    return form == (value.shape, value.dtype, value.device) and not may_overlap(memory)


def _restore_entry_call(entries: dict[str, Any], name: str, value: Any) -> Call:
    """Return the call that restores an entry, in the memory that it has."""
    live = entries.get(name)
    if not isinstance(value, Tensor) or not isinstance(live, Tensor):
        return partial(entries.__setitem__, name, _copy(value))
    memory = local(live).detach()
    if _fits(memory, value):
        return partial(memory.copy_, value)
    return partial(entries.__setitem__, name, value.clone())


def split_history(optimizer: Any, saved_state: dict[str, Any]) -> tuple[dict[str, Any], list[Call]]:
    """Separate a state from the history of losses and norms that `spikes` has stored in groups.

    Return (state without history, callables that load the history into `spikes`).

    Raises:
        CheckpointMismatchError: The history is invalid.
    """
    groups, judge = saved_state["param_groups"], optimizer.step_options.judge
    history = next((group[HISTORY] for group in groups if HISTORY in group), None)
    if history is not None:
        groups = [{n: x for n, x in group.items() if n != HISTORY} for group in groups]
    calls: list[Call] = [] if judge is None else judge.loading_calls(history)
    return {**saved_state, "param_groups": groups}, calls
