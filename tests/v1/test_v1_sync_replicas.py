"""Several workers, one step: what is aggregated, who waits for whom, and how every wait ends."""

from __future__ import annotations

import itertools
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import replay
import v1_replay
from thalweg import CancelledError, FailedPreconditionError, IndexedSlices, v1
from thalweg.v1 import train

WAIT_LIMIT = 120  # seconds after which a wait counts as endless, on a busy machine, too
CASES = [id for id, case in v1_replay.cases().items() if case["kind"] == "sync_replicas"]


pytestmark = pytest.mark.usefixtures("graph")


class Thread(threading.Thread):
    """A thread that keeps what its function returned or raised."""

    def __init__(self, function: Callable[..., Any], *args: Any) -> None:
        super().__init__(daemon=True)
        self.function, self.args = function, args
        self.value: Any = None
        self.error: BaseException | None = None
        self.start()

    def run(self) -> None:
        try:
            self.value = self.function(*self.args)
        except BaseException as error:
            self.error = error

    def ended(self) -> Thread:
        self.join(WAIT_LIMIT)
        assert not self.is_alive(), "it waits for ever"
        return self

    def result(self) -> Any:
        if self.ended().error is not None:
            raise self.error  # pyright: ignore
        return self.value


def until(condition: Callable[[], Any]) -> None:
    end = time.monotonic() + WAIT_LIMIT
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.002)


class Team:
    """A variable, its gradient as a placeholder, and the workers' operation.

    The step is plain gradient descent with rate 1, so that the variable loses the mean.
    """

    def __init__(self, start: Any = 0.0, replicas: int = 2, **kwargs: Any) -> None:
        self.w = v1.Variable(np.float32(start), name="w")
        self.grad = v1.placeholder("float32", self.w.shape, name="grad")
        self.step = train.get_or_create_global_step()
        inner = kwargs.pop("inner", None) or train.GradientDescentOptimizer(1.0)
        self.opt = train.SyncReplicasOptimizer(inner, replicas, **kwargs)
        self.train_op = self.opt.apply_gradients([(self.grad, self.w)], self.step)

    def session(
        self, tokens: int = 0, coord: Any = None, chief: bool = True, start: int = 0
    ) -> v1.Session:
        session = v1.Session()
        session.run(v1.global_variables_initializer())
        self.step.load(start, session)
        if chief:
            hook = self.opt.make_session_run_hook(True, tokens)
            hook.begin()
            hook.after_create_session(session, coord)
        else:
            session.run(self.opt.chief_init_op)
        return session

    def worker(self, session: v1.Session, *gradients: Any) -> Thread:
        """A worker that runs one round for each gradient."""
        return Thread(
            lambda: [session.run(self.train_op, {self.grad: value}) for value in gradients]
        )

    def round(self, session: v1.Session, *gradients: Any) -> Any:
        """One round of as many workers; the variable after it."""
        for worker in [self.worker(session, value) for value in gradients]:
            worker.result()
        return session.run(self.w)

    def rendezvous(self, session: v1.Session) -> Any:
        return session.run(self.opt.get_chief_queue_runner()._rendezvous)  # pyright: ignore


@pytest.mark.parametrize("case_id", CASES)
def test_trajectory_equals_the_recording(case_id: str) -> None:
    case = v1_replay.cases()[case_id]
    shape = case["vars"]["w"]["shape"]
    w = v1.Variable(v1_replay.array(case, "var", "w")[0], name="w")
    values, rows = v1.placeholder("float32", [None, *shape[1:]]), v1.placeholder("int64", [None])
    is_dense = case["mode"] == "dense"
    grad: Any = values if is_dense else v1.SymbolicSlices(values, rows, shape)
    inner = getattr(train, case["inner"])(**case["kwargs"])
    opt = train.SyncReplicasOptimizer(inner, case["workers"])
    step = train.get_or_create_global_step()
    train_op = opt.apply_gradients([(grad, w)], step)

    def feed(round: int, worker: int) -> dict[Any, Any]:
        if is_dense:
            return {values: v1_replay.array(case, "grad", "w")[round, worker]}
        split = v1_replay.array(case, "gsplit", "w", str(worker))
        part = slice(split[round], split[round + 1])
        indices = v1_replay.array(case, "gidx", "w", str(worker))[part].astype(np.int64)
        return {values: v1_replay.array(case, "gval", "w", str(worker))[part], rows: indices}

    with v1.Session() as session:
        session.run(v1.global_variables_initializer())
        hook = opt.make_session_run_hook(is_chief=True, num_tokens=0)
        hook.begin()
        hook.after_create_session(session, None)
        for round in range(case["steps"]):
            feeds = [feed(round, worker) for worker in range(case["workers"])]
            for thread in [Thread(session.run, train_op, feed) for feed in feeds]:
                thread.result()
            variables = {"w": (w, v1_replay.array(case, "var", "w"))}
            for name in case["slots"]["w"]:
                variables[name] = (opt.get_slot(w, name), v1_replay.array(case, "slot", "w", name))
            for label, (tensor, expected) in variables.items():
                distance = replay.distances(session.run(tensor), expected[round + 1]).max()
                assert distance == 0, f"{label} after round {round + 1} is {distance} ulp away"
            assert session.run(step) == round + 1


