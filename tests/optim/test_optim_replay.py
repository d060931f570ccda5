"""Steps of `thalweg.optim` in one native call: which are, and that only their time differs."""

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

from replay_twins import (
    OPTIONS,
    SHAPES,
    differences,
    everything,
    give,
    norm_of,
    params,
    same,
    taken,
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
OF_TENSORFLOW: list[tuple[str, dict[str, Any]]] = [
    ("SGD", {"momentum": 0.9}),
    ("Adam", {}),
    ("AdamW", {}),
    ("Nadam", {}),
    ("RMSprop", {"momentum": 0.5, "centered": True}),
    ("Ftrl", {}),
    ("LazyAdam", {}),
]


# Which steps


def _plain(own: list[Parameter]) -> Any:
    return optim.AdamW(own)


def _groups(own: list[Parameter]) -> Any:
    return optim.AdamW([{"params": own[:1]}, {"params": own[1:], "weight_decay": 0.0}])


def _average(own: list[Parameter]) -> Any:
    return optim.Adam(own, ema_decay=0.9)


@pytest.mark.parametrize("without", [set(), {0, 3}], ids=["all", "frozen"])
@pytest.mark.parametrize("make", [_plain, _groups, _average])
@pytest.mark.parametrize("has_schedule", [False, True])
def test_from_the_third_on_all_steps_are(
    make: Callable[..., Any], has_schedule: bool, without: set[int]
) -> None:
    own = params()
    opt = make(own)
    schedule = torch.optim.lr_scheduler.ExponentialLR(opt, 0.9)
    for step in range(12):
        give(own, step, without)
        opt.step()
        if has_schedule:
            schedule.step()
    assert taken(opt) == 10
    assert opt.last_step.count == 12


def test_state_may_be_in_another_order_than_parameters() -> None:
    own = params()
    opt = optim.Adam(own)
    give(own, 0)
    opt.step()
    for param in reversed(own):
        opt.state[param] = opt.state.pop(param)
    for step in range(1, 8):
        give(own, step)
        opt.step()
    assert list(map(id, opt.state)) != list(map(id, own))
    assert taken(opt) == 5


@pytest.mark.parametrize(("name", "options"), CLASSES, ids=str)
def test_every_class_has_them(name: str, options: dict[str, Any]) -> None:
    own = params()
    opt = getattr(optim, name)(own, lr=0.01, **options)
    for step in range(6):
        give(own, step)
        opt.step()
    assert taken(opt) == 4


@pytest.mark.parametrize(("around", "calls"), OPTIONS, ids=str)
@pytest.mark.parametrize(
    ("home", "name", "dtype", "without"),
    [
        (optim, "AdamW", torch.float32, set()),
        (optim, "NAdam", torch.bfloat16, {1}),
        (tensorflow, "Nadam", torch.float64, set()),
        (tensorflow, "Adam", torch.bfloat16, {1}),
    ],
    ids=["AdamW", "NAdam", "TensorFlow's Nadam", "TensorFlow's Adam"],
)
def test_every_option_has_them(
    home: Any,
    name: str,
    dtype: torch.dtype,
    without: set[int],
    around: dict[str, Any],
    calls: int,
) -> None:
    own, others = ([Parameter(param.to(dtype)) for param in params()] for _ in range(2))
    opt, twin = (getattr(home, name)(each, **around) for each in (own, others))
    for step in range(6 * calls):
        for each in (opt, twin):
            if around.get("fused_unscale"):
                each.found_inf, each.grad_scale = torch.zeros(()), torch.tensor(4.0 + step // 4)
        give(own, step, without)
        give(others, step, without)
        twin._cache.forget_replay()
        opt.step()
        twin.step()
    assert taken(opt) == 4
    for (what, one), (_, other) in zip(everything(opt, own), everything(twin, others), strict=True):
        assert same(one, other), what


def test_a_rate_that_is_a_tensor_is_read_at_each_step() -> None:
    own, others = params(), params()
    rates = [torch.tensor(0.1), torch.tensor(0.1)]
    opt, twin = optim.AdamW(own, lr=rates[0]), optim.AdamW(others, lr=rates[1])
    for step in range(6):
        give(own, step)
        give(others, step)
        twin._cache.forget_replay()
        opt.step()
        twin.step()
        for rate in rates:
            rate.mul_(0.5)
    assert taken(opt) == 4
    assert all(map(torch.equal, own, others))


def test_a_step_that_a_scaler_leaves_out_is_none() -> None:
    own = params()
    opt: Any = optim.Adam(own, fused_unscale=True)
    for step in range(8):
        opt.found_inf, opt.grad_scale = torch.tensor(float(step == 5)), torch.tensor(2.0)
        give(own, step)
        before = [param.detach().clone() for param in own]
        opt.step()
        assert all(map(torch.equal, own, before)) is (step == 5)
        assert opt.last_step.taken is (step != 5)
    assert opt.last_step.count == 7
    assert taken(opt)


def test_parameters_that_leave_their_groups_are_left_alone() -> None:
    own = params()
    opt = optim.Adam([{"params": own[:2]}, {"params": own[2:], "lr": 0.5}])
    for step in range(2):
        give(own, step)
        opt.step()
    opt.param_groups[1]["params"].append(opt.param_groups[0]["params"].pop())
    gone = opt.param_groups[0]["params"].pop()
    before, moved = gone.detach().clone(), own[1].detach().clone()
    for step in range(3):
        give(own, step)
        opt.step()
    assert torch.equal(gone, before)
    assert (own[1] - moved).abs().max() > 0.1  # at the rate of the other group


@pytest.mark.parametrize("without", [set(), {2, 3}], ids=["with gradients", "without"])
@pytest.mark.parametrize("around", [{}, {"clip_grad_norm": 1.0}], ids=str)
def test_a_group_may_be_removed(around: dict[str, Any], without: set[int]) -> None:
    own = params()
    opt = optim.Adam([{"params": own[:2]}, {"params": own[2:]}], **around)
    for step in range(4):
        give(own, step, without)
        opt.step()
    assert taken(opt) == 2
    opt.param_groups.pop()
    before = [param.detach().clone() for param in own]
    give(own, 4, without)
    opt.step()
    assert [torch.equal(*each) for each in zip(own, before, strict=True)] == [False] * 2 + [
        True
    ] * 2


@pytest.mark.parametrize("changes", [{"lr": 0.5}, {"t0": 1.0}], ids=str)
def test_numbers_that_differ_between_groups_are_written_to_each(changes: dict[str, Any]) -> None:
    sides: list[tuple[Any, list[Parameter]]] = []
    for _ in range(2):
        own = params()
        groups: Any = [{"params": own[:2]}, {"params": own[2:]}]
        sides.append((optim.ASGD(groups, lr=0.1), own))
    for step in range(8):
        for is_twin, (opt, own) in enumerate(sides):
            give(own, step)
            if step == 4:
                opt.param_groups[1].update(changes)
            if is_twin:
                opt._cache.forget_replay()
            opt.step()
        for (what, one), (_, other) in zip(*(everything(*side) for side in sides), strict=True):
            assert same(one, other), what


def test_steps_over_parameters_without_elements_are_counted() -> None:
    own = params(2, (0, 3))
    opt = optim.NAdam(own)
    for step in range(6):
        give(own, step)
        opt.step()
    assert [float(each["step"]) for each in opt.state.values()] == [6.0, 6.0]


@pytest.mark.parametrize("count", [0, 2])
def test_a_parameter_without_elements_is_no_reason_for_careful_steps(count: int) -> None:
    own = [*params(count), Parameter(torch.zeros(2, 0))]
    opt = optim.AdamW(own, clip_grad_norm=0.5)
    for step in range(6):
        give(own, step)
        opt.step()
    assert taken(opt) == 4
    assert opt.last_step is not None
    assert opt.last_step.count == 6
    assert opt.last_step.grad_norm == pytest.approx(norm_of(own), rel=1e-6)


def test_a_group_beside_with_strange_options_is_left_to_the_careful_step() -> None:
    own = params()
    opt = optim.AdamW([{"params": own[:2]}, {"params": own[2:]}])
    opt.param_groups[1]["lr"] = None
    for step in range(6):
        give(own, step, {2, 3})
        opt.step()
    assert opt.last_step.count == 6


class _OfProperties(optim.SGD):
    param_groups = property(
        lambda self: self._groups, lambda self, own: setattr(self, "_groups", own)
    )


def test_a_class_whose_groups_are_a_property_has_none() -> None:
    own = params()
    opt: Any = _OfProperties(own, lr=0.1)
    for step in range(5):
        give(own, step)
        opt.step()
    assert (taken(opt), opt.last_step.count) == (0, 5)


def test_an_interruption_takes_back_what_a_scaler_said(monkeypatch: pytest.MonkeyPatch) -> None:
    own = params()
    opt: Any = optim.SGD(own, lr=1.0, fused_unscale=True)
    for step in range(4):
        opt.found_inf, opt.grad_scale = torch.zeros(()), torch.tensor(4.0)
        give(own, step)
        opt.step()
    opt.found_inf, opt.grad_scale = torch.zeros(()), torch.tensor(4.0)

    def interrupted(*_: Any) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(guard_table.GuardTable, "replay", interrupted)
    with pytest.raises(KeyboardInterrupt):
        opt.step()
    monkeypatch.undo()
    assert not vars(opt).keys() & {"found_inf", "grad_scale"}
    assert taken(opt) == 0  # planned anew


def test_a_step_that_another_thread_has_forgotten_is_not_taken() -> None:
    own = params()
    opt = optim.Adam(own)
    for step in range(4):
        give(own, step)
        opt.step()
    quick: Any = opt._cache.replay
    own[0].grad = None
    opt.step()
    give(own, 5)
    assert opt._cache.replay is not quick
    assert not quick.take(opt)
    opt.step()
    assert opt.last_step.count == 6


def test_each_step_tells_of_its_own_gradients() -> None:
    own = params()
    opt: Any = optim.SGD(own, lr=0.1, clip_grad_norm=1.0)
    for step in range(8):
        give(own, step)
        norm = norm_of(own)
        opt.step()
        assert opt.last_step.grad_norm == pytest.approx(norm, rel=1e-6)
    assert taken(opt) == 6
    own[0].grad = None  # the careful way
    opt.step()
    norm = norm_of(own[1:])
    assert opt.last_step.grad_norm == pytest.approx(norm, rel=1e-6)


def test_gradients_that_are_replaced_after_they_were_measured_are_not_taken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    own = params()
    opt: Any = optim.SGD(own, lr=0.1, clip_grad_norm=0.0)  # whose factor is not made in one call
    for step in range(4):
        give(own, step)
        opt.step()
    take, parts = guard_table.GuardTable.replay, list[tuple[int, int]]()
    kept = [param.grad for param in own]

    def replacing(self: Any, *given: Any) -> int:
        found = take(self, *given)
        parts.append((given[2], found))
        if given[2] == guard_table.replay_kernel.MEASURE:
            own[0].grad = torch.ones_like(own[0])
        return found

    monkeypatch.setattr(guard_table.GuardTable, "replay", replacing)
    opt.step()
    assert kept
    look = guard_table.replay_kernel
    assert parts[0] == (look.CLIPPED, look.OUT_OF_RANGE)
    assert parts[1:] == [(look.MEASURE, 0), (look.UPDATE, look.OTHER_GRADIENT)]
    norm = norm_of(own)
    assert opt.last_step.grad_norm == pytest.approx(norm, rel=1e-6)


def test_those_with_a_closure_are() -> None:
    own, other = params(), params()
    opt, twin = optim.Adam(own), optim.Adam(other)
    for step in range(6):

        def closure(step: int = step) -> float:
            give(own, step)
            return float(step)

        assert opt.step(closure) == step
        give(other, step)
        twin.step()
    assert taken(opt) == 4
    assert all(map(torch.equal, own, other))


@pytest.mark.parametrize("steps", [2, 3], ids=["careful", "plain"])
@pytest.mark.parametrize("is_after", [False, True])
def test_an_interruption_says_what_has_become_of_the_step(
    is_after: bool, steps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = params()
    opt = optim.Adam(own)
    for step in range(steps):
        give(own, step)
        opt.step()
    take = guard_table.GuardTable.replay

    def interrupted(*given: Any, **named: Any) -> int:
        if is_after:
            take(*given, **named)
        raise KeyboardInterrupt

    monkeypatch.setattr(guard_table.GuardTable, "replay", interrupted)
    give(own, 9)
    before = [param.detach().clone() for param in own]
    with pytest.raises(KeyboardInterrupt) as caught:
        opt.step()
    monkeypatch.undo()
    said = "The step was taken." if is_after else "The step was not taken"
    assert [note for note in caught.value.__notes__ if note.startswith(said)]
    assert len(caught.value.__notes__) == 1
    assert all(map(torch.equal, own, before)) is not is_after
    assert opt.last_step.count == steps + is_after
    opt.step()
    assert opt.last_step.count == steps + is_after + 1


def test_a_refusal_says_that_nothing_has_changed() -> None:
    own = params()
    opt = optim.Adam(own)
    for step in range(4):
        give(own, step)
        opt.step()
    opt._cache._lock = Mark(opt._cache._lock, opt._cache)
    with pytest.raises(FailedPreconditionError) as caught:
        opt.step()
    assert caught.value.__notes__ == [
        "The step was not taken: no variable and no slot has changed."
    ]


# What turns them off


def _of_no_layout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_layout_probe, "layout", lambda: "it is another torch")


def _switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("THALWEG_NATIVE_LOOK", "0")


@pytest.mark.parametrize("off", [_of_no_layout, _switched_off])
def test_without_them_the_bits_are_the_same(
    off: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    results: list[list[Tensor]] = []
    for is_off in (False, True):
        if is_off:
            off(monkeypatch)
        own = params()
        opt = optim.Adam(own)
        for step in range(6):
            give(own, step)
            opt.step()
        assert taken(opt) == (0 if is_off else 4)
        results.append([*own, *(x for each in opt.state.values() for x in each.values())])
    for one, other in zip(*results, strict=True):
        assert torch.equal(one, other)
        assert one._version == other._version


@pytest.mark.parametrize(
    "name", [name for name in vars(torch_layout_probe) if name.startswith("_find_")]
)
def test_a_torch_of_another_layout_is_told(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> Any:
        raise torch_layout_probe.UnknownLayoutError("it is found in 0 places")

    monkeypatch.setattr(torch_layout_probe, name, fail)
    assert "it is found in 0 places in torch" in str(torch_layout_probe.layout.__wrapped__())


# What is told of by a function of torch's; pointers of which none tells are found by what changes.
TOLD = [
    "impl", "storage", "dims", "offset", "count", "keys", "data", "nbytes", "count_word", "grad",
]  # fmt: skip


@pytest.mark.parametrize("field", TOLD)
def test_what_was_found_in_a_wrong_place_is_noticed(field: str) -> None:
    found = torch_layout_probe.layout()
    assert not isinstance(found, str)
    wrong = torch_layout_probe.Layout(**{**vars(found), field: getattr(found, field) + 8})
    with pytest.raises(torch_layout_probe.UnknownLayoutError):
        torch_layout_probe.confirm(wrong)


# Who is told


def test_hooks_see_each_step() -> None:
    own, seen = params(), list[str]()
    opt = optim.Adam(own)
    opt.register_step_pre_hook(lambda *_: seen.append("before"))
    opt.register_step_post_hook(lambda *_: seen.append("after"))
    for step in range(5):
        give(own, step)
        opt.step()
    assert seen == ["before", "after"] * 5


def test_a_profiler_sees_each_step() -> None:
    own = params()
    opt = optim.Adam(own)
    with torch.profiler.profile(acc_events=True) as profile:
        for step in range(5):
            give(own, step)
            opt.step()
    named = [each for each in profile.key_averages() if each.key == "Optimizer.step#Adam.step"]
    assert [each.count for each in named] == [5]


def test_a_step_of_ones_own_is_told_once() -> None:
    class Mine(optim.Adam):
        def step(self, closure: Any = None) -> Any:
            return super().step(closure)

    own, seen = params(), list[int]()
    opt = Mine(own)
    opt.register_step_post_hook(lambda *_: seen.append(1))
    for step in range(5):
        give(own, step)
        opt.step()
    assert len(seen) == 5


# Whatever changes


def made(seed: int) -> tuple[Any, list[Parameter]]:
    dice = random.Random(seed)
    torch.manual_seed(seed)
    dtypes = [torch.float32, torch.float32, torch.float64, torch.bfloat16]
    mixed, count = dice.random() < 0.3, dice.randint(1, 6)
    own = [
        Parameter(
            torch.randn(dice.choice(SHAPES), dtype=dice.choice(dtypes) if mixed else torch.float32)
        )
        for _ in range(count)
    ]
    is_torchs = dice.random() < 0.7
    home: Any = optim if is_torchs else tensorflow
    name, options = dice.choice(CLASSES if is_torchs else OF_TENSORFLOW)
    split = dice.randint(0, count - 1)
    groups: Any = own
    if split and dice.random() < 0.5:
        groups = [{"params": own[:split]}, {"params": own[split:], "lr": 0.05}]
    around, _ = dice.choice(OPTIONS)
    return getattr(home, name)(groups, lr=0.01, **options, **around), own


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("seed", range(60))
def test_whatever_changes_the_step_is_the_careful_one(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PlanCache, "longest_wait", 1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert not differences(made, seed)


def test_memory_that_is_shared_until_it_is_written_is_not_written_through() -> None:
    own = params(1)
    opt = optim.Adam(own)
    for step in range(4):
        give(own, step)
        opt.step()
    twin = torch._lazy_clone(own[0].detach())  # pyright: ignore
    before = own[0].detach().clone()
    give(own, 9)
    opt.step()
    assert torch.equal(twin, before)
    assert not torch.equal(own[0], before)


def test_an_optimizer_goes_when_nobody_has_it() -> None:
    own = params()
    opt = optim.Adam(own)
    for step in range(4):
        give(own, step)
        opt.step()
    assert taken(opt) == 2
    known = weakref.ref(opt)
    gc.disable()
    try:
        del opt
        assert known() is None
    finally:
        gc.enable()


def test_sums_go_with_their_step() -> None:
    own = params()
    opt = optim.Adam(own, accumulate=2)
    known: list[Any] = []
    for step in range(12):
        give(own, step)
        opt.step()
        known += [weakref.ref(x["gradient_sum"]) for x in opt.state.values() if "gradient_sum" in x]
    assert taken(opt) == 4
    assert not any(each() is not None for each in known)


def test_parameters_that_are_gone_are_not_looked_at() -> None:
    own = params(40)
    opt = optim.Adam(own)
    for step in range(4):
        give(own, step)
        opt.step()
    assert taken(opt) == 2
    for param in own[10:30]:
        other = Parameter(torch.randn_like(param))
        other.grad = torch.randn_like(param)
        torch.utils.swap_tensors(param, other)
        del other
    junk = [bytes([0x41]) * size for size in range(150, 260) for _ in range(40)]
    give(own, 5)
    opt.step()
    assert junk
    assert all(param.isfinite().all() for param in own)


def test_the_look_says_what_is_not_as_it_was() -> None:
    own = params(3)
    found = guard_table.make_guard_table()
    assert found is not None
    give(own, 0)
    found.guard_list(own)
    for param in own:
        assert found.guard_tensor(param) is not None
    cells = torch.zeros(3, dtype=torch.int64).numpy()
    gradients = [(param, param.grad, cells[k : k + 1].ctypes.data) for k, param in enumerate(own)]
    found.write_block(guard_table.GuardedStep(gradients, [], [], own, cells[:0]))
    versions = [param._version for param in own]
    assert found.replay() == 0
    assert cells.tolist() == [param.grad.data_ptr() for param in own if param.grad is not None]
    assert [param._version for param in own] == [each + 1 for each in versions]
    own[1].grad = None
    assert found.replay() == guard_table.replay_kernel.OTHER_GRADIENT
    give(own, 1)
    assert found.replay() == 0
    own[2].data = own[2].data.clone()
    assert found.replay() in (
        guard_table.replay_kernel.OTHER_TENSOR,
        guard_table.replay_kernel.OTHER_MEMORY,
    )
    own.reverse()
    assert found.replay() == guard_table.replay_kernel.OTHER_LIST
    assert found.replay_count == 2


def test_rates_of_groups_without_elements_are_read() -> None:
    rate = torch.tensor(0.5)
    params = [torch.nn.Parameter(torch.ones(size)) for size in (3, 0)]
    groups = [{"params": params[:1]}, {"params": params[1:], "lr": rate}]
    opt = optim.tensorflow.Adam(groups, lr=0.1)
    for param in params:
        param.grad = torch.ones_like(param)
    for _ in range(4):
        opt.step()
    before = params[0].detach().clone()
    rate.fill_(float("nan"))
    with pytest.raises(ValueError, match="lr of group 1 is nan"):
        opt.step()
    assert torch.equal(params[0], before)
