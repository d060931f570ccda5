"""`tf.summary`: what is in the files, as TensorBoard reads them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import fresh_process
import thalweg.tf as newer
import thalweg.tf.compat.v1 as tf

pytest.importorskip("tensorboard")


@pytest.fixture
def graph() -> Iterator[tf.Graph]:
    with tf.Graph().as_default() as graph:
        yield graph


def events(folder: Path) -> list[Any]:
    """Return the events in a folder's files by time, without the version events."""
    from tensorboard.backend.event_processing.event_file_loader import RawEventFileLoader

    new_events = []
    for path in sorted(folder.iterdir()):
        loaded = [newer.Event.FromString(record) for record in RawEventFileLoader(str(path)).Load()]
        new_events += [event for event in loaded if not event.file_version]
    return sorted(new_events, key=lambda event: event.wall_time)


def test_summaries_are_written_with_their_steps(graph: Any, tmp_path: Path) -> None:
    x = tf.placeholder(tf.float32, [], name="x")
    tf.summary.scalar("loss", x)
    tf.summary.scalar("half", x / 2, collections=["other"])
    tf.summary.text("words", ["one", "two"])
    merged, second = tf.summary.merge_all(), tf.summary.merge_all("other")
    with tf.Session() as session, tf.summary.FileWriter(tmp_path, session.graph) as writer:
        for step in range(2):
            writer.add_summary(session.run(merged, {x: step + 1.5}), step)
        writer.add_summary(session.run(second, {x: 3}), session.run(tf.constant(7)))
        summary = tf.Summary(value=[tf.Summary.Value(tag="own", simple_value=4.0)])
        writer.add_summary(summary, 8)
    first_event, *later = events(tmp_path)
    tags = [(event.step, value.tag) for event in later for value in event.summary.value]
    assert tags == [
        *((step, tag) for step in range(2) for tag in ("loss", "words")),
        (7, "half"),
        (8, "own"),
    ]
    values = [event.summary.value[0].simple_value for event in later]
    assert values == [1.5, 2.5, 1.5, 4]
    assert list(later[0].summary.value[1].tensor.string_val) == [b"one", b"two"]
    nodes = {node.name: node for node in newer.GraphDef.FromString(first_event.graph_def).node}
    assert nodes["x"].op == "Placeholder"
    assert list(nodes["loss/loss"].input) == ["x"]


def test_a_closed_writer_writes_nothing_until_it_is_reopened(tmp_path: Path) -> None:
    writer = tf.summary.FileWriter(str(tmp_path), filename_suffix=".a")
    assert writer.get_logdir() == str(tmp_path)
    summary = tf.Summary(value=[tf.Summary.Value(tag="own", simple_value=4.0)])
    writer.add_summary(summary.SerializeToString(), 1)
    writer.flush()
    assert len(events(tmp_path)) == 1
    writer.close()
    writer.close()
    writer.add_summary(summary, 2)
    writer.flush()
    writer.reopen()
    writer.add_summary(summary, 3)
    writer.close()
    assert [event.step for event in events(tmp_path)] == [1, 3]


def test_writer_cache_has_one_writer_per_folder(tmp_path: Path) -> None:
    cache = tf.summary.FileWriterCache
    first, second = cache.get(tmp_path), cache.get(tmp_path / "other")
    assert cache.get(tmp_path) is first is not second
    cache.clear()
    assert cache.get(tmp_path) is not first
    cache.clear()


def test_merge_all_without_summaries_is_none(graph: Any) -> None:
    assert tf.summary.merge_all() is None


def test_invalid_summaries_raise(graph: Any, tmp_path: Path) -> None:
    with tf.Session() as session:
        summary = tf.summary.scalar("a", 1.0)
        with pytest.raises(ValueError, match="Duplicate tag a"):
            session.run(tf.summary.merge([summary, summary]))
        with pytest.raises(ValueError, match=r"of a scalar, not of shape \(2,\)"):
            session.run(tf.summary.scalar("b", [1.0, 2.0]))
        with pytest.raises(ValueError, match="NaN or infinite in the summary of 'c'"):
            session.run(tf.summary.histogram("c", [1.0, float("nan")]))
        with pytest.raises(ValueError, match="summary of 'd' is of images"):
            session.run(tf.summary.image("d", tf.ones([2, 3, 4, 2])))
    with tf.summary.FileWriter(tmp_path) as writer, pytest.raises(TypeError, match="not float"):
        writer.add_summary(1.0)
    with pytest.raises(TypeError, match="merge takes summaries"):
        tf.summary.merge([b""])


