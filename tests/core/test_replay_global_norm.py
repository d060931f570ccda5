"""Gradients that are clipped by their common norm in the call that takes the step."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Sequence
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import Parameter

from pairwise import cover_pairs
from thalweg import Variable, optim
from thalweg._engines import torch_layout_probe
from thalweg._engines.cpu import replay_block
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
OPTIONS: list[dict[str, Any]] = [
    {},
    {"clip_grad_value": 0.4},
    {"fused_unscale": True},
    {"fused_unscale": True, "clip_grad_value": 0.4},
    {"ema_decay": 0.9},
]


@pytest.fixture
def parts(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Record the parts of replayed steps, and their results."""
    recorded: list[tuple[int, int]] = []
    take = GuardTable.replay

    def record(self: Any, *args: Any, **options: Any) -> int:
        part = signature.bind(self, *args, **options).arguments.get("part", replay_block.FULL_STEP)
        recorded.append((part, take(self, *args, **options)))
        return recorded[-1][1]

    signature = inspect.signature(take)
    monkeypatch.setattr(GuardTable, "replay", record)
    return recorded


def params(kind: str) -> list[Parameter]:
    dice = torch.Generator().manual_seed(1)
    return [Parameter(torch.randn(s, generator=dice).to(dtype)) for s, dtype in KINDS[kind]]


def give(params: Sequence[Tensor], step: int, size: float = 1.0) -> None:
    dice = torch.Generator().manual_seed(step)
    for param in params:
        grad = torch.randn(param.shape, generator=dice, dtype=torch.float64) * size
        param.grad = grad.to(param.dtype)


def same(first: Any, second: Any) -> bool:
    """Return whether tensors have the same bits, except those of a NaN."""
    return torch.equal(first.isnan(), second.isnan()) and torch.equal(
        first.nan_to_num(0.0), second.nan_to_num(0.0)
    )


def told(opt: Any) -> tuple[Any, ...]:
    last_step = opt.last_step
    assert last_step.grad_norm is not None
    return last_step.taken, last_step.count, repr(last_step.grad_norm), repr(last_step.clip_factor)


def compare(
    make: Callable[..., Any],
    kind: str,
    prepare: Callable[[Any, list[Parameter], int], None],
) -> Any:
    """Steps beside those of an optimizer that looks at each one carefully."""
    own_params, twin_params = params(kind), params(kind)
    opt, twin = make(own_params), make(twin_params)
    for step in range(STEPS):
        prepare(opt, own_params, step)
        prepare(twin, twin_params, step)
        twin.step_cache.forget_replay()
        opt.step()
        twin.step()
        assert told(opt) == told(twin), step
        assert all(map(same, own_params, twin_params)), step
    return opt


HOMES = (optim, tensorflow)


def label_home(value: Any) -> str:
    return getattr(value, "__name__", str(value)).rpartition(".")[2]


def groups(params: list[Parameter], **options: Any) -> Any:
    return [{"params": params[::2]}, {"params": params[1::2], **options}]


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    ("home", "kind", "limit", "options"),
    cover_pairs(product(HOMES, ("float32", "float64", "bfloat16", "several"), LIMITS, OPTIONS)),
    ids=label_home,
)
def test_a_global_norm_is_replayed(
    home: Any, kind: str, limit: float, options: dict[str, Any], parts: Any
) -> None:
    def before(opt: Any, params: list[Parameter], step: int) -> None:
        if options.get("fused_unscale"):
            opt.found_inf, opt.grad_scale = torch.zeros(()), torch.tensor(3.0 + step // 3)
        give(params, step, 0.1 + step)

    def make(params: list[Parameter]) -> Any:
        targets = (
            groups(params, weight_decay=0.0) if len({p.dtype for p in params}) == 1 else params
        )
        return home.AdamW(targets, 0.01, clip_grad_norm=limit, **options)

    compare(make, kind, before)
    assert parts == [(replay_block.CLIPPED, 0)] * (STEPS - 2)


@pytest.mark.parametrize("kind", ["many", "leaves"])
def test_global_norm_adds_sums_in_order(kind: str, parts: Any) -> None:
    compare(
        lambda params: optim.SGD(groups(params), 0.1, clip_grad_norm=0.7),
        kind,
        lambda opt, params, step: give(params, step),
    )
    assert parts == [(replay_block.CLIPPED, 0)] * (STEPS - 2)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("is_measuring", [False, True])
def test_channels_last_weights_are_clipped_in_replay(
    is_measuring: bool, dtype: torch.dtype, parts: Any
) -> None:
    def make(form: torch.memory_format) -> tuple[list[Parameter], Any]:
        dice = torch.Generator().manual_seed(1)
        values = [torch.randn(130, 64, 3, 3, generator=dice), torch.randn(5, generator=dice)]
        model = [Parameter(tensor.to(dtype)) for tensor in values]
        model[0].data = model[0].detach().contiguous(memory_format=form)
        kind = optim.LAMB if is_measuring else optim.AdamW
        return model, kind(model, 0.01, clip_grad_norm=None if is_measuring else 0.3)

    forms = torch.channels_last, torch.contiguous_format
    (weights_here, opt), (twin_weights, twin) = map(make, forms)
    counts: list[tuple[int, int]] = []
    for step in range(STEPS + 2):
        for model in (weights_here, twin_weights):
            give(model, step)
        grad = weights_here[0].grad
        assert grad is not None
        weights_here[0].grad = grad.contiguous(memory_format=forms[step >= STEPS])
        count_before = len(parts)
        opt.step()
        if step < STEPS:
            counts += parts[count_before:]
        twin.step()
        assert all(map(same, weights_here, twin_weights)), step
        if not is_measuring:
            assert repr(opt.last_step.grad_norm) == repr(twin.last_step.grad_norm)
    part = replay_block.FULL_STEP if is_measuring else replay_block.CLIPPED
    assert counts == [(part, 0)] * (STEPS - 2)


def _nan(params: list[Parameter]) -> None:
    params[-1].grad = torch.full_like(params[-1], math.nan)


def _infinite(params: list[Parameter]) -> None:
    params[1].grad = torch.full_like(params[1], -math.inf)


def _huge(params: list[Parameter]) -> None:
    params[1].grad = torch.full_like(params[1], torch.finfo(params[1].dtype).max)


def _zero(params: list[Parameter]) -> None:
    for param in params:
        param.grad = torch.zeros_like(param)


def _tiny(params: list[Parameter]) -> None:
    for param in params:
        param.grad = torch.full_like(param, torch.finfo(param.dtype).tiny / 8)


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    ("home", "kind", "limit", "change"),
    cover_pairs(
        product(
            HOMES,
            ("float32", "float64", "several"),
            (0.0, 1e-44, 1e-38, 1.0, 1e30),
            (_nan, _infinite, _huge, _zero, _tiny),
        )
    ),
    ids=label_home,
)
def test_extreme_values_equal_the_full_step(
    home: Any, kind: str, limit: float, change: Callable[..., Any], parts: Any
) -> None:
    def before(opt: Any, params: list[Parameter], step: int) -> None:
        give(params, step)
        if step == 4:
            change(params)

    opt = compare(lambda params: home.SGD(params, 0.1, clip_grad_norm=limit), kind, before)
    if limit == 1.0 and kind != "several":
        overflow_parts = [
            (replay_block.CLIPPED, replay_block.OUT_OF_RANGE),
            (replay_block.MEASURE, 0),
        ]
        overflows = change in (_nan, _infinite, _huge) or kind == "float64"
        assert parts[2:4] == (overflow_parts if overflows else [(replay_block.CLIPPED, 0)] * 2)
    if kind == "float32":  # else squares may leave float64, and the careful step measures others
        assert opt.step_cache.replay.taken == STEPS - 2


