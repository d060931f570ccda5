"""Options of groups: each one takes effect or raises."""

from __future__ import annotations

import copy
import inspect
import os
import pickle
import subprocess
import sys
from functools import partial
from typing import Any

import pytest
import torch

from rulebook import assert_same
from thalweg import optim
from thalweg.errors import CheckpointMismatchError
from thalweg.optim import tensorflow
from thalweg.optim.diagnostics import Spikes
from thalweg.optim.rule_names import KINDS
from thalweg.optim.step_options import KEYWORDS

RENAMED_OPTIONS: dict[str, Any] = {
    "betas": (0.5, 0.75),
    "nesterov": True,
    "amsgrad": True,
    "centered": True,
    "learning_rate_power": -0.75,
}
TENSORFLOWS = [
    (name, option)
    for name in tensorflow.__all__
    for option in inspect.signature(getattr(tensorflow, name)).parameters
    if option not in ("params", "lr", "capturable", *KEYWORDS)
]
SPIKES = Spikes(print)  # returns None: steps are taken
# Several optimizers have it, one after the other.
vars(SPIKES.judge)["attach_to"] = partial(setattr, SPIKES.judge, "_source")
STEP_OPTIONS: dict[str, Any] = {
    "clip_grad_norm": 1e-6,
    "clip_grad_value": 0.5,
    "fused_unscale": True,
    "cautious_decay": True,
    "cautious": True,
    "trust_ratio": True,
    "sphere": True,
    "row_floor": 0.1,
    "radial_brake": 0.25,
    "state_storage": "8bit",
    "weights": "split",
    "lookahead": 2,
    "lookahead_alpha": 0.25,
    "ema_decay": 0.9,
    "masters": True,
    "state_dtype": torch.float64,
    "accumulate": 2,
    "wide_sums": True,
    "round": "stochastic",
    "seed": 7,
    "in_backward": True,
    "gradients": "flat",
    "state_device": "cpu",
    "diagnostics": 2,
    "spikes": SPIKES,
}
FACES = {"torch": optim.AdamW, "rule": optim.SGD, "tensorflow": tensorflow.Adam}


def param_of() -> torch.nn.Parameter:
    return torch.nn.Parameter(torch.tensor([1.0, -1.0, 0.25]))


def steps(optimizer: Any) -> torch.Tensor:
    (param,) = optimizer.param_groups[0]["params"]
    for step in range(3):
        param.grad = torch.tensor([0.5, -0.25, 2.0]) * (step + 1)
        optimizer.step()
    return param.detach()


def outcome(make: Any) -> torch.Tensor | None:
    """Return the parameter after some steps, or None if the option raises."""
    try:
        return steps(make())
    except ValueError:
        return None


@pytest.mark.one_in(3)
@pytest.mark.parametrize(("name", "option"), TENSORFLOWS)
@pytest.mark.parametrize("momentum", [0.0, 0.5])
def test_group_options_take_effect_or_raise(name: str, option: str, momentum: float) -> None:
    cls, extras = getattr(tensorflow, name), {}
    if "momentum" in inspect.signature(cls).parameters and option != "momentum":
        extras = {"momentum": momentum}
    value = RENAMED_OPTIONS.get(option, 0.125)
    expected = steps(cls([param_of()], lr=0.1, **extras, **{option: value}))
    reference = steps(cls([param_of()], lr=0.1, **extras))
    in_group = outcome(lambda: cls([{"params": [param_of()], option: value}], lr=0.1, **extras))
    assert in_group is None or torch.equal(in_group, expected)

    def later() -> Any:
        opt = cls([param_of()], lr=0.1, **extras)
        opt.param_groups[0][option] = value
        return opt

    assert (in_group is None) == (outcome(later) is None)
    if option in ("nesterov", "centered", "amsgrad") or "initial" in option:
        assert in_group is None
    assert option in ("nesterov", "amsgrad") or not torch.equal(reference, expected)


@pytest.mark.parametrize("name", ["SGD", "RMSprop"])
def test_group_momentum_needs_an_optimizer_wide_slot(name: str) -> None:
    cls = getattr(tensorflow, name)
    expected = steps(cls([param_of()], lr=0.1, momentum=0.0))
    got = outcome(lambda: cls([{"params": [param_of()], "momentum": 0.0}], lr=0.1, momentum=0.5))
    assert got is None or torch.equal(got, expected)
    assert (got is None) == (name == "RMSprop")


