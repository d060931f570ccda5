"""A signal handler that calls an optimizer within its step: both steps count, or it raises."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import lru_cache, partial
from typing import Any

import pytest
import torch
from torch import Tensor

from attack.interruptions import TRAININGS, Training
from interruptions import collected, interrupt, messages, outcome
from thalweg import Variable, distribute, optim
from thalweg._core import reentrance
from thalweg._engines.cpu import openmp
from thalweg.errors import FailedPreconditionError
from thalweg.keras.optimizers import Adam
from thalweg.openseq2seq.optimizers import optimize_loss
from thalweg.v1 import train as v1

ALL_LINES = 10**9  # more lines than a step has
NAMES = (
    "optim", "optim many rules", "optim mixed", "optim diagnostics", "optim accumulate",
    "optim tensorflow", "optim masters", "keras", "keras hooks", "keras twice",
    "keras constrained", "keras diagnostics", "v1", "v1 sparse", "optimize_loss",
    "optimize_loss mixed",
)  # fmt: skip
QUICK = ("optim", "optim many rules", "keras", "v1", "optimize_loss")


def prepared(name: str, steps: int) -> Training:
    training = TRAININGS[name]()
    for number in range(steps):
        training.take(number)
    training.ready(steps)
    return training


def places(name: str, steps: int, count: int) -> Iterator[int]:
    """Some of the lines of a step."""
    prepared(name, steps).step(steps)  # kernels are compiled once
    training = prepared(name, steps)
    lines = ALL_LINES - outcome(ALL_LINES, lambda: training.step(steps))[1]
    yield from range(0, lines, max(1, lines // count))


@lru_cache(maxsize=4)
def bits_without_handler(name: str, steps: int, count: int) -> tuple[list[bytes], list[bytes]]:
    """Return the bits after a step that is taken so many times, and after the next step.

    They are the same wherever a handler is called.
    """
    twin = prepared(name, steps)
    for _ in range(count):
        twin.step(steps)
    bits = twin.bits()
    twin.ready(steps + 1)
    twin.step(steps + 1)
    return bits, twin.bits()


def check_step_within_step(name: str, steps: int, place: int) -> str:
    """Have a handler take a step at a line of a step; how that ended."""
    training = prepared(name, steps)
    events: list[str] = []

    def handler() -> None:
        try:
            training.step(steps)
            events.append("counted")
        except FailedPreconditionError as error:
            is_refusal = "was called within a step of the same optimizer" in str(error)
            events.append("raised" if is_refusal else str(error))

    lines_left = outcome(place, lambda: training.step(steps), handler=handler)[1]
    assert bool(events) == (lines_left < 0), (name, steps, place)
    expected, expected_later = bits_without_handler(name, steps, 1 + (events == ["counted"]))
    assert training.bits() == expected, (name, steps, place, events)
    training.ready(steps + 1)
    training.step(steps + 1)
    assert training.bits() == expected_later, (name, steps, place, events)
    return "".join(events) or "not reached"


@pytest.mark.one_in(3)
@pytest.mark.parametrize("steps", [1, 6])
@pytest.mark.parametrize("name", QUICK)
def test_a_step_within_a_step_counts_or_raises(name: str, steps: int) -> None:
    ends = {check_step_within_step(name, steps, place) for place in places(name, steps, 6)}
    assert ends <= {"counted", "raised"}
    assert steps > 1 or "raised" in ends


@pytest.mark.slow
@pytest.mark.parametrize("steps", [0, 1, 6])
@pytest.mark.parametrize("name", NAMES)
def test_a_step_at_any_line_counts_or_raises(name: str, steps: int) -> None:
    ends = [check_step_within_step(name, steps, place) for place in places(name, steps, 10)]
    # A step may have fewer lines than the one that was counted, which also freed earlier objects.
    assert {*ends[:-3]} <= {"counted", "raised"}
    assert {*ends[-3:]} <= {"counted", "raised", "not reached"}


def minimizing(step: Callable[[Callable[[], Tensor], Variable], Any]) -> Training:
    """Return steps that minimize a loss of one variable."""
    variable = Variable(torch.ones(3))

    def loss() -> Tensor:
        return (variable * variable).sum()

    return Training(lambda _: step(loss, variable), lambda: [variable])


def applied_in_backward() -> Training:
    """Return steps of `thalweg.v1` that apply each gradient as soon as it is known."""
    optimizer = v1.AdamOptimizer(0.1)
    return minimizing(
        lambda loss, variable: optimizer.minimize(
            loss, var_list=[variable], gate_gradients=optimizer.GATE_NONE
        )
    )


def in_strategy() -> Training:
    """Return steps of Keras in a strategy."""
    optimizer, strategy = Adam(0.1), distribute.Strategy()
    return minimizing(
        lambda loss, variable: strategy.run(lambda: optimizer.minimize(loss, [variable]))
    )


ENDINGS: dict[str, Callable[[], Training]] = {
    **{name: TRAININGS[name] for name in (*QUICK, "v1 diagnostics", "session")},
    "optim in backward": TRAININGS["optim in backward"],
    "v1 in backward": applied_in_backward,
    "keras in a strategy": in_strategy,
}


@pytest.mark.parametrize("name", ENDINGS)
def test_step_without_end_does_not_block_the_next(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Interrupt a step just before its block ends, as a debugger can, and keep the traceback."""
    first, twin = ENDINGS[name](), ENDINGS[name]()
    for training in (first, twin):
        training.ready(0)
    sections = reentrance._make_sections

    def interrupted_sections(*arguments: Any) -> Any:
        opening, closing = sections(*arguments)
        return opening, [interrupt, *closing]

    with monkeypatch.context() as patch:
        patch.setattr(reentrance, "_make_sections", interrupted_sections)
        with pytest.raises(KeyboardInterrupt) as interrupted:
            first.step(0)
    assert interrupted.traceback
    first.end()
    twin.step(0)
    for number in range(1, 5):
        first.take(number)
        twin.take(number)
        assert first.bits() == twin.bits()


