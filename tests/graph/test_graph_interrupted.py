"""Interruptions of a session's own work: no lock is left taken, and no run under way."""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch

import thalweg.v1 as tf
from sessions import initialized
from thalweg._base.execution_context import executing_eagerly, thread
from thalweg._graph import variable_store


def in_time(work: Callable[[], Any]) -> None:
    """Another thread does it and need not wait for ever."""
    event = threading.Event()

    def run() -> None:
        work()
        event.set()

    threading.Thread(target=run, daemon=True).start()
    assert event.wait(120)


RUNS = {
    "a run": lambda session, update, w: session.run([update, w]),
    "a value that is loaded": lambda session, update, w: w.load(2.0, session),
    "values that are loaded": lambda session, update, w: session.load_all({w: torch.tensor(2.0)}),
}


@pytest.mark.parametrize("call", range(5))
@pytest.mark.parametrize("use", RUNS.values(), ids=RUNS)
def test_interrupted_run_releases_its_lock(
    use: Callable[..., Any], call: int, graph: tf.Graph, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wherever others are told of it, which Python's own methods do in several steps."""
    w = tf.Variable(1.0)
    update, session = w.assign_add(1.0), initialized()
    lock, calls = session._lock._condition, itertools.count()
    original = lock.notify_all

    def interrupted() -> None:
        if next(calls) == call:
            raise KeyboardInterrupt
        original()

    monkeypatch.setattr(lock, "notify_all", interrupted)
    with contextlib.suppress(KeyboardInterrupt):
        use(session, update, w)
    monkeypatch.undo()
    assert not thread.frames
    initial = session.run(w)
    in_time(lambda: session.run(update))
    assert session.run(w) == initial + 1


def _once(lock: Any, method: str, monkeypatch: pytest.MonkeyPatch, has_effect: bool) -> None:
    """Interrupt a method the first time that it is called, before its work or after it."""
    original, calls = getattr(lock, method), itertools.count()

    def interrupted(*args: Any) -> None:
        is_first = not next(calls)
        if has_effect or not is_first:
            original(*args)
        if is_first:
            raise KeyboardInterrupt

    monkeypatch.setattr(lock, method, interrupted)


@pytest.mark.parametrize("has_effect", [False, True])
@pytest.mark.parametrize("method", ["acquire", "release"])
@pytest.mark.parametrize("use", RUNS.values(), ids=RUNS)
def test_interrupted_acquire_and_release_leave_the_lock_free(
    use: Callable[..., Any], method: str, has_effect: bool, graph: tf.Graph,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    w = tf.Variable(1.0)
    update, session = w.assign_add(1.0), initialized()
    _once(session._lock, method, monkeypatch, has_effect)
    with pytest.raises(KeyboardInterrupt):
        use(session, update, w)
    monkeypatch.undo()
    in_time(lambda: session.run(update))
    assert not thread.frames


class _Interrupted(list[Any]):
    """A list that is interrupted right after it has grown."""

    def append(self, item: Any) -> None:
        super().append(item)
        raise KeyboardInterrupt


def test_interrupted_run_leaves_no_frame(graph: tf.Graph, monkeypatch: pytest.MonkeyPatch) -> None:
    w = tf.Variable(1.0)
    session = initialized()
    monkeypatch.setattr(thread, "frames", _Interrupted())
    with pytest.raises(KeyboardInterrupt):
        session.run(w)
    assert not thread.frames
    assert not executing_eagerly()


def test_interrupted_initialization_is_consistent(
    graph: tf.Graph, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or else what is read of it would change with the next update."""
    w, session = tf.Variable([1.0]), tf.Session()

    def interrupted(_: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(variable_store, "_addresses_of", interrupted)
    with pytest.raises(KeyboardInterrupt):
        session.run(w.initializer)
    assert not session.is_initialized(w)
