"""Replayed steps of `thalweg.optim`: which steps are replayed, and equal results."""

from __future__ import annotations

import gc
import random
import warnings
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import Parameter

from bit_comparison import assert_same
from replay_twins import (
    OPTIONS,
    SHAPES,
    are_same,
    count_replays,
    diff,
    norm_of,
    params,
    set_grads,
    snapshot,
)
from thalweg import optim
from thalweg._base.locks import Mark
from thalweg._core.plan_cache import PlanCache
from thalweg._engines import torch_layout_probe
from thalweg._engines.cpu import guard_table
from thalweg.errors import FailedPreconditionError
from thalweg.optim import tensorflow

pytestmark = pytest.mark.skipif(
    isinstance(torch_layout_probe.layout(), str), reason="torch's objects cannot be read here"
)
CLASSES: list[tuple[str, dict[str, Any]]] = [
    ("SGD", {}),
    ("SGD", {"momentum": 0.9}),
    ("Adam", {}),
    ("Adam", {"amsgrad": True}),
    ("AdamW", {}),
    ("RMSprop", {"momentum": 0.5}),
    ("Adagrad", {}),
    ("Adadelta", {}),
    ("NAdam", {}),
    ("RAdam", {}),
    ("Adamax", {}),
    ("ASGD", {}),
    ("Rprop", {}),
]
TENSORFLOW_CLASSES: list[tuple[str, dict[str, Any]]] = [
    ("SGD", {"momentum": 0.9}),
    ("Adam", {}),
    ("AdamW", {}),
    ("Nadam", {}),
    ("RMSprop", {"momentum": 0.5, "centered": True}),
    ("Ftrl", {}),
    ("LazyAdam", {}),
]


# Replayed steps


def _make_one_group(weights: list[Parameter]) -> Any:
    return optim.AdamW(weights)


def _make_groups(weights: list[Parameter]) -> Any:
    return optim.AdamW([{"params": weights[:1]}, {"params": weights[1:], "weight_decay": 0.0}])


def _make_averaging(weights: list[Parameter]) -> Any:
    return optim.Adam(weights, ema_decay=0.9)


@pytest.mark.parametrize("skipped", [set(), {0, 3}], ids=["all", "frozen"])
@pytest.mark.parametrize("make", [_make_one_group, _make_groups, _make_averaging])
@pytest.mark.parametrize("has_schedule", [False, True])
def test_steps_are_replayed_from_the_third_on(
    make: Callable[..., Any], has_schedule: bool, skipped: set[int]
) -> None:
    weights = params()
    opt = make(weights)
    schedule = torch.optim.lr_scheduler.ExponentialLR(opt, 0.9)
    for step in range(12):
        set_grads(weights, step, skipped)
        opt.step()
        if has_schedule:
            schedule.step()
    assert count_replays(opt) == 10
    assert opt.last_step.count == 12


def test_state_in_other_order_is_replayed() -> None:
    weights = params()
    opt = optim.Adam(weights)
    set_grads(weights, 0)
    opt.step()
    for param in reversed(weights):
        opt.state[param] = opt.state.pop(param)
    for step in range(1, 8):
        set_grads(weights, step)
        opt.step()
    assert list(map(id, opt.state)) != list(map(id, weights))
    assert count_replays(opt) == 5


@pytest.mark.parametrize(("name", "options"), CLASSES, ids=str)
def test_every_class_is_replayed(name: str, options: dict[str, Any]) -> None:
    weights = params()
    opt = getattr(optim, name)(weights, lr=0.01, **options)
    for step in range(6):
        set_grads(weights, step)
        opt.step()
    assert count_replays(opt) == 4