def trained(steps: int, **options: Any) -> tuple[Any, Any]:
    param: Any = torch.nn.Parameter(torch.ones(3))
    optimizer = optim.Adam([param], lr=0.1, **options)
    for _ in range(steps):
        param.grad = torch.ones(3)
        optimizer.step()
    return param, optimizer


@pytest.mark.skipif(not hasattr(signal, "SIGUSR1"), reason="Windows has no such signal")
def test_signal_handler_step_within_a_step_raises() -> None:
    param, optimizer = trained(1)
    messages: list[str] = []

    def handler(*_: Any) -> None:
        try:
            optimizer.step()
        except RuntimeError as error:
            messages.append(str(error))

    class Rate(float):
        def __float__(self) -> float:
            signal.raise_signal(signal.SIGUSR1)
            return 0.1

    original_handler = signal.signal(signal.SIGUSR1, handler)
    try:
        twin_param, twin = trained(1)
        param.constraint = lambda value: (signal.raise_signal(signal.SIGUSR1), value)[1]
        optimizer.step()
    finally:
        signal.signal(signal.SIGUSR1, original_handler)
    twin.step()
    assert len(messages) == 1
    assert messages[0].startswith("A step of Adam was called within a step of the same optimizer")
    assert torch.equal(param, twin_param)
    assert (optimizer.last_step.count, optimizer.state[param]["step"].item()) == (2, 2)


def test_callback_that_steps_raises_and_step_is_atomic() -> None:
    param, optimizer = trained(1)
    param.constraint = lambda value: (optimizer.step(), value)[1]
    with pytest.raises(FailedPreconditionError, match="within a step of the same") as raised:
        optimizer.step()
    assert raised.value.__notes__[0].startswith("The step was taken, but without the constraint")
    del param.constraint
    optimizer.step()
    assert optimizer.last_step.count == 3


def test_a_closure_may_step() -> None:
    param, optimizer = trained(1)
    optimizer.step(lambda: optimizer.step())
    assert (optimizer.last_step.count, optimizer.state[param]["step"].item()) == (3, 3)


