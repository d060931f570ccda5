"""Trainings of `thalweg.optim` and `optim.tensorflow`, with every option."""

from __future__ import annotations

import copy
import pickle
import random
import re
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

import thalweg
from attack import trainings
from attack.trainings import Training
from thalweg import Hyper, IndexedSlices, Rule, Slot, optim
from thalweg._core import quantized_slots
from thalweg.optim import tensorflow

OURS: list[tuple[str, dict[str, Any]]] = [
    ("SGD", {}),
    ("SGD", {"momentum": 0.9}),
    ("SGD", {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1}),
    ("Adam", {}),
    ("Adam", {"amsgrad": True, "weight_decay": 0.1}),
    ("AdamW", {}),
    ("RMSprop", {"centered": True, "momentum": 0.5}),
    ("Adagrad", {}),
    ("Adadelta", {}),
    ("Adamax", {}),
    ("NAdam", {}),
    ("RAdam", {}),
    ("ASGD", {}),
    ("Rprop", {}),
    ("SparseAdam", {}),
    # Torch has the least root of the first parameter's dtype for all of a group.
    ("Adafactor", {"weight_decay": 0.1, "eps": (1e-6, 1e-3)}),
]
LACKED: list[tuple[str, dict[str, Any]]] = [  # by torch
    ("Lion", {"weight_decay": 0.1}),
    ("Adan", {"weight_decay": 0.1}),
    ("ADOPT", {}),
    ("AdEMAMix", {"alpha_warmup": 5, "beta3_warmup": 3}),
    ("AdamWCautiousDecay", {"weight_decay": 0.1}),
    ("CautiousAdamW", {}),
    ("StableAdamW", {}),
    ("LAMB", {"weight_decay": 0.1}),
    ("AdamH", {}),
    ("MARS", {"weight_decay": 0.1, "lr_1d_factor": 0.5}),
    ("MARS", {"mars_type": "lion", "optimize_1d": True}),
    ("Prodigy", {"d0": 1e-3, "weight_decay": 0.1}),
    ("ScheduleFreeAdamW", {"warmup_steps": 2}),
    ("SM3", {"momentum": 0.5, "beta": 0.9}),
]
OF_MATRICES: list[tuple[str, dict[str, Any]]] = [
    ("Muon", {}),
    ("NorMuon", {"weight_decay": 0.1}),
    ("MuonH", {}),
    ("SOAP", {"precondition_frequency": 2}),
    ("KLSOAP", {"max_precondition_dim": 4}),
]
OF_HALVES: list[tuple[str, dict[str, Any]]] = [("Muon", {"heads": 2}), ("SOAP", {"heads": 2})]


def _update(var: Any, grad: Any, mean: Any, *, learning_rate: Any, share: Any) -> Any:
    mean = mean * share + grad
    return var - learning_rate * mean, mean


OWN = Rule(
    name="Own",
    update=_update,
    hypers=(Hyper("learning_rate", 0.1), Hyper("share", 0.5)),
    slots=(Slot("mean"),),
)
TENSORFLOWS: list[tuple[str, dict[str, Any]]] = [
    ("SGD", {"momentum": 0.9, "nesterov": True}),
    ("Adam", {}),
    ("RMSprop", {"centered": True}),
    ("Adagrad", {}),
    ("Ftrl", {"l1": 0.01}),
    ("Nadam", {}),
]
OPTIONS: dict[str, list[Any]] = {
    "clip_grad_norm": [0.5, 100.0],
    "clip_grad_value": [0.25],
    "lookahead": [1, 2, 3],
    "ema_decay": [0.9],
    "masters": [True],
    "state_dtype": [torch.float32, torch.bfloat16],
    "accumulate": [2, 3],
    "wide_sums": [True],
    "fused_unscale": [True],
    "state_device": ["cpu"],
    "round": ["stochastic"],
    "state_storage": ["8bit", "linear8", "dynamic8"],
    "weights": ["split"],
    "diagnostics": [1, 3],
}
NARROW = ("state_storage", "weights")  # which not every rule takes, nor every option beside them
REFUSED = (*NARROW, "round", "seed")  # and what else a class may refuse by itself
# Wrappers of steps: one that measures, for rules that do not; cautious decay, for rules that decay.
WRAPPERS = ("cautious", "trust_ratio", "sphere")
MEASURE = {
    "CautiousAdamW",
    "StableAdamW",
    "LAMB",
    "AdamH",
    "MARS",
    "MuonH",
    "Prodigy",
    "ScheduleFreeAdamW",
    "Adafactor",
    "SM3",
}
DECAY = {"Adam", "AdamW", "RAdam", "ASGD", "Lion", "AdEMAMix", "StableAdamW", "Muon", "NorMuon"}
# What a step says that was refused, but had added gradients to their sums.
SUMMED = ("The sums of gradients stay", "The gradients were added to their sums")


def is_matrix(var: Tensor) -> bool:
    """Whether rules of matrices take it."""
    return var.dim() > 1 and var.dtype != torch.float16


def options(dice: random.Random) -> dict[str, Any]:
    """None of them, one, or several."""
    count = dice.choice([0, 0, 1, 1, 2, 3])
    found = {name: dice.choice(OPTIONS[name]) for name in dice.sample(list(OPTIONS), count)}
    if "round" in found:
        found["seed"] = dice.choice([0, 7])
        for name in ("state_device", "state_dtype"):  # the latter beside variables of float64
            found.pop(name, None)
    return found


def wrappers(dice: random.Random, names: set[str], is_torchs: bool) -> dict[str, Any]:
    """None, one, or two of them that rules of these names take."""
    found: dict[str, Any] = {}
    chosen, decays = dice.choice([*WRAPPERS, *[""] * 5]), dice.random() < 0.2
    if chosen and not names & MEASURE:
        found[chosen] = True
    if decays and is_torchs and names <= DECAY and chosen != "sphere":
        found["cautious_decay"] = True
    return found


