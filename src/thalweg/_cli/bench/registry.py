"""Rules that can be measured, and the rules' names in other libraries."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import optim

from thalweg._cli.registry import OPTIM, TORCH, RegistryEntry, by_rule, named, spelled
from thalweg._cli.registry import V1 as PREFIX
from thalweg._engines.pass_updates import count_read_streams
from thalweg.formula import Rule
from thalweg.rules import KERAS_RULES


@dataclass(frozen=True)
class BenchmarkedRule:
    """Rule to measure, with names in other libraries.

    Attributes:
        rule: The rule.
        registry_entry: The optimizer that runs the rule; None for a user-defined rule.
        torch: Class name in `torch.optim`; None if torch lacks the rule.
        fused: Whether `torch.optim` has a fused version.
        torch_options: Arguments of torch's class.
        optax: Function name in optax; None if optax lacks the rule.
        optax_options: Arguments of optax's function besides the learning rate.
        norms: The number of tensors per variable that a step reads again, for norms and sums.
    """

    rule: Rule
    registry_entry: RegistryEntry | None = None
    torch: str | None = None
    fused: bool = False
    torch_options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    optax: str | None = None
    optax_options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    norms: int = 0

    @property
    def class_name(self) -> str:
        """Return the registered name of the class, such as `v1:AdamOptimizer`, or ""."""
        return "" if self.registry_entry is None else self.registry_entry.of

    @property
    def label(self) -> str:
        """Return the library that runs the step: "torch" or "thalweg"."""
        return "torch" if self.class_name.startswith(TORCH) else "thalweg"

    @property
    def slots(self) -> int:
        """Return the number of slots that have the variable's shape."""
        return len(self.rule.element_slots)

    @property
    def keras(self) -> str | None:
        """Return the class name in Keras and `thalweg.keras.optimizers`; None of other classes."""
        return None if ":" in self.class_name else self.class_name or None

    @property
    def v1(self) -> str | None:
        """Return the class name in `thalweg.v1`; None of other classes."""
        prefix, _, name = self.class_name.rpartition(":")
        return name if f"{prefix}:" == PREFIX else None


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
# Rules of Keras that approximate a dense step of a rule of TensorFlow 1, though not to the bit.
_KERAS_RULES = {
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
# LARS computes norms of variable and gradient in a separate pass, NovoGrad that of the gradient.
_NORMS = {"LARS": 2, "NesterovLARS": 2, "NovoGrad": 1}


def _entry_of(registry_entry: RegistryEntry) -> BenchmarkedRule:
    rule = registry_entry.rule
    keras_entry = by_rule()[_KERAS_RULES.get(rule.name, rule.name)]
    peers = _PEERS.get(rule.name if rule.name in _PEERS else keras_entry.of, (None, False, None))
    torch, fused, optax = peers
    options: Mapping[str, Any] = {} if rule.name == "AdamW" else keras_entry.options
    optax_options: Mapping[str, Any] = {} if optax == "amsgrad" else options
    norms = _NORMS.get(rule.name, 0)
    return BenchmarkedRule(rule, registry_entry, torch, fused, options, optax, optax_options, norms)


def _of_torch(name: str) -> BenchmarkedRule:
    """Return the entry for a name such as `torch:Adam` or `optim:Adam`, with torch as peer."""
    registry_entry = named(name)
    torch: str = registry_entry.cls.factory.__name__
    fused = any(peer == torch and fused for peer, fused, _ in _PEERS.values())
    norms = count_read_streams(registry_entry.rule)
    torch_class = torch if hasattr(optim, torch) else None
    return BenchmarkedRule(
        registry_entry.rule, registry_entry, torch_class, fused, registry_entry.options, norms=norms
    )


RULE_ENTRIES = {name: _entry_of(registry_entry) for name, registry_entry in by_rule().items()}
# FtrlPower is not measured: its time is that of pow, independent of memory.
ENTRIES = {rule.name: RULE_ENTRIES[rule.name] for rule in KERAS_RULES if rule.name != "FtrlPower"}
V1 = {name: entry for name, entry in RULE_ENTRIES.items() if entry.keras is None}


def entry(name: str) -> BenchmarkedRule:
    """Return the entry of a rule or class by name, such as `v1:AdamOptimizer`, in any case.

    Raises:
        NotFoundError: The name is unknown; the message lists similar names.
    """
    spelling = spelled(name)
    if spelling.startswith((OPTIM, TORCH)):
        return _of_torch(spelling)
    return _entry_of(named(spelling))


def own(rule: Rule) -> BenchmarkedRule:
    """Return the entry of a user-defined rule, without peers."""
    return BenchmarkedRule(rule, norms=count_read_streams(rule))
