"""Arguments of an operation, and *fillers*: functions that return the arguments' values in a run.

Arguments are nested lists, tuples and dicts of plain objects and symbols. A *symbol* is a symbolic
tensor or a wrapper of a symbolic tensor, such as `Reference`. A run calls the filler with a
`Frame`, the values of the run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from copy import copy
from functools import partial
from operator import itemgetter
from typing import Any, cast

from thalweg._base.execution_context import executing_eagerly
from thalweg._core.nest import leaves_of, mapped
from thalweg._graph.nodes import Nodes, SymbolicTensor
from thalweg.errors import InvalidArgumentError
from thalweg.indexed_slices import IndexedSlices

Filler = Callable[[Any], Any]


class Reference:
    """Argument for a variable: a run passes the session's own tensor, which may be written to."""

    def __init__(self, variable: SymbolicTensor) -> None:
        self.symbol = variable

    def get(self, frame: Any) -> Any:
        """Return the leaf tensor in the session of the frame's run."""
        return frame.session.leaf(self.symbol)


class Target(Reference):
    """`Reference` that passes None if the session has not initialized the variable."""

    def get(self, frame: Any) -> Any:
        """Return the leaf tensor in the session of the frame's run, or None."""
        has_value = frame.session.is_initialized(self.symbol)
        return super().get(frame) if has_value else None


class DenseGradient:
    """Argument that passes a gradient as a dense tensor, even if a run computes `IndexedSlices`."""

    def __init__(self, tensor: SymbolicTensor) -> None:
        self.symbol = tensor

    def get(self, frame: Any) -> Any:
        """Return the dense value in a run."""
        value = frame[self.symbol]
        return value.to_dense() if isinstance(value, IndexedSlices) else value


def densify(leaf: object) -> Any:
    """Return a leaf with `DenseGradient` around a symbolic gradient that may be sparse."""
    return DenseGradient(leaf) if isinstance(leaf, SymbolicTensor) and leaf.may_be_sparse else leaf


def by_reference(variable: SymbolicTensor) -> Reference:
    """Return an argument of `operation` that is passed as the session's writable leaf tensor."""
    return Reference(variable)


IN_EAGER_MODE = (
    "This is eager mode: fetch the values of a graph's tensors with Session.run, or build the rest"
    " of the graph inside of `with graph.as_default():`, too."
)


def inputs_of(arguments: object, graph: Nodes) -> tuple[SymbolicTensor, ...]:
    """Return the distinct symbolic tensors in `arguments`, without the variables of `Reference`s.

    Raise InvalidArgumentError if one of these tensors or variables is of another graph.
    """
    inputs: dict[SymbolicTensor, None] = {}
    for leaf in leaves_of(arguments):
        symbol = leaf.symbol if isinstance(leaf, (Reference, DenseGradient)) else leaf
        if not isinstance(symbol, SymbolicTensor):
            continue
        if symbol.graph is not graph:
            hint = " " + IN_EAGER_MODE if executing_eagerly() else ""
            raise InvalidArgumentError(
                f"Tensor '{symbol.name}' is from another graph than the operation that takes it."
                f"{hint}"
            )
        # A run passes the leaf of a `Reference`, so its variable is not read before.
        if not isinstance(leaf, Reference):
            inputs[symbol] = None
    return tuple(inputs)


def written_by(arguments: object) -> tuple[SymbolicTensor, ...]:
    """Return the variables of all `Reference`s among the arguments."""
    return tuple(leaf.symbol for leaf in leaves_of(arguments) if isinstance(leaf, Reference))


def argument_filler(arguments: Sequence[object]) -> Filler:
    """Return a function: `fill(frame)` returns the values of `arguments` in a run."""
    if not arguments:
        return no_arguments
    # One C function. With a single key, `itemgetter` would return a bare value, not a tuple.
    if _are_all(arguments, SymbolicTensor):
        return itemgetter(*arguments)
    template, fillers = list(arguments), _find_fillers(enumerate(arguments))

    def fill_arguments(frame: object) -> list[Any]:
        """Return the argument values from a frame."""
        values = template.copy()
        for key, fill in fillers:
            values[key] = fill(frame)
        return values

    return fill_arguments


def no_arguments(frame: object) -> Sequence[Any]:
    """Return an empty sequence: the filler of operations without arguments."""
    return ()


def _find_fillers(items: Iterable[tuple[object, object]]) -> list[tuple[Any, Filler]]:
    """Return (index or key, filler) for each item that contains symbols."""
    fillers = [(key, _filler(item)) for key, item in items]
    return [(key, fill) for key, fill in fillers if fill is not None]


def _filler(nest: object) -> Filler | None:
    """Return a function: `fill(frame)` returns `nest` with values in place of symbols.

    Symbols are symbolic tensors, `Reference`s and `DenseGradient`s. `nest` is a symbol, another
    object, or nested lists, tuples and dicts of these. Return None if `nest` contains no symbol.
    """
    if isinstance(nest, SymbolicTensor):
        return itemgetter(nest)
    if isinstance(nest, Reference | DenseGradient):
        return nest.get
    if isinstance(nest, dict):
        mapping = cast("dict[Any, Any]", nest)
        return _nest_filler(mapping, mapping.items(), copy)
    if not isinstance(nest, list | tuple):
        return None
    items, kind = cast("list[Any]", nest), cast("type[Any]", type(nest))
    if kind in (list, tuple) and _are_all(items, SymbolicTensor):
        getter = itemgetter(*items)
        return getter if kind is tuple else lambda frame: [*getter(frame)]
    # One call for the leaves of all variables, as in the step of an optimizer.
    if kind in (list, tuple) and items and all(type(item) is Reference for item in items):
        variables = [item.symbol for item in items]
        return lambda frame: kind(frame.session.leaves(variables))
    fill = _nest_filler(items, enumerate(items), list)
    if fill is None or kind is list:
        return fill
    # A named tuple takes separate fields; its `_make` takes a list.
    build = getattr(kind, "_make", kind)
    return lambda frame: build(fill(frame))


def _are_all(items: Sequence[object], kind: type[object]) -> bool:
    """Return True if there are several items, all of a type."""
    return len(items) > 1 and all(isinstance(item, kind) for item in items)


def _nest_filler(
    nest: Any, items: Iterable[tuple[Any, Any]], copy_nest: Callable[[Any], Any]
) -> Filler | None:
    """Return a function: `fill(frame)` returns a list or dict with values in place of symbols.

    Return None if `nest` contains no symbol. `items` are (index or key, item) pairs of `nest`, and
    `copy_nest(nest)` returns a shallow copy.
    """
    fillers = _find_fillers(items := list(items))
    if not fillers:
        return None
    # Nested containers without symbols are copied, too: the function may change its arguments.
    filled_keys = {key for key, _ in fillers}
    fillers += [
        (key, partial(_copy_nest, item))
        for key, item in items
        if key not in filled_keys and isinstance(item, list | tuple | dict)
    ]

    def fill_nest(frame: Any) -> Any:
        values = copy_nest(nest)
        for key, fill in fillers:
            values[key] = fill(frame)
        return values

    return fill_nest


def _copy_nest(nest: object, frame: object) -> object:
    """Return a copy of a nest without symbols; `frame` is ignored."""
    return mapped(lambda leaf: leaf, nest)
