"""Name scopes and dependencies of new operations; *blocks* (branch, loop) and *units* (update)."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from thalweg._base.locks import Lock
from thalweg._graph.node_names import check_name


class _NameScope(threading.local):
    """Scopes of a graph that are open in one thread."""

    def __init__(self) -> None:
        # Ends with "/", unless it is empty.
        self.scope = ""
        # The operations on which new operations depend.
        self.control: tuple[object, ...] = ()
        self.block: Block | None = None
        self.unit: Unit | None = None


class Block:
    """Group of operations in the body of a branch or loop, run by the branch's operation.

    Attributes:
        outer: The enclosing block, or None.
    """

    def __init__(self, outer: Block | None) -> None:
        self.outer = outer

    def can_use(self, source: Block | None) -> bool:
        """Return True if `source` is this block or an enclosing block: its results are usable."""
        block: Block | None = self
        while block is not None and block is not source:
            block = block.outer
        return block is source


class Unit:
    """Group of operations that form one update: if one fails, a run undoes the writes of all.

    Attributes:
        block: The block in which the unit begins, or None.
        last_writes: The last operation that writes in place; later operations wait for it.
        stale: {view of a variable: name of an in-place write after the view's creation}.
    """

    def __init__(self, block: Block | None) -> None:
        self.block = block
        self.last_writes: tuple[object, ...] = ()
        self.stale: dict[object, str] = {}
        # {view: variable whose memory it shares}.
        self._views: dict[object, object] = {}

    def note_views(self, inputs: Iterable[object], outputs: Iterable[object]) -> None:
        """Record that outputs may be views of the first of these inputs."""
        first = next(iter(inputs), None)
        # A view of a view shares memory with the variable.
        base = self._views.get(first, first)
        self._views |= dict.fromkeys(outputs, base)

    def note_write(self, variable: Any, op: Any) -> None:
        """Record that an operation writes to a variable in place; its views become stale."""
        self.last_writes = (op,)
        self.stale |= {view: op.name for view, base in self._views.items() if base is variable}


class Scopes:
    """Mixin of a graph that assigns names and control dependencies to new operations."""

    # Returns the operation that an item is or comes from.
    as_operation: Callable[[object], Any]

    def __init__(self) -> None:
        super().__init__()
        self._position = _NameScope()
        # {used name in lower case: number that the next equal name gets}.
        self._uses: dict[str, int] = {}
        self.lock = Lock()

    @property
    def scope(self) -> str:
        """The current name scope: "" or "outer/inner/"."""
        return self._position.scope

    @property
    def control(self) -> tuple[Any, ...]:
        """Control dependencies of new operations."""
        unit = self._position.unit
        return (
            self._position.control if unit is None else (*self._position.control, *unit.last_writes)
        )

    @property
    def block(self) -> Block | None:
        """The block of new operations; None outside of all."""
        return self._position.block

    @property
    def unit(self) -> Unit | None:
        """The unit of new operations; None outside of all."""
        return self._position.unit

    def unique_name(self, name: str, mark_as_used: bool = True, absolute: bool = False) -> str:
        """Return `name`, or the first of name_1, name_2, ... that is not used; ignore case.

        Args:
            name: The name inside the current scope, or the whole name if `absolute`.
            mark_as_used: True to reserve the name.

        Raises:
            InvalidArgumentError: `name` is not valid for an operation.
        """
        scope = "" if absolute else self.scope
        name = scope + check_name(name, scope)
        # TensorFlow compares names without case.
        key, unique_name = name.lower(), name
        with self.lock:
            count = max(self._uses.get(key, 0), 1)
            while unique_name.lower() in self._uses:
                unique_name = f"{name}_{count}"
                count += 1
            if mark_as_used:
                self._uses[key] = count
                self._uses.setdefault(unique_name.lower(), 1)
        return unique_name

    def claim_name(self, name: str) -> None:
        """Reserve a full name."""
        with self.lock:
            self._uses.setdefault(check_name(name).lower(), 1)

    @contextlib.contextmanager
    def name_scope(self, name: str | None) -> Iterator[str]:
        """Return a context manager that opens a name scope and yields the scope's full name.

        `name` is below the current scope and made unique. A name that ends with "/" is a full name,
        entered unchanged. None or "" leaves all scopes. The yielded name ends with "/" or is empty.
        """
        outer_scope = self._position.scope
        scope = name or ""
        if scope and not scope.endswith("/"):
            scope = f"{self.unique_name(scope)}/"
        self._position.scope = scope
        try:
            yield scope
        finally:
            self._position.scope = outer_scope

    @contextlib.contextmanager
    def control_dependencies(self, control_inputs: Sequence[object] | None) -> Iterator[None]:
        """Return a context manager: new operations run after all of `control_inputs`.

        Dependencies of outer `with` blocks are kept. None removes all dependencies, and puts new
        operations outside of the enclosing branch or loop.

        Raises:
            InvalidTypeError: An input is neither an operation nor symbolic.
            InvalidArgumentError: An input is of another graph.
        """
        operations = [self.as_operation(item) for item in control_inputs or ()]
        if control_inputs is None:
            context = self._build_at(None, ())
        else:
            context = self._build_at(self.block, tuple(dict.fromkeys((*self.control, *operations))))
        with context:
            yield

    @contextlib.contextmanager
    def as_one(self, is_one: bool = True) -> Iterator[None]:
        """Return a context manager in which new operations form one unit.

        Inside of a unit of the same block, the operations join that unit. With `is_one=False`, the
        operations belong to no unit.
        """
        outer_unit = self._position.unit
        joins = outer_unit is not None and outer_unit.block is self.block
        self._position.unit = (outer_unit if joins else Unit(self.block)) if is_one else None
        try:
            yield
        finally:
            self._position.unit = outer_unit

    def build_inside(self, block: Block) -> contextlib.AbstractContextManager[None]:
        """Return a context manager: new operations belong to `block`, without dependencies."""
        return self._build_at(block, ())

    @contextlib.contextmanager
    def _build_at(self, block: Block | None, control: tuple[object, ...]) -> Iterator[None]:
        """Return a context manager that sets the block and dependencies of new operations."""
        # Not `self.control`, which adds the dependencies of a unit.
        outer_position = self._position.block, self._position.control
        self._position.block, self._position.control = block, control
        try:
            yield
        finally:
            self._position.block, self._position.control = outer_position
