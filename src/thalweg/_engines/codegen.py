"""Kernel text of all engines: formulas, their scalars, and the streams (tensors) that they write.

A stream is a kernel's tensor with a number for each element: the variable, its gradient, a slot or
the copy. Streams are numbered in this order.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from thalweg._base.lazy import lazy
from thalweg._base.locks import importing
from thalweg._engines.formula_graph import INFIX, FormulaGraph, Node
from thalweg._engines.formula_parser import check_counts, trace_formula
from thalweg._engines.formula_source import FUNCTION_PREFIX, LITERAL, LOCAL_PREFIX
from thalweg._engines.layout import STORAGE_NAMES
from thalweg._engines.random_bits import NARROW, SCALARS
from thalweg.formula import Formula

if TYPE_CHECKING:
    from thalweg._base.rule_passes import Measure
    from thalweg._engines.codecs.codec import Codec

# The largest number of each type that a copy of a variable may have; beyond it copies saturate.
LARGEST = {"float16": 65504.0, "bfloat16": 3.3895313892515355e38}

DECODED = "float32"  # the type of decoded numbers, and of all arithmetic beside encoded slots

Field = str | int | list[str]  # of a template
NONE: Mapping[str, str] = {}
Stages = list[tuple[str, FormulaGraph]]  # formulas of one result, with the names of their functions


@dataclass(frozen=True)
class Kernel:
    """A generated kernel.

    Attributes:
        name: Name of the kernel function, with a hash of everything that determines the kernel.
        source: Text of the kernel.
        scalars: Names of the scalars, in the order of a row of the scalar table.
        measures: How many results a reducing kernel computes for each leaf; else 0.
    """

    name: str
    source: str
    scalars: tuple[str, ...]
    measures: int = 0


def digest(*parts: str) -> str:
    """Return a short hash of texts, for names of files and functions."""
    return hashlib.blake2b("\0".join(parts).encode(), digest_size=12).hexdigest()


def fill(template: str, **fields: Field) -> list[str]:
    """Return the lines of a template with fields replaced, as by `str.format`.

    A field may be a list of lines. Its placeholder must then be alone in a line; the placeholder's
    indentation is added to all lines of the list.
    """
    blocks = {f"{{{name}}}": value for name, value in fields.items() if isinstance(value, list)}
    lines: list[str] = []
    for line in template.strip("\n").splitlines():
        field = line.lstrip()
        if field in blocks:
            indentation = line.removesuffix(field)
            lines += [f"{indentation}{block_line}" for block_line in blocks[field]]
        else:
            lines.append(line.format(**fields))
    return lines


def nest(header: str, body: Iterable[str]) -> list[str]:
    """Return the header of a compound statement, and its indented body."""
    return [header, *("    " + line for line in body)]


def join_lines(lines: Iterable[str]) -> str:
    """Return lines as one text, each ended by a line break."""
    return "".join(f"{line}\n" for line in lines)


def find_codecs(storage: Sequence[str]) -> dict[int, Codec]:
    """Return {index of an encoded stream: its codec} for the storage types of all streams."""
    encoded = [k for k, name in enumerate(storage) if name not in STORAGE_NAMES.values()]
    if not encoded:
        return {}
    with importing:
        from thalweg._engines.codecs import CODECS
    return {stream: CODECS[storage[stream]] for stream in encoded}


def name_scalars(*formulas: FormulaGraph, vectors: Mapping[str, str] = NONE) -> dict[str, str]:
    """Return {name of a scalar in formulas: name in the kernel}.

    Args:
        vectors: {name of a scalar: "row" or "column"} of scalars to leave out.
    """
    names = dict.fromkeys(name for graph in formulas for name in graph.scalars)
    return {name: f"s{index}" for index, name in enumerate(x for x in names if x not in vectors)}


def name_vectors(*formulas: FormulaGraph, vectors: Mapping[str, str]) -> dict[str, str]:
    """Return {name of a vector in formulas: name in the kernel}; see `name_scalars`."""
    names = dict.fromkeys(name for graph in formulas for name in graph.scalars)
    vector_names = [name for name in names if name in vectors]
    return {name: f"{vectors[name]}{index}" for index, name in enumerate(vector_names)}


def read_vectors(names: Mapping[str, str]) -> dict[str, str]:
    """Return {name in formulas: expression of the vector at element i of a row} for all `names`."""
    return {name: f"{x}[i]" if x.startswith("column") else x for name, x in names.items()}


class FormulaWriter:
    """Writer of formulas in the language of an engine.

    Args:
        literal: Name of the kernel function that makes a number of the compute dtype.
    """

    decorator = ""

    def __init__(self, literal: str = LITERAL) -> None:
        self.literal = literal

    def write_number(self, value: float) -> str:
        """Return the text of a number in the type of the arithmetic."""
        # Kernels know no names of infinity and NaN.
        text = "1e999 - 1e999" if math.isnan(value) else repr(value).replace("inf", "1e999")
        return f"{self.literal}({text})"

    def write_operation(self, operation: str, operands: list[str]) -> str:
        """Return the text of an operation on named values."""
        if operation in INFIX:
            return f"{operands[0]} {operation} {operands[1]}"
        if operation == "neg":
            return f"-{operands[0]}"
        return f"{FUNCTION_PREFIX}{operation}({', '.join(operands)})"

    def write_formula(
        self, formula_graph: FormulaGraph, name: str = "node"
    ) -> tuple[list[str], list[str]]:
        """Return lines that compute a formula, and the expressions of its results.

        Args:
            formula_graph: The formula; values have names that begin with `LOCAL_PREFIX`.
            name: The prefix of the names of intermediate values; a number follows.
        """
        texts, lines = dict[Node, str](), list[str]()
        for node in formula_graph.nodes:
            self.write_node(node, texts, lines, name)
        return lines, [texts[result] for result in formula_graph.results]

    def write_node(self, node: Node, texts: dict[Node, str], lines: list[str], name: str) -> None:
        """Set `texts[node]` to a node's expression.

        For an operation, append an assignment to `lines`. The assigned name is `name` and a number.
        """
        if node.op in ("stream", "scalar"):
            texts[node] = f"{LOCAL_PREFIX}{node.args[0]}"
        elif node.op == "const":
            texts[node] = self.write_number(node.args[0])
        else:
            operands = [texts[arg] for arg in node.inputs]
            texts[node] = f"{name}{len(lines)}"
            names = self.name_results(node.op, texts[node])
            lines.append(f"{names} = {self.write_operation(node.op, operands)}")

    def name_results(self, operation: str, name: str) -> str:
        """Return the left side of the assignment of an operation's result: `name` itself."""
        return name

    def define_function(self, name: str, formula_graph: FormulaGraph) -> str:
        """Return the definition of a function that computes a formula of one result."""
        names = (*range(len(formula_graph.positional)), *formula_graph.scalars)
        parameters = ", ".join(f"{LOCAL_PREFIX}{parameter}" for parameter in names)
        lines, (result,) = self.write_formula(formula_graph)
        header = f"{self.decorator}def {FUNCTION_PREFIX}{name}({parameters}):"
        return "\n".join(nest(header, [*lines, f"return {result}"]))


