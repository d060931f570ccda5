"""The rules that can be measured: what Keras and its peers call them, and their slots."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from thalweg.formula import Rule


@dataclass(frozen=True)
class Entry:
    """One rule.

    Attributes:
        keras: Class name in `thalweg.keras.optimizers`, and in Keras itself; None where `rule`
            stands.
        slots: How many slots a variable has.
        options: Arguments beyond the defaults.
        torch: Class name in `torch.optim`, None where it has no such rule.
        torch_options: Its arguments beyond the defaults.
        fused: Whether `torch.optim` has a fused version.
        optax: Name of the function in optax, None where it has no such rule.
        optax_options: Its arguments beyond the learning rate.
        rule: A rule of the user's, which no peer has.
    """

    keras: str | None
    slots: int
    options: Mapping[str, Any] = field(default_factory=dict)
    torch: str | None = None
    torch_options: Mapping[str, Any] = field(default_factory=dict)
    fused: bool = False
    optax: str | None = None
    optax_options: Mapping[str, Any] = field(default_factory=dict)
    rule: Rule | None = None


def _sgd(**options: Any) -> Entry:
    momentum = bool(options)
    return Entry("SGD", int(momentum), options, "SGD", options, True, "sgd", options)


def _rmsprop(slots: int, **options: Any) -> Entry:
    return Entry("RMSprop", slots, options, "RMSprop", options, False, "rmsprop", options)


ENTRIES: dict[str, Entry] = {
    "SGD": _sgd(),
    "Momentum": _sgd(momentum=0.9),
    "Nesterov": _sgd(momentum=0.9, nesterov=True),
    "Adagrad": Entry("Adagrad", 1, {}, "Adagrad", {}, True, "adagrad"),
    "Adadelta": Entry("Adadelta", 2, {}, "Adadelta", {}, False, "adadelta"),
    "RMSprop": _rmsprop(1),
    "CenteredRMSprop": _rmsprop(2, centered=True),
    "MomentumRMSprop": _rmsprop(2, momentum=0.9),
    "CenteredMomentumRMSprop": _rmsprop(3, momentum=0.9, centered=True),
    "Adamax": Entry("Adamax", 2, {}, "Adamax", {}, False, "adamax"),
    "Adam": Entry("Adam", 2, {}, "Adam", {}, True, "adam"),
    "AMSGrad": Entry(
        "Adam", 3, {"amsgrad": True}, "Adam", {"amsgrad": True}, True, "amsgrad"
    ),
    "Nadam": Entry("Nadam", 2, {}, "NAdam", {}, False, "nadam"),
    "Ftrl": Entry("Ftrl", 2),
}  # fmt: skip
# Not among the figures: its time is that of pow, whatever the memory does.
KNOWN = {**ENTRIES, "FtrlPower": Entry("Ftrl", 2, {"learning_rate_power": -0.6})}


def entry(name: str) -> Entry:
    """The rule of that name, in any case.

    Raises:
        ValueError: If there is none; lists the names.
    """
    return KNOWN[spelled(name)]


def spelled(name: str) -> str:
    """The name as `KNOWN` spells it.

    Raises:
        ValueError: If there is none; lists the names.
    """
    for known in KNOWN:
        if known.lower() == name.lower():
            return known
    raise ValueError(f"no rule '{name}'; there are {', '.join(KNOWN)}.")


def own(rule: Rule) -> Entry:
    """The entry of a rule of the user's."""
    return Entry(None, len(rule.slots), rule=rule)
