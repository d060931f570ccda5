"""Slots: the tensors an optimizer keeps beside each variable, found by variable and name."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from functools import partial
from itertools import compress
from typing import Any, Protocol

import torch
from torch import Tensor

from thalweg._base.execution_context import SymbolicVariable, handle_of, resolve
from thalweg._base.locks import importing
from thalweg._core.atomic_section import Call
from thalweg._core.state_allocation import laid_out
from thalweg._core.validation import check_memories
from thalweg.errors import FailedPreconditionError, InvalidArgumentError
from thalweg.formula import Slot
from thalweg.variable import Moves, StateVariable, Variable, over, tensor_of


class Parts(Protocol):
    """Which part of each variable this process keeps slots of; others keep those of the rest.

    Attributes:
        checkpoint: The last file that all of them were saved to, or restored from; None for none.
        ranks: Those that have the other parts, of which the first writes files; None where their
            variables tell.
    """

    checkpoint: str | None
    ranks: Any

    def part(self, var: Tensor) -> Tensor:
        """The elements of a variable: a view of it."""
        ...

    def cut(self, value: Tensor, var: Tensor) -> Tensor:
        """The same elements of a tensor of the variable's shape."""
        ...

    def whole(self, own: Tensor, var: Tensor) -> Tensor:
        """The tensor of which each process has its part; all of them call this."""
        ...

    def collecting(self) -> AbstractContextManager[None]:
        """A block in which `whole` may give it to that process alone which writes a file."""
        ...


