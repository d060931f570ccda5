"""`optim.Mixed`: several rules in one step, equal to separate optimizers; selection of rules."""

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


def create_separate(net: nn.Module, groups: Any, **options: Any) -> list[Any]:
    """Return one optimizer per group."""
    params, opts = dict(net.named_parameters()), []
    for group in groups:
        group_options = {k: option for k, option in group.items() if k not in ("params", "rule")}
        params_of_group = [(name, params[name]) for name, _ in group["params"]]
        opts.append(getattr(optim, group["rule"])(params_of_group, **group_options, **options))
    return opts


def check_against_separate(rules: Any, sparse: bool = False, **options: Any) -> None:
    net, ref_net = model(sparse), model(sparse)
    groups = optim.groups(net, rules=rules)
    mixed, references = optim.Mixed(groups, **options), create_separate(ref_net, groups, **options)
    for step in range(5):
        for stepped in (net, ref_net):
            backward(stepped, step)
        mixed.step()
        for reference in references:
            reference.step()
    assert_same(values(net), values(ref_net))
    assert not all(map(torch.equal, values(net), values(model())))
    for group, reference in zip(mixed.param_groups, references, strict=True):
        (ref_group,) = reference.param_groups
        for param, ref_param in zip(group["params"], ref_group["params"], strict=True):
            state, expected = mixed.state[param], reference.state[ref_param]
            assert state.keys() == expected.keys()
            for name in expected:
                torch.testing.assert_close(state[name], expected[name], rtol=0, atol=0)


@pytest.mark.parametrize("rule", KINDS)
@pytest.mark.one_in(3)
def test_mixed_rules_equal_separate_optimizers(rule: str) -> None:
    of_matrices = getattr(optim, rule)._of_matrices
    second_rule = "Adam" if rule != "Adam" else "Lion"
    check_against_separate({"1.weight" if of_matrices else "1": rule, ...: second_rule})


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
def test_options_apply_to_all_groups(options: Any) -> None:
    check_against_separate(RULES, **options)


def test_mixed_takes_sparse_and_dense_gradients() -> None:
    check_against_separate({"0.weight": "SparseAdam", ...: "AdamW"}, sparse=True)
    net = model(sparse=True)
    opt = optim.Mixed(optim.groups(net, rules={...: "Lion"}))
    previous = values(net)
    backward(net)
    with pytest.raises(RuntimeError, match="Lion does not support sparse gradients"):
        opt.step()
    assert_same(values(net), previous)


def test_one_norm_clips_all_groups() -> None:
    net, ref_net = model(), model()
    groups = optim.groups(net, rules=RULES)
    mixed, references = optim.Mixed(groups, clip_grad_norm=0.5), create_separate(ref_net, groups)
    for step in range(3):
        for stepped in (net, ref_net):
            backward(stepped, step)
        mixed.step()
        norm = nn.utils.clip_grad_norm_(ref_net.parameters(), 0.5)
        for reference in references:
            reference.step()
        torch.testing.assert_close(mixed.last_step.grad_norm, norm.item())
    torch.testing.assert_close(values(net), values(ref_net))
    assert mixed.last_step.count == 3


def test_failed_step_changes_nothing() -> None:
    net = model()
    opt = optim.Mixed(optim.groups(net, rules=RULES))
    backward(net)
    opt.step()
    previous, state = values(net), copy.deepcopy(opt.state_dict())
    backward(net)
    last_param = list(net.parameters())[-1]
    opt.state[last_param]["exp_avg"] = torch.zeros(2)
    with pytest.raises((ValueError, RuntimeError), match="its slot has shape"):
        opt.step()
    assert_same(values(net), previous)
    opt.load_state_dict(state)
    opt.step()
    assert opt.last_step.taken


def test_training_continues_from_state() -> None:
    nets = [model() for _ in range(3)]
    opts = [optim.Mixed(optim.groups(net, rules=RULES)) for net in nets]
    for step in range(2):
        backward(nets[0], step)
        opts[0].step()
    nets[1].load_state_dict(nets[0].state_dict())
    opts[1].load_state_dict(copy.deepcopy(opts[0].state_dict()))
    nets[2] = copy.deepcopy(nets[0])
    opts[2] = pickle.loads(pickle.dumps((nets[0], opts[0])))
    nets[2], opts[2] = opts[2]
    for net, opt in zip(nets, opts, strict=True):
        backward(net, 2)
        opt.step()
    for net in nets[1:]:
        assert_same(values(net), values(nets[0]))


def test_load_rejects_state_of_other_rules() -> None:
    opts = [optim.Mixed(optim.groups(model(), rules={...: rule})) for rule in ("Lion", "AdamW")]
    with pytest.raises(CheckpointMismatchError, match="the rule of group 0 is 'Lion', here 'AdamW"):
        opts[1].load_state_dict(opts[0].state_dict())
    assert opts[1].param_groups[0]["rule"] == "AdamW"


