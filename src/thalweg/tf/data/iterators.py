"""Iterators over datasets: in eager mode, and as operations of a graph."""

from __future__ import annotations

from collections.abc import Iterator as Elements
from typing import Any

from thalweg import _graph
from thalweg._base.execution_context import current_session, executing_eagerly
from thalweg._core.nest import leaves_of, packed
from thalweg._graph.default_graph import begin_graphs
from thalweg.errors import FailedPreconditionError, OutOfRangeError
from thalweg.tf.data import spec as specs


class _IteratorPosition:
    """Position of a session in a dataset."""

    def __init__(self) -> None:
        self.elements: Elements[Any] | None = None

    def close(self) -> None:
        """Do nothing: no thread waits."""


class Iterator:
    """Iterator over a dataset; for graphs see `make_one_shot_iterator`.

    Args:
        elements: Python iterator over the elements.
    """

    def __init__(self, elements: Elements[object], dataset: Any) -> None:
        self._elements, self._dataset = elements, dataset

    @property
    def element_spec(self) -> Any:
        """Specification of the dataset's elements."""
        return self._dataset.element_spec

    def __iter__(self) -> Iterator:
        return self

    def __next__(self) -> Any:
        return next(self._elements)

    def get_next(self, name: str | None = None) -> Any:
        """Return the next element; raise OutOfRangeError at the end."""
        return _next_element(self._elements)

    @staticmethod
    def from_structure(
        output_types: object,
        output_shapes: object = None,
        shared_name: str | None = None,
        output_classes: object = None,
    ) -> InGraph:
        """Return a graph's iterator for datasets of one structure; see `make_initializer`.

        Args:
            output_types: The dtypes of an element.
            output_shapes: Optional. The shapes of an element.
            shared_name, output_classes: Ignored.
        """
        begin_graphs()
        return InGraph(specs.pair_specs(output_types, output_shapes), None)


class InGraph:
    """Iterator in a graph; each session has a separate position."""

    def __init__(self, element_spec: object, one_shot: Any) -> None:
        self.element_spec, self._one_shot = element_spec, one_shot
        self._initializer: Any = None

    @property
    def initializer(self) -> Any:
        """Operation that restarts the iterator.

        Raise FailedPreconditionError after `make_one_shot_iterator` and `from_structure`.
        """
        if self._initializer is None:
            raise FailedPreconditionError("Iterator does not have an initializer.")
        return self._initializer

    def make_initializer(self, dataset: Any, name: str | None = None) -> Any:
        """Return an operation that restarts the iterator with a dataset."""

        def begin() -> None:
            self._current_position().elements = dataset._begin_iteration()

        return _graph.operation(begin, [], name or "MakeIterator")

    def get_next(self, name: str | None = None) -> Any:
        """Return symbolic tensors of the next element; a run at the end raises OutOfRangeError."""

        def next_elements() -> list[Any]:
            position = self._current_position()
            if position.elements is None and self._one_shot is not None:
                position.elements = self._one_shot._begin_iteration()
            if position.elements is None:
                raise FailedPreconditionError(
                    "GetNext() failed because the iterator has not been initialized. Run its"
                    " initializer first."
                )
            return list(leaves_of(_next_element(position.elements)))

        outputs = [_graph.Output(x.dtype, x.shape, ()) for x in leaves_of(self.element_spec)]
        tensors = _graph.operation(next_elements, [], name or "IteratorGetNext", outputs=outputs)
        return packed(self.element_spec, iter(tensors))

    def _current_position(self) -> _IteratorPosition:
        return current_session().resource(self, _IteratorPosition)

    output_types = property(specs.get_output_types)
    output_shapes = property(specs.get_output_shapes)


def _next_element(elements: Elements[object]) -> object:
    try:
        return next(elements)
    except StopIteration:
        raise OutOfRangeError("End of sequence") from None


def make_one_shot_iterator(dataset: Any, shared_name: str | None = None) -> Any:
    """Return an iterator that needs no initialization; in eager mode `iter(dataset)`.

    Args:
        shared_name: Ignored.
    """
    begin_graphs()
    return iter(dataset) if executing_eagerly() else InGraph(dataset.element_spec, dataset)


def make_initializable_iterator(dataset: Any, shared_name: str | None = None) -> InGraph:
    """Return a graph's iterator; its operation `initializer` must run before `get_next`.

    Args:
        shared_name: Ignored.

    Raises:
        FailedPreconditionError: Called in eager mode.
    """
    begin_graphs()
    if executing_eagerly():
        raise FailedPreconditionError(
            "make_initializable_iterator is for graphs: in eager mode use `for element in dataset`."
        )
    iterator = InGraph(dataset.element_spec, None)
    iterator._initializer = iterator.make_initializer(dataset)
    return iterator