class OptimTraining(Training):
    """`step` of an optimizer of torch's kind, over groups."""

    face = "optim"

    def __init__(self, dice: random.Random, is_twin: bool) -> None:
        self._engine: Any = None
        super().__init__(dice, is_twin)

    def _variable(self, dice: random.Random, number: int) -> Any:
        return torch.nn.Parameter(super()._variable(dice, number).detach().as_subclass(Tensor))

    def _made(self, dice: random.Random) -> Any:
        of_matrices = list(OF_MATRICES) if all(map(is_matrix, self.variables)) else []
        if any(var.dim() == 3 for var in self.variables):  # one matrix each, not a stack
            of_matrices = [(name, {"heads": 1, **own}) for name, own in of_matrices]
        if of_matrices and not any(len(var) % 2 for var in self.variables):
            of_matrices += OF_HALVES
        home, (name, own) = dice.choice(
            [
                *((optim, each) for each in (*OURS, *LACKED, *of_matrices)),
                *((tensorflow, each) for each in TENSORFLOWS),
            ]
        )
        split = dice.choice([len(self.variables), 1])
        parts = [self.variables[:split], self.variables[split:]]
        groups = [{"params": part} for part in parts if part]
        if len(groups) > 1 and "momentum" in own and home is optim and dice.random() < 0.5:
            groups[1]["momentum"] = 0.0  # several rules in a step
        elif home is optim and dice.random() < 0.2:
            own_rules: list[tuple[Any, dict[str, Any]]] = [(OWN, {})]
            known = [*OURS, *LACKED, *of_matrices, *own_rules]
            others = [dice.choice(known) for _ in groups[1:]]
            for group, (rule, its) in zip(groups, [(name, own), *others], strict=True):
                group |= {"rule": rule, "lr": 0.1, **its}
            names = {group["rule"] for group in groups}
            around = options(dice) | wrappers(dice, names, True)
            return self._narrowed(optim.Mixed, groups, around)
        around = options(dice) | wrappers(dice, {name}, home is optim)
        return self._narrowed(partial(getattr(home, name), lr=0.1, **own), groups, around)

    def _narrowed(
        self, cls: Callable[..., Any], groups: list[dict[str, Any]], around: dict[str, Any]
    ) -> Any:
        """An optimizer with options, but for those of narrow state that it refuses."""
        if "weights" in around:
            for var in self.variables:
                var.data = var.detach().bfloat16()
        try:
            return cls([{**group} for group in groups], **around)
        except (ValueError, TypeError, NotImplementedError):
            if not around.keys() & {*REFUSED}:
                raise
            around = {name: x for name, x in around.items() if name not in REFUSED}
            return cls(groups, **around)

    @property
    def is_mixed(self) -> bool:
        return isinstance(self.opt, optim.Mixed)

    @property
    def adds_up(self) -> bool:
        return self.opt._around.kinds.sums

    @property
    def waits(self) -> bool:
        return self.adds_up and not (self.opt.last_step and self.opt.last_step.taken)

    def added(self, error: Exception) -> tuple[str, ...]:
        if not any(note.startswith(SUMMED) for note in getattr(error, "__notes__", ())):
            return ()
        # A gradient of the attack's may lie in a sum.
        return "gradient_sum", "folded", *(f"gradient {k}" for k in range(len(self.gradients)))

    def choose(self, engine: Any) -> None:
        self._engine = "reference" if self.is_twin else engine

    def forget(self) -> None:
        own = self.opt._cache
        own.rebind_target = None
        own.forget_replay()
        own.parts.clear()

    def step(self) -> None:
        if self.is_twin:
            self.forget()
        for place, var in enumerate(self.variables):
            var.grad = as_torchs(self.gradients[place]) if place in self.group else None
        with thalweg.engine(self._engine, denormals=self.denormals):
            self.opt.step()

    def set_rate(self, value: float) -> None:
        for group in self.opt.param_groups:
            group["lr"] = value

    def add(self, value: Tensor) -> None:
        made = torch.nn.Parameter(value)
        group = {name: self.opt.param_groups[-1][name] for name in ("rule",) if self.is_mixed}
        self.opt.add_param_group({"params": [made], **group})
        self.variables.append(made)

    def save(self) -> dict[str, Any]:
        return copy.deepcopy(self.opt.state_dict())

    def slot_names(self) -> list[str]:
        found = [name for own in self.opt.state.values() for name in own]
        return list(dict.fromkeys(found))

    def slot(self, place: int, name: str) -> Any:
        found = (self.opt.state.get(self.variables[place]) or {}).get(name)
        return found if isinstance(found, Tensor) else None

    def bits(self) -> dict[str, Any]:
        found = super().bits()
        groups = re.sub(r", 'folded': \d+", "", found["param_groups"])
        return {**found, "folded": found["param_groups"], "param_groups": groups}

    def copied(self, how: str) -> None:
        own = self.opt, self.variables
        again = copy.deepcopy(own) if how == "deepcopy" else pickle.loads(pickle.dumps(own))
        self.opt, self.variables = again
        self.held.clear()


def encode_all() -> None:
    """Have slots of the least parameters in 8 bits, where an option asks for it."""
    quantized_slots.LEAST = 1


def as_torchs(grad: Any) -> Any:
    """A gradient as torch gives it."""
    if not isinstance(grad, IndexedSlices):
        return grad
    shape = tuple(grad.dense_shape)
    return torch.sparse_coo_tensor(grad.indices[None], grad.values, shape)


FACES = (*trainings.FACES, OptimTraining)