@pytest.mark.one_in(3)
@pytest.mark.parametrize(("extras", "calls"), OPTIONS, ids=str)
@pytest.mark.parametrize(
    ("module", "name", "dtype", "skipped"),
    [
        (optim, "AdamW", torch.float32, set()),
        (optim, "NAdam", torch.bfloat16, {1}),
        (tensorflow, "Nadam", torch.float64, set()),
        (tensorflow, "Adam", torch.bfloat16, {1}),
    ],
    ids=["AdamW", "NAdam", "TensorFlow's Nadam", "TensorFlow's Adam"],
)
def test_every_option_is_replayed(
    module: Any,
    name: str,
    dtype: torch.dtype,
    skipped: set[int],
    extras: dict[str, Any],
    calls: int,
) -> None:
    weights, twins = ([Parameter(param.to(dtype)) for param in params()] for _ in range(2))
    opt, twin = (getattr(module, name)(tensors, **extras) for tensors in (weights, twins))
    for step in range(6 * calls):
        for stepped in (opt, twin):
            if extras.get("fused_unscale"):
                stepped.found_inf, stepped.grad_scale = (
                    torch.zeros(()),
                    torch.tensor(4.0 + step // 4),
                )
        set_grads(weights, step, skipped)
        set_grads(twins, step, skipped)
        twin.step_cache.forget_replay()
        opt.step()
        twin.step()
    assert count_replays(opt) == 4
    for (key, actual), (_, expected) in zip(
        snapshot(opt, weights), snapshot(twin, twins), strict=True
    ):
        assert are_same(actual, expected), key


def test_tensor_lr_is_read_every_step() -> None:
    weights, twins = params(), params()
    rates = [torch.tensor(0.1), torch.tensor(0.1)]
    opt, twin = optim.AdamW(weights, lr=rates[0]), optim.AdamW(twins, lr=rates[1])
    for step in range(6):
        set_grads(weights, step)
        set_grads(twins, step)
        twin.step_cache.forget_replay()
        opt.step()
        twin.step()
        for rate in rates:
            rate.mul_(0.5)
    assert count_replays(opt) == 4
    assert_same(weights, twins)


def test_skipped_step_changes_nothing() -> None:
    weights = params()
    opt: Any = optim.Adam(weights, fused_unscale=True)
    for step in range(8):
        opt.found_inf, opt.grad_scale = torch.tensor(float(step == 5)), torch.tensor(2.0)
        set_grads(weights, step)
        previous = [param.detach().clone() for param in weights]
        opt.step()
        assert all(map(torch.equal, weights, previous)) is (step == 5)
        assert opt.last_step.taken is (step != 5)
    assert opt.last_step.count == 7
    assert count_replays(opt)


def test_params_removed_from_groups_stay_unchanged() -> None:
    weights = params()
    opt = optim.Adam([{"params": weights[:2]}, {"params": weights[2:], "lr": 0.5}])
    for step in range(2):
        set_grads(weights, step)
        opt.step()
    opt.param_groups[1]["params"].append(opt.param_groups[0]["params"].pop())
    removed = opt.param_groups[0]["params"].pop()
    previous, moved_param = removed.detach().clone(), weights[1].detach().clone()
    for step in range(3):
        set_grads(weights, step)
        opt.step()
    assert torch.equal(removed, previous)
    assert (weights[1] - moved_param).abs().max() > 0.1  # at the rate of the other group


@pytest.mark.parametrize("skipped", [set(), {2, 3}], ids=["with gradients", "without"])
@pytest.mark.parametrize("extras", [{}, {"clip_grad_norm": 1.0}], ids=str)
def test_removed_group_stays_unchanged(extras: dict[str, Any], skipped: set[int]) -> None:
    weights = params()
    opt = optim.Adam([{"params": weights[:2]}, {"params": weights[2:]}], **extras)
    for step in range(4):
        set_grads(weights, step, skipped)
        opt.step()
    assert count_replays(opt) == 2
    opt.param_groups.pop()
    previous = [param.detach().clone() for param in weights]
    set_grads(weights, 4, skipped)
    opt.step()
    assert [torch.equal(*pair) for pair in zip(weights, previous, strict=True)] == [False] * 2 + [
        True
    ] * 2


@pytest.mark.parametrize("changes", [{"lr": 0.5}, {"t0": 1.0}], ids=str)
def test_scalars_that_differ_between_groups(changes: dict[str, Any]) -> None:
    sides: list[tuple[Any, list[Parameter]]] = []
    for _ in range(2):
        weights = params()
        groups: Any = [{"params": weights[:2]}, {"params": weights[2:]}]
        sides.append((optim.ASGD(groups, lr=0.1), weights))
    for step in range(8):
        for is_twin, (opt, weights) in enumerate(sides):
            set_grads(weights, step)
            if step == 4:
                opt.param_groups[1].update(changes)
            if is_twin:
                opt.step_cache.forget_replay()
            opt.step()
        for (key, actual), (_, expected) in zip(*(snapshot(*run) for run in sides), strict=True):
            assert are_same(actual, expected), key


def test_steps_of_empty_params_are_counted() -> None:
    weights = params(2, (0, 3))
    opt = optim.NAdam(weights)
    for step in range(6):
        set_grads(weights, step)
        opt.step()
    assert [float(state["step"]) for state in opt.state.values()] == [6.0, 6.0]


@pytest.mark.parametrize("count", [0, 2])
def test_empty_param_is_replayed(count: int) -> None:
    weights = [*params(count), Parameter(torch.zeros(2, 0))]
    opt = optim.AdamW(weights, clip_grad_norm=0.5)
    for step in range(6):
        set_grads(weights, step)
        opt.step()
    assert count_replays(opt) == 4
    assert opt.last_step is not None
    assert opt.last_step.count == 6
    assert opt.last_step.grad_norm == pytest.approx(norm_of(weights), rel=1e-6)


def test_group_with_invalid_lr_and_no_gradients() -> None:
    weights = params()
    opt = optim.AdamW([{"params": weights[:2]}, {"params": weights[2:]}])
    opt.param_groups[1]["lr"] = None
    for step in range(6):
        set_grads(weights, step, {2, 3})
        opt.step()
    assert opt.last_step.count == 6


class _OfProperties(optim.SGD):
    param_groups = property(
        lambda self: self._groups, lambda self, groups: setattr(self, "_groups", groups)
    )


def test_property_param_groups_are_not_replayed() -> None:
    weights = params()
    opt: Any = _OfProperties(weights, lr=0.1)
    for step in range(5):
        set_grads(weights, step)
        opt.step()
    assert (count_replays(opt), opt.last_step.count) == (0, 5)


def test_interrupt_removes_scaler_attributes(monkeypatch: pytest.MonkeyPatch) -> None:
    weights = params()
    opt: Any = optim.SGD(weights, lr=1.0, fused_unscale=True)
    for step in range(4):
        opt.found_inf, opt.grad_scale = torch.zeros(()), torch.tensor(4.0)
        set_grads(weights, step)
        opt.step()
    opt.found_inf, opt.grad_scale = torch.zeros(()), torch.tensor(4.0)

    def interrupted(*_: Any) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(guard_table.GuardTable, "replay", interrupted)
    with pytest.raises(KeyboardInterrupt):
        opt.step()
    monkeypatch.undo()
    assert not vars(opt).keys() & {"found_inf", "grad_scale"}
    assert count_replays(opt) == 0  # planned anew


def test_forgotten_replay_is_not_taken() -> None:
    weights = params()
    opt = optim.Adam(weights)
    for step in range(4):
        set_grads(weights, step)
        opt.step()
    replay: Any = opt.step_cache.replay
    weights[0].grad = None
    opt.step()
    set_grads(weights, 5)
    assert opt.step_cache.replay is not replay
    assert not replay.take(opt)
    opt.step()
    assert opt.last_step.count == 6


def test_grad_norm_is_of_the_current_step() -> None:
    weights = params()
    opt: Any = optim.SGD(weights, lr=0.1, clip_grad_norm=1.0)
    for step in range(8):
        set_grads(weights, step)
        norm = norm_of(weights)
        opt.step()
        assert opt.last_step.grad_norm == pytest.approx(norm, rel=1e-6)
    assert count_replays(opt) == 6
    weights[0].grad = None  # the careful way
    opt.step()
    norm = norm_of(weights[1:])
    assert opt.last_step.grad_norm == pytest.approx(norm, rel=1e-6)


def test_gradient_replaced_after_measuring_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    weights = params()
    opt: Any = optim.SGD(weights, lr=0.1, clip_grad_norm=0.0)  # needs two calls
    for step in range(4):
        set_grads(weights, step)
        opt.step()
    take, parts = guard_table.GuardTable.replay, list[tuple[int, int]]()
    gradients = [param.grad for param in weights]

    def replacing(self: Any, *arguments: Any) -> int:
        status = take(self, *arguments)
        parts.append((arguments[2], status))
        if arguments[2] == guard_table.replay_block.MEASURE:
            weights[0].grad = torch.ones_like(weights[0])
        return status

    monkeypatch.setattr(guard_table.GuardTable, "replay", replacing)
    opt.step()
    assert gradients
    codes = guard_table.replay_block
    assert parts[0] == (codes.CLIPPED, codes.OUT_OF_RANGE)
    assert parts[1:] == [(codes.MEASURE, 0), (codes.UPDATE, codes.OTHER_GRADIENT)]
    norm = norm_of(weights)
    assert opt.last_step.grad_norm == pytest.approx(norm, rel=1e-6)


def test_steps_with_closure_are_replayed() -> None:
    weights, twins = params(), params()
    opt, twin = optim.Adam(weights), optim.Adam(twins)
    for step in range(6):

        def closure(step: int = step) -> float:
            set_grads(weights, step)
            return float(step)

        assert opt.step(closure) == step
        set_grads(twins, step)
        twin.step()
    assert count_replays(opt) == 4
    assert_same(weights, twins)


@pytest.mark.parametrize("steps", [2, 3], ids=["careful", "plain"])
@pytest.mark.parametrize("has_step", [False, True])
def test_interrupt_notes_whether_step_was_taken(
    has_step: bool, steps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights = params()
    opt = optim.Adam(weights)
    for step in range(steps):
        set_grads(weights, step)
        opt.step()
    take = guard_table.GuardTable.replay

    def interrupted(*arguments: Any, **kwargs: Any) -> int:
        if has_step:
            take(*arguments, **kwargs)
        raise KeyboardInterrupt

    monkeypatch.setattr(guard_table.GuardTable, "replay", interrupted)
    set_grads(weights, 9)
    previous = [param.detach().clone() for param in weights]
    with pytest.raises(KeyboardInterrupt) as error:
        opt.step()
    monkeypatch.undo()
    message = "The step was taken." if has_step else "The step was not taken"
    assert [note for note in error.value.__notes__ if note.startswith(message)]
    assert len(error.value.__notes__) == 1
    assert all(map(torch.equal, weights, previous)) is not has_step
    assert opt.last_step.count == steps + has_step
    opt.step()
    assert opt.last_step.count == steps + has_step + 1


def test_error_notes_that_nothing_changed() -> None:
    weights = params()
    opt = optim.Adam(weights)
    for step in range(4):
        set_grads(weights, step)
        opt.step()
    opt.step_cache.lock = Mark(opt.step_cache.lock, opt.step_cache)
    with pytest.raises(FailedPreconditionError) as error:
        opt.step()
    assert error.value.__notes__ == ["The step was not taken: no variable and no slot has changed."]


def test_interrupt_of_a_wait_notes_no_step_of_another_thread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    weights = params()
    opt = optim.Adam(weights)
    for step in range(4):
        set_grads(weights, step)
        opt.step()
    lock = opt.step_cache.lock

    class Waited:
        def __enter__(self) -> None:
            opt.step_cache.lock = lock
            opt.step()
            raise KeyboardInterrupt

        def __exit__(self, *_: object) -> None: ...

    monkeypatch.setattr(opt.step_cache, "lock", Waited())
    with pytest.raises(KeyboardInterrupt) as error:
        opt.step()
    assert count_replays(opt) == 3
    assert error.value.__notes__ == ["The step was not taken: no variable and no slot has changed."]


# Without replay


def _disable_layout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_layout_probe, "layout", lambda: "it is another torch")


def _disable_by_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("THALWEG_NATIVE_LOOK", "0")


@pytest.mark.parametrize("disable", [_disable_layout, _disable_by_environment])
def test_bits_without_replay_are_equal(
    disable: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    results: list[list[Tensor]] = []
    for is_disabled in (False, True):
        if is_disabled:
            disable(monkeypatch)
        weights = params()
        opt = optim.Adam(weights)
        for step in range(6):
            set_grads(weights, step)
            opt.step()
        assert count_replays(opt) == (0 if is_disabled else 4)
        results.append([*weights, *(x for state in opt.state.values() for x in state.values())])
    for actual, expected in zip(*results, strict=True):
        assert_same([actual], [expected])
        assert actual._version == expected._version


@pytest.mark.parametrize(
    "name", [name for name in vars(torch_layout_probe) if name.startswith("_find_")]
)
def test_other_torch_layout_is_reported(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> Any:
        raise torch_layout_probe.UnknownLayoutError("it is found in 0 places")

    monkeypatch.setattr(torch_layout_probe, name, fail)
    assert "it is found in 0 places in torch" in str(torch_layout_probe.layout.__wrapped__())


# Fields that a function of torch confirms; other pointers are found by changes in memory.
CHECKED_FIELDS = [
    "impl", "storage", "dims", "offset", "count", "keys", "data", "nbytes", "count_word", "grad",
]  # fmt: skip


@pytest.mark.parametrize("field", CHECKED_FIELDS)
def test_confirm_rejects_wrong_offset(field: str) -> None:
    layout = torch_layout_probe.layout()
    assert not isinstance(layout, str)
    wrong = torch_layout_probe.Layout(**{**vars(layout), field: getattr(layout, field) + 8})
    with pytest.raises(torch_layout_probe.UnknownLayoutError):
        torch_layout_probe.confirm(wrong)


# Hooks and profiler


def test_hooks_are_called_every_step() -> None:
    weights, calls = params(), list[str]()
    opt = optim.Adam(weights)
    opt.register_step_pre_hook(lambda *_: calls.append("before"))
    opt.register_step_post_hook(lambda *_: calls.append("after"))
    for step in range(5):
        set_grads(weights, step)
        opt.step()
    assert calls == ["before", "after"] * 5


def test_profiler_records_every_step() -> None:
    weights = params()
    opt = optim.Adam(weights)
    with torch.profiler.profile(acc_events=True) as profile:
        for step in range(5):
            set_grads(weights, step)
            opt.step()
    events = [event for event in profile.key_averages() if event.key == "Optimizer.step#Adam.step"]
    assert [event.count for event in events] == [5]


def test_hook_of_overridden_step_is_called_once() -> None:
    class Subclass(optim.Adam):
        def step(self, closure: Any = None) -> Any:
            return super().step(closure)

    weights, calls = params(), list[int]()
    opt = Subclass(weights)
    opt.register_step_post_hook(lambda *_: calls.append(1))
    for step in range(5):
        set_grads(weights, step)
        opt.step()
    assert len(calls) == 5


# Changes between steps


def make_random(seed: int) -> tuple[Any, list[Parameter]]:
    dice = random.Random(seed)
    torch.manual_seed(seed)
    dtypes = [torch.float32, torch.float32, torch.float64, torch.bfloat16]
    mixed, count = dice.random() < 0.3, dice.randint(1, 6)
    weights = [
        Parameter(
            torch.randn(dice.choice(SHAPES), dtype=dice.choice(dtypes) if mixed else torch.float32)
        )
        for _ in range(count)
    ]
    is_torch_class = dice.random() < 0.7
    module: Any = optim if is_torch_class else tensorflow
    name, options = dice.choice(CLASSES if is_torch_class else TENSORFLOW_CLASSES)
    split = dice.randint(0, count - 1)
    groups: Any = weights
    if split and dice.random() < 0.5:
        groups = [{"params": weights[:split]}, {"params": weights[split:], "lr": 0.05}]
    extras, _ = dice.choice(OPTIONS)
    return getattr(module, name)(groups, lr=0.01, **options, **extras), weights


@pytest.mark.one_in(3)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("seed", range(12))
def test_random_changes_equal_careful_steps(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PlanCache, "longest_wait", 1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert not diff(make_random, seed)


def test_lazy_clone_is_not_written_through() -> None:
    weights = params(1)
    opt = optim.Adam(weights)
    for step in range(4):
        set_grads(weights, step)
        opt.step()
    twin = torch._lazy_clone(weights[0].detach())  # pyright: ignore
    previous = weights[0].detach().clone()
    set_grads(weights, 9)
    opt.step()
    assert torch.equal(twin, previous)
    assert not torch.equal(weights[0], previous)


def test_optimizer_is_freed_without_gc() -> None:
    weights = params()
    opt = optim.Adam(weights)
    for step in range(4):
        set_grads(weights, step)
        opt.step()
    assert count_replays(opt) == 2
    reference = weakref.ref(opt)
    gc.disable()
    try:
        del opt
        assert reference() is None
    finally:
        gc.enable()


def test_gradient_sums_are_freed() -> None:
    weights = params()
    opt = optim.Adam(weights, accumulate=2)
    refs: list[Any] = []
    for step in range(12):
        set_grads(weights, step)
        opt.step()
        sums = [x["gradient_sum"] for x in opt.state.values()]
        refs += [weakref.ref(x) for x in sums if isinstance(x, torch.Tensor)]
        del sums
    assert count_replays(opt) == 4
    assert len(refs) == 6 * len(weights)
    assert not any(reference() is not None for reference in refs)


def test_freed_params_are_not_read() -> None:
    weights = params(40)
    opt = optim.Adam(weights)
    for step in range(4):
        set_grads(weights, step)
        opt.step()
    assert count_replays(opt) == 2
    for param in weights[10:30]:
        replacement = Parameter(torch.randn_like(param))
        replacement.grad = torch.randn_like(param)
        torch.utils.swap_tensors(param, replacement)
        del replacement
    junk = [bytes([0x41]) * size for size in range(150, 260) for _ in range(40)]
    set_grads(weights, 5)
    opt.step()
    assert junk
    assert all(param.isfinite().all() for param in weights)


def test_guard_table_reports_changes() -> None:
    weights = params(3)
    table = guard_table.make_guard_table()
    assert table is not None
    set_grads(weights, 0)
    table.guard_list(weights)
    for param in weights:
        assert table.guard_tensor(param) is not None
    cells = torch.zeros(3, dtype=torch.int64).numpy()
    gradients = [
        (param, param.grad, cells[k : k + 1].ctypes.data) for k, param in enumerate(weights)
    ]
    table.write_block(guard_table.GuardedStep(gradients, [], [], weights, cells[:0]))
    versions = [param._version for param in weights]
    assert table.replay() == 0
    assert cells.tolist() == [param.grad.data_ptr() for param in weights if param.grad is not None]
    assert [param._version for param in weights] == [version + 1 for version in versions]
    weights[1].grad = None
    assert table.replay() == guard_table.replay_block.OTHER_GRADIENT
    set_grads(weights, 1)
    assert table.replay() == 0
    weights[2].data = weights[2].data.clone()
    assert table.replay() in (
        guard_table.replay_block.OTHER_TENSOR,
        guard_table.replay_block.OTHER_MEMORY,
    )
    weights.reverse()
    assert table.replay() == guard_table.replay_block.OTHER_LIST
    assert table.replay_count == 2


DICT_CHANGES: dict[str, Callable[[dict[str, Any]], object]] = {
    "none": lambda entries: entries.update(second=entries["second"]),
    "value": lambda entries: entries.update(first=3.0),
    "new key": lambda entries: entries.setdefault("fourth", 4),
    "removed": lambda entries: entries.popitem(),
    "order": lambda entries: entries.update(first=entries.pop("first")),
    "cleared": lambda entries: entries.clear(),
    "merged": lambda entries: entries.__ior__({"second": 2.5}),
}


@pytest.mark.parametrize("has_versions", [True, False])
@pytest.mark.parametrize("change", DICT_CHANGES)
def test_guarded_dict_reports_changes(
    change: str, has_versions: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without versions of dictionaries, entries are compared at each replay."""
    if not has_versions:
        monkeypatch.setattr(torch_layout_probe, "dict_version_offset", lambda: 0)
    table = guard_table.make_guard_table()
    assert table is not None
    entries = {"first": 1.0, "second": 2.0, "third": 3}
    table.guard_dict(entries)
    no_bounds = torch.zeros(0, dtype=torch.int64).numpy()
    table.write_block(guard_table.GuardedStep((), (), (), (), no_bounds))
    assert [table.replay(), table.replay()] == [0, 0]
    DICT_CHANGES[change](entries)
    difference = 0 if change == "none" else guard_table.replay_block.OTHER_DICT
    assert [table.replay(), table.replay()] == [difference] * 2


def test_lr_of_empty_group_is_validated() -> None:
    rate = torch.tensor(0.5)
    params = [torch.nn.Parameter(torch.ones(size)) for size in (3, 0)]
    groups = [{"params": params[:1]}, {"params": params[1:], "lr": rate}]
    opt = optim.tensorflow.Adam(groups, lr=0.1)
    for param in params:
        param.grad = torch.ones_like(param)
    for _ in range(4):
        opt.step()
    previous = params[0].detach().clone()
    rate.fill_(float("nan"))
    with pytest.raises(ValueError, match="lr of group 1 is nan"):
        opt.step()
    assert torch.equal(params[0], previous)
