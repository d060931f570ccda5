"""State of the parameters that one rule updates: slots, and per-parameter numbers in columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial, reduce
from itertools import chain, compress
from operator import is_
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import torch
from torch import Tensor

from thalweg._base.locks import importing
from thalweg._core.atomic_section import Call
from thalweg._core.dtensor import beside, filled_beside, local
from thalweg._core.grads_and_vars import as_real
from thalweg._core.options.accumulation import SUM
from thalweg._core.options.update_targets import (
    ENCODED_SHAPE,
    MASTER,
    PLAIN,
    StateStorage,
    UpdateTargets,
)
from thalweg._core.param_groups import Group
from thalweg._core.plan_cache import PlanCache
from thalweg._core.state_allocation import laid_out
from thalweg._engines import resumed
from thalweg._engines.layout import check_memory
from thalweg.errors import InvalidArgumentError, InvalidTypeError, NotFoundError
from thalweg.formula import Rule, Slot
from thalweg.optim.dtensor_params import make_local_shards
from thalweg.optim.group_options import Options
from thalweg.optim.param_scalars import (
    CPU,
    Blocks,
    Column,
    ForeignColumn,
    PlainColumn,
    scalar_dtype,
)
from thalweg.variable import name_of

if TYPE_CHECKING:
    from thalweg.optim.device_param_scalars import DeviceColumn

Entries = dict[str, Any]  # the state of one parameter
_values = Entries.values
AnyColumn: TypeAlias = "Column | ForeignColumn | DeviceColumn | PlainColumn"


class ScalarSpec(NamedTuple):
    """Specification of a per-parameter number of a state.

    Attributes:
        start: The number before the first step.
        dtype: The dtype of the number's tensors; None for torch's dtype of numbers.
        may_lack: True if a state with all other entries may lack the number: an option needs it.
        rounds_as_tensor: True if torch rounds the number to the default dtype.
    """

    start: float
    dtype: torch.dtype | None = None
    may_lack: bool = False
    rounds_as_tensor: bool = False


def check_number(scalar: object, label: str) -> None:
    """Raise if a tensor cannot be a per-parameter number; accept all other objects.

    Args:
        label: The name of the number, for messages.

    Raises:
        InvalidArgumentError: The tensor does not have exactly one element.
        InvalidTypeError: The tensor has dtype bool.
        LayoutError: The tensor has no memory.
    """
    if not isinstance(scalar, Tensor):
        return
    check_memory(scalar, label)
    if scalar.numel() != 1:
        raise InvalidArgumentError(f"{label} has shape {tuple(scalar.shape)}, and is no number.")
    if scalar.dtype == torch.bool:
        raise InvalidTypeError(f"{label} is a bool, no number.")


class ParamState:
    """State of the parameters that one rule updates.

    A step first creates missing state as *new entries*, which `made_of` returns. They are added to
    the optimizer's state with the writes of the step: for torch, no state means no step yet.

    Args:
        scalar_specs: {name: specification} of per-parameter numbers; the attribute `numbers`.
        has_python_scalars: True if the numbers are Python numbers.
        kinds: The storage of parameters and their state.
        blocks: The blocks of numbers that the optimizer created.

    Attributes:
        plans: The cached plans of the rule's updates.
        columns: The per-parameter numbers, a column for each key.
        scalar_devices: (GPU of numbers that the host does not read or None, device of other
            numbers).
        first: The name of the rule's first slot.
        lacked: {slot that the step creates: flag per parameter, True if it lacked the slot}.
        locals: The local parts of parameters and slots, if any is a DTensor; else None.
    """

    def __init__(
        self,
        rule: Rule,
        scalar_specs: Mapping[str, ScalarSpec],
        has_python_scalars: bool = False,
        kinds: StateStorage = PLAIN,
        blocks: Blocks | None = None,
    ) -> None:
        self.rule = rule
        self.first = next((slot.name for slot in rule.element_slots), "")
        self._kinds = kinds
        self._stand_ins = UpdateTargets(kinds)
        self._target_of: dict[int, Tensor] = {}
        self.plans = PlanCache()
        self.columns: list[AnyColumn] = []
        self.scalar_devices: tuple[torch.device | None, torch.device] = (None, CPU)
        self.lacked: dict[str, list[bool]] = {}
        self.locals: Any = None
        self.numbers = scalar_specs
        self._has_python_scalars = has_python_scalars
        self.options_by_place: dict[int, Options] = {}
        self._blocks = Blocks() if blocks is None else blocks
        self._fresh: dict[int, Entries] = {}  # by `id` of a parameter, until it is written
        self.params: list[Tensor] = []
        self.owners: list[Entries] = []
        self._owner_of: dict[int, Entries] = {}
        self._states: list[Entries] = []
        self._settled_values: list[object] | None = None

    def stands(self, state: Mapping[Tensor, Entries], params: Sequence[Tensor]) -> bool:
        """Return True if parameters, states and entries are the objects that `settle` recorded.

        Replaced gradient sums are accepted.
        """
        last_values = self._settled_values
        return (
            last_values is not None
            and len(params) == len(self.params)
            and all(map(is_, params, self.params))
            and len(state) == len(self._states)
            and all(map(is_, state.values(), self._states))
            and self._contains_exactly(last_values)
            and all(column.stands() for column in self.columns)
            and self._stand_ins.are_in_place()
        )

    def _contains_exactly(self, last_values: Sequence[object]) -> bool:
        """Return True if the states' values are these objects, in order; ignore gradient sums."""
        state_entries = self._owners_without_sums()
        values = chain.from_iterable(map(_values, state_entries))
        return sum(map(len, state_entries)) == len(last_values) and all(
            map(is_, values, last_values)
        )

    def _owners_without_sums(self) -> Sequence[Entries]:
        """Return the parameters' states; copies without gradient sums if there are sums."""
        if not self._kinds.sums:
            return self.owners
        return [{k: x for k, x in entries.items() if k != SUM} for entries in self.owners]

    def make(
        self,
        state: Mapping[Tensor, Entries],
        params: Sequence[Tensor],
        starts: Mapping[int, Entries],
        scalar_devices: tuple[torch.device | None, torch.device],
    ) -> None:
        """Create missing slots and numbers as new entries; set `params` and `columns`.

        Args:
            state: The state of the optimizer. Only slots on a wrong device are replaced in it.
            starts: {id(parameter): {name: initial value}} of values that differ from the rule's
                initial values.
            scalar_devices: New value of the attribute `scalar_devices`.
        """
        # Until `settle`, the state must not look like that of a finished step: this one may fail.
        self._settled_values = None
        self.scalar_devices = scalar_devices
        remembers = bool(self.numbers or self.rule.slots)
        if self.locals is None:
            self.locals = make_local_shards(params)
        self.params = list(params)
        # `state[param]` creates an entry, which a rule without state must not have, as in torch.
        self.owners = [
            state[param] if remembers or self._kinds.has_master(param) else {} for param in params
        ]
        # A loaded state may be on the device of its parameters, although it is to be offloaded.
        for param, entries in zip(params, self.owners, strict=True):
            entries |= self._kinds.brought_home(entries, param)
        self._owner_of = {id(p): entries for p, entries in zip(params, self.owners, strict=True)}
        self._fresh = {id(param): {} for param in params}
        self.columns = [self._column(name, spec, starts) for name, spec in self.numbers.items()]
        self.lacked = {}
        for slot in self.rule.slots:
            if slot.name not in self.numbers:
                self._make_slots(slot, starts)
        for param in params:
            target = self._target_of.get(id(param), param)
            if target is not param and self._kinds.has_master(param):
                self._fresh[id(param)][MASTER] = target
        if self.rule.codecs:
            self._record_shapes()

    def _record_shapes(self) -> None:
        """Add the parameter's shape to new entries of each parameter with a new encoded slot."""
        with importing:
            from thalweg._core.quantized_slots import shape_entry
        for param in self.params:
            entries = self._fresh[id(param)]
            # Encoded slots are bytes, which do not tell the shape of the parameter.
            if torch.uint8 in (x.dtype for x in entries.values() if isinstance(x, Tensor)):
                entries[ENCODED_SHAPE] = shape_entry(param)

    def _make_slots(self, slot: Slot, starts: Mapping[int, Entries]) -> None:
        """Create a new entry with a tensor of `slot` for each parameter whose state lacks the slot.

        If any state lacks the slot, set `self.lacked[slot.name]` to a list of bools: True for each
        parameter without the slot.

        Args:
            starts: {id(parameter): {name: initial value}} of values other than `slot.initial`.
        """
        name, start = slot.name, slot.initial
        missing_flags = [entries.get(name) is None for entries in self.owners]
        if any(missing_flags):
            self.lacked[name] = missing_flags
        lacking = list(compress(self.params, missing_flags))
        if slot.storage is not None:
            self._make_encoded(slot, lacking, starts)
            return
        if slot.is_shaped:
            with importing:
                from thalweg._engines.matrix_shapes import shape_beside
            for param in lacking:
                shape, dtype = shape_beside(slot, param.shape), self._kinds.of(slot, param)
                self._fresh[id(param)][name] = filled_beside(shape, start, param, dtype)
            return
        real_params = [param for param in lacking if slot.scalar or not param.is_complex()]
        dtypes = [self._kinds.of(slot, param) for param in real_params]
        templates = list(map(local, real_params))
        devices = [self._kinds.device or template.device for template in templates]
        new_tensors = iter(laid_out(templates, dtypes, start, slot.scalar, devices))
        for param in lacking:
            param_start = starts.get(id(param), {}).get(name, start)
            if param.is_complex() and not slot.scalar:
                tensor = torch.zeros_like(param, memory_format=torch.preserve_format)
                as_real(tensor).fill_(param_start)
            else:
                tensor = next(new_tensors)
                if param_start != start:
                    tensor.fill_(param_start)
            # Averages and the like start at the weight instead of a number.
            if name in self._kinds.beginning:
                tensor.copy_(self._initial_source(param))
            self._fresh[id(param)][name] = tensor if slot.scalar else beside(tensor, param)

    def _make_encoded(
        self, slot: Slot, lacking: Sequence[Tensor], starts: Mapping[int, Entries]
    ) -> None:
        """Create an encoded slot, as a new entry, for each parameter in `lacking`."""
        with importing:
            from thalweg._core.quantized_slots import make_slots
        initials = [starts.get(id(param), {}).get(slot.name, slot.initial) for param in lacking]
        for param, tensor in zip(lacking, make_slots(slot, lacking, initials), strict=True):
            self._fresh[id(param)][slot.name] = tensor

    def _initial_source(self, param: Tensor) -> Tensor:
        """Return the weight from which slots of a parameter in `StateStorage.beginning` start.

        The weight is the parameter, its offloaded copy, or its master, without gradients; of a
        DTensor, the part of this rank. If other code wrote to the parameter, the master has the new
        values.
        """
        kinds, target = self._kinds, local(self._target_of.get(id(param), param)).detach()
        has_copy = kinds.has_master(param) and not kinds.is_away(param)
        return resumed(target, local(param)) if has_copy else target

    def _column(self, name: str, kind: ScalarSpec, starts: Mapping[int, Entries]) -> AnyColumn:
        """Return the column for the state key `name`, with the tensors in the state if possible.

        If a number is missing or a tensor must be replaced, create tensors as new entries.

        Args:
            starts: {id(parameter): {name: initial number}} of numbers other than `kind.start`.
        """
        scalars = self._numbers_of(name, kind, starts)
        if self._has_python_scalars:
            for param, scalar in zip(self.params, scalars, strict=True):
                self._fresh[id(param)][name] = scalar
            return PlainColumn(name, self.owners, scalars)
        scalar_device, host_device = self.scalar_devices
        tensors = [tensor for tensor in scalars if isinstance(tensor, Tensor)]
        if kind.dtype == torch.float64 and any(x.dtype != kind.dtype for x in tensors):
            # Earlier releases kept such numbers in float32.
            widened = [x.to(kind.dtype) if isinstance(x, Tensor) else x for x in scalars]
            return self._block_column(name, widened, kind.dtype)
        # Torch's loader casts numbers to the dtypes of their parameters, which may differ.
        kinds = {tensor.dtype for tensor in tensors}
        if tensors and len(tensors) < len(scalars):
            kinds.add(kind.dtype or scalar_dtype())
        are_mixed = len(kinds) > 1
        foreign = tensors if are_mixed else [x for x in tensors if not self._blocks.have(x)]
        # Tensors of other code stay in the state, as that code may keep references to them.
        if foreign and all(x.device == scalar_device or scalar_device is None for x in foreign):
            return self._foreign_column(name, scalars, kind.dtype)
        block = None if scalar_device is not None else self._blocks.of(scalars, host_device)
        if block is None:
            return self._block_column(name, scalars, kind.dtype)
        return Column(name, scalars, block)

    def _numbers_of(self, name: str, kind: ScalarSpec, starts: Mapping[int, Entries]) -> list[Any]:
        """Return the number `name` of each parameter: from its state, or the initial number.

        Args:
            starts: {id(parameter): {name: initial number}} of numbers other than `kind.start`.

        Raises:
            NotFoundError: A state that is not empty lacks the number, unless `kind.may_lack`.
        """
        scalars: list[Any] = []
        for param, entries in zip(self.params, self.owners, strict=True):
            if name not in entries and entries.keys() - {SUM} and not kind.may_lack:
                raise NotFoundError(f"'{name}' of '{name_of(param)}' is missing in the state.")
            start = starts.get(id(param), {}).get(name, kind.start)
            scalars.append(entries.get(name, start))
        for param, scalar in zip(self.params, scalars, strict=True):
            check_number(scalar, f"'{name}' of '{name_of(param)}'")
        return scalars

    def _foreign_column(
        self, name: str, scalars: Sequence[object], dtype: torch.dtype | None
    ) -> AnyColumn:
        """Return a column with a separate tensor for each parameter.

        Args:
            scalars: For each parameter, its tensor in the state or an initial number. A number
                becomes a new tensor, a new entry.
            dtype: The dtype of new tensors; None for `scalar_dtype()`.
        """
        scalar_device, host_device = self.scalar_devices
        views: list[Tensor] = []
        for param, scalar in zip(self.params, scalars, strict=True):
            if not isinstance(scalar, Tensor):
                device = scalar_device or host_device
                scalar = torch.tensor(scalar, dtype=dtype or scalar_dtype(), device=device)
                self._fresh[id(param)][name] = scalar
            views.append(scalar)
        if scalar_device is None:
            return ForeignColumn(name, views)
        with importing:
            from thalweg.optim.device_param_scalars import ForeignDeviceColumn
        return ForeignDeviceColumn(name, views)

    def _block_column(
        self, name: str, scalars: Sequence[object], dtype: torch.dtype | None
    ) -> AnyColumn:
        """Copy `scalars` into one new tensor; return the column of this tensor.

        Views of the elements become new entries.

        Args:
            scalars: For each parameter, a tensor of the state or an initial number.
            dtype: The dtype if `scalars` has no tensors; None for `scalar_dtype()`.
        """
        scalar_device, host_device = self.scalar_devices
        device = scalar_device or host_device
        dtypes = [scalar.dtype for scalar in scalars if isinstance(scalar, Tensor)]
        if dtypes:
            dtype = reduce(torch.promote_types, dtypes)
            elements = [torch.as_tensor(x, dtype=dtype, device=device) for x in scalars]
            # Loaded numbers may have the shape (1,).
            block = torch.stack([element.detach().reshape(()) for element in elements])
        else:
            block = torch.tensor(scalars, dtype=dtype or scalar_dtype(), device=device)
        views = self._blocks.views(block)
        for param, view in zip(self.params, views, strict=True):
            self._fresh[id(param)][name] = view
        if scalar_device is None:
            return Column(name, views, block)
        with importing:
            from thalweg.optim.device_param_scalars import DeviceColumn
        return DeviceColumn(name, views, block)

    def targets(
        self, state: Mapping[Tensor, Entries], params: Sequence[Tensor], is_unchanged: bool
    ) -> Sequence[Tensor]:
        """Return, for each parameter, the tensor that a step updates, called the target.

        A target is the parameter itself, its float32 master, or its copy on the CPU. Masters and
        copies are created or refreshed.

        Args:
            is_unchanged: True if parameters and state are unchanged since the last step.

        Raises:
            NotImplementedError: A complex parameter would need a master or an offloaded state.
        """
        if not self._kinds.stand_in:
            return params
        if any(param.is_complex() and self._kinds.is_away(param) for param in params):
            raise NotImplementedError("state_device is not defined for complex parameters.")
        stand_ins = self._stand_ins
        if is_unchanged:
            targets = stand_ins.refresh_targets()
        else:
            # The step may fail after this, with new targets and the old state.
            self._settled_values = None
            targets = stand_ins.stand_for(params, state)
        self._target_of = {id(p): target for p, target in zip(params, targets, strict=True)}
        return targets

    def hold(self, groups: Sequence[Group]) -> bool:
        """Return True if no group is new and all still have the options that `options` read."""
        cached_options = self.options_by_place
        return len(groups) == len(cached_options) and all(
            group_index in cached_options and cached_options[group_index].hold(group)
            for group_index, group in enumerate(groups)
        )

    def options(self, group_index: int, optimizer: Any) -> Options:
        """Return the options of the group at index `group_index`, cached until the group changes.

        Raises:
            InvalidArgumentError, NotFoundError: A changed option is invalid, or one is missing.
            LayoutError: An option is a tensor without memory.
        """
        options, group = self.options_by_place.get(group_index), optimizer.param_groups[group_index]
        if options is None or not options.hold(group):
            options = self.options_by_place[group_index] = self._read_options(
                options, group_index, optimizer
            )
        options.check_memory()
        return options

    def _read_options(
        self, cached_options: Options | None, group_index: int, optimizer: Any
    ) -> Options:
        """Return new, validated options of the group at index `group_index`.

        If only `lr` changed since `cached_options`, return a copy with the new rate.
        """
        group = optimizer.param_groups[group_index]
        # Schedulers change only `lr`, in each step; all other options were validated before.
        if cached_options is not None and (options := cached_options.with_rate(group)) is not None:
            return options
        if cached_options is None or not cached_options.hold_beside_rate(group):
            optimizer._check_options(group, group_index)
        return Options(group, self.rule, optimizer._kind_of(group).fixed_options)

    def slots_of(self, param: Tensor) -> list[Tensor]:
        """Return the slots of a parameter of the step, including scalar slots."""
        entries = {**self._owner_of[id(param)], **self._fresh[id(param)]}
        slots = [entries[slot.name] for slot in self.rule.slots]
        return slots if self.locals is None else list(map(self.locals.records, slots))

    def made_of(self, param: Tensor) -> Entries:
        """Return {name: new entry} of a parameter, before the step writes them; {} if none."""
        return self._fresh.get(id(param), {})

    @property
    def publishes_numbers_only(self) -> bool:
        """True if new entries only replace numbers: no slot and no number was missing."""
        return all(
            value is self._owner_of[param].get(name)
            or (name in self.numbers and isinstance(self._owner_of[param].get(name), Tensor))
            for param, entries in self._fresh.items()
            for name, value in entries.items()
        )

    def publishing(self) -> list[Call]:
        """Return callables that add the new entries, if there are any, to the optimizer's state."""
        if not self._fresh:
            return []
        owned = zip(self.params, self.owners, strict=True)
        return [
            partial(entries.update, new_entries)
            for param, entries in owned
            if (new_entries := self._fresh.get(id(param)))
        ]

    def settle(self, state: Mapping[Tensor, Entries]) -> None:
        """Record parameters and state for `stands`; forget created entries. Call after a step."""
        self._stand_ins.settle()
        # Each step replaces Python numbers in the state, so that the new objects are recorded.
        if self._settled_values is not None and not self._has_python_scalars:
            return
        self._fresh = {}
        self.lacked = {}
        self._states = list(state.values())
        values = map(_values, self._owners_without_sums())
        self._settled_values = list(chain.from_iterable(values))
