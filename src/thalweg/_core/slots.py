"""Slots: the tensors that an optimizer keeps for each variable, such as moments."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from functools import partial
from itertools import compress
from typing import Any, Protocol

import torch
from torch import Tensor

from thalweg._base.device_numbers import wide_dtype
from thalweg._base.execution_context import SymbolicVariable, handle_of, resolve
from thalweg._base.locks import importing
from thalweg._core.atomic_section import Call
from thalweg._core.state_allocation import laid_out
from thalweg._core.validation import check_memories
from thalweg.errors import FailedPreconditionError, InvalidArgumentError
from thalweg.formula import Slot
from thalweg.variable import Moves, StateVariable, Variable, over, tensor_of


class SlotShards(Protocol):
    """Division of variables into shards; this process keeps the slots of its shards.

    Attributes:
        checkpoint: The last file to which all slots were saved, or from which they were restored;
            None if there is none.
        ranks: The processes with the other shards; the first of them writes files. None if the
            variables themselves know their processes.
    """

    checkpoint: str | None
    ranks: Any

    def part(self, var: Tensor) -> Tensor:
        """Return this process's shard of a variable, a view."""
        ...

    def cut(self, value: Tensor, var: Tensor) -> Tensor:
        """Return the elements of the shard of `var` from a full tensor of its shape."""
        ...

    def whole(self, shard: Tensor, var: Tensor) -> Tensor:
        """Gather the full tensor from the shards of all processes; all of them call this."""
        ...

    def collecting(self) -> AbstractContextManager[None]:
        """Return a block in which `whole` may gather on the process that writes a file only."""
        ...


