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
    ("AdafactorHF", {"relative_step": False, "beta1": 0.5, "weight_decay": 0.1}),
    ("SM3", {"momentum": 0.5, "beta": 0.9}),
]
OF_MATRICES: list[tuple[str, dict[str, Any]]] = [
    ("Muon", {}),
    ("NorMuon", {"weight_decay": 0.1}),
    ("AdaMuon", {"weight_decay": 0.1}),
    ("MuonH", {}),
    ("SOAP", {"precondition_frequency": 2}),
    ("KLSOAP", {"max_precondition_dim": 4}),
]
OF_HALVES: list[tuple[str, dict[str, Any]]] = [
    ("Muon", {"heads": 2}),
    ("SOAP", {"heads": 2}),
    ("NorMuon", {"layout": "rows=2 interleaved"}),
    ("MuonH", {"layout": "rows=2 transposed"}),
    ("KLSOAP", {"layout": "rows=2 interleaved transposed"}),
]


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
REJECTED = (*NARROW, "round", "seed")  # and what else a class may refuse by itself
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
    "AdafactorHF",
    "SM3",
}
DECAY = {
    *("Adam", "AdamW", "RAdam", "ASGD", "Lion", "AdEMAMix", "StableAdamW"),
    *("Muon", "NorMuon", "AdaMuon"),
}
# What a step says that was refused, but had added gradients to their sums.
SUMMED = ("The sums of gradients stay", "The gradients were added to their sums")


def is_matrix(var: Tensor) -> bool:
    return var.dim() > 1 and var.dtype != torch.float16


def options(dice: random.Random) -> dict[str, Any]:
    count = dice.choice([0, 0, 1, 1, 2, 3])
    choices_drawn = {name: dice.choice(OPTIONS[name]) for name in dice.sample(list(OPTIONS), count)}
    if "round" in choices_drawn:
        choices_drawn["seed"] = dice.choice([0, 7])
        for name in ("state_device", "state_dtype"):  # the latter beside variables of float64
            choices_drawn.pop(name, None)
    return choices_drawn


def wrappers(dice: random.Random, names: set[str], is_torchs: bool) -> dict[str, Any]:
    """Return none, one or two wrappers that rules of these names take."""
    choices_drawn: dict[str, Any] = {}
    wrapper, decays = dice.choice([*WRAPPERS, *[""] * 5]), dice.random() < 0.2
    if wrapper and not names & MEASURE:
        choices_drawn[wrapper] = True
    if decays and is_torchs and names <= DECAY and wrapper != "sphere":
        choices_drawn["cautious_decay"] = True
    return choices_drawn


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
            of_matrices = [(name, {"heads": 1, **arguments}) for name, arguments in of_matrices]
        if of_matrices and not any(len(var) % 2 for var in self.variables):
            of_matrices += OF_HALVES
        home, (name, arguments) = dice.choice(
            [
                *((optim, choice) for choice in (*OURS, *LACKED, *of_matrices)),
                *((tensorflow, kind) for kind in TENSORFLOWS),
            ]
        )
        split = dice.choice([len(self.variables), 1])
        parts = [self.variables[:split], self.variables[split:]]
        groups = [{"params": part} for part in parts if part]
        if len(groups) > 1 and "momentum" in arguments and home is optim and dice.random() < 0.5:
            groups[1]["momentum"] = 0.0  # several rules in a step
        elif home is optim and dice.random() < 0.2:
            own_rules: list[tuple[Any, dict[str, Any]]] = [(OWN, {})]
            choices = [*OURS, *LACKED, *of_matrices, *own_rules]
            more = [dice.choice(choices) for _ in groups[1:]]
            for group, (rule, args) in zip(groups, [(name, arguments), *more], strict=True):
                group |= {"rule": rule, "lr": 0.1, **args}
            names = {group["rule"] for group in groups}
            choices_drawn = options(dice) | wrappers(dice, names, True)
            return self._narrowed(optim.Mixed, groups, choices_drawn)
        choices_drawn = options(dice) | wrappers(dice, {name}, home is optim)
        return self._narrowed(
            partial(getattr(home, name), lr=0.1, **arguments), groups, choices_drawn
        )

    def _narrowed(
        self, cls: Callable[..., Any], groups: list[dict[str, Any]], choices_drawn: dict[str, Any]
    ) -> Any:
        """Return an optimizer with options, but for those of narrow state that it refuses."""
        if "weights" in choices_drawn:
            for var in self.variables:
                var.data = var.detach().bfloat16()
        try:
            return cls([{**group} for group in groups], **choices_drawn)
        except (ValueError, TypeError, NotImplementedError):
            if not choices_drawn.keys() & {*REJECTED}:
                raise
            choices_drawn = {name: x for name, x in choices_drawn.items() if name not in REJECTED}
            return cls(groups, **choices_drawn)

    @property
    def is_mixed(self) -> bool:
        return isinstance(self.opt, optim.Mixed)

    @property
    def adds_up(self) -> bool:
        return self.opt.step_options.kinds.sums

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
        cache = self.opt.step_cache
        cache.rebind_target = None
        cache.forget_replay()
        cache.parts.clear()

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
        param = torch.nn.Parameter(value)
        group = {name: self.opt.param_groups[-1][name] for name in ("rule",) if self.is_mixed}
        self.opt.add_param_group({"params": [param], **group})
        self.variables.append(param)

    def save(self) -> dict[str, Any]:
        return copy.deepcopy(self.opt.state_dict())

    def slot_names(self) -> list[str]:
        names = [name for param_state in self.opt.state.values() for name in param_state]
        return list(dict.fromkeys(names))

    def slot(self, place: int, name: str) -> Any:
        slot = (self.opt.state.get(self.variables[place]) or {}).get(name)
        return slot if isinstance(slot, Tensor) else None

    def bits(self) -> dict[str, Any]:
        state = super().bits()
        groups = re.sub(r", 'folded': \d+", "", state["param_groups"])
        return {**state, "folded": state["param_groups"], "param_groups": groups}

    def copied(self, mode: str) -> None:
        parts = self.opt, self.variables
        copies = copy.deepcopy(parts) if mode == "deepcopy" else pickle.loads(pickle.dumps(parts))
        self.opt, self.variables = copies
        self.held.clear()


def encode_all() -> None:
    """Encode slots of the least parameters in 8 bits, where an option asks for it."""
    quantized_slots.LEAST = 1


def as_torchs(grad: Any) -> Any:
    """Return a gradient as torch gives it."""
    if not isinstance(grad, IndexedSlices):
        return grad
    shape = tuple(grad.dense_shape)
    return torch.sparse_coo_tensor(grad.indices[None], grad.values, shape)


FACES = (*trainings.FACES, OptimTraining)
