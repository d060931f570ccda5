"""Gradients that are clipped by their common norm in the call that takes the step."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import Parameter

from thalweg import Variable, optim
from thalweg._engines import torch_layout_probe
from thalweg._engines.cpu import replay_kernel
from thalweg._engines.cpu.guard_table import GuardTable
from thalweg.keras import optimizers
from thalweg.optim import tensorflow

pytestmark = pytest.mark.skipif(
    isinstance(torch_layout_probe.layout(), str), reason="torch's objects cannot be read here"
)
STEPS = 7
SMALL = [(0,), (3,), (4, 5), (), (2, 0), (1030,)]
KINDS: dict[str, list[tuple[tuple[int, ...], torch.dtype]]] = {
    "float32": [(shape, torch.float32) for shape in SMALL],
    "float64": [(shape, torch.float64) for shape in SMALL],
    "bfloat16": [(shape, torch.bfloat16) for shape in SMALL],
    "several": [
        ((5,), torch.float64),
        ((3, 2), torch.float32),
        ((4,), torch.bfloat16),
        ((7,), torch.float64),
        ((70_000,), torch.float16),
    ],
    "many": [((1 + k % 3,), torch.float32) for k in range(301)],
    "leaves": [((size,), torch.float32) for size in (65_536, 3 * 65_536 + 1, 400_001)],
}
# Of TensorFlow's formula the limit decides, too, on what a factor of 1 is.
LIMITS = [0.3, 1.0, 7.3, 1e9]
AROUND: list[dict[str, Any]] = [
    {},
    {"clip_grad_value": 0.4},
    {"fused_unscale": True},
    {"fused_unscale": True, "clip_grad_value": 0.4},
    {"ema_decay": 0.9},
]


@pytest.fixture
def parts(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Which parts of steps were asked for, and what was said."""
    found: list[tuple[int, int]] = []
    take = GuardTable.replay

    def told(self: Any, pairs: Any = None, taken: Any = None, part: int = 0, *more: Any) -> int:
        found.append((part, take(self, pairs, taken, part, *more)))
        return found[-1][1]

    monkeypatch.setattr(GuardTable, "replay", told)
    return found


def params(kind: str) -> list[Parameter]:
    dice = torch.Generator().manual_seed(1)
    return [Parameter(torch.randn(s, generator=dice).to(dtype)) for s, dtype in KINDS[kind]]


def give(own: Sequence[Tensor], step: int, size: float = 1.0) -> None:
    dice = torch.Generator().manual_seed(step)
    for param in own:
        made = torch.randn(param.shape, generator=dice, dtype=torch.float64) * size
        param.grad = made.to(param.dtype)


def same(one: Any, other: Any) -> bool:
    """Whether tensors have the same bits, but that of a NaN."""
    return torch.equal(one.isnan(), other.isnan()) and torch.equal(
        one.nan_to_num(0.0), other.nan_to_num(0.0)
    )


def told(opt: Any) -> tuple[Any, ...]:
    last = opt.last_step
    assert last.grad_norm is not None
    return last.taken, last.count, repr(last.grad_norm), repr(last.clip_factor)


def compare(
    make: Callable[[list[Parameter]], Any],
    kind: str,
    before: Callable[[Any, list[Parameter], int], None],
) -> Any:
    """Steps beside those of an optimizer that looks at each one carefully."""
    own, others = params(kind), params(kind)
    opt, twin = make(own), make(others)
    for step in range(STEPS):
        before(opt, own, step)
        before(twin, others, step)
        twin._cache.forget_replay()
        opt.step()
        twin.step()
        assert told(opt) == told(twin), step
        assert all(map(same, own, others)), step
    return opt


def groups(own: list[Parameter], **options: Any) -> Any:
    return [{"params": own[::2]}, {"params": own[1::2], **options}]


