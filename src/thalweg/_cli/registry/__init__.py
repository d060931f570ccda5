"""Catalogue of optimizers by name: by the rule that one runs, or by its class.

Keras' eight classes have the names of their rules. `v1:AdamOptimizer` is that of `thalweg.v1`, and
`openseq2seq:NovoGrad`, which derives from those, that of `thalweg.openseq2seq`. `optim:Adam` is
that of `thalweg.optim`, and `torch:Adam` torch's own.
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
_FACES = ("", "v1", "openseq2seq")  # before the colon of a name
OPTIM, TORCH = "optim:", "torch:"
# What a constructor wants besides the learning rate, as TensorFlow's users give it.
_ARGUMENTS: dict[str, dict[str, object]] = {
    "v1:AdamWOptimizer": {"weight_decay": 1e-4},
    "v1:MomentumOptimizer": {"momentum": 0.9},
    "v1:MomentumWOptimizer": {"weight_decay": 1e-4, "momentum": 0.9},
}
# Arguments that choose another rule.
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
# Rules of torch that arguments of its classes choose.
_OF_TORCH: dict[str, tuple[str, dict[str, object]]] = {
    "Momentum": ("SGD", {"momentum": 0.9}),
    "CenteredRMSprop": ("RMSprop", {"centered": True}),
    "MomentumRMSprop": ("RMSprop", {"momentum": 0.9}),
    "CenteredMomentumRMSprop": ("RMSprop", {"momentum": 0.9, "centered": True}),
    "AMSGrad": ("Adam", {"amsgrad": True}),
    "MARSLion": ("MARS", {"mars_type": "lion"}),
    # Steps as long as AdamW's, which has the other variables, at the same rate.
    "Muon": ("Muon", {"adjust_lr_fn": "match_rms_adamw"}),
    "NorMuon": ("NorMuon", {"update_scale": "match_rms"}),
}
# What a name alone does not make.
_REFUSED = {
    "DecoupledWeightDecayExtension": "it extends the class of another optimizer, as"
    " v1:AdamWOptimizer and v1:MomentumWOptimizer do.",
    "MovingAverageOptimizer": "it needs another optimizer; a function of yours that makes both"
    " can race, as file.py:NAME.",
    "Optimizer": "it is the base class of the others.",
    "SyncReplicasOptimizer": "it needs another optimizer, and replicas that train with it.",
    "VariableClippingOptimizer": "it needs another optimizer, and the variables to clip.",
}
_MOST_NEAR = 6


@dataclass(frozen=True)
class RegistryEntry:
    """An optimizer that a name makes.

    Attributes:
        of: The name of its class.
        cls: The class.
        options: What the constructor is given besides the learning rate.
    """

    of: str
    cls: type[Any]
    options: Mapping[str, Any] = field(default_factory=dict)

    def make(self, learning_rate: float, **options: object) -> Any:
        """Return the optimizer, with its `options` and these.

        One that reads the number of the step gets a variable of its own for it; see `applied`.
        """
        given = {**self.options, **options}
        if issubclass(self.cls, train.AdagradDAOptimizer):
            given["global_step"] = Variable(np.int64(0), "global_step", trainable=False)
        return self.cls(learning_rate=learning_rate, **given)

    @property
    def rule(self) -> Rule:
        """The rule that it runs."""
        return self.make(0.1)._choose_rule()


@cache
def by_class() -> dict[str, RegistryEntry]:
    """Return the classes that can be made from a learning rate alone, by their names."""
    told = OPTIMIZERS.told()
    return {
        name: RegistryEntry(name, told[name], _ARGUMENTS.get(name, {}))
        for name in sorted(told, key=lambda name: _FACES.index(name.rpartition(":")[0]))
        if "learning_rate" in inspect.signature(told[name]).parameters
        and told[name] is not RuleOptimizer
    }


@cache
def by_rule() -> dict[str, RegistryEntry]:
    """Return the optimizer that runs each of the library's rules, by its name; Keras' where several
    do.
    """
    known = by_class()
    variants = [
        RegistryEntry(name, known[name].cls, {**known[name].options, **options})
        for name, options in _VARIANTS
    ]
    runs = {each.rule.name: each for each in reversed([*known.values(), *variants])}
    return {rule.name: runs[rule.name] for rule in RULES}


def torch_rules() -> dict[str, Rule]:
    """Return the rules of `thalweg.optim`, "optim:Adam" and the others; importing none of its
    classes.
    """
    from thalweg.rules.modern import MODERN_RULES
    from thalweg.rules.torch import TORCH_RULES

    own = (*TORCH_RULES, *MODERN_RULES)
    return {OPTIM + rule.name.removeprefix("Torch"): rule for rule in own}


@cache
def by_torch() -> dict[str, RegistryEntry]:
    """Optimizers of torch's kind: `thalweg.optim`'s and torch's own, by their names."""
    import torch

    from thalweg import optim

    rules = {name.removeprefix(OPTIM): rule for name, rule in torch_rules().items()}
    rules["AdamW"] = rules["Adam"]
    found: dict[str, RegistryEntry] = {}
    for room, prefix in ((optim, OPTIM), (torch.optim, TORCH)):
        for name in rules:
            of, options = _OF_TORCH.get(name, (name, {}))
            if not hasattr(room, of):  # such as Lion in torch
                continue
            cls = by_pairs(getattr(room, of), rules.get(name))
            found[prefix + name] = RegistryEntry(prefix + name, cls, options)
    return found


