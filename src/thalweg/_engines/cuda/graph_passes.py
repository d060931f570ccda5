"""Passes over graphs of formulas: branches on scalars, and quotients by roots."""

from __future__ import annotations

from collections import Counter

from thalweg._engines.formula_graph import FormulaGraph, Node, in_order, make_const, make_node

BY_ROOT = "by_root"  # a / (sqrt(v) + epsilon)
BY_CORRECTED_ROOT = "by_root_corrected"  # a / (sqrt(v) / correction + epsilon)
ITEMS = ("quotient", "root")  # the two results
_LEAVES = ("stream", "scalar", "const")


def fuse_roots(graph: FormulaGraph) -> FormulaGraph:
    """Return a graph in which one operation computes `x / (sqrt(y) + s)` for a scalar `s`.

    The operation returns quotient and root; a node of an operation in `ITEMS` selects one of both.
    """
    uses = Counter(arg for node in graph.nodes for arg in node.inputs)
    matches: dict[Node, tuple[str, list[Node]]] = {}
    by_root: dict[Node, Node] = {}
    for node in graph.nodes:
        match = _match(node, uses)
        # An operation also computes the root, for all its users, and so only one can.
        if match and match[2] not in by_root:
            matches[node], by_root[match[2]] = match[:2], node
    rewritten: dict[Node, Node] = {}

    def replace(node: Node) -> Node:
        """Return a node after fusion; cached in `rewritten`."""
        if node not in rewritten:
            quotient = by_root.get(node, node)
            if quotient in matches:
                operation, operands = matches[quotient]
                fused = make_node(operation, *map(replace, operands))
                rewritten[node] = make_node(ITEMS[quotient is not node], fused)
            else:
                args = [replace(arg) if isinstance(arg, Node) else arg for arg in node.args]
                rewritten[node] = make_node(node.op, *args)
        return rewritten[node]

    results = tuple(map(replace, graph.results)) if matches else graph.outputs
    return FormulaGraph(graph.positional, graph.scalars, results)


def _match(node: Node, uses: Counter[Node]) -> tuple[str, list[Node], Node] | None:
    """Match `x / (sqrt(y) + s)` or `x / (sqrt(y) / c + s)`, with scalars `s` and `c`.

    Returns:
        (name of the fused operation, operands [x, y, c or 1, s], node of the root). None if the
        node does not match, or if the divisor is used elsewhere.
    """
    if node.op != "/" or not (isinstance(node.args[1], Node) and node.args[1].op == "+"):
        return None
    numerator, divisor = node.args
    scalars = [arg for arg in divisor.args if _is_scalar(arg)]
    if len(scalars) != 1 or uses[divisor] != 1:
        return None
    (root,) = (arg for arg in divisor.args if arg is not scalars[0])
    correction, operation = make_const(1.0), BY_ROOT
    if root.op == "/" and uses[root] == 1 and _is_scalar(root.args[1]):
        (root, correction), operation = root.args, BY_CORRECTED_ROOT
    # A numerator that needs the root cannot be an operand of the operation that computes it.
    if root.op != "sqrt" or root in {*in_order([numerator])}:
        return None
    return operation, [numerator, root.args[0], correction, scalars[0]], root


def _is_scalar(node: Node) -> bool:
    """Return True if a node is a scalar, a constant or a row or column vector."""
    return node.op in ("scalar", "const")


def find_branches(graph: FormulaGraph) -> dict[Node, set[Node]]:
    """Return {`where` node to compile as an `if` statement: nodes to compute inside the branches}.

    The condition of such a `where` is a scalar, and both choices have a value per element. Only
    operations that one choice alone uses are inside. Without such operations, there is no `if`.
    """
    element_nodes: set[Node] = set()
    users: dict[Node, set[Node]] = {}
    for node in graph.nodes:
        if node.op == "stream" or any(arg in element_nodes for arg in node.inputs):
            element_nodes.add(node)
        for arg in node.inputs:
            users.setdefault(arg, set()).add(node)
    results, branch_nodes = set(graph.results), set[Node]()
    branches: dict[Node, set[Node]] = {}
    for node in reversed(graph.nodes):
        if node.op != "where" or node.args[0] in element_nodes or node in branch_nodes:
            continue
        true_nodes, false_nodes = (set(in_order([choice])) for choice in node.args[1:])
        candidates = (true_nodes ^ false_nodes) & element_nodes - results
        inner_nodes = set[Node]()
        # Users come before their arguments.
        for candidate in reversed(graph.nodes):
            is_operation = candidate in candidates and candidate.op not in _LEAVES
            if is_operation and users[candidate] <= {node, *inner_nodes}:
                inner_nodes.add(candidate)
        if inner_nodes and element_nodes.issuperset(node.args[1:]):
            branches[node] = inner_nodes
            branch_nodes |= inner_nodes
    return branches
