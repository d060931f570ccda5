"""Replayed steps of rules with measures of rows and columns: equal to other steps."""

from __future__ import annotations

import copy
import random
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from itertools import product
from typing import Any

import pytest
import torch
from torch.nn import Parameter

from interruptions import collected, messages
from pairwise import cover_values
from replay_twins import (
    OPTIONS,
    are_same,
    count_replays,
    diff,
    look_carefully,
    set_grads,
    snapshot,
)
from thalweg import Hyper, Measure, Rule, Slot, Stage, maximum, optim
from thalweg._core.plan_cache import PlanCache
from thalweg._engines import torch_layout_probe
from thalweg._engines.cpu import openmp
from thalweg.formula import FusedStage, gradient_squares
from thalweg.optim.diagnostics import Spikes

pytestmark = pytest.mark.skipif(
    isinstance(torch_layout_probe.layout(), str), reason="torch's objects cannot be read here"
)
# Matrices of up to 8 rows and columns have kernels of their own, over blocks of 32 matrices.
SHAPES = [(9, 12), (3, 4, 17), (130, 1030), (20, 1), (1, 20), (7,), (9, 12)]
SHAPES += [(13, 5, 3, 3), (3, 3), (2, 8, 5), (4, 1, 1)]
Maker = Callable[..., Any]


def in_groups(name: str, **options: Any) -> Maker:
    def make(weights: list[Parameter], **extras: Any) -> Any:
        groups = [{"params": weights[::2], **options}, {"params": weights[1::2], "lr": 0.05}]
        return getattr(optim, name)([group for group in groups if group["params"]], **extras)

    return make


def of_matrices(name: str, **options: Any) -> Maker:
    def make(weights: list[Parameter], **extras: Any) -> Any:
        matrices = [weight for weight in weights if weight.dim() == 2]
        return getattr(optim, name)(matrices, lr=0.1, **options, **extras)

    return make


def mixed(weights: list[Parameter], **extras: Any) -> Any:
    groups = [{"params": weights[::2], "rule": "SM3"}, {"params": weights[1::2], "rule": "AdamW"}]
    return optim.Mixed([group for group in groups if group["params"]], **extras)


MAKERS: dict[str, Maker] = {
    "Adafactor": lambda weights, **extras: optim.Adafactor(weights, **extras),
    "Adafactor in groups": in_groups("Adafactor", lr=0.1, d=1.3, weight_decay=0.01, maximize=True),
    "AdafactorHF": lambda weights, **extras: optim.AdafactorHF(weights, **extras),
    "AdafactorHF with a mean": lambda weights, **extras: optim.AdafactorHF(
        weights, lr=0.01, relative_step=False, beta1=0.9, **extras
    ),
    "SM3": lambda weights, **extras: optim.SM3(weights, lr=0.1, **extras),
    "SM3 with a mean": in_groups("SM3", lr=0.1, momentum=0.9, beta=0.5),
    "beside others": mixed,
}


def make_params(dtype: torch.dtype = torch.float32) -> list[Parameter]:
    torch.manual_seed(0)
    return [Parameter(torch.randn(shape).to(dtype)) for shape in SHAPES]


def compare(
    make: Maker,
    dtype: torch.dtype,
    prepare: Callable[..., None],
    errors: tuple[type[Exception], ...] = (),
    steps: int = 7,
    **extras: Any,
) -> int:
    """Compare an optimizer with a twin that does not replay; return the replayed steps.

    After one of `errors`, which the twin must raise as well, only the parameters are compared.
    """
    sides: list[tuple[Any, list[Parameter]]] = []
    for _ in range(2):
        weights = make_params(dtype)
        sides.append((make(weights, **extras), weights))
    for step in range(steps * extras.get("accumulate", 1)):
        messages: list[str] = []
        for is_twin, (opt, weights) in enumerate(sides):
            if extras.get("fused_unscale"):
                opt.found_inf, opt.grad_scale = torch.zeros(()), torch.tensor(4.0 + step // 4)
            prepare(opt, weights, step)
            if is_twin:
                look_carefully(opt)
            try:
                opt.step()
            except errors as error:
                messages.append(str(error))
        if messages:
            assert messages == messages[:1] * 2
            assert all(map(torch.equal, sides[0][1], sides[1][1]))
            break
        for (key, actual), (_, expected) in zip(*(snapshot(*run) for run in sides), strict=True):
            assert are_same(actual, expected), (key, step)
    return count_replays(sides[0][0])


@pytest.fixture
def restored_numerics() -> Iterator[None]:
    """Restore torch's number of threads and its mode of denormals after a test."""
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)
    torch.set_flush_denormal(False)