def test_an_infinite_scale_equals_the_planned_step() -> None:
    def before(opt: Any, params: list[Parameter], step: int) -> None:
        scale = {4: math.inf, 5: math.nan, 6: -2.0}.get(step, 2.0)
        opt.found_inf, opt.grad_scale = torch.zeros(()), torch.tensor(scale)
        give(params, step)

    compare(
        lambda params: optim.SGD(params, 0.1, clip_grad_norm=0.5, fused_unscale=True),
        "float32",
        before,
    )


def test_a_skipped_step_is_reported() -> None:
    model = params("float32")
    opt: Any = optim.SGD(model, 0.1, clip_grad_norm=0.5, fused_unscale=True)
    for step in range(STEPS):
        give(model, step)
        opt.found_inf = torch.tensor(float(step == 4))
        opt.step()
        assert opt.last_step.taken is (step != 4)
        assert (opt.last_step.grad_norm is None) is (step == 4)
    assert opt.step_cache.replay.taken


def test_last_step_stays_until_the_next_step(monkeypatch: pytest.MonkeyPatch) -> None:
    model = params("float32")
    opt: Any = optim.SGD(model, 0.1, clip_grad_norm=0.5)
    for step in range(STEPS):
        give(model, step)
        opt.step()
    quick = opt.step_cache.replay
    give(model, STEPS)

    def failing(*args: Any) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(GuardTable, "replay", failing)
    with pytest.raises(KeyboardInterrupt):
        opt.step()
    assert opt.step_cache.replay is None
    assert opt.last_step.count == STEPS == quick.taken + 2
    give(model, STEPS - 1)
    norm = torch.nn.utils.get_total_norm([param.grad for param in model if param.grad is not None])
    assert opt.last_step.grad_norm == pytest.approx(norm.item(), rel=1e-6)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("size", [1.0, 1e-3, 1e25])
@pytest.mark.parametrize("limit", [0.3, 1e9])
@pytest.mark.parametrize("kind", ["float32", "float64", "several"])
def test_keras_replays_a_global_norm(kind: str, limit: float, size: float, parts: Any) -> None:
    sizes = [size_and_dtype for size_and_dtype in KINDS[kind] if size_and_dtype[1] != torch.float16]
    dice = torch.Generator().manual_seed(1)
    variables = [Variable(torch.randn(s, generator=dice).to(dtype)) for s, dtype in sizes]
    twin_variables = [Variable(variable.detach().clone()) for variable in variables]
    opt, twin = (optimizers.Adam(0.01, global_clipnorm=limit) for _ in range(2))
    for step in range(STEPS):
        give(variables, step, size)
        give(twin_variables, step, size)
        twin._plans.now().replay = None
        opt.apply_gradients([(variable.grad, variable) for variable in variables])
        twin.apply_gradients([(variable.grad, variable) for variable in twin_variables])
        assert all(map(same, variables, twin_variables))
    is_infinite = size > 1e20 and kind == "float32"  # as TensorFlow's norm is
    if is_infinite:
        assert parts[:3] == [
            (replay_block.CLIPPED, replay_block.OUT_OF_RANGE),
            (replay_block.MEASURE, 0),
            (replay_block.UPDATE, 0),
        ]
    else:
        assert {part for part in parts if part[0] != replay_block.FULL_STEP} == {
            (replay_block.CLIPPED, 0)
        }
    assert opt._plans.now().replay.taken == STEPS - 2