def test_every_recorded_case_is_tested() -> None:
    assert len(CASES) == 6


def test_three_workers_give_the_float32_mean_in_some_order() -> None:
    team = Team(np.zeros(50), replicas=3)
    gradients = np.random.default_rng(1).normal(size=(3, 50)).astype("f4")
    with team.session() as session:
        got = team.round(session, *gradients)
    means = [(a + b + c) / np.float32(3) for a, b, c in itertools.permutations(gradients)]
    assert any((got == -mean).all() for mean in means)


SPARSE: dict[str, tuple[list[Any], list[float]]] = {
    # Gradients as {row: value} pairs in order, and what each of 4 rows loses.
    "a row's own count divides": ([[(0, 2.0), (2, 6.0)], [(2, 2.0), (3, 1.0)]], [2, 0, 4, 1]),
    "unsorted rows": ([[(3, 1.0), (0, 2.0)], [(2, 2.0), (0, 4.0)]], [3, 0, 2, 1]),
    "a repeated row counts once": ([[(1, 1.0), (1, 2.0)], [(1, 5.0)]], [0, 4, 0, 0]),
    "no rows": ([[], [(1, 5.0)]], [0, 5, 0, 0]),
    "three workers": ([[(0, 1.0)], [(0, 2.0), (1, 1.0)], [(0, 6.0), (1, 2.0)]], [3, 1.5, 0, 0]),
}


@pytest.mark.parametrize(("gradients", "row"), SPARSE.values(), ids=SPARSE.keys())
def test_sparse_gradients_are_averaged_by_row(gradients: list[Any], row: list[float]) -> None:
    w = v1.Variable(np.zeros((4, 2), "f4"))
    values, rows = v1.placeholder("float32", [None, 2]), v1.placeholder("int32", [None])
    opt = train.SyncReplicasOptimizer(train.GradientDescentOptimizer(1.0), len(gradients))
    slices = v1.SymbolicSlices(values, rows)
    train_op = opt.apply_gradients([(slices, w)], train.get_or_create_global_step())
    with v1.Session() as session:
        started(session, opt)
        feeds = [
            {
                rows: np.array([row for row, _ in pairs], "i4"),
                values: np.array([[value] * 2 for _, value in pairs], "f4").reshape(-1, 2),
            }
            for pairs in gradients
        ]
        for thread in [Thread(session.run, train_op, feed) for feed in feeds]:
            thread.result()
        np.testing.assert_array_equal(session.run(w), -np.array([row, row]).T)


def started(session: v1.Session, opt: Any, tokens: int = 0, coord: Any = None) -> None:
    session.run(v1.global_variables_initializer())
    hook = opt.make_session_run_hook(True, tokens)
    hook.begin()
    hook.after_create_session(session, coord)


KINDS: dict[str, Callable[[], Any]] = {
    "tensor": lambda: torch.full((3, 2), 2.0),
    "slices": lambda: IndexedSlices(torch.full((3, 2), 2.0), torch.arange(3)),
    "torch's rows": lambda: torch.full((3, 2), 2.0).to_sparse(1),
    "symbol that turns out to be rows": lambda: (
        v1.SymbolicSlices(v1.constant(np.full((3, 2), 2, "f4")), torch.arange(3)).source
    ),
}


@pytest.mark.parametrize("make", KINDS.values(), ids=KINDS.keys())
def test_gradients_of_all_kinds_are_averaged(make: Callable[..., Any]) -> None:
    w, b = v1.Variable(np.zeros((3, 2), "f4")), v1.Variable(0.0)
    opt = train.SyncReplicasOptimizer(train.GradientDescentOptimizer(1.0), 1)
    pairs = [(None, b), (make(), w)]
    train_op = opt.apply_gradients(pairs, train.get_or_create_global_step())
    with v1.Session() as session:
        started(session, opt)
        Thread(session.run, train_op).result()
        np.testing.assert_array_equal(session.run(w), np.full((3, 2), -2))
        assert session.run(b) == 0


def test_gradient_that_a_run_does_not_find_counts_as_zeros() -> None:
    a, b = v1.Variable(1.0), v1.Variable(1.0)
    use = v1.placeholder(torch.bool, [])
    output = v1.Output(torch.float32, ())
    combine = lambda a, b, use: a + b if use else a * 1  # noqa: E731
    loss = v1.operation(combine, [a, b, use], "loss", kind="pure", outputs=output)
    opt = train.SyncReplicasOptimizer(train.GradientDescentOptimizer(1.0), 2)
    train_op = opt.minimize(loss, train.get_or_create_global_step())
    with v1.Session() as session:
        started(session, opt)
        for thread in [Thread(session.run, train_op, {use: x}) for x in (True, False)]:
            thread.result()
        assert session.run([a, b]) == [0.0, 0.5]


