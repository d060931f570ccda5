"""Indexing of symbolic tensors, with indices and slice bounds that may be symbolic."""

from __future__ import annotations

from typing import Any, NamedTuple

from thalweg._base.execution_context import is_symbolic
from thalweg._base.static_shape import UNKNOWN


class Span(NamedTuple):
    """Slice as a named tuple, which is searched for symbolic bounds, unlike Python's `slice`."""

    start: Any
    stop: Any
    step: Any

    def as_slice(self) -> slice:
        """Return the slice; all bounds are numbers."""
        return slice(*(None if end is None else int(end) for end in self))

    def size(self, length: int | None) -> int | None:
        """Return the number of elements taken from `length`; None if unknown."""
        if self == (None, None, None):
            return length
        if length is None or any(map(is_symbolic, self)):
            return None
        return len(range(length)[self.as_slice()])


def to_spans(index: object) -> Any:
    """Return an index with a `Span` in place of each slice."""
    if isinstance(index, tuple):
        return tuple(to_spans(component) for component in index)
    return Span(index.start, index.stop, index.step) if isinstance(index, slice) else index


def item(source: Any, index: Any) -> Any:
    """Return `source[index]`, after spans in `index` were converted to slices."""
    if isinstance(index, Span):
        return source[index.as_slice()]
    if isinstance(index, tuple):
        return source[tuple(x.as_slice() if isinstance(x, Span) else x for x in index)]
    return source[index]


def shape_of_item(shape: Any, index: object) -> list[int | None] | None:
    """Return the shape of `tensor[index]` for a tensor of shape `shape`; unknown sizes are None.

    Return None if `shape` is unknown, or if `index` contains arrays or tensors with dimensions.
    """
    components = index if isinstance(index, tuple) and not isinstance(index, Span) else (index,)
    if shape is UNKNOWN or not all(_is_plain(component) for component in components):
        return None
    axis_count = sum(component is not None and component is not ... for component in components)
    full_span = Span(None, None, None)
    # Axes without a component are taken whole, as if the index ended with "...".
    if not any(component is ... for component in components):
        components = (*components, ...)
    sizes, item_shape = iter(shape), []
    for component in components:
        for span in [full_span] * (len(shape) - axis_count) if component is ... else [component]:
            if span is None:
                item_shape.append(1)
            elif isinstance(span, Span):
                item_shape.append(span.size(next(sizes)))
            else:
                next(sizes)
    return item_shape


def _is_plain(component: object) -> bool:
    """Return True for None, Ellipsis, integers, spans and scalar symbols."""
    is_scalar_symbol = is_symbolic(component) and getattr(component, "shape", None) == ()
    return (
        component is None
        or component is ...
        or isinstance(component, int | Span)
        or is_scalar_symbol
    )
