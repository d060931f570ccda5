"""Registry of optimizers by the name of a rule or of a class.

Keras' eight classes have the names of their rules. Other classes have a prefix for their package:
`v1:AdamOptimizer` for `thalweg.v1`, `openseq2seq:NovoGrad` for `thalweg.openseq2seq`, `optim:Adam`
for `thalweg.optim`, and `torch:Adam` for `torch.optim`.
"""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any, cast

import numpy as np

from thalweg._cli.registry.apply_gradients_adapter import by_pairs
from thalweg._core.config_registry import OPTIMIZERS
from thalweg.errors import NotFoundError
from thalweg.formula import Rule
from thalweg.keras.optimizers import RuleOptimizer
from thalweg.rules import RULES
from thalweg.v1 import train
from thalweg.variable import Variable

KERAS = ("SGD", "Adam", "Adamax", "Nadam", "Adagrad", "Adadelta", "RMSprop", "Ftrl")
V1 = "v1:"
_PREFIXES = ("", "v1", "openseq2seq")  # before the colon of a name
OPTIM, TORCH = "optim:", "torch:"
# Required arguments besides the learning rate, with usual values.
_ARGUMENTS: dict[str, dict[str, object]] = {
    "v1:AdamWOptimizer": {"weight_decay": 1e-4},
    "v1:MomentumOptimizer": {"momentum": 0.9},
    "v1:MomentumWOptimizer": {"weight_decay": 1e-4, "momentum": 0.9},
}
# Arguments that select another rule.
_VARIANTS: tuple[tuple[str, dict[str, object]], ...] = (
    ("SGD", {"momentum": 0.9}),
    ("SGD", {"momentum": 0.9, "nesterov": True}),
    ("RMSprop", {"centered": True}),
    ("RMSprop", {"momentum": 0.9}),
    ("RMSprop", {"momentum": 0.9, "centered": True}),
    ("Adam", {"amsgrad": True}),
    ("Ftrl", {"learning_rate_power": -0.6}),
    ("v1:FtrlOptimizer", {"learning_rate_power": -0.6}),
    ("v1:LARSOptimizer", {"use_nesterov": True}),
    ("v1:MomentumOptimizer", {"use_nesterov": True}),
    ("v1:MomentumWOptimizer", {"use_nesterov": True}),
    ("v1:RMSPropOptimizer", {"centered": True}),
)
# Rules of torch that arguments of its classes select.
_OF_TORCH: dict[str, tuple[str, dict[str, object]]] = {
    "Momentum": ("SGD", {"momentum": 0.9}),
    "CenteredRMSprop": ("RMSprop", {"centered": True}),
    "MomentumRMSprop": ("RMSprop", {"momentum": 0.9}),
    "CenteredMomentumRMSprop": ("RMSprop", {"momentum": 0.9, "centered": True}),
    "AMSGrad": ("Adam", {"amsgrad": True}),
    "MARSLion": ("MARS", {"mars_type": "lion"}),
    # Without these, it takes no rate.
    "AdafactorHF": ("AdafactorHF", {"relative_step": False, "scale_parameter": False}),
    # Steps as long as those of AdamW, which updates the other variables, at the same rate.
    "Muon": ("Muon", {"adjust_lr_fn": "match_rms_adamw"}),
    "NorMuon": ("NorMuon", {"update_scale": "match_rms"}),
}
# Classes that cannot be built from a learning rate alone, with the reason.
_UNSUPPORTED = {
    "DecoupledWeightDecayExtension": "it extends the class of another optimizer, as"
    " v1:AdamWOptimizer and v1:MomentumWOptimizer do.",
    "MovingAverageOptimizer": "it needs another optimizer; a function of yours that makes both"
    " can race, as file.py:NAME.",
    "Optimizer": "it is the base class of the others.",
    "SyncReplicasOptimizer": "it needs another optimizer, and replicas that train with it.",
    "VariableClippingOptimizer": "it needs another optimizer, and the variables to clip.",
}
_MAX_SUGGESTIONS = 6


@dataclass(frozen=True)
class RegistryEntry:
    """Optimizer class with a registered name.

    Attributes:
        of: The registered name of the class.
        cls: The class.
        options: Arguments of the constructor besides the learning rate.
    """

    of: str
    cls: type[Any]
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])

    def make(self, learning_rate: float, **options: object) -> Any:
        """Build the optimizer with `self.options` updated by `options`.

        AdagradDAOptimizer, which reads the number of the step, gets a new `global_step` variable.
        """
        arguments: dict[str, Any] = {**self.options, **options}
        if issubclass(self.cls, train.AdagradDAOptimizer):
            arguments["global_step"] = Variable(np.int64(0), "global_step", trainable=False)
        return self.cls(learning_rate=learning_rate, **arguments)

    @property
    def rule(self) -> Rule:
        """Return the rule of the optimizer."""
        return self.make(0.1)._choose_rule()


