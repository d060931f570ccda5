"""The step of an optimizer of torch's kind once more, in one call that looks and writes.

A first, careful step has planned it (`core/step.py`), a second one has repeated it; from the third
on it is taken so, as long as everything lies where it lay: see `engines/cpu/look.py`. Whatever does
not is left to the careful way, which says what there is to say.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from operator import itemgetter
from struct import Struct
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, is_inference_mode_enabled

from thalweg.core.groups import Group
from thalweg.core.outcome import add_taken
from thalweg.engines import current
from thalweg.engines.cpu import group as engine
from thalweg.engines.cpu.launch import threads_for
from thalweg.engines.cpu.snapshot import Snapshot, snapshot
from thalweg.engines.cpu.team import parallel_address
from thalweg.engines.cpu.work import SERIAL
from thalweg.engines.plan import DensePlan
from thalweg.ground.running import replicas
from thalweg.optim.columns import STEP, Column
from thalweg.optim.groups import Options
from thalweg.optim.hooks import TorchHooks

_LARGE = 4 << 20  # elements of a step above which Python's lock is let go meanwhile
_PLAIN = (Tensor, torch.nn.Parameter)
_modes: Any = torch._C


class _Launch:
    """A kernel's argument block and scalars, the steady step's own."""

    def __init__(self, own: engine.Group, places: Sequence[int]) -> None:
        self._table = table = own.table  # whose chunks and bounds the block below names
        self.kernel, self._names = own.kernel, own.kernel.scalars
        self._chosen = itemgetter(*self._names, *self._names[:1])  # a tuple, of one name, too
        self.places = list(dict.fromkeys(places[member] for member in own.members))
        rows = [self.places.index(places[member]) for member in own.members]
        self._scalar_row, self.base = np.array(rows, np.int64), table.base.copy()
        layout = Struct(f"={len(self._names)}{'f' if own.dtype is np.float32 else 'd'}")
        self._pack, self._size = layout.pack_into, layout.size
        self._rows = bytearray(layout.size * len(self.places))
        self.argument = table.copy_of_argument(own.flush)
        self.argument[5] = self.base.ctypes.data
        self.argument[6] = self._scalar_row.ctypes.data
        self.argument[7] = ctypes.addressof(ctypes.c_char.from_buffer(self._rows))
        self.elements, self.slices = table.elements, len(table.bounds) - 1

    def cells(self) -> list[int]:
        """Where the addresses of gradients go, for each member."""
        first, (step, item) = self.base.ctypes.data, self.base.strides
        return [first + step * k + item for k in range(len(self.base))]

    def set_scalars(self, made: Mapping[int, Mapping[str, Any]]) -> None:
        """Set the scalars of each group."""
        at = 0
        for place in self.places:
            self._pack(self._rows, at, *self._chosen(made[place])[:-1])
            at += self._size


class _Scalars:
    """The scalars of a group from one step to the next, as `TorchHooks.scalars` makes them."""

    def __init__(self, hooks: TorchHooks, place: int) -> None:
        self.place = place
        self._hooks = hooks
        self._rule = hooks.rule()
        self._is_wrapped = bool(hooks._optimizer._around.wrapping)
        self._read()

    def _read(self) -> None:
        hooks = self._hooks
        self._options = options = hooks._part.options(self.place, hooks._optimizer)
        _, numbers = hooks._apart(self.place)
        self._known = {**options.numbers(hooks._stays), **numbers}
        self._given = options.given_to_prepare({**numbers, "t": 1})

    def hold(self, group: Group) -> bool:
        """Whether a group has the options that it had, or another rate, which is read."""
        known = self._options
        if known.hold(group):
            return True
        if not _hold(known, group):
            return False
        self._read()
        return True

    def made(self, columns: Sequence[Column]) -> dict[str, Any]:
        """The scalars of the step that follows."""
        if self._is_wrapped:
            return self._hooks._prepared(self.place)
        given, known = self._given, self._known
        for column in columns:
            name, value = column.name, column.common
            if name == STEP:
                known["t"] = value = value + 1
                if "t" in given:
                    given["t"] = value
            known[name] = value
            if name in given:
                given[name] = value
        known.update(self._rule.prepare(**given))
        return known


def _hold(known: Options | None, group: Group) -> bool:
    """Whether a group has the options that it had, or another number for its rate."""
    if known is None or known.moves:
        return False
    return known.hold(group) or (
        known.hold_beside_rate(group) and type(group["lr"]) in (float, int)
    )


def _params_of(group: Group) -> Any:
    return group["params"]


def _is_common(column: Any) -> bool:
    """Whether a number is the same for all parameters, which lie in a block in their order."""
    return type(column) is Column and column._places is None and column.common is not None


class SteadyStep:
    """A step that may be taken again.

    Args:
        optimizer: The optimizer, which has just repeated a step.
        part: What is kept of its parameters.
        hooks: What it said about that step.
    """

    def __init__(self, optimizer: Any, part: Any, hooks: Any) -> None:
        self.groups = optimizer.param_groups
        self.state = optimizer.state
        self.part, self.hooks = part, hooks
        self.selection = hooks.selection
        self.columns: list[Column] = part.columns
        self._beside: list[tuple[int, Options]] = []  # of groups that have no gradient
        self._seen = 0

    @staticmethod
    def of(optimizer: Any, part: Any, hooks: Any, places: Sequence[int]) -> SteadyStep | None:
        """The step that was repeated last, if everything stands and it could be taken so."""
        made = SteadyStep(optimizer, part, hooks)
        return made if made._plan(optimizer, places) else None

    def _plan(self, optimizer: Any, places: Sequence[int]) -> bool:
        part, planned = self.part, self.part.kept.last
        if planned is None or not isinstance(planned.ready, DensePlan):
            return False
        ready, params = planned.ready, list[Tensor](part._params)
        if not self._is_plain(optimizer, ready, part.rule, params):
            return False
        gradients = [param.grad for param in params]
        if any(grad is None for grad in gradients) or not self._stands(planned, gradients, places):
            return False
        found = snapshot()
        if found is None or not self._hold(found, places):
            return False
        launches = [_Launch(cast("engine.Group", each), places) for each in ready.groups]
        if sum(each.elements for each in launches) > _LARGE:
            return False
        self._scalars = [_Scalars(self.hooks, place) for place in dict.fromkeys(places)]
        self._spare = np.zeros(1, np.int64)  # for gradients without elements
        cells = [self._spare.ctypes.data] * len(params)
        for own, launch in zip(ready.groups, launches, strict=True):
            for member, cell in zip(own.members, launch.cells(), strict=True):
                cells[member] = cell
        written = [*ready.written, *(column._views[0] for column in self.columns)]
        if any(found.tensor(each) is None for each in written):
            return False
        without = [(param, None, 0) for param in self._others()]
        found.finish(
            [*zip(params, gradients, cells, strict=True), *without],
            [(each.kernel._address, each.argument.ctypes.data, 0, 1) for each in launches],
            [
                (column._block.data_ptr(), len(column._views), column._block.element_size())
                for column in self.columns
            ],
            written,
            ready.bounds,
        )
        self.launches, self.snapshot = launches, found
        return True

    def _stands(self, planned: Any, gradients: Sequence[Any], places: Sequence[int]) -> bool:
        """Whether the careful look finds the step to be the one before."""
        part, ready = self.part, planned.ready
        if not part.stands(self.state, part._params):
            return False
        if not all(_hold(part._options.get(place), self.groups[place]) for place in {*places}):
            return False
        try:
            return ready.again(planned.request._replace(gradients=gradients))
        finally:
            ready.release_gradients()

    def _others(self) -> list[Tensor]:
        """Parameters that take no part in the step: they have no gradient."""
        own = set(map(id, self.part._params))
        everyone = (param for group in self.groups for param in group["params"])
        return [param for param in everyone if id(param) not in own]

    def _hold(self, found: Snapshot, places: Sequence[int]) -> bool:
        """Have the look compare all that the careful one does."""
        params, others = self.part._params, self._others()
        if not all(type(each) in _PLAIN for each in (*params, *others)):
            return False
        if not all(type(each) is list for each in (self.groups, *map(_params_of, self.groups))):
            return False
        found.hold_list(self.groups)
        for place, group in enumerate(self.groups):
            found.hold_list(group["params"])
            if place not in places:
                self._beside.append((place, Options(group, self.part.rule, {})))
        found.hold_dict(self.state)
        tensors: list[Tensor] = [*params, *others]
        for own in self.part._owners:
            found.hold_dict(own)
            tensors += [each for each in own.values() if isinstance(each, Tensor)]
        for param in params:
            found.hold_dict(vars(param))  # where it may be given a constraint
        return all(
            each.device.type == "cpu"
            and each.layout == torch.strided
            and found.tensor(each) is not None
            for each in tensors
        ) and all(each.grad is None for each in others)

    def _is_plain(self, optimizer: Any, ready: Any, rule: Any, params: Sequence[Tensor]) -> bool:
        hooks, around = self.hooks, optimizer._around
        return (
            type(hooks) is TorchHooks
            and len(ready.variables) == len(params)
            and all(var is param for var, param in zip(ready.variables, params, strict=True))
            and all(isinstance(each, engine.Group) for each in ready.groups)
            and not ready.stages
            and not any(copy is not None for copy in ready.copies)
            and all(map(_is_common, self.columns))
            and all(getattr(param, "constraint", None) is None for param in params)
            and not rule.measures
            and rule.per_variable is None
            and not rule.calls_users
            and not self.selection.check_numerics
            and hooks.sharing is None
            and hooks.there is None
            and hooks.taken is None
            and not hooks.calls
            and not around.clips
            and not around.in_backward
            and around.accumulate == 1
            and not around.kinds.stand_in
        )

    @property
    def taken(self) -> int:
        """How many steps it has taken."""
        return self.snapshot.taken

    def news(self) -> int:
        """How many it has taken since this was asked before."""
        before, self._seen = self._seen, self.snapshot.taken
        return self._seen - before

    def take(self, optimizer: Any) -> bool:
        """Take it, if everything is as it was.

        Returns:
            Whether it was taken; if not, nothing has changed.
        """
        before = self.snapshot.taken
        try:
            with optimizer._own._lock:
                return self._take(optimizer, vars(optimizer))
        except BaseException as error:
            if self.snapshot.taken != before:
                add_taken(error)
            raise

    def _take(self, optimizer: Any, own: dict[str, Any]) -> bool:
        if (
            own["param_groups"] is not self.groups
            or own["state"] is not self.state
            or "found_inf" in own
            or "grad_scale" in own
            or _modes._len_torch_dispatch_stack()
            or _modes._len_torch_function_stack()
            or is_inference_mode_enabled()
            or _modes._get_tracing_state() is not None
            or replicas() > 1
            or optimizer._own.is_swapped
            or current(self.selection) != self.selection
        ):
            return False
        for column in self.columns:
            column.read()
            if column.common is None:
                return False
        hooks, snapshot = self.hooks, self.snapshot
        try:
            for each in self._scalars:
                if not each.hold(self.groups[each.place]):
                    return False
            if not all(_hold(known, self.groups[place]) for place, known in self._beside):
                return False
            made = {each.place: each.made(self.columns) for each in self._scalars}
            for launch in self.launches:
                launch.set_scalars(made)
        except Exception:  # the careful way says it
            return False
        hooks._made = made
        following = [hooks._next(column, self._scalars[0].place) for column in self.columns]
        for k, value in enumerate(following):
            snapshot.numbers[k] = value
        for k, launch in enumerate(self.launches):
            if launch.elements >= SERIAL:
                threads = threads_for(launch.slices, launch.elements)
                snapshot.launches[k, 2:] = parallel_address() if threads > 1 else 0, threads
        if snapshot.take():
            optimizer._own.forget_quick()
            return False
        for column, value in zip(self.columns, following, strict=True):
            column.wrote([value])
        own["_opt_called"] = True
        return True
