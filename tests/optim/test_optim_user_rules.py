"""User-defined rules and library classes in one optimizer."""

from __future__ import annotations

import copy
import pickle
from dataclasses import dataclass, replace
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


MEASURING_RULE = Rule(
    name="Measured",
    update=shrinking,
    measures={"variable": thalweg.formula.variable_squares},
    per_variable=measured,
    slots=(Slot("shrunk", scalar=True),),
)


@dataclass
class Center:
    """`center` as a callable without a hash."""

    weight: float = 1.0

    def __call__(self, *, step: Any) -> dict[str, Any]:
        return {"step": step - self.weight * step.mean(dim=(1, 2), keepdim=True)}


HEADS = replace(CENTERED, name="Heads", passes=(CENTERED.passes[0], Stage(center, heads=3)))


def counted(*, learning_rate, count):
    return {"rate": learning_rate / (count + 1), "count": count + 1}


def shrinking_slowly(var, grad, *, rate, shrink):
    return (var - rate * shrink * grad,)


SCALED_RULE = replace(  # one number is of `prepare`, the other of `per_variable`
    MEASURING_RULE, name="Counted", update=shrinking_slowly, prepare=counted,
    slots=(Slot("count", scalar=True), Slot("shrunk", scalar=True)),
)  # fmt: skip
RULES = {rule.name: rule for rule in (SLOW, POWERS, CENTERED, MEASURING_RULE, HEADS, SCALED_RULE)}


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
def test_user_rule_beside_a_class_equals_the_rule_alone(rule: Rule) -> None:
    """Scalars are computed with Python numbers, as for torch's classes."""
    first_net, ref_net = model(), model()
    mixed_opt = mixed(first_net, rule)
    matrices = [param for param in ref_net.parameters() if param.dim() > 1]
    vectors = [param for param in ref_net.parameters() if param.dim() < 2]
    references = [optim.RuleOptimizer(matrices, rule), optim.AdamW(vectors)]
    for step in range(5):
        for net in (first_net, ref_net):
            backward(net, step)
        for stepped in (mixed_opt, *references):
            stepped.step()
    torch.testing.assert_close(values(first_net), values(ref_net), rtol=1e-5, atol=1e-6)
    assert not any(map(torch.equal, values(first_net), values(model())))
    assert mixed_opt.last_step.count == 5
    names = {slot.name for slot in rule.slots}
    for param in first_net.parameters():
        if param.dim() > 1:
            assert mixed_opt.state[param].keys() == {*names, "step"}
            assert mixed_opt.state[param]["step"].item() == 5


@pytest.mark.one_in(3)
@pytest.mark.parametrize("options", [{"clip_grad_norm": 0.5}, {"ema_decay": 0.9},
                                     {"accumulate": 2}, {"lookahead": 2}], ids=str)  # fmt: skip
@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
def test_engines_agree_under_every_option(rule: Rule, options: Any) -> None:
    results: list[Any] = []
    for engine in ("cpu", "reference"):
        net = model()
        with thalweg.engine(engine):
            opt = mixed(net, rule, **options)
            for step in range(4):
                backward(net, step)
                opt.step()
        results.append(values(net))
    assert_same(*results)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
def test_user_rule_state_resumes_in_other_front_ends(rule: Rule, tmp_path: Any) -> None:
    nets = [model() for _ in range(4)]
    optimizers = [mixed(net, rule) for net in nets]
    for step in range(2):
        backward(nets[0], step)
        optimizers[0].step()
    state = optimizers[0].state_dict()
    assert {group["rule"] for group in state["param_groups"]} == {rule.name, "AdamW"}
    torch.save(state, tmp_path / "state")
    nets[1].load_state_dict(nets[0].state_dict())
    optimizers[1].load_state_dict(torch.load(tmp_path / "state", weights_only=True))
    checkpoint.save(tmp_path / "it", module=nets[0], optimizer=optimizers[0])
    checkpoint.restore(tmp_path / "it", module=nets[2], optimizer=optimizers[2])
    nets[3], optimizers[3] = pickle.loads(pickle.dumps((nets[0], optimizers[0])))
    nets.append(copy.deepcopy(nets[0]))
    optimizers.append(copy.deepcopy((nets[0], optimizers[0]))[1])
    nets[4], optimizers[4] = copy.deepcopy((nets[0], optimizers[0]))
    for net, opt in zip(nets, optimizers, strict=True):
        backward(net, 2)
        opt.step()
    for net in nets[1:]:
        assert_same(values(net), values(nets[0]))


