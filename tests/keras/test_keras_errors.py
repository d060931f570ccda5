"""Invalid arguments of constructors raise at once and name the argument."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import thalweg
from keras_table import Row, all_rows
from thalweg import LayoutError, Variable
from thalweg.keras.optimizers import (
    SGD,
    Adagrad,
    Adam,
    Ftrl,
    Nadam,
    Optimizer,
    RMSprop,
    RuleOptimizer,
    schedules,
)

MINIMIZE_HINT = r"Variables go to minimize\(\) or apply_gradients\(\)"
NAN = float("nan")


def linear() -> torch.nn.Linear:
    return torch.nn.Linear(2, 1)


class Huge(schedules.LearningRateSchedule):
    def __call__(self, step: Any) -> Any:
        return 10**400


class Wrong(schedules.LearningRateSchedule):
    def __call__(self, step: Any) -> Any:
        return "fast"


@all_rows
@pytest.mark.parametrize(
    "value",
    ["fast", b"1", None, [0.1], (0.1,), object(), 1j, np.str_("x"), np.array("x"), np.complex64(1)],
    ids=lambda value: type(value).__name__,
)
def test_non_numeric_learning_rate_raises(row: Row, value: Any) -> None:
    with pytest.raises(TypeError, match=r"^learning_rate must be a number, .* not "):
        row.make(learning_rate=value)


@pytest.mark.parametrize(
    "value",
    [
        linear().parameters(),
        list(linear().parameters()),
        tuple(linear().parameters()),
        linear(),
        linear().named_parameters(),
        [{"params": list(linear().parameters())}],
        dict(linear().named_parameters()),
    ],
    ids=["generator", "list", "tuple", "module", "named", "groups", "dict"],
)
def test_variables_as_learning_rate_raise(value: Any) -> None:
    with pytest.raises(TypeError, match=rf"^learning_rate must be a number.* {MINIMIZE_HINT}"):
        Adam(value)


@all_rows
@pytest.mark.filterwarnings("ignore:The `lr` argument is deprecated")
def test_torch_style_variables_argument_raises(row: Row) -> None:
    with pytest.raises(TypeError, match=rf"^learning_rate must be a number.* {MINIMIZE_HINT}"):
        type(row.make())(linear().parameters(), lr=1e-3)


def test_variables_as_rule_or_name_raise() -> None:
    for make in (RuleOptimizer, Optimizer):
        with pytest.raises(TypeError, match=rf"^(rule|name) must be a.* {MINIMIZE_HINT}"):
            make(linear().parameters())


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (torch.ones(2), r"learning_rate must be a scalar, not of shape \(2,\)"),
        (torch.tensor(1j), "learning_rate must be real, not complex64"),
        (NAN, "learning_rate is nan"),
        (np.float32("nan"), "learning_rate is nan"),
    ],
    ids=["vector", "complex", "nan", "numpy nan"],
)
def test_invalid_learning_rate_value_raises(value: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        SGD(value)


@pytest.mark.parametrize("digits", [400, 5000])
def test_integers_beyond_float_raise(digits: int) -> None:
    w, huge = Variable([3.0]), 10**digits
    for make in (lambda: SGD(huge), lambda: SGD(0.1, clipnorm=huge), lambda: Adam(epsilon=huge)):
        with pytest.raises(ValueError, match=r"(learning_rate|clipnorm|epsilon) is too large: an"):
            make()
    for opt, name in ((SGD(lambda: huge), "learning_rate"), (Adam(beta_1=lambda: huge), "beta_1")):
        with pytest.raises(ValueError, match=f"^{name} is too large: an integer of .* bits"):
            opt.apply_gradients([([1.0], w)])
    opt = SGD(0.1)
    opt.apply_gradients([([0.0], w)])
    with pytest.raises(ValueError, match=r"^learning_rate is too large"):
        opt.learning_rate = huge
    with pytest.raises(ValueError, match="Huge is too large"):
        SGD(Huge()).apply_gradients([([1.0], w)])
    assert w.item() == 3.0


def test_integers_beyond_their_variable_dtype_raise() -> None:
    with pytest.raises(ValueError, match=r"learning_rate is a whole number, .* Give a float"):
        SGD(2**40)


@pytest.mark.parametrize(
    "value", [True, 1, np.int64(1), np.float16(1), torch.tensor(1), np.array(1)]
)
def test_numeric_learning_rates_are_accepted(value: Any) -> None:
    w = thalweg.Variable([3.0])
    SGD(value).apply_gradients([([1.0], w)])
    assert w.item() == 2.0


@pytest.mark.parametrize(
    ("cls", "name"),
    [
        (Adam, "beta_1"),
        (Adam, "beta_2"),
        (Adam, "epsilon"),
        (Nadam, "beta_1"),
        (Nadam, "schedule_decay"),
        (RMSprop, "rho"),
        (RMSprop, "momentum"),
        (SGD, "momentum"),
        (SGD, "decay"),
        (Adagrad, "initial_accumulator_value"),
        (Adagrad, "epsilon"),
        (Ftrl, "learning_rate_power"),
        (Ftrl, "initial_accumulator_value"),
        (Ftrl, "l1_regularization_strength"),
        (Ftrl, "l2_regularization_strength"),
        (Ftrl, "l2_shrinkage_regularization_strength"),
        (Ftrl, "beta"),
    ],
)
@pytest.mark.parametrize(
    ("value", "error"), [("x", TypeError), ([0.5], TypeError), (1j, TypeError), (NAN, ValueError)]
)
def test_non_numeric_arguments_raise(
    cls: Any, name: str, value: Any, error: type[Exception]
) -> None:
    with pytest.raises(error, match=rf"^{name} (must be a number|is nan)"):
        cls(**{name: value})


@pytest.mark.parametrize("name", ["clipvalue", "clipnorm", "global_clipnorm"])
@pytest.mark.parametrize(
    ("value", "error"),
    [
        ("1", TypeError),
        ([1.0], TypeError),
        (torch.ones(2), TypeError),
        (lambda: 1.0, TypeError),
        (NAN, ValueError),
        (torch.tensor(-1.0), ValueError),
    ],
    ids=["string", "list", "tensor", "callable", "nan", "negative"],
)
@pytest.mark.parametrize("setter", [False, True], ids=["constructor", "attribute"])
def test_invalid_clipping_values_raise(
    name: str, value: Any, error: type[Exception], setter: bool
) -> None:
    opt = SGD()
    with pytest.raises(error, match=rf"^{name} must be a number|^{name} is nan|^Expected {name}"):
        setattr(opt, name, value) if setter else SGD(**{name: value})
    assert getattr(opt, name) is None


@pytest.mark.parametrize("name", ["clipnorm", "global_clipnorm"])
def test_infinite_clipnorm_raises(name: str) -> None:
    with pytest.raises(ValueError, match=rf"{name} must be finite; None does not clip"):
        SGD(**{name: float("inf")})


@pytest.mark.parametrize("value", [1, np.float64(1), torch.tensor(1.0), np.array(1.0)], ids=repr)
@pytest.mark.parametrize("name", ["clipvalue", "clipnorm", "global_clipnorm"])
def test_clipping_accepts_any_number(name: str, value: Any) -> None:
    w, opt = thalweg.Variable([0.0]), SGD(1.0, **{name: value})
    opt.apply_gradients([([4.0], w)])
    assert w.item() == -1.0
    assert opt.get_config()[name] == 1.0
    assert not isinstance(opt.get_config()[name], torch.Tensor | np.ndarray)


@pytest.mark.parametrize("name", ["clipvalue", "clipnorm", "global_clipnorm", "decay"])
def test_none_disables_the_option(name: str) -> None:
    assert SGD(**{name: None}).get_config() == SGD().get_config()


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (lambda: "fast", "learning_rate must be a number, not 'fast'"),
        (lambda: torch.ones(2), r"learning_rate must be a number, not tensor\(\[1"),
        (linear().parameters, "learning_rate must be a number, not <generator"),
        (lambda: torch.tensor(1.0, device="meta"), "learning_rate must be a number, not tensor"),
        (Wrong(), "Wrong must return a number or a tensor of shape .*, not 'fast'"),
    ],
    ids=["string", "vector", "generator", "meta", "schedule"],
)
@pytest.mark.parametrize("steps", [0, 2])
def test_callable_rate_without_number_raises(value: Any, message: str, steps: int) -> None:
    w, opt = thalweg.Variable([1.0]), SGD(lambda: 0.0)
    for _ in range(steps):
        opt.apply_gradients([([1.0], w)])
    opt.learning_rate = value
    with pytest.raises(TypeError, match=message) as raised:
        opt.apply_gradients([([1.0], w)])
    assert "The step was not taken" in raised.value.__notes__[0]
    assert (w.item(), opt.iterations.item()) == (1.0, steps)


def test_meta_device_rate_raises_when_set() -> None:
    rate, opt = torch.tensor(1.0, device="meta"), SGD(0.5)
    for set_rate in (lambda: SGD(rate), lambda: setattr(opt, "learning_rate", rate)):
        with pytest.raises(TypeError, match="learning_rate must have a value, not be on the meta"):
            set_rate()
    assert float(opt.learning_rate) == 0.5


def test_only_the_learning_rate_can_be_a_schedule() -> None:
    w, opt = thalweg.Variable([1.0]), Adam(beta_1=schedules.ExponentialDecay(0.5, 1, 0.5))
    with pytest.raises(TypeError, match="beta_1 cannot be a schedule; only learning_rate can"):
        opt.apply_gradients([([1.0], w)])
    assert w.item() == 1.0


@pytest.mark.parametrize("value", [None, "x", NAN])
def test_invalid_epsilon_set_later_raises(value: Any) -> None:
    w, opt = thalweg.Variable([1.0]), Adam()
    opt.apply_gradients([([0.0], w)])
    opt.epsilon = value
    with pytest.raises((TypeError, ValueError), match="epsilon"):
        opt.apply_gradients([([1.0], w)])
    assert w.item() == 1.0


@all_rows
def test_a_hyperparameter_is_not_set_to_nan(row: Row) -> None:
    opt = row.make(learning_rate=0.5)
    for _ in range(2):
        with pytest.raises(ValueError, match="learning_rate is nan"):
            opt.learning_rate = NAN
        assert opt.learning_rate.item() == 0.5


@pytest.mark.parametrize("value", [3, b"Adam", 0.5])
def test_non_string_name_raises(value: Any) -> None:
    with pytest.raises(TypeError, match="name must be a string, not"):
        Adam(name=value)


@pytest.mark.parametrize("value", [3, "sum", [len]])
@pytest.mark.parametrize("setter", [False, True], ids=["constructor", "attribute"])
def test_non_callable_aggregator_raises(value: Any, setter: bool) -> None:
    opt = SGD()
    with pytest.raises(TypeError, match="gradient_aggregator must be a function, not"):
        setattr(opt, "gradient_aggregator", value) if setter else SGD(gradient_aggregator=value)
    assert opt.gradient_aggregator is None


@pytest.mark.parametrize("value", [3, len, ["sum"], [len, None]])
@pytest.mark.parametrize("setter", [False, True], ids=["constructor", "attribute"])
def test_non_callable_transformers_raise(value: Any, setter: bool) -> None:
    opt = SGD()
    with pytest.raises(TypeError, match="gradient_transformers must be a list of functions, not"):
        setattr(opt, "gradient_transformers", value) if setter else SGD(gradient_transformers=value)
    assert opt.gradient_transformers == []


def test_transformer_that_returns_none_raises() -> None:
    w = thalweg.Variable([1.0])
    with pytest.raises(TypeError, match=r"iterable of \(gradient, variable\), not None"):
        SGD(gradient_transformers=[lambda pairs: None]).apply_gradients([([1.0], w)])
    assert w.item() == 1.0


def test_module_as_variables_raises() -> None:
    module = linear()
    with pytest.raises(TypeError, match=r"not a module; give list\(module\.parameters\(\)\)"):
        SGD().minimize(lambda: module.weight.sum(), module)


def _freed() -> torch.Tensor:
    grad = torch.ones(4)
    grad.untyped_storage().resize_(0)
    return grad


def _fake() -> torch.Tensor:
    with FakeTensorMode():
        return torch.ones(4)


@pytest.mark.parametrize(
    "make", [_freed, _fake, lambda: torch._efficientzerotensor(4)], ids=["freed", "fake", "zero"]
)
@pytest.mark.parametrize("first", [True, False])
def test_gradients_without_memory_raise(make: Any, first: bool) -> None:
    w, opt = Variable([1.0, 2.0, 3.0, 4.0], name="w"), SGD(0.5)
    if not first:
        opt.apply_gradients([(torch.zeros(4), w)])
    with pytest.raises((LayoutError, thalweg.InvalidArgumentError), match="'w:0'"):
        opt.apply_gradients([(make(), w)])
    assert w.numpy().tolist() == [1, 2, 3, 4]