CLASSES = [
    *((optim, name) for name in (*KINDS, "Mixed")),
    *((tensorflow, name) for name in tensorflow.__all__ if name != "RuleOptimizer"),
]


@pytest.mark.parametrize(("module", "name"), CLASSES)
def test_unknown_argument_error_names_the_class(module: Any, name: str) -> None:
    cls = getattr(module, name)
    for tested_cls in (cls, type("Derived", (cls,), {})):
        title = tested_cls.__name__ if module is tensorflow else name
        with pytest.raises(TypeError, match="strange") as error:  # before any value is looked at
            tested_cls([param_of()], strange=1, lr="fast", accumulate=0)
        assert str(error.value).startswith((f"{title}.__init__() got", f"{title} takes no"))
    with pytest.raises(TypeError, match=rf"^{name}\.__init__\(\) missing 1 .* 'params'$"):
        cls()


@pytest.mark.parametrize("option", ["weight_decay", "amsgrad", "momentum", "maximize"])
def test_options_of_other_classes_raise(option: str) -> None:
    for make in (tensorflow.Ftrl, tensorflow.Adagrad):
        message = f"'{option}' of group 0 is .*, which is no option of {make.__name__}"
        with pytest.raises(ValueError, match=message):
            make([{"params": [param_of()], option: 0.5}])
        opt = make([{"params": [param_of()], option: 0, "name": "mine"}])
        steps(opt)
        assert opt.param_groups[0]["name"] == "mine"


def test_group_of_another_rule_raises() -> None:
    for key, value in (("rule", "Ftrl"), ("initial", {"m": 1.0})):
        with pytest.raises(ValueError, match=f"'{key}' of group 0 is "):
            tensorflow.Adam([{"params": [param_of()], key: value}])


def test_every_step_option_is_tested() -> None:
    assert set(STEP_OPTIONS) == set(KEYWORDS)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("option", STEP_OPTIONS)
@pytest.mark.parametrize("face", FACES)
def test_optimizer_wide_option_in_a_group_raises(face: str, option: str) -> None:
    make, value = FACES[face], STEP_OPTIONS[option]
    message = f"'{option}' of group {{}} is .*, but .* in the constructor"
    with pytest.raises(ValueError, match=message.format(0)):
        make([{"params": [param_of()], option: value}], lr=0.1)
    opt = make([param_of()], lr=0.1)
    with pytest.raises(ValueError, match=message.format(1)):
        opt.add_param_group({"params": [param_of()], option: value})
    assert len(opt.param_groups) == 1
    state = copy.deepcopy(opt.state_dict())
    state["param_groups"][0][option] = value
    with pytest.raises(CheckpointMismatchError, match=f"'{option}' of group 0 .* Nothing was load"):
        opt.load_state_dict(state)
    steps(opt)
    previous = opt.param_groups[0]["params"][0].detach().clone()
    opt.param_groups[0][option] = value
    with pytest.raises(ValueError, match=message.format(0)):
        steps(opt)
    assert_same([opt.param_groups[0]["params"][0].detach()], [previous])
    del opt.param_groups[0][option]
    steps(opt)


@pytest.mark.parametrize("face", FACES)
def test_enabled_options_are_in_repr_but_not_in_groups(face: str) -> None:
    make = FACES[face]
    options = {"clip_grad_norm": 0.5, "ema_decay": 0.75}
    opt, reference = make([param_of()], lr=0.1, **options), make([param_of()], lr=0.1)
    opt.add_param_group({"params": [param_of()]})
    loaded = make([{"params": [param_of()]}, {"params": [param_of()]}], **options)
    loaded.load_state_dict(opt.state_dict())
    for copied_opt in (opt, loaded, copy.deepcopy(opt), pickle.loads(pickle.dumps(opt))):
        assert "clip_grad_norm: 0.5\n    ema_decay: 0.75\n)" in repr(copied_opt)
        assert {name: copied_opt.defaults[name] for name in options} == options
        for group in (*copied_opt.param_groups, *copied_opt.state_dict()["param_groups"]):
            assert set(group) == set(reference.param_groups[0])
    assert not {*reference.defaults} & {*KEYWORDS}
    assert "All Parameter Groups" not in repr(reference)