def schedule(opt: Any, weights: list[Parameter], step: int) -> None:
    set_grads(weights, step)
    for group in opt.param_groups:
        if group.get("lr") is not None:
            group["lr"] *= 0.9


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    ("name", "dtype"),
    [*((name, torch.float32) for name in MAKERS), ("Adafactor in groups", torch.float64)],
)
def test_lines_are_replayed(name: str, dtype: torch.dtype) -> None:
    def prepare(opt: Any, weights: list[Parameter], step: int) -> None:
        schedule(opt, weights, step)
        replay = opt.step_cache.replay
        assert replay is None or replay._in_call is not None

    assert compare(MAKERS[name], dtype, prepare) == 5


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        *product(["AdamW", "SM3", "Adafactor"], [torch.float32, torch.float64, torch.bfloat16]),
        ("Muon", torch.bfloat16),
    ],
)
def test_row_floors_are_replayed(name: str, dtype: torch.dtype) -> None:
    assert compare(of_matrices(name, row_floor=0.5), dtype, schedule) == 5


LARGE_STEPS: dict[str, tuple[Maker, dict[str, Any]]] = {
    "rows and columns": (MAKERS["Adafactor in groups"], {}),
    "several rules": (mixed, {"clip_grad_norm": 0.5}),
    "norm": (of_matrices("SGD"), {"clip_grad_norm": 0.5, "fused_unscale": True}),
    "norm before the step": (of_matrices("SGD"), {"clip_grad_norm": 0.0}),
    "norm of sums": (of_matrices("AdamW"), {"clip_grad_norm": 0.5, "accumulate": 2}),
    "norms of variables": (of_matrices("LAMB"), {"clip_grad_norm": 0.5}),
    "judge": (lambda weights: optim.AdamW(weights, spikes=Spikes("skip")), {}),
    "passes": (of_matrices("Muon"), {}),
    "passes and norm": (of_matrices("NorMuon", row_floor=0.5), {"clip_grad_norm": 0.5}),
}


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", LARGE_STEPS)
def test_large_steps_are_replayed(name: str, large_steps: None) -> None:
    make, extras = LARGE_STEPS[name]

    def prepare(opt: Any, weights: list[Parameter], step: int) -> None:
        schedule(opt, weights, step)
        if step > 2:
            assert opt.step_cache.replay is None or opt.step_cache.replay.guards.releases_lock

    assert compare(make, torch.float32, prepare, **extras) == 5


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", LARGE_STEPS)
def test_finalizer_step_within_a_large_step_raises(
    name: str, large_steps: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    make, extras = LARGE_STEPS[name]
    sides = [(make(weights, **extras), weights) for weights in (make_params(), make_params())]
    (opt, _), _ = sides
    call_on_team, is_collecting = openmp.call_on_team, False
    messages.clear()

    def call_with_collection(*arguments: Any) -> Any:
        kernels = call_on_team(*arguments)
        collect = partial(collected, opt.step) if is_collecting else lambda: None
        return lambda: (collect(), kernels(), collect())[1]

    monkeypatch.setattr(openmp, "call_on_team", call_with_collection)
    count = 6 * extras.get("accumulate", 1)
    for step in range(count):
        for side, weights in sides:
            if extras.get("fused_unscale"):
                side.found_inf, side.grad_scale = torch.zeros(()), torch.tensor(4.0)
            set_grads(weights, step)
            is_collecting = side is opt and step + 1 == count
            side.step()
    assert messages
    assert {x.partition(" within ")[2][:31] for x in messages} == {
        "a step of the same optimizer, s"
    }
    for (key, actual), (_, expected) in zip(*(snapshot(*side) for side in sides), strict=True):
        assert are_same(actual, expected), key


@pytest.mark.parametrize(
    ("name", "calls"),
    [("rows and columns", 1), ("norm before the step", 3), ("passes and norm", 3)],
)
def test_large_steps_keep_gradients_and_let_other_threads_run(
    name: str, calls: int, large_steps: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights, twins = make_params(), make_params()
    make, extras = LARGE_STEPS[name]
    sides = [(make(tensors, **extras), tensors) for tensors in (weights, twins)]
    runs: list[int] = []
    for step in range(4):
        for opt, tensors in sides:
            set_grads(tensors, step)
            opt.step()
    call_on_team = openmp.call_on_team

    def run_after_removal(address: int, argument: int, threads: int) -> Callable[[], object]:
        for weight in weights:
            weight.grad = None
        runs.append(threads)
        return call_on_team(address, argument, threads)

    for opt, tensors in sides:
        set_grads(tensors, 4)
        with monkeypatch.context() as context:
            if opt is sides[0][0]:
                context.setattr(openmp, "call_on_team", run_after_removal)
            opt.step()
    assert (count_replays(sides[0][0]), len(runs)) == (3, calls)
    assert all(map(torch.equal, weights, twins))


def test_large_steps_count_versions_of_present_tensors(
    large_steps: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights, spare = make_params(), torch.zeros(SHAPES[0])
    opt, call_on_team = optim.Adafactor(weights), openmp.call_on_team

    def run_after_swap(*arguments: int) -> Callable[[], object]:
        kernels = call_on_team(*arguments)
        swap = partial(torch.utils.swap_tensors, weights[0], spare)
        return lambda: (swap(), kernels())[1]

    for step in range(5):
        set_grads(weights, step)
        if step == 4:
            monkeypatch.setattr(openmp, "call_on_team", run_after_swap)
        opt.step()
    assert count_replays(opt) == 3
    assert [x._version for x in (*weights[:2], spare)] == [1, 5, 4]


class Special(torch.Tensor):
    pass


@pytest.mark.parametrize("are_sets_random", [False, True])
def test_large_steps_use_gradients_of_subclasses(are_sets_random: bool, large_steps: None) -> None:
    weights = make_params()[:3]
    opt = optim.SGD(weights, lr=0.25)
    for step in range(9):
        set_grads(weights, step, {step % 3 if are_sets_random else 1})
        opt.step()
    assert getattr(opt.step_cache.replay, "may_lack", None) == are_sets_random
    set_grads(weights, 9)
    grad = torch.ones(SHAPES[1])
    weights[1].grad = grad.as_subclass(Special)
    expected = weights[1] - 0.25 * grad
    opt.step()
    assert torch.equal(weights[1], expected)


def keep_largest(*, tops: Any, rows: Any) -> Any:
    """Return new numbers of the slot, which are stored first, and its previous ones."""
    return maximum(tops, rows), tops


def scale_rows(var: Any, grad: Any, *, rows: Any, tops: Any, learning_rate: Any) -> Any:
    return (var - learning_rate * grad * (1 + rows) / (1 + tops),)


SWAPPED = Rule(
    name="Swapped",
    passes=(
        Measure(gradient_squares, makes="rows", over="row"),
        FusedStage(keep_largest, makes=("tops", "rows")),
    ),
    update=scale_rows,
    hypers=(Hyper("learning_rate", 0.1),),
    slots=(Slot("tops", per="row"),),
)


def lessen(*, length: Any, learning_rate: Any) -> dict[str, Any]:
    return {"length": length * learning_rate + 1}


def add_size(*, total: Any, element_count: Any) -> dict[str, Any]:
    return {"total": total / 3 + element_count}


def divide_squares(var: Any, grad: Any, *, length: Any) -> Any:
    return grad * grad / length


def divide_by_rows(var: Any, grad: Any, *, rows: Any, length: Any) -> Any:
    return grad * grad * length / (rows + 1)


def scale_by_numbers(
    var: Any, grad: Any, *, rows: Any, length: Any, total: Any, learning_rate: Any
) -> Any:
    return (var - learning_rate * grad * (1 + rows) / (length + total),)


CHAINED = Rule(
    name="Chained",
    passes=(
        Measure(gradient_squares, makes="length"),
        Stage(lessen),
        Measure(divide_squares, makes="rows", over="row"),
        Measure(divide_by_rows, makes="total"),
        Stage(add_size),
    ),
    update=scale_by_numbers,
    hypers=(Hyper("learning_rate", 0.1),),
)


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    "rule", [SWAPPED, CHAINED], ids=["slot that a stage overwrites", "numbers"]
)
def test_unusual_stages_are_replayed(rule: Rule, monkeypatch: pytest.MonkeyPatch) -> None:
    # Rules with functions of users are not replayed.
    monkeypatch.setattr("thalweg.formula.is_ours", lambda function: True)

    def make(weights: list[Parameter]) -> Any:
        matrices = [weight for weight in weights if weight.dim() > 1]
        return optim.RuleOptimizer(matrices, rule, lr=0.1)

    assert compare(make, torch.float32, schedule) == 5


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "options", "dtype"),
    cover_values(product(MAKERS, OPTIONS, (torch.float32, torch.float64, torch.bfloat16)), 2),
    ids=str,
)
def test_options_are_replayed(
    name: str, options: tuple[dict[str, Any], int], dtype: torch.dtype
) -> None:
    assert compare(MAKERS[name], dtype, schedule, **options[0]) == 5


