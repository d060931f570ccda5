"""A formula's operations as a GPU does them exactly: each rounded once, denormals as chosen."""

from __future__ import annotations

import ast
import copy
from typing import Any, TypeVar

import numpy as np

from thalweg._engines.formula_parser import FUNCTION_PREFIX, LITERAL

Node = TypeVar("Node", bound=ast.AST)

_ROUNDED = (ast.Add, ast.Sub, ast.Mult, ast.Div)
# Functions whose results may be denormal where no argument is.
_SHRINKING = {f"{FUNCTION_PREFIX}{name}" for name in ("square", "exp", "power", "narrow")}


def make_exact(node: Node, compute: str, flush: bool) -> Node:
    """A part of a transcript, written for a GPU.

    Args:
        node: The part; it stays as it is.
        compute: "float32" or "float64".
        flush: Whether denormals are zero.
    """
    return _Exact(np.dtype(compute).type, flush).visit(copy.deepcopy(node))


def text_of(node: ast.AST) -> str:
    """A part of a program as text."""
    return ast.unparse(ast.fix_missing_locations(node))


class _Exact(ast.NodeTransformer):
    def __init__(self, compute: Any, flush: bool) -> None:
        self._compute, self._flush = compute, flush

    def _flush_node(self, node: ast.expr) -> ast.expr:
        if not self._flush:
            return node
        return ast.Call(ast.Name("flush", ast.Load()), [node], [])

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        left, right = self.visit(node.left), self.visit(node.right)
        if not isinstance(node.op, _ROUNDED):
            return ast.BinOp(left, node.op, right)
        if isinstance(node.op, ast.Div):
            return self._flush_node(ast.Call(ast.Name("divide", ast.Load()), [left, right], []))
        return self._flush_node(ast.BinOp(left, node.op, right))

    def visit_Call(self, node: ast.Call) -> ast.AST:
        if isinstance(node.func, ast.Name) and node.func.id == LITERAL:
            return self._write_literal(node)
        made = ast.Call(node.func, [self.visit(each) for each in node.args], [])
        name = node.func.id if isinstance(node.func, ast.Name) else ""
        return self._flush_node(made) if name in _SHRINKING else made

    def _write_literal(self, node: ast.Call) -> ast.AST:
        (written,) = node.args
        if not isinstance(written, ast.Constant):  # NaN, as a difference
            return ast.Call(node.func, [ast.parse("float('nan')", mode="eval").body], [])
        value = self._compute(written.value)
        if self._flush and abs(value) < np.finfo(self._compute).tiny:
            value = value * self._compute(0)
        number = float(value)
        text = f"float('{number}')" if np.isinf(number) else repr(number)
        return ast.Call(node.func, [ast.parse(text, mode="eval").body], [])
