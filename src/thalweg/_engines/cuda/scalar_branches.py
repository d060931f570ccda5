"""Graph analysis of `where` nodes with a scalar condition, which is equal for all elements."""

from __future__ import annotations

from thalweg._engines.formula_graph import FormulaGraph, Node, in_order

_LEAVES = ("stream", "scalar", "const")


def find_branches(graph: FormulaGraph) -> dict[Node, set[Node]]:
    """Return {`where` node to compile as an `if` statement: nodes to compute inside its branches}.

    The condition of the `where` is a scalar; both choices have a value per element. A node inside
    is an operation that only one choice uses. A `where` without nodes inside is left out.
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
