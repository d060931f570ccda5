"""Source of fused stages over the rows and columns of one matrix."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from thalweg._engines.codegen import FormulaWriter, fill, nest
from thalweg._engines.formula_graph import Node
from thalweg._engines.fused_stage import MEANS, LineFormula

LINE = "@"  # the index of a row or column, in texts
_MEAN = """
step = 1
while step < {count}:
    for i in range(0, {count} - step, 2 * step):
        {values}[i] = {values}[i] + {values}[i + step]
    step += step
{name} = ({values}[0] + {literal}(0.0)) / {literal}({count})
"""


class StageWriter(FormulaWriter):
    """Writer of loops that compute a fused stage, a function of row and column vectors of a matrix.

    Args:
        formula: The stage.
        prefix: The beginning of the names of intermediate values.
        literal: As for `FormulaWriter`.
        inputs: {parameter: expression of its value}. `LINE` stands for the index of a row or
            column.
        counts: {"row" or "column": number}. An integer unrolls loops; a text is an expression.
        scratch: If counts are texts: a pointer to memory for a number per row or column.
    """

    def __init__(
        self,
        formula: LineFormula,
        prefix: str,
        literal: str,
        inputs: Mapping[str, str],
        counts: Mapping[str, str | int],
        scratch: str = "",
    ) -> None:
        super().__init__(literal)
        self._kinds, self._prefix, self._inputs = formula.kinds, prefix, inputs
        self._counts, self._scratch = counts, scratch
        self._names = {node: f"{prefix}_node{k}" for k, node in enumerate(formula.kinds)}
        # Texts of scalars and of numbers of the matrix that are computed.
        self._texts: dict[Node, str] = {}

    def write(self, stores: Mapping[str, Sequence[tuple[Node, str]]]) -> list[str]:
        """Return lines that compute the stage.

        Args:
            stores: {"row" or "column": pairs of a result and the template of its store statement}.
                In a template `{0}` stands for the result, and `LINE` for the index of the row or
                column.
        """
        lines = [f"{self._prefix}_scratch = {self._scratch}"] if self._scratch else list[str]()
        # A mean needs a complete loop before the loops that read it.
        for node in self._kinds:
            if node.op in MEANS:
                lines += self._write_mean(node)
                self._texts[node] = self._names[node]
        for axis, pairs in stores.items():
            lines += self._loop(axis, pairs) if pairs else []
        return lines

    def _write_mean(self, node: Node) -> list[str]:
        """Return lines that compute the mean `node`, with the bits of `mean_over_rows`."""
        axis, (arg,), name = MEANS[node.op], node.inputs, self._names[node]
        count = self._counts[axis]
        if isinstance(count, str):
            values = f"{self._prefix}_scratch"
            lines = self._loop(axis, [(arg, f"{values}[{LINE}] = {{0}}")])
            return lines + fill(_MEAN, name=name, count=count, values=values, literal=self.literal)
        lines = self._loop(axis, [(arg, f"{name}_term_{LINE} = {{0}}")])
        terms = [f"{name}_term_{k}" for k in range(count)]
        while len(terms) > 1:
            remainder = terms[len(terms) - len(terms) % 2 :]
            pairs = zip(terms[::2], terms[1::2], strict=False)
            terms = [*(f"({a} + {b})" for a, b in pairs), *remainder]
        mean = f"({terms[0]} + {self.literal}(0.0)) / {self.literal}({count})"
        return [*lines, f"{name} = {mean}"]

    def _loop(self, axis: str, pairs: Sequence[tuple[Node, str]]) -> list[str]:
        """Return a loop over rows or columns that computes nodes and stores the results.

        Before the loop, the lines compute numbers of the whole matrix that the nodes read.

        Args:
            axis: "row" or "column".
            pairs: The nodes, with the templates of their store statements.
        """
        outer_lines, body, texts = list[str](), list[str](), dict[Node, str]()
        for node in self._order_nodes(node for node, _ in pairs):
            is_of_line = self._kinds[node] == axis
            name = f"{self._names[node]}_{LINE}" if is_of_line else self._names[node]
            if node.op == "scalar":
                text = f"{self.literal}({self._inputs[node.args[0]]})"
                if is_of_line:  # a store of this loop may overwrite the input
                    body.append(f"{name} = {text}")
                    text = name
            elif node.op == "const":
                text = self.write_number(node.args[0])
            else:
                operands = [texts.get(arg) or self._texts[arg] for arg in node.inputs]
                operation, text = f"{name} = {self.write_operation(node.op, operands)}", name
                (body if is_of_line else outer_lines).append(operation)
            (texts if is_of_line else self._texts)[node] = text
        body += [store.format(texts.get(node) or self._texts[node]) for node, store in pairs]
        count = self._counts[axis]
        if isinstance(count, str):
            header = f"for i in each({count}):"
            return [*outer_lines, *nest(header, [line.replace(LINE, "i") for line in body])]
        return outer_lines + [line.replace(LINE, str(k)) for k in range(count) for line in body]

    def _order_nodes(self, roots: Iterable[Node]) -> list[Node]:
        """Return `roots` and the nodes on which they depend, except nodes in `_texts`, in order."""
        needed_nodes, stack = set[Node](), [*roots]
        while stack:
            node = stack.pop()
            if node not in needed_nodes and node not in self._texts:
                needed_nodes.add(node)
                stack += node.inputs
        return [node for node in self._kinds if node in needed_nodes]
