"""Compiler from a subset of Python, in which kernels are written, to LLVM's intermediate code.

The subset has numbers and pointers; assignments, `if`, `while`, `for` over a `range`, and `for`
over `each`, a range whose iterations are independent; the functions of `primitives`, and functions
of the text itself, which are inlined. A name keeps its kind, except in straight code. Integers have
64 bits. Indices and divisions are not checked.
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
    Code,
    Kind,
    Value,
    common_kind,
)

_SIGNS = {ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=", ast.Eq: "==", ast.NotEq: "!="}
_OF_FLOATS = {ast.Add: "fadd", ast.Sub: "fsub", ast.Mult: "fmul", ast.Div: "fdiv"}
# Division is unsigned: kernels must not divide negative integers.
_OF_INTEGERS = {
    ast.Add: "add", ast.Sub: "sub", ast.Mult: "mul", ast.BitAnd: "and_", ast.BitOr: "or_",
    ast.BitXor: "xor", ast.LShift: "shl", ast.RShift: "ashr", ast.FloorDiv: "udiv",
}  # fmt: skip


class _Distinct(ir.MDValue):
    """Distinct LLVM metadata; compared by identity, as llvmlite merges equal nodes."""

    def __eq__(self, other: object) -> bool:
        return self is other

    def __hash__(self) -> int:
        return id(self)

    def descr(self, buf: list[str]) -> None:
        buf.append(
            f"distinct !{{ {', '.join(operand.get_reference() for operand in self.operands)} }}\n"
        )


@dataclass
class _Variable:
    cell: Any
    kind: Kind
    depth: int


@dataclass
class _Frame:
    """State of a function that is being inlined.

    Attributes:
        end: The block in which the code continues after a return.
        names: The parameters and variables.
        results: The variables that hold the returned values.
    """

    end: Any
    names: dict[str, _Variable] = field(default_factory=dict)
    results: list[_Variable] = field(default_factory=list)


def build_module(name: str, source: str, halves: bool = True) -> ir.Module:
    """Return the LLVM module of a kernel.

    Args:
        name: The kernel function in the source: `f(address)` without a result, or a function of
            several int64 that returns an int64.
        source: Function definitions, and assignments that give primitives other names.
        halves: True if the processor has instructions for float16.
    """
    compiler = _Compiler(source, name, halves)
    results = compiler.write_out(name, compiler.code.arguments)
    compiler.code.end_function(results)
    return compiler.code.module


class _Compiler:
    """Visitor of a source's syntax tree, which writes LLVM instructions for it."""

    def __init__(self, source: str, name: str, halves: bool) -> None:
        self._functions: dict[str, ast.FunctionDef] = {}
        self._aliases: dict[str, ast.expr] = {}
        for node in ast.parse(source).body:
            match node:
                case ast.FunctionDef():
                    self._functions[node.name] = node
                case ast.Assign(targets=[ast.Name(id=alias)]):
                    self._aliases[alias] = node.value
        count = len(self._functions[name].args.args)
        self.code = Code(name, halves, count if count > 1 else 0)
        self._depth = 0
        self._frame = _Frame(None)

    @property
    def _builder(self) -> Any:
        return self.code.builder

    def write_out(self, name: str, arguments: list[Value]) -> list[Value]:
        """Write a call of the source's function `name`, inlined; return the values it returns."""
        node, outer = self._functions[name], self._frame
        self._frame = frame = _Frame(self.code.append_block(f"after.{name}"))
        for parameter, value in zip(node.args.args, arguments, strict=True):
            self._assign_name(parameter.arg, value)
        self._write_body(node.body)
        self.code.go_on_at(frame.end)
        self._frame = outer
        return [self._load_variable(variable) for variable in frame.results]

    # Names

    def _load_variable(self, variable: _Variable) -> Value:
        return Value(self._builder.load(variable.cell), variable.kind)

    def _assign_name(self, name: str, value: Value) -> None:
        """Store a value in the frame's variable `name`; create the variable if it is new.

        Raises:
            TypeError: The variable was created in another block, and has another kind.
        """
        names = self._frame.names
        variable = names.get(name)
        # A name may change its kind in straight code. After a block, its kind would depend on
        # whether the block ran.
        if variable is None or variable.kind != value.kind:
            if variable is not None and variable.depth != self._depth:
                raise TypeError(f"{name} is of two kinds.")
            variable = _Variable(self.code.reserve_stack(value.kind.llvm), value.kind, self._depth)
            names[name] = variable
        self._builder.store(value.llvm, variable.cell)

    # Statements

    def _write_body(self, body: list[ast.stmt]) -> None:
        for statement in body:
            getattr(self, f"_visit_{type(statement).__name__}")(statement)

    def _write_block(self, block: Any, body: list[ast.stmt], next_block: Any) -> None:
        """Write statements into a block, and a jump from its end to the next block."""
        self._builder.position_at_end(block)
        self._depth += 1
        self._write_body(body)
        self._depth -= 1
        self._builder.branch(next_block)

    def _visit_Pass(self, statement: ast.Pass) -> None:
        pass

    def _visit_Expr(self, statement: ast.Expr) -> None:
        if isinstance(statement.value, ast.Call):  # else a docstring
            self._write_call(statement.value)

    def _visit_Assign(self, assignment: Any) -> None:
        """Write an assignment to a name, to an element, or to a tuple of names and elements."""
        (target,) = assignment.targets
        if not isinstance(target, ast.Tuple):
            self._write_target(target, self._write_value(assignment.value))
            return
        is_tuple = isinstance(assignment.value, ast.Tuple)
        values = (
            map(self._write_value, assignment.value.elts)
            if is_tuple
            else self._write_call(assignment.value)
        )
        for element, value in zip(target.elts, list(values), strict=True):
            self._write_target(element, value)

    def _visit_AugAssign(self, assignment: Any) -> None:
        operation = ast.BinOp(assignment.target, assignment.op, assignment.value)
        self._write_target(assignment.target, self._write_value(operation))

    def _write_target(self, target: ast.expr, value: Value) -> None:
        if isinstance(target, ast.Name):
            self._assign_name(target.id, value)
        else:
            pointer, kind = self._write_address(target)
            self._builder.store(self.code.cast_to(value, kind).llvm, pointer)

    def _visit_Return(self, statement: Any) -> None:
        """Store the results of the inlined function, and jump to its end."""
        frame, returned = self._frame, statement.value
        expressions = returned.elts if isinstance(returned, ast.Tuple) else [returned]
        values = [self._write_value(expression) for expression in expressions]
        if not frame.results:
            frame.results = [
                _Variable(self.code.reserve_stack(value.kind.llvm), value.kind, 0)
                for value in values
            ]
        for value, result in zip(values, frame.results, strict=True):
            self._builder.store(self.code.cast_to(value, result.kind).llvm, result.cell)
        self._builder.branch(frame.end)
        # LLVM accepts nothing after a jump, so code after the return needs a block.
        self._builder.position_at_end(self.code.append_block("never"))

    def _visit_If(self, branch: ast.If) -> None:
        then_block, else_block, end_block = map(self.code.append_block, ("then", "else", "after"))
        self._builder.cbranch(self._write_as(BOOL, branch.test), then_block, else_block)
        self._write_block(then_block, branch.body, end_block)
        self._write_block(else_block, branch.orelse, end_block)
        self._builder.position_at_end(end_block)

    def _visit_While(self, loop: ast.While) -> None:
        head_block, body_block, end_block = map(self.code.append_block, ("while", "do", "done"))
        self.code.go_on_at(head_block)
        self._builder.cbranch(self._write_as(BOOL, loop.test), body_block, end_block)
        self._write_block(body_block, loop.body, head_block)
        self._builder.position_at_end(end_block)

    def _visit_For(self, loop: Any) -> None:
        """Write a loop over `range(...)`, or a loop over `each(...)` with parallel iterations."""
        zero, one = ir.Constant(INT64.llvm, 0), ir.Constant(INT64.llvm, 1)
        limits = [self._write_as(INT64, limit) for limit in loop.iter.args]
        start, end, *steps = [zero, *limits] if len(limits) == 1 else limits
        # The body may assign to the target; as in Python, the iterations do not change.
        counter = self.code.reserve_stack(INT64.llvm)
        self._builder.store(start, counter)
        head_block, body_block, next_block, end_block = map(
            self.code.append_block, ("for", "in", "next", "end")
        )
        self.code.go_on_at(head_block)
        counter_value = self._builder.load(counter)
        self._builder.cbranch(
            self._builder.icmp_signed("<", counter_value, end), body_block, end_block
        )
        self._builder.position_at_end(body_block)
        self._assign_name(loop.target.id, Value(counter_value, INT64))
        block_count = len(self.code.function.blocks)
        self._write_block(body_block, loop.body, next_block)
        inner_blocks = [body_block, *self.code.function.blocks[block_count:]]
        self._builder.position_at_end(next_block)
        self._builder.store(
            self._builder.add(counter_value, *(steps or [one]), flags=["nsw"]), counter
        )
        jump = self._builder.branch(head_block)
        if loop.iter.func.id == "each":
            self._mark_parallel(jump, inner_blocks)
        self._builder.position_at_end(end_block)

    def _mark_parallel(self, jump: Any, blocks: list[Any]) -> None:
        """Mark the iterations of a loop as independent. LLVM then adds no tests of addresses.

        Args:
            jump: The jump to the next iteration.
            blocks: The blocks of the loop's body.
        """
        module = self.code.module
        group = _Distinct(module, (), str(len(module.metadata)))
        for instruction in (line for block in blocks for line in block.instructions):
            if instruction.opname in ("load", "store"):
                instruction.set_metadata("llvm.access.group", group)
        accesses = module.add_metadata(["llvm.loop.parallel_accesses", group])
        # LLVM identifies a loop by metadata whose first operand is itself.
        loop = _Distinct(module, (), str(len(module.metadata)))
        loop.operands = loop, accesses
        jump.set_metadata("llvm.loop", loop)

    # Expressions

    def _write_value(self, expression: ast.expr) -> Value:
        return getattr(self, f"_visit_{type(expression).__name__}")(expression)

    def _write_as(self, kind: Kind, expression: ast.expr) -> Any:
        """Write an expression; return its LLVM value, converted to `kind`."""
        return self.code.cast_to(self._write_value(expression), kind).llvm

    def _visit_Constant(self, constant: Any) -> Value:
        return self.code.write_constant(
            constant.value, FLOAT64 if isinstance(constant.value, float) else INT64
        )

    def _visit_Name(self, name: ast.Name) -> Value:
        variable = self._frame.names.get(name.id)
        # A name without an assignment in the frame is an alias of the module.
        if variable is None:
            return self._write_value(self._aliases[name.id])
        return self._load_variable(variable)

    def _visit_Subscript(self, subscript: Any) -> Value:
        pointer, kind = self._write_address(subscript)
        return Value(self._builder.load(pointer), kind)

    def _write_address(self, subscript: Any) -> tuple[Any, Kind]:
        """Write the address of an element such as `a[i]`; return (address, element's kind)."""
        pointer = self._write_value(subscript.value)
        index = self._write_as(INT64, subscript.slice)
        return self._builder.gep(pointer.llvm, [index]), pointer.kind.item

    def _visit_UnaryOp(self, operation: ast.UnaryOp) -> Value:
        """Write a negation, the only unary operation."""
        value = self._write_value(operation.operand)
        write = self._builder.fneg if value.kind.is_float else self._builder.neg
        return Value(write(value.llvm), value.kind)

    def _visit_Compare(self, comparison: ast.Compare) -> Value:
        (op,), (right,) = comparison.ops, comparison.comparators
        return self.code.compare_values(
            _SIGNS[type(op)], self._write_value(comparison.left), self._write_value(right)
        )

    def _visit_BinOp(self, operation: Any) -> Value:
        a, b, kind = self.code.cast_alike(
            self._write_value(operation.left), self._write_value(operation.right)
        )
        name = (_OF_FLOATS if kind.is_float else _OF_INTEGERS)[type(operation.op)]
        return Value(getattr(self._builder, name)(a, b), kind)

    def _visit_BoolOp(self, operation: ast.BoolOp) -> Value:
        """Write `and` or `or`, which skips operands as Python does; return a bool."""
        result_cell = self.code.reserve_stack(BOOL.llvm)
        end_block = self.code.append_block("decided")
        for value in operation.values:
            condition = self._write_as(BOOL, value)
            next_block = self.code.append_block("undecided")
            self._builder.store(condition, result_cell)
            is_conjunction = isinstance(operation.op, ast.And)
            self._builder.cbranch(
                condition, *((next_block, end_block) if is_conjunction else (end_block, next_block))
            )
            self._builder.position_at_end(next_block)
        self.code.go_on_at(end_block)
        return Value(self._builder.load(result_cell), BOOL)

    def _visit_IfExp(self, choice: ast.IfExp) -> Value:
        """Write `a if condition else b`; return the value, in the common kind of `a` and `b`."""
        then_block, else_block, end_block = map(self.code.append_block, ("then", "else", "chosen"))
        self._builder.cbranch(self._write_as(BOOL, choice.test), then_block, else_block)
        self._builder.position_at_end(then_block)
        # An expression may end in another block than it began; the phi needs the last ones.
        then_value, then_block = self._write_value(choice.body), self._builder.block
        self._builder.position_at_end(else_block)
        else_value, else_block = self._write_value(choice.orelse), self._builder.block
        kind, incoming = common_kind(then_value.kind, else_value.kind), []
        for block, value in ((then_block, then_value), (else_block, else_value)):
            self._builder.position_at_end(block)
            incoming.append((self.code.cast_to(value, kind).llvm, block))
            self._builder.branch(end_block)
        self._builder.position_at_end(end_block)
        phi = self._builder.phi(kind.llvm)
        for value, block in incoming:
            phi.add_incoming(value, block)
        return Value(phi, kind)

    def _visit_Call(self, call: ast.Call) -> Value:
        (value,) = self._write_call(call)
        return value

    def _write_call(self, call: Any) -> list[Any]:
        """Write a call of a defined function or a primitive; return its results."""
        name = call.func.id
        alias = self._aliases.get(name)
        name = alias.id if isinstance(alias, ast.Name) else name
        arguments = [self._write_value(argument) for argument in call.args]
        if name in self._functions:
            return self.write_out(name, arguments)
        return [PRIMITIVES[name](self.code, *arguments)]