@dataclass(frozen=True)
class Update:
    """Cache key of kernels that update tensors: the formula of an element, and the storage types.

    Attributes:
        formula: `update`, `update_sparse` or `update_untouched` of a rule.
        storage: Storage types of variable, gradient (if any), slots and copy (if any): names of
            dtypes, or of codecs for encoded slots.
        stages: Formulas `(grad, *, scalars) -> grad` applied to the gradient first.
        grad: True if the formula takes a gradient.
        entries: Formulas applied to the entries of a sparse gradient before entries are summed.
            Entries of a 16-bit variable are then rounded to 16 bits.
        before: A formula `(var, *, scalars) -> var` applied to the variable first. The result is
            rounded to the variable's dtype, unless random bits round.
        copy: True if the last stream is a copy of the variable in another dtype. The copy is
            written, and saturates.
        from_copy: True if the copy is read, too. If the copy is not the rounded variable, the
            update begins at the copy. An update that keeps the variable then keeps the copy.
        vectors: (name, "row" or "column") of each scalar that differs between rows or columns.
        draws: True if 16-bit numbers are rounded by random bits.
    """

    formula: Formula
    storage: tuple[str, ...]
    stages: tuple[Formula, ...] = ()
    grad: bool = True
    entries: tuple[Formula, ...] = ()
    before: Formula | None = None
    copy: bool = False
    from_copy: bool = False
    vectors: tuple[tuple[str, str], ...] = ()
    draws: bool = False

    @lazy
    def traced(self) -> TracedUpdate:
        """Graphs and local names, traced once."""
        return TracedUpdate(self)


