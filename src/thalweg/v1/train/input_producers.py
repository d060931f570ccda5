"""Input queues of a graph: `slice_input_producer`, `range_input_producer` and others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from thalweg import _graph
from thalweg._graph import GraphKeys, Output
from thalweg.errors import FailedPreconditionError, InvalidArgumentError
from thalweg.v1 import summary
from thalweg.v1.train.queue_runner import QueueRunner, add_queue_runner
from thalweg.v1.train.queues import FIFOQueue

__all__ = ["input_producer", "limit_epochs", "range_input_producer", "slice_input_producer"]


def limit_epochs(tensor: Any, num_epochs: int | None = None, name: str | None = None) -> Any:
    """Return a copy of a tensor that can be evaluated `num_epochs` times.

    A new local variable, `epochs`, counts the evaluations; initialize the variable first.

    Args:
        tensor: The tensor.
        num_epochs: A positive number; None returns `tensor` itself.
        name: Optional. The name scope.

    Raises:
        ValueError: `num_epochs` is not positive.
        OutOfRangeError: In a run, at evaluation `num_epochs` + 1.
    """
    if num_epochs is None:
        return tensor
    if num_epochs <= 0:
        raise InvalidArgumentError(f"num_epochs must be > 0 not {num_epochs}.")
    with _graph.name_scope(name or "limit_epochs"):
        start = torch.zeros((), dtype=torch.int64, device="cpu")
        keys = [GraphKeys.LOCAL_VARIABLES]
        epochs = _graph.Variable(start, trainable=False, collections=keys, name="epochs")
        with _graph.control_dependencies([epochs.count_up_to(num_epochs)]):
            return _graph.identity(tensor)


def input_producer(
    input_tensor: Any,
    element_shape: object = None,
    num_epochs: int | None = None,
    shuffle: bool = True,
    seed: int | None = None,
    capacity: int = 32,
    shared_name: str | None = None,
    summary_name: str | None = None,
    name: str | None = None,
    cancel_op: object = None,
) -> FIFOQueue:
    """Return a queue of a tensor's rows.

    Add a queue runner to the graph; `start_queue_runners` starts its thread, which fills the queue.

    Args:
        input_tensor: A tensor of at least one dimension, or an array.
        element_shape: Ignored.
        num_epochs: Optional. Number of times that each row is enqueued; None has no limit.
        shuffle: True for a new random order in each epoch.
        seed: Optional. Seed of the random order.
        capacity: The capacity of the queue.
        shared_name: Ignored.
        summary_name: Optional. The tag of a summary of the filled fraction of the queue.
        name: Optional. The name scope.
        cancel_op: Optional. The operation to run when the coordinator stops; it must end waits for
            the queue. By default it closes the queue.

    Raises:
        RuntimeError: In eager mode.
        ValueError: The tensor is a scalar, or `num_epochs` is not positive.
    """
    _check_mode()
    with _graph.name_scope(name or "input_producer") as scope:
        rows = _graph.convert_to_tensor(input_tensor)
        if rows.shape == ():
            raise InvalidArgumentError(f"'{rows.name}' must have rows, not shape {rows.shape}.")
        queue = FIFOQueue(capacity, [rows.dtype], [rows.shape[1:]], name=scope)
        shuffled = _shuffle_rows(rows, seed) if shuffle else rows
        enqueue = queue.enqueue_many([limit_epochs(shuffled, num_epochs)])
        add_queue_runner(QueueRunner(queue, [enqueue], cancel_op=cancel_op))
        if summary_name is not None:
            summary.scalar(
                summary_name, _graph.cast(queue.size(), torch.float32) * (1.0 / capacity)
            )
        return queue


def _check_mode() -> None:
    """Raise FailedPreconditionError in eager mode."""
    if _graph.executing_eagerly():
        raise FailedPreconditionError(
            "Input pipelines based on queues belong to a graph. Build one, or use tf.data."
        )


def _shuffle_rows(rows: Any, seed: int | None) -> Any:
    """Return a symbolic tensor with the rows of `rows`, in a new random order in each run."""
    # Asked for in each run: a session has its own generator of a seed.
    make_generator = _graph.numbers_of(seed)

    def shuffle(values: torch.Tensor) -> torch.Tensor:
        count, generator = len(values), make_generator()
        order = torch.randperm(count, generator=generator, dtype=torch.int64, device="cpu")
        return values[order]

    output = Output(rows.dtype, rows.shape, ())
    return _graph.operation(shuffle, [rows], "RandomShuffle", kind="pure", outputs=output)


def range_input_producer(
    limit: int,
    num_epochs: int | None = None,
    shuffle: bool = True,
    seed: int | None = None,
    capacity: int = 32,
    shared_name: str | None = None,
    name: str | None = None,
) -> FIFOQueue:
    """Return a queue of the integers 0 to `limit` - 1; see `input_producer` for other arguments."""
    with _graph.name_scope(name or "input_producer") as scope:
        summary_name = f"fraction_of_{capacity}_full"
        options = (None, num_epochs, shuffle, seed, capacity, shared_name, summary_name)
        return input_producer(_arange(limit), *options, name=scope)


def slice_input_producer(
    tensor_list: Sequence[Any],
    num_epochs: int | None = None,
    shuffle: bool = True,
    seed: int | None = None,
    capacity: int = 32,
    shared_name: str | None = None,
    name: str | None = None,
) -> list[Any]:
    """Return a list of symbolic tensors: one row of each tensor, at one common index.

    Each run takes the next index from a queue, which a thread of `start_queue_runners` fills. With
    `num_epochs`, run `local_variables_initializer()` first.

    Args:
        tensor_list: Tensors or arrays with equal numbers of rows.
        num_epochs: Optional. Number of times that each row is returned. Later runs raise
            OutOfRangeError.
        shuffle, seed, capacity: As in `input_producer`.
        shared_name: Ignored.
        name: Optional. The name scope.

    Raises:
        RuntimeError: In eager mode.
        ValueError: There are no tensors, or `num_epochs` is not positive.
    """
    if not tensor_list:
        raise InvalidArgumentError("Expected at least one tensor in slice_input_producer().")
    _check_mode()
    with _graph.name_scope(name or "input_producer"):
        tensors = [_graph.convert_to_tensor(tensor) for tensor in tensor_list]
        for tensor in tensors:
            if tensor.shape == ():
                raise InvalidArgumentError(f"'{tensor.name}' must have rows, not shape ().")
        # A tensor of unknown rank has an unknown number of rows.
        rows = tensors[0].shape[0]
        row_indices = _arange(rows) if rows is not None else _make_row_indices(tensors[0])
        summary_name = f"fraction_of_{capacity}_full"
        options = (None, num_epochs, shuffle, seed, capacity, shared_name, summary_name)
        row_index = input_producer(row_indices, *options).dequeue()
        return [_graph.gather(tensor, row_index) for tensor in tensors]


def _arange(limit: int) -> torch.Tensor:
    return torch.arange(limit, dtype=torch.int32, device="cpu")


def _make_row_indices(tensor: Any) -> Any:
    """Return a symbolic tensor of the row indices of a tensor whose number of rows is unknown."""
    output = Output(torch.int32, (None,), ())
    return _graph.operation(
        lambda value: _arange(len(value)), [tensor], "range", kind="pure", outputs=output
    )
