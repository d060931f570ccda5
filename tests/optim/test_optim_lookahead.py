"""Lookahead beside a loop of torch's: every class, rows, 16 bits, files, other options."""

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

EVERY, ALPHA = 3, 0.25
HOW: dict[str, Any] = {"lookahead": EVERY, "lookahead_alpha": ALPHA}
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
BESIDE: list[dict[str, Any]] = [
    {"clip_grad_norm": 0.5},
    {"ema_decay": 0.5},
    {"accumulate": 2},
    {"masters": True},
    {"in_backward": True},
    {"gradients": "flat"},
    {"state_device": "cpu"},
]


def params(made: Any) -> list[torch.Tensor]:
    return [param for group in made.param_groups for param in group["params"]]


def values(made: Any) -> list[torch.Tensor]:
    return [param.detach().clone() for param in params(made)]


def slow(made: Any) -> list[torch.Tensor]:
    return [made.state[param]["slow"] for param in params(made)]


def steps(made: Any, count: int, sparse: bool = False, first: int = 0) -> Any:
    for step in range(first, first + count):
        set_grads(params(made), step, sparse)
        made.step()
    return made


class ByHand:
    """The slow weights of an optimizer of torch's kind, by hand."""

    def __init__(self, plain: Any, every: int = EVERY, alpha: float = ALPHA) -> None:
        self.plain, self.every, self.alpha, self.count = plain, every, alpha, 0
        self.param_groups = plain.param_groups
        self.slow = [each.float() for each in values(plain)]

    def step(self) -> None:
        self.plain.step()
        self.count += 1
        if self.count % self.every:
            return
        with torch.no_grad():
            for param, own in zip(params(self.plain), self.slow, strict=True):
                own.copy_(own + self.alpha * (param - own))
                param.copy_(own)


