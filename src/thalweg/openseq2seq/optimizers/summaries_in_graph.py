"""Summaries of a graph's step in the collection SUMMARIES."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from thalweg._base.execution_context import thread
from thalweg._graph import GraphKeys, Output, get_default_graph, operation
from thalweg.errors import FailedPreconditionError
from thalweg.openseq2seq.optimizers.learning_rate import called
from thalweg.v1 import summary
from thalweg.v1.summary import values
from thalweg.v1.summary.protos import message


class Collected:
    """Writer that collects values into a serialized `Summary`.

    Args:
        but: Tags of scalars that are left out.
        writer: Optional. Another writer, which is told all of it, too.
    """

    def __init__(self, excluded_tags: Sequence[str] = (), writer: Any = None) -> None:
        self._excluded_tags, self._writer = excluded_tags, writer
        self._values: list[object] = []

    def add_scalar(self, tag: str, value: float, step: int) -> None:
        if tag not in self._excluded_tags:
            number = torch.tensor(value, dtype=torch.float32, device="cpu")
            self._values.append(values.scalar(number, tag))
        if self._writer is not None:
            self._writer.add_scalar(tag, value, step)

    def add_histogram(self, tag: str, elements: Tensor, step: int) -> None:
        self._values.append(values.histogram(elements, tag))
        if self._writer is not None:
            self._writer.add_histogram(tag, elements, step)

    def serialized(self) -> bytes:
        """Return the collected values as a serialized summary."""
        return message("Summary")(value=self._values).SerializeToString()


def collect_scalar(name: str, value: object) -> None:
    """Add the summary of a number or a symbolic tensor, below the name scope."""
    summary.scalar(name, called(value))


def collect(run: Callable[..., Any], inputs: Sequence[object]) -> None:
    """Add a summary of several values.

    Args:
        run: Gets the values of `inputs`, and what the tags of the name scope begin with; returns
            a function that tells a writer.
        inputs: See `operation`.
    """

    def summarize(*given: Any) -> bytes:
        writer = Collected()
        run(*given, scope=scope)(writer)
        return writer.serialized()

    summary_node = operation(
        summarize, inputs, "summaries", kind="pure", outputs=Output(None, (), ())
    )
    scope = summary_node.op.name.removesuffix(summary_node.op.name.rpartition("/")[2])
    get_default_graph().add_to_collection(GraphKeys.SUMMARIES, summary_node)


class OfThisRun:
    """Values from the operation that takes a step, for a summary in the same run.

    Gradients are averaged once: a summary that averages again would block other workers.
    """

    def keep(self, collected: Collected) -> None:
        """Store the summaries of this run; the operation of the step calls it."""
        thread.frames[-1][self] = collected

    def collect(self) -> None:
        """Add the summary operation, which runs after the step."""

        def summarize() -> bytes:
            collected = thread.frames[-1].get(self)
            if collected is None:
                raise FailedPreconditionError(
                    "Summaries of gradients that workers average are those of a step: run them"
                    " together with what optimize_loss returned."
                )
            return collected.serialized()

        summary_node = operation(summarize, [], "summaries", outputs=Output(None, (), ()))
        get_default_graph().add_to_collection(GraphKeys.SUMMARIES, summary_node)