def test_given_tensors_are_not_written_to() -> None:
    w, gradient = v1.Variable(np.zeros(3, "f4")), torch.full((3,), 3.0)
    opt = train.SyncReplicasOptimizer(train.GradientDescentOptimizer(1.0), 2)
    train_op = opt.apply_gradients([(gradient, w)], train.get_or_create_global_step())
    with v1.Session() as session:
        started(session, opt)
        for thread in [Thread(session.run, train_op) for _ in range(2)]:
            thread.result()
        np.testing.assert_array_equal(session.run(w), [-3, -3, -3])
    np.testing.assert_array_equal(gradient, [3, 3, 3])


def test_fed_array_may_change_after_the_run() -> None:
    team = Team(np.zeros(2))
    gradient = torch.ones(2)
    with team.session(tokens=2) as session:
        team.worker(session, gradient).result()  # goes on with a token while its gradient waits
        gradient[:] = 100
        team.worker(session, np.full(2, 3, "f4")).result()
        until(lambda: session.run(team.step) == 1)
        np.testing.assert_array_equal(session.run(team.w), [-2, -2])


def test_stale_gradients_are_dropped() -> None:
    team = Team(start=10.0, replicas=1)
    with team.session(start=5) as session:
        rendezvous = team.rendezvous(session)
        assert team.round(session, 1.0) == 9.0
        team.opt._local_step.load(5, session)  # a worker that has missed the last step
        late = team.worker(session, 100.0)
        until(lambda: rendezvous.dropped == 1)
        session.run(team.opt.get_init_tokens_op(1))
        late.result()
        assert (session.run(team.w), session.run(team.step)) == (9.0, 6)
        assert team.round(session, 1.0) == 8.0


def test_round_after_the_first_is_lost_with_default_tokens() -> None:
    team = Team(replicas=2)
    init_ops = [team.opt.local_step_init_op]  # each worker has a local step of its own
    ops = [team.train_op, team.opt.apply_gradients([(team.grad, team.w)], team.step)]
    with team.session(tokens=-1) as session:
        session.run(init_ops)
        rendezvous, states = team.rendezvous(session), []
        for steps, drop_count in ((1, 0), (1, 2), (2, 2), (3, 2)):
            feeds = [{team.grad: value} for value in (1.0, 3.0)]
            for thread in [Thread(session.run, *run) for run in zip(ops, feeds, strict=True)]:
                thread.result()
            until(lambda steps=steps: session.run(team.step) >= steps)
            assert rendezvous.dropped == drop_count
            states.append(tuple(session.run([team.step, team.w])))
        assert states == [(1, -2.0), (1, -2.0), (2, -4.0), (3, -6.0)]


def test_step_does_not_wait_for_a_spare_worker() -> None:
    team = Team(replicas=2, total_num_replicas=3)
    with team.session() as session:
        assert team.round(session, 1.0, 3.0) == -2.0
        slow = team.worker(session, 100.0)
        slow.result()  # there was a token for it; its gradient is of the present step
        assert team.round(session, 2.0) == -53.0


def test_few_workers_give_several_gradients_for_a_step() -> None:
    team = Team(replicas=4, total_num_replicas=2)
    with team.session(tokens=2) as session:
        assert team.round(session, 1.0, 3.0) == 0.0
        assert team.round(session, 2.0, 6.0) == -3.0
        assert session.run(team.step) == 1


def test_late_chief_averages_all_available_gradients() -> None:
    team = Team(replicas=2)
    with team.session(chief=False) as session:
        workers = [team.worker(session, value) for value in (1.0, 2.0, 6.0)]
        until(lambda: team.rendezvous(session)._era.count == 3)
        session.run(team.opt.get_init_tokens_op(1))
        (thread,) = team.opt.get_chief_queue_runner().create_threads(session, start=True)
        for worker in workers:
            worker.result()
        assert session.run(team.w) == -3.0
    thread.join(WAIT_LIMIT)
    assert not thread.is_alive()


def test_four_workers_converge_and_lose_nothing() -> None:
    rounds, workers = 200, 4
    targets = np.random.default_rng(0).normal(size=(workers, 8)).astype("f4")
    w = v1.Variable(np.zeros(8, "f4"))
    target = v1.placeholder("float32", [8])
    opt = train.SyncReplicasOptimizer(train.GradientDescentOptimizer(0.125), workers)
    step = train.get_or_create_global_step()
    train_op = opt.minimize(torch.sum((w - target) ** 2) / 2, step)

    def work(goal: Any) -> None:
        for _ in range(rounds):
            session.run(train_op, {target: goal})

    with v1.Session() as session:
        started(session, opt)
        for thread in [Thread(work, goal) for goal in targets]:
            thread.result()
        np.testing.assert_allclose(session.run(w), targets.mean(0), rtol=1e-5)
        assert session.run(step) == rounds
        rendezvous = session.run(opt.get_chief_queue_runner()._rendezvous)  # pyright: ignore
        assert (rendezvous.step, rendezvous.dropped) == (rounds, 0)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("tokens", [0, -1])
