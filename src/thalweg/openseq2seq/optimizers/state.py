"""State of a training as named tensors."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from thalweg._base.locks import Guard
from thalweg._core import state
from thalweg._core.commit import copy_writes
from thalweg._core.state import Entry, Names
from thalweg.openseq2seq.optimizers.accumulation import ACCUMULATOR, Accumulators
from thalweg.openseq2seq.optimizers.automatic_loss_scaler import AutomaticLossScaler
from thalweg.openseq2seq.optimizers.masters import Masters
from thalweg.v1.train.optimizer import Optimizer
from thalweg.v1.train.state_dict import V1StateDict
from thalweg.variable import dtype_name


@dataclass(frozen=True)
class Master(Entry):
    """Saved float32 master of a variable; loading it sets the master and the variable.

    Attributes:
        var: The variable.
    """

    var: Any = None

    def difference(self, candidate: object) -> str | None:
        # The variable may have been resized since its master was made.
        if self.var.shape != self.own.shape:
            kind = f"{dtype_name(self.var.dtype)} of shape {tuple(self.var.shape)}"
            return f"{self.name!r} has shape {tuple(self.own.shape)}, its variable is {kind} by now"
        return super().difference(candidate)

    def _set(self, value: Tensor) -> list[object]:
        return [*super()._set(value), *copy_writes([self.var], [value])]


@dataclass(frozen=True)
class TrainingState(V1StateDict):
    """State of a training that is saved and loaded: masters, slots, sums and the loss scaler.

    Attributes:
        optimizer: The optimizer of masters, and of variables without one.
        variables: The variables. Variables of equal name are numbered in this order.
        scaler: The scaler that adapts the loss scale, or None.
        sums: The sums of gradients, or None.
        extra_entries: Further entries of the state.
    """

    _name: ClassVar[str] = "this training"

    optimizer: Optimizer
    variables: Sequence[Any]
    masters: Masters
    scaler: AutomaticLossScaler | None = None
    sums: Accumulators | None = None
    extra_entries: Sequence[Entry] = ()

    def _saved(self, names: Names = state.keys_of, chosen: object = None) -> dict[str, Tensor]:
        """Return {name: copy} of the state; `chosen` has no effect.

        `names(variables)` returns, for each variable, the prefix of the names of its state.
        """
        self._check_has_state()
        with self._locked():
            snapshot = super()._saved(names)
            return {
                **state.snapshot(self.extra_entries),
                **snapshot,
                **state.snapshot(self._scales()),
            }

    def _settle(self) -> None:
        """Create missing state, which a first run without an update leaves out."""
        if any(self._slot_entries(var, "") for var in self.variables):
            with state.whole(self):
                self._create_for_state(self.variables, ())

    def _forget_awaited(self) -> None:
        self.optimizer._forget_awaited()

    def _locked(self) -> Guard:
        return self.optimizer._locked()

    def _loaded(self) -> None:
        self.optimizer._loaded()

    def _owners(self) -> list[Any]:
        return [*self.variables]

    def _chosen_for_state(self, var_list: object) -> list[object]:
        return self._owners()

    def _create_for_state(self, variables: Sequence[object], names: Collection[str]) -> None:
        """Create missing masters, slots and sums, and the optimizer's state with these names."""
        targets = [self.masters.of(var) for var in variables]
        self.optimizer._create_for_state(targets, names)
        if self.sums is not None:
            self.sums.make(targets)

    def _slot_entries(self, var: Tensor, key: str) -> list[Entry]:
        """Return the `Entry`s of a variable's master, slots and gradient sum, with prefix `key`."""
        master = self.masters.get(var)
        target = var if master is None else master
        entries: list[Entry] = []
        if master is not None:
            entries.append(Master(f"{key}/master", master, var=var))
        entries += self.optimizer._slot_entries(target, key)
        total = None if self.sums is None else self.sums.get(target)
        return entries if total is None else [*entries, Entry(f"{key}/{ACCUMULATOR}", total)]

    def _entries(self, variables: Sequence[Tensor], keys: Sequence[str]) -> list[Entry]:
        entries = super()._entries(variables, keys)
        return entries + self.optimizer._own_entries() if entries else []

    def _lasting_entries(self) -> list[Entry]:
        return [*self.extra_entries, *self._scales()]

    def _scales(self) -> list[Entry]:
        return [] if self.scaler is None else self.scaler.scaler.entries("loss_scale/")

    def _check_has_state(self) -> None:
        state.check_eager(f"The state of {self._name}", self.variables)
