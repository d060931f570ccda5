"""Formulas and inputs of a measuring kernel, for the code generators of all engines."""

from __future__ import annotations

from collections.abc import Mapping

from thalweg._engines.codegen import NONE, codecs_of, name_scalars, name_vectors
from thalweg._engines.formula_graph import FormulaGraph
from thalweg._engines.formula_parser import trace_formula
from thalweg._engines.formula_source import count_of, place_of
from thalweg.errors import RuleError
from thalweg.formula import Formula, is_like_update


class Sweep:
    """Graphs of measure formulas, and the streams and scalars that they read per element.

    Args:
        formulas: `(var, grad, *slots, *, scalars) -> number` each, evaluated in float64, or in the
            compute dtype of the update if the formula is marked `like_update`.
        stages: Formulas `(grad, *, scalars) -> grad` that transform the gradient first.
        storage: Storage types of variable, gradient, slots and copy (if any). Streams that no
            formula reads are not loaded.
        readable: Number of streams that formulas may read, from the first.
        from_copy: The last of `storage` is a copy at which an update may begin; see
            `thalweg._engines.codegen.Update`.
        vectors: "row" or "column" of each scalar that differs between rows or columns, by name.

    Attributes:
        used, read: The streams that formulas read, in order; `read` includes the copy.
        codecs: Codecs of the encoded slots that formulas read, by stream.
        copy: The stream of the copy, or None if formulas do not read the variable.
        arguments: The names of the kernel's parameters: streams, vectors, scalars.

    Raises:
        RuleError: A formula has more parameters than `readable`, or several results.
    """

    def __init__(
        self,
        formulas: tuple[Formula, ...],
        stages: tuple[Formula, ...],
        storage: tuple[str, ...],
        readable: int,
        from_copy: bool,
        vectors: Mapping[str, str] = NONE,
    ) -> None:
        self.measures = [trace_formula(formula) for formula in formulas]
        for formula, graph in zip(formulas, self.measures, strict=True):
            _check_measure(formula, graph, readable)
        self.are_like_update = list(map(is_like_update, formulas))
        self.storage = storage
        self.used = sorted({stream for measure in self.measures for stream in measure.streams})
        self.copy = len(storage) - 1 if from_copy and 0 in self.used else None
        self.read = self.used if self.copy is None else [*self.used, self.copy]
        self.codecs = {k: codec for k, codec in codecs_of(storage).items() if k in self.read}
        self.stages = [trace_formula(stage) for stage in stages] if 1 in self.used else []
        self.scalar = name_scalars(*self.stages, *self.measures, vectors=vectors)
        self.vectors = name_vectors(*self.measures, vectors=vectors)
        self.scalars = tuple(self.scalar)
        parameter_names = [*self.vectors.values(), *self.scalar.values()]
        self.arguments = [*(f"p{stream}" for stream in self.read), *parameter_names]


def _check_measure(formula: Formula, formula_graph: FormulaGraph, streams: int) -> None:
    if len(formula_graph.results) == 1 and len(formula_graph.positional) <= streams:
        return
    raise RuleError(
        f"{place_of(formula)} takes {count_of(len(formula_graph.positional), 'value')} and returns"
        f" {len(formula_graph.results)}; a measure of {count_of(streams, 'tensor')} takes up to"
        f" {streams} (var, grad, *slots) and returns 1."
    )