@pytest.mark.one_in(3)
@pytest.mark.parametrize("value", [0.0, torch.nan, -torch.inf, 1e-42, 3e38])
@pytest.mark.parametrize("name", ["Adafactor", "AdafactorHF", "SM3 with a mean"])
def test_extreme_values_are_replayed(name: str, value: float) -> None:
    def prepare(opt: Any, weights: list[Parameter], step: int) -> None:
        schedule(opt, weights, step)
        if step == 4:
            weights[2].grad = torch.full_like(weights[2], value)
            weights[0].grad[:3] = value  # pyright: ignore[reportOptionalSubscript]

    assert compare(MAKERS[name], torch.float32, prepare) == 5


def row_slot(opt: Any, weight: Parameter) -> tuple[str, torch.Tensor]:
    """Return the name and the tensor of a slot with one number for each row of a matrix."""
    slots = opt.state[weight].items()
    return next((name, slot) for name, slot in slots if slot.numel() == len(weight))


def assign_slot(opt: Any, weights: list[Parameter]) -> None:
    name, slot = row_slot(opt, weights[0])
    opt.state[weights[0]][name] = slot * 0.5


def replace_slot_data(opt: Any, weights: list[Parameter]) -> None:
    _, slot = row_slot(opt, weights[0])
    slot.data = slot.data * 0.5


