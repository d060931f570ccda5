"""Formulas of rules as graphs of pure operations; engines compile the graphs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any
from weakref import WeakValueDictionary

from thalweg._base.lazy import lazy

# Arithmetic, whose results are rounded and flushed, as opposed to a choice among values.
ROUNDED = ("+", "-", "*", "/")
INFIX = (*ROUNDED, "<", "<=", ">", ">=", "==", "!=", "&", "|")


def _make_binary(operation: str) -> Callable[[Node, Node], Node]:
    return lambda left, right: make_node(operation, left, right)


class Node:
    """An operation. Equal operations on equal arguments are usually one object.

    Operators, `==` included, build new nodes: compare nodes with `is`.

    Attributes:
        op: An infix operator, "neg", a function of formulas, "stream" for a value that a formula
            takes by position, "scalar", "const", or "moved" for `moved(base, step)`.
        args: Nodes; the position of a stream, the name of a scalar, or the number of a constant.
    """

    __slots__ = ("__weakref__", "args", "op")

    def __init__(self, operation: str, args: tuple[Any, ...]) -> None:
        self.op, self.args = operation, args

    # By identity: dicts call `==` only for equal hashes, which two living nodes do not have.
    __hash__ = object.__hash__
    __add__, __sub__, __mul__, __truediv__ = map(_make_binary, ROUNDED)
    __lt__, __le__, __gt__, __ge__ = map(_make_binary, ("<", "<=", ">", ">="))
    __eq__, __ne__ = map(_make_binary, ("==", "!="))  # pyright: ignore[reportAssignmentType]
    __and__, __or__ = map(_make_binary, ("&", "|"))

    def __neg__(self) -> Node:
        return make_node("neg", self)

    def __pos__(self) -> Node:
        return self

    def __bool__(self) -> bool:
        raise TypeError("A node has no truth value: its number is known only when a kernel runs.")

    @property
    def inputs(self) -> list[Node]:
        """Nodes among the arguments."""
        return [arg for arg in self.args if isinstance(arg, Node)]

    def is_stream(self, position: int) -> bool:
        """Return True if the node is the value that a formula takes at a position."""
        return self.op == "stream" and self.args[0] == position


_nodes: WeakValueDictionary[tuple[Any, ...], Node] = WeakValueDictionary()


def make_node(operation: str, *args: Any) -> Node:
    # By id, because `==` of nodes builds a node. A living node keeps its arguments alive, so that
    # ids are unique. By repr, because 0.0 == -0.0.
    key = operation, *(id(arg) if isinstance(arg, Node) else repr(arg) for arg in args)
    return _nodes.setdefault(key, Node(operation, args))


def make_const(value: float) -> Node:
    return make_node("const", float(value))


def stream_nodes(count: int, first: int = 0) -> list[Node]:
    """Return "stream" nodes for the positions `first`, `first + 1`, ... of `count` inputs."""
    return [make_node("stream", position) for position in range(first, first + count)]


def in_order(roots: Iterable[Node]) -> list[Node]:
    """Return all nodes of the graphs that end in `roots`, arguments before their operations."""
    ordered: dict[Node, None] = {}
    stack = [*roots][::-1]
    while stack:
        missing = [node for node in stack[-1].inputs if node not in ordered]
        if missing:
            stack += missing[::-1]
        else:
            ordered[stack.pop()] = None
    return list(ordered)


def rewrite(roots: Iterable[Node], replace: Callable[[Node], Node | None]) -> list[Node]:
    """Return roots of graphs with nodes replaced; unchanged nodes are reused.

    Args:
        replace: `replace(node)` returns a replacement, or None to keep the node. It is called for
            all nodes, arguments first. The arguments of `node` are replaced before the call.
    """
    roots, rewritten = list(roots), dict[Node, Node]()
    for node in in_order(roots):
        args = [rewritten[arg] if isinstance(arg, Node) else arg for arg in node.args]
        is_same = all(arg is old for arg, old in zip(args, node.args, strict=True))
        candidate = node if is_same else make_node(node.op, *args)
        replacement = replace(candidate)
        rewritten[node] = candidate if replacement is None else replacement
    return [rewritten[root] for root in roots]


def lower_moves(roots: Iterable[Node]) -> list[Node]:
    """Return roots with `base + step` in place of `moved(base, step)`; `base - x` for step `-x`."""

    def lower(node: Node) -> Node | None:
        if node.op != "moved":
            return None
        base, step = node.args
        return base - step.args[0] if step.op == "neg" else base + step

    return rewrite(roots, lower)


@dataclass(frozen=True, eq=False)
class FormulaGraph:
    """Checked formula.

    Attributes:
        positional: Names of `var`, `grad` and the slots; names of a composed formula may repeat.
        scalars: Names of the scalars.
        outputs: The results. A "moved" node among their operations marks the step of the variable.
    """

    positional: tuple[str, ...]
    scalars: tuple[str, ...]
    outputs: tuple[Node, ...]

    @lazy
    def results(self) -> list[Node]:
        """Results in plain operations."""
        return lower_moves(self.outputs)

    @lazy
    def nodes(self) -> list[Node]:
        """All nodes of the results, arguments before their operations."""
        return in_order(self.results)

    @lazy
    def streams(self) -> list[int]:
        """Positions of the values that the results depend on."""
        return sorted(int(node.args[0]) for node in self.nodes if node.op == "stream")

    def passes_through(self, result: int, parameter: int) -> bool:
        """Return True if a result is the unchanged value of a positional parameter."""
        return self.results[result].is_stream(parameter)

    def is_rounded(self, result: int) -> bool:
        """Return True if the last operation of a result is arithmetic, which flushes denormals."""
        return self.results[result].op in ROUNDED

    def apply(self, values: Sequence[Node]) -> list[Node]:
        """Return `outputs` with `values[position]` in place of each "stream" node."""

        def replace(node: Node) -> Node | None:
            return values[int(node.args[0])] if node.op == "stream" else None

        return rewrite(self.outputs, replace)
