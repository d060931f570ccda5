"""Formulas of rules as graphs of pure operations, as engines compile them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any
from weakref import WeakValueDictionary

from thalweg._base.lazy import lazy

ROUNDED = ("+", "-", "*", "/")  # results of arithmetic, as opposed to values that were chosen
INFIX = (*ROUNDED, "<", "<=", ">", ">=", "==", "!=", "&", "|")


def _binary(op: str) -> Callable[[Node, Node], Node]:
    return lambda left, right: make_node(op, left, right)


class Node:
    """An operation. Equal operations on the same arguments are usually one object.

    Operators build further nodes, `==` included: compare nodes with `is`.

    Attributes:
        op: An infix operator, "neg", a function of formulas, "stream" for a value that a formula
            takes by position, "scalar", "const", or "moved" for `moved(base, step)`.
        args: Nodes; the position of a stream, the name of a scalar, or the number of a constant.
    """

    __slots__ = ("__weakref__", "args", "op")

    def __init__(self, op: str, args: tuple[Any, ...]) -> None:
        self.op, self.args = op, args

    __hash__ = object.__hash__
    __add__, __sub__, __mul__, __truediv__ = map(_binary, ROUNDED)
    __lt__, __le__, __gt__, __ge__ = map(_binary, ("<", "<=", ">", ">="))
    __eq__, __ne__ = map(_binary, ("==", "!="))  # pyright: ignore[reportAssignmentType]
    __and__, __or__ = map(_binary, ("&", "|"))

    def __neg__(self) -> Node:
        return make_node("neg", self)

    def __pos__(self) -> Node:
        return self

    def __bool__(self) -> bool:
        raise TypeError("a node is a number that is not known yet")

    @property
    def inputs(self) -> list[Node]:
        """The nodes among its arguments."""
        return [each for each in self.args if isinstance(each, Node)]

    def is_stream(self, position: int) -> bool:
        """Return whether it is the value that a formula takes at a position."""
        return self.op == "stream" and self.args[0] == position


_nodes: WeakValueDictionary[tuple[Any, ...], Node] = WeakValueDictionary()


def make_node(op: str, *args: Any) -> Node:
    """Return the node of an operation."""
    key = op, *(id(each) if isinstance(each, Node) else repr(each) for each in args)
    return _nodes.setdefault(key, Node(op, args))


def make_const(value: float) -> Node:
    """Return the node of a number."""
    return make_node("const", float(value))


def stream_nodes(count: int, first: int = 0) -> list[Node]:
    """Return the nodes of `count` values that a formula takes by position, from `first` on."""
    return [make_node("stream", position) for position in range(first, first + count)]


def in_order(roots: Iterable[Node]) -> list[Node]:
    """Return all nodes that roots depend on, roots included, each after its arguments."""
    found: dict[Node, None] = {}
    stack = [*roots][::-1]
    while stack:
        missing = [each for each in stack[-1].inputs if each not in found]
        if missing:
            stack += missing[::-1]
        else:
            found[stack.pop()] = None
    return list(found)


def rewrite(roots: Iterable[Node], replace: Callable[[Node], Node | None]) -> list[Node]:
    """Return roots in which nodes are replaced.

    Args:
        roots: The nodes; they stay as they are.
        replace: Returns the node that replaces one whose arguments are replaced already, or None.
    """
    roots, made = list(roots), dict[Node, Node]()
    for node in in_order(roots):
        args = [made[each] if isinstance(each, Node) else each for each in node.args]
        new = make_node(node.op, *args)
        other = replace(new)
        made[node] = new if other is None else other
    return [made[root] for root in roots]


def lower_moves(roots: Iterable[Node]) -> list[Node]:
    """Return roots in which "moved" nodes are the sums or differences that they stand for."""

    def lower(node: Node) -> Node | None:
        if node.op != "moved":
            return None
        base, step = node.args
        return base - step.args[0] if step.op == "neg" else base + step

    return rewrite(roots, lower)


@dataclass(frozen=True, eq=False)
class FormulaGraph:
    """A formula that passed the checks.

    Attributes:
        positional: Names of `var`, `grad` and the slots; those of a composed formula may repeat.
        scalars: Names of the scalars that it takes.
        steps: Its results, in which a "moved" node marks the step of the variable.
    """

    positional: tuple[str, ...]
    scalars: tuple[str, ...]
    steps: tuple[Node, ...]

    @lazy
    def results(self) -> list[Node]:
        """Its results in plain operations."""
        return lower_moves(self.steps)

    @lazy
    def streams(self) -> list[int]:
        """The positions of the values that its results depend on."""
        nodes = in_order(self.results)
        return sorted(int(node.args[0]) for node in nodes if node.op == "stream")

    def passes_through(self, result: int, parameter: int) -> bool:
        """Return whether a result is nothing but the value taken at that position."""
        return self.results[result].is_stream(parameter)

    def is_rounded(self, result: int) -> bool:
        """Return whether arithmetic, which flushes denormals, computes a result."""
        return self.results[result].op in ROUNDED

    def apply(self, values: Sequence[Node]) -> list[Node]:
        """Return what it makes of these values, steps marked."""

        def replace(node: Node) -> Node | None:
            return values[int(node.args[0])] if node.op == "stream" else None

        return rewrite(self.steps, replace)
