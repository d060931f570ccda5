"""Notes on differences between torch and this library."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from thalweg.checkpoint.torch_optim.counterparts import Counterpart
from thalweg.checkpoint.torch_optim.hyperparameters import constant_hypers, decay_of
from thalweg.checkpoint.torch_optim.parse_state_dict import Group, is_on, number_option
from thalweg.errors import NumericsWarning, warn

_ADAM_W = "thalweg.v1.contrib.opt.AdamWOptimizer"


def of_formula(counterpart: Counterpart, epsilons: Sequence[float | None]) -> list[str]:
    """Return notes on differences of the steps although all numbers are equal."""
    found = [counterpart.epsilon] if counterpart.epsilon and any(epsilons) else []
    return found + ([counterpart.rate] if counterpart.rate else [])


def of_options(counterpart: Counterpart, groups: Sequence[Group], optimizer: object) -> list[str]:
    """Return notes on options of torch's groups that differ from the optimizer's or that it
    lacks.
    """
    own = constant_hypers(optimizer)
    found: list[str] = []
    for name, key in counterpart.hypers.items():
        values = list(dict.fromkeys(number_option(group, key) for group in groups))
        title = key.replace(".0", "[0]").replace(".1", "[1]")
        if len(values) > 1:
            found.append(f"the groups of torch have a {title} each, an optimizer here has one")
        elif name in own and values[0] is not None and not _is_same(own[name], values[0]):
            found.append(f"{name} is {own[name]:g} here, in torch {title} is {values[0]:g}")
    for group in groups:
        found += _of_group(group, optimizer, own)
        for key, wanted in counterpart.options.items():
            if key == "nesterov" and is_on(group, key) != wanted:
                found.append(f"the momentum of torch is {'' if not wanted else 'not '}Nesterov's")
    return list(dict.fromkeys(found))


def _of_group(group: Group, optimizer: object, own: dict[str, float]) -> list[str]:
    rate, decay = number_option(group, "lr") or 0.0, number_option(group, "weight_decay") or 0.0
    falls, dampening = (
        number_option(group, "lr_decay") or 0.0,
        number_option(group, "dampening") or 0.0,
    )
    found: list[str] = []
    is_decoupled = is_on(group, "decoupled_weight_decay")
    decays = hasattr(optimizer, "_weight_decay")
    if is_decoupled and decay and not decays:
        found.append(
            f"torch decays the variables by {rate * decay:g} a step, nothing here does:"
            f" {_ADAM_W} would"
        )
    elif is_decoupled and decays and not _is_same(own.get("weight_decay"), rate * decay):
        found.append(
            f"weight_decay is {own['weight_decay']:g} here, in torch lr * weight_decay is"
            f" {rate * decay:g}"
            if "weight_decay" in own
            else "weight_decay is not multiplied by the learning rate here"
        )
    elif decay and not is_decoupled:
        found.append(
            f"weight_decay {decay:g} was part of torch's gradients: add {decay / 2:g} |variable|^2"
            " to the loss"
        )
    if is_on(group, "maximize"):
        found.append("torch maximizes: minimize the negated loss")
    if dampening:
        found.append(f"dampening is {dampening:g} in torch, and nothing here")
    if not _is_same(decay_of(optimizer), falls):
        found.append(
            f"decay of the learning rate is {decay_of(optimizer):g} here, {falls:g} in torch"
        )
    return found


def _is_same(one: float | None, other: float | None) -> bool:
    if one is None or other is None:
        return one is other
    with np.errstate(all="ignore"):
        return bool(np.float32(one) == np.float32(other))


def warn_of(title: str, notes: Sequence[str]) -> None:
    """Warn of all that is not the same."""
    if notes:
        warn(f"{title}: {'; '.join(notes)}.", NumericsWarning)