@cache
def by_class() -> dict[str, RegistryEntry]:
    """Return {name: entry} of classes that need no argument but a learning rate."""
    classes = OPTIMIZERS.load_all()
    return {
        name: RegistryEntry(name, classes[name], _ARGUMENTS.get(name, {}))
        for name in sorted(classes, key=lambda name: _PREFIXES.index(name.rpartition(":")[0]))
        if "learning_rate" in inspect.signature(classes[name]).parameters
        and classes[name] is not RuleOptimizer
    }


@cache
def by_rule() -> dict[str, RegistryEntry]:
    """Return {name of a rule: entry with its Keras class, or with another class that runs it}."""
    classes = by_class()
    variants = [
        RegistryEntry(name, classes[name].cls, {**classes[name].options, **options})
        for name, options in _VARIANTS
    ]
    # Reversed, so that an earlier entry, such as of a Keras class, replaces a later one.
    runs = {entry.rule.name: entry for entry in reversed([*classes.values(), *variants])}
    return {rule.name: runs[rule.name] for rule in RULES}


def torch_rules() -> dict[str, Rule]:
    """Return {name: rule} of `thalweg.optim`, with names like `optim:Adam`."""
    from thalweg.rules.modern import MODERN_RULES
    from thalweg.rules.torch import TORCH_RULES

    rules = (*TORCH_RULES, *MODERN_RULES)
    return {OPTIM + rule.name.removeprefix("Torch"): rule for rule in rules}


@cache
def by_torch() -> dict[str, RegistryEntry]:
    """Return {name: entry} of `thalweg.optim` and `torch.optim`, with names like `optim:Adam`."""
    import torch

    from thalweg import optim

    rules = {name.removeprefix(OPTIM): rule for name, rule in torch_rules().items()}
    rules["AdamW"] = rules["Adam"]
    entries: dict[str, RegistryEntry] = {}
    for package, prefix in ((optim, OPTIM), (torch.optim, TORCH)):
        for name in rules:
            class_name, options = _OF_TORCH.get(name, (name, {}))
            # Torch lacks classes such as Lion.
            if not hasattr(package, class_name):
                continue
            cls = by_pairs(getattr(package, class_name), rules.get(name))
            entries[prefix + name] = RegistryEntry(prefix + name, cls, options)
    return entries


def names() -> list[str]:
    """Return the names of all rules, then the names of all further classes."""
    return list(dict.fromkeys([*by_rule(), *by_class()]))


def spelled(name: str, noun: str = "rule") -> str:
    """Return the registered spelling of a name in any case; `noun` is "rule" or "optimizer".

    Raises:
        NotFoundError: The name is unknown; the message has the reason or similar names.
    """
    spellings = {spelling.lower(): spelling for spelling in names()}
    if name.lower().startswith((OPTIM, TORCH)):
        spellings = {spelling.lower(): spelling for spelling in by_torch()}
    if name.lower() in spellings:
        return spellings[name.lower()]
    for class_name, reason in _UNSUPPORTED.items():
        if name.lower() == (V1 + class_name).lower():
            raise NotFoundError(f"'{V1}{class_name}' cannot be named here: {reason}")
    suggestions = _names_near(name.lower(), spellings)
    nearby = f"near it: {', '.join(suggestions)}. All" if suggestions else "all"
    yours = "; yours is given as file.py:NAME" * (noun == "optimizer")
    raise NotFoundError(
        f"there is no {noun} '{name}'; {nearby} are listed by `thalweg rules`{yours}."
    )


def named(name: str) -> RegistryEntry:
    """Return the entry of a registered name."""
    if name.startswith((OPTIM, TORCH)):
        return by_torch()[name]
    return by_rule().get(name) or by_class()[name]


def _names_near(name: str, spellings: Mapping[str, str]) -> list[str]:
    """Return names similar to `name`: names that contain it, are a part of it, or are close."""
    similar = [key for key in spellings if name in key]
    similar += [key for key in spellings if key in name]
    similar += difflib.get_close_matches(name, spellings, n=3, cutoff=0.5)
    return [spellings[key] for key in dict.fromkeys(similar)][:_MAX_SUGGESTIONS]


def applied(optimizer: Any) -> Callable[[Iterable[tuple[Any, Any]]], Any]:
    """Return `apply_gradients`, which for AdagradDAOptimizer also increments `global_step`."""
    if isinstance(optimizer, train.AdagradDAOptimizer):
        return partial(optimizer.apply_gradients, global_step=optimizer._global_step)  # pyright: ignore[reportPrivateUsage]
    return optimizer.apply_gradients


def variables_of(optimizer: Any) -> list[Any]:
    """Return the tensors of an optimizer's state."""
    variables = optimizer.variables
    return list(cast("list[Any]", variables() if callable(variables) else variables))


def rate_name(optimizer: object) -> str | None:
    """Return the attribute of the learning rate, or None if it is unknown."""
    if isinstance(optimizer, train.Optimizer):
        return getattr(optimizer, "HYPERS", {}).get("learning_rate")
    return "learning_rate"
