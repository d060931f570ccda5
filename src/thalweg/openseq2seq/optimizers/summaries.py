"""Summaries of steps, for writers like torch's SummaryWriter and for a graph's collection."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from thalweg._base.async_fetch import brought
from thalweg._base.execution_context import thread
from thalweg._base.showing import show_value
from thalweg._core.state import positioned
from thalweg._core.vectors import is_host
from thalweg._graph import GraphKeys, Output, get_default_graph, operation
from thalweg.errors import FailedPreconditionError, InvalidTypeError
from thalweg.openseq2seq.optimizers.learning_rate import called
from thalweg.v1 import summary
from thalweg.v1.summary import values as summary_values
from thalweg.v1.summary.protos import message
from thalweg.variable import REDUCED, name_of


class Journal:
    """Summaries of one step, collected until `finish`.

    Scalars remain tensors on devices, until `finish` copies all scalars to the host.

    Args:
        names: The names of the summaries to make.
        scope: The prefix of all tags except the learning rate's.
    """

    def __init__(self, names: Sequence[str], scope: str = "") -> None:
        self.names = frozenset(names)
        self._scope = scope
        self._scalars: dict[str, tuple[object, type]] = {}
        self._histograms: dict[str, Tensor] = {}

    def scalar(self, tag: str, value: object, kind: type = float, scoped: bool = True) -> None:
        """Add a number or a tensor of shape (); `kind` converts it on writing."""
        self._scalars[self._scope + tag if scoped else tag] = value, kind

    def histogram(self, tag: str, values: Tensor, masked: bool = False) -> None:
        """Add the elements of a tensor, if any; `masked` replaces NaN and infinity by 0."""
        if not values.numel():
            # torch's SummaryWriter raises an error for it.
            return
        # A copy in both cases: the update overwrites variables before the writer reads.
        elements = values.detach().float() if values.dtype in REDUCED else values.detach().clone()
        if masked:
            elements = torch.nan_to_num(elements, nan=0.0, posinf=0.0, neginf=0.0)
        self._histograms[self._scope + tag] = elements

    def finish(self, step: int) -> StepSummaries:
        """Return the `StepSummaries` of step `step`; start to copy all values to the host."""
        values = {tag: value for tag, (value, _) in self._scalars.items()}
        tensors = {tag: value for tag, value in values.items() if isinstance(value, Tensor)}
        devices = list(dict.fromkeys(value.device for value in tensors.values()))
        # One vector for each device, so that each device copies to the host only once.
        groups = [[tag for tag in tensors if tensors[tag].device == device] for device in devices]
        vectors = [torch.stack([tensors[tag].detach().double() for tag in tags]) for tags in groups]
        host_values, wait = brought([*vectors, *self._histograms.values()])
        is_pending = not all(map(is_host, [*vectors, *self._histograms.values()]))

        def write(writer: Any) -> None:
            wait()
            for tags, vector in zip(groups, host_values, strict=False):
                values.update(zip(tags, vector.tolist(), strict=True))
            for tag, (_, kind) in self._scalars.items():
                writer.add_scalar(tag, kind(values[tag]), step)
            for tag, elements in zip(self._histograms, host_values[len(groups) :], strict=True):
                writer.add_histogram(tag, torch.from_numpy(elements), step)

        return StepSummaries(write, is_pending)


class StepSummaries(NamedTuple):
    """Summaries of one finished step, ready to write.

    Attributes:
        write: `write(writer)` writes the summaries to a writer.
        is_pending: True if a device still computes summaries.
    """

    write: Callable[[Any], None]
    is_pending: bool


class SummaryQueue:
    """Queue of summaries for a writer, written in order.

    Summaries that a device has not computed yet are written with the next step, or by `flush`.

    Args:
        waits: True to wait for the device and write all summaries at once.

    Attributes:
        writer: The writer.

    Raises:
        InvalidTypeError: The writer lacks a method.
    """

    def __init__(self, writer: object, waits: bool = False) -> None:
        check_writer(writer)
        self.writer, self._waits = writer, waits
        self._queue: list[StepSummaries] = []

    def send(self, summaries: StepSummaries) -> None:
        """Write all queued summaries, and `summaries` unless a device still computes them."""
        self._queue.append(summaries)
        self.flush(remaining=0 if self._waits or not summaries.is_pending else 1)

    def flush(self, remaining: int = 0) -> None:
        """Send queued summaries until `remaining` are left, waiting for the device."""
        while len(self._queue) > remaining:
            self._queue.pop(0).write(self.writer)


class SummaryCollector:
    """Writer that collects values into a serialized `Summary`.

    Args:
        excluded_tags: Tags of scalars that are left out.
        writer: Optional. A second writer, which receives all values.
    """

    def __init__(self, excluded_tags: Sequence[str] = (), writer: Any = None) -> None:
        self._excluded_tags, self._writer = excluded_tags, writer
        self._values: list[object] = []

    def add_scalar(self, tag: str, value: float, step: int) -> None:
        if tag not in self._excluded_tags:
            number = torch.tensor(value, dtype=torch.float32, device="cpu")
            self._values.append(summary_values.scalar(number, tag))
        if self._writer is not None:
            self._writer.add_scalar(tag, value, step)

    def add_histogram(self, tag: str, elements: Tensor, step: int) -> None:
        self._values.append(summary_values.histogram(elements, tag))
        if self._writer is not None:
            self._writer.add_histogram(tag, elements, step)

    def serialized(self) -> bytes:
        """Return the collected values as a serialized summary."""
        return message("Summary")(value=self._values).SerializeToString()


def collect_scalar(name: str, value: object) -> None:
    """Add the summary of a number or a symbolic tensor, below the name scope."""
    summary.scalar(name, called(value))


def collect_summaries(run: Callable[..., Any], inputs: Sequence[object]) -> None:
    """Add an operation to the collection SUMMARIES that computes several summaries in each run.

    Args:
        run: `run(*values, scope=tag_prefix)` returns `write`; `write(writer)` adds the summaries.
        inputs: Inputs of the operation, see `operation`; `values` are the inputs' values.
    """

    def summarize(*given: Any) -> bytes:
        writer = SummaryCollector()
        run(*given, scope=scope)(writer)
        return writer.serialized()

    # `summarize` runs later and reads `scope` then: the name is known only after the operation.
    name = _add_summary(summarize, inputs, "pure").op.name
    scope = name.removesuffix(name.rpartition("/")[2])


def _add_summary(summarize: Callable[..., bytes], inputs: Sequence[object], kind: Any) -> Any:
    """Add an operation to the collection SUMMARIES, and return its output."""
    output = Output(None, (), ())
    summary_node = operation(summarize, inputs, "summaries", kind=kind, outputs=output)
    get_default_graph().add_to_collection(GraphKeys.SUMMARIES, summary_node)
    return summary_node


class RunSummaries:
    """Summaries of a run, stored by the operation of a step and read by a summary operation.

    Gradients are averaged only in the step. Averaging again would block other workers.
    """

    def keep(self, collected: SummaryCollector) -> None:
        """Store the summaries of this run. Called by the operation of the step."""
        thread.frames[-1][self] = collected

    def collect(self) -> None:
        """Add an operation to the collection SUMMARIES that returns what `keep` stored in a run."""

        def summarize() -> bytes:
            collected = thread.frames[-1].get(self)
            if collected is None:
                raise FailedPreconditionError(
                    "Summaries of gradients that workers average are those of a step: run them"
                    " together with what optimize_loss returned."
                )
            return collected.serialized()

        # Updates run in order of creation, hence after the step.
        _add_summary(summarize, [], "update")


def tags_of(variables: Sequence[Any]) -> list[str]:
    """Return distinct tags of variables: names with "_" for ":", such as "w_0"."""
    return positioned([name_of(var).replace(":", "_") for var in variables], "_{}")


def check_writer(writer: object) -> None:
    """Raise InvalidTypeError if a writer lacks `add_scalar` or `add_histogram`; accept None."""
    methods: Sequence[Callable[..., object] | None] = [
        getattr(writer, name, None) for name in ("add_scalar", "add_histogram")
    ]
    if writer is not None and not all(map(callable, methods)):
        raise InvalidTypeError(
            f"summary_writer must have the methods add_scalar and add_histogram, not"
            f" {show_value(writer)}."
        )
