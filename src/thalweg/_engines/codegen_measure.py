"""Formulas and inputs of a reducing kernel, for the code generators of all engines."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

from thalweg._base.locks import importing
from thalweg._base.rule_passes import Measure
from thalweg._engines.codegen import (
    Field,
    FormulaWriter,
    Measurement,
    distinct_formulas,
    find_codecs,
    name_scalars,
    name_vectors,
)
from thalweg._engines.formula_graph import FormulaGraph
from thalweg._engines.formula_parser import trace_formula
from thalweg._engines.formula_source import count_of, place_of
from thalweg.errors import RuleError
from thalweg.formula import Formula, is_like_update

if TYPE_CHECKING:
    from thalweg._engines.codecs.codec import Codec

ReductionType = TypeVar("ReductionType", bound="Targets")


class Sweep:
    """Graphs of the formulas of a `Measurement`, and the inputs of the kernel that reduces them.

    Attributes:
        measures, stages: The graphs of formulas, and of stages if a formula reads the gradient.
        used, read: The streams that formulas read, in order; `read` includes the copy.
        codecs: {stream: codec} of the encoded slots that formulas read.
        copy: The stream of the copy, or None if formulas do not read the variable.
        scalar, vectors: {name in formulas: name in the kernel} of scalars and of vectors.
        arguments: The names of the kernel's parameters: streams, vectors, scalars.

    Raises:
        RuleError: A formula takes more values than there are streams, or returns several.
    """

    def __init__(self, measurement: Measurement) -> None:
        formulas, storage = measurement.formulas, measurement.storage
        self.compute, vectors = measurement.compute, dict(measurement.vectors)
        self.measures = [trace_formula(formula) for formula in formulas]
        for formula, graph in zip(formulas, self.measures, strict=True):
            _check_measure(formula, graph, len(storage) - measurement.copy)
        self.are_like_update = list(map(is_like_update, formulas))
        self.storage = storage
        self.used = sorted({stream for measure in self.measures for stream in measure.streams})
        self.copy = len(storage) - 1 if measurement.from_copy and 0 in self.used else None
        self.read = self.used if self.copy is None else [*self.used, self.copy]
        self.codecs = {k: codec for k, codec in find_codecs(storage).items() if k in self.read}
        self.stages = (
            [trace_formula(stage) for stage in measurement.stages] if 1 in self.used else []
        )
        self.scalar = name_scalars(*self.stages, *self.measures, vectors=vectors)
        self.vectors = name_vectors(*self.measures, vectors=vectors)
        self.scalars = tuple(self.scalar)
        parameter_names = [*self.vectors.values(), *self.scalar.values()]
        self.arguments = [*(f"p{stream}" for stream in self.read), *parameter_names]

    def define_decoders(self, writer: FormulaWriter) -> list[str]:
        """Return the source of each function that decodes a slot read by formulas."""
        if not self.codecs:
            return []
        with importing:
            from thalweg._engines.codecs.texts import define_codecs
        codecs = dict.fromkeys(self.codecs.values())
        return [*define_codecs(writer, codecs, ("decode",)).values()]

    @staticmethod
    def codec_fields(codec: Codec) -> dict[str, Field]:
        """Return the fields of templates that decode a slot; see `codecs.texts.codec_fields`."""
        with importing:
            from thalweg._engines.codecs.texts import codec_fields
        return codec_fields(codec)


def _check_measure(formula: Formula, formula_graph: FormulaGraph, streams: int) -> None:
    if len(formula_graph.results) == 1 and len(formula_graph.positional) <= streams:
        return
    raise RuleError(
        f"{place_of(formula)} takes {count_of(len(formula_graph.positional), 'value')} and returns"
        f" {len(formula_graph.results)}; a measure of {count_of(streams, 'tensor')} takes up to"
        f" {streams} (var, grad, *slots) and returns 1."
    )


class Targets:
    """Base class of the reduction of a formula, with the indices of the measures that use it.

    Attributes:
        targets: {"row", "column" or "variable": indices of measures}; measures may be equal.
    """

    def __init__(self) -> None:
        self.targets: dict[str, list[int]] = {}

    @property
    def has_columns(self) -> bool:
        """Return True if a measure needs column results: a measure over columns or variables."""
        return not self.targets.keys().isdisjoint(("column", "variable"))


def share_reductions(
    measures: Sequence[Measure], make: Callable[[int, str], ReductionType]
) -> list[ReductionType]:
    """Return the distinct reductions of measures; measures with equal formula and kind share one.

    Set `targets` of each reduction to {"row", "column" or "variable": indices in `measures`}. The
    indices are those of the measures over this axis that use the reduction.

    Args:
        make: `make(index of the formula, "sum" or "largest")` returns a new reduction.
    """
    formulas = distinct_formulas(measures)
    reductions: dict[tuple[int, str], ReductionType] = {}
    for index, measure in enumerate(measures):
        key = formulas.index(measure.function), measure.reduce
        if key not in reductions:
            reductions[key] = make(*key)
        reductions[key].targets.setdefault(measure.over, []).append(index)
    return [*reductions.values()]
