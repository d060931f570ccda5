"""The rules that can be measured: what Keras and its peers call them, and their slots."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from thalweg.formula import Rule
from thalweg.race import v1
from thalweg.race.names import unknown
from thalweg.rules import OPENSEQ2SEQ_RULES, V1_RULES


@dataclass(frozen=True)
class Entry:
    """One rule.

    Attributes:
        keras: Class name in `thalweg.keras.optimizers`, and in Keras itself; None where `v1` or
            `rule` stands.
        slots: How many slots a variable has.
        options: Arguments beyond the defaults.
        torch: Class name in `torch.optim`, None where it has no such rule.
        torch_options: Its arguments beyond the defaults.
        fused: Whether `torch.optim` has a fused version.
        optax: Name of the function in optax, None where it has no such rule.
        optax_options: Its arguments beyond the learning rate.
        v1: Name of the optimizer of `thalweg.v1`, as `v1:AdamOptimizer`.
        rule: A rule of the user's, which no peer has.
        norms: How many streams a step reads once more, for their norms.
    """

    keras: str | None
    slots: int
    options: Mapping[str, Any] = field(default_factory=dict)
    torch: str | None = None
    torch_options: Mapping[str, Any] = field(default_factory=dict)
    fused: bool = False
    optax: str | None = None
    optax_options: Mapping[str, Any] = field(default_factory=dict)
    v1: str | None = None
    rule: Rule | None = None
    norms: int = 0


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
# Peers whose step is like that of a rule of TensorFlow 1, though not to the last bit; dense.
_ADAM_W = Entry(None, 2, torch="AdamW", fused=True, optax="adamw")
_LIKE = {
    "HeavyBall": "Momentum",
    "NesterovBall": "Nesterov",
    "ProximalGradientDescent": "SGD",
    "AdagradV1": "Adagrad",
    "ProximalAdagrad": "Adagrad",
    "AdadeltaV1": "Adadelta",
    "RMSPropV1": "RMSprop",
    "CenteredRMSPropV1": "CenteredRMSprop",
    "AdamV1": "Adam",
    "LazyAdam": "Adam",
    "NesterovAdam": "Nadam",
    "AdamaxV1": "Adamax",
}
# LARS measures variable and gradient before it reads them again, NovoGrad the gradient.
_NORMS = {"LARS": 2, "NesterovLARS": 2, "NovoGrad": 1}


def _of_tensorflow_1(rule: str, slots: int) -> Entry:
    name, options = v1.by_rule()[rule]
    like = _ADAM_W if rule == "AdamW" else ENTRIES.get(_LIKE.get(rule, ""), Entry(None, 0))
    made = replace(like, keras=None, slots=slots, options=options, v1=name)
    return replace(made, norms=_NORMS.get(rule, 0))


V1: dict[str, Entry] = {
    rule.name: _of_tensorflow_1(rule.name, len(rule.slots))
    for rule in (*V1_RULES, *OPENSEQ2SEQ_RULES)
}
_DESCENT = "v1:GradientDescentOptimizer"
CLASSES: dict[str, Entry] = {
    **{entry.v1: entry for entry in reversed(V1.values()) if entry.v1},
    _DESCENT: replace(ENTRIES["SGD"], keras=None, v1=_DESCENT),
}
# Not among the figures: its time is that of pow, whatever the memory does.
KNOWN = {**ENTRIES, "FtrlPower": Entry("Ftrl", 2, {"learning_rate_power": -0.6}), **V1}


def entry(name: str) -> Entry:
    """The rule of that name, in any case, or that of an optimizer, as `v1:AdamOptimizer`.

    Raises:
        ValueError: If there is none; lists names near it.
    """
    known = spelled(name)
    return CLASSES[known] if known in CLASSES else KNOWN[known]


def spelled(name: str) -> str:
    """The name as `KNOWN` or `CLASSES` spells it.

    Raises:
        ValueError: If there is none; lists names near it.
    """
    names = [*KNOWN, *CLASSES]
    for known in names:
        if known.lower() == name.lower():
            return known
    raise ValueError(v1.refusal(name) or f"{unknown('rule', name, names)}.")


def own(rule: Rule) -> Entry:
    """The entry of a rule of the user's."""
    return Entry(None, len(rule.slots), rule=rule)
