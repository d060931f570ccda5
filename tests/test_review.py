"""What a first reading of the whole found: each line once went wrong."""

from __future__ import annotations

import io
import threading
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import thalweg
from thalweg import Hyper, LayoutError, Rule, RuleError, Slot, Variable
from thalweg.keras.optimizers import SGD, Adam, RuleOptimizer


def plain(var: Any, grad: Any, *, learning_rate: Any) -> Any:
    return (var - learning_rate * grad,)


PLAIN = Rule(name="Plain", update=plain)


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
def test_gradients_without_memory_are_refused(make: Any, first: bool) -> None:
    w, opt = Variable([1.0, 2.0, 3.0, 4.0], name="w"), SGD(0.5)
    if not first:
        opt.apply_gradients([(torch.zeros(4), w)])
    with pytest.raises((LayoutError, thalweg.InvalidArgumentError), match="'w:0'"):
        opt.apply_gradients([(make(), w)])
    assert w.numpy().tolist() == [1, 2, 3, 4]


def test_threads_take_their_steps_in_turn() -> None:
    w, opt = torch.nn.Parameter(torch.zeros(200_000)), SGD(1.0, clipnorm=1e9)
    opt.apply_gradients([(torch.zeros(200_000), w)])

    def work() -> None:
        for _ in range(40):
            opt.apply_gradients([(torch.ones(200_000), w)])

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert torch.equal(w.detach(), torch.full((200_000,), -120.0))


def test_a_constraint_set_between_steps_is_applied() -> None:
    w, opt = Variable([1.0], name="w"), SGD(0.5)
    for _ in range(2):
        opt.apply_gradients([([1.0], w)])
    w.constraint = lambda x: x * 0
    opt.apply_gradients([([1.0], w)])
    assert w.numpy().tolist() == [0]


def test_rule_optimizers_take_lr() -> None:
    w = Variable([1.0], name="w")
    with pytest.warns(DeprecationWarning, match="lr"):
        opt = RuleOptimizer(PLAIN, lr=0.5)
    opt.apply_gradients([([1.0], w)])
    assert w.numpy().tolist() == [0.5]


def test_loaded_slots_survive_a_save_before_their_variable_comes() -> None:
    w, u, opt = Variable([1.0], name="w"), Variable([1.0], name="u"), Adam()
    opt.apply_gradients([([1.0], w), ([1.0], u)])
    again = Adam()
    again.load_state_dict(opt.state_dict())
    again.apply_gradients([([1.0], w)])
    assert set(again.state_dict()["slots"]) == {"w:0", "u:0"}


def test_an_override_of_the_decayed_learning_rate_counts() -> None:
    class Still(SGD):
        def _decayed_lr(self, var_dtype: torch.dtype) -> torch.Tensor:
            return torch.zeros((), dtype=var_dtype)

    w = Variable([1.0], name="w")
    Still(1.0).apply_gradients([([1.0], w)])
    assert w.numpy().tolist() == [1]


@pytest.mark.parametrize("name", ["clip_divisor", "clipvalue", "iterations", "name", "decay", "t"])
def test_reserved_names_of_hyperparameters(name: str) -> None:
    rule = Rule(name="Plain", update=plain, hypers=(Hyper("learning_rate", 0.1), Hyper(name, 1.0)))
    with pytest.raises(RuleError, match=name):
        RuleOptimizer(rule)


@pytest.mark.parametrize("name", ["clip_divisor", "clip_scale", "clipvalue", "clipnorm", "t"])
def test_reserved_names_of_powers(name: str) -> None:
    rule = Rule(name="Plain", update=plain, powers={name: "learning_rate"})
    with pytest.raises(RuleError, match=f"has hyperparameters or powers named {name}, which"):
        RuleOptimizer(rule)


def test_a_power_is_not_named_as_a_hyperparameter() -> None:
    rule = Rule(name="Plain", update=plain, powers={"learning_rate": "learning_rate"})
    with pytest.raises(RuleError, match="a hyperparameter and a power named learning_rate"):
        RuleOptimizer(rule)


def prepared_rule(**made: Any) -> Rule:
    return Rule(name="Plain", update=plain, prepare=lambda *, learning_rate: made)