@pytest.mark.parametrize(("replicas", "total"), [(4, 4), (2, 4), (4, 2), (1, 4)])
def test_workers_at_any_pace_finish(replicas: int, total: int, tokens: int) -> None:
    rounds = 150
    team = Team(replicas=replicas, total_num_replicas=total)
    token_count = max(tokens, replicas - total) if tokens == 0 else tokens
    with team.session(tokens=token_count) as session:

        def work(seed: int) -> None:
            pace = np.random.default_rng(seed)
            while session.run(team.step) < rounds:
                session.run(team.train_op, {team.grad: 1.0})
                if pace.random() < 0.1:
                    time.sleep(0.001)

        interval = sys.getswitchinterval()
        sys.setswitchinterval(1e-5)
        try:
            workers = [Thread(work, seed) for seed in range(total)]
            until(lambda: not all(worker.is_alive() for worker in workers))
        finally:
            sys.setswitchinterval(interval)
        assert all(worker.error is None for worker in workers)
        value, step = session.run([team.w, team.step])
        assert step >= rounds
        assert value == -step  # each step subtracts a mean of ones
    for worker in workers:
        worker.ended()


def test_sessions_are_independent() -> None:
    team = Team(replicas=2)
    first_session, two = team.session(), team.session()
    with first_session, two:
        waiting = team.worker(first_session, 1.0)
        assert team.round(two, 2.0, 4.0) == -3.0
        assert team.round(two, 2.0, 4.0) == -6.0
        assert waiting.is_alive()
        team.worker(first_session, 5.0).result()
        waiting.result()
        assert first_session.run([team.w, team.step]) == [-3.0, 1]
        first_session.close()
        assert team.round(two, 2.0, 4.0) == -9.0


def test_optimizers_of_other_variables_do_not_mix() -> None:
    team = Team(replicas=1)
    w = v1.Variable(0.0)
    step = v1.Variable(np.int64(0), trainable=False)
    two = train.SyncReplicasOptimizer(train.GradientDescentOptimizer(1.0), 1)
    train_op = two.apply_gradients([(v1.constant(5.0), w)], step)
    with team.session() as session:
        session.run(two.chief_init_op)
        waiting = Thread(session.run, train_op)
        assert team.round(session, 1.0) == -1.0
        assert team.round(session, 1.0) == -2.0
        assert waiting.is_alive()
        two.get_chief_queue_runner().create_threads(session, start=True, daemon=True)
        waiting.result()
        assert session.run([w, step, team.w]) == [-5.0, 1, -2.0]


def test_workers_with_operations_of_their_own_work_together() -> None:
    w, step = v1.Variable(0.0), train.get_or_create_global_step()
    opts = [train.SyncReplicasOptimizer(train.GradientDescentOptimizer(1.0), 2) for _ in "ab"]
    ops = [
        opt.apply_gradients([(v1.constant(value), w)], step)
        for opt, value in zip(opts, (1.0, 3.0), strict=True)
    ]
    assert [x.op.name for x in v1.local_variables()] == [
        "sync_rep_local_step",
        "sync_rep_local_step_1",
    ]
    with v1.Session() as session:
        started(session, opts[0])
        hook = opts[1].make_session_run_hook(is_chief=False)
        hook.begin()
        hook.after_create_session(session, None)
        for thread in [Thread(session.run, op) for op in ops]:
            thread.result()
        assert session.run([w, step]) == [-2.0, 1]


def test_moving_averages_follow_each_step() -> None:
    averages = train.ExponentialMovingAverage(0.5)
    team = Team(start=8.0, replicas=1, variable_averages=averages)
    with team.session() as session:
        average = averages.average(team.w)
        for value, expected in ((4.0, 6.0), (4.0, 3.0)):
            team.round(session, value)
            until(lambda expected=expected: session.run(average) == expected)


def test_chief_needs_nothing_that_workers_are_fed() -> None:
    w, step = v1.Variable(0.0), train.get_or_create_global_step()
    seen_x, x = v1.Variable(0.0, trainable=False), v1.placeholder("float32", [])
    opt = train.SyncReplicasOptimizer(train.GradientDescentOptimizer(1.0), 1)
    with v1.control_dependencies([seen_x.assign(x)]):
        train_op = opt.minimize(w * x, step)
    with v1.Session() as session:
        started(session, opt)
        Thread(session.run, train_op, {x: 3.0}).result()
        assert session.run([w, seen_x, step]) == [-3.0, 3.0, 1]


def test_learning_rate_is_that_of_the_step() -> None:
    rate, step = v1.Variable(1.0, trainable=False), train.get_or_create_global_step()
    inner = train.GradientDescentOptimizer(rate)
    team = Team(replicas=1, inner=inner)
    with team.session() as session:
        assert team.round(session, 1.0) == -1.0
        rate.load(10.0, session)  # the chief waits already
        assert team.round(session, 1.0) == -11.0
        assert session.run(step) == 2


def test_scheduled_learning_rate_is_used() -> None:
    step = train.get_or_create_global_step()
    rate = train.piecewise_constant(step, [0, 1], [1.0, 10.0, 100.0])
    team = Team(replicas=1, inner=train.GradientDescentOptimizer(rate))
    with team.session() as session:
        assert [team.round(session, 1.0) for _ in range(3)] == [-1.0, -11.0, -111.0]