@pytest.mark.parametrize("around", AROUND, ids=str)
@pytest.mark.parametrize("limit", LIMITS)
@pytest.mark.parametrize("kind", ["float32", "float64", "bfloat16", "several"])
@pytest.mark.parametrize("home", [optim, tensorflow], ids=["torch", "tensorflow"])
def test_a_common_norm_is_made_there(
    home: Any, kind: str, limit: float, around: dict[str, Any], parts: Any
) -> None:
    def before(opt: Any, own: list[Parameter], step: int) -> None:
        if around.get("fused_unscale"):
            opt.found_inf, opt.grad_scale = torch.zeros(()), torch.tensor(3.0 + step // 3)
        give(own, step, 0.1 + step)

    def make(own: list[Parameter]) -> Any:
        given = groups(own, weight_decay=0.0) if len({p.dtype for p in own}) == 1 else own
        return home.AdamW(given, 0.01, clip_grad_norm=limit, **around)

    compare(make, kind, before)
    assert parts == [(replay_kernel.CLIPPED, 0)] * (STEPS - 2)


@pytest.mark.parametrize("kind", ["many", "leaves"])
def test_sums_are_added_up_in_their_order(kind: str, parts: Any) -> None:
    compare(
        lambda own: optim.SGD(groups(own), 0.1, clip_grad_norm=0.7),
        kind,
        lambda opt, own, step: give(own, step),
    )
    assert parts == [(replay_kernel.CLIPPED, 0)] * (STEPS - 2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("is_measuring", [False, True])
def test_weights_in_channels_last_are_clipped_and_measured_there(
    is_measuring: bool, dtype: torch.dtype, parts: Any
) -> None:
    """The bits are those of contiguous weights, whatever the layouts of gradients."""

    def make(form: torch.memory_format) -> tuple[list[Parameter], Any]:
        dice = torch.Generator().manual_seed(1)
        made = [torch.randn(130, 64, 3, 3, generator=dice), torch.randn(5, generator=dice)]
        own = [Parameter(each.to(dtype)) for each in made]
        own[0].data = own[0].detach().contiguous(memory_format=form)
        kind = optim.LAMB if is_measuring else optim.AdamW
        return own, kind(own, 0.01, clip_grad_norm=None if is_measuring else 0.3)

    forms = torch.channels_last, torch.contiguous_format
    (own, opt), (others, twin) = map(make, forms)
    taken: list[tuple[int, int]] = []
    for step in range(STEPS + 2):
        for weights in (own, others):
            give(weights, step)
        given = own[0].grad
        assert given is not None
        own[0].grad = given.contiguous(memory_format=forms[step >= STEPS])
        before = len(parts)
        opt.step()
        if step < STEPS:
            taken += parts[before:]
        twin.step()
        assert all(map(same, own, others)), step
        if not is_measuring:
            assert repr(opt.last_step.grad_norm) == repr(twin.last_step.grad_norm)
    part = replay_kernel.FULL_STEP if is_measuring else replay_kernel.CLIPPED
    assert taken == [(part, 0)] * (STEPS - 2)


def _nan(own: list[Parameter]) -> None:
    own[-1].grad = torch.full_like(own[-1], math.nan)


def _infinite(own: list[Parameter]) -> None:
    own[1].grad = torch.full_like(own[1], -math.inf)


def _huge(own: list[Parameter]) -> None:
    own[1].grad = torch.full_like(own[1], torch.finfo(own[1].dtype).max)


def _zero(own: list[Parameter]) -> None:
    for param in own:
        param.grad = torch.zeros_like(param)


def _tiny(own: list[Parameter]) -> None:
    for param in own:
        param.grad = torch.full_like(param, torch.finfo(param.dtype).tiny / 8)


@pytest.mark.parametrize("change", [_nan, _infinite, _huge, _zero, _tiny])
@pytest.mark.parametrize("limit", [0.0, 1e-44, 1e-38, 1.0, 1e30])
@pytest.mark.parametrize("kind", ["float32", "float64", "several"])
@pytest.mark.parametrize("home", [optim, tensorflow], ids=["torch", "tensorflow"])
def test_unusual_numbers_are_those_of_the_careful_step(
    home: Any, kind: str, limit: float, change: Callable[[list[Parameter]], None], parts: Any
) -> None:
    def before(opt: Any, own: list[Parameter], step: int) -> None:
        give(own, step)
        if step == 4:
            change(own)

    opt = compare(lambda own: home.SGD(own, 0.1, clip_grad_norm=limit), kind, before)
    if limit == 1.0 and kind != "several":
        beyond = [(replay_kernel.CLIPPED, replay_kernel.OUT_OF_RANGE), (replay_kernel.MEASURE, 0)]
        is_beyond = change in (_nan, _infinite, _huge) or kind == "float64"
        assert parts[2:4] == (beyond if is_beyond else [(replay_kernel.CLIPPED, 0)] * 2)
    if kind == "float32":  # else squares may leave float64, and the careful step measures others
        assert opt._cache.replay.taken == STEPS - 2


def test_a_scale_of_infinity_is_that_of_the_careful_step() -> None:
    def before(opt: Any, own: list[Parameter], step: int) -> None:
        scale = {4: math.inf, 5: math.nan, 6: -2.0}.get(step, 2.0)
        opt.found_inf, opt.grad_scale = torch.zeros(()), torch.tensor(scale)
        give(own, step)

    compare(
        lambda own: optim.SGD(own, 0.1, clip_grad_norm=0.5, fused_unscale=True), "float32", before
    )


def test_a_step_that_a_scaler_leaves_out_is_told() -> None:
    own = params("float32")
    opt: Any = optim.SGD(own, 0.1, clip_grad_norm=0.5, fused_unscale=True)
    for step in range(STEPS):
        give(own, step)
        opt.found_inf = torch.tensor(float(step == 4))
        opt.step()
        assert opt.last_step.taken is (step != 4)
        assert (opt.last_step.grad_norm is None) is (step == 4)
    assert opt._cache.replay.taken


def test_what_a_step_said_stays_until_the_next_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    own = params("float32")
    opt: Any = optim.SGD(own, 0.1, clip_grad_norm=0.5)
    for step in range(STEPS):
        give(own, step)
        opt.step()
    quick = opt._cache.replay
    give(own, STEPS)

    def failing(*given: Any) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(GuardTable, "replay", failing)
    with pytest.raises(KeyboardInterrupt):
        opt.step()
    assert opt._cache.replay is None
    assert opt.last_step.count == STEPS == quick.taken + 2
    give(own, STEPS - 1)
    norm = torch.nn.utils.get_total_norm([each.grad for each in own if each.grad is not None])
    assert opt.last_step.grad_norm == pytest.approx(norm.item(), rel=1e-6)


@pytest.mark.parametrize("size", [1.0, 1e-3, 1e25])
@pytest.mark.parametrize("limit", [0.3, 1e9])
@pytest.mark.parametrize("kind", ["float32", "float64", "several"])
def test_keras_has_it(kind: str, limit: float, size: float, parts: Any) -> None:
    sizes = [each for each in KINDS[kind] if each[1] != torch.float16]
    dice = torch.Generator().manual_seed(1)
    own = [Variable(torch.randn(s, generator=dice).to(dtype)) for s, dtype in sizes]
    others = [Variable(each.detach().clone()) for each in own]
    opt, twin = (optimizers.Adam(0.01, global_clipnorm=limit) for _ in range(2))
    for step in range(STEPS):
        give(own, step, size)
        give(others, step, size)
        twin._plans.now().replay = None
        opt.apply_gradients([(each.grad, each) for each in own])
        twin.apply_gradients([(each.grad, each) for each in others])
        assert all(map(same, own, others))
    is_infinite = size > 1e20 and kind == "float32"  # as TensorFlow's norm is
    if is_infinite:
        assert parts[:3] == [
            (replay_kernel.CLIPPED, replay_kernel.OUT_OF_RANGE),
            (replay_kernel.MEASURE, 0),
            (replay_kernel.UPDATE, 0),
        ]
    else:
        assert {each for each in parts if each[0] != replay_kernel.FULL_STEP} == {
            (replay_kernel.CLIPPED, 0)
        }
    assert opt._plans.now().replay.taken == STEPS - 2
