"""`FIFOQueue` and `RandomShuffleQueue`: queues of tensors between the runs of several threads."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch

from thalweg._base.execution_context import is_deferred
from thalweg._base.locks import Lock
from thalweg._base.static_shape import Shape
from thalweg._core.nest import leaves_of
from thalweg._graph import Output, current_session, executing_eagerly, no_op, operation
from thalweg.errors import CancelledError, InvalidArgumentError, OutOfRangeError
from thalweg.variable import as_dtype, to_tensor

Element = tuple[torch.Tensor, ...]


class _Store:
    """Elements of a queue in one session, with a lock and a condition for waiting threads.

    Attributes:
        elements: The elements, in order of arrival.
        closed: True if new `put` calls fail. Waiting `put` calls may still succeed.
        cancelled: True if the session is closed; all waits have ended.
    """

    def __init__(self, capacity: int, minimum: int, pick: Callable[[int], int]) -> None:
        self.elements: list[Element] = []
        self.closed = self.cancelled = False
        # True if waiting `put` calls fail, too.
        self._refuses = False
        # How many threads add elements.
        self._putting = 0
        self._capacity = capacity if capacity >= 0 else sys.maxsize
        self._minimum, self._pick = minimum, pick
        # Held in `with` blocks: the methods of `Condition` are Python code and may be interrupted.
        self._lock = Lock()
        self._condition = threading.Condition(self._lock)

    def put(self, elements: Sequence[Element], name: str) -> None:
        """Append elements one by one; wait before each element while the queue is full.

        Raises:
            CancelledError: The queue or the session is closed; `name` is in the message.
        """
        with self._lock:
            if self.closed:
                raise CancelledError(f"Queue '{name}' is closed.")
            # Counted, so that `take` waits for these elements even if the queue is closed now.
            self._putting += 1
            try:
                for element in elements:
                    self._condition.wait_for(self._may_put)
                    if self._refuses or self.cancelled:
                        raise CancelledError(f"Queue '{name}' is closed.")
                    self.elements.append(element)
                    self._condition.notify_all()
            finally:
                self._putting -= 1
                self._condition.notify_all()

    def _may_put(self) -> bool:
        return self._refuses or self.cancelled or len(self.elements) < self._capacity

    def take(self, count: int, name: str, fewer: bool = False) -> list[Element]:
        """Remove and return `count` elements; wait until the queue has enough.

        Args:
            count: The number of elements.
            name: The name of the queue, for errors.
            fewer: True to return fewer elements, at least one, if the queue is closed and has
                fewer than `count`.

        Raises:
            OutOfRangeError: The queue is closed and has too few elements.
            CancelledError: The session is closed.
        """
        with self._lock:
            self._condition.wait_for(lambda: self._may_take(count))
            if self.cancelled and not self.closed:
                raise CancelledError(f"Queue '{name}': the session was closed.")
            taken_count = min(count, len(self.elements)) if fewer else count
            if len(self.elements) < taken_count or (count and not taken_count):
                raise OutOfRangeError(
                    f"Queue '{name}' is closed and has insufficient elements (requested {count},"
                    f" current size {len(self.elements)})."
                )
            # On a copy, so that an interruption removes all elements or none.
            pool = self.elements.copy()
            picked = [pool.pop(self._pick(len(pool))) for _ in range(taken_count)]
            self.elements = pool
            self._condition.notify_all()
            return picked

    def _may_take(self, count: int) -> bool:
        minimum = 0 if self.closed else self._minimum
        is_drained = self.closed and not self._putting
        return self.cancelled or is_drained or len(self.elements) >= count + minimum

    def end(self, refuses: bool) -> None:
        """Close the queue; if `refuses`, waiting `put` calls fail with CancelledError, too."""
        with self._lock:
            self.closed, self._refuses = True, self._refuses or refuses
            self._condition.notify_all()

    def close(self) -> None:
        """End all waits: the session is closed."""
        with self._lock:
            self.cancelled = True
            self._condition.notify_all()


class QueueBase:
    """Queue of tensors or tuples of tensors; each session has separate elements.

    In graph mode, methods return operations and symbolic tensors. In eager mode, they act now.

    Args:
        capacity: Maximum number of elements; negative for no limit.
        dtypes: A dtype, or a list with one dtype per component of an element.
        shapes: Optional. One shape per component; `enqueue_many` and `dequeue_many` require shapes.
        names: Optional. One name per component; elements are then dicts.
        shared_name: Ignored.
        name: Optional.
    """

    def __init__(
        self,
        capacity: int,
        dtypes: object,
        shapes: Any = None,
        names: Any = None,
        shared_name: str | None = None,
        name: str = "queue",
    ) -> None:
        is_list = isinstance(dtypes, list | tuple)
        self._kinds = [as_dtype(kind) for kind in (dtypes if is_list else [dtypes])]
        self._shapes: list[Any] = [None] * len(self._kinds)
        if shapes is not None:
            is_flat = not is_list and all(isinstance(size, int | None) for size in shapes)
            self._shapes = [Shape(shape) for shape in ([shapes] if is_flat else shapes)]
        self._component_names = [names] if isinstance(names, str) else names
        if len(self._shapes) != len(self._kinds):
            raise InvalidArgumentError("There must be as many shapes as dtypes.")
        # An empty operation reserves the name in the graph.
        self.queue_ref = None if executing_eagerly() else no_op(name)
        self.name = name if self.queue_ref is None else self.queue_ref.name
        self._capacity = int(capacity)
        self._eager = self._make_store()

    # Number of elements that stay in the queue until it is closed.
    _minimum = 0

    def _pick(self, count: int) -> int:
        """Return the index of the next element among `count`."""
        return 0

    def _make_store(self) -> _Store:
        return _Store(self._capacity, self._minimum, self._pick)

    def _current_store(self) -> _Store:
        session = current_session()
        return self._eager if session is None else session.resource(self, self._make_store)

    @property
    def dtypes(self) -> list[torch.dtype]:
        """The dtypes of the components."""
        return list(self._kinds)

    @property
    def shapes(self) -> list[Any]:
        """The static shapes of the components."""
        return list(self._shapes)

    @property
    def names(self) -> Any:
        """The names of the components, or None."""
        return self._component_names

    def _list_components(self, vals: object) -> list[object]:
        """Return the components of an element as a list, in the order of `dtypes`.

        Raise InvalidArgumentError if the names or the number of components differ.

        Args:
            vals: A dict {component name: value}, a list or tuple, or the only component.
        """
        if isinstance(vals, dict):
            names = self._component_names or ()
            if set(vals) != set(names):
                raise InvalidArgumentError(
                    f"Queue '{self.name}' has components named {list(names)}, not {list(vals)}."
                )
            vals = [vals[name] for name in names]
        vals = list(vals) if isinstance(vals, list | tuple) else [vals]
        if len(vals) != len(self._kinds):
            raise InvalidArgumentError(
                f"Queue '{self.name}' has {len(self._kinds)} components, not {len(vals)}."
            )
        return vals

    def _check_element(self, values: Sequence[object]) -> Element:
        """Return a tuple of copies of the components as tensors.

        Raise InvalidArgumentError if a component's dtype or shape differs from the queue's.
        """
        tensors = []
        for entry, kind, shape in zip(values, self._kinds, self._shapes, strict=True):
            tensor = to_tensor(entry, None if isinstance(entry, torch.Tensor) else kind).detach()
            if tensor.dtype != kind or (shape is not None and not shape.accepts(tensor.shape)):
                raise InvalidArgumentError(
                    f"Queue '{self.name}' takes {kind} of shape {shape}, not {tensor.dtype} of"
                    f" shape {tuple(tensor.shape)}."
                )
            # A copy: the caller may change the tensor while the element waits.
            tensors.append(tensor.clone())
        return tuple(tensors)

    def _run_or_record(
        self, function: Callable[..., Any], inputs: Any, name: str, outputs: Any = None
    ) -> Any:
        """Call `function(*inputs)`; in graph mode return the outputs of its operation."""
        if not is_deferred(*leaves_of(inputs)):
            return function(*inputs)
        name = f"{self.name.rpartition('/')[2]}_{name}"
        return operation(function, inputs, name, kind="blocking", outputs=outputs)

    def enqueue(self, vals: object, name: str | None = None) -> Any:
        """Add one element; wait while the queue is full. In graph mode return the operation."""

        def put_element(values: Any) -> None:
            self._current_store().put([self._check_element(values)], self.name)

        return self._run_or_record(put_element, [self._list_components(vals)], name or "enqueue")

    def enqueue_many(self, vals: object, name: str | None = None) -> Any:
        """Add one element per row of the components; in graph mode, return the operation.

        Raises:
            InvalidArgumentError: In a run, if the components have different numbers of rows.
        """

        def put_rows(values: Any) -> None:
            columns = [
                to_tensor(entry, None if isinstance(entry, torch.Tensor) else kind)
                for entry, kind in zip(values, self._kinds, strict=True)
            ]
            # `shape[:1]` of a scalar is (): only columns with one number of rows give two members.
            if len({column.shape[:1] for column in columns} | {torch.Size()}) != 2:
                shapes = [tuple(column.shape) for column in columns]
                raise InvalidArgumentError(
                    f"Queue '{self.name}' takes as many rows of each component, not {shapes}."
                )
            rows = [self._check_element(row) for row in zip(*columns, strict=True)]
            self._current_store().put(rows, self.name)

        return self._run_or_record(put_rows, [self._list_components(vals)], name or "EnqueueMany")

    def dequeue(self, name: str | None = None) -> Any:
        """Remove and return one element; wait while the queue is empty.

        Returns:
            The only component, a list of components, or a dict if the components have names;
            symbolic in graph mode.

        Raises:
            OutOfRangeError: The queue is closed and empty; in graph mode, the run raises.
        """

        def take_element() -> object:
            return list(self._current_store().take(1, self.name)[0])

        return self._take_components(take_element, name or "Dequeue", self._shapes)

    def dequeue_many(self, n: object, name: str | None = None) -> Any:
        """Remove and return `n` elements, stacked; wait while the queue has fewer."""
        return self._dequeue_stacked(n, name or "DequeueMany", False)

    def dequeue_up_to(self, n: object, name: str | None = None) -> Any:
        """Remove and return `n` elements, stacked; fewer if the queue is closed and has fewer."""
        return self._dequeue_stacked(n, name or "DequeueUpTo", True)

    def _dequeue_stacked(self, n: object, name: str, fewer: bool) -> object:
        """Remove `n` elements; return each component stacked along a new first dimension.

        With `fewer`, return fewer elements if the queue is closed and has fewer. The result has the
        form of `dequeue`'s result. Raise InvalidArgumentError if the queue has no shapes.
        """
        if None in self._shapes:
            raise InvalidArgumentError(f"Queue '{self.name}' must be given shapes for {name}.")

        def take_stacked(count: Any) -> object:
            elements = self._current_store().take(int(count), self.name, fewer)
            columns = zip(*elements, strict=True) if elements else ([] for _ in self._kinds)
            stacks = zip(columns, self._kinds, self._shapes, strict=True)
            return [
                torch.stack(column)
                if column
                else torch.zeros((0, *shape), dtype=kind, device="cpu")
                for column, kind, shape in stacks
            ]

        # The static number of rows, unknown if fewer elements may be returned.
        count = n if isinstance(n, int) and not fewer else None
        shapes = [(count, *shape) for shape in self._shapes if shape is not None]
        return self._take_components(take_stacked, name, shapes, n)

    def _take_components(
        self, run: Callable[..., Any], name: str, shapes: Any, *inputs: Any
    ) -> Any:
        """Return the components that `run(*inputs)` takes from the queue, as `dequeue` does."""
        outputs = [Output(kind, shape, ()) for kind, shape in zip(self._kinds, shapes, strict=True)]
        components = self._run_or_record(run, inputs, name, outputs)
        if self._component_names:
            return dict(zip(self._component_names, components, strict=True))
        return components[0] if len(components) == 1 else components

    def size(self, name: str | None = None) -> Any:
        """Return the number of elements in the queue, as an int32 tensor of shape ()."""

        def count_elements() -> torch.Tensor:
            count = len(self._current_store().elements)
            return torch.tensor(count, dtype=torch.int32, device="cpu")

        return self._run_or_record(count_elements, [], name or "Size", Output(torch.int32, (), ()))

    def is_closed(self, name: str | None = None) -> Any:
        """Return a bool tensor of shape () that is true after `close` has run."""

        def ask_closed() -> torch.Tensor:
            return torch.tensor(self._current_store().closed, dtype=torch.bool, device="cpu")

        return self._run_or_record(ask_closed, [], name or "is_closed", Output(torch.bool, (), ()))

    def close(self, cancel_pending_enqueues: bool = False, name: str | None = None) -> Any:
        """Close the queue to new elements; elements in the queue can still be removed.

        Args:
            cancel_pending_enqueues: True to end waiting `enqueue` calls with CancelledError. False
                lets them finish.
            name: Optional. The name of the operation.
        """
        refuses = bool(cancel_pending_enqueues)
        return self._run_or_record(lambda: self._current_store().end(refuses), [], name or "Close")


class FIFOQueue(QueueBase):
    """Queue whose first element is removed first; see `QueueBase`."""

    def __init__(
        self,
        capacity: int,
        dtypes: object,
        shapes: object = None,
        names: Any = None,
        shared_name: str | None = None,
        name: str = "fifo_queue",
    ) -> None:
        super().__init__(capacity, dtypes, shapes, names, shared_name, name)


class RandomShuffleQueue(QueueBase):
    """Queue whose elements are removed in random order; see `QueueBase`.

    Args:
        min_after_dequeue: Minimum number of elements that remain until the queue is closed.
        seed: Optional. Seed of the order.
    """

    def __init__(
        self,
        capacity: int,
        min_after_dequeue: int,
        dtypes: object,
        shapes: object = None,
        names: Any = None,
        seed: int | None = None,
        shared_name: str | None = None,
        name: str = "random_shuffle_queue",
    ) -> None:
        self._minimum = int(min_after_dequeue)
        self._generator = torch.Generator(device="cpu")
        if seed is None:
            self._generator.seed()
        else:
            self._generator.manual_seed(seed)
        super().__init__(capacity, dtypes, shapes, names, shared_name, name)

    def _pick(self, count: int) -> int:
        index = torch.randint(count, (), generator=self._generator, dtype=torch.int64, device="cpu")
        return int(index)
