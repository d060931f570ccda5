"""Summaries that hooks write in the course of a training."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import thalweg.tf.compat.v1 as tf

pytest.importorskip("tensorboard")


@pytest.fixture(autouse=True)
def graph() -> Iterator[tf.Graph]:
    with tf.Graph().as_default() as graph:
        yield graph
    tf.summary.FileWriterCache.clear()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    clock = [0.0]
    monkeypatch.setattr("time.time", lambda: clock[0])
    return clock


class Writer:
    """As `FileWriter`, in memory."""

    def __init__(self) -> None:
        self.summaries: list[tuple[int, dict[str, float]]] = []
        self.logs: list[tuple[Any, int]] = []
        self.flushes = 0

    def add_summary(self, summary: Any, step: int) -> None:
        read = tf.Summary.FromString(summary) if isinstance(summary, bytes) else summary
        self.summaries.append((step, {summary.tag: summary.simple_value for summary in read.value}))

    def add_session_log(self, log: Any, step: int) -> None:
        self.logs.append((log.status, step))

    def flush(self) -> None:
        self.flushes += 1


def counted() -> tuple[Any, Any, Any]:
    """An operation that adds 1 to the global step and to `w`, and summaries of both."""
    w, step = tf.Variable(0.0), tf.train.get_or_create_global_step()
    train_op = tf.group(tf.assign_add(step, 1), tf.assign_add(w, 1.0))
    return tf.summary.scalar("w", w), tf.summary.scalar("step", step), train_op


def steps_of(folder: Path) -> dict[str, list[int]]:
    """The steps at which each tag was written to a folder."""
    from tensorboard.backend.event_processing.event_file_loader import RawEventFileLoader

    tf.summary.FileWriterCache.clear()
    steps: dict[str, list[int]] = {}
    for path in sorted(folder.glob("events*")):
        for raw in RawEventFileLoader(str(path)).Load():
            event = tf.Event.FromString(raw)
            for value in event.summary.value:
                steps.setdefault(value.tag, []).append(event.step)
    return steps


@pytest.mark.parametrize(
    ("interval", "expected"),
    [
        ({"save_secs": 1.5}, [1, 3, 5, 7]),  # also when it is to the second
        ({"save_steps": 3}, [1, 4, 7]),
        ({"save_secs": 2.5}, [1, 5]),
        ({"save_steps": 100}, [1]),
    ],
    ids=str,
)
def test_summaries_are_written_at_intervals(
    interval: dict[str, Any], expected: list[int], clock: list[float]
) -> None:
    of_w, of_step, train_op = counted()
    writer = Writer()
    hook = tf.train.SummarySaverHook(**interval, summary_writer=writer, summary_op=[of_w, of_step])
    with tf.train.MonitoredSession(hooks=[hook]) as session:
        for _ in range(7):
            session.run(train_op)
            clock[0] += 0.75
    assert [step for step, _ in writer.summaries] == [step for step in expected for _ in range(2)]
    assert {tag for _, summary in writer.summaries for tag in summary} == {"w", "step"}
    assert writer.logs == [(tf.SessionLog.START, 1)]
    assert writer.flushes == 1


def test_a_scaffold_merges_all_summaries(tmp_path: Path) -> None:
    _, _, train_op = counted()
    scaffold = tf.train.Scaffold()
    hook = tf.train.SummarySaverHook(save_steps=2, output_dir=tmp_path, scaffold=scaffold)
    creator = tf.train.ChiefSessionCreator(scaffold)
    with tf.train.MonitoredSession(creator, hooks=[hook]) as session:
        for _ in range(4):
            session.run(train_op)
    assert steps_of(tmp_path) == {"w": [1, 3], "step": [1, 3]}
    assert tf.get_collection(tf.GraphKeys.SUMMARY_OP) == [scaffold.summary_op]


def test_hook_without_summaries_writes_nothing(tmp_path: Path) -> None:
    step = tf.train.get_or_create_global_step()
    train_op, scaffold = tf.assign_add(step, 1), tf.train.Scaffold()
    hook = tf.train.SummarySaverHook(save_steps=1, output_dir=tmp_path, scaffold=scaffold)
    with tf.train.MonitoredSession(tf.train.ChiefSessionCreator(scaffold), [hook]) as session:
        session.run(train_op)
    assert scaffold.summary_op is None
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("options", "w_steps"),
    [
        ({"save_summaries_steps": 2}, [1, 3, 5]),
        ({}, [1]),
        ({"save_summaries_steps": None, "save_summaries_secs": None}, None),
        ({"save_summaries_secs": 1000}, [1]),
    ],
    ids=str,
)
def test_monitored_trainings_write_summaries(
    options: dict[str, Any], w_steps: list[int] | None, tmp_path: Path
) -> None:
    _, _, train_op = counted()
    with tf.train.MonitoredTrainingSession(
        checkpoint_dir=tmp_path / "checkpoints",
        summary_dir=tmp_path / "summaries",
        log_step_count_steps=2,
        **options,
    ) as session:
        for _ in range(5):
            session.run(train_op)
    steps = steps_of(tmp_path / "summaries")
    assert steps.get("w") == w_steps
    assert steps["global_step/sec"] == [3, 5]
    assert steps_of(tmp_path / "checkpoints") == {}


def test_steps_per_second_go_to_either_kind_of_writer(clock: list[float]) -> None:
    class OfTorch:
        def __init__(self) -> None:
            self.lines: list[tuple[str, float, int]] = []

        def add_scalar(self, tag: str, value: float, step: int) -> None:
            self.lines.append((tag, value, step))

    _, _, train_op = counted()
    writer, board = Writer(), OfTorch()
    hooks = [
        tf.train.StepCounterHook(every_n_steps=2, summary_writer=sink) for sink in (writer, board)
    ]
    with tf.train.MonitoredSession(hooks=hooks) as session:
        for _ in range(3):
            session.run(train_op)
            clock[0] += 0.5
    assert writer.summaries == [(3, {"global_step/sec": 2.0})]
    assert board.lines == [("global_step/sec", 2.0, 3)]


def test_training_continues_without_tensorboard(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [module for module in sys.modules if module.partition(".")[0] == "tensorboard"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    step = tf.train.get_or_create_global_step()
    train_op = tf.assign_add(step, 1)
    with tf.train.MonitoredTrainingSession(
        checkpoint_dir=tmp_path, log_step_count_steps=1
    ) as session:
        for _ in range(3):
            session.run(train_op)
    assert not list(tmp_path.glob("events*"))


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"save_steps": 1}, r"^Exactly one of scaffold or summary_op must be provided\.$"),
        ({"save_steps": 1, "scaffold": 1, "summary_op": 1}, "^Exactly one of scaffold"),
        ({"summary_op": 1}, "^Either every_secs or every_steps"),
        ({"summary_op": 1, "save_steps": 1, "save_secs": 1}, "^Can not provide both"),
    ],
    ids=str,
)
def test_invalid_summary_hook_arguments_raise(options: dict[str, Any], match: str) -> None:
    with pytest.raises(ValueError, match=match):
        tf.train.SummarySaverHook(**options)


def test_summary_hook_needs_a_global_step() -> None:
    hook = tf.train.SummarySaverHook(save_steps=1, summary_op=tf.summary.scalar("a", 1.0))
    with pytest.raises(RuntimeError, match="Global step should be created to use SummarySaver"):
        tf.train.MonitoredSession(hooks=[hook])