def test_attributes_are_delegated_to_the_inner_optimizer() -> None:
    inner = train.MomentumOptimizer(0.1, 0.9, name="M")
    team = Team(inner=inner)
    opt = team.opt
    assert opt.get_name() == "sync_replicas"
    assert opt.get_slot_names() == ["momentum"]
    assert opt.get_slot(team.w, "momentum") is inner.get_slot(team.w, "momentum")
    assert opt.variables() == inner.variables()
    opt.engine = "reference"
    assert inner.engine == opt.engine == "reference"
    (local,) = v1.local_variables()
    assert (local.op.name, local.dtype) == ("sync_rep_local_step", torch.int64)
    assert local not in v1.global_variables()
    session = v1.Session()
    assert sorted(session.run(opt.ready_for_local_init_op)) == [b"global_step", b"w", b"w/M"]
    session.run(v1.global_variables_initializer())
    assert not len(session.run(opt.ready_for_local_init_op))
    team.step.load(7, session)
    session.run(opt.local_step_init_op)
    assert session.run(local) == 7
    assert team.opt.get_init_tokens_op(0).type == "NoOp"


def test_worker_changes_its_local_step_alone() -> None:
    team = Team(replicas=2)
    with team.session(chief=False, start=3) as session:
        session.run(team.opt.get_init_tokens_op(1))
        team.step.load(9, session)
        session.run(team.opt.get_init_tokens_op(1))
        team.worker(session, 5.0, 5.0).result()
        assert session.run([team.w, team.opt._local_step]) == [0.0, 9]


def test_shared_local_step_never_goes_back() -> None:
    team = Team(replicas=2)
    with team.session(chief=False) as session:
        for token in (4, 2):
            team.step.load(token, session)
            session.run(team.opt.get_init_tokens_op(1))
        team.worker(session, 1.0, 1.0).result()
        assert session.run(team.opt._local_step) == 4


def pair() -> tuple[Any, Any]:
    return v1.constant(1.0), v1.Variable(0.0, name="w")


def sgd() -> Any:
    return train.GradientDescentOptimizer(1.0)


def sync(**kwargs: Any) -> Any:
    return train.SyncReplicasOptimizer(sgd(), **{"replicas_to_aggregate": 2, **kwargs})


def step_variable() -> Any:
    return train.get_or_create_global_step()


ERRORS: dict[str, tuple[Callable[[], Any], Any, str]] = {
    "no pairs": (
        lambda: sync().apply_gradients([], step_variable()),
        ValueError,
        "^Must supply at least one variable$",
    ),
    "no global step": (
        lambda: sync().apply_gradients([pair()]),
        ValueError,
        "^Global step is required to check staleness$",
    ),
    "minimize without a global step": (
        lambda: sync().minimize(v1.Variable(1.0) * 2),
        ValueError,
        "^Global step is required to check staleness$",
    ),
    "global step that is no variable": (
        lambda: sync().apply_gradients([pair()], 3),
        TypeError,
        "global_step must be a variable of the graph, not 3",
    ),
    "gradient of no known type": (
        lambda: sync().apply_gradients([("no", pair()[1])], step_variable()),
        ValueError,
        "^Unknown grad type! The gradient of 'w' is of type str; expected",
    ),
    "no gradients": (
        lambda: sync().apply_gradients([(None, pair()[1])], step_variable()),
        ValueError,
        r"^No gradients provided for any variable: \['w:0'\]",
    ),
    "chief before apply": (
        lambda: sync().get_chief_queue_runner(),
        ValueError,
        r"^Should be called after apply_gradients\(\)\.$",
    ),
    "tokens before apply": (
        lambda: sync().get_init_tokens_op(),
        ValueError,
        r"get_init_tokens_op\(\) should be called after apply_gradients\(\)\.",
    ),
    "too few tokens": (
        lambda: Team(replicas=4, total_num_replicas=1).opt.get_init_tokens_op(2),
        ValueError,
        r"^Too few tokens to finish the first step: 2 \(given\) vs 3 \(needed\)$",
    ),
    "hook before apply": (
        lambda: sync().make_session_run_hook(True).begin(),
        ValueError,
        r"^SyncReplicasOptimizer\.apply_gradient should be called before using the hook\.$",
    ),
    "worker's hook before apply": (
        lambda: sync().make_session_run_hook(False).begin(),
        ValueError,
        "should be called before using the hook",
    ),
    "too few tokens in the hook": (
        lambda: Team(replicas=4, total_num_replicas=1).session(2),
        ValueError,
        "Too few tokens",
    ),
    "no replicas": (
        lambda: sync(replicas_to_aggregate=0),
        ValueError,
        "replicas_to_aggregate must be a positive integer, not 0",
    ),
    "no workers": (
        lambda: sync(total_num_replicas=1.5),
        ValueError,
        "total_num_replicas must be a positive integer, not 1.5",
    ),
    "no optimizer": (
        lambda: train.SyncReplicasOptimizer(3, 2),  # pyright: ignore
        TypeError,
        "opt must be an optimizer of thalweg.v1, not 3",
    ),
    "no averages": (
        lambda: sync(variable_averages=0.9),
        TypeError,
        "variable_averages must have a method apply, not be 0.9",
    ),
    "no name": (lambda: sync(name=""), ValueError, "^Must specify the optimizer name$"),
    "no queue runner's operations": (
        lambda: train.QueueRunner(),
        ValueError,
        r"^Must provide queue and enqueue_ops\.$",
    ),
    "no session for queue runners": (
        lambda: train.start_queue_runners(),
        ValueError,
        "Cannot start queue runners: No default session is registered",
    ),
    "stop with no exception": (
        lambda: train.Coordinator().request_stop("no"),
        TypeError,
        "request_stop takes an exception or None, not 'no'",
    ),
}


