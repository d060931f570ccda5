"""One optimizer of several rules: what each does alone, in one step; and who chooses them."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch
from torch import nn

import thalweg
from rulebook import assert_same
from thalweg import optim
from thalweg.errors import (
    CheckpointMismatchError,
    FailedPreconditionError,
    InvalidArgumentError,
    InvalidTypeError,
    NotFoundError,
)
from thalweg.optim import rule_names

KINDS = [name for name in rule_names.KINDS if name != "SparseAdam"]
RULES = {
    "0.weight": {"rule": "SGD", "lr": 0.1, "momentum": 0.9},
    1: {"rule": "AdamW", "lr": 3e-3},
    ("1.weight",): {"rule": optim.Lion, "lr": 1e-3},
    ...: "Adam",
}


def model(sparse: bool = False) -> nn.Sequential:
    torch.manual_seed(0)
    layers = nn.Embedding(9, 4, sparse=sparse), nn.Linear(4, 6), nn.LayerNorm(6), nn.Linear(6, 9)
    return nn.Sequential(*layers)


def backward(net: nn.Module, step: int = 0) -> None:
    net.zero_grad()
    tokens = (torch.arange(12) * 5 + step) % 9
    (net(tokens).square().mean() * 30).backward()


def values(net: nn.Module) -> list[torch.Tensor]:
    return [param.detach().clone() for param in net.parameters()]


def alone(net: nn.Module, groups: Any, **options: Any) -> list[Any]:
    """An optimizer for each group."""
    params, made = dict(net.named_parameters()), []
    for group in groups:
        own = {k: each for k, each in group.items() if k not in ("params", "rule")}
        named = [(name, params[name]) for name, _ in group["params"]]
        made.append(getattr(optim, group["rule"])(named, **own, **options))
    return made


def check_as_alone(rules: Any, sparse: bool = False, **options: Any) -> None:
    one, other = model(sparse), model(sparse)
    groups = optim.groups(one, rules=rules)
    together, apart = optim.Mixed(groups, **options), alone(other, groups, **options)
    for step in range(5):
        for net in (one, other):
            backward(net, step)
        together.step()
        for each in apart:
            each.step()
    assert_same(values(one), values(other))
    assert not all(map(torch.equal, values(one), values(model())))
    for group, each in zip(together.param_groups, apart, strict=True):
        (own,) = each.param_groups
        for param, its in zip(group["params"], own["params"], strict=True):
            kept, wanted = together.state[param], each.state[its]
            assert kept.keys() == wanted.keys()
            for name in wanted:
                torch.testing.assert_close(kept[name], wanted[name], rtol=0, atol=0)


@pytest.mark.parametrize("kind", KINDS)
def test_each_rule_beside_another(kind: str) -> None:
    of_matrices = getattr(optim, kind)._of_matrices
    other = "Adam" if kind != "Adam" else "Lion"
    check_as_alone({"1.weight" if of_matrices else "1": kind, ...: other})


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"accumulate": 2},
        {"ema_decay": 0.9},
        {"lookahead": 2},
        {"clip_grad_value": 0.01},
        {"state_dtype": torch.bfloat16},
    ],
    ids=str,
)
def test_options_are_of_all_groups(options: Any) -> None:
    check_as_alone(RULES, **options)


def test_rows_beside_dense_gradients() -> None:
    check_as_alone({"0.weight": "SparseAdam", ...: "AdamW"}, sparse=True)
    net = model(sparse=True)
    made = optim.Mixed(optim.groups(net, rules={...: "Lion"}))
    before = values(net)
    backward(net)
    with pytest.raises(RuntimeError, match="Lion does not support sparse gradients"):
        made.step()
    assert_same(values(net), before)


def test_one_norm_clips_all_groups() -> None:
    one, other = model(), model()
    groups = optim.groups(one, rules=RULES)
    together, apart = optim.Mixed(groups, clip_grad_norm=0.5), alone(other, groups)
    for step in range(3):
        for net in (one, other):
            backward(net, step)
        together.step()
        norm = nn.utils.clip_grad_norm_(other.parameters(), 0.5)
        for each in apart:
            each.step()
        torch.testing.assert_close(together.last_step.grad_norm, norm.item())
    torch.testing.assert_close(values(one), values(other))
    assert together.last_step.count == 3


def test_a_step_that_fails_updates_no_group() -> None:
    net = model()
    made = optim.Mixed(optim.groups(net, rules=RULES))
    backward(net)
    made.step()
    before, state = values(net), copy.deepcopy(made.state_dict())
    backward(net)
    last = list(net.parameters())[-1]
    made.state[last]["exp_avg"] = torch.zeros(2)
    with pytest.raises((ValueError, RuntimeError), match="its slot has shape"):
        made.step()
    assert_same(values(net), before)
    made.load_state_dict(state)
    made.step()
    assert made.last_step.taken


def test_a_state_goes_on_elsewhere() -> None:
    nets = [model() for _ in range(3)]
    made = [optim.Mixed(optim.groups(net, rules=RULES)) for net in nets]
    for step in range(2):
        backward(nets[0], step)
        made[0].step()
    nets[1].load_state_dict(nets[0].state_dict())
    made[1].load_state_dict(copy.deepcopy(made[0].state_dict()))
    nets[2] = copy.deepcopy(nets[0])
    made[2] = pickle.loads(pickle.dumps((nets[0], made[0])))
    nets[2], made[2] = made[2]
    for net, each in zip(nets, made, strict=True):
        backward(net, 2)
        each.step()
    for net in nets[1:]:
        assert_same(values(net), values(nets[0]))


def test_a_state_of_other_rules_is_refused() -> None:
    made = [optim.Mixed(optim.groups(model(), rules={...: kind})) for kind in ("Lion", "AdamW")]
    with pytest.raises(CheckpointMismatchError, match="the rule of group 0 is 'Lion', here 'AdamW"):
        made[1].load_state_dict(made[0].state_dict())
    assert made[1].param_groups[0]["rule"] == "AdamW"


def test_files(tmp_path: Any) -> None:
    net, other = model(), model()
    made, its = (optim.Mixed(optim.groups(each, rules=RULES)) for each in (net, other))
    backward(net)
    made.step()
    thalweg.checkpoint.save(tmp_path / "it", module=net, optimizer=made)
    thalweg.checkpoint.restore(tmp_path / "it", module=other, optimizer=its)
    for each, step in ((net, made), (other, its)):
        backward(each)
        step.step()
    assert_same(values(other), values(net))


def test_schedules_see_each_group() -> None:
    net = model()
    made = optim.Mixed(optim.groups(net, rules=RULES))
    before = [group["lr"] for group in made.param_groups]
    schedule = torch.optim.lr_scheduler.StepLR(made, 1, 0.5)
    backward(net)
    made.step()
    schedule.step()
    assert [group["lr"] for group in made.param_groups] == [each / 2 for each in before]


def test_means_of_those_that_have_them() -> None:
    net = model()
    made = optim.Mixed(optim.groups(net, rules={"1.weight": "ScheduleFreeAdamW", ...: "AdamW"}))
    for step in range(3):
        backward(net, step)
        made.step()
    before = values(net)
    with made.swapped():
        same = [bool(torch.equal(*pair)) for pair in zip(before, values(net), strict=True)]
        with pytest.raises(FailedPreconditionError, match="save it outside"):
            made.state_dict()
    assert same == [name != "1.weight" for name, _ in net.named_parameters()]
    assert_same(values(net), before)
    with pytest.raises(InvalidArgumentError, match="ema_decay"):
        optim.Mixed(optim.groups(net, rules=RULES)).swapped()


def test_a_rule_that_is_changed_is_refused() -> None:
    net = model()
    made = optim.Mixed(optim.groups(net, rules={...: "Lion"}))
    before = values(net)
    changes = (
        ("AdamW", "has no 'amsgrad'"), ("Leon", "Did you mean 'Lion'"),
        (optim.Lion, "must be a name here"),
    )  # fmt: skip
    for rule, message in changes:
        made.param_groups[0]["rule"] = rule
        backward(net)
        with pytest.raises((NotFoundError, InvalidArgumentError, InvalidTypeError), match=message):
            made.step()
    assert_same(values(net), before)


@pytest.mark.parametrize(
    ("group", "error", "message"),
    [
        ({}, NotFoundError, "Group 0 has no 'rule'"),
        ({"rule": "Adm"}, InvalidArgumentError, "Did you mean 'Adam'"),
        ({"rule": torch.optim.Adam}, InvalidTypeError, "a class of thalweg.optim or its name"),
        ({"rule": 3}, InvalidTypeError, "a class of thalweg.optim or its name"),
        ({"rule": "Lion", "eps": 1.0}, InvalidArgumentError, "'eps' of group 0 is no option"),
        ({"rule": "Lion", "lr": -1.0}, ValueError, "Invalid learning rate"),
        ({"rule": "Adam", "differentiable": True}, InvalidArgumentError, "torch's own classes"),
        ({"rule": "Adam", "weigth_decay": 7}, InvalidArgumentError, "Did you mean 'weight_decay'"),
        ({"rule": "Adam", "learning_rate": 7}, InvalidArgumentError, "Did you mean 'lr'"),
        (
            {"rule": "AdamW", "decoupled_weight_decay": False},
            InvalidArgumentError,
            "AdamW has True",
        ),
        ({"rule": "Lion", "ema_decay": 0.9}, InvalidArgumentError, "decides it for all groups"),
    ],
    ids=str,
)
def test_groups_that_are_refused(group: Any, error: Any, message: str) -> None:
    given = {"params": list(model().parameters()), **group}
    with pytest.raises(error, match=message):
        optim.Mixed([given])
    made = optim.Mixed([{"params": [nn.Parameter(torch.zeros(2))], "rule": "SGD"}])
    with pytest.raises(error, match=message.replace("0", "1")):
        made.add_param_group(given)
    assert len(made.param_groups) == 1


def chosen(rules: Any, net: nn.Module | None = None, **options: Any) -> dict[str, str]:
    groups = optim.groups(net or model(), rules=rules, **options)
    return {name: group["rule"] for group in groups for name, _ in group["params"]}


def test_who_comes_first() -> None:
    rules = {
        ...: "SGD", 1: "Adam", 2: "AdamW", nn.LayerNorm: "Lion", ("3.bias",): "LAMB", "3": "Adan",
        "3.weight": "NAdam", "2.bias": "RAdam",
    }  # fmt: skip
    assert chosen(rules) == {
        "0.weight": "AdamW", "1.weight": "AdamW", "1.bias": "Adam", "2.weight": "Lion",
        "2.bias": "RAdam", "3.weight": "NAdam", "3.bias": "Adan",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("rules", "error", "message"),
    [
        ({"0": "SGD"}, InvalidArgumentError, "No rule is for '1.weight' of shape .6, 4.: add"),
        ({"0.*": "SGD", "*.weight": "Adam", ...: "Adam"}, InvalidArgumentError,
         r"Two rules are for '0.weight' of shape \(9, 4\), that of '0.\*' and that of '\*.weight'"),
        ({"wieght": "SGD", ...: "Adam"}, InvalidArgumentError, "Did you mean 'weight'"),
        ({("w",): "SGD", ...: "Adam"}, InvalidArgumentError, "is the name of no parameter"),
        ({}, InvalidTypeError, "a dict of a selector and a rule"),
        ("Adam", InvalidTypeError, "a dict of a selector and a rule"),
        ({...: {"lr": 1.0}}, InvalidArgumentError, "have no 'rule' among them"),
        ({...: "Adm"}, InvalidArgumentError, "Did you mean 'Adam'"),
        ({("1.weigth", "0.weight"): "Adam", ...: "SGD"}, InvalidArgumentError,
         "'1.weigth' of the tuple.* is the name of no parameter. Did you mean '1.weight'"),
        ({...: {"rule": "Adan", "weight_dacay": 0.1}}, InvalidArgumentError,
         "'weight_dacay' of `...` is no option of Adan. Did you mean 'weight_decay'"),
        ({1.5: "Adam", ...: "SGD"}, InvalidTypeError, "not 1.5"),
        ({2: "Adam", ...: "SGD"}, InvalidArgumentError,
         r"Nothing is left for `...`: 2 selects .* of up to 2 dimensions, '1.bias' of 1 too. Give"
         " 1 in place of"),
    ],
    ids=str,
)  # fmt: skip
def test_rules_that_do_not_choose_once(rules: Any, error: Any, message: str) -> None:
    with pytest.raises(error, match=message):
        optim.groups(model(), rules=rules)


def test_decay_and_rates_of_rules() -> None:
    rules = {"1": {"rule": "AdamW", "weight_decay": 0.3, "lr": 1.0}, "0": "AdamH", ...: "AdamW"}
    groups = optim.groups(model(), rules=rules, decay=0.1, no_decay=1, lr=0.5, lr_scale={"1": 0.1})
    found = {name: (group.get("weight_decay"), group["lr"])
             for group in groups for name, _ in group["params"]}  # fmt: skip
    assert found == {
        "0.weight": (None, 0.5), "1.weight": (0.3, 0.1), "1.bias": (0.0, 0.1),
        "2.weight": (0.0, 0.5), "2.bias": (0.0, 0.5), "3.weight": (0.1, 0.5), "3.bias": (0.0, 0.5),
    }  # fmt: skip
    optim.Mixed(groups)
    assert "0.weight" not in chosen({...: "SGD"}, frozen="0")


def test_rates_that_are_tensors_are_scaled_once() -> None:
    rules = {...: {"rule": "SGD", "lr": torch.tensor(0.5)}}
    groups = optim.groups(model(), rules=rules, lr_scale={"1": 0.5, "3": 0.5})
    assert [(group["lr"].item(), len(group["params"])) for group in groups] == [(0.5, 3), (0.25, 4)]


def test_groups_with_rules_are_for_mixed() -> None:
    groups = optim.groups(model(), rules={...: "Lion"})
    with pytest.raises(InvalidArgumentError, match="rules of their own are for Mixed"):
        optim.AdamW(groups)
    assert optim.Lion(groups).param_groups[0]["rule"] == "Lion"


@pytest.mark.parametrize("kind", ["Adam", "AdamW", "SGD", "RMSprop", "NAdam", "Lion"])
def test_a_state_of_an_older_torch(kind: str) -> None:
    """What is filled in for the class is for a group of it."""
    added = {"maximize", "foreach", "capturable", "differentiable", "fused", "amsgrad", "nesterov"}
    net, other = model(), model()
    together = optim.Mixed(optim.groups(net, rules={...: kind}))
    alone = getattr(optim, kind)(other.parameters())
    left: list[Any] = []
    for each, made in ((net, together), (other, alone)):
        backward(each)
        made.step()
        state = copy.deepcopy(made.state_dict())
        for name in added:
            state["param_groups"][0].pop(name, None)
        made.load_state_dict(state)
        left.append({name: made.param_groups[0].get(name) for name in added})
        backward(each)
        made.step()
    assert left[0] == left[1]
    assert_same(values(net), values(other))


def test_betas_in_a_list() -> None:
    made = optim.Mixed(optim.groups(model(), rules={...: {"rule": "Adan", "betas": [0.9] * 3}}))
    assert made.param_groups[0]["betas"] == [0.9] * 3


def test_a_mean_that_is_lost_is_not_evaluated() -> None:
    net = model()
    made = optim.ScheduleFreeSGD(net.parameters(), momentum=0.0)
    backward(net)
    made.step()
    with pytest.raises(InvalidArgumentError, match="lost the mean"), made.swapped():
        pass


def test_names_are_no_patterns() -> None:
    net = nn.ParameterDict(
        {"a[0]": nn.Parameter(torch.zeros(2)), "a0": nn.Parameter(torch.zeros(2))}
    )
    assert chosen({"a[0]": "Lion", ...: "SGD"}, net) == {"a[0]": "Lion", "a0": "SGD"}
    assert chosen({"a[01]": "Lion", ...: "SGD"}, net) == {"a[0]": "SGD", "a0": "Lion"}
    groups = optim.groups(net, decay=0.1, no_decay="a[0]")
    assert [group["weight_decay"] for group in groups] == [0.1, 0.0]


def test_a_tied_parameter_has_two_names() -> None:
    assert chosen({"head.weight": "Lion", ...: "SGD"}, Tied())["embedding.weight"] == "Lion"
    assert optim.hidden_matrices(Tied(), leave="conv", allow="head.weight") == (
        "embedding.weight", "mixing.weight",
    )  # fmt: skip


def test_what_is_frozen_is_selected_still() -> None:
    rules = {"0.weight": "Lion", ...: "SGD"}
    assert set(chosen(rules, frozen="0").values()) == {"SGD"}
    with pytest.raises(InvalidArgumentError, match="selects no parameter"):
        optim.groups(nn.Flatten(), rules={...: "SGD"})


def test_the_table_of_groups_that_were_added() -> None:
    groups = optim.groups(model(), rules={...: "SGD"})
    groups.append({"params": [torch.zeros(2)]})
    assert str(groups).splitlines()[-1].split()[-3:] == ["1", "2", "unnamed"]


def test_a_model_that_names_no_output() -> None:
    net = Tied()
    net.get_output_embeddings = lambda: None
    with pytest.raises(InvalidArgumentError, match="that names a layer"):
        optim.hidden_matrices(net)

    def unknown() -> nn.Module:
        raise NotImplementedError

    net.get_input_embeddings = unknown
    assert optim.hidden_matrices(net, output="head") == ("mixing.weight", "conv.weight")
    net.get_output_embeddings = lambda: net.mixing.weight
    assert optim.hidden_matrices(net) == ("conv.weight",)


def test_the_table() -> None:
    lines = str(optim.groups(model(), rules=RULES)).splitlines()
    assert lines[0].split() == ["rule", "options", "parameters", "elements", "such", "as"]
    assert [line.split()[0] for line in lines[1:]] == ["SGD", "Lion", "AdamW", "Adam"]
    assert lines[3].split()[1:4] == ["lr=0.003", "4", "27"]


class Tied(nn.Module):
    """A model with names of its input and its output, which are one."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(9, 4), nn.Linear(4, 9)
        self.head.weight = self.embedding.weight
        self.mixing, self.conv = nn.Linear(4, 4), nn.Conv1d(4, 4, 3)

    def get_input_embeddings(self) -> nn.Module:
        return self.embedding

    def get_output_embeddings(self) -> nn.Module:
        return self.head


