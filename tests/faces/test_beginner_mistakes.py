"""Slips of newcomers: what would silently train nothing warns, and messages say what to give."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch

import thalweg
from thalweg import rules, v1
from thalweg.errors import NumericsWarning
from thalweg.keras.optimizers import SGD, Adam, RuleOptimizer
from thalweg.openseq2seq import from_config


def network(with_names: bool = True) -> tuple[torch.nn.Module, list[Any]]:
    torch.manual_seed(0)
    model = torch.nn.Linear(2, 1)
    return model, thalweg.named_variables(model) if with_names else list(model.parameters())


def loss_of(model: torch.nn.Module) -> Callable[[], torch.Tensor]:
    return lambda: (model(torch.ones(3, 2)) - 1).square().mean()


def trained_state() -> dict[str, Any]:
    model, variables = network()
    opt = Adam(0.1)
    for _ in range(3):
        opt.minimize(loss_of(model), variables)
    return opt.state_dict()


def test_exhausted_generator_is_reported() -> None:
    model, _ = network()
    parameters, opt = model.parameters(), Adam(0.1)
    opt.minimize(loss_of(model), parameters)
    with pytest.warns(NumericsWarning, match="model.parameters.. is used up by its first use"):
        assert opt.minimize(loss_of(model), parameters) is None
    assert opt.iterations.item() == 1


def test_unmatched_loaded_slots_are_reported_at_the_first_step() -> None:
    opt = Adam(0.1)
    opt.load_state_dict(trained_state())
    model, variables = network(with_names=False)
    with pytest.warns(NumericsWarning, match="slots for 'weight:0', 'bias:0', but the first step"):
        opt.minimize(loss_of(model), variables)
    opt.minimize(loss_of(model), variables)  # once is enough


def test_loaded_slots_wait_silently_for_later_variables() -> None:
    opt = Adam(0.1)
    opt.load_state_dict(trained_state())
    model, (weight, bias) = network()
    opt.minimize(loss_of(model), [weight])
    opt.minimize(loss_of(model), [bias])
    assert len(opt.state_dict()["slots"]) == 2


def test_a_state_is_loaded_for_a_generator_of_variables() -> None:
    opt, (model, _) = Adam(0.1), network()
    opt.load_state_dict(trained_state(), model.parameters())  # pyright: ignore
    assert opt.iterations.item() == 3


CONFIG = {
    "optimizer": "SGD",
    "lr_policy": thalweg.openseq2seq.optimizers.lr_policies.fixed_lr,
    "lr_policy_params": {"learning_rate": 0.1},
    "max_steps": 3,
}


def not_a_number() -> Any:
    model, variables = network()
    SGD(0.1).minimize(lambda: loss_of(model)().item(), variables)  # pyright: ignore


SLIPS: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    "misspelled keyword": (
        lambda: Adam(learnig_rate=1e-3),
        TypeError,
        "Allowed kwargs are ['clipnorm', 'clipvalue', 'decay', 'global_clipnorm', 'lr']. Did you"
        " mean 'learning_rate'?",
    ),
    "misspelled option": (lambda: Adam(clip_norm=1.0), TypeError, "Did you mean 'clipnorm'?"),
    "loading into a module": (
        lambda: Adam().load_state_dict(trained_state(), torch.nn.Linear(2, 1)),  # pyright: ignore
        TypeError,
        "give list(module.parameters())",
    ),
    "naming tensors": (
        lambda: thalweg.named_variables(list(torch.nn.Linear(2, 1).parameters())),  # pyright: ignore
        TypeError,
        "takes a module, or pairs of a name and a tensor",
    ),
    "named parameters": (
        lambda: SGD().minimize(lambda: torch.ones(()), torch.nn.Linear(1, 1).named_parameters()),
        TypeError,
        "not 'weight'. Names are given by thalweg.named_variables(module).",
    ),
    "a loss that is a number": (not_a_number, TypeError, "returns a tensor: no float() or item()"),
    "no config": (lambda: from_config(None), TypeError, "A config is a dict, not None."),  # pyright: ignore
    "an optimizer of torch": (
        lambda: from_config({**CONFIG, "optimizer": torch.optim.SGD}),
        TypeError,
        "optimizer: torch.optim.sgd.SGD is no optimizer of thalweg.v1.",
    ),
    "an optimizer of Keras": (
        lambda: from_config({**CONFIG, "optimizer": SGD}),
        TypeError,
        "optimizer: thalweg.keras.optimizers.sgd.SGD is no optimizer of thalweg.v1.",
    ),
    "step": (lambda: Adam().step(), AttributeError, "no attribute 'step'. Call minimize(loss"),
    "zero_grad": (lambda: Adam().zero_grad(), AttributeError, "call zero_grad() of the module"),
    "a scheduler of torch": (
        lambda: Adam().param_groups,  # pyright: ignore
        AttributeError,
        "use thalweg.optim.tensorflow.Adam, which has the same numbers",
    ),
    "the state of a subclass": (
        lambda: type("Own", (SGD,), {})().state,
        AttributeError,
        "use thalweg.optim.tensorflow.SGD, which has the same numbers",
    ),
    "groups of a rule": (
        lambda: RuleOptimizer(rules.ADAM).add_param_group({}),  # pyright: ignore
        AttributeError,
        "use one of thalweg.optim",
    ),
    "parameters": (
        lambda: Adam(torch.nn.Linear(2, 1).parameters()),  # pyright: ignore
        TypeError,
        "not to the constructor; thalweg.optim has optimizers that take them there",
    ),
    "a short name": (lambda: v1.contrib.opt.AdamW, AttributeError, "mean 'AdamWOptimizer'?"),  # pyright: ignore
    "no engine": (lambda: thalweg.engine("gpu"), ValueError, "engine must be one of"),  # pyright: ignore
    "an eager placeholder": (
        lambda: v1.placeholder(torch.float32),
        RuntimeError,
        "Build the graph inside of `with thalweg.v1.Graph().as_default():`",
    ),
}


@pytest.mark.parametrize(("slip", "error", "message"), SLIPS.values(), ids=SLIPS)
def test_mistake_error_says_what_to_pass(
    slip: Callable[[], Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=re.escape(message)):
        slip()
