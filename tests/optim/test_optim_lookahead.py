"""Lookahead compared with a loop around torch: all classes, rows, 16 bits, states, options."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch

import thalweg
from rulebook import assert_same
from thalweg import optim
from thalweg._core.options.lookahead import Lookahead
from thalweg.errors import CheckpointWarning
from thalweg.optim import tensorflow
from torch_inputs import ROWS, SHAPES, params_of, set_grads

PERIOD, ALPHA = 3, 0.25
LOOKAHEAD: dict[str, Any] = {"lookahead": PERIOD, "lookahead_alpha": ALPHA}
MOMENTUM = {"momentum": 0.9}
CLASSES: list[tuple[str, dict[str, Any]]] = [
    ("SGD", {}),
    ("SGD", MOMENTUM),
    ("Adam", {}),
    ("Adam", {"amsgrad": True}),
    ("AdamW", {}),
    ("RMSprop", {"centered": True, **MOMENTUM}),
    ("Adagrad", {}),
    ("Adadelta", {}),
    ("Adamax", {}),
    ("NAdam", {}),
    ("RAdam", {}),
    ("ASGD", {}),
    ("Rprop", {}),
]
OTHER_OPTIONS: list[dict[str, Any]] = [
    {"clip_grad_norm": 0.5},
    {"ema_decay": 0.5},
    {"accumulate": 2},
    {"masters": True},
    {"in_backward": True},
    {"gradients": "flat"},
    {"state_device": "cpu"},
]


def params(opt: Any) -> list[torch.Tensor]:
    return [param for group in opt.param_groups for param in group["params"]]


def values(opt: Any) -> list[torch.Tensor]:
    return [param.detach().clone() for param in params(opt)]


def slow(opt: Any) -> list[torch.Tensor]:
    return [opt.state[param]["slow"] for param in params(opt)]


def run_steps(opt: Any, count: int, sparse: bool = False, first: int = 0) -> Any:
    for step in range(first, first + count):
        set_grads(params(opt), step, sparse)
        opt.step()
    return opt


class ByHand:
    """Torch-style optimizer with slow weights computed by hand."""

    def __init__(self, opt: Any, period: int = PERIOD, alpha: float = ALPHA) -> None:
        self.opt, self.period, self.alpha, self.count = opt, period, alpha, 0
        self.param_groups = opt.param_groups
        self.slow = [param.float() for param in values(opt)]

    def step(self) -> None:
        self.opt.step()
        self.count += 1
        if self.count % self.period:
            return
        with torch.no_grad():
            for param, slow_weight in zip(params(self.opt), self.slow, strict=True):
                slow_weight.copy_(slow_weight + self.alpha * (param - slow_weight))
                param.copy_(slow_weight)


@pytest.mark.one_in(3)
@pytest.mark.parametrize(("name", "options"), CLASSES)
def test_matches_loop_around_torch(name: str, options: dict[str, Any]) -> None:
    opt = getattr(optim, name)(params_of(torch.float32), lr=0.1, **options, **LOOKAHEAD)
    torch_opt = getattr(torch.optim, name)(
        params_of(torch.float32), lr=0.1, **options, foreach=False
    )
    expected = run_steps(ByHand(torch_opt), 7)
    run_steps(opt, 7)
    torch.testing.assert_close(values(opt), values(expected), rtol=2e-5, atol=2e-6)
    torch.testing.assert_close(slow(opt), expected.slow, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("options", [{}, MOMENTUM, {"weight_decay": 0.1}])
@pytest.mark.parametrize("period", [1, 2, 5])
def test_equals_loop_bitwise(period: int, options: dict[str, Any]) -> None:
    """Use the library's SGD, as torch fuses products and sums."""
    opt = optim.SGD(params_of(torch.float32), lr=0.1, lookahead=period, **options)
    expected = ByHand(optim.SGD(params_of(torch.float32), lr=0.1, **options), period, 0.5)
    for step in range(11):
        run_steps(opt, 1, first=step)
        run_steps(expected, 1, first=step)
        assert_same(values(opt), values(expected))
        assert_same(slow(opt), expected.slow)


def test_equals_loop_around_torch_sgd_bitwise() -> None:
    opt = optim.SGD(params_of(torch.float32), lr=0.125, lookahead=2)
    torch_opt = torch.optim.SGD(params_of(torch.float32), lr=0.125, foreach=False)
    expected = run_steps(ByHand(torch_opt, 2, 0.5), 7)
    assert_same(values(run_steps(opt, 7)), values(expected))


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", tensorflow.__all__)
def test_equals_loop_around_tensorflow_classes(name: str) -> None:
    options: dict[str, Any] = {"weight_decay": 0.01} if name in ("AdamW", "MomentumW") else {}
    opt = getattr(tensorflow, name)(params_of(torch.float32), lr=0.1, **options, **LOOKAHEAD)
    reference = getattr(tensorflow, name)(params_of(torch.float32), lr=0.1, **options)
    expected = run_steps(ByHand(reference), 7)
    assert_same(values(run_steps(opt, 7)), values(expected))
    assert_same(slow(opt), expected.slow)