def test_mixed_checkpoint_round_trips(tmp_path: Any) -> None:
    net, second_net = model(), model()
    opt, second_opt = (optim.Mixed(optim.groups(model, rules=RULES)) for model in (net, second_net))
    backward(net)
    opt.step()
    thalweg.checkpoint.save(tmp_path / "it", module=net, optimizer=opt)
    thalweg.checkpoint.restore(tmp_path / "it", module=second_net, optimizer=second_opt)
    for stepped_net, stepped_opt in ((net, opt), (second_net, second_opt)):
        backward(stepped_net)
        stepped_opt.step()
    assert_same(values(second_net), values(net))


def test_schedule_sets_lr_of_all_groups() -> None:
    net = model()
    opt = optim.Mixed(optim.groups(net, rules=RULES))
    previous = [group["lr"] for group in opt.param_groups]
    schedule = torch.optim.lr_scheduler.StepLR(opt, 1, 0.5)
    backward(net)
    opt.step()
    schedule.step()
    assert [group["lr"] for group in opt.param_groups] == [lr / 2 for lr in previous]


def test_swapped_changes_schedule_free_params() -> None:
    net = model()
    opt = optim.Mixed(optim.groups(net, rules={"1.weight": "ScheduleFreeAdamW", ...: "AdamW"}))
    for step in range(3):
        backward(net, step)
        opt.step()
    previous = values(net)
    with opt.swapped():
        is_equal = [bool(torch.equal(*pair)) for pair in zip(previous, values(net), strict=True)]
        with pytest.raises(FailedPreconditionError, match="save it outside"):
            opt.state_dict()
    assert is_equal == [name != "1.weight" for name, _ in net.named_parameters()]
    assert_same(values(net), previous)
    with pytest.raises(InvalidArgumentError, match="ema_decay"):
        optim.Mixed(optim.groups(net, rules=RULES)).swapped()


def test_changed_rule_raises() -> None:
    net = model()
    opt = optim.Mixed(optim.groups(net, rules={...: "Lion"}))
    previous = values(net)
    changes = (
        ("AdamW", "has no 'amsgrad'"), ("Leon", "Did you mean 'Lion'"),
        (optim.Lion, "must be a name here"),
    )  # fmt: skip
    for rule, message in changes:
        opt.param_groups[0]["rule"] = rule
        backward(net)
        with pytest.raises((NotFoundError, InvalidArgumentError, InvalidTypeError), match=message):
            opt.step()
    assert_same(values(net), previous)


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
def test_invalid_groups_raise(group: Any, error: Any, message: str) -> None:
    group_options = {"params": list(model().parameters()), **group}
    with pytest.raises(error, match=message):
        optim.Mixed([group_options])
    opt = optim.Mixed([{"params": [nn.Parameter(torch.zeros(2))], "rule": "SGD"}])
    with pytest.raises(error, match=message.replace("0", "1")):
        opt.add_param_group(group_options)
    assert len(opt.param_groups) == 1


def rules_by_name(rules: Any, net: nn.Module | None = None, **options: Any) -> dict[str, str]:
    groups = optim.groups(net or model(), rules=rules, **options)
    return {name: group["rule"] for group in groups for name, _ in group["params"]}