class SlotStore:
    """All slots of one optimizer.

    In graph mode a variable's slots are variables of its graph; while a session runs, they are
    given as that session's tensors, for its tensor of the variable as for the variable itself.

    Slots made together lie in one block of memory per dtype: small variables then cost no page
    each, and a step checks and marks one block instead of every slot. They share torch's version
    counter with it: to autograd, writing to one slot is writing to all of its block, so that
    `backward` through a slot that was saved for it is refused after any of them has changed.

    Attributes:
        parts: What this process keeps of slots that are made by `make`, but for those of shape ();
            None for all of it.
    """

    def __init__(self) -> None:
        self._slots: dict[int, dict[str, Variable]] = {}
        # A slot belongs to a tensor, not to an address: keeping it alive keeps its id its own.
        self._owners: dict[int, Tensor] = {}
        self._names: list[str] = []
        self._moves = Moves()
        self.parts: Parts | None = None
        self._in_parts: set[str] = set()  # the kinds of slot that are in parts
        self._checkpoint: str | None = None
        self._copied: tuple[list[tuple[Tensor, str, Variable]], dict[int, object]] | None = None

    def _settled(self) -> dict[int, dict[str, Variable]]:
        """The slots. A copied optimizer goes on with the same variables, unless they were copied
        with it: before it or after it, which is known only when all has been copied.
        """
        if self._copied is not None:
            (slots, memo), self._copied = self._copied, None
            for var, name, slot in slots:
                self.put(memo.get(id(var), var), name, slot)
        return self._slots

    def get(self, var: Tensor, name: str) -> Variable | None:
        """The slot, or None; `var` may be a variable of Keras 3."""
        return resolve(self._settled().get(id(handle_of(tensor_of(var))), {}).get(name))

    def of(self, var: Tensor, names: Sequence[str]) -> list[Variable]:
        """The slots of a variable in the order of `names`; KeyError if one is missing."""
        own = self._settled().get(id(handle_of(var)), {})
        return [resolve(own[name]) for name in names]

    def all_of(self, var: Tensor) -> dict[str, Variable]:
        """All slots of a variable, by name."""
        own = self._settled().get(id(handle_of(var)), {})
        return {name: resolve(slot) for name, slot in own.items()}

    def handed_out(self, slots: Iterable[object]) -> None:
        """Note that a caller holds these slots, and may do to them what their store does not see.

        A steady step looks at them from then on.
        """
        for slot in slots:
            if isinstance(slot, StateVariable):
                slot.moves.handed.add(id(slot))

    def names(self) -> list[str]:
        """Names of all kinds of slot, in order of creation."""
        self._settled()
        return list(self._names)

    def triples(self) -> Iterator[tuple[Tensor, str, Variable]]:
        """Every (variable, slot name, slot), variable by variable."""
        for key, own in self._settled().items():
            for name, slot in own.items():
                yield self._owners[key], name, slot

    def owners(self) -> list[Tensor]:
        """The variables that have slots, in order of their first."""
        self._settled()
        return list(self._owners.values())

    def put(self, var: Any, name: str, slot: Any) -> Any:
        """Remember a slot."""
        self._settled()
        var = handle_of(var)
        self._owners.setdefault(id(var), var)
        self._slots.setdefault(id(var), {})[name] = slot
        if name not in self._names:
            self._names.append(name)
        return slot

    def key(self, var: object) -> Any:
        """What stands for a variable where its slots are told by keys."""
        return id(handle_of(var))

    def forget(self, var: object, name: str) -> None:
        """Let go of a slot, if there is one."""
        key = id(handle_of(var))
        own = self._settled().get(key, {})
        if own.pop(name, None) is None:
            return
        if not own:
            del self._slots[key], self._owners[key]
        if not any(name in each for each in self._slots.values()):
            self._names.remove(name)

    def make(
        self,
        variables: Sequence[Tensor],
        name: str,
        initial: float,
        titles: Sequence[str],
        kind: Slot | None = None,
    ) -> list[Variable]:
        """New slots of the variables' shapes, dtypes, devices and strides, filled with `initial`.

        Args:
            variables: Variables without this slot, each once.
            name: The kind of slot.
            initial: A number.
            titles: The full names of the new slots, as `Variable.name`.
            kind: Optional. Gives another dtype, or the shape ().
        """
        made: list[Variable] = []
        if kind is not None and kind.is_shaped:
            return self._make_shaped(variables, kind, titles)
        is_scalar = kind is not None and kind.scalar
        likes: Sequence[Tensor] = variables
        if self.parts is not None and not is_scalar:
            likes = [self.parts.part(var) for var in variables]
            self._in_parts.add(name)
        here = [not isinstance(var, SymbolicVariable) for var in variables]
        dtypes = [dtype_of(kind, var) for var in compress(variables, here)]
        tensors = iter(laid_out(list(compress(likes, here)), dtypes, initial, is_scalar))
        for index, var in enumerate(variables):
            if isinstance(var, SymbolicVariable):
                dtype = dtype_of(kind, var)
                if is_scalar:
                    filled = partial(torch.tensor, initial, dtype=dtype, device="cpu")
                else:
                    filled = _fill_slot(var, initial, dtype)
                slot = var.beside(filled, titles[index], dtype, () if is_scalar else None)
            else:
                slot = over(next(tensors), titles[index], self._moves)
            made.append(self.put(var, name, slot))
        return made

    def _make_shaped(
        self, variables: Sequence[Tensor], kind: Slot, titles: Sequence[str]
    ) -> list[Variable]:
        """The same of a slot with a shape of its own.

        Raises:
            InvalidArgumentError: A variable is of a graph, and has no shape yet.
        """
        with importing:
            from thalweg._engines.matrix_shapes import shaped_like
        made: list[Variable] = []
        for var, title in zip(variables, titles, strict=True):
            if isinstance(var, SymbolicVariable):
                raise InvalidArgumentError(f"'{title}' is for steps outside of graphs.")
            like = shaped_like(var, kind)
            tensor = torch.full(
                like.shape, kind.initial, dtype=dtype_of(kind, var), device=var.device
            )
            made.append(self.put(var, kind.name, over(tensor, title, self._moves)))
        return made

    def parts_of(self, name: str) -> Parts | None:
        """What this process keeps of the slots of a kind; None for all."""
        return self.parts if name in self._in_parts else None

    def whole(self, var: Tensor, name: str) -> Tensor:
        """The value of a slot, all of it; all processes that keep parts of it call this.

        Raises:
            LayoutError: There is no memory that holds it.
        """
        slot, parts = self.of(var, [name])[0], self.parts_of(name)
        if parts is not None:
            return parts.whole(slot, var)
        check_memories([slot])
        return slot

    def saved(self, path: str) -> None:
        """Note that all slots are in a file."""
        self._checkpoint = path
        if self.parts is not None:
            self.parts.checkpoint = path

    def remake(
        self, variables: Sequence[Tensor], kinds: Sequence[Slot], parts: Parts, cut: Call
    ) -> dict[int, Variable]:
        """Make slots again, in other parts, with the values they have.

        Args:
            variables: The variables whose slots are made again.
            kinds: The kinds of slot, none of them of shape ().
            parts: What this process keeps of them from now on.
            cut: Called when all values have been taken: `parts` may change now.

        Returns:
            The new slots by the `id` of those whose place they take.
        """
        names = [kind.name for kind in kinds]
        owners = [var for var in variables if set(names) <= self.all_of(var).keys()]
        before = {name: [self.of(var, [name])[0] for var in owners] for name in names}
        values = {name: [self.whole(var, name) for var in owners] for name in names}
        cut()
        self.parts, taken = parts, dict[int, Variable]()
        parts.checkpoint = parts.checkpoint or self._checkpoint
        for kind in kinds:
            slots = before[kind.name]
            titles = [slot.name for slot in slots]
            made = self.make(owners, kind.name, kind.initial, titles, kind)
            for var, slot, own, value in zip(owners, slots, made, values[kind.name], strict=True):
                own.detach().copy_(parts.cut(value, var))
                taken[id(slot)] = own
        return taken

    def __copy__(self) -> SlotStore:
        """The same slots in a store of its own."""
        copied = type(self)()
        copied.parts, copied._in_parts = self.parts, set(self._in_parts)
        copied._checkpoint = self._checkpoint
        copied._slots = {key: dict(own) for key, own in self._settled().items()}
        copied._owners, copied._names = dict(self._owners), list(self._names)
        return copied

    def __getstate__(self) -> list[tuple[Tensor, dict[str, Variable]]]:
        self.check_whole()
        return [(self._owners[key], own) for key, own in self._settled().items()]

    def __setstate__(self, state: list[tuple[Tensor, dict[str, Variable]]]) -> None:
        self.__init__()
        for var, own in state:
            for name, slot in own.items():
                self.put(var, name, slot)

    def __deepcopy__(self, memo: dict[int, object]) -> SlotStore:
        self.check_whole()
        copied = type(self)()
        own = [slot for *_, slot in self.triples()]
        # What waits for a slot, and what stands for one in a graph, has no memory.
        check_memories([slot for slot in own if _is_here(slot)])
        slots = [(var, name, copy.deepcopy(slot, memo)) for var, name, slot in self.triples()]
        copied._copied = slots, memo
        return copied

    def check_whole(self, what: str = "copied or pickled") -> None:
        """Refuse what cannot be done with parts of slots.

        Raises:
            FailedPreconditionError: This process has parts of them.
        """
        if self.parts is not None:
            raise FailedPreconditionError(
                f"An optimizer whose slots are shared out over processes cannot be {what}. Use its"
                " state_dict(), or thalweg.checkpoint.save, in all of them."
            )


def _is_here(slot: object) -> bool:
    return isinstance(slot, Tensor) and not isinstance(slot, SymbolicVariable)


def dtype_of(kind: Slot | None, var: Tensor) -> torch.dtype:
    """The dtype of a variable's slot of this kind."""
    if kind is not None and kind.dtype is not None:
        return kind.dtype
    if kind is None or not kind.scalar:
        return var.dtype
    is_double = var.dtype in (torch.float64, torch.complex128)
    return torch.float64 if is_double else torch.float32


def _fill_slot(var: SymbolicVariable, value: float, dtype: torch.dtype) -> Callable[[], Tensor]:
    return lambda: torch.full_like(resolve(var), value, dtype=dtype, requires_grad=False)
