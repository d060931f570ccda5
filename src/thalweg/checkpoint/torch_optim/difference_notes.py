"""Notes on differences between torch and this library."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from thalweg.checkpoint.torch_optim.counterparts import Counterpart, constant_hypers, decay_of
from thalweg.checkpoint.torch_optim.parse_state_dict import Group, is_on, number_option
from thalweg.errors import NumericsWarning, warn

_ADAM_W = "thalweg.v1.contrib.opt.AdamWOptimizer"


def formula_notes(counterpart: Counterpart, epsilons: Sequence[float | None]) -> list[str]:
    """Return notes on differences of update formulas; on epsilon only if one is not 0."""
    notes = [counterpart.epsilon] if counterpart.epsilon and any(epsilons) else []
    return notes + ([counterpart.rate] if counterpart.rate else [])


def option_notes(counterpart: Counterpart, groups: Sequence[Group], optimizer: object) -> list[str]:
    """Return notes on options that differ between `optimizer` and torch's `groups`; [] if equal."""
    constants = constant_hypers(optimizer)
    notes: list[str] = []
    for name, key in counterpart.hypers.items():
        options = list(dict.fromkeys(number_option(group, key) for group in groups))
        option = key.replace(".0", "[0]").replace(".1", "[1]")
        if len(options) > 1:
            notes.append(f"the groups of torch have a {option} each, an optimizer here has one")
        elif (
            name in constants
            and options[0] is not None
            and not _is_same(constants[name], options[0])
        ):
            notes.append(f"{name} is {constants[name]:g} here, in torch {option} is {options[0]:g}")
    for group in groups:
        notes += _notes_of_group(group, optimizer, constants)
        for key, expected in counterpart.options.items():
            if key == "nesterov" and is_on(group, key) != expected:
                notes.append(f"the momentum of torch is {'' if not expected else 'not '}Nesterov's")
    return list(dict.fromkeys(notes))


def _notes_of_group(group: Group, optimizer: Any, constants: dict[str, float]) -> list[str]:
    """Return notes on weight decay, maximization, dampening and rate decay of a torch group."""
    rate, decay = number_option(group, "lr") or 0.0, number_option(group, "weight_decay") or 0.0
    lr_decay = number_option(group, "lr_decay") or 0.0
    dampening = number_option(group, "dampening") or 0.0
    notes: list[str] = []
    is_decoupled = is_on(group, "decoupled_weight_decay")
    has_decay = hasattr(optimizer, "_weight_decay")
    if is_decoupled and decay and not has_decay:
        notes.append(
            f"torch decays the variables by {rate * decay:g} a step, nothing here does:"
            f" {_ADAM_W} would"
        )
    elif is_decoupled and has_decay and not _is_same(constants.get("weight_decay"), rate * decay):
        notes.append(
            f"weight_decay is {constants['weight_decay']:g} here, in torch lr * weight_decay is"
            f" {rate * decay:g}"
            if "weight_decay" in constants
            else "weight_decay is not multiplied by the learning rate here"
        )
    elif decay and not is_decoupled:
        notes.append(
            f"weight_decay {decay:g} was part of torch's gradients: add {decay / 2:g} |variable|^2"
            " to the loss"
        )
    if is_on(group, "maximize"):
        notes.append("torch maximizes: minimize the negated loss")
    if dampening:
        notes.append(f"dampening is {dampening:g} in torch, and nothing here")
    if not _is_same(decay_of(optimizer), lr_decay):
        notes.append(
            f"decay of the learning rate is {decay_of(optimizer):g} here, {lr_decay:g} in torch"
        )
    return notes


def _is_same(first: float | None, second: float | None) -> bool:
    """Return True if two numbers are equal as float32, or both are None."""
    if first is None or second is None:
        return first is second
    with np.errstate(all="ignore"):
        return bool(np.float32(first) == np.float32(second))


def warn_of(subject: str, notes: Sequence[str]) -> None:
    """Warn of all notes in one NumericsWarning."""
    if notes:
        warn(f"{subject}: {'; '.join(notes)}.", NumericsWarning)
