"""Graph operations that compute summaries, as the bytes of a `Summary` message."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from thalweg import _graph
from thalweg._base.showing import show_value
from thalweg._graph import GraphKeys, Output, SymbolicTensor
from thalweg.errors import FailedPreconditionError, InvalidArgumentError, InvalidTypeError
from thalweg.v1.summary import values as summary_values
from thalweg.v1.summary.protos import message


def scalar(name: str, tensor: object, collections: object = None, family: str | None = None) -> Any:
    """Return a symbolic tensor whose value in a run is a serialized `Summary` of one number.

    Args:
        name: The tag, which TensorBoard shows. The name scope is prepended; the tag is made unique.
        tensor: The number, a tensor of one element.
        collections: Graph collections to which the result is added; SUMMARIES by default.
        family: Optional. A prefix of the tag.

    Raises:
        RuntimeError: In eager mode.
    """
    return _make_summary(name, _symbol(tensor), collections, family, summary_values.scalar)


def histogram(
    name: str, values: object, collections: object = None, family: str | None = None
) -> Any:
    """Return a summary of the distribution of a tensor's elements; see `scalar` for the rest."""
    return _make_summary(name, _symbol(values), collections, family, summary_values.histogram)


def image(
    name: str,
    tensor: object,
    max_outputs: int = 3,
    collections: object = None,
    family: str | None = None,
) -> Any:
    """Return a symbolic tensor whose value in a run is a `Summary` of a batch's first images.

    Args:
        name, collections, family: As in `scalar`.
        tensor: Images (batch, height, width, channels) with 1, 3 or 4 channels. uint8 images are
            unchanged. Float images are scaled to [0, 255]; 0 maps to 128 if an image has negative
            values.
        max_outputs: Maximum number of images.

    Returns:
        A symbolic tensor; a run computes the bytes of a `Summary` with PNG images.

    Raises:
        InvalidArgumentError: In a run, if `tensor` has another shape.
        RuntimeError: In eager mode.
    """
    describe = partial(summary_values.images, count=max_outputs)
    return _make_summary(name, _symbol(tensor), collections, family, describe)


def text(name: str, tensor: object, collections: object = None) -> Any:
    """Return a summary of a string, or of an array of strings; see `scalar` for the rest."""
    _check_mode()
    return _make_summary(name, tensor, collections, None, summary_values.text)


def merge(inputs: Sequence[object], collections: object = None, name: str | None = None) -> Any:
    """Return a symbolic tensor whose value in a run is one `Summary` that merges all inputs.

    Args:
        inputs: Results of `scalar` and other functions of this module.
        collections: Optional. Graph collections to which the result is added.
        name: Optional. The name of the operation.

    Raises:
        InvalidArgumentError: In a run, if two values have one tag.
        InvalidTypeError: An input is not symbolic.
        RuntimeError: In eager mode.
    """
    _check_mode()

    def join_summaries(*serialized: bytes) -> bytes:
        merged_summary = message("Summary")()
        for summary_bytes in serialized:
            merged_summary.MergeFromString(summary_bytes)
        tags = [summary_value.tag for summary_value in merged_summary.value]
        twice = next((tag for tag in tags if tags.count(tag) > 1), None)
        if twice is not None:
            raise InvalidArgumentError(f"Duplicate tag {twice} found in summary inputs.")
        return merged_summary.SerializeToString()

    inputs = list(inputs)
    for node in inputs:
        if not isinstance(node, SymbolicTensor):
            raise InvalidTypeError(f"merge takes summaries of the graph, not {show_value(node)}.")
    return _add_to_collections(
        join_summaries, inputs, name or "Merge/MergeSummary", collections or ()
    )


def merge_all(
    key: str = GraphKeys.SUMMARIES, scope: str | None = None, name: str | None = None
) -> Any:
    """Merge the summaries in a collection of the default graph; see `merge`. Return None if empty.

    `scope` is an optional regular expression for the beginning of names. Summaries with other
    names are left out.
    """
    _check_mode()
    summaries = _graph.get_collection(key, scope)
    return merge(summaries, name=name) if summaries else None


def _make_summary(
    name: str,
    tensor: object,
    collections: object,
    family: str | None,
    describe: Callable[[Any, str], object],
) -> object:
    """Add an operation that serializes summary values, and return its output.

    Args:
        name, collections, family: As in `scalar`.
        tensor: The value for `describe`: a symbolic tensor, or text.
        describe: `describe(tensor_value, tag)`, called in a run, returns a `Summary.Value`, or a
            list of them.
    """

    def summarize_value(tensor_value: object) -> bytes:
        described = describe(tensor_value, tag)
        values = described if isinstance(described, list) else [described]
        return message("Summary")(value=values).SerializeToString()

    keys = [GraphKeys.SUMMARIES] if collections is None else collections
    with _tag_scope(name, family) as (tag, op_name):
        return _add_to_collections(summarize_value, [tensor], op_name, keys)


def _symbol(tensor: object) -> object:
    """Return a symbolic tensor; FailedPreconditionError in eager mode."""
    _check_mode()
    return _graph.convert_to_tensor(tensor)


def _add_to_collections(
    function: Callable[..., bytes], inputs: Sequence[object], name: str, collections: object
) -> object:
    output = Output(None, (), ())
    summary_op = _graph.operation(function, inputs, name, kind="pure", outputs=output)
    summary_op.graph.add_to_collections(collections, summary_op)
    return summary_op


@contextlib.contextmanager
def _tag_scope(name: str, family: str | None) -> Iterator[tuple[str, str]]:
    """Return a context manager that enters a summary's name scope and yields (tag, short name)."""
    label, group = _clean_tag(name), None if family is None else _clean_tag(family)
    with _graph.name_scope(label if group is None else f"{group}/{label}") as scope:
        scope_name = scope.rstrip("/")
        tag = scope_name if group is None else f"{group}/{scope_name}"
        yield tag, label.rpartition("/")[2]


def _clean_tag(name: str) -> str:
    return re.sub(r"[^-/\w.]", "_", name).lstrip("/")


def _check_mode() -> None:
    if _graph.executing_eagerly():
        raise FailedPreconditionError(
            "Operations of tf.summary belong to a graph: build one, or use"
            " torch.utils.tensorboard.SummaryWriter."
        )