@pytest.mark.parametrize("name", ["clip_divisor", "clip_scale", "clipvalue", "clipnorm"])
@pytest.mark.parametrize("options", [{}, {"clipnorm": 1.0}], ids=["plain", "clipped"])
def test_reserved_names_of_what_prepare_makes(name: str, options: dict[str, float]) -> None:
    w, opt = Variable([1.0], name="w"), RuleOptimizer(prepared_rule(**{name: 2.0}), **options)
    with pytest.raises(RuleError, match=f"makes scalars named {name}, which every step") as raised:
        opt.apply_gradients([([1.0], w)])
    assert "The step was not taken" in raised.value.__notes__[0]
    assert w.numpy().tolist() == [1]


@pytest.mark.parametrize("value", ["x", None, [1.0], torch.ones(2), 1j], ids=str)
def test_prepare_that_makes_no_number(value: Any) -> None:
    with pytest.raises(RuleError, match=r"of which prepare makes .*; that is no number"):
        RuleOptimizer(prepared_rule(learning_rate=value))


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (2, -1.0),
        (2.0, -1.0),
        (torch.tensor(2.0), -1.0),
        (1e300, -torch.inf),
        (torch.nan, torch.nan),
    ],
)
def test_prepare_may_make_any_number(value: Any, expected: float) -> None:
    w, opt = Variable([1.0], name="w"), RuleOptimizer(prepared_rule(learning_rate=value))
    opt.apply_gradients([([1.0], w)])
    torch.testing.assert_close(w.item(), expected, equal_nan=True, rtol=0, atol=0)


@pytest.mark.parametrize(
    ("keywords", "message"),
    [
        ({"powers": {"p": "nope"}}, "'nope', which is none of its hyperparameters"),
        ({"slots": (Slot("m"), Slot("m"))}, "two slots named 'm'"),
        ({"hypers": (Hyper("a", 1.0), Hyper("a", 2.0))}, "two hyperparameters named 'a'"),
        ({"duplicates": "last"}, "must be 'sum' or 'successive'"),
    ],
)
def test_rules_are_checked_when_made(keywords: dict[str, Any], message: str) -> None:
    with pytest.raises(RuleError, match=message):
        Rule(name="Wrong", update=plain, **keywords)


def test_an_aggregator_that_returns_nothing() -> None:
    w = Variable([1.0], name="w")
    opt = SGD(gradient_aggregator=lambda pairs: [], clipnorm=1.0)
    with pytest.raises(ValueError, match="returned no gradients"):
        opt.apply_gradients([([1.0], w)])


def test_an_aggregator_may_bring_another_variable() -> None:
    w, u = Variable([1.0], name="w"), Variable([1.0], name="u")
    opt = SGD(1.0, momentum=0.5, gradient_aggregator=lambda pairs: [*pairs, (torch.ones(1), u)])
    opt.apply_gradients([([1.0], w)])
    assert u.numpy().tolist() == [0]


def test_norms_do_not_depend_on_strides() -> None:
    grad, found = torch.rand(300, 400, dtype=torch.float64), []
    for each in (grad, grad.t().contiguous().t()):
        w = Variable(torch.zeros(300, 400, dtype=torch.float64), name="w")
        SGD(1.0, clipnorm=0.5).apply_gradients([(each, w)])
        found.append(w.detach().clone())
    assert torch.equal(*found)


def test_a_saved_slot_brings_only_itself() -> None:
    small, large, opt = Variable([1.0], name="s"), Variable(torch.zeros(100_000), name="l"), Adam()
    opt.apply_gradients([([1.0], small), (torch.zeros(100_000), large)])
    file = io.BytesIO()
    torch.save(opt.get_slot(small, "m"), file)
    assert file.tell() < 10_000


def test_rule_optimizers_come_back_from_their_configuration() -> None:
    rule = Rule(name="Mine", update=plain, hypers=(Hyper("learning_rate", 0.1),))
    opt = RuleOptimizer(rule, learning_rate=0.25, clipnorm=2.0, decay=0.5)
    config = opt.get_config()
    again = RuleOptimizer.from_config(config, custom_objects={"Mine": rule})
    assert again.get_config() == config
    assert again.rule is rule


def test_a_rule_that_nobody_knows() -> None:
    config = RuleOptimizer(PLAIN).get_config()
    with pytest.raises(ValueError, match="Unknown rule: Plain"):
        RuleOptimizer.from_config(config)
