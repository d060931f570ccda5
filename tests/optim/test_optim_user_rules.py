"""Rules of the user's own beside classes of the library in one optimizer."""

from __future__ import annotations

import copy
import pickle
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

import thalweg
from rulebook import assert_same
from thalweg import Hyper, Pass, Rule, RuleError, Slot, Stage, checkpoint, optim, sqrt
from thalweg.errors import CheckpointMismatchError, InvalidArgumentError, InvalidTypeError
from thalweg.rules.modern import ADAN


def signed(var, grad, mean, *, learning_rate, beta1):
    mean = mean * beta1 + grad * (1 - beta1)
    return var - learning_rate * mean, mean


SLOW = Rule(
    name="Slow",
    update=signed,
    hypers=(Hyper("learning_rate", 0.25), Hyper("beta1", 0.5)),
    slots=(Slot("mean"),),
)


def corrected(*, learning_rate, beta1, beta2, beta1_power, beta2_power):
    return {"alpha": learning_rate * sqrt(1 - beta2_power) / (1 - beta1_power)}


def as_adam(var, grad, m, v, *, alpha, beta1, beta2, epsilon):
    m = m + (grad - m) * (1 - beta1)
    v = v + (grad * grad - v) * (1 - beta2)
    return var - m * alpha / (sqrt(v) + epsilon), m, v


POWERS = Rule(
    name="Powers",
    update=as_adam,
    prepare=corrected,
    powers={"beta1_power": "beta1", "beta2_power": "beta2"},
    hypers=(
        Hyper("learning_rate", 0.01), Hyper("beta1", 0.875), Hyper("beta2", 0.75),
        Hyper("epsilon", 1e-7),
    ),
    slots=(Slot("m"), Slot("v")),
)  # fmt: skip


def ahead(var, grad, mean, *, beta1):
    return mean * beta1 + grad


def center(*, step):
    return {"step": step - step.mean(dim=(1, 2), keepdim=True)}


def centered(var, grad, step, mean, *, learning_rate, beta1):
    return var - learning_rate * step, mean * beta1 + grad


CENTERED = replace(
    SLOW, name="Centered", update=centered, passes=(Pass(ahead, makes="step"), Stage(center))
)


def measured(*, variable, shrunk):
    return {"shrink": 1 / (1 + variable), "shrunk": shrunk + 1}


def shrinking(var, grad, *, learning_rate, shrink):
    return (var - learning_rate * shrink * grad,)


MEASURED = Rule(
    name="Measured",
    update=shrinking,
    measures={"variable": thalweg.formula.variable_squares},
    per_variable=measured,
    slots=(Slot("shrunk", scalar=True),),
)
HEADS = replace(CENTERED, name="Heads", passes=(CENTERED.passes[0], Stage(center, heads=3)))


def counted(*, learning_rate, count):
    return {"rate": learning_rate / (count + 1), "count": count + 1}


def shrinking_slowly(var, grad, *, rate, shrink):
    return (var - rate * shrink * grad,)


COUNTED = replace(  # one number is of `prepare`, the other of `per_variable`
    MEASURED, name="Counted", update=shrinking_slowly, prepare=counted,
    slots=(Slot("count", scalar=True), Slot("shrunk", scalar=True)),
)  # fmt: skip
RULES = {rule.name: rule for rule in (SLOW, POWERS, CENTERED, MEASURED, HEADS, COUNTED)}


def model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 6), nn.LayerNorm(6), nn.Linear(6, 3))


def backward(net: nn.Module, step: int = 0) -> None:
    net.zero_grad()
    inputs = torch.arange(20.0).reshape(5, 4).sin() + step
    (net(inputs).square().mean() * 30).backward()


def values(net: nn.Module) -> list[torch.Tensor]:
    return [param.detach().clone() for param in net.parameters()]


def mixed(net: nn.Module, rule: Rule, **options: Any) -> Any:
    return optim.Mixed(optim.groups(net, rules={2: rule, 1: "AdamW"}), **options)


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
def test_a_rule_beside_a_class_is_that_alone(rule: Rule) -> None:
    """But for scalars, which Python's numbers make, as for torch's classes."""
    one, other = model(), model()
    together = mixed(one, rule)
    matrices = [param for param in other.parameters() if param.dim() > 1]
    vectors = [param for param in other.parameters() if param.dim() < 2]
    apart = [optim.RuleOptimizer(matrices, rule), optim.AdamW(vectors)]
    for step in range(5):
        for net in (one, other):
            backward(net, step)
        for each in (together, *apart):
            each.step()
    torch.testing.assert_close(values(one), values(other), rtol=1e-5, atol=1e-6)
    assert not any(map(torch.equal, values(one), values(model())))
    assert together.last_step.count == 5
    names = {slot.name for slot in rule.slots}
    for param in one.parameters():
        if param.dim() > 1:
            assert together.state[param].keys() == {*names, "step"}
            assert together.state[param]["step"].item() == 5


@pytest.mark.parametrize("options", [{"clip_grad_norm": 0.5}, {"ema_decay": 0.9},
                                     {"accumulate": 2}, {"lookahead": 2}], ids=str)  # fmt: skip