@pytest.mark.parametrize("steps", [1, 6])
def test_state_read_within_a_step_is_consistent(steps: int) -> None:
    """State dicts that a handler of SIGTERM saves within a step."""

    def read(param: Any, optimizer: Any) -> list[torch.Tensor]:
        slots = optimizer.state_dict()["state"].get(0, {})
        return [param.detach().clone(), *(slots[name].clone() for name in sorted(slots))]

    def of_step(place: int) -> tuple[list[Any], int]:
        param, optimizer = trained(steps, clip_grad_norm=1.0)
        tensors: list[Any] = []
        lines_left = outcome(
            place, optimizer.step, handler=lambda: tensors.extend(read(param, optimizer))
        )[1]
        return tensors, lines_left

    states = []
    for number in (steps, steps + 1):
        states.append(read(*trained(number, clip_grad_norm=1.0)))
    lines = ALL_LINES - of_step(ALL_LINES)[1]
    for place in range(0, lines, max(1, lines // 40)):
        tensors, _ = of_step(place)
        assert any(
            len(tensors) == len(state) and all(map(torch.equal, tensors, state)) for state in states
        ), place


def test_nested_keras_step_in_a_constraint_raises() -> None:
    from thalweg import Variable

    var, optimizer = Variable(torch.ones(3), name="w"), Adam(0.1)
    pairs = [(torch.ones(3), var)]
    optimizer.apply_gradients(pairs)
    var.constraint = lambda value: (optimizer.apply_gradients(pairs), value)[1]
    with pytest.raises(FailedPreconditionError, match="within a step of the same"):
        optimizer.apply_gradients(pairs)
    assert optimizer.iterations.item() == 2


@pytest.mark.parametrize("steps", [4, 5, 8])
def test_nested_step_after_assigned_count_counts_or_raises(steps: int) -> None:
    """Take a step while the numbers of coming steps, and the table of them, are made."""

    def trained() -> tuple[Any, list[Any]]:
        variable, optimizer = Variable(torch.ones(5)), Adam(0.1)
        pairs = [(torch.ones(5), variable)]
        for _ in range(steps):
            optimizer.apply_gradients(pairs)
        optimizer.iterations.assign(40)
        return optimizer, pairs

    for place in range(5, 300, 13):
        optimizer, pairs = trained()
        handled: list[bool] = []

        def step(optimizer: Any = optimizer, pairs: list[Any] = pairs) -> None:
            optimizer.apply_gradients(pairs)

        def handler(step: Callable[[], None] = step, handled: list[bool] = handled) -> None:
            with suppress(FailedPreconditionError):
                step()
                handled.append(True)

        for _ in range(2):
            outcome(place, step, handler=handler)
        twin, own_pairs = trained()
        for _ in range(2 + len(handled)):
            twin.apply_gradients(own_pairs)
        assert int(optimizer.iterations) == 42 + len(handled), place
        assert torch.equal(pairs[0][1].detach(), own_pairs[0][1].detach()), place


def step_of_torch(param: Any) -> Callable[[], Any]:
    optimizer = optim.Adam([param], lr=0.1)
    param.grad = torch.ones(3)
    return optimizer.step


FACES: dict[str, Callable[[Any], Callable[[], Any]]] = {
    "optim": step_of_torch,
    "keras": lambda var: partial(Adam(0.1).apply_gradients, [(torch.ones(3), var)]),
    "v1": lambda var: partial(v1.AdamOptimizer(0.1).apply_gradients, [(torch.ones(3), var)]),
    "optimize_loss": lambda var: optimize_loss(
        lambda: (var * var).sum(), "Adam", {}, lambda _: 0.1, var_list=[var]
    ),
}


@pytest.mark.parametrize("name", FACES)
def test_finalizer_step_within_a_planned_step_raises(name: str) -> None:
    steps: list[Callable[[], Any]] = []

    def constraint(value: Tensor) -> Tensor:
        collected(steps[0])
        return value

    var = Variable(torch.ones(3), constraint=constraint)
    steps.append(FACES[name](var))
    messages.clear()
    steps[0]()
    assert len(messages) == 1
    assert "was called within a step of the same optimizer" in messages[0]


@pytest.mark.parametrize("name", ["keras", "v1"])
def test_finalizer_step_within_a_large_replay_raises(
    name: str, large_steps: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    var, twin_var = Variable(torch.ones(3)), Variable(torch.ones(3))
    step, twin_step = FACES[name](var), FACES[name](twin_var)
    for _ in range(3):
        step()
    call_on_team = openmp.call_on_team

    def call_with_collection(*arguments: Any) -> Any:
        kernels = call_on_team(*arguments)
        return lambda: (collected(step), kernels(), collected(step))[1]

    monkeypatch.setattr(openmp, "call_on_team", call_with_collection)
    messages.clear()
    step()
    monkeypatch.undo()
    assert len(messages) == 2
    assert all("within a step of the same optimizer" in message for message in messages)
    for _ in range(4):
        twin_step()
    assert torch.equal(var, twin_var)
