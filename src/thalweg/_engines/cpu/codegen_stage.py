"""Source of fused stages over the rows and columns of one matrix."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from thalweg._engines.codegen import FormulaWriter
from thalweg._engines.formula_graph import Node
from thalweg._engines.fused_stage import MEANS, LineFormula


class Values(NamedTuple):
    """Local names of the numbers of rows or columns of matrix `lane`, or of one number.

    Attributes:
        name: The beginning of these names.
        axis: "row", "column" or "matrix"; "" for a scalar, of which `name` is the text.
    """

    name: str
    axis: str

    def at(self, line: int) -> str:
        """Return the text of the number of a row or column, or of the one number."""
        suffix = {"row": f"_{line}", "column": f"_{line}", "matrix": "_0", "": ""}[self.axis]
        return self.name + suffix


class StageWriter(FormulaWriter):
    """Writer of a fused stage.

    Args:
        title: The beginning of the names of intermediate values.
        literal: As for `FormulaWriter`.
        counts: The number of rows, columns and matrices, by the axis of values.
    """

    def __init__(self, prefix: str, literal: str, counts: Mapping[str, int]) -> None:
        super().__init__(literal)
        self._prefix, self._counts = prefix, counts

    def write_stage(
        self, formula: LineFormula, inputs: Mapping[str, Values]
    ) -> tuple[list[str], list[Values]]:
        """Return assignments that compute a stage, and its results.

        Args:
            inputs: The values of its parameters by name.
        """
        values, lines = dict[Node, Values](), list[str]()
        for node in formula.graph.nodes:
            kind = formula.kinds[node]
            if node.op == "scalar":
                values[node] = inputs[node.args[0]]
            elif node.op == "const":
                values[node] = Values(self.write_number(node.args[0]), kind)
            else:
                values[node] = target = Values(f"{self._prefix}_node{len(values)}", kind)
                for line in range(self._counts[kind]):
                    lines.append(f"{target.at(line)} = {self._write_line(node, values, line)}")
        return lines, [values[result] for result in formula.graph.results]

    def _write_line(self, node: Node, node_values: Mapping[Node, Values], index: int) -> str:
        """Return the expression of an operation for one row or column.

        Args:
            node: The operation. A mean reads all rows or columns of its operand.
            node_values: The names of the values of nodes that are written already.
            index: The index of the row or column.
        """
        if node.op in MEANS:
            (arg,) = node.inputs
            count = self._counts[MEANS[node.op]]
            return self._write_mean(
                [self._read(arg, node_values, position) for position in range(count)]
            )
        return self.write_operation(
            node.op, [self._read(arg, node_values, index) for arg in node.inputs]
        )

    def _read(self, node: Node, node_values: Mapping[Node, Values], index: int) -> str:
        """Return the text of an operand for the row or column `index`."""
        text = node_values[node].at(index)
        return f"{self.literal}({text})" if node.op == "scalar" else text

    def _write_mean(self, terms: list[str]) -> str:
        """Return the mean of terms, with the bits of `mean_over_rows`."""
        divisor = f"{self.literal}({len(terms)})"
        while len(terms) > 1:
            remainder = terms[len(terms) - len(terms) % 2 :]
            pairs = zip(terms[::2], terms[1::2], strict=False)
            terms = [*(f"({a} + {b})" for a, b in pairs), *remainder]
        return f"({terms[0]} + {self.literal}(0.0)) / {divisor}"