@pytest.mark.parametrize(("call", "kind", "message"), ERRORS.values(), ids=ERRORS.keys())
def test_invalid_calls_raise(call: Callable[..., Any], kind: Any, message: str) -> None:
    with pytest.raises(kind, match=message):
        call()


def test_rejected_call_does_not_change_the_optimizer() -> None:
    opt = sync()
    with pytest.raises(ValueError, match="No gradients"):
        opt.apply_gradients([(None, pair()[1])], step_variable())
    with pytest.raises(ValueError, match="Should be called after"):
        opt.get_chief_queue_runner()
    assert not v1.local_variables()


def test_constraint_on_a_sparse_variable_raises_when_built() -> None:
    w = v1.Variable(np.ones((2, 2), "f4"), name="w", constraint=torch.abs)
    grad = IndexedSlices(torch.ones(1, 2), torch.tensor([0]))
    with pytest.raises(RuntimeError, match="Cannot use a constraint function on a sparse"):
        sync().apply_gradients([(grad, w)], step_variable())


def test_hook_needs_initialized_variables() -> None:
    team = Team()
    for is_chief, name in ((True, "chief_init"), (False, "local_step_init")):
        hook = team.opt.make_session_run_hook(is_chief)
        hook.begin()
        message = rf"Init op: sync_replicas/{name}, error: Variables not initialized: w, global_st"
        with pytest.raises(RuntimeError, match=message):
            hook.after_create_session(v1.Session(), None)


BAD_GRADIENTS: dict[str, tuple[Any, str]] = {
    "shape": (
        lambda: v1.placeholder_with_default([1.0, 2.0], None),
        r"Gradient of 'w' has shape \(2,\) but the variable has shape \(3, 2\)",
    ),
    "dtype": (
        lambda: v1.operation(lambda: torch.ones(3, 2).double(), [], "g", outputs=v1.Output()),
        "Gradient of 'w' is float64 but the variable is float32",
    ),
    "row": (
        lambda: IndexedSlices(torch.ones(1, 2), torch.tensor([3])),
        r"indices\[0\] = 3 is not in \[0, 3\)",
    ),
}


@pytest.mark.parametrize(("make", "message"), BAD_GRADIENTS.values(), ids=BAD_GRADIENTS.keys())
def test_invalid_gradient_raises_before_any_is_sent(make: Any, message: str) -> None:
    b, w = v1.Variable(0.0, name="b"), v1.Variable(np.zeros((3, 2), "f4"), name="w")
    opt = sync(replicas_to_aggregate=1)
    train_op = opt.apply_gradients([(v1.constant(1.0), b), (make(), w)], step_variable())
    with v1.Session() as session:
        started(session, opt)
        with pytest.raises((ValueError, TypeError), match=message):
            Thread(session.run, train_op).result()
        assert session.run(opt.get_chief_queue_runner()._rendezvous)._era.count == 0
        assert session.run(step_variable()) == 0


def test_eager_mode_raises(graph: v1.Graph) -> None:
    from thalweg import Variable

    def work() -> None:  # another thread has no default graph
        opt = train.SyncReplicasOptimizer(train.GradientDescentOptimizer(1.0), 2)
        w = Variable(1.0)
        with pytest.raises(RuntimeError, match="works in graph mode only"):
            opt.minimize(lambda: w * w, global_step=Variable(np.int64(0)))
        with pytest.raises(RuntimeError, match="works in graph mode only"):
            opt.apply_gradients([(torch.tensor(1.0), w)], Variable(np.int64(0)))
        assert w.numpy() == 1.0

    Thread(work).result()


def test_closed_session_ends_all_waits() -> None:
    team = Team(replicas=3)
    session = team.session(chief=False)
    (chief,) = team.opt.get_chief_queue_runner().create_threads(session, start=True)
    workers = [team.worker(session, value) for value in (1.0, 2.0)]
    until(lambda: team.rendezvous(session)._era.count == 2)
    session.close()
    message = "Workers and chief no longer wait for each other: the session was closed"
    for worker in workers:
        with pytest.raises(CancelledError, match=message):
            worker.result()
    chief.join(WAIT_LIMIT)
    assert not chief.is_alive()
    with pytest.raises(FailedPreconditionError, match=r"Attempted to use a closed Session\."):
        session.run(team.train_op, {team.grad: 1.0})
    assert team.session(chief=False).run(team.w) == 0.0  # another session is not concerned


