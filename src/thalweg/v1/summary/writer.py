"""`FileWriter`: writes summaries to a file that TensorBoard reads."""

from __future__ import annotations

import os
import time
from typing import Any

from thalweg import _graph as graphs
from thalweg.errors import CheckpointWriteError, InvalidTypeError
from thalweg.v1.argument_checks import check_seconds, wait_seconds
from thalweg.v1.summary.protos import event_file_writer, message


class FileWriter:
    """Writer of summaries and graphs to a new file of events in a folder.

    Without TensorBoard nothing is written, and the first event causes a warning.

    Args:
        logdir: The folder; created if missing.
        graph: Optional. A graph to write now.
        max_queue: Maximum number of events that wait for the writer thread.
        flush_secs: Seconds between two flushes.
        graph_def: Optional. A `GraphDef` in place of `graph`.
        filename_suffix: End of the file's name.
        session: Ignored.

    Raises:
        CheckpointWriteError: A file cannot be written in the folder.
    """

    def __init__(
        self,
        logdir: str | os.PathLike[str],
        graph: object = None,
        max_queue: int = 10,
        flush_secs: float = 120,
        graph_def: object = None,
        filename_suffix: str | None = None,
        session: object = None,
    ) -> None:
        check_seconds("flush_secs", flush_secs)
        self._logdir = os.fspath(logdir)
        self._writer_args = (max_queue, wait_seconds(flush_secs), filename_suffix or "")
        self._events: Any = None
        self.reopen()
        if graph is not None or graph_def is not None:
            self.add_graph(graph, graph_def=graph_def)

    def get_logdir(self) -> str:
        """Return the folder."""
        return self._logdir

    def add_summary(self, summary: object, global_step: object = None) -> None:
        """Write a `Summary` message, or the bytes that a run of a summary operation returned.

        Raises:
            TypeError: `summary` has another type.
        """
        kind = message("Summary")
        if isinstance(summary, bytes):
            summary = kind.FromString(summary)
        if not isinstance(summary, kind):
            raise InvalidTypeError(
                f"add_summary takes a tf.Summary or its bytes, not {type(summary).__name__}."
            )
        self.add_event(message("Event")(summary=summary), global_step)

    def add_graph(self, graph: Any, global_step: Any = None, graph_def: Any = None) -> None:
        """Write the names, types and inputs of a graph's operations.

        Args:
            graph: A `Graph`, or a `GraphDef`.
            global_step: Optional. The step of the event.
            graph_def: A `GraphDef`, used if `graph` is None.

        Raises:
            TypeError: Neither argument is a graph.
        """
        if isinstance(graph, graphs.Graph):
            graph = graph_def_of(graph)
        graph_proto = graph_def if graph is None else graph
        if not isinstance(graph_proto, message("GraphDef")):
            raise InvalidTypeError(f"add_graph takes a graph, not {type(graph_proto).__name__}.")
        self.add_event(message("Event")(graph_def=graph_proto.SerializeToString()), global_step)

    def add_session_log(self, session_log: object, global_step: object = None) -> None:
        """Write a `SessionLog`."""
        self.add_event(message("Event")(session_log=session_log), global_step)

    def add_event(self, event: Any, global_step: Any = None) -> None:
        """Write an `Event` to the file; do nothing if the file is closed.

        Change `event` in place: set `wall_time` to now if it is 0, and `step` to `global_step`
        if that is not None.
        """
        if self._events is None:
            return
        event.wall_time = event.wall_time or time.time()
        if global_step is not None:
            event.step = int(global_step)
        self._events.add_event(event)

    def flush(self) -> None:
        """Write waiting events to the file."""
        if self._events is not None:
            self._events.flush()

    def close(self) -> None:
        """Write waiting events to the file, and close the file."""
        if self._events is not None:
            self._events.close()
            self._events = None

    def reopen(self) -> None:
        """Open a new file of events if the file is closed; do nothing if the file is open.

        Raises:
            CheckpointWriteError: A file cannot be written in the folder.
        """
        if self._events is None:
            try:
                self._events = event_file_writer(self._logdir, *self._writer_args)
            except OSError as error:
                text = f"{self._logdir}: no file of events can be written here: {error.strerror}."
                raise CheckpointWriteError(error.errno, text) from error

    def __enter__(self) -> FileWriter:
        self.reopen()
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class FileWriterCache:
    """Cache of one `FileWriter` for each folder."""

    _writers: dict[str, FileWriter] = {}

    @staticmethod
    def get(logdir: str | os.PathLike[str]) -> FileWriter:
        """Return the writer of a folder; the first call creates the writer."""
        writers = FileWriterCache._writers
        return writers.get(os.fspath(logdir)) or writers.setdefault(
            os.fspath(logdir), FileWriter(logdir)
        )

    @staticmethod
    def clear() -> None:
        """Close and forget all writers."""
        for writer in FileWriterCache._writers.values():
            writer.close()
        FileWriterCache._writers.clear()


def add_scalar(writer: Any, tag: str, value: float, step: int) -> None:
    """Write one number with a `FileWriter`, or with torch's `SummaryWriter`."""
    if not hasattr(writer, "add_summary"):
        writer.add_scalar(tag, value, step)
        return
    summary = message("Summary")
    writer.add_summary(summary(value=[summary.Value(tag=tag, simple_value=value)]), step)


def graph_def_of(graph: graphs.Graph) -> Any:
    """Return a `GraphDef` with the name, type and input names of each operation of a graph."""
    graph_def = message("GraphDef")()
    for op in graph.get_operations():
        # As in TensorFlow's GraphDef: output 0 has no ":0", and "^" marks control inputs.
        inputs = [f"{x.op.name}:{x.value_index}" if x.value_index else x.op.name for x in op.inputs]
        controls = [f"^{control_op.name}" for control_op in op.control_inputs]
        graph_def.node.add(name=op.name, op=op.type.rpartition("/")[2], input=[*inputs, *controls])
    return graph_def
