"""Sessions with hooks: their life, the checkpoints they begin with and save, and each hook."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import thalweg.v1 as tf
from captured_log import Logged
from graph_training import Training, bits
from thalweg.errors import NotFoundError, OutOfRangeError
from thalweg.v1 import train
from thalweg.v1.train.queues import FIFOQueue


def counted(size: int = 1) -> tuple[Any, Any, Any]:
    """A variable, the global step, and an operation that adds 1 to both."""
    w = tf.get_variable("w", initializer=np.zeros(size, np.float32))
    step = train.get_or_create_global_step()
    ones = torch.full((size,), -1.0)
    return w, step, train.GradientDescentOptimizer(1.0).apply_gradients([(ones, w)], step)


class Diary(train.SessionRunHook):
    """Writes down how it is called."""

    def __init__(self, pages: list[str], name: str = "") -> None:
        self.pages, self.name = pages, name

    def begin(self) -> None:
        assert not tf.get_default_graph().finalized
        self.pages.append(f"{self.name}begin")

    def after_create_session(self, session: Any, coord: Any) -> None:
        assert session.graph.finalized
        assert not coord.should_stop()
        self.pages.append(f"{self.name}created")

    def before_run(self, run_context: Any) -> None:
        self.pages.append(f"{self.name}before")

    def after_run(self, run_context: Any, run_values: Any) -> None:
        assert run_values.results is None
        self.pages.append(f"{self.name}after")

    def end(self, session: Any) -> None:
        assert not session.closed
        self.pages.append(f"{self.name}end")


@pytest.fixture
def pages() -> list[str]:
    return []


# --- The life of a session ------------------------------------------------------------------------


def test_hooks_are_called_in_order(graph: tf.Graph, pages: list[str]) -> None:
    w, _, train_op = counted()
    hooks = [Diary(pages, "a "), Diary(pages, "b ")]
    with train.MonitoredSession(hooks=hooks) as session:
        assert pages == ["a begin", "b begin", "a created", "b created"]
        assert session.run(train_op) is None
        assert session.run({"w": w, "none": []}) == {"w": [1.0], "none": []}
        raw = session._require_session()
    assert pages[4:] == ["a before", "b before", "a after", "b after"] * 2 + ["a end", "b end"]
    assert raw.closed


def test_graph_is_finalized_during_the_session(graph: tf.Graph) -> None:
    counted()
    with train.MonitoredSession() as session:
        assert graph.finalized
        assert session.graph is graph
        with pytest.raises(RuntimeError, match=r"^Graph is finalized and cannot be modified\.$"):
            tf.constant(1.0)
    assert session.graph is None
    tf.constant(1.0)
    with train.MonitoredSession():  # once more: what a scaffold needs is found, not made
        pass
    graph.finalize()
    with train.MonitoredSession():
        pass
    assert graph.finalized


def test_end_of_iterator_ends_the_session(graph: tf.Graph, pages: list[str]) -> None:
    x = tf.placeholder("float32", [])
    y, batches = x * 2, iter([1.0, 2.0])
    outputs = []
    with train.MonitoredSession(hooks=[Diary(pages)]) as session:
        while not session.should_stop():
            outputs.append(session.run(y, {x: next(batches)}))
    assert outputs == [2, 4]
    assert pages[-1] == "end"


def test_error_ends_the_session_without_end_hooks(graph: tf.Graph, pages: list[str]) -> None:
    counted()
    session = train.MonitoredSession(hooks=[Diary(pages)])
    raw = session._require_session()
    with pytest.raises(ZeroDivisionError), session:
        raise ZeroDivisionError
    assert pages == ["begin", "created"]
    assert raw.closed
    assert not graph.finalized
    assert session.should_stop()


def test_failing_end_hook_closes_the_session(graph: tf.Graph) -> None:
    class Failing(train.SessionRunHook):
        def end(self, session: Any) -> None:
            raise ZeroDivisionError

    session = train.MonitoredSession(hooks=[Failing()])
    raw = session._require_session()
    with pytest.raises(ZeroDivisionError):
        session.close()
    assert raw.closed
    assert not graph.finalized


@pytest.mark.parametrize("method", ["begin", "after_create_session"])
def test_failed_start_leaves_no_open_session(graph: tf.Graph, method: str) -> None:
    w, _, _ = counted()
    sessions: list[Any] = []

    class Failing(train.SessionRunHook):
        def fail(self, *args: Any) -> None:
            sessions.extend(args)
            raise ZeroDivisionError

    setattr(Failing, method, Failing.fail)
    with pytest.raises(ZeroDivisionError):
        train.MonitoredSession(hooks=[Failing()])
    assert not graph.finalized
    assert all(session.closed for session in sessions[:1])
    with train.MonitoredSession() as session:
        assert session.run(w) == 0


def test_closed_session_raises_on_run(graph: tf.Graph) -> None:
    w, _, _ = counted()
    session = train.MonitoredSession()
    session.close()
    assert session.should_stop()
    calls: list[Callable[[], Any]] = [session.close, lambda: session.run(w)]
    calls.append(lambda: session.run_step_fn(lambda step_context: None))
    for call in calls:
        with pytest.raises(RuntimeError, match=r"^Session is already closed\.$"):
            call()


def test_a_hook_requests_a_stop(graph: tf.Graph) -> None:
    class Stopping(train.SessionRunHook):
        def after_run(self, run_context: Any, run_values: Any) -> None:
            run_context.request_stop()
            assert run_context.stop_requested

    w, _, train_op = counted()
    with train.MonitoredSession(hooks=[Stopping()]) as session:
        assert not session.should_stop()
        session.run(train_op)
        assert session.should_stop()
        with pytest.raises(RuntimeError, match=r"^Run called even after should_stop requested\.$"):
            session.run(w)


class Asking(train.SessionRunHook):
    """Asks for what it is given, and keeps it."""

    def __init__(self, fetches: Any = None, feeds: Any = None) -> None:
        self.request = train.SessionRunArgs(fetches, feeds)
        self.values: list[Any] = []
        self.requests: list[Any] = []

    def before_run(self, run_context: Any) -> Any:
        self.requests.append(run_context.original_args)
        return self.request

    def after_run(self, run_context: Any, run_values: Any) -> None:
        self.values.append(run_values.results)


def test_hooks_request_values_of_the_same_run(graph: tf.Graph) -> None:
    w, step, train_op = counted()
    x = tf.placeholder("float32", [])
    asking, asking_too = Asking({"w": w, "two": [x * 2]}), Asking(x + 1, {})
    with train.MonitoredSession(hooks=[asking, asking_too]) as session:
        assert session.run([train_op, x], {x: 3.0}) == [None, 3]
    assert asking.values == [{"w": [0.0], "two": [6.0]}]
    assert asking_too.values == [4.0]
    assert asking.requests == [train.SessionRunArgs([train_op, x], {x: 3.0})]
    assert step.graph is graph


def test_hooks_can_add_feeds(graph: tf.Graph) -> None:
    x, y, z = (tf.placeholder("float32", [], name=name) for name in "xyz")
    two = x + y
    three = two + z
    hooks = [train.FeedFnHook(lambda: {x: 1.0}), Asking(None, {y: 2.0})]
    with train.MonitoredSession(hooks=hooks) as session:
        assert session.run(two) == 3
        assert session.run(three, {z: 3.0}) == 6
        with pytest.raises(RuntimeError, match=r"^Same tensor is fed by a SessionRunHook and user"):
            session.run(x, {x: 1.0})
    with (
        train.MonitoredSession(hooks=[*hooks, Asking(None, {x: 1.0})]) as session,
        pytest.raises(RuntimeError, match=r"^Same tensor is fed by two hooks\. Conflict\(s\): \["),
    ):
        session.run(z)


def test_step_functions_can_run_several_times(graph: tf.Graph) -> None:
    w, _, train_op = counted()
    hook = Asking(w)

    def step_fn(step_context: Any) -> Any:
        value = step_context.session.run(w)
        if value == 2:
            step_context.request_stop()
        step_context.run_with_hooks(train_op)
        return value

    with train.MonitoredSession(hooks=[hook]) as session:
        while not session.should_stop():
            session.run_step_fn(step_fn)
    assert hook.values == [0.0, 1.0]
    with train.SingularMonitoredSession() as session:
        for wrong in (lambda: None, lambda step_context, extra: None, lambda context: None):
            with pytest.raises(ValueError, match=r"`step_fn` may either have one `step_context`"):
                session.run_step_fn(wrong)
        assert session.raw_session().run(w) == 0
        assert session.run_step_fn(lambda step_context: 5) == 5
    assert session.raw_session() is None


def test_thread_failure_is_raised(graph: tf.Graph) -> None:
    class Starting(train.SessionRunHook):
        def after_create_session(self, session: Any, coord: Any) -> None:
            def work() -> None:
                with coord.stop_on_exception():
                    raise ZeroDivisionError

            thread = threading.Thread(target=work)
            coord.register_thread(thread)
            thread.start()
            thread.join()

    with (
        pytest.raises(ZeroDivisionError),
        train.MonitoredSession(hooks=[Starting()]) as session,
    ):
        session.should_stop()


def test_thread_failure_is_raised_before_its_consequences(graph: tf.Graph) -> None:
    """A queue is closed when the thread that fills it fails, and the run finds no elements."""
    sessions: list[Any] = []

    class Last(train.SessionRunHook):
        def end(self, session: Any) -> None:
            sessions.append(session)

    queue = FIFOQueue(1, "float32", shapes=[[]])
    with tf.control_dependencies([tf.operation(lambda: 1 // 0, [], "fails")]):
        fill = queue.enqueue(1.0)
    train.add_queue_runner(train.QueueRunner(queue, [fill]))
    dequeued = queue.dequeue()
    with (
        pytest.raises(ZeroDivisionError),
        train.MonitoredSession(hooks=[Last()]) as session,
    ):
        session.run(dequeued)
    assert not sessions


def test_queue_runner_threads_end_with_the_session(graph: tf.Graph) -> None:
    w, _, train_op = counted()
    has_run = threading.Event()
    fill = tf.operation(lambda: has_run.set(), [], "fill")
    train.add_queue_runner(train.QueueRunner("queue", [fill]))
    thread_count = threading.active_count()
    with train.MonitoredSession() as session:
        assert has_run.wait(120)
        session.run(train_op)
        assert session.run(w) == 1
    assert threading.active_count() == thread_count


# --- What a session begins with -------------------------------------------------------------------


def test_variables_are_initialized(graph: tf.Graph) -> None:
    w = tf.get_variable("w", initializer=2.0)
    local = tf.Variable(3.0, name="local", collections=[tf.GraphKeys.LOCAL_VARIABLES])
    with train.MonitoredSession() as session:
        assert session.run([w, local]) == [2, 3]


def test_init_fn_is_called_after_the_initializers(graph: tf.Graph) -> None:
    w = tf.Variable(2.0, name="w")
    calls: list[Any] = []

    def init_fn(scaffold: Any, session: Any) -> None:
        calls.append((scaffold, session.run(w)))
        w.load(5.0, session)

    original = train.Scaffold(init_fn=init_fn)
    for scaffold in (original, train.Scaffold(copy_from_scaffold=original)):
        with train.SingularMonitoredSession(scaffold=scaffold) as session:
            assert session.run(w) == 5
    assert calls == [(original, 2), (original, 2)]


def test_copying_a_non_scaffold_raises() -> None:
    with pytest.raises(TypeError, match="copy_from_scaffold is not a Scaffold instance: 1"):
        train.Scaffold(copy_from_scaffold=1)


def test_scaffold_runs_its_operations(graph: tf.Graph) -> None:
    w, v = tf.Variable(0.0, name="w"), tf.Variable(0.0, name="v")
    init = tf.group(w.initializer, v.initializer)
    with tf.control_dependencies([init]):
        increment_w = w.assign_add(1.0).op
    increment_v = v.assign_add(2.0).op
    original = train.Scaffold(init_op=increment_w, local_init_op=increment_v)
    copy = train.Scaffold(copy_from_scaffold=original, local_init_op=tf.no_op())
    outputs = []
    for scaffold in (original, copy):
        with train.SingularMonitoredSession(scaffold=scaffold) as session:
            outputs.append(session.run([w, v]))
    assert outputs == [[1, 2], [1, 0]]


def test_feeds_reach_the_initializers(graph: tf.Graph) -> None:
    x = tf.placeholder("float32", [])
    w = tf.Variable(x, name="w")
    local = tf.Variable(x * 2, name="l", collections=[tf.GraphKeys.LOCAL_VARIABLES])
    scaffold = train.Scaffold(init_feed_dict={x: 5.0}, local_init_feed_dict={x: 6.0})
    with train.SingularMonitoredSession(scaffold=scaffold) as session:
        assert session.run([w, local]) == [5, 12]


def test_uninitialized_variables_are_named(graph: tf.Graph) -> None:
    a, b = tf.Variable(1.0, name="a"), tf.Variable(1.0, name="b")
    tf.Variable(1.0, name="c", collections=[tf.GraphKeys.LOCAL_VARIABLES])
    initialize_a = tf.group(a.initializer, name="a_only")
    message = (
        r"^Init operations did not make model ready for local_init\. Init op: a_only, init fn:"
        r" None, local_init_op: local_init, error: Variables not initialized: b$"
    )
    with pytest.raises(RuntimeError, match=message):
        train.SingularMonitoredSession(scaffold=train.Scaffold(init_op=initialize_a))
    message = r"^Init operations did not make model ready\. .*error: Variables not initialized: c$"
    scaffold = train.Scaffold(local_init_op=tf.no_op("nothing"))
    with pytest.raises(RuntimeError, match=message):
        train.SingularMonitoredSession(scaffold=scaffold)
    assert b.graph is graph


@pytest.mark.parametrize(
    ("key", "argument"),
    [("init_op", "init_op"), ("ready_op", "ready_op"), ("local_init_op", "local_init_op")],
)
def test_collections_with_several_items_raise(graph: tf.Graph, key: str, argument: str) -> None:
    counted()
    for _ in range(2):
        graph.add_to_collection(key, tf.no_op())
    message = rf'^More than one item in the collection "{key}"\. .*tf\.Scaffold\({argument}=item'
    with pytest.raises(RuntimeError, match=message):
        train.MonitoredSession()


def test_saver_of_the_graph_is_used(graph: tf.Graph) -> None:
    counted()
    saver = train.Saver(max_to_keep=1, defer_build=True)
    graph.add_to_collection(tf.GraphKeys.SAVERS, saver)
    scaffold = train.Scaffold()
    with train.SingularMonitoredSession(scaffold=scaffold):
        assert scaffold.saver is saver
    graph.add_to_collection(tf.GraphKeys.SAVERS, saver)
    with pytest.raises(RuntimeError, match=r"^More than one item in collection savers\. Please"):
        train.SingularMonitoredSession()


# --- Checkpoints ----------------------------------------------------------------------------------


def steps_of(folder: Path) -> list[int]:
    return sorted(int(path.stem.split("-")[1]) for path in folder.glob("*.safetensors"))


def trained(folder: Path, last_step: int, **options: Any) -> list[float]:
    """The values before each run of a training in a graph of its own."""
    options.setdefault("save_checkpoint_steps", 2)
    values = []
    with tf.Graph().as_default():
        w, _, train_op = counted()
        hooks = [train.StopAtStepHook(last_step=last_step), *options.pop("hooks", ())]
        with train.MonitoredTrainingSession(
            checkpoint_dir=folder, hooks=hooks, **options
        ) as session:
            while not session.should_stop():
                values.append(float(session.run([w, train_op])[0][0]))
    return values


def test_monitored_training_resumes(tmp_path: Path) -> None:
    folder = tmp_path / "run" / "7"  # is made
    assert trained(folder, 5) == [0, 1, 2, 3, 4]
    assert steps_of(folder) == [0, 2, 4, 5]
    assert trained(folder, 8) == [5, 6, 7]
    assert train.latest_checkpoint(folder) == str(folder / "model.ckpt-8")
    assert steps_of(folder) == [2, 4, 5, 7, 8]  # the five newest of both trainings
    assert trained(folder, 8) == [8]


def test_checkpoint_intervals_are_respected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [1000.0]

    class Clock(train.SessionRunHook):
        def before_run(self, run_context: Any) -> None:
            clock[0] += 1

    monkeypatch.setattr("time.time", lambda: clock[0])
    cases: dict[str, tuple[dict[str, Any], list[int]]] = {
        "seconds": ({"save_checkpoint_secs": 2.5, "save_checkpoint_steps": None}, [0, 3, 6, 7]),
        "default": ({"save_checkpoint_steps": None, "save_checkpoint_secs": 600}, [0, 7]),
        "none": ({"save_checkpoint_steps": None, "save_checkpoint_secs": None}, []),
        "zero": ({"save_checkpoint_steps": None, "save_checkpoint_secs": 0}, []),
        "steps": ({"save_checkpoint_steps": 3}, [0, 3, 6, 7]),
    }
    for name, (options, steps) in cases.items():
        trained(tmp_path / name, 7, chief_only_hooks=[Clock()], **options)
        assert steps_of(tmp_path / name) == steps, name


def test_crash_loses_only_steps_since_the_checkpoint(tmp_path: Path) -> None:
    class Crash(train.SessionRunHook):
        def after_run(self, run_context: Any, run_values: Any) -> None:
            if run_context.session.run("global_step:0") == 5:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        trained(tmp_path, 9, hooks=[Crash()])
    assert steps_of(tmp_path) == [0, 2, 4]
    assert trained(tmp_path, 7) == [4, 5, 6]


@pytest.mark.parametrize("name", ["v1:AdamOptimizer", "CenteredRMSPropV1", "AdagradDA"])
def test_resumed_training_has_the_same_bits(name: str, tmp_path: Path) -> None:
    ends = []
    for stops in ([6], [2, 3, 6]):
        folder = tmp_path / str(len(stops))
        for stop in stops:
            training = Training(name)
            with (
                training.graph.as_default(),
                train.MonitoredTrainingSession(
                    checkpoint_dir=folder, save_checkpoint_steps=100
                ) as session,
            ):
                training.session = session
                training.take(int(session.run(training.step)), stop)
                final_bits = bits(session._require_session())
        ends.append(final_bits)
    assert ends[0] == ends[1]


def test_checkpoint_of_another_graph_raises(tmp_path: Path) -> None:
    trained(tmp_path, 2)
    with tf.Graph().as_default() as graph:
        counted(size=3)
        with pytest.raises(ValueError, match=r"'w' has shape \(1,\) in .*has shape \(3,\)"):
            train.MonitoredTrainingSession(checkpoint_dir=tmp_path)
        tf.get_variable("more", initializer=1.0)
        graph.clear_collection(tf.GraphKeys.SAVERS)
        with pytest.raises(NotFoundError, match=r"^Key more not found in checkpoint"):
            train.MonitoredTrainingSession(checkpoint_dir=tmp_path)
        assert not graph.finalized


def test_tensorflow_checkpoint_starts_a_training(graph: tf.Graph) -> None:
    folder = Path(__file__).parents[1] / "goldens" / "checkpoints" / "ckpt_v1" / "adam"
    with tf.variable_scope("layer1"):
        kernel = tf.get_variable("kernel", (4, 6))
    creator = train.ChiefSessionCreator(checkpoint_dir=folder)
    with train.MonitoredSession(creator) as session:
        assert session.run(kernel).tobytes() == train.load_variable(folder, kernel.name).tobytes()


def test_checkpoint_filename_selects_the_checkpoint(graph: tf.Graph, tmp_path: Path) -> None:
    trained(tmp_path, 4)
    w, step, _ = counted()
    prefix = tmp_path / "model.ckpt-2"
    with train.SingularMonitoredSession(checkpoint_filename_with_path=prefix) as session:
        assert session.run([w, step]) == [2.0, 2]
    with pytest.raises(ValueError, match=r"^Can not provide both checkpoint_dir and checkpoint_fi"):
        train.SingularMonitoredSession(
            checkpoint_dir=tmp_path, checkpoint_filename_with_path=prefix
        )


def test_training_session_without_folder_saves_no_checkpoints(
    graph: tf.Graph, tmp_path: Path
) -> None:
    w = tf.get_variable("w", initializer=1.0)
    with train.MonitoredTrainingSession() as session:  # no global step is needed
        assert session.run(w) == 1
    with pytest.raises(RuntimeError, match=r"^Global step should be created to use StepCounterHo"):
        train.MonitoredTrainingSession(checkpoint_dir=tmp_path)
    with pytest.raises(RuntimeError, match=r"^Global step should be created to use SummarySaverH"):
        train.MonitoredTrainingSession(checkpoint_dir=tmp_path, log_step_count_steps=None)
    with pytest.raises(RuntimeError, match=r"^Global step should be created to use CheckpointSav"):
        train.MonitoredTrainingSession(
            checkpoint_dir=tmp_path, log_step_count_steps=None, save_summaries_steps=None
        )


def test_workers_of_a_server_raise(graph: tf.Graph) -> None:
    with pytest.raises(ValueError, match=r"^is_chief=False: .* processes with torch\.distributed,"):
        train.MonitoredTrainingSession(is_chief=False)


class Listener(train.CheckpointSaverListener):
    def __init__(self, pages: list[str], last_page: int = 99) -> None:
        self.pages, self.last_page = pages, last_page

    def begin(self) -> None:
        self.pages.append("begin")

    def before_save(self, session: Any, global_step_value: int) -> None:
        self.pages.append(f"before {global_step_value}")

    def after_save(self, session: Any, global_step_value: int) -> bool:
        self.pages.append(f"after {global_step_value}")
        return global_step_value >= self.last_page

    def end(self, session: Any, global_step_value: int) -> None:
        self.pages.append(f"end {global_step_value}")


def test_listeners_are_called_around_each_save(
    graph: tf.Graph, tmp_path: Path, pages: list[str]
) -> None:
    w, _, train_op = counted()
    hook = train.CheckpointSaverHook(
        tmp_path, save_steps=2, saver=train.Saver(), listeners=[Listener(pages, last_page=4)],
        checkpoint_basename="best",
    )  # fmt: skip
    with train.MonitoredSession(hooks=[hook]) as session:
        while not session.should_stop():
            session.run(train_op)
    assert pages == [
        "begin", "before 0", "after 0", "before 2", "after 2", "before 4", "after 4", "end 4",
    ]  # fmt: skip
    assert train.latest_checkpoint(tmp_path) == str(tmp_path / "best-4")
    assert w.graph is graph


def test_invalid_checkpoint_hooks_raise(graph: tf.Graph, tmp_path: Path) -> None:
    counted()
    with pytest.raises(ValueError, match=r"^You cannot provide both saver and scaffold\.$"):
        train.CheckpointSaverHook(tmp_path, 1, saver=train.Saver(), scaffold=train.Scaffold())
    with pytest.raises(ValueError, match=r"^Can not provide both every_secs and every_steps\.$"):
        train.CheckpointSaverHook(tmp_path, save_secs=1, save_steps=1)
    with pytest.raises(ValueError, match=r"^Either every_secs or every_steps should be provided\."):
        train.CheckpointSaverHook(tmp_path)
    hook = train.CheckpointSaverHook(tmp_path, save_steps=1)
    hook.begin()
    with pytest.raises(RuntimeError, match=r"^No items in collection savers\. Please add a saver"):
        hook._saver_for(tf.Session())


def test_moving_averages_are_saved_in_place_of_variables(tmp_path: Path) -> None:
    from thalweg.v1.contrib.opt import MovingAverageOptimizer

    with tf.Graph().as_default():
        w = tf.get_variable("w", initializer=8.0)
        step = train.get_or_create_global_step()
        optimizer = MovingAverageOptimizer(train.GradientDescentOptimizer(0.25), 0.5)
        train_op = optimizer.minimize(w * w, step)
        scaffold = train.Scaffold(saver=optimizer.swapping_saver())
        with train.MonitoredTrainingSession(
            checkpoint_dir=tmp_path, scaffold=scaffold, save_checkpoint_steps=1
        ) as session:
            session.run(train_op)
            values = session.run([w, optimizer.average(w)])
    averages = [train.load_variable(tmp_path, name) for name in ("w", "w/ExponentialMovingAverage")]
    assert averages == values[::-1] == [6.0, 4.0]


def test_worker_threads_share_a_session(graph: tf.Graph) -> None:
    w = tf.get_variable("w", initializer=[0.0])
    step = train.get_or_create_global_step()
    grad = tf.placeholder("float32", [1])
    optimizer = train.SyncReplicasOptimizer(train.GradientDescentOptimizer(1.0), 2)
    train_op = optimizer.apply_gradients([(grad, w)], step)
    hook = optimizer.make_session_run_hook(is_chief=True, num_tokens=0)
    with train.MonitoredTrainingSession(hooks=[hook], stop_grace_period_secs=10) as session:
        workers = [
            threading.Thread(target=session.run, args=(train_op, {grad: [value]}))
            for value in (1.0, 3.0)
        ]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        assert session.run([w, step]) == [-2.0, 1]


# --- The other hooks ------------------------------------------------------------------------------


def test_stop_at_step_hook_stops(graph: tf.Graph) -> None:
    _, step, train_op = counted()
    begin = train.Scaffold(init_fn=lambda scaffold, session: step.load(10, session))
    for options, end in (({"num_steps": 3}, 13), ({"last_step": 11}, 11), ({"last_step": 5}, 11)):
        hook = train.StopAtStepHook(**options)
        with train.SingularMonitoredSession([hook], begin) as session:
            while not session.should_stop():
                session.run(train_op)
            assert session.raw_session().run(step) == end
    for wrong in ({}, {"num_steps": 1, "last_step": 1}):
        with pytest.raises(ValueError, match=r"num_steps or last_step"):
            train.StopAtStepHook(**wrong)


def test_runs_without_a_step_do_not_stop(graph: tf.Graph) -> None:
    w, _, train_op = counted()
    with train.MonitoredSession(hooks=[train.StopAtStepHook(1)]) as session:
        for _ in range(3):
            session.run(w)
            assert not session.should_stop()
        session.run(train_op)
        assert session.should_stop()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_nan_loss_stops_training(graph: tf.Graph, dtype: str, logged: Logged) -> None:
    x = tf.placeholder(dtype, [])
    loss = x * 2
    session = train.MonitoredSession(hooks=[train.NanTensorHook(loss)])
    session.run(loss, {x: float("inf")})
    with pytest.raises(train.NanLossDuringTrainingError, match=r"^NaN loss during training\.$"):
        session.run([], {x: float("nan")})
    session.close()
    with train.MonitoredSession(hooks=[train.NanTensorHook(loss, False)]) as session:
        session.run([], {x: float("nan")})
        assert session.should_stop()
    assert [record.levelno for record in logged.records] == [logging.ERROR, logging.WARNING]
    assert set(logged.messages) == {"Model diverged with loss = NaN."}


@pytest.fixture
def log(logged: Logged) -> Iterator[Logged]:
    """The log, all of it."""
    logger = logging.getLogger("thalweg")
    level = logger.level
    logger.setLevel(logging.INFO)
    yield logged
    logger.setLevel(level)


def test_values_are_logged_every_n_steps(
    graph: tf.Graph, log: Logged, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [0.0]
    monkeypatch.setattr("time.time", lambda: clock[0])
    w, step, train_op = counted()
    hooks = [
        train.LoggingTensorHook({"value": w, "at": "global_step:0"}, every_n_iter=2),
        train.LoggingTensorHook([step], at_end=True, formatter=lambda x: f"end {x[step]}"),
    ]
    with train.MonitoredSession(hooks=hooks) as session:
        for _ in range(4):
            session.run(train_op)
            clock[0] += 1
    assert log.messages == ["at = 0, value = [0.]", "at = 2, value = [2.] (2.000 sec)", "end 4"]


def test_values_are_logged_every_n_seconds(
    graph: tf.Graph, log: Logged, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [0.0]
    monkeypatch.setattr("time.time", lambda: clock[0])
    w, _, train_op = counted()
    hook = train.LoggingTensorHook([w], every_n_secs=5)
    with train.MonitoredSession(hooks=[hook]) as session:
        for _ in range(5):
            session.run(train_op)
            clock[0] += 3
    assert log.messages == ["w:0 = [0.]", "w:0 = [2.] (6.000 sec)", "w:0 = [4.] (6.000 sec)"]


def test_invalid_logging_hooks_raise(graph: tf.Graph) -> None:
    w, _, _ = counted()
    message = r"^either at_end and/or exactly one of every_n_iter and every_n_secs must be provided"
    for options in ({}, {"every_n_iter": 1, "every_n_secs": 1}):
        with pytest.raises(ValueError, match=message):
            train.LoggingTensorHook([w], **options)
    with pytest.raises(ValueError, match=r"^invalid every_n_iter=0\.$"):
        train.LoggingTensorHook([w], every_n_iter=0)


class Writer:
    """As torch's SummaryWriter."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, float, int]] = []

    def add_scalar(self, tag: str, value: float, step: int) -> None:
        self.lines.append((tag, value, step))