def test_session_may_be_closed_in_the_middle_of_the_work() -> None:
    for _ in range(20):
        team = Team(replicas=2)
        session = team.session()
        workers = [team.worker(session, *[1.0] * 10_000) for _ in range(2)]
        until(lambda session=session, team=team: session.run(team.step) > 3)
        session.close()
        for worker in workers:
            error = worker.ended().error
            assert isinstance(error, (CancelledError, FailedPreconditionError))
            assert "closed" in str(error)


def work(team: Team, session: v1.Session, coord: Any, value: float = 1.0) -> None:
    with coord.stop_on_exception():
        while not coord.should_stop():
            session.run(team.train_op, {team.grad: value})


def test_coordinator_that_stops_ends_all_waits() -> None:
    team, coord = Team(replicas=3), train.Coordinator()
    with team.session(coord=coord) as session:
        workers = [Thread(work, team, session, coord) for _ in range(2)]  # one is missing
        until(lambda: team.rendezvous(session)._era.count == 2)
        coord.request_stop()
        coord.join(workers, stop_grace_period_secs=WAIT_LIMIT)
        assert [worker.error for worker in workers] == [None, None]
        assert session.run(team.step) == 0


def test_exception_in_one_worker_ends_the_others() -> None:
    team, coord = Team(replicas=3), train.Coordinator()
    with team.session(coord=coord) as session:

        def fail() -> None:
            with coord.stop_on_exception():
                session.run(team.train_op, {team.grad: 1.0})
                raise ArithmeticError("worker 2 has had enough")

        workers = [Thread(work, team, session, coord) for _ in range(2)] + [Thread(fail)]
        with pytest.raises(ArithmeticError, match="worker 2 has had enough"):
            coord.join(workers, stop_grace_period_secs=WAIT_LIMIT)
        for worker in workers:
            worker.ended()
        assert session.run(team.w) == -session.run(team.step)


def test_worker_without_coordinator_gets_the_cause() -> None:
    team, coord = Team(replicas=2), train.Coordinator()
    with team.session(coord=coord) as session:
        worker = team.worker(session, 1.0)
        until(lambda: team.rendezvous(session)._era.count == 1)
        coord.request_stop(ArithmeticError("enough."))
        message = "no longer wait for each other: ArithmeticError: enough"
        with pytest.raises(FailedPreconditionError, match=message) as raised:
            worker.result()
        assert isinstance(raised.value.__cause__, ArithmeticError)


class Failing(train.GradientDescentOptimizer):
    HOOKS_AT_EACH_RUN = True

    def _prepare(self) -> None:
        raise ArithmeticError("the chief has had enough")


def test_exception_in_the_chief_ends_the_workers() -> None:
    team, coord = Team(inner=Failing(1.0)), train.Coordinator()
    with team.session(coord=coord) as session:
        workers = [Thread(work, team, session, coord) for _ in range(2)]
        with pytest.raises(ArithmeticError, match="the chief has had enough"):
            coord.join(workers, stop_grace_period_secs=WAIT_LIMIT)
        assert all(worker.ended().error is None for worker in workers)
        assert session.run([team.w, team.step]) == [0.0, 0]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_exception_in_a_chief_without_a_coordinator_ends_the_workers() -> None:
    team = Team(inner=Failing(1.0))
    with team.session(chief=False) as session:
        (chief,) = team.opt.get_chief_queue_runner().create_threads(session, start=True)
        for worker in [team.worker(session, 1.0), team.worker(session, 2.0)]:
            with pytest.raises(FailedPreconditionError, match="the chief has had enough") as raised:
                worker.result()
            assert isinstance(raised.value.__cause__, ArithmeticError)
        chief.join(WAIT_LIMIT)
        (error,) = team.opt.get_chief_queue_runner().exceptions_raised
        assert isinstance(error, ArithmeticError)
        with pytest.raises(FailedPreconditionError, match="the chief has had enough"):
            session.run(team.opt.get_init_tokens_op(1))


def test_training_resumes_after_a_stop() -> None:
    team = Team(replicas=2)
    coord = train.Coordinator()
    with team.session(coord=coord) as session:
        assert team.round(session, 1.0, 3.0) == -2.0
        lost_gradient = team.worker(session, 100.0)
        until(lambda: team.rendezvous(session)._era.count == 1)
        coord.request_stop()
        coord.join(stop_grace_period_secs=WAIT_LIMIT)
        with pytest.raises(CancelledError, match="a stop was requested"):
            lost_gradient.result()
        hook = team.opt.make_session_run_hook(True, 0)
        hook.begin()
        hook.after_create_session(session, train.Coordinator())
        assert team.round(session, 1.0, 3.0) == -4.0
        assert session.run(team.step) == 2


# Coordinator and QueueRunner on their own.


