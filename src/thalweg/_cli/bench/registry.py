"""The rules that can be measured, and what the peers call them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import optim

from thalweg._cli.registry import OPTIM, TORCH, RegistryEntry, by_class, by_rule, named, spelled
from thalweg._cli.registry import V1 as PREFIX
from thalweg._engines.pass_updates import count_read_streams
from thalweg.formula import Rule
from thalweg.rules import KERAS_RULES


@dataclass(frozen=True)
class BenchmarkedRule:
    """Rule to measure, with its peers.

    Attributes:
        rule: The rule.
        named: The optimizer that runs it; None for a user's rule, which no peer has.
        torch: Class name in `torch.optim`, None where it has no such rule.
        fused: Whether `torch.optim` has a fused version.
        torch_options: Its arguments beyond the defaults.
        optax: Name of the function in optax, None where it has no such rule.
        optax_options: Its arguments beyond the learning rate.
        norms: The number of streams that a step reads once more, for measures of them.
    """

    rule: Rule
    named: RegistryEntry | None = None
    torch: str | None = None
    fused: bool = False
    torch_options: Mapping[str, Any] = field(default_factory=dict)
    optax: str | None = None
    optax_options: Mapping[str, Any] = field(default_factory=dict)
    norms: int = 0

    @property
    def label(self) -> str:
        """Name of the library whose step it is: "torch" or "thalweg"."""
        of = "" if self.named is None else self.named.of
        return "torch" if of.startswith(TORCH) else "thalweg"

    @property
    def slots(self) -> int:
        """Number of slots of a variable that have its shape."""
        return len(self.rule.element_slots)

    @property
    def keras(self) -> str | None:
        """Class name in `thalweg.keras.optimizers` and in Keras itself, if it is one of them."""
        return None if self.named is None or ":" in self.named.of else self.named.of

    @property
    def v1(self) -> str | None:
        """Class name in `thalweg.v1`, if it is one of those."""
        of = "" if self.named is None else self.named.of
        return of.removeprefix(PREFIX) if of.startswith(PREFIX) else None


# The class in torch.optim, whether it is fused, and optax' function, by class in Keras or by rule.
_PEERS = {
    "SGD": ("SGD", True, "sgd"),
    "Adagrad": ("Adagrad", True, "adagrad"),
    "Adadelta": ("Adadelta", False, "adadelta"),
    "RMSprop": ("RMSprop", False, "rmsprop"),
    "Adamax": ("Adamax", False, "adamax"),
    "Adam": ("Adam", True, "adam"),
    "AMSGrad": ("Adam", True, "amsgrad"),
    "Nadam": ("NAdam", False, "nadam"),
    "AdamW": ("AdamW", True, "adamw"),
}
# Rules of Keras that a rule of TensorFlow 1 is like, though not to the last bit; dense.
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


def _entry_of(named: RegistryEntry) -> BenchmarkedRule:
    rule = named.rule
    like = by_rule()[_LIKE.get(rule.name, rule.name)]
    peers = _PEERS.get(rule.name if rule.name in _PEERS else like.of, (None, False, None))
    torch, fused, optax = peers
    options = {} if rule.name == "AdamW" else like.options
    further = {} if optax == "amsgrad" else options
    norms = _NORMS.get(rule.name, 0)
    return BenchmarkedRule(rule, named, torch, fused, options, optax, further, norms)


def _of_torch(name: str) -> BenchmarkedRule:
    """One of torch's kind; its peer is the class of that name."""
    own = named(name)
    torch: str = own.cls.made_of.__name__
    fused = any(peer == torch and fused for peer, fused, _ in _PEERS.values())
    norms = count_read_streams(own.rule)
    theirs = torch if hasattr(optim, torch) else None
    return BenchmarkedRule(own.rule, own, theirs, fused, own.options, norms=norms)


KNOWN = {name: _entry_of(named) for name, named in by_rule().items()}
CLASSES = {name: _entry_of(named) for name, named in by_class().items() if ":" in name}
# FtrlPower is not among the figures: its time is that of pow, whatever the memory does.
ENTRIES = {rule.name: KNOWN[rule.name] for rule in KERAS_RULES if rule.name != "FtrlPower"}
V1 = {name: entry for name, entry in KNOWN.items() if entry.keras is None}


def entry(name: str) -> BenchmarkedRule:
    """Return the rule of that name, in any case, or that of an optimizer, as `v1:AdamOptimizer`.

    Raises:
        NotFoundError: If there is none; lists names near it.
    """
    known = spelled(name)
    if known.startswith((OPTIM, TORCH)):
        return _of_torch(known)
    return KNOWN.get(known) or CLASSES[known]


def own(rule: Rule) -> BenchmarkedRule:
    """Return the entry of a rule of the user's."""
    return BenchmarkedRule(rule, norms=count_read_streams(rule))
