"""Guard checks of many tensors by several threads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import Parameter

from bit_comparison import assert_same
from forks import Stop, run_in_child
from replay_twins import OPTIONS, count_replays, diff, params, set_grads
from thalweg import optim
from thalweg._engines import torch_layout_probe
from thalweg._engines.cpu import guard_table, openmp, replay_block
from thalweg.errors import FailedPreconditionError
from thalweg.v1 import train

pytestmark = pytest.mark.skipif(
    isinstance(torch_layout_probe.layout(), str), reason="torch's objects cannot be read here"
)
# The last part is not full.
COUNT = 2 * replay_block.TEAM_MIN_TENSORS + replay_block.RECORDS_PER_PART // 2


@pytest.fixture
def comes_anyway(monkeypatch: pytest.MonkeyPatch) -> None:
    """Start the thread team for small tensors, too."""
    monkeypatch.setattr(guard_table.GuardTable, "_has_threads", lambda _: True)


def _snapshot_of(weights: list[Parameter]) -> tuple[guard_table.GuardTable, Any]:
    table = guard_table.make_guard_table()
    assert table is not None
    table.guard_list(weights)
    for param in weights:
        assert table.guard_tensor(param) is not None
    cells = torch.zeros(len(weights), dtype=torch.int64).numpy()
    gradients = [
        (param, param.grad, cells[k : k + 1].ctypes.data) for k, param in enumerate(weights)
    ]
    bounds = sorted(edge for param in weights for edge in (param.data_ptr(), param.data_ptr() + 24))
    step = guard_table.GuardedStep(gradients, [], [], weights, torch.tensor(bounds).numpy())
    table.write_block(step)
    return table, cells


def _no_gradient(param: Parameter) -> None:
    param.grad = None


def _gradient_that_is_written(param: Parameter) -> None:
    param.grad = param.detach()


def _other_memory(param: Parameter) -> None:
    with torch.no_grad():
        param.set_(param.detach().clone())  # pyright: ignore[reportArgumentType]


def _other_shape(param: Parameter) -> None:
    param.data = param.data.T


Change = Callable[[Parameter], None]
CHANGES: list[tuple[dict[int, Change], int]] = [
    *(
        ({place: change}, reason)
        for place in (0, replay_block.RECORDS_PER_PART, replay_block.TEAM_MIN_TENSORS, COUNT - 1)
        for change, reason in (
            (_no_gradient, replay_block.OTHER_GRADIENT),
            (_gradient_that_is_written, replay_block.SHARED_GRADIENT),
            (_other_memory, replay_block.OTHER_MEMORY),
            (_other_shape, replay_block.OTHER_TENSOR),
        )
    ),
    # What is said is what one thread finds first: tensors come before gradients.
    ({0: _no_gradient, COUNT - 1: _other_memory}, replay_block.OTHER_MEMORY),
    ({3: _other_memory, COUNT - 1: _other_shape}, replay_block.OTHER_MEMORY),
    ({3: _other_shape, COUNT - 1: _other_memory}, replay_block.OTHER_TENSOR),
    ({3: _gradient_that_is_written, COUNT - 1: _no_gradient}, replay_block.SHARED_GRADIENT),
]


@pytest.mark.usefixtures("comes_anyway")
@pytest.mark.parametrize("count", [1, 2, 3])
def test_thread_team_checks_every_tensor(
    count: int, threads: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    threads(count)
    calls: list[int] = []
    routine = guard_table.routine_address
    monkeypatch.setattr(guard_table, "routine_address", lambda x: calls.append(1) or routine(x))
    weights = params(COUNT)
    set_grads(weights, 0)
    table, cells = _snapshot_of(weights)
    for step in range(3):
        set_grads(weights, step)
        assert table.replay() == 0
        assert cells.tolist() == [
            param.grad.data_ptr() for param in weights if param.grad is not None
        ]
        # Each thread asks once more than there are parts for it.
        expected = (
            [2 * -(-COUNT // replay_block.RECORDS_PER_PART) + count, COUNT] if count > 1 else [0, 0]
        )
        assert [
            table.block[replay_block.NEXT_PART],
            table.block[replay_block.TEAM_GRADIENTS],
        ] == expected
    assert len(calls) == (3 if count > 1 else 0)
    for changes, reason in CHANGES:
        for param in weights:
            param.data = param.data.reshape(3, 2).clone(memory_format=torch.contiguous_format)
        set_grads(weights, 0)
        table, _ = _snapshot_of(weights)
        assert table.replay() == 0
        versions = [param._version for param in weights]
        for place, change in changes.items():
            change(weights[place])
            versions[place] = weights[place]._version
        assert (table.replay(), table.replay_count) == (reason, 1)
        assert [param._version for param in weights] == versions


@pytest.mark.one_in(3)
@pytest.mark.usefixtures("comes_anyway")
@pytest.mark.parametrize(("options", "calls"), OPTIONS, ids=str)
def test_thread_team_detects_every_change(
    options: dict[str, Any],
    calls: int,
    threads: Callable[[int], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    threads(2)
    monkeypatch.setattr(replay_block, "TEAM_MIN_TENSORS", 1)
    calls_of_team: list[int] = []
    routine = guard_table.routine_address
    monkeypatch.setattr(
        guard_table, "routine_address", lambda x: calls_of_team.append(1) or routine(x)
    )

    def made(seed: int) -> tuple[Any, list[Parameter]]:
        weights = params(5)
        return optim.AdamW(weights, lr=0.01, **options), weights

    for seed in range(8):
        assert not diff(made, seed, 5 * calls)
    assert calls_of_team


@pytest.mark.usefixtures("comes_anyway")
def test_thread_count_may_change(threads: Callable[[int], None]) -> None:
    results: list[list[torch.Tensor]] = []
    for counts in ([1], [2, 1, 3, 2]):
        weights = params(COUNT)
        opt = optim.Adam(weights)
        for step in range(10):
            threads(counts[step % len(counts)])
            set_grads(weights, step, {COUNT - 1} if step == 3 else set())
            opt.step()
            if (quick := opt.step_cache.replay) is not None and quick.taken:
                block = quick.guards.block
                count = torch.get_num_threads()
                assert (block[replay_block.TEAM] != 0) == (count > 1)
                assert block[replay_block.TEAM_SIZE] == (count if count > 1 else 0)
        assert count_replays(opt) > 1
        results.append([*weights, *(x for state in opt.state.values() for x in state.values())])
    assert_same(*results)


@pytest.mark.parametrize(("length", "has_thread"), [(6, False), (64, True)])
def test_thread_team_checks_its_own_range(
    length: int, has_thread: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(openmp, "team_size", lambda: 2)
    weights = params(COUNT, (length,))
    opt = optim.Adam(weights)
    for step in range(6):
        set_grads(weights, step)
        opt.step()
    assert count_replays(opt) > 1
    assert opt.step_cache.replay is not None
    assert (opt.step_cache.replay.guards.block[replay_block.TEAM] != 0) == has_thread


def test_check_by_one_thread_does_not_warn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(openmp, "_find_runtime", lambda: None)
    monkeypatch.setattr(openmp, "team_size", lambda: 4)
    openmp.gomp_parallel.cache_clear()
    try:
        weights = params(COUNT)  # few elements, which one thread updates anyway
        opt = optim.Adam(weights)
        for step in range(6):
            set_grads(weights, step)
            opt.step()
        assert count_replays(opt) > 1
    finally:
        openmp.gomp_parallel.cache_clear()


@pytest.mark.usefixtures("comes_anyway")
def test_pairs_are_checked_by_one_thread(threads: Callable[[int], None]) -> None:
    results: list[list[Parameter]] = []
    for count in (1, 2):
        threads(count)
        weights, opt = params(COUNT), train.AdamOptimizer(0.1)
        for step in range(6):
            set_grads(weights, step)
            opt.apply_gradients([(param.grad, param) for param in weights])
        quick = opt._plans.now().replay
        assert quick.taken > 1
        block = quick._native_step.guards.block
        assert (block[replay_block.NEXT_PART] > count) == (count > 1)
        assert block[replay_block.TEAM_GRADIENTS] == 0
        results.append(weights)
    assert_same(*results)


@pytest.mark.usefixtures("comes_anyway")
@pytest.mark.parametrize("is_sent_home", [True, False])
def test_forked_child_checks_with_one_thread(
    is_sent_home: bool, threads: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    threads(2)
    weights = params(COUNT)
    opt = optim.SGD(weights, lr=0.25)
    for step in range(4):
        set_grads(weights, step)
        opt.step()
    if not is_sent_home:
        monkeypatch.setattr(openmp, "_find_runtime", lambda: None)

    def child() -> Any:
        opt.step()
        return count_replays(opt), openmp._has_lost_team

    assert run_in_child(child) == (3, not is_sent_home)


def test_child_forked_during_a_step_refuses_to_step() -> None:
    weights, stop = params(), Stop()
    opt, other_opt = optim.SGD(weights, lr=0.25), optim.SGD(weights, lr=0.25)

    def hold_locks() -> None:
        with opt.step_cache.lock, other_opt.step_cache.lock:
            stop()

    def child() -> list[bool]:
        refused: list[bool] = []
        for each in (opt, other_opt):
            with pytest.raises(FailedPreconditionError, match="forked this one"):
                each.step()
            refused.append(True)
        return refused

    set_grads(weights, 0)
    with stop.reached_by(hold_locks):
        assert run_in_child(child, 20.0) == [True, True]