def test_state_of_another_rule_raises() -> None:
    optimizers = [mixed(model(), rule) for rule in (SLOW, CENTERED)]
    previous = copy.deepcopy(optimizers[1].state_dict())
    with pytest.raises(
        CheckpointMismatchError, match=r"rule of group \d is 'Slow', here 'Centered'"
    ):
        optimizers[1].load_state_dict(optimizers[0].state_dict())
    assert optimizers[1].state_dict() == previous


def test_user_rule_groups_have_names_and_options() -> None:
    net = model()
    groups = optim.groups(net, rules={"0.*": {"rule": SLOW, "lr": 0.5}, ...: "AdamW"})
    assert "Slow" in str(groups)
    opt = optim.Mixed(groups)
    group = next(group for group in opt.param_groups if group["rule"] == "Slow")
    assert (group["lr"], group["beta1"]) == (0.5, 0.5)
    torch.optim.lr_scheduler.StepLR(opt, 1, 0.5)
    opt.add_param_group({"params": [("a", torch.ones(2, requires_grad=True))], "rule": "Slow"})
    assert opt.param_groups[-1]["lr"] == 0.25
    with pytest.raises(InvalidArgumentError, match="rules of their own are for Mixed"):
        optim.AdamW(groups)


INVALID_GROUPS: dict[str, tuple[Any, Any, str]] = {
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


@pytest.mark.parametrize("name", INVALID_GROUPS)
def test_invalid_user_rule_groups_raise(name: str) -> None:
    group, error, message = INVALID_GROUPS[name]
    group_kwargs = {"params": [torch.zeros(3, requires_grad=True)], **group}
    with pytest.raises(error, match=message):
        optim.Mixed([group_kwargs])
    opt = optim.Mixed([{"params": [torch.zeros(2, requires_grad=True)], "rule": "SGD"}])
    with pytest.raises(error, match=message.replace("group 0", "group 1")):
        opt.add_param_group(group_kwargs)
    assert len(opt.param_groups) == 1
    assert not opt._named


@pytest.mark.parametrize("name", ["lookahead", "cautious", "ema_decay", "params", "rule"])
def test_a_hyperparameter_is_not_called_as_an_option(name: str) -> None:
    rule = replace(SLOW, hypers=(*SLOW.hypers, Hyper(name, 1.0)))
    for kwargs in ({}, {"cautious": True}):
        with pytest.raises(RuleError, match=f"has a hyperparameter named '{name}', which means"):
            optim.RuleOptimizer(model().parameters(), rule, **kwargs)


def test_two_rules_of_one_name_raise() -> None:
    twin = replace(SLOW)
    net = model()
    groups = optim.groups(net, rules={1: SLOW, ...: twin})
    with pytest.raises(InvalidArgumentError, match="'Slow', and another rule of this optimizer"):
        optim.Mixed(groups)
    opt = mixed(net, SLOW)
    group = {"params": [("a", torch.zeros(2, requires_grad=True))], "rule": twin}
    with pytest.raises(InvalidArgumentError, match="'Slow', and another rule of this optimizer"):
        opt.add_param_group(group)
    opt.add_param_group({**group, "rule": SLOW})
    assert len(opt.param_groups) == 3


def test_sparse_rows_follow_the_user_rule() -> None:
    table = nn.Embedding(9, 4, sparse=True)
    opt = optim.Mixed([{"params": table.parameters(), "rule": SLOW}])
    previous = table.weight.detach().clone()
    table(torch.tensor([1, 3])).sum().backward()
    opt.step()
    is_changed = (table.weight.detach() != previous).any(dim=1)
    assert is_changed.tolist() == [row in (1, 3) for row in range(9)]


def test_stage_of_unhashable_callable_equals_a_function() -> None:
    unhashable = replace(CENTERED, passes=(CENTERED.passes[0], Stage(Center())))
    starts = torch.randn(2, 4, 3, generator=torch.Generator().manual_seed(0))
    results: list[list[torch.Tensor]] = []
    for rule in (CENTERED, unhashable):
        params = [nn.Parameter(start.clone()) for start in starts]
        optimizers = [
            optim.RuleOptimizer(params[:1], rule),
            optim.Mixed([{"params": params[1:], "rule": rule}]),
        ]
        for _ in range(3):
            for param in params:
                param.grad = param.detach().square()
            for opt in optimizers:
                opt.step()
        results.append([param.detach() for param in params])
    assert_same(*results)