def test_coordinator_keeps_the_first_exception() -> None:
    coord = train.Coordinator()
    assert not coord.should_stop()
    assert not coord.wait_for_stop(0.01)
    coord.request_stop(KeyError("first"))
    coord.request_stop(ValueError("second"))
    assert coord.should_stop()
    assert coord.wait_for_stop()
    with pytest.raises(KeyError, match="first"):
        coord.join([])
    with pytest.raises(KeyError, match="first"):
        coord.raise_requested_exception()
    assert coord.joined


def test_coordinator_takes_exc_info() -> None:
    coord = train.Coordinator()
    try:
        raise KeyError("here")
    except KeyError:
        coord.request_stop(sys.exc_info())
    with pytest.raises(KeyError, match="here"):
        coord.join()


def test_exception_after_the_join_is_raised_at_once() -> None:
    coord = train.Coordinator()
    coord.request_stop()
    coord.join()
    with pytest.raises(KeyError, match="late"):
        coord.request_stop(KeyError("late"))


CLEAN: dict[str, tuple[Any, BaseException]] = {
    "by default": (None, CancelledError("closed")),
    "as chosen": ((StopIteration,), StopIteration()),
}


@pytest.mark.parametrize(("types", "error"), CLEAN.values(), ids=CLEAN.keys())
def test_clean_stop_is_no_error(types: Any, error: BaseException) -> None:
    coord = train.Coordinator(types)
    with coord.stop_on_exception():
        raise error
    assert coord.should_stop()
    coord.join()


def test_coordinator_can_be_used_again() -> None:
    coord = train.Coordinator()
    coord.request_stop(KeyError("first"))
    coord.clear_stop()
    assert not coord.should_stop()
    coord.join()


def test_join_names_threads_that_do_not_end() -> None:
    coord, release = train.Coordinator(), threading.Event()
    thread = threading.Thread(target=release.wait, args=(WAIT_LIMIT,), name="stubborn", daemon=True)
    thread.start()
    coord.register_thread(thread)
    coord.request_stop()
    message = "^Coordinator stopped with threads still running: stubborn$"
    try:
        with pytest.raises(RuntimeError, match=message):
            coord.join(stop_grace_period_secs=0.05)
        coord.join([thread], stop_grace_period_secs=0.05, ignore_live_threads=True)
    finally:
        release.set()
    thread.join(WAIT_LIMIT)


def test_join_waits_for_threads_that_end_by_themselves() -> None:
    coord, numbers = train.Coordinator(), []
    threads = [threading.Thread(target=numbers.append, args=(i,)) for i in range(3)]
    for thread in threads:
        thread.start()
    coord.join(threads)
    assert sorted(numbers) == [0, 1, 2]
    assert not coord.should_stop()


def counter() -> tuple[Any, Any]:
    count = v1.Variable(0, trainable=False)
    return count, count.assign_add(1).op


def test_queue_runner_runs_until_the_coordinator_stops(graph: v1.Graph) -> None:
    count, add = counter()
    cancelled, cancel = counter()
    runner = train.QueueRunner(None, [add, add], cancel_op=cancel)
    train.add_queue_runner(runner)
    assert graph.get_collection(v1.GraphKeys.QUEUE_RUNNERS) == [runner]
    coord = train.Coordinator()
    with v1.Session() as session:
        session.run(v1.global_variables_initializer())
        threads = train.start_queue_runners(coord=coord)
        names = ["AssignAdd", "AssignAdd", "close_on_stop"]
        assert [thread.name for thread in threads] == [
            f"QueueRunnerThread-queue-{n}" for n in names
        ]
        assert all(thread.daemon for thread in threads)
        assert runner.create_threads(session) == []  # they run already
        until(lambda: session.run(count) > 5)
        coord.request_stop()
        coord.join(stop_grace_period_secs=WAIT_LIMIT)
        assert not any(thread.is_alive() for thread in threads)
        assert session.run(cancelled) == 1
        coord.clear_stop()
        threads_again = runner.create_threads(session, coord, start=True)
        assert len(threads_again) == 3
        coord.request_stop()
        coord.join(stop_grace_period_secs=WAIT_LIMIT)


def test_queue_runner_ends_with_its_session() -> None:
    count, add = counter()
    runner = train.QueueRunner(None, [add])
    with v1.Session() as session:
        session.run(v1.global_variables_initializer())
        (thread,) = runner.create_threads(session, start=True)
        until(lambda: session.run(count) > 5)
    thread.join(WAIT_LIMIT)
    assert not thread.is_alive()
    assert not runner.exceptions_raised


def test_queue_that_is_closed_ends_its_runner() -> None:
    close_count, close = counter()

    def enqueue() -> None:
        raise StopIteration

    op = v1.operation(enqueue, [], "enqueue")
    runner = train.QueueRunner(None, [op, op], close, None, (StopIteration,))
    with v1.Session() as session:
        session.run(v1.global_variables_initializer())
        for thread in runner.create_threads(session, start=True):
            thread.join(WAIT_LIMIT)
        assert session.run(close_count) == 1
        assert not runner.exceptions_raised