def test_specific_selectors_take_precedence() -> None:
    rules = {
        ...: "SGD", 1: "Adam", 2: "AdamW", nn.LayerNorm: "Lion", ("3.bias",): "LAMB", "3": "Adan",
        "3.weight": "NAdam", "2.bias": "RAdam",
    }  # fmt: skip
    assert rules_by_name(rules) == {
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
def test_invalid_rules_raise(rules: Any, error: Any, message: str) -> None:
    with pytest.raises(error, match=message):
        optim.groups(model(), rules=rules)


def test_rules_set_decay_and_rates() -> None:
    rules = {"1": {"rule": "AdamW", "weight_decay": 0.3, "lr": 1.0}, "0": "AdamH", ...: "AdamW"}
    groups = optim.groups(model(), rules=rules, decay=0.1, no_decay=1, lr=0.5, lr_scale={"1": 0.1})
    settings = {name: (group.get("weight_decay"), group["lr"])
             for group in groups for name, _ in group["params"]}  # fmt: skip
    assert settings == {
        "0.weight": (None, 0.5), "1.weight": (0.3, 0.1), "1.bias": (0.0, 0.1),
        "2.weight": (0.0, 0.5), "2.bias": (0.0, 0.5), "3.weight": (0.1, 0.5), "3.bias": (0.0, 0.5),
    }  # fmt: skip
    optim.Mixed(groups)
    assert "0.weight" not in rules_by_name({...: "SGD"}, frozen="0")


def test_tensor_lr_is_scaled_once() -> None:
    rules = {...: {"rule": "SGD", "lr": torch.tensor(0.5)}}
    groups = optim.groups(model(), rules=rules, lr_scale={"1": 0.5, "3": 0.5})
    assert [(group["lr"].item(), len(group["params"])) for group in groups] == [(0.5, 3), (0.25, 4)]


def test_groups_with_rules_need_mixed() -> None:
    groups = optim.groups(model(), rules={...: "Lion"})
    with pytest.raises(InvalidArgumentError, match="rules of their own are for Mixed"):
        optim.AdamW(groups)
    assert optim.Lion(groups).param_groups[0]["rule"] == "Lion"


@pytest.mark.parametrize("rule", ["Adam", "AdamW", "SGD", "RMSprop", "NAdam", "Lion"])
def test_load_of_state_of_older_torch(rule: str) -> None:
    """Options missing in the state have the defaults of the group's class."""
    option_names = {
        "maximize",
        "foreach",
        "capturable",
        "differentiable",
        "fused",
        "amsgrad",
        "nesterov",
    }
    net, ref_net = model(), model()
    mixed = optim.Mixed(optim.groups(net, rules={...: rule}))
    reference = getattr(optim, rule)(ref_net.parameters())
    remaining: list[Any] = []
    for stepped_net, opt in ((net, mixed), (ref_net, reference)):
        backward(stepped_net)
        opt.step()
        state = copy.deepcopy(opt.state_dict())
        for name in option_names:
            state["param_groups"][0].pop(name, None)
        opt.load_state_dict(state)
        remaining.append({name: opt.param_groups[0].get(name) for name in option_names})
        backward(stepped_net)
        opt.step()
    assert remaining[0] == remaining[1]
    assert_same(values(net), values(ref_net))


def test_betas_may_be_a_list() -> None:
    opt = optim.Mixed(optim.groups(model(), rules={...: {"rule": "Adan", "betas": [0.9] * 3}}))
    assert opt.param_groups[0]["betas"] == [0.9] * 3


def test_swapped_without_mean_raises() -> None:
    net = model()
    opt = optim.ScheduleFreeSGD(net.parameters(), momentum=0.0)
    backward(net)
    opt.step()
    with pytest.raises(InvalidArgumentError, match="lost the mean"), opt.swapped():
        pass


def test_parameter_names_are_not_patterns() -> None:
    net = nn.ParameterDict(
        {"a[0]": nn.Parameter(torch.zeros(2)), "a0": nn.Parameter(torch.zeros(2))}
    )
    assert rules_by_name({"a[0]": "Lion", ...: "SGD"}, net) == {"a[0]": "Lion", "a0": "SGD"}
    assert rules_by_name({"a[01]": "Lion", ...: "SGD"}, net) == {"a[0]": "SGD", "a0": "Lion"}
    groups = optim.groups(net, decay=0.1, no_decay="a[0]")
    assert [group["weight_decay"] for group in groups] == [0.1, 0.0]


def test_a_tied_parameter_has_two_names() -> None:
    assert rules_by_name({"head.weight": "Lion", ...: "SGD"}, Tied())["embedding.weight"] == "Lion"
    assert optim.hidden_matrices(Tied(), leave="conv", allow="head.weight") == (
        "embedding.weight", "mixing.weight",
    )  # fmt: skip


def test_frozen_params_are_selected() -> None:
    rules = {"0.weight": "Lion", ...: "SGD"}
    assert set(rules_by_name(rules, frozen="0").values()) == {"SGD"}
    with pytest.raises(InvalidArgumentError, match="selects no parameter"):
        optim.groups(nn.Flatten(), rules={...: "SGD"})


def test_table_lists_added_groups() -> None:
    groups = optim.groups(model(), rules={...: "SGD"})
    groups.append({"params": [torch.zeros(2)]})
    assert str(groups).splitlines()[-1].split()[-3:] == ["1", "2", "unnamed"]


def test_model_without_output_embeddings_is_supported() -> None:
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


def test_groups_table_lists_rules() -> None:
    lines = str(optim.groups(model(), rules=RULES)).splitlines()
    assert lines[0].split() == ["rule", "options", "parameters", "elements", "such", "as"]
    assert [line.split()[0] for line in lines[1:]] == ["SGD", "Lion", "AdamW", "Adam"]
    assert lines[3].split()[1:4] == ["lr=0.003", "4", "27"]


class Tied(nn.Module):
    """Model with methods for input and output embeddings, which are tied."""

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
    """Layer of unknown orientation."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(4, 8))


def test_hidden_matrices_selects_by_names() -> None:
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
                         ids=lambda layer: type(layer).__name__)  # fmt: skip
def test_unknown_layers_raise(layer: nn.Module) -> None:
    name = next(name for name, param in layer.named_parameters() if param.dim() > 1)
    title = type(layer).__name__
    with pytest.raises(InvalidArgumentError, match=f"{name!r} of shape.* of a {title}"):
        optim.hidden_matrices(layer, output=())
    names = [name for name, param in layer.named_parameters() if param.dim() > 1]
    assert name in optim.hidden_matrices(layer, output=(), allow=names)
    assert optim.hidden_matrices(layer, output=(), leave=names) in ((), ("out_proj.weight",))