def test_summaries_belong_to_a_graph() -> None:
    with pytest.raises(RuntimeError, match="SummaryWriter"):
        tf.summary.scalar("a", 1.0)
    with pytest.raises(RuntimeError, match="SummaryWriter"):
        tf.summary.merge_all()


WITHOUT_TENSORBOARD = """
import sys, warnings
sys.modules["tensorboard"] = None
import numpy as np
import thalweg.tf.compat.v1 as tf
tf.disable_eager_execution()
x = tf.placeholder(tf.float32, [None])
tf.summary.scalar("mean", tf.reduce_mean(x))
tf.summary.histogram("x", x)
tf.summary.image("image", tf.reshape(x, [1, 1, 2, 1]))
tf.summary.text("words", ["one", "two"])
merged = tf.summary.merge_all()
writer = tf.summary.FileWriter(sys.argv[1] + "/logs")
with warnings.catch_warnings(record=True) as caught, tf.Session() as session:
    warnings.simplefilter("always")
    print(len(caught), session.run(merged, {x: [1.0, 3.0]}))
    for step in range(3):
        writer.add_summary(session.run(merged, {x: [1.0, 3.0]}), step)
        own = tf.Summary(value=[tf.Summary.Value(tag="a", simple_value=2.0)])
        own.value.add(tag="b", simple_value=3.0)
        writer.add_summary(own, step)
    print([value.tag for value in own.value], own.value[1].simple_value)
    parsed = tf.Summary()
    print(parsed.ParseFromString(session.run(merged, {x: [1.0, 3.0]})), len(parsed.value))
    parsed.value.add(tag="c", simple_value=1.0)
    print(parsed.value[0].HasField("simple_value"), parsed.value[0].WhichOneof("value"))
    parsed.Clear()
    print(len(parsed.value), tf.Summary.Value().simple_value + 1.0)
    histogram = tf.HistogramProto(num=1.0)
    histogram.bucket_limit.append(2.0)
    print(list(histogram.bucket_limit))
    writer.add_graph(tf.get_default_graph())
    writer.add_session_log(tf.SessionLog(status=tf.SessionLog.START), 1)
    tf.summary.FileWriter(sys.argv[1] + "/more", session.graph).close()
    writer.flush()
    writer.close()
    try:
        session.run(merged, {x: [np.nan, 1.0]})
    except tf.errors.InvalidArgumentError as error:
        print(str(error)[:24])
print([(warning.category.__name__, str(warning.message)) for warning in caught])
"""


def test_graphs_run_without_tensorboard_and_warn_once(tmp_path: Path) -> None:
    process = fresh_process.run(WITHOUT_TENSORBOARD, str(tmp_path))
    lines = process.stdout.splitlines()
    assert lines[:2] == ["0 b''", "['a', 'b'] 3.0"], process.stderr
    assert lines[2:6] == ["0 0", "True simple_value", "0 1.0", "[2.0]"]
    assert lines[6] == "An element is NaN or inf"
    assert lines[-1].startswith("[('UserWarning', 'Summaries are not written, because TensorBoard")
    assert "thalweg[summary]" in lines[-1]
    assert lines[-1].count("UserWarning") == 1
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["logs", "more"]


def test_trained_loss_has_a_summary(graph: Any) -> None:
    w = tf.Variable([3.0, 4.0])
    loss = tf.reduce_sum(w * w)
    merged = tf.summary.merge([tf.summary.scalar("loss", loss), tf.summary.histogram("w", w)])
    train = tf.train.GradientDescentOptimizer(0.5).minimize(loss)
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        serialized, _ = session.run([merged, train])
    (summary_value, _) = tf.Summary.FromString(serialized).value
    assert (summary_value.tag, summary_value.simple_value) == ("loss", 25.0)