@pytest.mark.parametrize("face", FACES)
def test_group_may_repeat_a_constructor_option(face: str) -> None:
    """Wrappers put constructor keywords into groups."""
    make = FACES[face]
    expected = steps(make([param_of()], lr=0.1, clip_grad_norm=0.5))
    opt = make([{"params": [param_of()], "clip_grad_norm": 0.5}], lr=0.1, clip_grad_norm=0.5)
    assert_same([steps(opt)], [expected])
    assert "clip_grad_norm" not in opt.state_dict()["param_groups"][0]


@pytest.mark.parametrize("face", FACES)
def test_removed_group_option_raises(face: str) -> None:
    opt = FACES[face]([param_of()], lr=0.1)
    steps(opt)
    rate = opt.param_groups[0].pop("lr")
    previous = opt.param_groups[0]["params"][0].detach().clone()
    with pytest.raises(KeyError, match="lr"):
        steps(opt)
    assert_same([opt.param_groups[0]["params"][0].detach()], [previous])
    opt.param_groups[0]["lr"] = rate
    steps(opt)


@pytest.mark.parametrize("name", ["learning_rate", "epsilon", "beta1", "beta2"])
def test_rule_hyperparameter_name_is_a_user_key_in_torch_groups(name: str) -> None:
    tensors: list[torch.Tensor] = []
    for face in (torch.optim, optim):
        first = face.Adam([param_of()], lr=0.1)
        first.param_groups[0][name] = 0.5
        second = face.Adam([{"params": [param_of()], name: "mine"}], lr=0.1)
        tensors += [steps(first), steps(second)]
    for expected, got in zip(tensors[:2], tensors[2:], strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-6, atol=0)


@pytest.mark.parametrize(
    ("cls", "name", "title"),
    [
        (tensorflow.Adam, "beta1", "betas"),
        (tensorflow.LazyAdam, "beta2", "betas"),
        (tensorflow.RMSprop, "epsilon", "eps"),
        (tensorflow.SGD, "learning_rate", "lr"),
    ],
)
def test_rule_hyperparameter_name_in_a_group_raises(cls: Any, name: str, title: str) -> None:
    text = rf"'{name}' of group 0 is 0.5, which groups of {cls.__name__} call '{title}'"
    with pytest.raises(ValueError, match=text):
        cls([{"params": [param_of()], name: 0.5}], lr=0.1)
    optimizer = cls([param_of()], lr=0.1)
    with pytest.raises(ValueError, match=text.replace("group 0", "group 1")):
        optimizer.add_param_group({"params": [param_of()], name: 0.5})
    state = optimizer.state_dict()
    state["param_groups"][0][name] = 0.5
    with pytest.raises(CheckpointMismatchError, match=text):
        optimizer.load_state_dict(state)
    optimizer.param_groups[0][name] = 0.5
    with pytest.raises(ValueError, match=text):
        steps(optimizer)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("seed", ["1", "2"])
def test_later_alias_of_an_option_wins_in_every_process(seed: str) -> None:
    program = """
import torch
from thalweg import optim
made = optim.tensorflow.Adam([torch.zeros(1, requires_grad=True)], lr=0.1, learning_rate=0.5)
print(made.param_groups[0]["lr"])
"""
    # Not by `fresh`, whose processes have the seed of their server.
    environment = {**os.environ, "PYTHONHASHSEED": seed}
    command = [sys.executable, "-c", program]
    process = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert process.stdout.split() == ["0.5"], process.stderr


def test_options_are_readable_by_keyword_for_old_pickles() -> None:
    opt = optim.Adam([torch.zeros(1, requires_grad=True)], clip_grad_norm=1.0, masters=True)
    assert (opt.step_options.clip_grad_norm, opt.step_options.masters) == (1.0, True)
    assert opt.step_options.ema_decay is None
    assert hash(opt.step_options) == hash(opt.step_options)
    with pytest.raises(AttributeError, match="no_such_option"):
        _ = opt.step_options.no_such_option