def change_slot_dtype(opt: Any, weights: list[Parameter]) -> None:
    name, slot = row_slot(opt, weights[0])
    opt.state[weights[0]][name] = slot.bfloat16()


def free_slot(opt: Any, weights: list[Parameter]) -> None:
    row_slot(opt, weights[0])[1].untyped_storage().resize_(0)


def overlap_slot(opt: Any, weights: list[Parameter]) -> None:
    weights[5].grad = row_slot(opt, weights[0])[1].view(-1)[:7]


def load_state(opt: Any, weights: list[Parameter]) -> None:
    state_dict = copy.deepcopy(opt.state_dict())
    row_slot(opt, weights[0])[1].zero_()
    opt.load_state_dict(state_dict)


def flush_denormals(opt: Any, weights: list[Parameter]) -> None:
    torch.set_flush_denormal(True)
    for weight in weights:
        weight.grad = torch.full_like(weight, 1e-42)


def replace_param_data(opt: Any, weights: list[Parameter]) -> None:
    weights[0].data = weights[0].data * 0.5


def change_options(opt: Any, weights: list[Parameter]) -> None:
    group = opt.param_groups[0]
    group |= {name: x * 0.75 for name, x in group.items() if type(x) is float}


CHANGES = {
    "options": change_options,
    "slot": assign_slot,
    "data of a slot": replace_slot_data,
    "dtype of a slot": change_slot_dtype,
    "freed slot": free_slot,
    "gradient over a slot": overlap_slot,
    "loaded state": load_state,
    "threads": lambda opt, weights: torch.set_num_threads(3),
    "denormals": flush_denormals,
    "data of a parameter": replace_param_data,
    "deleted state": lambda opt, weights: opt.state.pop(weights[0]),
}


@pytest.mark.one_in(3)
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("name", ["Adafactor", "AdafactorHF", "SM3"])
def test_changes_between_replays_equal_careful_steps(
    name: str, change: str, restored_numerics: None
) -> None:
    replays: list[int] = []

    def prepare(opt: Any, weights: list[Parameter], step: int) -> None:
        schedule(opt, weights, step)
        if step == 4:
            replays.append(count_replays(opt))
            CHANGES[change](opt, weights)

    compare(MAKERS[name], torch.float32, prepare, (ValueError, TypeError, RuntimeError))
    assert replays[0] == 2


SETS: tuple[set[int], ...] = ({1, 2, 7}, {3, 4, 5}, set())


@pytest.mark.one_in(3)
@pytest.mark.parametrize("change", [None, "slot", "loaded state", "data of a parameter"])
@pytest.mark.parametrize("name", ["Adafactor in groups", "beside others"])
def test_recurring_sets_of_gradients_are_replayed(name: str, change: str | None) -> None:
    replays: list[int] = []

    def prepare(opt: Any, weights: list[Parameter], step: int) -> None:
        schedule(opt, weights, step)
        for index in SETS[step % len(SETS)]:
            weights[index].grad = None
        if step == 14 and change is not None:
            CHANGES[change](opt, weights)
        kept = [] if opt.step_cache.sets is None else opt.step_cache.sets.values()
        replays.append(count_replays(opt) + sum(x.taken for _, x, *_ in kept if x is not None))

    compare(MAKERS[name], torch.float32, prepare, steps=17)
    assert replays[28] == 6 if change else replays[-2] == 8


def make_random(seed: int) -> tuple[Any, list[Parameter]]:
    rng = random.Random(seed)
    torch.manual_seed(seed)
    dtypes = [torch.float32, torch.float32, torch.float64, torch.bfloat16]
    shapes = [*SHAPES, (1, 1), (3, 3), (0, 2), (2, 1, 1)]
    weights = [
        Parameter(torch.randn(rng.choice(shapes)).to(rng.choice(dtypes)))
        for _ in range(rng.randint(2, 6))
    ]
    extras, _ = rng.choice(OPTIONS)
    return MAKERS[rng.choice([*MAKERS])](weights, **extras), weights


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("seed", range(12))
def test_random_changes_equal_careful_steps(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PlanCache, "longest_wait", 1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert not diff(make_random, seed)