def names() -> list[str]:
    """Return all names: those of the rules, then those of the other classes."""
    return list(dict.fromkeys([*by_rule(), *by_class()]))


def spelled(name: str, what: str = "rule") -> str:
    """Return the name as `names` has it, from one in any case of letters.

    Args:
        name: A name.
        what: What it should be the name of, for the message.

    Raises:
        NotFoundError: There is none. Says why it cannot be had, or which names are near it.
    """
    known = {each.lower(): each for each in names()}
    if name.lower().startswith((OPTIM, TORCH)):
        known = {each.lower(): each for each in by_torch()}
    if name.lower() in known:
        return known[name.lower()]
    for refused, reason in _REFUSED.items():
        if name.lower() == (V1 + refused).lower():
            raise NotFoundError(f"'{V1}{refused}' cannot be named here: {reason}")
    likely = _names_near(name.lower(), known)
    nearby = f"near it: {', '.join(likely)}. All" if likely else "all"
    yours = "; yours is given as file.py:NAME" * (what == "optimizer")
    raise NotFoundError(
        f"there is no {what} '{name}'; {nearby} are listed by `thalweg rules`{yours}."
    )


def named(name: str) -> RegistryEntry:
    """Return the optimizer of one of the `names`."""
    if name.startswith((OPTIM, TORCH)):
        return by_torch()[name]
    return by_rule().get(name) or by_class()[name]


def _names_near(name: str, known: Mapping[str, str]) -> list[str]:
    """Names that contain this one, then those that it contains, then those that are like it."""
    found = [each for each in known if name in each]
    found += [each for each in known if each in name]
    found += difflib.get_close_matches(name, known, n=3, cutoff=0.5)
    return [known[each] for each in dict.fromkeys(found)][:_MOST_NEAR]


def applied(optimizer: Any) -> Callable[[Iterable[tuple[Any, Any]]], Any]:
    """`apply_gradients`; it also counts the steps for an optimizer that reads their number."""
    if isinstance(optimizer, train.AdagradDAOptimizer):
        return partial(optimizer.apply_gradients, global_step=optimizer._global_step)
    return optimizer.apply_gradients


def variables_of(optimizer: Any) -> list[Any]:
    """Return the tensors of its state."""
    found = optimizer.variables
    return list(cast("list[Any]", found() if callable(found) else found))


def rate_name(optimizer: object) -> str | None:
    """Return the attribute that holds the learning rate; None where that is not known."""
    if isinstance(optimizer, train.Optimizer):
        return getattr(optimizer, "HYPERS", {}).get("learning_rate")
    return "learning_rate"
