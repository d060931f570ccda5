"""The arguments of a node: nests in which symbols stand for what a run puts in their place."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from thalweg.core.nest import leaves_of, mapped
from thalweg.errors import InvalidArgumentError
from thalweg.graph.nodes import Nodes, SymbolicTensor
from thalweg.ground.running import executing_eagerly
from thalweg.indexed_slices import IndexedSlices


class Reference:
    """A variable that arrives as the session's own leaf, to be written in place."""

    def __init__(self, variable: SymbolicTensor) -> None:
        self.symbol = variable

    def get(self, frame: Any) -> Any:
        return frame.session.leaf(self.symbol)


class Target(Reference):
    """A variable that is about to get a value; None arrives where it has none yet."""

    def get(self, frame: Any) -> Any:
        is_known = frame.session.is_initialized(self.symbol)
        return super().get(frame) if is_known else None


class Dense:
    """A gradient that arrives as a whole tensor, even if the run finds it to be rows."""

    def __init__(self, tensor: SymbolicTensor) -> None:
        self.symbol = tensor

    def get(self, frame: Any) -> Any:
        value = frame[self.symbol]
        return value.to_dense() if isinstance(value, IndexedSlices) else value


def densify(leaf: Any) -> Any:
    """`leaf`, as functions of torch's need it: never rows alone."""
    return Dense(leaf) if isinstance(leaf, SymbolicTensor) and leaf.may_be_sparse else leaf


def by_reference(variable: SymbolicTensor) -> Reference:
    """Hand a variable to `operation` as the session's own leaf tensor, which it may write to."""
    return Reference(variable)


IN_EAGER_MODE = (
    "This is eager mode: fetch the values of a graph's tensors with Session.run, or build the rest"
    " of the graph inside of `with graph.as_default():`, too."
)


def inputs_of(arguments: Any, graph: Nodes) -> tuple[SymbolicTensor, ...]:
    """The symbolic tensors whose values the arguments need, each once.

    Raises:
        InvalidArgumentError: A tensor, or a variable by reference, is not of `graph`.
    """
    inputs: dict[SymbolicTensor, None] = {}
    for leaf in leaves_of(arguments):
        symbol = leaf.symbol if isinstance(leaf, (Reference, Dense)) else leaf
        if not isinstance(symbol, SymbolicTensor):
            continue
        if symbol.graph is not graph:
            hint = " " + IN_EAGER_MODE if executing_eagerly() else ""
            raise InvalidArgumentError(
                f"Tensor '{symbol.name}' is from another graph than the operation that takes it."
                f"{hint}"
            )
        if not isinstance(leaf, Reference):
            inputs[symbol] = None
    return tuple(inputs)


def written_by(arguments: Any) -> tuple[SymbolicTensor, ...]:
    """The variables that arrive to be written in place."""
    return tuple(leaf.symbol for leaf in leaves_of(arguments) if isinstance(leaf, Reference))


def argument_filler(arguments: Sequence[Any]) -> Callable[[Any], Sequence[Any]]:
    """A function that gives the arguments of one run, as its `Frame` holds them."""
    if all(isinstance(argument, SymbolicTensor) for argument in arguments):
        return lambda frame: [frame[tensor] for tensor in arguments]
    direct: list[tuple[int, Any]] = []
    nested: list[tuple[int, Any]] = []
    for place, argument in enumerate(arguments):
        if isinstance(argument, SymbolicTensor):
            direct.append((place, argument))
        elif any(isinstance(leaf, _MOVING) for leaf in leaves_of(argument)):
            nested.append((place, argument))
    template = list(arguments)

    def fill_arguments(frame: Any) -> list[Any]:
        filled = template.copy()
        for place, tensor in direct:
            filled[place] = frame[tensor]
        for place, nest in nested:
            filled[place] = mapped(lambda leaf: _value_in(leaf, frame), nest)
        return filled

    return fill_arguments


_MOVING = (SymbolicTensor, Reference, Dense)


def _value_in(leaf: Any, frame: Any) -> Any:
    if isinstance(leaf, SymbolicTensor):
        return frame[leaf]
    return leaf.get(frame) if isinstance(leaf, (Reference, Dense)) else leaf