class SlotStore:
    """All slots of one optimizer.

    In graph mode the slots of a variable are variables of its graph. While a session runs, lookups
    return that session's tensors.

    Slots that are created together share one block of memory per dtype. Small variables then need
    no page each, and a step checks one block instead of every slot. The slots of a block share a
    version counter: after a write to a slot, autograd rejects a `backward` through any slot of the
    block that it had saved.

    Attributes:
        parts: The shards of slots that `make` creates, except slots of shape (); None if this
            process keeps full slots.
    """

    def __init__(self) -> None:
        self._slots: dict[int, dict[str, Variable]] = {}
        # Keys are ids of tensors. A reference to the tensor keeps its id from being reused.
        self._owners: dict[int, Tensor] = {}
        self._names: list[str] = []
        self._moves = Moves()
        self.parts: SlotShards | None = None
        # The names of sharded slots.
        self._in_parts: set[str] = set()
        self._checkpoint: str | None = None
        self._pending_copies: (
            tuple[list[tuple[Tensor, str, Variable]], dict[int, object]] | None
        ) = None

    def _settled(self) -> dict[int, dict[str, Variable]]:
        """Return {`id` of a variable: {slot name: slot}}.

        The first call after a `deepcopy` also stores the copied slots. A slot is stored under the
        copy of its variable, or under the variable itself if the variable was not copied.
        """
        # Only now is `memo` complete: `deepcopy` may reach the variables after this store.
        if self._pending_copies is not None:
            (slots, memo), self._pending_copies = self._pending_copies, None
            for var, name, slot in slots:
                self.put(memo.get(id(var), var), name, slot)
        return self._slots

    def get(self, var: Tensor, name: str) -> Variable | None:
        """Return the slot `name` of a variable, or None if there is none.

        `var` may also be a variable of Keras 3. In a session the session's tensor is returned.
        """
        return resolve(self._settled().get(id(handle_of(tensor_of(var))), {}).get(name))

    def of(self, var: Tensor, names: Sequence[str]) -> list[Variable]:
        """Return the slots of a variable in the order of `names`; KeyError if one is missing."""
        slots = self._settled().get(id(handle_of(var)), {})
        return [resolve(slots[name]) for name in names]

    def all_of(self, var: Tensor) -> dict[str, Variable]:
        """Return all slots of a variable, by name."""
        slots = self._settled().get(id(handle_of(var)), {})
        return {name: resolve(slot) for name, slot in slots.items()}

    def handed_out(self, slots: Iterable[object]) -> None:
        """Note that a caller holds these slots and may write to them; replays then compare them."""
        for slot in slots:
            if isinstance(slot, StateVariable):
                slot.moves.handed.add(id(slot))

    def names(self) -> list[str]:
        """Return the names of slots, in the order of their first creation."""
        self._settled()
        return list(self._names)

    def triples(self) -> Iterator[tuple[Tensor, str, Variable]]:
        """Yield (variable, slot name, slot) for each slot, variable by variable."""
        for key, slots in self._settled().items():
            for name, slot in slots.items():
                yield self._owners[key], name, slot

    def owners(self) -> list[Tensor]:
        """Return the variables that have slots, in the order of their first slots."""
        self._settled()
        return list(self._owners.values())

    def put(self, var: Any, name: str, slot: Any) -> Any:
        """Store a slot under its variable and name; return the slot."""
        self._settled()
        var = handle_of(var)
        self._owners.setdefault(id(var), var)
        self._slots.setdefault(id(var), {})[name] = slot
        if name not in self._names:
            self._names.append(name)
        return slot

    def key(self, var: object) -> Any:
        """Return the key that identifies a variable."""
        return id(handle_of(var))

    def forget(self, var: object, name: str) -> None:
        """Remove the slot `name` of a variable, if it exists.

        A variable without slots is removed, too.
        """
        key = id(handle_of(var))
        slots = self._settled().get(key, {})
        if slots.pop(name, None) is None:
            return
        if not slots:
            del self._slots[key], self._owners[key]
        if not any(name in slots_by_name for slots_by_name in self._slots.values()):
            self._names.remove(name)

    def make(
        self,
        variables: Sequence[Tensor],
        name: str,
        initial: float,
        labels: Sequence[str],
        rule_slot: Slot | None = None,
    ) -> list[Variable]:
        """Create a slot for each variable, store the slots, and return them in order.

        A slot has the shape, dtype, device and strides of its variable. If slots are sharded, it
        has the shape of the variable's shard.

        Args:
            variables: Distinct variables without this slot.
            name: The slot's name.
            initial: The number that fills the slots.
            labels: The full names of the new slots, as `Variable.name`.
            rule_slot: Optional. The rule's slot, which may define another dtype or shape.
        """
        slots: list[Variable] = []
        if rule_slot is not None and rule_slot.is_shaped:
            return self._make_shaped(variables, rule_slot, labels)
        is_scalar = rule_slot is not None and rule_slot.scalar
        templates: Sequence[Tensor] = variables
        if self.parts is not None and not is_scalar:
            templates = [self.parts.part(var) for var in variables]
            self._in_parts.add(name)
        # A variable of a graph has no memory here; its slot is a variable of the graph, too.
        has_tensor = [not isinstance(var, SymbolicVariable) for var in variables]
        dtypes = [dtype_of(rule_slot, var) for var in compress(variables, has_tensor)]
        tensors = iter(laid_out(list(compress(templates, has_tensor)), dtypes, initial, is_scalar))
        for index, var in enumerate(variables):
            if isinstance(var, SymbolicVariable):
                dtype = dtype_of(rule_slot, var)
                if is_scalar:
                    initializer = partial(torch.tensor, initial, dtype=dtype, device="cpu")
                else:
                    initializer = _fill_slot(var, initial, dtype)
                slot = var.beside(initializer, labels[index], dtype, () if is_scalar else None)
            else:
                slot = over(next(tensors), labels[index], self._moves)
            slots.append(self.put(var, name, slot))
        return slots

    def _make_shaped(
        self, variables: Sequence[Tensor], rule_slot: Slot, labels: Sequence[str]
    ) -> list[Variable]:
        """Create and store slots whose shape the rule defines; return them in order.

        `labels` are the full names of the slots, as `Variable.name`.

        Raises:
            InvalidArgumentError: A variable belongs to a graph, and has no shape yet.
        """
        with importing:
            from thalweg._engines.matrix_shapes import shaped_like
        slots: list[Variable] = []
        for var, label in zip(variables, labels, strict=True):
            if isinstance(var, SymbolicVariable):
                raise InvalidArgumentError(f"'{label}' is for steps outside of graphs.")
            template = shaped_like(var, rule_slot)
            tensor = torch.full(
                template.shape, rule_slot.initial, dtype=dtype_of(rule_slot, var), device=var.device
            )
            slots.append(self.put(var, rule_slot.name, over(tensor, label, self._moves)))
        return slots

    def parts_of(self, name: str) -> SlotShards | None:
        """Return the shards of the slots of a name; None if this process keeps full slots."""
        return self.parts if name in self._in_parts else None

    def whole(self, var: Tensor, name: str) -> Tensor:
        """Return the full value of the slot `name` of a variable.

        An unsharded slot is returned itself. A sharded slot is gathered to a new tensor; all
        processes with a shard must make this call.

        Raises:
            KeyError: The variable has no slot of this name.
            LayoutError: The unsharded slot's storage is too small for its elements.
        """
        slot, parts = self.of(var, [name])[0], self.parts_of(name)
        if parts is not None:
            return parts.whole(slot, var)
        check_memories([slot])
        return slot

    def saved(self, path: str) -> None:
        """Record the file to which all slots were saved."""
        self._checkpoint = path
        if self.parts is not None:
            self.parts.checkpoint = path

    def remake(
        self, variables: Sequence[Tensor], rule_slots: Sequence[Slot], parts: SlotShards, cut: Call
    ) -> dict[int, Variable]:
        """Replace slots by slots of new shards, with equal values.

        Return {`id` of an old slot: new slot}.

        Args:
            variables: The variables. A variable that lacks one of the slots is skipped.
            rule_slots: The rule's slots, none of shape ().
            parts: The new division of variables into shards; stored as `self.parts`.
            cut: Function that may change `parts`; called after all old values are gathered.
        """
        names = [rule_slot.name for rule_slot in rule_slots]
        holders = [var for var in variables if set(names) <= self.all_of(var).keys()]
        old_slots = {name: [self.of(var, [name])[0] for var in holders] for name in names}
        values = {name: [self.whole(var, name) for var in holders] for name in names}
        cut()
        self.parts, replacements = parts, dict[int, Variable]()
        parts.checkpoint = parts.checkpoint or self._checkpoint
        for rule_slot in rule_slots:
            slots = old_slots[rule_slot.name]
            labels = [slot.name for slot in slots]
            new_slots = self.make(holders, rule_slot.name, rule_slot.initial, labels, rule_slot)
            for var, slot, new_slot, value in zip(
                holders, slots, new_slots, values[rule_slot.name], strict=True
            ):
                new_slot.detach().copy_(parts.cut(value, var))
                replacements[id(slot)] = new_slot
        return replacements

    def __copy__(self) -> SlotStore:
        """Return a new store with the same slots."""
        new_store = type(self)()
        new_store.parts, new_store._in_parts = self.parts, set(self._in_parts)
        new_store._checkpoint = self._checkpoint
        new_store._slots = {key: dict(slots) for key, slots in self._settled().items()}
        new_store._owners, new_store._names = dict(self._owners), list(self._names)
        return new_store

    def __getstate__(self) -> list[tuple[Tensor, dict[str, Variable]]]:
        self.check_whole()
        return [(self._owners[key], slots) for key, slots in self._settled().items()]

    def __setstate__(self, state: list[tuple[Tensor, dict[str, Variable]]]) -> None:
        self.__init__()
        for var, slots in state:
            for name, slot in slots.items():
                self.put(var, name, slot)

    def __deepcopy__(self, memo: dict[int, object]) -> SlotStore:
        self.check_whole()
        new_store = type(self)()
        all_slots = [slot for *_, slot in self.triples()]
        # Raise for freed storages. Deferred slots and symbols of a graph never have memory.
        check_memories([slot for slot in all_slots if _is_here(slot)])
        slots = [(var, name, copy.deepcopy(slot, memo)) for var, name, slot in self.triples()]
        new_store._pending_copies = slots, memo
        return new_store

    def check_whole(self, operation: str = "copied or pickled") -> None:
        """Raise FailedPreconditionError if this process keeps only shards of slots.

        Args:
            operation: Name of the operation that needs full slots, for the message.
        """
        if self.parts is not None:
            raise FailedPreconditionError(
                f"An optimizer whose slots are shared out over processes cannot be {operation}. Use"
                " its state_dict(), or thalweg.checkpoint.save, in all of them."
            )


def _is_here(slot: object) -> bool:
    """Return True if a slot is a tensor with memory."""
    return isinstance(slot, Tensor) and not isinstance(slot, SymbolicVariable)


def dtype_of(rule_slot: Slot | None, var: Tensor) -> torch.dtype:
    """Return the dtype of a variable's slot: the dtype of `rule_slot`, else of the variable.

    A slot of shape () without a dtype is float64 for float64 and complex128 variables, and float32
    for other variables.
    """
    if rule_slot is not None and rule_slot.dtype is not None:
        is_float64 = rule_slot.dtype == torch.float64
        return wide_dtype(var.device) if is_float64 else rule_slot.dtype
    if rule_slot is None or not rule_slot.scalar:
        return var.dtype
    is_double = var.dtype in (torch.float64, torch.complex128)
    return torch.float64 if is_double else torch.float32


def _fill_slot(var: SymbolicVariable, value: float, dtype: torch.dtype) -> Callable[[], Tensor]:
    """Return a function that creates the initial slot of a graph's variable."""
    return lambda: torch.full_like(resolve(var), value, dtype=dtype, requires_grad=False)
