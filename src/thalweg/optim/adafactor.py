"""`torch.optim.Adafactor` with row and column statistics in fused steps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from thalweg._base.showing import show_value
from thalweg._core.dtensor import is_on_mesh
from thalweg._core.param_groups import Group
from thalweg.errors import InvalidTypeError
from thalweg.formula import Rule
from thalweg.optim.fused_torch_optimizer import FusedTorchOptimizer
from thalweg.rules.torch.adafactor import adafactor, kind_of


class Adafactor(FusedTorchOptimizer, torch.optim.Adafactor):
    """`torch.optim.Adafactor`, with steps in three sweeps over memory.

    `state[p]` holds `step` and, of matrices, `row_var` and `col_var`, of the parameter's shape with
    1 in place of the last dimension, or the last but one; of all others `variance`. Parameters on
    other devices than CPU and GPU, DTensors and float16 parameters are left to torch.

    Args:
        beta2_decay: The weight of a square in its mean is the number of the step to this power.
        eps: The least root of a mean square, the epsilon of the dtype if None, and the least length
            of a parameter.
        d: How long the mean step may be, where the rate is 1.

    Source: Shazeer & Stern 2018, https://arxiv.org/abs/1804.04235; torch.optim.Adafactor
    """

    _rule = "TORCH_ADAFACTOR"
    _unread = ("eps",)
    _unsupported_options = {
        "state_storage": "has no slots that state_storage may encode: of matrices it keeps a number"
        " for each row and column, and what it keeps of others it measures"
    }

    @staticmethod
    def _rule_by_shape(group: Group, param: Tensor) -> Rule:
        """Return the rule of a parameter: with row and column means for matrices, else with one
        mean.
        """
        root_floor, of_variable = _read_eps(group["eps"])
        if root_floor is None:
            root_floor = torch.finfo(param.dtype).eps
        return adafactor(root_floor, of_variable, kind_of(param.shape))

    @classmethod
    def _unfit_choices(cls, group: Mapping[str, Any]) -> list[str]:
        try:
            _read_eps(group["eps"])
        except InvalidTypeError as error:
            return [str(error).rstrip(".")]
        return []

    @staticmethod
    def _computes(param: Tensor) -> bool:
        """Return True if the engines support the dtype and layout of a parameter."""
        return not is_on_mesh(param) and param.dtype in (
            torch.float32,
            torch.float64,
            torch.bfloat16,
        )


def _read_eps(eps: Any) -> tuple[float | None, float]:
    """Return the two numbers of `eps`: the minimum root of mean squares, or None, and of
    parameters.

    Raises:
        InvalidTypeError: `eps` has another form.
    """
    try:
        root_floor, of_variable = eps
        return None if root_floor is None else float(root_floor), float(of_variable)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InvalidTypeError(
            f"eps must be two numbers, or None and a number, not {show_value(eps)}."
        ) from error
