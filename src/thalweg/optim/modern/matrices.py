"""Rules for matrices: Muon's kin, with the arguments and defaults of their authors' classes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from thalweg.core.groups import Group
from thalweg.core.state import shown
from thalweg.formula import Rule
from thalweg.optim.fused_torch_optimizer import FusedTorchOptimizer
from thalweg.optim.modern.arguments import Arguments, Rate
from thalweg.rules.modern.muon import muon
from thalweg.rules.modern.muonh import muonh
from thalweg.rules.modern.normuon import normuon

Coefficients = str | tuple[float, float, float] | tuple[tuple[float, float, float], ...]
ORIGINAL = (3.4445, -4.7750, 2.0315)

# The options of a group that choose a rule, with the names of the rules' functions.
_CHOICES = {"nesterov": "nesterov", "ns_coefficients": "coefficients", "ns_steps": "steps",
            "eps": "epsilon", "adjust_lr_fn": "adjust"}  # fmt: skip


def rule_of(group: Mapping[str, Any], made: Callable[..., Rule]) -> Rule:
    """The rule of a group.

    Raises:
        ValueError: An option is not what it can be.
    """
    given = {own: group[name] for name, own in _CHOICES.items() if name in group}
    given["nesterov"], given["epsilon"] = bool(given["nesterov"]), float(given["epsilon"])
    coefficients = given["coefficients"]
    if isinstance(coefficients, list | tuple):  # of a file, say
        several = [tuple(each) if isinstance(each, list) else each for each in coefficients]
        given["coefficients"] = tuple(several)
    try:
        return made(**given)
    except TypeError as error:  # of a list, say, which is no key
        options = ", ".join(f"{name}={shown(group[name])}" for name in _CHOICES if name in group)
        raise ValueError(f"No rule has {options}.") from error


class OfMatrices:
    """What takes matrices alone; those of more dimensions as the first one and all others."""

    _of_matrices = True
    _counts = False
    _unread = tuple(_CHOICES)
    _made: Callable[..., Rule]

    @classmethod
    def _choose_rule(cls, group: Group) -> Rule:
        return rule_of(group, cls._made)

    @classmethod
    def _unfit_choices(cls, group: Mapping[str, Any]) -> list[str]:
        try:
            rule_of(group, cls._made)
        except (KeyError, TypeError, ValueError) as error:
            return [str(error)]
        return []


class MuonArguments(Arguments):
    """What `Muon` is given."""

    def __init__(
        self,
        params: Any,
        lr: Rate = 1e-3,
        weight_decay: float = 0.1,
        momentum: float = 0.95,
        nesterov: bool = True,
        ns_coefficients: Coefficients = ORIGINAL,
        eps: float = 1e-7,
        ns_steps: int = 5,
        adjust_lr_fn: str | None = None,
    ) -> None:
        super().__init__(
            params,
            lr=lr,
            weight_decay=weight_decay,
            momentum=momentum,
            nesterov=nesterov,
            ns_coefficients=ns_coefficients,
            eps=eps,
            ns_steps=ns_steps,
            adjust_lr_fn=adjust_lr_fn,
        )


class Muon(OfMatrices, FusedTorchOptimizer, MuonArguments):
    """Steps are a mean of gradients, all of whose singular values are made 1.

    `ns_coefficients` are three numbers, a tuple of such for each iteration, or "original",
    "quintic" or "polar_express"; `adjust_lr_fn` is "original", "match_rms_adamw" or "rms_to_rms".
    Iterations are in float32 on the CPU, where torch's are in bfloat16, and in bfloat16 elsewhere.

    Source: Jordan 2024, https://kellerjordan.github.io/posts/muon; torch.optim.Muon
    """

    _torch = MuonArguments
    _sparse = "Muon does not support sparse gradients"
    _made = staticmethod(muon)


class NorMuonArguments(Arguments):
    """What `NorMuon` is given."""

    def __init__(
        self,
        params: Any,
        lr: Rate = 0.02,
        weight_decay: float = 0.0,
        momentum: float = 0.95,
        beta2: float = 0.95,
        nesterov: bool = True,
        ns_coefficients: Coefficients = ORIGINAL,
        eps: float = 1e-7,
        ns_steps: int = 5,
        adjust_lr_fn: str | None = None,
    ) -> None:
        super().__init__(
            params,
            lr=lr,
            weight_decay=weight_decay,
            momentum=momentum,
            beta2=beta2,
            nesterov=nesterov,
            ns_coefficients=ns_coefficients,
            eps=eps,
            ns_steps=ns_steps,
            adjust_lr_fn=adjust_lr_fn,
        )


class NorMuon(OfMatrices, FusedTorchOptimizer, NorMuonArguments):
    """Muon, whose rows are divided by a running root of their mean squares.

    Source: Li et al. 2025, https://arxiv.org/abs/2510.05491
    """

    _torch = NorMuonArguments
    _sparse = "NorMuon does not support sparse gradients"
    _made = staticmethod(normuon)


class MuonHArguments(Arguments):
    """What `MuonH` is given."""

    def __init__(
        self,
        params: Any,
        lr: Rate = 1e-3,
        momentum: float = 0.95,
        nesterov: bool = False,
        ns_coefficients: Coefficients = "quintic",
        eps: float = 1e-7,
        ns_steps: int = 5,
    ) -> None:
        super().__init__(
            params,
            lr=lr,
            momentum=momentum,
            nesterov=nesterov,
            ns_coefficients=ns_coefficients,
            eps=eps,
            ns_steps=ns_steps,
        )


class MuonH(OfMatrices, FusedTorchOptimizer, MuonHArguments):
    """Muon on a sphere: a step is as long as its parameter, times the rate, and keeps its norm.

    Source: Hyperball, 2026, https://arxiv.org/abs/2606.16899
    """

    _torch = MuonHArguments
    _sparse = "MuonH does not support sparse gradients"
    _made = staticmethod(muonh)
