"""Option for bfloat16 parameters with a correction in their state."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from thalweg._base.exports import exported_from
from thalweg._base.locks import importing
from thalweg._core.options.base import Option, Others
from thalweg._core.options.master_weights import Masters, Offload
from thalweg.errors import InvalidArgumentError, InvalidTypeError
from thalweg.formula import Rule
from thalweg.variable import dtype_name


@exported_from("thalweg.optim.options")
@dataclass(frozen=True, kw_only=True)
class SplitWeights(Option):
    """Weights of 24 bits: a bfloat16 parameter and a byte of state.

    Attributes:
        weights: "split" makes each bfloat16 parameter the upper 16 bits of a 24-bit weight, which
            steps update. The lower 8 bits are in the state as `correction`, a byte per element. A
            user's write to a parameter keeps the correction, at most half a last place. Slots are
            float32 by default. Reductions, such as LAMB's norms, use the parameters. Sparse
            gradients are made dense. Works on CPU and GPU.
    """

    changes_state = True
    keeps_beside = ("correction",)
    weights: str | None = None

    def __post_init__(self) -> None:
        self._check_choice("weights", "split")

    def check_beside(self, options: Others) -> None:
        for option_class, keyword in ((Masters, "masters"), (Offload, "state_device")):
            if options.of(option_class).on:
                raise InvalidArgumentError(
                    f"weights='split' and {keyword} cannot be together: both say where the rest of"
                    " a weight is kept."
                )

    def check_param(self, param: Tensor, label: str) -> None:
        if param.dtype != torch.bfloat16:
            raise InvalidTypeError(
                f"'{label}' is {dtype_name(param.dtype)}, and weights='split' is for parameters of"
                " bfloat16."
            )

    def rule(self, rule: Rule) -> Rule:
        """Return the rule with a correction slot.

        Raises:
            RuleError: The rule does not support split weights.
        """
        with importing:
            from thalweg._engines.split_weight_rule import split_rule
        return split_rule(rule)