@dataclass(frozen=True)
class Measurement:
    """Cache key of kernels that reduce formulas: the formulas, and the storage types they read.

    Attributes:
        formulas: `(var, grad, *slots, *, scalars) -> number` each, evaluated in float64, or in the
            compute dtype of the update if the formula is marked `like_update`.
        storage: Storage types of variable, gradient, slots and copy (if any). Streams that no
            formula reads are not loaded.
        compute: The dtype of the update, of stages and of vectors: "float32" or "float64".
        stages: Formulas `(grad, *, scalars) -> grad` that transform the gradient first.
        copy, from_copy, vectors: As for `Update`.
    """

    formulas: tuple[Formula, ...]
    storage: tuple[str, ...]
    compute: str
    stages: tuple[Formula, ...] = ()
    copy: bool = False
    from_copy: bool = False
    vectors: tuple[tuple[str, str], ...] = ()


def distinct_formulas(measures: Sequence[Measure]) -> tuple[Formula, ...]:
    return tuple(dict.fromkeys(measure.function for measure in measures))


class TracedUpdate:
    """Graphs of the formulas of an `Update`, and the names of scalars and vectors in kernels.

    Args:
        update: The update. With `draws`, or with slots in blocks of codes, a row of the address
            table has two more fields: the variable's index and position (see `Streams.base`).

    Attributes:
        storage: Storage types of the streams; "float32" for slots that are decoded first.
        formula: The graph of the update.
        stages, entries, before: Names of functions and graphs of the formulas of `Update`.
        scalar, vectors: {name in formulas: name in the kernel} of scalars and of vectors.
        scalars: The names of scalars in formulas, in the order of a row of scalars.
        vectors_at, width: The index of the first vector in a row of the table, and its length.
        blocks: {stream: codec} of the slots in blocks of codes.
        lower: The stream with the lower bits of the variable, in `split8`; None without one.
        random_streams: {stream rounded by random bits: argument `stream` of `philox.draw_bits`}.

    Raises:
        RuleError: A formula takes or returns a wrong number of values.
    """

    def __init__(self, update: Update) -> None:
        codecs = find_codecs(update.storage)
        self.storage = tuple(
            DECODED if k in codecs else name for k, name in enumerate(update.storage)
        )
        self.blocks = {k: codec for k, codec in codecs.items() if not codec.is_beside}
        self.lower = next((k for k, codec in codecs.items() if codec.is_beside), None)
        self.grad, self.copy, self.from_copy = update.grad, update.copy, update.from_copy
        self.formula = trace_formula(update.formula)
        slot_count = len(self.storage) - 1 - self.grad - self.copy
        check_counts(update.formula, self.grad, slot_count)
        self.stages = _name_stages("stage", update.stages)
        self.entries = _name_stages("entry", update.entries)
        self.before: Stages = []
        if update.before is not None:
            self.before = [("before", trace_formula(update.before))]
            check_counts(update.before, False, 0)
        self._named_formulas = [*self.entries, *self.stages, *self.before]
        formulas = [*(graph for _, graph in self._named_formulas), self.formula]
        vectors = dict(update.vectors)
        self.scalar = name_scalars(*formulas, vectors=vectors)
        self.vectors = name_vectors(self.formula, vectors=vectors)
        # Codes are rounded by a dither, which depends on the step and the position, too.
        has_positions = update.draws or bool(self.blocks)
        if has_positions:
            names = SCALARS if update.draws else SCALARS[:1]
            new_names = [name for name in names if name not in self.scalar]
            self.scalar |= {name: f"s{len(self.scalar) + k}" for k, name in enumerate(new_names)}
        self.scalars = tuple(self.scalar)
        # Of a row of the table, which has sides of matrices beside vectors.
        self.vectors_at = len(self.storage) + 2 * has_positions
        self.width = self.vectors_at + (len(self.vectors) + 2 if self.vectors else 0)
        self.random_streams: dict[int, int] = {}
        if update.draws:
            output_streams = {stream for _, stream in self.written_results()}
            # Stream 1 is the gradient, which has no random bits.
            self.random_streams = {
                k: k and k - 1 for k in sorted(output_streams) if self.storage[k] in NARROW
            }

    @property
    def written_blocks(self) -> dict[int, Codec]:
        """Return {stream: codec} of the slots in blocks of codes that the update changes."""
        output_streams = {stream for _, stream in self.written_results()}
        return {k: codec for k, codec in self.blocks.items() if k in output_streams}

    def define_functions(self, writer: FormulaWriter) -> dict[str, str]:
        """Return {name: source} of the functions that the lines of an element call."""
        return {name: writer.define_function(name, graph) for name, graph in self._named_formulas}

    def name_of(self, stream: int) -> str:
        """Return the variable that holds the value of a stream within the formula."""
        return f"{LOCAL_PREFIX}{stream}"

    def read_streams(self) -> range:
        """Return the indices of the streams that the formula takes."""
        return range(len(self.storage) - self.copy)

    def apply_stages(self, stages: Stages, value: str) -> str:
        """Return the expression that calls the functions of stages on `value`, in order."""
        for name, graph in stages:
            arguments = ", ".join([value, *(self.scalar[scalar] for scalar in graph.scalars)])
            value = f"{FUNCTION_PREFIX}{name}({arguments})"
        return value

    def staged_gradient(self) -> list[str]:
        """Return the line that applies the stages to the gradient, if there are stages."""
        if not self.stages:
            return []
        return [f"{self.name_of(1)} = {self.apply_stages(self.stages, self.name_of(1))}"]

    def local_scalars(self, vectors: Mapping[str, str] | None = None) -> list[str]:
        """Return lines that set the scalars of the formula; they run for each element.

        Args:
            vectors: {name: expression of the vector at an element}; by default `read_vectors`.
        """
        values = {**self.scalar, **(read_vectors(self.vectors) if vectors is None else vectors)}
        return [f"{LOCAL_PREFIX}{name} = {values[name]}" for name in self.formula.scalars]

    def compute_results(self, writer: FormulaWriter, extra_nodes: Sequence[Node] = ()) -> list[str]:
        """Return lines that compute the formula and name its results `out0`, `out1`, ...

        The values of `extra_nodes` get the next names.
        """
        outputs = (*self.formula.outputs, *extra_nodes)
        graph = FormulaGraph(self.formula.positional, self.formula.scalars, outputs)
        lines, results = writer.write_formula(graph)
        return [*lines, *(f"out{index} = {result}" for index, result in enumerate(results))]

    def written_results(self) -> Iterator[tuple[int, int]]:
        """Yield (index of a result, index of its stream), except for results that are inputs."""
        for result in range(len(self.formula.results)):
            stream = result + (self.grad and result > 0)
            if not self.formula.passes_through(result, stream) or (self.before and result == 0):
                yield result, stream

    def writes_copy(self) -> bool:
        leaves_variable = self.formula.passes_through(0, 0) and not self.before
        return self.copy and not (self.from_copy and leaves_variable)


def _name_stages(prefix: str, formulas: tuple[Formula, ...]) -> Stages:
    return [(f"{prefix}{index}", trace_formula(formula)) for index, formula in enumerate(formulas)]