def test_step_counter_hook_reports_steps_per_second(
    graph: tf.Graph, log: Logged, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [0.0]
    monkeypatch.setattr("time.time", lambda: clock[0])
    w, _, train_op = counted()
    writer = Writer()
    hook = train.StepCounterHook(every_n_steps=3, summary_writer=writer)
    with train.MonitoredSession(hooks=[hook]) as session:
        for _ in range(7):
            session.run(train_op)
            clock[0] += 0.5
    assert writer.lines == [("global_step/sec", 2.0, 4), ("global_step/sec", 2.0, 7)]
    assert log.messages == ["global_step/sec: 2", "global_step/sec: 2"]
    assert w.graph is graph
    for wrong in ({"every_n_steps": None}, {"every_n_steps": 1, "every_n_secs": 1}):
        with pytest.raises(ValueError, match=r"^exactly one of every_n_steps and every_n_secs"):
            train.StepCounterHook(**wrong)


def test_unchanged_global_step_is_reported(graph: tf.Graph, log: Logged) -> None:
    w, _, _ = counted()
    with train.MonitoredSession(hooks=[train.StepCounterHook()]) as session:
        for _ in range(45):
            session.run(w)
    assert len(log.messages) == 2
    assert log.messages[0].startswith("It seems that global step (tf.train.get_global_step) has")


def test_final_operations_run_at_the_end(graph: tf.Graph) -> None:
    w, _, train_op = counted()
    x = tf.placeholder("float32", [])
    hook = train.FinalOpsHook({"sum": w + x}, {x: 10.0})
    with train.MonitoredSession(hooks=[hook, train.FinalOpsHook(None)]) as session:
        session.run(train_op)
        assert hook.final_ops_values is None
    assert hook.final_ops_values == {"sum": [11.0]}


def test_global_step_waiter_waits_for_a_step(
    graph: tf.Graph, monkeypatch: pytest.MonkeyPatch
) -> None:
    w, step, train_op = counted()
    hook = train.GlobalStepWaiterHook(3)

    def sleep(_: float) -> None:
        raw.run(train_op)  # another worker's

    monkeypatch.setattr("thalweg.v1.train.monitored.basic_session_run_hooks.time.sleep", sleep)
    with train.SingularMonitoredSession([hook, train.GlobalStepWaiterHook(0)]) as session:
        raw = session.raw_session()
        assert session.run([w, step]) == [3.0, 3]
        step.load(0, raw)
        assert session.run(step) == 0  # it waits once


def test_second_or_step_timer_triggers() -> None:
    steps = train.SecondOrStepTimer(every_steps=10)
    assert steps.should_trigger_for_step(5)
    assert steps.last_triggered_step() is None
    assert steps.update_last_triggered_step(5) == (None, None)
    assert [x for x in range(30) if steps.should_trigger_for_step(x)] == list(range(15, 30))
    seconds, count = steps.update_last_triggered_step(15)
    assert (count, steps.last_triggered_step()) == (10, 15)
    assert seconds is not None
    assert seconds >= 0
    steps.reset()
    assert steps.should_trigger_for_step(15)


def test_final_ops_that_read_an_ended_input_warn(graph: tf.Graph, logged: Logged) -> None:
    class Ended:
        def run(self, fetches: object, feed_dict: object) -> None:
            raise OutOfRangeError("End of sequence")

    hook = train.FinalOpsHook(tf.no_op())
    with pytest.raises(OutOfRangeError, match="End of sequence"):
        hook.end(Ended())
    assert "dependency back to some input source" in logged.messages[0]


# --- SessionManager -------------------------------------------------------------------------------


def test_session_manager_recovers_sessions(graph: tf.Graph, tmp_path: Path) -> None:
    trained(tmp_path, 3)
    w, step, _ = counted()
    saver = train.Saver()
    manager = train.SessionManager(ready_op=tf.report_uninitialized_variables())
    session, is_ready = manager.recover_session(saver=saver, checkpoint_dir=tmp_path / "none")
    assert not is_ready
    session, is_ready = manager.recover_session(saver=saver, checkpoint_dir=tmp_path)
    assert is_ready
    assert session.run([w, step]) == [3.0, 3]
    assert saver.last_checkpoints[-1] == str(tmp_path / "model.ckpt-3")
    own_saver = train.Saver([w])
    session, is_ready = manager.recover_session(saver=own_saver, checkpoint_dir=tmp_path)
    assert not is_ready  # the step has no value
    assert session.run(w) == 3


def test_session_manager_accepts_an_assertion_as_ready_op(graph: tf.Graph, tmp_path: Path) -> None:
    w = tf.Variable(1.0, name="w")
    manager = train.SessionManager(ready_op=tf.assert_variables_initialized())
    session, is_ready = manager.recover_session(saver=train.Saver(), checkpoint_dir=tmp_path)
    assert not is_ready
    with pytest.raises(RuntimeError, match="uninitialized value w"):
        manager.prepare_session(init_op=tf.no_op())
    session = manager.prepare_session(init_op=w.initializer)
    assert session.run(w) == 1.0


@pytest.mark.parametrize("has_file", [True, False])
def test_session_manager_runs_local_init_with_and_without_checkpoint(
    graph: tf.Graph, tmp_path: Path, has_file: bool
) -> None:
    w = tf.Variable(1.0, name="w")
    local = tf.Variable(2.0, name="local", collections=[tf.GraphKeys.LOCAL_VARIABLES])
    saver = train.Saver([w])
    if has_file:
        with tf.Session() as session:
            session.run(w.initializer)
            saver.save(session, str(tmp_path / "model"))
    ready, init = tf.report_uninitialized_variables(), local.initializer
    manager = train.SessionManager(init, ready)
    session, is_ready = manager.recover_session(saver=saver, checkpoint_dir=tmp_path)
    assert (is_ready, session.run(local)) == (has_file, 2.0)
    waiting = train.SessionManager(init, ready, tf.report_uninitialized_variables([w]))
    session, is_ready = waiting.recover_session(saver=saver, checkpoint_dir=tmp_path)
    assert (is_ready, session.run(tf.is_variable_initialized(local))) == (has_file, has_file)
    with pytest.raises(ValueError, match="you must also pass a local_init_op"):
        train.SessionManager(ready_for_local_init_op=ready)


def test_session_manager_closes_a_session_that_fails(
    graph: tf.Graph, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed: list[object] = []
    monkeypatch.setattr(tf.Session, "close", lambda session: closed.append(session))
    x = tf.placeholder("float32", [])
    manager = train.SessionManager(local_init_op=x)
    with pytest.raises(ValueError, match="feed"):
        manager.recover_session()
    assert len(closed) == 1


def test_session_manager_waits_for_a_checkpoint(graph: tf.Graph, tmp_path: Path) -> None:
    w, _, _ = counted()
    init = tf.global_variables_initializer()
    manager = train.SessionManager(recovery_wait_secs=0.01)
    options: dict[str, Any] = {"saver": train.Saver(), "checkpoint_dir": tmp_path}
    prepared_session = manager.prepare_session(
        "", init, wait_for_checkpoint=True, max_wait_secs=0.05, **options
    )
    assert prepared_session.run(w) == 0
    thread = threading.Timer(0.1, trained, [tmp_path, 4])
    thread.start()
    prepared_session = manager.prepare_session("", wait_for_checkpoint=True, **options)
    thread.join()
    assert prepared_session.run(w) >= 0


def test_session_manager_without_init_or_checkpoint_raises(graph: tf.Graph) -> None:
    counted()
    with pytest.raises(RuntimeError, match=r"^Model is not initialized and no init_op or init_fn"):
        train.SessionManager().prepare_session()


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (np.array([b"a", b"b"], dtype=object), r"error: Variables not initialized: a, b$"),
        (np.array([], dtype=object), ""),
        (np.array([1], dtype=np.int32), ""),
    ],
)
def test_ready_op_values_decide_readiness(graph: tf.Graph, value: Any, message: str) -> None:
    counted()
    ready = tf.operation(lambda: value, [], "ready", kind="pure", outputs=tf.Output())
    manager = train.SessionManager(ready_op=ready)
    init = tf.global_variables_initializer()
    if not message:
        assert manager.prepare_session(init_op=init).run("w:0") == 0
        return
    with pytest.raises(RuntimeError, match=message):
        manager.prepare_session(init_op=init)


def test_uninitialized_values_are_not_ready(graph: tf.Graph) -> None:
    w, _, _ = counted()
    manager = train.SessionManager(ready_op=w + 1)
    with pytest.raises(RuntimeError, match=r"error: Attempting to use uninitialized value w$"):
        manager.prepare_session(init_fn=lambda session: None)
