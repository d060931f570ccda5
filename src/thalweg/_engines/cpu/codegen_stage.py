"""Write a fused stage as text of a kernel, of what one matrix has of rows and columns."""

from __future__ import annotations

import ast
import copy
import re
from collections.abc import Callable, Mapping
from typing import NamedTuple

from thalweg._engines.formula_parser import FUNCTION_PREFIX, HELPER_PREFIX
from thalweg._engines.fused_stage import LineFormula, Statement

_HELPER = re.compile(rf"\b{FUNCTION_PREFIX}{HELPER_PREFIX}")


class Values(NamedTuple):
    """What matrix `lane` has of rows, columns, or as a whole: a local name each.

    Attributes:
        name: What these names begin with.
        of: "row", "column" or "matrix"; "" for a scalar, of which it is the text.
    """

    name: str
    of: str

    def at(self, line: int) -> str:
        """That of a row, or of a column; that of the matrix."""
        place = {"row": f"_{line}", "column": f"_{line}", "matrix": "_0", "": ""}[self.of]
        return self.name + place


class StageWriter:
    """Writes a stage, whose names and helpers are its own.

    Args:
        title: What these begin with.
        formula: The stage.
        literal: What makes a number of its type.
        in_type: Has a text be in that type.
        counts: How many rows, columns and matrices there are, by what values are of.
    """

    def __init__(
        self,
        title: str,
        formula: LineFormula,
        literal: str,
        in_type: Callable[[str], str],
        counts: Mapping[str, int],
    ) -> None:
        self._prefix = f"{FUNCTION_PREFIX}{title}_{HELPER_PREFIX}"
        self._title, self._formula, self._counts = title, formula, counts
        self._literal, self._in_type = literal, in_type

    def text_of(self, node: ast.AST) -> str:
        """Return a part of the stage as text."""
        return self._in_type(_HELPER.sub(self._prefix, ast.unparse(node)))

    def define_helpers(self) -> list[str]:
        """The functions that it calls."""
        return list(map(self.text_of, self._formula.helpers))

    def write(self, given: Mapping[str, Values]) -> tuple[list[str], list[Values]]:
        """What it does, and what it makes.

        Args:
            given: What it is given, by the names that its statements have for it.
        """
        known, lines = dict(given), list[str]()
        for each in self._formula.statements:
            target = known[each.name] = Values(f"{self._title}_{each.name}", each.of)
            for line in range(self._counts[each.of]):
                if each.over:
                    value = self._mean_of(each, known)
                else:
                    # Conditions among its own are no numbers.
                    texts = {
                        name: f"{self._literal}({x.at(line)})" if name in given else x.at(line)
                        for name, x in known.items()
                    }
                    value = self.text_of(_Named(texts).visit(copy.deepcopy(each.value)))
                lines.append(f"{target.at(line)} = {value}")
        return lines, [known[name] for name in self._formula.results]

    def _mean_of(self, each: Statement, known: Mapping[str, Values]) -> str:
        """The mean over all lines of a matrix, as `mean_over_rows` has it."""
        (name,) = (node.id for node in ast.walk(each.value) if isinstance(node, ast.Name))
        count, literal = self._counts[each.over], self._literal
        values = [f"{literal}({known[name].at(line)})" for line in range(count)]
        while len(values) > 1:
            rest = values[len(values) - len(values) % 2 :]
            pairs = zip(values[::2], values[1::2], strict=False)
            values = [*(f"({a} + {b})" for a, b in pairs), *rest]
        return f"({values[0]} + {literal}(0.0)) / {literal}({count})"


class _Named(ast.NodeTransformer):
    """An expression in which names stand for texts."""

    def __init__(self, texts: Mapping[str, str]) -> None:
        self._texts = texts

    def visit_Name(self, node: ast.Name) -> ast.AST:
        return ast.Name(self._texts.get(node.id, node.id), ast.Load())
