"""Kernels, written in a little of Python, become LLVM's intermediate code.

Their language has numbers, pointers and contiguous arrays; assignments, `if`, `while`, and `for`
over a `range`, or over `each` number of one where no iteration reads or writes what another one
writes; the functions of `primitives`, and functions of the text itself, which are written out
where they are called. A name keeps its kind, but where the code is straight. Arithmetic of integers
is of 64 bits, and nothing is checked: no index, no division.
"""

# llvmlite has no types.
# pyright: basic
from __future__ import annotations

import ast
from dataclasses import dataclass, field
from typing import Any

from llvmlite import ir

from thalweg._engines.cpu.primitives import (
    BOOL,
    FLOAT64,
    INT64,
    PRIMITIVES,
    Array,
    Code,
    Kind,
    Value,
    common_kind,
)

_SIGNS = {ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=", ast.Eq: "==", ast.NotEq: "!="}
_OF_FLOATS = {ast.Add: "fadd", ast.Sub: "fsub", ast.Mult: "fmul", ast.Div: "fdiv"}
_OF_INTEGERS = {
    ast.Add: "add", ast.Sub: "sub", ast.Mult: "mul", ast.BitAnd: "and_", ast.BitOr: "or_",
    ast.BitXor: "xor", ast.LShift: "shl", ast.RShift: "ashr", ast.FloorDiv: "udiv",
}  # fmt: skip


class _Distinct(ir.MDValue):
    """Metadata that is none other, however alike; llvmlite, too, takes equal nodes for one."""

    def __eq__(self, other: object) -> bool:
        return self is other

    def __hash__(self) -> int:
        return id(self)

    def descr(self, buf: list[str]) -> None:
        buf.append(f"distinct !{{ {', '.join(each.get_reference() for each in self.operands)} }}\n")


@dataclass
class _Variable:
    room: Any
    kind: Kind
    depth: int


@dataclass
class _Frame:
    """A function that is being written out.

    Attributes:
        names: Its parameters and variables.
        results: Where what it returns is kept.
        end: Where the code goes on after it has returned.
    """

    end: Any
    names: dict[str, _Variable | Array] = field(default_factory=dict)
    results: list[_Variable] = field(default_factory=list)


def build_module(name: str, source: str, halves: bool = True) -> ir.Module:
    """The module of a kernel.

    Args:
        name: Of the function that is the kernel. It takes an address and returns nothing; or it
            takes several words and returns one.
        source: Its text, with the functions that it calls and other names for primitives.
        halves: Whether the processor has instructions for float16.
    """
    compiler = _Compiler(source, name, halves)
    results = compiler.write_out(name, compiler.code.arguments)
    compiler.code.end_function(results)
    return compiler.code.module


class _Compiler:
    def __init__(self, source: str, name: str, halves: bool) -> None:
        self._defined: dict[str, ast.FunctionDef] = {}
        self._alias: dict[str, ast.expr] = {}
        for node in ast.parse(source).body:
            match node:
                case ast.FunctionDef():
                    self._defined[node.name] = node
                case ast.Assign(targets=[ast.Name(id=alias)]):
                    self._alias[alias] = node.value
        count = len(self._defined[name].args.args)
        self.code = Code(name, halves, count if count > 1 else 0)
        self._depth = 0
        self._now = _Frame(None)

    @property
    def _builder(self) -> Any:
        return self.code.builder

    def write_out(self, name: str, given: list[Any]) -> list[Value]:
        """Write the body of a function; returns its results."""
        node, outer = self._defined[name], self._now
        self._now = frame = _Frame(self.code.append_block(f"after.{name}"))
        for parameter, value in zip(node.args.args, given, strict=True):
            self._assign_name(parameter.arg, value)
        self._write_body(node.body)
        self.code.go_on_at(frame.end)
        self._now = outer
        return [self._load_variable(each) for each in frame.results]

    # Names

    def _load_variable(self, variable: _Variable) -> Value:
        return Value(self._builder.load(variable.room), variable.kind)

    def _assign_name(self, name: str, value: Any) -> None:
        names = self._now.names
        if isinstance(value, Array):
            names[name] = value
            return
        known = names.get(name)
        if not isinstance(known, _Variable) or known.kind != value.kind:
            if isinstance(known, _Variable) and known.depth != self._depth:
                raise TypeError(f"{name} is of two kinds.")
            known = _Variable(self.code.reserve_stack(value.kind.llvm), value.kind, self._depth)
            names[name] = known
        self._builder.store(value.llvm, known.room)

    # Statements

    def _write_body(self, body: list[ast.stmt]) -> None:
        for statement in body:
            getattr(self, f"_visit_{type(statement).__name__}")(statement)

    def _write_block(self, block: Any, body: list[ast.stmt], then: Any) -> None:
        """Write statements into a block, from which the code goes on at another."""
        self._builder.position_at_end(block)
        self._depth += 1
        self._write_body(body)
        self._depth -= 1
        self._builder.branch(then)

    def _visit_Pass(self, node: ast.Pass) -> None:
        pass

    def _visit_Expr(self, node: ast.Expr) -> None:
        if isinstance(node.value, ast.Call):  # else a docstring
            self._write_call(node.value)

    def _visit_Assign(self, node: Any) -> None:
        (target,) = node.targets
        if not isinstance(target, ast.Tuple):
            self._write_target(target, self._write_value(node.value))
            return
        is_tuple = isinstance(node.value, ast.Tuple)
        values = (
            map(self._write_value, node.value.elts) if is_tuple else self._write_call(node.value)
        )
        for one, value in zip(target.elts, list(values), strict=True):
            self._write_target(one, value)

    def _visit_AugAssign(self, node: Any) -> None:
        before = ast.Name(node.target.id) if isinstance(node.target, ast.Name) else node.target
        self._write_target(node.target, self._write_value(ast.BinOp(before, node.op, node.value)))

    def _write_target(self, target: ast.expr, value: Any) -> None:
        if isinstance(target, ast.Name):
            self._assign_name(target.id, value)
        else:
            place, kind = self._write_address(target)
            self._builder.store(self.code.cast_to(value, kind).llvm, place)

    def _visit_Return(self, node: Any) -> None:
        frame, returned = self._now, node.value
        several = returned.elts if isinstance(returned, ast.Tuple) else [returned]
        values = [self._write_value(each) for each in several]
        if not frame.results:
            frame.results = [
                _Variable(self.code.reserve_stack(value.kind.llvm), value.kind, 0)
                for value in values
            ]
        for value, result in zip(values, frame.results, strict=True):
            self._builder.store(self.code.cast_to(value, result.kind).llvm, result.room)
        self._builder.branch(frame.end)
        self._builder.position_at_end(self.code.append_block("never"))

    def _visit_If(self, node: ast.If) -> None:
        yes, no, after = map(self.code.append_block, ("then", "else", "after"))
        self._builder.cbranch(self._write_condition(node.test), yes, no)
        self._write_block(yes, node.body, after)
        self._write_block(no, node.orelse, after)
        self._builder.position_at_end(after)

    def _visit_While(self, node: ast.While) -> None:
        head, body, after = map(self.code.append_block, ("while", "do", "done"))
        self.code.go_on_at(head)
        self._builder.cbranch(self._write_condition(node.test), body, after)
        self._write_block(body, node.body, head)
        self._builder.position_at_end(after)

    def _visit_For(self, node: Any) -> None:
        limits = [self.code.cast_to(self._write_value(each), INT64).llvm for each in node.iter.args]
        first, *more = [ir.Constant(INT64.llvm, 0), *limits] if len(limits) == 1 else limits
        end, step = [*more, ir.Constant(INT64.llvm, 1)][:2]
        counter = self.code.reserve_stack(INT64.llvm)
        self._builder.store(first, counter)
        head, body, following, after = map(self.code.append_block, ("for", "in", "next", "end"))
        self.code.go_on_at(head)
        now = self._builder.load(counter)
        self._builder.cbranch(self._builder.icmp_signed("<", now, end), body, after)
        self._builder.position_at_end(body)
        self._assign_name(node.target.id, Value(now, INT64))
        written = len(self.code.function.blocks)
        self._write_block(body, node.body, following)
        inner = [body, *self.code.function.blocks[written:]]
        self._builder.position_at_end(following)
        self._builder.store(self._builder.add(now, step, flags=["nsw"]), counter)
        again = self._builder.branch(head)
        if node.iter.func.id == "each":
            self._mark_parallel(again, inner)
        self._builder.position_at_end(after)

    def _mark_parallel(self, again: Any, blocks: list[Any]) -> None:
        """Tell LLVM that iterations of a loop are independent: else it compares addresses before.

        Args:
            again: Its jump to the next iteration.
            blocks: What is done in one.
        """
        module = self.code.module
        group = _Distinct(module, (), str(len(module.metadata)))
        for instruction in (each for block in blocks for each in block.instructions):
            if instruction.opname in ("load", "store"):
                instruction.set_metadata("llvm.access.group", group)
        accesses = module.add_metadata(["llvm.loop.parallel_accesses", group])
        loop = _Distinct(module, (), str(len(module.metadata)))
        loop.operands = loop, accesses
        again.set_metadata("llvm.loop", loop)

    # Expressions

    def _write_value(self, node: ast.expr) -> Any:
        return getattr(self, f"_visit_{type(node).__name__}")(node)

    def _write_condition(self, node: ast.expr) -> Any:
        return self.code.cast_to(self._write_value(node), BOOL).llvm

    def _visit_Constant(self, node: Any) -> Value:
        return self.code.write_constant(
            node.value, FLOAT64 if isinstance(node.value, float) else INT64
        )

    def _visit_Name(self, node: ast.Name) -> Any:
        known = self._now.names.get(node.id)
        if known is None:  # a constant
            return self._write_value(self._alias[node.id])
        return known if isinstance(known, Array) else self._load_variable(known)

    def _visit_Subscript(self, node: Any) -> Value:
        if isinstance(node.value, ast.Attribute):  # a shape
            return self._write_value(node.value.value).shape[node.slice.value]
        place, kind = self._write_address(node)
        return Value(self._builder.load(place), kind)

    def _write_address(self, node: Any) -> tuple[Any, Kind]:
        """The address of an element, and its kind."""
        home = self._write_value(node.value)
        indices = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        place, *rest = [self.code.cast_to(self._write_value(each), INT64).llvm for each in indices]
        if isinstance(home, Array):
            for length, index in zip(home.shape[1:], rest, strict=True):
                place = self._builder.add(self._builder.mul(place, length.llvm), index)
            home = home.data
        return self._builder.gep(home.llvm, [place]), home.kind.item

    def _visit_UnaryOp(self, node: ast.UnaryOp) -> Value:
        value = self._write_value(node.operand)
        if isinstance(node.op, ast.UAdd):
            return value
        write = self._builder.fneg if value.kind.is_float else self._builder.neg
        return Value(write(value.llvm), value.kind)

    def _visit_Compare(self, node: ast.Compare) -> Value:
        (op,), (right,) = node.ops, node.comparators
        return self.code.compare_values(
            _SIGNS[type(op)], self._write_value(node.left), self._write_value(right)
        )

    def _visit_BinOp(self, node: Any) -> Value:
        a, b, kind = self.code.cast_alike(
            self._write_value(node.left), self._write_value(node.right)
        )
        name = (_OF_FLOATS if kind.is_float else _OF_INTEGERS)[type(node.op)]
        return Value(getattr(self._builder, name)(a, b), kind)

    def _visit_BoolOp(self, node: ast.BoolOp) -> Value:
        found = self.code.reserve_stack(BOOL.llvm)
        after = self.code.append_block("decided")
        for value in node.values:
            condition, more = self._write_condition(value), self.code.append_block("undecided")
            self._builder.store(condition, found)
            is_and = isinstance(node.op, ast.And)
            self._builder.cbranch(condition, *((more, after) if is_and else (after, more)))
            self._builder.position_at_end(more)
        self.code.go_on_at(after)
        return Value(self._builder.load(found), BOOL)

    def _visit_IfExp(self, node: ast.IfExp) -> Value:
        yes, no, after = map(self.code.append_block, ("then", "else", "chosen"))
        self._builder.cbranch(self._write_condition(node.test), yes, no)
        self._builder.position_at_end(yes)
        one, yes = self._write_value(node.body), self._builder.block
        self._builder.position_at_end(no)
        other, no = self._write_value(node.orelse), self._builder.block
        kind, chosen = common_kind(one.kind, other.kind), []
        for block, value in ((yes, one), (no, other)):
            self._builder.position_at_end(block)
            chosen.append((self.code.cast_to(value, kind).llvm, block))
            self._builder.branch(after)
        self._builder.position_at_end(after)
        found = self._builder.phi(kind.llvm)
        for value, block in chosen:
            found.add_incoming(value, block)
        return Value(found, kind)

    def _visit_Call(self, node: ast.Call) -> Any:
        (value,) = self._write_call(node)
        return value

    def _write_call(self, node: Any) -> list[Any]:
        """What a call returns."""
        name = node.func.attr if isinstance(node.func, ast.Attribute) else node.func.id
        alias = self._alias.get(name)
        name = alias.id if isinstance(alias, ast.Name) else name
        given = [self._write_value(each) for each in node.args]
        if name in self._defined:
            return self.write_out(name, given)
        if name == "array":
            return [Array(given[0], tuple(given[1:]))]
        if name == "len":
            return [given[0].shape[0]]
        return [PRIMITIVES[name](self.code, *given)]
