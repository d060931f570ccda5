"""Adafactor with the arguments, defaults, numbers and state of transformers' class."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from thalweg._base.showing import show_value
from thalweg._core.param_groups import Group, Params
from thalweg.formula import Rule
from thalweg.optim.group_options import number, read_eps
from thalweg.optim.modern.optimizer import ModernOptimizer, Rate
from thalweg.optim.state_mismatch import is_number
from thalweg.rules.modern.adafactor_hf import ADAFACTOR_HF, adafactor_hf


class AdafactorHF(ModernOptimizer):
    """Adafactor as in transformers; `Adafactor` is torch's, with another formula and arguments.

    By default, the rate follows from the number of the step and from the root mean square of each
    parameter, and `lr` is None. For an explicit rate, pass `lr`, `scale_parameter=False` and
    `relative_step=False`. `state[p]` holds `step` and `RMS`; for a matrix `exp_avg_sq_row` and
    `exp_avg_sq_col`; for any other parameter `exp_avg_sq`; with `beta1` also `exp_avg`. Slots of
    16-bit parameters are float32. State dicts of this class and of transformers' load into each
    other.

    Args:
        lr: The learning rate, a number or a tensor of shape (), with `relative_step=False`; else
            None.
        eps: A number added to squares of gradients, and the least root mean square of a parameter.
        clip_threshold: The largest root mean square of a step before it is multiplied by its rate.
        decay_rate: A new square has the weight step ** decay_rate in its mean.
        beta1: The fraction of the mean of steps that a step keeps; None keeps no mean.
        scale_parameter: True if the rate is multiplied by the root mean square of the parameter.
        relative_step: True if the rate is 1 over the root of the step's number, at most 0.01.
        warmup_init: True to bound the relative rate by 1e-6 times the step's number, not by 0.01.

    Raises:
        ValueError: `lr` and `relative_step=True` are both given or both missing, or
            `warmup_init=True` is without `relative_step=True`.

    Source: Shazeer & Stern 2018, https://arxiv.org/abs/1804.04235;
        transformers.optimization.Adafactor
    """

    _rule = "ADAFACTOR_HF"
    _unread = ("lr", "eps", "beta1")
    _unsupported_options = {
        "state_storage": "has no slots that state_storage may encode: of matrices it keeps a number"
        " for each row and column, and all slots are float32 at least"
    }

    def _arguments(
        self,
        params: Params,
        lr: Rate | None = None,
        eps: tuple[float, float] = (1e-30, 1e-3),
        clip_threshold: float = 1.0,
        decay_rate: float = -0.8,
        beta1: float | None = None,
        weight_decay: float = 0.0,
        scale_parameter: bool = True,
        relative_step: bool = True,
        warmup_init: bool = False,
    ) -> None:
        """Do nothing; the signature declares the arguments of the constructor."""

    def _completed(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """Return the arguments unchanged; raise ValueError if `lr` contradicts `relative_step`."""
        # Schedules may write `lr` to groups later, where steps do not read it.
        if arguments["lr"] is not None and arguments["relative_step"]:
            raise ValueError(
                f"Invalid lr value: {show_value(arguments['lr'])} beside relative_step=True; give"
                " relative_step=False, too, and scale_parameter=False for steps of this rate, or"
                " leave out lr."
            )
        return arguments

    @staticmethod
    def _rule_by_shape(group: Group, param: Tensor) -> Rule:
        """Return the rule for the options of a group and the shape of a parameter."""
        beta1, (eps1, eps2) = group["beta1"], read_eps(group["eps"])
        return adafactor_hf(
            param.dim() < 2,
            None if beta1 is None else number(beta1),
            bool(group["relative_step"]),
            eps1,
            eps2,
            torch.float32 if param.dtype == torch.bfloat16 else None,
        )

    @classmethod
    def _choose_rule(cls, group: Group) -> Rule:
        """Return the default rule for the options of a group, that of matrices."""
        return ADAFACTOR_HF if group["relative_step"] else adafactor_hf(is_relative=False)

    def _numbers_in(self, name: str, value: Any) -> Iterable[Any]:
        """Return the numbers to check in an argument; () for `decay_rate`.

        Also return () if `lr` or `beta1` is None.
        """
        if name == "eps":
            return read_eps(value)
        if value is None and name in ("lr", "beta1"):
            return ()
        values = super()._numbers_in(name, value)
        # `decay_rate` is negative, which the caller would reject.
        return () if name == "decay_rate" else values

    @classmethod
    def _check_choices(cls, group: Mapping[str, Any]) -> None:
        read_eps(group["eps"])
        for name in ("lr", "beta1"):
            if group[name] is not None and not is_number(group[name]):
                raise TypeError(f"{name} must be a number or None, not {show_value(group[name])}")
        threshold = group["clip_threshold"]
        if not (is_number(threshold) and number(threshold) > 0):
            raise ValueError(f"clip_threshold must be above 0, not {show_value(threshold)}")
        if group["warmup_init"] and not group["relative_step"]:
            raise ValueError("warmup_init=True needs relative_step=True")
        if group["lr"] is None and not group["relative_step"]:
            raise ValueError("lr is None: give a number, or relative_step=True")

    @staticmethod
    def _get_lr(param_group: Mapping[str, Any], param_state: Mapping[str, Any]) -> Any:
        """Return the rate of the last step of a parameter, for transformers' AdafactorSchedule."""
        rate, step = param_group["lr"], float(param_state["step"])
        if param_group["relative_step"]:
            largest = 1e-6 * step if param_group["warmup_init"] else 1e-2
            rate = min(largest, step**-0.5)
        if not param_group["scale_parameter"]:
            return rate
        return max(param_group["eps"][1], float(param_state["RMS"])) * rate
