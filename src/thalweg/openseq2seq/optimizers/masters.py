"""float32 masters of float16 and bfloat16 variables."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from functools import partial
from operator import is_
from typing import Any

import torch

from thalweg._core.atomic_section import run
from thalweg._core.slots import SlotStore
from thalweg._core.state import Staged, making
from thalweg._core.validation import check_memories
from thalweg._graph import GraphKeys, current_session, get_default_graph, is_symbolic, make_variable
from thalweg.v1.train.slot_creator import base_name
from thalweg.variable import REDUCED, over

FP32_MASTER_COPIES = "FP32_MASTER_COPIES"
_SCOPE = "FP32-master-copy"


class Masters(Staged):
    """float32 masters of float16 and bfloat16 variables, created on first use.

    Attributes:
        scope: The prefix of the names of eager masters; unused in a graph, which has its own name
            scope.
    """

    def __init__(self, scope: str = "") -> None:
        self._slots = SlotStore()
        # Ids of variables whose masters must be copied from them again.
        self._stale: set[int] = set()
        self._last: tuple[list[object], list[torch.dtype], list[object]] = [], [], []
        self.scope = scope

    def of(self, var: Any) -> Any:
        """Return the float32 master of a 16-bit variable; return another variable unchanged.

        A missing master is created with the variable's value. In a graph a master begins with
        the variable's initial value, and is added to the collection FP32_MASTER_COPIES.
        """
        if var.dtype not in REDUCED:
            return var
        master = self._slots.get(var, _SCOPE)
        if master is None:
            master = self._slots.put(var, _SCOPE, self._make_master(var))
        self._refresh_stale(var, master)
        return master

    def _refresh_stale(self, var: Any, master: Any) -> None:
        if id(var) in self._stale:
            copy_call = partial(master.detach().copy_, var.detach())
            run([copy_call, partial(self._stale.discard, id(var))])

    def of_all(self, variables: Sequence[Any]) -> list[Any]:
        """Return a list of `of(var)` for each variable; cache the last list of eager masters."""
        # Each session has its own masters, so they are not cached.
        if current_session() is not None:
            return list(map(self.of, variables))
        # `model.half()` changes the dtype of a parameter in place.
        dtypes = [var.dtype for var in variables]
        cached_variables, cached_dtypes, masters = self._last
        is_cached = len(cached_variables) == len(variables) and all(
            map(is_, cached_variables, variables)
        )
        if self._stale or not is_cached or cached_dtypes != dtypes:
            if any(map(is_symbolic, variables)):
                return list(map(self.of, variables))
            with making(self, [var for var in variables if var.dtype in REDUCED]):
                masters = list(map(self.of, variables))
            self._last = list(variables), dtypes, masters
        return list(masters)

    def get(self, var: Any) -> Any:
        """Return the master of a variable, or None if there is none (yet)."""
        return self._slots.get(var, _SCOPE)

    @contextlib.contextmanager
    def renewed(self, report: Sequence[object] = ()) -> Iterator[None]:
        """Mark masters created in the `with` block as stale if the block raises an error.

        `of` sets a stale master to its variable's value again. If `report` is not empty, the step
        was taken, and no master is marked.
        """
        old_ids = set(map(id, self._slots.owners())) - self._stale
        try:
            yield
        except BaseException:
            if not report:
                eager = (var for var in self._slots.owners() if not is_symbolic(var))
                self._stale |= set(map(id, eager)) - old_ids
            raise

    def __getstate__(self) -> dict[str, Any]:
        # Ids are invalid in a copy, so stale masters are copied before.
        for var, master in self.pairs():
            self._refresh_stale(var, master)
        return {**vars(self), "_last": ([], [], [])}

    def pairs(self) -> list[tuple[Any, Any]]:
        """Return pairs of each variable that has a master, and the master."""
        return [(var, master) for var, _, master in self._slots.triples()]

    def originals(self, targets: Sequence[object]) -> list[Any]:
        """Return the targets, with each master replaced by its variable."""
        variables_by_master = {id(master): var for var, master in self.pairs()}
        return [variables_by_master.get(id(target), target) for target in targets]

    def _make_master(self, var: Any) -> object:
        """Create and return the float32 master of a variable, in the variable's graph."""
        name = f"{_SCOPE}/{base_name(var)}"
        if not is_symbolic(var):
            check_memories([var])
            return over(var.detach().to(torch.float32), self.scope + name)
        with var.graph.as_default():
            return make_variable(
                var.initialized_value().to(torch.float32),
                get_default_graph().scope + name,
                collections=[GraphKeys.GLOBAL_VARIABLES, FP32_MASTER_COPIES],
            )
