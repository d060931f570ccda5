"""The state of training as named tensors."""

from __future__ import annotations

from collections.abc import Collection, Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any

from torch import Tensor

from thalweg.core import state
from thalweg.core.state import Entry, Names
from thalweg.engines import saturated
from thalweg.graph import is_symbolic
from thalweg.openseq2seq.optimizers.accumulation import ACCUMULATOR, Accumulators
from thalweg.openseq2seq.optimizers.automatic_loss_scaler import AutomaticLossScaler
from thalweg.openseq2seq.optimizers.masters import Masters
from thalweg.switches import writable
from thalweg.v1.train.optimizer import Optimizer
from thalweg.v1.train.state_dict import tensors_of
from thalweg.variable import dtype_name

_WHAT = "The state of this training"


@dataclass(frozen=True)
class Master(Entry):
    """A master; its variable is set together with it.

    Attributes:
        var: The variable.
    """

    var: Any = None

    def difference(self, given: Any) -> str | None:
        if self.var.shape != self.own.shape:
            kind = f"{dtype_name(self.var.dtype)} of shape {tuple(self.var.shape)}"
            return f"{self.name!r} has shape {tuple(self.own.shape)}, its variable is {kind} by now"
        return super().difference(given)

    def _set(self, value: Tensor) -> list[Any]:
        rounded = saturated(value, self.var.dtype)
        return [*super()._set(value), partial(self.var.detach().copy_, rounded)]


@dataclass(frozen=True)
class Training:
    """What remembers something.

    Attributes:
        optimizer: The optimizer of masters, and of variables without one.
        variables: The variables, in the order in which those of one name are numbered.
        masters: The masters.
        scaler: What adapts the loss scale, or None.
        sums: The sums of gradients, or None.
        others: What else is part of the state.
    """

    optimizer: Optimizer
    variables: Sequence[Any]
    masters: Masters
    scaler: AutomaticLossScaler | None = None
    sums: Accumulators | None = None
    others: Sequence[Entry] = ()

    def state_dict(self, names: Names = state.keys_of) -> dict[str, Tensor]:
        """Copies of masters, slots, sums, the scaler's state, and others.

        Raises:
            FailedPreconditionError: The state is variables of a graph, which `Saver` saves.
        """
        self._refuse_symbols()
        with self.optimizer._locked():
            keys = names(self.variables)
            if self._entries(keys):
                with ExitStack() as stack:
                    for keeper in self._keepers():
                        stack.enter_context(state.whole(keeper))
                    self._complete()  # a first run may make no update
            return state.snapshot([*self.others, *self._entries(keys), *self._scales()])

    def load_state_dict(self, given: Mapping[str, Any]) -> None:
        """Set all state, and variables to their masters; all or nothing.

        Raises:
            CheckpointMismatchError: Names, shapes or dtypes differ.
            FailedPreconditionError: The state is variables of a graph, which `Saver` restores.
        """
        with self.loading(given) as found:
            state.restore(found)

    @contextmanager
    def loading(
        self, given: Mapping[str, Any], names: Names = state.keys_of
    ) -> Generator[state.Loading]:
        """What `load_state_dict` sets; the optimizer's lock is held meanwhile."""
        self._refuse_symbols()
        tensors = tensors_of(given)
        with self.optimizer._locked().to_load(), writable():
            yield self._fitting(tensors, names)
            self.optimizer._loaded()

    def _fitting(self, tensors: Mapping[str, Any], names: Names) -> state.Loading:
        keys, others = names(self.variables), [*self.others, *self._scales()]
        if not self._entries(keys) and tensors.keys() <= {each.name for each in others}:
            return state.fitting(others, tensors, _WHAT)  # it was saved before the first step
        # What there is decides: a variable may have another shape or dtype than its slots.
        keepers = self._keepers()
        twins: list[Any] = [state.staged(keeper) for keeper in keepers]
        twins[0]._forget_awaited()
        made = Training(twins[0], self.variables, twins[1], sums=(*twins, None)[2])
        made._complete(tensors)
        entries = made._entries(keys)
        if names is state.keys_of:
            before = made._entries(state.positioned_keys_of(self.variables))
            tensors = state.as_now(tensors, [e.name for e in before], [e.name for e in entries])
        calls = chain.from_iterable(map(state.published, keepers, twins))
        return state.fitting([*others, *entries], tensors, _WHAT, calls)

    def _entries(self, keys: Sequence[str]) -> list[Entry]:
        """What there is of masters, slots, sums, and variables of no variable."""
        found: list[Entry] = []
        for key, var in zip(keys, self.variables, strict=True):
            master = self.masters.get(var)
            target = var if master is None else master
            if master is not None:
                found.append(Master(f"{key}/master", master, var=var))
            found += self.optimizer._slot_entries(target, key)
            total = None if self.sums is None else self.sums.get(target)
            if total is not None:
                found.append(Entry(f"{key}/{ACCUMULATOR}", total))
        return found + self.optimizer._own_entries() if found else []

    def _scales(self) -> list[Entry]:
        return [] if self.scaler is None else self.scaler.scaler.entries("loss_scale/")

    def _keepers(self) -> list[Any]:
        """What has slots."""
        return [self.optimizer, self.masters, *([] if self.sums is None else [self.sums])]

    def _complete(self, names: Collection[str] = ()) -> None:
        """Make what is missing of masters, slots and sums, and all that a state has names of."""
        targets = [self.masters.of(var) for var in self.variables]
        self.optimizer._create_for_state(targets, names)
        if self.sums is not None:
            self.sums.make(targets)

    def _refuse_symbols(self) -> None:
        if any(map(is_symbolic, self.variables)):
            raise state.of_a_graph(_WHAT)