@pytest.mark.parametrize(
    ("cls", "options"),
    [
        (optim.SGD, {}),
        (optim.SparseAdam, {}),
        (tensorflow.LazyAdam, {}),
        (tensorflow.Adam, {}),
        (optim.SGD, {"ema_decay": 0.5}),
    ],
)
def test_lookahead_with_sparse_rows_equals_loop(cls: Any, options: dict[str, Any]) -> None:
    opt = run_steps(
        cls(params_of(torch.float32, ROWS), lr=0.1, **options, **LOOKAHEAD), 7, sparse=True
    )
    reference = cls(params_of(torch.float32, ROWS), lr=0.1)
    expected = run_steps(ByHand(reference), 7, sparse=True)
    torch.testing.assert_close(values(opt), values(expected), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(slow(opt), expected.slow, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("cls", [optim.SGD, tensorflow.LazyAdam])
def test_engines_agree_on_lookahead(cls: Any, sparse: bool) -> None:
    optimizers: list[Any] = []
    for engine in ("cpu", "reference"):
        with thalweg.engine(engine):
            optimizers.append(
                run_steps(cls(params_of(torch.float32, ROWS), lr=0.1, **LOOKAHEAD), 7, sparse)
            )
    native, reference = optimizers
    assert_same(values(native), values(reference))
    assert_same(slow(native), slow(reference))


@pytest.mark.one_in(3)
@pytest.mark.parametrize("options", OTHER_OPTIONS, ids=str)
@pytest.mark.parametrize("cls", [optim.SGD, optim.Adam, tensorflow.Adam])
def test_lookahead_with_other_options_equals_loop(cls: Any, options: dict[str, Any]) -> None:
    """Compare with slow weights by hand around the same options."""
    if "in_backward" in options or "gradients" in options:
        opt, reference = (
            cls(params_of(torch.float32), lr=0.1, **kwargs)
            for kwargs in ({**options, **LOOKAHEAD}, LOOKAHEAD)
        )
        for stepped in (opt, reference):
            for step in range(7):
                for index, param in enumerate(params(stepped)):
                    (param * (step - index - 0.5)).square().sum().backward()
                stepped.step()
                stepped.zero_grad()
        assert_same(values(opt), values(reference))
        return
    opt = cls(params_of(torch.float32), lr=0.1, **options, **LOOKAHEAD)
    reference = cls(params_of(torch.float32), lr=0.1, **{**options, "ema_decay": None})
    period = PERIOD * options.get("accumulate", 1)
    expected = run_steps(ByHand(reference, period), 2 * period + 1)
    run_steps(opt, 2 * period + 1)
    assert_same(values(opt), values(expected))
    assert_same(slow(opt), expected.slow)


def test_ema_averages_params_after_lookahead() -> None:
    opt = optim.SGD(params_of(torch.float32), lr=0.1, ema_decay=0.0, **LOOKAHEAD)
    for step in range(4):
        run_steps(opt, 1, first=step)
        averages = [opt.state[param]["ema"] for param in params(opt)]
        torch.testing.assert_close(averages, values(opt))


@pytest.mark.one_in(3)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("masters", [False, True])
@pytest.mark.parametrize("cls", [optim.SGD, optim.Adam, tensorflow.Adam])
def test_lookahead_of_16_bit_params_keeps_float32_slow_weights(
    cls: Any, masters: bool, dtype: torch.dtype
) -> None:
    opt = run_steps(cls(params_of(dtype), lr=0.1, masters=masters, **LOOKAHEAD), 3)
    assert {tensor.dtype for tensor in slow(opt)} == {torch.float32}
    assert_same(values(opt), [tensor.to(dtype) for tensor in slow(opt)])
    if masters:
        assert_same([opt.state[param]["master"] for param in params(opt)], slow(opt))
        wide = [param.float().requires_grad_() for param in values(cls(params_of(dtype), lr=0.1))]
        reference = ByHand(cls(wide, lr=0.1))
        for step in range(3):
            low_params = params_of(dtype)
            set_grads(low_params, step)
            for param, low_param in zip(wide, low_params, strict=True):
                param.grad = low_param.grad.float() if low_param.grad is not None else None
            reference.step()
        assert_same(slow(opt), reference.slow)


def test_steps_are_counted_per_param() -> None:
    opt = optim.SGD(params_of(torch.float32, ((3,), (4,))), lr=0.1, lookahead=2)
    first, second = params(opt)
    start = second.detach().clone()
    set_grads([first], 0)
    opt.step()
    for step in (1, 2):
        previous = second.detach().clone()
        set_grads([first, second], step)
        opt.step()
    assert (float(opt.state[first]["step"]), float(opt.state[second]["step"])) == (3, 2)
    assert_same([opt.state[second]["slow"]], [second.detach()])
    assert second.grad is not None
    updated = previous - 0.1 * second.grad
    torch.testing.assert_close(second.detach(), start + 0.5 * (updated - start))
    assert not torch.equal(opt.state[first]["slow"], first.detach())


@pytest.mark.parametrize("period", [1, 2, 5])
def test_lookahead_uses_device_step_counts(period: int) -> None:
    option = Lookahead(lookahead=period)
    expected = [option.scalars((), step)["slow_share"] for step in range(11)]
    actual = option.scalars((), torch.arange(11.0))["slow_share"]
    assert actual.tolist() == expected
    assert expected == [0.0 if step % period else 0.5 for step in range(1, 12)]


def test_skipped_step_is_not_counted() -> None:
    opt = optim.SGD(params_of(torch.float32, ((3,),)), lr=0.1, fused_unscale=True, lookahead=2)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    for number in (1.0, math.inf, 2.0):
        scaler.scale((params(opt)[0] * number).sum()).backward()
        scaler.step(opt)
        scaler.update()
        opt.zero_grad()
    (param,) = params(opt)
    assert float(opt.state[param]["step"]) == 2
    assert_same([param.detach()], slow(opt))


def test_lookahead_in_a_compiled_graph_equals_eager() -> None:
    opt, reference = (optim.SGD(params_of(torch.float32), lr=0.1, **LOOKAHEAD) for _ in range(2))
    step = torch.compile(lambda: opt.step(), backend="eager")
    for number in range(7):
        set_grads(params(opt), number)
        step()
    assert_same(values(opt), values(run_steps(reference, 7)))
    assert_same(slow(opt), slow(reference))


@pytest.mark.parametrize("options", [{}, MOMENTUM])
@pytest.mark.parametrize("name", ["SGD", "Adam", "tensorflow"])
def test_lookahead_state_round_trips(name: str, options: dict[str, Any]) -> None:
    cls = tensorflow.SGD if name == "tensorflow" else getattr(optim, name)
    options = {} if name == "Adam" else options
    opt = run_steps(cls(params_of(torch.float32), lr=0.1, **options, **LOOKAHEAD), 4)
    params_copy = [param.requires_grad_() for param in values(opt)]
    loaded = cls(params_copy, lr=0.1, **options, **LOOKAHEAD)
    loaded.load_state_dict(copy.deepcopy(opt.state_dict()))
    for stepped in (opt, loaded):
        run_steps(stepped, 4, first=4)
    assert_same(values(opt), values(loaded))
    assert_same(slow(opt), slow(loaded))
    if name != "tensorflow":
        torch_opt = getattr(torch.optim, name)(params_copy, lr=0.1, **options)
        torch_opt.load_state_dict(copy.deepcopy(opt.state_dict()))
        run_steps(torch_opt, 1)


@pytest.mark.parametrize(
    ("cls", "options"), [(optim.SGD, MOMENTUM), (optim.Adam, {}), (tensorflow.Adam, {})]
)
def test_load_of_state_without_slow_weights(cls: Any, options: dict[str, Any]) -> None:
    source = run_steps(cls(params_of(torch.float32), lr=0.1, **options), 3)
    params_copy = [param.requires_grad_() for param in values(source)]
    opt = cls(params_copy, lr=0.1, **options, **LOOKAHEAD)
    with pytest.warns(CheckpointWarning, match="has no 'slow', which begins at the parameters"):
        opt.load_state_dict(copy.deepcopy(source.state_dict()))
    expected = run_steps(ByHand(source), 3, first=3)
    run_steps(opt, 3, first=3)
    assert_same(values(opt), values(expected))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lookahead": 0}, "lookahead must be None or a positive number of steps, not 0"),
        ({"lookahead": 2.5}, r"lookahead must be None or a positive number of steps, not 2.5"),
        ({"lookahead": True}, r"lookahead must be None or a positive number of steps, not True"),
        ({"lookahead": "5"}, r"lookahead must be None or a positive number of steps, not '5'"),
        ({"lookahead": 5, "lookahead_alpha": 0}, r"lookahead_alpha must be in \(0, 1\], not 0"),
        ({"lookahead": 5, "lookahead_alpha": 1.5}, r"lookahead_alpha must be in \(0, 1\]"),
        ({"lookahead": 5, "lookahead_alpha": float("nan")}, "lookahead_alpha is nan"),
        ({"lookahead": 5, "lookahead_alpha": "x"}, "lookahead_alpha must be a number"),
        ({"lookahead_alpha": 0.25}, "lookahead_alpha=0.25 needs lookahead"),
    ],
)
@pytest.mark.parametrize("cls", [optim.SGD, tensorflow.Adam])
def test_invalid_options_raise(cls: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        cls(params_of(torch.float32, SHAPES[:1]), lr=0.1, **options)