@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
def test_engines_agree_under_every_option(rule: Rule, options: Any) -> None:
    found: list[Any] = []
    for engine in ("cpu", "reference"):
        net = model()
        with thalweg.engine(engine):
            made = mixed(net, rule, **options)
            for step in range(4):
                backward(net, step)
                made.step()
        found.append(values(net))
    assert_same(*found)


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
def test_a_state_goes_on_elsewhere(rule: Rule, tmp_path: Any) -> None:
    nets = [model() for _ in range(4)]
    made = [mixed(net, rule) for net in nets]
    for step in range(2):
        backward(nets[0], step)
        made[0].step()
    state = made[0].state_dict()
    assert {group["rule"] for group in state["param_groups"]} == {rule.name, "AdamW"}
    torch.save(state, tmp_path / "state")
    nets[1].load_state_dict(nets[0].state_dict())
    made[1].load_state_dict(torch.load(tmp_path / "state", weights_only=True))
    checkpoint.save(tmp_path / "it", module=nets[0], optimizer=made[0])
    checkpoint.restore(tmp_path / "it", module=nets[2], optimizer=made[2])
    nets[3], made[3] = pickle.loads(pickle.dumps((nets[0], made[0])))
    nets.append(copy.deepcopy(nets[0]))
    made.append(copy.deepcopy((nets[0], made[0]))[1])
    nets[4], made[4] = copy.deepcopy((nets[0], made[0]))
    for net, each in zip(nets, made, strict=True):
        backward(net, 2)
        each.step()
    for net in nets[1:]:
        assert_same(values(net), values(nets[0]))


def test_a_state_of_another_rule_is_refused() -> None:
    made = [mixed(model(), rule) for rule in (SLOW, CENTERED)]
    before = copy.deepcopy(made[1].state_dict())
    with pytest.raises(
        CheckpointMismatchError, match=r"rule of group \d is 'Slow', here 'Centered'"
    ):
        made[1].load_state_dict(made[0].state_dict())
    assert made[1].state_dict() == before


def test_groups_show_names_and_take_options() -> None:
    net = model()
    groups = optim.groups(net, rules={"0.*": {"rule": SLOW, "lr": 0.5}, ...: "AdamW"})
    assert "Slow" in str(groups)
    made = optim.Mixed(groups)
    own = next(group for group in made.param_groups if group["rule"] == "Slow")
    assert (own["lr"], own["beta1"]) == (0.5, 0.5)
    torch.optim.lr_scheduler.StepLR(made, 1, 0.5)
    made.add_param_group({"params": [("a", torch.ones(2, requires_grad=True))], "rule": "Slow"})
    assert made.param_groups[-1]["lr"] == 0.25
    with pytest.raises(InvalidArgumentError, match="rules of their own are for Mixed"):
        optim.AdamW(groups)


REFUSED: dict[str, tuple[Any, Any, str]] = {
    "an option": ({"rule": SLOW, "eps": 1.0}, InvalidArgumentError, "'eps' of group 0 is no"),
    "a misspelt one": ({"rule": SLOW, "beta_1": 1.0}, InvalidArgumentError, "Did you mean 'beta1'"),
    "a text": ({"rule": SLOW, "lr": "fast"}, InvalidTypeError, "lr must be"),
    "a name": ({"rule": replace(SLOW, name="AdamW")}, InvalidArgumentError,
               "group 0 is named 'AdamW', and a class of thalweg.optim is"),
    "of the library": ({"rule": ADAN}, InvalidArgumentError, "'Adan', and a class"),
    "no rule": ({"rule": signed}, InvalidTypeError, "or a thalweg.Rule, not"),
    "wrong": ({"rule": replace(SLOW, update=center)}, RuleError, "Slow"),
    "an option of all": (
        {"rule": replace(SLOW, hypers=(*SLOW.hypers, Hyper("lookahead", 1.0)))}, RuleError,
        "has a hyperparameter named 'lookahead'",
    ),
    "a vector": ({"rule": CENTERED}, InvalidArgumentError, "is for matrices"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_groups_that_are_refused(name: str) -> None:
    group, error, message = REFUSED[name]
    given = {"params": [torch.zeros(3, requires_grad=True)], **group}
    with pytest.raises(error, match=message):
        optim.Mixed([given])
    made = optim.Mixed([{"params": [torch.zeros(2, requires_grad=True)], "rule": "SGD"}])
    with pytest.raises(error, match=message.replace("group 0", "group 1")):
        made.add_param_group(given)
    assert len(made.param_groups) == 1
    assert not made._named


@pytest.mark.parametrize("name", ["lookahead", "cautious", "ema_decay", "params", "rule"])
def test_a_hyperparameter_is_not_called_as_an_option(name: str) -> None:
    rule = replace(SLOW, hypers=(*SLOW.hypers, Hyper(name, 1.0)))
    for given in ({}, {"cautious": True}):
        with pytest.raises(RuleError, match=f"has a hyperparameter named '{name}', which means"):
            optim.RuleOptimizer(model().parameters(), rule, **given)


def test_two_rules_of_one_name_are_refused() -> None:
    twin = replace(SLOW)
    net = model()
    groups = optim.groups(net, rules={1: SLOW, ...: twin})
    with pytest.raises(InvalidArgumentError, match="'Slow', and another rule of this optimizer"):
        optim.Mixed(groups)
    made = mixed(net, SLOW)
    added = {"params": [("a", torch.zeros(2, requires_grad=True))], "rule": twin}
    with pytest.raises(InvalidArgumentError, match="'Slow', and another rule of this optimizer"):
        made.add_param_group(added)
    made.add_param_group({**added, "rule": SLOW})
    assert len(made.param_groups) == 3


def test_rows_are_taken_as_the_rule_says() -> None:
    table = nn.Embedding(9, 4, sparse=True)
    made = optim.Mixed([{"params": table.parameters(), "rule": SLOW}])
    before = table.weight.detach().clone()
    table(torch.tensor([1, 3])).sum().backward()
    made.step()
    moved = (table.weight.detach() != before).any(dim=1)
    assert moved.tolist() == [row in (1, 3) for row in range(9)]
