"""Stand-ins for private classes that TensorFlow's own tests use, for `tensorflow_tests.py`."""

from __future__ import annotations

import functools
import importlib
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from tensorboard.backend.event_processing import event_file_loader

import thalweg.tf.compat.v1 as tf
from thalweg._formats import retention
from thalweg.tf import private_modules
from thalweg.v1.summary import writer
from thalweg.v1.train.monitored import (
    basic_session_run_hooks,
    checkpoint_saver_hook,
    summary_saver_hook,
)
from thalweg.v1.train.saving import checkpoint_manager, saver

TRAIN: Any = tf.train


class WrappedSession:
    """Session that delegates to another one."""

    def __init__(self, sess: Any) -> None:
        self._sess = sess

    @property
    def graph(self) -> Any:
        """The graph of the session."""
        return self._sess.graph

    def run(self, *args: Any, **kwargs: Any) -> Any:
        """Run fetches in the session."""
        return self._sess.run(*args, **kwargs)


class HookedSession(TRAIN.MonitoredSession):
    """Open session with hooks that the test itself begins and ends."""

    def __init__(self, sess: Any, hooks: Iterable[Any]) -> None:
        self._session, self._hooks, self._graph = sess, list(hooks), sess.graph
        self._coordinator = TRAIN.Coordinator()
        self._should_stop = False

    @property
    def _should_stop(self) -> bool:
        return self._stop_requested

    @_should_stop.setter
    def _should_stop(self, value: bool) -> None:
        self._stop_requested = value


class TestedLogger:
    """Logger of hooks that calls the functions of `tf_logging`, which tests replace."""

    def log(self, name: str, message: object, *args: object) -> None:
        """Call a function of `tf_logging` with a whole message."""
        module = importlib.import_module("tensorflow.python.platform.tf_logging")
        getattr(module, name)(str(message) % args if args else message)

    def __getattr__(self, name: str) -> Callable[..., None]:
        return functools.partial(self.log, name)


class StepLogger(TestedLogger):
    """Logger of `StepCounterHook`, which counts its warnings itself."""

    def warning(self, message: str, *args: object) -> None:
        """Call `tf_logging.log_first_n`."""
        module = importlib.import_module("tensorflow.python.platform.tf_logging")
        module.log_first_n(module.WARN, message % args, 1)


class TestedTime:
    """Module `time` of private modules that save checkpoints, where tests replace it."""

    def __getattr__(self, name: str) -> Any:
        names = ("checkpoint_management", "saver")
        modules = [importlib.import_module(f"tensorflow.python.training.{each}") for each in names]
        replaced = (module.time for module in modules if module.time is not time)
        return getattr(next(replaced, time), name)


class FakeSummaryWriter:
    """Summary writer that records what it receives; `install` puts it in place of FileWriter.

    Attributes:
        summaries: Lists of summaries by step.
    """

    _original: Any = None

    @classmethod
    def install(cls) -> None:
        """Make `FileWriterCache` create writers of this class."""
        cls._original, writer.FileWriter = writer.FileWriter, cls  # pyright: ignore

    @classmethod
    def uninstall(cls) -> None:
        """Undo `install`."""
        writer.FileWriter = cls._original  # pyright: ignore[reportAttributeAccessIssue]

    def __init__(self, logdir: str, graph: Any = None) -> None:
        self.logdir, self.graph = logdir, graph
        self.summaries = dict[int, list[Any]]()
        self.graphs, self.session_logs = list[Any](), list[Any]()

    def add_summary(self, summary: Any, step: int) -> None:
        """Record a summary, parsed if it is serialized."""
        if isinstance(summary, bytes):
            summary = writer.message("Summary").FromString(summary)
        self.summaries.setdefault(step, []).append(summary)

    def add_graph(self, graph: Any, *args: object, **options: object) -> None:
        """Record a graph."""
        self.graphs.append(graph)

    def add_session_log(self, log: Any, *args: object) -> None:
        """Record the state of a session."""
        self.session_logs.append(log)

    def ignore(self, *args: object, **options: object) -> None:
        """Do nothing."""

    add_meta_graph = add_run_metadata = flush = reopen = close = ignore

    def assert_summaries(
        self,
        test_case: object,
        expected_logdir: str | None = None,
        expected_graph: Any = None,
        expected_summaries: dict[int, dict[str, float]] | None = None,
        expected_added_graphs: list[Any] | None = None,
        expected_added_meta_graphs: object = None,
        expected_session_logs: list[Any] | None = None,
    ) -> None:
        """Raise AssertionError unless the recorded values are the expected ones that are given."""
        pairs = [
            (expected_logdir, self.logdir),
            (expected_graph, self.graph),
            (expected_added_graphs, self.graphs),
            (expected_session_logs, self.session_logs),
        ]
        for step, expected in (expected_summaries or {}).items():
            values = [value for summary in self.summaries[step] for value in summary.value]
            pairs.append((expected, {value.tag: value.simple_value for value in values}))
        for expected, actual in pairs:
            if expected is not None and expected != actual:
                raise AssertionError(f"{actual} instead of {expected}")


def create_identity_with_grad_check_fn(
    expected_gradient: Any, expected_dtype: object = None
) -> Callable[[Any], Any]:
    """Return an identity whose gradient must have the expected value."""

    @tf.custom_gradient
    def identity(x: Any) -> tuple[Any, Callable[[Any], Any]]:
        def check(dx: Any) -> Any:
            expected = tf.cast(tf.convert_to_tensor(expected_gradient), dx.dtype)
            with tf.control_dependencies([tf.assert_equal(dx, expected + tf.zeros_like(dx))]):
                return tf.identity(dx)

        return tf.identity(x), check

    return identity


class BaseSaverBuilder:
    """Names of classes of saved objects; Thalweg's Saver saves variables only."""

    SaveableObject = ResourceVariableSaveable = object


def latest_summaries(base_dir: str) -> list[Any]:
    """Return the events with summaries in the newest file of a folder."""
    newest = max(Path(base_dir).glob("events.*"))
    events = event_file_loader.LegacyEventFileLoader(str(newest)).Load()
    return [event for event in events if event.HasField("summary")]


def write_string_to_file(filename: str, file_content: str) -> None:
    """Write a text file."""
    Path(filename).write_text(file_content)


def add_doubles() -> None:
    """Add the stand-ins to private modules of TensorFlow, and replace loggers and clocks."""
    hooks = (basic_session_run_hooks, checkpoint_manager, checkpoint_saver_hook, summary_saver_hook)
    for module in hooks:
        vars(module)["_LOG"] = StepLogger() if module is summary_saver_hook else TestedLogger()
    for module in (checkpoint_manager, retention, saver):
        vars(module)["time"] = TestedTime()
    private_modules._EXTRA_NAMES |= {
        "lib.io.file_io": {"write_string_to_file": write_string_to_file},
        "training.checkpoint_management": {"time": time},
        "training.monitored_session": {
            "_HookedSession": HookedSession,
            "_WrappedSession": WrappedSession,
        },
        "training.saver": {"BaseSaverBuilder": BaseSaverBuilder, "time": time},
    }