class Transposed(nn.Module):
    """A layer that nobody knows."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(4, 8))


def test_hidden_matrices() -> None:
    assert optim.hidden_matrices(Tied()) == ("mixing.weight", "conv.weight")
    assert optim.hidden_matrices(Tied(), leave="conv") == ("mixing.weight",)
    assert optim.hidden_matrices(Tied(), allow="embedding.*", leave="conv") == (
        "embedding.weight", "mixing.weight",
    )  # fmt: skip
    assert optim.hidden_matrices(Tied(), output="head.*") == ("mixing.weight", "conv.weight")
    assert optim.hidden_matrices(model(), output="3.*") == ("1.weight",)
    assert optim.hidden_matrices(model(), output=()) == ("1.weight", "3.weight")
    with pytest.raises(InvalidArgumentError, match="that names a layer"):
        optim.hidden_matrices(model())
    with pytest.raises(InvalidArgumentError, match="output 'heads' selects no"):
        optim.hidden_matrices(model(), output="heads")


@pytest.mark.parametrize("layer", [nn.MultiheadAttention(4, 2), Transposed(), nn.LSTM(3, 4),
                                   nn.Conv2d(4, 4, 3, groups=2)],
                         ids=lambda each: type(each).__name__)  # fmt: skip
def test_layers_that_nobody_knows_are_refused(layer: nn.Module) -> None:
    name = next(name for name, param in layer.named_parameters() if param.dim() > 1)
    title = type(layer).__name__
    with pytest.raises(InvalidArgumentError, match=f"{name!r} of shape.* of a {title}"):
        optim.hidden_matrices(layer, output=())
    every = [name for name, param in layer.named_parameters() if param.dim() > 1]
    assert name in optim.hidden_matrices(layer, output=(), allow=every)
    assert optim.hidden_matrices(layer, output=(), leave=every) in ((), ("out_proj.weight",))