@pytest.mark.parametrize(("name", "options"), CLASSES)
def test_as_a_loop_of_torchs(name: str, options: dict[str, Any]) -> None:
    made = getattr(optim, name)(params_of(torch.float32), lr=0.1, **options, **HOW)
    torchs = getattr(torch.optim, name)(params_of(torch.float32), lr=0.1, **options, foreach=False)
    wanted = steps(ByHand(torchs), 7)
    steps(made, 7)
    torch.testing.assert_close(values(made), values(wanted), rtol=2e-5, atol=2e-6)
    torch.testing.assert_close(slow(made), wanted.slow, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("options", [{}, MOMENTUM, {"weight_decay": 0.1}])
@pytest.mark.parametrize("every", [1, 2, 5])
def test_the_bits_of_a_loop(every: int, options: dict[str, Any]) -> None:
    """Over the library's own SGD; that of torch contracts products and sums."""
    made = optim.SGD(params_of(torch.float32), lr=0.1, lookahead=every, **options)
    wanted = ByHand(optim.SGD(params_of(torch.float32), lr=0.1, **options), every, 0.5)
    for step in range(11):
        steps(made, 1, first=step)
        steps(wanted, 1, first=step)
        assert_same(values(made), values(wanted))
        assert_same(slow(made), wanted.slow)


def test_the_bits_of_torchs_sgd() -> None:
    """Where products with the rate are exact."""
    made = optim.SGD(params_of(torch.float32), lr=0.125, lookahead=2)
    torchs = torch.optim.SGD(params_of(torch.float32), lr=0.125, foreach=False)
    wanted = steps(ByHand(torchs, 2, 0.5), 7)
    assert_same(values(steps(made, 7)), values(wanted))


@pytest.mark.parametrize("name", tensorflow.__all__)
def test_numbers_of_tensorflow(name: str) -> None:
    given: dict[str, Any] = {"weight_decay": 0.01} if name in ("AdamW", "MomentumW") else {}
    made = getattr(tensorflow, name)(params_of(torch.float32), lr=0.1, **given, **HOW)
    plain = getattr(tensorflow, name)(params_of(torch.float32), lr=0.1, **given)
    wanted = steps(ByHand(plain), 7)
    assert_same(values(steps(made, 7)), values(wanted))
    assert_same(slow(made), wanted.slow)


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (optim.SGD, {}),
        (optim.SparseAdam, {}),
        (tensorflow.LazyAdam, {}),
        (tensorflow.Adam, {}),
        (optim.SGD, {"ema_decay": 0.5}),
    ],
)
def test_rows(kind: Any, options: dict[str, Any]) -> None:
    made = steps(kind(params_of(torch.float32, ROWS), lr=0.1, **options, **HOW), 7, sparse=True)
    plain = kind(params_of(torch.float32, ROWS), lr=0.1)
    wanted = steps(ByHand(plain), 7, sparse=True)
    torch.testing.assert_close(values(made), values(wanted), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(slow(made), wanted.slow, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("kind", [optim.SGD, tensorflow.LazyAdam])
def test_engines_agree(kind: Any, sparse: bool) -> None:
    both: list[Any] = []
    for engine in ("cpu", "reference"):
        with thalweg.engine(engine):
            both.append(steps(kind(params_of(torch.float32, ROWS), lr=0.1, **HOW), 7, sparse))
    ours, specified = both
    assert_same(values(ours), values(specified))
    assert_same(slow(ours), slow(specified))


@pytest.mark.parametrize("options", BESIDE, ids=str)
@pytest.mark.parametrize("kind", [optim.SGD, optim.Adam, tensorflow.Adam])
def test_beside_others(kind: Any, options: dict[str, Any]) -> None:
    """The steps that the same options take, and the slow weights by hand."""
    if "in_backward" in options or "gradients" in options:
        made, plain = (
            kind(params_of(torch.float32), lr=0.1, **own) for own in ({**options, **HOW}, HOW)
        )
        for each in (made, plain):
            for step in range(7):
                for place, param in enumerate(params(each)):
                    (param * (step - place - 0.5)).square().sum().backward()
                each.step()
                each.zero_grad()
        assert_same(values(made), values(plain))
        return
    made = kind(params_of(torch.float32), lr=0.1, **options, **HOW)
    plain = kind(params_of(torch.float32), lr=0.1, **{**options, "ema_decay": None})
    every = EVERY * options.get("accumulate", 1)
    wanted = steps(ByHand(plain, every), 2 * every + 1)
    steps(made, 2 * every + 1)
    assert_same(values(made), values(wanted))
    assert_same(slow(made), wanted.slow)


def test_an_average_is_that_of_what_steps_return_to() -> None:
    made = optim.SGD(params_of(torch.float32), lr=0.1, ema_decay=0.0, **HOW)
    for step in range(4):
        steps(made, 1, first=step)
        averages = [made.state[param]["ema"] for param in params(made)]
        torch.testing.assert_close(averages, values(made))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("masters", [False, True])
@pytest.mark.parametrize("kind", [optim.SGD, optim.Adam, tensorflow.Adam])
def test_16_bits(kind: Any, masters: bool, dtype: torch.dtype) -> None:
    made = steps(kind(params_of(dtype), lr=0.1, masters=masters, **HOW), 3)
    assert {each.dtype for each in slow(made)} == {torch.float32}
    assert_same(values(made), [each.to(dtype) for each in slow(made)])
    if masters:
        assert_same([made.state[param]["master"] for param in params(made)], slow(made))
        wide = [param.float().requires_grad_() for param in values(kind(params_of(dtype), lr=0.1))]
        plain = ByHand(kind(wide, lr=0.1))
        for step in range(3):
            own = params_of(dtype)
            set_grads(own, step)
            for param, narrow in zip(wide, own, strict=True):
                param.grad = narrow.grad.float() if narrow.grad is not None else None
            plain.step()
        assert_same(slow(made), plain.slow)


def test_a_parameter_counts_its_own_steps() -> None:
    made = optim.SGD(params_of(torch.float32, ((3,), (4,))), lr=0.1, lookahead=2)
    first, second = params(made)
    began = second.detach().clone()
    set_grads([first], 0)
    made.step()
    for step in (1, 2):
        before = second.detach().clone()
        set_grads([first, second], step)
        made.step()
    assert (float(made.state[first]["step"]), float(made.state[second]["step"])) == (3, 2)
    assert_same([made.state[second]["slow"]], [second.detach()])
    assert second.grad is not None
    moved = before - 0.1 * second.grad
    torch.testing.assert_close(second.detach(), began + 0.5 * (moved - began))
    assert not torch.equal(made.state[first]["slow"], first.detach())


@pytest.mark.parametrize("every", [1, 2, 5])
def test_steps_that_a_device_counts(every: int) -> None:
    option = Lookahead(lookahead=every)
    known = [option.scalars((), step)["slow_share"] for step in range(11)]
    there = option.scalars((), torch.arange(11.0))["slow_share"]
    assert there.tolist() == known
    assert known == [0.0 if step % every else 0.5 for step in range(1, 12)]


def test_a_step_that_is_not_taken_is_not_counted() -> None:
    made = optim.SGD(params_of(torch.float32, ((3,),)), lr=0.1, fused_unscale=True, lookahead=2)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    for number in (1.0, math.inf, 2.0):
        scaler.scale((params(made)[0] * number).sum()).backward()
        scaler.step(made)
        scaler.update()
        made.zero_grad()
    (param,) = params(made)
    assert float(made.state[param]["step"]) == 2
    assert_same([param.detach()], slow(made))


def test_in_a_compiled_graph() -> None:
    made, other = (optim.SGD(params_of(torch.float32), lr=0.1, **HOW) for _ in range(2))
    step = torch.compile(lambda: made.step(), backend="eager")
    for number in range(7):
        set_grads(params(made), number)
        step()
    assert_same(values(made), values(steps(other, 7)))
    assert_same(slow(made), slow(other))


@pytest.mark.parametrize("options", [{}, MOMENTUM])
@pytest.mark.parametrize("name", ["SGD", "Adam", "tensorflow"])
def test_saved_and_loaded(name: str, options: dict[str, Any]) -> None:
    kind = tensorflow.SGD if name == "tensorflow" else getattr(optim, name)
    options = {} if name == "Adam" else options
    made = steps(kind(params_of(torch.float32), lr=0.1, **options, **HOW), 4)
    own = [param.requires_grad_() for param in values(made)]
    other = kind(own, lr=0.1, **options, **HOW)
    other.load_state_dict(copy.deepcopy(made.state_dict()))
    for each in (made, other):
        steps(each, 4, first=4)
    assert_same(values(made), values(other))
    assert_same(slow(made), slow(other))
    if name != "tensorflow":
        torchs = getattr(torch.optim, name)(own, lr=0.1, **options)
        torchs.load_state_dict(copy.deepcopy(made.state_dict()))
        steps(torchs, 1)


@pytest.mark.parametrize(
    ("kind", "options"), [(optim.SGD, MOMENTUM), (optim.Adam, {}), (tensorflow.Adam, {})]
)
def test_a_state_without_slow_weights(kind: Any, options: dict[str, Any]) -> None:
    plain = steps(kind(params_of(torch.float32), lr=0.1, **options), 3)
    own = [param.requires_grad_() for param in values(plain)]
    made = kind(own, lr=0.1, **options, **HOW)
    with pytest.warns(CheckpointWarning, match="has no 'slow', which begins at the parameters"):
        made.load_state_dict(copy.deepcopy(plain.state_dict()))
    wanted = steps(ByHand(plain), 3, first=3)
    steps(made, 3, first=3)
    assert_same(values(made), values(wanted))


@pytest.mark.parametrize(
    ("given", "message"),
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
@pytest.mark.parametrize("kind", [optim.SGD, tensorflow.Adam])
def test_refused_by_name(kind: Any, given: dict[str, Any], message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        kind(params_of(torch.float32, SHAPES[:1]), lr=0.1, **given)
