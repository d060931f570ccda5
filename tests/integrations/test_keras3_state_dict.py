"""`state_dict` of an optimizer of Keras 3, with Keras' variables beside the wrapped one's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from attack.states import same
from files import through_a_file
from lazy_package import Later
from thalweg.errors import CheckpointMismatchError, FailedPreconditionError
from thalweg.keras.optimizers import schedules

keras: Any = Later("keras")
keras3: Any = Later("thalweg.integrations.keras3")
pytestmark = [
    pytest.mark.usefixtures("with_keras"),
    pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning"),
]

MAKE: dict[str, Callable[[], Any]] = {
    "Adam": lambda: keras3.Adam(0.1),
    "Nadam": lambda: keras3.Nadam(0.1),
    "a schedule": lambda: keras3.SGD(schedules.ExponentialDecay(0.5, 2, 0.5), momentum=0.9),
    "averages": lambda: keras3.RMSprop(0.1, use_ema=True, ema_momentum=0.5),
    "several batches": lambda: keras3.Adam(0.1, gradient_accumulation_steps=3),
    "weight decay": lambda: keras3.Ftrl(0.1, weight_decay=0.1, clipnorm=1.0),
}
every_case = pytest.mark.parametrize("make", MAKE.values(), ids=MAKE)


def variables() -> list[Any]:
    return [
        keras.Variable(np.linspace(-1, 1, 3, dtype="f4"), name="w"),
        keras.Variable(np.ones((2, 3), "f4"), name="b"),
    ]


def step(opt: Any, params: list[Any], number: int) -> None:
    generator = torch.Generator().manual_seed(number)
    opt.apply([torch.randn(tuple(var.shape), generator=generator) for var in params], params)


def values(params: list[Any]) -> list[Any]:
    return [var.numpy().copy() for var in params]


@pytest.mark.one_in(3)
@every_case
@pytest.mark.parametrize("count", range(5))
def test_fresh_optimizer_resumes_from_state_dict(make: Callable[..., Any], count: int) -> None:
    opt, params = make(), variables()
    opt.build(params)
    for number in range(count):
        step(opt, params, number)
    state = through_a_file(opt.state_dict())
    target_opt, targets = make(), variables()
    for var, target in zip(params, targets, strict=True):
        target.assign(var)
    if count % 2 or state["keras"]:
        target_opt.build(targets)
    target_opt.load_state_dict(state)
    for number in range(count, 6):
        step(opt, params, number), step(target_opt, targets, number)
    assert all(map(np.array_equal, values(params), values(targets)))
    assert same(target_opt.state_dict(), opt.state_dict())


def test_variables_of_keras_have_names() -> None:
    opt, params = MAKE["averages"](), variables()
    step(opt, params, 0)
    assert list(opt.state_dict()["keras"]) == ["w_average", "b_average"]
    assert list(opt.state_dict()["slots"]) == ["w:0", "b:0"]
    assert MAKE["Adam"]().state_dict()["keras"] == {}


SLIPS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "'w_average' is missing": lambda state: state["keras"].pop("w_average"),
    r"'b_average' is float32 of shape \(6,\)": lambda state: state["keras"].update(
        {"b_average": torch.zeros(6)}
    ),
    "'more' belongs to nothing here": lambda state: state["keras"].update(more=torch.zeros(1)),
    "keras: 3 is no dictionary": lambda state: state.update(keras=3),
    "'w/rms' is missing": lambda state: state["slots"]["w:0"].pop("rms"),
}


@pytest.mark.parametrize(("message", "change"), SLIPS.items(), ids=SLIPS)
def test_invalid_state_dict_changes_nothing(message: str, change: Callable[..., Any]) -> None:
    opt, params = MAKE["averages"](), variables()
    step(opt, params, 0)
    state = through_a_file(opt.state_dict())
    step(opt, params, 1)
    change(state)
    initial = opt.state_dict()
    with pytest.raises(CheckpointMismatchError, match=rf"{message}.*Nothing was loaded\.$"):
        opt.load_state_dict(state)
    assert same(opt.state_dict(), initial)


def test_an_optimizer_that_is_not_built_has_no_averages() -> None:
    opt = MAKE["averages"]()
    opt.build(variables())
    with pytest.raises(FailedPreconditionError, match=r"is not built: call optimizer\.build"):
        MAKE["averages"]().load_state_dict(opt.state_dict())


def test_state_of_another_class_raises() -> None:
    with pytest.raises(ValueError, match="The state is of Adam, this optimizer is SGD"):
        keras3.SGD().load_state_dict(keras3.Adam().state_dict())
